//! Why a job ended, as the end of the run and the summary tell it: signals with their sender, the kernel's
//! out-of-memory killer in a real cgroup; and what is told of a job that outlives a pause of the sidecar.

use std::fs;
use std::path::{Path, PathBuf};

use regex_lite::Regex;

use crate::logged::{Place, Running, until};

const NO_GPU: &str = "";

/// Starts a job that says when it runs; returns once it has.
fn started(place: &Place, script: &str) -> Running {
    let script = format!("{script}; : > runs; read line; read line");
    let running = Running::start(place, &["--summary", "s.json", "--", "sh", "-c", &script]);
    until("the job runs", || place.path("runs").exists().then_some(()));
    running
}

/// The line about the job, without what it used, and the cause in the summary.
fn told(place: &Place, running: &Running) -> (String, Option<String>) {
    let said = running.stderr();
    let line = said.lines().find(|line| line.contains(" after ")).unwrap_or_else(|| panic!("{said}"));
    let line = line.split(" after ").next().unwrap().strip_prefix("gpurun: ").unwrap().to_owned();
    let summary: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path("s.json")).unwrap()).unwrap();
    let cause = summary["exit"]["cause"].as_str().map(str::to_owned);
    (line, cause)
}

/// This process, as the cause names it.
fn this_process() -> String {
    let name = fs::read_to_string("/proc/self/comm").unwrap();
    format!("{}, pid {}, ", name.trim_end(), std::process::id())
}

#[test]
fn a_signal_is_told_with_its_sender() {
    let place = Place::new(NO_GPU);
    let mut running = started(&place, "true");
    running.signal(libc::SIGTERM);
    running.wait();
    let (line, cause) = told(&place, &running);
    assert!(line.starts_with(&format!("killed by SIGTERM (from {}", this_process())), "{line}");
    assert!(line.ends_with(&format!("({})", cause.unwrap())), "{line}");
}

#[test]
fn a_job_that_ends_by_itself_after_a_signal_is_told_with_both() {
    let place = Place::new(NO_GPU);
    let mut running = started(&place, "trap 'exit 5' TERM");
    running.signal(libc::SIGTERM);
    running.wait();
    let (line, _) = told(&place, &running);
    let sender = regex_lite::escape(&this_process());
    let wanted =
        Regex::new(&format!(r"^exited with status 5 \(SIGTERM from {sender}\S+, \d.* before\)$")).unwrap();
    assert!(wanted.is_match(&line), "{line}");
}

#[test]
fn a_job_that_nobody_signalled_has_no_cause() {
    let place = Place::new(NO_GPU);
    let mut running = started(&place, "true");
    running.end();
    assert_eq!(told(&place, &running), ("exited with status 1".to_owned(), None));
}

#[test]
fn a_signal_that_the_job_sent_to_gpurun_is_no_cause() {
    let place = Place::new(NO_GPU);
    let mut running = started(&place, "kill -TERM $PPID");
    running.end();
    assert_eq!(told(&place, &running), ("exited with status 1".to_owned(), None));
}

/// A cgroup with a memory limit, which is removed in the end.
struct Group {
    path: PathBuf,
}

impl Group {
    const LIMIT: u64 = 64 << 20;

    /// In version 1 or 2, whichever limits memory here; `None` where this process may not make one.
    fn new() -> Option<Self> {
        let name = format!("gpurun-test-{}", std::process::id());
        let choices = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        choices.iter().find_map(|(root, limit)| {
            let path = Path::new(root).join(&name);
            fs::create_dir(&path).ok()?;
            let group = Self { path };
            fs::write(group.path.join(limit), Self::LIMIT.to_string()).ok()?;
            Some(group)
        })
    }

    fn procs(&self) -> String {
        self.path.join("cgroup.procs").display().to_string()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have ended; one that is not reaped yet keeps it for a moment.
        until("the cgroup is empty", || fs::remove_dir(&self.path).ok());
    }
}

#[test]
fn a_job_that_the_kernel_killed_for_memory_is_told_with_the_limit() {
    let Some(group) = Group::new() else {
        eprintln!("skipped: this user may not make a cgroup with a memory limit");
        return;
    };
    let place = Place::new(NO_GPU);
    // The shell moves itself, then becomes gpurun. The job is what the kernel prefers to kill.
    let gpurun = crate::support::gpurun().display();
    let script = format!(
        "echo $$ > {}; exec {gpurun} --summary s.json -- sh -c \
         'echo 1000 > /proc/self/oom_score_adj; exec python3 -c \"bytearray(1 << 28)\"'",
        group.procs()
    );
    let mut running = Running::spawn(&place, place.program(Path::new("/bin/sh"), &["-c", &script]));
    running.wait();
    let (line, cause) = told(&place, &running);
    let wanted =
        Regex::new(r"^killed by SIGKILL \(out of memory: cgroup limit 64\.0 MiB, peak 6[34]\.\d MiB\)$");
    assert!(wanted.unwrap().is_match(&line), "{line}");
    assert!(cause.is_some());
}

#[test]
fn a_sidecar_that_is_stopped_over_the_end_of_the_job_invents_no_cpu_time() {
    let place = Place::new(NO_GPU);
    let options = ["--interval", "50ms", "--summary", "s.json", "--", "sh", "-c"];
    let mut running = Running::start(&place, &[&options[..], &[": > runs; read line"]].concat());
    until("the job runs", || place.path("runs").exists().then_some(()));
    let sidecar = crate::support::sidecar_of(running.pid().unsigned_abs());
    // SAFETY: signals a process of this test's gpurun, which ends after this.
    unsafe { libc::kill(sidecar, libc::SIGSTOP) };
    running.tell_job_to_end();
    until("the job has ended", || {
        let children = format!("/proc/{pid}/task/{pid}/children", pid = running.pid());
        (fs::read_to_string(children).unwrap().split_whitespace().count() == 1).then_some(())
    });
    // Many samples are missed.
    std::thread::sleep(std::time::Duration::from_secs(1));
    // SAFETY: as above.
    unsafe { libc::kill(sidecar, libc::SIGCONT) };
    running.wait();
    let summary: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path("s.json")).unwrap()).unwrap();
    let cpu = summary["job"]["cpu_s"].as_f64();
    assert!(cpu.is_none_or(|cpu| cpu < 0.1), "a shell that waits for a line used {cpu:?} s");
}

#[test]
fn a_status_is_of_now_with_a_long_interval() {
    let place = Place::new(NO_GPU);
    let mut running = Running::start(
        &place,
        &["--interval", "10m", "--window", "1h", "--", "sh", "-c", ": > runs; read line"],
    );
    until("the job runs", || place.path("runs").exists().then_some(()));
    let pid = running.pid().to_string();
    until("a status with values", || {
        let output = place.gpurun(&["status", &pid]).output().unwrap();
        let status = String::from_utf8(output.stdout).unwrap();
        (status.contains("running 1 s") && status.contains("MiB  processes 1")).then_some(())
    });
    running.end();
}
