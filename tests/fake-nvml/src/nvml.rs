//! NVML's C functions, answered from the scenario.
//!
//! Names, argument lists, struct layouts and the in/out rules of sizes are those of `nvml.h`. Symbols are exported
//! under their versioned and unversioned names, as the real library does.

mod answers;
mod fields;
mod gpm;
mod layouts;
mod processes;

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::codes::{self, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, Ret};
use crate::runtime::{self, Call, Target, handle};
use crate::scenario::{Gpu, Process, Scenario};
use crate::signal::{Counter, Signal};

use answers::*;
pub(crate) use answers::{bus_id_of, pci_address};
use fields::*;
pub use layouts::*;
use processes::*;

type Device = *mut c_void;

const MIB: f64 = 1_048_576.0;
/// `NVML_VALUE_NOT_AVAILABLE`.
const NOT_AVAILABLE: u64 = u64::MAX;

/// Defines exported functions: names, arguments, what the call is about, and the answer.
macro_rules! nvml {
    ($([$($name:ident),+] $arguments:tt $target:expr => $body:expr;)*) => {
        $($(nvml_one! { $name $arguments $target => $body })+)*
    };
}

macro_rules! nvml_one {
    ($name:ident ($($argument:ident : $kind:ty),* $(,)?) $target:expr => $body:expr) => {
        #[doc = concat!("`", stringify!($name), "` of `nvml.h`.\n\n# Safety\nAs in `nvml.h`: pointers are null or valid for what the call writes.")]
        #[allow(non_snake_case, reason = "the name is the ABI")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> Ret {
            runtime::call(stringify!($name), $target, $body)
        }
    };
}

/// Writes a value where the caller wants it.
fn put<T>(place: *mut T, value: T) -> Result<(), Ret> {
    if place.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and by NVML's contract valid for a write; callers may hand in unaligned memory.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// Reads what the caller left in an in/out argument.
fn get<T: Copy>(place: *const T) -> Result<T, Ret> {
    if place.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and by NVML's contract valid for a read.
    Ok(unsafe { place.read_unaligned() })
}

/// Writes a C string, or fails where it does not fit with its end.
fn put_text(buffer: *mut c_char, length: c_uint, text: &[u8]) -> Result<(), Ret> {
    if buffer.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if (length as usize) < text.len() + 1 {
        return Err(INSUFFICIENT_SIZE);
    }
    for (offset, byte) in text.iter().chain([&0]).enumerate() {
        put(buffer.wrapping_add(offset).cast(), *byte)?;
    }
    Ok(())
}

fn text_of(pointer: *const c_char) -> Result<String, Ret> {
    if pointer.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and by NVML's contract a C string.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

fn fixed<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    for (place, byte) in field.iter_mut().take(N - 1).zip(text.bytes()) {
        *place = byte;
    }
    field
}

/// The value now of a key that may be absent.
fn now(signal: Option<&Signal>, call: &Call) -> Result<f64, Ret> {
    signal.ok_or(NOT_SUPPORTED)?.at(call.t)
}

fn counted(counter: Option<&Counter>, call: &Call) -> Result<f64, Ret> {
    counter.ok_or(NOT_SUPPORTED)?.at(call.t)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a scenario may hold any number; C gets the nearest"
)]
fn uint(value: f64) -> c_uint {
    value.round() as c_uint
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a scenario may hold any number; C gets the nearest"
)]
fn ulong(value: f64) -> u64 {
    value.round() as u64
}

#[allow(clippy::cast_possible_truncation, reason = "a scenario may hold any number; C gets the nearest")]
fn sint(value: f64) -> c_int {
    value.round() as c_int
}

fn put_now(place: *mut c_uint, signal: Option<&Signal>, call: &Call) -> Result<(), Ret> {
    put(place, uint(now(signal, call)?))
}

// ---- initialisation and system ----

/// `nvmlInit` of `nvml.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit() -> Ret {
    runtime::init("nvmlInit")
}

/// `nvmlInit_v2` of `nvml.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Ret {
    runtime::init("nvmlInit_v2")
}

/// `nvmlInitWithFlags` of `nvml.h`. The flags change nothing here.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> Ret {
    runtime::init("nvmlInitWithFlags")
}

/// `nvmlShutdown` of `nvml.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Ret {
    runtime::shutdown("nvmlShutdown")
}

/// `nvmlErrorString` of `nvml.h`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: Ret) -> *const c_char {
    codes::text(code).as_ptr()
}

nvml! {
    [nvmlSystemGetDriverVersion](version: *mut c_char, length: c_uint) Target::System =>
        |call| put_text(version, length, call.scenario().driver().as_bytes());
    [nvmlSystemGetNVMLVersion](version: *mut c_char, length: c_uint) Target::System =>
        |call| put_text(version, length, call.scenario().nvml().as_bytes());
    [nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2](version: *mut c_int) Target::System =>
        |call| put(version, call.scenario().cuda_version.unwrap_or(12040));
    [nvmlSystemGetProcessName](pid: c_uint, name: *mut c_char, length: c_uint) Target::System => |_| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NOT_FOUND)?;
        let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
        put_text(name, length, first)
    };

    // ---- handles ----
    [nvmlDeviceGetCount, nvmlDeviceGetCount_v2](count: *mut c_uint) Target::System =>
        |call| put(count, call.scenario().gpu.len() as c_uint);
    [nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2](index: c_uint, device: *mut Device)
        Target::Index(index as usize) => |call| put(device, call.handle());
    [nvmlDeviceGetHandleByUUID](uuid: *const c_char, device: *mut Device)
        Target::Lookup(&|scenario| by_uuid(scenario, &text_of(uuid)?)) => |call| put(device, call.handle());
    [nvmlDeviceGetHandleByUUIDV](uuid: *const UuidV1, device: *mut Device) Target::Lookup(&|scenario| {
        let wanted = get(uuid)?;
        if wanted.version != version::<UuidV1>(1) {
            return Err(codes::ARGUMENT_VERSION_MISMATCH);
        }
        match wanted.kind {
            1 => {
                let text = CStr::from_bytes_until_nul(&wanted.value).map_err(|_| INVALID_ARGUMENT)?;
                by_uuid(scenario, &text.to_string_lossy())
            }
            2 => by_uuid(scenario, &format!("GPU-{}", dashed(&wanted.value))),
            _ => Err(INVALID_ARGUMENT),
        }
    }) => |call| put(device, call.handle());
    [nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2](bus_id: *const c_char, device: *mut Device)
        Target::Lookup(&|scenario| {
        let wanted = pci_address(&text_of(bus_id)?).ok_or(INVALID_ARGUMENT)?;
        let mut all = 0..scenario.gpu.len();
        let gpu = all.find(|gpu| pci_address(&bus_id_of(scenario, *gpu)) == Some(wanted)).ok_or(NOT_FOUND)?;
        Ok((gpu, None))
    }) => |call| put(device, call.handle());
    [nvmlDeviceGetHandleBySerial](serial: *const c_char, device: *mut Device) Target::Lookup(&|scenario| {
        let wanted = text_of(serial)?;
        let gpu = scenario.gpu.iter().position(|gpu| gpu.serial.as_ref() == Some(&wanted)).ok_or(NOT_FOUND)?;
        Ok((gpu, None))
    }) => |call| put(device, call.handle());

    // ---- identity ----
    [nvmlDeviceGetName](device: Device, name: *mut c_char, length: c_uint) Target::Handle(device) => |call| {
        let gpu = call.gpu()?;
        let own = gpu.name_bytes.clone().unwrap_or_else(|| name_of(gpu).as_bytes().to_vec());
        match call.mig() {
            None => put_text(name, length, &own),
            Some((_, mig)) => match &mig.name {
                Some(mig_name) => put_text(name, length, mig_name.as_bytes()),
                None => {
                    let profile = mig.profile.as_deref().unwrap_or("1g");
                    put_text(name, length, &[&own, b" MIG ".as_slice(), profile.as_bytes()].concat())
                }
            },
        }
    };
    [nvmlDeviceGetUUID](device: Device, uuid: *mut c_char, length: c_uint) Target::Handle(device) => |call| {
        let text = match call.mig() {
            None => call.scenario().uuid(call.index()),
            Some((place, _)) => call.scenario().mig_uuid(call.index(), place),
        };
        put_text(uuid, length, text.as_bytes())
    };
    [nvmlDeviceGetIndex](device: Device, index: *mut c_uint) Target::Handle(device) => |call| put(index, match call.mig() {
        None => call.index() as c_uint,
        Some((place, mig)) => mig.index.unwrap_or(place as c_uint),
    });
    [nvmlDeviceGetMinorNumber](device: Device, minor: *mut c_uint) Target::Handle(device) =>
        |call| put(minor, call.whole()?.minor_number.unwrap_or(call.index() as c_uint));
    [nvmlDeviceGetSerial](device: Device, serial: *mut c_char, length: c_uint) Target::Handle(device) =>
        |call| put_text(serial, length, call.whole()?.serial.as_ref().ok_or(NOT_SUPPORTED)?.as_bytes());
    [nvmlDeviceGetBrand](device: Device, brand: *mut c_uint) Target::Handle(device) =>
        |call| put(brand, call.gpu()?.brand.unwrap_or(0));
    [nvmlDeviceGetArchitecture](device: Device, architecture: *mut c_uint) Target::Handle(device) =>
        |call| put(architecture, call.gpu()?.architecture.ok_or(NOT_SUPPORTED)?);
    [nvmlDeviceGetNumGpuCores](device: Device, cores: *mut c_uint) Target::Handle(device) =>
        |call| put(cores, call.gpu()?.cores.ok_or(NOT_SUPPORTED)?);
    [nvmlDeviceGetCudaComputeCapability](device: Device, major: *mut c_int, minor: *mut c_int) Target::Handle(device) => |call| {
        let [high, low] = call.gpu()?.compute_capability.ok_or(NOT_SUPPORTED)?;
        put(major, high)?;
        put(minor, low)
    };
    [nvmlDeviceGetBoardId](device: Device, board: *mut c_uint) Target::Handle(device) =>
        |call| put(board, call.index() as c_uint * 0x100);
    [nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v2](device: Device, pci: *mut PciInfoV2) Target::Handle(device) => |call| {
        let info = pci_info(call)?;
        put(pci, PciInfoV2 { bus_id: info.legacy, domain: info.domain, bus: info.bus, device: info.device,
            device_id: info.device_id, subsystem_id: info.subsystem_id, reserved: [0; 4] })
    };
    [nvmlDeviceGetPciInfo_v3](device: Device, pci: *mut PciInfo) Target::Handle(device) => |call| put(pci, pci_info(call)?);

    // ---- modes and states ----
    [nvmlDeviceGetComputeMode](device: Device, mode: *mut c_uint) Target::Handle(device) =>
        |call| put_now(mode, call.gpu()?.compute_mode.as_ref(), call);
    [nvmlDeviceGetPersistenceMode](device: Device, mode: *mut c_uint) Target::Handle(device) =>
        |call| put_now(mode, call.gpu()?.persistence_mode.as_ref(), call);
    [nvmlDeviceGetDisplayMode](device: Device, mode: *mut c_uint) Target::Handle(device) =>
        |call| put_now(mode, call.whole()?.display_mode.as_ref(), call);
    [nvmlDeviceGetDisplayActive](device: Device, mode: *mut c_uint) Target::Handle(device) =>
        |call| put_now(mode, call.whole()?.display_active.as_ref(), call);
    [nvmlDeviceGetPerformanceState, nvmlDeviceGetPowerState](device: Device, state: *mut c_uint) Target::Handle(device) =>
        |call| put_now(state, call.whole()?.performance_state.as_ref(), call);
    [nvmlDeviceGetMigMode](device: Device, current: *mut c_uint, pending: *mut c_uint) Target::Handle(device) => |call| {
        let mode = call.whole()?.mig_state().ok_or(NOT_SUPPORTED)?;
        put(current, mode)?;
        put(pending, mode)
    };
    [nvmlDeviceGetAddressingMode](device: Device, mode: *mut AddressingMode) Target::Handle(device) => |call| {
        if get(mode)?.version != version::<AddressingMode>(1) {
            return Err(codes::ARGUMENT_VERSION_MISMATCH);
        }
        put(mode, AddressingMode { version: version::<AddressingMode>(1), value: call.whole()?.addressing_mode.ok_or(NOT_SUPPORTED)? })
    };
    [nvmlDeviceGetDriverModel, nvmlDeviceGetDriverModel_v2](device: Device, _current: *mut c_uint, _pending: *mut c_uint)
        Target::Handle(device) => |_| Err(NOT_SUPPORTED);
    [nvmlDeviceGetConfComputeMemSizeInfo](device: Device, _info: *mut c_void) Target::Handle(device) => |_| Err(NOT_SUPPORTED);

    // ---- memory ----
    [nvmlDeviceGetMemoryInfo](device: Device, memory: *mut MemoryV1) Target::Handle(device) => |call| {
        let sizes = memory_of(call)?;
        put(memory, MemoryV1 { total: sizes.total, free: sizes.free, used: sizes.used + sizes.reserved })
    };
    [nvmlDeviceGetMemoryInfo_v2](device: Device, memory: *mut MemoryV2) Target::Handle(device) => |call| {
        // The driver reads the version before anything else of the struct.
        if get(memory.cast::<c_uint>())? != version::<MemoryV2>(2) {
            return Err(codes::ARGUMENT_VERSION_MISMATCH);
        }
        put(memory, memory_of(call)?)
    };
    [nvmlDeviceGetBAR1MemoryInfo](device: Device, memory: *mut MemoryV1) Target::Handle(device) => |call| {
        let (total, used) = match call.mig() {
            None => (&call.gpu()?.bar1_total, &call.gpu()?.bar1_used),
            Some((_, mig)) => (&mig.bar1_total, &mig.bar1_used),
        };
        let total = ulong(now(total.as_ref(), call)? * MIB);
        let used = ulong(now(used.as_ref(), call)? * MIB);
        put(memory, MemoryV1 { total, free: total.saturating_sub(used), used })
    };

    // ---- utilisation ----
    [nvmlDeviceGetUtilizationRates](device: Device, rates: *mut Utilization) Target::Handle(device) => |call| {
        let gpu = call.whole()?;
        put(rates, Utilization {
            gpu: uint(now(gpu.gpu_utilization.as_ref(), call)?),
            memory: uint(now(gpu.memory_utilization.as_ref(), call)?),
        })
    };
    [nvmlDeviceGetEncoderUtilization](device: Device, value: *mut c_uint, period: *mut c_uint) Target::Handle(device) => |call| {
        put_now(value, call.whole()?.encoder_utilization.as_ref(), call)?;
        put(period, 167_000)
    };
    [nvmlDeviceGetDecoderUtilization](device: Device, value: *mut c_uint, period: *mut c_uint) Target::Handle(device) => |call| {
        put_now(value, call.whole()?.decoder_utilization.as_ref(), call)?;
        put(period, 167_000)
    };
    [nvmlDeviceGetJpgUtilization, nvmlDeviceGetOfaUtilization](device: Device, _value: *mut c_uint, _period: *mut c_uint)
        Target::Handle(device) => |_| Err(NOT_SUPPORTED);
    [nvmlDeviceGetSamples](device: Device, kind: c_uint, last_seen: c_ulonglong, value_type: *mut c_uint, count: *mut c_uint,
        samples: *mut Sample) Target::Handle(device) => |call| samples_of(call, kind, last_seen, value_type, count, samples);

    // ---- temperature, power, fans ----
    [nvmlDeviceGetTemperature](device: Device, sensor: c_uint, value: *mut c_uint) Target::Handle(device) => |call| {
        if sensor != 0 {
            return Err(INVALID_ARGUMENT);
        }
        put_now(value, call.whole()?.temperature.as_ref(), call)
    };
    [nvmlDeviceGetTemperatureV](device: Device, value: *mut TemperatureV1) Target::Handle(device) => |call| {
        let asked = get(value)?;
        if asked.version != version::<TemperatureV1>(1) {
            return Err(codes::ARGUMENT_VERSION_MISMATCH);
        }
        if asked.sensor != 0 {
            return Err(INVALID_ARGUMENT);
        }
        put(value, TemperatureV1 { temperature: sint(now(call.whole()?.temperature.as_ref(), call)?), ..asked })
    };
    [nvmlDeviceGetTemperatureThreshold](device: Device, kind: c_uint, value: *mut c_uint) Target::Handle(device) => |call| {
        let gpu = call.whole()?;
        match kind {
            0 => put_now(value, gpu.temperature_shutdown.as_ref(), call),
            1 => put_now(value, gpu.temperature_slowdown.as_ref(), call),
            _ => Err(NOT_SUPPORTED),
        }
    };
    [nvmlDeviceGetPowerUsage](device: Device, value: *mut c_uint) Target::Handle(device) =>
        |call| put(value, uint(now(call.whole()?.power.as_ref(), call)? * 1e3));
    [nvmlDeviceGetPowerManagementMode](device: Device, value: *mut c_uint) Target::Handle(device) =>
        |call| put(value, c_uint::from(call.whole()?.power_limit.is_some()));
    [nvmlDeviceGetPowerManagementLimit](device: Device, value: *mut c_uint) Target::Handle(device) =>
        |call| put(value, uint(now(call.whole()?.power_limit.as_ref(), call)? * 1e3));
    [nvmlDeviceGetEnforcedPowerLimit](device: Device, value: *mut c_uint) Target::Handle(device) =>
        |call| put(value, uint(now(enforced(call.whole()?), call)? * 1e3));
    [nvmlDeviceGetPowerManagementDefaultLimit](device: Device, value: *mut c_uint) Target::Handle(device) =>
        |call| put(value, uint(now(call.whole()?.power_default_limit.as_ref(), call)? * 1e3));
    [nvmlDeviceGetTotalEnergyConsumption](device: Device, value: *mut c_ulonglong) Target::Handle(device) =>
        |call| put(value, ulong(counted(call.whole()?.energy_counter().as_ref(), call)? * 1e3));
    [nvmlDeviceGetFanSpeed](device: Device, value: *mut c_uint) Target::Handle(device) =>
        |call| put_now(value, call.whole()?.fan_speed.as_ref(), call);
    [nvmlDeviceGetFanSpeed_v2](device: Device, fan: c_uint, value: *mut c_uint) Target::Handle(device) => |call| {
        let gpu = call.whole()?;
        if fan >= fans_of(gpu) {
            return Err(if fans_of(gpu) == 0 { NOT_SUPPORTED } else { INVALID_ARGUMENT });
        }
        put_now(value, gpu.fan_speed.as_ref(), call)
    };
    [nvmlDeviceGetNumFans](device: Device, value: *mut c_uint) Target::Handle(device) =>
        |call| put(value, fans_of(call.whole()?));

    // ---- clocks and throttling ----
    [nvmlDeviceGetClockInfo](device: Device, kind: c_uint, value: *mut c_uint) Target::Handle(device) => |call| {
        let gpu = call.whole()?;
        let keys = [&gpu.graphics_clock, &gpu.sm_clock, &gpu.memory_clock, &gpu.video_clock];
        put_now(value, keys.get(kind as usize).ok_or(INVALID_ARGUMENT)?.as_ref(), call)
    };
    [nvmlDeviceGetMaxClockInfo](device: Device, kind: c_uint, value: *mut c_uint) Target::Handle(device) => |call| {
        let gpu = call.whole()?;
        let keys = [&gpu.max_graphics_clock, &gpu.max_sm_clock, &gpu.max_memory_clock, &gpu.max_video_clock];
        put_now(value, keys.get(kind as usize).ok_or(INVALID_ARGUMENT)?.as_ref(), call)
    };
    [nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetCurrentClocksEventReasons](device: Device, value: *mut c_ulonglong)
        Target::Handle(device) => |call| put(value, ulong(now(call.whole()?.throttle_reasons.as_ref(), call)?));
    [nvmlDeviceGetSupportedClocksThrottleReasons, nvmlDeviceGetSupportedClocksEventReasons](device: Device, value: *mut c_ulonglong)
        Target::Handle(device) => |call| {
            if call.whole()?.throttle_reasons.is_none() {
                return Err(NOT_SUPPORTED);
            }
            put(value, 0x1ff)
        };
    [nvmlDeviceGetViolationStatus](device: Device, policy: c_uint, status: *mut ViolationTime) Target::Handle(device) => |call| {
        let gpu = call.whole()?;
        let seconds = counted(violation(gpu, policy), call)?;
        put(status, ViolationTime { reference_us: stamp(call), violation_ns: ulong(seconds * 1e9) })
    };

    // ---- ECC ----
    [nvmlDeviceGetEccMode](device: Device, current: *mut c_uint, pending: *mut c_uint) Target::Handle(device) => |call| {
        let mode = ecc_mode(call.gpu()?, call)?;
        put(current, mode)?;
        put(pending, mode)
    };
    [nvmlDeviceGetTotalEccErrors](device: Device, error: c_uint, counter: c_uint, count: *mut c_ulonglong) Target::Handle(device) =>
        |call| put(count, ulong(counted(ecc(call.whole()?, error, counter)?, call)?));
    [nvmlDeviceGetMemoryErrorCounter](device: Device, error: c_uint, counter: c_uint, location: c_uint, count: *mut c_ulonglong)
        Target::Handle(device) => |call| {
        let all = counted(ecc(call.whole()?, error, counter)?, call)?;
        match location {
            // Every scripted error is one of the device memory.
            2 => put(count, ulong(all)),
            0 | 1 | 3..=7 => put(count, 0),
            _ => Err(INVALID_ARGUMENT),
        }
    };
    [nvmlDeviceGetDetailedEccErrors](device: Device, error: c_uint, counter: c_uint, counts: *mut [c_ulonglong; 4])
        Target::Handle(device) => |call| put(counts, [0, 0, ulong(counted(ecc(call.whole()?, error, counter)?, call)?), 0]);

    [nvmlDeviceGetRemappedRows](device: Device, corrected: *mut c_uint, uncorrected: *mut c_uint, pending: *mut c_uint,
        failed: *mut c_uint) Target::Handle(device) => |call| {
        let gpu = call.whole()?;
        let waits = uint(now(gpu.row_remap_pending.as_ref(), call)?);
        put(corrected, 0)?;
        put(uncorrected, waits)?;
        put(pending, waits)?;
        put_now(failed, gpu.row_remap_failed.as_ref(), call)
    };
    [nvmlDeviceGetRetiredPages](device: Device, cause: c_uint, count: *mut c_uint, addresses: *mut u64) Target::Handle(device) => |call| {
        let pages = uint(now(call.whole()?.retired_pages.as_ref(), call)?);
        let pages = if cause == 1 { pages } else { 0 };
        let room = get(count)?;
        put(count, pages)?;
        if room < pages {
            return Err(INSUFFICIENT_SIZE);
        }
        (0..pages as usize).try_for_each(|page| put(addresses.wrapping_add(page), page as u64 * 4096))
    };

    // ---- PCIe and NVLink ----
    [nvmlDeviceGetPcieThroughput](device: Device, direction: c_uint, value: *mut c_uint) Target::Handle(device) => |call| {
        let gpu = call.whole()?;
        let counter = match direction {
            0 => gpu.pcie_tx.as_ref(),
            1 => gpu.pcie_rx.as_ref(),
            _ => return Err(INVALID_ARGUMENT),
        };
        let Some(Counter::Rate(counter)) = counter else { return Err(NOT_SUPPORTED) };
        if call.scenario().pcie_throughput_sleeps {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        put(value, uint(counter.rate.at(call.t)? / 1024.0))
    };
    [nvmlDeviceGetCurrPcieLinkGeneration](device: Device, value: *mut c_uint) Target::Handle(device) =>
        |call| put_now(value, call.whole()?.pcie_gen.as_ref(), call);
    [nvmlDeviceGetCurrPcieLinkWidth](device: Device, value: *mut c_uint) Target::Handle(device) =>
        |call| put_now(value, call.whole()?.pcie_width.as_ref(), call);
    [nvmlDeviceGetMaxPcieLinkGeneration, nvmlDeviceGetGpuMaxPcieLinkGeneration](device: Device, value: *mut c_uint)
        Target::Handle(device) => |call| put_now(value, call.whole()?.max_pcie_gen.as_ref(), call);
    [nvmlDeviceGetMaxPcieLinkWidth](device: Device, value: *mut c_uint) Target::Handle(device) =>
        |call| put_now(value, call.whole()?.max_pcie_width.as_ref(), call);
    [nvmlDeviceGetPcieReplayCounter](device: Device, value: *mut c_uint) Target::Handle(device) =>
        |call| put(value, uint(counted(call.whole()?.pcie_replays.as_ref(), call)?));
    [nvmlDeviceGetNvLinkState](device: Device, link: c_uint, state: *mut c_uint) Target::Handle(device) => |call| {
        let links = call.whole()?.nvlink.as_ref().ok_or(NOT_SUPPORTED)?;
        put_now(state, Some(links.get(link as usize).ok_or(INVALID_ARGUMENT)?), call)
    };
    [nvmlDeviceGetNvLinkVersion](device: Device, link: c_uint, value: *mut c_uint) Target::Handle(device) => |call| {
        let gpu = call.whole()?;
        gpu.nvlink.as_ref().ok_or(NOT_SUPPORTED)?.get(link as usize).ok_or(INVALID_ARGUMENT)?;
        put(value, gpu.nvlink_version.ok_or(NOT_SUPPORTED)?)
    };
    [nvmlDeviceGetFieldValues](device: Device, count: c_int, values: *mut FieldValue) Target::Handle(device) =>
        |call| field_values(call, count, values);

    // ---- processes ----
    [nvmlDeviceGetComputeRunningProcesses](device: Device, count: *mut c_uint, list: *mut c_void) Target::Handle(device) =>
        |call| list_processes(call, "C", 16, count, list);
    [nvmlDeviceGetComputeRunningProcesses_v2](device: Device, count: *mut c_uint, list: *mut c_void) Target::Handle(device) =>
        |call| list_processes(call, "C", 24, count, list);
    [nvmlDeviceGetComputeRunningProcesses_v3](device: Device, count: *mut c_uint, list: *mut c_void) Target::Handle(device) =>
        |call| list_processes(call, "C", v3_stride(call), count, list);
    [nvmlDeviceGetGraphicsRunningProcesses](device: Device, count: *mut c_uint, list: *mut c_void) Target::Handle(device) =>
        |call| list_processes(call, "G", 16, count, list);
    [nvmlDeviceGetGraphicsRunningProcesses_v2](device: Device, count: *mut c_uint, list: *mut c_void) Target::Handle(device) =>
        |call| list_processes(call, "G", 24, count, list);
    [nvmlDeviceGetGraphicsRunningProcesses_v3](device: Device, count: *mut c_uint, list: *mut c_void) Target::Handle(device) =>
        |call| list_processes(call, "G", v3_stride(call), count, list);
    [nvmlDeviceGetMPSComputeRunningProcesses](device: Device, count: *mut c_uint, list: *mut c_void) Target::Handle(device) =>
        |call| list_processes(call, "M", 16, count, list);
    [nvmlDeviceGetMPSComputeRunningProcesses_v2](device: Device, count: *mut c_uint, list: *mut c_void) Target::Handle(device) =>
        |call| list_processes(call, "M", 24, count, list);
    [nvmlDeviceGetMPSComputeRunningProcesses_v3](device: Device, count: *mut c_uint, list: *mut c_void) Target::Handle(device) =>
        |call| list_processes(call, "M", v3_stride(call), count, list);
    [nvmlDeviceGetRunningProcessDetailList](device: Device, list: *mut ProcessDetailList) Target::Handle(device) => |call| {
        let mut asked = get(list)?;
        if asked.version != version::<ProcessDetailList>(1) {
            return Err(codes::ARGUMENT_VERSION_MISMATCH);
        }
        let kind = ["C", "G", "M"].get(asked.mode as usize).ok_or(INVALID_ARGUMENT)?;
        let result = list_processes(call, kind, 32, &raw mut asked.entries, asked.list);
        put(list, asked)?;
        result
    };
    [nvmlDeviceGetProcessUtilization](device: Device, list: *mut c_void, count: *mut c_uint, last_seen: c_ulonglong)
        Target::Handle(device) => |call| process_utilization(call, list, count, last_seen, 32);
    [nvmlDeviceGetProcessesUtilizationInfo](device: Device, info: *mut ProcessesUtilization) Target::Handle(device) => |call| {
        let mut asked = get(info)?;
        if asked.version != version::<ProcessesUtilization>(1) {
            return Err(codes::ARGUMENT_VERSION_MISMATCH);
        }
        let result = process_utilization(call, asked.list, &raw mut asked.count, asked.last_seen, 40);
        put(info, asked)?;
        result
    };

    // ---- accounting: no simulated driver keeps it ----
    [nvmlDeviceGetAccountingMode](device: Device, _mode: *mut c_uint) Target::Handle(device) => |_| Err(NOT_SUPPORTED);
    [nvmlDeviceGetAccountingStats](device: Device, _pid: c_uint, _stats: *mut c_void) Target::Handle(device) => |_| Err(NOT_SUPPORTED);
    [nvmlDeviceGetAccountingPids](device: Device, _count: *mut c_uint, _pids: *mut c_uint) Target::Handle(device) => |_| Err(NOT_SUPPORTED);
    [nvmlDeviceGetAccountingBufferSize](device: Device, _size: *mut c_uint) Target::Handle(device) => |_| Err(NOT_SUPPORTED);

    // ---- GPM ----
    [nvmlGpmQueryDeviceSupport](device: Device, support: *mut GpmSupport) Target::Handle(device) =>
        |call| gpm::support(call, support);
    [nvmlGpmSampleAlloc](sample: *mut *mut c_void) Target::System => |_| gpm::allocate(sample);
    [nvmlGpmSampleFree](sample: *mut c_void) Target::System => |_| gpm::free(sample);
    [nvmlGpmSampleGet](device: Device, sample: *mut c_void) Target::Handle(device) => |call| gpm::take(call, None, sample);
    [nvmlGpmMigSampleGet](device: Device, instance: c_uint, sample: *mut c_void) Target::Handle(device) =>
        |call| gpm::take(call, Some(instance), sample);
    [nvmlGpmMetricsGet](request: *mut GpmMetricsGet) Target::Lookup(&|_| gpm::sampled_gpu(request)) =>
        |call| gpm::metrics(call, request);

    // ---- MIG ----
    [nvmlDeviceIsMigDeviceHandle](device: Device, is_mig: *mut c_uint) Target::Handle(device) =>
        |call| put(is_mig, c_uint::from(call.mig().is_some()));
    [nvmlDeviceGetMaxMigDeviceCount](device: Device, count: *mut c_uint) Target::Handle(device) => |call| {
        let gpu = call.whole()?;
        put(count, gpu.max_mig_devices.unwrap_or(if gpu.mig_state().is_some() { 7 } else { 0 }))
    };
    [nvmlDeviceGetMigDeviceHandleByIndex](device: Device, index: c_uint, slice: *mut Device) Target::Handle(device) => |call| {
        let gpu = call.whole()?;
        let state = gpu.mig_state().ok_or(NOT_SUPPORTED)?;
        let place = gpu.mig.iter().enumerate().position(|(place, mig)| mig.index.unwrap_or(place as c_uint) == index);
        put(slice, handle(call.index(), Some(place.filter(|_| state == 1).ok_or(NOT_FOUND)?)))
    };
    [nvmlDeviceGetDeviceHandleFromMigDeviceHandle](slice: Device, device: *mut Device) Target::Handle(slice) => |call| {
        call.mig().ok_or(INVALID_ARGUMENT)?;
        put(device, handle(call.index(), None))
    };
    [nvmlDeviceGetGpuInstanceId](device: Device, id: *mut c_uint) Target::Handle(device) =>
        |call| put(id, instances(call.mig().ok_or(NOT_SUPPORTED)?).0);
    [nvmlDeviceGetComputeInstanceId](device: Device, id: *mut c_uint) Target::Handle(device) =>
        |call| put(id, instances(call.mig().ok_or(NOT_SUPPORTED)?).1);
    [nvmlDeviceGetAttributes, nvmlDeviceGetAttributes_v2](device: Device, attributes: *mut Attributes) Target::Handle(device) => |call| {
        let (_, mig) = call.mig().ok_or(NOT_SUPPORTED)?;
        put(attributes, Attributes {
            multiprocessors: mig.multiprocessors.unwrap_or(14),
            copy_engines: 1,
            decoders: 0,
            encoders: 0,
            jpeg: 0,
            ofa: 0,
            gpu_slices: mig.gpu_slices.unwrap_or(1),
            compute_slices: mig.compute_slices.unwrap_or(1),
            memory_mib: ulong(now(mig.memory_total.as_ref(), call)?),
        })
    };
}
