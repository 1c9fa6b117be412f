//! Transparent means equal: each case runs bare and under gpurun, and the answers are compared.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test where they are")]

mod ends;
pub(crate) mod harness;
pub(crate) mod pty;
mod signals;
mod starts;
mod terminal;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::{
    BOTH, GPURUN, Running, Shown, Way, alive, bytes, command, describe, finish, job, job_argv, kill, marked,
    pid_of, report, state, until,
};
use pty::Terminal;

use ends::with_options;
use signals::stopped_by;

use crate::support::sidecar_of;

/// Names of the cases that differ, with what differed; empty means equal.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn compare<T: PartialEq + std::fmt::Debug>(&mut self, case: &str, bare: &T, wrapped: &T) {
        if bare != wrapped {
            self.0.push(format!("{case}:\n  bare    {bare:?}\n  wrapped {wrapped:?}"));
        }
    }

    fn none(self) {
        assert!(self.0.is_empty(), "{} cases differ\n{}", self.0.len(), self.0.join("\n"));
    }
}

/// Runs in the child between fork and exec: system calls only.
type Setup = fn();

fn with_setup(command: &mut Command, setup: Setup) {
    // SAFETY: every setup of the tables below makes only async-signal-safe calls.
    unsafe {
        command.pre_exec(move || {
            setup();
            Ok(())
        })
    };
}

macro_rules! ignore {
    ($($signal:expr),+) => {
        // SAFETY: changes dispositions of the process about to exec.
        || unsafe { $( libc::signal($signal, libc::SIG_IGN); )+ }
    };
}

macro_rules! block {
    ($($signal:expr),+) => {
        // SAFETY: changes the mask of the process about to exec.
        || unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            $( libc::sigaddset(&mut set, $signal); )+
            libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        }
    };
}

macro_rules! limit {
    ($what:expr, $soft:expr) => {
        // SAFETY: lowers a soft limit of the process about to exec.
        || unsafe {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::getrlimit($what, &mut limit);
            limit.rlim_cur = $soft;
            libc::setrlimit($what, &limit);
        }
    };
}

macro_rules! call {
    ($($body:expr);+) => {
        // SAFETY: plain system calls of the process about to exec.
        || unsafe { $( let _ = $body; )+ }
    };
}

const STATES: &[(&str, Setup)] = &[
    ("as it is", || ()),
    ("nohup", ignore!(libc::SIGHUP)),
    ("int and quit ignored, as a shell's background job", ignore!(libc::SIGINT, libc::SIGQUIT)),
    ("pipe ignored", ignore!(libc::SIGPIPE)),
    ("children ignored", ignore!(libc::SIGCHLD)),
    ("term ignored", ignore!(libc::SIGTERM)),
    ("stops ignored", ignore!(libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU)),
    ("libc's own two ignored", || {
        for signal in [32, 33] {
            let ignore: [usize; 4] = [libc::SIG_IGN, 0, 0, 0];
            let none = std::ptr::null_mut::<usize>();
            // SAFETY: the kernel's own structure, for the two signals that libc's call refuses.
            unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, ignore.as_ptr(), none, 8usize) };
        }
    }),
    ("realtime ignored", ignore!(libc::SIGRTMIN(), libc::SIGRTMAX())),
    ("segv ignored", ignore!(libc::SIGSEGV, libc::SIGBUS)),
    ("usr1 blocked", block!(libc::SIGUSR1)),
    ("term and children blocked", block!(libc::SIGTERM, libc::SIGCHLD)),
    ("cont and stops blocked", block!(libc::SIGCONT, libc::SIGTSTP)),
    ("everything blocked", || {
        // SAFETY: changes the mask of the process about to exec.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut set);
            libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        }
    }),
    ("stdin closed", call!(libc::close(0))),
    ("stdout closed", call!(libc::close(1))),
    ("stderr closed", call!(libc::close(2))),
    ("all stdio closed", call!(libc::close(0); libc::close(1); libc::close(2))),
    ("an extra descriptor", call!(libc::dup2(0, 7))),
    ("many extra descriptors", || {
        for fd in 20..120 {
            // SAFETY: duplicates a descriptor of the process about to exec.
            unsafe { libc::dup2(0, fd) };
        }
    }),
    ("few descriptors allowed", limit!(libc::RLIMIT_NOFILE, 64)),
    ("hardly any descriptors allowed", limit!(libc::RLIMIT_NOFILE, 10)),
    ("no core", limit!(libc::RLIMIT_CORE, 0)),
    ("small stack", limit!(libc::RLIMIT_STACK, 1 << 20)),
    ("cpu limit", limit!(libc::RLIMIT_CPU, 1000)),
    ("file size limit", limit!(libc::RLIMIT_FSIZE, 1 << 30)),
    ("nice", call!(libc::nice(5))),
    ("umask", call!(libc::umask(0o077))),
    ("root directory", call!(libc::chdir(c"/".as_ptr()))),
    (
        "deleted directory",
        call!(
            libc::mkdir(c"/tmp/gpurun-test-deleted".as_ptr(), 0o700);
            libc::chdir(c"/tmp/gpurun-test-deleted".as_ptr());
            libc::rmdir(c"/tmp/gpurun-test-deleted".as_ptr())
        ),
    ),
    ("one cpu", || {
        // SAFETY: changes the affinity of the process about to exec.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut set);
            libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set);
        }
    }),
    ("no new privileges", call!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))),
    ("timer slack", call!(libc::prctl(libc::PR_SET_TIMERSLACK, 123_456))),
    ("a subreaper", call!(libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))),
    ("term when the parent dies", call!(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM))),
];

#[test]
fn the_job_is_started_as_without_gpurun() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report");
    let mut differences = Differences::default();
    for (case, setup) in STATES {
        let seen = BOTH.map(|way| {
            let mut run = command(way, &job_argv(&["report", file.to_str().unwrap()]));
            run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            with_setup(&mut run, *setup);
            let status = describe(finish(&mut run.spawn().unwrap()));
            let facts = report(&file);
            std::fs::remove_file(&file).unwrap();
            (status, facts)
        });
        let [(bare_status, bare), (status, wrapped)] = seen;
        differences.compare(case, &bare_status, &status);
        for key in bare.keys().chain(wrapped.keys().filter(|k| !bare.contains_key(*k))) {
            differences.compare(&format!("{case}: {key}"), &bare.get(key), &wrapped.get(key));
        }
    }
    differences.none();
}

#[test]
fn a_session_and_a_group_of_its_own_are_shared_with_the_job() {
    let dir = tempfile::tempdir().unwrap();
    for (case, setup) in
        [("new session", call!(libc::setsid()) as Setup), ("new group", call!(libc::setpgid(0, 0)) as Setup)]
    {
        for way in BOTH {
            let file = dir.path().join("report");
            let mut run = command(way, &job_argv(&["report", file.to_str().unwrap()]));
            with_setup(&mut run, setup);
            let mut child = run.spawn().unwrap();
            let outer = child.id().to_string();
            finish(&mut child);
            let facts = report(&file);
            assert_eq!(facts["pgid"], outer, "{case} {way:?}");
            if case == "new session" {
                assert_eq!(facts["sid"], outer, "{way:?}");
            }
        }
    }
}

#[test]
fn arguments_and_environment_are_passed_on_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report");
    let long = "x".repeat(100_000);
    let arguments: &[(&str, Vec<OsString>)] = &[
        ("bytes that are no UTF-8", vec![bytes(b"\xff\xfe a\nb\t"), bytes(b"\x01")]),
        ("empty ones", vec!["".into(), "".into(), "x".into(), "".into()]),
        (
            "gpurun's own options and dashes",
            ["--", "--log", "x.csv", "-n", "4", "-h", "--version", "-"].map(OsString::from).to_vec(),
        ),
        (
            "templates and globs",
            ["{pid}", "{rank}", "*", "$HOME", "~", "a=b", "@file", "%s"].map(OsString::from).to_vec(),
        ),
        ("a long one", vec![long.into()]),
        ("many", (0..5000).map(|i| OsString::from(i.to_string())).collect()),
    ];
    let mut differences = Differences::default();
    for (case, extra) in arguments {
        let seen = BOTH.map(|way| {
            let mut argv = job_argv(&["report", file.to_str().unwrap()]);
            argv.extend(extra.iter().cloned());
            finish(&mut command(way, &argv).spawn().unwrap());
            report(&file)
        });
        assert_eq!(seen[0].keys().filter(|k| k.starts_with("arg-")).count(), 3 + extra.len(), "{case}");
        differences.compare(case, &seen[0], &seen[1]);
    }
    type Environment = fn(&mut Command);
    let environments: &[(&str, Environment)] = &[
        ("empty", |c| {
            c.env_clear();
        }),
        ("without PATH", |c| {
            c.env_remove("PATH");
        }),
        ("bytes that are no UTF-8", |c| {
            c.env("BYTES", bytes(b"\xff\x01=\n")).env("EMPTY", "");
        }),
        ("CUDA variables of the user's", |c| {
            c.env("CUDA_VISIBLE_DEVICES", "").env("LD_PRELOAD_LATER", "x");
        }),
    ];
    for (case, change) in environments {
        let seen = BOTH.map(|way| {
            let mut run = command(way, &job_argv(&["report", file.to_str().unwrap()]));
            change(&mut run);
            finish(&mut run.spawn().unwrap());
            report(&file)
        });
        differences.compare(case, &seen[0], &seen[1]);
    }
    differences.none();
}

#[test]
fn entries_of_the_environment_that_are_no_variables_stay() {
    // Passed by a raw execve: std would not.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report");
    let script = "import os,sys,ctypes\n\
        libc=ctypes.CDLL(None)\n\
        a=[x.encode() for x in sys.argv[1:]]\n\
        argv=(ctypes.c_char_p*(len(a)+1))(*a,None)\n\
        env=(ctypes.c_char_p*6)(b'A=1',b'no-equals',b'A=2',b'=x',b'B=\\xff',None)\n\
        libc.execve(a[0],argv,env)";
    let seen = BOTH.map(|way| {
        let inner = command(way, &job_argv(&["report", file.to_str().unwrap()]));
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(inner.get_program()).args(inner.get_args());
        finish(&mut python.spawn().unwrap());
        report(&file)["env"].clone()
    });
    assert!(seen[0].contains("no-equals"), "{seen:?}");
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn every_exit_code_and_every_death_is_the_jobs() {
    let mut differences = Differences::default();
    let codes = (0..=255).map(|n| ("exit", n));
    let deaths = (1..=64)
        .filter(|s| !matches!(*s, 32 | 33)) // libc keeps these two for itself
        .filter(|s| {
            use libc::{SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH};
            ![SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH].contains(s)
        })
        .map(|n| ("die", n));
    for (kind, number) in codes.chain(deaths) {
        let status = describe(finish(
            &mut command(Way::Wrapped, &job_argv(&[kind, &number.to_string()])).spawn().unwrap(),
        ));
        let expected = if kind == "exit" { format!("code {number}") } else { format!("signal {number}") };
        differences.compare(&format!("{kind} {number}"), &expected, &status);
    }
    differences.none();
}

/// Files that can and cannot be executed.
fn executables(dir: &Path) {
    let put = |name: &str, mode: u32, text: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    put("script", 0o755, b"#!/bin/sh\necho \"script $# $1\"; exit 4\n");
    put("no-shebang", 0o755, b"echo \"plain $0 $# $1\"; exit 6\n");
    put("empty", 0o755, b"");
    put("not-executable", 0o644, b"#!/bin/sh\nexit 0\n");
    put("missing-interpreter", 0o755, b"#!/nonexistent/interpreter -x\n");
    put("garbage", 0o755, b"\x7fELF\x00\x01garbage");
    put("with space", 0o755, b"#!/bin/sh\nexit 8\n");
    std::fs::create_dir(dir.join("directory")).unwrap();
    std::fs::create_dir(dir.join("first")).unwrap();
    put("first/script", 0o644, b"not this one");
}

#[test]
fn what_cannot_be_executed_fails_as_in_a_shell() {
    let dir = tempfile::tempdir().unwrap();
    executables(dir.path());
    let path = format!("{0}/first:{0}::/usr/bin:/bin", dir.path().display());
    // Each with the exit code that `env COMMAND` gives; only a missing interpreter is told apart (126, as in
    // bash) from a missing file.
    let cases: &[(&str, i32)] = &[
        ("script", 4),
        ("./script", 4),
        ("no-shebang", 6),
        ("./no-shebang", 6),
        ("empty", 0),
        ("not-executable", 126),
        ("./not-executable", 126),
        ("missing-interpreter", 126),
        ("./missing-interpreter", 126),
        ("directory", 126),
        ("./directory", 126),
        ("/", 126),
        ("./nothing", 127),
        ("nothing-of-this-name", 127),
        ("./script/below", 126),
        ("with space", 8),
    ];
    let mut differences = Differences::default();
    for (name, code) in cases {
        let run = |program: &str, dashes: bool| {
            let mut c = Command::new(program);
            if dashes {
                c.arg("--");
            }
            c.args([name, "one"]).current_dir(dir.path()).env("PATH", &path);
            c.output().unwrap()
        };
        let wrapped = run(GPURUN, true);
        let stderr = String::from_utf8_lossy(&wrapped.stderr).into_owned();
        assert_eq!(wrapped.status.code(), Some(*code), "{name}: {stderr}");
        let bare = run("/usr/bin/env", false);
        if !name.contains("missing-interpreter") {
            differences.compare(name, &bare.status.code(), &wrapped.status.code());
        }
        differences.compare(name, &bare.stdout, &wrapped.stdout);
        if *code >= 126 {
            assert_eq!(stderr.lines().count(), 1, "{name}: one line: {stderr}");
            assert!(stderr.starts_with("gpurun: "), "{stderr}");
        }
        if name.contains("missing-interpreter") {
            assert!(stderr.contains("/nonexistent/interpreter"), "{stderr}");
        }
    }
    // A file in an unknown format goes to the shell, as with env.
    let garbage: Vec<_> = [vec!["/usr/bin/env"], vec![GPURUN, "--"]]
        .iter()
        .map(|c| {
            Command::new(c[0]).args(&c[1..]).arg("./garbage").current_dir(dir.path()).output().unwrap().status
        })
        .collect();
    differences.compare("garbage", &garbage[0], &garbage[1]);
    differences.none();
}

#[test]
fn input_output_and_pipelines_pass_through() {
    let mut differences = Differences::default();
    let shell: &[(&str, &str)] = &[
        ("a pipeline", "seq 1 5000 | $G \"$J\" echo | sha256sum"),
        ("a reader that leaves early", "$G yes | head -n 3"),
        ("the status of a writer whose reader left", "$G yes | true; echo ${PIPESTATUS[0]}"),
        ("nothing on stdin", "$G \"$J\" echo < /dev/null"),
        ("a here document", "$G cat <<< hello"),
        ("append", "f=$(mktemp); $G sh -c 'echo one' >> $f; $G sh -c 'echo two' >> $f; cat $f; rm $f"),
        ("order of stdout and stderr", "$G sh -c 'echo a; echo b >&2; echo c' 2>&1"),
        ("an extra descriptor", "exec 7< <(echo seven); $G sh -c 'cat <&7'"),
        ("a lock held by a descriptor", "exec 8>$T/lock; flock 8; $G sh -c 'flock -n 8 && echo same'"),
        ("background and wait", "$G sh -c 'exit 9' & wait $!; echo $?"),
        ("a failing condition", "if $G false; then echo yes; else echo no; fi"),
        ("substitution", "x=$($G echo value); echo \"<$x>\""),
        ("cwd", "cd /usr; $G pwd"),
        ("a shell's children before exec", "sleep 0.05 & exec $G sh -c 'exit 5'"),
        ("set -e stops", "set -e; $G false; echo not reached"),
        ("timeout ends it", "timeout -s INT 0.2 $G sleep 50; echo $?"),
        ("xargs", "seq 3 | xargs -n1 $G echo"),
        ("an alarm set before exec", "perl -e 'alarm 1; exec @ARGV' $G sleep 20; echo $?"),
        ("nested", "$G $G sh -c 'kill -USR1 $$'; echo $?"),
        ("nohup keeps", "nohup $G sh -c 'kill -HUP $$; echo still' 2>/dev/null | cat"),
        ("python's exit", "$G python3 -c 'import sys; sys.exit(4)'; echo $?"),
        ("python's abort", "$G python3 -c 'import os; os.abort()' 2>/dev/null; echo $?"),
        ("python's exception", "$G python3 -c 'raise KeyError' 2>/dev/null; echo $?"),
        ("python's broken pipe", "$G python3 -c 'for i in range(100000): print(i)' 2>&1 | head -n 1"),
        (
            "python's pool",
            "$G python3 -c 'import multiprocessing as m\nwith m.Pool(3) as p: print(sum(p.map(abs, range(-99, 0))))'",
        ),
        (
            "python's subprocess killed",
            "$G python3 -c 'import subprocess as s; print(s.run([\"sh\", \"-c\", \"kill -9 $$\"]).returncode)'",
        ),
        ("many direct children", "$G \"$J\" burst 10000"),
        ("many orphans", "$G \"$J\" orphans 2000"),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (case, script) in shell {
        let seen = BOTH.map(|way| {
            let prefix = if way == Way::Bare { "env".to_owned() } else { format!("{GPURUN} --quiet --") };
            let mut bash = Command::new("bash");
            bash.args(["-c", script]).env("G", prefix).env("J", job()).env("T", dir.path());
            let mut shown = Shown::of(&bash.stdin(Stdio::null()).output().unwrap());
            // The shell names the pid of what died.
            shown.stderr.retain(|c| !c.is_ascii_digit() && c != ' ');
            shown
        });
        differences.compare(case, &seen[0], &seen[1]);
    }
    differences.none();
}

/// A simulated box, its leases, and gpurun on it.
struct Machine {
    dir: tempfile::TempDir,
    driver: fake_nvml::Installed,
}

impl Machine {
    fn new() -> Machine {
        let dir = tempfile::tempdir().unwrap();
        let scenario = fake_nvml::scenario_file("idle-8xa100").unwrap();
        let driver = fake_nvml::install_file(dir.path(), &scenario).unwrap();
        Machine { dir, driver }
    }

    fn gpurun(&self, options: &[&str], argv: &[OsString]) -> Command {
        let mut command = with_options(options, argv);
        self.driver.apply(&mut command);
        command.env_remove("CUDA_VISIBLE_DEVICES").env("GPURUN_LEASE_DIR", self.dir.path().join("leases"));
        command
    }

    /// Starts a gpurun that waits for a GPU; returns when it says so.
    fn waiting(&self, argv: &[OsString]) -> Running {
        let mut command = self.gpurun(&["-n", "1", "--wait", "1h"], argv);
        let (reader, writer) = std::io::pipe().unwrap();
        command.stderr(writer);
        let running = Running::start_unready(command);
        let mut line = String::new();
        let mut reader = std::io::BufReader::new(reader);
        while !line.contains("waiting") {
            line.clear();
            assert_ne!(std::io::BufRead::read_line(&mut reader, &mut line).unwrap(), 0, "it does not wait");
        }
        // The rest is read away, so that nothing is dropped for want of room.
        std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        running
    }
}

#[test]
fn while_it_waits_for_gpus_signals_act_on_gpurun() {
    let machine = Machine::new();
    let holder = Running::start_command(machine.gpurun(&["--quiet", "-n", "8"], &job_argv(&["wait"])));
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        let mut waiting = machine.waiting(&job_argv(&["wait"]));
        kill(waiting.outer(), signal);
        assert_eq!(describe(finish(&mut waiting.child)), format!("signal {signal}"));
    }
    let mut waiting = machine.waiting(&job_argv(&["count"]));
    kill(waiting.outer(), libc::SIGTSTP);
    assert_eq!(stopped_by(waiting.outer()), libc::SIGTSTP);
    kill(waiting.outer(), libc::SIGCONT);
    kill(waiting.outer(), libc::SIGWINCH);
    assert_eq!(holder.end().0, "code 0");

    // From then on they are the job's, also beside the threads that the wait and the driver left running.
    waiting.ready();
    waiting.signals();
    for _ in 0..30 {
        kill(waiting.outer(), libc::SIGUSR1);
        assert_eq!(waiting.first_signals(), ["10"]);
        kill(waiting.outer(), libc::SIGTERM);
        assert_eq!(waiting.first_signals(), ["15"]);
    }
    assert_eq!(waiting.end().0, "code 0");
}
