//! Choosing GPUs from snapshots, `CUDA_VISIBLE_DEVICES`, leases, waiting. Never reads NVML itself.

pub mod choose;
pub mod explain;
pub mod flow;
pub mod holder;
pub mod lease;
mod publish;
pub mod queue;
#[cfg(test)]
mod tests;
pub mod visible;

use std::path::PathBuf;

/// What can go wrong while GPUs are chosen and held.
#[derive(Debug, thiserror::Error)]
pub enum SelectionError {
    /// A utilisation constraint where every candidate is a MIG slice.
    #[error(
        "every candidate is a MIG slice, which has no utilisation: leave out --max-gpu-utilization, \
         --max-memory-utilization and --idle"
    )]
    UtilizationOnMig,
    /// The lock directory cannot be made or used.
    #[error(
        "cannot use the lease directory {}: {why}; set GPURUN_LEASE_DIR to another one, or use --no-lease",
        path.display()
    )]
    LeaseDirectory {
        /// The directory.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// Leases are files that are reached through the process filesystem.
    #[error("cannot hold GPUs: /proc is not mounted; mount it, or use --no-lease")]
    NoProc,
    /// Another gpurun kept the host-wide lock for too long.
    #[error(
        "another gpurun has held {} for {seconds} s while it chooses: end or continue it, or use --no-lease",
        path.display()
    )]
    SelectLock {
        /// The lock file.
        path: PathBuf,
        /// How long this one waited.
        seconds: u64,
    },
}
