//! gpurun chooses GPUs by constraints, holds them, launches a training job, follows every process
//! the job starts, and writes windows of mean, min and max to CSV, Parquet or TensorBoard files.
//!
//! The library is the [`Collector`]: it follows the processes and GPUs of a Rust program from inside it. Everything
//! else here is the command `gpurun`, whose rooms are private:
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
//! Rooms pass values of `model` and do not import one another's logic.

#[cfg(not(target_os = "linux"))]
compile_error!("gpurun runs on Linux only: it follows jobs through /proc and signalfd");

pub(crate) mod cli;
pub(crate) mod collectors;
pub(crate) mod commands;
pub(crate) mod control;
pub(crate) mod link;
pub(crate) mod minder;
pub(crate) mod model;
pub(crate) mod report;
pub(crate) mod sampling;
pub(crate) mod selection;
pub(crate) mod sidecar;
pub(crate) mod summary;
pub(crate) mod sys;
#[cfg(test)]
mod tests;
pub(crate) mod windowing;
pub(crate) mod writers;

pub use model::window::Stats;
pub use sidecar::collector::{Builder, Collection, Collector, CollectorError, Ended, Tag, TimedStep};
pub use summary::json::TargetSummary;

/// What `main.rs` calls.
#[doc(hidden)]
pub mod program {
    pub use crate::commands::main;
    pub use crate::sys::inherited::inherited;
}

/// What this repository's tests and benchmark of the log files use; no part of the API.
#[doc(hidden)]
pub mod internals {
    pub use crate::model::device::DeviceIdentity;
    pub use crate::model::id::{GpuUuid, ProcessKey};
    pub use crate::model::metric::{CATALOGUE, MetricId, Scope, Subject};
    pub use crate::model::run::{JobExit, RunEnd, RunInfo};
    pub use crate::model::series::{ProcessIdentity, SeriesInfo};
    pub use crate::model::time::{Mono, Wall};
    pub use crate::model::window::{Row, RowKind, Stats, WindowBatch};
    pub use crate::writers::read::{ReadRow, rows};
    pub use crate::writers::schema::files as schema_files;
    pub use crate::writers::target::Target;
    pub use crate::writers::{
        Layout, Mode, Opened, Recovered, TargetFailure, WriterReport, WriterSettings, check, recover,
    };
}
