//! Text and HTML from finished logs. Never reads the machine, and never reads a file itself: rows come
//! in through [`Builder`], pages go out into a `fmt::Write`.
//!
//! Memory is bounded by what is shown, not by how long a run was: totals are folded, and a curve keeps
//! at most `curve::MOST` points, thinned as rows arrive with every minimum and maximum kept.

mod about;
mod build;
mod curve;
mod formatting;
mod html;
mod part;
mod spans;
mod steps;
#[cfg(test)]
mod tests;
mod text;

pub use about::{DeviceAbout, Exit, Row, RowKind, RunAbout, SourceAbout};
pub use build::{Builder, Report, SourceId};
pub use html::write as write_html;
pub use text::write as write_text;
