//! The one event loop that wires the rooms; the only room that sees every other.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::CommandFactory;

use crate::cli::args::{Cli, Command};
use crate::cli::exit::Exit;
use crate::cli::{self, Invocation, Stop};
use crate::launch::SignalHold;

mod catalogue;
mod choose;
mod describe;
mod devices;
mod engine;
mod export;
mod job;
mod notice;
mod record;
mod recover;
mod select;
mod targets;
mod watched;

use notice::Notices;

/// The whole program: reads the command line, does what it says, gives the status.
pub fn main(argv: Vec<OsString>) -> ExitCode {
    let notices = Notices::new(false);
    match cli::parse(argv) {
        Ok(Invocation::Job(args)) => with_signals_held(&notices, |hold| job::run(&args, hold)),
        Ok(Invocation::Other(command)) => other(*command, &notices),
        Err(Stop::Print(text)) => printed(io::stdout().lock().write_all(text.as_bytes()), &notices),
        Err(Stop::Usage(line)) => {
            notices.error(&line);
            Exit::Usage.into()
        }
    }
}

/// Blocks signals before any thread starts, so that none can end gpurun while it has a job.
fn with_signals_held(notices: &Notices, run: impl FnOnce(SignalHold) -> ExitCode) -> ExitCode {
    match SignalHold::new() {
        Ok(hold) => run(hold),
        Err(error) => {
            notices.error(&format!("cannot watch signals: {error}"));
            Exit::OwnFailure.into()
        }
    }
}

/// Everything that is not a job.
fn other(command: Command, notices: &Notices) -> ExitCode {
    let mut out = io::stdout().lock();
    match command {
        Command::Record(args) => {
            drop(out);
            with_signals_held(notices, |hold| record::run(&args, hold))
        }
        Command::Metrics(args) => printed(catalogue::run(&args, &mut out), notices),
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "gpurun", &mut script);
            printed(out.write_all(&script), notices)
        }
        Command::Man => printed(clap_mangen::Man::new(Cli::command()).render(&mut out), notices),
        _ => Exit::Failed.into(),
    }
}

/// A reader that closed its end has what it wanted; anything else is a failure.
fn printed(result: io::Result<()>, notices: &Notices) -> ExitCode {
    match result {
        Ok(()) => Exit::Ok.into(),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Ok.into(),
        Err(error) => {
            notices.error(&format!("cannot write to standard output: {error}"));
            Exit::Failed.into()
        }
    }
}
