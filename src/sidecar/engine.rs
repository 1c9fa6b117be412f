//! The engine: a thread that takes samples on absolute deadlines, folds them with the job's marks, and hands finished
//! windows to the writers and to the totals.
//!
//! It runs beside the thread that talks with the minder, so nothing that happens in it (a driver call that hangs, a full
//! disk, a panic) can delay what the minder is told.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::model::run::JobExit;
use crate::model::time::Mono;
use crate::sampling::ReapedUsage;

mod channel;
mod ended;
mod messages;
mod output;
mod settings;
mod thread;

use channel::{EngineInbox, Pause};
use thread::EngineThread;

pub(super) use channel::{Inbox, ToEngine};
pub(super) use ended::{EngineEnd, Unfinished};
pub(super) use settings::EngineSettings;

/// How much longer the engine is waited for than it waits for its writers.
const SILENT_BEYOND: Duration = Duration::from_secs(10);

/// The other threads' hold on the engine.
pub struct Engine {
    inbox: EngineInbox,
    /// Comes when the last windows are handed over.
    closed: Receiver<()>,
    done: Receiver<EngineEnd>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the thread.
    pub fn start(settings: EngineSettings, inbox: Inbox) -> std::io::Result<Self> {
        let Inbox { sender, receiver } = inbox;
        let (finished, done) = sync_channel(1);
        let (close, closed) = sync_channel(1);
        let shared = sender.shared();
        let thread = std::thread::Builder::new().name("gpurun-engine".to_owned()).spawn(move || {
            let end = EngineThread::new(settings, receiver, shared).run(&close);
            // This fails where the engine was abandoned.
            let _ = finished.send(end);
        })?;
        Ok(Self { inbox: sender, closed, done, thread: Some(thread) })
    }

    /// The job was stopped at this instant: its last sample is taken, and the time from here on belongs to no window.
    pub fn suspended(&self, at: Mono) {
        self.inbox.pause(Pause::Suspended(at));
    }

    /// The job goes on since this instant.
    pub fn resumed(&self, at: Mono) {
        self.inbox.pause(Pause::Resumed(at));
    }

    /// Hands over the usage of a reaped process; the sampler takes it with its next sample.
    pub fn reaped(&self, usage: ReapedUsage) {
        self.inbox.shared().push_reaped(usage);
    }

    /// Takes the last sample, hands over the last windows, closes the files.
    ///
    /// The last windows have `patience`; the files then have their own ([`output::WRITERS_PATIENCE`]), during which
    /// `give_up` is asked ten times a second whether the user still wants to wait.
    pub fn finish(
        mut self,
        exit: Option<JobExit>,
        patience: Duration,
        mut give_up: impl FnMut() -> bool,
    ) -> Result<EngineEnd, Unfinished> {
        self.inbox.stop(exit);
        self.closed.recv_timeout(patience).map_err(|_| Unfinished::Hung)?;
        // The writers' patience is the engine's to keep; it is kept here as well, should the engine itself hang.
        let until = Instant::now() + output::WRITERS_PATIENCE + SILENT_BEYOND;
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
