//! The wait of a choice: in the queue, asleep until something changes, to the deadline.

use std::time::{Duration, Instant};

use super::chooser::{Chooser, Evaluation, gpus, possible};
use super::observe::Observer;
use super::watch::Watchers;
use super::{ChooseError, ChosenDevices, Screen, Shortage};
use crate::model::id::GpuUuid;
use crate::selection::SelectionError;
use crate::selection::choose::Constraint;
use crate::selection::explain;
use crate::selection::queue::{BEAT, Ticket};
use crate::sys::format;
use crate::sys::stat::Stat;

/// How often the live line is drawn on a terminal.
const LIVE_LINE: Duration = Duration::from_secs(1);
/// How often a line is written where there is no terminal.
const LOG_LINE: Duration = Duration::from_secs(60);

/// How a wait stands.
pub(super) struct Wait {
    pub(super) look: Evaluation,
    pub(super) begun: Instant,
    pub(super) deadline: Option<Instant>,
    ticket: Option<Ticket>,
    /// Why the last try could not even look.
    trouble: Option<String>,
}

impl Wait {
    pub(super) fn new(look: Evaluation, begun: Instant, deadline: Option<Instant>) -> Self {
        Self { look, begun, deadline, ticket: None, trouble: None }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// The tickets ahead, the nearest first.
    fn ahead(&self) -> Result<impl Iterator<Item = String> + '_, ChooseError> {
        let ahead = self.ticket.as_ref().map(Ticket::ahead).transpose()?;
        Ok(ahead.into_iter().flatten())
    }
}

impl Chooser<'_> {
    /// Stands in the queue until the constraints hold.
    pub(super) fn wait(
        mut self,
        mut wait: Wait,
        screen: &mut Screen<'_>,
    ) -> Result<ChosenDevices, ChooseError> {
        let mut watchers = Watchers::new();
        let pace = if screen.columns.is_some() { LIVE_LINE } else { LOG_LINE };
        // How often the driver is asked about processes that hold no lease.
        let poll = self.observer.as_ref().map_or(BEAT, Observer::pace);
        let mut next_status = Instant::now();
        loop {
            let taken = self.round(&mut wait).inspect_err(|_| screen.clear())?;
            if let Some(taken) = taken {
                screen.clear();
                return Ok(taken);
            }
            self.watch(&wait, &mut watchers)?;
            let now = Instant::now();
            if wait.is_over(now) {
                screen.clear();
                return Err(ChooseError::WaitedTooLong(self.timed_out(&mut wait)?));
            }
            if now >= next_status {
                next_status = now + pace;
                screen.status(&self.waiting_line(&wait, now)?);
            }
            let until = [Some(next_status), Some(now + poll.min(BEAT)), wait.deadline];
            let until = until.into_iter().flatten().min().unwrap_or(now);
            watchers.sleep(until.saturating_duration_since(Instant::now()));
        }
    }

    /// Shows that this waiter is there, and tries to take something where no other is ahead.
    fn round(&mut self, wait: &mut Wait) -> Result<Option<ChosenDevices>, ChooseError> {
        // The sidecar may go on alone while the gpurun that the user sees is stopped.
        if is_stopped(self.me.pid) {
            return Ok(None);
        }
        let tried = self.join(wait).and_then(|()| {
            if wait.ahead()?.next().is_some() {
                return Ok(None);
            }
            // A look without the lock, which is taken only when there is something to take.
            wait.look = self.look()?;
            if !wait.look.choice.enough {
                return Ok(None);
            }
            self.attempt(wait.deadline, &mut || wait.ticket.iter().for_each(Ticket::beat))
        });
        match tried {
            Ok(taken) => {
                wait.trouble = None;
                Ok(taken)
            }
            // The driver may be reloading, the lock may be in slow hands: neither ends the wait.
            Err(
                error @ (ChooseError::Driver(_) | ChooseError::Selection(SelectionError::SelectLock { .. })),
            ) => {
                wait.trouble = Some(error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes sure that there is a ticket which others see.
    fn join(&mut self, wait: &mut Wait) -> Result<(), ChooseError> {
        if wait.ticket.as_ref().is_some_and(Ticket::is_there) {
            wait.ticket.iter().for_each(Ticket::beat);
            return Ok(());
        }
        wait.ticket = None;
        let selecting = self.select(wait.deadline, &mut || {})?;
        wait.ticket =
            selecting.map(|selecting| selecting.join_queue(&self.me, &possible(&wait.look))).transpose()?;
        Ok(())
    }

    /// Watches the lock whose release may end the wait.
    fn watch(&self, wait: &Wait, watchers: &mut Watchers) -> Result<(), ChooseError> {
        let Some(directory) = &self.directory else { return Ok(()) };
        if let Some(before) = wait.ahead()?.next() {
            watchers.watch(directory, &before);
            return Ok(());
        }
        for uuid in held(&wait.look) {
            for name in directory.obstacles(uuid, &self.surroundings.outer)? {
                watchers.watch(directory, &name);
            }
        }
        Ok(())
    }

    /// Why the wait was in vain.
    fn timed_out(&mut self, wait: &mut Wait) -> Result<Shortage, ChooseError> {
        self.add_users(&mut wait.look);
        let mut why = self.too_few(&wait.look);
        let cause = match (&wait.trouble, self.ahead_text(wait)?) {
            (Some(trouble), _) => trouble.clone(),
            (None, Some(ahead)) => ahead,
            (None, None) => String::new(),
        };
        let mut lines = why.text.lines();
        let first = lines.next().unwrap_or_default();
        let first = if cause.is_empty() { first } else { cause.as_str() };
        // The time that was given: the last look may have taken a moment longer.
        let waited = wait.deadline.map_or(Duration::ZERO, |deadline| deadline - wait.begun);
        let waited = format::span(waited);
        let text = [format!("timed out after {waited}: {first}")];
        why.text = text.into_iter().chain(lines.map(str::to_owned)).collect::<Vec<_>>().join("\n");
        Ok(why)
    }

    /// How many are ahead in the queue, and which is served first; `None` where there is none.
    fn ahead_text(&self, wait: &Wait) -> Result<Option<String>, ChooseError> {
        let ahead: Vec<String> = wait.ahead()?.collect();
        let (Some(first), Some(ticket)) = (ahead.last(), &wait.ticket) else { return Ok(None) };
        Ok(Some(format!("{} ahead in the queue, first {}", ahead.len(), ticket.holder_of(first))))
    }

    /// The live line: what is missing, and for how long.
    fn waiting_line(&self, wait: &Wait, now: Instant) -> Result<String, ChooseError> {
        let look = &wait.look;
        let wanted = self.constraints.count.min;
        let waited = format::elapsed((now - wait.begun).as_secs());
        let mut line = format!("waiting for {wanted} {} ({waited}): ", gpus(wanted as usize));
        if let Some(ahead) = self.ahead_text(wait)? {
            line.push_str(&ahead);
        } else {
            line.push_str(&format!("{} of {} available", look.choice.chosen.len(), look.candidates.len()));
            let reasons: Vec<String> = refusals(look).take(2).collect();
            if !reasons.is_empty() {
                line.push_str(&format!("; {}", reasons.join("; ")));
            }
        }
        if let Some(trouble) = &wait.trouble {
            line.push_str(&format!("; {trouble}"));
        }
        Ok(line)
    }
}

/// Whether a process is stopped, by job control or a debugger.
fn is_stopped(pid: u32) -> bool {
    let stat = i32::try_from(pid).ok().and_then(Stat::read);
    stat.is_some_and(|stat| matches!(stat.state, b'T' | b't'))
}

/// Devices that a lease keeps from us.
fn held(look: &Evaluation) -> Vec<&GpuUuid> {
    look.choice
        .judged
        .iter()
        .filter(|judged| judged.verdicts.iter().any(|v| v.constraint == Constraint::Lease && v.refuses()))
        .filter_map(|judged| look.candidates.get(judged.candidate)?.uuid.as_ref().ok())
        .collect()
}

/// The first refusal of each refused device, in words.
fn refusals(look: &Evaluation) -> impl Iterator<Item = String> + '_ {
    look.choice.judged.iter().filter_map(|judged| {
        let device = look.candidates.get(judged.candidate)?;
        Some(format!("{} {}", explain::device_label(device), explain::refusal(judged, device)?))
    })
}
