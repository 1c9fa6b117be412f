//! The reader's thread, and the frames that go between it and its owner.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Depth, Followed, GpuNews, GpuReaderError, Source};
use crate::model::reading::Reason;
use crate::model::time::Mono;
use crate::sampling::frame::GpuFrame;

#[derive(Default)]
pub(super) struct State {
    /// A frame that is asked for and not begun.
    pub(super) asked: Option<(Mono, Instant, Depth)>,
    /// When the frame that is being read was begun.
    pub(super) busy: Option<Instant>,
    /// A whole frame that was not taken yet.
    pub(super) ready: Option<GpuFrame>,
    pub(super) spare: Vec<GpuFrame>,
    pub(super) news: Vec<GpuNews>,
    pub(super) opened: Option<Result<Arc<[Followed]>, GpuReaderError>>,
    pub(super) stop: bool,
    pub(super) ended: bool,
}

#[derive(Default)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// For the thread: something was asked for, or it is to stop.
    pub(super) work: Condvar,
    /// For the owner: opened, a frame is ready, or the thread ended.
    pub(super) done: Condvar,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

/// The thread: opens, then reads one frame a request until it is told to stop. A panic ends it.
pub(super) fn run<S: Source>(shared: &Shared, open: impl FnOnce() -> Result<S, GpuReaderError>) {
    // The source, and with it the driver, is dropped inside: only then has the thread ended.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| read_frames(shared, open))) {
        let failed = GpuReaderError::Failed(message(panic.as_ref()));
        let mut state = shared.lock();
        let reason = Reason::Other(failed.to_string().into_boxed_str());
        state.news.push(GpuNews { device: None, metric: None, reason });
        state.opened.get_or_insert(Err(failed));
    }
    shared.lock().ended = true;
    shared.done.notify_all();
}

fn read_frames<S: Source>(shared: &Shared, open: impl FnOnce() -> Result<S, GpuReaderError>) {
    let opened = open();
    let mut source = match opened {
        Ok(source) => {
            shared.lock().opened = Some(Ok(source.followed().into()));
            shared.done.notify_all();
            source
        }
        Err(error) => {
            shared.lock().opened = Some(Err(error));
            return;
        }
    };
    let mut news = Vec::new();
    while let Some((at, asked, depth, mut frame)) = next(shared) {
        // Reads begin now, which for a late frame is not when it was asked for.
        frame.at = at + asked.elapsed();
        source.read(at, depth, &mut frame, &mut news);
        if !deliver(shared, frame, &mut news) {
            return;
        }
    }
}

/// What a panic says.
fn message(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

/// Waits for work: the request and a buffer for its frame. `None` when it is time to end.
fn next(shared: &Shared) -> Option<(Mono, Instant, Depth, GpuFrame)> {
    let state = shared.lock();
    let mut state = shared
        .work
        .wait_while(state, |state| state.asked.is_none() && !state.stop)
        .unwrap_or_else(PoisonError::into_inner);
    if state.stop {
        return None;
    }
    let (at, asked, depth) = state.asked.take()?;
    state.busy = Some(Instant::now());
    // Three buffers, of which one is the owner's and at most one is ready: one is always spare.
    let frame = state.spare.pop().unwrap_or_default();
    Some((at, asked, depth, frame))
}

/// Hands the frame over. `false` when it is time to end.
fn deliver(shared: &Shared, mut frame: GpuFrame, news: &mut Vec<GpuNews>) -> bool {
    let mut state = shared.lock();
    state.news.append(news);
    state.busy = None;
    if let Some(mut overtaken) = state.ready.take() {
        carry_over(&mut overtaken, &mut frame);
        state.spare.push(overtaken);
    }
    state.ready = Some(frame);
    let go_on = !state.stop;
    drop(state);
    shared.done.notify_all();
    go_on
}

/// Moves what only the older frame has read into the younger one: values of the slower paces, process lists.
fn carry_over(older: &mut GpuFrame, younger: &mut GpuFrame) {
    for (old, young) in older.devices.iter_mut().zip(&mut younger.devices) {
        let fresh = young.readings.len();
        for (id, reading) in old.readings.drain(..) {
            if !young.readings.iter().take(fresh).any(|(known, _)| *known == id) {
                young.readings.push((id, reading));
            }
        }
        if young.processes.is_none() {
            young.processes = old.processes.take();
        }
    }
}
