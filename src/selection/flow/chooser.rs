//! One choice from the first look to the lease: looks, takes, or stands in the queue.

use std::time::{Duration, Instant};

use super::observe::Observer;
use super::order::ordinals;
use super::watch::Watchers;
use super::{
    ChooseError, CudaOrder, Probe, Screen, Settled, Shortage, Surroundings, VISIBLE_VARIABLE, dropped_notes,
    verdicts,
};
use crate::model::device::{ComputeMode, DeviceSnapshot, ProbeRequest};
use crate::model::id::GpuUuid;
use crate::model::selection::{Candidates, Constraints, Patience, Settings};
use crate::selection::SelectionError;
use crate::selection::choose::{Choice, Constraint, choose};
use crate::selection::explain;
use crate::selection::holder::Holder;
use crate::selection::lease::LeaseDirectory;
use crate::selection::queue::Ticket;
use crate::selection::visible::{self, Ordinals};
use crate::sys::format;
use crate::sys::notice::Verbosity;

/// How often the first in the queue asks the driver about processes that hold no lease.
const POLL: Duration = Duration::from_secs(2);
/// How often the live line is drawn on a terminal.
const LIVE_LINE: Duration = Duration::from_secs(1);
/// How often a line is written where there is no terminal.
const LOG_LINE: Duration = Duration::from_secs(60);

/// One look at the devices.
struct Look {
    candidates: Vec<DeviceSnapshot>,
    choice: Choice,
}

pub(super) struct Chooser<'a> {
    pub(super) settings: &'a Settings,
    pub(super) surroundings: &'a Surroundings,
    pub(super) probe: Probe<'a>,
    pub(super) ask: CudaOrder<'a>,
    pub(super) holder: Option<&'a Holder>,
    pub(super) directory: Option<&'a LeaseDirectory>,
    pub(super) constraints: Constraints,
    pub(super) request: ProbeRequest,
    /// The `CUDA_VISIBLE_DEVICES` to choose inside of.
    pub(super) text: Option<String>,
    pub(super) ordinals: Option<Ordinals>,
    pub(super) notes: Vec<String>,
    pub(super) noted: bool,
    pub(super) observer: Option<Observer>,
    pub(super) verbosity: Verbosity,
    /// GPUs that the inherited `CUDA_VISIBLE_DEVICES` leaves out, of all.
    pub(super) hidden: Option<(usize, usize)>,
}

impl Chooser<'_> {
    pub(super) fn run(mut self, screen: &mut Screen<'_>) -> Result<Settled, ChooseError> {
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
        if look.choice.enough && !(waits && self.anybody_waits(&look)?) {
            if self.directory.is_none() || self.holder.is_none() {
                // Nothing is taken, so there is nothing to look for again.
                let Look { candidates, choice } = look;
                return Ok(Settled { candidates, choice, lease: None });
            }
            if let Some(settled) = self.attempt()? {
                return Ok(settled);
            }
        }
        if !waits {
            // Read again: what stood in the way may have come between the two looks.
            let mut look = if look.choice.enough { self.look()? } else { look };
            self.add_users(&mut look);
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
        self.hidden = Some((snapshots.len() - seen.devices.len(), snapshots.len()));
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
        let pace = if screen.columns.is_some() { LIVE_LINE } else { LOG_LINE };
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
                let waited = format::elapsed((now - begun).as_secs());
                self.add_users(&mut look);
                let mut why = self.too_few(&look);
                why.text = format!("timed out after {waited}: {}", why.text);
                return Err(ChooseError::WaitedTooLong(why));
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
        let waited = format::elapsed(waited.as_secs());
        let mut line = format!("waiting for {wanted} {} ({waited})", gpus(wanted as usize));
        if ahead > 0 {
            line.push_str(&format!(": {ahead} ahead in the queue"));
        } else {
            line.push_str(&format!(": {now} of {} available", look.candidates.len()));
            let reasons: Vec<String> = refusals(look).take(2).collect();
            if !reasons.is_empty() {
                line.push_str(&format!("; {}", reasons.join("; ")));
            }
        }
        if let Some(trouble) = trouble {
            line.push_str(&format!("; {trouble}"));
        }
        line
    }

    /// Reads who uses the devices, for the explanation. What cannot be read is left out of it.
    fn add_users(&mut self, look: &mut Look) {
        let request = ProbeRequest { processes: true, ..ProbeRequest::default() };
        let Ok(snapshots) = (self.probe)(&request) else { return };
        for device in &mut look.candidates {
            let same = |other: &&DeviceSnapshot| (other.index, other.mig) == (device.index, device.mig);
            if let Some(read) = snapshots.iter().find(same) {
                device.processes = read.processes.clone();
            }
        }
    }

    fn too_few(&self, look: &Look) -> Shortage {
        let wanted = self.constraints.count.min as usize;
        let chosen = look.choice.chosen.len();
        let mut text = format!(
            "{chosen} of {} {} the constraints now, {wanted} {} needed",
            counted(look.candidates.len()),
            if chosen == 1 || look.candidates.len() == 1 { "satisfies" } else { "satisfy" },
            if wanted == 1 { "is" } else { "are" },
        );
        if self.settings.patience == Patience::None {
            text.push_str("; --wait waits until they do");
        }
        self.with_reasons(text, look)
    }

    fn never(&self, look: &Look, attainable: usize) -> Shortage {
        let wanted = self.constraints.count.min as usize;
        let text = format!(
            "{wanted} {} needed, but at most {attainable} of {} can ever satisfy the constraints",
            if wanted == 1 { "GPU is" } else { "GPUs are" },
            counted(look.candidates.len()),
        );
        self.with_reasons(text, look)
    }

    /// Adds what hides GPUs, and why each device was refused.
    fn with_reasons(&self, mut line: String, look: &Look) -> Shortage {
        line.push_str(&self.hidden_text());
        for reason in verdicts(&look.choice, &look.candidates, self.verbosity) {
            line.push_str("\n  ");
            line.push_str(&reason);
        }
        Shortage { text: line, json: explain::json(&look.choice, &look.candidates, self.settings.format) }
    }

    /// The option that brings back the GPUs that an inherited `CUDA_VISIBLE_DEVICES` hides.
    fn hidden_text(&self) -> String {
        let Some((hidden @ 1.., all)) = self.hidden else { return String::new() };
        let Candidates::Inherited = self.settings.candidates else { return String::new() };
        let value = self.text.as_deref().unwrap_or_default();
        let way_out =
            if self.constraints.for_job { "--all-devices ignores it" } else { "leave out -i to ignore it" };
        format!("; {VISIBLE_VARIABLE}={value:?} hides {hidden} of {}: {way_out}", counted(all))
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
        Some(format!("{} {}", explain::device_label(device), explain::refusal(judged, device)?))
    })
}

fn gpus(number: usize) -> &'static str {
    if number == 1 { "GPU" } else { "GPUs" }
}

fn counted(number: usize) -> String {
    format!("{number} {}", gpus(number))
}
