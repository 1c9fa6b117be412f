//! A gpurun that is held in one phase of its run: by the simulated driver, by another job that has the GPU, or by a
//! preloaded library that stops one of its calls.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::logged::{Place, Running, text, until};
use crate::support::{sidecar_of, sockets_of};
use crate::transparency::harness::{alive, finish, kill, marked, state};

/// Where in its run a gpurun is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    BeforeTheChoice,
    Choosing,
    Waiting,
    BeforeTheFirstSample,
    InTheMiddle,
    FinishingFiles,
}

impl Phase {
    /// The file that holds a run in this phase.
    fn hold(self) -> Option<&'static str> {
        match self {
            Phase::BeforeTheChoice => Some("hold-fork"),
            Phase::Choosing => Some("hold-driver"),
            Phase::BeforeTheFirstSample => Some("hold-engine"),
            Phase::FinishingFiles => Some("hold-fsync"),
            Phase::Waiting | Phase::InTheMiddle => None,
        }
    }
}

/// Makes one call of one process or thread wait while a file is there.
const HOLD: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
static void hold(const char *who, const char *variable) {
    char name[16] = "", reached[4096];
    const char *path = getenv(variable);
    prctl(PR_GET_NAME, name);
    if (!path || strcmp(name, who) || access(path, F_OK)) return;
    snprintf(reached, sizeof reached, "%s.reached", path);
    close(open(reached, O_CREAT | O_WRONLY, 0600));
    while (!access(path, F_OK)) usleep(1000);
}
pid_t fork(void) {
    pid_t pid = ((pid_t (*)(void))dlsym(RTLD_NEXT, "fork"))();
    if (pid == 0) hold("gpurun", "HOLD_FORK");
    return pid;
}
int execve(const char *file, char *const *argv, char *const *env) {
    hold("gpurun", "HOLD_EXECVE");
    return ((int (*)(const char *, char *const *, char *const *))dlsym(RTLD_NEXT, "execve"))(file, argv, env);
}
int pthread_setname_np(pthread_t thread, const char *name) {
    int result = ((int (*)(pthread_t, const char *))dlsym(RTLD_NEXT, "pthread_setname_np"))(thread, name);
    hold("gpurun-engine", "HOLD_ENGINE");
    return result;
}
int fsync(int fd) {
    hold("gpurun-writer", "HOLD_FSYNC");
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
"#;

/// Builds the library that holds calls.
pub(super) fn hold_library(directory: &Path) -> PathBuf {
    let (source, library) = (directory.join("hold.c"), directory.join("hold.so"));
    fs::write(&source, HOLD).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl");
    assert!(compiler.status().unwrap().success());
    library
}

/// One GPU, and a driver that can be held.
pub(super) const SCENARIO: &str = r#"
[[gpu]]
memory_total = 81920
memory_used = 512
gpu_utilization = 0

[[fault]]
function = "nvmlDeviceGetMemoryInfo*"
hang_while = "DIR/hold-driver"
"#;

/// Says that it runs, ends when it is told to, says that it has.
pub(super) const JOB: [&str; 3] =
    ["sh", "-c", "echo $$ > started.new; mv started.new started; read line; echo > ended; exit 7"];

/// The status of the job that has come to its end.
pub(super) const JOB_STATUS: i32 = 7;

/// A gpurun with a job that has one GPU and a log in both formats.
pub(super) struct Run {
    pub(super) place: Place,
    pub(super) running: Running,
    sidecar: i32,
    holder: Option<Child>,
    mark: String,
}

impl Run {
    /// Starts it; returns when it is held in this phase. What was just before the end of the job that has ended then.
    pub(super) fn held_in(phase: Phase, library: &Path) -> (Self, Option<String>) {
        let place = Place::new(SCENARIO);
        let holder = (phase == Phase::Waiting).then(|| holder(&place));
        if let Some(hold) = phase.hold() {
            fs::write(place.path(hold), "").unwrap();
        }
        let options = if holder.is_some() { "--wait" } else { "-n1" };
        let mut run = Self::start(place, library, &[options], &JOB);
        run.holder = holder;
        match phase {
            Phase::BeforeTheChoice => run.reaches("hold-fork"),
            Phase::Choosing => {
                until("a call of the driver hangs", || {
                    run.place.driver.calls().iter().any(|call| call.code.is_none()).then_some(())
                });
            }
            Phase::Waiting => until("its ticket", || run.leases().contains("wait.").then_some(())),
            Phase::BeforeTheFirstSample => {
                run.started();
                run.reaches("hold-engine");
            }
            Phase::InTheMiddle | Phase::FinishingFiles => run.has_rows(),
        }
        run.sidecar = sidecar_of(run.minder().unsigned_abs());
        if phase != Phase::FinishingFiles {
            return (run, None);
        }
        let before = now();
        run.running.tell_job_to_end();
        run.reaches("hold-fsync");
        (run, Some(before))
    }

    /// Starts one that is held where a file says so.
    pub(super) fn start(place: Place, library: &Path, options: &[&str], job: &[&str]) -> Self {
        let mut command = place.gpurun(options);
        command.args(["--interval", "50ms", "--window", "200ms", "--log", "m.csv", "--log", "m.parquet"]);
        command.arg("--").args(job);
        place.driver.log_calls(&mut command);
        let mark = place.path("").display().to_string();
        command.env("LD_PRELOAD", library).env("TEST_MARK", &mark);
        for call in ["fork", "execve", "engine", "fsync"] {
            command.env(format!("HOLD_{}", call.to_uppercase()), place.path(&format!("hold-{call}")));
        }
        let running = Running::spawn(&place, command);
        Self { place, running, sidecar: 0, holder: None, mark }
    }

    pub(super) fn minder(&self) -> i32 {
        self.running.pid()
    }

    /// The sidecar, as it was found in the phase.
    pub(super) fn sidecar(&self) -> i32 {
        self.sidecar
    }

    /// The job's main process, once it runs.
    pub(super) fn started(&self) -> i32 {
        until("the job runs", || fs::read_to_string(self.place.path("started")).ok()).trim().parse().unwrap()
    }

    pub(super) fn has_started(&self) -> bool {
        self.place.path("started").exists()
    }

    /// Whether the job came to the end of its script.
    pub(super) fn job_has_ended(&self) -> bool {
        self.place.path("ended").exists()
    }

    /// Waits until the call that this file holds has come.
    pub(super) fn reaches(&self, hold: &str) {
        until(hold, || self.place.path(&format!("{hold}.reached")).exists().then_some(()));
    }

    /// Waits until both logs have rows of two windows.
    fn has_rows(&self) {
        until("rows", || (self.times("m.csv").len() > 1).then_some(()));
        until("rows in the journal", || {
            let mut export = self.place.gpurun(&["export", "m.parquet", "-o", "back.csv", "--overwrite"]);
            (export.output().unwrap().status.success() && self.times("back.csv").len() > 1).then_some(())
        });
        fs::remove_file(self.place.path("back.csv")).unwrap();
    }

    /// Lets it go on.
    pub(super) fn release(&mut self, phase: Phase) {
        if let Some(hold) = phase.hold() {
            fs::remove_file(self.place.path(hold)).unwrap();
        }
        if let Some(mut holder) = self.holder.take() {
            drop(holder.stdin.take());
            assert!(finish(&mut holder).success());
        }
    }

    /// Stops processes.
    pub(super) fn stop(&self, pids: &[i32]) {
        for pid in pids {
            kill(*pid, libc::SIGSTOP);
            until("it is stopped", || (state(*pid) == Some('T')).then_some(()));
        }
    }

    /// Waits until another window is written.
    pub(super) fn next_window(&self) {
        let windows = self.times("m.csv").len();
        until("another window", || (self.times("m.csv").len() > windows).then_some(()));
    }

    /// Waits for gpurun's end.
    pub(super) fn status(&mut self) -> ExitStatus {
        self.running.wait()
    }

    /// Tells the job to end; what was just before.
    pub(super) fn end_job(&mut self) -> String {
        let before = now();
        self.running.tell_job_to_end();
        before
    }

    /// Waits until no process of the run is left.
    pub(super) fn nobody_is_left(&self) {
        until("no process is left", || marked(&self.mark).is_empty().then_some(()));
    }

    /// The ends of the windows in a CSV file, in order.
    pub(super) fn times(&self, name: &str) -> BTreeSet<String> {
        let file = fs::read_to_string(self.place.path(name)).unwrap_or_default();
        let whole = file.rfind('\n').map_or("", |end| &file[..end]);
        let mut lines = whole.lines();
        let header = lines.next().unwrap_or_default();
        let Some(place) = header.split(',').position(|column| column == "time") else {
            return BTreeSet::new();
        };
        lines.filter_map(|line| line.split(',').nth(place)).map(str::to_owned).collect()
    }

    /// The rows of the Parquet file as lines of CSV, sorted.
    pub(super) fn parquet_lines(&self) -> Vec<String> {
        self.place.output(&["export", "m.parquet", "-o", "back.csv"]);
        let lines = self.lines("back.csv");
        fs::remove_file(self.place.path("back.csv")).unwrap();
        lines
    }

    /// The lines of a file, sorted.
    pub(super) fn lines(&self, name: &str) -> Vec<String> {
        let file = fs::read_to_string(self.place.path(name)).unwrap();
        let mut lines: Vec<String> = file.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// The files that the log has left.
    pub(super) fn log_files(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.place.path(""))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("m.") || name.ends_with(".tmp"))
            .collect();
        names.sort();
        names
    }

    /// Names of the files in the lease directory, in one text.
    pub(super) fn leases(&self) -> String {
        let Ok(entries) = fs::read_dir(self.place.path("leases")) else { return String::new() };
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap() + " ").collect()
    }

    /// Who holds the GPU, as `gpurun devices` says: the jobs.
    pub(super) fn holders(&self) -> Vec<serde_json::Value> {
        let output = self.place.output(&["devices", "--json"]);
        let listed: serde_json::Value = serde_json::from_str(&text(&output.stdout)).unwrap();
        listed["devices"][0]["held_by"].as_array().unwrap().clone()
    }

    /// The directories of the run's socket that are there.
    pub(super) fn sockets(&self) -> Vec<PathBuf> {
        sockets_of(self.minder())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Only where a test fails on the way is anything left.
        for pid in marked(&self.mark) {
            // SAFETY: signals a process that carries the mark of this run.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        if let Some(holder) = &mut self.holder {
            drop(holder.stdin.take());
            let _ = holder.wait();
        }
    }
}

/// Another job, which has the GPU.
fn holder(place: &Place) -> Child {
    let script = "echo > holding; read line; exit 0";
    let mut command = place.gpurun(&["-q", "-n1", "--", "sh", "-c", script]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    until("the GPU is held", || place.path("holding").exists().then_some(()));
    child
}

/// The wall clock as the logs write it.
pub(super) fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}

/// Waits until a process has ended; another one may have to reap it.
pub(super) fn ends(pid: i32) {
    until("it ends", || (!alive(pid)).then_some(()));
}
