//! The vocabulary every room speaks: identities, the metric catalogue, readings,
//! samples, marks and window rows.
//!
//! This room imports nothing of ours and does no I/O: it never reads a clock, a
//! file or a driver. Values travel between the rooms as these types.

pub mod cause;
pub mod device;
pub mod id;
pub mod limits;
pub mod loss;
pub mod mark;
pub mod metric;
pub mod metric_set;
pub mod rank;
pub mod reading;
pub mod run;
pub mod sample;
pub mod selection;
pub mod series;
pub mod signal;
pub mod time;
pub mod window;
