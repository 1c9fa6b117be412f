//! A run from the start of the sidecar to the status that gpurun ends with.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::process::Signal;

use super::asking::{Asking, NoAnswer, silence};
use super::job::{Job, JobEvent};
use super::origin::NotForwarded;
use super::plan::Plan;
use super::sidecar::Sidecar;
use super::spawn::{Announcement, JobCommand, LaunchError, spawn};
use super::termination::Termination;
use super::{ending, exit, tree};
use crate::link::{self, Ready, SidecarEnd, ToMinder, ToSidecar};
use crate::model::run::JobExit;
use crate::model::signal;
use crate::sys::clock;
use crate::sys::format;
use crate::sys::inherited::inherited;
use crate::sys::signal_source::SignalSource;
use crate::sys::signals::SignalSet;

/// gpurun failed before the job ran.
const OWN_FAILURE: u8 = 125;

/// `--wait D` ran out.
const WAITED_TOO_LONG: u8 = 124;

/// How long a sidecar without a job may take to clean up.
const CLEANUP: Duration = Duration::from_secs(1);

/// Runs the job beside a sidecar, whose whole life is `sidecar`. Returns the status to end with; where the job died by a
/// signal it does not return.
pub fn run(plan: &Plan, sidecar: impl FnOnce(SidecarEnd) -> u8) -> u8 {
    let mut signals = match SignalSource::block_all() {
        Ok(signals) => signals,
        Err(error) => {
            plan.notices.error(&format!("cannot watch signals: {error}"));
            return OWN_FAILURE;
        }
    };
    let earlier_children = tree::children_before_the_job();
    let mut started = Sidecar::start(sidecar).unwrap_or_else(Sidecar::none);
    let (ready, lease) = match wait_until_ready(plan, &mut started) {
        Ok(ready) => ready,
        Err(status) => return status,
    };
    // Before the job: a signal that acts on the minder alone from here on would leave the job without it.
    signals.catch_all();
    match start_job(plan, &ready, &lease, &started) {
        Ok((pid, job)) => {
            started.send(&ToSidecar::Started(job));
            let job = Job::new(signals, started, pid, earlier_children);
            match mind(plan, job, &ready, lease) {
                Some(exit) => exit::status(exit),
                None => {
                    plan.notices.error("the job has ended, and its exit status was taken by another thread of gpurun's process");
                    OWN_FAILURE
                }
            }
        }
        Err(error) => {
            plan.notices.error(&error.to_string());
            started.disconnect();
            started.wait(CLEANUP);
            error.exit_code()
        }
    }
}

/// Waits for the sidecar's word, with signals acting as on any other program: Ctrl-C and TERM end gpurun, Ctrl-Z stops
/// it. The kernel ends the sidecar with it. Without a choice the job runs whatever became of the sidecar.
fn wait_until_ready(plan: &Plan, sidecar: &mut Sidecar) -> Result<(Ready, Vec<OwnedFd>), u8> {
    inherited().blocked.set_as_mask();
    let mut asking = match plan.choice {
        Some(patience) => Asking::new(patience, &plan.notices),
        None => Asking::without_driver(&plan.notices),
    };
    let answer = loop {
        match asking.wait(sidecar) {
            Ok((ToMinder::Ready(ready), lease)) => break Ok((ready, lease)),
            Ok((ToMinder::Finish(code), _)) => {
                sidecar.wait(CLEANUP);
                break Err(code);
            }
            Ok(_) => {}
            Err(no_answer) => break without_answer(plan, sidecar, no_answer),
        }
    };
    SignalSet::ALL.block();
    answer
}

fn without_answer(
    plan: &Plan,
    sidecar: &mut Sidecar,
    no_answer: NoAnswer,
) -> Result<(Ready, Vec<OwnedFd>), u8> {
    let (why, status) = match no_answer {
        NoAnswer::Silent(taken) => (silence(taken), OWN_FAILURE),
        NoAnswer::TimedOut(taken) => (silence(taken), WAITED_TOO_LONG),
        NoAnswer::Stuck(taken) => {
            (format!("the measuring process has not answered for {} s", taken.as_secs()), OWN_FAILURE)
        }
        NoAnswer::Ended => {
            let how = sidecar.failure().unwrap_or_else(|| exit::describe(sidecar.wait(CLEANUP)));
            (format!("the measuring process {how} before the job started"), OWN_FAILURE)
        }
    };
    sidecar.kill();
    if plan.choice.is_some() {
        plan.notices.error(&format!("cannot choose GPUs: {why}"));
        return Err(status);
    }
    plan.notices.error(&format!("nothing is logged: {why}"));
    Ok((Ready::default(), Vec::new()))
}

fn start_job(
    plan: &Plan,
    ready: &Ready,
    lease: &[OwnedFd],
    sidecar: &Sidecar,
) -> Result<(i32, link::Job), LaunchError> {
    let at = clock::pair();
    let command = JobCommand {
        argv: plan.command.clone(),
        env: ready.env.clone(),
        keep_fds: lease.iter().map(AsRawFd::as_raw_fd).collect(),
        die_together: plan.die_together,
        announcement: sidecar.link().map(|(link, _)| Announcement { link: link.as_raw_fd(), at }),
    };
    let pid = spawn(&command)?;
    Ok((pid, link::Job { pid, mono: at.mono, wall: at.wall }))
}

/// Minds the job to its end and the sidecar's; how the job ended, where that can be known.
fn mind(plan: &Plan, mut job: Job, ready: &Ready, lease: Vec<OwnedFd>) -> Option<JobExit> {
    let exit = follow(plan, &mut job, ready);
    if plan.kill_tree {
        ending::kill_tree(plan, &mut job, ready);
    } else {
        ending::reap_the_dead(plan, &mut job, ready);
    }
    // The hold ends with the job, whatever inherited the descriptors.
    for part in lease {
        // Nothing can be done about a failure; the kernel drops the lock with its last descriptor.
        let _ = File::from(part).unlock();
    }
    job.sidecar.send(&ToSidecar::Ended(exit));
    ending::finish(plan, &mut job, ready);
    exit
}

/// Minds the job until its main process has ended.
fn follow(plan: &Plan, job: &mut Job, ready: &Ready) -> Option<JobExit> {
    let mut termination = Termination::new(plan.kill_after);
    loop {
        match job.next_event(termination.deadline()) {
            JobEvent::Reaped(reaped) => job.sidecar.send(&ToSidecar::Reaped(reaped.usage)),
            JobEvent::MainExited(exit) => return exit,
            JobEvent::Forwarded(signal) | JobEvent::NotForwarded(signal, NotForwarded::Everybody) => {
                termination.on_signal(signal, clock::monotonic());
            }
            JobEvent::Suspended => job.sidecar.send(&ToSidecar::Suspended(clock::monotonic())),
            JobEvent::Resumed => job.sidecar.send(&ToSidecar::Resumed(clock::monotonic())),
            JobEvent::SidecarLost => ending::say_lost(plan, job, ready),
            JobEvent::NotForwarded(..) | JobEvent::FilesDone => {}
            JobEvent::Deadline => {
                if termination.due(clock::monotonic()) {
                    let killed = job.signal_tree(Signal::KILL);
                    plan.notices.say(&format!(
                        "the job did not end within --kill-after: sent {} to {}",
                        signal::name(libc::SIGKILL),
                        format::counted(killed as u64, "processes")
                    ));
                }
            }
        }
    }
}
