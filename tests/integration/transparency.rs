//! Transparent means equal: each case runs bare and under gpurun, and the answers are compared.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test where they are")]

pub(crate) mod harness;
pub(crate) mod pty;
mod starts;

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

/// Every signal that can be forwarded.
fn forwardable() -> impl Iterator<Item = i32> {
    (1..=64).filter(|s| ![libc::SIGKILL, libc::SIGSTOP, 32, 33].contains(s))
}

/// A signal used to see that those before it are through.
fn marker(signal: i32) -> i32 {
    if signal == libc::SIGRTMAX() { libc::SIGRTMIN() } else { libc::SIGRTMAX() }
}

#[test]
fn every_signal_sent_to_gpurun_reaches_the_job_once() {
    for way in BOTH {
        let mut running = Running::start(way, &["count"]);
        for signal in forwardable() {
            kill(running.outer(), signal);
            let mut got = running.first_signals();
            got.extend(running.signals_up_to(marker(signal)));
            assert_eq!(got, [signal.to_string()], "{way:?}");
        }
        assert_eq!(running.end().0, "code 0", "{way:?}");
    }
}

#[test]
fn repeated_interrupts_all_reach_the_job() {
    for way in BOTH {
        let mut running = Running::start(way, &["count"]);
        for _ in 0..3 {
            kill(running.outer(), libc::SIGINT);
            assert_eq!(running.first_signals(), ["2"], "{way:?}");
        }
        assert_eq!(running.end().0, "code 0", "{way:?}");
    }
}

#[test]
fn queued_signals_keep_their_number_and_their_values() {
    for way in BOTH {
        let mut running = Running::start(way, &["count"]);
        for value in [11usize, 22, 33] {
            let value = libc::sigval { sival_ptr: value as *mut libc::c_void };
            // SAFETY: queues a signal to a process this test started.
            assert_eq!(unsafe { libc::sigqueue(running.outer(), libc::SIGRTMIN() + 1, value) }, 0);
        }
        let rt = libc::SIGRTMIN() + 1;
        let mut got = Vec::new();
        until("all three", || {
            got.extend(running.signals());
            got.len() >= 3
        });
        assert_eq!(got, [11, 22, 33].map(|v| format!("{rt}={v}")), "{way:?}");
        running.end();
    }
}

#[test]
fn a_signal_to_one_thread_of_gpurun_is_forwarded() {
    let mut running = Running::start(Way::Wrapped, &["count"]);
    let pid = running.outer();
    // SAFETY: signals the main thread of a process this test started.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::c_long::from(pid), libc::c_long::from(pid), 12) };
    assert_eq!(running.first_signals(), ["12"]);
    running.end();
}

/// Waits until the child with which the sidecar tries the driver library is over: the kernel keeps one SIGCHLD, and one of
/// that child's hides one that the test sends.
fn sidecar_is_idle(running: &Running) {
    let sidecar = sidecar_of(running.child.id());
    let children = format!("/proc/{sidecar}/task/{sidecar}/children");
    let status = format!("/proc/{sidecar}/status");
    until("the sidecar has no child and no signal", || {
        let alone = std::fs::read_to_string(&children).unwrap().is_empty();
        let status = std::fs::read_to_string(&status).unwrap();
        alone && status.contains("ShdPnd:\t0000000000000000")
    });
}

#[test]
fn a_signal_to_the_whole_group_arrives_once() {
    for signal in forwardable().filter(|signal| *signal != libc::SIGRTMAX()) {
        let seen = BOTH.map(|way| {
            let mut running = Running::start(way, &["count"]);
            if way == Way::Wrapped {
                sidecar_is_idle(&running);
            }
            kill(-running.outer(), signal);
            // The marker goes to the outer process alone and is passed on after whatever came before.
            let got = running.signals_up_to(libc::SIGRTMAX());
            running.end();
            got
        });
        assert_eq!(seen[0], [signal.to_string()]);
        assert_eq!(seen[0], seen[1]);
    }
}

#[test]
fn what_the_job_sends_to_its_own_group_is_not_echoed() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGCONT, libc::SIGRTMIN()]
    {
        let seen = BOTH.map(|way| {
            let mut run = command(way, &job_argv(&["kill-group", &signal.to_string()]));
            Shown::of(&run.process_group(0).output().unwrap())
        });
        assert_eq!(seen[0].stdout, format!("signals {signal} \n"));
        assert_eq!(seen[0], seen[1]);
    }
}

#[test]
fn the_end_by_a_signal_to_gpurun_is_the_jobs_end() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGALRM] {
        for way in BOTH {
            let mut running = Running::start(way, &["wait"]);
            kill(running.outer(), signal);
            let status = finish(&mut running.child);
            assert_eq!(describe(status), format!("signal {signal}"), "{way:?}");
            assert!(!alive(running.job), "{way:?}");
        }
    }
}

#[test]
fn a_python_job_sees_keyboard_interrupt() {
    let script = "import os, sys\ntry:\n print('ready', os.getpid(), flush=True)\n sys.stdin.read()\nexcept KeyboardInterrupt:\n print('interrupted', flush=True)\n sys.exit(7)";
    for way in BOTH {
        let mut running = Running::start_command(command(way, &["python3", "-c", script]));
        kill(running.outer(), libc::SIGINT);
        // stdin stays open until it has ended: only the signal can have done it.
        finish(&mut running.child);
        let (status, said) = running.end();
        assert_eq!((status.as_str(), said.as_str()), ("code 7", "interrupted\n"), "{way:?}");
    }
}

#[test]
fn a_job_that_ignores_term_is_not_killed() {
    let mut running = Running::start(Way::Wrapped, &["ignore-term"]);
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGTERM] {
        kill(running.outer(), signal);
    }
    // KILL to the job is the only thing that ends it, and only once it is sent.
    assert!(alive(running.job));
    kill(running.job, libc::SIGKILL);
    assert_eq!(describe(finish(&mut running.child)), "signal 9");
}

/// Waits until a child of the test is stopped and says by which signal.
fn stopped_by(pid: i32) -> i32 {
    let mut signal = 0;
    until("it stops", || {
        let mut status = 0;
        // SAFETY: asks for a stop of the test's own child without waiting.
        let got = unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED | libc::WNOHANG) };
        if got == pid {
            assert!(libc::WIFSTOPPED(status), "ended instead: {status:x}");
            signal = libc::WSTOPSIG(status);
        }
        got == pid
    });
    signal
}

#[test]
fn terminal_stops_stop_gpurun_with_the_job_and_cont_continues_both() {
    for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
        for way in BOTH {
            // By a signal from outside, twice.
            let running = Running::start(way, &["wait"]);
            for _ in 0..2 {
                kill(running.outer(), signal);
                assert_eq!(stopped_by(running.outer()), signal, "{way:?}");
                assert_eq!(state(running.job), Some('T'), "{way:?}");
                kill(running.outer(), libc::SIGCONT);
                until("the job runs again", || state(running.job) == Some('S'));
            }
            assert_eq!(running.end().0, "code 0", "{way:?} {signal}");

            // By the job itself.
            let mut run = command(way, &job_argv(&["stop-self", &signal.to_string()]));
            let mut child = run.process_group(0).stdout(Stdio::null()).spawn().unwrap();
            assert_eq!(stopped_by(pid_of(&child)), signal, "{way:?}");
            kill(pid_of(&child), libc::SIGCONT);
            assert_eq!(describe(finish(&mut child)), "code 5", "{way:?} {signal}");
        }
    }
}

#[test]
fn stop_and_continue_of_the_whole_group_in_quick_succession_never_hang() {
    let running = Running::start(Way::Wrapped, &["wait"]);
    for _ in 0..300 {
        kill(-running.outer(), libc::SIGTSTP);
        kill(-running.outer(), libc::SIGCONT);
    }
    assert_eq!(running.end().0, "code 0");
}

#[test]
fn a_sigstop_of_the_job_alone_leaves_gpurun_watching() {
    let running = Running::start(Way::Wrapped, &["wait"]);
    kill(running.job, libc::SIGSTOP);
    until("the job is stopped", || state(running.job) == Some('T'));
    kill(running.outer(), libc::SIGCONT);
    until("the job runs again", || state(running.job) == Some('S'));
    assert_ne!(state(running.outer()), Some('T'));
    assert_eq!(running.end().0, "code 0");
}

#[test]
fn a_stopped_gpurun_does_not_stop_the_job() {
    let mut running = Running::start(Way::Wrapped, &["count"]);
    kill(running.outer(), libc::SIGSTOP);
    assert_eq!(stopped_by(running.outer()), libc::SIGSTOP);
    assert_eq!(running.signals(), Vec::<String>::new());
    kill(running.outer(), libc::SIGUSR1);
    kill(running.outer(), libc::SIGCONT);
    let mut got = Vec::new();
    until("both signals are through", || {
        got.extend(running.signals());
        got.len() >= 2
    });
    got.sort();
    assert_eq!(got, ["10", "18"]);
    assert_eq!(running.end().0, "code 0");
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

#[test]
fn daemons_stay_in_the_tree_are_named_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("daemon");
    let mut run = command(Way::Wrapped, &job_argv(&["daemon", file.to_str().unwrap()]));
    let output = run.stdout(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let pid = std::fs::read_to_string(&file).unwrap().trim().trim_start_matches("ready ").parse().unwrap();
    let left = alive(pid);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(output.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(left, "the daemon was ended");
    assert!(stderr.contains(&pid.to_string()) && stderr.contains("daemon"), "{stderr}");
    until("the daemon ends", || !alive(pid));
}

/// Reads the pid that a job wrote to its file, once it is there.
fn pid_in(file: &Path) -> i32 {
    until("the job writes its pid", || file.exists());
    std::fs::read_to_string(file).unwrap().trim().trim_start_matches("ready ").parse().unwrap()
}

/// gpurun with options of its own before the job.
fn with_options(options: &[&str], argv: &[OsString]) -> Command {
    let mut gpurun = Command::new(GPURUN);
    gpurun.args(options).arg("--").args(argv);
    gpurun
}

#[test]
fn kill_tree_ends_what_is_left_politely_then_surely() {
    let dir = tempfile::tempdir().unwrap();

    // A daemon that obeys; the main process's code is kept.
    let file = dir.path().join("daemon");
    let mut run = with_options(&["--kill-tree"], &job_argv(&["daemon", file.to_str().unwrap()]));
    let status = finish(&mut run.stdout(Stdio::null()).spawn().unwrap());
    assert_eq!(describe(status), "code 3");
    assert!(!alive(pid_in(&file)));

    // One that does not, and one that is stopped.
    let stubborn = dir.path().join("stubborn");
    let stopped = dir.path().join("stopped");
    let script = "\"$0\" ignore-term \"$1\" >/dev/null & (\"$0\" ignore-term \"$2\" >/dev/null & wait) & \
        while ! [ -e \"$1\" -a -e \"$2\" ]; do sleep 0.01; done; \
        read _ pid < \"$2\"; kill -STOP $pid; exit 6";
    let mut argv: Vec<OsString> = ["sh", "-c", script].map(OsString::from).to_vec();
    argv.extend([job().into(), stubborn.clone().into(), stopped.clone().into()]);
    let mut run = with_options(&["--kill-tree", "--kill-after", "200ms"], &argv);
    let status = finish(&mut run.spawn().unwrap());
    assert_eq!(describe(status), "code 6");
    assert!(!alive(pid_in(&stubborn)) && !alive(pid_in(&stopped)));

    // A whole tree, left by a main process that is killed.
    let mark = format!("tree-{}", std::process::id());
    let mut run = with_options(&["--kill-tree"], &job_argv(&["tree", "3", "2"]));
    run.env("TEST_MARK", &mark);
    let mut running = Running::start_command(run);
    // The minder, the sidecar, the job and its 3 + 9 descendants. The child that tries to load the driver has ended soon.
    until("15 processes are left", || marked(&mark).len() == 15);
    kill(running.job, libc::SIGKILL);
    assert_eq!(describe(finish(&mut running.child)), "signal 9");
    assert_eq!(marked(&mark), Vec::<i32>::new());
}

#[test]
fn kill_after_kills_the_tree_only_after_a_request_to_end() {
    let mark = format!("after-{}", std::process::id());
    let mut run = with_options(&["--kill-after", "200ms"], &job_argv(&["ignore-term"]));
    run.env("TEST_MARK", &mark);
    let mut running = Running::start_command(run);
    // No request to end: it must not start the clock, nor end the job.
    kill(running.outer(), libc::SIGWINCH);
    kill(running.outer(), libc::SIGTERM);
    assert_eq!(describe(finish(&mut running.child)), "signal 9");
    assert_eq!(marked(&mark), Vec::<i32>::new());

    // A job that ends in time keeps its own end.
    let mut running =
        Running::start_command(with_options(&["--kill-after", "20000ms"], &job_argv(&["wait"])));
    kill(running.outer(), libc::SIGTERM);
    assert_eq!(describe(finish(&mut running.child)), "signal 15");
}

#[test]
fn die_together_takes_the_job_along() {
    let mut running = Running::start_command(with_options(&["--die-together"], &job_argv(&["wait"])));
    kill(running.outer(), libc::SIGKILL);
    finish(&mut running.child);
    let job = running.job;
    until("the job is gone too", || !alive(job));
}

#[test]
fn orphans_are_reaped_while_the_job_runs() {
    let script = "\"$0\" orphans 200 >/dev/null; echo \"ready $$\"; read x; exit 0";
    let mut run = Command::new(GPURUN);
    run.args(["--", "sh", "-c", script]).arg(job());
    let running = Running::start_command(run);
    let children = || -> Vec<i32> {
        let list = format!("/proc/{0}/task/{0}/children", running.outer());
        let list = std::fs::read_to_string(list).unwrap();
        list.split_ascii_whitespace().map(|p| p.parse().unwrap()).collect()
    };
    until("only the sidecar and the job are left", || children().len() == 2);
    assert!(children().contains(&running.job));
    running.end();
}

#[test]
fn killing_gpurun_leaves_the_job_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let mut run = command(Way::Wrapped, &job_argv(&["wait", file.to_str().unwrap()]));
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let stdin = child.stdin.take();
    until("the job is ready", || file.exists());
    let job: i32 = std::fs::read_to_string(&file).unwrap()[6..].trim().parse().unwrap();
    kill(pid_of(&child), libc::SIGKILL);
    assert_eq!(describe(finish(&mut child)), "signal 9");
    assert!(alive(job));
    drop(stdin);
    until("the job ends by itself", || !alive(job));
}

#[test]
fn a_stderr_that_is_full_closed_or_broken_does_not_hold_up_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("daemon");
    // The daemon is left over, so gpurun has something to say.
    let argv = job_argv(&["daemon", file.to_str().unwrap()]);
    for case in ["full", "no reader", "closed"] {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut run = command(Way::Wrapped, &argv);
        run.stdout(Stdio::null());
        match case {
            "full" => {
                let mut filler = writer.try_clone().unwrap();
                // Exactly the capacity of a pipe.
                std::io::Write::write_all(&mut filler, &vec![0; 65_536]).unwrap();
                run.stderr(writer);
            }
            "no reader" => {
                run.stderr(writer);
            }
            _ => with_setup(&mut run, call!(libc::close(2))),
        }
        let reader = (case != "no reader").then_some(reader);
        let mut child = run.spawn().unwrap();
        let status = describe(finish(&mut child));
        drop(reader);
        let pid = std::fs::read_to_string(&file).unwrap()[6..].trim().parse().unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(status, "code 3", "{case}");
        until("the daemon ends", || !alive(pid));
    }
}

/// The line to type for a job in a terminal.
fn line(way: Way, args: &str) -> String {
    let job = job().display();
    if way == Way::Bare { format!("{job} {args}") } else { format!("{GPURUN} -- {job} {args}") }
}

/// Asks a counting job in a terminal until it has had `count` signals.
fn counted(terminal: &mut Terminal, count: usize) -> Vec<String> {
    let mut all = Vec::new();
    until("the signals arrive", || {
        terminal.type_in("\n");
        terminal.expect("signals");
        let words = terminal.expect("\n");
        all.extend(words.split_ascii_whitespace().map(str::to_owned));
        all.len() >= count
    });
    all
}

#[test]
fn what_the_terminal_sends_arrives_once() {
    for way in BOTH {
        let mut terminal = Terminal::bash();
        terminal.type_in(&format!("{}\n", line(way, "count")));
        terminal.expect("ready ");
        terminal.expect("\n");
        for (keys, signal) in [("\x03", "2"), ("\x1c", "3"), ("\x1a", "20")] {
            terminal.type_in(keys);
            // A second copy would come with or before the next key's signal and break its count.
            assert_eq!(counted(&mut terminal, 1), [signal], "{way:?}");
        }
        terminal.resize(30);
        assert_eq!(counted(&mut terminal, 1), ["28"], "{way:?}");
        terminal.type_in("\x03");
        assert_eq!(counted(&mut terminal, 1), ["2"], "{way:?}");
        terminal.type_in("\x04");
        terminal.expect("PROMPT> ");
        assert_eq!(terminal.status(), "0", "{way:?}");
    }
}

#[test]
fn ctrl_z_fg_and_bg_work() {
    let seen = BOTH.map(|way| {
        let mut terminal = Terminal::bash();
        let mut log = Vec::new();
        terminal.type_in(&format!("{}\n", line(way, "wait")));
        terminal.expect("ready ");
        let job: i32 = terminal.expect("\n").trim().parse().unwrap();
        // A key typed before the shell's CONT has arrived would be undone by it.
        let running = || until("it runs again", || !matches!(state(job), Some('T')));
        for _ in 0..10 {
            terminal.type_in("\x1a");
            log.push(terminal.expect("Stopped").contains("[1]+"));
            terminal.expect("PROMPT> ");
            log.push(terminal.status() == "148");
            terminal.type_in("fg\n");
            terminal.expect("wait");
            terminal.expect("\r\n");
            running();
        }
        // In the background it reads the terminal and is stopped for it.
        terminal.type_in("\x1a");
        terminal.expect("Stopped");
        terminal.expect("PROMPT> ");
        terminal.type_in("bg\n");
        terminal.expect("PROMPT> ");
        until("it is stopped for reading", || {
            let jobs = terminal.run("jobs -s");
            jobs.contains("Stopped")
        });
        terminal.type_in("fg\n");
        terminal.expect("wait");
        terminal.expect("\r\n");
        terminal.type_in("\x04");
        terminal.expect("PROMPT> ");
        log.push(terminal.status() == "0");
        log
    });
    assert!(seen[0].iter().all(|ok| *ok), "{:?}", seen[0]);
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn ctrl_c_stops_a_shells_loop() {
    let seen = BOTH.map(|way| {
        let mut terminal = Terminal::bash();
        terminal.type_in(&format!("for i in 1 2 3; do {}; echo \"next $i\"; done\n", line(way, "wait")));
        terminal.expect("ready ");
        terminal.type_in("\x03");
        let shown = terminal.expect("PROMPT> ");
        assert!(!shown.contains("next "), "{way:?} {shown}");
        terminal.status()
    });
    assert_eq!(seen[0], "130");
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn a_job_in_the_background_reads_when_it_is_in_the_foreground_again() {
    let seen = BOTH.map(|way| {
        let mut terminal = Terminal::bash();
        terminal.run(&format!("{} &", line(way, "read-terminal")));
        until("it is stopped for reading", || terminal.run("jobs -s").contains("Stopped"));
        terminal.type_in("fg\n");
        terminal.expect("read-terminal");
        terminal.expect("\r\n");
        terminal.type_in("hello\n");
        terminal.expect("got hello");
        terminal.expect("PROMPT> ");
        terminal.status()
    });
    assert_eq!(seen, ["0", "0"]);
}

#[test]
fn a_background_job_that_may_not_write_stops_and_gpurun_with_it() {
    let seen = BOTH.map(|way| {
        let mut terminal = Terminal::bash();
        terminal.run("stty tostop");
        terminal.run(&format!("{} &", line(way, "stop-self 18")));
        until("it is stopped for writing", || terminal.run("jobs -s").contains("Stopped"));
        terminal.type_in("fg\n");
        terminal.expect("running");
        terminal.expect("PROMPT> ");
        terminal.status()
    });
    assert_eq!(seen, ["5", "5"]);
}

#[test]
fn a_closed_terminal_ends_the_job() {
    let dir = tempfile::tempdir().unwrap();
    for way in BOTH {
        for leader in ["bash", "itself"] {
            let file = dir.path().join(format!("{way:?}-{leader}"));
            let path = file.to_str().unwrap();
            let terminal = if leader == "bash" {
                let mut terminal = Terminal::bash();
                terminal.type_in(&format!("{}\n", line(way, &format!("wait {path}"))));
                terminal
            } else {
                Terminal::with(command(way, &job_argv(&["wait", path])))
            };
            until("the job is ready", || file.exists());
            let job: i32 = std::fs::read_to_string(&file).unwrap()[6..].trim().parse().unwrap();
            let shell = terminal.leader();
            terminal.hang_up();
            until("the job ends", || !alive(job));
            until("the leader ends", || !alive(shell));
        }
    }
}

#[test]
fn a_pseudo_terminal_is_the_jobs_own() {
    for way in BOTH {
        let mut terminal = Terminal::bash();
        let prefix = if way == Way::Bare { "env".to_owned() } else { format!("{GPURUN} --") };
        let text = terminal.run(&format!(
            "{prefix} sh -c 'test -t 0 && test -t 1 && test -t 2 && tty >/dev/null && stty size'"
        ));
        assert!(text.contains("24 200"), "{way:?} {text}");
    }
}
