//! Chooses devices, holds them and waits for them: wires the driver's probe to the selection room.
//!
//! Runs before there is a job, with signals as on any other program: Ctrl-C ends the wait by ending gpurun.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use crate::model::device::{DeviceIdentity, DeviceSnapshot, ProbeRequest};
use crate::model::id::GpuUuid;
use crate::model::selection::{Candidates, Hold, NameFormat, Patience, Settings};
use crate::selection::SelectionError;
use crate::selection::choose::Choice;
use crate::selection::directory::{DIRECTORY_VARIABLE, LeaseDirectory, default_directory};
use crate::selection::explain;
use crate::selection::holder::{Holder, command_note};
use crate::selection::lease::{LEASES_VARIABLE, Lease, Outer};
use crate::selection::visible;
use crate::sys::escape::printable;
use crate::sys::notice::Verbosity;
use crate::sys::random;
use crate::sys::stderr::NonBlockingStderr;
use crate::sys::terminal::{self, Kind};
use crate::sys::users;

mod chooser;
mod observe;
mod order;
mod waiting;
mod watch;

use chooser::Chooser;
use observe::Observer;
use order::ordinals;
pub use order::{ask_cuda, this_is_gpurun};

/// Names the devices a CUDA program sees.
pub const VISIBLE_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
/// Says what the integers in [`VISIBLE_VARIABLE`] count.
pub const ORDER_VARIABLE: &str = "CUDA_DEVICE_ORDER";
/// The hidden subcommand that prints CUDA's own order, one UUID a line.
pub const CUDA_ORDER_COMMAND: &str = "__cuda-order";

/// Reads the devices; one call of the driver for each value that is asked for.
pub type Probe<'a> = &'a mut dyn FnMut(&ProbeRequest) -> Result<Vec<DeviceSnapshot>, String>;

/// Asks CUDA for its own order of the GPUs.
pub type CudaOrder<'a> = &'a mut dyn FnMut() -> Result<Vec<GpuUuid>, String>;

/// Why no devices were chosen.
#[derive(Debug, thiserror::Error)]
pub enum ChooseError {
    /// Fewer than the minimum satisfy the constraints now.
    #[error("{0}")]
    TooFew(Shortage),
    /// Fewer than the minimum could ever satisfy them.
    #[error("{0}")]
    Never(Shortage),
    /// The wait took too long.
    #[error("{0}")]
    WaitedTooLong(Shortage),
    /// The driver does not answer.
    #[error("{0}")]
    Driver(String),
    /// `--account-as-free` names no user.
    #[error("--account-as-free: there is no user {0:?}")]
    NoUser(String),
    /// Leases, or constraints that cannot be judged.
    #[error(transparent)]
    Selection(#[from] SelectionError),
}

/// Too few devices: the error in one line, then why each device was refused.
#[derive(Clone, Debug)]
pub struct Shortage {
    /// For people; several lines.
    pub text: String,
    /// For programs.
    pub json: serde_json::Value,
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl ChooseError {
    /// What there was to choose from, where that was too little.
    pub fn shortage(&self) -> Option<&Shortage> {
        match self {
            Self::TooFew(shortage) | Self::Never(shortage) | Self::WaitedTooLong(shortage) => Some(shortage),
            Self::Driver(_) | Self::NoUser(_) | Self::Selection(_) => None,
        }
    }
}

/// What the environment says about devices.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// `CUDA_VISIBLE_DEVICES`.
    pub visible: Option<String>,
    /// `CUDA_DEVICE_ORDER`.
    pub order: Option<String>,
    /// What an outer gpurun holds for us.
    pub outer: Outer,
    /// Where leases live.
    pub lease_directory: PathBuf,
}

impl Surroundings {
    /// The whole host, whatever the environment says.
    pub fn of_the_host() -> Self {
        Self { visible: None, order: None, outer: Outer::default(), lease_directory: default_directory() }
    }

    /// Reads this process's environment.
    pub fn from_environment() -> Self {
        let text = |name| std::env::var_os(name).map(|value: OsString| value.to_string_lossy().into_owned());
        Self {
            visible: text(VISIBLE_VARIABLE),
            order: text(ORDER_VARIABLE),
            outer: text(LEASES_VARIABLE).map(|value| Outer::parse(&value)).unwrap_or_default(),
            lease_directory: std::env::var_os(DIRECTORY_VARIABLE)
                .filter(|value| !value.is_empty())
                .map_or_else(default_directory, PathBuf::from),
        }
    }
}

/// Standard error, and what the user wants to see there.
pub struct Screen<'a> {
    /// Where lines go.
    pub out: &'a mut dyn Write,
    /// Columns of the terminal, where it is one: a live line can be drawn.
    pub columns: Option<usize>,
    /// The terminal shows colour.
    pub colored: bool,
    /// How much is said.
    pub verbosity: Verbosity,
}

impl<'a> Screen<'a> {
    /// The standard error of this process.
    pub fn new(stderr: &'a mut NonBlockingStderr, verbosity: Verbosity) -> Self {
        let columns = stderr.columns();
        Self { out: stderr, columns, colored: terminal::wants_color(columns.is_some()), verbosity }
    }

    /// Writes why nothing was chosen.
    pub fn error(&mut self, error: &ChooseError) {
        let text = self.lines(error).join("\n");
        let _ = writeln!(self.out, "{}{text}", terminal::prefix(Kind::Error, self.colored));
    }

    /// Why nothing was chosen: the error, whole, and a line for each device that fits the terminal.
    pub fn lines(&self, error: &ChooseError) -> Vec<String> {
        let text = error.to_string();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for line in lines.iter_mut().skip(1) {
            *line = terminal::cut(&printable(line), self.width());
        }
        lines
    }

    /// Writes the verdicts that `--explain` asks for.
    pub fn explain(&mut self, choice: &Choice, candidates: &[DeviceSnapshot]) {
        for line in verdicts(choice, candidates, self.verbosity) {
            let _ = writeln!(self.out, "{}", terminal::cut(&printable(&line), self.width()));
        }
    }

    /// Writes one note; a closed terminal is no error.
    fn note(&mut self, text: &str) {
        if self.verbosity >= Verbosity::Normal {
            self.clear();
            let _ = writeln!(self.out, "{}{text}", terminal::prefix(Kind::Warning, self.colored));
        }
    }

    /// Draws the live line, or writes a plain one.
    fn status(&mut self, text: &str) {
        if self.verbosity < Verbosity::Normal {
            return;
        }
        let prefix = terminal::prefix(Kind::Note, self.colored);
        let _ = match self.columns {
            // A live line that wraps cannot be taken away again; the last column stays free for the cursor.
            Some(columns) => {
                let room = columns.saturating_sub("gpurun: ".len() + 1);
                write!(self.out, "\r\x1b[2K{prefix}{}", terminal::cut(text, Some(room)))
            }
            None => writeln!(self.out, "{prefix}{text}"),
        };
        let _ = self.out.flush();
    }

    /// Takes the live line away.
    fn clear(&mut self) {
        if self.columns.is_some() {
            let _ = write!(self.out, "\r\x1b[2K");
            let _ = self.out.flush();
        }
    }

    /// The columns that explanations must fit: with `--verbose` lines stay whole.
    fn width(&self) -> Option<usize> {
        self.columns.filter(|_| self.verbosity < Verbosity::Verbose)
    }
}

/// Why each device was chosen or refused: a line for each, or with `--verbose` every constraint.
fn verdicts(choice: &Choice, candidates: &[DeviceSnapshot], verbosity: Verbosity) -> Vec<String> {
    match verbosity {
        Verbosity::Verbose => explain::table(choice, candidates),
        Verbosity::Quiet | Verbosity::Normal => explain::lines(choice, candidates),
    }
}

/// Devices chosen for a job.
#[derive(Debug)]
pub struct JobDevices {
    /// The chosen, in the order in which the job counts them.
    pub devices: Vec<DeviceIdentity>,
    /// Free memory of each in bytes when it was chosen, where it could be read.
    pub free: Vec<Option<u64>>,
    /// Variables that the job must see.
    pub env: Vec<(OsString, OsString)>,
    /// What holds them; keep it until the job has ended, and pass [`Lease::descriptors`] on to the job.
    pub lease: Option<Lease>,
}

/// Devices that are watched because the job sees them anyway.
#[derive(Debug)]
pub struct WatchedDevices {
    /// In the order in which the job counts them.
    pub devices: Vec<DeviceIdentity>,
    /// Each entry that names no device, in words.
    pub notes: Vec<String>,
}

/// A choice that was made.
#[derive(Debug)]
pub struct ChosenDevices {
    /// What was chosen from.
    pub candidates: Vec<DeviceSnapshot>,
    /// The verdicts and the chosen.
    pub choice: Choice,
    /// What holds them.
    pub lease: Option<Lease>,
}

impl ChosenDevices {
    /// The chosen devices, best first.
    pub fn chosen(&self) -> Vec<&DeviceSnapshot> {
        self.choice.chosen.iter().filter_map(|&index| self.candidates.get(index)).collect()
    }
}

/// Chooses and holds devices for a job of the gpurun `pid` whose command line is `command`.
///
/// # Errors
/// See [`ChooseError`]; no job may be started then.
pub fn choose_for_job(
    settings: &Settings,
    surroundings: &Surroundings,
    pid: u32,
    command: &[String],
    probe: Probe<'_>,
    screen: &mut Screen<'_>,
) -> Result<JobDevices, ChooseError> {
    let token = random::token().map_err(|error| SelectionError::LeaseDirectory {
        path: surroundings.lease_directory.clone(),
        why: format!("no random numbers: {error}"),
    })?;
    let holder = Holder {
        pid,
        command: command_note(command),
        since: jiff::Timestamp::now().as_second(),
        token,
        ..Holder::this_process()
    };
    let mut ask = ask_cuda;
    let taken =
        settle(settings, surroundings, probe, &mut ask, screen, Some(&holder)).inspect_err(|error| {
            if let Some(shortage) = error.shortage().filter(|_| settings.json) {
                let _ = writeln!(screen.out, "{}", shortage.json);
            }
        })?;
    if settings.json {
        let json = explain::json(&taken.choice, &taken.candidates, settings.format);
        let _ = writeln!(screen.out, "{json}");
    } else if settings.explain {
        screen.explain(&taken.choice, &taken.candidates);
    }
    let chosen = taken.chosen();
    let names = explain::names(&chosen, settings.format).join(",");
    let mut env: Vec<(OsString, OsString)> =
        vec![(VISIBLE_VARIABLE.into(), names.into()), (ORDER_VARIABLE.into(), "PCI_BUS_ID".into())];
    if let Some(lease) = &taken.lease {
        env.push((LEASES_VARIABLE.into(), lease.variable().into()));
    }
    let free = chosen
        .iter()
        .filter(|device| device.uuid.is_ok())
        .map(|device| device.memory.as_ref().ok().map(|memory| memory.free))
        .collect();
    let devices = identities(chosen.into_iter());
    Ok(JobDevices { devices, free, env, lease: taken.lease })
}

/// The devices that a job sees when gpurun does not choose: those `CUDA_VISIBLE_DEVICES` names, all where it is
/// unset.
///
/// # Errors
/// The driver does not answer.
pub fn watched_devices(surroundings: &Surroundings, probe: Probe<'_>) -> Result<WatchedDevices, ChooseError> {
    let mut ask = ask_cuda;
    let request = ProbeRequest { name: true, memory: true, ..ProbeRequest::default() };
    let Some(text) = &surroundings.visible else {
        let snapshots = probe(&request).map_err(ChooseError::Driver)?;
        let notes = unnamed_notes(snapshots.iter());
        return Ok(WatchedDevices { devices: identities(snapshots.iter()), notes });
    };
    let snapshots = probe(&request).map_err(ChooseError::Driver)?;
    let mut notes = Vec::new();
    let ordinals = ordinals(text, VISIBLE_VARIABLE, surroundings, &snapshots, &mut ask, &mut notes);
    let seen = visible::parse(text, &snapshots, &ordinals);
    notes.extend(dropped_notes(&seen.dropped, VISIBLE_VARIABLE));
    let seen = || seen.devices.iter().filter_map(|&index| snapshots.get(index));
    notes.extend(unnamed_notes(seen()));
    let devices = identities(seen());
    Ok(WatchedDevices { devices, notes })
}

/// Names devices for the rows of a run, counting as CUDA will; a device without a UUID has no name.
fn identities<'a>(devices: impl Iterator<Item = &'a DeviceSnapshot>) -> Vec<DeviceIdentity> {
    devices.enumerate().filter_map(|(cuda, device)| device.identity(u32::try_from(cuda).ok())).collect()
}

/// Words for devices that [`identities`] leaves out.
fn unnamed_notes<'a>(devices: impl Iterator<Item = &'a DeviceSnapshot>) -> Vec<String> {
    let unnamed = devices.filter_map(|device| Some((device, device.uuid.as_ref().err()?)));
    unnamed.map(|(device, why)| format!("GPU {} is not logged: {why}", device.index)).collect()
}

/// Words for entries of a list from `source`, `CUDA_VISIBLE_DEVICES` or `-i`, that name no device.
fn dropped_notes(dropped: &[visible::Dropped], source: &str) -> Vec<String> {
    let note =
        |dropped: &visible::Dropped| format!("{source}: {:?} is ignored: {}", dropped.entry, dropped.why);
    dropped.iter().map(note).collect()
}

/// Chooses, and with a `holder` also holds; waits as far as the settings say.
///
/// # Errors
/// See [`ChooseError`].
pub fn settle(
    settings: &Settings,
    surroundings: &Surroundings,
    probe: Probe<'_>,
    ask: CudaOrder<'_>,
    screen: &mut Screen<'_>,
    holder: Option<&Holder>,
) -> Result<ChosenDevices, ChooseError> {
    let directory = match settings.hold {
        Hold::None => None,
        // A choice that takes nothing needs a directory only to stand in the queue.
        _ if holder.is_none() && settings.patience == Patience::None => {
            LeaseDirectory::open_existing(&surroundings.lease_directory)?
        }
        _ => Some(LeaseDirectory::open_or_create(&surroundings.lease_directory)?),
    };
    let mut constraints = settings.constraints.clone();
    constraints.free_accounts = accounts(settings)?;
    let mut request = constraints.probe();
    request.processes |= settings.accounts.is_some();
    let text = match &settings.candidates {
        Candidates::All => None,
        Candidates::Inherited => surroundings.visible.clone(),
        Candidates::Named(text) => Some(text.clone()),
    };
    let chooser = Chooser {
        settings,
        surroundings,
        probe,
        ask,
        holder,
        me: holder.cloned().unwrap_or_else(Holder::this_process),
        directory,
        constraints,
        request,
        text,
        ordinals: None,
        notes: Vec::new(),
        noted: false,
        observer: settings.observe.map(Observer::new),
        verbosity: screen.verbosity,
        hidden: None,
    };
    let taken = chooser.run(screen)?;
    let loosened: Vec<String> = taken
        .choice
        .loosened()
        .filter_map(|index| taken.candidates.get(index))
        .map(explain::device_label)
        .collect();
    if !loosened.is_empty() {
        screen.note(&format!(
            "chosen only with the tolerance of {} %: {}",
            settings.constraints.tolerance,
            loosened.join(", ")
        ));
    }
    Ok(taken)
}

/// The uids whose memory counts as free.
fn accounts(settings: &Settings) -> Result<Vec<u32>, ChooseError> {
    match settings.accounts.as_deref() {
        None => Ok(Vec::new()),
        Some([]) => Ok(vec![users::effective_uid()]),
        Some(names) => names
            .iter()
            .map(|name| users::uid_of(name).ok_or_else(|| ChooseError::NoUser(name.clone())))
            .collect(),
    }
}

/// What `names` a device list for messages; kept here so that select and jobs say it alike.
pub fn assignment(chosen: &[&DeviceSnapshot], format: NameFormat) -> String {
    format!("{VISIBLE_VARIABLE}=\"{}\"", explain::names(chosen, format).join(","))
}

/// Lease state of devices for a listing.
pub fn holders(
    directory: Option<&LeaseDirectory>,
    device: &DeviceSnapshot,
) -> Result<Vec<Holder>, SelectionError> {
    match (directory, &device.uuid) {
        (Some(directory), Ok(uuid)) => directory.holders(uuid),
        _ => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_line_fits_the_terminal() {
        let drawn = |columns| {
            let mut out = Vec::new();
            let mut screen = Screen { out: &mut out, columns, colored: false, verbosity: Verbosity::Normal };
            screen.status("waiting for a GPU that is taken");
            String::from_utf8(out).unwrap()
        };
        assert_eq!(drawn(Some(20)), "\r\u{1b}[2Kgpurun: waiting ...");
        assert_eq!(drawn(None), "gpurun: waiting for a GPU that is taken\n");
    }
}
