//! The GPU reader: a thread of its own that owns the driver, reads the followed devices and hands frames over.
//!
//! A call into the driver can hang for seconds or for ever. Then GPU values are missing and nothing else is: whoever
//! asks for a frame waits only as long as it chooses, a late frame is taken at a later tick, and at the end a thread
//! that does not come back is left behind. `nvmlShutdown` is the thread's own last act, so it can never meet a call in
//! flight. Frames go round in three buffers: in steady state nothing is allocated.

mod follow;
mod settings;
mod totals;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::collectors::nvml::{Nvml, NvmlError};
use crate::model::device::DeviceIdentity;
use crate::model::metric::{MetricId, Tier};
use crate::model::reading::{Reading, Reason};
use crate::model::time::Mono;
use crate::sampling::frame::GpuFrame;

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
    /// A MIG slice: it has memory and processes of its own, and nothing else.
    Slice,
    /// The physical GPU of a followed slice: power, temperature, clocks and the like are the whole GPU's, whoever
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

/// Something about a device that was not known before, to be said once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuNews {
    /// Its place among the followed devices; `None` for the reader as a whole.
    pub device: Option<usize>,
    /// The metric that is missing; `None` for the device as a whole. Process lists speak as `JobGpuMemory`, process
    /// utilisation as `JobGpuSmUtilization`.
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

#[derive(Default)]
struct State {
    /// A frame that is asked for and not begun.
    asked: Option<(Mono, Instant, Depth)>,
    /// When the frame that is being read was begun.
    busy: Option<Instant>,
    /// A whole frame that nobody has taken.
    ready: Option<Box<GpuFrame>>,
    spare: Vec<Box<GpuFrame>>,
    news: Vec<GpuNews>,
    opened: Option<Result<Arc<[Followed]>, GpuReaderError>>,
    stop: bool,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// For the thread: something was asked for, taken, or it is to stop.
    work: Condvar,
    /// For the owner: opened, a frame is ready, or the thread ended.
    done: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the GPUs on a thread of its own. Dropping it stops the thread, or leaves it behind if it hangs.
#[derive(Debug)]
pub struct GpuReader {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The frame that was taken last.
    current: Box<GpuFrame>,
    followed: Option<Arc<[Followed]>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl GpuReader {
    /// Follows these devices through an opened driver. Nothing is read before the first [`GpuReader::request`].
    ///
    /// # Errors
    /// Where the system gives no thread.
    pub fn start(
        nvml: Nvml,
        devices: Vec<Arc<DeviceIdentity>>,
        settings: GpuSettings,
    ) -> Result<Self, GpuReaderError> {
        Self::launch(move || Ok((nvml, devices)), settings)
    }

    /// Opens the driver and chooses the devices on the reader's own thread, where a hanging driver harms nobody.
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
        shared.lock().spare = vec![Box::default(), Box::default()];
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("gpurun-gpu".to_owned())
            .spawn(move || {
                // The source, and with it the driver, is dropped inside: only then has the thread ended.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&theirs, open))) {
                    let failed = GpuReaderError::Failed(words(panic.as_ref()));
                    let mut state = theirs.lock();
                    state.news.push(failure(&failed));
                    state.opened.get_or_insert(Err(failed));
                }
                theirs.lock().ended = true;
                theirs.done.notify_all();
            })
            .map_err(|error| GpuReaderError::Failed(format!("no thread: {error}")))?;
        Ok(Self { shared, thread: Some(thread), current: Box::default(), followed: None })
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

    /// The oldest frame that was not taken yet. Waits for one that is asked for, at most so long; with nothing asked
    /// for it returns at once.
    ///
    /// After a late frame there can be two: call again until a frame is as young as the last request. A frame says
    /// itself when its reads began.
    pub fn take(&mut self, wait: Duration) -> Option<&GpuFrame> {
        let state = self.shared.lock();
        let waiting = |state: &mut State| {
            state.ready.is_none() && !state.ended && (state.asked.is_some() || state.busy.is_some())
        };
        let (mut state, _) =
            self.shared.done.wait_timeout_while(state, wait, waiting).unwrap_or_else(PoisonError::into_inner);
        let fresh = state.ready.take()?;
        let old = std::mem::replace(&mut self.current, fresh);
        state.spare.push(old);
        drop(state);
        self.shared.work.notify_one();
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

    /// Whether the thread has ended: the driver could not be opened, or reading it failed for good.
    pub fn has_ended(&self) -> bool {
        self.shared.lock().ended
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

/// A panic's own words.
fn words(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without words").to_owned()
}

fn failure(error: &GpuReaderError) -> GpuNews {
    GpuNews { device: None, metric: None, reason: Reason::Other(error.to_string().into_boxed_str()) }
}

/// The thread: opens, then reads one frame a request until it is told to stop.
fn run<S: Source>(shared: &Shared, open: impl FnOnce() -> Result<S, GpuReaderError>) {
    /// Then reading is given up: a defect, not a mood.
    const PANICS: u32 = 3;
    let opened = open();
    let (mut source, followed) = match opened {
        Ok(source) => {
            let followed: Arc<[Followed]> = source.followed().into();
            shared.lock().opened = Some(Ok(Arc::clone(&followed)));
            shared.done.notify_all();
            (source, followed)
        }
        Err(error) => {
            shared.lock().opened = Some(Err(error));
            return;
        }
    };
    let mut news = Vec::new();
    let mut panics = 0;
    while let Some((at, asked, depth, mut frame)) = next(shared) {
        // Reads begin now, which for a late frame is not when it was asked for.
        frame.at = at + asked.elapsed();
        let read = catch_unwind(AssertUnwindSafe(|| source.read(at, depth, &mut frame, &mut news)));
        if let Err(panic) = read {
            panics += 1;
            blank(&mut frame, &followed);
            news.push(failure(&GpuReaderError::Failed(words(panic.as_ref()))));
        } else {
            panics = 0;
        }
        if !deliver(shared, frame, &mut news) || panics >= PANICS {
            return;
        }
    }
}

/// Waits for work: the request and a buffer for its frame. `None` when it is time to end.
fn next(shared: &Shared) -> Option<(Mono, Instant, Depth, Box<GpuFrame>)> {
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

/// Hands the frame over as soon as the one before is taken. `false` when it is time to end.
fn deliver(shared: &Shared, frame: Box<GpuFrame>, news: &mut Vec<GpuNews>) -> bool {
    let mut state = shared.lock();
    state.news.append(news);
    state.busy = None;
    let mut state = shared
        .work
        .wait_while(state, |state| state.ready.is_some() && !state.stop)
        .unwrap_or_else(PoisonError::into_inner);
    if state.stop {
        return false;
    }
    state.ready = Some(frame);
    drop(state);
    shared.done.notify_all();
    true
}

/// A frame in which everything of the cheap tier is missing.
fn blank(frame: &mut GpuFrame, followed: &[Followed]) {
    frame.devices.resize_with(followed.len(), Default::default);
    for (device, known) in frame.devices.iter_mut().zip(followed) {
        device.readings.clear();
        device.processes = None;
        let cheap = known.metrics.iter().filter(|id| matches!(id.get().tier, Tier::Cheap));
        // No counter has failed yet, so its estimate is not in use.
        let missing = cheap.filter(|id| **id != MetricId::GpuEnergyFromPower);
        device.readings.extend(missing.map(|id| (*id, Reading::Missing)));
    }
}
