//! Tests: truth.
