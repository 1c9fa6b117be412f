//! The thread of one target: writes what is in its queue, tries again while the disk refuses, and reports at the end.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::model::run::{RunEnd, RunInfo};
use crate::model::window::WindowBatch;

use super::batch_queue::{BatchQueue, Next};
use super::format::Writer;
use super::target::Target;
use super::writer_report::{WriterNotices, WriterReport};
use super::{Layout, WriterSettings};

/// How long a thread may take to begin before the end writes what is left for it. A driver library that hangs while it
/// is loaded holds the loader's lock, which every new thread wants.
const BEGINNING: Duration = Duration::from_secs(1);

/// What a thread is to run.
pub(super) type Work = Box<dyn FnOnce() + Send>;

/// Starts threads.
pub(super) type Spawn = Box<dyn Fn(Work) -> io::Result<()> + Send>;

/// The system's threads.
pub(super) fn system_threads() -> Spawn {
    Box::new(|work| thread::Builder::new().name("gpurun-writer".to_owned()).spawn(work).map(drop))
}

/// A target with its queue and its thread, which may not run yet.
pub(super) struct WriterThread {
    target: Target,
    report: mpsc::Receiver<WriterReport>,
    task: Arc<Task>,
    started: AtomicBool,
    /// That no thread could be started has been said.
    said: AtomicBool,
}

/// What the thread does, or the end of the run in its place: the first to take the writer.
struct Task {
    writer: Mutex<Option<Writer>>,
    queue: BatchQueue,
    notices: WriterNotices,
    run: Arc<RunInfo>,
    sync_every: Duration,
    send: mpsc::SyncSender<WriterReport>,
}

impl WriterThread {
    pub(super) fn new(
        writer: Writer,
        settings: &WriterSettings,
        run: &Arc<RunInfo>,
        notices: &WriterNotices,
    ) -> WriterThread {
        let target = writer.target.clone();
        // An event file gets an event for each batch.
        let layout = match target {
            Target::TensorBoard(_) => Layout::Wide,
            _ => settings.layout,
        };
        let (send, report) = mpsc::sync_channel(1);
        let task = Arc::new(Task {
            writer: Mutex::new(Some(writer)),
            queue: BatchQueue::new(settings.memory_bound, layout),
            notices: notices.clone(),
            run: Arc::clone(run),
            sync_every: settings.sync_every,
            send,
        });
        WriterThread { target, report, task, started: AtomicBool::new(false), said: AtomicBool::new(false) }
    }

    pub(super) fn queue(&self) -> &BatchQueue {
        &self.task.queue
    }

    /// Starts the thread, unless it runs. Where the system refuses, batches wait until it can be tried again.
    pub(super) fn start(&self, spawn: &Spawn) {
        if self.started.load(Ordering::Relaxed) {
            return;
        }
        let task = Arc::clone(&self.task);
        match spawn(Box::new(move || task.run())) {
            Ok(()) => {
                self.started.store(true, Ordering::Relaxed);
                if self.said.load(Ordering::Relaxed) {
                    self.task.notices.say(format!(
                        "{}: its thread has started; {}",
                        self.target,
                        self.task.lost()
                    ));
                }
            }
            Err(error) => {
                if !self.said.swap(true, Ordering::Relaxed) {
                    self.task.notices.say(format!(
                        "{}: cannot start its thread: {error}; rows are kept in memory and it is tried again with \
                         every window",
                        self.target
                    ));
                }
            }
        }
    }

    /// The report of a run that has ended, by `until`. Without its thread the file is written here.
    pub(super) fn finish(&self, until: Instant, patience: Duration) -> WriterReport {
        let left = || until.saturating_duration_since(Instant::now());
        let started = self.started.load(Ordering::Relaxed);
        let mut report = match started {
            true => self.report.recv_timeout(left().min(BEGINNING)),
            false => Err(RecvTimeoutError::Timeout),
        };
        if report.is_err() {
            report = if self.task.has_begun() {
                self.report.recv_timeout(left())
            } else if !started || matches!(self.target, Target::Csv(_)) {
                self.task.run();
                self.report.recv_timeout(left())
            } else {
                // What keeps the thread from beginning would keep Arrow waiting here; lines of text need nothing of it.
                Err(RecvTimeoutError::Disconnected)
            };
        }
        let mut report = report.unwrap_or_else(|why| self.abandoned(why, patience));
        // A writer that ended before the run did has reported without what was sent to it since.
        report.set_counts(self.queue().counts());
        report
    }

    fn abandoned(&self, why: RecvTimeoutError, patience: Duration) -> WriterReport {
        let patience = patience.as_secs_f64();
        let error = match (why, &self.target) {
            (RecvTimeoutError::Timeout, Target::Parquet(path)) => format!(
                "not finished within {patience:.1} s; complete it with `gpurun recover {}.journal`",
                path.display()
            ),
            (RecvTimeoutError::Timeout, _) => format!("its disk did not answer within {patience:.1} s"),
            (RecvTimeoutError::Disconnected, _) => "its thread did not start".to_owned(),
        };
        // What it may still write later does not count.
        self.queue().close();
        WriterReport { error: Some(error), ..WriterReport::new(self.target.clone()) }
    }
}

impl Task {
    fn writer(&self) -> MutexGuard<'_, Option<Writer>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_begun(&self) -> bool {
        self.writer().is_none()
    }

    /// Writes until the run ends, unless that is under way already.
    fn run(&self) {
        let Some(writer) = self.writer().take() else { return };
        let mut report = WriterReport::new(writer.target.clone());
        let written =
            catch_unwind(AssertUnwindSafe(|| Writing::new(writer, self).write_to_the_end(&mut report)));
        self.queue.close();
        if written.is_err() {
            let text = "internal error in its writer; the job is not affected".to_owned();
            self.notices.say(format!("{}: {text}", report.target));
            report.error = Some(text);
        }
        report.set_counts(self.queue.counts());
        // There is no receiver any more once the deadline has passed.
        let _ = self.send.try_send(report);
    }

    fn lost(&self) -> String {
        match self.queue.counts().lost_rows {
            0 => "nothing is lost".to_owned(),
            1 => "1 row is lost".to_owned(),
            n => format!("{n} rows are lost"),
        }
    }
}

/// A writer at work.
struct Writing<'a> {
    writer: Writer,
    task: &'a Task,
    /// What the disk said last, while it refuses.
    failing: Option<String>,
    last_sync: Instant,
}

impl<'a> Writing<'a> {
    fn new(writer: Writer, task: &'a Task) -> Self {
        Writing { writer, task, failing: None, last_sync: Instant::now() }
    }

    fn write_to_the_end(mut self, report: &mut WriterReport) {
        if let Err(error) = self.writer.begin(&self.task.run) {
            self.task.notices.say(format!("{error}; nothing is written to it"));
            report.error = Some(error.to_string());
            return;
        }
        loop {
            self.pass_on_notices();
            let left = self.task.sync_every.saturating_sub(self.last_sync.elapsed());
            match self.task.queue.next(self.writer.file.is_dirty().then_some(left)) {
                Next::Sync => self.sync(),
                Next::End(end) => return self.finish(&end, report),
                Next::Batch(batch) => {
                    if let Some((end, error)) = self.write(&batch) {
                        // The last try failed as well: what waits is lost, what is written is finished.
                        self.task.queue.lose_waiting();
                        self.finish(&end, report);
                        report.error.get_or_insert(format!("cannot be written: {error}"));
                        return;
                    }
                }
            }
        }
    }

    /// Writes a batch, or waits after a failure. Gives the error of a last try, with the end of the run.
    fn write(&mut self, batch: &WindowBatch) -> Option<(RunEnd, io::Error)> {
        match self.writer.write(batch) {
            Ok(written) => {
                self.task.queue.written(written);
                if self.failing.take().is_some() {
                    let line = format!("{}: can be written again; {}", self.writer.target, self.task.lost());
                    self.task.notices.say(line);
                }
                if self.last_sync.elapsed() >= self.task.sync_every {
                    self.sync();
                }
                None
            }
            Err(error) => {
                self.note_failure(&error);
                self.task.queue.not_written().map(|end| (end, error))
            }
        }
    }

    fn sync(&mut self) {
        self.last_sync = Instant::now();
        if let Err(error) = self.writer.file.sync() {
            self.note_failure(&error);
        }
    }

    fn note_failure(&mut self, error: &io::Error) {
        let text = error.to_string();
        if self.failing.as_ref() != Some(&text) {
            self.task.notices.say(format!(
                "{}: {error}; rows are kept in memory and tried again with every window",
                self.writer.target
            ));
            self.failing = Some(text);
        }
    }

    fn finish(&mut self, end: &RunEnd, report: &mut WriterReport) {
        match self.writer.finish(end) {
            Ok(finished) => {
                report.note = finished.note;
                if let Some(rows) = finished.rows {
                    self.task.queue.set_rows(rows);
                }
            }
            Err(error) => report.error = Some(error.to_string()),
        }
        report.target = self.writer.target.clone();
        self.pass_on_notices();
    }

    fn pass_on_notices(&mut self) {
        for text in self.writer.take_notices() {
            self.task.notices.say(text);
        }
    }
}
