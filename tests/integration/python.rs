//! Tests: the Python package, alone and with the real gpurun around it; the commands for scripts; status.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod frameworks;
mod marks;
mod rows;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fake_nvml::{Gpu, Installed, Level, Scenario, Signal};
use serde_json::Value;

use crate::main_job::Csv;
use crate::support;

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Any Python will do: the package needs the standard library only.
fn python() -> OsString {
    std::env::var_os("GPURUN_TEST_PYTHON").unwrap_or_else(|| "python3".into())
}

/// gpurun in `dir`, with `args` and then `-- command`; the module is importable, `gpurun` is on the path.
fn gpurun(dir: &Path, driver: Option<&Installed>, args: &[&str], job: &[&str]) -> Command {
    let mut command = Command::new(support::gpurun());
    command.args(args).arg("--").args(job).current_dir(dir);
    environment(&mut command, dir);
    match driver {
        Some(driver) => drop(driver.apply(&mut command)),
        None => drop(command.env("GPURUN_NVML_LIBRARY", dir.join("no-such-library.so"))),
    }
    command
}

fn environment(command: &mut Command, dir: &Path) {
    let mut path = OsString::from(support::gpurun().parent().unwrap());
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    command
        .env("PATH", path)
        .env("PYTHON", python())
        .env("PYTHONPATH", repository().join("python"))
        .env("GPURUN_LEASE_DIR", dir.join("leases"))
        .env_remove("CUDA_VISIBLE_DEVICES");
    let ranks = ["RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK"];
    for variable in ranks.into_iter().chain(["GPURUN_SOCKET"]) {
        command.env_remove(variable);
    }
}

fn script(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.into_os_string().into_string().unwrap()
}

#[track_caller]
fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn json(path: PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_package_passes_its_own_tests() {
    let mut command = Command::new(python());
    command.args(["-W", "error::ResourceWarning", "-m", "unittest", "discover", "-s", "tests", "-t", "."]);
    command.current_dir(repository().join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env_remove("GPURUN_SOCKET");
    let output = succeed(&mut command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let ran: u32 = said
        .lines()
        .find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{said}"));
    assert!(ran >= 54, "{said}");
}

/// 200 steps of 20 ms in groups of 25; the job itself moves the driver's scripted time every 50 steps, and goes
/// on once gpurun has seen the new value, inside the first step of the 50.
const TRACE: &str = r#"
import json, sys, time
import gpurun

def utilization():
    gpus = gpurun.snapshot(timeout=60, parts=["gpus"], metrics=["gpu_utilization (%)"])["gpus"]
    return gpus[0]["metrics"].get("gpu_utilization (%)", {}).get("last")

stamps = []
with gpurun.tag("train"):
    for n in range(1, 201):
        entered = time.monotonic_ns()
        with gpurun.step(n):
            if n % 50 == 1:
                with open("clock.new", "w") as clock:
                    clock.write(str(n // 50 + 1))
                import os
                os.replace("clock.new", "clock")
                while utilization() != (0.0 if n // 50 % 2 else 100.0):
                    time.sleep(0.01)
            began = time.monotonic_ns()
            time.sleep(0.02)
        stamps.append([began, time.monotonic_ns(), entered])
        gpurun.log({"loss": 1.0 / n}, step=n)
    keys = gpurun.collect(timeout=60)
with open("truth.json", "w") as truth:
    json.dump({"stamps": stamps, "dropped": gpurun.dropped(), "keys": keys}, truth)
"#;

#[test]
fn steps_have_the_clients_own_spans_and_the_drivers_truth() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let level = |t: u32, value: f64| (f64::from(t), Level::Value(value));
    let levels = vec![level(0, 50.0), level(1, 100.0), level(2, 0.0), level(3, 100.0), level(4, 0.0)];
    let scenario = Scenario {
        clock_file: Some(dir.join("clock")),
        gpu: vec![Gpu {
            name: Some("Test GPU".to_owned()),
            memory_total: Some(1024.0.into()),
            gpu_utilization: Some(Signal::Steps(levels)),
            memory_utilization: Some(Signal::Constant(Level::Value(0.0))),
            ..Gpu::default()
        }],
        ..Scenario::default()
    };
    let driver = fake_nvml::install(dir, &scenario).unwrap();
    let job = script(dir, "job.py", TRACE);
    let options = ["-n", "1", "--interval", "50ms", "--every-n-steps", "25", "--log", "x.csv"];
    succeed(&mut gpurun(dir, Some(&driver), &options, &[python().to_str().unwrap(), &job]));

    let truth = json(dir.join("truth.json"));
    assert_eq!(truth["dropped"], 0);
    let stamp = |step: usize, end: usize| truth["stamps"][step - 1][end].as_u64().unwrap();
    let csv = Csv::read(&dir.join("x.csv"));
    for group in 1..=8 {
        let step = group * 25;
        let number = step.to_string();
        let of = |metric: &'static str, want: &str| {
            let conditions = [("kind", "step"), ("step", number.as_str()), ("metric", metric)];
            csv.numbers(&conditions, want)[0]
        };
        // From the begin of the group's first step to the end of its last.
        let truth = (stamp(step, 1) - stamp(step - 24, 2)) as f64 / 1e9;
        let span = of("gpu_utilization", "window_s");
        // A busy machine may stop the client between its stamp and its mark.
        assert!((span - truth).abs() < 2e-2, "steps up to {step}: {span} s, by the client {truth} s");
        let mean = of("gpu_utilization", "mean");
        let expected = if (step - 1) / 50 % 2 == 0 { 100.0 } else { 0.0 };
        if group % 2 == 1 {
            assert!((0.0..=100.0).contains(&mean), "the switch is in here: {mean}");
        } else {
            assert_eq!(mean, expected, "steps up to {step}");
        }
        assert_eq!(of("intra_step", "samples"), 25.0);
        let shortest = (step - 24..=step).map(|n| stamp(n, 1) - stamp(n, 0)).min().unwrap() as f64 / 1e6;
        assert!(of("intra_step", "min") >= shortest - 1.0 && of("intra_step", "min") >= 20.0);
        assert_eq!(of("inter_step", "samples"), if group == 1 { 24.0 } else { 25.0 });
    }
    assert_eq!(
        csv.select(&[("kind", "tag"), ("tag", "run/train"), ("metric", "gpu_utilization")], "mean").len(),
        1
    );
    assert!(!csv.select(&[("scope", "user"), ("metric", "loss")], "mean").is_empty());
    let keys = truth["keys"].as_object().unwrap();
    for key in [
        "cuda:0 (gpu:0)/gpu_utilization (%)/mean",
        "host/memory_percent (%)/max",
        "duration (s)",
        "timestamp",
    ] {
        assert!(keys.contains_key(&format!("run/train/{key}")), "{key} is not in {keys:?}");
    }
}

#[test]
fn four_ranks_in_sessions_of_their_own_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let rank = script(
        dir,
        "rank.py",
        r#"
import os, gpurun
rank = int(os.environ["RANK"])
assert gpurun.is_active()
with gpurun.tag("train"):
    with gpurun.tag(f"of-{rank}"):
        for n in range(10 * (rank + 1)):
            gpurun.step(n + 1)
        gpurun.log({"loss": float(rank)})
"#,
    );
    let launcher = script(
        dir,
        "launcher.py",
        &format!(
            r#"
import os, subprocess, sys
ranks = [
    subprocess.Popen([sys.executable, {rank:?}], env=dict(os.environ, RANK=str(r), LOCAL_RANK=str(r)), start_new_session=True)
    for r in range(4)
]
sys.exit(max(rank.wait() for rank in ranks))
"#
        ),
    );
    let options = ["--every-n-steps", "10", "--log", "x.csv"];
    succeed(&mut gpurun(dir, None, &options, &[python().to_str().unwrap(), &launcher]));
    let csv = Csv::read(&dir.join("x.csv"));
    for rank in 0..4_u32 {
        let number = rank.to_string();
        let of_rank = |kind: &'static str| csv.select(&[("kind", kind), ("rank", &number)], "tag");
        let tags: BTreeSet<String> = of_rank("tag").into_iter().collect();
        let own = format!("run/train/of-{rank}");
        assert_eq!(tags, BTreeSet::from([own.clone(), "run/train".to_owned()]), "rank {rank}");
        let steps: BTreeSet<String> =
            csv.select(&[("kind", "step"), ("rank", &number), ("tag", &own)], "step").into_iter().collect();
        let expected: BTreeSet<String> = (1..=rank + 1).map(|n| (10 * n).to_string()).collect();
        assert_eq!(steps, expected, "rank {rank}");
    }
}

#[test]
fn a_killed_gpurun_costs_the_training_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let job = script(
        dir,
        "job.py",
        r#"
import os, signal, sys, time, gpurun
assert gpurun.is_active()
with gpurun.tag("train"):
    for n in range(2000):
        if n == 500:
            minder = int(os.environ["GPURUN_PID"])
            for pid in open(f"/proc/{minder}/task/{minder}/children").read().split():
                if open(f"/proc/{pid}/comm").read().strip() == "gpurun-sidecar":
                    os.kill(int(pid), signal.SIGKILL)
            os.kill(minder, signal.SIGKILL)
        with gpurun.step(n), gpurun.tag("batch"):
            gpurun.log({"n": n})
    # The kernel closes the socket a moment after the kill; then asking shows that nobody is there.
    end = time.monotonic() + 60
    while gpurun.is_active() and time.monotonic() < end:
        assert gpurun.snapshot(timeout=1) == {}
assert not gpurun.is_active()
assert gpurun.snapshot() == {} and gpurun.collect() == {}
sys.exit(23)
"#,
    );
    let shell =
        format!("GPURUN_PID=$PPID \"$PYTHON\" {job} 2> errors; echo $? > status.new; mv status.new status");
    let output = gpurun(dir, None, &["--log", "x.csv"], &["sh", "-c", &shell]).output().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(9));
    support::until_holds("the job ends", || dir.join("status").exists());
    assert_eq!(std::fs::read_to_string(dir.join("errors")).unwrap(), "");
    assert_eq!(std::fs::read_to_string(dir.join("status")).unwrap(), "23\n");
}

#[test]
fn status_shows_the_current_window_of_a_running_gpurun() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let scenario = fake_nvml::scenario_file("four-gpus-two-full").unwrap();
    let driver = fake_nvml::install_file(dir, &scenario).unwrap();
    // The job asks its own gpurun, until that has a first sample of the GPU.
    let job = script(
        dir,
        "job.py",
        r#"
import json, os, subprocess
while True:
    reply = subprocess.run(["gpurun", "status", str(os.getppid()), "--json"], stdout=subprocess.PIPE, check=True).stdout
    gpus = json.loads(reply)[0]["gpus"]
    if len(gpus) == 2 and all("memory_used (MiB)" in gpu["metrics"] for gpu in gpus):
        break
open("status.json", "wb").write(reply)
open("status.txt", "wb").write(subprocess.run(["gpurun", "status", str(os.getppid())], stdout=subprocess.PIPE, check=True).stdout)
"#,
    );
    let options = ["-n", "2", "-f", "8GiB", "--interval", "50ms", "--log", "x.csv"];
    succeed(&mut gpurun(dir, Some(&driver), &options, &[python().to_str().unwrap(), &job]));
    let reply = json(dir.join("status.json"));
    let gpus = reply[0]["gpus"].as_array().unwrap();
    let places: BTreeSet<(u64, u64)> =
        gpus.iter().map(|gpu| (gpu["cuda"].as_u64().unwrap(), gpu["gpu"].as_u64().unwrap())).collect();
    assert_eq!(places, BTreeSet::from([(0, 3), (1, 0)]));
    let first = gpus.iter().find(|gpu| gpu["gpu"] == 0).unwrap();
    assert_eq!(first["metrics"]["memory_used (MiB)"]["last"], 512.0);
    let text = std::fs::read_to_string(dir.join("status.txt")).unwrap();
    assert!(text.contains("job.py") && text.contains("cuda:1 (gpu:0)"), "{text}");

    let own = std::process::id().to_string();
    let output = Command::new(support::gpurun()).args(["status", &own]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
}

/// `pip install .` from the checkout into a fresh environment, in the debug profile to spare a full build.
#[test]
#[ignore = "fetches maturin, and links gpurun anew under the other tests: run it alone, with --run-ignored all"]
fn pip_install_brings_the_binary_and_the_module() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let venv = dir.join("venv");
    succeed(Command::new(python()).args(["-m", "venv"]).arg(&venv));
    let mut pip = Command::new(venv.join("bin/pip"));
    pip.args(["install", "--disable-pip-version-check", "--quiet"]).arg(repository());
    pip.env("MATURIN_PEP517_ARGS", "--profile dev");
    succeed(&mut pip);
    let installed = |program: &str| {
        let mut command = Command::new(venv.join("bin").join(program));
        environment(&mut command, dir);
        command.env_remove("PYTHONPATH").current_dir(dir);
        command.env("GPURUN_NVML_LIBRARY", dir.join("no-such-library.so"));
        command
    };
    let version = succeed(installed("gpurun").arg("--version"));
    assert_eq!(String::from_utf8_lossy(&version.stdout), format!("gpurun {}\n", env!("CARGO_PKG_VERSION")));
    let inside = "import gpurun, gpurun.lightning, os; \
        assert os.path.exists(os.path.join(os.path.dirname(gpurun.__file__), 'py.typed')); \
        print(gpurun.__version__, gpurun.is_active())";
    let mut command = installed("gpurun");
    command.arg("--").arg(venv.join("bin/python")).args(["-c", inside]);
    let said = succeed(&mut command);
    assert_eq!(String::from_utf8_lossy(&said.stdout), format!("{} True\n", env!("CARGO_PKG_VERSION")));
    let listed = succeed(Command::new(venv.join("bin/pip")).args(["show", "gpurun-sidecar"]));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("Name: gpurun-sidecar"));
}
