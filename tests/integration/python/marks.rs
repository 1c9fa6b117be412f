//! Tests: ranks, the commands for scripts, nested gpuruns, and what is counted as lost, through the real gpurun.

use super::*;

/// Two nodes with one gpurun each before a torchrun, and two tasks of one node with one gpurun each.
#[test]
fn ranks_of_one_slurm_step_share_a_run_and_a_launcher_has_no_rank() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let job = "RANK=5 gpurun tag begin train; RANK=5 gpurun tag end";
    for (name, tasks_per_node, node) in [("node.csv", "1(x2)", "1"), ("task.csv", "2", "0")] {
        let mut command = gpurun(dir, None, &["--log", name], &["sh", "-c", job]);
        command.env("SLURM_JOB_ID", "4711").env("SLURM_STEP_ID", "0").env("SLURM_PROCID", "1");
        command.env("SLURM_NODEID", node).env("SLURM_STEP_NUM_TASKS", "2");
        succeed(command.env("SLURM_STEP_TASKS_PER_NODE", tasks_per_node));
        let csv = Csv::read(&dir.join(name));
        let only = |conditions: &[(&'static str, &str)], want: &str| -> BTreeSet<String> {
            csv.select(conditions, want).into_iter().collect()
        };
        assert_eq!(only(&[], "run"), BTreeSet::from(["4711.0".to_owned()]));
        let own = if name == "node.csv" { "" } else { "1" };
        assert_eq!(only(&[("kind", "window"), ("scope", "job")], "rank"), BTreeSet::from([own.to_owned()]));
        assert_eq!(only(&[("kind", "tag")], "rank"), BTreeSet::from(["5".to_owned()]));
    }
}

#[test]
fn scripts_mark_tags_steps_and_scalars() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let shell = "set -e
        gpurun tag begin load
        gpurun epoch 3
        gpurun step 1 --samples 64
        gpurun log loss=0.5 acc=0.25 --step 1
        gpurun step 2 --samples 64
        gpurun tag begin inner
        gpurun tag end load
        gpurun tag begin load
        gpurun tag begin load 2> refused
        gpurun tag end
        gpurun tag end 2>> refused
        RANK=3 gpurun tag begin of-rank
        RANK=3 gpurun tag end
        gpurun log diverged=nan
        gpurun log diverged=inf";
    let output =
        succeed(&mut gpurun(dir, None, &["--every-n-steps", "2", "--log", "x.csv"], &["sh", "-c", shell]));
    assert!(output.stdout.is_empty());
    let refused = std::fs::read_to_string(dir.join("refused")).unwrap();
    assert!(refused.contains("already open") && refused.lines().count() <= 2, "{refused}");
    let csv = Csv::read(&dir.join("x.csv"));
    let times =
        |tag: &str| csv.select(&[("kind", "tag"), ("tag", tag), ("metric", "processes")], "mean").len();
    assert_eq!((times("run/load"), times("run/load/inner"), times("run/of-rank")), (2, 1, 1));
    assert_eq!(
        csv.select(&[("kind", "tag"), ("tag", "run/of-rank"), ("metric", "processes")], "rank"),
        ["3"]
    );
    let steps = [("kind", "step"), ("step", "2")];
    assert!(!csv.select(&steps, "mean").is_empty());
    assert!(csv.select(&steps, "epoch").iter().all(|epoch| epoch == "3"));
    // The first step has no time of its own: the 64 samples are those of the second.
    let of_steps = |metric: &'static str| {
        csv.numbers(&[("kind", "step"), ("step", "2"), ("scope", "batch_time"), ("metric", metric)], "mean")
    };
    let (rate, time) = (of_steps("throughput"), of_steps("step"));
    assert!(rate.len() == 1 && (rate[0] * time[0] / 64_000.0 - 1.0).abs() < 1e-6, "{rate:?} {time:?}");
    let loss = csv.numbers(&[("scope", "user"), ("metric", "loss")], "last");
    assert!(!loss.is_empty() && loss.iter().all(|value| *value == 0.5), "{loss:?}");
    let diverged = [("scope", "user"), ("metric", "diverged"), ("kind", "window")];
    assert_eq!(csv.select(&diverged, "mean"), [""]);
    assert_eq!(
        (csv.numbers(&diverged, "samples"), csv.numbers(&diverged, "missing")),
        (vec![0.0], vec![2.0])
    );
}

/// The most that training says: the norm of each of 10,000 layers, 100,000 scalars and 5,000 short tags at once.
#[test]
fn nothing_is_lost_of_what_training_says() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let job = script(
        dir,
        "job.py",
        r#"
import gpurun
for n in range(10_000):
    gpurun.log({f"layers.{n}.weight/norm": n})
for n in range(100_000):
    gpurun.log(loss=n)
    if n % 5_000 == 0:
        gpurun.collect()  # comes back once all before it is read, however busy the machine is
for n in range(5_000):
    with gpurun.tag("batch"):
        pass
assert gpurun.dropped() == 0, gpurun.dropped()
"#,
    );
    let options = ["--processes", "none", "--log", "x.csv", "--summary", "x.json"];
    let output = succeed(&mut gpurun(dir, None, &options, &[python().to_str().unwrap(), &job]));
    assert_eq!(json(dir.join("x.json"))["dropped"], serde_json::json!([]));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("not recorded"), "{said}");
    let csv = Csv::read(&dir.join("x.csv"));
    let of = |metric: &str, want: &str| csv.numbers(&[("kind", "window"), ("metric", metric)], want);
    let samples = |metric: &str| of(metric, "samples").iter().sum::<f64>();
    assert_eq!(samples("loss"), 100_000.0);
    let names: BTreeSet<String> = csv.select(&[("scope", "user")], "metric").into_iter().collect();
    assert_eq!(names.len(), 10_001);
    let tags = csv.select(&[("kind", "tag"), ("tag", "run/batch"), ("metric", "processes")], "tag");
    assert_eq!(tags.len(), 5_000);
}

#[test]
fn what_is_lost_is_said_when_it_begins_and_counted_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let job = script(
        dir,
        "job.py",
        r#"
import gpurun
gpurun.log({f"name{n}": n for n in range(20_000)})
"#,
    );
    let options = ["--log", "x.csv", "--summary", "x.json"];
    let output = succeed(&mut gpurun(dir, None, &options, &[python().to_str().unwrap(), &job]));
    let lost = 20_000 - 16_384;
    let reason = "more than 16384 different names";
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let begins = format!("gpurun: not recorded: scalars of the job: {reason}");
    let count = format!("not recorded: {lost} scalars of the job: {reason}");
    assert_eq!((said.matches(&begins).count(), said.matches(&count).count()), (1, 1), "{said}");
    let expected = serde_json::json!([{"what": "scalars", "reason": reason, "count": lost}]);
    assert_eq!(json(dir.join("x.json"))["dropped"], expected);
}

/// A callback and the loop's own marks, as people combine them.
#[test]
fn a_step_that_two_mark_counts_once_and_is_said_once() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let job = script(
        dir,
        "job.py",
        r#"
import gpurun
from gpurun.keras import GpurunCallback
callback = GpurunCallback()
callback.on_train_begin()
callback.on_epoch_begin(0)
for n in range(12):
    callback.on_train_batch_begin(n)
    with gpurun.step(n + 1):
        pass
    callback.on_train_batch_end(n)
callback.on_train_end()
"#,
    );
    let options = ["--every-n-steps", "4", "--log", "x.csv"];
    let output = succeed(&mut gpurun(dir, None, &options, &[python().to_str().unwrap(), &job]));
    let csv = Csv::read(&dir.join("x.csv"));
    let steps = [("kind", "step"), ("tag", "run/train"), ("metric", "intra_step")];
    assert_eq!(csv.select(&steps, "step"), ["4", "8", "12"]);
    assert_eq!(csv.numbers(&steps, "samples"), [4.0; 3]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said.matches("marked twice").count(), 1, "{said}");
}

#[test]
fn marks_below_a_gpurun_that_writes_nothing_go_to_the_one_around_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let inside = "gpurun tag begin inside; gpurun tag end";
    for (inner, log) in [("gpurun", "outer.csv"), ("gpurun --log inner.csv", "inner.csv")] {
        let job = format!("{inner} -- sh -c '{inside}'");
        succeed(&mut gpurun(dir, None, &["--overwrite", "--log", "outer.csv"], &["sh", "-c", &job]));
        let rows = |name: &str| {
            let csv = Csv::read(&dir.join(name));
            csv.select(&[("kind", "tag"), ("tag", "run/inside"), ("metric", "processes")], "tag").len()
        };
        assert_eq!(rows(log), 1, "{inner}");
        assert_eq!(rows("outer.csv"), usize::from(log == "outer.csv"), "{inner}");
    }
    // Without an outer one the socket is its own, so that the job can ask for values.
    let ask = "import gpurun, sys; sys.exit(not gpurun.snapshot(timeout=60)['host'])";
    succeed(&mut gpurun(dir, None, &[], &[python().to_str().unwrap(), "-c", ask]));
}

#[test]
fn outside_gpurun_scripts_get_a_silent_success() {
    let dir = tempfile::tempdir().unwrap();
    let dead = dir.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    for socket in [None, Some(Path::new("")), Some(Path::new("/nonexistent/s")), Some(dead.as_path())] {
        for args in
            [&["tag", "begin", "a"][..], &["tag", "end"], &["step", "-5"], &["epoch"], &["log", "a=1"]]
        {
            let mut command = Command::new(support::gpurun());
            environment(command.args(args), dir.path());
            if let Some(socket) = socket {
                command.env("GPURUN_SOCKET", socket);
            }
            let output = succeed(&mut command);
            assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{args:?} {socket:?}: {output:?}");
        }
    }
    // A wrong value is no mistake of the command line, a wrong option is.
    for (args, status) in [
        (&["tag", "begin", "a/b"][..], 0),
        (&["tag", "end", ""], 0),
        (&["log", "foo"], 0),
        (&["log", "loss=x", "--step", "y"], 0),
        (&["step", "x", "--samples", "y"], 0),
        (&["epoch", "x"], 0),
        (&["log", "--stepp", "3", "a=1"], 2),
        (&["tag", "begin"], 2),
    ] {
        let mut command = Command::new(support::gpurun());
        environment(command.args(args), dir.path());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?}");
        assert_eq!(
            String::from_utf8_lossy(&output.stderr).lines().count(),
            usize::from(status == 2),
            "{args:?}"
        );
    }
}

#[test]
fn a_wrong_value_never_ends_a_script() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let shell = "set -e
        for v in '' N/A 1,5; do gpurun log acc=1 \"loss=$v\" lr=2; done
        gpurun log foo \"loss=\"
        gpurun log late=3 --step soon
        gpurun step abc
        gpurun tag begin a/b
        gpurun tag end a/b
        gpurun log done=1";
    let output = succeed(&mut gpurun(dir, None, &["-q", "--log", "x.csv"], &["sh", "-c", shell]));
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 8 && lines.iter().all(|line| line.contains("ignored: ")), "{said}");
    assert!(lines[1].ends_with(r#"ignored: "loss=N/A": "N/A" is not a number"#), "{said}");
    assert!(lines[3].ends_with(r#""foo" is not KEY=VALUE; "loss=": "" is not a number"#), "{said}");
    let csv = Csv::read(&dir.join("x.csv"));
    let total = |metric: &str, column: &str| -> f64 {
        let rows = [("scope", "user"), ("metric", metric), ("kind", "window")];
        csv.numbers(&rows, column).iter().sum()
    };
    for (metric, samples) in [("acc", 3.0), ("lr", 3.0), ("loss", 0.0), ("late", 1.0), ("done", 1.0)] {
        assert_eq!((total(metric, "samples"), total(metric, "missing")), (samples, 0.0), "{metric}");
    }
}
