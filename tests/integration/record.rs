//! `gpurun record`, through the binary: whom it follows, when it ends, what its last window holds.

use std::process::{Child, Command, Stdio};

use crate::logged::{Place, Running, text, until};
use crate::transparency::harness;

/// A process that the test started, not gpurun; ends with its input.
struct Other(Child);

impl Other {
    fn start(place: &Place, args: &[&str]) -> Self {
        let child = Command::new(harness::job())
            .args(args)
            .current_dir(place.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn waiting(place: &Place, file: &str) -> Self {
        let other = Self::start(place, &["wait", file]);
        until("it is there", || place.path(file).exists().then_some(()));
        other
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn end(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const ONE_GPU: &str =
    "[[gpu]]\nmemory_total = 10000\nmemory_used = 100\nprocess = [{ pid_file = \"DIR/pids\" }]\n";
const QUICK: [&str; 4] = ["--interval", "100ms", "--window", "300ms"];

fn record<'a>(options: &[&'a str], log: &'a str) -> Vec<&'a str> {
    ["record"].iter().chain(QUICK.iter()).chain(options).chain(&["--log", log]).copied().collect()
}

#[test]
fn the_named_processes_are_followed_until_all_of_them_have_ended() {
    let place = Place::new(ONE_GPU);
    // It has used a second of CPU before anybody looks: that is its history.
    let script = format!("exec 3<&0; {0} spin 1000; {0} wait a <&3", harness::job().to_str().unwrap());
    let mut shell = Other(
        Command::new("sh")
            .args(["-c", &script])
            .current_dir(place.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    until("it is there", || place.path("a").exists().then_some(()));
    let mut second = Other::waiting(&place, "b");
    let (first_pid, second_pid) = (shell.pid(), second.pid());
    let mut run = Running::start(
        &place,
        &record(&["--pid", &first_pid, "--pid", &second_pid, "--processes", "all"], "pids.csv"),
    );
    let most = || {
        let rows = place.csv("pids.csv");
        rows.of("job/processes").iter().filter_map(|row| row.get("max")).fold(0.0, f64::max)
    };
    // The shell, its child, and the other one.
    until("all three", || (most() == 3.0).then_some(()));
    shell.end();
    let windows = || place.csv("pids.csv").of("job/processes").len();
    let before = windows();
    until("two windows without the first", || (windows() >= before + 2).then_some(()));
    second.end();
    assert!(run.wait().success(), "{}", run.stderr());
    assert!(run.stderr().contains("the processes have ended"), "{}", run.stderr());
    let rows = place.csv("pids.csv");
    assert_eq!(most(), 3.0);
    let cpu: f64 = rows
        .of("job/cpu_percent")
        .iter()
        .map(|row| row.number("mean") / 100.0 * row.number("window_s"))
        .sum();
    assert!((0.0..0.5).contains(&cpu), "{cpu} s: the second before the record is not its own");
    for pid in [&first_pid, &second_pid] {
        assert!(rows.has(&format!("process/memory_rss pid={pid}")), "{pid}");
    }
    assert!(rows.only_kind(&["window"]), "no tags, no steps");
}

#[test]
fn every_gpu_process_of_the_host_is_the_default() {
    let place = Place::new(ONE_GPU);
    let (mut on_gpu, mut off_gpu) = (Other::waiting(&place, "on"), Other::waiting(&place, "off"));
    place.write("pids", &format!("{} 700 20\n", on_gpu.pid()));
    let mut run = Running::start(&place, &record(&[], "all.csv"));
    until("it is seen", || {
        let rows = place.csv("all.csv");
        rows.of("job/gpu_memory gpu=0").iter().any(|row| row.is_steady_at(700.0)).then_some(())
    });
    run.signal(libc::SIGTERM);
    assert!(run.wait().success(), "a record that is told to end has done what it should");
    assert!(run.stderr().contains("stopped by SIGTERM"), "{}", run.stderr());
    let rows = place.csv("all.csv");
    assert!(rows.has(&format!("process/memory_rss pid={}", on_gpu.pid())));
    assert!(!rows.has(&format!("process/memory_rss pid={}", off_gpu.pid())));
    assert!(rows.of("job/processes").iter().any(|row| row.get("max") == Some(1.0)));
    assert!(rows.of("gpu/memory_used gpu=0").iter().all(|row| row.is_steady_at(100.0)));
    assert!(rows.of("gpu/memory_used").iter().all(|row| row.text("cuda").is_empty()), "nobody counts them");
    on_gpu.end();
    off_gpu.end();
}

#[test]
fn it_ends_after_its_time_with_the_last_part_of_a_window() {
    let place = Place::new(ONE_GPU);
    let args = ["record", "--interval", "100ms", "--window", "10s", "--duration", "350ms"];
    let output = place.output(&[&args[..], &["--log", "time.csv", "--summary", "time.json"]].concat());
    let rows = place.csv("time.csv");
    let window = rows.only("gpu/memory_used gpu=0").number("window_s");
    assert!((0.35..10.0).contains(&window), "{window}");
    assert!(rows.only("host/memory_used").number("samples") >= 2.0);
    assert!(rows.only("job/processes").is_steady_at(0.0), "it was looked, and nobody was there");
    let summary: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(place.path("time.json")).unwrap()).unwrap();
    assert_eq!(summary["exit"], serde_json::Value::Null);
    assert!(output.stdout.is_empty());
}

#[test]
fn an_interrupt_ends_it_cleanly_in_every_format() {
    let place = Place::new(ONE_GPU);
    let targets = ["--log", "int.parquet", "--log", "tensorboard:tb"];
    let mut run = Running::start(&place, &record(&targets, "int.csv"));
    until("a window", || place.csv("int.csv").has("host/memory_used").then_some(()));
    run.signal(libc::SIGINT);
    assert!(run.wait().success(), "{}", run.stderr());
    assert!(place.path("int.parquet").exists() && !place.path("int.parquet.journal").exists());
    let rows = place.csv("int.csv").of("gpu/memory_used gpu=0").len();
    assert!(run.stderr().contains("wrote int.parquet ("), "{}", run.stderr());
    assert!(rows >= 1);
}

#[test]
fn a_log_without_a_job_is_a_record_of_all() {
    let place = Place::new(ONE_GPU);
    let mut run = Running::start(&place, &["--interval", "100ms", "--window", "300ms", "--log", "bare.csv"]);
    until("a window", || place.csv("bare.csv").has("gpu/memory_used gpu=0").then_some(()));
    run.signal(libc::SIGTERM);
    assert!(run.wait().success(), "{}", run.stderr());
    let rows = place.csv("bare.csv");
    assert!(rows.of("gpu/memory_used gpu=0").iter().all(|row| row.is_steady_at(100.0)));
    assert!(rows.has("job/processes"));
}

#[test]
fn what_cannot_be_followed_is_one_line() {
    let place = Place::new(ONE_GPU);
    let table: [(&[&str], i32, &str); 4] = [
        (&["record", "--pid", "4194999", "--log", "x.csv"], 125, "4194999"),
        (&["record", "--pid", "0", "--log", "x.csv"], 2, "positive"),
        (&["record", "--pid", "1", "--all", "--log", "x.csv"], 2, "--all"),
        (&["record"], 2, "--log"),
    ];
    for (args, code, word) in table {
        let output = place.gpurun(args).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(word), "{args:?}: {stderr}");
        assert!(!place.path("x.csv").exists(), "{args:?}");
    }
}
