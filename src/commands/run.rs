//! `gpurun … -- COMMAND`: what was typed, checked and handed to the minder and its sidecar.

use super::print::verbosity;
use crate::cli::args::RunArgs;
use crate::cli::exit::Exit;
use crate::cli::selection::Purpose;
use crate::minder::{self, Plan};
use crate::sidecar::job::{self, Setup};
use crate::sys::notice::Notices;

/// Runs a job; the status to end with.
pub(super) fn run(args: RunArgs) -> u8 {
    let verbosity = verbosity(&args.common);
    let notices = Notices::new(verbosity);
    let usage = |line: &str| {
        notices.error(line);
        Exit::Usage.code()
    };
    let logging = match args.logging.meaning() {
        Ok(logging) => logging,
        Err(line) => return usage(&line),
    };
    let choice = match args.selection.any().then(|| args.selection.settings(Purpose::Job)).transpose() {
        Ok(choice) => choice,
        Err(mistakes) => return usage(&mistakes.to_string()),
    };
    let plan = Plan {
        command: args.command.clone(),
        kill_after: args.job.kill_after,
        kill_tree: args.job.kill_tree,
        die_together: args.job.die_together,
        choice: choice.as_ref().map(|settings| settings.patience),
        notices,
    };
    let setup = Setup { logging, library: args.common.library(), verbosity, command: args.command, choice };
    minder::run(&plan, |link| job::run(&setup, link))
}
