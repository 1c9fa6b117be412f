//! What was typed, then what it means; the exit-code table. Never touches a GPU, never spawns.

use std::ffi::OsString;

use clap::{CommandFactory, Parser};

pub mod args;
pub mod duration;
pub mod exit;
pub mod logging;
pub mod mark;
pub mod selection;
pub mod size;

use args::{Cli, Command, RecordArgs, RunArgs};

/// A command line that was understood.
#[derive(Clone, Debug)]
pub enum Invocation {
    /// Run a job.
    Job(Box<RunArgs>),
    /// Anything else.
    Other(Box<Command>),
}

/// What to do with a command line that is no invocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// `--help`, `--version`: text for standard output, success.
    Print(String),
    /// A mistake: one line for standard error, exit 2.
    Usage(String),
}

/// Reads a command line, program name first.
pub fn parse(argv: Vec<OsString>) -> Result<Invocation, Stop> {
    let separated = argv.iter().skip(1).any(|a| a == "--");
    let cli = Cli::try_parse_from(&argv).map_err(|error| stop(&error, &argv, separated))?;
    if let Some(command) = cli.command {
        return Ok(Invocation::Other(Box::new(command)));
    }
    if !cli.run.command.is_empty() {
        return Ok(Invocation::Job(Box::new(cli.run)));
    }
    if separated {
        return Err(Stop::Usage("there is no command after --".to_owned()));
    }
    record_without_job(cli.run)
}

/// `gpurun --log FILE` without a job is `gpurun record --all --log FILE`.
fn record_without_job(run: RunArgs) -> Result<Invocation, Stop> {
    if run.selection.any() {
        return Err(Stop::Usage(
            "GPUs are chosen for a job: put it after --, or use 'gpurun select' to print the choice"
                .to_owned(),
        ));
    }
    if run.job.kill_after.is_some() || run.job.kill_tree || run.job.die_together {
        return Err(Stop::Usage(
            "--kill-after, --kill-tree and --die-together need a job: put it after --".to_owned(),
        ));
    }
    if run.logging.log.is_empty() {
        return Err(Stop::Usage(
            "nothing to do: give a job after --, a --log TARGET, or a subcommand; see 'gpurun --help'"
                .to_owned(),
        ));
    }
    let record = RecordArgs { all: true, logging: run.logging, common: run.common, ..RecordArgs::default() };
    Ok(Invocation::Other(Box::new(Command::Record(Box::new(record)))))
}

/// Turns clap's answer into text for standard output or one line for standard error.
fn stop(error: &clap::Error, argv: &[OsString], separated: bool) -> Stop {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return Stop::Print(error.to_string()),
        ErrorKind::InvalidUtf8 => {
            let mut own = argv.iter().skip(1).take_while(|word| *word != "--");
            if let Some(word) = own.find(|word| word.to_str().is_none()) {
                return Stop::Usage(format!("{word:?} is not UTF-8"));
            }
        }
        ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument if !separated => {
            let word = match error
                .get(ContextKind::InvalidSubcommand)
                .or_else(|| error.get(ContextKind::InvalidArg))
            {
                Some(ContextValue::String(word)) => word.as_str(),
                _ => "",
            };
            // A word that is neither an option nor a subcommand is meant to be the job.
            if !word.starts_with('-') && argv.get(1).is_some_and(|first| !is_subcommand(first)) {
                return Stop::Usage(format!("to run a job, put it after --: gpurun [OPTIONS] -- {word} ..."));
            }
        }
        _ => {}
    }
    let text = error.to_string();
    let mut parts =
        text.lines().take_while(|line| !line.starts_with("Usage:")).map(str::trim).filter(|l| !l.is_empty());
    let first = parts.next().unwrap_or("cannot read the command line");
    let mut line = first.strip_prefix("error: ").unwrap_or(first).to_owned();
    // clap's advice to put a value after -- would make a job of it here.
    for part in parts.filter(|p| !p.starts_with("For more information") && !p.starts_with("tip: to pass")) {
        if !line.ends_with(':') && !line.ends_with(',') {
            line.push(if part.starts_with("tip:") || part.starts_with('[') { ' ' } else { ',' });
        }
        if !line.ends_with(' ') {
            line.push(' ');
        }
        line.push_str(part);
    }
    Stop::Usage(line)
}

/// Whether a word is one of our subcommands.
fn is_subcommand(word: &OsString) -> bool {
    Cli::command().get_subcommands().any(|sub| word == sub.get_name())
}
