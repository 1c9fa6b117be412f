//! The exit status of gpurun itself, beside the job's own: one table for the code, the help and the manual pages.

/// gpurun's own exit codes; each is documented in the README.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Everything asked for was done.
    Ok = 0,
    /// A command other than a job failed: unreadable log, no running gpurun.
    Failed = 1,
    /// The command line is wrong; also `select` without NVML, as nvisel has it.
    Usage = 2,
    /// `select`: fewer devices than the minimum, as nvisel has it.
    SelectTooFew = 4,
    /// Not enough devices satisfy the constraints now (`EX_TEMPFAIL`).
    TooFew = 75,
    /// `--wait D` ran out.
    WaitedTooLong = 124,
    /// gpurun failed before the job ran: no driver, bad target, lease directory.
    OwnFailure = 125,
    /// The command was found but cannot be executed.
    CannotExecute = 126,
    /// The command was not found.
    NotFound = 127,
}

impl Exit {
    /// The meaning of a code; `None` for one that is not gpurun's own.
    pub fn from_code(code: u8) -> Option<Self> {
        const ALL: [Exit; 9] = [
            Exit::Ok,
            Exit::Failed,
            Exit::Usage,
            Exit::SelectTooFew,
            Exit::TooFew,
            Exit::WaitedTooLong,
            Exit::OwnFailure,
            Exit::CannotExecute,
            Exit::NotFound,
        ];
        ALL.into_iter().find(|exit| exit.code() == code)
    }

    /// The code as the shell sees it.
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// The exit statuses of `gpurun COMMAND` (`None`: of a job) with their meaning.
pub(super) fn statuses(command: Option<&str>) -> &'static [(Exit, &'static str)] {
    match command {
        None => &[
            (Exit::Usage, "the command line is wrong"),
            (Exit::TooFew, "not enough GPUs satisfy the constraints now; nothing was started"),
            (Exit::WaitedTooLong, "timed out after D of --wait D"),
            (Exit::OwnFailure, "failure before the job started: no driver, unwritable target"),
            (Exit::CannotExecute, "the command cannot be executed"),
            (Exit::NotFound, "the command was not found"),
        ],
        Some("select") => &[
            (Exit::Ok, "the chosen GPUs were printed"),
            (Exit::Usage, "the command line is wrong, or there is no driver"),
            (Exit::SelectTooFew, "not enough GPUs satisfy the constraints; nothing was printed"),
            (Exit::WaitedTooLong, "timed out after D of --wait D"),
            (Exit::OwnFailure, "the lease directory cannot be used"),
        ],
        Some("devices") => &[
            (Exit::Ok, "success"),
            (Exit::Failed, "--check has found something"),
            (Exit::Usage, "the command line is wrong"),
            (Exit::OwnFailure, "there is no driver, or it does not answer"),
        ],
        Some("record") => &[
            (Exit::Ok, "success"),
            (Exit::Usage, "the command line is wrong"),
            (Exit::OwnFailure, "there is no such process, or a target cannot be written"),
        ],
        Some("tag" | "step" | "epoch" | "log") => &[
            (
                Exit::Ok,
                "success; also where a value is left out, and outside gpurun, where the command does nothing",
            ),
            (Exit::Usage, "the command line is wrong"),
        ],
        Some(_) => &[
            (Exit::Ok, "success"),
            (Exit::Failed, "the command failed; the reason is on standard error"),
            (Exit::Usage, "the command line is wrong"),
        ],
    }
}
