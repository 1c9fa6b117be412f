//! What every room may use of the system: clocks, limits, processes, users, and how sizes and durations are written.

pub mod clock;
pub mod format;
pub mod limits;
pub mod stat;
pub mod text;
pub mod users;
