//! Tests: control.
