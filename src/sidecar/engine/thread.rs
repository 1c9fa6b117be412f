//! The engine's thread: when samples are taken, and what is done with messages, pauses, and the driver's first answer.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::cli::logging::{Logging, ProcessesArg};
use crate::control::{self, ControlEvent};
use crate::model::id::SeriesId;
use crate::model::metric::MetricId;
use crate::model::reading::{Reading, Reason};
use crate::model::run::RunInfo;
use crate::model::sample::Sample;
use crate::model::series::SeriesInfo;
use crate::model::time::Mono;
use crate::model::window::{RowKind, WindowBatch};
use crate::sampling::gpu::{GpuReader, GpuSettings};
use crate::sampling::{
    Deadlines, Due, Notice, ProcessDetail, Sampler, SamplerSettings, SeriesChange, TreeRoot,
};
use crate::sys::clock;
use crate::sys::format;
use crate::windowing::{Fold, FoldSettings};

use super::super::watched::{Finding, Watched};
use super::channel::{Pause, Shared, ToEngine};
use super::ended::EngineEnd;
use super::messages::Messages;
use super::output::Output;
use super::settings::EngineSettings;

/// How long the engine waits for a GPU frame at a tick before it goes on without.
const FRAME_WAIT: Duration = Duration::from_millis(250);

/// How long a run waits for the driver before its files are begun without devices.
const DRIVER_WAIT: Duration = Duration::from_secs(3);

/// How often the engine looks whether the driver is open by now.
const OPENING_LOOK: Duration = Duration::from_millis(50);

/// How often a suspended engine looks at its stop flag.
const SUSPENDED_WAIT: Duration = Duration::from_secs(60);

/// How old the news of a stop may be for values of now to stand for the instant of the stop.
const SUSPEND_NEWS: Duration = Duration::from_millis(100);

/// How far back a late mark may reach and still be exact.
const MARK_SLACK: Duration = Duration::from_millis(300);

/// The instant that a sample stands for: its deadline, where it is at most a hundredth of an interval late.
///
/// Windows begin at deadlines. Read a moment later, the first value of a window would leave that moment to
/// the value before it, and every window's min and max would have a value of the window before.
fn instant(now: Mono, due: Due, interval: Duration) -> Mono {
    if due.late <= interval / 100 { now - due.late } else { now }
}

/// The engine's state, on its thread.
pub(super) struct EngineThread {
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
    run: RunInfo,
    output: Output,
    messages: Messages,
    suspended: bool,
    finding: Arc<Mutex<Finding>>,
}

impl EngineThread {
    pub(super) fn new(settings: EngineSettings, inbox: Receiver<ToEngine>, shared: Arc<Shared>) -> Self {
        let EngineSettings { logging, root, watched, library, targets, mut run, on_window, notices } =
            settings;
        // A job may end before the thread of the driver has said what was chosen.
        if let Watched::Known(_, devices) = &watched {
            run.devices = devices.iter().cloned().map(Arc::new).collect();
        }
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
            output: Output::new(targets, on_window, run.rank),
            run,
            messages: Messages::new(notices),
            suspended: false,
            finding: Arc::default(),
            logging,
        }
    }

    /// Runs to the end. A panic of the loop costs the rest of the log and is said; what is written stays.
    pub(super) fn run(mut self, closed: &SyncSender<()>) -> EngineEnd {
        if catch_unwind(AssertUnwindSafe(|| self.follow())).is_err() {
            self.messages.warn("internal error while sampling: the log ends here, the job continues");
            self.wait_for_stop();
        }
        if catch_unwind(AssertUnwindSafe(|| self.close())).is_err() {
            self.messages.warn("internal error while closing the last window: its rows are lost");
        }
        let _ = closed.try_send(());
        self.end()
    }

    /// After a panic: nothing is done but waiting for the job to end.
    fn wait_for_stop(&self) {
        self.shared.end_sampling();
        while !self.shared.stopping() {
            if matches!(self.inbox.recv_timeout(Duration::from_secs(60)), Err(RecvTimeoutError::Disconnected))
            {
                return;
            }
        }
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
            if self.shared.stopping() {
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
                self.messages.warn(&format!("cannot read values of the host and the job: {error}"));
                self.shared.end_sampling();
            }
        }
        let Some(watched) = self.watched.take() else { return };
        let (library, finding) = (self.library.clone(), Arc::clone(&self.finding));
        match GpuReader::launch(move || watched.find(library.as_deref(), &finding), gpu) {
            Ok(reader) => self.gpu = Some(reader),
            Err(error) => self.messages.warn(&format!("cannot read values of the GPUs: {error}")),
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
        for usage in self.shared.take_reaped() {
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
                    self.messages.warn(&line);
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
                self.messages.warn(&format!("no GPU values: {error}"));
                self.begin_files();
            }
            None if now.since(self.run.start_mono) > DRIVER_WAIT => {
                self.begin_files();
                self.messages.not_answered_yet();
            }
            None => {}
        }
    }

    /// Begins the files, unless that is done.
    fn begin_files(&mut self) {
        if self.output.has_begun() {
            return;
        }
        if let Some(sampler) = &self.sampler {
            self.run.series = sampler.initial_series().into_iter().map(|(_, info)| info).collect();
        }
        self.output.begin(self.run.clone());
    }

    /// Tells the user what is new, and notes for the totals what cannot be read.
    fn say_news(&mut self) {
        if let Some(sampler) = &mut self.sampler {
            for notice in sampler.take_notices() {
                if notice == Notice::OtherPidNamespace {
                    let reason = Reason::OtherPidNamespace.to_string();
                    for metric in [MetricId::JobGpuMemory, MetricId::JobGpuSmUtilization] {
                        self.output.totals.unreadable(None, Some(metric), &reason);
                    }
                }
                let line = notice.to_string();
                if notice.is_detail() { self.messages.detail_once(&line) } else { self.messages.warn(&line) }
            }
        }
        if let Some(gpu) = &mut self.gpu {
            let news = gpu.news();
            for item in &news {
                let device = item.device.and_then(|place| self.run.devices.get(place));
                self.output.totals.unreadable(
                    device.map(|device| &**device),
                    item.metric,
                    &item.reason.to_string(),
                );
            }
            self.messages.gpu_news(&news, &self.run.devices);
            if self.devices_known {
                self.messages.silence(gpu.busy_for());
            }
        }
        for line in self.output.warnings() {
            self.messages.warn(&line);
        }
        if self.shared.has_dropped() {
            self.messages.dropped();
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
        self.messages.warn(&line);
    }

    /// Lets the fold close what is over, and passes the batches on.
    fn advance(&mut self) {
        let clock = clock::pair();
        self.fold.advance(clock, &mut self.batches);
        self.pass_on();
    }

    fn pass_on(&mut self) {
        for batch in self.batches.drain(..) {
            if batch.kind == RowKind::Window && batch.window_s > 1.5 * self.logging.window.as_secs_f64() {
                let length = format::elapsed(batch.window_s as u64);
                self.messages
                    .warn(&format!("gpurun was frozen: nothing is known of {length}, which has one row set"));
            }
            self.output.take(batch);
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
                    self.messages.warn_once(&format!("a tag, step or scalar of the job is ignored: {error}"));
                }
            }
            ToEngine::Control(ControlEvent::Collect { stack, at, reply }) => {
                let collected = self.fold.collect(stack, at);
                let rows: Vec<_> =
                    collected.rows.iter().map(|row| (Arc::clone(&row.series), row.stats)).collect();
                reply.send(control::reply::collected(&collected.tag, collected.duration_s, &rows));
            }
            ToEngine::Control(ControlEvent::Snapshot { reply }) => {
                // With long intervals the last sample is long ago.
                self.advance();
                let batch = self.fold.current(clock::pair());
                reply.send(control::reply::snapshot(&self.run, &batch));
            }
            ToEngine::Control(ControlEvent::Notice(line)) => self.messages.warn(&line),
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
        let mut resumed = None;
        for pause in self.shared.take_pauses() {
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
        if !self.driver_patience().is_zero() || self.messages.silence_said() {
            self.say_last_silence();
        }
    }

    /// How long the end may wait for the driver: nothing where no receiver takes the values of a driver that is
    /// not even open.
    fn driver_patience(&self) -> Duration {
        let wanted = self.output.has_receiver() || self.devices_known;
        // A driver that has shown that it hangs gets no more time.
        if wanted && !self.messages.silence_said() { FRAME_WAIT } else { Duration::ZERO }
    }

    /// Ends the driver's thread and the files.
    fn end(mut self) -> EngineEnd {
        if let Some(gpu) = self.gpu.take() {
            // Abandoned if a driver call hangs: the process ends all the same.
            let _ = gpu.stop(self.driver_patience());
        }
        self.begin_files();
        let Self { output, run, messages, shared, .. } = self;
        output.finish(shared.exit(), run, |line| messages.warn(line))
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
