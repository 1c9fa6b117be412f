//! The subcommands: one short file each, from what was meant to the call to what is printed.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;

use crate::cli::args::{Command, ExportArgs};
use crate::cli::exit::Exit;
use crate::cli::logging::LayoutArg;
use crate::cli::{self, EarlyExit, Invocation};
use crate::selection::flow::{self, CUDA_ORDER_COMMAND};
use crate::sys::notice::{Notices, Verbosity};
use crate::sys::stderr::NonBlockingStderr;
use crate::writers::export::{ExportRequest, STANDARD_OUTPUT};
use crate::writers::{Layout, WriterError};

mod answer;
mod catalogue;
mod cuda_order;
mod devices;
mod export;
mod mark;
mod print;
mod record;
pub mod recover;
mod report;
mod run;
mod select;
mod status;

use print::{page, printed, verbosity};

/// The whole program: reads the command line, does what it says, gives the status.
pub fn main(argv: Vec<OsString>) -> u8 {
    flow::this_is_gpurun();
    say_panics_without_waiting();
    if argv.get(1).is_some_and(|word| word == CUDA_ORDER_COMMAND) {
        let mut out = io::stdout().lock();
        return cuda_order::print(&mut out, &mut NonBlockingStderr::new()).code();
    }
    let parsed = cli::parse(argv);
    for line in parsed.iter().flat_map(Invocation::warnings) {
        Notices::new(Verbosity::Normal).say(&line);
    }
    let exit = match parsed {
        Ok(Invocation::Job(args)) => return run::run(*args),
        Ok(Invocation::Other(command)) => other(*command),
        Err(EarlyExit::Print(text)) => page(Ok(text), &mut io::stdout().lock()),
        Err(EarlyExit::Usage(line)) => {
            Notices::new(Verbosity::Normal).error(&line);
            Exit::Usage
        }
    };
    exit.code()
}

/// A panic is told in one line. The standard hook would write to a stderr that may have no reader, and wait.
fn say_panics_without_waiting() {
    std::panic::set_hook(Box::new(|info| {
        if !crate::writers::is_decoding() {
            Notices::new(Verbosity::Normal).error(&format!("internal error: {info}"));
        }
    }));
}

/// Everything that is not a job.
fn other(command: Command) -> Exit {
    let mut out = io::stdout().lock();
    // Few commands print messages besides their answer.
    let notices = || Notices::new(Verbosity::Normal);
    match command {
        Command::Select(args) => select::run(&args, &mut out),
        Command::Devices(args) => devices::run(&args, &mut out),
        Command::Record(args) => {
            drop(out);
            record::run(&args, &Notices::new(verbosity(&args.common)))
        }
        Command::Metrics(args) => {
            let written = catalogue::run(&args, &mut out);
            printed(written, &mut out, Exit::Ok, &notices())
        }
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut cli::help::command(false), "gpurun", &mut script);
            printed(out.write_all(&script), &mut out, Exit::Ok, &notices())
        }
        Command::Man(args) => page(cli::man::page(args.command.as_deref()), &mut out),
        Command::Help(args) => page(cli::help::page(&args.command), &mut out),
        Command::Recover(args) => {
            let outcome = recover::recover(&args.paths, &mut out, &mut NonBlockingStderr::new());
            let exit = if outcome.failed == 0 { Exit::Ok } else { Exit::Failed };
            printed(outcome.told, &mut out, exit, &notices())
        }
        Command::Export(args) => export_logs(args, &mut out, &notices()),
        Command::Report(args) => {
            drop(out);
            report::run(&args, &notices())
        }
        Command::Status(args) => status::run(&args, &mut out, &notices()),
        Command::Tag(args) => mark::run(args.meaning(), &notices()),
        Command::Step(args) => mark::run(args.meaning(), &notices()),
        Command::Epoch(args) => mark::run(args.meaning(), &notices()),
        Command::Log(args) => mark::run(args.meaning(), &notices()),
    }
}

/// `gpurun export`.
fn export_logs(args: ExportArgs, out: &mut dyn io::Write, notices: &Notices) -> Exit {
    let layout = match args.layout {
        Some(LayoutArg::Wide) => Layout::Wide,
        Some(LayoutArg::Long) | None => Layout::Long,
    };
    let request =
        ExportRequest { inputs: args.paths, output: args.output, layout, overwrite: args.overwrite };
    match export::export(&request, args.quiet, out, &mut NonBlockingStderr::new()) {
        Ok(exported) if exported.damaged => Exit::Failed,
        Ok(_) => Exit::Ok,
        Err(WriterError::Io { path, source, .. }) if path == Path::new(STANDARD_OUTPUT) => {
            printed(Err(source), out, Exit::Ok, notices)
        }
        Err(error) => {
            notices.error(&error.to_string());
            Exit::Failed
        }
    }
}
