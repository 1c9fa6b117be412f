//! Deadlines, the process tree over time, GPU to process attribution. Never aggregates or formats.

pub mod attribution;
pub mod deadline;
pub mod frame;
pub mod gpu;
mod ledger;
mod proc;
pub mod registry;
pub mod sampler;
pub mod settings;
pub mod tree;

pub use deadline::{Deadlines, Due};
pub use registry::SeriesChange;
pub use sampler::Sampler;
pub use settings::{Notice, ProcessDetail, SamplerSettings, TreeRoot};
pub use tree::ReapedUsage;

/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;

#[cfg(test)]
mod tests;
