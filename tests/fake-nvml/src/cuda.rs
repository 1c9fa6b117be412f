//! The few functions of libcuda with which a program learns its devices, answered from the same scenario.
//!
//! They follow the CUDA driver's rules for `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`, read once at `cuInit`.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::{Arc, Mutex, PoisonError};

use crate::nvml::{bus_id_of, pci_address};
use crate::runtime::{self, Runtime};
use crate::scenario::Scenario;

type CuResult = c_int;

const SUCCESS: CuResult = 0;
const INVALID_VALUE: CuResult = 1;
const NOT_INITIALIZED: CuResult = 3;
const NO_DEVICE: CuResult = 100;
const INVALID_DEVICE: CuResult = 101;

/// A device as CUDA counts: GPU and slice.
type Ordinal = (usize, Option<usize>);

struct Context {
    runtime: Arc<Runtime>,
    devices: Vec<Ordinal>,
}

static CONTEXT: Mutex<Option<Context>> = Mutex::new(None);

/// The devices that a process sees with these two variables, in CUDA's order.
#[must_use]
pub fn visible(scenario: &Scenario, list: Option<&str>, order: Option<&str>) -> Vec<Ordinal> {
    let count = scenario.gpu.len();
    let natural: Vec<usize> = (0..count).collect();
    let order = match (&scenario.cuda, order) {
        (_, Some("PCI_BUS_ID")) | (None, _) => natural,
        (Some(cuda), _) => cuda.fastest_first.clone().unwrap_or(natural),
    };
    // A GPU in MIG mode is seen as its first slice.
    let whole = |gpu: usize| -> Ordinal {
        let first =
            scenario.gpu.get(gpu).is_some_and(|gpu| gpu.mig_state() == Some(1) && !gpu.mig.is_empty());
        (gpu, first.then_some(0))
    };
    let chosen = match list {
        None => order.iter().copied().map(whole).collect(),
        Some(list) => named(scenario, list, &order, whole),
    };
    // One slice is all that a process can see, and nothing beside it.
    match chosen.iter().find(|(_, slice)| slice.is_some()) {
        Some(slice) => vec![*slice],
        None => chosen,
    }
}

fn named(scenario: &Scenario, list: &str, order: &[usize], whole: impl Fn(usize) -> Ordinal) -> Vec<Ordinal> {
    let mut chosen: Vec<Ordinal> = Vec::new();
    for entry in list.split(',') {
        let entry = entry.trim();
        let found = if entry.starts_with("GPU-") {
            let mut fitting = (0..scenario.gpu.len()).filter(|gpu| scenario.uuid(*gpu).starts_with(entry));
            fitting.next().filter(|_| fitting.next().is_none()).map(&whole)
        } else if entry.starts_with("MIG-") {
            let all = scenario
                .gpu
                .iter()
                .enumerate()
                .flat_map(|(gpu, value)| (0..value.mig.len()).map(move |place| (gpu, place)));
            let mut fitting = all.filter(|(gpu, place)| {
                let mig = &scenario.gpu[*gpu].mig[*place];
                let instance = mig.gpu_instance.unwrap_or(u32::try_from(*place).unwrap_or(0) + 7);
                let old =
                    format!("MIG-{}/{instance}/{}", scenario.uuid(*gpu), mig.compute_instance.unwrap_or(0));
                scenario.mig_uuid(*gpu, *place).starts_with(entry) || old == entry
            });
            fitting.next().filter(|_| fitting.next().is_none()).map(|(gpu, place)| (gpu, Some(place)))
        } else {
            let digits: String = entry.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<usize>().ok().and_then(|ordinal| order.get(ordinal)).copied().map(&whole)
        };
        // The first invalid entry ends the list.
        let Some(device) = found else { break };
        if chosen.contains(&device) {
            // A device named twice voids it.
            return Vec::new();
        }
        chosen.push(device);
    }
    chosen
}

fn with_context(name: &str, answer: impl FnOnce(&Context) -> CuResult) -> CuResult {
    let context = CONTEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let code = context.as_ref().map_or(NOT_INITIALIZED, answer);
    runtime::log_plain(name, code);
    code
}

fn with_device(name: &str, device: c_int, answer: impl FnOnce(&Context, Ordinal) -> CuResult) -> CuResult {
    with_context(name, |context| {
        match usize::try_from(device).ok().and_then(|device| context.devices.get(device)) {
            Some(ordinal) => answer(context, *ordinal),
            None => INVALID_DEVICE,
        }
    })
}

/// Writes where the caller wants it.
fn put<T>(place: *mut T, value: T) -> CuResult {
    if place.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and by CUDA's contract valid for a write.
    unsafe { place.write_unaligned(value) };
    SUCCESS
}

fn put_text(place: *mut c_char, length: c_int, text: &[u8]) -> CuResult {
    let Ok(length) = usize::try_from(length) else {
        return INVALID_VALUE;
    };
    if place.is_null() || length == 0 {
        return INVALID_VALUE;
    }
    for (offset, byte) in text.iter().take(length - 1).chain([&0]).enumerate() {
        put(place.wrapping_add(offset).cast(), *byte);
    }
    SUCCESS
}

/// `cuInit`.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> CuResult {
    let code = (|| {
        let Ok(runtime) = runtime::for_cuda() else {
            return NO_DEVICE;
        };
        let cuda = runtime.scenario.cuda.clone().unwrap_or_default();
        if cuda.init_hangs {
            loop {
                std::thread::sleep(std::time::Duration::from_secs(60));
            }
        }
        if let Some(error) = cuda.init_error {
            return error;
        }
        let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let devices = visible(
            &runtime.scenario,
            variable("CUDA_VISIBLE_DEVICES").as_deref(),
            variable("CUDA_DEVICE_ORDER").as_deref(),
        );
        let none = devices.is_empty();
        *CONTEXT.lock().unwrap_or_else(PoisonError::into_inner) = Some(Context { runtime, devices });
        if none { NO_DEVICE } else { SUCCESS }
    })();
    runtime::log_plain("cuInit", code);
    code
}

/// `cuDriverGetVersion`: works without `cuInit`.
///
/// # Safety
/// `version` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CuResult {
    match runtime::for_cuda() {
        Ok(runtime) => put(version, runtime.scenario.cuda_version.unwrap_or(12040)),
        Err(_) => NO_DEVICE,
    }
}

/// `cuDeviceGetCount`.
///
/// # Safety
/// `count` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CuResult {
    with_context("cuDeviceGetCount", |context| {
        put(count, c_int::try_from(context.devices.len()).unwrap_or(c_int::MAX))
    })
}

/// `cuDeviceGet`.
///
/// # Safety
/// `device` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> CuResult {
    with_device("cuDeviceGet", ordinal, |_, _| put(device, ordinal))
}

/// `cuDeviceGetName`.
///
/// # Safety
/// `name` is null or valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> CuResult {
    with_device("cuDeviceGetName", device, |context, (gpu, _)| {
        let gpu = &context.runtime.scenario.gpu[gpu];
        put_text(name, length, gpu.name.as_deref().unwrap_or("Simulated GPU").as_bytes())
    })
}

fn uuid_bytes(scenario: &Scenario, (gpu, slice): Ordinal) -> [u8; 16] {
    let text = match slice {
        Some(place) => scenario.mig_uuid(gpu, place),
        None => scenario.uuid(gpu),
    };
    let hex: Vec<u8> = text.bytes().skip(4).filter(u8::is_ascii_hexdigit).collect();
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(hex.chunks(2)) {
        *byte =
            std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok()).unwrap_or(0);
    }
    bytes
}

/// `cuDeviceGetUuid`: the GPU's, also for a slice.
///
/// # Safety
/// `uuid` is null or valid for 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) -> CuResult {
    with_device("cuDeviceGetUuid", device, |context, (gpu, _)| {
        put(uuid, uuid_bytes(&context.runtime.scenario, (gpu, None)))
    })
}

/// `cuDeviceGetUuid_v2`: the slice's own, where the device is one.
///
/// # Safety
/// `uuid` is null or valid for 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> CuResult {
    with_device("cuDeviceGetUuid_v2", device, |context, ordinal| {
        put(uuid, uuid_bytes(&context.runtime.scenario, ordinal))
    })
}

/// `cuDeviceGetPCIBusId`.
///
/// # Safety
/// `bus_id` is null or valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(bus_id: *mut c_char, length: c_int, device: c_int) -> CuResult {
    with_device("cuDeviceGetPCIBusId", device, |context, (gpu, _)| {
        match pci_address(&bus_id_of(&context.runtime.scenario, gpu)) {
            Some((domain, bus, number)) => {
                put_text(bus_id, length, format!("{domain:04X}:{bus:02X}:{number:02X}.0").as_bytes())
            }
            None => INVALID_VALUE,
        }
    })
}

/// `cuDeviceTotalMem_v2`.
///
/// # Safety
/// `bytes` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> CuResult {
    with_device("cuDeviceTotalMem_v2", device, |context, (gpu, slice)| {
        let gpu = &context.runtime.scenario.gpu[gpu];
        let total = match slice {
            Some(place) => gpu.mig[place].memory_total.as_ref(),
            None => gpu.memory_total.as_ref(),
        };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a memory size fits")]
        let size = total.and_then(|total| total.at(0.0).ok()).map_or(0, |mib| (mib * 1_048_576.0) as usize);
        put(bytes, size)
    })
}

/// `cuGetErrorString`.
///
/// # Safety
/// `text` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: CuResult, text: *mut *const c_char) -> CuResult {
    let words = match code {
        SUCCESS => c"no error",
        INVALID_VALUE => c"invalid argument",
        NOT_INITIALIZED => c"initialization error",
        NO_DEVICE => c"no CUDA-capable device is detected",
        INVALID_DEVICE => c"invalid device ordinal",
        _ => c"unknown error",
    };
    put(text, words.as_ptr())
}
