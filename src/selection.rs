//! Choosing GPUs from snapshots, `CUDA_VISIBLE_DEVICES`, leases, waiting. Never reads NVML itself.

pub mod choose;
pub mod explain;
pub mod flow;
pub mod holder;
pub mod lease;
pub mod queue;
pub mod visible;

use std::path::PathBuf;

/// What can go wrong while GPUs are chosen and held.
#[derive(Debug, thiserror::Error)]
pub enum SelectionError {
    /// A utilisation constraint where every candidate is a MIG slice.
    #[error(
        "utilisation cannot be read on a MIG slice, and every candidate is one: leave out \
         --max-gpu-utilization, --max-memory-utilization and --idle"
    )]
    UtilizationOnMig,
    /// The lock directory cannot be made or used.
    #[error(
        "cannot use the lease directory {}: {why}; name another with GPURUN_LEASE_DIR, or go without leases \
         with --no-lease", path.display()
    )]
    LeaseDirectory {
        /// The directory.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// Another gpurun kept the host-wide lock for too long.
    #[error(
        "another gpurun has been choosing for {seconds} s and holds {}: end or continue it, or go without \
         leases with --no-lease", path.display()
    )]
    SelectLock {
        /// The lock file.
        path: PathBuf,
        /// How long this one waited.
        seconds: u64,
    },
}
