//! The GPU reader: a thread of its own that owns the driver, reads the followed devices and hands frames over.
//!
//! A call into the driver can hang for seconds or forever. Then GPU values are missing and nothing else is: the caller
//! that asks for a frame waits only as long as it chooses, a late frame is taken at a later tick, and at the end a thread
//! that does not come back is left behind. `nvmlShutdown` is the thread's own last act, so it can never meet a call in
//! flight. Frames go round in three buffers: in steady state nothing is allocated.

mod bounds;
mod device;
mod exchange;
mod fields;
mod follow;
mod gpm;
mod processes;
mod settings;
mod totals;
mod values;

use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::collectors::nvml::{Nvml, NvmlError};
use crate::model::device::DeviceIdentity;
use crate::model::metric::MetricId;
use crate::model::reading::Reason;
use crate::model::time::Mono;
use crate::sampling::frame::GpuFrame;

use exchange::{Shared, State};
use follow::Follower;
pub use settings::GpuSettings;

/// Why there is no GPU reader.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuReaderError {
    /// The driver could not be opened, or does not list its devices.
    #[error(transparent)]
    Driver(#[from] NvmlError),
    /// The reader failed inside gpurun.
    #[error("the GPU reader failed: {0}")]
    Failed(String),
}

/// What a followed device is to the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A physical GPU.
    Whole,
    /// A MIG slice: it has memory, processes and profiling counters of its own, and nothing else.
    Slice,
    /// The physical GPU of a followed slice: power, temperature, clocks and the like are the whole GPU's, whatever
    /// uses its slices.
    Parent,
}

/// A device whose values the frames carry.
#[derive(Clone, Debug, PartialEq)]
pub struct Followed {
    /// Its names.
    pub identity: Arc<DeviceIdentity>,
    /// What it is.
    pub role: Role,
    /// The metrics that its frames can carry. Of `energy` and `energy_from_power` only one ever comes.
    pub metrics: Vec<MetricId>,
}

/// Something about a device that was not known before, to be reported once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuNews {
    /// Its place among the followed devices; `None` for the reader as a whole.
    pub device: Option<usize>,
    /// The metric that is missing; `None` for the device as a whole. `JobGpuMemory` stands for the process lists,
    /// `JobGpuSmUtilization` for process utilisation.
    pub metric: Option<MetricId>,
    /// Why. A permanent reason means that it is not asked for again.
    pub reason: Reason,
}

/// How much of what is wanted a frame reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// What is due at its instant.
    Due,
    /// Everything, whenever it was read last: for the last frame.
    Everything,
}

/// What the thread reads from: the driver, or a stand-in of a test.
trait Source {
    fn followed(&self) -> Vec<Followed>;

    /// Fills the frame, whose buffers hold an older one. `at` is the instant that was asked for.
    fn read(&mut self, at: Mono, depth: Depth, frame: &mut GpuFrame, news: &mut Vec<GpuNews>);
}

/// Reads the GPUs on a thread of its own. Dropping it stops the thread, or leaves it behind if it hangs.
#[derive(Debug)]
pub struct GpuReader {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The frame that was taken last.
    current: GpuFrame,
    followed: Option<Arc<[Followed]>>,
}

impl GpuReader {
    /// Opens the driver and chooses the devices on the reader's own thread, where a hanging driver delays nothing else.
    ///
    /// # Errors
    /// Where the system gives no thread. What the opening says comes from [`GpuReader::ready`].
    pub fn launch(
        open: impl FnOnce() -> Result<(Nvml, Vec<Arc<DeviceIdentity>>), NvmlError> + Send + 'static,
        settings: GpuSettings,
    ) -> Result<Self, GpuReaderError> {
        Self::spawn(move || {
            let (nvml, devices) = open()?;
            Ok(Follower::new(nvml, devices, settings))
        })
    }

    fn spawn<S: Source>(
        open: impl FnOnce() -> Result<S, GpuReaderError> + Send + 'static,
    ) -> Result<Self, GpuReaderError> {
        let shared = Arc::new(Shared::default());
        shared.lock().spare = vec![GpuFrame::default(), GpuFrame::default()];
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("gpurun-gpu".to_owned())
            .spawn(move || exchange::run(&theirs, open))
            .map_err(|error| GpuReaderError::Failed(format!("no thread: {error}")))?;
        Ok(Self { shared, thread: Some(thread), current: GpuFrame::default(), followed: None })
    }

    /// Waits for the driver to be open, at most so long: the followed devices, in the order of the frames, or why
    /// there are none. `None` while it is still not known.
    pub fn ready(&mut self, wait: Duration) -> Option<Result<Arc<[Followed]>, GpuReaderError>> {
        if let Some(followed) = &self.followed {
            return Some(Ok(Arc::clone(followed)));
        }
        let state = self.shared.lock();
        let (state, _) = self
            .shared
            .done
            .wait_timeout_while(state, wait, |state| state.opened.is_none() && !state.ended)
            .unwrap_or_else(PoisonError::into_inner);
        let opened = state.opened.clone();
        drop(state);
        if let Some(Ok(followed)) = &opened {
            self.followed = Some(Arc::clone(followed));
        }
        opened
    }

    /// Asks for a frame of what is due at `at`, and returns at once. A request that was not begun yet is replaced.
    pub fn request(&mut self, at: Mono) {
        self.ask(at, Depth::Due);
    }

    /// As [`GpuReader::request`], for everything whatever its pace: the last frame of a run.
    pub fn request_everything(&mut self, at: Mono) {
        self.ask(at, Depth::Everything);
    }

    fn ask(&mut self, at: Mono, depth: Depth) {
        let mut state = self.shared.lock();
        // What a replaced request would have read is not lost.
        let depth = state.asked.map_or(depth, |(_, _, earlier)| earlier.max(depth));
        state.asked = Some((at, Instant::now(), depth));
        drop(state);
        self.shared.work.notify_one();
    }

    /// The youngest frame that was not taken yet. Waits for the one that was asked for last, at most so long; then an
    /// older one that came late will do. With nothing asked for it returns at once.
    ///
    /// A frame says itself when its reads began. One that came late and was overtaken is not lost as a whole: what
    /// the younger one did not have to read is carried over into it.
    pub fn take(&mut self, wait: Duration) -> Option<&GpuFrame> {
        let state = self.shared.lock();
        let waiting = |state: &mut State| !state.ended && (state.asked.is_some() || state.busy.is_some());
        let (mut state, _) =
            self.shared.done.wait_timeout_while(state, wait, waiting).unwrap_or_else(PoisonError::into_inner);
        let fresh = state.ready.take()?;
        let old = std::mem::replace(&mut self.current, fresh);
        state.spare.push(old);
        Some(&self.current)
    }

    /// What became known since the last call. Allocates only when there is something.
    pub fn news(&mut self) -> Vec<GpuNews> {
        std::mem::take(&mut self.shared.lock().news)
    }

    /// How long the frame that is being read has taken so far; `None` when none is.
    pub fn busy_for(&self) -> Option<Duration> {
        self.shared.lock().busy.map(|since| since.elapsed())
    }

    /// Ends the thread, which shuts the driver down. Waits at most so long; then it is left behind, whatever call it
    /// hangs in, and the answer is `false`.
    pub fn stop(mut self, timeout: Duration) -> bool {
        self.end(timeout)
    }

    fn end(&mut self, timeout: Duration) -> bool {
        let Some(thread) = self.thread.take() else { return true };
        let mut state = self.shared.lock();
        state.stop = true;
        self.shared.work.notify_all();
        let (state, _) = self
            .shared
            .done
            .wait_timeout_while(state, timeout, |state| !state.ended)
            .unwrap_or_else(PoisonError::into_inner);
        let ended = state.ended;
        drop(state);
        if ended {
            // It has nothing left to do but return.
            let _ = thread.join();
        }
        ended
    }
}

impl Drop for GpuReader {
    fn drop(&mut self) {
        /// For a healthy driver to finish its frame and shut down.
        const PATIENCE: Duration = Duration::from_secs(1);
        self.end(PATIENCE);
    }
}

#[cfg(test)]
mod tests;
