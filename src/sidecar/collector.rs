//! The library's face: the engine inside the program that it watches, with tags, steps, `collect()` and
//! a callback for every window. Never chooses GPUs and never starts a process.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::cli::logging::{Logging, LoggingArgs, ProcessesArg};
use crate::control::ControlEvent;
use crate::model::limits::TAG_DEPTH;
use crate::model::mark::{Mark, MarkOp};
use crate::model::time::{Mono, Wall};
use crate::model::window::{Row, RowKind, Stats, WindowBatch};
use crate::sampling::TreeRoot;
use crate::selection::flow::Surroundings;
use crate::summary::json::{Summary, TargetSummary};
use crate::sys::clock;
use crate::sys::notice::{Notices, Verbosity};
use crate::windowing::Fold;

use super::engine::{Engine, EngineEnd, EngineSettings, Inbox, ToEngine};
use super::watched::Watched;
use super::{describe, targets};

/// How long `collect()` waits for the engine.
const COLLECT_PATIENCE: Duration = Duration::from_secs(5);

/// How long the end waits for the last window and the files.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// Windows that wait for a slow callback; more are dropped and counted.
const WAITING_WINDOWS: usize = 64;

/// Marks that wait while the engine does not take any; more are dropped.
const WAITING_MARKS: usize = 65_536;

/// Names the NVML library to load, for the command and the library alike.
const LIBRARY_VARIABLE: &str = "GPURUN_NVML_LIBRARY";

/// What this process's own use is called among the job's values: here gpurun is the job.
const OWN_USE: &[&str] = &["-gpurun.cpu_percent", "-gpurun.memory_rss"];

/// Why the collector did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// A setting of the builder makes no sense; the text says which and why.
    #[error("{0}")]
    Setting(String),
    /// A log cannot be opened.
    #[error("{0}")]
    Log(String),
    /// The thread cannot be started.
    #[error("cannot start the collector's thread: {0}")]
    Thread(#[from] std::io::Error),
    /// A tag of this name is open already; it is left alone.
    #[error("tag {0:?} is open already; a name can be used once among nested tags")]
    TagOpen(String),
    /// A tag's name is empty.
    #[error("a tag needs a name")]
    EmptyTag,
    /// Tags nest too deep.
    #[error("tags nest deeper than {TAG_DEPTH}")]
    TooDeep,
    /// The engine did not answer in time: a driver call hangs, or the host is overloaded.
    #[error("the collector did not answer in time")]
    TimedOut,
}

/// Statistics over one span: what `collect()` gives and what the callback gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Collection {
    /// Full path of the tag: `run`, or `run/train/batch`.
    pub tag: String,
    /// Length of the span in seconds.
    pub duration_s: f64,
    /// Wall-clock end of the span.
    pub time: SystemTime,
    rows: Vec<Row>,
}

impl Collection {
    fn new(tag: &str, duration_s: f64, time: Wall, rows: Vec<Row>) -> Self {
        let since_epoch = Duration::from_micros(u64::try_from(time.0).unwrap_or(0));
        Self { tag: tag.to_owned(), duration_s, time: UNIX_EPOCH + since_epoch, rows }
    }

    /// The known statistics by nvitop's keys: `<tag>/<scope>/<metric (unit)>/<mean|min|max|last>`, with
    /// `<tag>/duration (s)` and `<tag>/timestamp` (seconds since the Unix epoch).
    ///
    /// What is unknown has no key. How many reads a value stands on, and how many failed, is in the
    /// [`Stats`] of [`Collection::series`].
    pub fn to_map(&self) -> BTreeMap<String, f64> {
        let mut map = BTreeMap::new();
        for row in &self.rows {
            let key = row.series.key();
            for (name, value) in statistics(&row.stats) {
                if let Some(value) = value {
                    map.insert(format!("{}/{key}/{name}", self.tag), value);
                }
            }
        }
        map.insert(format!("{}/duration (s)", self.tag), self.duration_s);
        let since_epoch = self.time.duration_since(UNIX_EPOCH).unwrap_or_default();
        map.insert(format!("{}/timestamp", self.tag), since_epoch.as_micros() as f64 / 1e6);
        map
    }

    /// All series: key without tag and statistic, as `cuda:0 (gpu:3)/gpu_utilization (%)`, and statistics.
    pub fn series(&self) -> impl Iterator<Item = (String, Stats)> {
        self.rows.iter().map(|row| (row.series.key(), row.stats))
    }

    /// The statistics of one series by its key without tag and statistic, as
    /// `cuda:0 (gpu:3)/gpu_utilization (%)`. Process rows of a pid that was used twice give the first.
    pub fn get(&self, key: &str) -> Option<Stats> {
        self.rows.iter().find(|row| row.series.key() == key).map(|row| row.stats)
    }
}

/// The statistics by nvitop's names.
fn statistics(stats: &Stats) -> [(&'static str, Option<f64>); 4] {
    [("mean", stats.mean), ("min", stats.min), ("max", stats.max), ("last", stats.last)]
}

/// The callback of a collector; `false` ends the calls.
type OnWindow = Box<dyn FnMut(&Collection) -> bool + Send>;

/// Settings of a [`Collector`]; see [`Collector::builder`].
#[must_use = "a builder does nothing until `start`"]
pub struct Builder {
    logging: LoggingArgs,
    pids: Vec<i32>,
    all_devices: bool,
    library: Option<PathBuf>,
    verbose: bool,
    on_window: Option<OnWindow>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("logging", &self.logging)
            .field("pids", &self.pids)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Time between samples; 1 s by default, at least 10 ms.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.logging.interval = Some(interval);
        self
    }

    /// Length of a window, and so the time between two calls of the callback; 10 s by default.
    pub fn window(mut self, window: Duration) -> Self {
        self.logging.window = Some(window);
        self
    }

    /// First component of every tag path; `run` by default.
    pub fn root_tag(mut self, tag: impl Into<String>) -> Self {
        self.logging.tag = Some(tag.into());
        self
    }

    /// Watches the trees under these processes; by default under this one.
    pub fn pids(mut self, pids: impl IntoIterator<Item = i32>) -> Self {
        self.pids = pids.into_iter().collect();
        self
    }

    /// Watches all GPUs of the host; by default those that `CUDA_VISIBLE_DEVICES` names.
    pub fn all_devices(mut self) -> Self {
        self.all_devices = true;
        self
    }

    /// Gives every process of the tree rows of its own; by default only those on a GPU get them.
    pub fn all_processes(mut self) -> Self {
        self.logging.processes = Some(ProcessesArg::All);
        self
    }

    /// Adds (`+pss`) or leaves out (`-fan`) metrics, by name or group; bare names mean only these.
    /// `gpurun metrics` lists them.
    pub fn metrics<W: Into<String>>(mut self, words: impl IntoIterator<Item = W>) -> Self {
        self.logging.metrics.extend(words.into_iter().map(Into::into));
        self
    }

    /// Steps per step row of a log; 50 by default.
    pub fn every_n_steps(mut self, steps: u32) -> Self {
        self.logging.every_n_steps = Some(steps);
        self
    }

    /// Also writes everything to a log, as `gpurun --log` does: `*.csv`, `*.parquet` or `tensorboard:DIR`.
    /// An existing file is an error unless [`Builder::overwrite`] says otherwise.
    pub fn log(mut self, target: impl Into<String>) -> Self {
        self.logging.log.push(target.into());
        self
    }

    /// Replaces existing logs.
    pub fn overwrite(mut self) -> Self {
        self.logging.overwrite = true;
        self
    }

    /// The NVML library to load; by default `GPURUN_NVML_LIBRARY`, else the usual names.
    pub fn nvml_library(mut self, path: impl Into<PathBuf>) -> Self {
        self.library = Some(path.into());
        self
    }

    /// Says on standard error, once each, what cannot be read; silent by default.
    pub fn verbose(mut self) -> Self {
        self.verbose = true;
        self
    }

    /// Calls `callback` with each window of the root tag when it is over, the last partial one included.
    /// Each call has the statistics of its own window only. The callback ends the calls with `false`; a
    /// panic of it ends them too.
    ///
    /// It runs on a thread of its own, so that a slow one delays no sample. Windows that find 64 others
    /// waiting for it are dropped and counted ([`Ended::dropped_windows`]). The collector waits for it to
    /// return when it is stopped or dropped.
    pub fn on_window(mut self, callback: impl FnMut(&Collection) -> bool + Send + 'static) -> Self {
        self.on_window = Some(Box::new(callback));
        self
    }

    /// Starts the collector. The driver is opened in the background: the first windows may come before
    /// the GPUs are known.
    ///
    /// # Errors
    ///
    /// A setting that makes no sense, a log that cannot be opened, or no thread. A missing driver is no
    /// error: there are no GPU series then.
    pub fn start(self) -> Result<Collector, CollectorError> {
        let Builder { mut logging, pids, all_devices, library, verbose, on_window } = self;
        let words = OWN_USE.iter().map(|word| (*word).to_owned());
        logging.metrics.splice(0..0, words);
        let logging = logging.meaning().map_err(|line| CollectorError::Setting(line.replace("--", "")))?;
        if let Some(pid) = pids.iter().find(|pid| **pid <= 0) {
            return Err(CollectorError::Setting(format!("pid {pid}: a process id is positive")));
        }
        let notices = Notices::new(if verbose { Verbosity::Verbose } else { Verbosity::Quiet });
        let argv: Vec<_> = std::env::args_os().collect();
        let pid = std::process::id();
        let run = describe::run(&logging, &argv, pid, clock::pair());
        let opened = targets::open(&logging, &run, pid, &notices)
            .map_err(|refusal| CollectorError::Log(refusal.lines.join("; ").replace("--", "")))?;
        let own = i32::try_from(pid).map_err(|error| CollectorError::Setting(error.to_string()))?;
        let callback = on_window.map(CallbackThread::start).transpose()?;
        // In a program with threads of its own no child can check the library first.
        let watched = if all_devices {
            Watched::All(None)
        } else {
            Watched::Visible(Surroundings::from_environment(), None)
        };
        let inbox = Inbox::new();
        let channel = inbox.channel();
        let settings = EngineSettings {
            root: TreeRoot::Pids(if pids.is_empty() { vec![own] } else { pids }),
            watched,
            library: library.or_else(|| {
                std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
            }),
            targets: opened,
            on_window: callback.as_ref().map(|callback| callback.feed(&logging)),
            run,
            notices,
            logging,
        };
        let engine = Engine::start(settings, inbox)?;
        let marks = Marks { channel, open: Vec::new(), next: 0, unsent: VecDeque::new(), last: Mono(0) };
        Ok(Collector { engine: Mutex::new(Some(engine)), marks: Mutex::new(marks), callback })
    }
}

/// The thread that runs the callback.
struct CallbackThread {
    windows: SyncSender<Collection>,
    dropped: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl CallbackThread {
    fn start(mut callback: OnWindow) -> std::io::Result<Self> {
        let (windows, receiver) = sync_channel::<Collection>(WAITING_WINDOWS);
        let thread = std::thread::Builder::new().name("gpurun-callback".to_owned()).spawn(move || {
            for collection in receiver {
                if !catch_unwind(AssertUnwindSafe(|| callback(&collection))).unwrap_or(false) {
                    return;
                }
            }
        })?;
        Ok(Self { windows, dropped: Arc::default(), thread })
    }

    /// The engine's end: never waits.
    fn feed(&self, logging: &Logging) -> Box<dyn FnMut(&WindowBatch) + Send> {
        let (windows, dropped, root) = (self.windows.clone(), Arc::clone(&self.dropped), logging.tag.clone());
        Box::new(move |batch| {
            if batch.kind != RowKind::Window || *batch.tag != *root {
                return;
            }
            let collection = Collection::new(&batch.tag, batch.window_s, batch.time, batch.rows.clone());
            if let Err(TrySendError::Full(_)) = windows.try_send(collection) {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    /// Waits for the callback to have seen everything; the windows it never saw.
    fn finish(self) -> u64 {
        drop(self.windows);
        // The callback itself may hold the last reference to the collector: it cannot wait for itself.
        if self.thread.thread().id() != std::thread::current().id() {
            // A panic of the callback was caught on its thread.
            let _ = self.thread.join();
        }
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The tags that are open, and the marks on their way.
struct Marks {
    channel: SyncSender<ToEngine>,
    /// Number and name of each open tag, the outermost first.
    open: Vec<(u64, Arc<str>)>,
    next: u64,
    /// Marks that found the engine's inbox full.
    unsent: VecDeque<Mark>,
    last: Mono,
}

impl Marks {
    /// Marks now; marks of one collector never go back in time.
    fn mark(&mut self, op: MarkOp) {
        self.last = self.last.max(clock::monotonic());
        if self.unsent.len() < WAITING_MARKS {
            self.unsent.push_back(Mark { stack: Fold::OWN, at: self.last, op });
        }
        self.flush();
    }

    /// Sends what waits, as far as the engine takes it.
    fn flush(&mut self) {
        while let Some(mark) = self.unsent.pop_front() {
            match self.channel.try_send(ToEngine::Control(ControlEvent::Mark(mark))) {
                Ok(()) => {}
                Err(TrySendError::Full(ToEngine::Control(ControlEvent::Mark(mark)))) => {
                    self.unsent.push_front(mark);
                    return;
                }
                Err(_) => return,
            }
        }
    }
}

/// What a stopped collector leaves.
#[derive(Debug)]
pub struct Ended {
    /// Length of the run in seconds.
    pub duration_s: f64,
    /// Totals of the run as JSON, as `gpurun --summary` writes them; `schemas/summary.v1.json` describes it.
    pub summary: String,
    /// What each log got.
    pub logs: Vec<TargetSummary>,
    /// Windows that a slow callback never saw.
    pub dropped_windows: u64,
}

/// Follows the processes and GPUs of this program in the background.
///
/// It is nvitop's `ResourceMetricCollector` with true numbers: every window and every tag has the
/// statistics of its own time, means are weighted by time, and what is unknown is absent instead of 0.
/// Dropping it ends the open tags, writes the last window, finishes the logs and joins the sampling thread
/// and that of the callback.
///
/// ```
/// use std::time::{Duration, SystemTime, UNIX_EPOCH};
///
/// let collector = gpurun::Collector::builder()
///     .interval(Duration::from_millis(50))
///     .on_window(|window| {
///         println!("{:?}", window.get("job/cpu_percent (%)"));
///         true
///     })
///     .start()?;
/// {
///     let _train = collector.tag("train")?;
///     let _epoch = collector.tag("epoch 1")?;
///     // … train …
///     let so_far = collector.collect()?.to_map();
///     assert!(so_far.contains_key("run/train/epoch 1/duration (s)"));
/// }
/// let ended = collector.stop()?;
/// assert!(ended.duration_s > 0.0);
/// # Ok::<(), gpurun::CollectorError>(())
/// ```
pub struct Collector {
    engine: Mutex<Option<Engine>>,
    marks: Mutex<Marks>,
    callback: Option<CallbackThread>,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").field("open", &self.marks().open).finish_non_exhaustive()
    }
}

impl Collector {
    /// A collector of this process, its children and its visible GPUs, that is not started yet.
    pub fn builder() -> Builder {
        Builder {
            logging: LoggingArgs::default(),
            pids: Vec::new(),
            all_devices: false,
            library: None,
            verbose: false,
            on_window: None,
        }
    }

    fn marks(&self) -> std::sync::MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a tag inside the innermost open one; it ends, with the tags inside it, when the guard is
    /// dropped. A call costs microseconds and never waits for a sample.
    ///
    /// All threads share one stack of tags.
    ///
    /// # Errors
    ///
    /// A name that is empty or open already; the open tag goes on.
    pub fn tag(&self, name: &str) -> Result<Tag<'_>, CollectorError> {
        let mut marks = self.marks();
        if name.is_empty() {
            return Err(CollectorError::EmptyTag);
        }
        if marks.open.iter().any(|(_, open)| **open == *name) {
            return Err(CollectorError::TagOpen(name.to_owned()));
        }
        if marks.open.len() >= TAG_DEPTH {
            return Err(CollectorError::TooDeep);
        }
        marks.next += 1;
        let (number, tag) = (marks.next, Arc::from(name));
        marks.open.push((number, Arc::clone(&tag)));
        marks.mark(MarkOp::Begin { tag });
        Ok(Tag { collector: self, number })
    }

    /// Lets the statistics of all open tags start again.
    pub fn clear(&self) {
        self.marks().mark(MarkOp::Clear { tag: None });
    }

    /// Marks the end of a training step.
    pub fn step(&self, step: i64) {
        self.marks().mark(MarkOp::Step { step, count: 1, began: None, samples: None });
    }

    /// Begins a training step; it ends when the guard is dropped. Gives the times in and between steps.
    pub fn timed_step(&self, step: i64) -> TimedStep<'_> {
        let mut marks = self.marks();
        marks.mark(MarkOp::StepBegin { step: Some(step) });
        TimedStep { collector: self, step, began: marks.last, samples: None }
    }

    /// Says that an epoch begins: rows from here on carry its number, and no time between steps is counted across it.
    pub fn epoch(&self, epoch: i64) {
        self.marks().mark(MarkOp::Epoch { epoch: Some(epoch) });
    }

    /// Notes a scalar of the program's own, of a training step or of the time. What is not finite counts as missing.
    pub fn log(&self, name: &str, value: f64, step: Option<i64>) {
        self.marks().mark(MarkOp::Log { step, values: vec![(Arc::from(name), value)] });
    }

    /// The statistics of the innermost open tag up to now, of the running window if none is open. Takes a
    /// sample if the last one is older than half an interval. Nothing is cleared.
    ///
    /// # Errors
    ///
    /// The engine does not answer within 5 s.
    pub fn collect(&self) -> Result<Collection, CollectorError> {
        let (reply, answer) = sync_channel(1);
        let channel = {
            let mut marks = self.marks();
            // Marks that wait come first, so that the innermost tag is the caller's.
            marks.flush();
            marks.channel.clone()
        };
        channel.try_send(ToEngine::Collect(Fold::OWN, reply)).map_err(|_| CollectorError::TimedOut)?;
        let collected = answer.recv_timeout(COLLECT_PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected => CollectorError::TimedOut,
        })?;
        Ok(Collection::new(&collected.tag, collected.duration_s, clock::wall(), collected.rows))
    }

    /// Ends the open tags, takes the last sample, writes the last window, joins the threads.
    ///
    /// # Errors
    ///
    /// The engine does not answer within a minute: what it had written stays.
    pub fn stop(mut self) -> Result<Ended, CollectorError> {
        self.end().ok_or(CollectorError::TimedOut)
    }

    fn end(&mut self) -> Option<Ended> {
        self.marks().flush();
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let end = engine.finish(None, STOP_PATIENCE, || false).ok();
        // The engine's sender is gone with it, so the callback sees the end.
        let dropped_windows = match &end {
            Some(_) => self.callback.take().map_or(0, CallbackThread::finish),
            None => 0,
        };
        let EngineEnd { totals, run, end, reports } = end?;
        let logs = targets::summaries(&reports);
        let summary = Summary::new(&run, &end, &totals, logs.clone(), Vec::new());
        let summary = serde_json::to_string(&summary).unwrap_or_default();
        Some(Ended { duration_s: end.duration_s, summary, logs, dropped_windows })
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// An open tag; it ends, with the tags inside it, when this is dropped.
#[derive(Debug)]
#[must_use = "the tag ends when this is dropped"]
pub struct Tag<'collector> {
    collector: &'collector Collector,
    number: u64,
}

impl Drop for Tag<'_> {
    fn drop(&mut self) {
        let mut marks = self.collector.marks();
        // A tag that ended with one around it is gone already, even if its name is open again.
        if let Some(place) = marks.open.iter().position(|(number, _)| *number == self.number) {
            let name = Arc::clone(&marks.open[place].1);
            marks.open.truncate(place);
            marks.mark(MarkOp::End { tag: Some(name) });
        }
    }
}

/// A training step; it ends when this is dropped.
#[derive(Debug)]
#[must_use = "the step ends when this is dropped"]
pub struct TimedStep<'collector> {
    collector: &'collector Collector,
    step: i64,
    began: Mono,
    samples: Option<u64>,
}

impl TimedStep<'_> {
    /// How many training samples the step takes, for samples a second.
    pub fn samples(mut self, samples: u64) -> Self {
        self.samples = Some(samples);
        self
    }
}

impl Drop for TimedStep<'_> {
    fn drop(&mut self) {
        let (step, began, samples) = (self.step, Some(self.began), self.samples);
        self.collector.marks().mark(MarkOp::Step { step, count: 1, began, samples });
    }
}
