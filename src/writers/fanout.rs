//! One thread per target: a bounded queue in, retries while the disk refuses, a report at the end.
//! A writer that fails, hangs or panics concerns neither the others nor whoever sends.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::model::run::{RunEnd, RunInfo};
use crate::model::window::{Row, WindowBatch};

use super::WriterSettings;
use super::format::Writer;
use super::target::Target;

/// What one writer did.
#[derive(Clone, Debug)]
pub struct WriterReport {
    /// Which one.
    pub target: Target,
    /// Rows written.
    pub rows: u64,
    /// Batches written.
    pub batches: u64,
    /// Bytes appended to the log or journal.
    pub bytes: u64,
    /// Rows that were never written.
    pub lost_rows: u64,
    /// What went wrong in the end, if anything.
    pub error: Option<String>,
    /// What else the user should know.
    pub note: Option<String>,
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<Arc<WindowBatch>>,
    bytes: usize,
    lost_rows: u64,
    /// Counts the batches sent, so that a retry waits for a new one.
    sent: u64,
    end: Option<RunEnd>,
    /// A batch is out of the queue and not yet written.
    writing: bool,
    /// The thread is gone; what is sent is lost.
    dead: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    notices: Arc<Mutex<Vec<String>>>,
    bound: usize,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A panic elsewhere leaves the queue usable: every change of it is a single step.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, text: String) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

struct Lane {
    target: Target,
    shared: Arc<Shared>,
    report: mpsc::Receiver<WriterReport>,
}

/// All writers of a run.
pub struct FanOut {
    lanes: Vec<Lane>,
    notices: Arc<Mutex<Vec<String>>>,
}

fn size_of_batch(batch: &WindowBatch) -> usize {
    size_of::<WindowBatch>() + batch.rows.len() * size_of::<Row>()
}

impl FanOut {
    pub(super) fn start(writers: Vec<Writer>, settings: &WriterSettings, run: &Arc<RunInfo>) -> FanOut {
        let notices = Arc::new(Mutex::new(Vec::new()));
        let lanes = writers
            .into_iter()
            .map(|writer| {
                let shared = Arc::new(Shared {
                    queue: Mutex::default(),
                    wake: Condvar::new(),
                    notices: Arc::clone(&notices),
                    bound: settings.memory_bound,
                });
                let (send, report) = mpsc::sync_channel(1);
                let target = writer.target.clone();
                let lane = Lane { target: target.clone(), shared: Arc::clone(&shared), report };
                let run = Arc::clone(run);
                let sync_every = settings.sync_every;
                let spawned = thread::Builder::new()
                    .name("gpurun-writer".to_owned())
                    .spawn(move || run_lane(writer, &shared, &run, sync_every, &send));
                if let Err(e) = spawned {
                    lane.shared.queue().dead = true;
                    lane.shared
                        .say(format!("{target}: cannot start its thread: {e}; nothing is written to it"));
                }
                lane
            })
            .collect();
        FanOut { lanes, notices }
    }

    /// Hands a batch to every writer. Never blocks; over its memory bound a writer loses the oldest.
    pub fn send(&self, batch: Arc<WindowBatch>) {
        let size = size_of_batch(&batch);
        for lane in &self.lanes {
            let mut queue = lane.shared.queue();
            queue.sent += 1;
            if queue.dead {
                queue.lost_rows += batch.rows.len() as u64;
                continue;
            }
            queue.batches.push_back(Arc::clone(&batch));
            queue.bytes += size;
            while queue.bytes > lane.shared.bound && queue.batches.len() > 1 {
                if let Some(oldest) = queue.batches.pop_front() {
                    queue.bytes -= size_of_batch(&oldest);
                    queue.lost_rows += oldest.rows.len() as u64;
                }
            }
            drop(queue);
            lane.shared.wake.notify_one();
        }
    }

    /// What the writers have to tell the user since the last call; each thing is said once.
    pub fn notices(&self) -> Vec<String> {
        std::mem::take(&mut *self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Batches that wait, in the writer that is furthest behind; the one that is being written counts.
    pub fn queued(&self) -> usize {
        self.lanes
            .iter()
            .map(|lane| {
                let queue = lane.shared.queue();
                queue.batches.len() + usize::from(queue.writing)
            })
            .max()
            .unwrap_or(0)
    }

    /// Rows lost so far, over all writers.
    pub fn lost_rows(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.shared.queue().lost_rows).sum()
    }

    /// Ends the writers and waits for them, all together no longer than `deadline`.
    ///
    /// A writer that hangs is left behind: it dies with the process, and `gpurun recover` finishes what
    /// its journal holds.
    pub fn finish(self, end: RunEnd, deadline: Duration) -> Vec<WriterReport> {
        let until = Instant::now() + deadline;
        for lane in &self.lanes {
            lane.shared.queue().end = Some(end.clone());
            lane.shared.wake.notify_one();
        }
        self.lanes
            .iter()
            .map(|lane| {
                let left = until.saturating_duration_since(Instant::now());
                lane.report.recv_timeout(left).unwrap_or_else(|e| abandoned(lane, e, deadline))
            })
            .collect()
    }
}

fn abandoned(lane: &Lane, why: RecvTimeoutError, deadline: Duration) -> WriterReport {
    let queue = lane.shared.queue();
    let waiting: u64 = queue.batches.iter().map(|b| b.rows.len() as u64).sum();
    let error = match why {
        RecvTimeoutError::Timeout => match &lane.target {
            Target::Parquet(path) => format!(
                "not finished within {} s; complete it with `gpurun recover {}.journal`",
                deadline.as_secs(),
                path.display()
            ),
            _ => format!("its disk did not answer within {} s", deadline.as_secs()),
        },
        RecvTimeoutError::Disconnected => "its thread could not be started".to_owned(),
    };
    WriterReport {
        target: lane.target.clone(),
        rows: 0,
        batches: 0,
        bytes: 0,
        lost_rows: queue.lost_rows + waiting,
        error: Some(error),
        note: None,
    }
}

fn run_lane(
    writer: Writer,
    shared: &Shared,
    run: &Arc<RunInfo>,
    sync_every: Duration,
    send: &mpsc::SyncSender<WriterReport>,
) {
    let mut report = WriterReport {
        target: writer.target.clone(),
        rows: 0,
        batches: 0,
        bytes: 0,
        lost_rows: 0,
        error: None,
        note: None,
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| write_all(writer, shared, run, sync_every, &mut report)));
    let mut queue = shared.queue();
    queue.dead = true;
    let waiting: u64 = queue.batches.drain(..).map(|b| b.rows.len() as u64).sum();
    report.lost_rows = queue.lost_rows + waiting;
    queue.lost_rows = report.lost_rows;
    drop(queue);
    if outcome.is_err() {
        let text = "a fault in its writer ended it; the job is not concerned".to_owned();
        shared.say(format!("{}: {text}", report.target));
        report.error = Some(text);
    }
    // Nobody listens when the deadline has passed.
    let _ = send.try_send(report);
}

fn write_all(
    mut writer: Writer,
    shared: &Shared,
    run: &Arc<RunInfo>,
    sync_every: Duration,
    report: &mut WriterReport,
) {
    if let Err(e) = writer.begin(run) {
        shared.say(format!("{e}; nothing is written to it"));
        report.error = Some(e.to_string());
        return;
    }
    let mut failing: Option<String> = None;
    let mut current: Option<Arc<WindowBatch>> = None;
    let mut last_sync = Instant::now();
    loop {
        for text in writer.take_notices() {
            shared.say(text);
        }
        let mut queue = shared.queue();
        let sent = queue.sent;
        if current.is_none() {
            current = queue.batches.pop_front();
            if let Some(batch) = &current {
                queue.bytes -= size_of_batch(batch);
            }
        }
        queue.writing = current.is_some();
        let ending = queue.end.clone();
        let Some(batch) = &current else {
            if let Some(end) = ending {
                drop(queue);
                finish(&mut writer, shared, &end, report);
                return;
            }
            if !writer.file.is_dirty() {
                drop(shared.wake.wait(queue));
                continue;
            }
            let left = sync_every.saturating_sub(last_sync.elapsed());
            if left.is_zero() {
                drop(queue);
                last_sync = Instant::now();
                if let Err(e) = writer.file.sync() {
                    note_failure(&mut failing, shared, report, &e);
                }
            } else {
                drop(shared.wake.wait_timeout(queue, left));
            }
            continue;
        };
        drop(queue);
        match writer.write(batch) {
            Ok(bytes) => {
                report.rows += batch.rows.len() as u64;
                report.batches += 1;
                report.bytes += bytes;
                current = None;
                if failing.take().is_some() {
                    let lost = match shared.queue().lost_rows {
                        0 => "nothing is lost".to_owned(),
                        n => format!("{n} rows are lost"),
                    };
                    shared.say(format!("{}: can be written again; {lost}", report.target));
                }
                if last_sync.elapsed() >= sync_every {
                    last_sync = Instant::now();
                    if let Err(e) = writer.file.sync() {
                        note_failure(&mut failing, shared, report, &e);
                    }
                }
            }
            Err(e) => {
                note_failure(&mut failing, shared, report, &e);
                let mut queue = shared.queue();
                if let Some(end) = queue.end.clone() {
                    // The last try failed as well: what waits is lost, what is written is finished.
                    queue.lost_rows += batch.rows.len() as u64;
                    drop(queue);
                    report.error = Some(format!("cannot be written: {e}"));
                    finish(&mut writer, shared, &end, report);
                    return;
                }
                while queue.sent == sent && queue.end.is_none() {
                    queue = shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

fn note_failure(
    failing: &mut Option<String>,
    shared: &Shared,
    report: &WriterReport,
    error: &std::io::Error,
) {
    let text = error.to_string();
    if failing.as_ref() != Some(&text) {
        shared.say(format!(
            "{}: {error}; rows are kept in memory and tried again with every window",
            report.target
        ));
        *failing = Some(text);
    }
}

fn finish(writer: &mut Writer, shared: &Shared, end: &RunEnd, report: &mut WriterReport) {
    match writer.finish(end) {
        Ok(note) => report.note = note,
        Err(e) => report.error = Some(e.to_string()),
    }
    for text in writer.take_notices() {
        shared.say(text);
    }
}
