//! What every room may use of the system: clocks, signals, descriptors, this process, what it was started with, and
//! gpurun's own words on stderr.

pub mod clock;
pub mod descriptors;
pub mod inherited;
pub mod limits;
pub mod notice;
pub mod process;
pub mod signals;
pub mod stderr;
