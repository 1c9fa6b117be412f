//! What one loaded library knows: its scenario, its time, how often it was called, and the log of the calls.
//!
//! Every exported function passes through [`call`], in this order: log, initialised?, faults, lost?, answer. No lock
//! is held while a call sleeps or hangs.

use std::ffi::c_void;
use std::fs::File;
use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::codes::{self, Ret};
use crate::scenario::{Die, Fault, Gpu, Mig, Scenario};

/// The scenario file.
pub(crate) const SCENARIO_VARIABLE: &str = "GPURUN_FAKE_NVML";
/// Where calls are logged, if set.
pub(crate) const LOG_VARIABLE: &str = "GPURUN_FAKE_NVML_LOG";

/// Wall time of scripted second 0, in µs since 1970, where a clock file drives time.
const SCRIPTED_WALL_ZERO: i64 = 1_750_000_000_000_000;

struct State {
    runtime: Option<Arc<Runtime>>,
    initialised: u32,
}

static STATE: Mutex<State> = Mutex::new(State { runtime: None, initialised: 0 });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A scenario at work. It outlives shutdown and re-initialisation, so call counts go on.
pub(crate) struct Runtime {
    pub(crate) scenario: Scenario,
    text: String,
    /// `CLOCK_MONOTONIC` nanoseconds of second 0.
    epoch: i64,
    /// µs since 1970 at second 0.
    wall_zero: i64,
    calls: AtomicU64,
    fault_calls: Vec<AtomicU64>,
    gpu_calls: Vec<AtomicU64>,
    reloads_seen: AtomicUsize,
}

fn clock(id: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

pub(crate) fn monotonic_ns() -> i64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Says on stderr why the library is of no use: a wrong scenario must not look like a driver's whim.
fn complain(sentence: &str) {
    let _ = std::io::stderr().write_all(format!("fake-nvml: {sentence}\n").as_bytes());
}

impl Runtime {
    fn new(scenario: Scenario, text: String) -> Self {
        let now = monotonic_ns();
        let epoch = match &scenario.epoch_file {
            Some(path) => shared_epoch(path, now),
            None => now,
        };
        let wall_zero = if scenario.clock_file.is_some() {
            SCRIPTED_WALL_ZERO
        } else {
            clock(libc::CLOCK_REALTIME) / 1000 - (now - epoch) / 1000
        };
        let counters = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
        Runtime {
            epoch,
            wall_zero,
            calls: AtomicU64::new(0),
            fault_calls: counters(scenario.fault.len()),
            gpu_calls: counters(scenario.gpu.len()),
            reloads_seen: AtomicUsize::new(0),
            scenario,
            text,
        }
    }

    /// The scripted second.
    fn now(&self) -> f64 {
        match &self.scenario.clock_file {
            Some(path) => {
                std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0.0)
            }
            #[allow(clippy::cast_precision_loss, reason = "a run is shorter than 2^53 ns, 104 days")]
            None => (monotonic_ns() - self.epoch) as f64 / 1e9,
        }
    }

    /// The driver's time stamp, in µs since 1970, of a scripted second.
    #[allow(clippy::cast_possible_truncation, reason = "microseconds of a test run fit")]
    pub(crate) fn stamp(&self, t: f64) -> i64 {
        self.wall_zero + (t * 1e6).round() as i64
    }

    fn reloads_by(&self, t: f64) -> usize {
        self.scenario.reload_at.iter().filter(|at| **at <= t).count()
    }

    /// Delays, hangs and errors that the scenario has for this call.
    fn faults(&self, name: &'static str, gpu: Option<usize>, t: f64) -> Result<(), Ret> {
        for (fault, calls) in self.scenario.fault.iter().zip(&self.fault_calls) {
            if !applies(fault, name, gpu, t) {
                continue;
            }
            let place = calls.fetch_add(1, Ordering::Relaxed);
            let after = fault.after.unwrap_or(0);
            if place < after || fault.count.is_some_and(|count| place >= after + count) {
                continue;
            }
            if let Some(ms) = fault.sleep_ms {
                std::thread::sleep(Duration::from_millis(ms));
            }
            if fault.hang || fault.hang_while.as_deref().is_some_and(Path::exists) {
                log(name, gpu, "HANG");
                while fault.hang || fault.hang_while.as_deref().is_some_and(Path::exists) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            if let Some(die) = fault.die {
                end_process(die);
            }
            if let Some(error) = &fault.error {
                return Err(codes::by_name(error).unwrap_or(codes::UNKNOWN));
            }
        }
        Ok(())
    }

    /// Counts a call on a GPU and fails where that GPU is lost.
    fn touch(&self, index: usize, t: f64) -> Result<(), Ret> {
        let (Some(gpu), Some(calls)) = (self.scenario.gpu.get(index), self.gpu_calls.get(index)) else {
            return Err(codes::INVALID_ARGUMENT);
        };
        let place = calls.fetch_add(1, Ordering::Relaxed);
        let begun = gpu.lost_after_calls.is_some_and(|after| place >= after)
            || gpu.lost_from.is_some_and(|from| t >= from);
        let over = gpu.lost_until.is_some_and(|until| t >= until);
        if begun && !over { Err(codes::GPU_IS_LOST) } else { Ok(()) }
    }
}

/// Ends the process as a driver library with a mistake does.
fn end_process(die: Die) {
    match die {
        Die::Segv => {
            let nowhere = std::ptr::without_provenance::<u8>(0x1000);
            // SAFETY: none; the page is never mapped (`vm.mmap_min_addr`), and the fault is what is asked for.
            unsafe { nowhere.read_volatile() };
        }
        // SAFETY: ends the process.
        Die::Abort => unsafe { libc::abort() },
        // SAFETY: runs the exit handlers and ends the process.
        Die::Exit => unsafe { libc::exit(1) },
    }
}

/// Reads the shared epoch, or makes this process's `now` the shared one. The first writer wins.
fn shared_epoch(path: &Path, now: i64) -> i64 {
    let mine = path.with_extension(format!("{}.tmp", std::process::id()));
    if std::fs::write(&mine, now.to_string()).is_ok() {
        // A hard link appears whole or not at all, and fails where the name exists.
        let _ = std::fs::hard_link(&mine, path);
        let _ = std::fs::remove_file(&mine);
    }
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(now)
}

fn applies(fault: &Fault, name: &str, gpu: Option<usize>, t: f64) -> bool {
    let named = match fault.function.strip_suffix('*') {
        Some(family) => name.starts_with(family),
        None => name == fault.function,
    };
    named
        && (fault.gpu.is_none() || fault.gpu == gpu)
        && fault.from.is_none_or(|from| t >= from)
        && fault.until.is_none_or(|until| t < until)
        && fault.while_exists.as_deref().is_none_or(Path::exists)
}

fn log(name: &str, gpu: Option<usize>, result: &str) {
    static LOG: OnceLock<Option<File>> = OnceLock::new();
    let file = LOG.get_or_init(|| {
        let path = std::env::var_os(LOG_VARIABLE)?;
        match File::options().append(true).create(true).open(&path) {
            Ok(file) => Some(file),
            Err(error) => {
                complain(&format!("{}: {error}", PathBuf::from(path).display()));
                None
            }
        }
    });
    if let Some(mut file) = file.as_ref() {
        // SAFETY: both calls only return an id.
        let (pid, tid) = unsafe { (libc::getpid(), libc::syscall(libc::SYS_gettid)) };
        let gpu = gpu.map_or_else(|| "-".to_owned(), |gpu| gpu.to_string());
        // One write a line: lines of several processes do not mix.
        let _ = file.write_all(format!("{} {pid} {tid} {name} {gpu} {result}\n", monotonic_ns()).as_bytes());
    }
}

/// A GPU and, where one is meant, a slice of it by its place.
type About = (usize, Option<usize>);

/// What a call is about.
pub(crate) enum Target<'call> {
    /// The whole system.
    System,
    /// A GPU by its index.
    Index(usize),
    /// What a handle names.
    Handle(*mut c_void),
    /// What the call's own arguments name, by UUID or address.
    Lookup(&'call dyn Fn(&Scenario) -> Result<About, Ret>),
}

/// One call under way.
pub(crate) struct Call {
    pub(crate) runtime: Arc<Runtime>,
    /// The scripted second.
    pub(crate) t: f64,
    index: usize,
    mig: Option<usize>,
}

impl Call {
    pub(crate) fn scenario(&self) -> &Scenario {
        &self.runtime.scenario
    }

    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// The physical GPU, also when the call is about one of its slices.
    pub(crate) fn gpu(&self) -> Result<&Gpu, Ret> {
        self.runtime.scenario.gpu.get(self.index).ok_or(codes::INVALID_ARGUMENT)
    }

    /// The GPU, for values that no MIG slice has.
    pub(crate) fn whole(&self) -> Result<&Gpu, Ret> {
        if self.mig.is_some() { Err(codes::NOT_SUPPORTED) } else { self.gpu() }
    }

    /// The slice and its place, when the call is about one.
    pub(crate) fn mig(&self) -> Option<(usize, &Mig)> {
        let place = self.mig?;
        Some((place, self.runtime.scenario.gpu.get(self.index)?.mig.get(place)?))
    }

    /// A handle for what the call is about.
    pub(crate) fn handle(&self) -> *mut c_void {
        handle(self.index, self.mig)
    }
}

/// Handles are not addresses of anything: they name a GPU and a slice, and can be checked.
const HANDLE_BASE: usize = 0x6770_7500_0000;

pub(crate) fn handle(gpu: usize, mig: Option<usize>) -> *mut c_void {
    std::ptr::without_provenance_mut(HANDLE_BASE + gpu * 0x100 + mig.map_or(0, |place| place + 1))
}

fn read_handle(handle: *mut c_void, scenario: &Scenario) -> Option<About> {
    let offset = handle.addr().checked_sub(HANDLE_BASE)?;
    let (gpu, slice) = (offset / 0x100, offset % 0x100);
    let known = scenario.gpu.get(gpu)?;
    match slice.checked_sub(1) {
        None => Some((gpu, None)),
        Some(place) => known.mig.get(place).map(|_| (gpu, Some(place))),
    }
}

fn ret(result: Result<(), Ret>) -> Ret {
    match result {
        Ok(()) => codes::SUCCESS,
        Err(code) => code,
    }
}

/// Runs one exported function. Nothing unwinds into C.
pub(crate) fn call(
    name: &'static str,
    target: Target<'_>,
    body: impl FnOnce(&Call) -> Result<(), Ret>,
) -> Ret {
    let caught = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut gpu = None;
        let result = answer(name, &target, &mut gpu, body);
        (gpu, ret(result))
    }));
    let (gpu, code) = caught.unwrap_or((None, codes::UNKNOWN));
    log(name, gpu, &code.to_string());
    code
}

fn answer(
    name: &'static str,
    target: &Target<'_>,
    logged: &mut Option<usize>,
    body: impl FnOnce(&Call) -> Result<(), Ret>,
) -> Result<(), Ret> {
    let runtime = {
        let state = state();
        match &state.runtime {
            Some(runtime) if state.initialised > 0 => Arc::clone(runtime),
            _ => return Err(codes::UNINITIALIZED),
        }
    };
    let t = runtime.now();
    let place = runtime.calls.fetch_add(1, Ordering::Relaxed);
    let reloaded = runtime.scenario.reload_after_calls == Some(place)
        || runtime.reloads_by(t) > runtime.reloads_seen.load(Ordering::Relaxed);
    if reloaded {
        state().initialised = 0;
        return Err(codes::UNINITIALIZED);
    }
    let about = match target {
        Target::System => Ok(None),
        Target::Index(index) if *index < runtime.scenario.gpu.len() => Ok(Some((*index, None))),
        Target::Index(_) => Err(codes::INVALID_ARGUMENT),
        Target::Handle(handle) => {
            read_handle(*handle, &runtime.scenario).map(Some).ok_or(codes::INVALID_ARGUMENT)
        }
        Target::Lookup(find) => find(&runtime.scenario).map(Some),
    };
    *logged = about.ok().flatten().map(|(gpu, _)| gpu);
    runtime.faults(name, *logged, t)?;
    let (index, mig) = match about? {
        Some((index, mig)) => {
            runtime.touch(index, t)?;
            (index, mig)
        }
        None => (usize::MAX, None),
    };
    body(&Call { runtime, t, index, mig })
}

fn load() -> Result<Arc<Runtime>, Ret> {
    let Some(path) = std::env::var_os(SCENARIO_VARIABLE).filter(|path| !path.is_empty()) else {
        return Err(codes::DRIVER_NOT_LOADED);
    };
    let text = std::fs::read_to_string(&path).map_err(|error| {
        complain(&format!("{}: {error}", Path::new(&path).display()));
        codes::UNKNOWN
    })?;
    let mut state = state();
    if let Some(runtime) = &state.runtime
        && runtime.text == text
    {
        return Ok(Arc::clone(runtime));
    }
    let scenario = Scenario::parse(&text).map_err(|error| {
        complain(&format!("{}: {error}", Path::new(&path).display()));
        codes::UNKNOWN
    })?;
    let runtime = Arc::new(Runtime::new(scenario, text));
    state.runtime = Some(Arc::clone(&runtime));
    Ok(runtime)
}

/// `nvmlInit` and its kin. The scenario is read when the count goes from 0 to 1, so a driver reload may bring a new one.
pub(crate) fn init(name: &'static str) -> Ret {
    let result = (|| {
        let running = {
            let state = state();
            state.runtime.clone().filter(|_| state.initialised > 0)
        };
        let runtime = match running {
            Some(runtime) => runtime,
            None => load()?,
        };
        let t = runtime.now();
        runtime.faults(name, None, t)?;
        runtime.reloads_seen.store(runtime.reloads_by(t), Ordering::Relaxed);
        state().initialised += 1;
        Ok(())
    })();
    log(name, None, &ret(result).to_string());
    ret(result)
}

/// The scenario for the functions of libcuda, which know no NVML initialisation.
pub(crate) fn for_cuda() -> Result<Arc<Runtime>, Ret> {
    load()
}

/// Logs a call that does not go through [`call`].
pub(crate) fn log_plain(name: &str, code: i32) {
    log(name, None, &code.to_string());
}

/// `nvmlShutdown`.
pub(crate) fn shutdown(name: &'static str) -> Ret {
    let code = call(name, Target::System, |_| Ok(()));
    if code == codes::SUCCESS {
        let mut state = state();
        state.initialised = state.initialised.saturating_sub(1);
    }
    code
}
