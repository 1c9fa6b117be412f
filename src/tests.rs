//! Tests that span rooms.

mod allocation;
