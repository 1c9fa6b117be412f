//! Tests: lease.
