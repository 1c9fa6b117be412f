//! Spawning, signals in and out, reaping, exit status. Knows nothing of metrics.
