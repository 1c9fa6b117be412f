//! Tests of the room as a whole: on made-up `/proc` trees, on the simulated driver, and on real processes.

mod driver;
mod gpm;
mod minder;
mod reader;
mod series;
mod stage;
mod support;
mod tree;
mod truth;
