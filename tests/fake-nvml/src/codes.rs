//! NVML's return codes: numbers, names and the texts of `nvmlErrorString`.

use std::ffi::CStr;

/// `nvmlReturn_t`.
pub type Ret = u32;

/// The call did what it says.
pub const SUCCESS: Ret = 0;
/// NVML was not initialised, or the driver was reloaded since.
pub const UNINITIALIZED: Ret = 1;
/// A null pointer, a bad handle, an index out of range.
pub const INVALID_ARGUMENT: Ret = 2;
/// This device or driver has no such value.
pub const NOT_SUPPORTED: Ret = 3;
/// No such device, process or sample.
pub const NOT_FOUND: Ret = 6;
/// The caller's buffer is too small; the needed size is in the size argument.
pub const INSUFFICIENT_SIZE: Ret = 7;
/// There is no driver.
pub const DRIVER_NOT_LOADED: Ret = 9;
/// The GPU fell off the bus.
pub const GPU_IS_LOST: Ret = 15;
/// The struct version given is not one that the driver knows.
pub const ARGUMENT_VERSION_MISMATCH: Ret = 25;
/// Anything else.
pub const UNKNOWN: Ret = 999;

const TABLE: &[(Ret, &str, &CStr)] = &[
    (0, "SUCCESS", c"Success"),
    (1, "UNINITIALIZED", c"Uninitialized"),
    (2, "INVALID_ARGUMENT", c"Invalid Argument"),
    (3, "NOT_SUPPORTED", c"Not Supported"),
    (4, "NO_PERMISSION", c"Insufficient Permissions"),
    (5, "ALREADY_INITIALIZED", c"Already Initialized"),
    (6, "NOT_FOUND", c"Not Found"),
    (7, "INSUFFICIENT_SIZE", c"Insufficient Size"),
    (8, "INSUFFICIENT_POWER", c"Insufficient External Power"),
    (9, "DRIVER_NOT_LOADED", c"Driver Not Loaded"),
    (10, "TIMEOUT", c"Timeout"),
    (11, "IRQ_ISSUE", c"Interrupt Request Issue"),
    (12, "LIBRARY_NOT_FOUND", c"NVML Shared Library Not Found"),
    (13, "FUNCTION_NOT_FOUND", c"Function Not Found"),
    (14, "CORRUPTED_INFOROM", c"Corrupted infoROM"),
    (15, "GPU_IS_LOST", c"GPU is lost"),
    (16, "RESET_REQUIRED", c"GPU requires restart"),
    (17, "OPERATING_SYSTEM", c"The operating system has blocked the request."),
    (18, "LIB_RM_VERSION_MISMATCH", c"Driver/library version mismatch"),
    (19, "IN_USE", c"In use by another client"),
    (20, "MEMORY", c"Insufficient Memory"),
    (21, "NO_DATA", c"No data"),
    (22, "VGPU_ECC_NOT_SUPPORTED", c"Operation not supported on vGPU with ECC enabled"),
    (23, "INSUFFICIENT_RESOURCES", c"Insufficient Resources"),
    (24, "FREQ_NOT_SUPPORTED", c"Frequency Not Supported"),
    (25, "ARGUMENT_VERSION_MISMATCH", c"The provided version is invalid/unsupported"),
    (26, "DEPRECATED", c"The requested functionality has been deprecated"),
    (27, "NOT_READY", c"System is not ready for the request"),
    (28, "GPU_NOT_FOUND", c"No GPUs were found"),
    (29, "INVALID_STATE", c"Resource not in correct state to perform requested operation"),
    (999, "UNKNOWN", c"Unknown Error"),
];

/// The code of a name, with or without its `NVML_ERROR_` prefix, or of a decimal number.
#[must_use]
pub fn by_name(name: &str) -> Option<Ret> {
    let bare = name.strip_prefix("NVML_ERROR_").or_else(|| name.strip_prefix("NVML_")).unwrap_or(name);
    TABLE.iter().find(|(_, known, _)| *known == bare).map(|(code, _, _)| *code).or_else(|| bare.parse().ok())
}

/// The text that `nvmlErrorString` gives for a code.
#[must_use]
pub fn text(code: Ret) -> &'static CStr {
    TABLE.iter().find(|(known, _, _)| *known == code).map_or(c"Unknown Error", |(_, _, text)| *text)
}
