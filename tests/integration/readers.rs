//! The programs that people read logs with: pandas, pyarrow, DuckDB, Polars, TensorBoard.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use gpurun::internals::{Layout, ReadRow, RunInfo, WindowBatch, WriterSettings};

use crate::files::{open, parse, read, run_end, run_info, steps, tag_span, wait_until, window, write};
use crate::support;

const MANIFEST: &str = env!("CARGO_MANIFEST_DIR");

fn python(script: &str, arguments: &[&str], directory: &Path) -> String {
    let output = Command::new(support::python())
        .arg(Path::new(MANIFEST).join(script))
        .args(arguments)
        .current_dir(directory)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{script} {arguments:?}:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn check(arguments: &[&str], directory: &Path) {
    python("tests/readers/check.py", arguments, directory);
}

/// What the batches say, in the columns of the contract, without any code of the writers.
fn expected(run: &RunInfo, batches: &[WindowBatch]) -> String {
    let mut out = String::new();
    for batch in batches {
        for row in &batch.rows {
            let series = &row.series;
            let device = series.device.as_ref();
            let process = series.process.as_ref();
            // Formatted by hand: the order of the columns is part of the check.
            let text = |t: Option<&str>| serde_json::json!(t).to_string();
            let float = |v: Option<f64>| v.map_or("null".to_owned(), |v| format!("{v:?}"));
            let int = |v: Option<i64>| v.map_or("null".to_owned(), |v| v.to_string());
            writeln!(
                out,
                r#"{{"time":{},"start":{},"window_s":{:?},"run":{},"host":"node1","rank":{},"kind":{},"tag":{},"occurrence":{},"epoch":{},"step":{},"scope":{},"gpu":{},"cuda":{},"uuid":{},"pid":{},"process":{},"metric":{},"unit":{},"mean":{},"min":{},"max":{},"last":{},"samples":{},"missing":{}}}"#,
                batch.time.0,
                batch.time.0 - 10_000_000,
                batch.window_s,
                text(Some(&run.run)),
                int(batch.rank.map(i64::from)),
                text(Some(batch.kind.name())),
                text(Some(&batch.tag)),
                batch.occurrence,
                int(batch.epoch),
                int(batch.step),
                text(Some(series.scope().name())),
                int(device.map(|d| i64::from(d.index))),
                int(device.and_then(|d| d.cuda).map(i64::from)),
                text(device.map(|d| d.uuid.as_str())),
                int(process.map(|p| i64::from(p.key.pid))),
                text(process.map(|p| &*p.name)),
                text(Some(series.name())),
                text(Some(series.unit())),
                float(row.stats.mean),
                float(row.stats.min),
                float(row.stats.max),
                float(row.stats.last),
                row.stats.samples,
                row.stats.missing,
            )
            .unwrap();
        }
    }
    out
}

fn three_kinds(run: &RunInfo) -> Vec<WindowBatch> {
    (1..=12).flat_map(|n| [window(run, n), tag_span(run, n), steps(run, n)]).collect()
}

#[test]
fn pandas_pyarrow_duckdb_and_polars_read_every_value() {
    let dir = tempfile::tempdir().unwrap();
    // The name of a Slurm run looks like a number.
    let run = Arc::new(RunInfo { run: "77.10".into(), ..(*run_info(2, Some(0))).clone() });
    let batches = three_kinds(&run);
    fs::write(dir.path().join("expected.jsonl"), expected(&run, &batches)).unwrap();
    write(&["m.csv", "m.parquet"], dir.path(), &WriterSettings::default(), &run, batches.clone());
    let wide = WriterSettings { layout: Layout::Wide, ..WriterSettings::default() };
    // A wide row has no place for the span of a nested tag beside the window: same columns, other rows.
    write(&["w.csv", "w.parquet"], dir.path(), &wide, &run, batches);
    check(&["long", "."], dir.path());
    check(&["wide", "."], dir.path());
}

#[test]
fn a_log_that_another_program_wrote_again_reads_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(2, Some(0));
    write(&["m.csv", "m.parquet"], dir.path(), &WriterSettings::default(), &run, three_kinds(&run));
    check(&["rewrite", "."], dir.path());
    let (mut expected, _) = read(&dir.path().join("m.parquet"));
    // A file of CSV has a blank for the line end in the name of the process.
    let with_blanks = |rows: &mut Vec<ReadRow>| {
        rows.iter_mut()
            .for_each(|row| row.process = row.process.as_ref().map(|p| p.replace('\n', " ").into()));
    };
    with_blanks(&mut expected);
    let mut files: Vec<_> =
        fs::read_dir(dir.path().join("again")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 19, "{files:?}");
    let mut failed = Vec::new();
    for path in files {
        let rows = gpurun::internals::rows(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match rows {
            Ok(mut rows) => {
                with_blanks(&mut rows);
                if rows != expected {
                    failed.push(format!("{}: other rows", path.display()));
                }
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn four_ranks_are_one_dataset() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("ranks")).unwrap();
    let mut rows = 0;
    for rank in 0..4 {
        // Unlike devices: the dictionaries of the files differ.
        let run = run_info(1 + u32::try_from(rank).unwrap() % 2, Some(rank));
        let batches: Vec<_> =
            (1..=4 + u64::try_from(rank).unwrap() % 2 * 4).map(|n| window(&run, n)).collect();
        let count: usize = batches.iter().map(|b| b.rows.len()).sum();
        rows = if rank == 0 { count } else { rows };
        let batches: Vec<_> = batches
            .into_iter()
            .scan(rows, |left, mut batch| {
                batch.rows.truncate(*left);
                *left -= batch.rows.len();
                Some(batch)
            })
            .collect();
        let name = format!("ranks/rank{rank}.parquet");
        write(&[&name], dir.path(), &WriterSettings::default(), &run, batches);
    }
    fs::write(dir.path().join("rows"), rows.to_string()).unwrap();
    check(&["ranks", "."], dir.path());
}

#[test]
fn pyarrow_reads_a_journal_while_it_grows_and_when_it_is_torn() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(2, None);
    let (opened, _) = open(&[parse(dir.path(), "m.parquet")], &WriterSettings::default());
    let journal = dir.path().join("m.parquet.journal");
    let fan_out = opened.start(Arc::clone(&run));
    let rows = run.series.len() + 1;
    for n in 1..=10 {
        fan_out.send(Arc::new(window(&run, n)));
    }
    wait_until(|| {
        gpurun::internals::rows(&journal).is_ok_and(|log| log.filter(Result::is_ok).count() == 10 * rows)
    });
    check(&["journal", "m.parquet.journal", &(10 * rows).to_string()], dir.path());
    let bytes = fs::read(&journal).unwrap();
    fs::write(dir.path().join("torn"), &bytes[..bytes.len() - 5]).unwrap();
    check(&["journal", "torn", &(9 * rows).to_string()], dir.path());
    fan_out.finish(run_end(), std::time::Duration::from_secs(60));
}

#[test]
fn both_loaders_of_tensorboard_show_every_window_beside_the_trainer() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(1, None);
    check(&["trainer", "runs/exp1"], dir.path());
    let target = [parse(dir.path(), "tensorboard:runs/exp1")];
    let settings = WriterSettings::default();

    let (opened, failures) = open(&target, &settings);
    assert!(failures.is_empty(), "{failures:?}");
    let fan_out = opened.start(Arc::clone(&run));
    for n in 1..=5 {
        fan_out.send(Arc::new(window(&run, n)));
        fan_out.send(Arc::new(tag_span(&run, n)));
        fan_out.send(Arc::new(steps(&run, n)));
    }
    // The host's CPU has a value in every window but those that the test data leaves out.
    let points = |last: u64| -> String {
        let known: Vec<_> = (1..=last)
            .filter(|&n| window(&run, (n - 1) % 5 + 1).rows[0].stats.mean.is_some())
            .map(|n| n.to_string())
            .collect();
        known.join(",")
    };
    for fast in ["true", "false"] {
        check(&["events", "runs", "exp1/gpurun", fast, &points(5)], dir.path());
    }
    fan_out.finish(run_end(), std::time::Duration::from_secs(60));

    // A second run goes on counting, in a file of its own.
    let (opened, _) = open(&target, &settings);
    let fan_out = opened.start(Arc::clone(&run));
    for n in 1..=5 {
        fan_out.send(Arc::new(window(&run, n)));
    }
    // A third at the same time has a run of its own.
    let (third, _) = open(&target, &settings);
    assert!(dir.path().join("runs/exp1/gpurun-2").exists());
    drop(third);
    fan_out.finish(run_end(), std::time::Duration::from_secs(60));
    for fast in ["true", "false"] {
        check(&["events", "runs", "exp1/gpurun", fast, &points(10)], dir.path());
    }
}

#[test]
fn the_examples_run_on_files_that_gpurun_wrote() {
    let dir = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        let run = run_info(2, Some(rank));
        let name = format!("rank{rank}.parquet");
        write(
            &[&name, &format!("rank{rank}.csv")],
            dir.path(),
            &WriterSettings::default(),
            &run,
            three_kinds(&run),
        );
    }
    for pattern in ["rank*.parquet", "rank0.csv"] {
        let said = python("examples/analyse_pandas.py", &[pattern, "plot.png"], dir.path());
        let gpus = if pattern.ends_with("csv") { 2 } else { 4 };
        assert!(said.contains(&format!("gpu_utilization: 12 points for {gpus} GPUs")), "{said}");
        let plot = fs::read(dir.path().join("plot.png")).unwrap();
        assert!(plot.starts_with(b"\x89PNG") && plot.len() > 10_000);
        fs::remove_file(dir.path().join("plot.png")).unwrap();
    }
    let said = python("examples/analyse_polars.py", &["rank*.parquet"], dir.path());
    assert!(said.contains("node1") && said.contains("utilization_mean"), "{said}");
    let sql = Path::new(MANIFEST).join("examples/analyse_duckdb.sql");
    fs::write(
        dir.path().join("run_sql.py"),
        format!(
            "import duckdb\nfor statement in open({sql:?}).read().split(';'):\n    \
             found = duckdb.sql(statement) if statement.strip() else None\n    print(found)\n"
        ),
    )
    .unwrap();
    let output = Command::new(support::python()).arg("run_sql.py").current_dir(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("utilization_percent") && said.contains("gpurun.argv"), "{said}");
}
