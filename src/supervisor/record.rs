//! `gpurun record`: logs without launching, until its processes end, the time is up, or it is told to stop.

use std::time::Instant;

use crate::cli::args::RecordArgs;
use crate::cli::exit::Exit;
use crate::collectors::clock;
use crate::launch::exit;
use crate::launch::{SignalHold, Watch, WatchEvent, signal_name};
use crate::sampling::TreeRoot;
use crate::summary::json::Summary;

use super::engine::{Engine, EngineSettings, Inbox};
use super::job::{LAST_MARKS, LAST_WINDOW, Refusal, listen};
use super::notice::Notices;
use super::watched::Watched;
use super::{describe, targets};

/// Records, and answers 0 unless something was wrong before it began.
pub(super) fn run(args: &RecordArgs, hold: SignalHold) -> ! {
    let notices = Notices::new(args.common.quiet);
    match record(args, hold, &notices) {
        // An orderly end could wait for a driver that hangs.
        Ok(()) => exit::at_once(Exit::Ok.code()),
        Err(refusal) => refusal.end(&notices),
    }
}

fn record(args: &RecordArgs, hold: SignalHold, notices: &Notices) -> Result<(), Refusal> {
    let logging = args.logging.meaning().map_err(|line| Refusal::new(Exit::Usage, line))?;
    if logging.targets.is_empty() && logging.summary.is_none() {
        return Err(Refusal::new(
            Exit::Usage,
            "record needs somewhere to write to: --log TARGET or --summary FILE",
        ));
    }
    if let Some(pid) = args.pid.iter().find(|pid| **pid <= 0) {
        return Err(Refusal::new(Exit::Usage, format!("--pid {pid}: a process id is positive")));
    }
    let mut watch = Watch::new(hold, &args.pid).map_err(|(pid, error)| {
        let why = if error.raw_os_error() == Some(libc::ESRCH) {
            "there is no such process".into()
        } else {
            error.to_string()
        };
        Refusal::new(Exit::OwnFailure, format!("--pid {pid}: {why}"))
    })?;
    let run = describe::run(&logging, &[], clock::pair());
    let opened = targets::open(&logging, &run, notices)?;

    let inbox = Inbox::new();
    let socket = listen(&inbox, &run.run, notices);
    let root = if args.pid.is_empty() { TreeRoot::GpuProcesses } else { TreeRoot::Pids(args.pid.clone()) };
    let settings = EngineSettings {
        logging: logging.clone(),
        root,
        watched: Watched::All,
        library: args.common.library(),
        targets: opened,
        run,
        on_window: None,
        notices: notices.clone(),
    };
    let engine = Engine::start(settings, inbox)
        .map_err(|error| Refusal::new(Exit::OwnFailure, format!("cannot start a thread: {error}")))?;

    let end = args.duration.map(|d| Instant::now() + d);
    match watch.next(end) {
        WatchEvent::Signal(signal) => notices.say(&format!("stopped by {}", signal_name(signal))),
        WatchEvent::AllEnded => notices.say("the processes have ended"),
        WatchEvent::Deadline => {}
    }
    if let Some(socket) = socket {
        socket.stop(LAST_MARKS);
    }
    // A second signal ends the wait for the files.
    let give_up = || matches!(watch.next(Some(Instant::now())), WatchEvent::Signal(_));
    let end = engine
        .finish(None, LAST_WINDOW, give_up)
        .map_err(|error| Refusal::new(Exit::OwnFailure, error.to_string()))?;
    let summary = Summary::new(&end.run, &end.end, &end.totals, targets::summaries(&end.reports), Vec::new());
    targets::say_reports(&end.reports, notices);
    for line in crate::summary::text::lines(&summary) {
        notices.say(&line);
    }
    targets::say_troubles(&summary, notices);
    targets::write_summary(&logging, &summary, notices);
    Ok(())
}
