//! Known truths in the log: what real jobs use stands in the rows of the job.

use std::collections::HashMap;
use std::process::{Command, Stdio};

/// Runs a Python job under gpurun with a CSV log; what the job said, and the rows of the job's scope.
fn logged(script: &str) -> (String, Vec<HashMap<String, String>>) {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log.csv");
    let output = Command::new(crate::support::gpurun())
        .args(["--interval", "200ms", "--window", "1s", "--log"])
        .arg(&log)
        .arg("--")
        .arg(crate::support::python())
        .args(["-S", "-c", script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let mut reader = csv::Reader::from_path(&log).unwrap();
    let rows = reader.deserialize().map(Result::unwrap);
    let rows = rows.filter(|row: &HashMap<String, String>| row["scope"] == "job" && row["kind"] == "window");
    (String::from_utf8_lossy(&output.stdout).into_owned(), rows.collect())
}

fn number(row: &HashMap<String, String>, column: &str) -> f64 {
    row[column].parse().unwrap_or_else(|_| panic!("{column} of {row:?}"))
}

#[test]
fn the_log_holds_the_cpu_of_short_children() {
    let (said, rows) = logged(
        "import os, resource, sys\n\
         burn = 'import time\\nwhile time.process_time() < 0.02: pass'\n\
         for _ in range(80):\n\
         \x20   os.spawnl(os.P_WAIT, sys.executable, 'python', '-S', '-c', burn)\n\
         used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]\n\
         print(sum(usage.ru_utime + usage.ru_stime for usage in used))",
    );
    let said: f64 = said.trim().parse().unwrap();
    assert!(said > 1.5, "{said}");
    let cpu = rows.iter().filter(|row| row["metric"] == "cpu_percent");
    let seconds: f64 = cpu.map(|row| number(row, "mean") / 100.0 * number(row, "window_s")).sum();
    assert!((seconds / said - 1.0).abs() < 0.1, "{seconds} of {said}");
}

#[test]
fn the_log_holds_the_peak_of_a_spike() {
    let (_, rows) = logged("x = b'x' * (400 << 20); del x");
    let rss = rows.iter().filter(|row| row["metric"] == "memory_rss");
    let peak = rss.filter(|row| !row["max"].is_empty()).map(|row| number(row, "max")).fold(0.0, f64::max);
    assert!(peak > 400.0 && peak < 440.0, "{peak}");
}

#[test]
fn one_busy_thread_is_one_core() {
    // The end comes a moment after a sample, and what the kernel then says is exact.
    for seconds in ["1.005", "1.205"] {
        let (said, rows) = logged(&format!(
            "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass\n\
             print(time.process_time())"
        ));
        let cpu: Vec<_> = rows.iter().filter(|row| row["metric"] == "cpu_percent").collect();
        let cpus = std::thread::available_parallelism().unwrap().get() as f64;
        for row in &cpu {
            // A tick of 10 ms more than 200 ms have.
            let whole = number(row, "window_s") > 0.1;
            let most = if whole { 106.0 } else { 100.0 * cpus };
            assert!(number(row, "max") <= most, "{} % of {} s", row["max"], row["window_s"]);
        }
        let used: f64 = cpu.iter().map(|row| number(row, "mean") / 100.0 * number(row, "window_s")).sum();
        let said: f64 = said.trim().parse().unwrap();
        // Beside what it says, the job has started and ended.
        assert!(used > said * 0.95 && used < said + 0.2, "{used} of {said}");
    }
}
