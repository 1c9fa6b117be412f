//! Ending gpurun as the job ended.

use crate::model::run::JobExit;
use crate::model::signal;
use crate::sys::inherited::inherited;
use crate::sys::signals::{SignalSet, set_default};

/// The exit code that stands for a job's end where the signal itself cannot be raised again.
fn code(exit: JobExit) -> u8 {
    match exit {
        JobExit::Code(code) => code,
        JobExit::Signal { signal, .. } => u8::try_from(128 + signal).unwrap_or(u8::MAX),
    }
}

/// The status for gpurun to end with, as the job ended. A death by signal is died again, without a second core, so that
/// the shell's loop around gpurun stops on Ctrl-C; then this does not return. As the first process of a PID namespace, or
/// when the signal does not kill, the status is `128 + n`.
pub(super) fn status(exit: JobExit) -> u8 {
    if let JobExit::Signal { signal, .. } = exit
        && !inherited().is_init
    {
        raise(signal);
    }
    code(exit)
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

/// How a process ended, as the end of a sentence.
pub(super) fn describe(exit: Option<JobExit>) -> String {
    match exit {
        Some(JobExit::Signal { signal, .. }) => format!("was killed by {}", signal::name(signal)),
        Some(JobExit::Code(code)) => format!("exited with status {code}"),
        None => "does not exit".to_owned(),
    }
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
