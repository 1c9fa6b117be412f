//! Tests: python.
