//! `gpurun devices --check`: what is wrong with the lease directory.

use std::io::{self, Write};

use crate::cli::exit::Exit;
use crate::selection::check::{Finding, check};
use crate::selection::flow::Surroundings;
use crate::sys::escape::{printable, printable_path};
use crate::sys::notice::Notices;

use crate::commands::print::printed;

/// Prints each finding with the command that mends it.
pub(super) fn run(out: &mut impl Write, notices: &Notices) -> Exit {
    let path = Surroundings::from_environment().lease_directory;
    match check(&path) {
        Ok(findings) if findings.is_empty() => {
            printed(writeln!(out, "{}: in order", printable_path(&path)), out, Exit::Ok, notices)
        }
        Ok(findings) => printed(print(&findings, out), out, Exit::Failed, notices),
        Err(error) => {
            notices.error(&error.to_string());
            Exit::Failed
        }
    }
}

fn print(findings: &[Finding], out: &mut impl Write) -> io::Result<()> {
    for Finding { what, mend } in findings {
        writeln!(out, "{}\n    {}", printable(what), printable(mend))?;
    }
    Ok(())
}
