//! Signals at random instants of the start: whatever they hit, no process, socket or file is left that should not be.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::Machine;
use super::ends::with_options;
use super::harness::{describe, finish, job_argv, kill, marked, pid_of, until};
use crate::support::sockets_of;

/// How many gpuruns are started at once.
const AT_ONCE: u32 = 4;

/// Starts gpurun `runs` times, each with a mark and a directory of its own; `act` sends the signal after a delay, which is
/// the stimulus: half the runs get it within the first 5 ms, where the start is.
#[allow(clippy::print_stdout, reason = "a failure is traced back to its run")]
fn at_random_instants(
    runs: u32,
    command: impl Fn(&Path) -> Command + Sync,
    act: impl Fn(u32, &Path, Child) + Sync,
) {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
    println!("seed {seed}");
    let one = |run: u32| {
        let random =
            seed.wrapping_add(run).wrapping_mul(2_654_435_761).rotate_left(15).wrapping_mul(2_246_822_519);
        let range = if run.is_multiple_of(2) { 5_000 } else { 50_000 };
        let delay = Duration::from_micros(u64::from(random >> 8) % range);
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().to_str().unwrap();
        let mut gpurun = command(dir.path());
        gpurun.current_dir(dir.path()).env("TEST_MARK", mark);
        gpurun.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = gpurun.spawn().unwrap();
        println!("run {run}: process {} after {delay:?}", child.id());
        std::thread::sleep(delay);
        act(run, dir.path(), child);
        until("no process is left", || marked(mark).is_empty());
    };
    std::thread::scope(|scope| {
        for first in 0..AT_ONCE {
            let one = &one;
            scope.spawn(move || (first..runs).step_by(AT_ONCE as usize).for_each(one));
        }
    });
}

/// gpurun with a log, and a job that waits for the end of its input; it is ready when the file `ready` is there.
fn logged(directory: &Path) -> Command {
    let ready = directory.join("ready");
    let options = ["--log", "m.csv", "--log", "m.parquet"];
    with_options(&options, &job_argv(&["wait", ready.to_str().unwrap()]))
}

/// Waits until no process carries the directory as its mark, and sees that its log is whole, or not there because the job
/// was not started, and that the socket is gone.
fn is_tidy(directory: &Path, gpurun: i32) {
    until("no process is left", || marked(directory.to_str().unwrap()).is_empty());
    let names =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    // The job's own file may be half written.
    names.retain(|name| !name.starts_with("ready"));
    names.sort();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let whole = matches!(names[..], [] | ["m.csv", "m.parquet"]);
    assert!(whole, "process {gpurun} left {names:?}");
    assert!(!directory.join("ready").exists() || !names.is_empty(), "process {gpurun} left no log");
    assert!(sockets_of(gpurun).is_empty(), "{:?}", sockets_of(gpurun));
}

#[test]
fn a_term_at_any_instant_of_the_start_loses_no_job_and_leaves_nothing() {
    at_random_instants(1000, logged, |run, directory, mut child| {
        let gpurun = pid_of(&child);
        kill(gpurun, libc::SIGTERM);
        // stdin stays open, so only the TERM can have ended the job.
        let stdin = child.stdin.take();
        assert_eq!(describe(finish(&mut child)), "signal 15", "run {run}");
        is_tidy(directory, gpurun);
        drop(stdin);
    });
}

#[test]
fn a_term_at_any_instant_of_choosing_and_starting_leaves_nothing() {
    let machine = Machine::new();
    let command = |_: &Path| machine.gpurun(&["--quiet", "-n", "1"], &job_argv(&["wait"]));
    at_random_instants(100, command, |run, _, mut child| {
        let gpurun = pid_of(&child);
        kill(gpurun, libc::SIGTERM);
        let stdin = child.stdin.take();
        assert_eq!(describe(finish(&mut child)), "signal 15", "run {run}");
        drop(stdin);
    });
    let leases = std::fs::read_dir(machine.dir.path().join("leases")).unwrap();
    let names: Vec<_> = leases.map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| name.to_string_lossy().ends_with(".lock")), "{names:?}");
}

#[test]
fn a_kill_of_gpurun_at_any_instant_of_the_start_loses_no_log() {
    at_random_instants(200, logged, |run, directory, mut child| {
        let gpurun = pid_of(&child);
        kill(gpurun, libc::SIGKILL);
        let stdin = child.stdin.take();
        assert_eq!(describe(finish(&mut child)), "signal 9", "run {run}");
        // A job that runs goes on to its end, and the sidecar with it.
        drop(stdin);
        is_tidy(directory, gpurun);
    });
}

#[test]
fn a_kill_of_the_sidecar_at_any_instant_of_the_start_loses_no_job() {
    at_random_instants(200, logged, |run, directory, mut child| {
        let gpurun = child.id();
        let children = std::fs::read_to_string(format!("/proc/{gpurun}/task/{gpurun}/children")).unwrap();
        let is_sidecar = |pid: &i32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "gpurun-sidecar\n")
        };
        if let Some(sidecar) = children.split_ascii_whitespace().map(|p| p.parse().unwrap()).find(is_sidecar)
        {
            kill(sidecar, libc::SIGKILL);
        }
        until("the job is ready", || directory.join("ready").exists());
        drop(child.stdin.take());
        assert_eq!(describe(finish(&mut child)), "code 0", "run {run}");
    });
}
