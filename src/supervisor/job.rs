//! `gpurun … -- COMMAND`: choose, hold, open, launch, follow, end. In that order, in one place.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::cli::args::{JobArgs, RunArgs};
use crate::cli::exit::Exit;
use crate::cli::logging::Logging;
use crate::collectors::clock;
use crate::control;
use crate::launch::{
    self, JobCommand, JobEvent, Launcher, Leftover, NotForwarded, SignalHold, Termination, signal_name,
};
use crate::model::run::{JobExit, RunInfo};
use crate::sampling::{ReapedUsage, TreeRoot};
use crate::summary::json::{LeftoverSummary, Summary};
use crate::writers::Opened;

use super::engine::{Engine, EngineEnd, EngineSettings, Inbox, ToEngine, Unfinished};
use super::notice::Notices;
use super::picked::Picked;
use super::watched::Watched;
use super::{describe, targets};

/// How long the end of the job may wait for the last window; the writers have their own patience.
pub(super) const LAST_WINDOW: Duration = Duration::from_secs(1);

/// How long the socket may take to hand over its last marks.
pub(super) const LAST_MARKS: Duration = Duration::from_millis(200);

/// How long `--kill-tree` waits between asking and killing.
const TREE_GRACE: Duration = Duration::from_secs(5);

/// Runs a job and answers with its status.
pub(super) fn run(args: &RunArgs, hold: SignalHold) -> ! {
    let notices = Notices::new(args.common.quiet);
    match prepare_and_run(args, hold, &notices) {
        Ok(exit) => launch::exit::leave(exit),
        Err(refusal) => refusal.end(&notices),
    }
}

/// Why there was no job.
pub(super) struct Refusal {
    /// The exit status.
    pub code: u8,
    /// What is said about it; the first line is the error.
    pub lines: Vec<String>,
}

impl Refusal {
    /// A refusal of one line.
    pub fn new(exit: Exit, line: impl Into<String>) -> Self {
        Self { code: exit.code(), lines: vec![line.into()] }
    }

    /// Says why, and ends gpurun with the status. A driver whose library hangs while it is loaded keeps the loader
    /// locked: an orderly end would wait for it.
    pub fn end(&self, notices: &Notices) -> ! {
        for line in &self.lines {
            notices.error(line);
        }
        launch::exit::at_once(self.code)
    }
}

fn prepare_and_run(args: &RunArgs, hold: SignalHold, notices: &Notices) -> Result<JobExit, Refusal> {
    let logging = args.logging.meaning().map_err(|line| Refusal::new(Exit::Usage, line))?;
    let mut run = describe::run(&logging, &args.command, clock::pair());
    let checked = targets::check(&logging, &run, notices)?;

    // A wait for GPUs can be ended like any program; from here on signals belong to the job.
    // Where nothing is asked of the driver nothing can take long, and no thread is made for it.
    let mut picked = if Picked::may_take_long(args) {
        hold.released(|| Picked::for_job(args, notices))?
    } else {
        Picked::for_job(args, notices)?
    };

    let opened = targets::create(checked, &logging, notices)?;
    let inbox = Inbox::new();
    let socket = listen(&inbox, &run.run, notices);
    let command = job_command(args, &picked, socket.as_ref());
    // The run begins with the job, not with the wait for its GPUs.
    let start = clock::pair();
    run.start = start.wall;
    run.start_mono = start.mono;
    let mut launcher = match launch::spawn(&command, hold) {
        Ok(launcher) => launcher,
        Err(error) => {
            if let Some(opened) = opened {
                drop(opened);
            }
            return Err(Refusal { code: error.exit_code(), lines: vec![error.to_string()] });
        }
    };
    launch::raise_descriptor_limit();
    picked.note_job(launcher.pid());
    say_start(&picked, &logging, &targets::names(opened.as_ref()), notices);
    let watched = picked.watched();
    let engine = start_engine(args, logging.clone(), watched, run, opened, inbox, launcher.pid(), notices);

    // From here on there is a job: whatever goes wrong in our own code, its status is passed on.
    let minded = catch_unwind(AssertUnwindSafe(|| {
        let exit = follow(&mut launcher, engine.as_ref(), args.job.kill_after, notices);
        let leftovers = end_leftovers(&mut launcher, engine.as_ref(), &args.job, notices);
        if let Some(socket) = socket {
            socket.stop(LAST_MARKS);
        }
        if let Some(engine) = engine {
            let end = engine.finish(Some(exit), LAST_WINDOW, || told_to_end(&mut launcher));
            finish(end, &leftovers, &logging, notices);
        }
        exit
    }));
    let exit = minded.unwrap_or_else(|_| launcher.until_exit());
    drop(picked);
    Ok(exit)
}

/// Whether somebody wants gpurun to end although its files are not finished.
fn told_to_end(launcher: &mut Launcher) -> bool {
    const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
    loop {
        match launcher.next_event(Some(Duration::ZERO), None) {
            JobEvent::Forwarded { signal } | JobEvent::NotForwarded { signal, .. }
                if ENDING.contains(&signal) =>
            {
                return true;
            }
            JobEvent::Deadline => return false,
            _ => {}
        }
    }
}

/// The job's socket; without it the job runs all the same.
pub(super) fn listen(inbox: &Inbox, run: &Arc<str>, notices: &Notices) -> Option<control::Server> {
    let settings = control::Settings { run: Arc::clone(run), ..control::Settings::default() };
    let sink = control::Server::sink(inbox.channel(), ToEngine::Control, |message| match message {
        ToEngine::Control(event) => Some(event),
        _ => None,
    });
    match control::Server::start(settings, sink) {
        Ok(server) => Some(server),
        Err(error) => {
            notices.say(&format!("no marks from inside the job: {error}"));
            None
        }
    }
}

fn job_command(args: &RunArgs, picked: &Picked, socket: Option<&control::Server>) -> JobCommand {
    let mut env: Vec<(OsString, OsString)> = picked.env();
    if let Some(socket) = socket {
        env.push((control::SOCKET_VARIABLE.into(), socket.path().as_os_str().to_owned()));
    }
    JobCommand {
        argv: args.command.clone(),
        env,
        keep_fds: picked.keep_fds(),
        die_together: args.job.die_together,
    }
}

#[expect(clippy::too_many_arguments, reason = "every part of the run is handed to its thread here, once")]
fn start_engine(
    args: &RunArgs,
    logging: Logging,
    watched: Watched,
    run: RunInfo,
    targets: Option<Opened>,
    inbox: Inbox,
    main_pid: i32,
    notices: &Notices,
) -> Option<Engine> {
    let settings = EngineSettings {
        logging,
        root: TreeRoot::ChildrenOfSelf { main_pid },
        watched,
        library: args.common.library(),
        targets,
        run,
        on_window: None,
        notices: notices.clone(),
    };
    match Engine::start(settings, inbox) {
        Ok(engine) => Some(engine),
        Err(error) => {
            notices.error(&format!("nothing is logged: cannot start a thread: {error}"));
            None
        }
    }
}

/// Minds the job until its main process has ended.
fn follow(
    launcher: &mut Launcher,
    engine: Option<&Engine>,
    kill_after: Option<Duration>,
    notices: &Notices,
) -> JobExit {
    let mut termination = Termination::new(kill_after);
    loop {
        let timeout = termination.deadline().map(|at| at.since(clock::monotonic()));
        match launcher.next_event(timeout, None) {
            JobEvent::Reaped(reaped) => {
                if let Some(engine) = engine {
                    engine.reaped(usage(&reaped));
                }
            }
            JobEvent::MainExited(exit) => {
                termination.on_main_exit();
                return exit;
            }
            JobEvent::Forwarded { signal } => termination.on_signal(signal, clock::monotonic()),
            JobEvent::Suspended => {
                if let Some(engine) = engine {
                    engine.suspended(clock::monotonic());
                }
            }
            JobEvent::Resumed => tell(engine, ToEngine::Resumed(clock::monotonic())),
            // The terminal has sent it to the job as well.
            JobEvent::NotForwarded { signal, why: NotForwarded::Terminal } => {
                termination.on_signal(signal, clock::monotonic());
            }
            JobEvent::Dying { .. } | JobEvent::NotForwarded { .. } | JobEvent::Woken => {}
            JobEvent::Deadline => {
                if termination.due(clock::monotonic()) {
                    let killed = launcher.signal_tree(libc::SIGKILL);
                    notices.say(&format!(
                        "the job did not end within --kill-after: sent {} to {killed} processes",
                        signal_name(libc::SIGKILL)
                    ));
                }
            }
        }
    }
}

fn tell(engine: Option<&Engine>, message: ToEngine) {
    if let Some(engine) = engine {
        engine.inbox().send(message);
    }
}

fn usage(reaped: &launch::Reaped) -> ReapedUsage {
    ReapedUsage {
        pid: reaped.pid,
        cpu_seconds: reaped.cpu_s,
        max_rss_kib: reaped.max_rss_kib,
        blocks_read: reaped.blocks_in,
        blocks_written: reaped.blocks_out,
    }
}

/// Names what the job leaves behind, or ends it if that was asked for.
fn end_leftovers(
    launcher: &mut Launcher,
    engine: Option<&Engine>,
    options: &JobArgs,
    notices: &Notices,
) -> Vec<Leftover> {
    reap_the_last(launcher, engine);
    let left = launcher.leftovers();
    if left.is_empty() {
        return left;
    }
    if options.kill_tree {
        let grace = options.kill_after.unwrap_or(TREE_GRACE);
        let report = launcher.kill_tree(grace, |reaped| {
            if let Some(engine) = engine {
                engine.reaped(usage(&reaped));
            }
        });
        notices.say(&format!(
            "ended {} processes that the job left behind, {} of them by SIGKILL",
            report.asked, report.killed
        ));
        return launcher.leftovers();
    }
    left
}

/// Orphans that ended with the job still count.
fn reap_the_last(launcher: &mut Launcher, engine: Option<&Engine>) {
    loop {
        match launcher.next_event(Some(Duration::ZERO), None) {
            JobEvent::Reaped(reaped) => {
                if let Some(engine) = engine {
                    engine.reaped(usage(&reaped));
                }
            }
            JobEvent::Deadline => return,
            _ => {}
        }
    }
}

/// What is said and written at the end.
fn finish(end: Result<EngineEnd, Unfinished>, leftovers: &[Leftover], logging: &Logging, notices: &Notices) {
    let end = match end {
        Ok(end) => end,
        Err(error) => return notices.error(&error.to_string()),
    };
    let left: Vec<LeftoverSummary> = leftovers
        .iter()
        .map(|l| LeftoverSummary {
            pid: l.pid,
            command: l.command.clone(),
            gpu_memory_mib: end.process_gpu_memory(l.pid),
        })
        .collect();
    for process in &left {
        let gpu = process.gpu_memory_mib.filter(|mib| *mib > 0.0);
        let held = gpu.map(|mib| format!(", holding {mib:.0} MiB of GPU memory")).unwrap_or_default();
        notices.say(&format!("left behind by the job: process {} ({}){held}", process.pid, process.command));
    }
    let summary = Summary::new(&end.run, &end.end, &end.totals, targets::summaries(&end.reports), left);
    targets::say_reports(&end.reports, notices);
    for line in crate::summary::text::lines(&summary) {
        notices.say(&line);
    }
    targets::say_troubles(&summary, notices);
    targets::write_summary(logging, &summary, notices);
}

/// The line at the start: which GPUs, the variable as set, where the log goes.
fn say_start(picked: &Picked, logging: &Logging, targets: &[String], notices: &Notices) {
    let devices = picked.devices();
    let variable = picked.visible_devices();
    if devices.is_empty() && targets.is_empty() {
        return;
    }
    let line =
        crate::summary::start::line(&devices, variable.as_deref(), targets, logging.interval, logging.window);
    notices.say(&line);
}
