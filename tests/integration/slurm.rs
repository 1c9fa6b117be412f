//! A real Slurm of two nodes: what it sees of a job, and what the job sees of it, are as with bare `srun` and `sbatch`.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test where they are")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::logged::{Place, text, until};
use crate::main_job::Csv;
use crate::support;
use crate::transparency::harness::{BOTH, GPURUN, Way, describe, finish};

/// The status of `tests/slurm/cluster` where Slurm is not installed.
const NOT_INSTALLED: i32 = 77;

/// Notes to the file that it is given: `ready PID PARENT JOB`, then what the other half of the script has to say.
const NOTES: &str = r#"
import os, signal, sys
notes = open(sys.argv[1], "a", buffering=1)
def note(*words):
    print(*words, file=notes)
def ready():
    note("ready", os.getpid(), os.getppid(), os.environ["SLURM_JOB_ID"])
"#;

/// Notes every signal with its sender. USR2 is the test's own: after it the job logs how many came, and ends.
const TRAP: &str = r#"
import gpurun
ALL = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT, signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, ALL)
ready()
count = 0
while (info := signal.sigwaitinfo(ALL)).si_signo != signal.SIGUSR2:
    note("signal", info.si_signo, info.si_pid)
    count += 1
gpurun.log({"signals": count})
"#;

/// Saves when it is interrupted; saving takes until the test sends USR2.
const SAVE: &str = r#"
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
try:
    ready()
    while True:
        signal.pause()
except KeyboardInterrupt:
    try:
        note("signal", int(signal.SIGINT), 0)
        signal.sigwaitinfo({signal.SIGUSR2})
        note("saved")
    except KeyboardInterrupt:
        note("interrupted again")
"#;

type Case = fn(&Slurm);

/// How a job is given to Slurm.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Srun,
    /// As the only program of a batch script.
    Sbatch,
}

/// A running cluster, with simulated GPUs that both nodes share.
struct Slurm {
    harness: Child,
    conf: String,
    place: Place,
}

impl Slurm {
    /// Starts it; `None` where Slurm is not installed, which `tests/slurm/cluster` says in one line. With
    /// `GPURUN_TEST_SLURM=1` that is a failure.
    fn start() -> Option<Slurm> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        // The cluster runs until it reads a line, or the end of its input where the test failed or was killed; then the
        // logs stay.
        let mut harness = Command::new(root.join("tests/slurm/cluster"))
            .args(["sh", "-c", r#"echo "$SLURM_CONF"; read -r _"#])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut conf = String::new();
        BufReader::new(harness.stdout.take().unwrap()).read_line(&mut conf).unwrap();
        if conf.is_empty() {
            let status = harness.wait().unwrap();
            let must = std::env::var_os("GPURUN_TEST_SLURM").is_some_and(|word| word == "1");
            assert!(status.code() == Some(NOT_INSTALLED) && !must, "no cluster: {status}");
            return None;
        }
        let place = Place::ready("idle-8xa100");
        place.write("trap.py", &format!("{NOTES}{TRAP}"));
        place.write("save.py", &format!("{NOTES}{SAVE}"));
        Some(Slurm { harness, conf: conf.trim_end().to_owned(), place })
    }

    fn stop(mut self, failed: &[&str]) {
        let mut input = self.harness.stdin.take().unwrap();
        if failed.is_empty() {
            input.write_all(b"\n").unwrap();
        }
        drop(input);
        let status = self.harness.wait().unwrap();
        assert!(failed.is_empty(), "failed: {failed:?}");
        assert!(status.success());
    }

    /// A command of Slurm; what it starts sees the simulated GPUs and the Python module.
    fn command(&self, program: &str) -> Command {
        let mut command = self.place.program(Path::new(program), &[] as &[&str]);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SLURM_") {
                command.env_remove(name);
            }
        }
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
        command.env("SLURM_CONF", &self.conf).env("PYTHONPATH", module).env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn succeed(&self, program: &str, args: &[&str]) -> String {
        let output = self.command(program).args(args).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// State and exit code of a job that has ended.
    fn ended(&self, id: &str) -> String {
        until("the job ends", || {
            let job = self.succeed("scontrol", &["--oneliner", "show", "job", id]);
            let value = |key: &str| job.split(' ').find_map(|word| word.strip_prefix(key)).unwrap();
            let state = value("JobState=");
            (!["PENDING", "RUNNING", "COMPLETING"].contains(&state))
                .then(|| format!("{state} {}", value("ExitCode=")))
        })
    }

    /// Starts one of the two scripts and waits until it is ready. Its notes and its log are named after it; after a
    /// requeue also after the number of the start.
    fn start_job(&self, name: &str, way: Way, how: How, options: &[&str], script: &str) -> Job<'_> {
        let notes = self.place.path(&format!("{name}-{way:?}"));
        let start = if how == How::Sbatch { "$SLURM_RESTART_COUNT" } else { "" };
        let (python, file) = (support::python(), format!("{}{start}", notes.display()));
        let mut argv = vec![python.display().to_string(), script.to_owned(), file.clone()];
        if way == Way::Wrapped {
            let log = format!("--log={file}.csv");
            argv.splice(0..0, [GPURUN, "--quiet", &log, "--"].map(str::to_owned));
        }
        let srun = match how {
            How::Srun => Some(self.command("srun").args(options).args(argv).spawn().unwrap()),
            How::Sbatch => {
                let line = format!("exec {}", argv.join(" "));
                self.succeed("sbatch", &[options, &["--output=/dev/null", "--wrap", &line]].concat());
                None
            }
        };
        Job::ready(self, way, notes, srun)
    }
}

/// A job that notes what happens to it.
struct Job<'a> {
    slurm: &'a Slurm,
    way: Way,
    notes: PathBuf,
    srun: Option<Child>,
    pid: i32,
    parent: i32,
    id: String,
}

impl<'a> Job<'a> {
    /// Waits for the job's first note.
    fn ready(slurm: &'a Slurm, way: Way, notes: PathBuf, srun: Option<Child>) -> Self {
        let mut job = Job { slurm, way, notes, srun, pid: 0, parent: 0, id: String::new() };
        let line = until("the job is ready", || job.notes().into_iter().next());
        let words: Vec<&str> = line.split(' ').collect();
        job.pid = words[1].parse().unwrap();
        job.parent = words[2].parse().unwrap();
        job.id = words[3].to_owned();
        job
    }

    /// The whole lines so far.
    fn notes(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.notes).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(str::to_owned).collect()
    }

    /// The signals it got, by number, each with its sender.
    fn signals(&self) -> Vec<(i32, i32)> {
        let number = |word: &str| word.parse::<i32>().unwrap();
        let notes = self.notes();
        let pairs = notes.iter().filter_map(|note| note.strip_prefix("signal ")?.split_once(' '));
        let mut all: Vec<_> = pairs.map(|(signal, sender)| (number(signal), number(sender))).collect();
        all.sort_unstable();
        all
    }

    /// Those that gpurun passed on.
    fn passed_on(&self) -> Vec<i32> {
        let from = |sender| self.way == Way::Wrapped && sender == self.parent;
        self.signals().into_iter().filter(|(_, sender)| from(*sender)).map(|(signal, _)| signal).collect()
    }

    fn wait_for(&self, signal: i32) {
        until(&format!("signal {signal} arrives"), || {
            self.signals().iter().any(|(got, _)| *got == signal).then_some(())
        });
    }

    /// Asks it to end by USR2. gpurun gets this signal alone and passes it on behind all the others, so a second copy of
    /// one of them is seen first.
    fn ask_to_end(&self) {
        let target = if self.way == Way::Wrapped { self.parent } else { self.pid };
        // A job that was interrupted again has ended already; the test sees that in its notes.
        // SAFETY: signals a process of a job that this test started.
        unsafe { libc::kill(target, libc::SIGUSR2) };
    }

    /// Ends it, and tells how it ended.
    fn end(&mut self) -> String {
        self.ask_to_end();
        let status = self.srun.as_mut().map(|srun| describe(finish(srun)));
        format!("{} {status:?}", self.slurm.ended(&self.id))
    }

    /// Checks that its log is whole, up to the last thing that the job logged.
    fn whole_log(&self) {
        let log = self.notes.with_extension("csv");
        assert!(std::fs::read_to_string(&log).unwrap().ends_with('\n'), "{}", log.display());
        let csv = Csv::read(&log);
        assert_eq!(csv.numbers(&[("metric", "signals")], "last"), [self.signals().len() as f64]);
    }
}

/// The exit status of a script under srun and sbatch: srun's own and what it says of the task, and Slurm's record.
fn exit_status(slurm: &Slurm) {
    let id_file = slurm.place.path("id");
    for script in ["exit 0", "exit 3", "kill -KILL $$", "kill -TERM $$", "kill -USR1 $$"] {
        // Not by standard output: srun may lose that of a task which is killed.
        let noted = format!("echo $SLURM_JOB_ID > {}; {script}", id_file.display());
        let [bare, wrapped] = BOTH.map(|way| {
            let mut srun = slurm.command("srun");
            srun.arg("--nodelist=node1");
            if way == Way::Wrapped {
                srun.args([GPURUN, "--quiet", "--"]);
            }
            let output = srun.args(["sh", "-c", &noted]).output().unwrap();
            let said = text(&output.stderr);
            let of_task: Vec<String> =
                said.lines().filter(|line| line.starts_with("srun: error:")).map(str::to_owned).collect();
            let id = std::fs::read_to_string(&id_file).unwrap();
            std::fs::remove_file(&id_file).unwrap();
            (describe(output.status), of_task, slurm.ended(id.trim()))
        });
        assert_eq!(bare, wrapped, "srun: {script}");

        let [bare, wrapped] = BOTH.map(|way| {
            let gpurun = if way == Way::Wrapped { format!("{GPURUN} --quiet --") } else { String::new() };
            let line = format!("exec {gpurun} sh -c '{script}'");
            let id = slurm.succeed("sbatch", &["--parsable", "--output=/dev/null", "--wrap", &line]);
            slurm.ended(id.trim())
        });
        assert_eq!(bare, wrapped, "sbatch: {script}");
    }
}

/// What `scancel` sends reaches the job as often as without gpurun, and from gpurun only where gpurun alone got it.
fn scancel(slurm: &Slurm) {
    let (usr1, term, int) = (libc::SIGUSR1, libc::SIGTERM, libc::SIGINT);
    let mut wrong = Vec::new();
    for (name, how, options, signal, alone) in [
        ("cancel", How::Srun, &[][..], term, false),
        ("usr1", How::Srun, &["--signal=USR1"], usr1, false),
        ("int", How::Srun, &["--signal=INT"], int, false),
        ("term", How::Srun, &["--signal=TERM"], term, false),
        ("cancel-batch", How::Sbatch, &[], term, false),
        ("full-batch", How::Sbatch, &["--full", "--signal=USR1"], usr1, false),
        ("usr1-batch", How::Sbatch, &["--batch", "--signal=USR1"], usr1, true),
    ] {
        let [bare, wrapped] = BOTH.map(|way| {
            let mut job = slurm.start_job(name, way, how, &[], "trap.py");
            slurm.succeed("scancel", &[options, &[job.id.as_str()]].concat());
            job.wait_for(signal);
            let end = job.end();
            let passed_on = if way == Way::Wrapped && alone { vec![signal] } else { Vec::new() };
            if job.passed_on() != passed_on {
                wrong.push(format!("{name}: gpurun passed on {:?}, not {passed_on:?}", job.passed_on()));
            }
            let signals: Vec<i32> = job.signals().iter().map(|(signal, _)| *signal).collect();
            (signals, end)
        });
        if bare != wrapped {
            wrong.push(format!("{name}: bare {bare:?}, under gpurun {wrapped:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A job that saves when it is interrupted is left to save.
fn interrupt(slurm: &Slurm) {
    let [bare, wrapped] = BOTH.map(|way| {
        let mut job = slurm.start_job("save", way, How::Srun, &[], "save.py");
        slurm.succeed("scancel", &["--signal=INT", &job.id]);
        job.wait_for(libc::SIGINT);
        (job.end(), job.notes().last().cloned())
    });
    assert_eq!(bare.1.as_deref(), Some("saved"));
    assert_eq!(bare, wrapped);
}

/// At the time limit the job hears from Slurm and not again from gpurun, and what it logs then is in its log. Slurm looks
/// for such jobs twice a minute.
fn time_limit(slurm: &Slurm) {
    let options = ["--time=1", "--signal=USR1@30"];
    let jobs = BOTH.map(|way| slurm.start_job("limit", way, How::Srun, &options, "trap.py"));
    for job in &jobs {
        slurm.succeed("scontrol", &["update", &format!("JobId={}", job.id), "EndTime=now"]);
    }
    let [(bare, ..), (wrapped, passed_on)] = jobs.map(|mut job| {
        job.wait_for(libc::SIGUSR1);
        job.wait_for(libc::SIGTERM);
        let end = job.end();
        // Slurm sends TERM twice here within milliseconds, and the job may see two as one.
        let signals: BTreeSet<i32> = job.signals().iter().map(|(signal, _)| *signal).collect();
        if job.way == Way::Wrapped {
            job.whole_log();
        }
        ((end, signals), job.passed_on())
    });
    assert_eq!(bare, wrapped);
    assert_eq!(passed_on, [0; 0], "signals that gpurun passed on");
}

/// Four ranks on two nodes: a GPU and a log for each, and one run.
fn ranks(slurm: &Slurm) {
    let dir = slurm.place.path("ranks");
    // All are there before the first ends, so that their GPUs are held at one time.
    let script = format!(
        "touch {0}/$SLURM_PROCID; until [ -e {0}/0 ] && [ -e {0}/1 ] && [ -e {0}/2 ] && [ -e {0}/3 ]; do sleep 0.05; \
         done; echo $SLURM_JOB_ID $SLURM_NODEID $SLURM_PROCID $CUDA_VISIBLE_DEVICES",
        dir.display()
    );
    std::fs::create_dir(&dir).unwrap();
    let log = dir.join("{host}-{rank}.csv");
    let gpurun = [GPURUN, "--quiet", "-n", "1", "--log", log.to_str().unwrap(), "--"];
    let said = slurm.succeed("srun", &[&["-n4", "-N2"], &gpurun[..], &["sh", "-c", &script]].concat());
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split(' ').collect()).collect();
    let different = |word: usize| lines.iter().map(|line| line[word]).collect::<BTreeSet<_>>();
    assert_eq!((different(0).len(), different(1).len()), (1, 2), "one job, two nodes: {said}");
    assert_eq!(different(2), BTreeSet::from(["0", "1", "2", "3"]), "{said}");
    assert_eq!(different(3).len(), 4, "a GPU for each: {said}");

    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let mut runs = BTreeSet::new();
    for line in &lines {
        let (rank, gpu) = (line[2], line[3]);
        let csv = Csv::read(&dir.join(format!("{}-{rank}.csv", host.trim())));
        let column = |name: &str| csv.select(&[], name).into_iter().collect::<BTreeSet<_>>();
        assert_eq!(column("rank"), BTreeSet::from([rank.to_owned()]));
        assert_eq!(csv.select(&[("scope", "gpu"), ("metric", "memory_used")], "gpu"), [gpu]);
        runs.extend(column("run"));
    }
    assert_eq!(runs.len(), 1, "one run: {runs:?}");
}

/// A requeued job hears of it as without gpurun; its second start runs, and has a log as well.
fn requeue(slurm: &Slurm) {
    let [(bare, ..), (wrapped, passed_on)] = BOTH.map(|way| {
        let first = slurm.start_job("requeue", way, How::Sbatch, &["--requeue"], "trap.py");
        slurm.succeed("scontrol", &["requeue", &first.id]);
        first.wait_for(libc::SIGTERM);
        first.ask_to_end();
        let mut second = Job::ready(slurm, way, slurm.place.path(&format!("requeue-{way:?}1")), None);
        assert_eq!(first.id, second.id);
        let end = second.end();
        if way == Way::Wrapped {
            first.whole_log();
            second.whole_log();
        }
        let signals: Vec<i32> = first.signals().iter().map(|(signal, _)| *signal).collect();
        ((signals, end), first.passed_on())
    });
    assert_eq!(bare, wrapped);
    assert_eq!(passed_on, [0; 0], "signals that gpurun passed on");
}

#[test]
fn slurm_and_the_job_see_each_other_as_without_gpurun() {
    let Some(slurm) = Slurm::start() else { return };
    let cases: [(&str, Case); 5] = [
        ("exit status", exit_status),
        ("scancel", scancel),
        ("interrupt", interrupt),
        ("ranks", ranks),
        ("requeue", requeue),
    ];
    let mut failed = Vec::new();
    std::thread::scope(|scope| {
        let slurm = &slurm;
        // It waits half a minute for Slurm, the others pass meanwhile.
        let limit = scope.spawn(|| time_limit(slurm));
        for (name, case) in cases {
            if scope.spawn(move || case(slurm)).join().is_err() {
                failed.push(name);
            }
        }
        if limit.join().is_err() {
            failed.push("time limit");
        }
    });
    slurm.stop(&failed);
}
