//! Whether the driver library can be loaded, tried in a child process first.
//!
//! A library that hangs while it is loaded keeps the dynamic loader locked, and every other thread of its process waits
//! for that lock sooner or later. One that crashes there would take the log along.

use std::io;
use std::path::Path;

use crate::collectors::nvml::{self, NvmlError};
use crate::model::signal;
use crate::sys::process;

/// A child that tries to load the library. The kernel ends it with its parent.
#[derive(Debug)]
pub struct LoadCheck {
    child: libc::pid_t,
}

impl LoadCheck {
    /// Starts the child. Only from a process with a single thread: another thread could hold the loader's lock.
    ///
    /// # Errors
    /// No process.
    pub fn start(library: Option<&Path>) -> io::Result<Self> {
        let parent = process::id();
        // SAFETY: the caller's process has one thread, so the copy is whole; it loads a library and ends.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                if process::die_with(parent).is_ok() {
                    nvml::load_only(library);
                }
                process::exit_at_once(0)
            }
            child => Ok(Self { child }),
        }
    }

    /// Waits until the child has loaded the library, for as long as that takes. A library that is not there is no error
    /// here: opening it says more.
    ///
    /// # Errors
    /// Loading it ended the child.
    pub fn wait(self) -> Result<(), NvmlError> {
        let mut status = 0;
        // SAFETY: waits for this process's own child; `status` is plain data.
        while unsafe { libc::waitpid(self.child, &raw mut status, 0) } == -1
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
        match libc::WIFSIGNALED(status) {
            true => Err(NvmlError::LoadCrashed { signal: signal::name(libc::WTERMSIG(status)) }),
            false => Ok(()),
        }
    }
}
