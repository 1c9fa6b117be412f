//! Children of this process: waiting for them by descriptor, what they changed, and what is left when they are dead.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::link::ReapedProcess;
use crate::model::run::JobExit;

/// How often a child is looked at where the kernel has no descriptors for processes (before 5.3).
const WITHOUT_PIDFD: Duration = Duration::from_millis(20);

/// A process that was reaped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reaped {
    /// How it ended.
    pub(super) exit: JobExit,
    /// What it used.
    pub(super) usage: ReapedProcess,
}

/// A change of a child that is not taken note of yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It is dead, and not reaped.
    Dead,
    /// It was stopped by this signal.
    Stopped(i32),
    /// It runs again.
    Continued,
}

/// A descriptor that is readable once the child `pid` is dead. It must not be reaped yet.
pub(super) fn pidfd(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Waits until a process's descriptor is readable, at most `time`; without one, for a moment.
pub(super) fn wait_readable(pidfd: Option<&OwnedFd>, time: Duration) {
    let time = if pidfd.is_some() { time } else { time.min(WITHOUT_PIDFD) };
    let time = Timespec::try_from(time).ok();
    let mut entries: Vec<PollFd<'_>> = pidfd.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
    // An interrupted wait is a short one.
    let _ = poll(&mut entries, time.as_ref());
}

/// One change of any child, if there is one, without taking note of it.
pub(super) fn next_change() -> Option<(i32, Change)> {
    // SAFETY: neither waits nor reaps; `info` is plain data, zero when there is nothing.
    let (pid, code, status) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let how = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG | libc::WNOWAIT;
        if libc::waitid(libc::P_ALL, 0, &mut info, how) != 0 {
            return None;
        }
        (info.si_pid(), info.si_code, info.si_status())
    };
    if pid == 0 {
        return None;
    }
    Some(match code {
        libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED => (pid, Change::Dead),
        libc::CLD_CONTINUED => (pid, Change::Continued),
        _ => (pid, Change::Stopped(status)),
    })
}

/// Takes note of a stop or a continuation of `pid`, which is then not reported again.
pub(super) fn acknowledge(pid: i32, change: Change) {
    let what = match change {
        Change::Stopped(_) => libc::WSTOPPED,
        Change::Continued => libc::WCONTINUED,
        Change::Dead => return,
    };
    // SAFETY: does not wait; `info` is plain data.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PID, id(pid), &mut info, what | libc::WNOHANG);
    }
}

/// The signal that stopped the child `pid`, if a stop was not taken note of yet; takes note of it.
pub(super) fn reported_stop(pid: i32) -> Option<i32> {
    // SAFETY: does not wait; `info` is plain data, zero when there is nothing.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let how = libc::WSTOPPED | libc::WNOHANG;
        let seen = libc::waitid(libc::P_PID, id(pid), &mut info, how) == 0 && info.si_pid() == pid;
        seen.then(|| info.si_status())
    }
}

/// Whether `pid` is a child that was not reaped.
pub(super) fn is_there(pid: i32) -> bool {
    // SAFETY: neither waits nor reaps; `info` is plain data.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_PID, id(pid), &mut info, how) == 0
    }
}

/// Reaps the child `pid` if it is dead.
pub(super) fn reap(pid: i32) -> Option<Reaped> {
    // SAFETY: does not wait; both results are plain data.
    let (status, usage) = unsafe {
        let (mut status, mut usage) = (0, std::mem::zeroed::<libc::rusage>());
        if libc::wait4(pid, &mut status, libc::WNOHANG, &mut usage) != pid {
            return None;
        }
        (status, usage)
    };
    let count = |number: libc::c_long| u64::try_from(number).unwrap_or(0);
    Some(Reaped {
        exit: exit_of(status),
        usage: ReapedProcess {
            pid,
            cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
            max_rss_kib: count(usage.ru_maxrss),
            blocks_read: count(usage.ru_inblock),
            blocks_written: count(usage.ru_oublock),
        },
    })
}

/// Waits for a child that has said that it ends.
pub(super) fn reap_ending(pid: i32) {
    // SAFETY: waits for a child of this process that ends at once.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
}

fn id(pid: i32) -> libc::id_t {
    libc::id_t::try_from(pid).unwrap_or(0)
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
