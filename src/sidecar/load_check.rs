//! Whether the driver library can be loaded, tried in a child process first.
//!
//! A library that hangs while it is loaded keeps the dynamic loader locked, and every other thread of its process waits
//! for that lock sooner or later. One that crashes there would take the log along.

use std::io;
use std::path::Path;

use crate::collectors::nvml::{self, NvmlError};
use crate::model::signal;
use crate::sys::process;
use crate::sys::signals::SignalSet;

/// A child that tries to load the library. The kernel ends it with its parent.
#[derive(Debug)]
pub struct LoadCheck {
    child: i32,
}

impl LoadCheck {
    /// Starts the child. Only from a process with a single thread: another thread could hold the loader's lock.
    ///
    /// # Errors
    /// No process.
    pub fn start(library: Option<&Path>) -> io::Result<Self> {
        let child = process::fork(|| {
            // It does not stop with the job: what waits for it would wait until the job goes on.
            SignalSet::ALL.block();
            nvml::load_only(library);
            0
        })?;
        Ok(Self { child })
    }

    /// Waits until the child has loaded the library, for as long as that takes. A library that is not there is no error
    /// here: opening it says more.
    ///
    /// # Errors
    /// Loading it ended the child.
    pub fn wait(self) -> Result<(), NvmlError> {
        let Some(status) = process::wait_for_end(self.child) else { return Ok(()) };
        let how = match (status.terminating_signal(), status.exit_status()) {
            (Some(signal), _) => signal::name(signal),
            (None, Some(code)) if code != 0 => format!("exit status {code}"),
            _ => return Ok(()),
        };
        Err(NvmlError::LoadCrashed { how })
    }
}
