//! Deadlines, the process tree over time, GPU to process attribution. Never aggregates or formats.

pub mod frame;
pub mod gpu;
