//! Stopping the minder beside a job that job control stopped.

use super::children;
use crate::sys::signal_source;
use crate::sys::signals::{SignalSet, with_default};
use crate::sys::stat::Stat;

/// Whether a terminal or a shell's job control stops with this signal; SIGSTOP is meant for one process alone.
pub(super) fn by_terminal(signal: i32) -> bool {
    matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

/// Stops this process with `signal` if the job `pid` is stopped, and returns when it was continued; false if a signal has
/// come that is to be read first, as it may let the job run again.
///
/// A SIGCONT must neither be lost nor leave the minder stopped beside a running job. The kernel drops a pending stop when a
/// SIGCONT comes, and a pending SIGCONT when a stop comes. So SIGCONT is let through here, which means that it is caught
/// the moment it comes; the stop is made pending, and acts only if no SIGCONT came before it.
pub(super) fn stop_with_job(pid: i32, signal: i32) -> bool {
    if !is_stopped(pid) {
        return true;
    }
    let only = |signal| {
        let mut set = SignalSet::EMPTY;
        set.insert(signal);
        set
    };
    let (stop, cont) = (only(signal), only(libc::SIGCONT));
    let before = signal_source::caught();
    cont.unblock();
    let done = with_default(signal, || {
        if signal_source::caught() != before {
            return false;
        }
        // SAFETY: `raise` directs the signal at this thread, where it is blocked and stays pending.
        unsafe { libc::raise(signal) };
        let is_undisturbed = signal_source::caught() == before;
        if is_undisturbed && is_stopped(pid) {
            stop.unblock();
            // Here the minder is stopped, until a SIGCONT.
            stop.block();
        } else {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: takes the pending signal back, without waiting.
            unsafe { libc::sigtimedwait(&stop.to_libc(), std::ptr::null_mut(), &now) };
        }
        is_undisturbed
    });
    cont.block();
    done
}

/// While the child `pid` has not executed the job yet, a terminal may stop it; the minder stops beside it, and lets it go
/// on when it goes on itself.
pub(super) fn beside_starting(pid: i32) {
    if let Some(signal) = children::reported_stop(pid)
        && by_terminal(signal)
    {
        stop_with_job(pid, signal);
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
