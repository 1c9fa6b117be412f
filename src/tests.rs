//! Tests that span rooms.

mod allocation;
#[path = "../tests/integration/fuzz.rs"]
pub(crate) mod fuzz;
mod ranks;
