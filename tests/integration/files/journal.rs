//! Journals: read while they grow, recovered after a kill, and after damage.

use std::sync::OnceLock;

use proptest::prelude::*;

use super::*;

/// A journal of a run, where its blocks end, and the rows of each.
struct Journal {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    rows: Vec<Vec<ReadRow>>,
}

/// The journal of 40 row sets, as it stands before the run ends.
fn journal() -> &'static Journal {
    static JOURNAL: OnceLock<Journal> = OnceLock::new();
    JOURNAL.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let run = run_info(2, None);
        let (opened, _) = open(&[parse(dir.path(), "m.parquet")], &settings(Mode::CreateNew));
        let path = dir.path().join("m.parquet.journal");
        let fan_out = opened.start(Arc::clone(&run));
        let length = || usize::try_from(fs::metadata(&path).unwrap().len()).unwrap();
        wait_until(|| length() > 0);
        let mut ends = vec![length()];
        for batch in (1..=20).flat_map(|n| [window(&run, n), tag_span(&run, n)]) {
            fan_out.send(Arc::new(batch));
            wait_until(|| length() > *ends.last().unwrap() && fan_out.queued() == 0);
            ends.push(length());
        }
        let bytes = fs::read(&path).unwrap();
        let (all, left_out) = read(&path);
        assert_eq!(left_out, None);
        assert_clean(&fan_out.finish(run_end(), DEADLINE));
        let rows = all.chunks(all.len() / 40).map(<[_]>::to_vec).collect();
        Journal { bytes, ends, rows }
    })
}

/// The rows of these row sets.
fn rows_of(blocks: impl IntoIterator<Item = usize>) -> Vec<ReadRow> {
    blocks.into_iter().flat_map(|block| journal().rows[block].clone()).collect()
}

/// What `recover` makes of a journal with this content: what became of it, the rows, and whether the journal is kept.
fn recovered(bytes: &[u8]) -> Result<(internals::Recovered, Vec<ReadRow>, bool), String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.parquet.journal");
    fs::write(&path, bytes).unwrap();
    let done = internals::recover(&path).map_err(|error| error.to_string())?;
    let rows = read(&dir.path().join("m.parquet")).0;
    // Reading the journal itself gives the same; so does a second recovery, which makes no second file.
    if path.exists() {
        assert_eq!(read(&path).0, rows);
        let again = internals::recover(&path).map_err(|error| error.to_string())?;
        assert!(again.was_done && again.damage == done.damage, "{again:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
    Ok((done, rows, path.exists()))
}

/// Whether the rows are those of whole row sets, each at most once and in order.
fn are_whole_blocks(rows: &[ReadRow]) -> bool {
    let mut rest = rows;
    for block in &journal().rows {
        rest = rest.strip_prefix(&block[..]).unwrap_or(rest);
    }
    rest.is_empty()
}

#[test]
fn a_flipped_bit_costs_its_own_row_set_and_keeps_the_journal() {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) };
    proptest!(config, |(at in any::<prop::sample::Index>(), bit in 0..8)| {
        let Journal { bytes, ends, .. } = journal();
        let at = at.index(bytes.len());
        let mut bytes = bytes.clone();
        bytes[at] ^= 1u8 << bit;
        let (done, rows, kept) = recovered(&bytes).unwrap();
        prop_assert!(kept && done.is_damaged());
        // The first block is the schema: without it the rows are all there, and what the run was is not.
        let hit = ends.iter().position(|end| at < *end).unwrap();
        prop_assert_eq!(rows, rows_of((0..40).filter(|block| hit == 0 || *block != hit - 1)));
        let start = if hit == 0 { 0 } else { ends[hit - 1] };
        prop_assert_eq!((done.damage[0].offset, done.damage[0].bytes), (start as u64, (ends[hit] - start) as u64));
    });
}

#[test]
fn zeros_cost_the_row_sets_that_they_touch() {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) };
    proptest!(config, |(at in any::<prop::sample::Index>(), length in 64usize..4096)| {
        let Journal { bytes, ends, .. } = journal();
        let at = at.index(bytes.len() - 1);
        let end = (at + length).min(bytes.len());
        let mut damaged = bytes.clone();
        damaged[at..end].fill(0);
        let (done, rows, kept) = recovered(&damaged).unwrap();
        let start = |block: usize| ends[block];
        let touched = |block: &usize| {
            let (start, stop) = (start(*block), ends[block + 1]);
            damaged[start..stop] != bytes[start..stop]
        };
        prop_assert_eq!(rows, rows_of((0..40).filter(|block| !touched(block))));
        prop_assert_eq!(kept, done.is_damaged());
        // A last row set of zeros alone is one that had not come to the disk.
        prop_assert!(kept || done.torn_bytes > 0 || damaged == *bytes);
    });
}

#[test]
fn fuzz_whatever_is_done_to_a_journal_no_row_is_changed_in_silence() {
    fuzz(150, |config| {
        proptest!(config, |(edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..300, prop::collection::vec(any::<u8>(), 0..40)), 1..4))| {
            let mut bytes = journal().bytes.clone();
            for (at, removed, inserted) in edits {
                let at = at.index(bytes.len());
                let end = (at + removed).min(bytes.len());
                bytes.splice(at..end, inserted);
            }
            match recovered(&bytes) {
                Ok((done, rows, kept)) => {
                    prop_assert!(are_whole_blocks(&rows));
                    prop_assert!(rows.len() == rows_of(0..40).len() || kept || done.torn_bytes > 0);
                }
                Err(said) => prop_assert!(said.contains("m.parquet.journal"), "{}", said),
            }
        });
    });
}

#[test]
fn what_is_no_journal_is_one_line() {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) };
    proptest!(config, |(bytes in prop::collection::vec(any::<u8>(), 1..3000))| {
        let said = recovered(&bytes).unwrap_err();
        prop_assert!(said.starts_with("cannot read ") && !said.contains('\n'), "{}", said);
    });
}

#[test]
fn recover_says_which_windows_are_missing_and_goes_on_with_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let Journal { bytes, ends, .. } = journal();
    for name in ["good", "z-good"] {
        fs::write(dir.path().join(format!("{name}.parquet.journal")), bytes).unwrap();
    }
    let mut damaged = bytes.clone();
    // The fourth and fifth row set: the window that ends at 20 s and its tag.
    damaged[ends[3] + 40] ^= 1;
    damaged[ends[4] + 40] ^= 1;
    fs::write(dir.path().join("m.parquet.journal"), &damaged).unwrap();
    fs::write(dir.path().join("n.parquet.journal"), [7; 100]).unwrap();
    for round in 0..2 {
        let outcome = recover(dir.path(), &["."]);
        assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
        let err = String::from_utf8_lossy(&outcome.stderr).into_owned();
        let lines: Vec<_> = err.lines().collect();
        let length = ends[5] - ends[3];
        let missing = format!(
            "./m.parquet.journal: {length} bytes at offset {} are damaged: rows of windows that ended after \
             2026-09-21T14:13:40.000123Z and before 2026-09-21T14:13:50.000123Z are missing; the journal is kept",
            ends[3]
        );
        assert!(lines.len() == 2 && lines[0].ends_with(&missing), "{err}");
        assert!(lines[1].contains("n.parquet.journal"), "{err}");
        let out = String::from_utf8_lossy(&outcome.stdout).into_owned();
        assert_eq!(out.matches("rows recovered").count(), if round == 0 { 3 } else { 0 }, "{out}");
        assert!(dir.path().join("m.parquet.journal").exists());
        assert_eq!(read(&dir.path().join("m.parquet")).0, rows_of((0..40).filter(|n| ![3, 4].contains(n))));
        assert_eq!(read(&dir.path().join("z-good.parquet")).0, rows_of(0..40));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2 + 2 + 1, "no temporary file and no second copy");
    let export = std::process::Command::new(support::gpurun())
        .args(["export", "m.parquet.journal", "-o", "x.csv"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(export.status.code(), Some(1), "{export:?}");
    assert!(String::from_utf8_lossy(&export.stderr).contains("are damaged"), "{export:?}");
    assert_eq!(read(&dir.path().join("x.csv")).0.len(), rows_of(0..38).len());
}

#[test]
fn a_job_runs_beside_the_damaged_journal_of_the_run_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut damaged = journal().bytes.clone();
    damaged[journal().ends[3] + 40] ^= 1;
    let path = dir.path().join("m.parquet.journal");
    for (content, status, file) in [(damaged, 7, "m-2.parquet"), (vec![7; 100], 125, "m-2.parquet")] {
        fs::write(&path, &content).unwrap();
        let run = |options: &[&str]| {
            let mut command = std::process::Command::new(support::gpurun());
            command
                .args(["--append", "--log", "m.parquet"])
                .args(options)
                .args(["--", "sh", "-c", "exit 7"])
                .env("GPURUN_NVML_LIBRARY", "/nonexistent")
                .current_dir(dir.path());
            command.output().unwrap()
        };
        let output = run(&[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains("m.parquet.journal"), "{said}");
        if status == 7 {
            assert!(said.contains(file) && said.contains("is damaged"), "{said}");
            assert!(!read(&dir.path().join(file)).0.is_empty());
        }
        assert_eq!(run(&["--best-effort"]).status.code(), Some(7));
        assert_eq!(fs::read(&path).unwrap(), content, "the journal stays as it is");
    }
}

#[test]
fn a_live_journal_can_be_read_but_not_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(1, None);
    let (opened, _) = open(&[parse(dir.path(), "m.parquet")], &settings(Mode::CreateNew));
    let journal = dir.path().join("m.parquet.journal");
    let fan_out = opened.start(Arc::clone(&run));
    fan_out.send(Arc::new(window(&run, 1)));
    let rows = run.series.len() + 1;
    wait_until(|| internals::rows(&journal).is_ok_and(|log| log.filter(Result::is_ok).count() == rows));
    let busy = internals::recover(&journal).unwrap_err();
    assert!(busy.to_string().contains("running gpurun"), "{busy}");
    assert_clean(&fan_out.finish(run_end(), DEADLINE));
    assert!(!journal.exists());
}

#[test]
fn recover_keeps_every_whole_batch_of_a_journal_cut_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(1, None);
    let (opened, _) = open(&[parse(dir.path(), "m.parquet")], &settings(Mode::CreateNew));
    let journal = dir.path().join("m.parquet.journal");
    let fan_out = opened.start(Arc::clone(&run));
    wait_until(|| fs::metadata(&journal).unwrap().len() > 0);
    let mut ends = vec![fs::metadata(&journal).unwrap().len()];
    let all = batches(&run, 5);
    for batch in &all {
        let rows: usize = ends.len() * batch.rows.len();
        fan_out.send(Arc::new(batch.clone()));
        wait_until(|| internals::rows(&journal).is_ok_and(|log| log.filter(Result::is_ok).count() == rows));
        ends.push(fs::metadata(&journal).unwrap().len());
    }
    let bytes = fs::read(&journal).unwrap();
    assert_clean(&fan_out.finish(run_end(), DEADLINE));
    let (expected, _) = read(&dir.path().join("m.parquet"));
    let rows = all[0].rows.len();
    let start = ends[0] as usize;
    for cut in (start..bytes.len()).step_by(397).chain([bytes.len()]) {
        let torn = dir.path().join("t.parquet.journal");
        fs::write(&torn, &bytes[..cut]).unwrap();
        let done = internals::recover(&torn).unwrap();
        let whole = ends.iter().filter(|&&end| end as usize <= cut).count() - 1;
        assert_eq!(done.rows as usize, whole * rows, "cut at {cut}");
        assert_eq!(done.torn_bytes as usize, cut - ends[whole] as usize);
        let (got, _) = read(&dir.path().join("t.parquet"));
        assert!(got == expected[..whole * rows], "cut at {cut}");
        assert!(!torn.exists());
        // Once more, as after a death between the rename and the removal of the journal.
        fs::write(&torn, &bytes[..cut]).unwrap();
        assert!(internals::recover(&torn).unwrap().was_done);
        assert!(!torn.exists());
        fs::remove_file(dir.path().join("t.parquet")).unwrap();
    }
}

/// A directory with the journal, long enough that its recovery takes a while.
fn long_journal() -> (tempfile::TempDir, usize) {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(8, None);
    let (opened, _) = open(&[parse(dir.path(), "m.parquet")], &settings(Mode::CreateNew));
    let path = dir.path().join("m.parquet.journal");
    let fan_out = opened.start(Arc::clone(&run));
    for n in 1..=400 {
        fan_out.send(Arc::new(window(&run, n)));
    }
    wait_until(|| fan_out.queued() == 0);
    let bytes = fs::read(&path).unwrap();
    assert_clean(&fan_out.finish(run_end(), DEADLINE));
    fs::remove_file(dir.path().join("m.parquet")).unwrap();
    fs::write(path, bytes).unwrap();
    (dir, 400 * (run.series.len() + 1))
}

#[test]
fn eight_recoveries_at_once_make_one_file() {
    let (dir, rows) = long_journal();
    let start = || {
        let mut command = std::process::Command::new(support::gpurun());
        let piped = std::process::Stdio::piped;
        command
            .args(["recover", "."])
            .current_dir(dir.path())
            .stdout(piped())
            .stderr(piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<_> = (0..8).map(|_| start()).collect();
    let mut recovered = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        // One that found the journal and came too late to open it may say so.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        recovered += String::from_utf8_lossy(&output.stdout).matches("rows recovered").count();
    }
    assert_eq!(recovered, 1);
    assert_eq!(read(&dir.path().join("m.parquet")).0.len(), rows);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_recovery_that_is_killed_costs_nothing() {
    let (dir, rows) = long_journal();
    for round in 0..30u64 {
        let mut child = std::process::Command::new(support::gpurun())
            .args(["recover", "."])
            .current_dir(dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // An instant of its work that differs from round to round.
        for _ in 0..round * 100_000 {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(recover(dir.path(), &["."]).status.success());
    assert_eq!(read(&dir.path().join("m.parquet")).0.len(), rows);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "neither a journal nor a temporary file stays");
}
