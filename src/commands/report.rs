//! `gpurun report`: reads logs, feeds their rows to the report and to the totals whose facts it shows,
//! and writes text, or a page that is whole or not there at all.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use thiserror::Error;

use super::print::printed;
use crate::cli::args::ReportArgs;
use crate::cli::exit::Exit;
use crate::model::device::DeviceIdentity;
use crate::model::id::GpuUuid;
use crate::model::metric::{MetricId, Scope};
use crate::model::run::{RunEnd, RunInfo};
use crate::model::series::SeriesInfo;
use crate::model::time::{Mono, Wall};
use crate::model::window::{Row as WindowRow, RowKind as WindowKind, Stats, WindowBatch};
use crate::report::{self, Builder, DeviceAbout, Report, RowKind, RunAbout, SourceAbout, SourceId};
use crate::summary::Totals;
use crate::summary::json::Summary;
use crate::writers::directory::{Directory, Placing, TempFile, directory_of};
use crate::writers::read::{self, LogReader, ReadRow};
use crate::writers::{Metadata, WriterError};

use crate::sys::notice::Notices;

/// Why there is no report.
#[derive(Debug, Error)]
enum ReportError {
    #[error(transparent)]
    Log(#[from] WriterError),
    #[error("{path} is one of the logs; give the report another name", path = .0.display())]
    OutputIsInput(PathBuf),
    #[error("{path} exists and is no HTML page; give the report another name", path = .0.display())]
    NotOurs(PathBuf),
    #[error("cannot make the report")]
    Format(#[from] std::fmt::Error),
    #[error("cannot {action} {path}: {source}", path = .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

/// Prints the text, or writes the page.
pub(super) fn run(args: &ReportArgs, notices: &Notices) -> Exit {
    match report(args, notices) {
        Ok(None) => Exit::Ok,
        Ok(Some(text)) => {
            let mut out = io::stdout().lock();
            printed(out.write_all(text.as_bytes()), &mut out, Exit::Ok, notices)
        }
        Err(error) => {
            notices.error(&error.to_string());
            Exit::Failed
        }
    }
}

/// Makes the report; its text where that is to be printed.
fn report(args: &ReportArgs, notices: &Notices) -> Result<Option<String>, ReportError> {
    let mut logs = Vec::new();
    for path in &args.paths {
        logs.extend(read::logs(path)?);
    }
    let page = args.output.as_deref().filter(|path| *path != Path::new("-"));
    if let Some(path) = page {
        may_write(path, &logs)?;
    }
    let report = read_all(&logs)?;
    let mut text = String::new();
    match &args.output {
        Some(_) => report::write_html(&report, &mut text)?,
        None => report::write_text(&report, &mut text)?,
    }
    let Some(path) = page else { return Ok(Some(text)) };
    put_in_place(path, &text)?;
    notices.say(&format!("{}: {} KiB", path.display(), text.len().div_ceil(1024)));
    Ok(None)
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReportError {
    let path = path.to_owned();
    move |source| ReportError::Io { action, path, source }
}

/// Refuses a name whose file is a log or anything else that a page must not replace.
fn may_write(path: &Path, logs: &[PathBuf]) -> Result<(), ReportError> {
    let there = match fs::metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("read", path)(error)),
    };
    let same = |log: &PathBuf| {
        fs::metadata(log).is_ok_and(|log| (log.dev(), log.ino()) == (there.dev(), there.ino()))
    };
    if logs.iter().any(same) {
        return Err(ReportError::OutputIsInput(path.to_owned()));
    }
    if !there.is_file() || !(there.len() == 0 || is_page(path).map_err(io_error("read", path))?) {
        return Err(ReportError::NotOurs(path.to_owned()));
    }
    Ok(())
}

fn is_page(path: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    File::open(path)?.take(512).read_to_end(&mut start)?;
    let start = String::from_utf8_lossy(&start).trim_start().to_ascii_lowercase();
    Ok(start.starts_with("<!doctype html") || start.starts_with("<html"))
}

/// Writes a temporary file and renames it: a reader sees the old page or the new one.
fn put_in_place(path: &Path, text: &str) -> Result<(), ReportError> {
    // A link stays a link to the page.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let written = Directory::open(directory_of(&target)).and_then(|directory| {
        let temp = TempFile::create(&directory)?;
        temp.file().write_all(text.as_bytes())?;
        temp.place(&target, Placing::Replace)
    });
    written.map(drop).map_err(io_error("write", path))
}

fn read_all(logs: &[PathBuf]) -> Result<Report, ReportError> {
    let mut builder = Builder::new();
    for path in logs {
        let mut log = read::rows(path)?;
        let runs = runs_of(log.metadata());
        let about = SourceAbout {
            name: path.display().to_string(),
            describes: !log.metadata().is_empty(),
            runs: runs.clone(),
        };
        let source = builder.source(about);
        read_log(&mut log, source, &runs, &mut builder)?;
        if let Some(what) = log.dropped() {
            builder.torn(source, what);
        }
    }
    Ok(builder.finish())
}

fn read_log(
    log: &mut LogReader,
    source: SourceId,
    runs: &[RunAbout],
    builder: &mut Builder,
) -> Result<(), ReportError> {
    let mut folds = Folds::default();
    for row in log {
        let row = row?;
        // A kind that this version does not know is no reason to show nothing.
        let Some(kind) = RowKind::of(&row.kind) else { continue };
        builder.add(source, &report_row(&row, kind));
        if kind == RowKind::Window {
            folds.add(&row);
        }
    }
    for (key, fold) in folds.finish() {
        let about = runs.iter().find(|about| about.run == *key.run && about.host == *key.host);
        for fact in fold.facts(&key, about) {
            builder.notice(source, &key.run, &key.host, key.rank, fact);
        }
    }
    Ok(())
}

fn report_row(row: &ReadRow, kind: RowKind) -> report::Row<'_> {
    report::Row {
        time_us: row.time_us,
        window_s: row.window_s,
        run: &row.run,
        host: &row.host,
        rank: row.rank,
        kind,
        tag: &row.tag,
        step: row.step,
        scope: &row.scope,
        gpu: row.gpu,
        cuda: row.cuda,
        uuid: row.uuid.as_deref(),
        pid: row.pid,
        process: row.process.as_deref(),
        metric: &row.metric,
        mean: row.mean,
        min: row.min,
        max: row.max,
        last: row.last,
        samples: row.samples,
    }
}

/// What the metadata of a log says about each of its runs.
fn runs_of(metadata: &Metadata) -> Vec<RunAbout> {
    let listed: Vec<Value> =
        metadata.get("gpurun.runs").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    if !listed.is_empty() {
        return listed.iter().map(|run| run_about(|key| run.get(key).cloned())).collect();
    }
    if !metadata.contains_key("gpurun.run") {
        return Vec::new();
    }
    // A journal describes its only run.
    vec![run_about(|key| {
        let text = metadata.get(&format!("gpurun.{key}"))?;
        match key {
            "argv" | "devices" => serde_json::from_str(text).ok(),
            _ => Some(Value::String(text.clone())),
        }
    })]
}

fn run_about(get: impl Fn(&str) -> Option<Value>) -> RunAbout {
    let text = |key: &str| get(key)?.as_str().map(str::to_owned);
    let number = |key: &str| text(key)?.parse::<f64>().ok().filter(|n| n.is_finite());
    let time = |key: &str| Some(text(key)?.parse::<jiff::Timestamp>().ok()?.as_microsecond());
    let exit = text("exit").and_then(|exit| match exit.strip_prefix("signal ") {
        Some(signal) => signal.parse().ok().map(report::Exit::Signal),
        None => exit.parse().ok().map(report::Exit::Code),
    });
    let devices = match get("devices") {
        Some(Value::Array(devices)) => devices.iter().filter_map(device_about).collect(),
        _ => Vec::new(),
    };
    RunAbout {
        run: text("run").unwrap_or_default(),
        host: text("host").unwrap_or_default(),
        rank: text("rank").and_then(|rank| rank.parse().ok()),
        version: text("version"),
        argv: get("argv").and_then(|argv| serde_json::from_value(argv).ok()),
        driver: text("driver"),
        devices,
        interval_s: number("interval_s"),
        window_s: number("window_s"),
        start_us: time("start"),
        end_us: time("end"),
        duration_s: number("duration_s"),
        exit,
    }
}

fn device_about(device: &Value) -> Option<DeviceAbout> {
    let text = |key: &str| device.get(key)?.as_str().map(str::to_owned);
    Some(DeviceAbout {
        uuid: text("uuid")?,
        name: text("name"),
        memory_total: device.get("memory_total").and_then(Value::as_f64),
        label: text("label"),
    })
}

/// Which run of a log a window belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RunKey {
    run: Arc<str>,
    host: Arc<str>,
    rank: Option<i32>,
}

/// Totals of every run of a log, as the summary at the end of a run has them.
#[derive(Default)]
struct Folds {
    runs: Vec<(RunKey, RunFold)>,
}

impl Folds {
    fn add(&mut self, row: &ReadRow) {
        let same = |key: &RunKey| key.rank == row.rank && key.run == row.run && key.host == row.host;
        let place = match self.runs.iter().rposition(|(key, _)| same(key)) {
            Some(place) => place,
            None => {
                let key = RunKey { run: Arc::clone(&row.run), host: Arc::clone(&row.host), rank: row.rank };
                self.runs.push((key, RunFold::new()));
                self.runs.len() - 1
            }
        };
        self.runs[place].1.add(row);
    }

    fn finish(self) -> Vec<(RunKey, RunFold)> {
        let mut runs = self.runs;
        for (_, fold) in &mut runs {
            fold.flush();
        }
        runs
    }
}

/// Scope and name, GPU, ordinal and UUID: what tells series apart.
type SeriesKey = (MetricId, Option<i32>, Option<i32>, Option<Arc<str>>);

/// The windows of one run on their way into its totals.
struct RunFold {
    totals: Totals,
    batch: WindowBatch,
    series: HashMap<SeriesKey, Arc<SeriesInfo>>,
    devices: Vec<Arc<DeviceIdentity>>,
    metrics: HashMap<(Arc<str>, Arc<str>), Option<MetricId>>,
}

impl RunFold {
    fn new() -> Self {
        let batch = WindowBatch {
            kind: WindowKind::Window,
            tag: "".into(),
            occurrence: 1,
            epoch: None,
            step: None,
            rank: None,
            ordinal: 0,
            start: Mono(0),
            end: Mono(0),
            time: Wall(0),
            window_s: 0.0,
            rows: Vec::new(),
        };
        Self {
            totals: Totals::new(None),
            batch,
            series: HashMap::new(),
            devices: Vec::new(),
            metrics: HashMap::new(),
        }
    }

    fn add(&mut self, row: &ReadRow) {
        if row.time_us != self.batch.time.0 {
            self.flush();
            self.batch.time = Wall(row.time_us);
            self.batch.window_s = row.window_s;
        }
        let named = (Arc::clone(&row.scope), Arc::clone(&row.metric));
        let known = self.metrics.entry(named).or_insert_with(|| metric_of(&row.scope, &row.metric));
        let Some(metric) = *known else { return };
        let key = (metric, row.gpu, row.cuda, row.uuid.clone());
        let series = match self.series.get(&key) {
            Some(series) => Arc::clone(series),
            None => {
                let device = self.device(row);
                let series = SeriesInfo { metric, label: None, device, process: None, pace: Duration::ZERO };
                let series = Arc::new(series);
                self.series.insert(key, Arc::clone(&series));
                series
            }
        };
        let stats = Stats {
            mean: row.mean,
            min: row.min,
            max: row.max,
            last: row.last,
            samples: row.samples.unwrap_or(0),
            missing: row.missing.unwrap_or(0),
        };
        self.batch.rows.push(WindowRow { series, stats });
    }

    fn device(&mut self, row: &ReadRow) -> Option<Arc<DeviceIdentity>> {
        if row.gpu.is_none() && row.uuid.is_none() {
            return None;
        }
        let number = |n: Option<i32>| n.and_then(|n| u32::try_from(n).ok());
        // A wide CSV file does not say UUIDs; places tell its devices apart.
        let uuid = row.uuid.clone().unwrap_or_else(|| format!("{:?}/{:?}", row.gpu, row.cuda).into());
        let uuid = GpuUuid::new(uuid);
        if let Some(known) = self.devices.iter().find(|d| d.uuid == uuid) {
            return Some(Arc::clone(known));
        }
        let device = Arc::new(DeviceIdentity {
            index: number(row.gpu).unwrap_or(0),
            mig: None,
            cuda: number(row.cuda),
            uuid,
            name: None,
            memory_total: None,
            facts: Vec::new(),
        });
        self.devices.push(Arc::clone(&device));
        Some(device)
    }

    fn flush(&mut self) {
        if !self.batch.rows.is_empty() {
            self.totals.add(&self.batch);
            self.batch.rows.clear();
        }
    }

    /// The facts that the summary of the run would tell, as far as its log knows.
    fn facts(&self, key: &RunKey, about: Option<&RunAbout>) -> Vec<String> {
        let run = RunInfo {
            run: Arc::clone(&key.run),
            host: Arc::clone(&key.host),
            rank: key.rank,
            node_rank: None,
            job: "".into(),
            root_tag: "".into(),
            argv: Vec::new(),
            version: env!("CARGO_PKG_VERSION"),
            driver: None,
            devices: self.devices.clone(),
            interval: Duration::ZERO,
            window: Duration::ZERO,
            start: Wall(about.and_then(|a| a.start_us).unwrap_or(0)),
            start_mono: Mono(0),
            series: Vec::new(),
        };
        let end = RunEnd { exit: None, end: self.batch.time, duration_s: self.totals.seconds };
        Summary::new(&run, &end, &self.totals, Vec::new(), Vec::new()).facts
    }
}

/// The catalogue's entry; none for processes, scalars and step times, which have no totals here.
fn metric_of(scope: &str, name: &str) -> Option<MetricId> {
    MetricId::ALL.iter().copied().find(|id| {
        let metric = id.get();
        metric.scope.name() == scope
            && metric.name == name
            && !matches!(metric.scope, Scope::Process | Scope::User | Scope::BatchTime)
    })
}
