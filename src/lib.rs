//! gpurun chooses GPUs by constraints, holds them, launches a training job, follows every process
//! the job starts, and writes windows of mean, min and max to CSV, Parquet or TensorBoard files.
//!
//! The rooms, in the order in which data flows:
//!
//! ```text
//! cli -> selection -> launch -> sampling -> windowing -> writers -> summary, report
//! supervisor: the one event loop that wires them; sees every room
//! collectors: the machine's edge (NVML, /proc, cgroup): reads in, values out
//! control:    the job's socket: messages in, replies out
//! sys:        clocks, limits, users and the like, for every room
//! model:      vocabulary; imports nothing of ours, does no I/O
//! ```
//!
//! Rooms pass values of [`model`] through the supervisor and do not import one another's logic.

#[cfg(not(target_os = "linux"))]
compile_error!("gpurun runs on Linux only: it follows jobs through /proc and signalfd");

pub mod cli;
pub mod collectors;
pub mod control;
pub mod launch;
pub mod model;
pub mod report;
pub mod sampling;
pub mod selection;
pub mod summary;
pub mod supervisor;
pub mod sys;
#[cfg(test)]
mod tests;
pub mod windowing;
pub mod writers;

pub use supervisor::collector::{Collection, Collector, CollectorError};
