//! Tests: transparency.
