//! `gpurun record`: what was typed, checked and handed over.

use crate::cli::args::RecordArgs;
use crate::cli::exit::Exit;
use crate::sidecar::record::{self, Recording};
use crate::sys::notice::Notices;

/// Records, and answers 0 unless something was wrong before it began.
pub(super) fn run(args: &RecordArgs, notices: &Notices) -> Exit {
    let logging = match args.logging.meaning() {
        Ok(logging) => logging,
        Err(line) => return usage(notices, &line),
    };
    if logging.targets.is_empty() && logging.summary.is_none() {
        return usage(notices, "record needs --log TARGET or --summary FILE");
    }
    if let Some(pid) = args.pid.iter().find(|pid| **pid <= 0) {
        return usage(notices, &format!("--pid {pid}: a process id is positive"));
    }
    record::run(&Recording {
        logging,
        pids: args.pid.clone(),
        duration: args.duration,
        library: args.common.library(),
        notices: notices.clone(),
    })
}

fn usage(notices: &Notices, line: &str) -> Exit {
    notices.error(line);
    Exit::Usage
}
