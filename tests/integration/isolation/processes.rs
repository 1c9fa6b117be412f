//! gpurun's own processes beside the job: what they are, what they hold, and what of the job's they see and name.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use fake_nvml::{Cuda, Gpu, Scenario};

use super::lines;
use crate::faults::{FAST, gpurun, said, with_job};
use crate::support::{kill_sidecar, python, shared_library, sidecar_of};
use crate::transparency::harness::{
    Running, alive, describe, finish, job_argv, kill, marked, pid_of, state, until,
};

fn one_gpu(dir: &Path) -> fake_nvml::Installed {
    let gpu = vec![Gpu::with_memory(81_920.0, 512.0, 0.0)];
    fake_nvml::install(dir, &Scenario { gpu, ..Scenario::default() }).unwrap()
}

/// A file of a process's directory in `/proc`.
fn proc_file(pid: i32, name: &str) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default()).into_owned()
}

#[test]
fn the_minder_has_one_thread_and_no_driver_and_both_have_the_typed_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let driver = one_gpu(dir.path());
    let log = dir.path().join("m.csv");
    for choice in [&["--overwrite"][..], &["--overwrite", "-n", "1"]] {
        let mut command = gpurun(dir.path(), &[&FAST[..], choice].concat());
        driver.apply(&mut command).arg("--log").arg(&log).arg("--").args(job_argv(&["wait"]));
        let mut running = Running::start_unready(command);
        let minder = running.outer();
        let look = || {
            let threads = fs::read_dir(format!("/proc/{minder}/task")).unwrap().count();
            let maps = proc_file(minder, "maps");
            assert!(
                threads == 1 && !maps.contains("nvidia") && !maps.contains("libcuda"),
                "{threads}\n{maps}"
            );
        };
        let windows = || fs::read_to_string(&log).unwrap_or_default().matches(",load_average_1m,").count();
        until("three windows", || {
            look();
            windows() >= 3
        });
        running.ready();
        let sidecar = sidecar_of(running.child.id());
        assert!(proc_file(sidecar, "maps").contains("libnvidia-ml"), "the sidecar has the driver");
        assert_eq!(proc_file(minder, "cmdline"), proc_file(sidecar, "cmdline"));
        assert!(proc_file(minder, "cmdline").ends_with("\0wait\0"));
        let names = [minder, sidecar].map(|pid| proc_file(pid, "comm").trim_end().to_owned());
        assert_eq!(names, ["gpurun", "gpurun-sidecar"]);
        kill(minder, libc::SIGTSTP);
        until("both are stopped", || [minder, running.job].iter().all(|pid| state(*pid) == Some('T')));
        look();
        kill(minder, libc::SIGCONT);
        let before = windows();
        until("windows go on", || {
            look();
            windows() > before + 1
        });
        assert_eq!(running.end().0, "code 0");
    }
}

/// What an open file of a process is: a path, or `pipe:[INODE]`.
fn open_files(pid: i32) -> Vec<(i32, String)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let number = |entry: &fs::DirEntry| entry.file_name().to_str().unwrap().parse::<i32>().unwrap();
    let link = |entry: &fs::DirEntry| fs::read_link(entry.path()).ok();
    entries.filter_map(|entry| Some((number(&entry), link(&entry)?.to_string_lossy().into_owned()))).collect()
}

#[test]
fn the_sidecar_keeps_none_of_the_files_that_gpurun_was_started_with() {
    let dir = tempfile::tempdir().unwrap();
    let driver = one_gpu(dir.path());
    let (mut reader, writer) = std::io::pipe().unwrap();
    for choice in [&[][..], &["-n", "1"]] {
        let mut command = gpurun(dir.path(), choice);
        driver.apply(&mut command).arg("--").args(job_argv(&["wait"]));
        let inherited = writer.as_raw_fd();
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(move || match libc::dup2(inherited, 5) {
                5 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let running = Running::start_command(command);
        let of_job = open_files(running.job);
        let pipe = of_job.iter().find(|(number, _)| *number == 5).expect("the job has the pipe");
        let mut inherited: Vec<&String> = vec![&pipe.1];
        inherited.extend(of_job.iter().filter(|(number, _)| *number < 2).map(|(_, what)| what));
        let sidecar = open_files(sidecar_of(running.child.id()));
        for (number, what) in &sidecar {
            assert!(*number == 2 || !inherited.contains(&what), "{number}: {what}");
        }
        for number in [0, 1] {
            assert!(sidecar.contains(&(number, "/dev/null".to_owned())), "{sidecar:?}");
        }
        assert_eq!(running.end().0, "code 0");
    }
    drop(writer);
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "nobody has the pipe any more");
}

/// Runs `gpurun` with this job and tells the lines about processes left behind.
fn left_behind(dir: &Path, job: &[OsString]) -> Vec<String> {
    let output = with_job(gpurun(dir, &[]), job);
    assert_eq!(describe(output.status), "code 0", "{}", said(&output));
    lines(&output).into_iter().filter(|line| line.contains("the job left process")).collect()
}

/// Python's resource tracker ends after the process whose shared memory it watches.
const SHARED_MEMORY: &str = r#"
from multiprocessing import get_context, resource_tracker, shared_memory
def work(name):
    shared_memory.SharedMemory(name).close()
if __name__ == "__main__":
    memory = shared_memory.SharedMemory(create=True, size=4096)
    worker = get_context("spawn").Process(target=work, args=(memory.name,))
    worker.start()
    worker.join()
    memory.close()
    memory.unlink()
    # It is in its loop once it ignores SIGINT, bit 1 of the mask.
    status = f"/proc/{resource_tracker._resource_tracker._pid}/status"
    ignores = lambda: any(int(l.split()[1], 16) & 2 for l in open(status) if l.startswith("SigIgn"))
    while not ignores():
        pass
"#;

#[test]
fn what_ends_right_after_the_job_is_not_left_behind_and_what_stays_is_named_once() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("shared.py");
    fs::write(&script, SHARED_MEMORY).unwrap();
    for _ in 0..5 {
        assert_eq!(left_behind(dir.path(), &[python().into(), script.clone().into()]), [""; 0]);
    }
    let file = dir.path().join("pid");
    let stays = "sleep 60 > /dev/null 2>&1 & echo $! > \"$0\"";
    let argv = ["sh", "-c", stays].map(OsString::from).into_iter().chain([file.clone().into()]);
    let named = left_behind(dir.path(), &argv.collect::<Vec<_>>());
    let pid: i32 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    kill(pid, libc::SIGKILL);
    let expected = format!("the job left process {pid} (sleep 60) running");
    assert!(named.len() == 1 && named[0].contains(&expected), "{named:?}");
}

#[test]
fn a_hold_ends_with_the_job_whatever_it_leaves_behind() {
    let dir = tempfile::tempdir().unwrap();
    let driver = one_gpu(dir.path());
    let file = dir.path().join("pid");
    let run = |script: &str| {
        let mut command = gpurun(dir.path(), &["-n", "1"]);
        driver.apply(&mut command);
        with_job(command, &["sh", "-c", script, file.to_str().unwrap()])
    };
    let first = run("sleep 60 > /dev/null 2>&1 & echo $! > \"$0\"");
    let second = run("exit 0");
    let pid: i32 = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    let lives = alive(pid);
    kill(pid, libc::SIGKILL);
    assert!(lives, "it was ended");
    for output in [first, second] {
        assert_eq!(describe(output.status), "code 0", "{}", said(&output));
    }
}

#[test]
fn where_gpurun_was_killed_a_living_process_is_named_as_the_holder() {
    let dir = tempfile::tempdir().unwrap();
    let driver = one_gpu(dir.path());
    let own = |words: &[&str]| {
        let mut command = gpurun(dir.path(), words);
        driver.apply(&mut command).output().unwrap()
    };
    let holder = || -> serde_json::Value {
        let output = own(&["devices", "--json"]);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        json["devices"][0]["held_by"][0].clone()
    };
    let mut command = gpurun(dir.path(), &["-n", "1"]);
    driver.apply(&mut command);
    command.args(["--", "sh", "-c", "sleep 60 > /dev/null 2>&1 & echo $! $$; read line"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pids: Vec<i32> = line.split_ascii_whitespace().map(|word| word.parse().unwrap()).collect();
    let [heir, job] = pids[..] else { panic!("{line}") };
    until("the job is noted", || holder()["job"] == job);
    assert_eq!((&holder()["process"], &holder()["pid"]), (&job.into(), &child.id().into()));
    kill_sidecar(child.id());
    kill(pid_of(&child), libc::SIGKILL);
    finish(&mut child);
    assert_eq!((&holder()["process"], &holder()["pid"]), (&job.into(), &serde_json::Value::Null));
    drop(child.stdin.take());
    until("the job ends", || !alive(job));
    let (found, refused, listed) = (holder(), own(&["-n", "1", "--", "true"]), own(&["devices"]));
    kill(heir, libc::SIGKILL);
    assert_eq!((&found["process"], &found["job"]), (&heir.into(), &serde_json::Value::Null));
    assert_eq!(describe(refused.status), "code 75");
    assert!(said(&refused).contains(&format!("held by pid {heir} of ")), "{}", said(&refused));
    assert!(String::from_utf8_lossy(&listed.stdout).contains(&format!(" {heir} ")));
    until("its end frees the GPU", || own(&["-n", "1", "--", "true"]).status.success());
    assert_eq!(holder(), serde_json::Value::Null);
}

/// Tells the process that asks CUDA, in a file `asked`, and answers once there is a file `go`.
const SLOW_CUDA: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int cuInit(unsigned flags) {
    FILE *file = fopen("fresh", "w");
    fprintf(file, "%d %d\n", getpid(), getppid());
    fclose(file);
    rename("fresh", "asked");
    while (access("go", F_OK) != 0) usleep(1000);
    return ((int (*)(unsigned))dlsym(RTLD_NEXT, "cuInit"))(flags);
}
"#;

#[test]
fn the_child_that_asks_cuda_is_the_sidecars() {
    let dir = tempfile::tempdir().unwrap();
    let named = |name: &str| Gpu { name: Some(name.to_owned()), ..Gpu::with_memory(81_920.0, 512.0, 0.0) };
    let cuda = Cuda { fastest_first: Some(vec![1, 0]), ..Cuda::default() };
    let scenario =
        Scenario { gpu: vec![named("small"), named("large")], cuda: Some(cuda), ..Scenario::default() };
    let driver = fake_nvml::install(dir.path(), &scenario).unwrap();
    let cuda = shared_library(dir.path(), "cuda", SLOW_CUDA, &[&driver.library]);
    fs::rename(cuda, dir.path().join("libcuda.so.1")).unwrap();
    let options = ["--log", "m.csv", "--summary", "s.json", "--processes", "all"];
    let mut command = gpurun(dir.path(), &[&FAST[..], &options].concat());
    driver.apply(&mut command).current_dir(dir.path()).env("CUDA_VISIBLE_DEVICES", "0");
    // Rows come before the devices are known, as the driver takes longer than it is waited for.
    let script = "until grep -q ,,process, m.csv && [ -e asked ]; do sleep 0.1; done; touch go
        until grep -q ,,gpu, m.csv; do sleep 0.1; done; exit 4";
    let output = with_job(command, &["sh", "-c", script]);
    assert_eq!(describe(output.status), "code 4", "{}", said(&output));
    assert!(!said(&output).contains("cannot be asked"), "{}", said(&output));
    let asked = fs::read_to_string(dir.path().join("asked")).unwrap();
    let child = asked.split(' ').next().unwrap();
    let log = fs::read_to_string(dir.path().join("m.csv")).unwrap();
    let mut reader = csv::Reader::from_reader(log.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let place = |name: &str| headers.iter().position(|column| column == name).unwrap();
    let (pid, gpu, scope) = (place("pid"), place("gpu"), place("scope"));
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert!(rows.iter().all(|row| &row[pid] != child), "the child is none of the job's");
    let gpus: Vec<&str> = rows.iter().filter(|row| &row[scope] == "gpu").map(|row| &row[gpu]).collect();
    assert!(
        !gpus.is_empty() && gpus.iter().all(|gpu| *gpu == "1"),
        "CUDA's first one is NVML's second: {gpus:?}"
    );
}

/// Sends marks as fast as the socket takes them.
fn flood(socket: &Path, stop: &AtomicBool) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut step = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let mut lines = String::new();
        for _ in 0..100 {
            step += 1;
            lines.push_str(&format!("{{\"op\":\"log\",\"values\":{{\"x\":{step}}}}}\n"));
        }
        if stream.write_all(lines.as_bytes()).is_err() {
            return;
        }
    }
}

#[test]
fn sampling_goes_on_after_a_stop_in_a_flood_of_marks() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("m.csv");
    let mut command = gpurun(dir.path(), &[&["-q"], &FAST[..]].concat());
    command.arg("--log").arg(&log).arg("--").args(job_argv(&["wait"])).stderr(Stdio::null());
    let running = Running::start_command(command);
    let environment = proc_file(running.job, "environ");
    let socket = environment.split('\0').find_map(|entry| entry.strip_prefix("GPURUN_SOCKET=")).unwrap();
    let stop = AtomicBool::new(false);
    let windows = || fs::read_to_string(&log).unwrap_or_default().matches(",load_average_1m,").count();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| flood(Path::new(socket), &stop));
        }
        let go = || {
            for _ in 0..5 {
                kill(running.outer(), libc::SIGTSTP);
                until("the job is stopped", || state(running.job) == Some('T'));
                kill(running.outer(), libc::SIGCONT);
                until("the job runs again", || state(running.job) == Some('S'));
                let before = windows();
                until("windows go on", || windows() > before);
            }
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(go));
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
    assert_eq!(running.end().0, "code 0");
}

/// A run in an address space of this many KiB: whether the job ran, and what came of it.
fn in_address_space(dir: &Path, kib: u64) -> (bool, std::process::Output) {
    let (ran, mark) = (dir.join("ran"), format!("space-{}-{kib}", std::process::id()));
    let _ = fs::remove_file(&ran);
    let script = format!("ulimit -v {kib}; exec \"$@\"");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(crate::support::gpurun());
    command.args([
        "--overwrite",
        "--interval",
        "50ms",
        "--window",
        "100ms",
        "--log",
        "m.csv",
        "--log",
        "m.parquet",
    ]);
    command
        .args(["--", "sh", "-c", "echo > ran; sleep 0.2; exit 4"])
        .current_dir(dir)
        .env("TEST_MARK", &mark);
    let output = command.env_remove("RUST_BACKTRACE").stdin(Stdio::null()).output().unwrap();
    until("nobody is left", || marked(&mark).is_empty());
    (ran.exists(), output)
}

#[test]
fn in_an_address_space_too_small_for_the_sidecar_the_job_has_its_status() {
    let dir = tempfile::tempdir().unwrap();
    // Below this nothing starts, from here on the job does.
    let (mut too_small, mut enough) = (1024_u64, 1024 * 1024);
    assert!(in_address_space(dir.path(), enough).0);
    while enough - too_small > 64 {
        let between = too_small.midpoint(enough);
        if in_address_space(dir.path(), between).0 { enough = between } else { too_small = between }
    }
    let mut lost = 0;
    for kib in (enough..enough + 16 * 1024).step_by(512) {
        let (ran, output) = in_address_space(dir.path(), kib);
        assert!(ran, "{kib}: {}", said(&output));
        assert_eq!(describe(output.status), "code 4", "{kib}: {}", said(&output));
        let is_loss =
            |line: &&String| line.contains("nothing is logged") || line.contains("the log ends here");
        let losses = lines(&output).iter().filter(is_loss).count();
        assert!(losses <= 1, "{kib}: {}", said(&output));
        let summary = lines(&output).iter().any(|line| line.starts_with("gpurun: exited with status 4"));
        assert!(losses == 1 || summary, "{kib}: {}", said(&output));
        lost += losses;
    }
    assert!(lost > 0, "there is a limit at which the sidecar cannot work and the job can");
}
