//! The one event loop that wires the rooms; the only room that sees every other.

pub mod choose;
pub mod devices;
pub mod select;
