//! Totals of a run, as text and JSON. Never reads the machine.
//!
//! Totals are a fold of the periodic windows of the root tag: they hold what the files hold, and are
//! there also when no file was asked for.

mod build;
mod cause;
mod facts;
pub mod json;
pub mod start;
#[cfg(test)]
mod tests;
pub mod text;
mod totals;

pub(crate) use totals::Totals;
