//! The least that sampling can cost: `floor PLAN INTERVAL_MS SAMPLES WARMUP` makes the reads and the NVML calls of a
//! plan, one sample after another, and does nothing with what it reads. `benches/compare` writes the plan from what
//! it saw gpurun do, and compares what both cost.
//!
//! A line of a plan: `sample`, `keep PATH` (opened once, then read in place), `open PATH` (opened, read and closed),
//! `clock PID` (a process's CPU clock), `call FUNCTION GPU`. When the plan is over it begins again. Prints nanoseconds of
//! CPU a sample.
//!
//! `floor probe` is the least that choosing can cost: it opens the driver, asks each GPU for its UUID and its memory,
//! prints how many there are, and ends.

#![allow(clippy::missing_transmute_annotations, reason = "each variant of Function names its signature")]

use std::collections::HashMap;
use std::error::Error;
use std::ffi::{CString, c_int, c_uint, c_ulonglong, c_void};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

type Device = *mut c_void;
type Ret = c_int;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FieldValue {
    field: u32,
    scope: u32,
    stamp: i64,
    latency: i64,
    kind: u32,
    code: u32,
    value: u64,
}

/// Fields and scopes that gpurun asks for by default.
const FIELDS: [(u32, u32); 8] =
    [(74, 0), (75, 0), (197, 0), (198, 0), (138, u32::MAX), (139, u32::MAX), (82, 0), (83, 0)];

enum Step {
    Keep(usize),
    Open(String),
    Clock(libc::clockid_t),
    Call(Function, usize),
}

/// An NVML function by the shape of its arguments.
#[derive(Clone, Copy)]
enum Function {
    /// Writes 32-bit numbers, at most two arguments of them.
    Numbers(unsafe extern "C" fn(Device, *mut c_uint, *mut c_uint) -> Ret),
    /// A structure with its size and version in its first word.
    Versioned(unsafe extern "C" fn(Device, *mut c_uint) -> Ret, u32),
    /// A kind, then a number.
    Kind(unsafe extern "C" fn(Device, c_uint, *mut c_uint) -> Ret),
    /// A kind, a counter type, then a wide number.
    Errors(unsafe extern "C" fn(Device, c_uint, c_uint, *mut c_ulonglong) -> Ret),
    Fields(unsafe extern "C" fn(Device, c_int, *mut FieldValue) -> Ret),
    List(unsafe extern "C" fn(Device, *mut c_uint, *mut c_void) -> Ret),
    Use(unsafe extern "C" fn(Device, *mut c_void, *mut c_uint, c_ulonglong) -> Ret),
    /// Takes a sample of the GPM counters.
    GpmSample(unsafe extern "C" fn(Device, GpmSample) -> Ret),
    /// Compares two samples.
    GpmMeans(unsafe extern "C" fn(*mut GpmMeans) -> Ret),
}

type GpmSample = *mut c_void;

/// `nvmlGpmMetricsGet_t`, with room for more metrics than any version has.
#[repr(C)]
struct GpmMeans {
    version: u32,
    count: u32,
    older: GpmSample,
    newer: GpmSample,
    metrics: [GpmMetric; 512],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct GpmMetric {
    id: u32,
    rest: [u64; 4],
}

/// Metrics that gpurun asks for by default.
const GPM: [u32; 8] = [2, 3, 5, 10, 11, 12, 13, 4];

struct Driver {
    library: *mut c_void,
    devices: Vec<Device>,
}

impl Driver {
    fn open(path: &str) -> Result<Self, Box<dyn Error>> {
        let path = CString::new(path)?;
        // SAFETY: a C string; the library stays mapped until this program ends.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err("the NVML library cannot be loaded".into());
        }
        let mut driver = Self { library, devices: Vec::new() };
        // SAFETY: NVML's documented signatures.
        unsafe {
            let init: extern "C" fn() -> Ret = std::mem::transmute(driver.symbol("nvmlInit_v2")?);
            if init() != 0 {
                return Err("nvmlInit failed".into());
            }
            let by_index: extern "C" fn(c_uint, *mut Device) -> Ret =
                std::mem::transmute(driver.symbol("nvmlDeviceGetHandleByIndex_v2")?);
            let mut device = std::ptr::null_mut();
            while by_index(u32::try_from(driver.devices.len())?, &raw mut device) == 0 {
                driver.devices.push(device);
            }
        }
        Ok(driver)
    }

    fn symbol(&self, name: &str) -> Result<*mut c_void, Box<dyn Error>> {
        let name = CString::new(name)?;
        // SAFETY: an open library and a C string.
        let symbol = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        if symbol.is_null() { Err(format!("no {name:?}").into()) } else { Ok(symbol) }
    }

    fn function(&self, name: &str) -> Result<Function, Box<dyn Error>> {
        let symbol = self.symbol(name)?;
        // SAFETY: each name gets the signature that NVML documents for it, or one with more out-arguments than it
        // has, which the C calling convention allows.
        unsafe {
            Ok(match name {
                "nvmlDeviceGetUtilizationRates"
                | "nvmlDeviceGetPowerUsage"
                | "nvmlDeviceGetEnforcedPowerLimit"
                | "nvmlDeviceGetFanSpeed"
                | "nvmlDeviceGetEncoderUtilization"
                | "nvmlDeviceGetDecoderUtilization"
                | "nvmlDeviceGetTotalEnergyConsumption" => Function::Numbers(std::mem::transmute(symbol)),
                "nvmlDeviceGetMemoryInfo_v2" => {
                    Function::Versioned(std::mem::transmute(symbol), 40 | 2 << 24)
                }
                "nvmlDeviceGetTemperatureV" => Function::Versioned(std::mem::transmute(symbol), 12 | 1 << 24),
                "nvmlDeviceGetAddressingMode" => {
                    Function::Versioned(std::mem::transmute(symbol), 8 | 1 << 24)
                }
                "nvmlDeviceGetClockInfo" | "nvmlDeviceGetTemperature" => {
                    Function::Kind(std::mem::transmute(symbol))
                }
                "nvmlDeviceGetTotalEccErrors" => Function::Errors(std::mem::transmute(symbol)),
                "nvmlDeviceGetFieldValues" => Function::Fields(std::mem::transmute(symbol)),
                "nvmlDeviceGetProcessUtilization" => Function::Use(std::mem::transmute(symbol)),
                "nvmlGpmSampleGet" => Function::GpmSample(std::mem::transmute(symbol)),
                "nvmlGpmMetricsGet" => Function::GpmMeans(std::mem::transmute(symbol)),
                _ if name.contains("RunningProcesses") => Function::List(std::mem::transmute(symbol)),
                _ => return Err(format!("the floor does not know {name}").into()),
            })
        }
    }
}

/// Buffers for what the calls write.
struct Buffers {
    words: Vec<c_uint>,
    fields: [FieldValue; 9],
    /// The older and the newer sample of each device.
    gpm: HashMap<Device, [GpmSample; 2]>,
    means: Box<GpmMeans>,
}

impl Buffers {
    fn new(words: usize, gpm: HashMap<Device, [GpmSample; 2]>) -> Self {
        let none = std::ptr::null_mut();
        let metrics = [GpmMetric::default(); 512];
        let means = Box::new(GpmMeans { version: 1, count: 0, older: none, newer: none, metrics });
        Self { words: vec![0; words], fields: [FieldValue::default(); 9], gpm, means }
    }
}

/// Two samples for each device, where the driver has them.
fn gpm_samples(driver: &Driver) -> Result<HashMap<Device, [GpmSample; 2]>, Box<dyn Error>> {
    let Ok(symbol) = driver.symbol("nvmlGpmSampleAlloc") else { return Ok(HashMap::new()) };
    // SAFETY: NVML's documented signature.
    let allocate: extern "C" fn(*mut GpmSample) -> Ret = unsafe { std::mem::transmute(symbol) };
    let mut all = HashMap::new();
    for device in &driver.devices {
        let mut samples = [std::ptr::null_mut(); 2];
        if samples.iter_mut().any(|sample| allocate(&raw mut *sample) != 0) {
            return Err("no memory for GPM samples".into());
        }
        all.insert(*device, samples);
    }
    Ok(all)
}

fn call(function: Function, device: Device, room: &mut Buffers) {
    let words = room.words.as_mut_ptr();
    // Entries of 40 bytes at most.
    let mut entries = c_uint::try_from(room.words.len() / 10).unwrap_or(0);
    // SAFETY: every pointer leads to more room than the call may write.
    unsafe {
        match function {
            Function::Numbers(f) => f(device, words, words.add(8)),
            Function::Versioned(f, version) => {
                *words = version;
                // The sensor, where there is one.
                *words.add(1) = 0;
                f(device, words)
            }
            Function::Kind(f) => f(device, 1, words),
            Function::Errors(f) => f(device, 1, 0, words.cast()),
            Function::Fields(f) => {
                for (value, (field, scope)) in room.fields.iter_mut().zip(FIELDS) {
                    *value = FieldValue { field, scope, ..FieldValue::default() };
                }
                f(device, 8, room.fields.as_mut_ptr())
            }
            Function::List(f) => f(device, &raw mut entries, words.cast()),
            Function::Use(f) => f(device, words.cast(), &raw mut entries, 0),
            Function::GpmSample(f) => match room.gpm.get_mut(&device) {
                Some(samples) => {
                    samples.swap(0, 1);
                    f(device, samples[1])
                }
                None => 0,
            },
            Function::GpmMeans(f) => {
                let samples = room.gpm.get(&device).copied().unwrap_or([std::ptr::null_mut(); 2]);
                (room.means.version, room.means.count) = (1, 8);
                (room.means.older, room.means.newer) = (samples[0], samples[1]);
                for (metric, id) in room.means.metrics.iter_mut().zip(GPM) {
                    metric.id = id;
                }
                f(&raw mut *room.means)
            }
        };
    }
}

/// Asks each GPU what a choice by free memory has to know.
fn probe() -> Result<(), Box<dyn Error>> {
    let driver = Driver::open(&std::env::var("GPURUN_NVML_LIBRARY")?)?;
    // SAFETY: NVML's documented signature.
    let uuid: unsafe extern "C" fn(Device, *mut u8, c_uint) -> Ret =
        unsafe { std::mem::transmute(driver.symbol("nvmlDeviceGetUUID")?) };
    let memory = driver.function("nvmlDeviceGetMemoryInfo_v2")?;
    let mut room = Buffers::new(64, HashMap::new());
    let mut text = [0_u8; 96];
    for device in &driver.devices {
        // SAFETY: room for 96 bytes.
        unsafe { uuid(*device, text.as_mut_ptr(), 96) };
        call(memory, *device, &mut room);
    }
    writeln!(std::io::stdout(), "{}", driver.devices.len())?;
    Ok(())
}

fn cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// What is read for each sample.
struct Plan {
    driver: Option<Driver>,
    files: Vec<File>,
    steps: Vec<Vec<Step>>,
}

impl Plan {
    /// Reads the plan; opens the driver and the files that stay open.
    fn parse(text: &str) -> Result<Self, Box<dyn Error>> {
        let mut driver: Option<Driver> = None;
        let mut functions: HashMap<String, Function> = HashMap::new();
        let mut files: Vec<File> = Vec::new();
        let mut kept: HashMap<String, usize> = HashMap::new();
        let mut steps: Vec<Vec<Step>> = Vec::new();
        for line in text.lines() {
            if line == "sample" {
                steps.push(Vec::new());
                continue;
            }
            let Some((word, rest)) = line.split_once(' ') else { continue };
            let step = match word {
                "keep" => {
                    let place = match kept.get(rest) {
                        Some(place) => *place,
                        None => {
                            // One that ended since the plan was made.
                            let Ok(file) = File::open(rest) else { continue };
                            files.push(file);
                            kept.insert(rest.to_owned(), files.len() - 1);
                            files.len() - 1
                        }
                    };
                    Step::Keep(place)
                }
                "open" => Step::Open(rest.to_owned()),
                "clock" => Step::Clock(!rest.parse::<libc::pid_t>()? << 3 | 2),
                "call" => {
                    let (name, gpu) = rest.split_once(' ').ok_or("call FUNCTION GPU")?;
                    let driver = match &driver {
                        Some(driver) => driver,
                        None => driver.insert(Driver::open(&std::env::var("GPURUN_NVML_LIBRARY")?)?),
                    };
                    let function = match functions.get(name) {
                        Some(function) => *function,
                        None => {
                            let function = driver.function(name)?;
                            functions.insert(name.to_owned(), function);
                            function
                        }
                    };
                    Step::Call(function, gpu.parse()?)
                }
                _ => return Err(format!("what is {line:?}?").into()),
            };
            steps.last_mut().ok_or("a plan begins with: sample")?.push(step);
        }
        Ok(Self { driver, files, steps })
    }

    /// One read.
    fn take(&self, step: &Step, buffer: &mut [u8], room: &mut Buffers) {
        match step {
            Step::Keep(place) => {
                if let Some(file) = self.files.get(*place) {
                    let _ = file.read_at(buffer, 0);
                }
            }
            Step::Open(path) => {
                if let Ok(mut file) = File::open(path) {
                    let _ = file.read(buffer);
                }
            }
            Step::Clock(clock) => {
                let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                // SAFETY: the kernel writes one timespec, or refuses the clock.
                unsafe { libc::clock_gettime(*clock, &raw mut time) };
            }
            Step::Call(function, gpu) => {
                if let Some(device) = self.driver.as_ref().and_then(|driver| driver.devices.get(*gpu)) {
                    call(*function, *device, room);
                }
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words == ["probe"] {
        return probe();
    }
    let [plan, interval, samples, warmup] = words.as_slice() else {
        return Err("usage: floor PLAN INTERVAL_MS SAMPLES WARMUP".into());
    };
    let plan = std::fs::read_to_string(plan)?;
    let interval = Duration::from_millis(interval.parse()?);
    let (samples, warmup): (u32, u32) = (samples.parse()?, warmup.parse()?);
    // SAFETY: sets this process's own limit.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    let plan = Plan::parse(&plan)?;
    let mut buffer = vec![0_u8; 1 << 16];
    let gpm = plan.driver.as_ref().map(gpm_samples).transpose()?.unwrap_or_default();
    let mut room = Buffers::new(40 * 1024, gpm);
    let mut start = cpu();
    let begun = Instant::now();
    for n in 0..warmup + samples {
        if n == warmup {
            start = cpu();
        }
        for step in plan.steps.get(n as usize % plan.steps.len().max(1)).into_iter().flatten() {
            plan.take(step, &mut buffer, &mut room);
        }
        std::thread::sleep((interval * (n + 1)).saturating_sub(begun.elapsed()));
    }
    let spent = cpu().saturating_sub(start);
    writeln!(std::io::stdout(), "{}", spent.as_nanos() / u128::from(samples.max(1)))?;
    Ok(())
}
