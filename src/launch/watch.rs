//! Waiting beside processes that are not ours: until a signal comes, all of them have ended, or time is up.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::signals::SignalHold;

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// This signal was sent to gpurun.
    Signal(i32),
    /// Every watched process has ended.
    AllEnded,
    /// The time has passed.
    Deadline,
}

/// Watches processes by descriptor, so that a reused pid is never mistaken for one of them.
#[derive(Debug)]
pub struct Watch {
    hold: SignalHold,
    processes: Vec<OwnedFd>,
    watches_some: bool,
}

impl Watch {
    /// Watches `pids`; with none, only signals and time.
    ///
    /// # Errors
    /// The first process that cannot be watched, with the kernel's answer (`ESRCH`: there is none).
    pub fn new(hold: SignalHold, pids: &[i32]) -> Result<Self, (i32, io::Error)> {
        let mut processes = Vec::with_capacity(pids.len());
        for &pid in pids {
            // SAFETY: a plain system call; its result is checked before it is owned.
            let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
            let fd = i32::try_from(fd).unwrap_or(-1);
            if fd < 0 {
                return Err((pid, io::Error::last_os_error()));
            }
            // SAFETY: `fd` was just opened (close-on-exec by its nature) and nobody else owns it.
            processes.push(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        Ok(Self { hold, watches_some: !pids.is_empty(), processes })
    }

    /// Waits for the next event, at most until `end`.
    pub fn next(&mut self, end: Option<Instant>) -> WatchEvent {
        loop {
            while let Some(info) = self.hold.read() {
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
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = vec![entry(self.hold.fd())];
        fds.extend(self.processes.iter().map(|p| entry(p.as_raw_fd())));
        let time = left.map(|left| libc::timespec {
            tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: live entries, a null or live timespec, no mask.
        unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, time, std::ptr::null()) };
        let mut ended = fds.iter().skip(1).map(|fd| fd.revents != 0);
        self.processes.retain(|_| !ended.next().unwrap_or(false));
    }
}
