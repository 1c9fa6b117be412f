//! A scripted `libnvidia-ml.so.1` (and `libcuda.so.1`) for the tests of gpurun.
//!
//! One crate, two faces. The `cdylib` *is* the driver library: it exports NVML's C functions and answers them from
//! the scenario file that `GPURUN_FAKE_NVML` names. The `rlib` is what a test uses to write a scenario and to lay
//! the library out in a directory ([`install()`]). Nothing here is part of the released gpurun.

pub mod codes;
#[doc(hidden)]
pub mod cuda;
mod install;
#[doc(hidden)]
pub mod nvml;
mod runtime;
pub mod scenario;
pub mod signal;

pub use install::{InstallError, Installed, LoggedCall, install, install_file, library, scenario_file};
pub use scenario::{Cuda, Die, Energy, Fault, Gpm, Gpu, Mig, Process, Scenario};
pub use signal::{Counter, Level, Ramp, Rate, Signal, Sine, Square, Wave};
