//! Ending gpurun as the job ended.

use super::signals::{SignalSet, set_default};
use crate::model::run::JobExit;

/// The exit code that stands for a job's end where the signal itself cannot be raised again.
pub fn code(exit: JobExit) -> u8 {
    match exit {
        JobExit::Code(code) => code,
        JobExit::Signal { signal, .. } => u8::try_from(128 + signal).unwrap_or(u8::MAX),
    }
}

/// Ends gpurun as the job ended. A death by signal is died again, without a second core, so that the
/// shell's loop around gpurun stops on Ctrl-C; then this does not return. As the first process of a PID
/// namespace, or when the signal does not kill, it ends with `128 + n`. Call it last, on the main thread.
///
/// Nothing runs on the way out: a thread that hangs in the driver was left behind, and the driver library's
/// own exit handlers could wait for it, or crash beside it, in place of the job's status.
pub fn leave(exit: JobExit) -> ! {
    if let JobExit::Signal { signal, .. } = exit
        && !super::inherited().is_init
    {
        raise(signal);
    }
    at_once(code(exit))
}

/// Ends gpurun with this status, from whatever thread, and runs nothing on the way out: see [`leave`].
pub fn at_once(code: u8) -> ! {
    // SAFETY: ends the process at once; everything that had to be written was written before.
    unsafe { libc::_exit(i32::from(code)) }
}

fn raise(signal: i32) {
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls only take away this process's ability to dump core. A core pattern that pipes
    // does not look at the limit, hence the first.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::setrlimit(libc::RLIMIT_CORE, &limit);
    }
    set_default(signal);
    let mut only = SignalSet::EMPTY;
    only.insert(signal);
    // SAFETY: sends a signal to this process; it acts as soon as this thread lets it through.
    unsafe { libc::kill(libc::getpid(), signal) };
    only.unblock();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_its_own() {
        for n in 0..=u8::MAX {
            assert_eq!(code(JobExit::Code(n)), n);
        }
        for signal in 1..=64 {
            assert_eq!(i32::from(code(JobExit::Signal { signal, core: false })), 128 + signal);
        }
    }
}
