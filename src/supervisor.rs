//! The one event loop that wires the rooms; the only room that sees every other.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};

use clap::CommandFactory;

use crate::cli::args::{Cli, Command, DevicesArgs, ExportArgs, SelectArgs};
use crate::cli::exit::Exit;
use crate::cli::logging::LayoutArg;
use crate::cli::selection::Purpose;
use crate::cli::{self, Invocation, Stop};
use crate::launch::{self, NonBlockingStderr, SignalHold};
use crate::model::device::ProbeRequest;
use crate::model::selection::Patience;
use crate::writers::export::ExportRequest;
use crate::writers::{Layout, WriterError};

mod catalogue;
mod choose;
pub mod collector;
mod describe;
mod devices;
mod driver;
mod engine;
mod export;
mod job;
mod mark;
mod notice;
mod picked;
mod record;
pub mod recover;
mod report;
mod select;
mod status;
mod targets;
mod watchdog;
mod watched;

use choose::{Screen, Surroundings};
use driver::{Driver, Ending};
use notice::Notices;
use select::SelectStreams;

/// The whole program: reads the command line, does what it says, gives the status.
pub fn main(argv: Vec<OsString>) -> Exit {
    choose::this_is_gpurun();
    say_panics_without_waiting();
    if argv.get(1).is_some_and(|word| word == choose::CUDA_ORDER_COMMAND) {
        return choose::print_cuda_order(&mut io::stdout().lock(), &mut NonBlockingStderr::new());
    }
    match cli::parse(argv) {
        Ok(Invocation::Job(args)) => with_signals_held(|hold| job::run(&args, hold)),
        Ok(Invocation::Other(command)) => other(*command),
        Err(Stop::Print(text)) => {
            printed(io::stdout().lock().write_all(text.as_bytes()), &Notices::new(false))
        }
        Err(Stop::Usage(line)) => {
            Notices::new(false).error(&line);
            Exit::Usage
        }
    }
}

/// A panic is told in one line. The standard hook would write to a stderr that nobody may be reading, and wait.
fn say_panics_without_waiting() {
    std::panic::set_hook(Box::new(|info| {
        if !crate::writers::is_decoding() {
            Notices::new(false).error(&format!("internal error: {info}"));
        }
    }));
}

/// Blocks signals before any thread starts, so that none can end gpurun while it has a job.
fn with_signals_held(run: impl FnOnce(SignalHold) -> Exit) -> Exit {
    driver::ready_to_wait();
    match SignalHold::new() {
        Ok(hold) => run(hold),
        Err(error) => {
            Notices::new(false).error(&format!("cannot watch signals: {error}"));
            Exit::OwnFailure
        }
    }
}

/// Everything that is not a job.
fn other(command: Command) -> Exit {
    let mut out = io::stdout().lock();
    // Few commands have anything to say beside their answer.
    let notices = || Notices::new(false);
    match command {
        Command::Select(args) => answered(select_devices(&args, &mut out), &mut out),
        Command::Devices(args) => answered(list_devices(&args, &mut out), &mut out),
        Command::Record(args) => {
            drop(out);
            with_signals_held(|hold| record::run(&args, hold))
        }
        Command::Metrics(args) => printed(catalogue::run(&args, &mut out), &notices()),
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "gpurun", &mut script);
            printed(out.write_all(&script), &notices())
        }
        Command::Man => printed(clap_mangen::Man::new(Cli::command()).render(&mut out), &notices()),
        Command::Recover(args) => {
            match recover::recover(&args.paths, &mut out, &mut NonBlockingStderr::new()) {
                Ok(outcome) if outcome.failed == 0 => Exit::Ok,
                Ok(_) => Exit::Failed,
                Err(error) => printed(Err(error), &notices()),
            }
        }
        Command::Export(args) => export_logs(args, &mut out, &notices()),
        Command::Report(args) => {
            drop(out);
            report::run(&args, &notices())
        }
        Command::Status(args) => status::run(&args, &mut out, &notices()),
        Command::Tag(args) => mark::run(args.meaning(), &notices()),
        Command::Step(args) => mark::run(Ok(args.meaning()), &notices()),
        Command::Log(args) => mark::run(args.meaning(), &notices()),
    }
}

/// Ends with an answer that scripts ask for again and again: the kernel clears up fastest, and no exit handler of the
/// driver library holds the answer up.
fn answered(exit: Exit, out: &mut dyn io::Write) -> ! {
    // What could not be written was said where it was written.
    let _ = out.flush();
    launch::exit::at_once(exit.code())
}

/// `gpurun select`.
fn select_devices(args: &SelectArgs, out: &mut dyn io::Write) -> Exit {
    let mut stderr = NonBlockingStderr::new();
    let settings = match args.selection.settings(Purpose::Select) {
        Ok(settings) => settings,
        Err(mistakes) => return refuse(&mut stderr, &mistakes, Exit::Usage),
    };
    let quiet = args.common.quiet;
    // nvisel answers 2 where NVML fails.
    let ending = Ending { exit: Exit::Usage, opening: "", quiet };
    let mut driver = match Driver::open_or_end(args.common.library(), settings.patience, ending) {
        Ok(driver) => driver,
        Err(error) => return refuse(&mut stderr, &error, ending.exit),
    };
    let mut say = driver::teller(quiet);
    let mut probe =
        |request: &ProbeRequest| driver.probe(request, &mut say).map_err(|error| error.to_string());
    let screen = Screen { columns: stderr.columns(), out: &mut stderr, quiet };
    let mut streams = SelectStreams { stdout: out, stdout_is_terminal: io::stdout().is_terminal(), screen };
    select::run(&settings, &args.output, &Surroundings::from_environment(), &mut probe, &mut streams)
}

/// `gpurun devices`.
fn list_devices(args: &DevicesArgs, out: &mut dyn io::Write) -> Exit {
    let mut stderr = NonBlockingStderr::new();
    let quiet = args.common.quiet;
    let ending = Ending { exit: Exit::OwnFailure, opening: "", quiet };
    let mut driver = match Driver::open_or_end(args.common.library(), Patience::None, ending) {
        Ok(driver) => driver,
        Err(error) => return refuse(&mut stderr, &error, ending.exit),
    };
    let mut say = driver::teller(quiet);
    let mut probe =
        |request: &ProbeRequest| driver.probe(request, &mut say).map_err(|error| error.to_string());
    devices::run(args.json, &Surroundings::from_environment(), &mut probe, out, &mut stderr)
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
        Err(WriterError::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => Exit::Ok,
        Err(error) => {
            notices.error(&error.to_string());
            Exit::Failed
        }
    }
}

fn refuse(stderr: &mut dyn io::Write, why: &dyn std::fmt::Display, exit: Exit) -> Exit {
    let _ = writeln!(stderr, "gpurun: {why}");
    exit
}

/// A reader that closed its end has what it wanted; anything else is a failure.
fn printed(result: io::Result<()>, notices: &Notices) -> Exit {
    match result {
        Ok(()) => Exit::Ok,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Ok,
        Err(error) => {
            notices.error(&format!("cannot write to standard output: {error}"));
            Exit::Failed
        }
    }
}
