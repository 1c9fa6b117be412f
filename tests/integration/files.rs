//! The files themselves: what writers leave behind on good and bad days.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpurun::model::device::DeviceIdentity;
use gpurun::model::id::{GpuUuid, ProcessKey};
use gpurun::model::metric::MetricId;
use gpurun::model::run::{JobExit, RunEnd, RunInfo};
use gpurun::model::series::{ProcessIdentity, SeriesInfo};
use gpurun::model::time::{Mono, Wall};
use gpurun::model::window::{Row, RowKind, Stats, WindowBatch};
use gpurun::writers::read::ReadRow;
use gpurun::writers::target::Target;
use gpurun::writers::{self, Layout, Mode, WriterReport, WriterSettings};

use crate::support;

pub(crate) const START: i64 = 1_790_000_000_000_000;
const DEADLINE: Duration = Duration::from_secs(60);

/// A run of `gpus` devices, with three metrics on each, two of the host and one process.
pub(crate) fn run_info(gpus: u32, rank: Option<i32>) -> Arc<RunInfo> {
    let devices: Vec<_> = (0..gpus)
        .map(|n| {
            Arc::new(DeviceIdentity {
                index: n + 2,
                mig: None,
                cuda: Some(n),
                uuid: GpuUuid::new(format!("GPU-{n:08}-0000-0000-0000-000000000000")),
                name: Some("Test GPU".into()),
                memory_total: Some(80 << 30),
            })
        })
        .collect();
    let mut series = Vec::new();
    let mut add = |metric, device: Option<&Arc<DeviceIdentity>>| {
        series.push(Arc::new(SeriesInfo {
            metric,
            label: None,
            device: device.cloned(),
            process: None,
            pace: Duration::from_secs(1),
        }));
    };
    add(MetricId::HostCpuPercent, None);
    add(MetricId::HostMemoryUsed, None);
    for device in &devices {
        add(MetricId::GpuGpuUtilization, Some(device));
        add(MetricId::GpuMemoryUsed, Some(device));
        add(MetricId::GpuPowerUsage, Some(device));
    }
    add(MetricId::JobCpuPercent, None);
    Arc::new(RunInfo {
        run: "20260921T141320Z-node1-42".into(),
        host: "node1".into(),
        rank,
        node_rank: None,
        job: "train.py".into(),
        root_tag: "run".into(),
        argv: vec!["python".into(), "train.py, the \"long\" one".into()],
        version: "0.1.0",
        driver: Some("580.65".into()),
        devices,
        interval: Duration::from_secs(1),
        window: Duration::from_secs(10),
        start: Wall(START),
        start_mono: Mono(0),
        series,
    })
}

/// A value that differs for every series and window, with one null in eleven.
fn stats(n: u64, series: u64) -> Stats {
    let x = (n * 7919 + series * 104_729) % 10_007;
    if x.is_multiple_of(11) {
        return Stats { missing: 10, ..Stats::default() };
    }
    let mean = x as f64 / 7.0;
    Stats {
        mean: Some(mean),
        min: Some(mean.floor()),
        max: Some(mean.ceil() + 1.0),
        last: Some(mean + 0.5),
        samples: 10,
        missing: 0,
    }
}

pub(crate) fn process_series() -> Arc<SeriesInfo> {
    Arc::new(SeriesInfo {
        metric: MetricId::ProcessMemoryRss,
        label: None,
        device: None,
        process: Some(Arc::new(ProcessIdentity {
            key: ProcessKey { pid: 4242, start_ticks: 1 },
            name: "python, \"x\"\nnew line".into(),
        })),
        pace: Duration::from_secs(1),
    })
}

/// The `n`th window, from 1.
pub(crate) fn window(run: &RunInfo, n: u64) -> WindowBatch {
    let mut series = run.series.clone();
    series.push(process_series());
    WindowBatch {
        kind: RowKind::Window,
        tag: Arc::clone(&run.root_tag),
        occurrence: 1,
        epoch: None,
        step: None,
        rank: run.rank,
        ordinal: n,
        start: Mono((n - 1) * 10_000_000_000),
        end: Mono(n * 10_000_000_000),
        time: Wall(run.start.0 + i64::try_from(n).unwrap() * 10_000_000 + 123),
        window_s: 10.0,
        rows: series
            .into_iter()
            .enumerate()
            .map(|(k, series)| Row { series, stats: stats(n, k as u64) })
            .collect(),
    }
}

pub(crate) fn tag_span(run: &RunInfo, n: u64) -> WindowBatch {
    WindowBatch { kind: RowKind::Tag, tag: "run/train/batch".into(), window_s: 2.5, ..window(run, n) }
}

pub(crate) fn steps(run: &RunInfo, n: u64) -> WindowBatch {
    WindowBatch { kind: RowKind::Step, step: Some(i64::try_from(n).unwrap() * 50), ..window(run, n) }
}

pub(crate) fn run_end() -> RunEnd {
    RunEnd { exit: Some(JobExit::Code(3)), end: Wall(START + 1_000_000_000), duration_s: 1000.0 }
}

/// Writes the batches to the targets and waits for the end.
pub(crate) fn write(
    targets: &[&str],
    dir: &Path,
    settings: &WriterSettings,
    run: &Arc<RunInfo>,
    batches: impl IntoIterator<Item = WindowBatch>,
) -> Vec<WriterReport> {
    let targets: Vec<_> = targets.iter().map(|name| parse(dir, name)).collect();
    let (opened, failures) = writers::open(&targets, settings);
    assert!(failures.is_empty(), "{failures:?}");
    let fan_out = opened.start(Arc::clone(run));
    for batch in batches {
        fan_out.send(Arc::new(batch));
    }
    fan_out.finish(run_end(), DEADLINE)
}

pub(crate) fn parse(dir: &Path, name: &str) -> Target {
    match name.strip_prefix("tensorboard:") {
        Some(rest) => Target::TensorBoard(dir.join(rest)),
        None => Target::parse(dir.join(name).to_str().unwrap()).unwrap(),
    }
}

fn assert_clean(reports: &[WriterReport]) {
    for report in reports {
        assert_eq!(report.error, None, "{report:?}");
        assert_eq!(report.lost_rows, 0, "{report:?}");
    }
}

fn settings(mode: Mode) -> WriterSettings {
    WriterSettings { mode, ..WriterSettings::default() }
}

#[test]
fn csv_holds_every_row_with_the_columns_of_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(2, Some(1));
    let reports =
        write(&["m.csv"], dir.path(), &settings(Mode::CreateNew), &run, [window(&run, 1), steps(&run, 2)]);
    assert_clean(&reports);
    let text = fs::read_to_string(dir.path().join("m.csv")).unwrap();
    let mut lines = text.lines();
    assert_eq!(
        lines.next().unwrap(),
        "time,window_s,run,host,rank,kind,tag,step,scope,gpu,cuda,uuid,pid,process,metric,unit,mean,min,max,last,\
         samples,missing"
    );
    assert_eq!(
        lines.next().unwrap(),
        "2026-09-21T14:13:30.000123Z,10.0,20260921T141320Z-node1-42,node1,1,window,run,,host,,,,,,cpu_percent,%,\
         1131.2857142857142,1131.0,1133.0,1131.7857142857142,10,0"
    );
    assert_eq!(text.lines().count(), 1 + 2 * (run.series.len() + 1));
    assert!(text.contains("\"python, \"\"x\"\" new line\""));
    assert_eq!(reports[0].rows as usize, 2 * (run.series.len() + 1));
}

#[test]
fn existing_files_stop_the_run_before_the_job_and_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.csv");
    fs::write(&path, "mine").unwrap();
    let targets = [parse(dir.path(), "m.csv"), parse(dir.path(), "new.csv"), parse(dir.path(), "no/dir.csv")];
    let (opened, failures) = writers::open(&targets, &settings(Mode::CreateNew));
    assert_eq!(failures.len(), 2);
    assert!(failures[0].error.to_string().contains("--overwrite"), "{}", failures[0].error);
    assert!(failures[1].error.to_string().contains("no/dir.csv"), "{}", failures[1].error);
    assert_eq!(opened.targets().count(), 1);
    assert!(dir.path().join("new.csv").exists());
    drop(opened);
    assert!(!dir.path().join("new.csv").exists(), "a log of a run that never was");
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn append_cuts_a_torn_line_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(1, None);
    assert_clean(&write(&["m.csv"], dir.path(), &settings(Mode::CreateNew), &run, [window(&run, 1)]));
    let path = dir.path().join("m.csv");
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 3]).unwrap();

    let (opened, failures) = writers::open(&[parse(dir.path(), "m.csv")], &settings(Mode::Append));
    assert!(failures.is_empty());
    let fan_out = opened.start(Arc::clone(&run));
    fan_out.send(Arc::new(window(&run, 2)));
    let mut notices = Vec::new();
    wait_until(|| {
        notices.extend(fan_out.notices().take());
        !notices.is_empty()
    });
    assert!(notices[0].contains("incomplete last line"), "{notices:?}");
    assert_clean(&fan_out.finish(run_end(), DEADLINE));

    let rows = run.series.len() + 1;
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 1 + rows - 1 + rows);
    assert!(text.ends_with('\n'));

    fs::write(&path, "time,other\n").unwrap();
    let (_, failures) = writers::open(&[parse(dir.path(), "m.csv")], &settings(Mode::Append));
    assert!(failures[0].error.to_string().contains("cannot append"), "{}", failures[0].error);
}

/// Waits for a condition that another thread brings about.
pub(crate) fn wait_until(mut done: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + DEADLINE;
    while !done() {
        assert!(std::time::Instant::now() < until, "the condition never held");
        std::thread::yield_now();
    }
}

#[test]
fn a_deleted_log_directory_is_made_again_with_all_rows() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(1, None);
    fs::create_dir(dir.path().join("logs")).unwrap();
    let path: PathBuf = dir.path().join("logs/m.csv");
    let (opened, _) = writers::open(&[parse(dir.path(), "logs/m.csv")], &settings(Mode::CreateNew));
    let fan_out = opened.start(Arc::clone(&run));
    fan_out.send(Arc::new(window(&run, 1)));
    let rows = run.series.len() + 1;
    wait_until(|| fs::read_to_string(&path).is_ok_and(|t| t.lines().count() == 1 + rows));
    fs::remove_dir_all(dir.path().join("logs")).unwrap();
    fan_out.send(Arc::new(window(&run, 2)));
    assert_clean(&fan_out.finish(run_end(), DEADLINE));
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1 + 2 * rows);
}

/// Every row of a log, and what was left out of it.
pub(crate) fn read(path: &Path) -> (Vec<ReadRow>, Option<String>) {
    let mut log = writers::read::rows(path).unwrap();
    let rows: Vec<_> = log.by_ref().collect::<Result<_, _>>().unwrap();
    (rows, log.dropped().map(str::to_owned))
}

fn batches(run: &RunInfo, windows: u64) -> Vec<WindowBatch> {
    (1..=windows).flat_map(|n| [window(run, n), tag_span(run, n), steps(run, n)]).collect()
}

#[test]
fn csv_and_parquet_read_back_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(3, Some(1));
    let batches = batches(&run, 40);
    let count: usize = batches.iter().map(|b| b.rows.len()).sum();
    let reports = write(&["m.csv", "m.parquet"], dir.path(), &settings(Mode::CreateNew), &run, batches);
    assert_clean(&reports);
    assert!(!dir.path().join("m.parquet.journal").exists());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    let (csv, _) = read(&dir.path().join("m.csv"));
    let (parquet, _) = read(&dir.path().join("m.parquet"));
    assert_eq!(csv.len(), count);
    // A line of CSV is a row: the line end in the process name became a blank there.
    let plain: Vec<_> = parquet
        .into_iter()
        .map(|mut row| {
            row.process = row.process.map(|p| p.replace('\n', " ").into());
            row
        })
        .collect();
    assert_eq!(csv, plain);
}

#[test]
fn wide_files_hold_what_the_long_ones_hold() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(2, None);
    let wide = WriterSettings { layout: Layout::Wide, ..settings(Mode::CreateNew) };
    assert_clean(&write(&["w.csv", "w.parquet"], dir.path(), &wide, &run, batches(&run, 20)));
    assert_clean(&write(&["l.parquet"], dir.path(), &settings(Mode::CreateNew), &run, batches(&run, 20)));
    let header = fs::read_to_string(dir.path().join("w.csv")).unwrap();
    let header = header.lines().next().unwrap();
    assert!(header.starts_with("time,window_s,run,host,rank,kind,tag,step,run/host/cpu_percent (%)/mean,"));
    assert!(header.contains(",run/cuda:0 (gpu:2)/gpu_utilization (%)/last,"), "{header}");
    let (csv, _) = read(&dir.path().join("w.csv"));
    let (parquet, _) = read(&dir.path().join("w.parquet"));
    let (long, _) = read(&dir.path().join("l.parquet"));
    let expected: Vec<_> = long
        .into_iter()
        .filter(|row| &*row.scope != "process")
        .map(|row| ReadRow { samples: None, missing: None, ..row })
        .collect();
    assert_eq!(parquet, expected);
    let without_uuid: Vec<_> = expected.into_iter().map(|row| ReadRow { uuid: None, ..row }).collect();
    assert_eq!(csv, without_uuid);
}

#[test]
fn appending_to_parquet_keeps_both_runs() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(1, None);
    assert_clean(&write(&["m.parquet"], dir.path(), &settings(Mode::CreateNew), &run, [window(&run, 1)]));
    let later = Arc::new(RunInfo { run: "second".into(), start: Wall(START + 1), ..(*run).clone() });
    assert_clean(&write(&["m.parquet"], dir.path(), &settings(Mode::Append), &later, [window(&later, 2)]));
    let log = writers::read::rows(&dir.path().join("m.parquet")).unwrap();
    let runs: serde_json::Value = serde_json::from_str(&log.metadata()["gpurun.runs"]).unwrap();
    assert_eq!(runs[0]["run"], "20260921T141320Z-node1-42");
    assert_eq!(runs[1]["run"], "second");
    assert_eq!(log.metadata()["gpurun.exit"], "3");
    let rows: Vec<_> = log.map(|r| r.unwrap().run.to_string()).collect();
    assert_eq!(rows.len(), 2 * (run.series.len() + 1));
    assert_eq!(rows.last().unwrap(), "second");
    let (_, failures) = writers::open(
        &[parse(dir.path(), "m.parquet")],
        &WriterSettings { layout: Layout::Wide, ..settings(Mode::Append) },
    );
    assert!(failures[0].error.to_string().contains("long layout"), "{}", failures[0].error);
    assert_clean(&write(&["m.parquet"], dir.path(), &settings(Mode::Overwrite), &run, [window(&run, 1)]));
    assert_eq!(read(&dir.path().join("m.parquet")).0.len(), run.series.len() + 1);
}

#[test]
fn a_live_journal_can_be_read_but_not_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(1, None);
    let (opened, _) = writers::open(&[parse(dir.path(), "m.parquet")], &settings(Mode::CreateNew));
    let journal = dir.path().join("m.parquet.journal");
    let fan_out = opened.start(Arc::clone(&run));
    fan_out.send(Arc::new(window(&run, 1)));
    let rows = run.series.len() + 1;
    wait_until(|| writers::read::rows(&journal).is_ok_and(|log| log.filter(Result::is_ok).count() == rows));
    let busy = writers::recover(&journal).unwrap_err();
    assert!(busy.to_string().contains("running gpurun"), "{busy}");
    assert_clean(&fan_out.finish(run_end(), DEADLINE));
    assert!(!journal.exists());
}

#[test]
fn recover_keeps_every_whole_batch_of_a_journal_cut_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(1, None);
    let (opened, _) = writers::open(&[parse(dir.path(), "m.parquet")], &settings(Mode::CreateNew));
    let journal = dir.path().join("m.parquet.journal");
    let fan_out = opened.start(Arc::clone(&run));
    wait_until(|| fs::metadata(&journal).unwrap().len() > 0);
    let mut ends = vec![fs::metadata(&journal).unwrap().len()];
    let all = batches(&run, 5);
    for batch in &all {
        let rows: usize = ends.len() * batch.rows.len();
        fan_out.send(Arc::new(batch.clone()));
        wait_until(|| {
            writers::read::rows(&journal).is_ok_and(|log| log.filter(Result::is_ok).count() == rows)
        });
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
        let done = writers::recover(&torn).unwrap();
        let whole = ends.iter().filter(|&&end| end as usize <= cut).count() - 1;
        assert_eq!(done.rows as usize, whole * rows, "cut at {cut}");
        assert_eq!(done.torn_bytes as usize, cut - ends[whole] as usize);
        let (got, _) = read(&dir.path().join("t.parquet"));
        assert!(got == expected[..whole * rows], "cut at {cut}");
        assert!(!torn.exists());
        // Once more, as after a death between the rename and the removal of the journal.
        fs::write(&torn, &bytes[..cut]).unwrap();
        assert!(writers::recover(&torn).unwrap().was_done);
        assert!(!torn.exists());
        fs::remove_file(dir.path().join("t.parquet")).unwrap();
    }
}

/// The data of the whole records of an event file, and the bytes after the last of them.
fn event_records(path: &Path) -> (Vec<Vec<u8>>, usize) {
    let bytes = fs::read(path).unwrap();
    let masked = |data: &[u8]| crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let mut records = Vec::new();
    let mut at = 0;
    while let Some(head) = bytes.get(at..at + 12) {
        assert_eq!(masked(&head[..8]), head[8..], "a length without its checksum at {at}");
        let length = usize::try_from(u64::from_le_bytes(head[..8].try_into().unwrap())).unwrap();
        let Some(rest) = bytes.get(at + 12..at + 12 + length + 4) else { break };
        assert_eq!(masked(&rest[..length]), rest[length..], "data without its checksum at {at}");
        records.push(rest[..length].to_vec());
        at += 12 + length + 4;
    }
    (records, bytes.len() - at)
}

fn only_event_file(dir: &Path) -> PathBuf {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

/// `gpurun recover`.
fn recover(dir: &Path, paths: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(support::gpurun());
    command.arg("recover").args(paths).current_dir(dir).output().unwrap()
}

/// Not a test: the process that is killed. Says the number of each window when all three files have the
/// beginning of it, and so the whole of the window before.
#[test]
#[ignore = "helper of a_killed_writer_leaves_every_window_it_wrote"]
fn helper_writes_until_killed() {
    let Ok(dir) = std::env::var("GPURUN_TEST_WRITER_DIR") else { return };
    let dir = PathBuf::from(dir);
    let run = run_info(2, None);
    let targets = ["m.csv", "m.parquet", "tensorboard:tb"].map(|name| parse(&dir, name));
    let (opened, failures) = writers::open(&targets, &settings(Mode::CreateNew));
    assert!(failures.is_empty(), "{failures:?}");
    let fan_out = opened.start(Arc::clone(&run));
    let files = [dir.join("m.csv"), dir.join("m.parquet.journal"), only_event_file(&dir.join("tb/gpurun"))];
    let sizes = || files.each_ref().map(|path| fs::metadata(path).unwrap().len());
    wait_until(|| sizes().iter().all(|&size| size > 0));
    for n in 1.. {
        fan_out.send(Arc::new(window(&run, n)));
        wait_until(|| fan_out.queued() == 0);
        use std::io::Write as _;
        writeln!(std::io::stdout(), "window {n}").unwrap();
    }
}

#[test]
fn a_killed_writer_leaves_every_window_it_wrote() {
    use std::io::{BufRead as _, BufReader};

    let run = run_info(2, None);
    let expected: Vec<ReadRow> = {
        let dir = tempfile::tempdir().unwrap();
        assert_clean(&write(
            &["m.parquet"],
            dir.path(),
            &settings(Mode::CreateNew),
            &run,
            (1..=5000).map(|n| window(&run, n)),
        ));
        read(&dir.path().join("m.parquet")).0
    };
    let rows = run.series.len() + 1;
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for round in 0..300 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["files::helper_writes_until_killed", "--exact", "--ignored", "--nocapture"])
            .env("GPURUN_TEST_WRITER_DIR", dir.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let until = random % 12;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = 0;
        while said < until {
            let line = lines.next().expect("the helper ended by itself").unwrap();
            if let Some(n) = line.strip_prefix("window ") {
                said = n.parse().unwrap();
            }
        }
        // Some instant inside the next window.
        for _ in 0..random % 50_000 {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let said: usize = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("window ")?.parse().ok())
            .fold(usize::try_from(said).unwrap(), usize::max);

        let outcome = recover(dir.path(), &["."]);
        assert!(outcome.status.success(), "round {round}: {outcome:?}");
        if round % 20 == 0 {
            let again = recover(dir.path(), &["."]);
            assert!(again.status.success() && again.stderr.is_empty(), "{again:?}");
            let did = String::from_utf8_lossy(&again.stdout).into_owned();
            assert!(!did.contains("recovered") && !did.contains("cut"), "recover is not idempotent: {did}");
        }

        if said == 0 {
            // It may have died before it made its files.
            continue;
        }
        let (csv, torn) = read(&dir.path().join("m.csv"));
        assert_eq!(torn, None);
        assert!(
            csv.len() >= said * rows,
            "round {round}: CSV lost a window: {} rows, {said} windows",
            csv.len()
        );
        let (parquet, torn) = read(&dir.path().join("m.parquet"));
        assert_eq!(torn, None);
        assert!(parquet.len() >= said * rows, "round {round}: Parquet lost a window");
        assert_eq!(parquet.len() % rows, 0);
        assert!(parquet == expected[..parquet.len()], "round {round}: a recovered value differs");
        for (got, want) in csv.iter().zip(&expected) {
            assert_eq!(
                (got.time_us, got.mean, got.min, got.max, got.last),
                (want.time_us, want.mean, want.min, want.max, want.last)
            );
        }
        let (events, _) = event_records(&only_event_file(&dir.path().join("tb/gpurun")));
        assert!(events.len() > said, "round {round}: {} events for {said} windows", events.len());
    }
}

/// A tmpfs of a size of its own, unmounted when dropped.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(size: &str) -> Option<SmallDisk> {
        let disk = SmallDisk { dir: tempfile::tempdir().unwrap() };
        let mounted = disk.run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
        if !mounted {
            assert!(
                std::env::var_os("GPURUN_TEST_NO_MOUNT").is_some(),
                "cannot mount a tmpfs; run as root, or set GPURUN_TEST_NO_MOUNT to leave these tests out"
            );
            return None;
        }
        Some(disk)
    }

    fn grow(&self, size: &str) {
        assert!(self.run("mount", &["-o", &format!("remount,size={size}")]));
    }

    fn run(&self, program: &str, args: &[&str]) -> bool {
        std::process::Command::new(program)
            .args(args)
            .arg(self.dir.path())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap()
            .success()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.run("umount", &[]);
    }
}

const THREE: [&str; 3] = ["m.csv", "m.parquet", "tensorboard:tb"];

#[test]
fn a_disk_that_fills_and_grows_again_costs_no_window() {
    let Some(disk) = SmallDisk::mount("64k") else { return };
    let dir = disk.dir.path();
    let run = run_info(2, None);
    let (opened, failures) = writers::open(&THREE.map(|n| parse(dir, n)), &settings(Mode::CreateNew));
    assert!(failures.is_empty(), "{failures:?}");
    let fan_out = opened.start(Arc::clone(&run));
    let mut notices = Vec::new();
    let mut n = 0;
    let failing = |notices: &[String]| notices.iter().filter(|t| t.contains("kept in memory")).count();
    while failing(&notices) < 3 {
        n += 1;
        assert!(n < 10_000, "the disk never filled: {notices:?}");
        fan_out.send(Arc::new(window(&run, n)));
        std::thread::yield_now();
        notices.extend(fan_out.notices().take());
    }
    for _ in 0..50 {
        n += 1;
        fan_out.send(Arc::new(window(&run, n)));
    }
    disk.grow("16m");
    // Sent again until each writer has met the room.
    while notices.iter().filter(|t| t.contains("nothing is lost")).count() < 3 {
        n += 1;
        fan_out.send(Arc::new(window(&run, n)));
        std::thread::yield_now();
        notices.extend(fan_out.notices().take());
    }
    let reports = fan_out.finish(run_end(), DEADLINE);
    assert_clean(&reports);
    let windows = usize::try_from(n).unwrap();
    let rows = run.series.len() + 1;
    for report in &reports {
        assert_eq!(report.rows as usize, windows * rows, "{report:?}");
    }
    let (csv, _) = read(&dir.join("m.csv"));
    let (parquet, _) = read(&dir.join("m.parquet"));
    assert_eq!((csv.len(), parquet.len()), (windows * rows, windows * rows));
    for (k, rows) in csv.chunks(rows).enumerate() {
        assert_eq!(rows[0].time_us, window(&run, k as u64 + 1).time.0, "a gap or a repetition");
    }
    let (events, torn) = event_records(&only_event_file(&dir.join("tb/gpurun")));
    assert_eq!((events.len(), torn), (1 + windows, 0));
}

#[test]
fn a_disk_that_stays_full_is_said_once_and_its_loss_is_counted() {
    let Some(disk) = SmallDisk::mount("64k") else { return };
    let dir = disk.dir.path();
    let run = run_info(2, None);
    let small = WriterSettings { memory_bound: 20_000, ..settings(Mode::CreateNew) };
    let (opened, _) = writers::open(&THREE.map(|n| parse(dir, n)), &small);
    let fan_out = opened.start(Arc::clone(&run));
    let mut notices = Vec::new();
    let mut sent = 0;
    while notices.len() < 3 || sent < 300 {
        sent += 1;
        assert!(sent < 10_000, "the disk never filled");
        fan_out.send(Arc::new(window(&run, sent)));
        std::thread::yield_now();
        notices.extend(fan_out.notices().take());
    }
    let rows = run.series.len() as u64 + 1;
    let reports = fan_out.finish(run_end(), DEADLINE);
    for report in &reports {
        assert!(report.error.is_some(), "{report:?}");
        assert!(report.lost_rows > 0, "{report:?}");
        assert_eq!(report.rows + report.lost_rows, sent * rows, "{report:?}");
    }
    let (csv, torn) = read(&dir.join("m.csv"));
    assert_eq!((csv.len() as u64, torn), (reports[0].rows, None));
    // The Parquet file had no room; its journal is whole and can be finished elsewhere.
    let elsewhere = tempfile::tempdir().unwrap();
    let journal = elsewhere.path().join("m.parquet.journal");
    assert!(!dir.join("m.parquet").exists());
    fs::copy(dir.join("m.parquet.journal"), &journal).unwrap();
    assert_eq!(writers::recover(&journal).unwrap().rows, reports[1].rows);
    assert_eq!(event_records(&only_event_file(&dir.join("tb/gpurun"))).1, 0);
}

#[test]
fn schemas_are_what_the_code_writes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas");
    for file in writers::schema::files() {
        let path = dir.join(&file.name);
        if std::env::var_os("GPURUN_UPDATE_SCHEMAS").is_some() {
            fs::write(&path, &file.text).unwrap();
        }
        let published = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            published == file.text,
            "schemas/{} differs from the code. If columns or their meaning changed, move SCHEMA_VERSION; then \
             GPURUN_UPDATE_SCHEMAS=1 cargo nextest run schemas",
            file.name
        );
    }
}

/// A gpurun without a driver that logs the host and its job in very short windows, to all three formats.
fn gpurun_that_logs(dir: &Path, job: &str) -> std::process::Command {
    let mut command = std::process::Command::new(support::gpurun());
    command
        .current_dir(dir)
        .env("GPURUN_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1")
        .args(["--interval", "10ms", "--window", "30ms", "--processes", "all"])
        .args(["--log", "m.csv", "--log", "m.parquet", "--log", "tensorboard:tb"])
        .args(["--", "sh", "-c", job])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null());
    command
}

/// A job that says its pid, waits for the file `stop`, and exits 7.
const PATIENT: &str =
    "echo $$ >pid.tmp; mv pid.tmp pid; while [ -e pid ] && [ ! -e stop ]; do sleep 0.02; done; exit 7";

#[test]
fn after_kill_9_recover_finishes_what_gpurun_wrote_and_the_job_lives_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let mut gpurun =
        gpurun_that_logs(dir.path(), PATIENT).stderr(std::process::Stdio::null()).spawn().unwrap();
    let csv_lines = || fs::read_to_string(path("m.csv")).map_or(0, |t| t.lines().count());
    wait_until(|| {
        path("pid").exists()
            && csv_lines() > 500
            && writers::read::rows(&path("m.parquet.journal"))
                .is_ok_and(|log| log.filter(Result::is_ok).count() > 500)
    });
    // Either process alone would finish the files or leave the job as it is; without both the journal is what is left.
    support::kill_sidecar(gpurun.id());
    gpurun.kill().unwrap();
    gpurun.wait().unwrap();
    let pid = fs::read_to_string(path("pid")).unwrap();
    assert!(Path::new("/proc").join(pid.trim()).exists(), "the job died with gpurun");

    // The job holds nothing of the log: it can be recovered while the job runs.
    let recovered = recover(dir.path(), &["."]);
    assert!(recovered.status.success(), "{recovered:?}");
    assert!(String::from_utf8_lossy(&recovered.stdout).contains("rows recovered"), "{recovered:?}");
    fs::write(path("stop"), "").unwrap();

    let (csv, torn) = read(&path("m.csv"));
    assert_eq!(torn, None);
    let (parquet, _) = read(&path("m.parquet"));
    assert!(!path("m.parquet.journal").exists());
    let both = csv.len().min(parquet.len());
    assert!(both > 400, "{} and {} rows", csv.len(), parquet.len());
    assert!(csv[..both] == parquet[..both]);
    assert!(event_records(&only_event_file(&path("tb/gpurun"))).0.len() > 2);
    let again = recover(dir.path(), &["m.parquet", "m.csv"]);
    assert!(String::from_utf8_lossy(&again.stdout).matches("whole already").count() == 2, "{again:?}");
}

#[test]
fn a_full_disk_is_said_and_the_jobs_status_stays() {
    use std::io::{BufRead as _, BufReader};

    let Some(disk) = SmallDisk::mount("64k") else { return };
    let dir = disk.dir.path();
    // The pid file has no room either: the job only waits.
    let job = "while [ -d \"${STOP%/*}\" ] && [ ! -e \"$STOP\" ]; do sleep 0.02; done; exit 7";
    let elsewhere = tempfile::tempdir().unwrap();
    let stop = elsewhere.path().join("stop");
    let mut gpurun =
        gpurun_that_logs(dir, job).env("STOP", &stop).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(gpurun.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        let about = |what: &str| said.iter().filter(|l: &&String| l.contains(what)).count();
        if about("kept in memory") == 2 && line.contains("kept in memory") {
            disk.grow("32m");
        }
        if about("nothing is lost") == 2 && line.contains("nothing is lost") {
            fs::write(&stop, "").unwrap();
        }
        said.push(line);
    }
    assert_eq!(gpurun.wait().unwrap().code(), Some(7), "{said:#?}");
    let (csv, _) = read(&dir.join("m.csv"));
    let (parquet, _) = read(&dir.join("m.parquet"));
    assert!(csv == parquet, "{} and {} rows", csv.len(), parquet.len());
    // No window is missing: each begins where the one before it ended.
    let mut ends: Vec<_> =
        csv.iter().filter(|r| &*r.kind == "window").map(|r| (r.time_us, r.window_s)).collect();
    ends.dedup();
    assert!(ends.len() > 10);
    for pair in ends.windows(2) {
        let gap = (pair[1].0 - pair[0].0) as f64 / 1e6 - pair[1].1;
        assert!(gap.abs() < 2e-6, "{pair:?}");
    }
}
