//! Totals of a run, as text and JSON. Never reads the machine.
