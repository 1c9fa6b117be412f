//! What is known of why a job ended, besides its exit status.

/// Why a job may have ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cause {
    /// The last signal that asks a program to end.
    pub signal: Option<StopSignal>,
    /// Processes that the kernel killed for lack of memory.
    pub out_of_memory: Option<OutOfMemory>,
}

/// A signal that asks a program to end: SIGINT, SIGTERM, SIGHUP or SIGQUIT.
#[derive(Clone, Debug, PartialEq)]
pub struct StopSignal {
    /// Its number.
    pub signal: i32,
    /// Seconds before the end of the job.
    pub before_s: f64,
    /// The process that sent it; `None` where it came from the terminal.
    pub sender: Option<Sender>,
}

/// A process that sent a signal. What cannot be known any more is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sender {
    /// Process id; 0 for one of another PID namespace.
    pub pid: i32,
    /// Name of its program.
    pub name: Option<String>,
    /// Name of its user, or the uid in digits.
    pub user: String,
}

/// What the out-of-memory killer did in the cgroup of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Processes that it killed during the run.
    pub killed: u64,
    /// The smallest limit on the cgroup and its ancestors, in bytes; `None`: there is none, so the host had no memory left.
    pub limit: Option<u64>,
    /// The most memory that the level with this limit has used, in bytes.
    pub peak: Option<u64>,
}
