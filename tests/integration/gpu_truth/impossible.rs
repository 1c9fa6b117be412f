//! Values that cannot be, and counters that jump.

use super::*;

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
