//! Marks: what the job (or a library user) says about its own progress, with the instant it meant.

use std::sync::Arc;

use super::id::StackId;
use super::time::Mono;

/// One statement on one tag stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// The stack it is for.
    pub stack: StackId,
    /// The client's own instant, on `CLOCK_MONOTONIC`.
    pub at: Mono,
    /// What happened then.
    pub op: MarkOp,
}

/// What a mark says.
#[derive(Clone, Debug, PartialEq)]
pub enum MarkOp {
    /// A client appeared: its stack is empty, its rows carry `rank`.
    Open {
        /// Rank of the client ([`super::rank::rank`]).
        rank: Option<i32>,
    },
    /// The client is gone: every open tag of its stack ends.
    Close,
    /// A tag begins inside the innermost open one.
    Begin {
        /// One path component; unique among the open tags of the stack.
        tag: Arc<str>,
    },
    /// A tag ends, and every tag opened inside it; `None` means the innermost.
    End {
        /// The tag to end.
        tag: Option<Arc<str>>,
    },
    /// The statistics of a tag (`None`: all of the stack) start anew, as nvitop's `clear`.
    Clear {
        /// The tag to clear, with the tags inside it.
        tag: Option<Arc<str>>,
    },
    /// A training step ended at the mark's instant.
    Step {
        /// The training step's number.
        step: i64,
        /// When the step began, if the client marks both ends; gives intra- and inter-step times.
        began: Option<Mono>,
        /// A new epoch: no time between steps is counted across it.
        first_of_epoch: bool,
    },
    /// Scalars of the job's own.
    Log {
        /// Training step they belong to, if any.
        step: Option<i64>,
        /// Name and value. A value that is not finite counts as missing.
        values: Vec<(Arc<str>, f64)>,
    },
}
