//! The exit-code table: what gpurun itself may answer beside the job's own status.

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
