//! What waits for one writer: batches up to a bound, what was written and lost, and the end of the run.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::model::run::RunEnd;
use crate::model::window::{Row, WindowBatch};

use super::Layout;
use super::format::Written;

/// What one writer did so far. Rows are those of its file: one for each batch in a wide file, or in an event file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) rows: u64,
    pub(super) batches: u64,
    pub(super) bytes: u64,
    pub(super) lost_rows: u64,
}

/// The queue of one writer.
pub(super) struct BatchQueue {
    state: Mutex<State>,
    wake: Condvar,
    /// Bytes of batches that may wait.
    bound: usize,
    /// What a batch is in the file.
    layout: Layout,
}

#[derive(Default)]
struct State {
    batches: VecDeque<Arc<WindowBatch>>,
    bytes: usize,
    /// Batches sent, so that a retry waits for a new one.
    sent: u64,
    /// `sent` when the batch that is being written was given out.
    tried: u64,
    /// The batch that is out of the queue and not yet written.
    writing: Option<Arc<WindowBatch>>,
    end: Option<RunEnd>,
    /// The writer has ended: what is sent is lost.
    closed: bool,
    counts: Counts,
}

/// What a writer is to do next.
pub(super) enum Next {
    /// To write this batch, the same again after a failure.
    Batch(Arc<WindowBatch>),
    /// To bring its file to the disk.
    Sync,
    /// To end its file.
    End(RunEnd),
}

pub(super) fn size_of_batch(batch: &WindowBatch) -> usize {
    size_of::<WindowBatch>() + batch.rows.len() * size_of::<Row>()
}

impl BatchQueue {
    pub(super) fn new(bound: usize, layout: Layout) -> BatchQueue {
        BatchQueue { state: Mutex::default(), wake: Condvar::new(), bound, layout }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves the queue usable: every change of it is a single step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a batch. Over the bound the oldest are lost.
    pub(super) fn send(&self, batch: Arc<WindowBatch>) {
        let mut state = self.state();
        state.sent += 1;
        if state.closed {
            state.counts.lost_rows += self.layout.rows_of(&batch);
            return;
        }
        state.bytes += size_of_batch(&batch);
        state.batches.push_back(batch);
        while state.bytes > self.bound
            && state.batches.len() > 1
            && let Some(oldest) = state.batches.pop_front()
        {
            state.bytes -= size_of_batch(&oldest);
            state.counts.lost_rows += self.layout.rows_of(&oldest);
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Nothing more is sent.
    pub(super) fn end(&self, end: RunEnd) {
        self.state().end = Some(end);
        self.wake.notify_one();
    }

    /// Waits for something to do; with `sync_in` no longer than that.
    pub(super) fn next(&self, sync_in: Option<Duration>) -> Next {
        let until = sync_in.map(|wait| Instant::now() + wait);
        let mut state = self.state();
        loop {
            if state.writing.is_none() {
                state.writing = state.batches.pop_front();
                state.bytes -= state.writing.as_deref().map_or(0, size_of_batch);
            }
            if let Some(batch) = state.writing.clone() {
                state.tried = state.sent;
                return Next::Batch(batch);
            }
            if let Some(end) = state.end.clone() {
                return Next::End(end);
            }
            state = match until {
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Next::Sync;
                    }
                    self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// The batch that was given out is in the file.
    pub(super) fn written(&self, written: Written) {
        let mut state = self.state();
        state.counts.rows += written.rows;
        state.counts.bytes += written.bytes;
        state.counts.batches += 1;
        state.writing = None;
    }

    /// The batch that was given out could not be written: waits for another one, or for the end of the run. Where that
    /// has come already, it was the last try, and the end is answered.
    pub(super) fn not_written(&self) -> Option<RunEnd> {
        let mut state = self.state();
        if state.end.is_some() {
            return state.end.clone();
        }
        while state.sent == state.tried && state.end.is_none() {
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// What waits and what is under way will not be written.
    pub(super) fn lose_waiting(&self) {
        let mut state = self.state();
        let state = &mut *state;
        let waiting = state.batches.drain(..).chain(state.writing.take());
        state.counts.lost_rows += waiting.map(|batch| self.layout.rows_of(&batch)).sum::<u64>();
        state.bytes = 0;
    }

    /// Ends the queue: what waits and what is still sent is lost.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.lose_waiting();
    }

    /// Counts rows as the finished file has them.
    pub(super) fn set_rows(&self, rows: u64) {
        self.state().counts.rows = rows;
    }

    pub(super) fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Batches that wait; the one that is being written counts.
    pub(super) fn waiting(&self) -> usize {
        let state = self.state();
        state.batches.len() + usize::from(state.writing.is_some())
    }

    /// Whether a batch is being written.
    #[cfg(test)]
    pub(super) fn is_writing(&self) -> bool {
        self.state().writing.is_some()
    }
}
