//! A report as one self-contained page.
use super::build::Report;
use std::fmt::{self, Write};
pub(super) fn write(_report: &Report, _out: &mut dyn Write) -> fmt::Result {
    Ok(())
}
