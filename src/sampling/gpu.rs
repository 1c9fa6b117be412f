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
    ready: Option<GpuFrame>,
    spare: Vec<GpuFrame>,
    news: Vec<GpuNews>,
    opened: Option<Result<Arc<[Followed]>, GpuReaderError>>,
    stop: bool,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// For the thread: something was asked for, or it is to stop.
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
    current: GpuFrame,
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
        shared.lock().spare = vec![GpuFrame::default(), GpuFrame::default()];
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::model::id::GpuUuid;
    use crate::sampling::frame::DeviceFrame;

    /// Long enough for any loaded machine; nothing passes or fails by it.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// A source that does to each frame what a test says.
    struct Scripted<F>(F);

    impl<F: FnMut(Mono, Depth, &mut GpuFrame)> Source for Scripted<F> {
        fn followed(&self) -> Vec<Followed> {
            let identity = DeviceIdentity {
                index: 0,
                mig: None,
                cuda: None,
                uuid: GpuUuid::new("GPU-0"),
                name: None,
                memory_total: None,
            };
            vec![Followed {
                identity: Arc::new(identity),
                role: Role::Whole,
                metrics: vec![
                    MetricId::GpuTemperature,
                    MetricId::GpuFanSpeed,
                    MetricId::GpuEnergy,
                    MetricId::GpuEnergyFromPower,
                ],
            }]
        }

        fn read(&mut self, at: Mono, depth: Depth, frame: &mut GpuFrame, _news: &mut Vec<GpuNews>) {
            (self.0)(at, depth, frame);
        }
    }

    fn reader(read: impl FnMut(Mono, Depth, &mut GpuFrame) + Send + 'static) -> GpuReader {
        GpuReader::spawn(move || Ok(Scripted(read))).unwrap()
    }

    /// Writes the instant that was asked for where a test can find it.
    fn stamp(at: Mono, frame: &mut GpuFrame) {
        frame.devices.resize_with(1, DeviceFrame::default);
        frame.devices[0].readings.clear();
        frame.devices[0].readings.push((MetricId::GpuTemperature, Reading::Value(at.0 as f64)));
    }

    fn stamped(frame: &GpuFrame) -> f64 {
        match frame.devices[0].readings[0].1 {
            Reading::Value(value) => value,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_gives_a_frame_and_silence_gives_none() {
        let mut reader = reader(|at, _, frame| stamp(at, frame));
        assert!(reader.take(PATIENCE).is_none(), "nothing was asked for");
        for at in 1..20 {
            reader.request(Mono(at));
            let frame = reader.take(PATIENCE).unwrap();
            assert_eq!(stamped(frame), at as f64);
            assert!(frame.at >= Mono(at));
        }
        assert!(reader.stop(PATIENCE));
    }

    /// A reader whose frames wait for a word each, and which says how deep each one was.
    fn gated(
        read: impl Fn(Mono, &mut GpuFrame) + Send + 'static,
    ) -> (GpuReader, mpsc::Sender<()>, mpsc::Receiver<Depth>) {
        let (go, gate) = mpsc::channel::<()>();
        let (seen, depths) = mpsc::channel();
        let reader = reader(move |at, depth, frame| {
            gate.recv().unwrap();
            read(at, frame);
            seen.send(depth).unwrap();
        });
        (reader, go, depths)
    }

    fn wait_until_busy(reader: &GpuReader) {
        while reader.busy_for().is_none() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_late_frame_is_taken_at_a_later_tick() {
        let (mut reader, go, _depths) = gated(stamp);
        reader.request(Mono(1));
        wait_until_busy(&reader);
        assert!(reader.take(Duration::ZERO).is_none(), "it hangs");
        go.send(()).unwrap();
        assert_eq!(stamped(reader.take(PATIENCE).unwrap()), 1.0);
        assert!(reader.take(PATIENCE).is_none(), "taken is taken");

        // While the next one hangs, a late one is better than none.
        reader.request(Mono(2));
        wait_until_busy(&reader);
        reader.request(Mono(3));
        reader.request(Mono(4));
        go.send(()).unwrap();
        while reader.shared.lock().asked.is_some() {
            std::thread::yield_now();
        }
        assert_eq!(stamped(reader.take(Duration::ZERO).unwrap()), 2.0);
        go.send(()).unwrap();
        assert_eq!(
            stamped(reader.take(PATIENCE).unwrap()),
            4.0,
            "the request that was not begun was replaced"
        );
        assert!(reader.stop(PATIENCE));
    }

    #[test]
    fn an_overtaken_frame_leaves_what_only_it_has_read() {
        let (mut reader, go, _depths) = gated(|at, frame| {
            stamp(at, frame);
            frame.devices[0].processes = None;
            if at.0 == 1 {
                frame.devices[0].readings.push((MetricId::GpuFanSpeed, Reading::Value(30.0)));
                frame.devices[0].processes = Some(Ok(Vec::new()));
            }
        });
        reader.request(Mono(1));
        wait_until_busy(&reader);
        reader.request(Mono(2));
        go.send(()).unwrap();
        go.send(()).unwrap();
        let frame = reader.take(PATIENCE).unwrap();
        let both =
            [(MetricId::GpuTemperature, Reading::Value(2.0)), (MetricId::GpuFanSpeed, Reading::Value(30.0))];
        assert_eq!(frame.devices[0].readings, both);
        assert_eq!(frame.devices[0].processes, Some(Ok(Vec::new())));
        assert!(frame.at >= Mono(2));
        assert!(reader.take(PATIENCE).is_none(), "nothing lags behind");
    }

    #[test]
    fn a_replaced_request_for_everything_is_kept() {
        let (mut reader, go, depths) = gated(stamp);
        reader.request(Mono(1));
        wait_until_busy(&reader);
        reader.request_everything(Mono(2));
        reader.request(Mono(3));
        go.send(()).unwrap();
        go.send(()).unwrap();
        assert_eq!(stamped(reader.take(PATIENCE).unwrap()), 3.0);
        assert_eq!(depths.iter().take(2).collect::<Vec<_>>(), [Depth::Due, Depth::Everything]);
    }

    #[test]
    fn a_hung_call_is_left_behind() {
        let (go, gate) = mpsc::channel::<()>();
        let mut reader = reader(move |_, _, _| gate.recv().unwrap_or(()));
        reader.request(Mono(1));
        wait_until_busy(&reader);
        assert!(reader.take(Duration::ZERO).is_none());
        assert!(!reader.stop(Duration::from_millis(1)), "it cannot have ended");
        drop(go);
    }

    #[test]
    fn a_panic_costs_a_frame_and_three_in_a_row_cost_the_reader() {
        let mut reader = reader(|at, _, frame| {
            stamp(at, frame);
            assert!(at.0 % 2 == 0 && at.0 < 10, "odd or late");
        });
        for at in 1..=4 {
            reader.request(Mono(at));
            let frame = reader.take(PATIENCE).unwrap();
            if at % 2 == 0 {
                assert_eq!(stamped(frame), at as f64);
            } else {
                let missing =
                    [MetricId::GpuTemperature, MetricId::GpuEnergy].map(|id| (id, Reading::Missing));
                assert_eq!(frame.devices[0].readings, missing);
            }
        }
        let news = reader.news();
        assert_eq!(news.len(), 2);
        assert!(news[0].device.is_none() && news[0].reason.to_string().contains("odd or late"), "{news:?}");
        for at in 10..13 {
            reader.request(Mono(at));
            assert!(reader.take(PATIENCE).is_some());
        }
        reader.request(Mono(13));
        assert!(reader.take(PATIENCE).is_none());
        assert!(reader.has_ended());
        assert!(reader.stop(PATIENCE));
    }

    #[test]
    fn what_fails_at_the_opening_is_told() {
        let error = || NvmlError::NoDriver { library: "x".to_owned() };
        let mut failing =
            GpuReader::launch(move || Err(error()), GpuSettings::new(vec![], PATIENCE)).unwrap();
        assert_eq!(failing.ready(PATIENCE), Some(Err(GpuReaderError::Driver(error()))));
        failing.request(Mono(1));
        assert!(failing.take(PATIENCE).is_none());
        assert!(failing.stop(PATIENCE));

        let mut panicking =
            GpuReader::launch(|| panic!("at the opening"), GpuSettings::new(vec![], PATIENCE)).unwrap();
        let answer = panicking.ready(PATIENCE).unwrap();
        assert_eq!(answer, Err(GpuReaderError::Failed("at the opening".to_owned())));
    }

    #[test]
    fn buffers_go_round() {
        let mut reader = reader(|at, _, frame| stamp(at, frame));
        let mut places = std::collections::HashSet::new();
        for at in 0..50 {
            reader.request(Mono(at));
            places.insert(reader.take(PATIENCE).unwrap().devices.as_ptr());
        }
        assert!(places.len() <= 3, "{} frames were allocated", places.len());
    }
}
