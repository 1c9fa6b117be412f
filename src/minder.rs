//! The minder: the process that the user started. It spawns the job, passes signals on, reaps, and ends as the job ended.
//! One thread, no driver, no log file, no metrics.
//!
//! Before the job it starts the sidecar, a copy of itself that does all of that, and waits for its word. What goes wrong
//! over there costs the log, never the job.

mod asking;
mod children;
mod ending;
mod exit;
mod forward;
mod job;
mod origin;
mod plan;
mod question;
mod running;
mod sidecar;
mod spawn;
mod stop;
mod termination;
mod tree;
mod witness;

pub use plan::Plan;
pub use question::{Question, ask};
pub use running::run;
