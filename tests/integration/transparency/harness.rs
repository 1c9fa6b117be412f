//! Runs one job bare and under the real gpurun, and tells what each showed.

pub(crate) use crate::support::until_holds as until;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// The longest that anything here may take before a test fails; nothing waits that long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The gpurun under test.
pub(crate) const GPURUN: &str = env!("CARGO_BIN_EXE_gpurun");

/// `test-job`, beside gpurun. Cargo builds binaries of other packages only when they are selected, so it is
/// built here when it is missing or older than its source.
pub(crate) fn job() -> &'static Path {
    static JOB: OnceLock<PathBuf> = OnceLock::new();
    JOB.get_or_init(|| {
        let path = Path::new(GPURUN).with_file_name("test-job");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let changed =
            |p: &Path| std::fs::metadata(p).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        let source = changed(&root.join("tests/jobs/src/bin/test-job.rs"));
        if !path.exists() || changed(&path) < source {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            cargo.args(["build", "--package", "test-jobs"]).current_dir(root);
            if path.parent().and_then(Path::file_name).is_some_and(|d| d == "release") {
                cargo.arg("--release");
            }
            let built = cargo.output().expect("cargo runs");
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        }
        path
    })
}

/// With or without gpurun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Bare,
    Wrapped,
}

pub(crate) const BOTH: [Way; 2] = [Way::Bare, Way::Wrapped];

/// `argv`, or `gpurun -- argv`.
pub(crate) fn command<S: Into<OsString> + Clone>(way: Way, argv: &[S]) -> Command {
    let argv: Vec<OsString> = argv.iter().cloned().map(Into::into).collect();
    let mut command = match way {
        Way::Bare => Command::new(&argv[0]),
        Way::Wrapped => {
            let mut c = Command::new(GPURUN);
            c.arg("--").arg(&argv[0]);
            c
        }
    };
    command.args(&argv[1..]);
    command
}

/// The test job with these arguments.
pub(crate) fn job_argv(args: &[&str]) -> Vec<OsString> {
    std::iter::once(job().as_os_str().to_owned()).chain(args.iter().map(|a| OsString::from(*a))).collect()
}

/// What a finished run showed. Lines of gpurun's own on stderr are left out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) status: String,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Shown {
    pub(crate) fn of(output: &Output) -> Shown {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let stderr = stderr.lines().filter(|l| !l.starts_with("gpurun: ")).collect::<Vec<_>>().join("\n");
        Shown {
            status: describe(output.status),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr,
        }
    }
}

/// An exit status without the core flag: gpurun dies without a second core.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => format!("{status:?}"),
    }
}

/// Waits for the end of a child, but not for ever.
pub(crate) fn finish(child: &mut Child) -> ExitStatus {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("process {} did not end", child.id());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a signal to a process (or a group, negative).
pub(crate) fn kill(pid: i32, signal: i32) {
    // SAFETY: sends a signal to a process that the test started.
    let sent = unsafe { libc::kill(pid, signal) };
    assert_eq!(sent, 0, "kill {pid} {signal}: {}", std::io::Error::last_os_error());
}

/// Whether a process is there and not a zombie.
pub(crate) fn alive(pid: i32) -> bool {
    state(pid).is_some_and(|s| s != 'Z' && s != 'X')
}

/// The state letter of a process.
pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Processes that carry a mark in their environment.
pub(crate) fn marked(mark: &str) -> Vec<i32> {
    let entry = format!("TEST_MARK={mark}");
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let env = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            env.split(|b| *b == 0).any(|v| v == entry.as_bytes())
        })
        .collect()
}

/// The pid of a child as the kernel's type.
pub(crate) fn pid_of(child: &Child) -> i32 {
    i32::try_from(child.id()).unwrap()
}

/// What the job reported of how it was started; additions that gpurun is meant to make are left out.
pub(crate) fn report(path: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("no report: {e}"));
    let mut facts = BTreeMap::new();
    let mut env = String::new();
    for (key, value) in text.lines().filter_map(|l| l.split_once(' ')) {
        if key.starts_with("env-") {
            let bytes = unhex(value);
            if ![&b"GPURUN_"[..], b"CUDA_"].iter().any(|p| bytes.starts_with(p)) {
                env.push_str(&format!("{}\n", String::from_utf8_lossy(&bytes)));
                env.push_str(&format!("{value}\n"));
            }
        } else {
            facts.insert(key.to_owned(), value.to_owned());
        }
    }
    facts.insert("env".to_owned(), env);
    facts
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Bytes as an argument.
pub(crate) fn bytes(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

/// A running `test-job`, which said `ready PID` and answers lines.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) job: i32,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    /// Starts it in a process group of its own.
    pub(crate) fn start(way: Way, args: &[&str]) -> Running {
        Self::start_command(command(way, &job_argv(args)))
    }

    pub(crate) fn start_command(command: Command) -> Running {
        let mut running = Self::start_unready(command);
        running.ready();
        running
    }

    /// Starts it without waiting for the job to be ready.
    pub(crate) fn start_unready(mut command: Command) -> Running {
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Running { child, job: 0, stdin, stdout }
    }

    /// Waits until the job says that it is ready.
    pub(crate) fn ready(&mut self) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        let job = line.trim().strip_prefix("ready ").and_then(|p| p.parse().ok());
        self.job = job.unwrap_or_else(|| panic!("not ready: {line:?}"));
    }

    /// The process the test started: gpurun, or the job itself.
    pub(crate) fn outer(&self) -> i32 {
        pid_of(&self.child)
    }

    /// The signals the job got since it was last asked, as words.
    pub(crate) fn signals(&mut self) -> Vec<String> {
        self.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        let words = line.trim().strip_prefix("signals").unwrap_or_else(|| panic!("no answer: {line:?}"));
        words.split_ascii_whitespace().map(str::to_owned).collect()
    }

    /// Collects signals until `marker`, sent now to the outer process, has come through: whatever was sent
    /// before is in by then, and a second copy of it too.
    pub(crate) fn signals_up_to(&mut self, marker: i32) -> Vec<String> {
        kill(self.outer(), marker);
        let mut all = Vec::new();
        let word = marker.to_string();
        until("the marker arrives", || {
            all.extend(self.signals());
            all.contains(&word)
        });
        all.retain(|w| *w != word);
        all
    }

    /// Waits until the job got something.
    pub(crate) fn first_signals(&mut self) -> Vec<String> {
        let mut got = Vec::new();
        until("a signal arrives", || {
            got = self.signals();
            !got.is_empty()
        });
        got
    }

    /// Ends the job by its stdin; the status, and what it still said.
    pub(crate) fn end(mut self) -> (String, String) {
        drop(self.stdin.take());
        let status = describe(finish(&mut self.child));
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (status, rest)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only when a test fails on the way: neither may be left behind.
        if self.child.try_wait().ok().flatten().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        drop(self.stdin.take());
    }
}
