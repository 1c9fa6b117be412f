//! How commands print: answers to standard output, messages to standard error.

use std::io::{self, StdoutLock};

use crate::cli::args::CommonArgs;
use crate::cli::exit::Exit;
use crate::sys::notice::{Notices, Verbosity};

/// Where answers go.
pub(super) type Standard<'a> = StdoutLock<'a>;

/// How much a command says.
pub(super) fn verbosity(common: &CommonArgs) -> Verbosity {
    match (common.quiet, common.verbose) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Verbose,
        (false, false) => Verbosity::Normal,
    }
}

/// Prints a page, or why there is none.
pub(super) fn page(page: Result<String, String>, out: &mut dyn io::Write) -> Exit {
    let notices = Notices::new(Verbosity::Normal);
    match page {
        Ok(page) => printed(writeln!(out, "{}", page.trim_end()), out, Exit::Ok, &notices),
        Err(line) => {
            notices.error(&line);
            Exit::Usage
        }
    }
}

/// The one rule for what is printed: a reader that closed its end has what it wanted, and output that was closed from
/// the start was not wanted; the status is then that of the command. What cannot be written is a failure.
pub(super) fn printed(
    written: io::Result<()>,
    out: &mut (impl io::Write + ?Sized),
    exit: Exit,
    notices: &Notices,
) -> Exit {
    match written.and_then(|()| out.flush()) {
        Ok(()) => exit,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => exit,
        Err(error) => {
            notices.error(&format!("cannot write to standard output: {error}"));
            Exit::Failed
        }
    }
}
