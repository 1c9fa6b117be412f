//! The functions of the driver library that gpurun calls, each looked up when it is first called.
//!
//! The bindings' own loader looks up all of their four hundred at once. That takes longer than everything else that a
//! choice of GPUs asks of the driver, and it is paid before every job.

use std::ffi::CStr;
use std::sync::OnceLock;

use nvml_wrapper_sys::bindings as sys;

use crate::collectors::loader::{Address, Library};

/// A function by name, and where it stands once somebody asked: nowhere in a library that lacks it.
#[derive(Debug)]
pub(super) struct Function {
    name: &'static CStr,
    found: OnceLock<Option<Address>>,
}

impl Function {
    pub(super) const fn new(name: &'static CStr) -> Self {
        Self { name, found: OnceLock::new() }
    }

    /// The function, unless the library lacks it.
    ///
    /// # Safety
    /// `F` must be the type of the function of this name, and `library` the same in every call.
    pub(super) unsafe fn get<F: Copy>(&self, library: Library) -> Option<F> {
        let found = *self.found.get_or_init(|| library.address(self.name).ok());
        // SAFETY: the caller's word.
        found.map(|address| unsafe { address.function::<F>() })
    }

    /// As [`Function::get`], of the type that the bindings declare for this name; `declared` is never called.
    ///
    /// # Safety
    /// `declared` must name the field of this function's name, and `library` be the same in every call.
    pub(super) unsafe fn get_as<F: Copy, E>(
        &self,
        library: Library,
        _declared: fn(&sys::NvmlLib) -> &Result<F, E>,
    ) -> Option<F> {
        // SAFETY: the bindings give the type of each function of nvml.h under its name.
        unsafe { self.get(library) }
    }
}

/// A table of functions by their C names.
macro_rules! functions {
    ($($name:ident),* $(,)?) => {
        /// Every function that the bindings declare and gpurun calls.
        #[derive(Debug)]
        #[allow(non_snake_case, reason = "the C names")]
        pub(super) struct Functions {
            $(pub(super) $name: Function,)*
        }

        impl Functions {
            pub(super) const fn new() -> Self {
                Self { $($name: Function::new(c_name(concat!(stringify!($name), "\0"))),)* }
            }
        }
    };
}

/// The name as C has it.
const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("an identifier with one zero at its end"),
    }
}

functions! {
    nvmlDeviceGetAddressingMode,
    nvmlDeviceGetClockInfo,
    nvmlDeviceGetComputeInstanceId,
    nvmlDeviceGetComputeMode,
    nvmlDeviceGetCount_v2,
    nvmlDeviceGetDecoderUtilization,
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle,
    nvmlDeviceGetEncoderUtilization,
    nvmlDeviceGetEnforcedPowerLimit,
    nvmlDeviceGetFanSpeed,
    nvmlDeviceGetFieldValues,
    nvmlDeviceGetGpuInstanceId,
    nvmlDeviceGetHandleByIndex_v2,
    nvmlDeviceGetHandleByUUID,
    nvmlDeviceGetMaxMigDeviceCount,
    nvmlDeviceGetMemoryInfo,
    nvmlDeviceGetMemoryInfo_v2,
    nvmlDeviceGetMigDeviceHandleByIndex,
    nvmlDeviceGetMigMode,
    nvmlDeviceGetName,
    nvmlDeviceGetPcieThroughput,
    nvmlDeviceGetPowerUsage,
    nvmlDeviceGetProcessUtilization,
    nvmlDeviceGetTemperature,
    nvmlDeviceGetTemperatureV,
    nvmlDeviceGetTotalEccErrors,
    nvmlDeviceGetTotalEnergyConsumption,
    nvmlDeviceGetUUID,
    nvmlDeviceGetUtilizationRates,
    nvmlDeviceGetViolationStatus,
    nvmlInit_v2,
    nvmlShutdown,
    nvmlSystemGetDriverVersion,
}
