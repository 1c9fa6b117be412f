//! Property tests that try mutated input: a few cases in the suite, or as many as fit a given time.
//!
//! The library's own tests include this file as well.

use std::time::{Duration, Instant};

use proptest::test_runner::Config;

/// Seconds for which each such test runs.
const VARIABLE: &str = "GPURUN_FUZZ_SECONDS";

/// Runs a round of `cases`, and further rounds with other cases until the time of `GPURUN_FUZZ_SECONDS` is over.
pub(crate) fn fuzz(cases: u32, round: impl Fn(Config)) {
    let seconds = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let seconds =
        seconds.map(|text| text.parse().unwrap_or_else(|_| panic!("{VARIABLE}={text} is no number")));
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    loop {
        round(Config { failure_persistence: None, ..Config::with_cases(cases) });
        if end.is_none_or(|end| Instant::now() >= end) {
            return;
        }
    }
}
