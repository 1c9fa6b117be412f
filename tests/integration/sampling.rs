//! Tests: sampling.

mod gpu;
