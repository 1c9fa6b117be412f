//! What the driver says and cannot be, through the binary: it is unknown, never a value.

use crate::gpu_truth::{start, used, waiting_job};
use crate::logged::{Place, Row, text, until};

/// Ten seconds in, everything that the driver says is impossible, for a second.
const NOISE: &str = r#"
clock_file = "DIR/clock"

[defaults]
memory_total = 10000
memory_used = [[0, 500], [10, 4e9], [11, 500]]
gpu_utilization = [[0, 50], [10, 4e9], [11, 50]]
memory_utilization = [[0, 20], [10, 101], [11, 20]]
encoder_utilization = [[0, 20], [10, 4e9], [11, 20]]
decoder_utilization = [[0, 20], [10, 4e9], [11, 20]]
temperature = [[0, 40], [10, 255], [11, 40]]
memory_temperature = [[0, 50], [10, 4e9], [11, 50]]
power = [[0, 100], [10, 4294967.295], [11, 100]]
power_limit = [[0, 400], [10, 4294967.295], [11, 400]]
fan_speed = [[0, 30], [10, 65535], [11, 30]]
sm_clock = [[0, 1400], [10, 4e9], [11, 1400]]
memory_clock = [[0, 1593], [10, 4e9], [11, 1593]]
max_sm_clock = 1410
max_memory_clock = 1593
ecc_volatile_corrected = [[0, 3], [10, 1.8e19], [11, 3]]
ecc_volatile_uncorrected = [[0, 0], [10, 1.8e19], [11, 0]]
throttled_power = [[0, 100], [10, 1e9], [11, 100]]
throttled_thermal = [[0, 100], [10, 0], [11, 100]]
pcie_tx = [[0, 1e15], [10, 0], [11, 1e15]]
pcie_rx = [[0, 1e12], [10, 1.8e19], [11, 1e12]]
nvlink = [1, 1]
nvlink_tx = [[0, 1e12], [10, 1.8e19], [11, 1e12]]
nvlink_rx = [[0, 1e15], [10, 0], [11, 1e15]]

[[gpu]]
energy = [[0, 1e9], [10, 0], [11, 1000000105]]

[[gpu]]
energy = [[0, 1e9], [10, 1.8e16], [11, 1000000105]]

[[gpu]]
"#;

#[test]
fn what_cannot_be_is_unknown_and_no_total_jumps() {
    let place = Place::new(NOISE);
    place.write("clock", "5");
    let options = ["--interval", "100ms", "--window", "300ms", "--log", "x.csv", "--summary", "x.json"];
    let mut run = start(&place, &options, &waiting_job("ready"));
    let newest = |fits: &dyn Fn(&Row<'_>) -> bool| {
        let rows = place.csv("x.csv");
        ["0", "1", "2"]
            .iter()
            .all(|gpu| rows.of(&format!("gpu/power_usage gpu={gpu}")).last().is_some_and(fits))
            .then_some(())
    };
    let good = |row: &Row<'_>| row.is_steady_at(100.0) && row.number("missing") == 0.0;
    until("good values", || newest(&good));
    place.write("clock", "10");
    until("nothing but noise", || newest(&|row| row.is_null()));
    place.write("clock", "11");
    until("good values again", || newest(&good));
    assert!(run.end().success(), "{}", run.stderr());

    let rows = place.csv("x.csv");
    let steady = [
        ("memory_used", 500.0),
        ("memory_total", 10_000.0),
        ("gpu_utilization", 50.0),
        ("memory_utilization", 20.0),
        ("encoder_utilization", 20.0),
        ("decoder_utilization", 20.0),
        ("temperature", 40.0),
        ("memory_temperature", 50.0),
        ("power_usage", 100.0),
        ("power_limit", 400.0),
        ("fan_speed", 30.0),
        ("sm_clock", 1400.0),
        ("memory_clock", 1593.0),
        ("ecc_corrected", 3.0),
        ("ecc_uncorrected", 0.0),
        ("throttled_power", 0.0),
        ("throttled_thermal", 0.0),
        ("pcie_tx", 0.0),
        ("pcie_rx", 0.0),
        ("nvlink_tx", 0.0),
        ("nvlink_rx", 0.0),
    ];
    for (metric, value) in steady {
        let all = rows.of(&format!("gpu/{metric}"));
        assert!(all.iter().any(|row| row.is_steady_at(value)), "{metric} is never known");
        for row in all {
            assert!(row.is_steady_at(value) || row.get("mean").is_none(), "{metric}: {:?}", row.get("mean"));
        }
    }
    for gpu in ["0", "1"] {
        let energy = rows.of(&format!("gpu/energy gpu={gpu}"));
        let energy: Vec<f64> = energy.iter().filter_map(|row| row.get("last")).collect();
        // Whether a counter that stands elsewhere for a while has begun anew there is not known.
        assert!(
            energy.is_sorted() && energy.iter().all(|joules| [0.0, 105.0].contains(joules)),
            "{energy:?}"
        );
        assert!([0.0, 105.0].contains(&used(&rows, gpu)), "{} J", used(&rows, gpu));
    }
    let from_power = rows.of("gpu/energy_from_power gpu=2");
    let windows: f64 = from_power.iter().map(|row| row.number("window_s")).sum();
    assert!(from_power.iter().filter_map(|row| row.get("last")).all(|joules| joules <= 100.0 * windows));
    let summary = std::fs::read_to_string(place.path("x.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    for metric in ["power_usage (W)", "temperature (C)", "sm_clock (MHz)", "energy (J)"] {
        let mut nulls = summary["nulls"].as_array().unwrap().iter();
        let null = nulls.find(|null| null["series"] == format!("gpu:0/{metric}"));
        assert_eq!(null.expect(metric)["reason"], "an impossible value", "{metric}");
    }
    assert_eq!(summary["gpus"][0]["power_w"]["max"], 100.0);
}

#[test]
fn an_energy_counter_that_is_wrong_once_costs_nothing() {
    // The noise is shorter than the time between two reads.
    let place = Place::new(
        r#"
[[gpu]]
memory_total = 10000
energy = [[0, 1e9], [1.0, 0], [1.1, 1000000105], [1.5, 1e16], [1.6, 1000000150]]
"#,
    );
    let options = ["--interval", "200ms", "--window", "400ms", "--log", "x.csv"];
    let mut run = start(&place, &options, &waiting_job("ready"));
    until("the last value", || {
        place
            .csv("x.csv")
            .of("gpu/energy gpu=0")
            .last()
            .filter(|row| row.get("last") == Some(150.0))
            .map(|_| ())
    });
    assert!(run.end().success(), "{}", run.stderr());
    let rows = place.csv("x.csv");
    let energy: Vec<f64> = rows.of("gpu/energy").iter().filter_map(|row| row.get("last")).collect();
    assert!(energy.is_sorted() && energy.last() == Some(&150.0), "{energy:?}");
    assert!((used(&rows, "0") - 150.0).abs() < 1e-6, "{} J", used(&rows, "0"));
}

#[test]
fn a_process_that_cannot_be_sized_is_there_all_the_same() {
    let place = Place::new(
        r#"
[[gpu]]
memory_total = 10000
memory_used = 0
gpu_utilization = 0
process = [{ pid = 4000001, memory = 10001 }]
"#,
    );
    for constraint in [&["--idle"][..], &["--max-processes", "0"]] {
        let args = [&["select"][..], constraint].concat();
        let output = place.gpurun(&args).output().unwrap();
        assert_eq!(text(&output.stdout).trim(), "", "{constraint:?} takes it");
    }
    let output = place.gpurun(&["devices", "--json"]).output().unwrap();
    let devices: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let processes = &devices["devices"][0]["processes"];
    assert_eq!(processes.as_array().map(Vec::len), Some(1), "{devices}");
    assert_eq!(processes[0]["pid"], 4_000_001, "{devices}");
}

#[test]
fn throttled_time_is_never_more_than_all_of_it() {
    let place = Place::new(
        r#"
[[gpu]]
memory_total = 10000
throttled_power = { rate = 1 }
throttled_thermal = { rate = { square = { low = 0, high = 2, period = 0.2 } } }
"#,
    );
    let options = ["--interval", "100ms", "--window", "300ms", "--log", "x.csv"];
    let mut run = start(&place, &options, &waiting_job("ready"));
    until("six windows", || (place.csv("x.csv").of("gpu/throttled_power gpu=0").len() >= 6).then_some(()));
    assert!(run.end().success(), "{}", run.stderr());
    let rows = place.csv("x.csv");
    for metric in ["throttled_power", "throttled_thermal"] {
        for row in rows.of(&format!("gpu/{metric}")) {
            let values = ["mean", "min", "max", "last"].map(|column| row.get(column).unwrap_or(0.0));
            assert!(values.iter().all(|value| (0.0..=100.0).contains(value)), "{metric}: {values:?}");
        }
    }
    let means: Vec<f64> = rows.of("gpu/throttled_power").iter().filter_map(|row| row.get("mean")).collect();
    assert!(means.iter().any(|mean| *mean > 95.0), "{means:?}");
}

#[test]
fn what_is_asked_for_and_expensive_is_expected_at_its_own_pace() {
    let place = Place::new(
        r#"
[[gpu]]
memory_total = 10000
pcie_rx = { rate = 1048576e3 }
"#,
    );
    let options =
        ["--metrics", "+pcie_rx_sampled", "--interval", "100ms", "--window", "300ms", "--log", "x.csv"];
    let mut run = start(&place, &options, &waiting_job("ready"));
    until("six windows", || (place.csv("x.csv").of("gpu/pcie_rx_sampled gpu=0").len() >= 6).then_some(()));
    assert!(run.end().success(), "{}", run.stderr());
    for row in place.csv("x.csv").of("gpu/pcie_rx_sampled") {
        assert_eq!(row.number("missing"), 0.0);
        assert!((row.number("mean") - 1000.0).abs() < 1.0, "{}", row.number("mean"));
    }
}

#[test]
fn a_driver_that_does_not_find_its_own_uuids_serves_by_index() {
    let place = Place::new(
        r#"
[defaults]
memory_total = 10000

[[gpu]]
power = 100

[[gpu]]
power = 200

[[fault]]
function = "nvmlDeviceGetHandleByUUID"
error = "NOT_FOUND"
"#,
    );
    let output = place.output(&["--log", "x.csv", "--", "true"]);
    let rows = place.csv("x.csv");
    assert!(rows.only("gpu/power_usage gpu=0").is_steady_at(100.0), "{}", text(&output.stderr));
    assert!(rows.only("gpu/power_usage gpu=1").is_steady_at(200.0), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("lost"), "{}", text(&output.stderr));
}

#[test]
fn two_cards_with_one_uuid_are_told_apart() {
    let place = Place::new(
        r#"
[defaults]
memory_total = 10000
uuid = "GPU-11111111-2222-3333-4444-555555555555"

[[gpu]]
power = 100

[[gpu]]
power = 200
"#,
    );
    let output = place.output(&["--log", "x.parquet", "--log", "x.csv", "--summary", "x.json", "--", "true"]);
    let said = text(&output.stderr);
    assert_eq!(said.matches("gpu:0, gpu:1 have the same UUID").count(), 1, "{said}");
    let rows = place.csv("x.csv");
    assert!(rows.only("gpu/power_usage gpu=0").is_steady_at(100.0));
    assert!(rows.only("gpu/power_usage gpu=1").is_steady_at(200.0));
    let summary: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(place.path("x.json")).unwrap()).unwrap();
    for (gpu, watts) in [(0, 100.0), (1, 200.0)] {
        let mean = summary["gpus"][gpu]["power_w"]["mean"].as_f64().unwrap();
        assert!((mean - watts).abs() < 1e-6, "{mean} W of GPU {gpu}");
    }
    let report = text(&place.output(&["report", "x.parquet"]).stdout);
    for (gpu, watts) in [("GPU 0", "100 W"), ("GPU 1", "200 W")] {
        assert!(report.lines().any(|line| line.contains(gpu) && line.contains(watts)), "{report}");
    }
}

#[test]
fn a_gpu_in_mig_mode_without_slices_is_listed_with_the_reason() {
    let place = Place::new(
        r#"
[defaults]
memory_total = 10000
memory_used = 0

[[gpu]]
mig_mode = 1

[[gpu]]
"#,
    );
    let why = "MIG mode is on and there are no slices";
    let devices = place.output(&["devices", "--json"]);
    let devices: serde_json::Value = serde_json::from_slice(&devices.stdout).unwrap();
    assert_eq!(devices["devices"].as_array().map(Vec::len), Some(2), "{devices}");
    assert_eq!(devices["devices"][0]["unreadable"]["uuid"], why, "{devices}");
    assert!(text(&place.output(&["devices"]).stdout).contains(why));
    assert_eq!(text(&place.output(&["select", "--min-count", "1"]).stdout).trim(), "1");
    let explained = place.gpurun(&["select", "-c", "2", "--explain"]).output().unwrap();
    let explained = text(&explained.stderr) + &text(&explained.stdout);
    assert!(explained.contains(why), "{explained}");
    // A run that watches all GPUs says which one it cannot.
    let output = place.output(&["--log", "x.csv", "--", "true"]);
    let said = text(&output.stderr);
    assert_eq!(said.matches(&format!("GPU 0 is not logged: {why}")).count(), 1, "{said}");
    assert!(place.csv("x.csv").only("gpu/memory_used gpu=1").is_steady_at(0.0));
}

#[test]
fn a_gpu_that_is_lost_for_most_of_a_run_is_not_called_unused() {
    let place = Place::new(
        r#"
clock_file = "DIR/clock"

[[gpu]]
memory_total = 10000
memory_used = 0
gpu_utilization = 0
lost_from = 10
"#,
    );
    place.write("clock", "5");
    let options = ["--interval", "100ms", "--window", "500ms", "--log", "x.csv", "--summary", "x.json"];
    let mut run = start(&place, &options, &waiting_job("ready"));
    let windows = || place.csv("x.csv").of("gpu/memory_used gpu=0").len();
    until("a window", || (windows() >= 1).then_some(()));
    place.write("clock", "15");
    // A shorter run is not judged.
    until("five seconds and more", || (windows() >= 13).then_some(()));
    assert!(run.end().success(), "{}", run.stderr());
    let said = run.stderr();
    assert!(!said.contains("never used") && !said.contains("was idle"), "{said}");
    let note = said.lines().find(|line| line.contains("GPU 0: the GPU is lost, since")).expect(&said);
    assert!(note.contains("% of the run"), "{said}");
    let summary: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(place.path("x.json")).unwrap()).unwrap();
    let gpu = &summary["gpus"][0];
    assert_eq!(gpu["silent_why"], "the GPU is lost");
    let (silent, since) = (gpu["silent_s"].as_f64().unwrap(), gpu["silent_since_s"].as_f64().unwrap());
    let duration = summary["duration_s"].as_f64().unwrap();
    assert!((silent + since - duration).abs() < 1e-6, "{silent} s since {since} s in {duration} s");
    assert!(since >= 0.5 && silent > duration / 2.0, "{silent} s since {since} s");
}

#[test]
fn a_missing_proc_is_named_as_what_is_missing() {
    let place = Place::new("[[gpu]]\nmemory_total = 10000\nmemory_used = 0\n");
    std::fs::create_dir(place.path("leases")).unwrap();
    let gpurun = crate::support::gpurun().to_str().unwrap();
    let script = format!(
        "mount -t tmpfs none /proc || exit 99
        {gpurun} -n 1 --log x.csv -- true; echo $?
        {gpurun} --log x.csv -- true; echo $?"
    );
    let unshared = ["--user", "--map-root-user", "--mount", "sh", "-c", &script];
    let output = place.program("unshare".as_ref(), &unshared).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(text(&output.stdout), "125\n0\n", "{said}");
    assert!(said.contains("cannot hold GPUs: /proc is not mounted"), "{said}");
    assert!(said.contains("cannot read /proc: it is not mounted"), "{said}");
    assert!(!said.contains("lease directory"), "{said}");
}
