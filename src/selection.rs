//! Choosing GPUs from snapshots, `CUDA_VISIBLE_DEVICES`, leases, waiting. Never reads NVML itself.

pub mod check;
pub mod choose;
pub mod directory;
pub mod explain;
pub mod flow;
pub mod gate;
pub mod holder;
pub mod lease;
mod publish;
pub mod queue;
#[cfg(test)]
mod tests;
pub mod visible;

use std::path::PathBuf;

use holder::Holder;

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
    /// A gpurun inside a gpurun inside a gpurun, and so on: the names of the lock files have no room for another.
    #[error(
        "this would be {levels} leases inside one another, more than can be held: use --no-lease for the inner ones"
    )]
    TooDeep {
        /// How many, with the one that was refused.
        levels: usize,
    },
    /// Another process kept the host-wide lock for too long.
    #[error(
        "{} has been locked for {seconds} s by {holder}: end or continue that process, or use --no-lease",
        path.display()
    )]
    SelectLock {
        /// The lock file.
        path: PathBuf,
        /// How long this holder has kept this process waiting.
        seconds: u64,
        /// The process that has it.
        holder: Box<Holder>,
    },
}
