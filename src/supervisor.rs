//! The one event loop that wires the rooms; the only room that sees every other.

pub mod export;
pub mod recover;
