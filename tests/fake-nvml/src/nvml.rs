//! NVML's C functions, answered from the scenario.
//!
//! Names, argument lists, struct layouts and the in/out rules of sizes are those of `nvml.h`. Symbols are exported
//! under their versioned and unversioned names, as the real library does.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void};

use crate::codes::{self, INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, Ret};
use crate::runtime::{self, Call, Target, handle};
use crate::scenario::{Gpu, Process, Scenario};
use crate::signal::{Counter, Signal};

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

// ---- layouts ----

/// `NVML_STRUCT_VERSION`.
const fn version<T>(number: c_uint) -> c_uint {
    number << 24 | size_of::<T>() as c_uint
}

macro_rules! layouts {
    ($($(#[doc = $doc:literal])* $name:ident { $($field:ident : $kind:ty),* $(,)? })*) => {$(
        $(#[doc = $doc])*
        #[allow(missing_docs, reason = "the fields are those of nvml.h")]
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub struct $name { $(pub $field: $kind),* }
    )*};
}

layouts! {
    /// `nvmlUtilization_t`
    Utilization { gpu: c_uint, memory: c_uint }
    /// `nvmlMemory_t` and `nvmlBAR1Memory_t`, which are alike
    MemoryV1 { total: u64, free: u64, used: u64 }
    /// `nvmlMemory_v2_t`
    MemoryV2 { version: c_uint, total: u64, reserved: u64, free: u64, used: u64 }
    /// `nvmlPciInfo_t`
    PciInfo { legacy: [u8; 16], domain: c_uint, bus: c_uint, device: c_uint, device_id: c_uint, subsystem_id: c_uint, bus_id: [u8; 32] }
    /// `nvmlPciInfo_v2_t`
    PciInfoV2 { bus_id: [u8; 16], domain: c_uint, bus: c_uint, device: c_uint, device_id: c_uint, subsystem_id: c_uint, reserved: [c_uint; 4] }
    /// `nvmlTemperature_v1_t`
    TemperatureV1 { version: c_uint, sensor: c_uint, temperature: c_int }
    /// `nvmlDeviceAddressingMode_v1_t`
    AddressingMode { version: c_uint, value: c_uint }
    /// `nvmlUUID_v1_t`
    UuidV1 { version: c_uint, kind: c_uint, value: [u8; 41] }
    /// `nvmlViolationTime_t`
    ViolationTime { reference_us: u64, violation_ns: u64 }
    /// `nvmlSample_t`
    Sample { stamp: u64, value: u64 }
    /// `nvmlFieldValue_t`
    FieldValue { id: c_uint, scope: c_uint, stamp: c_longlong, latency_us: c_longlong, kind: c_uint, result: Ret, value: u64 }
    /// `nvmlProcessDetailList_v1_t`
    ProcessDetailList { version: c_uint, mode: c_uint, entries: c_uint, list: *mut c_void }
    /// `nvmlProcessesUtilizationInfo_v1_t`
    ProcessesUtilization { version: c_uint, count: c_uint, last_seen: u64, list: *mut c_void }
    /// `nvmlDeviceAttributes_t`
    Attributes {
        multiprocessors: c_uint, copy_engines: c_uint, decoders: c_uint, encoders: c_uint, jpeg: c_uint, ofa: c_uint,
        gpu_slices: c_uint, compute_slices: c_uint, memory_mib: u64,
    }
}

// ---- answers that take more than a line ----

fn name_of(gpu: &Gpu) -> &str {
    gpu.name.as_deref().unwrap_or("Simulated GPU")
}

fn stamp(call: &Call) -> u64 {
    u64::try_from(call.runtime.stamp(call.t)).unwrap_or(0)
}

fn by_uuid(scenario: &Scenario, wanted: &str) -> Result<(usize, Option<usize>), Ret> {
    for (index, gpu) in scenario.gpu.iter().enumerate() {
        if scenario.uuid(index) == wanted {
            return Ok((index, None));
        }
        for (place, mig) in gpu.mig.iter().enumerate() {
            let (gpu_instance, compute_instance) = instances((place, mig));
            let old_form = format!("MIG-{}/{gpu_instance}/{compute_instance}", scenario.uuid(index));
            if scenario.mig_uuid(index, place) == wanted || old_form == wanted {
                return Ok((index, Some(place)));
            }
        }
    }
    Err(NOT_FOUND)
}

fn dashed(bytes: &[u8]) -> String {
    let hex: Vec<String> = bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    [0..4, 4..6, 6..8, 8..10, 10..16].map(|range| hex.get(range).unwrap_or_default().concat()).join("-")
}

/// The bus address of a GPU: given, or like those of an eight-GPU server.
pub(crate) fn bus_id_of(scenario: &Scenario, gpu: usize) -> String {
    const BUSES: [u8; 8] = [0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD];
    match scenario.gpu.get(gpu).and_then(|gpu| gpu.pci_bus_id.clone()) {
        Some(bus_id) => bus_id,
        None => format!("{:08X}:{:02X}:00.0", gpu / 8, BUSES[gpu % 8]),
    }
}

/// Domain, bus and device of `00000000:07:00.0`, `0000:07:00.0` or `07:00.0`.
pub(crate) fn pci_address(text: &str) -> Option<(c_uint, c_uint, c_uint)> {
    let parts: Vec<&str> = text.trim().split(':').collect();
    let (domain, bus, rest) = match parts.as_slice() {
        [domain, bus, rest] => (*domain, *bus, *rest),
        [bus, rest] => ("0", *bus, *rest),
        _ => return None,
    };
    let device = rest.split('.').next()?;
    let hex = |text| c_uint::from_str_radix(text, 16).ok();
    Some((hex(domain)?, hex(bus)?, hex(device)?))
}

fn pci_info(call: &Call) -> Result<PciInfo, Ret> {
    let gpu = call.gpu()?;
    let (domain, bus, device) =
        pci_address(&bus_id_of(call.scenario(), call.index())).ok_or(codes::UNKNOWN)?;
    Ok(PciInfo {
        legacy: fixed(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        device_id: gpu.pci_device_id.unwrap_or(0x20B2_10DE),
        subsystem_id: 0x1463_10DE,
        bus_id: fixed(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
    })
}

fn memory_of(call: &Call) -> Result<MemoryV2, Ret> {
    let gpu = call.gpu()?;
    let (total, used, reserved, free) = match call.mig() {
        None => (&gpu.memory_total, &gpu.memory_used, &gpu.memory_reserved, &gpu.memory_free),
        Some((_, mig)) => (&mig.memory_total, &mig.memory_used, &mig.memory_reserved, &mig.memory_free),
    };
    let bytes = |signal: &Option<Signal>| now(signal.as_ref(), call).map(|mib| ulong(mib * MIB));
    let total = bytes(total)?;
    let reserved = if reserved.is_some() { bytes(reserved)? } else { 0 };
    let used = if used.is_some() {
        bytes(used)?
    } else {
        live(call).iter().filter_map(|process| process.memory).fold(0, u64::saturating_add)
    };
    let free =
        if free.is_some() { bytes(free)? } else { total.saturating_sub(used).saturating_sub(reserved) };
    Ok(MemoryV2 { version: version::<MemoryV2>(2), total, reserved, free, used })
}

fn enforced(gpu: &Gpu) -> Option<&Signal> {
    gpu.enforced_power_limit.as_ref().or(gpu.power_limit.as_ref())
}

fn fans_of(gpu: &Gpu) -> c_uint {
    gpu.fans.unwrap_or(c_uint::from(gpu.fan_speed.is_some()))
}

/// Seconds of throttling by `nvmlPerfPolicyType_t`, whose numbers are also those of fields 74 to 79.
fn violation(gpu: &Gpu, policy: c_uint) -> Option<&Counter> {
    match policy {
        0 => gpu.throttled_power.as_ref(),
        1 => gpu.throttled_thermal.as_ref(),
        2 => gpu.throttled_sync_boost.as_ref(),
        3 => gpu.throttled_board_limit.as_ref(),
        4 => gpu.throttled_low_utilization.as_ref(),
        5 => gpu.throttled_reliability.as_ref(),
        _ => None,
    }
}

fn ecc(gpu: &Gpu, error: c_uint, counter: c_uint) -> Result<Option<&Counter>, Ret> {
    Ok(match (error, counter) {
        (0, 0) => gpu.ecc_volatile_corrected.as_ref(),
        (1, 0) => gpu.ecc_volatile_uncorrected.as_ref(),
        (0, 1) => gpu.ecc_aggregate_corrected.as_ref(),
        (1, 1) => gpu.ecc_aggregate_uncorrected.as_ref(),
        _ => return Err(INVALID_ARGUMENT),
    })
}

fn ecc_mode(gpu: &Gpu, call: &Call) -> Result<c_uint, Ret> {
    match &gpu.ecc_mode {
        Some(mode) => Ok(uint(mode.at(call.t)?)),
        None if gpu.ecc_volatile_corrected.is_some() || gpu.ecc_volatile_uncorrected.is_some() => Ok(1),
        None => Err(NOT_SUPPORTED),
    }
}

fn instances((place, mig): (usize, &crate::scenario::Mig)) -> (c_uint, c_uint) {
    (mig.gpu_instance.unwrap_or(place as c_uint + 7), mig.compute_instance.unwrap_or(0))
}

fn samples_of(
    call: &Call,
    kind: c_uint,
    last_seen: u64,
    value_type: *mut c_uint,
    count: *mut c_uint,
    samples: *mut Sample,
) -> Result<(), Ret> {
    /// The driver's ring holds so many.
    const RING: u32 = 120;
    let gpu = call.whole()?;
    let (signal, scale) = match kind {
        0 => (&gpu.power, 1e3),
        1 => (&gpu.gpu_utilization, 1.0),
        2 => (&gpu.memory_utilization, 1.0),
        3 => (&gpu.encoder_utilization, 1.0),
        4 => (&gpu.decoder_utilization, 1.0),
        5 => (&gpu.sm_clock, 1.0),
        6 => (&gpu.memory_clock, 1.0),
        7..=9 => (&None, 1.0),
        _ => return Err(INVALID_ARGUMENT),
    };
    let signal = signal.as_ref().ok_or(NOT_SUPPORTED)?;
    signal.at(call.t)?;
    if samples.is_null() {
        return put(count, RING);
    }
    let capacity = get(count)?;
    let period = call.scenario().utilization_period.unwrap_or(0.2);
    let newest = (call.t / period).floor();
    let mut found = Vec::new();
    for back in (0..RING).rev() {
        let t = (newest - f64::from(back)) * period;
        let at = u64::try_from(call.runtime.stamp(t)).unwrap_or(0);
        if t >= 0.0
            && at > last_seen
            && let Ok(value) = signal.at(t)
        {
            found.push(Sample { stamp: at, value: u64::from(uint(value * scale)) });
        }
    }
    if found.is_empty() {
        return Err(NOT_FOUND);
    }
    // Too small a buffer gets the newest ones, as from a ring.
    let kept = found.len().min(capacity as usize);
    for (place, sample) in found[found.len() - kept..].iter().enumerate() {
        put(samples.wrapping_add(place), *sample)?;
    }
    put(value_type, 1)?;
    put(count, kept as c_uint)
}

// ---- field values ----

#[derive(Clone, Copy)]
enum Number {
    Double(f64),
    Unsigned(f64),
    Long(f64),
    LongLong(f64),
    SignedLongLong(f64),
    Signed(f64),
    Short(f64),
}

impl Number {
    /// `nvmlValueType_t` and the bits of `nvmlValue_t`.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "C gets the nearest value of its type"
    )]
    fn bits(self) -> (c_uint, u64) {
        match self {
            Number::Double(value) => (0, value.to_bits()),
            Number::Unsigned(value) => (1, u64::from(uint(value))),
            Number::Long(value) => (2, ulong(value)),
            Number::LongLong(value) => (3, ulong(value)),
            Number::SignedLongLong(value) => (4, (value.round() as i64).cast_unsigned()),
            Number::Signed(value) => (5, u64::from(sint(value).cast_unsigned())),
            Number::Short(value) => (6, u64::from(value.round() as u16)),
        }
    }
}

fn field_values(call: &Call, count: c_int, values: *mut FieldValue) -> Result<(), Ret> {
    let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
    if count == 0 || values.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    for place in 0..count {
        let entry = values.wrapping_add(place);
        let asked = get(entry)?;
        let mut answer = FieldValue { stamp: call.runtime.stamp(call.t), latency_us: 1, ..asked };
        match field(call, asked.id, asked.scope) {
            Ok(number) => {
                (answer.kind, answer.value) = number.bits();
                answer.result = codes::SUCCESS;
            }
            Err(code) => answer.result = code,
        }
        put(entry, answer)?;
    }
    if call.scenario().field_values_overrun {
        put(
            values.wrapping_add(count),
            FieldValue {
                id: 0xDEAD,
                scope: 0xDEAD,
                stamp: -1,
                latency_us: -1,
                kind: 0xDEAD,
                result: codes::UNKNOWN,
                value: u64::MAX,
            },
        )?;
    }
    Ok(())
}

fn field(call: &Call, id: c_uint, scope: c_uint) -> Result<Number, Ret> {
    let gpu = call.whole()?;
    if let Some(number) = scripted_field(gpu, id, scope, call.t)? {
        return Ok(number);
    }
    let power = |signal: Option<&Signal>| {
        // Scope 1 is the module, which only some boards measure.
        if scope == 0 { Ok(Number::Unsigned(now(signal, call)? * 1e3)) } else { Err(NOT_SUPPORTED) }
    };
    let nanoseconds = |counter: Option<&Counter>| Ok(Number::LongLong(counted(counter, call)? * 1e9));
    let moved = if call.scenario().renumbered_fields() { 18 } else { 0 };
    match id {
        1 | 2 => Ok(Number::Unsigned(f64::from(ecc_mode(gpu, call)?))),
        3..=6 => Ok(Number::LongLong(counted(ecc(gpu, (id - 3) % 2, (id - 3) / 2)?, call)?)),
        74..=79 => nanoseconds(violation(gpu, id - 74)),
        82 => Ok(Number::Unsigned(now(gpu.memory_temperature.as_ref(), call)?)),
        83 => Ok(Number::LongLong(counted(gpu.energy_counter().as_ref(), call)? * 1e3)),
        91 => Ok(Number::Unsigned(gpu.nvlink.as_ref().map_or(0, Vec::len) as f64)),
        94 => Ok(Number::Unsigned(counted(gpu.pcie_replays.as_ref(), call)?)),
        138..=141 => {
            let counter = if id.is_multiple_of(2) { &gpu.nvlink_tx } else { &gpu.nvlink_rx };
            let bytes = counted(counter.as_ref(), call)?;
            let links = gpu.nvlink.as_ref().ok_or(NOT_SUPPORTED)?.len();
            let share = match scope {
                c_uint::MAX => links as f64,
                link if (link as usize) < links => 1.0,
                _ => return Err(INVALID_ARGUMENT),
            };
            Ok(Number::LongLong((bytes * share / 1024.0).floor()))
        }
        185 | 186 => power(gpu.power.as_ref()),
        189 => power(gpu.power_default_limit.as_ref()),
        190 => power(enforced(gpu)),
        191 if scope == 0 => Ok(Number::LongLong(counted(gpu.energy_counter().as_ref(), call)? * 1e3)),
        192 => power(gpu.power_limit.as_ref()),
        197 => Ok(Number::LongLong(counted(gpu.pcie_tx.as_ref(), call)?)),
        198 => Ok(Number::LongLong(counted(gpu.pcie_rx.as_ref(), call)?)),
        _ if id == 251 + moved => nanoseconds(gpu.throttled_sw_thermal.as_ref()),
        _ if id == 252 + moved => nanoseconds(gpu.throttled_hw_thermal.as_ref()),
        _ if id == 253 + moved => nanoseconds(gpu.throttled_hw_power_brake.as_ref()),
        0 | 400.. => Err(INVALID_ARGUMENT),
        _ => Err(NOT_SUPPORTED),
    }
}

/// A field that the scenario gives by number: `"ID"`, `"ID@SCOPE"`, each also with `:TYPE`.
fn scripted_field(gpu: &Gpu, id: c_uint, scope: c_uint, t: f64) -> Result<Option<Number>, Ret> {
    for (key, counter) in &gpu.fields {
        let (name, kind) = key.split_once(':').unwrap_or((key, ""));
        let (key_id, key_scope) = match name.split_once('@') {
            Some((key_id, key_scope)) => (key_id, key_scope.parse().ok()),
            None => (name, Some(scope)),
        };
        if key_id.parse() != Ok(id) || key_scope != Some(scope) {
            continue;
        }
        let value = counter.at(t)?;
        return Ok(Some(match kind {
            "double" => Number::Double(value),
            "uint" => Number::Unsigned(value),
            "ulong" => Number::Long(value),
            "ulonglong" => Number::LongLong(value),
            "longlong" => Number::SignedLongLong(value),
            "int" => Number::Signed(value),
            "ushort" => Number::Short(value),
            "" if value.fract() != 0.0 => Number::Double(value),
            "" if value < 0.0 => Number::SignedLongLong(value),
            "" => Number::LongLong(value),
            _ => return Err(codes::UNKNOWN),
        }));
    }
    Ok(None)
}

// ---- processes ----

/// A process that is there now.
struct Live {
    pid: u32,
    kind: String,
    /// Bytes.
    memory: Option<u64>,
    /// SM, memory, encoder, decoder %, and how old the sample always is (s).
    utilization: Option<([c_uint; 4], Option<f64>)>,
    instances: (c_uint, c_uint),
}

fn live(call: &Call) -> Vec<Live> {
    const WHOLE: (c_uint, c_uint) = (c_uint::MAX, c_uint::MAX);
    let Ok(gpu) = call.gpu() else {
        return Vec::new();
    };
    let mut all = Vec::new();
    match call.mig() {
        Some((place, mig)) => {
            for process in &mig.process {
                add_live(process, instances((place, mig)), call.t, &mut all);
            }
        }
        None => {
            for process in &gpu.process {
                add_live(process, WHOLE, call.t, &mut all);
            }
            for (place, mig) in gpu.mig.iter().enumerate() {
                for process in &mig.process {
                    add_live(process, instances((place, mig)), call.t, &mut all);
                }
            }
        }
    }
    all
}

fn add_live(process: &Process, instances: (c_uint, c_uint), t: f64, all: &mut Vec<Live>) {
    if process.from.is_some_and(|from| t < from) || process.until.is_some_and(|until| t >= until) {
        return;
    }
    // Any error name where a process's number belongs means that the driver does not know it.
    let value = |signal: &Option<Signal>| signal.as_ref().and_then(|signal| signal.at(t).ok());
    let percent = |signal: &Option<Signal>| uint(value(signal).unwrap_or(0.0));
    let memory = value(&process.memory);
    let mut add = |pid: u32, memory: Option<f64>, sm: Option<f64>| {
        all.push(Live {
            pid,
            kind: process.kind.clone().unwrap_or_else(|| "C".to_owned()),
            memory: memory.map(|mib| ulong(mib * MIB)),
            utilization: sm.map(|sm| {
                (
                    [uint(sm), percent(&process.mem), percent(&process.enc), percent(&process.dec)],
                    process.stamp_age,
                )
            }),
            instances,
        });
    };
    if let Some(pid) = process.pid {
        add(pid, memory, value(&process.sm));
    }
    let text =
        process.pid_file.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let Some(pid) = words.next().and_then(|word| word.parse().ok()) {
            let own_memory = words.next().and_then(|word| word.parse().ok());
            let own_sm = words.next().and_then(|word| word.parse().ok());
            add(pid, own_memory.or(memory), own_sm.or_else(|| value(&process.sm)));
        }
    }
}

fn v3_stride(call: &Call) -> usize {
    call.scenario().v3_process_stride.unwrap_or(24)
}

/// Checks the caller's room: how many there are goes out in any case.
fn room(count: *mut c_uint, list: *mut c_void, needed: usize) -> Result<(), Ret> {
    let capacity = get(count)?;
    put(count, needed as c_uint)?;
    if needed == 0 {
        return Ok(());
    }
    if (capacity as usize) < needed {
        return Err(INSUFFICIENT_SIZE);
    }
    if list.is_null() { Err(INVALID_ARGUMENT) } else { Ok(()) }
}

/// Writes a process list whose entries are `stride` bytes: 16 (v1), 24 (v2, v3), 32 (early 535 and the detail list).
fn list_processes(
    call: &Call,
    kind: &str,
    stride: usize,
    count: *mut c_uint,
    list: *mut c_void,
) -> Result<(), Ret> {
    let found: Vec<Live> =
        live(call).into_iter().filter(|process| process.kind.split('+').any(|one| one == kind)).collect();
    room(count, list, found.len())?;
    for (place, process) in found.iter().enumerate() {
        let entry = list.wrapping_byte_add(place * stride);
        put(entry.cast::<u32>(), process.pid)?;
        put(entry.wrapping_byte_add(8).cast::<u64>(), process.memory.unwrap_or(NOT_AVAILABLE))?;
        if stride >= 24 {
            put(entry.wrapping_byte_add(16).cast::<u32>(), process.instances.0)?;
            put(entry.wrapping_byte_add(20).cast::<u32>(), process.instances.1)?;
        }
        if stride >= 32 {
            put(entry.wrapping_byte_add(24).cast::<u64>(), 0)?;
        }
    }
    Ok(())
}

/// Writes utilisation samples: 32 bytes each, or 40 with the stamp first. Samples not newer than `last_seen` are not
/// given; none at all is `NOT_FOUND`, which is what an idle GPU answers.
fn process_utilization(
    call: &Call,
    list: *mut c_void,
    count: *mut c_uint,
    last_seen: u64,
    stride: usize,
) -> Result<(), Ret> {
    call.whole()?;
    if call.gpu()?.mig_state() == Some(1) {
        return Err(NOT_SUPPORTED);
    }
    let period = call.scenario().utilization_period.unwrap_or(0.2);
    let sampled = (call.t / period).floor() * period;
    let mut found = Vec::new();
    for process in live(call) {
        if let Some((percent, age)) = process.utilization {
            let stamp = u64::try_from(call.runtime.stamp(sampled - age.unwrap_or(0.0))).unwrap_or(0);
            if stamp > last_seen {
                found.push((process.pid, stamp, percent));
            }
        }
    }
    if found.is_empty() {
        put(count, 0)?;
        return Err(NOT_FOUND);
    }
    room(count, list, found.len())?;
    for (place, (pid, stamp, percent)) in found.iter().enumerate() {
        let entry = list.wrapping_byte_add(place * stride);
        let (pid_at, stamp_at, percent_at) = if stride == 32 { (0, 8, 16) } else { (8, 0, 12) };
        put(entry.wrapping_byte_add(pid_at).cast(), *pid)?;
        put(entry.wrapping_byte_add(stamp_at).cast(), *stamp)?;
        for (number, value) in percent.iter().enumerate() {
            put(entry.wrapping_byte_add(percent_at + 4 * number).cast(), *value)?;
        }
        if stride == 40 {
            put(entry.wrapping_byte_add(28).cast::<u64>(), 0)?;
        }
    }
    Ok(())
}
