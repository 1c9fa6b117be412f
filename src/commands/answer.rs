//! Commands that ask the driver one thing: in a child process, so that what its library prints, and how it crashes or
//! hangs, does not reach the answer.

use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::path::PathBuf;

use super::print::{Standard, printed};
use crate::cli::exit::Exit;
use crate::collectors::nvml::{Nvml, NvmlError};
use crate::link::{SidecarEnd, ToMinder};
use crate::minder::{self, Question};
use crate::model::device::{DeviceSnapshot, ProbeRequest};
use crate::model::selection::Patience;
use crate::sidecar::{announced, process};
use crate::sys::notice::{Notices, Verbosity};

/// The driver in the child: each call is announced, so that the parent can give up on one that hangs.
pub(super) struct Driver<'a> {
    /// Left open: the process ends soon, and the driver's own shutdown can hang.
    nvml: ManuallyDrop<Nvml>,
    link: &'a SidecarEnd,
}

impl<'a> Driver<'a> {
    fn open(library: Option<PathBuf>, link: &'a SidecarEnd) -> Result<Self, NvmlError> {
        announced(link, || Nvml::open(library.as_deref()))
            .map(|nvml| Self { nvml: ManuallyDrop::new(nvml), link })
    }

    /// Looks at the devices.
    ///
    /// # Errors
    /// What the driver says.
    pub fn probe(&self, request: &ProbeRequest) -> Result<Vec<DeviceSnapshot>, String> {
        announced(self.link, || self.nvml.probe(request)).map_err(|error| error.to_string())
    }
}

/// How a command asks.
pub(super) struct Asked {
    /// How long the user wants to wait.
    pub patience: Patience,
    /// The status where the driver fails.
    pub failed: Exit,
    /// NVML library to load; `None` searches the usual names.
    pub library: Option<PathBuf>,
    /// How much is said.
    pub verbosity: Verbosity,
}

/// Has `body` answer with the open driver, and prints what it wrote.
pub(super) fn answer(
    asked: Asked,
    out: &mut Standard<'_>,
    body: impl FnOnce(&Driver<'_>, &mut Vec<u8>) -> Exit,
) -> Exit {
    let notices = Notices::new(asked.verbosity);
    let failed = asked.failed;
    let question = Question { patience: asked.patience, failed: failed.code(), notices: &notices };
    let (output, code) = minder::ask(&question, |link| {
        let Ok(link) = process::enter(link) else { return failed.code() };
        let mut output = Vec::new();
        let exit = match Driver::open(asked.library, &link) {
            Ok(driver) => {
                let exit = body(&driver, &mut output);
                link.send_output(&output);
                exit
            }
            Err(error) => {
                Notices::new(asked.verbosity).error(&error.to_string());
                failed
            }
        };
        link.send(&ToMinder::Finish(exit.code()));
        exit.code()
    });
    let exit = Exit::from_code(code).unwrap_or(failed);
    printed(out.write_all(&output), out, exit, &notices)
}
