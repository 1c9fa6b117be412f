//! CUDA's own order of devices, asked from libcuda. Only ever run in a short-lived child: `cuInit` starts
//! threads, takes its time and leaves state behind. Creates no context and no memory on a device.

use std::ffi::{c_int, c_uint};
use std::fmt::Write as _;
use std::mem::ManuallyDrop;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::model::id::GpuUuid;

/// Why the order is not known.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No `libcuda.so.1`.
    #[error("libcuda.so.1 cannot be loaded: {0}")]
    NoLibrary(String),
    /// A function is missing.
    #[error("libcuda.so.1 has no {0}")]
    NoSymbol(&'static str),
    /// A call failed.
    #[error("{call} failed with CUDA error {code}")]
    Call {
        /// Its name.
        call: &'static str,
        /// The `CUresult`.
        code: c_int,
    },
}

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type GetCount = unsafe extern "C" fn(*mut c_int) -> c_int;
type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type GetUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;

/// The UUIDs of the physical GPUs in the order in which CUDA counts them in this process's environment.
///
/// # Errors
/// No libcuda, or it cannot initialise.
pub fn device_order() -> Result<Vec<GpuUuid>, CudaError> {
    // SAFETY: loading libcuda runs its initialisers, as every CUDA program does.
    let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| CudaError::NoLibrary(error.to_string()))?;
    // It leaves threads behind, which must not lose their code: never unloaded.
    let library = ManuallyDrop::new(library);
    // SAFETY: the driver API fixes these signatures for these names.
    let (init, count, get, uuid) = unsafe {
        (
            function::<Init>(&library, "cuInit")?,
            function::<GetCount>(&library, "cuDeviceGetCount")?,
            function::<Get>(&library, "cuDeviceGet")?,
            function::<GetUuid>(&library, "cuDeviceGetUuid")?,
        )
    };
    // SAFETY: flags must be 0.
    checked("cuInit", unsafe { init(0) })?;
    let mut devices: c_int = 0;
    // SAFETY: writes one int.
    checked("cuDeviceGetCount", unsafe { count(&mut devices) })?;
    let mut order = Vec::new();
    for ordinal in 0..devices {
        let mut device: c_int = 0;
        // SAFETY: writes one int.
        checked("cuDeviceGet", unsafe { get(&mut device, ordinal) })?;
        let mut bytes = [0_u8; 16];
        // SAFETY: writes the sixteen bytes of a CUuuid.
        checked("cuDeviceGetUuid", unsafe { uuid(&mut bytes, device) })?;
        order.push(format_uuid(&bytes));
    }
    Ok(order)
}

/// # Safety
/// `F` must be the type of the function of this name, and the library must never be unloaded.
unsafe fn function<F: Copy>(library: &Library, name: &'static str) -> Result<F, CudaError> {
    // SAFETY: the caller's word.
    let symbol = unsafe { library.get::<F>(name.as_bytes()) };
    symbol.map(|symbol| *symbol).map_err(|_| CudaError::NoSymbol(name))
}

/// Turns a `CUresult` into an error.
fn checked(call: &'static str, code: c_int) -> Result<(), CudaError> {
    if code == 0 { Ok(()) } else { Err(CudaError::Call { call, code }) }
}

/// `GPU-8-4-4-4-12`, as NVML prints it.
fn format_uuid(bytes: &[u8; 16]) -> GpuUuid {
    let mut text = String::from("GPU");
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    GpuUuid::new(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_read_as_nvml_prints_them() {
        let mut bytes = [0_u8; 16];
        for (byte, value) in bytes.iter_mut().zip(0x10_u8..) {
            *byte = value;
        }
        assert_eq!(format_uuid(&bytes).as_str(), "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f");
    }
}
