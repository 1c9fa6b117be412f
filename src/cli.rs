//! The command line: what was typed, then what it means; help and manual pages; the exit-code table. Never touches a GPU,
//! never spawns.

use std::ffi::OsString;

use clap::FromArgMatches;
use clap::error::ErrorKind;

pub(crate) mod args;
pub(crate) mod duration;
pub(crate) mod exit;
pub(crate) mod help;
pub(crate) mod logging;
pub(crate) mod man;
pub(crate) mod mark;
mod mistake;
mod number;
pub(crate) mod selection;
pub(crate) mod size;

use args::{Cli, Command, RecordArgs, RunArgs};

/// A command line that was understood.
#[derive(Clone, Debug)]
pub(crate) enum Invocation {
    /// Run a job.
    Job(Box<RunArgs>),
    /// Anything else.
    Other(Box<Command>),
}

impl Invocation {
    /// What should be said before anything is done; nothing with `--quiet`.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let (selection, common) = match self {
            Self::Job(args) => (&args.selection, &args.common),
            Self::Other(command) => match command.as_ref() {
                Command::Select(args) => (&args.selection, &args.common),
                _ => return Vec::new(),
            },
        };
        if common.quiet { Vec::new() } else { selection.warnings() }
    }
}

/// Why nothing is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EarlyExit {
    /// `--help`, `--version`: text for standard output, success.
    Print(String),
    /// A mistake: one line for standard error, exit 2.
    Usage(String),
}

/// Reads a command line, program name first.
pub(crate) fn parse(argv: Vec<OsString>) -> Result<Invocation, EarlyExit> {
    let separated = argv.iter().skip(1).any(|a| a == "--");
    let short = argv.iter().skip(1).take_while(|word| *word != "--").any(|word| word == "-h");
    let cli = help::command(short)
        .try_get_matches_from(&argv)
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => EarlyExit::Print(error.to_string()),
            _ => EarlyExit::Usage(mistake::explain(&error, &argv, help::command(false))),
        })?;
    if let Some(command) = cli.command {
        return Ok(Invocation::Other(Box::new(command)));
    }
    if !cli.run.command.is_empty() {
        return Ok(Invocation::Job(Box::new(cli.run)));
    }
    if separated {
        return Err(EarlyExit::Usage("there is no command after --".to_owned()));
    }
    record_without_job(cli.run, &argv)
}

/// `gpurun --log FILE` without a job is `gpurun record --all --log FILE`.
fn record_without_job(run: RunArgs, argv: &[OsString]) -> Result<Invocation, EarlyExit> {
    if let Some(line) = mistake::taken_as_value(argv) {
        return Err(EarlyExit::Usage(line));
    }
    if run.selection.any() {
        return Err(EarlyExit::Usage(
            "GPUs are chosen for a job: put it after --, or use 'gpurun select' to print the choice"
                .to_owned(),
        ));
    }
    if run.job.kill_after.is_some() || run.job.kill_tree || run.job.die_together {
        return Err(EarlyExit::Usage(
            "--kill-after, --kill-tree and --die-together need a job: put it after --".to_owned(),
        ));
    }
    if run.logging.log.is_empty() {
        return Err(EarlyExit::Usage(
            "nothing to do: give a job after --, a --log TARGET, or a subcommand; see 'gpurun --help'"
                .to_owned(),
        ));
    }
    let record = RecordArgs { all: true, logging: run.logging, common: run.common, ..RecordArgs::default() };
    Ok(Invocation::Other(Box::new(Command::Record(Box::new(record)))))
}
