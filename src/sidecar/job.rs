//! The sidecar's life beside a job: choose, open the files, say that the job can start, follow it, finish the files.

use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::choice::{self, Chosen, Refusal, Wish};
use super::engine::{Engine, EngineEnd, EngineSettings, Inbox, ToEngine, Unfinished};
use super::load_check::LoadCheck;
use super::process::{self, Talk};
use super::stops::Stops;
use super::watched::Watched;
use super::{describe, targets};
use crate::cli::exit::Exit;
use crate::cli::logging::Logging;
use crate::collectors::cgroup::OomWatch;
use crate::control;
use crate::link::{Closed, Job, Ready, ReapedProcess, SidecarEnd, ToMinder, ToSidecar};
use crate::model::cause::Cause;
use crate::model::loss::Losses;
use crate::model::run::{JobExit, RunInfo};
use crate::model::selection::Settings;
use crate::model::time::Mono;
use crate::sampling::{ReapedUsage, TreeRoot};
use crate::selection::flow::Surroundings;
use crate::selection::lease::{HOLDER_LOOK, Lease};
use crate::summary::json::{LeftoverSummary, Summary};
use crate::summary::start;
use crate::sys::notice::{Notices, Verbosity};
use crate::sys::process::{command_of, id, parent_id};
use crate::sys::signal_source::SignalSource;
use crate::sys::{clock, limits};
use crate::writers::Opened;

/// How long the end of the job may wait for the last window; the writers have their own patience.
pub(super) const LAST_WINDOW: Duration = Duration::from_secs(1);

/// How long the socket may take to hand over its last marks: a moment, unless the job said very much at its end.
pub(super) const LAST_MARKS: Duration = Duration::from_secs(5);

/// How long the minder may take to say what the job left behind; more than the grace that it gives.
const LEFT_BEHIND: Duration = Duration::from_secs(2);

/// What the sidecar is to do.
pub(crate) struct Setup {
    /// The logging options as meant.
    pub logging: Logging,
    /// The job's command line.
    pub command: Vec<OsString>,
    /// How GPUs are chosen; `None` leaves the environment alone.
    pub choice: Option<Settings>,
    /// NVML library to load; `None` searches the usual names.
    pub library: Option<PathBuf>,
    /// How much is said.
    pub verbosity: Verbosity,
}

/// The whole life of a sidecar whose parent is the minder of a job; its exit status.
pub(crate) fn run(setup: &Setup, link: SidecarEnd) -> u8 {
    let minder = parent_id();
    let Ok(link) = process::enter(link) else { return Exit::OwnFailure.code() };
    let notices = Notices::new(setup.verbosity);
    let entered = clock::monotonic();
    process::leave_signals_to_minder();
    // With a choice the driver is opened before there is any other thread, and the minder watches.
    let load_check = match &setup.choice {
        Some(_) => None,
        None => LoadCheck::start(setup.library.as_deref()).ok(),
    };
    let prepared = match Prepared::new(setup, minder, &link, &notices) {
        Ok(prepared) => prepared,
        Err(refusal) => {
            notices.error_lines(&refusal.lines);
            link.send(&ToMinder::Finish(refusal.exit.code()));
            return Exit::Ok.code();
        }
    };
    let lease = prepared.chosen.lease.as_ref();
    let descriptors = lease.map(|lease| lease.descriptors().collect::<Vec<_>>()).unwrap_or_default();
    link.send_with(&ToMinder::Ready(prepared.ready(&setup.logging)), &descriptors);
    drop(descriptors);
    let Ok(job) = wait_for_start(&link) else {
        prepared.undo();
        return Exit::Ok.code();
    };
    let running = RunningJob { setup, minder, job, entered, load_check, notices: &notices };
    running.run(prepared, link)
}

/// Everything that must be there before the job starts.
struct Prepared {
    run: RunInfo,
    chosen: Chosen,
    surroundings: Surroundings,
    signals: SignalSource,
    opened: Option<Opened>,
    inbox: Inbox,
    socket: Option<control::Server>,
    oom: Option<OomWatch>,
}

impl Prepared {
    fn new(setup: &Setup, minder: i32, link: &SidecarEnd, notices: &Notices) -> Result<Self, Refusal> {
        let pid = minder.unsigned_abs();
        let run = describe::run(&setup.logging, &setup.command, pid, clock::pair());
        let checked = targets::check(&setup.logging, &run, pid, notices)?;
        let surroundings = Surroundings::from_environment();
        let chosen = match &setup.choice {
            None => Chosen::default(),
            Some(settings) => {
                let wish = Wish {
                    settings,
                    command: &setup.command,
                    library: setup.library.clone(),
                    verbosity: setup.verbosity,
                    minder: pid,
                };
                choice::choose(&wish, &surroundings, link)?
            }
        };
        let signals = process::get_ready()
            .map_err(|error| Refusal::new(Exit::OwnFailure, format!("cannot watch signals: {error}")))?;
        // Not before: a wait that is broken off leaves no files.
        let opened = targets::create(checked, &setup.logging, notices)?;
        let inbox = Inbox::new();
        let socket = listen(&inbox, &run.run, pid, notices);
        let oom = OomWatch::start(Path::new("/proc"), Path::new("/sys/fs/cgroup"));
        Ok(Self { run, chosen, surroundings, signals, opened, inbox, socket, oom })
    }

    fn ready(&self, logging: &Logging) -> Ready {
        let mut env = self.chosen.env.clone();
        let socket = self.socket.as_ref().map(|socket| socket.path().to_owned());
        if let Some(path) = socket.as_ref().filter(|_| !outer_records(logging)) {
            env.push((control::SOCKET_VARIABLE.into(), path.as_os_str().to_owned()));
        }
        let journals = self.opened.iter().flat_map(Opened::journaled).collect();
        Ready { env, socket, journals }
    }

    /// There is no job: removes what was made for it.
    fn undo(self) {
        let Self { chosen, opened, socket, .. } = self;
        drop(opened);
        socket.map(|socket| socket.stop(LAST_MARKS));
        // Left open: the process ends now, and the driver's own shutdown can hang.
        std::mem::forget(chosen);
    }
}

/// The job's socket, named after the gpurun that the user started; without it the job runs all the same.
pub(super) fn listen(inbox: &Inbox, run: &Arc<str>, pid: u32, notices: &Notices) -> Option<control::Server> {
    let settings = control::Settings { run: Arc::clone(run), pid, ..control::Settings::default() };
    let sink = control::Server::sink(inbox.channel(), ToEngine::Control, |message| match message {
        ToEngine::Control(event) => Some(event),
        _ => None,
    });
    match control::Server::start(settings, sink) {
        Ok(server) => Some(server),
        Err(error) => {
            notices.warn(&format!("the job cannot set tags, steps or scalars: {error}"));
            None
        }
    }
}

/// Whether the job's tags, steps and scalars are for a gpurun around this one: it is there, and this one writes nothing.
fn outer_records(logging: &Logging) -> bool {
    let writes = !logging.targets.is_empty() || logging.summary.is_some();
    let outer = || std::env::var_os(control::SOCKET_VARIABLE).filter(|path| !path.is_empty());
    !writes && outer().is_some_and(|path| control::Client::connect(path.as_ref()).is_ok())
}

/// Waits for the minder to have started the job. Where it is killed in between, the job's own word counts.
fn wait_for_start(link: &SidecarEnd) -> Result<Job, Closed> {
    let mut starting = None;
    loop {
        match link.receive() {
            Ok(Some(ToSidecar::Started(job))) => return Ok(job),
            Ok(Some(ToSidecar::Starting(job))) => starting = Some(job),
            Ok(Some(ToSidecar::NotStarted)) => starting = None,
            Ok(Some(_)) => {}
            Ok(None) => {
                // An interrupted wait is looked at again.
                let _ = poll(&mut [PollFd::from_borrowed_fd(link.as_fd(), PollFlags::IN)], None);
            }
            Err(Closed) => return starting.ok_or(Closed),
        }
    }
}

/// What is known once the job runs.
struct RunningJob<'a> {
    setup: &'a Setup,
    minder: i32,
    job: Job,
    /// When signals were first left to wait.
    entered: Mono,
    load_check: Option<LoadCheck>,
    notices: &'a Notices,
}

impl RunningJob<'_> {
    /// Follows the job to its end and finishes the files; the exit status.
    fn run(self, prepared: Prepared, link: SidecarEnd) -> u8 {
        let Self { setup, job, notices, .. } = self;
        let Prepared { run, mut chosen, surroundings, signals, opened, inbox, socket, oom } = prepared;
        let watch = JobWatch::open(job.pid);
        if let (Some(lease), Ok(pid)) = (&mut chosen.lease, u32::try_from(job.pid)) {
            lease.note_job(pid);
        }
        let talk = Talk::begin(link, signals, self.entered);
        limits::raise_descriptors();
        say_start(&chosen, &setup.logging, opened.as_ref(), notices);
        let watched = match chosen.known.take() {
            Some((nvml, devices)) => Watched::Known(Box::new(nvml), devices),
            None => Watched::Visible(surroundings, self.load_check),
        };
        let settings = EngineSettings {
            logging: setup.logging.clone(),
            root: TreeRoot::Job { minder: self.minder, main_pid: job.pid, sidecar: id() },
            watched,
            library: setup.library.clone(),
            targets: opened,
            // The run begins with the job, not with the wait for its GPUs.
            run: RunInfo { start: job.wall, start_mono: job.mono, ..run },
            on_window: None,
            notices: notices.clone(),
        };
        let engine = match Engine::start(settings, inbox) {
            Ok(engine) => engine,
            Err(error) => {
                return nothing_logged(talk.link(), notices, &format!("cannot start a thread: {error}"));
            }
        };
        let mut stops = Stops::default();
        let exit = follow(&talk, &engine, &mut stops, chosen.lease.as_mut(), notices);
        let cause = Cause { signal: stops.before_end(), out_of_memory: oom.and_then(|oom| oom.killed()) };
        if exit.is_err() {
            // The minder was killed: its work is done from here.
            watch.wait();
        }
        if let Some(lease) = &chosen.lease {
            lease.release();
        }
        let losses = socket.map(|socket| socket.stop(LAST_MARKS)).unwrap_or_default();
        let (end, left) = finish(engine, exit, &talk);
        let ended = Ended { left, losses, cause, held: chosen.lease.is_some() };
        say_end(end, &ended, &setup.logging, notices);
        talk.link().send(&ToMinder::Done);
        Exit::Ok.code()
    }
}

/// Says why there is no log; the minder then has nothing to add.
fn nothing_logged(link: &SidecarEnd, notices: &Notices, why: &str) -> u8 {
    notices.error(&format!("nothing is logged: {why}"));
    link.send(&ToMinder::Done);
    Exit::OwnFailure.code()
}

/// Hands the engine what the minder tells, to the job's end; how it ended, where that can be known.
///
/// # Errors
/// The minder was killed before.
fn follow(
    talk: &Talk,
    engine: &Engine,
    stops: &mut Stops,
    mut lease: Option<&mut Lease>,
    notices: &Notices,
) -> Result<Option<JobExit>, Closed> {
    let mut suspended = false;
    let mut next_look = lease.is_some().then(|| Instant::now() + HOLDER_LOOK);
    loop {
        if let Some(lease) = &mut lease
            && next_look.is_some_and(|at| Instant::now() >= at)
        {
            next_look = Some(Instant::now() + HOLDER_LOOK);
            restore(lease, notices);
        }
        match talk.next(next_look) {
            Ok(Some(ToSidecar::Signalled(stop))) => stops.add(&stop),
            Ok(Some(ToSidecar::Reaped(reaped))) => engine.reaped(usage(&reaped)),
            Ok(Some(ToSidecar::Suspended(at))) => {
                suspended = true;
                engine.suspended(at);
            }
            Ok(Some(ToSidecar::Resumed(at))) => {
                suspended = false;
                engine.resumed(at);
            }
            Ok(Some(ToSidecar::Ended(exit))) => return Ok(exit),
            Ok(_) => {}
            Err(Closed) => {
                if suspended {
                    // Nothing will tell when the job runs again.
                    engine.resumed(clock::monotonic());
                }
                return Err(Closed);
            }
        }
    }
}

/// Makes the lease visible again where its files were removed.
fn restore(lease: &mut Lease, notices: &Notices) {
    // What cannot be made again now is tried again.
    for uuid in lease.restore().unwrap_or_default() {
        notices.warn(&format!("{uuid} is held by another process too: the file of this lease was removed"));
    }
}

fn usage(reaped: &ReapedProcess) -> ReapedUsage {
    ReapedUsage {
        pid: reaped.pid,
        cpu_seconds: reaped.cpu_seconds,
        max_rss_kib: reaped.max_rss_kib,
        blocks_read: reaped.blocks_read,
        blocks_written: reaped.blocks_written,
    }
}

/// The end of the job's main process, seen without being its parent.
struct JobWatch {
    pid: i32,
    pidfd: Option<std::os::fd::OwnedFd>,
}

impl JobWatch {
    /// How often the process is looked at where the kernel has no descriptors for processes (before 5.3).
    const LOOK: Duration = Duration::from_millis(100);

    fn open(pid: i32) -> Self {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};
        let pidfd = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { pid, pidfd }
    }

    /// Waits until the process has ended. Signals are not read meanwhile: they are the job's, and it got its own.
    fn wait(&self) {
        let Some(pidfd) = &self.pidfd else {
            while command_of(self.pid).is_some() {
                std::thread::sleep(Self::LOOK);
            }
            return;
        };
        let mut entries = [PollFd::new(pidfd, PollFlags::IN)];
        while poll(&mut entries, None).is_err() {}
    }
}

/// Finishes the files; what came of it, and the processes that the job left behind.
fn finish(
    engine: Engine,
    exit: Result<Option<JobExit>, Closed>,
    talk: &Talk,
) -> (Result<EngineEnd, Unfinished>, Vec<i32>) {
    let mut left: Option<Vec<i32>> = exit.is_err().then(Vec::new);
    let give_up = || loop {
        match talk.next(Some(Instant::now())) {
            Ok(Some(ToSidecar::GiveUp)) => return true,
            Ok(Some(ToSidecar::Left(pids))) => left = Some(pids),
            Ok(Some(_)) => {}
            Ok(None) | Err(Closed) => return false,
        }
    };
    let end = engine.finish(exit.unwrap_or(None), LAST_WINDOW, give_up);
    let until = Instant::now() + LEFT_BEHIND;
    while left.is_none() {
        match talk.next(Some(until)) {
            Ok(Some(ToSidecar::Left(pids))) => left = Some(pids),
            Ok(Some(_)) => {}
            Ok(None) | Err(Closed) => left = Some(Vec::new()),
        }
    }
    (end, left.unwrap_or_default())
}

/// What is known of a job that has ended, besides what was measured.
struct Ended {
    /// Why it ended.
    cause: Cause,
    /// Processes that it left behind.
    left: Vec<i32>,
    /// What it said and gpurun did not record.
    losses: Losses,
    /// gpurun chose and held its GPUs.
    held: bool,
}

/// What is said and written at the end.
fn say_end(end: Result<EngineEnd, Unfinished>, ended: &Ended, logging: &Logging, notices: &Notices) {
    let end = match end {
        Ok(end) => end,
        Err(error) => return notices.error(&error.to_string()),
    };
    let left: Vec<LeftoverSummary> = ended
        .left
        .iter()
        .filter_map(|&pid| {
            let command = command_of(pid)?;
            Some(LeftoverSummary { pid, command, gpu_memory_mib: end.process_gpu_memory(pid) })
        })
        .collect();
    for process in &left {
        let gpu = process.gpu_memory_mib.filter(|mib| *mib > 0.0);
        let held = gpu.map(|mib| format!(", holding {mib:.0} MiB of GPU memory")).unwrap_or_default();
        let line = format!("the job left process {} ({}) running{held}", process.pid, process.command);
        notices.warn(&line);
    }
    let mut summary = Summary::new(&end.run, &end.end, &end.totals, targets::summaries(&end.reports), left);
    summary.add_losses(&ended.losses);
    summary.add_cause(&ended.cause);
    if ended.held {
        summary.add_hold();
    }
    targets::say_summary(&summary, &end.reports, logging, notices);
}

/// The line at the start: which GPUs, and where the log goes.
fn say_start(chosen: &Chosen, logging: &Logging, opened: Option<&Opened>, notices: &Notices) {
    let (devices, targets) = (chosen.devices(), targets::names(opened));
    if devices.is_empty() && targets.is_empty() {
        return;
    }
    let named: Vec<_> = devices.iter().map(|(device, _)| *device).collect();
    notices.say(&start::line(&named, &targets));
    let variable = chosen.visible_devices().map(|value| value.to_string_lossy());
    for line in start::details(&devices, variable.as_deref(), logging.interval, logging.window) {
        notices.detail(&line);
    }
}
