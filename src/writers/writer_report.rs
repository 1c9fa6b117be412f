//! What writers report: at the end, and while they write.

use std::sync::{Arc, Mutex, PoisonError};

use super::batch_queue::Counts;
use super::target::Target;

/// What one writer did.
#[derive(Clone, Debug)]
pub struct WriterReport {
    /// Which one: the file as it is called now.
    pub target: Target,
    /// Rows that the file got, in its layout; events of TensorBoard files.
    pub rows: u64,
    /// Batches written.
    pub batches: u64,
    /// Bytes appended to the log or journal.
    pub bytes: u64,
    /// Rows that were never written, or events.
    pub lost_rows: u64,
    /// What went wrong in the end, if anything.
    pub error: Option<String>,
    /// What else the user should know.
    pub note: Option<String>,
}

impl WriterReport {
    pub(super) fn new(target: Target) -> WriterReport {
        WriterReport { target, rows: 0, batches: 0, bytes: 0, lost_rows: 0, error: None, note: None }
    }

    pub(super) fn set_counts(&mut self, counts: Counts) {
        (self.rows, self.batches) = (counts.rows, counts.batches);
        (self.bytes, self.lost_rows) = (counts.bytes, counts.lost_rows);
    }
}

/// Messages of the writers for the user. It outlives them, for what they report at the very end.
#[derive(Clone, Default)]
pub struct WriterNotices(Arc<Mutex<Vec<String>>>);

impl WriterNotices {
    /// What was said since the last call; each thing is said once.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn say(&self, text: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}
