//! Tests: readers.
