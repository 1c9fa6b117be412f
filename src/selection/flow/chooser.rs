//! One choice from the first reading of the devices to the lease: reads, takes, or stands in the queue.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::observe::Observer;
use super::order::ordinals;
use super::waiting::Wait;
use super::{
    ChooseError, ChosenDevices, CudaOrder, Probe, Screen, Shortage, Surroundings, VISIBLE_VARIABLE,
    dropped_notes, verdicts,
};
use crate::model::device::{ComputeMode, DeviceSnapshot, ProbeRequest};
use crate::model::id::GpuUuid;
use crate::model::selection::{Candidates, Constraints, Patience, Settings};
use crate::selection::SelectionError;
use crate::selection::choose::{Choice, choose};
use crate::selection::directory::LeaseDirectory;
use crate::selection::explain;
use crate::selection::gate::Selecting;
use crate::selection::holder::Holder;
use crate::selection::lease::HOLDER_LOOK;
use crate::selection::visible::{self, Ordinals};
use crate::sys::notice::Verbosity;

/// What the devices were at one reading, and what was chosen of them.
pub(super) struct Evaluation {
    pub(super) candidates: Vec<DeviceSnapshot>,
    pub(super) choice: Choice,
}

pub(super) struct Chooser<'a> {
    pub(super) settings: &'a Settings,
    pub(super) surroundings: &'a Surroundings,
    pub(super) probe: Probe<'a>,
    pub(super) ask: CudaOrder<'a>,
    pub(super) holder: Option<&'a Holder>,
    /// What others see of this gpurun, also where it takes nothing.
    pub(super) me: Holder,
    pub(super) directory: Option<Arc<LeaseDirectory>>,
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
    pub(super) fn run(mut self, screen: &mut Screen<'_>) -> Result<ChosenDevices, ChooseError> {
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
                let Evaluation { candidates, choice } = look;
                return Ok(ChosenDevices { candidates, choice, lease: None });
            }
            match self.attempt(deadline, &mut || {}) {
                Ok(Some(taken)) => return Ok(taken),
                Ok(None) => {}
                // Waiting goes on for as long as it was asked for.
                Err(ChooseError::Selection(SelectionError::SelectLock { .. })) if waits => {}
                Err(error) => return Err(error),
            }
        }
        if !waits {
            // Read again: what stood in the way may have come between the two looks.
            let mut look = if look.choice.enough { self.look()? } else { look };
            self.add_users(&mut look);
            return Err(ChooseError::TooFew(self.too_few(&look)));
        }
        self.wait(Wait::new(look, begun, deadline), screen)
    }

    /// Probes, narrows, asks for leases, chooses.
    pub(super) fn look(&mut self) -> Result<Evaluation, ChooseError> {
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
        let is_first = !std::mem::replace(&mut self.noted, true);
        if is_first {
            self.notes.extend(unmatched_note(&self.constraints, &snapshots));
        }
        let mut candidates = self.narrow(snapshots, is_first);
        if let Some(observer) = &mut self.observer {
            observer.fold(Instant::now(), &mut candidates);
        }
        let leases = match &self.directory {
            None => Vec::new(),
            Some(directory) => {
                let uuids: Vec<Option<&GpuUuid>> =
                    candidates.iter().map(|device| device.uuid.as_ref().ok()).collect();
                directory.states(&uuids, &self.surroundings.outer, self.settings.hold)?
            }
        };
        let choice = choose(&self.constraints, &candidates, &leases)?;
        Ok(Evaluation { candidates, choice })
    }

    /// Keeps what the inherited `CUDA_VISIBLE_DEVICES` names, in its order.
    fn narrow(&mut self, snapshots: Vec<DeviceSnapshot>, is_first: bool) -> Vec<DeviceSnapshot> {
        let Some(text) = self.text.clone() else { return snapshots };
        let source = match &self.settings.candidates {
            Candidates::Named(typed) => format!("-i {typed}"),
            Candidates::All | Candidates::Inherited => VISIBLE_VARIABLE.to_owned(),
        };
        if self.ordinals.is_none() {
            let found = ordinals(&text, &source, self.surroundings, &snapshots, self.ask, &mut self.notes);
            self.ordinals = Some(found);
        }
        let ordinals = self.ordinals.as_ref().unwrap_or(&Ordinals::PciBus);
        let seen = visible::parse(&text, &snapshots, ordinals);
        self.hidden = Some((snapshots.len() - seen.devices.len(), snapshots.len()));
        if is_first {
            self.notes.extend(dropped_notes(&seen.dropped, &source));
        }
        seen.devices.iter().filter_map(|&index| snapshots.get(index).cloned()).collect()
    }

    fn say_notes(&mut self, screen: &mut Screen<'_>) {
        for note in self.notes.drain(..) {
            screen.note(&note);
        }
    }

    /// Takes the host-wide lock, in a new directory where the one in use was removed; `None` without leases.
    pub(super) fn select(
        &mut self,
        deadline: Option<Instant>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Option<Selecting>, ChooseError> {
        while let Some(directory) = &self.directory {
            if let Some(selecting) = directory.select_lock(&self.me, deadline, meanwhile)? {
                return Ok(Some(selecting));
            }
            self.directory = Some(LeaseDirectory::open_or_create(&self.surroundings.lease_directory)?);
            // Holders take what they hold again before anybody else does.
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            thread::sleep(left.map_or(HOLDER_LOOK * 2, |left| left.min(HOLDER_LOOK * 2)));
        }
        Ok(None)
    }

    /// Looks again under the host-wide lock, and takes what was chosen.
    pub(super) fn attempt(
        &mut self,
        deadline: Option<Instant>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Option<ChosenDevices>, ChooseError> {
        let Some(holder) = self.holder else {
            let Evaluation { candidates, choice } = self.look()?;
            return Ok(choice.enough.then_some(ChosenDevices { candidates, choice, lease: None }));
        };
        let Some(selecting) = self.select(deadline, meanwhile)? else { return Ok(None) };
        let Evaluation { candidates, choice } = self.look()?;
        if !choice.enough {
            return Ok(None);
        }
        let uuids: Vec<GpuUuid> = choice
            .chosen
            .iter()
            .filter_map(|&index| candidates.get(index)?.uuid.as_ref().ok().cloned())
            .collect();
        let lease = selecting.take(&uuids, &self.surroundings.outer, self.settings.hold, holder)?;
        Ok(lease.map(|lease| ChosenDevices { candidates, choice, lease: Some(lease) }))
    }

    fn anybody_waits(&self, look: &Evaluation) -> Result<bool, ChooseError> {
        match &self.directory {
            None => Ok(false),
            Some(directory) => Ok(directory.anybody_waits(&possible(look))?),
        }
    }

    /// Reads which processes use the devices, for the explanation. What cannot be read is left out of it.
    pub(super) fn add_users(&mut self, look: &mut Evaluation) {
        let request = ProbeRequest { processes: true, ..ProbeRequest::default() };
        let Ok(snapshots) = (self.probe)(&request) else { return };
        for device in &mut look.candidates {
            let same = |other: &&DeviceSnapshot| (other.index, other.mig) == (device.index, device.mig);
            if let Some(read) = snapshots.iter().find(same) {
                device.processes = read.processes.clone();
            }
        }
    }

    pub(super) fn too_few(&self, look: &Evaluation) -> Shortage {
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

    fn never(&self, look: &Evaluation, attainable: usize) -> Shortage {
        let wanted = self.constraints.count.min as usize;
        let text = format!(
            "{wanted} {} needed, but at most {attainable} of {} can ever satisfy the constraints",
            if wanted == 1 { "GPU is" } else { "GPUs are" },
            counted(look.candidates.len()),
        );
        self.with_reasons(text, look)
    }

    /// Adds what hides GPUs, and why each device was refused.
    fn with_reasons(&self, mut line: String, look: &Evaluation) -> Shortage {
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

/// Words for what `--exclude` names and the host does not have: a typing error leaves a GPU in that was to be spared.
fn unmatched_note(constraints: &Constraints, devices: &[DeviceSnapshot]) -> Option<String> {
    let unmatched = constraints.exclude.iter().filter(|name| !devices.iter().any(|d| name.covers(d)));
    let unmatched: Vec<String> = unmatched.map(ToString::to_string).collect();
    (!unmatched.is_empty()).then(|| format!("no GPU matches --exclude {}", unmatched.join(",")))
}

/// Devices that waiting could give.
pub(super) fn possible(look: &Evaluation) -> Vec<&GpuUuid> {
    look.choice
        .judged
        .iter()
        .filter(|judged| !judged.never_passes(&look.candidates))
        .filter_map(|judged| look.candidates.get(judged.candidate)?.uuid.as_ref().ok())
        .collect()
}

pub(super) fn gpus(number: usize) -> &'static str {
    if number == 1 { "GPU" } else { "GPUs" }
}

fn counted(number: usize) -> String {
    format!("{number} {}", gpus(number))
}
