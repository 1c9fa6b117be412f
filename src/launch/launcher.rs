//! The running job: its signals, stops, deaths and what it leaves behind.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use super::inherited::inherited;
use super::origin::{NotForwarded, Origin, Situation, decide};
use super::signals::{SignalSet, SignalSource, set_default, set_disposition};
use super::tree::{self, Held, KillReport, Leftover};
use crate::model::run::JobExit;
use crate::sys::stat::Stat;

/// What a dead child leaves to read, from `wait4`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reaped {
    /// Its process id.
    pub pid: i32,
    /// The job's main process, not an orphan that came back to gpurun.
    pub is_main: bool,
    /// How it ended.
    pub exit: JobExit,
    /// User plus system CPU seconds, its own and those of the children it waited for.
    pub cpu_s: f64,
    /// Peak resident memory in KiB: the largest of itself and the children it waited for.
    pub max_rss_kib: u64,
    /// Blocks of 512 bytes read from storage.
    pub blocks_in: u64,
    /// Blocks of 512 bytes written to storage.
    pub blocks_out: u64,
}

/// What happened to the job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum JobEvent {
    /// A child is dead but not reaped: its name and last values can be read from `/proc` until the next
    /// call. gpurun itself reads nothing there: for a job of short-lived orphans that would be the main cost.
    Dying {
        /// Its process id.
        pid: i32,
        /// It is the job's main process.
        is_main: bool,
    },
    /// A child was reaped.
    Reaped(Reaped),
    /// The main process has ended; comes right after its `Reaped`, once.
    MainExited(JobExit),
    /// A signal was sent on to the job.
    Forwarded {
        /// Signal number.
        signal: i32,
    },
    /// A signal came and was not sent on.
    NotForwarded {
        /// Signal number.
        signal: i32,
        /// Why.
        why: NotForwarded,
    },
    /// The main process was stopped. If job control did it, gpurun stops itself in the next call.
    Suspended,
    /// The main process runs again.
    Resumed,
    /// The wake descriptor is readable (or broken).
    Woken,
    /// The time has passed.
    Deadline,
}

/// The job's main process and everything that comes back to gpurun.
#[derive(Debug)]
pub struct Launcher {
    signals: SignalSource,
    own_pid: i32,
    pid: i32,
    exit: Option<JobExit>,
    /// Children from before the job: never reported, never killed.
    strangers: Vec<i32>,
    children_changed: bool,
    dying: Option<i32>,
    exit_untold: bool,
    suspended: bool,
    stop_due: Option<i32>,
    after_stop: bool,
    /// Child events in a row; bounded so that a storm of them never starves the deadline.
    streak: u32,
    /// The last pids reaped, to recognise a sender that is gone already.
    recent: [i32; 64],
    recent_at: usize,
}

/// Child events after which the descriptors and the deadline get their turn.
const STREAK: u32 = 32;

impl Launcher {
    pub(super) fn new(signals: SignalSource, pid: i32, strangers: Vec<i32>) -> Launcher {
        Launcher {
            signals,
            // SAFETY: reads the caller's own id.
            own_pid: unsafe { libc::getpid() },
            pid,
            exit: None,
            strangers,
            children_changed: true,
            dying: None,
            exit_untold: false,
            suspended: false,
            stop_due: None,
            after_stop: false,
            streak: 0,
            recent: [0; 64],
            recent_at: 0,
        }
    }

    /// Process id of the job's main process, also after its end.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// How the main process ended, once it has.
    pub fn exit(&self) -> Option<JobExit> {
        self.exit
    }

    /// The next thing that happens: at the latest after `timeout` (`None`: no limit), or when `wake` is
    /// readable. Signals come before children; a flood of children does not hold up the rest.
    pub fn next_event(&mut self, timeout: Option<Duration>, wake: Option<RawFd>) -> JobEvent {
        let end = timeout.map(|t| Instant::now() + t);
        loop {
            if let Some(signal) = self.stop_due.take() {
                self.stop_self(signal);
            }
            if let Some(pid) = self.dying.take()
                && let Some(reaped) = self.reap(pid)
            {
                return JobEvent::Reaped(reaped);
            }
            if let (true, Some(exit)) = (self.exit_untold, self.exit) {
                self.exit_untold = false;
                return JobEvent::MainExited(exit);
            }
            if let Some(info) = self.signals.read() {
                if let Some(event) = self.on_signal(&info) {
                    return event;
                }
                continue;
            }
            let storm = self.streak >= STREAK;
            if self.children_changed && !storm {
                match self.look_at_children() {
                    Some(event) => {
                        self.streak += 1;
                        return event;
                    }
                    None => self.children_changed = false,
                }
            }
            self.streak = 0;
            let wait = if self.children_changed { Some(Duration::ZERO) } else { end.map(left) };
            if self.poll(wait, wake) {
                return JobEvent::Woken;
            }
            if end.is_some_and(|e| left(e).is_zero()) {
                return JobEvent::Deadline;
            }
        }
    }

    /// Minds the job to its end and nothing else: what is left to do when the supervisor's own code has
    /// panicked. Signals are still forwarded, orphans still reaped.
    pub fn until_exit(&mut self) -> JobExit {
        loop {
            if let Some(exit) = self.exit {
                self.exit_untold = false;
                return exit;
            }
            self.next_event(None, None);
        }
    }

    /// Waits for a signal or `wake`; true when `wake` has something.
    fn poll(&self, wait: Option<Duration>, wake: Option<RawFd>) -> bool {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // A negative descriptor is skipped by poll.
        let mut fds = [entry(self.signals.fd()), entry(wake.unwrap_or(-1))];
        let time = wait.map(|w| libc::timespec {
            tv_sec: libc::time_t::try_from(w.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: w.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: two live entries, a null or live timespec, no mask.
        unsafe { libc::ppoll(fds.as_mut_ptr(), 2, time, std::ptr::null()) };
        fds[1].revents != 0
    }

    fn on_signal(&mut self, info: &libc::signalfd_siginfo) -> Option<JobEvent> {
        let signal = i32::try_from(info.ssi_signo).ok()?;
        let sender = i32::try_from(info.ssi_pid).unwrap_or(0);
        let origin = Origin::new(signal, info.ssi_code, sender);
        match origin {
            Origin::Child => {
                self.children_changed = true;
                return None;
            }
            // Our own write to a closed pipe, or our own stop.
            Origin::Process(pid) if pid == self.own_pid => return None,
            Origin::Process(_) | Origin::Kernel => {}
        }
        if signal == libc::SIGCHLD {
            // The kernel keeps one pending SIGCHLD: this one may stand for a child's as well.
            self.children_changed = true;
        }
        let verdict = if self.exit.is_some() {
            Err(NotForwarded::JobGone)
        } else {
            let now = Situation {
                leads_session: inherited().leads_session,
                after_stop: self.after_stop,
                in_job: &|pid| self.in_job(pid),
                still_stopped: &|| self.still_stopped(),
            };
            decide(signal, origin, &now).and_then(|()| self.send(signal, info))
        };
        if signal == libc::SIGCONT {
            self.after_stop = false;
        }
        Some(match verdict {
            Ok(()) => JobEvent::Forwarded { signal },
            Err(why) => JobEvent::NotForwarded { signal, why },
        })
    }

    /// Whether a sender belongs to the job: it descends from gpurun, or did until a moment ago.
    fn in_job(&self, pid: i32) -> bool {
        pid > 0
            && match tree::descends(pid, self.own_pid) {
                Some(found) => found && !self.strangers.contains(&pid),
                // Gone, and reaped by gpurun: one of the job's. Reaped by another: losing a signal is worse
                // than sending it twice, so it counts as an outsider.
                None => self.recent.contains(&pid),
            }
    }

    /// Whether the main process is stopped; when `/proc` cannot say, as the last event said.
    fn main_stopped(&self) -> bool {
        Stat::read(self.pid).map_or(self.suspended, |s| matches!(s.state, b'T' | b't'))
    }

    /// Whether the main process has been stopped ever since gpurun stopped beside it. A stop that is not
    /// taken note of yet, or not followed yet, is a new one: somebody continued the job in between.
    fn still_stopped(&self) -> bool {
        self.stop_due.is_none() && self.main_stopped() && !self.stop_reported()
    }

    /// Whether the kernel has a stop of the main process to report.
    fn stop_reported(&self) -> bool {
        // SAFETY: neither waits nor takes note; `info` is plain data, zero when there is nothing.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let id = libc::id_t::try_from(self.pid).unwrap_or(0);
            let how = libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
            libc::waitid(libc::P_PID, id, &mut info, how) == 0 && info.si_pid() == self.pid
        }
    }

    /// Sends a signal on to the main process, which is not reaped, so its number is its own.
    fn send(&self, signal: i32, info: &libc::signalfd_siginfo) -> Result<(), NotForwarded> {
        let sent = if info.ssi_code == libc::SI_QUEUE {
            // SAFETY: a zeroed siginfo with the fields of a queued signal, laid out as the kernel reads it
            // for SI_QUEUE; with a negative code any process may queue it.
            unsafe {
                let mut queued: QueuedInfo = std::mem::zeroed();
                queued.signal = signal;
                queued.code = libc::SI_QUEUE;
                queued.pid = libc::pid_t::try_from(info.ssi_pid).unwrap_or(0);
                queued.uid = info.ssi_uid;
                queued.value = info.ssi_ptr;
                let pid = libc::c_long::from(self.pid);
                libc::syscall(libc::SYS_rt_sigqueueinfo, pid, libc::c_long::from(signal), &raw const queued)
            }
        } else {
            // SAFETY: the target is gpurun's own unreaped child.
            unsafe { libc::kill(self.pid, signal) }.into()
        };
        if sent == 0 { Ok(()) } else { Err(NotForwarded::Refused) }
    }

    /// One change of a child, if there is any.
    fn look_at_children(&mut self) -> Option<JobEvent> {
        loop {
            // SAFETY: neither waits nor reaps; `info` is plain data, zero when there is nothing.
            let (pid, code, status) = unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                let how = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG | libc::WNOWAIT;
                if libc::waitid(libc::P_ALL, 0, &mut info, how) != 0 {
                    return None;
                }
                (info.si_pid(), info.si_code, info.si_status())
            };
            let is_main = pid == self.pid && self.exit.is_none();
            match code {
                _ if pid == 0 => return None,
                libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED => {
                    self.dying = Some(pid);
                    return Some(JobEvent::Dying { pid, is_main });
                }
                libc::CLD_CONTINUED => {
                    consume(pid, libc::WCONTINUED);
                    if is_main && self.suspended {
                        self.suspended = false;
                        self.stop_due = None;
                        return Some(JobEvent::Resumed);
                    }
                }
                _ => {
                    consume(pid, libc::WSTOPPED);
                    if is_main {
                        // Job control stopped it: the shell waits for gpurun to stop as well. A SIGSTOP was
                        // meant for the job alone.
                        let by_terminal = matches!(status, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
                        self.stop_due = by_terminal.then_some(status);
                        if !std::mem::replace(&mut self.suspended, true) {
                            return Some(JobEvent::Suspended);
                        }
                        if self.stop_due.is_some() {
                            // Stopped again before its continuing was seen.
                            return Some(JobEvent::Suspended);
                        }
                    }
                }
            }
        }
    }

    fn reap(&mut self, pid: i32) -> Option<Reaped> {
        // SAFETY: waits for a child that is known to be dead; both results are plain data.
        let (status, usage) = unsafe {
            let (mut status, mut usage) = (0, std::mem::zeroed::<libc::rusage>());
            if libc::wait4(pid, &mut status, libc::WNOHANG, &mut usage) != pid {
                return None;
            }
            (status, usage)
        };
        let exit = exit_of(status);
        let is_main = pid == self.pid && self.exit.is_none();
        if is_main {
            self.exit = Some(exit);
            self.exit_untold = true;
            self.suspended = false;
            self.stop_due = None;
        }
        if let Some(place) = self.recent.get_mut(self.recent_at) {
            *place = pid;
        }
        self.recent_at = (self.recent_at + 1) % self.recent.len();
        self.strangers.retain(|s| *s != pid);
        Some(Reaped {
            pid,
            is_main,
            exit,
            cpu_s: seconds(usage.ru_utime) + seconds(usage.ru_stime),
            max_rss_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
            blocks_in: u64::try_from(usage.ru_inblock).unwrap_or(0),
            blocks_out: u64::try_from(usage.ru_oublock).unwrap_or(0),
        })
    }

    /// Reaps a child whose exec failed.
    pub(super) fn forget_main(&mut self) {
        // SAFETY: the child has reported its failure and ends at once.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }

    /// While the child is not the job yet, a terminal may stop it; gpurun stops beside it.
    pub(super) fn stop_beside_starting_child(&mut self) {
        // SAFETY: neither waits nor reaps; `info` is plain data.
        let stopped_by = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let how = libc::WSTOPPED | libc::WNOHANG;
            let id = libc::id_t::try_from(self.pid).unwrap_or(0);
            let seen = libc::waitid(libc::P_PID, id, &mut info, how) == 0 && info.si_pid() == self.pid;
            seen.then(|| info.si_status())
        };
        if let Some(signal @ (libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)) = stopped_by {
            self.suspended = true;
            self.stop_self(signal);
            // The CONT that ended our stop waits in the queue; it is judged once the job runs.
            if self.main_stopped() {
                // SAFETY: the target is gpurun's own unreaped child.
                unsafe { libc::kill(self.pid, libc::SIGCONT) };
            }
            self.suspended = false;
        }
    }

    /// Stops gpurun with the signal that stopped the job, so that the shell sees what it would have seen.
    ///
    /// A CONT between the job's stop and ours must not leave gpurun stopped beside a running job. The kernel
    /// drops a pending stop when a CONT comes, so the order is: make the stop pending, see that the job is
    /// still stopped, only then let it act.
    fn stop_self(&mut self, signal: i32) {
        if SignalSet::pending_now().contains(libc::SIGCONT) {
            // Read it first: our stop would throw it away.
            self.stop_due = Some(signal);
            return;
        }
        if !self.main_stopped() {
            return;
        }
        let mut only = SignalSet::EMPTY;
        only.insert(signal);
        set_default(signal);
        // SAFETY: `raise` directs the signal at this thread, where it is blocked and stays pending.
        unsafe { libc::raise(signal) };
        if self.main_stopped() {
            only.unblock();
            // Here gpurun is stopped, until a CONT.
            only.block();
            self.after_stop = true;
        } else {
            let set = only.to_libc();
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: takes the pending signal back, without waiting.
            unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &now) };
        }
        if inherited().ignored.contains(signal) {
            set_disposition(signal, libc::SIG_IGN);
        }
        self.children_changed = true;
    }

    /// Living processes of the job apart from its main one, parents before children.
    pub fn leftovers(&self) -> Vec<Leftover> {
        self.others().into_iter().filter_map(tree::leftover).collect()
    }

    fn others(&self) -> Vec<i32> {
        if !tree::has_children() {
            return Vec::new();
        }
        let mut pids = tree::descendants(self.own_pid, &self.strangers);
        pids.retain(|pid| *pid != self.pid || self.exit.is_some());
        pids
    }

    /// Sends a signal to every living process of the job, the main one too; returns to how many. Does not
    /// wait: go on with [`Launcher::next_event`]. With SIGKILL, processes that are forked meanwhile are
    /// followed until none is new.
    pub fn signal_tree(&self, signal: i32) -> usize {
        let mut sent: Vec<i32> = Vec::new();
        for _ in 0..64 {
            let new: Vec<i32> = tree::descendants(self.own_pid, &self.strangers)
                .into_iter()
                .filter(|pid| !sent.contains(pid))
                .collect();
            if new.is_empty() {
                break;
            }
            for pid in new {
                if let Some(held) = Held::new(pid, self.own_pid) {
                    held.send(signal);
                }
                sent.push(pid);
            }
            if signal != libc::SIGKILL {
                break;
            }
        }
        sent.len()
    }

    /// Ends what is left of the job: TERM to all, `grace` to obey, then KILL, and at most two seconds for
    /// the kernel to do it. For after the main process's end; reaps on the way and passes each of the dead
    /// to `reaped`.
    pub fn kill_tree(&mut self, grace: Duration, mut reaped: impl FnMut(Reaped)) -> KillReport {
        let mut report = KillReport::default();
        let asked = self.others();
        if asked.is_empty() {
            return report;
        }
        report.asked = asked.len();
        for held in asked.iter().filter_map(|pid| Held::new(*pid, self.own_pid)) {
            held.send(libc::SIGTERM);
            // A stopped process would not see the TERM.
            held.send(libc::SIGCONT);
        }
        if self.reap_until_alone(grace, &mut reaped) {
            return report;
        }
        report.killed = self.signal_tree(libc::SIGKILL);
        if !self.reap_until_alone(Duration::from_secs(2), &mut reaped) {
            report.survivors = self.others().len();
        }
        report
    }

    /// Reaps for at most `time`; true when nobody of the job is left.
    fn reap_until_alone(&mut self, time: Duration, reaped: &mut impl FnMut(Reaped)) -> bool {
        let end = Instant::now() + time;
        loop {
            if self.others().is_empty() {
                // The last of the dead are reaped too.
                while let JobEvent::Dying { .. } | JobEvent::Reaped(_) =
                    self.pass_reaped(Duration::ZERO, reaped)
                {}
                return true;
            }
            if left(end).is_zero() {
                return false;
            }
            // Grandchildren die without telling gpurun, so it looks again soon.
            self.pass_reaped(left(end).min(Duration::from_millis(20)), reaped);
        }
    }

    fn pass_reaped(&mut self, wait: Duration, reaped: &mut impl FnMut(Reaped)) -> JobEvent {
        let event = self.next_event(Some(wait), None);
        if let JobEvent::Reaped(dead) = &event {
            reaped(*dead);
        }
        event
    }
}

/// The kernel's siginfo for a queued signal.
#[repr(C)]
struct QueuedInfo {
    signal: i32,
    errno: i32,
    code: i32,
    pad: i32,
    pid: i32,
    uid: u32,
    value: u64,
    rest: [u64; 12],
}

const _: () = assert!(std::mem::size_of::<QueuedInfo>() == std::mem::size_of::<libc::siginfo_t>());

fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

fn consume(pid: i32, what: i32) {
    // SAFETY: takes note of a stop or continue without waiting; `info` is plain data.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let id = libc::id_t::try_from(pid).unwrap_or(0);
        libc::waitid(libc::P_PID, id, &mut info, what | libc::WNOHANG);
    }
}

fn seconds(time: libc::timeval) -> f64 {
    time.tv_sec as f64 + time.tv_usec as f64 / 1e6
}

fn exit_of(status: i32) -> JobExit {
    if libc::WIFSIGNALED(status) {
        JobExit::Signal { signal: libc::WTERMSIG(status), core: libc::WCOREDUMP(status) }
    } else {
        JobExit::Code(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wait_status_is_understood() {
        for code in 0..=255 {
            assert_eq!(exit_of(code << 8), JobExit::Code(u8::try_from(code).unwrap()));
        }
        for signal in (1..=64).filter(|s| *s != 127) {
            assert_eq!(exit_of(signal), JobExit::Signal { signal, core: false });
            assert_eq!(exit_of(signal | 0x80), JobExit::Signal { signal, core: true });
        }
    }
}
