//! CSV as it comes back: joined, damaged, very wide, and opened by a spreadsheet.

use std::process::Command;
use std::sync::OnceLock;

use proptest::prelude::*;

use super::*;

fn gpurun(dir: &Path, args: &[&str]) -> std::process::Output {
    Command::new(support::gpurun())
        .args(args)
        .env("GPURUN_NVML_LIBRARY", "/nonexistent")
        .current_dir(dir)
        .output()
        .unwrap()
}

#[test]
fn joined_logs_are_read_past_the_headers_in_between() {
    let dir = tempfile::tempdir().unwrap();
    let wide = WriterSettings { layout: Layout::Wide, ..settings(Mode::CreateNew) };
    for (gpus, name) in [(1, "a"), (2, "b")] {
        let run = run_info(gpus, None);
        assert_clean(&write(
            &[&format!("{name}.csv")],
            dir.path(),
            &settings(Mode::CreateNew),
            &run,
            batches(&run, 3),
        ));
        assert_clean(&write(&[&format!("{name}w.csv")], dir.path(), &wide, &run, batches(&run, 3)));
    }
    for [first, second, both] in [["a.csv", "b.csv", "ab.csv"], ["aw.csv", "bw.csv", "abw.csv"]] {
        let content = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(both), content(first) + &content(second)).unwrap();
        let rows = |name: &str| read(&dir.path().join(name)).0;
        assert_eq!(rows(both), [rows(first), rows(second)].concat(), "{both}");
    }
    let other = fs::read_to_string(dir.path().join("a.csv")).unwrap() + "time,loss\n1,2\n";
    fs::write(dir.path().join("other.csv"), other).unwrap();
    let log = internals::rows(&dir.path().join("other.csv")).unwrap();
    let said = log.last().unwrap().unwrap_err().to_string();
    assert!(said.contains("second header"), "{said}");
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_header() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(1, None);
    assert_clean(&write(&["m.csv"], dir.path(), &settings(Mode::CreateNew), &run, [window(&run, 1)]));
    let path = dir.path().join("m.csv");
    let expected = read(&path).0;
    fs::write(&path, "\u{feff}".to_owned() + &fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(read(&path).0, expected);
}

/// A log and its rows.
fn log() -> &'static (Vec<u8>, Vec<ReadRow>) {
    static LOG: OnceLock<(Vec<u8>, Vec<ReadRow>)> = OnceLock::new();
    LOG.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let run = run_info(2, None);
        let path = dir.path().join("m.csv");
        assert_clean(&write(&["m.csv"], dir.path(), &settings(Mode::CreateNew), &run, batches(&run, 2)));
        (fs::read(&path).unwrap(), read(&path).0)
    })
}

/// A number that became another one cannot be told from it; nothing else may change.
#[test]
fn fuzz_a_changed_byte_of_a_csv_file_changes_no_other_line() {
    fuzz(500, |config| {
        proptest!(config, |(at in any::<prop::sample::Index>(), to in any::<u8>(), kind in 0..3)| {
            let (bytes, expected) = log();
            let mut bytes = bytes.clone();
            let at = at.index(bytes.len());
            // Lines are numbered from 0, the header's number.
            let line = bytes[..at].iter().filter(|b| **b == b'\n').count();
            match kind {
                0 => bytes[at] = to,
                1 => bytes.insert(at, to),
                _ => drop(bytes.remove(at)),
            }
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("m.csv");
            fs::write(&path, bytes).unwrap();
            let Ok(log) = internals::rows(&path) else {
                prop_assert!(line == 0, "line {line} kept the log from being opened");
                return Ok(());
            };
            let read: Vec<_> = log.collect();
            let whole = read.iter().all(Result::is_ok);
            let rows: Vec<_> = read.into_iter().filter_map(Result::ok).collect();
            if line > 0 {
                prop_assert!(rows.starts_with(&expected[..line - 1]), "a line before {line} is not as it was");
            }
            if whole {
                // A line end that became something else joins two lines, or leaves the last one incomplete.
                let after = expected.get(line + 1..).unwrap_or_default();
                prop_assert!(rows.ends_with(after), "a line after {line} is not as it was");
            }
        });
    });
}

#[test]
fn a_spreadsheet_finds_no_formula_and_gpurun_the_text() {
    let dir = tempfile::tempdir().unwrap();
    let script = "gpurun() { \"$0\" \"$@\"; }; gpurun log -- -loss=1 2>/dev/null || gpurun log loss=1";
    let own = support::gpurun().to_str().unwrap();
    let options = ["-q", "--tag", "=2+3", "--run", "@run", "--log", "m.csv", "--log", "m.parquet"];
    let output = gpurun(dir.path(), &[&options[..], &["--", "sh", "-c", script, own]].concat());
    assert!(output.status.success(), "{output:?}");
    let wide = ["-q", "--tag", "=2+3", "--layout", "wide", "--log", "w.csv", "--", "true"];
    assert!(gpurun(dir.path(), &wide).status.success());
    for name in ["m.csv", "w.csv"] {
        let mut reader =
            ::csv::ReaderBuilder::new().has_headers(false).from_path(dir.path().join(name)).unwrap();
        let mut texts = 0;
        for record in reader.records() {
            for cell in record.unwrap().iter().filter(|cell| cell.parse::<f64>().is_err()) {
                assert!(!cell.starts_with(['=', '+', '-', '@', '\t']), "{name}: {cell}");
                texts += usize::from(cell.starts_with("'=2+3"));
            }
        }
        assert!(texts > 0, "{name}");
    }
    let (csv, parquet) = (read(&dir.path().join("m.csv")).0, read(&dir.path().join("m.parquet")).0);
    assert!(csv == parquet && csv.iter().all(|row| row.tag.starts_with("=2+3") && &*row.run == "@run"));
}

#[test]
fn a_very_wide_log_is_read() {
    const SERIES: usize = 50_000;
    let dir = tempfile::tempdir().unwrap();
    let mut text = String::from("time,start,window_s,run,host,rank,kind,tag,occurrence,epoch,step");
    for n in 0..SERIES {
        for statistic in ["mean", "min", "max", "last"] {
            text += &format!(",run/host/scalar_{n}/{statistic}");
        }
    }
    for second in 1..=2 {
        text += &format!("\n2026-09-21T14:13:2{second}Z,2026-09-21T14:13:20Z,1.0,r,h,,window,run,1,,");
        for n in 0..SERIES {
            text += &format!(",{n}.5,,,{second}");
        }
    }
    fs::write(dir.path().join("w.csv"), text + "\n").unwrap();
    let rows = read(&dir.path().join("w.csv")).0;
    assert_eq!(rows.len(), 2 * SERIES);
    let last = &rows[2 * SERIES - 1];
    assert_eq!(
        (&*last.metric, last.mean, last.min, last.last),
        ("scalar_49999", Some(49_999.5), None, Some(2.0))
    );
    let output = gpurun(dir.path(), &["export", "w.csv", "--layout", "wide", "-o", "again.csv"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(read(&dir.path().join("again.csv")).0, rows);
}
