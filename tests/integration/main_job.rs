//! The main job, end to end: choose GPUs, run the job, log it to CSV, pass its status on.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use fake_nvml::Installed;

use crate::support;
use crate::support::text;

/// One row of the long CSV by column name.
pub(crate) struct Csv {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Csv {
    pub(crate) fn read(path: &Path) -> Self {
        let mut reader = csv::Reader::from_path(path).unwrap();
        let header = reader.headers().unwrap().iter().map(str::to_owned).collect();
        let rows = reader.records().map(|r| r.unwrap().iter().map(str::to_owned).collect()).collect();
        Self { header, rows }
    }

    fn column(&self, name: &str) -> usize {
        self.header.iter().position(|h| h == name).unwrap_or_else(|| panic!("no column {name}"))
    }

    /// Values of `want` in the rows where every `(column, value)` holds.
    pub(crate) fn select(&self, conditions: &[(&str, &str)], want: &str) -> Vec<String> {
        let want = self.column(want);
        let conditions: Vec<_> = conditions.iter().map(|(c, v)| (self.column(c), *v)).collect();
        let fits = |row: &&Vec<String>| conditions.iter().all(|(c, v)| row[*c] == *v);
        self.rows.iter().filter(fits).map(|row| row[want].clone()).collect()
    }

    pub(crate) fn numbers(&self, conditions: &[(&str, &str)], want: &str) -> Vec<f64> {
        self.select(conditions, want).iter().map(|v| v.parse().unwrap()).collect()
    }
}

fn simulated(dir: &Path, scenario: &str) -> Installed {
    fake_nvml::install_file(dir, &fake_nvml::scenario_file(scenario).unwrap()).unwrap()
}

fn gpurun(dir: &Path, driver: Option<&Installed>, args: &[&str]) -> Output {
    command(dir, driver, args).output().unwrap()
}

fn command(dir: &Path, driver: Option<&Installed>, args: &[&str]) -> Command {
    let mut command = Command::new(support::gpurun());
    command
        .args(args)
        .current_dir(dir)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("GPURUN_LEASE_DIR", dir.join("leases"));
    match driver {
        Some(driver) => drop(driver.apply(&mut command)),
        None => drop(command.env("GPURUN_NVML_LIBRARY", dir.join("no-such-library.so"))),
    }
    command
}

#[test]
fn the_job_sees_exactly_the_free_gpus_and_only_they_are_logged() {
    let dir = tempfile::tempdir().unwrap();
    let driver = simulated(dir.path(), "four-gpus-two-full");
    let script = "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER; exit 7";
    let output = gpurun(
        dir.path(),
        Some(&driver),
        &["-n", "2", "-f", "8GiB", "--log", "metrics.csv", "--", "sh", "-c", script],
    );
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "3,0 PCI_BUS_ID\n");

    let csv = Csv::read(&dir.path().join("metrics.csv"));
    let logged: BTreeSet<String> = csv.select(&[("scope", "gpu")], "gpu").into_iter().collect();
    assert_eq!(logged, BTreeSet::from(["0".to_owned(), "3".to_owned()]));
    // The scenario: 512 of 81920 MiB on GPU 0, nothing on GPU 3; ordinals in the order of the variable.
    for (gpu, cuda, used, free) in [("0", "1", 512.0, 81408.0), ("3", "0", 0.0, 81920.0)] {
        let of = |metric: &str| {
            [("scope", "gpu"), ("gpu", gpu), ("metric", metric)].map(|(a, b)| (a.to_owned(), b.to_owned()))
        };
        let number = |metric: &str, want: &str| {
            let conditions = of(metric);
            let conditions: Vec<(&str, &str)> =
                conditions.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            csv.numbers(&conditions, want)
        };
        for statistic in ["mean", "min", "max", "last"] {
            assert_eq!(number("memory_used", statistic), [used], "GPU {gpu} {statistic}");
            assert_eq!(number("memory_free", statistic), [free], "GPU {gpu} {statistic}");
        }
        assert_eq!(number("gpu_utilization", "mean"), [0.0]);
        assert_eq!(csv.select(&[("scope", "gpu"), ("gpu", gpu), ("metric", "memory_used")], "cuda"), [cuda]);
        assert_eq!(csv.select(&[("scope", "gpu"), ("gpu", gpu), ("metric", "memory_used")], "unit"), ["MiB"]);
    }
}

#[test]
fn a_run_of_a_millisecond_has_rows_of_every_scope() {
    let dir = tempfile::tempdir().unwrap();
    let driver = simulated(dir.path(), "four-gpus-two-full");
    let output = gpurun(dir.path(), Some(&driver), &["--log", "x.csv", "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let csv = Csv::read(&dir.path().join("x.csv"));
    let scopes: BTreeSet<String> = csv.select(&[], "scope").into_iter().collect();
    for scope in ["host", "gpu", "job", "gpurun"] {
        assert!(scopes.contains(scope), "no rows of scope {scope}: {scopes:?}");
    }
    assert_eq!(
        csv.select(&[("scope", "gpu"), ("metric", "memory_used")], "mean").len(),
        4,
        "all GPUs are watched"
    );
    assert!(csv.numbers(&[("metric", "processes")], "max")[0] >= 1.0);
}

#[test]
fn without_a_driver_host_and_job_are_logged_and_it_is_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let output = gpurun(dir.path(), None, &["--log", "x.csv", "--", "sh", "-c", "echo out; exit 3"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(text(&output.stdout), "out\n");
    let stderr = text(&output.stderr);
    assert_eq!(stderr.matches("no-such-library.so").count(), 1, "{stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("backtrace"), "{stderr}");
    let csv = Csv::read(&dir.path().join("x.csv"));
    assert!(csv.select(&[("scope", "gpu")], "mean").is_empty());
    assert!(!csv.select(&[("scope", "job"), ("metric", "memory_rss")], "mean").is_empty());
    assert!(!csv.select(&[("scope", "host"), ("metric", "memory_used")], "mean").is_empty());
}

#[test]
fn without_a_driver_a_selection_is_one_line_and_125() {
    let dir = tempfile::tempdir().unwrap();
    let output = gpurun(dir.path(), None, &["-n", "1", "--log", "x.csv", "--", "touch", "ran"]);
    assert_eq!(output.status.code(), Some(125));
    let stderr = text(&output.stderr);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(!dir.path().join("ran").exists(), "the job did not start");
    assert!(!dir.path().join("x.csv").exists(), "a log of nothing is not left in the way");
}

#[test]
fn too_few_gpus_is_75_with_the_reason_of_each() {
    let dir = tempfile::tempdir().unwrap();
    let driver = simulated(dir.path(), "four-gpus-two-full");
    let output = gpurun(dir.path(), Some(&driver), &["-n", "3", "-f", "8GiB", "--", "touch", "ran"]);
    assert_eq!(output.status.code(), Some(75));
    assert!(!dir.path().join("ran").exists());
    assert!(output.stdout.is_empty(), "stdout belongs to the job");
    let stderr = text(&output.stderr);
    assert!(stderr.contains("GPU 1 refused: 1.8 GiB free, needs 8 GiB; used by pid 4000001, "), "{stderr}");
}

#[test]
fn a_bad_target_stops_gpurun_before_the_job() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("there.csv"), "mine\n").unwrap();
    let table: &[(&str, i32, &str)] = &[
        ("there.csv/x.csv", 125, "there.csv: not a directory"),
        ("/proc/no/x.parquet", 125, "make /proc/no: "),
        ("x.xlsx", 2, "x.xlsx"),
        ("out", 2, "tensorboard:out"),
        ("-", 2, "gpurun export"),
    ];
    for (target, code, word) in table {
        let output = gpurun(dir.path(), None, &["--log", target, "--", "touch", "ran"]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{target}: {stderr}");
        assert!(stderr.contains(word) && stderr.lines().count() == 1, "{target}: {stderr}");
        assert!(!dir.path().join("ran").exists(), "{target}");
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("there.csv")).unwrap(), "mine\n");
    let output =
        gpurun(dir.path(), None, &["--best-effort", "--log", "there.csv/x.csv", "--", "touch", "ran"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(dir.path().join("ran").exists());
    let output =
        gpurun(dir.path(), None, &["--append", "--layout", "wide", "--log", "there.csv", "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("cannot append"), "{}", text(&output.stderr));
}

#[test]
fn a_run_goes_on_under_the_next_free_name_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let here = |name: &str| dir.path().join(name);
    for n in 1..=3 {
        let log = ["--log", "logs/deep/m.csv", "--log", "m.parquet", "--summary", "sums/s.json"];
        let output = gpurun(dir.path(), None, &[&log[..], &["--", "sh", "-c", "exit 7"]].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{stderr}");
        let suffix = if n == 1 { String::new() } else { format!("-{n}") };
        for name in [format!("logs/deep/m{suffix}.csv"), format!("m{suffix}.parquet")] {
            assert!(stderr.lines().any(|line| line.contains(&name) && line.contains(" rows")), "{stderr}");
            assert!(stderr.lines().next().unwrap().contains(&name), "{stderr}");
            assert!(here(&name).exists(), "{name}");
        }
        let summary = std::fs::read(here(&format!("sums/s{suffix}.json"))).unwrap();
        let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
        assert_eq!(summary["targets"][1]["target"], format!("m{suffix}.parquet"));
        assert_eq!(stderr.contains("m.csv exists"), n > 1, "{stderr}");
        assert_eq!(stderr.contains("s.json exists"), n > 1, "{stderr}");
    }
    // No temporary file stays.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3 + 2);
}

#[test]
fn four_starts_in_one_second_get_four_files_each() {
    let dir = tempfile::tempdir().unwrap();
    let job = "until [ -e go ]; do sleep 0.01; done";
    let start = || {
        command(dir.path(), None, &["-q", "--log", "{time}.csv", "--log", "m.parquet", "--", "sh", "-c", job])
            .spawn()
            .unwrap()
    };
    let mut children: Vec<_> = (0..4).map(|_| start()).collect();
    std::fs::write(dir.path().join("go"), "").unwrap();
    assert!(children.iter_mut().all(|child| child.wait().unwrap().success()));
    let count = |suffix: &str| {
        let names = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(suffix)).count()
    };
    assert_eq!((count(".csv"), count(".parquet"), count(".journal")), (4, 4, 0));
}

#[test]
fn a_wait_that_is_broken_off_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let driver = simulated(dir.path(), "four-gpus-two-full");
    let options =
        ["-n", "4", "-f", "8GiB", "--wait", "1s", "--log", "logs/x.csv", "--summary", "sums/s.json"];
    let output = gpurun(dir.path(), Some(&driver), &[&options[..], &["--", "touch", "ran"]].concat());
    assert_eq!(output.status.code(), Some(124), "{}", text(&output.stderr));
    assert!(!dir.path().join("logs").exists() && !dir.path().join("sums").exists());
}

#[test]
fn pandas_reads_the_types_it_should() {
    let dir = tempfile::tempdir().unwrap();
    let driver = simulated(dir.path(), "four-gpus-two-full");
    let output = gpurun(dir.path(), Some(&driver), &["-n", "1", "--log", "m.csv", "--", "true"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let program = r#"
import pandas as pd
frame = pd.read_csv("m.csv", parse_dates=["time"])
assert str(frame["time"].dtype).startswith("datetime64["), frame["time"].dtype
assert frame["time"].dt.tz is not None
for column in ["window_s", "mean", "min", "max", "last"]:
    assert frame[column].dtype == "float64", (column, frame[column].dtype)
for column in ["samples", "missing"]:
    assert frame[column].dtype == "int64", (column, frame[column].dtype)
assert {"host", "gpu", "job"} <= set(frame["scope"])
print(len(frame))
"#;
    let python =
        Command::new(support::python()).args(["-c", program]).current_dir(dir.path()).output().unwrap();
    assert!(python.status.success(), "{}", text(&python.stderr));
    assert!(text(&python.stdout).trim().parse::<u32>().unwrap() > 50);
}

#[test]
fn the_example_of_the_readme_runs_and_learns() {
    let dir = tempfile::tempdir().unwrap();
    let train = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/train.py");
    let output = gpurun(
        dir.path(),
        None,
        &[
            "--log",
            "m.csv",
            "--interval",
            "200ms",
            "--window",
            "1s",
            "--",
            "python3",
            train.to_str().unwrap(),
            "--seconds",
            "2",
        ],
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let last = text(&output.stdout).lines().last().unwrap().to_owned();
    let (first, end) = last.split_once("loss ").unwrap().1.split_once(" -> ").unwrap();
    let end: f64 = end.split(' ').next().unwrap().parse().unwrap();
    assert!(end < first.parse::<f64>().unwrap(), "{last}");
    let csv = Csv::read(&dir.path().join("m.csv"));
    // The parent and its two loaders.
    let most =
        csv.numbers(&[("scope", "job"), ("metric", "processes")], "max").into_iter().fold(0.0, f64::max);
    assert!(most >= 3.0, "{most} processes");
}
