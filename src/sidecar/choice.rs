//! The choice of GPUs for a job, made before it starts: asks the driver, holds what was chosen.

use std::ffi::{OsStr, OsString};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::time::Instant;

use crate::cli::exit::Exit;
use crate::collectors::nvml::Nvml;
use crate::link::{SidecarEnd, ToMinder};
use crate::model::device::{DeviceIdentity, ProbeRequest};
use crate::model::selection::{Patience, Settings};
use crate::selection::flow::{self, ChooseError, Screen, Surroundings, VISIBLE_VARIABLE};
use crate::selection::lease::Lease;
use crate::sys::notice::Verbosity;
use crate::sys::stderr::NonBlockingStderr;

/// Why there is no job.
pub(super) struct Refusal {
    /// The exit status.
    pub exit: Exit,
    /// What is said about it; the first line is the error.
    pub lines: Vec<String>,
}

impl Refusal {
    /// A refusal of one line.
    pub fn new(exit: Exit, line: impl Into<String>) -> Self {
        Self { exit, lines: vec![line.into()] }
    }
}

/// What was chosen for a job.
#[derive(Default)]
pub(super) struct Chosen {
    /// The driver, open, and the devices in the order in which the job counts them.
    pub known: Option<(Nvml, Vec<DeviceIdentity>)>,
    /// Free memory of each device in bytes, when it was chosen.
    pub free: Vec<Option<u64>>,
    /// Variables for the job.
    pub env: Vec<(OsString, OsString)>,
    /// What holds the devices.
    pub lease: Option<Lease>,
}

impl Chosen {
    /// `CUDA_VISIBLE_DEVICES` as gpurun set it.
    pub fn visible_devices(&self) -> Option<&OsStr> {
        self.env.iter().find(|(name, _)| name == VISIBLE_VARIABLE).map(|(_, value)| value.as_os_str())
    }

    /// The devices with their free memory in bytes.
    pub fn devices(&self) -> Vec<(&DeviceIdentity, Option<u64>)> {
        let free = self.free.iter().copied().chain(std::iter::repeat(None));
        self.known.iter().flat_map(|(_, devices)| devices).zip(free).collect()
    }
}

/// What is to be chosen, and for which job.
pub(super) struct Wish<'a> {
    pub settings: &'a Settings,
    pub command: &'a [OsString],
    pub library: Option<PathBuf>,
    pub verbosity: Verbosity,
    /// The gpurun that the user started, which others see as the holder.
    pub minder: u32,
}

/// Chooses and holds. Each call of the driver is announced to the minder, which gives up on one that hangs.
///
/// # Errors
/// The devices cannot be had, or the driver says no.
pub(super) fn choose(
    wish: &Wish<'_>,
    surroundings: &Surroundings,
    link: &SidecarEnd,
) -> Result<Chosen, Refusal> {
    let Wish { settings, verbosity, .. } = wish;
    let deadline = match settings.patience {
        Patience::For(patience) => Instant::now().checked_add(patience),
        Patience::None | Patience::Forever => None,
    };
    let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let nvml = announced(link, || Nvml::open(wish.library.as_deref()))
        .map_err(|error| Refusal::new(Exit::OwnFailure, format!("cannot choose GPUs: {error}")))?;
    // Left open where nothing is chosen: the process ends then, and the driver's own shutdown can hang.
    let nvml = ManuallyDrop::new(nvml);
    let command: Vec<String> = wish.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut stderr = NonBlockingStderr::new();
    let mut screen = Screen::new(&mut stderr, *verbosity);
    // Name and memory are what the start line and the files say of a device.
    let mut probe = |request: &ProbeRequest| {
        let request = ProbeRequest { name: true, memory: true, ..*request };
        announced(link, || nvml.probe(&request)).map_err(|error| error.to_string())
    };
    let chosen = flow::choose_for_job(settings, surroundings, wish.minder, &command, &mut probe, &mut screen);
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(error) => {
            let exit = match error {
                ChooseError::Driver(_) if is_over() => Exit::WaitedTooLong,
                _ => exit_of(&error),
            };
            return Err(Refusal { exit, lines: screen.lines(&error) });
        }
    };
    Ok(Chosen {
        known: Some((ManuallyDrop::into_inner(nvml), chosen.devices)),
        free: chosen.free,
        env: chosen.env,
        lease: chosen.lease,
    })
}

/// Tells the minder while a call of the driver is under way.
pub fn announced<T>(link: &SidecarEnd, call: impl FnOnce() -> T) -> T {
    link.send(&ToMinder::DriverCall(true));
    let answer = call();
    link.send(&ToMinder::DriverCall(false));
    answer
}

/// The exit status that a failed choice means for a job.
fn exit_of(error: &ChooseError) -> Exit {
    use crate::selection::SelectionError;
    match error {
        ChooseError::TooFew(_)
        | ChooseError::Never(_)
        | ChooseError::Selection(SelectionError::SelectLock { .. }) => Exit::TooFew,
        ChooseError::WaitedTooLong(_) => Exit::WaitedTooLong,
        ChooseError::NoUser(_) | ChooseError::Selection(SelectionError::UtilizationOnMig) => Exit::Usage,
        ChooseError::Driver(_) | ChooseError::Selection(_) => Exit::OwnFailure,
    }
}
