//! Window rows: what the fold gives and the writers write.

use std::sync::Arc;

use super::series::SeriesInfo;
use super::time::{Mono, Wall};

/// Which of the three clocks a row set follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowKind {
    /// A periodic window of the run.
    Window,
    /// The span of a closed tag.
    Tag,
    /// A number of training steps.
    Step,
}

impl RowKind {
    /// The word in the `kind` column.
    pub fn name(self) -> &'static str {
        match self {
            RowKind::Window => "window",
            RowKind::Tag => "tag",
            RowKind::Step => "step",
        }
    }
}

/// Statistics of one series over one span. `None` is null: unknown, never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Time-weighted mean over the covered part of the span.
    pub mean: Option<f64>,
    /// Smallest value seen.
    pub min: Option<f64>,
    /// Largest value seen, known peaks included.
    pub max: Option<f64>,
    /// The value at the end of the span.
    pub last: Option<f64>,
    /// Reads inside the span that gave a value.
    pub samples: u32,
    /// Reads that were due inside the span and gave none, gaps and counter resets included.
    pub missing: u32,
}

/// One row: a series with its statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is about.
    pub series: Arc<SeriesInfo>,
    /// The numbers.
    pub stats: Stats,
}

/// All rows of one span.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowBatch {
    /// Periodic window, tag or steps.
    pub kind: RowKind,
    /// Full tag path, root tag first: `run/train/batch`.
    pub tag: Arc<str>,
    /// 1 for the first time that the tag was opened on this rank, 2 for the second, ...
    pub occurrence: u32,
    /// The epoch that the job said: the one that began in the span, else the one that ran at its start. `None` where
    /// none was said, or where several began in the span.
    pub epoch: Option<i64>,
    /// Training step, for step rows and for scalars logged with one.
    pub step: Option<i64>,
    /// Rank of the client whose tag or step it is; else the run's own.
    pub rank: Option<i32>,
    /// Number of this batch among those of its kind, tag and rank, from 1; never reused.
    pub ordinal: u64,
    /// Start of the span (inclusive).
    pub start: Mono,
    /// End of the span (exclusive). A step row leaves out the time of tags beside its steps.
    pub end: Mono,
    /// Wall-clock label of `end`.
    pub time: Wall,
    /// Length of the span in seconds, suspended time excluded.
    pub window_s: f64,
    /// The rows, in series order.
    pub rows: Vec<Row>,
}
