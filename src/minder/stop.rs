//! Stopping the minder beside a job that job control stopped.

use super::children;
use crate::sys::signals::{SignalSet, with_default};
use crate::sys::stat::Stat;

/// Whether a terminal or a shell's job control stops with this signal; SIGSTOP is meant for one process alone.
pub(super) fn by_terminal(signal: i32) -> bool {
    matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

/// Stops this process with `signal` if the job `pid` is stopped, and returns when it was continued; false if a SIGCONT has
/// come that was not read yet, which may let the job run again.
///
/// A SIGCONT between the job's stop and this one must not leave the minder stopped beside a running job. The kernel drops
/// a pending stop when a SIGCONT comes, so the order is: make the stop pending, see that the job is still stopped, only
/// then let it act. It also drops a pending SIGCONT when a stop comes, so that is looked for at the last moment.
pub(super) fn beside(pid: i32, signal: i32) -> bool {
    if !is_stopped(pid) {
        return true;
    }
    with_default(signal, || {
        let mut only = SignalSet::EMPTY;
        only.insert(signal);
        if SignalSet::pending_now().contains(libc::SIGCONT) {
            return false;
        }
        // SAFETY: `raise` directs the signal at this thread, where it is blocked and stays pending.
        unsafe { libc::raise(signal) };
        if is_stopped(pid) {
            only.unblock();
            // Here the minder is stopped, until a SIGCONT.
            only.block();
        } else {
            let set = only.to_libc();
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: takes the pending signal back, without waiting.
            unsafe { libc::sigtimedwait(&set, std::ptr::null_mut(), &now) };
        }
        true
    })
}

/// While the child `pid` has not executed the job yet, a terminal may stop it; the minder stops beside it, and lets it go
/// on when it goes on itself.
pub(super) fn beside_starting(pid: i32) {
    if let Some(signal) = children::reported_stop(pid)
        && by_terminal(signal)
    {
        beside(pid, signal);
        if is_stopped(pid) {
            // SAFETY: the target is the minder's own unreaped child.
            unsafe { libc::kill(pid, libc::SIGCONT) };
        }
    }
}

/// Whether the process is stopped, as it was when its stop was seen unless `/proc` says otherwise.
fn is_stopped(pid: i32) -> bool {
    Stat::read(pid).is_none_or(|stat| matches!(stat.state, b'T' | b't'))
}
