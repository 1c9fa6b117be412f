//! Tests: selection.
