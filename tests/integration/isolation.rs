//! What goes wrong in the driver, in a preloaded library or in gpurun's own sidecar stays out of the job: its output, its
//! exit status, its signals and its processes are its own.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test where they are")]

mod driver;
mod processes;
mod signals;

use std::path::Path;
use std::process::Output;

use fake_nvml::{Gpu, Installed, Scenario};

use crate::support::shared_library;

/// One simulated GPU whose driver library is this C code as well: what it defines is called first, and finds the
/// simulated library's function of the same name as the next one (`RTLD_NEXT`).
fn driver_with(dir: &Path, source: &str) -> Installed {
    let gpu = vec![Gpu::with_memory(81_920.0, 512.0, 0.0)];
    let mut installed = fake_nvml::install(dir, &Scenario { gpu, ..Scenario::default() }).unwrap();
    installed.library = shared_library(dir, "driver", source, &[&installed.library]);
    installed
}

/// The lines that gpurun wrote.
fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect()
}
