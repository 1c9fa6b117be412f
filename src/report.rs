//! Text and HTML from finished logs. Never reads the machine.
