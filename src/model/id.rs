//! Identities: a GPU is its UUID, a process is its pid with its start time.
//!
//! An index or a pid alone is for display only: an NVML index can change
//! over a reboot, a pid can be reused within a run.

use std::fmt;
use std::sync::Arc;

/// The UUID of a GPU (`GPU-…`) or of a MIG slice (`MIG-…`), as NVML prints it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuUuid(Arc<str>);

impl GpuUuid {
    /// Wraps the text as NVML gave it.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The whole text, prefix included.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first eight hexadecimal digits with the prefix, for one-line messages.
    pub fn short(&self) -> &str {
        let digits = self.0.find('-').map_or(0, |dash| dash + 1);
        let end = self.0.len().min(digits + 8);
        self.0.get(..end).unwrap_or(&self.0)
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A process for the whole life of the host: a pid is reused, the pair is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey {
    /// Process id in our own PID namespace.
    pub pid: i32,
    /// Start time in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start_ticks: u64,
}

/// Dense number of a series within one run; numbers of closed series are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesId(pub u32);

impl SeriesId {
    /// The number as an index into a dense table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One stack of nested tags: the run's own, or that of one connected client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_keeps_the_prefix_and_eight_digits() {
        let gpu = GpuUuid::new("GPU-12345678-1234-1234-1234-123456789abc");
        assert_eq!(gpu.short(), "GPU-12345678");
        assert_eq!(GpuUuid::new("GPU-12").short(), "GPU-12");
        assert_eq!(GpuUuid::new("odd").short(), "odd");
    }
}
