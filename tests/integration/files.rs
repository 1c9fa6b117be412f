//! Tests: files.
