//! Signals: each reaches the job as often as without gpurun, whatever other threads there are in gpurun's processes.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{driver_with, lines};
use crate::faults::{gpurun, said, with_job};
use crate::support::{shared_library, sidecar_of};
use crate::transparency::harness::{
    BOTH, Running, Way, alive, command, describe, finish, job_argv, kill, pid_of, state, until,
};

/// A thread that has no signal blocked.
const IDLE_THREAD: &str = r#"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
static void *idle(void *unused) {
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    for (;;) pause();
}
__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    if (strcmp(program_invocation_short_name, "gpurun") == 0) pthread_create(&thread, NULL, idle, NULL);
}
"#;

/// Threads of a process that have no signal blocked.
fn open_threads(pid: i32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    statuses.filter(|status| status.lines().any(|line| line == "SigBlk:\t0000000000000000")).count()
}

/// A signal that gpurun alone gets, and that passes behind all others.
fn marker(signal: i32) -> i32 {
    if signal == libc::SIGRTMAX() { libc::SIGRTMIN() } else { libc::SIGRTMAX() }
}

/// Signals that a thread can be given; libc keeps 32 and 33 for itself, the others tell of faults or cannot be caught.
fn given() -> impl Iterator<Item = i32> {
    let kept = [4, 5, 6, 7, 8, 9, 11, 19, 31, 32, 33];
    (1..=64).filter(move |signal| !kept.contains(signal))
}

#[test]
fn a_preloaded_librarys_thread_takes_no_signal_and_no_status_from_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let preload = shared_library(dir.path(), "preload", IDLE_THREAD, &[]);
    let wrapped = |argv: &[OsString]| {
        let mut wrapped = command(Way::Wrapped, argv);
        wrapped.env("LD_PRELOAD", &preload);
        wrapped
    };
    for _ in 0..10 {
        let argv = ["sh", "-c", "sleep 0.05; exit 5"].map(OsString::from);
        assert_eq!(describe(finish(&mut wrapped(&argv).spawn().unwrap())), "code 5");
    }

    let mut running = Running::start_command(wrapped(&job_argv(&["count"])));
    assert_eq!(open_threads(running.outer()), 1, "the thread is there");
    for signal in given() {
        kill(running.outer(), signal);
        let mut got = running.first_signals();
        got.extend(running.signals_up_to(marker(signal)));
        assert_eq!(got, [signal.to_string()]);
    }
    assert_eq!(running.end().0, "code 0");

    let mut running = Running::start_command(wrapped(&job_argv(&["wait"])));
    for _ in 0..2 {
        kill(running.outer(), libc::SIGTSTP);
        until("both are stopped", || {
            [running.outer(), running.job].iter().all(|pid| state(*pid) == Some('T'))
        });
        kill(running.outer(), libc::SIGCONT);
        until("both run again", || [running.outer(), running.job].iter().all(|pid| state(*pid) == Some('S')));
    }
    kill(running.outer(), libc::SIGTERM);
    assert_eq!(describe(finish(&mut running.child)), "signal 15");
    assert!(!alive(running.job));
}

#[test]
fn a_driver_librarys_thread_takes_no_signal_from_the_witness() {
    let dir = tempfile::tempdir().unwrap();
    let driver = driver_with(dir.path(), IDLE_THREAD);
    for choice in [&[][..], &["-n", "1"]] {
        let mut command = gpurun(dir.path(), choice);
        driver.apply(&mut command).arg("--").args(job_argv(&["count"]));
        let mut running = Running::start_command(command);
        let sidecar = sidecar_of(running.child.id());
        until("the library's thread runs", || open_threads(sidecar) == 1);
        for signal in given().filter(|signal| *signal != libc::SIGRTMAX()) {
            kill(-running.outer(), signal);
            assert_eq!(running.signals_up_to(libc::SIGRTMAX()), [signal.to_string()], "{choice:?}");
        }
        assert_eq!(running.end().0, "code 0");
    }
}

#[test]
fn a_driver_library_that_ignores_sigchld_changes_nothing() {
    let source = "#include <dlfcn.h>\n#include <signal.h>\n\
        int nvmlInit_v2(void) {\n\
            signal(SIGCHLD, SIG_IGN);\n\
            return ((int (*)(void))dlsym(RTLD_NEXT, \"nvmlInit_v2\"))();\n\
        }\n";
    let dir = tempfile::tempdir().unwrap();
    let driver = driver_with(dir.path(), source);
    for round in 0..10 {
        let choice: &[&str] = if round % 2 == 0 { &["-q"] } else { &["-q", "-n", "1"] };
        let mut command = gpurun(dir.path(), choice);
        driver.apply(&mut command);
        let output = with_job(command, &["sh", "-c", "sh -c 'exit 0'; sleep 0.05; exit 5"]);
        assert_eq!(describe(output.status), "code 5", "{}", said(&output));
        assert_eq!(lines(&output), [""; 0]);
    }
}

/// Ignores SIGCHLD over and over once there is a file `ignore`, which it answers with a file `ignored`: the kernel then
/// throws the status of every child away.
const IGNORES: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
static void *ignore(void *unused) {
    while (access("ignore", F_OK) != 0) usleep(1000);
    signal(SIGCHLD, SIG_IGN);
    close(open("ignored", O_CREAT | O_WRONLY, 0600));
    for (;;) signal(SIGCHLD, SIG_IGN);
}
__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    if (strcmp(program_invocation_short_name, "gpurun") == 0) pthread_create(&thread, NULL, ignore, NULL);
}
"#;

#[test]
fn a_status_that_is_taken_away_is_said_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let preload = shared_library(dir.path(), "preload", IGNORES, &[]);
    let mut command = gpurun(dir.path(), &["-q", "--log", "m.csv", "--summary", "s.json"]);
    command.env("LD_PRELOAD", &preload).current_dir(dir.path());
    let output = with_job(command, &["sh", "-c", "touch ignore; until [ -e ignored ]; do :; done; exit 5"]);
    assert_eq!(describe(output.status), "code 125", "{}", said(&output));
    let [line] = &lines(&output)[..] else { panic!("{}", said(&output)) };
    assert!(line.contains("exit status was taken"), "{line}");
    let summary: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.path().join("s.json")).unwrap()).unwrap();
    assert!(summary["exit"].is_null() || summary["exit"]["code"].is_null(), "{summary}");
}

/// Saves when it is interrupted; saving takes until the test sends USR2, which comes behind all other signals.
const SAVES: &str = r#"
import os, signal, sys
notes = open(sys.argv[1], "a", buffering=1)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
try:
    print("ready", os.getpid(), os.getppid(), file=notes)
    while True:
        signal.pause()
except KeyboardInterrupt:
    try:
        print("interrupted", file=notes)
        signal.sigwaitinfo({signal.SIGUSR2})
        print("saved", file=notes)
    except KeyboardInterrupt:
        print("interrupted again", file=notes)
"#;

/// Notes each SIGTERM; USR2 is the test's own and ends it.
const COUNTS: &str = r#"
import os, signal, sys
notes = open(sys.argv[1], "a", buffering=1)
signals = {signal.SIGTERM, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("ready", os.getpid(), os.getppid(), file=notes)
while signal.sigwait(signals) != signal.SIGUSR2:
    print("TERM", file=notes)
"#;

/// A job under `timeout`, which acts on SIGALRM as if its time were over.
struct Timed {
    timeout: Child,
    notes: std::path::PathBuf,
}

impl Timed {
    fn start(dir: &Path, way: Way, options: &[&str], script: &str) -> Timed {
        let notes = dir.join("notes");
        let _ = fs::remove_file(&notes);
        let job = ["python3".into(), "-c".into(), script.into(), notes.clone().into_os_string()];
        let inner = command(way, &job);
        let mut timeout = Command::new("timeout");
        timeout.args(options).arg("1000").arg(inner.get_program()).args(inner.get_args());
        // Its own group: `timeout` signals it as a whole.
        timeout.process_group(0).stdin(Stdio::null()).stderr(Stdio::null());
        Timed { timeout: timeout.spawn().unwrap(), notes }
    }

    fn notes(&self) -> Vec<String> {
        fs::read_to_string(&self.notes).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Lets the time run out, waits for this note, lets the job go on to its end, and tells what it noted.
    fn run_out(mut self, way: Way, note: &str) -> Vec<String> {
        let words = |notes: &[String]| -> Option<[i32; 2]> {
            let words: Vec<i32> =
                notes.first()?.split(' ').skip(1).filter_map(|word| word.parse().ok()).collect();
            words.try_into().ok()
        };
        until("the job is ready", || words(&self.notes()).is_some());
        let [job, parent] = words(&self.notes()).unwrap();
        kill(pid_of(&self.timeout), libc::SIGALRM);
        until(note, || self.notes().iter().any(|line| line == note));
        kill(if way == Way::Wrapped { parent } else { job }, libc::SIGUSR2);
        finish(&mut self.timeout);
        self.notes().split_off(1)
    }
}

#[test]
fn what_timeout_sends_arrives_once() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..6 {
        let timed = Timed::start(dir.path(), Way::Wrapped, &["-s", "INT"], SAVES);
        assert_eq!(timed.run_out(Way::Wrapped, "interrupted"), ["interrupted", "saved"]);
    }
    for _ in 0..8 {
        let timed = Timed::start(dir.path(), Way::Wrapped, &[], COUNTS);
        assert_eq!(timed.run_out(Way::Wrapped, "TERM"), ["TERM"]);
    }
    // `--foreground` signals gpurun alone.
    let timed = Timed::start(dir.path(), Way::Wrapped, &["--foreground"], COUNTS);
    assert_eq!(timed.run_out(Way::Wrapped, "TERM"), ["TERM"]);
    // Bare, `timeout` signals the job twice: alone, and with its group. The job may see that as one.
    let bare = Timed::start(dir.path(), Way::Bare, &[], COUNTS).run_out(Way::Bare, "TERM");
    assert!(
        ["TERM", "TERM"].starts_with(&bare.iter().map(String::as_str).collect::<Vec<_>>()[..]),
        "{bare:?}"
    );
}

#[test]
fn what_pkill_sends_by_command_line_arrives_once() {
    let mark = format!("isolation-{}-{:?}", std::process::id(), std::time::Instant::now());
    let mark: String = mark.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    for way in BOTH {
        let mut running = Running::start(way, &["count", &mark]);
        let found = Command::new("pkill").args(["-USR1", "-f", &mark]).status().unwrap();
        assert!(found.success());
        assert_eq!(running.signals_up_to(libc::SIGRTMAX()), ["10"], "{way:?}");
        assert_eq!(running.end().0, "code 0");
    }
}

/// What a service manager does that ends every process of a service: it signals one after the other, and sees to it that
/// none stays stopped.
#[test]
fn what_is_sent_to_every_process_one_by_one_arrives_once() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut running = Running::start(Way::Wrapped, &["count"]);
        let pids = [running.outer(), sidecar_of(running.child.id()), running.job];
        for place in order {
            kill(pids[place], libc::SIGTERM);
            kill(pids[place], libc::SIGCONT);
        }
        let mut got = running.signals_up_to(libc::SIGRTMAX());
        got.sort();
        assert_eq!(got, ["15", "18"], "{order:?}");
        assert_eq!(running.end().0, "code 0");
    }
}

/// What a container's runtime does: it signals the first process of a PID namespace, from outside.
#[test]
fn what_is_sent_to_the_first_process_of_a_container_arrives_once() {
    let mut command = Command::new("unshare");
    command
        .args(["--map-root-user", "--pid", "--fork", "--mount-proc"])
        .arg(crate::support::gpurun())
        .arg("--");
    command.args(job_argv(&["count"]));
    let mut running = Running::start_command(command);
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.outer())).unwrap();
    let first: i32 = children.trim().parse().unwrap();
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGUSR1] {
        kill(first, signal);
        kill(first, libc::SIGRTMAX());
        let mut got = Vec::new();
        until("both have arrived", || {
            got.extend(running.signals());
            got.contains(&libc::SIGRTMAX().to_string())
        });
        assert_eq!(got, [signal.to_string(), libc::SIGRTMAX().to_string()]);
    }
    assert_eq!(running.end().0, "code 0");
}
