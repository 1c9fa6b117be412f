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
    /// The batch that is out of the queue and not yet written.
    writing: Option<Arc<WindowBatch>>,
    rows: u64,
    written: u64,
    written_bytes: u64,
    /// The thread is gone; what is sent is lost.
    dead: bool,
}

impl Queue {
    /// What waits and what is under way will not be written.
    fn lose_all(&mut self) {
        let waiting = self.batches.drain(..).chain(self.writing.take());
        self.lost_rows += waiting.map(|batch| batch.rows.len() as u64).sum::<u64>();
        self.bytes = 0;
    }

    fn tell(&self, report: &mut WriterReport) {
        report.rows = self.rows;
        report.batches = self.written;
        report.bytes = self.written_bytes;
        report.lost_rows = self.lost_rows;
    }
}

impl WriterReport {
    fn new(target: Target) -> WriterReport {
        WriterReport { target, rows: 0, batches: 0, bytes: 0, lost_rows: 0, error: None, note: None }
    }
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    notices: WriterNotices,
    bound: usize,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // A panic elsewhere leaves the queue usable: every change of it is a single step.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, text: String) {
        self.notices.say(text);
    }
}

struct Lane {
    target: Target,
    report: mpsc::Receiver<WriterReport>,
    work: Arc<Work>,
}

/// What a lane's thread does; whoever takes the writer first does it.
struct Work {
    writer: Mutex<Option<Writer>>,
    shared: Shared,
    run: Arc<RunInfo>,
    sync_every: Duration,
    send: mpsc::SyncSender<WriterReport>,
}

impl Work {
    /// The writer, for whoever asks first.
    fn take(&self) -> Option<Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Writes until the run ends.
    fn write(&self, writer: Writer) {
        run_lane(writer, &self.shared, &self.run, self.sync_every, &self.send);
    }
}

impl Lane {
    fn new(writer: Writer, settings: &WriterSettings, run: &Arc<RunInfo>, notices: &WriterNotices) -> Lane {
        let shared = Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
            notices: notices.clone(),
            bound: settings.memory_bound,
        };
        let (send, report) = mpsc::sync_channel(1);
        let target = writer.target.clone();
        let work = Arc::new(Work {
            writer: Mutex::new(Some(writer)),
            shared,
            run: Arc::clone(run),
            sync_every: settings.sync_every,
            send,
        });
        Lane { target, report, work }
    }
}

/// How long a thread may take to begin, before what is left for it is written without it, or given up. A driver
/// library that hangs while it is loaded holds the loader's lock, which every new thread wants.
const BEGINNING: Duration = Duration::from_secs(1);

/// What writers have to tell the user; outlives them, for what they say at the very end.
#[derive(Clone, Default)]
pub struct WriterNotices(Arc<Mutex<Vec<String>>>);

impl WriterNotices {
    /// What was said since the last call; each thing is said once.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn say(&self, text: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

/// All writers of a run.
pub struct FanOut {
    lanes: Vec<Lane>,
    notices: WriterNotices,
}

fn size_of_batch(batch: &WindowBatch) -> usize {
    size_of::<WindowBatch>() + batch.rows.len() * size_of::<Row>()
}

impl FanOut {
    pub(super) fn start(writers: Vec<Writer>, settings: &WriterSettings, run: &Arc<RunInfo>) -> FanOut {
        let notices = WriterNotices::default();
        let lanes = writers
            .into_iter()
            .map(|writer| {
                let lane = Lane::new(writer, settings, run, &notices);
                let work = Arc::clone(&lane.work);
                let spawned = thread::Builder::new().name("gpurun-writer".to_owned()).spawn(move || {
                    if let Some(writer) = work.take() {
                        work.write(writer);
                    }
                });
                if let Err(e) = spawned {
                    lane.work.shared.say(format!(
                        "{}: cannot start its thread: {e}; a CSV file is written at the end, another one not",
                        lane.target
                    ));
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
            let mut queue = lane.work.shared.queue();
            queue.sent += 1;
            if queue.dead {
                queue.lost_rows += batch.rows.len() as u64;
                continue;
            }
            queue.batches.push_back(Arc::clone(&batch));
            queue.bytes += size;
            while queue.bytes > lane.work.shared.bound && queue.batches.len() > 1 {
                if let Some(oldest) = queue.batches.pop_front() {
                    queue.bytes -= size_of_batch(&oldest);
                    queue.lost_rows += oldest.rows.len() as u64;
                }
            }
            drop(queue);
            lane.work.shared.wake.notify_one();
        }
    }

    /// What the writers have to tell the user.
    pub fn notices(&self) -> &WriterNotices {
        &self.notices
    }

    /// Batches that wait, in the writer that is furthest behind; the one that is being written counts.
    pub fn queued(&self) -> usize {
        self.lanes
            .iter()
            .map(|lane| {
                let queue = lane.work.shared.queue();
                queue.batches.len() + usize::from(queue.writing.is_some())
            })
            .max()
            .unwrap_or(0)
    }

    /// Rows lost so far, over all writers.
    pub fn lost_rows(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.work.shared.queue().lost_rows).sum()
    }

    /// Ends the writers and waits for them, all together no longer than `deadline`.
    ///
    /// A writer that hangs is left behind: it dies with the process, and `gpurun recover` finishes what
    /// its journal holds.
    pub fn finish(self, end: RunEnd, deadline: Duration) -> Vec<WriterReport> {
        let until = Instant::now() + deadline;
        for lane in &self.lanes {
            lane.work.shared.queue().end = Some(end.clone());
            lane.work.shared.wake.notify_one();
        }
        self.lanes
            .iter()
            .map(|lane| {
                let left = || until.saturating_duration_since(Instant::now());
                let mut report = lane.report.recv_timeout(left().min(BEGINNING));
                if report.is_err() {
                    report = match (lane.work.take(), &lane.target) {
                        (None, _) => lane.report.recv_timeout(left()),
                        // Lines of text need nothing that could wait for what the thread waits for.
                        (Some(writer), Target::Csv(_)) => {
                            lane.work.write(writer);
                            lane.report.recv_timeout(left())
                        }
                        (Some(_), _) => Err(RecvTimeoutError::Disconnected),
                    };
                }
                let mut report = report.unwrap_or_else(|e| abandoned(lane, e, deadline));
                // A writer that ended before the run did has reported without what was sent to it since.
                lane.work.shared.queue().tell(&mut report);
                report
            })
            .collect()
    }
}

fn abandoned(lane: &Lane, why: RecvTimeoutError, deadline: Duration) -> WriterReport {
    let error = match why {
        RecvTimeoutError::Timeout => match &lane.target {
            Target::Parquet(path) => format!(
                "not finished within {:.1} s; complete it with `gpurun recover {}.journal`",
                deadline.as_secs_f64(),
                path.display()
            ),
            _ => format!("its disk did not answer within {:.1} s", deadline.as_secs_f64()),
        },
        RecvTimeoutError::Disconnected => "its thread did not begin".to_owned(),
    };
    let mut report = WriterReport::new(lane.target.clone());
    let mut queue = lane.work.shared.queue();
    // Whatever it still writes when it wakes up, nobody can count on it.
    queue.dead = true;
    queue.lose_all();
    queue.tell(&mut report);
    report.error = Some(error);
    report
}

fn run_lane(
    writer: Writer,
    shared: &Shared,
    run: &Arc<RunInfo>,
    sync_every: Duration,
    send: &mpsc::SyncSender<WriterReport>,
) {
    let mut report = WriterReport::new(writer.target.clone());
    let outcome = catch_unwind(AssertUnwindSafe(|| write_all(writer, shared, run, sync_every, &mut report)));
    let mut queue = shared.queue();
    queue.dead = true;
    queue.lose_all();
    queue.tell(&mut report);
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
        queue.writing.clone_from(&current);
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
                let mut queue = shared.queue();
                queue.rows += batch.rows.len() as u64;
                queue.written += 1;
                queue.written_bytes += bytes;
                queue.writing = None;
                drop(queue);
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
                    queue.lose_all();
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::model::device::DeviceIdentity;
    use crate::model::metric::MetricId;
    use crate::model::series::SeriesInfo;
    use crate::model::time::{Mono, Wall};
    use crate::model::window::{RowKind, Stats};
    use crate::writers::WriterError;
    use crate::writers::disk::LogFile;
    use crate::writers::format::Format;

    /// What a writer does when it is given a batch.
    enum Act {
        Write,
        Panic,
        Hang(Receiver<()>),
    }

    struct Acting(Act);

    impl Format for Acting {
        fn begin(&mut self, _: &Arc<RunInfo>, _: &mut LogFile) -> Result<Option<String>, WriterError> {
            Ok(None)
        }

        fn prefix(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
            out.extend_from_slice(b"start\n");
            Ok(())
        }

        fn encode(&mut self, batch: &WindowBatch, out: &mut Vec<u8>) -> io::Result<()> {
            match &self.0 {
                Act::Write => {}
                Act::Panic => panic!("a fault on purpose"),
                Act::Hang(release) => drop(release.recv()),
            }
            out.extend_from_slice(format!("{}\n", batch.ordinal).as_bytes());
            Ok(())
        }

        fn finish(&mut self, _: &mut LogFile, _: &RunEnd) -> Result<Option<String>, WriterError> {
            Ok(None)
        }
    }

    fn run() -> Arc<RunInfo> {
        Arc::new(RunInfo {
            run: "r".into(),
            host: "h".into(),
            rank: None,
            node_rank: None,
            job: "j".into(),
            root_tag: "run".into(),
            argv: Vec::new(),
            version: "0",
            driver: None,
            devices: Vec::<Arc<DeviceIdentity>>::new(),
            interval: Duration::from_secs(1),
            window: Duration::from_secs(10),
            start: Wall(0),
            start_mono: Mono(0),
            series: Vec::new(),
        })
    }

    fn batch(ordinal: u64) -> Arc<WindowBatch> {
        let series = Arc::new(SeriesInfo {
            metric: MetricId::HostCpuPercent,
            label: None,
            device: None,
            process: None,
            pace: Duration::from_secs(1),
        });
        Arc::new(WindowBatch {
            kind: RowKind::Window,
            tag: "run".into(),
            occurrence: 1,
            epoch: None,
            step: None,
            rank: None,
            ordinal,
            start: Mono(0),
            end: Mono(0),
            time: Wall(0),
            window_s: 1.0,
            rows: vec![Row { series, stats: Stats::default() }],
        })
    }

    fn start(dir: &std::path::Path, acts: Vec<Act>, bound: usize) -> FanOut {
        let writers = acts
            .into_iter()
            .enumerate()
            .map(|(n, act)| {
                let path = dir.join(format!("{n}.csv"));
                let file = LogFile::create(&path).unwrap();
                Writer::new(Target::Csv(path), file, Box::new(Acting(act)), true)
            })
            .collect();
        let settings = WriterSettings { memory_bound: bound, ..WriterSettings::default() };
        FanOut::start(writers, &settings, &run())
    }

    fn end() -> RunEnd {
        RunEnd { exit: None, end: Wall(0), duration_s: 0.0 }
    }

    fn hanging() -> (Act, Sender<()>) {
        let (release, held) = channel();
        (Act::Hang(held), release)
    }

    #[test]
    fn a_panic_ends_its_own_writer_only() {
        let dir = tempfile::tempdir().unwrap();
        let fan_out = start(dir.path(), vec![Act::Panic, Act::Write], usize::MAX);
        for n in 1..=3 {
            fan_out.send(batch(n));
        }
        let reports = fan_out.finish(end(), Duration::from_secs(60));
        assert!(reports[0].error.as_ref().unwrap().contains("fault"), "{reports:?}");
        assert_eq!((reports[0].rows, reports[0].lost_rows), (0, 3));
        assert_eq!((reports[1].rows, reports[1].lost_rows), (3, 0));
        assert_eq!(std::fs::read_to_string(dir.path().join("1.csv")).unwrap(), "start\n1\n2\n3\n");
    }

    #[test]
    fn without_its_thread_a_writer_writes_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.csv");
        let file = LogFile::create(&path).unwrap();
        let writer = Writer::new(Target::Csv(path.clone()), file, Box::new(Acting(Act::Write)), true);
        let notices = WriterNotices::default();
        let lane = Lane::new(writer, &WriterSettings::default(), &run(), &notices);
        let fan_out = FanOut { lanes: vec![lane], notices };
        for n in 1..=3 {
            fan_out.send(batch(n));
        }
        let reports = fan_out.finish(end(), Duration::from_secs(60));
        assert_eq!((reports[0].rows, reports[0].lost_rows, &reports[0].error), (3, 0, &None));
        assert_eq!(std::fs::read_to_string(path).unwrap(), "start\n1\n2\n3\n");
    }

    #[test]
    fn a_writer_that_hangs_is_left_behind_and_the_others_finish() {
        let dir = tempfile::tempdir().unwrap();
        let (hang, release) = hanging();
        let fan_out = start(dir.path(), vec![hang, Act::Write], usize::MAX);
        for n in 1..=3 {
            fan_out.send(batch(n));
        }
        let reports = fan_out.finish(end(), Duration::from_millis(200));
        assert!(reports[0].error.as_ref().unwrap().contains("did not answer"), "{reports:?}");
        assert_eq!(reports[0].rows + reports[0].lost_rows, 3, "{reports:?}");
        assert_eq!((reports[1].rows, &reports[1].error), (3, &None));
        drop(release);
    }

    #[test]
    fn over_the_bound_the_oldest_go_and_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (hang, release) = hanging();
        let fan_out = start(dir.path(), vec![hang], 3 * size_of_batch(&batch(1)));
        fan_out.send(batch(1));
        // The first is out of the queue when it is being written.
        while fan_out.lanes[0].work.shared.queue().writing.is_none() {
            std::thread::yield_now();
        }
        for n in 2..=10 {
            fan_out.send(batch(n));
        }
        assert_eq!(fan_out.lost_rows(), 6);
        drop(release);
        let reports = fan_out.finish(end(), Duration::from_secs(60));
        assert_eq!((reports[0].rows, reports[0].lost_rows), (4, 6));
        assert_eq!(std::fs::read_to_string(dir.path().join("0.csv")).unwrap(), "start\n1\n8\n9\n10\n");
    }
}
