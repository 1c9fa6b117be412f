//! The library's collector, inside the program that it watches: this test binary once more.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpurun::{Collection, Collector, CollectorError};

const STAGE: &str = "GPURUN_COLLECTOR_STAGE";
/// Nothing passes or fails by it but a collector that never answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `body` in a process of its own that sees two simulated GPUs of 80 GiB, the second one full.
fn on_stage(test: &str, body: impl FnOnce(&Path)) {
    if let Some(directory) = std::env::var_os(STAGE) {
        return body(Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    let scenario = fake_nvml::scenario_file("four-gpus-two-full").unwrap();
    let scenario = fake_nvml::Scenario::load(&scenario).unwrap();
    let installed = fake_nvml::install(directory.path(), &scenario).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("collector::{test}"), "--exact", "--nocapture"]).env(STAGE, directory.path());
    command.env("CUDA_VISIBLE_DEVICES", "1,0").env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    let output = installed.apply(&mut command).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{}\n{out}{err}", output.status);
    assert!(
        !err.lines().any(|line| line.starts_with("gpurun: ")),
        "a collector is silent unless asked: {err}"
    );
}

/// Collects until the GPUs are known and `done` is content.
fn collect_until(collector: &Collector, done: impl Fn(&Collection) -> bool) -> Collection {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let collection = collector.collect().unwrap();
        if done(&collection) {
            return collection;
        }
        assert!(Instant::now() < deadline, "never: {:#?}", collection.to_map());
        std::thread::yield_now();
    }
}

/// Names of this process's threads that are gpurun's.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread that ends meanwhile is no thread.
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("gpurun-")).collect()
}

#[test]
fn collect_gives_nvitops_keys_for_the_innermost_tag() {
    on_stage("collect_gives_nvitops_keys_for_the_innermost_tag", |_| {
        let collector = Collector::builder().interval(Duration::from_millis(20)).start().unwrap();
        let _train = collector.tag("train").unwrap();
        let batch = collector.tag("batch").unwrap();
        let twice = collector.tag("train").unwrap_err();
        assert!(matches!(&twice, CollectorError::TagOpen(name) if name == "train"), "{twice}");
        assert!(matches!(collector.tag(""), Err(CollectorError::EmptyTag)));
        collector.log("loss", 0.25, None);
        collector.log("loss", 0.75, None);
        let key = "cuda:0 (gpu:1)/memory_used (MiB)";
        let inner = collect_until(&collector, |c| {
            c.get(key).is_some_and(|stats| stats.samples > 1)
                && c.get("job/cpu_percent (%)").is_some_and(|stats| stats.samples > 1)
        });
        let map = inner.to_map();
        for statistic in ["mean", "min", "max", "last"] {
            assert_eq!(map[&format!("run/train/batch/{key}/{statistic}")], 80_000.0);
        }
        assert_eq!(map["run/train/batch/cuda:1 (gpu:0)/memory_used (MiB)/mean"], 512.0);
        assert_eq!(map["run/train/batch/user/loss/mean"], 0.5);
        assert!(map["run/train/batch/host/memory_percent (%)/mean"] > 0.0);
        assert!(map["run/train/batch/job/cpu_percent (%)/mean"] >= 0.0);
        assert!(map["run/train/batch/duration (s)"] > 0.0 && map["run/train/batch/timestamp"] > 1.7e9);
        drop(batch);
        let outer = collector.collect().unwrap();
        assert_eq!(outer.tag, "run/train");
        assert!(outer.duration_s >= inner.duration_s);
        // A name may be used again; a guard whose tag ended with its outer one ends nothing.
        let evaluate = collector.tag("batch").unwrap();
        drop(_train);
        let again = collector.tag("batch").unwrap();
        drop(evaluate);
        assert_eq!(collector.collect().unwrap().tag, "run/batch");
        drop(again);
        assert_eq!(collector.collect().unwrap().tag, "run");
    });
}

#[test]
fn the_callback_sees_every_window_once() {
    on_stage("the_callback_sees_every_window_once", |_| {
        let seen: Arc<Mutex<Vec<Collection>>> = Arc::default();
        let there = Arc::clone(&seen);
        let window = Duration::from_millis(100);
        let collector = Collector::builder()
            .interval(Duration::from_millis(20))
            .window(window)
            .on_window(move |collection| {
                there.lock().unwrap().push(collection.clone());
                true
            })
            .start()
            .unwrap();
        let deadline = Instant::now() + PATIENCE;
        while seen.lock().unwrap().len() < 3 {
            assert!(Instant::now() < deadline, "no windows");
            std::thread::yield_now();
        }
        let ended = collector.stop().unwrap();
        assert_eq!(ended.dropped_windows, 0);
        assert_eq!(threads(), Vec::<String>::new());
        let seen = seen.lock().unwrap();
        let (last, whole) = seen.split_last().unwrap();
        for collection in whole {
            assert_eq!(collection.duration_s, window.as_secs_f64(), "each window is of its own time");
        }
        assert!(last.duration_s <= window.as_secs_f64());
        let total: f64 = seen.iter().map(|collection| collection.duration_s).sum();
        assert!((total - ended.duration_s).abs() < 1e-6, "{total} {}", ended.duration_s);
    });
}

#[test]
fn a_panic_of_the_callback_ends_its_calls_only() {
    on_stage("a_panic_of_the_callback_ends_its_calls_only", |directory| {
        let calls: Arc<Mutex<usize>> = Arc::default();
        let there = Arc::clone(&calls);
        let log = directory.join("panic.csv");
        let collector = Collector::builder()
            .interval(Duration::from_millis(20))
            .window(Duration::from_millis(40))
            .log(log.to_str().unwrap())
            .on_window(move |_| {
                *there.lock().unwrap() += 1;
                panic!("on purpose")
            })
            .start()
            .unwrap();
        let deadline = Instant::now() + PATIENCE;
        let windows = || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            text.lines().filter(|line| line.contains(",memory_percent,")).count()
        };
        while windows() < 4 {
            assert!(Instant::now() < deadline, "the log goes on");
            std::thread::yield_now();
        }
        drop(collector);
        assert_eq!(calls.lock().map_or_else(|poisoned| *poisoned.into_inner(), |calls| *calls), 1);
    });
}

#[test]
fn dropping_it_ends_tags_writes_the_log_and_joins_the_threads() {
    on_stage("dropping_it_ends_tags_writes_the_log_and_joins_the_threads", |directory| {
        let log = directory.join("run.csv");
        {
            let collector = Collector::builder()
                .interval(Duration::from_millis(20))
                .root_tag("trainer")
                .every_n_steps(2)
                .log(log.to_str().unwrap())
                .start()
                .unwrap();
            let fit = collector.tag("fit").unwrap();
            for step in 1..=4 {
                drop(collector.timed_step(step));
            }
            collector.collect().unwrap();
            assert!(threads().iter().any(|name| name.starts_with("gpurun-engine")));
            std::mem::forget(fit);
        }
        // Writers have given their last word, and may still be on their way out.
        let deadline = Instant::now() + PATIENCE;
        while threads().iter().any(|name| name.starts_with("gpurun-writer")) {
            assert!(Instant::now() < deadline, "a writer lives on");
            std::thread::yield_now();
        }
        assert_eq!(threads(), Vec::<String>::new());
        let mut reader = csv::Reader::from_path(&log).unwrap();
        let headers = reader.headers().unwrap().clone();
        let place = |name: &str| headers.iter().position(|header| header == name).unwrap();
        let (kind, tag, step, metric) = (place("kind"), place("tag"), place("step"), place("metric"));
        let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
        let has = |k: &str, t: &str, s: &str, m: &str| {
            rows.iter().any(|row| row[kind] == *k && row[tag] == *t && row[step] == *s && row[metric] == *m)
        };
        assert!(has("tag", "trainer/fit", "", "memory_percent"), "an open tag ends with the run");
        assert!(
            has("step", "trainer/fit", "2", "intra_step") && has("step", "trainer/fit", "4", "inter_step")
        );
        assert!(has("window", "trainer", "", "memory_percent"));
        assert!(rows.iter().all(|row| row[tag].starts_with("trainer")));
        assert!(rows.iter().all(|row| !(row[place("scope")] == *"gpurun" && row[metric] == *"cpu_percent")));
    });
}

#[test]
fn wrong_settings_are_told_before_anything_starts() {
    on_stage("wrong_settings_are_told_before_anything_starts", |directory| {
        let wrong = |builder: gpurun::Builder| builder.start().unwrap_err().to_string();
        let interval = wrong(Collector::builder().interval(Duration::from_millis(1)));
        assert!(interval.starts_with("interval 1ms: must be at least 10ms"), "{interval}");
        assert!(wrong(Collector::builder().metrics(["+warp"])).contains("\"warp\""));
        assert!(wrong(Collector::builder().pids([0])).contains("pid 0"));
        let taken: PathBuf = directory.join("taken.csv");
        std::fs::write(&taken, "mine").unwrap();
        let log = wrong(Collector::builder().log(taken.join("m.csv").to_str().unwrap()));
        assert!(log.contains("taken.csv"), "{log}");
        assert_eq!(std::fs::read_to_string(&taken).unwrap(), "mine");
        assert_eq!(threads(), Vec::<String>::new());
    });
}
