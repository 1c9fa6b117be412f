//! The structures of `nvml.h`.

use std::ffi::{c_char, c_int, c_longlong, c_uint, c_void};

use crate::codes::Ret;

/// `NVML_STRUCT_VERSION`.
pub(super) const fn version<T>(number: c_uint) -> c_uint {
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
    /// `nvmlGpmSupport_t`
    GpmSupport { version: c_uint, supported: c_uint }
    /// `nvmlGpmMetric_t`
    GpmMetric { id: c_uint, result: Ret, value: f64, short_name: *const c_char, long_name: *const c_char, unit: *const c_char }
    /// What stands before the metrics in `nvmlGpmMetricsGet_t`
    GpmMetricsHead { version: c_uint, count: c_uint, sample1: *mut c_void, sample2: *mut c_void }
    /// `nvmlGpmMetricsGet_t`; how many metrics it has room for depends on the header
    GpmMetricsGet { head: GpmMetricsHead, metrics: [GpmMetric; 210] }
    /// `nvmlDeviceAttributes_t`
    Attributes {
        multiprocessors: c_uint, copy_engines: c_uint, decoders: c_uint, encoders: c_uint, jpeg: c_uint, ofa: c_uint,
        gpu_slices: c_uint, compute_slices: c_uint, memory_mib: u64,
    }
}
