//! The integration tests: one binary, one module per subject.

#![allow(
    clippy::unwrap_used,
    reason = "what a test's helper cannot have fails the test"
)]

mod fake_driver;
mod support;
