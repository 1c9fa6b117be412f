//! Small real jobs for the tests; each binary under `src/bin` is one job.
