//! Whether a signal that reached gpurun has already reached the job: a pure decision.

/// Who sent a signal, as the kernel told it.
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
pub enum NotForwarded {
    /// The terminal sent it to the whole process group: the job has it already.
    Terminal,
    /// A process of the job sent it, to its group or to gpurun: it is not echoed.
    FromJob,
    /// A job-control shell continued the whole group: the job runs again already.
    AlreadyContinued,
    /// The job's main process has ended.
    JobGone,
    /// The kernel refused: the job runs as another user now.
    Refused,
}

/// What the decision is made of; the closures are asked only when it hangs on them.
pub(super) struct Situation<'a> {
    /// gpurun leads its session, so a hangup reaches it alone.
    pub(super) leads_session: bool,
    /// The last thing that happened was gpurun's own stop beside the job's.
    pub(super) after_stop: bool,
    /// Whether a process is in the job's tree.
    pub(super) in_job: &'a dyn Fn(i32) -> bool,
    /// Whether the job's main process is still stopped as it was when gpurun stopped.
    pub(super) still_stopped: &'a dyn Fn() -> bool,
}

/// Decides whether the signal goes on to the job's main process.
pub(super) fn decide(signal: i32, origin: Origin, now: &Situation<'_>) -> Result<(), NotForwarded> {
    match origin {
        Origin::Child => Err(NotForwarded::Terminal),
        Origin::Kernel if now.leads_session && matches!(signal, libc::SIGHUP | libc::SIGCONT) => Ok(()),
        // An alarm set before gpurun was executed (`perl -e 'alarm 9; exec @ARGV'`) would have outlived exec.
        Origin::Kernel if signal == libc::SIGALRM => Ok(()),
        Origin::Kernel => Err(NotForwarded::Terminal),
        Origin::Process(pid) if (now.in_job)(pid) => Err(NotForwarded::FromJob),
        // `fg` continues the whole group, `kill -CONT` only gpurun: the job's state tells them apart.
        Origin::Process(_) if signal == libc::SIGCONT && now.after_stop => {
            if (now.still_stopped)() {
                Ok(())
            } else {
                Err(NotForwarded::AlreadyContinued)
            }
        }
        Origin::Process(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(signal: i32, code: i32, leads: bool, after_stop: bool, stopped: bool) -> Result<(), NotForwarded> {
        let in_job = |pid: i32| pid == 7;
        let still_stopped = || stopped;
        let now =
            Situation { leads_session: leads, after_stop, in_job: &in_job, still_stopped: &still_stopped };
        decide(signal, Origin::new(signal, code, 3), &now)
    }

    #[test]
    fn what_the_terminal_sends_is_never_sent_on() {
        for signal in
            [libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP, libc::SIGTTIN, libc::SIGWINCH, libc::SIGHUP]
        {
            assert_eq!(ask(signal, libc::SI_KERNEL, false, false, false), Err(NotForwarded::Terminal));
        }
    }

    #[test]
    fn a_hangup_of_the_session_leader_is_for_the_job_too() {
        assert_eq!(ask(libc::SIGHUP, libc::SI_KERNEL, true, false, false), Ok(()));
        assert_eq!(ask(libc::SIGINT, libc::SI_KERNEL, true, false, false), Err(NotForwarded::Terminal));
    }

    #[test]
    fn an_alarm_from_before_goes_to_the_job() {
        assert_eq!(ask(libc::SIGALRM, libc::SI_KERNEL, false, false, false), Ok(()));
    }

    #[test]
    fn what_a_process_sends_is_sent_on_once() {
        for code in [libc::SI_USER, libc::SI_QUEUE, libc::SI_TKILL] {
            for signal in (1..=64).filter(|s| *s != libc::SIGKILL && *s != libc::SIGSTOP) {
                assert_eq!(ask(signal, code, false, false, false), Ok(()), "{signal} {code}");
            }
        }
    }

    #[test]
    fn the_job_does_not_hear_its_own_echo() {
        let in_job = |pid: i32| pid == 7;
        let now =
            Situation { leads_session: false, after_stop: false, in_job: &in_job, still_stopped: &|| false };
        assert_eq!(decide(15, Origin::Process(7), &now), Err(NotForwarded::FromJob));
        assert_eq!(decide(15, Origin::Process(8), &now), Ok(()));
        assert_eq!(decide(15, Origin::Process(0), &now), Ok(()));
    }

    #[test]
    fn continuing_after_a_stop_depends_on_the_job() {
        assert_eq!(ask(libc::SIGCONT, 0, false, true, true), Ok(()));
        assert_eq!(ask(libc::SIGCONT, 0, false, true, false), Err(NotForwarded::AlreadyContinued));
        assert_eq!(ask(libc::SIGCONT, 0, false, false, false), Ok(()));
    }

    #[test]
    fn children_are_not_signals_unless_somebody_sent_them() {
        assert_eq!(Origin::new(libc::SIGCHLD, libc::CLD_EXITED, 4), Origin::Child);
        assert_eq!(Origin::new(libc::SIGCHLD, libc::SI_USER, 4), Origin::Process(4));
    }
}
