//! One small real job of many kinds: `test-job KIND [ARG...]`.
//!
//! It has no Rust runtime under it (`no_main`): the runtime would ignore SIGPIPE and reopen closed
//! descriptors before the job could tell how it was started.
#![no_main]

use std::ffi::CStr;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The C entry point.
///
/// # Safety
/// Called once by the C runtime with the program's arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(argc: libc::c_int, argv: *const *const libc::c_char) -> libc::c_int {
    let count = usize::try_from(argc).unwrap_or(0);
    let args: Vec<Vec<u8>> = (0..count)
        // SAFETY: the C runtime passes `argc` C strings.
        .map(|i| unsafe { CStr::from_ptr(*argv.add(i)) }.to_bytes().to_vec())
        .collect();
    let text: Vec<String> = args.iter().map(|a| String::from_utf8_lossy(a).into_owned()).collect();
    let word = |i: usize| text.get(i).map_or("", String::as_str);
    let number = |i: usize| word(i).parse::<i32>().unwrap_or(0);
    match word(1) {
        "report" => report(word(2), &args),
        "exit" => number(2),
        "die" => die(number(2)),
        "echo" => echo(),
        "count" => count_signals(),
        "kill-group" => kill_group(number(2)),
        "wait" => wait_for_end(word(2)),
        "ignore-term" => ignore_term(word(2)),
        "stop-self" => stop_self(number(2)),
        "daemon" => daemon(word(2)),
        "tree" => tree(number(2), number(3), number(4)),
        "burst" => burst(number(2), false),
        "orphans" => burst(number(2), true),
        "spin" => spin(number(2)),
        "read-terminal" => read_terminal(),
        other => {
            say(2, &format!("test-job: no such kind: {other}\n"));
            99
        }
    }
}

fn say(fd: i32, text: &str) {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        // SAFETY: writes a live buffer to a descriptor of this process.
        let n = unsafe { libc::write(fd, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(n) {
            Ok(n) if n > 0 => rest = rest.get(n..).unwrap_or_default(),
            _ => return,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut all, b| {
        let _ = write!(all, "{b:02x}");
        all
    })
}

/// The open descriptors with their flags and files. The list of numbers is made before anything is opened.
fn descriptors() -> Vec<(i32, String)> {
    let mut fds: Vec<(i32, String)> = Vec::new();
    let numbers: Vec<i32> = (0..1024)
        // SAFETY: F_GETFD only asks.
        .filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } != -1)
        .collect();
    for fd in numbers {
        // SAFETY: F_GETFL only asks.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        let meta = fs::metadata(format!("/proc/self/fd/{fd}"));
        let id = meta.map_or_else(|e| e.to_string(), |m| format!("{}:{}", m.dev(), m.ino()));
        fds.push((fd, format!("{flags:o} {id}")));
    }
    fds
}

/// Everything a program can see of how it was started, one `key value` a line, written to a file.
fn report(path: &str, args: &[Vec<u8>]) -> i32 {
    let mut out = String::new();
    let mut line = |key: &str, value: String| {
        let _ = writeln!(out, "{key} {value}");
    };
    // SAFETY: these calls read ids and attributes of this process.
    unsafe {
        line("pgid", libc::getpgid(0).to_string());
        line("sid", libc::getsid(0).to_string());
        line("nice", libc::getpriority(libc::PRIO_PROCESS, 0).to_string());
        line("dumpable", libc::prctl(libc::PR_GET_DUMPABLE).to_string());
        line("timerslack", libc::prctl(libc::PR_GET_TIMERSLACK).to_string());
        line("personality", libc::personality(0xffff_ffff).to_string());
        let mut value: libc::c_int = -1;
        libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut value);
        line("pdeathsig", value.to_string());
        libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut value);
        line("subreaper", value.to_string());
        let mask = libc::umask(0);
        libc::umask(mask);
        line("umask", format!("{mask:o}"));
        for resource in 0..16 {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::getrlimit(resource, &mut limit);
            line(&format!("limit-{resource}"), format!("{} {}", limit.rlim_cur, limit.rlim_max));
        }
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&mut pending);
        let pending: Vec<i32> = (1..=64).filter(|s| libc::sigismember(&pending, *s) == 1).collect();
        line("pending", format!("{pending:?}"));
    }
    for (fd, what) in descriptors() {
        line(&format!("fd-{fd}"), what);
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for key in [
        "SigBlk",
        "SigIgn",
        "SigCgt",
        "CapEff",
        "CapBnd",
        "Seccomp",
        "NoNewPrivs",
        "Cpus_allowed",
        "Uid",
        "Gid",
        "Groups",
    ] {
        let value = status.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'));
        line(key, value.unwrap_or_default().trim().to_owned());
    }
    for file in ["oom_score_adj", "cgroup", "sched", "comm"] {
        let text = fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
        let text = match file {
            "sched" => text.lines().filter(|l| l.starts_with("policy") || l.starts_with("prio")).collect(),
            _ => text.replace('\n', " "),
        };
        line(file, text);
    }
    let cwd = fs::read_link("/proc/self/cwd").map(|p| hex(p.as_os_str().as_bytes())).unwrap_or_default();
    line("cwd", cwd);
    for (i, arg) in args.iter().enumerate() {
        line(&format!("arg-{i}"), hex(arg));
    }
    let environ = fs::read("/proc/self/environ").unwrap_or_default();
    for (i, entry) in environ.split(|b| *b == 0).filter(|e| !e.is_empty()).enumerate() {
        line(&format!("env-{i:03}"), hex(entry));
    }
    i32::from(fs::write(path, out).is_err())
}

/// Dies of a signal, whatever was inherited for it, without a core file.
fn die(signal: i32) -> i32 {
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: changes only this process, which is about to end.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &limit);
        libc::signal(signal, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::kill(libc::getpid(), signal);
    }
    98
}

/// Copies stdin to stdout and its length to stderr.
fn echo() -> i32 {
    let mut total = 0;
    let mut buffer = [0u8; 8192];
    loop {
        // SAFETY: reads into a live buffer.
        let n = unsafe { libc::read(0, buffer.as_mut_ptr().cast(), buffer.len()) };
        let Some(got) = usize::try_from(n).ok().filter(|n| *n > 0) else { break };
        total += got;
        let mut rest = buffer.get(..got).unwrap_or_default();
        while !rest.is_empty() {
            // SAFETY: writes a live buffer.
            let n = unsafe { libc::write(1, rest.as_ptr().cast(), rest.len()) };
            let Ok(n) = usize::try_from(n) else { return 97 };
            rest = rest.get(n..).unwrap_or_default();
        }
    }
    say(2, &format!("{total} bytes\n"));
    0
}

/// Blocks every signal and returns a signalfd for them.
fn hold_all() -> i32 {
    // SAFETY: changes this process's mask and opens a descriptor.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
        libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC)
    }
}

/// The signals that wait, as `number/code-kind/value` words.
fn drain(fd: i32) -> String {
    let mut words = String::new();
    loop {
        // SAFETY: the kernel fills one structure of plain data.
        let info = unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let size = std::mem::size_of_val(&info);
            if libc::read(fd, (&raw mut info).cast(), size) <= 0 {
                return words;
            }
            info
        };
        let _ = write!(words, "{}", info.ssi_signo);
        if info.ssi_code == libc::SI_QUEUE {
            let _ = write!(words, "={}", info.ssi_int);
        }
        words.push(' ');
    }
}

/// Says `ready`, answers every line of stdin with the signals that came since the last one, ends with it.
fn count_signals() -> i32 {
    let fd = hold_all();
    say(1, &format!("ready {}\n", std::process::id()));
    let mut byte = [0u8; 1];
    loop {
        // SAFETY: reads one byte.
        if unsafe { libc::read(0, byte.as_mut_ptr().cast(), 1) } != 1 {
            return 0;
        }
        if byte == *b"\n" {
            say(1, &format!("signals {}\n", drain(fd)));
        }
    }
}

/// Sends a signal to its own process group and tells how many copies it got itself.
fn kill_group(signal: i32) -> i32 {
    let fd = hold_all();
    // SAFETY: signals this process's group, which the test made for it.
    unsafe { libc::kill(0, signal) };
    let mut all = String::new();
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        all.push_str(&drain(fd));
        std::thread::sleep(Duration::from_millis(5));
    }
    say(1, &format!("signals {all}\n"));
    0
}

/// Says `ready PID` and lives until stdin ends or its end is asked for; `FILE` is written first if given.
fn wait_for_end(file: &str) -> i32 {
    announce(file);
    let mut byte = [0u8; 1];
    loop {
        // SAFETY: reads one byte.
        match unsafe { libc::read(0, byte.as_mut_ptr().cast(), 1) } {
            1 => {}
            _ => return 0,
        }
    }
}

fn announce(file: &str) {
    let text = format!("ready {}\n", std::process::id());
    if !file.is_empty() {
        let part = format!("{file}.part");
        if fs::write(&part, &text).is_ok() {
            let _ = fs::rename(&part, file);
        }
    }
    say(1, &text);
}

/// Cannot be asked to end.
fn ignore_term(file: &str) -> i32 {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: changes this process's disposition.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    announce(file);
    loop {
        // SAFETY: sleeps until a signal.
        unsafe { libc::pause() };
    }
}

/// Stops itself once, then ends with 5.
fn stop_self(signal: i32) -> i32 {
    say(1, "stopping\n");
    // SAFETY: stops this process.
    unsafe { libc::kill(libc::getpid(), signal) };
    say(1, "running\n");
    5
}

/// Leaves a daemon (two forks and a new session) that lives until the file is gone; writes its pid there.
fn daemon(file: &str) -> i32 {
    // SAFETY: this program has one thread; the children use only what fork leaves them.
    unsafe {
        if libc::fork() == 0 {
            libc::setsid();
            if libc::fork() == 0 {
                for fd in 0..3 {
                    libc::close(fd);
                }
                announce(file);
                let end = Instant::now() + Duration::from_secs(60);
                while Path::new(file).exists() && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(10));
                }
                libc::_exit(0);
            }
            libc::_exit(0);
        }
        let mut status = 0;
        libc::wait(&mut status);
    }
    while !Path::new(file).exists() {
        std::thread::sleep(Duration::from_millis(2));
    }
    3
}

/// A tree of processes that all wait: `width` children of each, `depth` levels; says `ready` when it stands. Where
/// `beat` is not 0 they wake for a moment each so many milliseconds.
fn tree(width: i32, depth: i32, beat: i32) -> i32 {
    fn grow(width: i32, depth: i32, ready: i32, beat: i32) {
        for _ in 0..if depth > 0 { width } else { 0 } {
            // SAFETY: one thread; the child goes on in the same way.
            if unsafe { libc::fork() } == 0 {
                grow(width, depth - 1, ready, beat);
                say(ready, "x");
                loop {
                    // SAFETY: sleeps until a signal, or for a time.
                    unsafe {
                        if beat > 0 {
                            libc::poll(std::ptr::null_mut(), 0, beat);
                        } else {
                            libc::pause();
                        }
                    }
                }
            }
        }
    }
    let mut pipe = [0; 2];
    // SAFETY: fills two descriptors.
    unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) };
    grow(width, depth, pipe[1], beat);
    let expected: i32 = (1..=depth).map(|d| width.pow(u32::try_from(d).unwrap_or(0))).sum();
    for _ in 0..expected {
        let mut byte = [0u8; 1];
        // SAFETY: reads one byte.
        unsafe { libc::read(pipe[0], byte.as_mut_ptr().cast(), 1) };
    }
    wait_for_end("")
}

/// Forks `count` children that end at once: its own, or orphans of a child that ends first.
fn burst(count: i32, orphans: bool) -> i32 {
    let mut done = 0;
    for _ in 0..count {
        // SAFETY: one thread; the children end at once.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                if orphans && libc::fork() == 0 {
                    libc::_exit(0);
                }
                libc::_exit(0);
            }
            let mut status = 0;
            if pid > 0 && libc::waitpid(pid, &mut status, 0) == pid && status == 0 {
                done += 1;
            }
        }
    }
    say(1, &format!("{done} children\n"));
    0
}

/// Uses `ms` milliseconds of CPU time.
fn spin(ms: i32) -> i32 {
    let mut used: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        // SAFETY: reads a clock.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut used) };
        if used.tv_sec * 1000 + used.tv_nsec / 1_000_000 >= i64::from(ms) {
            return 0;
        }
    }
}

/// Reads one line from its controlling terminal and repeats it.
fn read_terminal() -> i32 {
    let mut line = [0u8; 100];
    // SAFETY: reads into a live buffer.
    let n = unsafe { libc::read(0, line.as_mut_ptr().cast(), line.len()) };
    let Ok(n) = usize::try_from(n) else { return 96 };
    let got = String::from_utf8_lossy(line.get(..n).unwrap_or_default()).into_owned();
    let _ = std::io::stdout().write_all(format!("got {got}").as_bytes());
    let _ = std::io::stdout().flush();
    0
}
