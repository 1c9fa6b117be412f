//! What other threads tell the engine's thread: messages over a bounded channel, and a few shared cells that a full
//! channel must not lose.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::control::ControlEvent;
use crate::model::id::StackId;
use crate::model::run::JobExit;
use crate::model::time::Mono;
use crate::sampling::ReapedUsage;
use crate::windowing::Collected;

/// Messages that wait for the engine; more are dropped and counted. The channel touches all its slots when it is
/// made, 128 bytes each: 4,096 of them took 0.4 ms of every start.
const INBOX: usize = 1024;

/// A message for the engine.
pub enum ToEngine {
    /// Something came in over the job's socket.
    Control(ControlEvent),
    /// A library user collects the innermost tag of a stack.
    Collect(StackId, SyncSender<Collected>),
    /// Wake up and look at the stop flag and at what happened to the job.
    Wake,
}

/// A pause of the job.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pause {
    /// It was stopped at this instant.
    Suspended(Mono),
    /// It goes on since this instant.
    Resumed(Mono),
}

/// What the engine and the threads that call it share.
#[derive(Default)]
pub(super) struct Shared {
    stop: AtomicBool,
    /// No more samples are taken: what is reaped is not kept.
    sampling_ended: AtomicBool,
    /// The exit of the job, known when the engine is stopped.
    exit: Mutex<Option<JobExit>>,
    /// Usage of reaped processes that the sampler has not seen yet.
    reaped: Mutex<Vec<ReapedUsage>>,
    /// Pauses that the engine has not heard of yet; a full inbox must not lose one.
    pauses: Mutex<Vec<Pause>>,
    /// Messages that found the inbox full.
    dropped: AtomicU64,
}

impl Shared {
    /// Tells the engine to end, and how the job ended.
    pub(super) fn stop(&self, exit: Option<JobExit>) {
        *lock(&self.exit) = exit;
        self.stop.store(true, Ordering::Release);
    }

    /// Whether the engine is to end.
    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// How the job ended, once the engine is to end.
    pub(super) fn exit(&self) -> Option<JobExit> {
        *lock(&self.exit)
    }

    /// Keeps the usage of a reaped process for the next sample.
    pub(super) fn push_reaped(&self, usage: ReapedUsage) {
        if !self.sampling_ended.load(Ordering::Relaxed) {
            lock(&self.reaped).push(usage);
        }
    }

    /// The usage of the processes that were reaped since the last call.
    pub(super) fn take_reaped(&self) -> Vec<ReapedUsage> {
        std::mem::take(&mut *lock(&self.reaped))
    }

    /// No more samples are taken. A long job of short children must not fill the memory with usage that none reads.
    pub(super) fn end_sampling(&self) {
        self.sampling_ended.store(true, Ordering::Relaxed);
        lock(&self.reaped).clear();
    }

    /// Keeps a pause until the engine takes it.
    pub(super) fn push_pause(&self, pause: Pause) {
        lock(&self.pauses).push(pause);
    }

    /// The pauses since the last call.
    pub(super) fn take_pauses(&self) -> Vec<Pause> {
        std::mem::take(&mut *lock(&self.pauses))
    }

    /// Whether a message found the inbox full.
    pub(super) fn has_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed) > 0
    }
}

/// A panic of another thread leaves these cells as they were.
fn lock<T>(cell: &Mutex<T>) -> MutexGuard<'_, T> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A way into the engine for the job's socket; cheap to copy, never blocks.
#[derive(Clone)]
pub struct EngineInbox {
    inbox: SyncSender<ToEngine>,
    shared: Arc<Shared>,
}

impl EngineInbox {
    /// What the engine shares with this end.
    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Tells the engine of a pause of the job.
    pub(super) fn pause(&self, pause: Pause) {
        self.shared.push_pause(pause);
        self.send(ToEngine::Wake);
    }

    /// Tells the engine to end, and how the job ended.
    pub(super) fn stop(&self, exit: Option<JobExit>) {
        self.shared.stop(exit);
        self.send(ToEngine::Wake);
    }

    /// Hands a message over; a full inbox drops and counts it.
    pub fn send(&self, message: ToEngine) {
        if let Err(TrySendError::Full(_)) = self.inbox.try_send(message) {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The two ends of an engine's inbox, made before the engine so that the socket can exist before the job.
pub struct Inbox {
    pub(super) sender: EngineInbox,
    pub(super) receiver: Receiver<ToEngine>,
}

impl Inbox {
    /// An empty inbox.
    pub fn new() -> Self {
        let (inbox, receiver) = sync_channel(INBOX);
        Self { sender: EngineInbox { inbox, shared: Arc::default() }, receiver }
    }

    /// The channel itself, for a sender that keeps what a full channel refuses.
    pub fn channel(&self) -> SyncSender<ToEngine> {
        self.sender.inbox.clone()
    }
}
