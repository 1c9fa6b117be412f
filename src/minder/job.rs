//! The running job as the minder sees it: one loop over signals, the sidecar's messages and children.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::Signal;

use super::children::{self, Change, Reaped};
use super::forward;
use super::origin::{Decision, NotForwarded, Origin, decide};
use super::sidecar::Sidecar;
use super::stop;
use super::tree;
use super::witness::{Verdict, Witness};
use crate::link::{Closed, StopRequest, ToMinder, ToSidecar};
use crate::model::run::JobExit;
use crate::model::time::Mono;
use crate::sys::clock::monotonic;
use crate::sys::inherited::inherited;
use crate::sys::signal_source::SignalSource;

/// How often children are looked at although nothing was heard: where another thread of this process (a preloaded
/// library's) takes SIGCHLD away, stops and orphans are noticed by this alone.
const TICK: Duration = Duration::from_millis(250);

/// The same where the end of the job has no descriptor to wait on (kernels before 5.3).
const TICK_WITHOUT_PIDFD: Duration = Duration::from_millis(20);

/// Child events after which the descriptors and the deadline get their turn.
const STREAK: u32 = 32;

/// Reaped pids that are remembered, to recognize a sender that is gone already.
const RECENT: usize = 64;

/// Signals that ask a program to end.
pub(super) const STOP_REQUESTS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum JobEvent {
    /// A process of the job was reaped.
    Reaped(Reaped),
    /// The main process has ended; comes right after its `Reaped`, once. `None`: its status was taken by another thread of
    /// this process, or thrown away by the kernel because one ignores SIGCHLD.
    MainExited(Option<JobExit>),
    /// A signal was sent on to the job.
    Forwarded(i32),
    /// A signal came and was not sent on.
    NotForwarded(i32, NotForwarded),
    /// The main process was stopped. If job control did it, the minder stops itself in the next call.
    Suspended,
    /// The main process runs again.
    Resumed,
    /// The sidecar has finished its files, or has said why there are none.
    FilesDone,
    /// The sidecar has ended without a word.
    SidecarLost,
    /// The time has passed.
    Deadline,
}

/// The job's main process and everything that comes back to the minder.
#[derive(Debug)]
pub(super) struct Job {
    signals: SignalSource,
    pub(super) sidecar: Sidecar,
    /// The sidecar has said its last word.
    files_done: bool,
    witness: Witness<libc::signalfd_siginfo>,
    own_pid: i32,
    pid: i32,
    pidfd: Option<OwnedFd>,
    ended: bool,
    exit: Option<JobExit>,
    end_untold: bool,
    /// Children that are not the job's: those from before it, and the sidecar.
    not_the_jobs: Vec<i32>,
    look_at_children: bool,
    suspended: bool,
    /// The signal by which the minder has yet to stop itself.
    stop_due: Option<i32>,
    /// Child events in a row; bounded so that a storm of them never starves the deadline.
    streak: u32,
    recent: [i32; RECENT],
    recent_at: usize,
}

impl Job {
    /// `pid` is the job's main process, just made and not reaped.
    pub(super) fn new(signals: SignalSource, sidecar: Sidecar, pid: i32, earlier_children: Vec<i32>) -> Self {
        let mut not_the_jobs = earlier_children;
        not_the_jobs.push(sidecar.pid());
        Job {
            signals,
            sidecar,
            files_done: false,
            witness: Witness::new(monotonic()),
            own_pid: rustix::process::getpid().as_raw_nonzero().get(),
            pid,
            pidfd: children::pidfd(pid),
            ended: false,
            exit: None,
            end_untold: false,
            not_the_jobs,
            look_at_children: true,
            suspended: false,
            stop_due: None,
            streak: 0,
            recent: [0; RECENT],
            recent_at: 0,
        }
    }

    /// Process id of the minder.
    pub(super) fn own_pid(&self) -> i32 {
        self.own_pid
    }

    /// Whether the sidecar has finished its files, or has said why there are none.
    pub(super) fn files_done(&self) -> bool {
        self.files_done
    }

    /// Asks the sidecar for a sign of life; the number that its answer will have.
    pub(super) fn ask(&mut self) -> u32 {
        let question = self.witness.ask();
        self.sidecar.send(&ToSidecar::Ping(question));
        question
    }

    /// The number of the question that the sidecar answered last.
    pub(super) fn last_answer(&self) -> u32 {
        self.witness.last_answer()
    }

    /// The next thing that happens, at the latest at `deadline`. Signals come before children; a flood of children does
    /// not hold up the rest.
    pub(super) fn next_event(&mut self, deadline: Option<Mono>) -> JobEvent {
        loop {
            self.stop_beside_job();
            if std::mem::take(&mut self.end_untold) {
                return JobEvent::MainExited(self.exit);
            }
            let event = self.next_signal().or_else(|| self.next_message()).or_else(|| self.next_verdict());
            if let Some(event) = event {
                return event;
            }
            if self.look_at_children && self.streak < STREAK {
                match self.next_child_event() {
                    Some(event) => {
                        self.streak += 1;
                        return event;
                    }
                    None => self.look_at_children = false,
                }
                if !self.ended && !children::is_there(self.pid) {
                    self.main_ended(None);
                    continue;
                }
            }
            self.streak = 0;
            let now = monotonic();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return JobEvent::Deadline;
            }
            self.wait(deadline, now);
        }
    }

    /// Waits until there may be something to do.
    fn wait(&mut self, deadline: Option<Mono>, now: Mono) {
        let tick = if self.pidfd.is_some() || self.ended { TICK } else { TICK_WITHOUT_PIDFD };
        let until = [deadline, self.witness.deadline()].into_iter().flatten().min();
        let time = match until {
            _ if self.look_at_children => Duration::ZERO,
            Some(until) => until.since(now).min(tick),
            None => tick,
        };
        let link = self.sidecar.link();
        // Where there is no pidfd or no link, the signals stand once more in its place.
        let pidfd = self.pidfd.as_ref().map_or(self.signals.as_fd(), |fd| fd.as_fd());
        let link_flags = match link {
            Some((_, true)) => PollFlags::IN | PollFlags::OUT,
            _ => PollFlags::IN,
        };
        let mut entries = [
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(pidfd, PollFlags::IN),
            PollFd::from_borrowed_fd(link.map_or(self.signals.as_fd(), |(fd, _)| fd), link_flags),
        ];
        let ready = self.signals.poll(&mut entries, Some(time));
        let is_dead = self.pidfd.is_some() && !entries[1].revents().is_empty();
        if ready == 0 || is_dead {
            self.look_at_children = true;
            // Dead children leave no status while it is ignored.
            self.signals.catch(libc::SIGCHLD);
        }
    }

    /// Reads one signal; `None` once none is left.
    fn next_signal(&mut self) -> Option<JobEvent> {
        while let Some(info) = self.signals.read() {
            if let Some(event) = self.on_signal(&info) {
                return Some(event);
            }
        }
        self.witness.drained(monotonic());
        None
    }

    fn on_signal(&mut self, info: &libc::signalfd_siginfo) -> Option<JobEvent> {
        let signal = i32::try_from(info.ssi_signo).ok()?;
        let sender = i32::try_from(info.ssi_pid).unwrap_or(0);
        if signal == libc::SIGCHLD {
            // The kernel keeps one pending SIGCHLD: this one may stand for a child's as well.
            self.look_at_children = true;
        }
        match Origin::new(signal, info.ssi_code, sender) {
            Origin::Child => None,
            // The minder's own write to a closed pipe, or its own stop.
            Origin::Process(pid) if pid == self.own_pid => None,
            _ if self.ended => Some(JobEvent::NotForwarded(signal, NotForwarded::JobGone)),
            origin => {
                let decision = decide(signal, origin, inherited().leads_session, |pid| self.in_job(pid));
                if decision != Decision::Withhold(NotForwarded::FromJob) {
                    self.tell_of_stop(signal, origin, info.ssi_uid);
                }
                match decision {
                    Decision::Forward => Some(self.forward(info)),
                    Decision::Withhold(why) => Some(JobEvent::NotForwarded(signal, why)),
                    Decision::AskWitness => {
                        self.witness.hold(signal, sender, *info, monotonic());
                        None
                    }
                }
            }
        }
    }

    /// Lets the sidecar know at once what asks the job to end from outside: the sender may not live long.
    fn tell_of_stop(&mut self, signal: i32, origin: Origin, uid: u32) {
        let sender = match origin {
            Origin::Process(pid) => Some((pid, uid)),
            Origin::Kernel => None,
            Origin::Child => return,
        };
        if STOP_REQUESTS.contains(&signal) {
            self.sidecar.send(&ToSidecar::Signalled(StopRequest { signal, sender }));
        }
    }

    /// What the sidecar says.
    fn next_message(&mut self) -> Option<JobEvent> {
        loop {
            match self.sidecar.receive() {
                Ok(None) => return None,
                Ok(Some((ToMinder::Witnessed(seen), _))) => self.witness.saw(seen),
                Ok(Some((ToMinder::Pong(number), _))) => self.witness.answered(number),
                Ok(Some((ToMinder::Done, _))) => {
                    self.files_done = true;
                    return Some(JobEvent::FilesDone);
                }
                Ok(Some(_)) => {}
                Err(Closed) => {
                    self.look_at_children = true;
                    return (!self.files_done).then_some(JobEvent::SidecarLost);
                }
            }
        }
    }

    /// Sends on what only the minder got.
    fn next_verdict(&mut self) -> Option<JobEvent> {
        let now = monotonic();
        if let Some(question) = self.witness.question(now, tree::is_running) {
            self.sidecar.send(&ToSidecar::Ping(question));
        }
        let (info, verdict) = self.witness.decided(now, self.sidecar.is_connected())?;
        Some(match verdict {
            _ if self.ended => JobEvent::NotForwarded(signal_of(&info), NotForwarded::JobGone),
            Verdict::Everybody => JobEvent::NotForwarded(signal_of(&info), NotForwarded::Everybody),
            Verdict::MinderOnly => self.forward(&info),
        })
    }

    /// Sends a signal on to the main process, which is not reaped, so its number is its own.
    fn forward(&self, info: &libc::signalfd_siginfo) -> JobEvent {
        match forward::send(self.pid, info) {
            true => JobEvent::Forwarded(signal_of(info)),
            false => JobEvent::NotForwarded(signal_of(info), NotForwarded::Refused),
        }
    }

    /// Whether a sender belongs to the job: it descends from the minder, or did until a moment ago.
    fn in_job(&self, pid: i32) -> bool {
        pid > 0
            && match tree::descends(pid, self.own_pid) {
                Some(found) => found && !self.not_the_jobs.contains(&pid),
                // Gone, and reaped by the minder: one of the job's. Reaped by another: losing a signal is worse
                // than sending it twice, so it counts as an outsider.
                None => self.recent.contains(&pid),
            }
    }

    /// One change of a child, if there is any that matters.
    fn next_child_event(&mut self) -> Option<JobEvent> {
        loop {
            let (pid, change) = children::next_change()?;
            let is_main = pid == self.pid && !self.ended;
            match change {
                Change::Dead => {
                    if let Some(event) = self.reap(pid, is_main) {
                        return Some(event);
                    }
                }
                Change::Continued => {
                    children::acknowledge(pid, change);
                    if is_main {
                        self.witness.forget(libc::SIGCONT);
                        if std::mem::take(&mut self.suspended) {
                            self.stop_due = None;
                            return Some(JobEvent::Resumed);
                        }
                    }
                }
                Change::Stopped(signal) => {
                    children::acknowledge(pid, change);
                    if is_main {
                        // Job control stopped it: the shell waits for the minder to stop as well. A SIGSTOP was meant
                        // for the job alone.
                        self.stop_due = stop::by_terminal(signal).then_some(signal);
                        let was_suspended = std::mem::replace(&mut self.suspended, true);
                        if was_suspended {
                            // It was continued in between; a SIGCONT that is still held came before this stop.
                            self.witness.forget(libc::SIGCONT);
                        }
                        if !was_suspended || self.stop_due.is_some() {
                            return Some(JobEvent::Suspended);
                        }
                    }
                }
            }
        }
    }

    /// Reaps a dead child; an event if it was one of the job's.
    fn reap(&mut self, pid: i32, is_main: bool) -> Option<JobEvent> {
        let reaped = children::reap(pid)?;
        if pid == self.sidecar.pid() {
            self.sidecar.reaped(reaped.exit);
        }
        if is_main {
            self.main_ended(Some(reaped.exit));
        }
        if let Some(known) = self.not_the_jobs.iter().position(|known| *known == pid) {
            self.not_the_jobs.swap_remove(known);
            return None;
        }
        if let Some(place) = self.recent.get_mut(self.recent_at) {
            *place = pid;
        }
        self.recent_at = (self.recent_at + 1) % RECENT;
        Some(JobEvent::Reaped(reaped))
    }

    fn main_ended(&mut self, exit: Option<JobExit>) {
        self.exit = exit;
        self.ended = true;
        self.end_untold = true;
        self.pidfd = None;
        self.suspended = false;
        self.stop_due = None;
    }

    /// Stops the minder with the signal that stopped the job, so that the shell sees what it would have seen. A SIGCONT
    /// that has come or is not decided yet goes first: it may let the job run again.
    fn stop_beside_job(&mut self) {
        if let Some(signal) = self.stop_due
            && self.witness.deadline().is_none()
            && stop::stop_with_job(self.pid, signal)
        {
            self.stop_due = None;
            self.look_at_children = true;
        }
    }

    /// Living processes of the job apart from its main one while that lives, parents before children.
    pub(super) fn others(&self) -> Vec<i32> {
        let mut pids = tree::descendants(self.own_pid, &self.not_the_jobs);
        pids.retain(|pid| *pid != self.pid || self.ended);
        pids
    }

    /// Sends a signal to every living process of the job, the main one too; returns to how many. With SIGKILL,
    /// processes that are forked meanwhile are followed until none is new.
    pub(super) fn signal_tree(&self, signal: Signal) -> usize {
        tree::signal_descendants(self.own_pid, &self.not_the_jobs, signal)
    }
}

fn signal_of(info: &libc::signalfd_siginfo) -> i32 {
    i32::try_from(info.ssi_signo).unwrap_or(0)
}
