//! After the job's main process: what it leaves behind, and the wait for the sidecar's files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use super::exit;
use super::job::{Job, JobEvent, STOP_REQUESTS};
use super::plan::Plan;
use super::tree::Held;
use crate::link::{MAX_LEFT, Ready, ToSidecar};
use crate::model::time::Mono;
use crate::sys::clock::monotonic;
use crate::sys::format;

/// How long processes that are about to end get before they count as left behind.
const LEFT_BEHIND_GRACE: Duration = Duration::from_millis(500);

/// How long `--kill-tree` waits between asking and killing.
const TREE_GRACE: Duration = Duration::from_secs(5);

/// How long the kernel may take to end what was killed.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// How often a process is looked at that is no child of the minder: nothing tells of its end.
const LOOK: Duration = Duration::from_millis(20);

/// How long the sidecar may finish its files; more than it gives its writers.
const FILES_PATIENCE: Duration = Duration::from_secs(135);

/// How long a sidecar may not answer before it is not waited for any more. One that is stopped does not answer.
const SILENCE: Duration = Duration::from_secs(10);

/// How often the sidecar is asked whether it still works on its files.
const ASK: Duration = Duration::from_secs(1);

/// How long the sidecar may take to disappear after its last word; a driver call can hold it in the kernel.
const GONE: Duration = Duration::from_millis(500);

/// Reaps orphans that ended with the job: they still count.
pub(super) fn reap_the_dead(plan: &Plan, job: &mut Job, ready: &Ready) {
    let now = monotonic();
    loop {
        match job.next_event(Some(now)) {
            JobEvent::Reaped(reaped) => job.sidecar.send(&ToSidecar::Reaped(reaped.usage)),
            JobEvent::SidecarLost => say_lost(plan, job, ready),
            JobEvent::Deadline => return,
            _ => {}
        }
    }
}

/// Ends what is left of the job: SIGTERM to all, a grace to obey, then SIGKILL.
pub(super) fn kill_tree(plan: &Plan, job: &mut Job, ready: &Ready) {
    reap_the_dead(plan, job, ready);
    let asked = job.others();
    if asked.is_empty() {
        return;
    }
    for held in asked.iter().filter_map(|pid| Held::new(*pid, job.own_pid())) {
        held.send(Signal::TERM);
        // A stopped process would not see the SIGTERM.
        held.send(Signal::CONT);
    }
    let mut killed = 0;
    if !reap_until_none_is_left(plan, job, ready, plan.kill_after.unwrap_or(TREE_GRACE)) {
        killed = job.signal_tree(Signal::KILL);
        reap_until_none_is_left(plan, job, ready, KILL_PATIENCE);
    }
    plan.notices.say(&format!(
        "ended {} that the job left running, {killed} of them with SIGKILL",
        format::counted(asked.len() as u64, "processes")
    ));
}

/// Reaps for at most `patience`; whether no process of the job is left.
fn reap_until_none_is_left(plan: &Plan, job: &mut Job, ready: &Ready, patience: Duration) -> bool {
    let end = monotonic() + patience;
    loop {
        reap_the_dead(plan, job, ready);
        if job.others().is_empty() {
            return true;
        }
        let now = monotonic();
        if now >= end {
            return false;
        }
        match job.next_event(Some(end.min(now + LOOK))) {
            JobEvent::Reaped(reaped) => job.sidecar.send(&ToSidecar::Reaped(reaped.usage)),
            JobEvent::SidecarLost => say_lost(plan, job, ready),
            _ => {}
        }
    }
}

/// What has been heard of the sidecar while its files are finished.
struct Finishing {
    until: Mono,
    last_sign: Mono,
    next_question: Mono,
    question: u32,
    left_told: bool,
}

/// Waits until the sidecar has finished its files, the user does not want to wait, or it does not answer.
pub(super) fn finish(plan: &Plan, job: &mut Job, ready: &Ready) {
    let now = monotonic();
    let mut state = Finishing {
        until: now + FILES_PATIENCE,
        last_sign: now,
        next_question: now + ASK,
        question: 0,
        left_told: false,
    };
    let grace_ends = now + LEFT_BEHIND_GRACE;
    while job.sidecar.is_connected() && !job.files_done() {
        let now = monotonic();
        if !state.left_told {
            let left = job.others();
            if left.is_empty() || now >= grace_ends {
                job.sidecar.send(&ToSidecar::Left(left.into_iter().take(MAX_LEFT).collect()));
                state.left_told = true;
                state.last_sign = now;
            }
        }
        if now >= state.until || now >= state.last_sign + SILENCE {
            plan.notices.error(&format!(
                "the measuring process does not answer: gpurun ends without it{}",
                recovery(&ready.journals)
            ));
            return;
        }
        let next_look = if state.left_told { state.next_question } else { now + LOOK };
        on_event(plan, job, ready, &mut state, next_look);
    }
    if job.files_done() {
        job.sidecar.wait(GONE);
    }
}

fn on_event(plan: &Plan, job: &mut Job, ready: &Ready, state: &mut Finishing, next_look: Mono) {
    match job.next_event(Some(next_look)) {
        JobEvent::NotForwarded(signal, _) | JobEvent::Forwarded(signal)
            if STOP_REQUESTS.contains(&signal) =>
        {
            job.sidecar.send(&ToSidecar::GiveUp);
        }
        JobEvent::SidecarLost => say_lost(plan, job, ready),
        JobEvent::Deadline if monotonic() >= state.next_question => {
            if job.last_answer() >= state.question {
                state.last_sign = monotonic();
            }
            state.question = job.ask();
            state.next_question = monotonic() + ASK;
        }
        _ => {}
    }
}

/// Says once that the sidecar is gone and what that costs, and removes what it cannot remove any more.
pub(super) fn say_lost(plan: &Plan, job: &mut Job, ready: &Ready) {
    let how = exit::describe(job.sidecar.wait(GONE));
    plan.notices.error(&format!(
        "the measuring process {how}: the log ends here, the job continues{}",
        recovery(&ready.journals)
    ));
    if let Some(socket) = &ready.socket {
        remove_socket(socket);
    }
}

/// The command that finishes the logs, as the end of a sentence.
fn recovery(journals: &[PathBuf]) -> String {
    if journals.is_empty() {
        return String::new();
    }
    let paths: Vec<String> = journals.iter().map(|path| path.display().to_string()).collect();
    format!("; finish the log with 'gpurun recover {}'", paths.join(" "))
}

/// Removes the job's socket and its private directory; they may have been removed before.
fn remove_socket(socket: &Path) {
    let _ = std::fs::remove_file(socket);
    if let Some(directory) = socket.parent() {
        let _ = std::fs::remove_dir(directory);
    }
}
