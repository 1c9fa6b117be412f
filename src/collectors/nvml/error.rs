//! What can go wrong: with the library as a whole, and with one call.

use nvml_wrapper::error::NvmlError as WrapperError;
use nvml_wrapper_sys::bindings as sys;

use crate::model::reading::Reason;

/// Why the driver library cannot be used at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    /// No file of these names could be found.
    #[error("no NVIDIA driver library found (tried {tried}): install the driver or set GPURUN_NVML_LIBRARY")]
    NoLibrary {
        /// The names, separated by commas.
        tried: String,
    },
    /// There is a file, and it is no usable NVML library.
    #[error("cannot use {library} as the NVIDIA driver library: {detail}")]
    BadLibrary {
        /// Name or path.
        library: String,
        /// The loader's message.
        detail: String,
    },
    /// The process that loads the library does not live through it.
    #[error("loading the NVIDIA driver library ended the process ({how})")]
    LoadCrashed {
        /// The signal or the exit status.
        how: String,
    },
    /// The library is there, the kernel's driver is not.
    #[error("the NVIDIA driver is not running ({library} was found, the kernel module is not loaded)")]
    NoDriver {
        /// Name or path.
        library: String,
    },
    /// The devices are closed to this user or cgroup.
    #[error(
        "no permission to use the NVIDIA driver through {library}; check the permissions of /dev/nvidia*"
    )]
    NoPermission {
        /// Name or path.
        library: String,
    },
    /// The library and the loaded kernel module are of different drivers.
    #[error(
        "{library} and the loaded NVIDIA kernel module have different versions; reload the driver or reboot"
    )]
    VersionMismatch {
        /// Name or path.
        library: String,
    },
    /// `nvmlInit` failed in another way.
    #[error("the NVIDIA driver did not start through {library}: {detail}")]
    Init {
        /// Name or path.
        library: String,
        /// The driver's message.
        detail: String,
    },
    /// A call that everything else rests on failed.
    #[error("{function} failed: {reason}")]
    Call {
        /// The C name.
        function: &'static str,
        /// The driver's message.
        reason: String,
    },
}

impl NvmlError {
    pub(crate) fn call(function: &'static str, fault: &Fault) -> Self {
        NvmlError::Call { function, reason: fault.reason().to_string() }
    }
}

/// Why one call gave no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The library lacks this function.
    Missing(&'static str),
    /// The call returned this `nvmlReturn_t`.
    Code(u32),
    /// The call succeeded with something that cannot be.
    Implausible,
    /// The GPU is in MIG mode and has no slices: CUDA cannot use it.
    NoSlices,
}

/// What one call gave.
pub type CallResult<T> = Result<T, Fault>;

impl Fault {
    /// The device does not offer this.
    pub const NOT_SUPPORTED: Fault = Fault::Code(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
    /// The device is not there any more.
    pub const GPU_IS_LOST: Fault = Fault::Code(sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);

    /// The reason as the rest of gpurun knows it.
    pub fn reason(self) -> Reason {
        let code = match self {
            Fault::Missing(_) => return Reason::MissingSymbol,
            Fault::Implausible => return Reason::Implausible,
            Fault::NoSlices => return Reason::Other("MIG mode is on and there are no slices".into()),
            Fault::Code(code) => code,
        };
        match code {
            // A driver that refuses a struct's version or has withdrawn a call will not change its mind.
            sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED
            | sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH
            | sys::nvmlReturn_enum_NVML_ERROR_DEPRECATED => Reason::NotSupported,
            sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND => Reason::MissingSymbol,
            sys::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION
            | sys::nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM => Reason::NoPermission,
            sys::nvmlReturn_enum_NVML_ERROR_TIMEOUT => Reason::TimedOut,
            sys::nvmlReturn_enum_NVML_ERROR_IN_USE => Reason::InUse,
            _ if self.is_lost() => Reason::GpuLost,
            _ if self.is_driver_gone() => Reason::DriverGone,
            other => Reason::Other(WrapperError::from(other).to_string().into_boxed_str()),
        }
    }

    /// Whether the GPU itself does not answer any more; other calls on it need not be tried.
    pub fn is_lost(self) -> bool {
        matches!(
            self,
            Fault::Code(
                sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST
                    | sys::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED
                    | sys::nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND
            )
        )
    }

    /// Whether the whole driver is gone or was reloaded; every handle is void.
    pub fn is_driver_gone(self) -> bool {
        matches!(
            self,
            Fault::Code(
                sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED
                    | sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED
                    | sys::nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH
            )
        )
    }

    /// Whether neither the GPU nor the driver answers any more: nothing else of the device need be asked.
    pub fn is_fatal(self) -> bool {
        self.is_lost() || self.is_driver_gone()
    }

    /// Whether the call, which takes nothing but a handle, refuses its arguments.
    pub fn is_invalid_handle(self) -> bool {
        self == Fault::Code(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT)
    }

    /// Whether asking again is pointless for the rest of the run.
    pub fn is_permanent(self) -> bool {
        match self {
            Fault::Missing(_) => true,
            Fault::Implausible | Fault::NoSlices => false,
            Fault::Code(code) => matches!(
                code,
                sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED
                    | sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH
                    | sys::nvmlReturn_enum_NVML_ERROR_DEPRECATED
                    | sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND
            ),
        }
    }

    /// Whether the answer means "there is no such thing" rather than trouble.
    pub(crate) fn is_absence(self) -> bool {
        matches!(
            self,
            Fault::Code(
                sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND
                    | sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT
                    | sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED
            )
        )
    }

    pub(crate) fn is(self, code: u32) -> bool {
        self == Fault::Code(code)
    }
}

/// The driver's return value as a result.
pub(crate) fn check(code: sys::nvmlReturn_t) -> CallResult<()> {
    if code == sys::nvmlReturn_enum_NVML_SUCCESS { Ok(()) } else { Err(Fault::Code(code)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permanence_is_that_of_the_reason() {
        for code in (0..40).chain([999]) {
            let fault = Fault::Code(code);
            assert_eq!(fault.is_permanent(), fault.reason().is_permanent(), "code {code}");
        }
        assert!(Fault::Missing("nvmlX").reason().is_permanent());
        assert!(!Fault::Implausible.reason().is_permanent());
    }

    #[test]
    fn classes_are_kept_apart() {
        assert_eq!(Fault::Code(4).reason(), Reason::NoPermission);
        assert_eq!(Fault::Code(10).reason(), Reason::TimedOut);
        assert_eq!(Fault::Code(19).reason(), Reason::InUse);
        assert_eq!(Fault::Code(15).reason(), Reason::GpuLost);
        assert_eq!(Fault::Code(1).reason(), Reason::DriverGone);
        assert!(matches!(Fault::Code(999).reason(), Reason::Other(_)));
    }
}
