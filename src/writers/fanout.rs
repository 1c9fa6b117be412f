//! Every batch to every target, each of which has its own thread. A writer that fails, hangs or panics concerns neither
//! the others nor the sender.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::run::{RunEnd, RunInfo};
use crate::model::window::WindowBatch;

use super::WriterSettings;
use super::format::Writer;
use super::writer_report::{WriterNotices, WriterReport};
use super::writer_thread::{Spawn, WriterThread, system_threads};

/// All writers of a run.
pub struct FanOut {
    writers: Vec<WriterThread>,
    notices: WriterNotices,
    spawn: Spawn,
}

impl FanOut {
    pub(super) fn start(writers: Vec<Writer>, settings: &WriterSettings, run: &Arc<RunInfo>) -> FanOut {
        FanOut::start_with(writers, settings, run, system_threads())
    }

    fn start_with(
        writers: Vec<Writer>,
        settings: &WriterSettings,
        run: &Arc<RunInfo>,
        spawn: Spawn,
    ) -> FanOut {
        let notices = WriterNotices::default();
        let new = |writer| WriterThread::new(writer, settings, run, &notices);
        let writers: Vec<WriterThread> = writers.into_iter().map(new).collect();
        writers.iter().for_each(|writer| writer.start(&spawn));
        FanOut { writers, notices, spawn }
    }

    /// Hands a batch to every writer. Never blocks; over its memory bound a writer loses the oldest.
    pub fn send(&self, batch: Arc<WindowBatch>) {
        for writer in &self.writers {
            writer.queue().send(Arc::clone(&batch));
            writer.start(&self.spawn);
        }
    }

    /// What the writers report to the user.
    pub fn notices(&self) -> &WriterNotices {
        &self.notices
    }

    /// Batches that wait, in the writer that is furthest behind; the one that is being written counts.
    pub fn queued(&self) -> usize {
        self.writers.iter().map(|writer| writer.queue().waiting()).max().unwrap_or(0)
    }

    /// Rows lost so far, over all writers.
    pub fn lost_rows(&self) -> u64 {
        self.writers.iter().map(|writer| writer.queue().counts().lost_rows).sum()
    }

    /// Ends the writers and waits for them, all together no longer than `deadline`.
    ///
    /// A writer that hangs is left behind: it dies with the process, and `gpurun recover` finishes what
    /// its journal holds.
    pub fn finish(self, end: RunEnd, deadline: Duration) -> Vec<WriterReport> {
        let until = Instant::now() + deadline;
        for writer in &self.writers {
            writer.queue().end(end.clone());
            writer.start(&self.spawn);
        }
        self.writers.iter().map(|writer| writer.finish(until, deadline)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::model::device::DeviceIdentity;
    use crate::model::metric::MetricId;
    use crate::model::series::SeriesInfo;
    use crate::model::time::{Mono, Wall};
    use crate::model::window::{Row, RowKind, Stats};
    use crate::writers::WriterError;
    use crate::writers::batch_queue::size_of_batch;
    use crate::writers::directory::{Directory, directory_of};
    use crate::writers::format::{Finished, Format};
    use crate::writers::log_file::LogFile;
    use crate::writers::target::Target;

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

        fn encode(&mut self, batch: &WindowBatch, out: &mut Vec<u8>) -> io::Result<u64> {
            match &self.0 {
                Act::Write => {}
                Act::Panic => panic!("a fault on purpose"),
                Act::Hang(release) => drop(release.recv()),
            }
            out.extend_from_slice(format!("{}\n", batch.ordinal).as_bytes());
            Ok(1)
        }

        fn finish(&mut self, _: &mut LogFile, _: &RunEnd) -> Result<Finished, WriterError> {
            Ok(Finished::default())
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

    fn acting(dir: &std::path::Path, acts: Vec<Act>) -> Vec<Writer> {
        acts.into_iter()
            .enumerate()
            .map(|(n, act)| {
                let path = dir.join(format!("{n}.csv"));
                let file = LogFile::create(&Directory::open(directory_of(&path)).unwrap(), &path).unwrap();
                Writer::new(Target::Csv(path), file, Box::new(Acting(act)), true)
            })
            .collect()
    }

    fn start(dir: &std::path::Path, acts: Vec<Act>, bound: usize) -> FanOut {
        let writers = acting(dir, acts);
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
        assert!(reports[0].error.as_ref().unwrap().contains("internal error"), "{reports:?}");
        assert_eq!((reports[0].rows, reports[0].lost_rows), (0, 3));
        assert_eq!((reports[1].rows, reports[1].lost_rows), (3, 0));
        assert_eq!(std::fs::read_to_string(dir.path().join("1.csv")).unwrap(), "start\n1\n2\n3\n");
    }

    /// Threads of a system that refuses the first `refused`.
    fn scarce_threads(refused: usize) -> Spawn {
        let left = AtomicUsize::new(refused);
        let spawn = system_threads();
        Box::new(move |work| {
            match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
                Ok(_) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
                Err(_) => spawn(work),
            }
        })
    }

    #[test]
    fn a_thread_that_cannot_be_started_is_tried_again_and_nothing_is_lost() {
        // Refused at the start and with the first two windows, then up to the very end.
        for (refused, word) in [(3, "nothing is lost"), (100, "cannot start its thread")] {
            let dir = tempfile::tempdir().unwrap();
            let writers = acting(dir.path(), vec![Act::Write]);
            let settings = WriterSettings::default();
            let fan_out = FanOut::start_with(writers, &settings, &run(), scarce_threads(refused));
            for n in 1..=5 {
                fan_out.send(batch(n));
            }
            let notices = fan_out.notices().clone();
            let reports = fan_out.finish(end(), Duration::from_secs(60));
            assert_eq!((reports[0].rows, reports[0].lost_rows, &reports[0].error), (5, 0, &None));
            let text = std::fs::read_to_string(dir.path().join("0.csv")).unwrap();
            assert_eq!(text, "start\n1\n2\n3\n4\n5\n");
            let said = notices.take();
            assert!(said.iter().any(|line| line.contains(word)), "{said:?}");
            assert_eq!(said.iter().filter(|line| line.contains("cannot start")).count(), 1, "{said:?}");
        }
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
        while !fan_out.writers[0].queue().is_writing() {
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
