//! gpurun chooses GPUs by constraints, holds them, launches a training job, follows every process
//! the job starts, and writes windows of mean, min and max to CSV, Parquet or TensorBoard files.
//!
//! ```text
//! main -> cli -> commands -+- run -----> minder <-> sidecar
//!                          +- record, Collector --> sidecar
//!                          +- select, devices ----> selection
//!                          +- export, recover ----> writers      report -> report
//!                          +- status, tag, step, log -> control
//! sidecar: collectors -> sampling -> windowing -> writers -> summary    (control: marks in, answers out)
//! model:   vocabulary; imports nothing of ours, does no I/O
//! sys:     clocks, signals, descriptors, stderr: what every room may use of the system
//! ```
//!
//! Rooms pass values of [`model`] and do not import one another's logic.

#[cfg(not(target_os = "linux"))]
compile_error!("gpurun runs on Linux only: it follows jobs through /proc and signalfd");

pub(crate) mod cli;
mod collectors;
pub mod commands;
pub mod control;
pub mod link;
pub mod minder;
pub mod model;
pub mod report;
mod sampling;
pub mod selection;
pub mod sidecar;
pub mod summary;
pub mod sys;
#[cfg(test)]
mod tests;
pub mod windowing;
pub mod writers;

pub use sidecar::collector::{Collection, Collector, CollectorError};
