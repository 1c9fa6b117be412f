//! Whatever goes wrong in gpurun or around it, the job's output and exit status stay its own.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test where they are")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use fake_nvml::{Fault, Gpu, Installed, Scenario};

use crate::support::shared_library;
use crate::transparency::harness::{
    GPURUN, Running, alive, describe, finish, job, job_argv, kill, state, until,
};
use crate::transparency::pty::Terminal;

/// A machine of one simulated GPU with this fault.
pub(crate) fn machine(dir: &Path, fault: Fault) -> Installed {
    let gpu = Gpu { temperature: Some(50.0.into()), ..Gpu::with_memory(81_920.0, 512.0, 0.0) };
    fake_nvml::install(dir, &Scenario { gpu: vec![gpu], fault: vec![fault], ..Scenario::default() }).unwrap()
}

pub(crate) fn hang(function: &str, after: u64) -> Fault {
    Fault { function: function.to_owned(), after: Some(after), hang: true, ..Fault::default() }
}

/// gpurun with these options, away from the leases and devices of the machine that the test runs on.
pub(crate) fn gpurun(dir: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(GPURUN);
    command.args(options).env("GPURUN_LEASE_DIR", dir.join("leases"));
    command.env_remove("CUDA_VISIBLE_DEVICES").stdin(Stdio::null());
    command
}

pub(crate) fn with_job<S: AsRef<OsStr>>(mut command: Command, argv: &[S]) -> Output {
    command.arg("--").args(argv).output().unwrap()
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Rows of a scope that have a mean.
pub(crate) fn known(log: &Path, scope: &str) -> usize {
    let text = fs::read_to_string(log).unwrap();
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let place = |name: &str| reader.headers().cloned().unwrap().iter().position(|h| h == name).unwrap();
    let mut place = place;
    let (scope_at, mean_at) = (place("scope"), place("mean"));
    reader.records().map(Result::unwrap).filter(|r| &r[scope_at] == scope && !r[mean_at].is_empty()).count()
}

pub(crate) const FAST: [&str; 4] = ["--interval", "50ms", "--window", "200ms"];

#[test]
fn a_driver_that_hangs_at_the_start_or_the_end_costs_its_own_values_only() {
    for (function, tells) in
        [("nvmlInit*", true), ("nvmlDeviceGetMemoryInfo*", true), ("nvmlShutdown", false)]
    {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("m.csv");
        let mut command = gpurun(dir.path(), &FAST);
        machine(dir.path(), hang(function, 0)).apply(&mut command).arg("--log").arg(&log);
        let output = with_job(command, &["sh", "-c", "echo out; exit 3"]);
        assert_eq!(describe(output.status), "code 3", "{function}");
        assert_eq!(output.stdout, b"out\n", "{function}");
        assert!(known(&log, "host") > 0 && known(&log, "job") > 0, "{function}");
        // Missing values are never missing without a word.
        assert_eq!(said(&output).contains("driver had not answered"), tells, "{function}: {}", said(&output));
        assert_eq!(known(&log, "gpu") > 0, !tells, "{function}");
    }
}

#[test]
fn a_driver_that_hangs_in_the_middle_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (log, words) = (dir.path().join("m.csv"), dir.path().join("words"));
    let driver = machine(dir.path(), hang("nvmlDeviceGetUtilizationRates", 3));
    let mut command = gpurun(dir.path(), &FAST);
    driver.log_calls(driver.apply(&mut command)).arg("--log").arg(&log).arg("--").args(job_argv(&["wait"]));
    command.stderr(File::create(&words).unwrap());
    let running = Running::start_command(command);
    until("the driver hangs", || driver.calls().iter().any(|call| call.code.is_none()));
    let before = fs::read_to_string(&log).unwrap_or_default().len();
    until("windows go on", || fs::read_to_string(&log).unwrap_or_default().len() > before + 2000);
    assert_eq!(running.end().0, "code 0");
    let words = fs::read_to_string(&words).unwrap();
    assert!(words.contains("the NVIDIA driver does not answer"), "{words}");
    assert!(known(&log, "gpu") > 0, "what was read before is kept");
}

#[test]
fn gpus_that_are_lost_in_the_middle_are_named_and_the_job_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (lost, words) = (dir.path().join("lost"), dir.path().join("words"));
    let fault = Fault {
        function: "nvmlDeviceGet*".to_owned(),
        error: Some("GPU_IS_LOST".to_owned()),
        while_exists: Some(lost.clone()),
        ..Fault::default()
    };
    let mut command = gpurun(dir.path(), &FAST);
    machine(dir.path(), fault).apply(&mut command).arg("-n1").arg("--log").arg(dir.path().join("m.csv"));
    command.arg("--").args(job_argv(&["wait"])).stderr(File::create(&words).unwrap());
    let running = Running::start_command(command);
    fs::write(&lost, "").unwrap();
    until("it is said", || fs::read_to_string(&words).unwrap().contains("the GPU is lost"));
    assert_eq!(running.end().0, "code 0");
}

#[test]
fn before_the_job_a_hanging_driver_is_waited_for_as_long_as_was_asked() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    for function in ["nvmlInit*", "nvmlDeviceGetMemoryInfo*"] {
        let mut command = gpurun(dir.path(), &["-n", "1", "--wait", "1s"]);
        machine(dir.path(), hang(function, 0)).apply(&mut command);
        let output = with_job(command, &[OsStr::new("touch"), ran.as_os_str()]);
        assert_eq!(describe(output.status), "code 124", "{function}: {}", said(&output));
        assert!(said(&output).contains("has not answered"), "{}", said(&output));
        assert!(!ran.exists(), "no job without its GPUs");
    }
    // A job that asks for none gets none of it, also where the numbers would have to be asked for.
    let mut command = gpurun(dir.path(), &[]);
    machine(dir.path(), hang("nvmlInit*", 0)).apply(&mut command).env("CUDA_VISIBLE_DEVICES", "0");
    let output = with_job(command, &["sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 7"]);
    assert_eq!((describe(output.status).as_str(), output.stdout.as_slice()), ("code 7", &b"0\n"[..]));
}

/// A driver library that hangs while it is loaded, with the loader locked.
fn hangs_while_it_is_loaded(dir: &Path) -> PathBuf {
    let text =
        "#include <unistd.h>\n__attribute__((constructor)) static void hang(void) { for (;;) pause(); }\n";
    shared_library(dir, "hangs", text, &[])
}

#[test]
fn while_a_driver_library_hangs_as_it_is_loaded_gpurun_can_be_ended() {
    let dir = tempfile::tempdir().unwrap();
    let library = hangs_while_it_is_loaded(dir.path());
    // In the sidecar, the only child that gpurun has before its job.
    let loaded = |pid: u32| {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let sidecar = children.trim();
        fs::read_to_string(format!("/proc/{sidecar}/maps")).is_ok_and(|maps| maps.contains("hangs.so"))
    };
    for _ in 0..10 {
        let mut command = gpurun(dir.path(), &["-n", "1"]);
        command.env("GPURUN_NVML_LIBRARY", &library).args(["--", "true"]);
        let mut child = command.spawn().unwrap();
        until("it hangs", || loaded(child.id()));
        kill(i32::try_from(child.id()).unwrap(), libc::SIGTERM);
        assert_eq!(describe(finish(&mut child)), "signal 15");
    }
    let lines: [(&[&str], &str); 4] = [
        (&["-n", "1", "--wait", "1s", "--", "true"], "code 124"),
        (&["select", "--wait", "1s"], "code 2"),
        (&["--", "sh", "-c", "exit 7"], "code 7"),
        (&["--", "sh", "-c", "sleep 0.1; exit 7"], "code 7"),
    ];
    for (line, status) in lines.into_iter().cycle().take(12) {
        let mut command = gpurun(dir.path(), line);
        command.env("GPURUN_NVML_LIBRARY", &library);
        assert_eq!(describe(finish(&mut command.spawn().unwrap())), status, "{line:?}");
    }
    // The log is whole but for the GPUs, in every format.
    for name in ["x.csv", "x.parquet"] {
        let log = dir.path().join(name);
        let line = ["--log", log.to_str().unwrap(), "--", "sh", "-c", "exit 7"];
        let mut command = gpurun(dir.path(), &line);
        command.env("GPURUN_NVML_LIBRARY", &library);
        assert_eq!(describe(finish(&mut command.spawn().unwrap())), "code 7", "{name}");
    }
    let log = fs::read_to_string(dir.path().join("x.csv")).unwrap();
    assert!(log.contains(",job,") && log.lines().count() > 10, "{log}");
}

#[test]
fn an_answer_does_not_wait_for_a_driver_that_hangs_when_it_is_shut_down() {
    let dir = tempfile::tempdir().unwrap();
    let driver = machine(dir.path(), hang("nvmlShutdown", 0));
    let lines: [(&[&str], &str); 4] = [
        (&["select"], "code 0"),
        (&["select", "-n", "2"], "code 4"),
        (&["devices"], "code 0"),
        (&["-n", "2", "--", "true"], "code 75"),
    ];
    for (line, status) in lines {
        let mut command = gpurun(dir.path(), line);
        driver.apply(&mut command);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(describe(output.status), status, "{line:?}: {}", said(&output));
    }
}

/// Runs a script of `sh` as root of a new mount namespace, where nothing that it mounts is left behind.
fn in_own_mounts(script: &str, args: &[&Path]) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).args(args);
    command.stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_full_disk_loses_rows_not_the_job_and_a_quiet_run_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, copy) = (dir.path().join("disk"), dir.path().join("copy.csv"));
    fs::create_dir(&disk).unwrap();
    // The disk is full before gpurun comes, but for a page or two; ten windows do not fit.
    let script = "mount -t tmpfs -o size=64k none $1 || exit 99
        head -c 53248 /dev/zero > $1/filler
        $3 -q --interval 20ms --window 40ms --processes all \
            --log $1/m.csv --log $1/m.parquet --log tensorboard:$1/tb \
            -- sh -c 'until '$3' status $PPID --json | grep -Eq \"\\\"window\\\": *[1-9][0-9]\"; do sleep 0.05; done; echo out; exit 5'
        status=$?
        cp $1/m.csv $2
        exit $status";
    let output = in_own_mounts(script, &[&disk, &copy, Path::new(GPURUN)]);
    assert_eq!(describe(output.status), "code 5", "{}", said(&output));
    assert_eq!(output.stdout, b"out\n");
    let words = said(&output);
    assert!(words.lines().all(|line| line.starts_with("gpurun: ")), "{words}");
    assert!(words.contains("m.csv") && words.contains(" lost"), "{words}");
    // What is there is whole.
    let text = fs::read_to_string(&copy).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
}

#[test]
fn a_directory_that_the_job_deletes_comes_back_with_every_row() {
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("logs");
    fs::create_dir(&logs).unwrap();
    let log = logs.join("m.csv");
    let mut command = gpurun(dir.path(), &FAST);
    for target in [&log, &logs.join("m.parquet"), &logs.join("tb/")] {
        command.arg("--log").arg(target);
    }
    let script = "until [ -s \"$0/m.csv\" ]; do sleep 0.02; done; rm -rf \"$0\"; echo out; exit 4";
    let output = with_job(command, &[OsStr::new("sh"), "-c".as_ref(), script.as_ref(), logs.as_os_str()]);
    assert_eq!((describe(output.status).as_str(), output.stdout.as_slice()), ("code 4", &b"out\n"[..]));
    assert!(said(&output).contains("m.csv was deleted"), "{}", said(&output));
    assert!(known(&log, "host") > 0);
    let starts = fs::read_to_string(&log).unwrap().lines().filter(|line| line.starts_with("time,")).count();
    assert_eq!(starts, 1);
    assert!(logs.join("m.parquet").exists() && !logs.join("m.parquet.journal").exists());
    assert_eq!(fs::read_dir(logs.join("tb/gpurun")).unwrap().count(), 1);
}

/// `1m2.345s`.
fn minutes_and_seconds(text: &str) -> f64 {
    let (minutes, seconds) = text.trim_end_matches('s').split_once('m').unwrap();
    minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
}

#[test]
fn short_orphans_are_reaped_and_their_cpu_is_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let summary = dir.path().join("summary.json");
    // Only gpurun can account for an orphan; each tells its own CPU seconds at its end.
    let script = "import os, resource\n\
        r, w = os.pipe()\n\
        def used(who):\n  u = resource.getrusage(who); return u.ru_utime + u.ru_stime\n\
        total = 0\n\
        for n in range(300):\n  \
          if os.fork() == 0:\n    \
            if os.fork() == 0:\n      \
              sum(range(100000)); os.write(w, b'%020.9f' % used(resource.RUSAGE_SELF))\n    \
            os._exit(0)\n  \
          os.wait(); total += float(os.read(r, 20))\n\
        print(total, flush=True)\n";
    let mut command = gpurun(dir.path(), &["-q", "--summary"]);
    command.arg(&summary);
    let output = with_job(command, &["python3", "-c", script]);
    assert_eq!(describe(output.status), "code 0", "{}", said(&output));
    let truth: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&fs::read(&summary).unwrap()).unwrap();
    // Beside the orphans there are their parents and the starts and ends of all: the log may only have more.
    let logged = summary["job"]["cpu_s"].as_f64().unwrap();
    assert!(logged > truth, "{logged} s logged of {truth} s by orphans");
    assert_eq!(summary["leftovers"].as_array().map(Vec::len), Some(0), "{summary}");
}

/// What a job uses between its start and the first look at it is used in that time, not in the time after it.
#[test]
fn a_short_job_of_one_thread_uses_at_most_one_core() {
    let dir = tempfile::tempdir().unwrap();
    let summary = dir.path().join("summary.json");
    for _ in 0..20 {
        let mut command = gpurun(dir.path(), &["-q", "--overwrite", "--summary"]);
        command.arg(&summary);
        let output = with_job(command, &["true"]);
        assert_eq!(describe(output.status), "code 0", "{}", said(&output));
        let summary: serde_json::Value = serde_json::from_slice(&fs::read(&summary).unwrap()).unwrap();
        let (used, time) =
            (summary["job"]["cpu_s"].as_f64().unwrap(), summary["duration_s"].as_f64().unwrap());
        assert!(used > 0.0 && used < time, "{used} s of CPU in {time} s");
    }
}

#[test]
fn ten_thousand_short_children_are_reaped_and_their_cpu_is_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let summary = dir.path().join("summary.json");
    // Told by the shell itself: its own and its children's user and system time.
    let script = "i=0; while [ $i -lt 10000 ]; do ( : ); i=$((i+1)); done; times";
    let mut command = gpurun(dir.path(), &["-q", "--summary"]);
    command.arg(&summary);
    let output = with_job(command, &["sh", "-c", script]);
    assert_eq!(describe(output.status), "code 0", "{}", said(&output));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let truth: f64 = told.split_ascii_whitespace().map(minutes_and_seconds).sum();
    let summary: serde_json::Value = serde_json::from_slice(&fs::read(&summary).unwrap()).unwrap();
    let logged = summary["job"]["cpu_s"].as_f64().unwrap();
    assert!((logged / truth - 1.0).abs() < 0.05, "{logged} s logged of {truth} s");
    assert_eq!(summary["leftovers"].as_array().map(Vec::len), Some(0), "{summary}");
}

#[test]
fn as_the_first_process_of_a_namespace_it_reaps_everything_and_ends_by_number() {
    let dir = tempfile::tempdir().unwrap();
    let scripts = [
        ("exit 3", "code 3"),
        ("kill -9 $$", "code 137"),
        ("kill -TERM $$", "code 143"),
        // Orphans come to process 1, which is gpurun: none may stay a zombie.
        (
            "for i in 1 2 3 4 5 6 7 8; do (true &); done; \
             while grep -ql '^State:.Z' /proc/[0-9]*/status 2> /dev/null; do :; done; exit 4",
            "code 4",
        ),
    ];
    for (script, status) in scripts {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--pid", "--fork", "--mount-proc", GPURUN, "-q", "--log"]);
        command.arg(dir.path().join("{time}-m.csv")).args(["--overwrite", "--", "sh", "-c", script]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(describe(output.status), status, "{script}: {}", said(&output));
        assert_eq!(said(&output), "", "{script}");
    }
}

#[test]
fn ctrl_c_starts_the_clock_of_kill_after() {
    let dir = tempfile::tempdir().unwrap();
    let file: PathBuf = dir.path().join("pid");
    let mut bash = Terminal::bash();
    let (job, file_name) = (job().display(), file.display());
    bash.type_in(&format!("{GPURUN} --kill-after 300ms -- {job} ignore-term {file_name}\n"));
    until("the job runs", || file.exists());
    let pid = fs::read_to_string(&file).unwrap().trim().trim_start_matches("ready ").parse().unwrap();
    bash.expect("ready ");
    bash.type_in("\x03");
    bash.expect("--kill-after");
    bash.expect("PROMPT> ");
    assert_eq!(bash.status(), "137");
    assert!(!alive(pid));
}

#[test]
fn a_limit_on_file_sizes_is_a_full_disk_to_gpurun_and_no_death() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("m.csv");
    // 4 blocks of 512 or 1024 bytes: less than the first window needs.
    let script =
        "ulimit -f 4; exec \"$0\" --interval 20ms --window 40ms --log \"$1\" -- sh -c 'echo out; exit 6'";
    let mut child = Command::new("sh");
    child.args(["-c", script, GPURUN]).arg(&log).stdin(Stdio::null());
    let output = child.output().unwrap();
    assert_eq!((describe(output.status).as_str(), output.stdout.as_slice()), ("code 6", &b"out\n"[..]));
    assert!(said(&output).contains(" lost"), "{}", said(&output));
}

#[test]
fn nothing_of_a_refused_run_is_left_and_links_lead_to_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let run = |options: &[&str], targets: &[&str]| {
        let mut command = gpurun(dir.path(), options);
        command.current_dir(dir.path());
        targets.iter().for_each(|target| {
            command.args(["--log", target]);
        });
        finish(&mut command.args(["--", "true"]).stderr(Stdio::null()).spawn().unwrap()).code()
    };
    assert_eq!(run(&[], &["a.csv", "./a.csv"]), Some(2));
    fs::write(at("file"), "").unwrap();
    assert_eq!(run(&[], &["a.csv", "file/b.csv"]), Some(125));
    assert!(!at("a.csv").exists());
    for name in ["real.csv", "real.parquet"] {
        let link = format!("link-{name}");
        std::os::unix::fs::symlink(name, at(&link)).unwrap();
        assert_eq!(run(&[], &[&link]), Some(0), "a link to a file still to be made");
        assert_eq!(run(&[], &[&link]), Some(0), "which then exists");
        assert!(at(&format!("link-{}", name.replace('.', "-2."))).is_file(), "and is named after the link");
        assert_eq!(run(&["--overwrite"], &[&link]), Some(0));
        assert!(fs::symlink_metadata(at(&link)).unwrap().is_symlink() && at(name).is_file(), "{name}");
    }
}

#[test]
fn the_time_in_which_a_stop_key_held_the_job_belongs_to_no_window() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("m.csv");
    let mut command = gpurun(dir.path(), &["-q"]);
    command.args(FAST).arg("--log").arg(&log).arg("--").args(job_argv(&["wait"]));
    let begun = Instant::now();
    let running = Running::start_command(command);
    until("a first window", || fs::metadata(&log).is_ok_and(|found| found.len() > 2000));
    kill(running.outer(), libc::SIGTSTP);
    until("gpurun stops beside its job", || state(running.outer()) == Some('T'));
    let stopped = Instant::now();
    // What is measured is time that passes, here five windows of it.
    std::thread::sleep(Duration::from_secs(1));
    let held = stopped.elapsed();
    kill(running.outer(), libc::SIGCONT);
    until("gpurun runs again", || state(running.outer()) != Some('T'));
    assert_eq!(running.end().0, "code 0");
    let wall = begun.elapsed();
    let text = fs::read_to_string(&log).unwrap();
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let place = |name: &str| headers.iter().position(|h| h == name).unwrap();
    let (metric, scope, seconds) = (place("metric"), place("scope"), place("window_s"));
    let windows =
        reader.records().map(Result::unwrap).filter(|r| &r[metric] == "processes" && &r[scope] == "job");
    let logged: f64 = windows.map(|row| row[seconds].parse::<f64>().unwrap()).sum();
    assert!(logged > 0.0 && logged <= (wall - held).as_secs_f64(), "{logged} s of {wall:?} less {held:?}");
}

/// Puts `CLOCK_REALTIME` of the program it is loaded into an hour on or back while a file is there.
const WALL_CLOCK: &str = r#"
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *t) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, t);
    if (clock == CLOCK_REALTIME && !access(getenv("AHEAD"), F_OK)) t->tv_sec += 3600;
    if (clock == CLOCK_REALTIME && !access(getenv("BEHIND"), F_OK)) t->tv_sec -= 3600;
    return result;
}
"#;

#[test]
fn a_wall_clock_that_is_set_moves_labels_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let clock = shared_library(dir.path(), "clock", WALL_CLOCK, &[]);
    // The job sets the clock after windows that it has seen in the log.
    let script = "seen() { until [ $(grep -c ,load_average_1m, x.csv) -ge $1 ]; do sleep 0.01; done; }
        seen 2; touch ahead; seen 5; rm ahead; touch behind; seen 8; rm behind; seen 10; exit 9";
    let mut command =
        gpurun(dir.path(), &["-q", "--interval", "50ms", "--window", "200ms", "--log", "x.csv"]);
    command.env("LD_PRELOAD", clock).env("AHEAD", path("ahead")).env("BEHIND", path("behind"));
    command.current_dir(dir.path());
    let output = with_job(command, &["env", "-u", "LD_PRELOAD", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(9), "{}", said(&output));
    let text = fs::read_to_string(path("x.csv")).unwrap();
    let rows: Vec<Vec<&str>> =
        text.lines().filter(|l| l.contains(",load_average_1m,")).map(|l| l.split(',').collect()).collect();
    let (last, whole) = rows.split_last().unwrap();
    assert!(whole.iter().all(|row| row[2] == "0.2"), "every window has its length: {text}");
    assert!(last[2].parse::<f64>().unwrap() <= 0.2);
    assert!(rows.windows(2).any(|pair| pair[0][0] > pair[1][0]), "labels follow the wall clock");
}
