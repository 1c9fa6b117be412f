//! How the server is set up, what comes out of it, and what its thread shares with others.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::answer::{Answers, ReplyHandle};
use super::limits::{Limits, Tally};
use crate::model::id::StackId;
use crate::model::mark::Mark;
use crate::model::time::Mono;

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to make the private directory; `None`: `/tmp/gpurun-<uid>`.
    pub dir: Option<PathBuf>,
    /// Bounds.
    pub limits: Limits,
    /// Number of the first stack that a client gets; smaller numbers are the engine's own.
    pub first_stack: u32,
    /// Name of the run, told to clients that say hello.
    pub run: Arc<str>,
    /// Process id under which `gpurun status` finds the socket.
    pub pid: u32,
    /// How often to look whether the socket is still there.
    pub check_every: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            dir: None,
            limits: Limits::default(),
            first_stack: 1,
            run: Arc::from(""),
            pid: std::process::id(),
            check_every: Duration::from_secs(10),
        }
    }
}

/// What comes from the job's socket.
#[derive(Debug)]
pub enum ControlEvent {
    /// A client said something about its progress. The first mark of a stack is
    /// [`MarkOp::Open`](crate::model::mark::MarkOp::Open), its last
    /// [`MarkOp::Close`](crate::model::mark::MarkOp::Close); instants of one stack never go back.
    Mark(Mark),
    /// A client asks for the statistics of its innermost open tag so far.
    Collect {
        /// The client's stack.
        stack: StackId,
        /// The client's own instant.
        at: Mono,
        /// Where the answer ([`super::reply::collected`]) goes.
        reply: ReplyHandle,
    },
    /// A client asks for the run's current window.
    Snapshot {
        /// Where the answer ([`super::reply::snapshot`]) goes.
        reply: ReplyHandle,
    },
    /// One line for the user: something begins to be lost, or the socket was removed.
    Notice(String),
}

/// What other threads share with the thread of the socket.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) answers: Arc<Answers>,
    pub(super) stopping: AtomicBool,
    pub(super) losses: Tally,
}
