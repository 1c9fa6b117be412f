//! The sidecar: the process that measures. It chooses the GPUs, reads the driver, follows the job's processes, listens on
//! the job's socket, and writes the files and the summary.
//!
//! Beside a job it is a child of the minder (`job`). `gpurun record` and the library's `Collector` run the same
//! engine in their own process.

mod choice;
pub mod collector;
mod describe;
mod engine;
pub mod job;
mod load_check;
pub mod process;
pub mod record;
mod stops;
mod targets;
mod watch;
mod watched;

pub use choice::announced;
