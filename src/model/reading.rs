//! What one read gave: a value, a peak, or the reason why there is none.

use std::fmt;

/// Why a value is unknown. An unknown value is written as null, never as 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It was not asked for.
    NotAsked,
    /// The device or kernel does not offer it; permanent for this series.
    NotSupported,
    /// The driver library lacks the function; permanent for this library.
    MissingSymbol,
    /// The kernel or driver refused the read to this user.
    NoPermission,
    /// The GPU fell off the bus or needs a reset.
    GpuLost,
    /// The process ended before or while it was read.
    ProcessGone,
    /// The read did not answer in time.
    TimedOut,
    /// Another program, such as a profiler, holds what would be read.
    InUse,
    /// The driver was reloaded or is not running.
    DriverGone,
    /// The value was outside what is possible and was dropped.
    Implausible,
    /// NVML speaks of processes of another PID namespace.
    OtherPidNamespace,
    /// Anything else, with the driver's or kernel's own words.
    Other(Box<str>),
}

impl Reason {
    /// Whether asking again is pointless for the rest of the run.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Reason::NotSupported | Reason::MissingSymbol)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::NotAsked => "not asked for",
            Reason::NotSupported => "not supported",
            Reason::MissingSymbol => "the driver library lacks the function",
            Reason::NoPermission => "no permission",
            Reason::GpuLost => "the GPU is lost",
            Reason::ProcessGone => "the process is gone",
            Reason::TimedOut => "no answer in time",
            Reason::InUse => "another program, such as a profiler, holds the counters",
            Reason::DriverGone => "the driver is not running",
            Reason::Implausible => "an impossible value",
            Reason::OtherPidNamespace => "the process ids are of another PID namespace",
            Reason::Other(text) => text,
        })
    }
}

/// A value or the reason for its absence.
pub type Known<T> = Result<T, Reason>;

/// One entry of a sample, for one series.
///
/// For a *gauge* the number is the value in the metric's unit. For a *counter* it is the running total
/// whose rate has the metric's unit (bytes read as MiB; CPU time as 100 x seconds for a percentage).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reading {
    /// The value at the sample's instant.
    Value(f64),
    /// A maximum known to have been reached since the previous sample (VmHWM, `ru_maxrss`):
    /// it raises `max` and touches nothing else.
    Peak(f64),
    /// The read was due and gave nothing.
    Missing,
}
