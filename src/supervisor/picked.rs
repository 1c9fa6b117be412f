//! The devices of a job before it starts: chosen and held, or left as the environment has them.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::Duration;

use crate::cli::args::RunArgs;
use crate::cli::exit::Exit;
use crate::cli::selection::Purpose;
use crate::collectors::models;
use crate::collectors::nvml::Nvml;
use crate::launch::NonBlockingStderr;
use crate::model::device::{DeviceIdentity, ProbeRequest};
use crate::selection::lease::Lease;
use crate::selection::visible;

use super::choose::{self, ChooseError, Screen, Surroundings, VISIBLE_VARIABLE};
use super::driver::{self, Driver, DriverError, Ending, Limits};
use super::job::Refusal;
use super::notice::Notices;
use super::watched::Watched;

/// How long a job without a wish for GPUs waits for the driver, where CUDA's own order must be known.
const ORDER_PATIENCE: Duration = Duration::from_secs(3);

/// What a job gets, and what stays with gpurun.
pub(super) struct Picked {
    surroundings: Surroundings,
    /// Known before the job: what was chosen, or what had to be found out first.
    known: Option<(Nvml, Vec<DeviceIdentity>)>,
    /// Free memory of the chosen in bytes, in their order.
    free: Vec<Option<u64>>,
    env: Vec<(OsString, OsString)>,
    lease: Option<Lease>,
}

impl Picked {
    /// Whether [`Picked::for_job`] may ask the driver or wait for devices.
    pub fn may_take_long(args: &RunArgs) -> bool {
        args.selection.any() || std::env::var_os(VISIBLE_VARIABLE).is_some()
    }

    /// Chooses and holds what the options ask for; without any, the environment stays as it is.
    pub fn for_job(args: &RunArgs, notices: &Notices) -> Result<Self, Refusal> {
        let surroundings = Surroundings::from_environment();
        if !args.selection.any() {
            return Ok(Self::as_it_is(args, surroundings, notices));
        }
        let settings = args
            .selection
            .settings(Purpose::Job)
            .map_err(|mistakes| Refusal::new(Exit::Usage, mistakes.to_string()))?;
        let quiet = args.common.quiet;
        let limits = Limits::of(settings.patience);
        let ending = Ending { exit: Exit::OwnFailure, opening: "GPUs cannot be chosen: ", quiet };
        let mut driver =
            Driver::open_or_end(args.common.library(), settings.patience, ending).map_err(|error| {
                let exit = match error {
                    DriverError::Silent(_) if limits.are_over() => Exit::WaitedTooLong,
                    _ => ending.exit,
                };
                Refusal::new(exit, ending.line(false, &error))
            })?;
        let mut say = driver::teller(quiet);
        let command: Vec<String> =
            args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let mut stderr = NonBlockingStderr::new();
        let mut screen = Screen { columns: stderr.columns(), out: &mut stderr, quiet };
        // Name and memory are what the start line and the files say of a device.
        let mut probe = |request: &ProbeRequest| {
            let request = ProbeRequest { name: true, memory: true, ..*request };
            driver.probe(&request, &mut say).map_err(|error| error.to_string())
        };
        let chosen = choose::choose_for_job(&settings, &surroundings, &command, &mut probe, &mut screen)
            .map_err(|error| {
                let exit = match error {
                    ChooseError::Driver(_) if limits.are_over() => Exit::WaitedTooLong,
                    _ => error.exit(),
                };
                Refusal { code: exit.code(), lines: lines(&error.to_string()) }
            })?;
        let nvml = driver.into_nvml().ok_or_else(|| {
            Refusal::new(Exit::OwnFailure, "GPUs cannot be chosen: the NVIDIA driver stopped answering")
        })?;
        Ok(Self {
            surroundings,
            known: Some((nvml, chosen.devices)),
            free: chosen.free,
            env: chosen.env,
            lease: chosen.lease,
        })
    }

    /// Nothing is chosen. The driver is opened after the job has started, except where the numbers of
    /// `CUDA_VISIBLE_DEVICES` may count in CUDA's own order: then CUDA is asked, in a child that must
    /// not be taken for one of the job's.
    fn as_it_is(args: &RunArgs, surroundings: Surroundings, notices: &Notices) -> Self {
        let mut picked = Self { surroundings, known: None, free: Vec::new(), env: Vec::new(), lease: None };
        if !order_matters(&picked.surroundings) {
            return picked;
        }
        // A driver that hangs holds up nobody's job for long: its devices are then counted as NVML does.
        let limits = Limits::short(ORDER_PATIENCE);
        let Ok(mut driver) = Driver::open(args.common.library(), limits, &mut |_| {}) else {
            return picked;
        };
        let mut probe =
            |request: &ProbeRequest| driver.probe(request, &mut |_| {}).map_err(|error| error.to_string());
        if let Ok(choose::WatchedDevices { devices, notes }) =
            choose::watched_devices(&picked.surroundings, &mut probe)
            && let Some(nvml) = driver.into_nvml()
        {
            picked.known = Some((nvml, devices));
            for note in notes {
                notices.say(&note);
            }
        }
        picked
    }

    /// Variables that the job gets beside its environment.
    pub fn env(&self) -> Vec<(OsString, OsString)> {
        self.env.clone()
    }

    /// `CUDA_VISIBLE_DEVICES` as gpurun set it.
    pub fn visible_devices(&self) -> Option<String> {
        let set = self.env.iter().find(|(name, _)| name == VISIBLE_VARIABLE);
        set.map(|(_, value)| value.to_string_lossy().into_owned())
    }

    /// The devices, where they are known before the job starts, and their free memory in bytes, where they were chosen.
    pub fn devices(&self) -> Vec<(&DeviceIdentity, Option<u64>)> {
        let free = self.free.iter().copied().chain(std::iter::repeat(None));
        self.known.iter().flat_map(|(_, devices)| devices).zip(free).collect()
    }

    /// Descriptors that the job's main process inherits: the lease.
    pub fn keep_fds(&self) -> Vec<RawFd> {
        self.lease.as_ref().map(Lease::raw_fds).unwrap_or_default()
    }

    /// Lets others see who holds the devices.
    pub fn note_job(&mut self, pid: i32) {
        if let (Some(lease), Ok(pid)) = (&mut self.lease, u32::try_from(pid)) {
            lease.note_job(pid);
        }
    }

    /// What the run watches; takes the open driver along.
    pub fn watched(&mut self) -> Watched {
        match self.known.take() {
            Some((nvml, devices)) => Watched::Known(Box::new(nvml), devices),
            None => Watched::Visible(self.surroundings.clone()),
        }
    }
}

/// A refusal of several lines: the error first, then the reason of each device.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Whether the variable counts devices that CUDA might count otherwise than NVML.
fn order_matters(surroundings: &Surroundings) -> bool {
    let counts = surroundings.visible.as_deref().is_some_and(visible::has_ordinals);
    if !counts || surroundings.order.as_deref() == Some("PCI_BUS_ID") {
        return false;
    }
    // Only unlike cards are counted differently; the kernel driver tells without opening NVML.
    match models::installed(Path::new(models::GPUS)) {
        Some(models) => models.windows(2).any(|pair| pair[0] != pair[1]),
        None => true,
    }
}
