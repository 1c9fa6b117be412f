//! Tests: main_job.
