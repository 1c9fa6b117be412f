//! Known truths about GPUs, through the binary: what the simulated driver plays is what stands in the CSV.

use std::collections::BTreeMap;

use crate::logged::{Place, Row, Rows, Running, text, until};
use crate::transparency::harness;

/// The job: says where it is in `FILE` and ends with its input.
pub(crate) fn waiting_job(file: &str) -> Vec<String> {
    vec![harness::job().to_str().unwrap().to_owned(), "wait".to_owned(), file.to_owned()]
}

pub(crate) fn start(place: &Place, options: &[&str], job: &[String]) -> Running {
    let mut args: Vec<&str> = options.to_vec();
    args.push("--");
    args.extend(job.iter().map(String::as_str));
    Running::start(place, &args)
}

/// The pid that a `test-job wait FILE` has written.
pub(crate) fn pid_in(place: &Place, file: &str) -> i32 {
    until("the job is there", || {
        let text = std::fs::read_to_string(place.path(file)).ok()?;
        text.trim().strip_prefix("ready ")?.parse().ok()
    })
}

/// The last value of a window, with its time in seconds.
fn last_at(row: &Row<'_>) -> (f64, f64) {
    let time: jiff::Timestamp = row.text("time").parse().unwrap();
    (time.as_microsecond() as f64 / 1e6, row.number("last"))
}

/// The energy that the windows of a GPU used, in joules.
pub(crate) fn used(rows: &Rows, gpu: &str) -> f64 {
    let windows = rows.of(&format!("gpu/energy_used gpu={gpu}"));
    windows.iter().filter_map(|row| row.get("mean")).sum()
}

#[test]
fn a_square_wave_is_50_and_200_watts_are_200_joules_a_second() {
    // The wave turns in the middle between two samples: one that comes late still sees the half that is meant.
    let place = Place::new(
        r#"
[defaults]
memory_total = 81920
power = 200

[[gpu]]
memory_utilization = 10
gpu_utilization = { square = { low = 0, high = 100, period = 1, shift = 0.25 } }
energy = "from-power"

[[gpu]]
memory_utilization = 10
gpu_utilization = 30
"#,
    );
    let options = ["--interval", "500ms", "--window", "2s", "--log", "wave.csv"];
    let mut run = start(&place, &options, &waiting_job("ready"));
    let full = |rows: &Rows, series: &str| {
        let rows = rows.of(series).into_iter().map(|row| (row.number("window_s"), row.number("mean")));
        rows.filter(|(seconds, _)| (*seconds - 2.0).abs() < 1e-9).count()
    };
    until("four full windows", || {
        (full(&place.csv("wave.csv"), "gpu/gpu_utilization gpu=0") >= 4).then_some(())
    });
    assert!(run.end().success(), "{}", run.stderr());
    let rows = place.csv("wave.csv");
    let mut judged = 0;
    for row in rows.of("gpu/gpu_utilization gpu=0") {
        if (row.number("window_s") - 2.0).abs() > 1e-9 || row.number("missing") > 0.0 {
            continue;
        }
        judged += 1;
        assert_eq!((row.number("min"), row.number("max")), (0.0, 100.0));
        assert!((row.number("mean") - 50.0).abs() <= 8.0, "{}", row.number("mean"));
        assert!(row.number("samples") >= 3.0);
    }
    assert!(judged >= 2, "{judged} windows without a late sample");
    assert!(rows.of("gpu/gpu_utilization gpu=1").iter().all(|row| row.is_steady_at(30.0)));

    // By the card's counter, and where there is none by the integral of power, under a name of its own.
    for (series, absent) in [
        ("gpu/energy gpu=0", "gpu/energy_from_power gpu=0"),
        ("gpu/energy_from_power gpu=1", "gpu/energy gpu=1"),
    ] {
        let of = rows.of(series);
        let (first, last) = (last_at(&of[0]), last_at(&of[3]));
        let watts = (last.1 - first.1) / (last.0 - first.0);
        assert!((watts - 200.0).abs() < 10.0, "{series}: {watts} J/s");
        assert!(rows.of(absent).iter().all(|row| row.get("mean").is_none()), "{absent}");
        // The amounts of the windows add up to the total.
        let gpu = &series[series.len() - 1..];
        let used: f64 = used(&rows, gpu);
        let total = of.iter().filter_map(|row| row.get("last")).fold(0.0, f64::max);
        assert!((used - total).abs() < 1e-6 * total, "{series}: {used} J of {total} J");
    }
    for gpu in ["0", "1"] {
        let power = rows.of(&format!("gpu/power_usage gpu={gpu}"));
        assert!(power.iter().all(|row| row.is_steady_at(200.0)));
    }
}

#[test]
fn gpu_memory_of_the_job_is_the_sum_over_its_tree() {
    let place = Place::new(
        r#"
[defaults]
memory_total = 10000
gpu_utilization = 50

[[gpu]]
process = [{ pid_file = "DIR/on-0" }]

[[gpu]]
process = [{ pid_file = "DIR/on-1" }]

[[gpu]]
"#,
    );
    let job = harness::job().to_str().unwrap();
    // Two processes side by side, with the job's own input.
    let script = format!("exec 3<&0; {job} wait a <&3 & {job} wait b <&3 & wait");
    let options = ["--interval", "100ms", "--window", "500ms", "--log", "job.csv"];
    let mut run = start(&place, &options, &["sh".to_owned(), "-c".to_owned(), script]);
    let (a, b) = (pid_in(&place, "a"), pid_in(&place, "b"));
    let stranger = std::process::id();
    place.write("on-0", &format!("{a} 300 30\n{b} 500 40\n{stranger} 4000 20\n"));
    place.write("on-1", &format!("{b} 100 5\n"));
    let rows = until("a steady window of all of it", || {
        let rows = place.csv("job.csv");
        let total = rows.of("job/gpu_memory gpu=").into_iter().rev().find(|row| row.is_steady_at(900.0))?;
        let time = total.text("time").to_owned();
        let of = |series: &str| rows.of(&format!("{series} time={time}")).first().copied();
        // Utilisation is a mean over the driver's samples since the last look.
        let steady = of("job/gpu_sm_utilization gpu=0").is_some_and(|row| row.is_steady_at(70.0));
        let processes = of("process/gpu_memory gpu=1").is_some_and(|row| row.is_steady_at(100.0));
        (steady && processes).then_some((place.csv("job.csv"), time))
    });
    let (rows, time) = rows;
    let steady = |series: &str, value: f64| {
        let row = rows.only(&format!("{series} time={time}"));
        assert!(row.is_steady_at(value), "{series}: {} not {value}", row.number("mean"));
    };
    steady("job/gpu_memory gpu=0", 800.0);
    steady("job/gpu_memory gpu=1", 100.0);
    steady("job/gpu_memory gpu=2", 0.0);
    steady("job/gpu_sm_utilization gpu=1", 5.0);
    steady("job/gpu_sm_utilization gpu=2", 0.0);
    steady(&format!("process/gpu_memory gpu=0 pid={a}"), 300.0);
    steady(&format!("process/gpu_memory gpu=0 pid={b}"), 500.0);
    steady(&format!("process/gpu_memory_percent gpu=0 pid={b}"), 5.0);
    steady(&format!("process/gpu_sm_utilization gpu=0 pid={a}"), 30.0);
    assert_eq!(rows.only(&format!("process/gpu_memory gpu=1 time={time}")).text("process"), "test-job");
    assert!(!rows.has(&format!("process/gpu_memory pid={stranger}")), "it is nobody of ours");
    assert!(rows.has(&format!("process/memory_rss pid={a}")));
    assert!(run.end().success(), "{}", run.stderr());
}

#[test]
fn what_is_not_read_every_time_is_in_the_first_window_too() {
    let place = Place::new(
        r#"
[[gpu]]
memory_total = 10000
process = [{ pid_file = "DIR/on-0" }]

[[gpu]]
memory_total = 10000
process = [{ pid_file = "DIR/on-0" }]
"#,
    );
    let options = ["--metrics", "+pss", "--interval", "100ms", "--window", "300ms", "--log", "x.csv"];
    let mut run = start(&place, &options, &waiting_job("ready"));
    place.write("on-0", &format!("{} 300 5\n", pid_in(&place, "ready")));
    until("the job's memory", || {
        place.csv("x.csv").of("job/gpu_memory gpu=").last().filter(|row| row.is_steady_at(600.0)).map(|_| ())
    });
    assert!(run.end().success(), "{}", run.stderr());
    let rows = place.csv("x.csv");
    let windows = rows.of("job/processes").len();
    for series in ["job/memory_pss", "job/gpu_memory gpu=", "job/gpu_memory gpu=0", "job/gpu_memory gpu=1"] {
        let of = rows.of(series);
        assert_eq!(of.len(), windows, "{series}: a row from the first window on");
        assert!(of.iter().all(|row| row.get("mean").is_some()), "{series}: {:?}", of[0].get("mean"));
    }
    let pss = rows.of("job/memory_pss").iter().map(|row| row.number("max")).fold(0.0, f64::max);
    let rss = rows.of("job/memory_rss").iter().map(|row| row.number("max")).fold(0.0, f64::max);
    assert!(pss > 0.05 && pss <= rss, "{pss} of {rss} MiB");
}

#[test]
fn process_memory_that_the_driver_does_not_tell_is_null() {
    // WSL, and every WDDM card: processes are listed, their memory is not available.
    let place = Place::new(
        r#"
[[gpu]]
memory_total = 10000
memory_used = 3000
process = [{ pid_file = "DIR/pids" }]
"#,
    );
    let options = ["--interval", "100ms", "--window", "300ms", "--log", "wsl.csv"];
    let mut run = start(&place, &options, &waiting_job("ready"));
    let pid = pid_in(&place, "ready");
    place.write("pids", &format!("{pid}\n"));
    let rows = until("the process is listed", || {
        let rows = place.csv("wsl.csv");
        rows.of("job/gpu_memory gpu=0").iter().any(|row| row.number("missing") > 0.0).then_some(())?;
        rows.has("process/gpu_memory gpu=0").then_some(rows)
    });
    assert!(rows.of("process/gpu_memory gpu=0").iter().all(Row::is_null));
    assert!(rows.of("gpu/memory_used gpu=0").iter().all(|row| row.is_steady_at(3000.0)));
    let last = rows.of("job/gpu_memory gpu=0").pop().unwrap();
    assert!(last.get("max").is_none_or(|max| max == 0.0), "no use is made up");
    assert!(run.end().success());
}

/// One window of a ready scenario.
fn one_window(name: &str) -> (Rows, String) {
    let place = Place::ready(name);
    let output = place.output(&["--verbose", "--log", "x.csv", "--summary", "x.json", "--", "true"]);
    (place.csv("x.csv"), text(&output.stderr) + &std::fs::read_to_string(place.path("x.json")).unwrap())
}

#[track_caller]
fn values(rows: &Rows, gpu: &str, expected: &[(&str, f64)]) {
    for (metric, value) in expected {
        let row = rows.only(&format!("gpu/{metric} {gpu}"));
        assert!(row.is_steady_at(*value), "{metric} {gpu}: {:?} not {value}", row.get("mean"));
    }
}

#[track_caller]
fn nulls(rows: &Rows, gpu: &str, metrics: &[&str]) {
    for metric in metrics {
        assert!(rows.only(&format!("gpu/{metric} {gpu}")).is_null(), "{metric} {gpu}");
    }
}

#[test]
fn an_old_driver_serves_what_it_has() {
    let (rows, told) = one_window("old-driver");
    values(
        &rows,
        "gpu=0",
        &[
            ("gpu_utilization", 83.0),
            ("memory_utilization", 44.0),
            ("memory_used", 9216.0),
            ("memory_free", 16160.0 - 9216.0),
            ("memory_total", 16160.0),
            ("temperature", 38.0),
            ("memory_temperature", 36.0),
            ("power_usage", 231.0),
            ("power_limit", 300.0),
            ("sm_clock", 135.0),
            ("memory_clock", 877.0),
            ("encoder_utilization", 0.0),
            ("ecc_corrected", 0.0),
            ("ecc_uncorrected", 0.0),
        ],
    );
    nulls(&rows, "gpu=0", &["pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx", "fan_speed"]);
    assert!(rows.only("gpu/energy gpu=0").get("last").is_some());
    // Its processes are others'.
    assert!(rows.only("job/gpu_memory gpu=0").is_steady_at(0.0));
    assert!(!rows.has("process/gpu_memory"));
    let said = "pcie_tx, pcie_rx, nvlink_tx, nvlink_rx, fan_speed of gpu:0, gpu:1: not supported";
    assert_eq!(told.matches(said).count(), 1, "{told}");
    assert!(told.contains(r#""series": "gpu:1/fan_speed (%)""#) && told.contains("not supported"), "{told}");
}

#[test]
fn a_slice_has_its_own_memory_and_the_parent_the_rest() {
    let (rows, told) = one_window("mig-a100");
    let slice = "gpu=0 cuda=0";
    values(&rows, slice, &[("memory_used", 8200.0), ("memory_total", 19968.0)]);
    nulls(&rows, slice, &["gpu_utilization", "memory_utilization"]);
    for metric in ["power_usage", "temperature", "sm_clock", "energy"] {
        assert!(!rows.has(&format!("gpu/{metric} {slice}")), "{metric} of a slice is not invented");
        let parent = rows.only(&format!("gpu/{metric} gpu=0 cuda="));
        assert!(parent.text("uuid").starts_with("GPU-"), "the parent speaks under its own name");
    }
    values(&rows, "gpu=0 cuda=", &[("power_usage", 120.0), ("temperature", 41.0)]);
    assert!(!rows.has("gpu/memory_used gpu=0 cuda="), "the parent's memory is its slices'");
    assert!(rows.of("gpu/memory_used gpu=0").iter().all(|row| row.text("uuid").starts_with("MIG-")));
    assert_eq!(rows.of("gpu/memory_used gpu=0").len(), 3);
    values(&rows, "gpu=1", &[("gpu_utilization", 0.0), ("memory_used", 4.0)]);
    assert!(
        told.contains(
            "gpu_utilization, memory_utilization of gpu:(0, 0), gpu:(0, 1), gpu:(0, 3): not supported"
        ),
        "{told}"
    );
}

#[test]
fn unified_memory_is_the_hosts_and_its_use_the_processes() {
    let (rows, _) = one_window("gb10-unified");
    values(
        &rows,
        "gpu=0",
        &[
            ("memory_used", 20480.0),
            ("gpu_utilization", 37.0),
            ("memory_utilization", 0.0),
            ("temperature", 52.0),
            ("power_usage", 24.5),
            ("sm_clock", 2418.0),
        ],
    );
    nulls(&rows, "gpu=0", &["memory_clock", "memory_temperature", "power_limit", "fan_speed"]);
    let host = rows.only("host/memory_available").number("max") * 1024.0;
    let free = rows.only("gpu/memory_free gpu=0").number("max");
    assert!((free - host).abs() < 0.2 * host, "{free} of {host} MiB");
    assert!(rows.only("gpu/memory_total gpu=0").number("max") >= free);
}

#[test]
fn a_gpu_that_is_lost_at_the_start_is_named_and_harms_no_other() {
    let (rows, told) = one_window("lost-gpu");
    assert_eq!(told.matches("GPU 2 is not logged: the GPU is lost").count(), 1, "{told}");
    assert!(!rows.has("gpu/power_usage gpu=2"));
    for gpu in ["gpu=0", "gpu=1", "gpu=3"] {
        values(&rows, gpu, &[("power_usage", 60.0), ("memory_used", 4.0), ("temperature", 33.0)]);
    }
}

#[test]
fn a_gpu_that_is_lost_is_null_until_it_comes_back() {
    let place = Place::new(
        r#"
clock_file = "DIR/clock"

[defaults]
memory_total = 10000
power = 100
energy = "from-power"

[[gpu]]
temperature = 40

[[gpu]]
temperature = 50
lost_from = 10
lost_until = 20
"#,
    );
    place.write("clock", "5");
    let options = ["--interval", "100ms", "--window", "300ms", "--log", "lost.csv", "--summary", "lost.json"];
    let mut run = start(&place, &options, &waiting_job("ready"));
    let newest = |fits: &dyn Fn(&Row<'_>) -> bool| {
        let rows = place.csv("lost.csv");
        rows.of("gpu/temperature gpu=1").last().is_some_and(fits).then_some(())
    };
    until("values", || newest(&|row| row.is_steady_at(50.0)));
    place.write("clock", "15");
    until("a null window", || newest(&|row| row.is_null()));
    let said = run.stderr().matches("gpu:1: the GPU is lost").count();
    place.write("clock", "25");
    until("values again", || newest(&|row| row.is_steady_at(50.0)));
    assert!(run.end().success(), "{}", run.stderr());
    assert_eq!(said, 1, "{}", run.stderr());
    assert_eq!(run.stderr().matches("gpu:1: the GPU is lost").count(), 1);
    let rows = place.csv("lost.csv");
    let energies: Vec<f64> = rows.of("gpu/energy gpu=1").iter().filter_map(|row| row.get("last")).collect();
    // 5 s to 25 s at 100 W by the counter, which went on.
    assert!(energies.is_sorted() && energies.last() == Some(&2000.0), "{energies:?}");
    assert!(rows.of("gpu/temperature gpu=0").iter().all(|row| row.is_steady_at(40.0)), "its neighbour");
    let summary: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(place.path("lost.json")).unwrap()).unwrap();
    let null = summary["nulls"].as_array().unwrap().iter();
    let mut null = null.filter(|null| null["series"] == "gpu:1/temperature (C)");
    let null = null.next().expect("the gap is told");
    assert_eq!(null["reason"], "the GPU is lost");
    assert!(null["samples"].as_u64() > Some(0) && null["missing"].as_u64() > Some(0), "{null}");
}

#[test]
fn a_driver_that_is_reloaded_under_the_run_serves_again() {
    let place = Place::new(
        r#"
clock_file = "DIR/clock"
reload_at = [10]

[[gpu]]
memory_total = 10000
temperature = 40
power = 100
energy = { rate = 100, reset_at = [10] }
throttled_power = { rate = 0.25, reset_at = [10] }
"#,
    );
    place.write("clock", "5");
    let options = ["--interval", "100ms", "--window", "300ms", "--log", "reload.csv"];
    let mut run = start(&place, &options, &waiting_job("ready"));
    let windows = || place.csv("reload.csv").of("gpu/temperature gpu=0").len();
    until("two windows", || (windows() >= 2).then_some(()));
    place.write("clock", "8");
    let before = windows();
    until("two more", || (windows() >= before + 2).then_some(()));
    place.write("clock", "12");
    let before = windows();
    until("values after the reload", || {
        let rows = place.csv("reload.csv");
        let steady = rows.of("gpu/temperature gpu=0").last().is_some_and(|row| row.is_steady_at(40.0));
        (steady && windows() >= before + 2).then_some(())
    });
    place.write("clock", "13");
    let before = windows();
    until("two more", || (windows() >= before + 2).then_some(()));
    assert!(run.end().success(), "{}", run.stderr());
    let rows = place.csv("reload.csv");
    let energy: Vec<f64> = rows.of("gpu/energy gpu=0").iter().filter_map(|row| row.get("last")).collect();
    // 5 to 8 and 12 to 13: what the counter lost with the reload is nobody's to tell.
    assert!(energy.is_sorted() && energy.last() == Some(&400.0), "{energy:?}");
    assert!((used(&rows, "0") - 400.0).abs() < 1e-6, "{}", used(&rows, "0"));
    let throttled = rows.of("gpu/throttled_power gpu=0");
    assert!(throttled.iter().filter_map(|row| row.get("min")).all(|min| min >= 0.0), "no rate below 0");
}

#[test]
fn pids_of_another_namespace_are_nobodys() {
    // gpurun runs in a PID namespace of its own; NVML goes on speaking of the host's.
    let place = Place::new(
        r#"
[[gpu]]
memory_total = 10000
memory_used = 3000
process = [{ pid = 4000001, memory = 700, sm = 10 }, { pid = 4000002, memory = 900, sm = 10 }]
"#,
    );
    let gpurun = crate::support::gpurun().to_str().unwrap();
    let unshared = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", gpurun];
    let options = ["--log", "ns.csv", "--summary", "ns.json", "--", "true"];
    let args: Vec<&str> = unshared.into_iter().chain(options).collect();
    let output = place.program("unshare".as_ref(), &args).output().unwrap();
    let told = text(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert_eq!(told.matches("another PID namespace").count(), 1, "{told}");
    let rows = place.csv("ns.csv");
    assert!(rows.of("job/gpu_memory").iter().all(Row::is_null), "not 0: unknown");
    assert!(rows.of("job/gpu_sm_utilization").iter().all(Row::is_null));
    assert!(rows.only("gpu/memory_used gpu=0").is_steady_at(3000.0), "the device itself is known");
    assert!(rows.only("job/processes").number("max") >= 1.0);
    let summary = std::fs::read_to_string(place.path("ns.json")).unwrap();
    assert!(summary.contains("the process ids are of another PID namespace"), "{summary}");

    // `record --all` is then a record of nobody, which is not the same as of nothing.
    let options = ["record", "--duration", "300ms", "--interval", "100ms", "--log", "all.csv"];
    let args: Vec<&str> = unshared.into_iter().chain(options).collect();
    let output = place.program("unshare".as_ref(), &args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = place.csv("all.csv");
    for metric in ["processes", "memory_rss", "cpu_percent", "gpu_memory"] {
        assert!(rows.of(&format!("job/{metric}")).iter().all(Row::is_null), "{metric}");
    }
}

#[test]
fn eight_gpus_cost_seven_calls_each_a_sample() {
    let place = Place::ready("idle-8xa100");
    let job = waiting_job("ready");
    let options = ["--interval", "100ms", "--window", "1s", "--log", "cost.csv", "--"];
    let args: Vec<&str> = options.into_iter().chain(job.iter().map(String::as_str)).collect();
    let mut command = place.gpurun(&args);
    place.driver.log_calls(&mut command);
    let mut run = Running::spawn(&place, command);
    until("two windows", || (place.csv("cost.csv").of("gpu/power_usage gpu=7").len() >= 2).then_some(()));
    assert!(run.end().success(), "{}", run.stderr());

    let calls = place.driver.calls();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let first = calls.iter().position(|call| call.function == "nvmlDeviceGetUtilizationRates").unwrap();
    for call in calls[first..].iter().filter(|call| call.gpu.is_some()) {
        *counts.entry(&call.function).or_default() += 1;
    }
    let frames = counts["nvmlDeviceGetUtilizationRates"] / 8;
    assert!(frames >= 20, "{frames}");
    let cheap = [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetPowerUsage",
    ];
    for function in cheap {
        assert_eq!(counts.remove(function), Some(8 * frames), "{function}");
    }
    assert_eq!(counts.remove("nvmlDeviceGetClockInfo"), Some(2 * 8 * frames), "SM and memory");
    // What is expensive is read in the first frame, every five seconds (lists: two), and in the last frame.
    let seconds = (calls[calls.len() - 1].monotonic_ns - calls[first].monotonic_ns) as f64 / 1e9;
    let most = 8 * (3 + (seconds / 2.0) as usize);
    for (function, count) in &counts {
        let both = if function.contains("EccErrors") { 2 } else { 1 };
        assert!(*count <= both * most, "{function} {count} times in {seconds} s");
    }
    assert!(!counts.keys().any(|function| function.contains("PcieThroughput")), "it blocks for 20 ms");
    assert!(!counts.contains_key("nvmlDeviceGetProcessUtilization"), "with nobody there is nothing to ask");
    // A fan that is not there is asked for once.
    assert!(counts.get("nvmlDeviceGetFanSpeed").is_none_or(|count| *count <= 8), "{counts:?}");
}
