//! What every room may use of the system: clocks, signals, descriptors, limits, processes, users, what gpurun was started
//! with, its own words on stderr, how sizes and durations are written, and names on
//! a terminal.

pub mod clock;
pub mod descriptors;
pub mod escape;
pub mod format;
pub mod inherited;
pub mod limits;
pub mod notice;
pub mod process;
pub mod random;
pub mod signal_source;
pub mod signals;
pub mod stat;
pub mod stderr;
pub mod terminal;
pub mod text;
pub mod unnamed;
pub mod users;
