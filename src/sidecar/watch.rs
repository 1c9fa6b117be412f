//! Waiting beside processes that are not ours: until a signal comes, all of them have ended, or time is up.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::sys::signal_source::SignalSource;

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchEvent {
    /// This signal was sent to gpurun.
    Signal(i32),
    /// Every watched process has ended.
    AllEnded,
    /// The time has passed.
    Deadline,
}

/// Watches processes by descriptor, so that a reused pid is never mistaken for one of them.
#[derive(Debug)]
pub(super) struct Watch {
    signals: SignalSource,
    processes: Vec<OwnedFd>,
    watches_some: bool,
}

impl Watch {
    /// Watches `pids`; with none, only signals and time.
    ///
    /// # Errors
    /// The first process that cannot be watched, with the kernel's answer (`ESRCH`: there is none).
    pub(super) fn new(signals: SignalSource, pids: &[i32]) -> Result<Self, (i32, io::Error)> {
        let open = |pid: i32| {
            let id = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
            pidfd_open(id, PidfdFlags::empty())
        };
        let processes: Result<Vec<OwnedFd>, _> =
            pids.iter().map(|&pid| open(pid).map_err(|error| (pid, error.into()))).collect();
        Ok(Self { signals, watches_some: !pids.is_empty(), processes: processes? })
    }

    /// Waits for the next event, at most until `end`.
    pub(super) fn next(&mut self, end: Option<Instant>) -> WatchEvent {
        loop {
            while let Some(info) = self.signals.read() {
                let signal = i32::try_from(info.ssi_signo).unwrap_or(0);
                if !matches!(signal, libc::SIGCHLD | libc::SIGWINCH | libc::SIGURG | libc::SIGCONT) {
                    return WatchEvent::Signal(signal);
                }
            }
            if self.watches_some && self.processes.is_empty() {
                return WatchEvent::AllEnded;
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return WatchEvent::Deadline;
            }
            self.poll(left);
        }
    }

    /// Waits, then forgets the processes that have ended.
    fn poll(&mut self, left: Option<Duration>) {
        let mut entries = vec![PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)];
        entries.extend(self.processes.iter().map(|process| PollFd::new(process, PollFlags::IN)));
        self.signals.poll(&mut entries, left);
        let ended: Vec<bool> = entries.iter().skip(1).map(|entry| !entry.revents().is_empty()).collect();
        let mut ended = ended.into_iter();
        self.processes.retain(|_| !ended.next().unwrap_or(false));
    }
}
