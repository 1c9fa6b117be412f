//! Tests: docs.
