//! Tests: which row a step's time, its scalars and its epoch stand in, through the real gpurun.

use std::collections::BTreeMap;

use super::*;

/// Runs a job in Python with `--log x.csv`, and reads what it left.
fn run(dir: &Path, options: &[&str], job: &str) -> Csv {
    let job = script(dir, "job.py", job);
    let options = [options, &["--processes", "none", "--log", "x.csv"]].concat();
    succeed(&mut gpurun(dir, None, &options, &[python().to_str().unwrap(), &job]));
    Csv::read(&dir.join("x.csv"))
}

/// The values of a scalar in step rows, by the step.
fn by_step(csv: &Csv, scalar: &str) -> BTreeMap<i64, Vec<f64>> {
    let rows = [("kind", "step"), ("scope", "user"), ("metric", scalar)];
    let steps = csv.select(&rows, "step").into_iter().map(|step| step.parse().unwrap());
    let mut found: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    for (step, mean) in steps.zip(csv.numbers(&rows, "mean")) {
        found.entry(step).or_default().push(mean);
    }
    found
}

const SCALARS: &str = r#"
import gpurun

with gpurun.tag("train"):
    for n in range(1, 11):
        gpurun.log(before=n, step=n)
        with gpurun.step(n):
            gpurun.log(inside=n, step=n)
            # As people do who do not want to wait for the loss of the step that runs.
            gpurun.log({"lagging": n - 1}, step=n - 1)
        gpurun.log(loss=n, step=n)
for n in range(11, 15):
    loss = n
    gpurun.log({"mark/before": n}, step=n)
    gpurun.step(n)
    gpurun.log({"mark/after": n}, step=n)
"#;

#[test]
fn a_scalar_of_step_n_stands_in_the_row_of_step_n() {
    let dir = tempfile::tempdir().unwrap();
    let csv = run(dir.path(), &["--every-n-steps", "1"], SCALARS);
    let own = |steps: std::ops::RangeInclusive<i64>| -> BTreeMap<i64, Vec<f64>> {
        steps.map(|n| (n, vec![n as f64])).collect()
    };
    for scalar in ["before", "inside", "loss"] {
        assert_eq!(by_step(&csv, scalar), own(1..=10), "{scalar}");
    }
    assert_eq!(by_step(&csv, "lagging"), own(0..=9));
    for scalar in ["mark/before", "mark/after"] {
        assert_eq!(by_step(&csv, scalar), own(11..=14), "{scalar}");
    }
    // Every step has its row, and the scalars stand in them, not in rows of their own.
    for tag in ["run/train", "run"] {
        let rows = |metric| csv.select(&[("kind", "step"), ("tag", tag), ("metric", metric)], "time");
        let (of_series, of_scalars) = (rows("cpu_percent"), [rows("loss"), rows("mark/after")].concat());
        assert_eq!(of_series.iter().collect::<BTreeSet<_>>(), of_scalars.iter().collect(), "{tag}");
    }
}

#[test]
fn a_scalar_of_step_n_stands_in_the_row_that_covers_step_n() {
    let dir = tempfile::tempdir().unwrap();
    let csv = run(dir.path(), &["--every-n-steps", "4"], SCALARS);
    for scalar in ["before", "inside", "loss"] {
        let expected = BTreeMap::from([(4, vec![2.5]), (8, vec![6.5]), (10, vec![9.5])]);
        assert_eq!(by_step(&csv, scalar), expected, "{scalar}");
    }
    let expected = BTreeMap::from([(0, vec![0.0]), (4, vec![2.5]), (8, vec![6.5]), (10, vec![9.0])]);
    assert_eq!(by_step(&csv, "lagging"), expected);
    for scalar in ["mark/before", "mark/after"] {
        assert_eq!(by_step(&csv, scalar), BTreeMap::from([(14, vec![12.5])]), "{scalar}");
    }
}

#[test]
fn evaluation_and_checkpoint_are_in_no_step_row() {
    let dir = tempfile::tempdir().unwrap();
    let job = r#"
import json, time, gpurun

now = time.monotonic_ns
stamps, pauses = [], []
n = 0

def steps(count):
    global n
    for _ in range(count):
        n += 1
        began = now()
        with gpurun.step(n):
            time.sleep(0.002)
        stamps.append([began, now()])

with gpurun.tag("train"):
    # The second break lies inside the row of steps 11 to 20.
    for count, name in ((10, "evaluate"), (5, "checkpoint"), (12, "evaluate")):
        steps(count)
        began = now()
        with gpurun.tag(name):
            time.sleep(0.3)
        pauses.append([began, now()])
json.dump({"stamps": stamps, "pauses": pauses}, open("truth.json", "w"))
"#;
    let csv = run(dir.path(), &["--every-n-steps", "10"], job);
    let truth = json(dir.path().join("truth.json"));
    let of = |list: &str, place: usize, end: usize| truth[list][place][end].as_f64().unwrap() / 1e9;
    let rows = [("kind", "step"), ("tag", "run/train"), ("metric", "intra_step")];
    assert_eq!(csv.select(&rows, "step"), ["10", "20", "27"]);
    assert_eq!(csv.numbers(&rows, "samples"), [10.0, 10.0, 7.0]);
    let lengths = csv.numbers(&rows, "window_s");
    let length = |first: usize, last: usize| of("stamps", last - 1, 1) - of("stamps", first - 1, 0);
    let checkpoint = of("pauses", 1, 1) - of("pauses", 1, 0);
    for (got, want) in lengths.iter().zip([length(1, 10), length(11, 20) - checkpoint, length(21, 27)]) {
        assert!((got - want).abs() < 5e-3, "{got} s, by the job {want} s: {lengths:?}");
    }
    // No single step and no time between two has a break in it.
    let most = |metric| {
        let rows = [("kind", "step"), ("tag", "run/train"), ("metric", metric)];
        csv.numbers(&rows, "max").into_iter().fold(0.0, f64::max)
    };
    let shortest =
        (0..3).map(|place| of("pauses", place, 1) - of("pauses", place, 0)).fold(1.0, f64::min) * 1e3;
    for metric in ["step", "inter_step", "intra_step"] {
        assert!(most(metric) < shortest, "{metric}: {} ms", most(metric));
    }
}

/// Ranks below one gpurun: each says what it likes, and the run is as long as it is.
#[test]
fn a_run_is_counted_once_however_many_ranks_speak() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let rank = script(
        dir,
        "rank.py",
        r#"
import os, time, gpurun
for n in range(1, 6):
    with gpurun.step(n):
        time.sleep(0.1)
    gpurun.log(loss=n + 10 * int(os.environ["RANK"]), step=n)
"#,
    );
    let launch = format!("for r in 0 1 2; do RANK=$r \"$PYTHON\" {rank} & done; wait");
    let options = [
        "--interval",
        "100ms",
        "--window",
        "200ms",
        "--every-n-steps",
        "5",
        "--processes",
        "none",
        "--log",
        "x.parquet",
    ];
    let options = [&options[..], &["--log", "x.csv", "--summary", "x.json"]].concat();
    succeed(&mut gpurun(dir, None, &options, &["sh", "-c", &launch]));

    let summary = json(dir.join("x.json"));
    let csv = Csv::read(&dir.join("x.csv"));
    let own = [("kind", "window"), ("scope", "job"), ("metric", "processes")];
    let windows = csv.numbers(&own, "window_s");
    assert_eq!(summary["own"]["windows"], windows.len());
    let all: f64 = windows.iter().sum();
    let duration = summary["duration_s"].as_f64().unwrap();
    assert!((duration - all).abs() < 1e-6, "{duration} s of windows of {all} s");
    let wall = (summary["end_us"].as_i64().unwrap() - summary["start_us"].as_i64().unwrap()) as f64 / 1e6;
    assert!(duration <= wall + 1e-3, "{duration} s in {wall} s");
    // Each rank's scalars stand in rows of its own.
    for rank in ["0", "1", "2"] {
        let rows = [("kind", "step"), ("rank", rank), ("metric", "loss"), ("step", "5")];
        assert_eq!(csv.numbers(&rows, "mean"), [3.0 + 10.0 * rank.parse::<f64>().unwrap()]);
    }
    for log in ["x.csv", "x.parquet"] {
        let mut report = Command::new(support::gpurun());
        environment(report.args(["report", log]).current_dir(dir), dir);
        let text = String::from_utf8(succeed(&mut report).stdout).unwrap();
        let line =
            |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
        // One run is one column: its name stands there once.
        assert_eq!(line("run ").split_whitespace().count(), 2, "{text}");
        assert_eq!(text.matches("  loss ").count(), 3, "{text}");
        for time in ["step", "in step", "between"] {
            assert_eq!(text.matches(&format!("  {time}  ")).count(), 3, "{time}: {text}");
        }
    }
}

#[test]
fn tensorboard_shows_a_second_name_of_a_step_that_has_passed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let job = script(
        dir,
        "job.py",
        r#"
import gpurun
gpurun.log({"train/loss": 1.0}, step=100)
gpurun.log({"train/loss": 0.5}, step=200)
gpurun.log({"val/loss": 2.0}, step=100)
gpurun.log({"train/loss": 9.0}, step=150)
"#,
    );
    let options = ["--log", "tensorboard:tb", "--log", "x.csv"];
    let output = succeed(&mut gpurun(dir, None, &options, &[python().to_str().unwrap(), &job]));
    let read = "
import glob, json
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
points = {}
for event in LegacyEventFileLoader(glob.glob('tb/gpurun/*')[0]).Load():
    for value in event.summary.value:
        if value.tag.startswith('steps/user/') and value.tag.endswith('/mean'):
            points.setdefault(value.tag[len('steps/user/'):-len('/mean')], []).append([event.step, value.simple_value])
json.dump(points, open('points.json', 'w'))";
    succeed(Command::new(support::python()).args(["-c", read]).current_dir(dir));
    let expected = serde_json::json!({"train/loss": [[100, 1.0], [200, 0.5]], "val/loss": [[100, 2.0]]});
    assert_eq!(json(dir.join("points.json")), expected);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.matches("training step 150 came after step 200").count(), 1, "{said}");
    // The files have all of them.
    let csv = Csv::read(&dir.join("x.csv"));
    assert_eq!(
        by_step(&csv, "train/loss"),
        BTreeMap::from([(100, vec![1.0]), (150, vec![9.0]), (200, vec![0.5])])
    );
}
