//! The engine thread: takes samples on absolute deadlines, folds them with the job's marks, and
//! hands finished windows to the writers and to the totals.
//!
//! It runs beside the thread that minds the job, so nothing that happens here (a driver call that
//! hangs, a full disk, a panic) can delay a signal or change the job's exit status.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::cli::logging::{Logging, ProcessesArg};
use crate::control::{self, ControlEvent};
use crate::model::id::SeriesId;
use crate::model::metric::MetricId;
use crate::model::reading::Reading;
use crate::model::reading::Reason;
use crate::model::run::{JobExit, RunEnd, RunInfo};
use crate::model::sample::Sample;
use crate::model::series::SeriesInfo;
use crate::model::time::Mono;
use crate::model::window::{RowKind, WindowBatch};
use crate::sampling::gpu::{GpuNews, GpuReader, GpuSettings};
use crate::sampling::{
    Deadlines, Due, Notice, ProcessDetail, ReapedUsage, Sampler, SamplerSettings, SeriesChange, TreeRoot,
};
use crate::summary::Totals;
use crate::sys::clock;
use crate::sys::notice::Notices;
use crate::windowing::{Fold, FoldSettings};
use crate::writers::{FanOut, Opened, WriterReport};

use super::watched::{Finding, Watched};

/// Messages that wait for the engine; more are dropped and counted. The channel touches its whole room when it is
/// made, 128 bytes a message: room for 4,096 took 0.4 ms of every start.
const INBOX: usize = 1024;

/// How long the engine waits for a GPU frame at a tick before it goes on without.
const FRAME_WAIT: Duration = Duration::from_millis(250);

/// How long a run waits for the driver before its files are begun without devices.
const DRIVER_WAIT: Duration = Duration::from_secs(3);

/// How long a driver that was open may take for one look before the user hears of it.
const DRIVER_SILENCE: Duration = Duration::from_secs(5);

/// How often the engine looks whether the driver is open by now.
const OPENING_LOOK: Duration = Duration::from_millis(50);

/// How often a suspended engine looks at its stop flag.
const SUSPENDED_WAIT: Duration = Duration::from_secs(60);

/// How old the news of a stop may be for values of now to stand for the instant of the stop.
const SUSPEND_NEWS: Duration = Duration::from_millis(100);

/// How long the writers may take to finish their files after the job has ended. A Parquet target
/// that is not done by then stays a journal, which `gpurun recover` finishes.
pub(super) const WRITERS_PATIENCE: Duration = Duration::from_secs(120);

/// How much longer the engine is waited for than it waits for its writers.
const SILENT_BEYOND: Duration = Duration::from_secs(10);

/// How far back a late mark may reach and still be exact.
const MARK_SLACK: Duration = Duration::from_millis(300);

/// What the thread that minds the job tells the engine.
pub enum ToEngine {
    /// Something came in over the job's socket.
    Control(ControlEvent),
    /// A library user collects the innermost tag of a stack.
    Collect(crate::model::id::StackId, SyncSender<crate::windowing::Collected>),
    /// Wake up and look at the stop flag and at what happened to the job.
    Wake,
}

/// A pause of the job.
#[derive(Clone, Copy, Debug)]
enum Pause {
    /// It was stopped at this instant.
    Suspended(Mono),
    /// It goes on since this instant.
    Resumed(Mono),
}

/// What a library user hears of each window of the root tag.
pub(super) type OnWindow = Box<dyn FnMut(&WindowBatch) + Send>;

/// What the engine is to do.
pub struct EngineSettings {
    /// The logging options as meant.
    pub logging: Logging,
    /// Which processes are the job.
    pub root: TreeRoot,
    /// Which devices are watched, and how they are found.
    pub watched: Watched,
    /// NVML library to load; `None` searches the usual names.
    pub library: Option<PathBuf>,
    /// The targets, already open.
    pub targets: Option<Opened>,
    /// What is known about the run; devices, driver and series are filled in here.
    pub run: RunInfo,
    /// Called with each window of the root tag (the library's callback).
    pub on_window: Option<OnWindow>,
    /// Where messages to the user go.
    pub notices: Notices,
}

/// What the thread that minds the job and the engine share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Nobody takes samples any more: what is reaped concerns nobody.
    deaf: AtomicBool,
    /// The exit of the job, known when the engine is stopped.
    exit: Mutex<Option<JobExit>>,
    /// Usage of reaped processes that the sampler has not seen yet.
    reaped: Mutex<Vec<ReapedUsage>>,
    /// Pauses that the engine has not heard of yet; a full inbox must not lose one.
    pauses: Mutex<Vec<Pause>>,
    /// Messages that found the inbox full.
    dropped: AtomicU64,
}

/// What a finished engine leaves.
pub struct EngineEnd {
    /// Totals of the whole run.
    pub totals: Totals,
    /// The run as the files describe it.
    pub run: Arc<RunInfo>,
    /// Its end.
    pub end: RunEnd,
    /// What each target got.
    pub reports: Vec<WriterReport>,
}

impl EngineEnd {
    /// Device memory that a process held at the last look, over all GPUs, in MiB.
    pub fn process_gpu_memory(&self, pid: i32) -> Option<f64> {
        let of_process = self.totals.series().filter(|total| {
            total.series.metric == MetricId::ProcessGpuMemory
                && total.series.process.as_ref().is_some_and(|process| process.key.pid == pid)
        });
        of_process.filter_map(|total| total.last).reduce(|sum, memory| sum + memory)
    }
}

/// Why an engine left nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfinished {
    /// It did not hand over its last windows in time.
    #[error("the last window is lost: the sampler did not answer in time")]
    Hung,
    /// The user did not want to wait for the files.
    #[error("gpurun did not wait for the files: 'gpurun recover' finishes a Parquet journal")]
    GivenUp,
}

/// The other threads' hold on the engine.
pub struct Engine {
    inbox: SyncSender<ToEngine>,
    shared: Arc<Shared>,
    /// Comes when the last windows are handed over.
    closed: Receiver<()>,
    done: Receiver<EngineEnd>,
    thread: Option<JoinHandle<()>>,
}

/// A way into the engine for the job's socket; cheap to copy, never blocks.
#[derive(Clone)]
pub struct EngineInbox {
    inbox: SyncSender<ToEngine>,
    shared: Arc<Shared>,
}

impl EngineInbox {
    /// Hands a message over; a full inbox drops and counts it.
    pub fn send(&self, message: ToEngine) {
        if let Err(TrySendError::Full(_)) = self.inbox.try_send(message) {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The two ends of an engine's inbox, made before the engine so that the socket can exist before the job.
pub struct Inbox {
    sender: EngineInbox,
    receiver: Receiver<ToEngine>,
}

impl Inbox {
    /// An empty inbox.
    pub fn new() -> Self {
        let (inbox, receiver) = sync_channel(INBOX);
        Self { sender: EngineInbox { inbox, shared: Arc::default() }, receiver }
    }

    /// The channel itself, for a sender that keeps what finds no room.
    pub fn channel(&self) -> SyncSender<ToEngine> {
        self.sender.inbox.clone()
    }
}

impl Engine {
    /// Starts the thread.
    pub fn start(settings: EngineSettings, inbox: Inbox) -> std::io::Result<Self> {
        let Inbox { sender: EngineInbox { inbox, shared }, receiver } = inbox;
        let (finished, done) = sync_channel(1);
        let (close, closed) = sync_channel(1);
        let shared_there = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("gpurun-engine".to_owned()).spawn(move || {
            let end = Running::new(settings, receiver, shared_there).run(&close);
            // Nobody waits any more when this fails: the engine was abandoned.
            let _ = finished.send(end);
        })?;
        Ok(Self { inbox, shared, closed, done, thread: Some(thread) })
    }

    /// A way in for other threads.
    pub fn inbox(&self) -> EngineInbox {
        EngineInbox { inbox: self.inbox.clone(), shared: Arc::clone(&self.shared) }
    }

    /// The job was stopped at this instant: its last sample is taken, and the time from here on belongs to no window.
    pub fn suspended(&self, at: Mono) {
        self.paused(Pause::Suspended(at));
    }

    /// The job goes on since this instant.
    pub fn resumed(&self, at: Mono) {
        self.paused(Pause::Resumed(at));
    }

    fn paused(&self, pause: Pause) {
        self.shared.pauses.lock().unwrap_or_else(PoisonError::into_inner).push(pause);
        self.inbox().send(ToEngine::Wake);
    }

    /// Hands over the usage of a reaped process; the sampler takes it with its next sample.
    pub fn reaped(&self, usage: ReapedUsage) {
        if self.shared.deaf.load(Ordering::Relaxed) {
            return;
        }
        self.shared.reaped.lock().unwrap_or_else(PoisonError::into_inner).push(usage);
    }

    /// Takes the last sample, hands over the last windows, closes the files.
    ///
    /// The last windows have `patience`; the files then have their own ([`WRITERS_PATIENCE`]), during which
    /// `give_up` is asked ten times a second whether the user still wants to wait.
    pub fn finish(
        mut self,
        exit: Option<JobExit>,
        patience: Duration,
        mut give_up: impl FnMut() -> bool,
    ) -> Result<EngineEnd, Unfinished> {
        *self.shared.exit.lock().unwrap_or_else(PoisonError::into_inner) = exit;
        self.shared.stop.store(true, Ordering::Release);
        self.inbox().send(ToEngine::Wake);
        self.closed.recv_timeout(patience).map_err(|_| Unfinished::Hung)?;
        // The writers' patience is the engine's to keep; it is kept here as well, should the engine itself hang.
        let until = Instant::now() + WRITERS_PATIENCE + SILENT_BEYOND;
        let end = loop {
            match self.done.recv_timeout(Duration::from_millis(100)) {
                Ok(end) => break end,
                Err(RecvTimeoutError::Timeout) if !give_up() && Instant::now() < until => {}
                Err(RecvTimeoutError::Timeout) => return Err(Unfinished::GivenUp),
                Err(RecvTimeoutError::Disconnected) => return Err(Unfinished::Hung),
            }
        };
        if let Some(thread) = self.thread.take() {
            // The thread has sent its result and is on its way out.
            let _ = thread.join();
        }
        Ok(end)
    }
}

/// The instant that a sample stands for: its deadline, where it is at most a hundredth of an interval late.
///
/// Windows begin at deadlines. Read a moment later, the first value of a window would leave that moment to
/// the value before it, and every window's min and max would have a value of the window before.
fn instant(now: Mono, due: Due, interval: Duration) -> Mono {
    if due.late <= interval / 100 { now - due.late } else { now }
}

/// The engine's own state, on its thread.
struct Running {
    logging: Logging,
    inbox: Receiver<ToEngine>,
    shared: Arc<Shared>,
    watched: Option<Watched>,
    library: Option<PathBuf>,
    sampler: Option<Sampler>,
    root: TreeRoot,
    gpu: Option<GpuReader>,
    devices_known: bool,
    fold: Fold,
    sample: Sample,
    changes: Vec<SeriesChange>,
    batches: Vec<WindowBatch>,
    /// Batches that wait for the files to be begun.
    waiting: VecDeque<Arc<WindowBatch>>,
    targets: Option<Opened>,
    out: Option<FanOut>,
    run: RunInfo,
    run_shared: Option<Arc<RunInfo>>,
    totals: Totals,
    on_window: Option<OnWindow>,
    notices: Notices,
    dropped_said: bool,
    /// The user knows that the driver does not answer.
    silence_said: bool,
    suspended: bool,
    finding: Arc<Mutex<Finding>>,
}

impl Running {
    fn new(settings: EngineSettings, inbox: Receiver<ToEngine>, shared: Arc<Shared>) -> Self {
        let EngineSettings { logging, root, watched, library, targets, run, on_window, notices } = settings;
        let fold = Fold::new(
            FoldSettings {
                window: logging.window,
                root_tag: Arc::clone(&run.root_tag),
                rank: run.rank,
                every_n_steps: logging.every_n_steps,
                slack: MARK_SLACK,
            },
            run.start_mono,
        );
        Self {
            inbox,
            shared,
            watched: Some(watched),
            library,
            sampler: None,
            root,
            gpu: None,
            devices_known: false,
            fold,
            sample: Sample::default(),
            changes: Vec::new(),
            batches: Vec::new(),
            waiting: VecDeque::new(),
            targets,
            out: None,
            totals: Totals::new(run.rank),
            run,
            run_shared: None,
            on_window,
            notices,
            dropped_said: false,
            silence_said: false,
            suspended: false,
            finding: Arc::default(),
            logging,
        }
    }

    /// Runs to the end. A panic of the loop costs the rest of the log and is said; what is written stays.
    fn run(mut self, closed: &SyncSender<()>) -> EngineEnd {
        if catch_unwind(AssertUnwindSafe(|| self.follow())).is_err() {
            self.notices.warn("internal error while sampling: the log ends here, the job continues");
            self.wait_for_stop();
        }
        if catch_unwind(AssertUnwindSafe(|| self.close())).is_err() {
            self.notices.warn("internal error while closing the last window: its rows are lost");
        }
        let _ = closed.try_send(());
        self.end()
    }

    fn stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
    }

    /// After a panic: nothing is done but waiting for the job to end.
    fn wait_for_stop(&self) {
        self.hear_no_more();
        while !self.stopping() {
            if matches!(self.inbox.recv_timeout(Duration::from_secs(60)), Err(RecvTimeoutError::Disconnected))
            {
                return;
            }
        }
    }

    /// A long job of short children must not fill the memory with usage that no sample takes.
    fn hear_no_more(&self) {
        self.shared.deaf.store(true, Ordering::Relaxed);
        self.shared.reaped.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Samples until the job ends.
    fn follow(&mut self) {
        self.begin_sampling();
        let mut deadlines = Deadlines::new(self.run.start_mono, self.logging.interval);
        if let Some(sampler) = &mut self.sampler {
            sampler.begin(self.run.start_mono, &mut self.sample);
            self.fold.sample(&self.sample);
        }
        self.tick(clock::monotonic(), Due::unscheduled());
        loop {
            let now = clock::monotonic();
            // A suspended job has no samples; messages still come.
            let wait = if self.suspended { SUSPENDED_WAIT } else { self.next_wait(deadlines.next(), now) };
            match self.inbox.recv_timeout(wait) {
                Ok(message) => self.handle(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Some(resumed) = self.take_pauses() {
                deadlines.restart(resumed);
                self.tick(clock::monotonic(), Due::unscheduled());
            }
            if self.stopping() {
                return;
            }
            let now = clock::monotonic();
            if !self.devices_known {
                self.attach_devices(now, Duration::ZERO);
                if self.devices_known && !self.suspended {
                    self.first_of_devices();
                }
            }
            if !self.suspended
                && let Some(due) = deadlines.take(now)
            {
                self.tick(now, due);
            }
        }
    }

    /// Until the next sample; shorter while the driver is being opened, so that its first values are early.
    fn next_wait(&self, deadline: Mono, now: Mono) -> Duration {
        let wait = deadline.since(now);
        let opening = !self.devices_known && now.since(self.run.start_mono) < DRIVER_WAIT;
        if opening { wait.min(OPENING_LOOK) } else { wait }
    }

    /// Starts the process sampler at once; the driver is opened on a thread of its own.
    fn begin_sampling(&mut self) {
        let gpu = GpuSettings::new(self.logging.metrics.clone(), self.logging.interval);
        let mut settings = SamplerSettings::new(self.root.clone());
        settings.processes = match self.logging.processes {
            ProcessesArg::Gpu => ProcessDetail::Gpu,
            ProcessesArg::All => ProcessDetail::All,
            ProcessesArg::None => ProcessDetail::None,
        };
        settings.metrics = self.logging.metrics.iter().copied().collect();
        settings.interval = self.logging.interval;
        settings.expensive_interval = gpu.expensive_every;
        settings.gpu_processes_interval = gpu.processes_every;
        match Sampler::new(settings) {
            Ok(sampler) => {
                for (id, info) in sampler.initial_series() {
                    self.fold.open_series(id, info);
                }
                self.sampler = Some(sampler);
            }
            Err(error) => {
                self.notices.warn(&format!("cannot read values of the host and the job: {error}"));
                self.hear_no_more();
            }
        }
        let Some(watched) = self.watched.take() else { return };
        let (library, finding) = (self.library.clone(), Arc::clone(&self.finding));
        match GpuReader::launch(move || watched.find(library.as_deref(), &finding), gpu) {
            Ok(reader) => self.gpu = Some(reader),
            Err(error) => self.notices.warn(&format!("cannot read values of the GPUs: {error}")),
        }
    }

    /// Takes one sample and folds it.
    fn tick(&mut self, now: Mono, due: Due) {
        self.attach_devices(now, Duration::ZERO);
        if let Some(gpu) = &mut self.gpu
            && self.devices_known
        {
            gpu.request(now);
        }
        self.sample(now, due);
        self.say_news();
        self.advance();
    }

    /// The first values of the GPUs are those of now, not of the next deadline, and so is what is not read every time.
    /// Nothing else counts: totals read a moment after the first ones would make any rate of the steps in which they are
    /// kept.
    fn first_of_devices(&mut self) {
        let now = clock::monotonic();
        if let Some(gpu) = &mut self.gpu {
            gpu.request(now);
        }
        self.read(now, Due::unscheduled());
        let Some(sampler) = &self.sampler else { return };
        let is_first = |info: &SeriesInfo| {
            info.device.is_some() || matches!(info.metric, MetricId::JobGpuMemory | MetricId::JobMemoryPss)
        };
        let series = sampler.initial_series().into_iter();
        let first: HashSet<SeriesId> = series.filter(|(_, info)| is_first(info)).map(|(id, _)| id).collect();
        let counts =
            |(id, reading): &(SeriesId, Reading)| first.contains(id) || matches!(reading, Reading::Peak(_));
        self.sample.readings.retain(counts);
        self.fold.sample(&self.sample);
        self.say_news();
    }

    /// Reads everything that is due; a frame that the driver does not deliver in time is taken at a later tick.
    fn sample(&mut self, now: Mono, due: Due) {
        self.read(now, due);
        self.fold.sample(&self.sample);
    }

    fn read(&mut self, now: Mono, due: Due) {
        let Some(sampler) = &mut self.sampler else { return };
        for usage in self.shared.reaped.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            sampler.reaped(&usage);
        }
        let gpu = self.gpu.as_mut().filter(|_| self.devices_known);
        let interval = self.logging.interval;
        let frame = || {
            let gpu = gpu?;
            // A call that hangs must not make every sample late: its frame comes with a later one.
            let hangs = gpu.busy_for().is_some_and(|busy| busy > FRAME_WAIT);
            gpu.take(if hangs { Duration::ZERO } else { FRAME_WAIT.min(interval / 2) })
        };
        let at = instant(now, due, interval);
        sampler.sample(at, due, frame, &mut self.sample, &mut self.changes);
        self.apply_changes(at);
    }

    fn apply_changes(&mut self, now: Mono) {
        for change in self.changes.drain(..) {
            match change {
                SeriesChange::Opened(id, info) => self.fold.open_series(id, info),
                SeriesChange::Closed(id) => self.fold.close_series(id, now),
            }
        }
    }

    /// Opens the GPU series and begins the files once the driver has said which devices there are,
    /// or has had its time.
    fn attach_devices(&mut self, now: Mono, patience: Duration) {
        if self.devices_known {
            return;
        }
        let answer = match &mut self.gpu {
            Some(gpu) => gpu.ready(patience),
            None => Some(Ok(Arc::from([]))),
        };
        match answer {
            Some(Ok(followed)) => {
                self.devices_known = true;
                let finding =
                    std::mem::take(&mut *self.finding.lock().unwrap_or_else(PoisonError::into_inner));
                self.run.driver = finding.driver;
                for line in finding.notes {
                    self.notices.warn(&line);
                }
                self.run.devices = followed.iter().map(|f| Arc::clone(&f.identity)).collect();
                if let Some(sampler) = &mut self.sampler {
                    sampler.attach_devices(&followed, &mut self.changes);
                }
                self.apply_changes(now);
                self.begin_files();
            }
            Some(Err(error)) => {
                self.devices_known = true;
                self.gpu = None;
                self.notices.warn(&format!("no GPU values: {error}"));
                self.begin_files();
            }
            None if now.since(self.run.start_mono) > DRIVER_WAIT => {
                self.begin_files();
                if !std::mem::replace(&mut self.silence_said, true) {
                    self.notices.warn(
                        "the NVIDIA driver has not answered since the start: no GPU values until it does",
                    );
                }
            }
            None => {}
        }
    }

    /// Tells the writers what the run is. Batches that were ready before are written first.
    fn begin_files(&mut self) {
        if self.run_shared.is_some() {
            return;
        }
        if let Some(sampler) = &self.sampler {
            self.run.series = sampler.initial_series().into_iter().map(|(_, info)| info).collect();
        }
        let run = Arc::new(self.run.clone());
        self.run_shared = Some(Arc::clone(&run));
        self.out = self.targets.take().map(|targets| targets.start(run));
        while let Some(batch) = self.waiting.pop_front() {
            if let Some(out) = &self.out {
                out.send(batch);
            }
        }
    }

    /// What the user should hear, once each.
    fn say_news(&mut self) {
        if let Some(sampler) = &mut self.sampler {
            for notice in sampler.take_notices() {
                if notice == Notice::OtherPidNamespace {
                    let reason = Reason::OtherPidNamespace.to_string();
                    for metric in [MetricId::JobGpuMemory, MetricId::JobGpuSmUtilization] {
                        self.totals.unreadable(None, Some(metric), &reason);
                    }
                }
                self.notices.warn(&notice.to_string());
            }
        }
        if let Some(gpu) = &mut self.gpu {
            let news = gpu.news();
            self.say_gpu_news(&news);
        }
        self.say_silence();
        if let Some(out) = &self.out {
            for line in out.notices().take() {
                self.notices.warn(&line);
            }
        }
        if !self.dropped_said && self.shared.dropped.load(Ordering::Relaxed) > 0 {
            self.dropped_said = true;
            self.notices.warn("the job sends more messages than can be recorded: some are dropped");
        }
    }

    /// The driver was open and does not answer, or answers again.
    fn say_silence(&mut self) {
        let Some(gpu) = self.gpu.as_ref().filter(|_| self.devices_known) else { return };
        let busy = gpu.busy_for();
        if busy.is_some_and(|busy| busy > DRIVER_SILENCE) {
            if !std::mem::replace(&mut self.silence_said, true) {
                let line = "the NVIDIA driver does not answer: GPU values are missing until it does";
                self.notices.warn(line);
            }
        } else if busy.is_none() && std::mem::take(&mut self.silence_said) {
            self.notices.say("the NVIDIA driver answers again");
        }
    }

    /// The job has ended and the driver is still silent: the rows cannot say since when.
    fn say_last_silence(&mut self) {
        let Some(gpu) = &self.gpu else { return };
        let line = match gpu.busy_for() {
            _ if !self.devices_known => {
                "no GPU values: the NVIDIA driver had not answered when the job ended".to_owned()
            }
            Some(busy) if busy >= FRAME_WAIT => {
                format!(
                    "the NVIDIA driver does not answer: the GPU values of the last {:.1} s are missing",
                    busy.as_secs_f64()
                )
            }
            _ => return,
        };
        self.notices.warn(&line);
    }

    /// One line for all metrics that devices lack for the same reason. What a card never has is a detail: it stands in
    /// the summary.
    fn say_gpu_news(&mut self, news: &[GpuNews]) {
        let mut lines: Vec<(Option<usize>, &Reason, Vec<&'static str>)> = Vec::new();
        for item in news {
            let name = item.metric.map(|metric| metric.get().name);
            let device = item.device.and_then(|place| self.run.devices.get(place));
            self.totals.unreadable(device.map(|device| &**device), item.metric, &item.reason.to_string());
            match lines.iter_mut().find(|(device, why, _)| *device == item.device && **why == item.reason) {
                Some((_, _, names)) => names.extend(name),
                None => lines.push((item.device, &item.reason, name.into_iter().collect())),
            }
        }
        // Eight like GPUs lack the same: one line, not eight.
        let mut alike: Vec<(Vec<String>, &Reason, Vec<&'static str>)> = Vec::new();
        for (device, reason, names) in lines {
            let subject = device
                .and_then(|place| self.run.devices.get(place))
                .map_or_else(|| "NVML".to_owned(), |device| device.gpu_label());
            match alike.iter_mut().find(|(_, why, what)| *why == reason && *what == names) {
                Some((subjects, _, _)) => subjects.push(subject),
                None => alike.push((vec![subject], reason, names)),
            }
        }
        for (subjects, reason, names) in alike {
            let subjects = subjects.join(", ");
            if names.is_empty() {
                self.notices.warn_once(&format!("{subjects}: {reason}"));
                continue;
            }
            let line = format!("{} of {subjects}: {reason}", names.join(", "));
            // What a card does not have is a detail; what the user can mend is not.
            if matches!(
                reason,
                Reason::NoPermission | Reason::TimedOut | Reason::DriverGone | Reason::GpuLost
            ) {
                self.notices.warn_once(&line);
            } else {
                self.notices.detail_once(&line);
            }
        }
    }

    /// Lets the fold close what is over, and passes the batches on.
    fn advance(&mut self) {
        let clock = clock::pair();
        self.fold.advance(clock, &mut self.batches);
        self.pass_on();
    }

    fn pass_on(&mut self) {
        for batch in self.batches.drain(..) {
            self.totals.add(&batch);
            if batch.kind == RowKind::Window
                && let Some(callback) = &mut self.on_window
            {
                callback(&batch);
            }
            let batch = Arc::new(batch);
            match &self.out {
                Some(out) => out.send(batch),
                None if self.targets.is_some() => self.waiting.push_back(batch),
                None => {}
            }
        }
        if let Some(sampler) = &mut self.sampler {
            for id in self.fold.freed() {
                sampler.release(id);
            }
        }
    }

    fn handle(&mut self, message: ToEngine) {
        match message {
            ToEngine::Control(ControlEvent::Mark(mark)) => {
                if let Err(error) = self.fold.mark(mark) {
                    self.notices.warn_once(&format!("a tag, step or scalar of the job is ignored: {error}"));
                }
            }
            ToEngine::Control(ControlEvent::Collect { stack, at, reply }) => {
                let collected = self.fold.collect(stack, at);
                let rows: Vec<_> =
                    collected.rows.iter().map(|row| (Arc::clone(&row.series), row.stats)).collect();
                reply.send(control::reply::collected(&collected.tag, collected.duration_s, &rows));
            }
            ToEngine::Control(ControlEvent::Snapshot { reply }) => {
                let batch = self.fold.current(clock::pair());
                reply.send(control::reply::snapshot(&self.run, &batch));
            }
            ToEngine::Control(ControlEvent::Notice(line)) => self.notices.warn(&line),
            ToEngine::Collect(stack, reply) => {
                let now = clock::monotonic();
                if !self.suspended && now.since(self.sample.at) > self.logging.interval / 2 {
                    self.tick(now, Due::unscheduled());
                }
                let _ = reply.try_send(self.fold.collect(stack, now));
            }
            ToEngine::Wake => {}
        }
    }

    /// Takes note of the pauses since the last look. The instant of the last resumption, if the job runs since then.
    fn take_pauses(&mut self) -> Option<Mono> {
        let pauses = std::mem::take(&mut *self.shared.pauses.lock().unwrap_or_else(PoisonError::into_inner));
        let mut resumed = None;
        for pause in pauses {
            match pause {
                Pause::Suspended(at) => {
                    resumed = None;
                    // What the job did until it was stopped still counts. Values read much later would say of the time
                    // in between what is not true.
                    if !self.suspended && clock::monotonic().since(at) < SUSPEND_NEWS {
                        self.sample(at, Due::unscheduled());
                    }
                    // Before any window is closed: the time from here on belongs to none.
                    self.fold.suspend(at);
                    self.suspended = true;
                    self.say_news();
                }
                Pause::Resumed(at) => {
                    self.fold.resume(at);
                    self.suspended = false;
                    resumed = Some(at);
                }
            }
        }
        resumed
    }

    /// The last sample, the last windows.
    fn close(&mut self) {
        // Marks that were on their way when the job ended still count.
        while let Ok(message) = self.inbox.try_recv() {
            self.handle(message);
        }
        self.take_pauses();
        if self.suspended {
            self.fold.resume(clock::monotonic());
            self.suspended = false;
        }
        // The run ends here, however long the driver takes for the last look.
        let end = clock::pair();
        self.attach_devices(end.mono, self.driver_patience());
        if let Some(gpu) = &mut self.gpu
            && self.devices_known
        {
            gpu.request_everything(end.mono);
        }
        self.sample(end.mono, Due::unscheduled());
        self.begin_files();
        self.fold.finish(end, &mut self.batches);
        self.pass_on();
        self.say_news();
        if !self.driver_patience().is_zero() || self.silence_said {
            self.say_last_silence();
        }
    }

    /// How long the end may wait for the driver: nothing where nobody reads the values of a driver that is
    /// not even open.
    fn driver_patience(&self) -> Duration {
        let read = self.targets.is_some() || self.out.is_some() || self.on_window.is_some();
        let wanted = read || self.devices_known;
        // A driver that has shown that it hangs gets no more time.
        if wanted && !self.silence_said { FRAME_WAIT } else { Duration::ZERO }
    }

    /// Ends the driver's thread and the files.
    fn end(mut self) -> EngineEnd {
        if let Some(gpu) = self.gpu.take() {
            // Abandoned if a driver call hangs: the process ends all the same.
            let _ = gpu.stop(self.driver_patience());
        }
        self.begin_files();
        let exit = *self.shared.exit.lock().unwrap_or_else(PoisonError::into_inner);
        let end = RunEnd { exit, end: clock::wall(), duration_s: self.totals.seconds };
        let mut reports = Vec::new();
        if let Some(out) = self.out.take() {
            let notices = out.notices().clone();
            reports = out.finish(end.clone(), WRITERS_PATIENCE);
            // What the last window ran into is said as well.
            for line in notices.take() {
                self.notices.warn(&line);
            }
        }
        let run = self.run_shared.take().unwrap_or_else(|| Arc::new(self.run.clone()));
        EngineEnd { totals: self.totals, run, end, reports }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_is_a_moment_late_stands_for_its_deadline() {
        let second = Duration::from_secs(1);
        let late = |millis| Due { late: Duration::from_millis(millis), skipped: 0 };
        let now = Mono(10_010_000_000);
        assert_eq!(instant(now, late(10), second), Mono(10_000_000_000));
        assert_eq!(instant(now, late(11), second), now);
        assert_eq!(instant(now, Due::unscheduled(), second), now);
    }
}
