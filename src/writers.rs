//! One trait, one file per format, the journal, the fan-out threads. Never computes a number.
