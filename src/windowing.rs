//! Windows, tags, steps, statistics: a pure fold of samples and marks. Never reads a clock.
