//! Whether a signal that reached the minder has already reached the job: a pure decision.

/// Which side sent a signal, as the kernel told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The kernel itself: terminal keys, hangup, a window's new size.
    Kernel,
    /// `kill`, `tgkill` or `sigqueue` of this process (0: of another PID namespace).
    Process(i32),
    /// A child's change of state.
    Child,
}

impl Origin {
    /// Reads `si_code` and `si_pid`.
    pub(super) fn new(signal: i32, code: i32, pid: i32) -> Origin {
        if code <= 0 {
            Origin::Process(pid)
        } else if signal == libc::SIGCHLD {
            Origin::Child
        } else {
            Origin::Kernel
        }
    }
}

/// Why a signal was not sent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotForwarded {
    /// It was sent to the job as well: by the terminal to its process group, or by a process to several.
    Everybody,
    /// A process of the job sent it, to its group or to gpurun: it is not echoed.
    FromJob,
    /// The job's main process has ended.
    JobGone,
    /// The kernel refused: the job runs as another user now.
    Refused,
}

/// What is to be done with a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Send it on to the job's main process.
    Forward,
    /// Do not.
    Withhold(NotForwarded),
    /// It depends on whether the sidecar got it too.
    AskWitness,
}

/// Decides about one signal. `leads_session`: gpurun leads its session, so a hangup reaches it alone. `in_job`: whether
/// a process is in the job's tree.
pub(super) fn decide(
    signal: i32,
    origin: Origin,
    leads_session: bool,
    in_job: impl FnOnce(i32) -> bool,
) -> Decision {
    match origin {
        Origin::Child => Decision::Withhold(NotForwarded::Everybody),
        Origin::Kernel if leads_session && matches!(signal, libc::SIGHUP | libc::SIGCONT) => {
            Decision::Forward
        }
        // An alarm set before gpurun was executed (`perl -e 'alarm 9; exec @ARGV'`) would have outlived exec.
        Origin::Kernel if signal == libc::SIGALRM => Decision::Forward,
        Origin::Kernel => Decision::Withhold(NotForwarded::Everybody),
        Origin::Process(pid) if in_job(pid) => Decision::Withhold(NotForwarded::FromJob),
        Origin::Process(_) => Decision::AskWitness,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(signal: i32, code: i32, leads_session: bool) -> Decision {
        decide(signal, Origin::new(signal, code, 3), leads_session, |pid| pid == 7)
    }

    #[test]
    fn what_the_terminal_sends_is_never_sent_on() {
        for signal in
            [libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP, libc::SIGTTIN, libc::SIGWINCH, libc::SIGHUP]
        {
            assert_eq!(
                ask(signal, libc::SI_KERNEL, false),
                Decision::Withhold(NotForwarded::Everybody),
                "{signal}"
            );
        }
    }

    #[test]
    fn a_hangup_of_the_session_leader_and_an_alarm_from_before_are_for_the_job_too() {
        assert_eq!(ask(libc::SIGHUP, libc::SI_KERNEL, true), Decision::Forward);
        assert_eq!(ask(libc::SIGINT, libc::SI_KERNEL, true), Decision::Withhold(NotForwarded::Everybody));
        assert_eq!(ask(libc::SIGALRM, libc::SI_KERNEL, false), Decision::Forward);
    }

    #[test]
    fn what_a_process_sends_depends_on_the_witness() {
        for code in [libc::SI_USER, libc::SI_QUEUE, libc::SI_TKILL] {
            for signal in (1..=64).filter(|s| *s != libc::SIGKILL && *s != libc::SIGSTOP) {
                assert_eq!(ask(signal, code, false), Decision::AskWitness, "{signal} {code}");
            }
        }
    }

    #[test]
    fn the_job_does_not_hear_its_own_echo() {
        let from = |pid| decide(15, Origin::Process(pid), false, |pid| pid == 7);
        assert_eq!(from(7), Decision::Withhold(NotForwarded::FromJob));
        assert_eq!(from(8), Decision::AskWitness);
        assert_eq!(from(0), Decision::AskWitness);
    }

    #[test]
    fn children_are_not_signals_unless_a_process_sent_them() {
        assert_eq!(Origin::new(libc::SIGCHLD, libc::CLD_EXITED, 4), Origin::Child);
        assert_eq!(Origin::new(libc::SIGCHLD, libc::SI_USER, 4), Origin::Process(4));
    }
}
