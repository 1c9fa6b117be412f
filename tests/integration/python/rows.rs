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
pub(super) fn by_step(csv: &Csv, scalar: &str) -> BTreeMap<i64, Vec<f64>> {
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

/// Three epochs of 12 steps of 64 samples, with an evaluation after each; the last losses are not finite.
const EPOCHS: &str = r#"
import json, time, gpurun

ends, epochs = [], []
n = 0
for epoch in range(3):
    before = time.time_ns() // 1000
    gpurun.epoch(epoch)
    epochs.append([before, time.time_ns() // 1000])
    with gpurun.tag("train"):
        for _ in range(12):
            n += 1
            with gpurun.step(n, samples=64):
                time.sleep(0.01)
            ends.append(time.monotonic_ns())
            gpurun.log(loss=1 / n if n < 30 else float("nan"), step=n)
    with gpurun.tag("evaluate"):
        time.sleep(0.15)
json.dump({"ends": ends, "epochs": epochs}, open("truth.json", "w"))
"#;

#[test]
fn rows_of_every_kind_have_their_epoch_and_occurrence() {
    let dir = tempfile::tempdir().unwrap();
    let csv = run(dir.path(), &["--every-n-steps", "5", "--interval", "20ms", "--window", "50ms"], EPOCHS);
    let of = |kind: &str, columns: &[&str]| -> Vec<Vec<String>> {
        let rows = [("kind", kind), ("scope", "job"), ("metric", "processes")];
        let columns: Vec<_> = columns.iter().map(|column| csv.select(&rows, column)).collect();
        (0..columns[0].len()).map(|row| columns.iter().map(|column| column[row].clone()).collect()).collect()
    };
    let mut expected = Vec::new();
    for epoch in 0..3 {
        for step in [5, 10, 12] {
            let (step, occurrence) = (12 * epoch + step, epoch + 1);
            expected.push([step, occurrence, epoch].map(|number| number.to_string()).to_vec());
        }
    }
    assert_eq!(of("step", &["step", "occurrence", "epoch"]), expected);
    let tags: BTreeSet<Vec<String>> = of("tag", &["tag", "occurrence", "epoch"]).into_iter().collect();
    let expected = (0..3).flat_map(|epoch| {
        ["run/evaluate", "run/train"]
            .map(|tag| vec![tag.to_owned(), (epoch + 1).to_string(), epoch.to_string()])
    });
    assert_eq!(tags, expected.collect());

    // A window is of the epoch that began in it, else of the one that ran when it began.
    let truth = json(dir.path().join("truth.json"));
    let begins: Vec<[i64; 2]> = serde_json::from_value(truth["epochs"].clone()).unwrap();
    let micros = |time: &str| time.parse::<jiff::Timestamp>().unwrap().as_microsecond();
    let mut seen = BTreeSet::new();
    for window in of("window", &["start", "time", "epoch", "occurrence"]) {
        let (start, end) = (micros(&window[0]), micros(&window[1]));
        // The clocks of the two may be a moment apart.
        let near = |edge: i64| begins.iter().any(|[from, to]| (from - 5000..to + 5000).contains(&edge));
        if near(start) || near(end) {
            continue;
        }
        let began = begins.iter().rposition(|[from, _]| *from < end);
        assert_eq!(window[2], began.map(|epoch| epoch.to_string()).unwrap_or_default(), "{window:?}");
        assert_eq!(window[3], "1");
        seen.insert(window[2].clone());
    }
    assert!(["0", "1", "2"].iter().all(|epoch| seen.contains(*epoch)), "{seen:?}");
}

#[test]
fn the_report_has_each_time_of_a_step_and_samples_a_second() {
    let dir = tempfile::tempdir().unwrap();
    let csv = run(dir.path(), &["--every-n-steps", "5"], EPOCHS);
    let of = |metric: &str, want: &str| {
        csv.numbers(&[("kind", "step"), ("scope", "batch_time"), ("metric", metric)], want)
    };
    let (step, samples) = (of("step", "mean"), of("step", "samples"));
    // Nothing is known of the time before the first step of an epoch.
    assert_eq!(samples, [4.0, 5.0, 2.0, 4.0, 5.0, 2.0, 4.0, 5.0, 2.0]);
    for (ms, rate) in step.iter().zip(of("throughput", "mean")) {
        assert!((rate * ms / 1e3 - 64.0).abs() < 1e-6, "{rate} samples a second, {ms} ms a step");
    }
    let ends: Vec<f64> = serde_json::from_value(json(dir.path().join("truth.json"))["ends"].clone()).unwrap();
    let seconds: f64 = ends.chunks(12).map(|epoch| (epoch[11] - epoch[0]) / 1e9).sum();
    let logged: f64 = step.iter().zip(&samples).map(|(ms, steps)| ms * steps / 1e3).sum();
    assert!((logged - seconds).abs() < 0.02, "{logged} s, by the job {seconds} s");

    let mut report = Command::new(support::gpurun());
    environment(report.args(["report", "x.csv"]).current_dir(dir.path()), dir.path());
    let text = String::from_utf8(succeed(&mut report).stdout).unwrap();
    let row = |time: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.contains(&format!("  {time}  "))).expect(&text);
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    let ms = |cell: &String| match cell.split_once(' ') {
        Some((number, "ms")) => number.parse::<f64>().unwrap(),
        Some((number, "s")) => number.parse::<f64>().unwrap() * 1e3,
        _ => panic!("{cell} in {text}"),
    };
    for (time, metric, steps) in
        [("step", "step", "33"), ("in step", "intra_step", "36"), ("between", "inter_step", "33")]
    {
        let cells = row(time);
        assert_eq!(cells[..4], ["train", "36", time, steps], "{text}");
        let times: Vec<f64> = cells[4..8].iter().map(ms).collect();
        let [mean, median, p95, max] = times[..] else { panic!("{cells:?}") };
        let longest = of(metric, "max").into_iter().fold(0.0, f64::max);
        let rounding = 0.006 * longest + 0.01;
        assert!((max - longest).abs() <= rounding, "{time}: {cells:?}, longest {longest}");
        assert!(mean <= max + rounding && median <= p95 && p95 <= max + rounding, "{time}: {cells:?}");
        if time == "step" {
            let rate: f64 = cells[8].replace(',', "").parse().unwrap();
            assert!((rate / (33.0 * 64.0 / logged) - 1.0).abs() < 0.01, "{rate}: {text}");
        }
    }
}

#[test]
fn a_diverged_run_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let job = script(dir, "job.py", EPOCHS);
    let options = ["--every-n-steps", "5", "--log", "x.csv", "--summary", "x.json"];
    let output = succeed(&mut gpurun(dir, None, &options, &[python().to_str().unwrap(), &job]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let note = "note: scalars of the job were NaN or infinite: loss 7 of 36 times, the first by step 34";
    assert_eq!(said.matches(note).count(), 1, "{said}");
    let expected = serde_json::json!([{"name": "loss", "count": 7, "values": 36, "step": 34}]);
    assert_eq!(json(dir.join("x.json"))["not_finite"], expected);
    let csv = Csv::read(&dir.join("x.csv"));
    let loss = [("kind", "step"), ("scope", "user"), ("metric", "loss")];
    assert_eq!(csv.numbers(&loss, "missing"), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 2.0]);
    assert_eq!(csv.select(&loss, "mean")[7..], ["", ""]);
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
