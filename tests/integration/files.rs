//! The files themselves: what writers leave behind on good and bad days.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpurun::internals::{
    self, DeviceIdentity, GpuUuid, JobExit, Layout, MetricId, Mode, Mono, Opened, ProcessIdentity,
    ProcessKey, ReadRow, Row, RowKind, RunEnd, RunInfo, SeriesInfo, Stats, Target, TargetFailure, Wall,
    WindowBatch, WriterReport, WriterSettings,
};

use crate::fuzz::fuzz;
use crate::support;

mod csv;
mod disk;
mod journal;
mod parquet;
mod targets;

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
                facts: Vec::new(),
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
    let occurrence = u32::try_from(n).unwrap();
    WindowBatch {
        kind: RowKind::Tag,
        tag: "run/train/batch".into(),
        occurrence,
        window_s: 2.5,
        ..window(run, n)
    }
}

pub(crate) fn steps(run: &RunInfo, n: u64) -> WindowBatch {
    let n_signed = i64::try_from(n).unwrap();
    WindowBatch {
        kind: RowKind::Step,
        epoch: Some(n_signed - 1),
        step: Some(n_signed * 50),
        ..window(run, n)
    }
}

pub(crate) fn run_end() -> RunEnd {
    RunEnd { exit: Some(JobExit::Code(3)), end: Wall(START + 1_000_000_000), duration_s: 1000.0 }
}

/// Checks and makes the targets; gives those that failed as well.
pub(crate) fn open(targets: &[Target], settings: &WriterSettings) -> (Opened, Vec<TargetFailure>) {
    let (checked, mut failures) = internals::check(targets, settings);
    let (opened, failed) = checked.create();
    failures.extend(failed);
    (opened, failures)
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
    let (opened, failures) = open(&targets, settings);
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
        "time,start,window_s,run,host,rank,kind,tag,occurrence,epoch,step,scope,gpu,cuda,uuid,pid,process,metric,unit,mean,min,max,last,\
         samples,missing"
    );
    assert_eq!(
        lines.next().unwrap(),
        "2026-09-21T14:13:30.000123Z,2026-09-21T14:13:20.000123Z,10.0,20260921T141320Z-node1-42,node1,1,window,run,1,,,host,,,,,,cpu_percent,%,\
         1131.2857142857142,1131.0,1133.0,1131.7857142857142,10,0"
    );
    assert_eq!(text.lines().count(), 1 + 2 * (run.series.len() + 1));
    assert!(text.contains("\"python, \"\"x\"\" new line\""));
    assert_eq!(reports[0].rows as usize, 2 * (run.series.len() + 1));
}

#[test]
fn append_cuts_a_torn_line_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(1, None);
    assert_clean(&write(&["m.csv"], dir.path(), &settings(Mode::CreateNew), &run, [window(&run, 1)]));
    let path = dir.path().join("m.csv");
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 3]).unwrap();

    let (opened, failures) = open(&[parse(dir.path(), "m.csv")], &settings(Mode::Append));
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
    let (_, failures) = open(&[parse(dir.path(), "m.csv")], &settings(Mode::Append));
    assert!(failures[0].error.to_string().contains("cannot append"), "{}", failures[0].error);
}

/// Waits for a condition that another thread brings about.
pub(crate) fn wait_until(done: impl FnMut() -> bool) {
    support::until_holds("the writers have come so far", done);
}

#[test]
fn a_deleted_log_directory_is_made_again_with_all_rows() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_info(1, None);
    fs::create_dir(dir.path().join("logs")).unwrap();
    let path: PathBuf = dir.path().join("logs/m.csv");
    let (opened, _) = open(&[parse(dir.path(), "logs/m.csv")], &settings(Mode::CreateNew));
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
    let mut log = internals::rows(path).unwrap();
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
    assert!(header.starts_with(
        "time,start,window_s,run,host,rank,kind,tag,occurrence,epoch,step,run/host/cpu_percent (%)/mean,"
    ));
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
    let log = internals::rows(&dir.path().join("m.parquet")).unwrap();
    let runs: serde_json::Value = serde_json::from_str(&log.metadata()["gpurun.runs"]).unwrap();
    assert_eq!(runs[0]["run"], "20260921T141320Z-node1-42");
    assert_eq!(runs[1]["run"], "second");
    assert_eq!(log.metadata()["gpurun.exit"], "3");
    let rows: Vec<_> = log.map(|r| r.unwrap().run.to_string()).collect();
    assert_eq!(rows.len(), 2 * (run.series.len() + 1));
    assert_eq!(rows.last().unwrap(), "second");
    let (_, failures) = open(
        &[parse(dir.path(), "m.parquet")],
        &WriterSettings { layout: Layout::Wide, ..settings(Mode::Append) },
    );
    assert!(failures[0].error.to_string().contains("long layout"), "{}", failures[0].error);
    assert_clean(&write(&["m.parquet"], dir.path(), &settings(Mode::Overwrite), &run, [window(&run, 1)]));
    assert_eq!(read(&dir.path().join("m.parquet")).0.len(), run.series.len() + 1);
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

#[test]
fn schemas_are_what_the_code_writes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas");
    for file in internals::schema_files() {
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
