//! Tests that span rooms.

mod allocation;
mod ranks;
