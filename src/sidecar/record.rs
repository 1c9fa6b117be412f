//! `gpurun record`: the engine without a job to mind, in gpurun's own process. It ends when the processes that it follows
//! have ended, when the time is up, or when it is told to stop.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::choice::Refusal;
use super::engine::{Engine, EngineSettings, Inbox};
use super::job::{LAST_MARKS, LAST_WINDOW, listen};
use super::load_check::LoadCheck;
use super::watch::{Watch, WatchEvent};
use super::watched::Watched;
use super::{describe, targets};
use crate::cli::exit::Exit;
use crate::cli::logging::Logging;
use crate::model::signal;
use crate::sampling::TreeRoot;
use crate::summary::json::Summary;
use crate::sys::notice::Notices;
use crate::sys::signal_source::SignalSource;
use crate::sys::{clock, descriptors, limits};

/// What is recorded.
pub(crate) struct Recording {
    /// The logging options as meant.
    pub logging: Logging,
    /// The trees that are followed; none: every GPU process of the host.
    pub pids: Vec<i32>,
    /// When to end.
    pub duration: Option<Duration>,
    /// NVML library to load; `None` searches the usual names.
    pub library: Option<PathBuf>,
    /// Messages to the user.
    pub notices: Notices,
}

/// Records; the exit status.
pub(crate) fn run(recording: &Recording) -> Exit {
    let done = record(recording).map_or_else(
        |refusal| {
            recording.notices.error_lines(&refusal.lines);
            refusal.exit
        },
        |()| Exit::Ok,
    );
    // A driver call that hangs was left behind on its thread: an orderly end could wait for it.
    crate::sys::process::exit_at_once(done.code())
}

fn record(recording: &Recording) -> Result<(), Refusal> {
    let Recording { logging, pids, duration, library, notices } = recording;
    let own_failure = |line: String| Refusal::new(Exit::OwnFailure, line);
    let mut signals =
        SignalSource::block_all().map_err(|error| own_failure(format!("cannot watch signals: {error}")))?;
    signals.catch_all();
    let mut watch = Watch::new(signals, pids).map_err(|(pid, error)| {
        let why = if error.raw_os_error() == Some(libc::ESRCH) {
            "there is no such process".into()
        } else {
            error.to_string()
        };
        own_failure(format!("--pid {pid}: {why}"))
    })?;
    // What the driver library prints is no output of gpurun's.
    descriptors::silence_stdout().map_err(|error| own_failure(format!("/dev/null: {error}")))?;
    let load_check = LoadCheck::start(library.as_deref()).ok();
    limits::raise_descriptors();
    let pid = std::process::id();
    let run = describe::run(logging, &[], pid, clock::pair());
    let opened = targets::open(logging, &run, pid, notices)?;

    let inbox = Inbox::new();
    let socket = listen(&inbox, &run.run, pid, notices);
    let settings = EngineSettings {
        logging: logging.clone(),
        root: if pids.is_empty() { TreeRoot::GpuProcesses } else { TreeRoot::Pids(pids.clone()) },
        watched: Watched::All(load_check),
        library: library.clone(),
        targets: opened,
        run,
        on_window: None,
        notices: notices.clone(),
    };
    let engine = Engine::start(settings, inbox)
        .map_err(|error| own_failure(format!("cannot start a thread: {error}")))?;

    match watch.next(duration.map(|duration| Instant::now() + duration)) {
        WatchEvent::Signal(signal) => notices.say(&format!("stopped by {}", signal::name(signal))),
        WatchEvent::AllEnded => notices.say("the processes have ended"),
        WatchEvent::Deadline => {}
    }
    let losses = socket.map(|socket| socket.stop(LAST_MARKS)).unwrap_or_default();
    // A second signal ends the wait for the files.
    let give_up = || matches!(watch.next(Some(Instant::now())), WatchEvent::Signal(_));
    let end = engine.finish(None, LAST_WINDOW, give_up).map_err(|error| own_failure(error.to_string()))?;
    let mut summary =
        Summary::new(&end.run, &end.end, &end.totals, targets::summaries(&end.reports), Vec::new());
    summary.add_losses(&losses);
    targets::say_summary(&summary, &end.reports, logging, notices);
    Ok(())
}
