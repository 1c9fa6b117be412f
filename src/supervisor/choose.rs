//! Chooses devices, holds them and waits for them: wires the driver's probe to the selection room.
//!
//! Runs before there is a job, with signals as on any other program: Ctrl-C ends the wait by ending gpurun.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::exit::Exit;
use crate::collectors::users;
use crate::launch::SignalSet;
use crate::model::device::{ComputeMode, DeviceIdentity, DeviceSnapshot, ProbeRequest};
use crate::model::id::GpuUuid;
use crate::model::reading::Known;
use crate::model::selection::{Candidates, Constraints, Hold, NameFormat, Patience, Settings};
use crate::selection::SelectionError;
use crate::selection::choose::{Choice, choose};
use crate::selection::explain;
use crate::selection::lease::{
    DIRECTORY_VARIABLE, Holder, LEASES_VARIABLE, Lease, LeaseDirectory, Outer, command_note,
    default_directory, fresh_token,
};
use crate::selection::queue::Ticket;
use crate::selection::visible::{self, Ordinals};

/// Names the devices a CUDA program sees.
pub const VISIBLE_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
/// Says what the integers in [`VISIBLE_VARIABLE`] count.
pub const ORDER_VARIABLE: &str = "CUDA_DEVICE_ORDER";
/// The hidden subcommand that prints CUDA's own order, one UUID a line.
pub const CUDA_ORDER_COMMAND: &str = "__cuda-order";

/// How often the first in the queue asks the driver about processes that hold no lease.
const POLL: Duration = Duration::from_secs(2);
/// How often the live line is drawn on a terminal.
const LIVE_LINE: Duration = Duration::from_secs(1);
/// How often a line is written where there is no terminal.
const LOG_LINE: Duration = Duration::from_secs(60);
/// How long libcuda may take to tell its order.
const CUDA_PATIENCE: Duration = Duration::from_secs(20);

/// Reads the devices; one call of the driver for each value that is asked for.
pub type Probe<'a> = &'a mut dyn FnMut(&ProbeRequest) -> Result<Vec<DeviceSnapshot>, String>;

/// Asks CUDA for its own order of the GPUs.
pub type CudaOrder<'a> = &'a mut dyn FnMut() -> Result<Vec<GpuUuid>, String>;

/// Why no devices were chosen.
#[derive(Debug, thiserror::Error)]
pub enum ChooseError {
    /// Fewer than the minimum satisfy the constraints now; the text also says why each GPU was refused.
    #[error("{0}")]
    TooFew(String),
    /// Fewer than the minimum could ever satisfy them.
    #[error("{0}")]
    Never(String),
    /// The wait took too long.
    #[error("{0}")]
    WaitedTooLong(String),
    /// The driver does not answer.
    #[error("{0}")]
    Driver(String),
    /// `--account-as-free` names nobody.
    #[error("--account-as-free: there is no user {0:?}")]
    NoUser(String),
    /// Leases, or constraints that cannot be judged.
    #[error(transparent)]
    Selection(#[from] SelectionError),
}

impl ChooseError {
    /// The exit status it means for a job.
    pub fn exit(&self) -> Exit {
        match self {
            Self::TooFew(_) | Self::Never(_) => Exit::TooFew,
            Self::WaitedTooLong(_) => Exit::WaitedTooLong,
            Self::Driver(_) => Exit::OwnFailure,
            Self::NoUser(_) | Self::Selection(SelectionError::UtilizationOnMig) => Exit::Usage,
            Self::Selection(_) => Exit::OwnFailure,
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

/// Standard error, and whether somebody watches it.
pub struct Screen<'a> {
    /// Where lines go.
    pub out: &'a mut dyn Write,
    /// It is a terminal: a live line can be drawn.
    pub terminal: bool,
    /// Only errors are written.
    pub quiet: bool,
}

impl Screen<'_> {
    /// Writes one note; a closed terminal is nobody's error.
    fn note(&mut self, text: &str) {
        if !self.quiet {
            self.clear();
            let _ = writeln!(self.out, "gpurun: {text}");
        }
    }

    /// Draws the live line, or writes a plain one.
    fn status(&mut self, text: &str) {
        if self.quiet {
            return;
        }
        let _ = if self.terminal {
            write!(self.out, "\r\x1b[2Kgpurun: {text}")
        } else {
            writeln!(self.out, "gpurun: {text}")
        };
        let _ = self.out.flush();
    }

    /// Takes the live line away.
    fn clear(&mut self) {
        if self.terminal {
            let _ = write!(self.out, "\r\x1b[2K");
            let _ = self.out.flush();
        }
    }
}

/// Devices chosen for a job.
#[derive(Debug)]
pub struct JobDevices {
    /// The chosen, in the order in which the job counts them.
    pub devices: Vec<DeviceIdentity>,
    /// Variables that the job must see.
    pub env: Vec<(OsString, OsString)>,
    /// What holds them; keep it until the job has ended, and pass [`Lease::raw_fds`] on to the job.
    pub lease: Option<Lease>,
}

/// Devices that are watched because the job sees them anyway.
#[derive(Debug)]
pub struct WatchedDevices {
    /// In the order in which the job counts them.
    pub devices: Vec<DeviceIdentity>,
    /// Whether `CUDA_VISIBLE_DEVICES` named them; otherwise they are all of the host's.
    pub named: bool,
    /// Each entry that names no device, in words.
    pub notes: Vec<String>,
}

/// A choice that was made.
#[derive(Debug)]
pub struct Settled {
    /// What was chosen from.
    pub candidates: Vec<DeviceSnapshot>,
    /// The verdicts and the chosen.
    pub choice: Choice,
    /// What holds them.
    pub lease: Option<Lease>,
}

impl Settled {
    /// The chosen devices, best first.
    pub fn chosen(&self) -> Vec<&DeviceSnapshot> {
        self.choice.chosen.iter().filter_map(|&index| self.candidates.get(index)).collect()
    }
}

/// Chooses and holds devices for a job whose command line is `command`.
///
/// # Errors
/// See [`ChooseError`]; no job may be started then.
pub fn choose_for_job(
    settings: &Settings,
    surroundings: &Surroundings,
    command: &[String],
    probe: Probe<'_>,
    screen: &mut Screen<'_>,
) -> Result<JobDevices, ChooseError> {
    let uid = users::effective_uid();
    let holder = Holder {
        pid: std::process::id(),
        job: None,
        uid,
        user: users::name_of(uid).unwrap_or_else(|| uid.to_string()),
        command: command_note(command),
        since: jiff::Timestamp::now().as_second(),
        share: None,
        token: fresh_token().map_err(|error| SelectionError::LeaseDirectory {
            path: surroundings.lease_directory.clone(),
            why: format!("/dev/urandom: {error}"),
        })?,
    };
    let mut ask = ask_cuda;
    let settled = settle(settings, surroundings, probe, &mut ask, screen, Some(&holder))?;
    if settings.json {
        let json = explain::json(&settled.choice, &settled.candidates, settings.format);
        let _ = writeln!(screen.out, "{json}");
    } else if settings.explain {
        let _ = write!(screen.out, "{}", explain::table(&settled.choice, &settled.candidates));
    }
    let chosen = settled.chosen();
    let names = explain::names(&chosen, settings.format).join(",");
    let mut env: Vec<(OsString, OsString)> =
        vec![(VISIBLE_VARIABLE.into(), names.into()), (ORDER_VARIABLE.into(), "PCI_BUS_ID".into())];
    if let Some(lease) = &settled.lease {
        env.push((LEASES_VARIABLE.into(), lease.variable().into()));
    }
    let devices = identities(chosen.into_iter());
    Ok(JobDevices { devices, env, lease: settled.lease })
}

/// The devices that a job sees when gpurun does not choose: those `CUDA_VISIBLE_DEVICES` names, all where it is
/// unset.
///
/// # Errors
/// The driver does not answer.
pub fn watched_devices(surroundings: &Surroundings, probe: Probe<'_>) -> Result<WatchedDevices, ChooseError> {
    let mut ask = ask_cuda;
    let mut request = ProbeRequest { name: true, memory: true, ..ProbeRequest::default() };
    let Some(text) = &surroundings.visible else {
        let snapshots = probe(&request).map_err(ChooseError::Driver)?;
        return Ok(WatchedDevices { devices: identities(snapshots.iter()), named: false, notes: Vec::new() });
    };
    request.name = true;
    let snapshots = probe(&request).map_err(ChooseError::Driver)?;
    let mut notes = Vec::new();
    let ordinals = ordinals(text, surroundings, &snapshots, &mut ask, &mut notes);
    let seen = visible::parse(text, &snapshots, &ordinals);
    notes.extend(dropped_notes(&seen.dropped));
    let devices = identities(seen.devices.iter().filter_map(|&index| snapshots.get(index)));
    Ok(WatchedDevices { devices, named: true, notes })
}

/// Names devices for the rows of a run, counting as CUDA will; a device without a UUID has no name.
fn identities<'a>(devices: impl Iterator<Item = &'a DeviceSnapshot>) -> Vec<DeviceIdentity> {
    devices
        .enumerate()
        .filter_map(|(cuda, device)| {
            Some(DeviceIdentity {
                index: device.index,
                mig: device.mig,
                cuda: u32::try_from(cuda).ok(),
                uuid: device.uuid.as_ref().ok()?.clone(),
                name: device.name.as_ref().ok().cloned(),
                memory_total: device.memory.as_ref().ok().map(|memory| memory.total),
            })
        })
        .collect()
}

/// Words for entries of `CUDA_VISIBLE_DEVICES` that name no device.
fn dropped_notes(dropped: &[visible::Dropped]) -> Vec<String> {
    dropped
        .iter()
        .map(|dropped| format!("{VISIBLE_VARIABLE}: {:?} is left out: {}", dropped.entry, dropped.why))
        .collect()
}

/// What the integers of the variable count on this host.
fn ordinals(
    text: &str,
    surroundings: &Surroundings,
    snapshots: &[DeviceSnapshot],
    ask: CudaOrder<'_>,
    notes: &mut Vec<String>,
) -> Ordinals {
    let by_bus = surroundings.order.as_deref() == Some("PCI_BUS_ID");
    if by_bus || !visible::has_ordinals(text) || !unlike(snapshots) {
        return Ordinals::PciBus;
    }
    match ask() {
        Ok(order) => Ordinals::Cuda(order),
        Err(why) => {
            notes.push(format!(
                "{VISIBLE_VARIABLE} counts in CUDA's own order, fastest first, which cannot be asked here ({why}); \
                 its numbers are taken in PCI order: set {ORDER_VARIABLE}=PCI_BUS_ID or use UUIDs to be sure"
            ));
            Ordinals::PciBus
        }
    }
}

/// Whether the host has GPUs of different kinds, as far as can be read.
fn unlike(snapshots: &[DeviceSnapshot]) -> bool {
    let kinds: BTreeSet<&str> = snapshots
        .iter()
        .filter_map(|device| device.name.as_ref().ok())
        .map(|name| name.split(" MIG ").next().unwrap_or(name))
        .collect();
    kinds.len() > 1
}

/// Asks libcuda in a child of our own binary, so that nothing of CUDA stays in this process.
pub(super) fn ask_cuda() -> Result<Vec<GpuUuid>, String> {
    let binary = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(binary)
        .arg(CUDA_ORDER_COMMAND)
        .env_remove(VISIBLE_VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let deadline = Instant::now() + CUDA_PATIENCE;
    // The answer is a few lines: it fits the pipe, so the child never waits for us.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            other => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(match other {
                    Err(error) => error.to_string(),
                    _ => format!("no answer within {} s", CUDA_PATIENCE.as_secs()),
                });
            }
        }
    };
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if !status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(text.lines().next().unwrap_or("the child failed without a word").trim().to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(GpuUuid::new).collect())
}

/// The body of the hidden subcommand [`CUDA_ORDER_COMMAND`].
pub fn print_cuda_order(stdout: &mut dyn Write, stderr: &mut dyn Write) -> Exit {
    match crate::collectors::cuda::device_order() {
        Ok(order) => {
            for uuid in order {
                let _ = writeln!(stdout, "{uuid}");
            }
            Exit::Ok
        }
        Err(error) => {
            let _ = writeln!(stderr, "{error}");
            Exit::Failed
        }
    }
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
) -> Result<Settled, ChooseError> {
    let directory = match settings.hold {
        Hold::None => None,
        // Who takes nothing needs a directory only to stand in the queue.
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
        directory: directory.as_ref(),
        constraints,
        request,
        text,
        ordinals: None,
        notes: Vec::new(),
        noted: false,
        observer: settings.observe.map(Observer::new),
    };
    let settled = chooser.run(screen)?;
    let loosened: Vec<String> = settled
        .choice
        .loosened()
        .filter_map(|index| settled.candidates.get(index))
        .map(explain::device_label)
        .collect();
    if !loosened.is_empty() {
        screen.note(&format!(
            "{} satisfies the constraints only with the tolerance of {} %",
            loosened.join(", "),
            settings.constraints.tolerance
        ));
    }
    Ok(settled)
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

/// One look at the devices.
struct Look {
    candidates: Vec<DeviceSnapshot>,
    choice: Choice,
}

struct Chooser<'a> {
    settings: &'a Settings,
    surroundings: &'a Surroundings,
    probe: Probe<'a>,
    ask: CudaOrder<'a>,
    holder: Option<&'a Holder>,
    directory: Option<&'a LeaseDirectory>,
    constraints: Constraints,
    request: ProbeRequest,
    /// The `CUDA_VISIBLE_DEVICES` to choose inside of.
    text: Option<String>,
    ordinals: Option<Ordinals>,
    notes: Vec<String>,
    noted: bool,
    observer: Option<Observer>,
}

impl Chooser<'_> {
    fn run(mut self, screen: &mut Screen<'_>) -> Result<Settled, ChooseError> {
        let begun = Instant::now();
        let deadline = match self.settings.patience {
            Patience::For(patience) => begun.checked_add(patience),
            Patience::Forever | Patience::None => None,
        };
        if let Some(observer) = &mut self.observer {
            observer.observe(self.probe)?;
        }
        // A first look without the lock: mistakes and hopeless wishes end here, and a driver that hangs does
        // not hang every other gpurun with us.
        let look = self.look()?;
        self.say_notes(screen);
        let wanted = self.constraints.count.min as usize;
        let attainable = look.choice.attainable(&look.candidates);
        if attainable < wanted {
            return Err(ChooseError::Never(self.never(&look, attainable)));
        }
        let waits = self.settings.patience != Patience::None;
        if look.choice.enough
            && !(waits && self.anybody_waits(&look)?)
            && let Some(settled) = self.attempt()?
        {
            return Ok(settled);
        }
        if !waits {
            // Read again: what stood in the way may have come between the two looks.
            let look = if look.choice.enough { self.look()? } else { look };
            return Err(ChooseError::TooFew(self.too_few(&look)));
        }
        self.wait(look, begun, deadline, screen)
    }

    /// Probes, narrows, asks for leases, chooses.
    fn look(&mut self) -> Result<Look, ChooseError> {
        let mut request = self.request;
        // Names tell whether CUDA's own order can differ from the bus's.
        request.name |= self.ordinals.is_none() && self.text.as_deref().is_some_and(visible::has_ordinals);
        let mut snapshots = (self.probe)(&request).map_err(ChooseError::Driver)?;
        let exclusive = |device: &DeviceSnapshot| {
            matches!(device.compute_mode, Ok(ComputeMode::ExclusiveProcess | ComputeMode::ExclusiveThread))
        };
        if !request.processes && snapshots.iter().any(exclusive) {
            self.request.processes = true;
            request.processes = true;
            snapshots = (self.probe)(&request).map_err(ChooseError::Driver)?;
        }
        let mut candidates = self.narrow(snapshots);
        if let Some(observer) = &mut self.observer {
            observer.fold(Instant::now(), &mut candidates);
        }
        let leases = match self.directory {
            None => Vec::new(),
            Some(directory) => {
                let uuids: Vec<Option<&GpuUuid>> =
                    candidates.iter().map(|device| device.uuid.as_ref().ok()).collect();
                directory.states(&uuids, &self.surroundings.outer, self.settings.hold)?
            }
        };
        let choice = choose(&self.constraints, &candidates, &leases)?;
        Ok(Look { candidates, choice })
    }

    /// Keeps what the inherited `CUDA_VISIBLE_DEVICES` names, in its order.
    fn narrow(&mut self, snapshots: Vec<DeviceSnapshot>) -> Vec<DeviceSnapshot> {
        let Some(text) = self.text.clone() else { return snapshots };
        if self.ordinals.is_none() {
            let found = ordinals(&text, self.surroundings, &snapshots, self.ask, &mut self.notes);
            self.ordinals = Some(found);
        }
        let ordinals = self.ordinals.as_ref().unwrap_or(&Ordinals::PciBus);
        let seen = visible::parse(&text, &snapshots, ordinals);
        if !self.noted {
            self.noted = true;
            self.notes.extend(dropped_notes(&seen.dropped));
        }
        seen.devices.iter().filter_map(|&index| snapshots.get(index).cloned()).collect()
    }

    fn say_notes(&mut self, screen: &mut Screen<'_>) {
        for note in self.notes.drain(..) {
            screen.note(&note);
        }
    }

    /// Looks again under the host-wide lock, and takes what was chosen.
    fn attempt(&mut self) -> Result<Option<Settled>, ChooseError> {
        let (Some(directory), Some(holder)) = (self.directory, self.holder) else {
            let Look { candidates, choice } = self.look()?;
            return Ok(choice.enough.then_some(Settled { candidates, choice, lease: None }));
        };
        let selecting = directory.select_lock()?;
        let Look { candidates, choice } = self.look()?;
        if !choice.enough {
            return Ok(None);
        }
        let uuids: Vec<GpuUuid> = choice
            .chosen
            .iter()
            .filter_map(|&index| candidates.get(index)?.uuid.as_ref().ok().cloned())
            .collect();
        let lease = selecting.take(&uuids, &self.surroundings.outer, self.settings.hold, holder)?;
        Ok(lease.map(|lease| Settled { candidates, choice, lease: Some(lease) }))
    }

    /// Stands in the queue until the constraints hold.
    fn wait(
        &mut self,
        mut look: Look,
        begun: Instant,
        deadline: Option<Instant>,
        screen: &mut Screen<'_>,
    ) -> Result<Settled, ChooseError> {
        let directory = self.directory;
        let ticket = match directory {
            None => None,
            Some(directory) => {
                let selecting = directory.select_lock()?;
                Some(directory.join_queue(&selecting, &possible(&look))?)
            }
        };
        let mut watchers = Watchers::new();
        let pace = if screen.terminal { LIVE_LINE } else { LOG_LINE };
        let poll = self.observer.as_ref().map_or(POLL, Observer::pace);
        let mut next_status = Instant::now();
        let mut trouble: Option<String> = None;
        loop {
            let ahead = ticket.as_ref().map(Ticket::ahead).transpose()?.unwrap_or_default();
            let first = ahead.is_empty();
            if first {
                match self.attempt_while_waiting(&mut look) {
                    Ok(Some(settled)) => {
                        screen.clear();
                        return Ok(settled);
                    }
                    Ok(None) => trouble = None,
                    // The driver may be reloading, the lock may be in slow hands: neither ends the wait.
                    Err(
                        error @ (ChooseError::Driver(_)
                        | ChooseError::Selection(SelectionError::SelectLock { .. })),
                    ) => trouble = Some(error.to_string()),
                    Err(error) => {
                        screen.clear();
                        return Err(error);
                    }
                }
            }
            if let Some(directory) = directory {
                match ahead.last() {
                    Some(before) => watchers.watch(directory, before)?,
                    None => {
                        for uuid in held(&look) {
                            for name in directory.obstacles(uuid, &self.surroundings.outer)? {
                                watchers.watch(directory, &name)?;
                            }
                        }
                    }
                }
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                screen.clear();
                let waited = seconds_text(now - begun);
                let why = self.too_few(&look);
                return Err(ChooseError::WaitedTooLong(format!("waited {waited} in vain: {why}")));
            }
            if now >= next_status {
                next_status = now + pace;
                let line = self.waiting_line(&look, ahead.len(), now - begun, trouble.as_deref());
                screen.status(&line);
            }
            let mut until = next_status;
            if first {
                until = until.min(now + poll);
            }
            if let Some(deadline) = deadline {
                until = until.min(deadline);
            }
            watchers.sleep(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Looks without the lock, and takes it only when there is something to take.
    fn attempt_while_waiting(&mut self, look: &mut Look) -> Result<Option<Settled>, ChooseError> {
        *look = self.look()?;
        if look.choice.enough { self.attempt() } else { Ok(None) }
    }

    fn anybody_waits(&self, look: &Look) -> Result<bool, ChooseError> {
        match self.directory {
            None => Ok(false),
            Some(directory) => Ok(directory.anybody_waits(&possible(look))?),
        }
    }

    /// The live line: what is missing, and for how long.
    fn waiting_line(&self, look: &Look, ahead: usize, waited: Duration, trouble: Option<&str>) -> String {
        let wanted = self.constraints.count.min;
        let now = look.choice.chosen.len();
        let mut line = format!("waiting {} for {wanted} {}", seconds_text(waited), gpus(wanted as usize));
        if ahead > 0 {
            line.push_str(&format!(": {ahead} ahead in the queue"));
        } else {
            line.push_str(&format!(": {now} of {} now", look.candidates.len()));
            let reasons: Vec<String> = refusals(look).take(2).collect();
            if !reasons.is_empty() {
                line.push_str(&format!("; {}", reasons.join("; ")));
            }
        }
        if let Some(trouble) = trouble {
            line.push_str(&format!("; {trouble}"));
        }
        // A live line that wraps cannot be taken away again.
        if line.chars().count() > 110 {
            line = line.chars().take(107).collect::<String>() + "...";
        }
        line
    }

    fn too_few(&self, look: &Look) -> String {
        let wanted = self.constraints.count.min as usize;
        let text = format!(
            "{} of {} {} the constraints now, and {wanted} {} wanted",
            look.choice.chosen.len(),
            counted(look.candidates.len()),
            if look.choice.chosen.len() == 1 { "satisfies" } else { "satisfy" },
            if wanted == 1 { "is" } else { "are" },
        );
        self.with_reasons(text, look)
    }

    fn never(&self, look: &Look, attainable: usize) -> String {
        let wanted = self.constraints.count.min as usize;
        let of = if self.text.is_some() { " that can be seen" } else { "" };
        let text = format!(
            "{wanted} {} wanted, but of {}{of} at most {attainable} can ever satisfy the constraints",
            if wanted == 1 { "GPU is" } else { "GPUs are" },
            counted(look.candidates.len()),
        );
        self.with_reasons(text, look)
    }

    /// Adds why each device was refused, in the form that was asked for.
    fn with_reasons(&self, mut text: String, look: &Look) -> String {
        if self.settings.json {
            let json = explain::json(&look.choice, &look.candidates, self.settings.format);
            text.push_str(&format!("\n{json}"));
        } else if self.settings.explain {
            text.push_str(&format!("\n{}", explain::table(&look.choice, &look.candidates)));
        } else {
            text.push_str(&format!("\n{}", explain::short(&look.choice, &look.candidates)));
        }
        text.trim_end().to_owned()
    }
}

/// Devices that waiting could give.
fn possible(look: &Look) -> Vec<&GpuUuid> {
    look.choice
        .judged
        .iter()
        .filter(|judged| !judged.never_passes(&look.candidates))
        .filter_map(|judged| look.candidates.get(judged.candidate)?.uuid.as_ref().ok())
        .collect()
}

/// Devices that a lease keeps from us.
fn held(look: &Look) -> Vec<&GpuUuid> {
    use crate::selection::choose::Constraint;
    look.choice
        .judged
        .iter()
        .filter(|judged| judged.verdicts.iter().any(|v| v.constraint == Constraint::Lease && v.refuses()))
        .filter_map(|judged| look.candidates.get(judged.candidate)?.uuid.as_ref().ok())
        .collect()
}

/// The first refusal of each refused device, in words.
fn refusals(look: &Look) -> impl Iterator<Item = String> + '_ {
    look.choice.judged.iter().filter_map(|judged| {
        let device = look.candidates.get(judged.candidate)?;
        let verdict = judged.verdicts.iter().find(|verdict| verdict.refuses())?;
        Some(format!("{} {}", explain::device_label(device), explain::verdict_text(verdict)))
    })
}

fn gpus(number: usize) -> &'static str {
    if number == 1 { "GPU" } else { "GPUs" }
}

fn counted(number: usize) -> String {
    format!("{number} {}", gpus(number))
}

/// `12 s`, `3 min 4 s`, `2 h 5 min`.
fn seconds_text(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Threads that block in the kernel until a lock is let go, and then wake the one that waits.
struct Watchers {
    sender: mpsc::Sender<String>,
    receiver: mpsc::Receiver<String>,
    watched: BTreeSet<String>,
}

impl Watchers {
    fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        Self { sender, receiver, watched: BTreeSet::new() }
    }

    /// Watches a lock file, once.
    fn watch(&mut self, directory: &LeaseDirectory, name: &str) -> Result<(), ChooseError> {
        if !self.watched.insert(name.to_owned()) {
            return Ok(());
        }
        let directory = directory.try_clone()?;
        let sender = self.sender.clone();
        let name = name.to_owned();
        let started =
            thread::Builder::new().name("lease-watch".to_owned()).stack_size(64 * 1024).spawn(move || {
                // This thread may outlive the wait: no signal that is meant for the job may end up in it.
                SignalSet::ALL.block();
                let _ = directory.wait_for_release(&name);
                let _ = sender.send(name);
            });
        if started.is_err() {
            // Without a thread the poll finds it, a little later.
            self.watched.clear();
        }
        Ok(())
    }

    /// Sleeps until a watched lock is let go, at most this long.
    fn sleep(&mut self, at_most: Duration) {
        if let Ok(name) = self.receiver.recv_timeout(at_most) {
            self.watched.remove(&name);
            while let Ok(name) = self.receiver.try_recv() {
                self.watched.remove(&name);
            }
        }
    }
}

/// Keeps the utilisation of the last while, for `--observe`.
struct Observer {
    span: Duration,
    seen: HashMap<GpuUuid, VecDeque<(Instant, Known<u32>, Known<u32>)>>,
}

impl Observer {
    fn new(span: Duration) -> Self {
        Self { span, seen: HashMap::new() }
    }

    /// Time between two reads: NVML averages over a sixth of a second up to a second.
    fn pace(&self) -> Duration {
        (self.span / 10).clamp(Duration::from_millis(100), Duration::from_secs(1))
    }

    /// Reads utilisation for the whole span.
    fn observe(&mut self, probe: Probe<'_>) -> Result<(), ChooseError> {
        let request = ProbeRequest { utilization: true, ..ProbeRequest::default() };
        let end = Instant::now() + self.span;
        loop {
            let mut snapshots = probe(&request).map_err(ChooseError::Driver)?;
            self.fold(Instant::now(), &mut snapshots);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(self.pace()));
        }
    }

    /// Remembers what was just read, and puts the maximum over the span in its place.
    fn fold(&mut self, now: Instant, snapshots: &mut [DeviceSnapshot]) {
        // A little more than the span, so that a read at its very edge still counts.
        let kept = self.span + self.pace();
        for device in snapshots {
            let Ok(uuid) = &device.uuid else { continue };
            let seen = self.seen.entry(uuid.clone()).or_default();
            seen.push_back((now, device.gpu_utilization.clone(), device.memory_utilization.clone()));
            while seen.front().is_some_and(|(at, ..)| now.saturating_duration_since(*at) > kept) {
                seen.pop_front();
            }
            let highest = |values: &mut dyn Iterator<Item = &Known<u32>>, latest: &Known<u32>| {
                values
                    .filter_map(|value| value.as_ref().ok())
                    .max()
                    .copied()
                    .ok_or(())
                    .or_else(|()| latest.clone())
            };
            device.gpu_utilization =
                highest(&mut seen.iter().map(|(_, gpu, _)| gpu), &device.gpu_utilization);
            device.memory_utilization =
                highest(&mut seen.iter().map(|(_, _, memory)| memory), &device.memory_utilization);
        }
    }
}

/// What `names` a device list for messages; kept here so that select and jobs say it alike.
pub(super) fn assignment(chosen: &[&DeviceSnapshot], format: NameFormat) -> String {
    format!("{VISIBLE_VARIABLE}=\"{}\"", explain::names(chosen, format).join(","))
}

/// Lease state of devices for a listing.
pub(super) fn holders(
    directory: Option<&LeaseDirectory>,
    device: &DeviceSnapshot,
) -> Result<Vec<Holder>, SelectionError> {
    match (directory, &device.uuid) {
        (Some(directory), Ok(uuid)) => directory.holders(uuid),
        _ => Ok(Vec::new()),
    }
}
