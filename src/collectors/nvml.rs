//! The NVIDIA driver through NVML: opens the library, names the devices, reads one value a call.
//!
//! Every symbol is optional, every answer keeps its error class, and one bad GPU never spoils another. Device
//! handles are raw and cached; the holder acquires it again after the GPU was lost or the driver reloaded.
//! This room never keeps time, never averages, and never decides how often something is read.

mod calls;
mod ceilings;
mod error;
mod facts;
mod fields;
mod gpm;
mod probe;
mod processes;
mod unified;

use std::ffi::{CString, OsStr, OsString};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use nvml_wrapper::error::NvmlError as WrapperError;
use nvml_wrapper_sys::bindings as sys;

pub use calls::{Handle, MemoryInfo};
pub use ceilings::Ceilings;
pub use error::{CallResult, Fault, NvmlError};
pub use fields::{Field, FieldNumber, FieldRequest};
pub use gpm::{GpmMetric, GpmSamples, GpmTarget};
pub use processes::{ProcessBuffer, ProcessEntry, UtilizationSample};
use unified::HostMemorySource;

use crate::model::device::DeviceIdentity;

/// Where the library is looked for when no path is given, in this order. The last one is WSL's.
pub const LIBRARY_NAMES: [&str; 3] =
    ["libnvidia-ml.so.1", "libnvidia-ml.so", "/usr/lib/wsl/lib/libnvidia-ml.so.1"];

/// The opened and initialised driver library.
///
/// Dropping it calls `nvmlShutdown`; the library itself stays mapped, because driver libraries leave threads and
/// exit handlers behind that must not lose their code. Drop it only where no call can be in flight.
pub struct Nvml {
    functions: ManuallyDrop<sys::NvmlLib>,
    library: String,
    driver: Option<String>,
    lists: processes::ListFunctions,
    proc_root: PathBuf,
    host_memory: HostMemorySource,
    /// `nvmlDeviceGetMemoryInfo_v2` exists but fails where v1 answers.
    memory_v1: AtomicBool,
    /// `nvmlDeviceGetTemperatureV` exists but is refused where the older call answers.
    temperature_v1: AtomicBool,
    /// Per kind of list, the newest version that has not been refused as such.
    list_versions: [AtomicUsize; 3],
}

impl std::fmt::Debug for Nvml {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nvml")
            .field("library", &self.library)
            .field("driver", &self.driver)
            .finish_non_exhaustive()
    }
}

/// A place in the tree of devices: a physical GPU, or a MIG slice of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// NVML index of the physical GPU.
    pub(crate) index: u32,
    /// The physical GPU.
    pub(crate) parent: Handle,
    /// The slice and its handle.
    pub(crate) slice: Option<(u32, Handle)>,
}

impl Leaf {
    fn handle(&self) -> Handle {
        self.slice.map_or(self.parent, |(_, slice)| slice)
    }
}

/// A physical GPU or slice, or why the GPU of an index does not answer.
pub(crate) type Listed = Result<Leaf, (u32, Fault)>;

/// Loads the library that [`Nvml::open`] would open, and does nothing with it.
pub fn load_only(library: Option<&Path>) {
    let _ = names(library).iter().any(|name| load(name).is_ok());
}

/// Loads a library for good: driver libraries leave threads and exit handlers behind that must not lose their code.
fn load(name: &OsStr) -> Result<ManuallyDrop<Library>, libloading::Error> {
    // SAFETY: loading the driver library runs its initialisers, as every program that uses the driver does. Its
    // functions are resolved when they are first called: it is large, and few of them are.
    unsafe { Library::open(Some(name), RTLD_LAZY | RTLD_LOCAL) }.map(ManuallyDrop::new)
}

/// The library to open: `library` alone if given, else [`LIBRARY_NAMES`] in order.
fn names(library: Option<&Path>) -> Vec<OsString> {
    match library {
        Some(path) => vec![path.as_os_str().to_owned()],
        None => LIBRARY_NAMES.iter().map(OsString::from).collect(),
    }
}

impl Nvml {
    /// Opens the driver library and initialises it: `library` alone if given, else [`LIBRARY_NAMES`] in order.
    ///
    /// # Errors
    /// Where no library can be loaded, or the driver does not answer to it. The text is one line that says what to do.
    pub fn open(library: Option<&Path>) -> Result<Self, NvmlError> {
        Self::open_on(Path::new("/proc"), Path::new("/sys/fs/cgroup"), library)
    }

    /// As [`Nvml::open`], with the owners of processes and the host's memory taken from these file systems.
    pub(crate) fn open_on(
        proc_root: &Path,
        cgroup_root: &Path,
        library: Option<&Path>,
    ) -> Result<Self, NvmlError> {
        let names = names(library);
        let mut first: Option<NvmlError> = None;
        for name in &names {
            match Self::open_one(proc_root, cgroup_root, name) {
                Ok(nvml) => return Ok(nvml),
                // A library that loads and fails says more than one that is not there.
                Err(error) => match &first {
                    Some(earlier) if !matches!(earlier, NvmlError::NoLibrary { .. }) => {}
                    _ => first = Some(error),
                },
            }
        }
        Err(match first {
            Some(NvmlError::NoLibrary { .. }) | None => {
                let tried: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
                NvmlError::NoLibrary { tried: tried.join(", ") }
            }
            Some(other) => other,
        })
    }

    fn open_one(proc_root: &Path, cgroup_root: &Path, name: &OsStr) -> Result<Self, NvmlError> {
        let shown = name.to_string_lossy().into_owned();
        let loaded = load(name).map_err(|error| load_error(&shown, error.to_string()))?;
        // SAFETY: the bindings have the signatures of nvml.h.
        let functions = unsafe { sys::NvmlLib::from_library(ManuallyDrop::into_inner(loaded)) };
        let functions = ManuallyDrop::new(functions.map_err(|error| load_error(&shown, error.to_string()))?);
        let init = match &functions.nvmlInit_v2 {
            Ok(init) => init,
            Err(error) => {
                return Err(NvmlError::BadLibrary { library: shown, detail: error.to_string() });
            }
        };
        // SAFETY: takes nothing and may be called at any time.
        let code = unsafe { init() };
        error::check(code).map_err(|_| init_error(&shown, code))?;
        let mut nvml = Self {
            // SAFETY: the library of the bindings is the driver library.
            lists: unsafe { processes::ListFunctions::find(&functions.__library) },
            functions,
            library: shown,
            driver: None,
            proc_root: proc_root.to_owned(),
            host_memory: HostMemorySource::new(proc_root, cgroup_root),
            memory_v1: AtomicBool::new(false),
            temperature_v1: AtomicBool::new(false),
            list_versions: [AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0)],
        };
        nvml.driver = nvml.read_driver_version().ok();
        Ok(nvml)
    }

    /// The version of the driver as it was at the opening, such as `550.54.15`.
    pub fn driver_version(&self) -> Option<&str> {
        self.driver.as_deref()
    }

    /// Ends and begins the session with the driver, as after a reload. Every handle of before is void.
    ///
    /// # Errors
    /// Where the driver is not back yet.
    pub fn reinitialise(&self) -> CallResult<()> {
        if let Ok(shutdown) = &self.functions.nvmlShutdown {
            // SAFETY: takes nothing; on a library that is not initialised it only says so.
            unsafe { shutdown() };
        }
        let init = self.functions.nvmlInit_v2.as_ref().map_err(|_| Fault::Missing("nvmlInit_v2"))?;
        // SAFETY: takes nothing and may be called at any time.
        error::check(unsafe { init() })
    }

    /// The handle of a device: by its place, where the device there has its UUID, else by its UUID, else wherever it is
    /// now. Some drivers do not find a UUID that they themselves have given, and two cards may have the same one.
    ///
    /// # Errors
    /// The driver's own: a GPU that is gone is `NOT_FOUND` or `GPU_IS_LOST`.
    pub fn handle_of(&self, device: &DeviceIdentity) -> CallResult<Handle> {
        let uuid = device.uuid.as_str();
        let is_it = |handle: &Handle| self.uuid(*handle).is_ok_and(|found| found == uuid);
        let placed = self.handle_by_index(device.index).and_then(|parent| match device.mig {
            Some(place) => self.mig_handle(parent, place.index),
            None => Ok(parent),
        });
        if let Some(handle) = placed.ok().filter(is_it) {
            return Ok(handle);
        }
        let text =
            CString::new(uuid).map_err(|_| Fault::Code(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT))?;
        let fault = match self.handle_by_uuid(&text) {
            Ok(handle) => return Ok(handle),
            Err(fault) if fault.is_fatal() => return Err(fault),
            Err(fault) => fault,
        };
        let everywhere = self.inventory().unwrap_or_default().into_iter().flatten();
        everywhere.map(|leaf| leaf.handle()).find(is_it).ok_or(fault)
    }

    /// Every GPU and slice, or the reason why an index does not answer. A hole among a GPU's slices does not end the
    /// search; a GPU in MIG mode without slices is one that does not answer.
    pub(crate) fn inventory(&self) -> Result<Vec<Listed>, NvmlError> {
        let count = self.device_count().map_err(|fault| NvmlError::call("nvmlDeviceGetCount", &fault))?;
        let mut inventory = Vec::new();
        for index in 0..count {
            let parent = match self.handle_by_index(index) {
                Ok(parent) => parent,
                Err(fault) => {
                    inventory.push(Err((index, fault)));
                    continue;
                }
            };
            if !self.mig_enabled(parent) {
                inventory.push(Ok(Leaf { index, parent, slice: None }));
                continue;
            }
            let mut slices = 0_u32;
            let mut trouble = None;
            for place in 0..self.max_mig_devices(parent) {
                match self.mig_handle(parent, place) {
                    Ok(slice) => {
                        slices += 1;
                        inventory.push(Ok(Leaf { index, parent, slice: Some((place, slice)) }));
                    }
                    Err(fault) if fault.is_absence() => {}
                    Err(fault) => trouble = Some(fault),
                }
            }
            if slices == 0 {
                inventory.push(Err((index, trouble.unwrap_or(Fault::NoSlices))));
            }
        }
        Ok(inventory)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        if let Ok(shutdown) = &self.functions.nvmlShutdown {
            // SAFETY: takes nothing. The owner of the only `Nvml` is dropping it, so no call is in flight.
            unsafe { shutdown() };
        }
    }
}

fn load_error(library: &str, message: String) -> NvmlError {
    let library = library.to_owned();
    if message.contains("No such file") {
        NvmlError::NoLibrary { tried: library }
    } else {
        NvmlError::BadLibrary { library, detail: message }
    }
}

fn init_error(library: &str, code: sys::nvmlReturn_t) -> NvmlError {
    let library = library.to_owned();
    match WrapperError::from(code) {
        WrapperError::DriverNotLoaded => NvmlError::NoDriver { library },
        WrapperError::NoPermission | WrapperError::OperatingSystem => NvmlError::NoPermission { library },
        WrapperError::LibRmVersionMismatch => NvmlError::VersionMismatch { library },
        other => NvmlError::Init { library, detail: other.to_string() },
    }
}
