//! The integration tests: one binary, one module per subject.

mod fake_driver;
mod support;
