//! One NVML function, one method: a value in plain units of the driver, or the fault.

use std::ffi::{CStr, c_char, c_uint};
use std::sync::atomic::Ordering;

use nvml_wrapper_sys::bindings as sys;

use super::Nvml;
use super::error::{CallResult, Fault, check};
use crate::model::device::ComputeMode;

/// NVML's token for a device. It stays valid until the GPU is lost or the driver is reloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub(super) sys::nvmlDevice_t);

// SAFETY: the pointer is a token that only the driver looks behind, and NVML accepts it from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above; nothing is ever changed through it here.
unsafe impl Sync for Handle {}

/// `nvmlUtilization_t`, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utilization {
    /// Share of the driver's last window in which a kernel ran.
    pub gpu: u32,
    /// Share of that window in which device memory was read or written.
    pub memory: u32,
}

/// Device memory in bytes, as the driver counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Whole capacity.
    pub total: u64,
    /// What is left.
    pub free: u64,
    /// What is allocated; without the driver's own reserve, except from drivers that only know version 1.
    pub used: u64,
}

/// Calls a function of the library if it is there.
macro_rules! call {
    ($nvml:expr, $function:ident ( $($argument:expr),* $(,)? )) => {
        match &$nvml.functions.$function {
            Err(_) => Err(Fault::Missing(stringify!($function))),
            // SAFETY: the signature is that of nvml.h; every pointer is to a live local of the type that the
            // function fills in, or a buffer whose size is passed along.
            Ok(function) => check(unsafe { function($($argument),*) }),
        }
    };
}
pub(super) use call;

/// `NVML_STRUCT_VERSION`: the size of the struct with its version in the top byte.
const fn struct_version<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | version << 24
}

/// Bytes enough for every text that NVML hands out.
const TEXT: usize = 96;

fn text(buffer: &[u8; TEXT]) -> String {
    let bytes = CStr::from_bytes_until_nul(buffer).map_or(buffer.as_slice(), CStr::to_bytes);
    String::from_utf8_lossy(bytes).into_owned()
}

impl Nvml {
    pub(super) fn read_driver_version(&self) -> CallResult<String> {
        let mut buffer = [0_u8; TEXT];
        call!(self, nvmlSystemGetDriverVersion(buffer.as_mut_ptr().cast::<c_char>(), TEXT as c_uint))?;
        Ok(text(&buffer))
    }

    pub(super) fn device_count(&self) -> CallResult<u32> {
        let mut count = 0;
        call!(self, nvmlDeviceGetCount_v2(&raw mut count))?;
        Ok(count)
    }

    pub(super) fn handle_by_index(&self, index: u32) -> CallResult<Handle> {
        let mut device = std::ptr::null_mut();
        call!(self, nvmlDeviceGetHandleByIndex_v2(index, &raw mut device))?;
        handle(device)
    }

    pub(super) fn handle_by_uuid(&self, uuid: &CStr) -> CallResult<Handle> {
        let mut device = std::ptr::null_mut();
        call!(self, nvmlDeviceGetHandleByUUID(uuid.as_ptr(), &raw mut device))?;
        handle(device)
    }

    /// Whether the GPU is in MIG mode now. A GPU that cannot say is taken as whole.
    pub(super) fn mig_enabled(&self, device: Handle) -> bool {
        let (mut current, mut pending) = (0, 0);
        call!(self, nvmlDeviceGetMigMode(device.0, &raw mut current, &raw mut pending)).is_ok()
            && current == 1
    }

    pub(super) fn max_mig_devices(&self, device: Handle) -> u32 {
        let mut count = 0;
        match call!(self, nvmlDeviceGetMaxMigDeviceCount(device.0, &raw mut count)) {
            // No GPU has more; a wild answer must not become a long loop.
            Ok(()) => count.min(64),
            Err(_) => 0,
        }
    }

    pub(super) fn mig_handle(&self, device: Handle, place: u32) -> CallResult<Handle> {
        let mut slice = std::ptr::null_mut();
        call!(self, nvmlDeviceGetMigDeviceHandleByIndex(device.0, place, &raw mut slice))?;
        handle(slice)
    }

    /// The physical GPU of a slice.
    ///
    /// # Errors
    /// As the driver answers; a handle that is no slice is invalid.
    pub fn parent_handle(&self, slice: Handle) -> CallResult<Handle> {
        let mut device = std::ptr::null_mut();
        call!(self, nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice.0, &raw mut device))?;
        handle(device)
    }

    pub(super) fn gpu_instance(&self, slice: Handle) -> Option<u32> {
        let mut id = 0;
        call!(self, nvmlDeviceGetGpuInstanceId(slice.0, &raw mut id)).ok()?;
        (id != u32::MAX).then_some(id)
    }

    pub(super) fn compute_instance(&self, slice: Handle) -> Option<u32> {
        let mut id = 0;
        call!(self, nvmlDeviceGetComputeInstanceId(slice.0, &raw mut id)).ok()?;
        (id != u32::MAX).then_some(id)
    }

    /// The UUID of a GPU or slice.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn uuid(&self, device: Handle) -> CallResult<String> {
        let mut buffer = [0_u8; TEXT];
        call!(self, nvmlDeviceGetUUID(device.0, buffer.as_mut_ptr().cast::<c_char>(), TEXT as c_uint))?;
        Ok(text(&buffer))
    }

    /// The product's name, bytes that are not UTF-8 replaced.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn name(&self, device: Handle) -> CallResult<String> {
        let mut buffer = [0_u8; TEXT];
        call!(self, nvmlDeviceGetName(device.0, buffer.as_mut_ptr().cast::<c_char>(), TEXT as c_uint))?;
        Ok(text(&buffer))
    }

    /// `nvmlDeviceAddressingModeType_t`: 0 none, 1 HMM, 2 ATS.
    pub(super) fn addressing_mode(&self, device: Handle) -> CallResult<u32> {
        let mut mode = sys::nvmlDeviceAddressingMode_t {
            version: struct_version::<sys::nvmlDeviceAddressingMode_t>(1),
            value: 0,
        };
        call!(self, nvmlDeviceGetAddressingMode(device.0, &raw mut mode))?;
        Ok(mode.value)
    }

    /// The compute mode of a physical GPU.
    ///
    /// # Errors
    /// As the driver answers; a mode that nvml.h does not know is implausible.
    pub fn compute_mode(&self, device: Handle) -> CallResult<ComputeMode> {
        let mut mode = 0;
        call!(self, nvmlDeviceGetComputeMode(device.0, &raw mut mode))?;
        match mode {
            sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT => Ok(ComputeMode::Default),
            sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_THREAD => Ok(ComputeMode::ExclusiveThread),
            sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_PROHIBITED => Ok(ComputeMode::Prohibited),
            sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS => Ok(ComputeMode::ExclusiveProcess),
            _ => Err(Fault::Implausible),
        }
    }

    /// GPU and memory utilisation in percent.
    ///
    /// # Errors
    /// As the driver answers; not supported on MIG; above 100 is implausible.
    pub fn utilization(&self, device: Handle) -> CallResult<Utilization> {
        let mut rates = sys::nvmlUtilization_t { gpu: 0, memory: 0 };
        call!(self, nvmlDeviceGetUtilizationRates(device.0, &raw mut rates))?;
        if rates.gpu > 100 || rates.memory > 100 {
            return Err(Fault::Implausible);
        }
        Ok(Utilization { gpu: rates.gpu, memory: rates.memory })
    }

    /// Device memory in bytes, by version 2 of the call, else by version 1.
    ///
    /// # Errors
    /// As the driver answers: not supported where a GPU has no memory of its own.
    pub fn memory(&self, device: Handle) -> CallResult<MemoryInfo> {
        if self.memory_v1.load(Ordering::Relaxed) {
            return self.read_memory_v1(device);
        }
        let newer = self.read_memory_v2(device);
        match newer {
            Err(fault) if !fault.is_lost() && !fault.is_driver_gone() => match self.read_memory_v1(device) {
                Ok(memory) => {
                    if fault.is_permanent() {
                        self.memory_v1.store(true, Ordering::Relaxed);
                    }
                    Ok(memory)
                }
                Err(older) if fault.is_permanent() => Err(older),
                Err(_) => Err(fault),
            },
            other => other,
        }
    }

    fn read_memory_v2(&self, device: Handle) -> CallResult<MemoryInfo> {
        let mut memory = sys::nvmlMemory_v2_t {
            version: struct_version::<sys::nvmlMemory_v2_t>(2),
            total: 0,
            reserved: 0,
            free: 0,
            used: 0,
        };
        call!(self, nvmlDeviceGetMemoryInfo_v2(device.0, &raw mut memory))?;
        plausible(MemoryInfo { total: memory.total, free: memory.free, used: memory.used })
    }

    fn read_memory_v1(&self, device: Handle) -> CallResult<MemoryInfo> {
        let mut memory = sys::nvmlMemory_t { total: 0, free: 0, used: 0 };
        call!(self, nvmlDeviceGetMemoryInfo(device.0, &raw mut memory))?;
        plausible(MemoryInfo { total: memory.total, free: memory.free, used: memory.used })
    }

    /// Core temperature in degrees Celsius, by the signed call, else by the older unsigned one.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn temperature(&self, device: Handle) -> CallResult<i32> {
        if !self.temperature_v1.load(Ordering::Relaxed) {
            match self.read_temperature_v(device) {
                Err(fault) if fault.is_permanent() => {}
                other => return other,
            }
        }
        let mut degrees = 0;
        let sensor = sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU;
        call!(self, nvmlDeviceGetTemperature(device.0, sensor, &raw mut degrees))?;
        self.temperature_v1.store(true, Ordering::Relaxed);
        // The old call says `unsigned` and means the same bits.
        Ok(degrees.cast_signed())
    }

    fn read_temperature_v(&self, device: Handle) -> CallResult<i32> {
        let mut answer = sys::nvmlTemperature_t {
            version: struct_version::<sys::nvmlTemperature_t>(1),
            sensorType: sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU,
            temperature: 0,
        };
        call!(self, nvmlDeviceGetTemperatureV(device.0, &raw mut answer))?;
        Ok(answer.temperature)
    }

    /// Board power in mW.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn power_usage(&self, device: Handle) -> CallResult<u32> {
        let mut milliwatts = 0;
        call!(self, nvmlDeviceGetPowerUsage(device.0, &raw mut milliwatts))?;
        Ok(milliwatts)
    }

    /// The power limit in force, in mW.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn enforced_power_limit(&self, device: Handle) -> CallResult<u32> {
        let mut milliwatts = 0;
        call!(self, nvmlDeviceGetEnforcedPowerLimit(device.0, &raw mut milliwatts))?;
        Ok(milliwatts)
    }

    /// Energy since the driver was loaded, in mJ.
    ///
    /// # Errors
    /// As the driver answers; not supported before Volta.
    pub fn total_energy(&self, device: Handle) -> CallResult<u64> {
        let mut millijoules = 0;
        call!(self, nvmlDeviceGetTotalEnergyConsumption(device.0, &raw mut millijoules))?;
        Ok(millijoules)
    }

    /// Intended speed of the first fan in percent; may pass 100 on some cards.
    ///
    /// # Errors
    /// As the driver answers; not supported without a fan.
    pub fn fan_speed(&self, device: Handle) -> CallResult<u32> {
        let mut percent = 0;
        call!(self, nvmlDeviceGetFanSpeed(device.0, &raw mut percent))?;
        Ok(percent)
    }

    /// SM clock in MHz.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn sm_clock(&self, device: Handle) -> CallResult<u32> {
        self.clock(device, sys::nvmlClockType_enum_NVML_CLOCK_SM)
    }

    /// Memory clock in MHz.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn memory_clock(&self, device: Handle) -> CallResult<u32> {
        self.clock(device, sys::nvmlClockType_enum_NVML_CLOCK_MEM)
    }

    fn clock(&self, device: Handle, kind: sys::nvmlClockType_t) -> CallResult<u32> {
        let mut megahertz = 0;
        call!(self, nvmlDeviceGetClockInfo(device.0, kind, &raw mut megahertz))?;
        Ok(megahertz)
    }

    /// Encoder utilisation in percent.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn encoder_utilization(&self, device: Handle) -> CallResult<u32> {
        let (mut percent, mut period) = (0, 0);
        call!(self, nvmlDeviceGetEncoderUtilization(device.0, &raw mut percent, &raw mut period))?;
        Ok(percent)
    }

    /// Decoder utilisation in percent.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn decoder_utilization(&self, device: Handle) -> CallResult<u32> {
        let (mut percent, mut period) = (0, 0);
        call!(self, nvmlDeviceGetDecoderUtilization(device.0, &raw mut percent, &raw mut period))?;
        Ok(percent)
    }

    /// ECC errors since the driver was loaded.
    ///
    /// # Errors
    /// As the driver answers; not supported without ECC or with ECC off.
    pub fn ecc_errors(&self, device: Handle, uncorrected: bool) -> CallResult<u64> {
        let kind = if uncorrected {
            sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        } else {
            sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED
        };
        let mut count = 0;
        let since_load = sys::nvmlEccCounterType_enum_NVML_VOLATILE_ECC;
        call!(self, nvmlDeviceGetTotalEccErrors(device.0, kind, since_load, &raw mut count))?;
        Ok(count)
    }

    /// Time for which the power cap (`thermal` false) or heat held the clocks down, in ns.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn violation_ns(&self, device: Handle, thermal: bool) -> CallResult<u64> {
        let policy = if thermal {
            sys::nvmlPerfPolicyType_enum_NVML_PERF_POLICY_THERMAL
        } else {
            sys::nvmlPerfPolicyType_enum_NVML_PERF_POLICY_POWER
        };
        let mut time = sys::nvmlViolationTime_t { referenceTime: 0, violationTime: 0 };
        call!(self, nvmlDeviceGetViolationStatus(device.0, policy, &raw mut time))?;
        Ok(time.violationTime)
    }

    /// PCIe rate in KiB/s over the 20 ms for which this call blocks.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn pcie_throughput(&self, device: Handle, receive: bool) -> CallResult<u32> {
        let counter = if receive {
            sys::nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_RX_BYTES
        } else {
            sys::nvmlPcieUtilCounter_enum_NVML_PCIE_UTIL_TX_BYTES
        };
        let mut rate = 0;
        call!(self, nvmlDeviceGetPcieThroughput(device.0, counter, &raw mut rate))?;
        Ok(rate)
    }
}

fn handle(device: sys::nvmlDevice_t) -> CallResult<Handle> {
    if device.is_null() { Err(Fault::Implausible) } else { Ok(Handle(device)) }
}

fn plausible(memory: MemoryInfo) -> CallResult<MemoryInfo> {
    // A total of zero is an answer of its own: the GPU shares the host's memory.
    if memory.total != 0 && (memory.used > memory.total || memory.free > memory.total) {
        return Err(Fault::Implausible);
    }
    Ok(memory)
}
