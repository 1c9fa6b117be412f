//! GPM through the binary: what the simulated counters say is what stands in the CSV.

use crate::logged::{Place, Rows, Running, text, until};
use crate::transparency::harness;

/// Runs until `ready` finds what it looks for in the rows; those rows, and what gpurun said.
fn run(place: &Place, options: &[&str], ready: impl Fn(&Rows) -> bool) -> (Rows, String) {
    let job = harness::job().to_str().unwrap();
    let paces = ["--verbose", "--interval", "150ms", "--window", "600ms", "--log", "x.csv"];
    let mut run = Running::start(place, &[&paces, options, &["--", job, "wait", "there"]].concat());
    until("the rows", || ready(&place.csv("x.csv")).then_some(()));
    assert!(run.end().success(), "{}", run.stderr());
    (place.csv("x.csv"), run.stderr())
}

fn calls(place: &Place, family: &str) -> usize {
    let log = std::fs::read_to_string(place.path("calls")).unwrap();
    log.lines().filter(|line| line.split(' ').nth(3).is_some_and(|name| name.starts_with(family))).count()
}

const HOPPER: &str = r#"
[[gpu]]
memory_total = 81920
temperature = 40
gpm = { sm_utilization = 88, sm_occupancy = 41.5, integer_active = 12, tensor_active = 52, dram_active = 58, fp64_active = 0, fp32_active = 9, fp16_active = 4 }
"#;

const NAMES: [(&str, f64); 8] = [
    ("sm_utilization", 88.0),
    ("sm_occupancy", 41.5),
    ("tensor_active", 52.0),
    ("dram_active", 58.0),
    ("fp64_active", 0.0),
    ("fp32_active", 9.0),
    ("fp16_active", 4.0),
    ("integer_active", 12.0),
];

#[test]
fn the_log_holds_how_well_a_gpu_is_used() {
    let place = Place::new(&format!(
        "{HOPPER}\n[[gpu]]\nmemory_total = 40960\ntemperature = 40\n[[gpu]]\nmemory_total = 8192\nmig = [{{ gpu_instance = 3, memory_total = 4096, gpm = {{ tensor_active = 17 }} }}]\n"
    ));
    let known = |rows: &Rows, series: &str| rows.of(series).iter().any(|row| row.get("mean").is_some());
    let full =
        |rows: &Rows| known(rows, "gpu/integer_active gpu=0") && known(rows, "gpu/tensor_active gpu=2");
    let (rows, said) = run(&place, &[], full);
    for (name, percent) in NAMES {
        let of = rows.of(&format!("gpu/{name} gpu=0"));
        let known: Vec<_> = of.iter().filter(|row| row.get("mean").is_some()).collect();
        assert!(!known.is_empty(), "{name}");
        assert!(known.iter().all(|row| (row.number("mean") - percent).abs() < 1e-9), "{name}");
        assert!(!rows.has(&format!("gpu/{name} gpu=1")), "a card of before Hopper has no rows of {name}");
    }
    // Nothing is said of cards that have none; the slice has one of the eight.
    let lacking: Vec<_> = said.lines().filter(|line| line.contains("sm_utilization")).collect();
    assert!(lacking.len() == 1 && lacking[0].ends_with(" of gpu:(2, 0): not supported"), "{said}");
    let slice = rows.of("gpu/tensor_active gpu=2");
    let means: Vec<f64> = slice.iter().filter_map(|row| row.get("mean")).collect();
    assert!(
        !means.is_empty() && means.iter().all(|mean| (mean - 17.0).abs() < 1e-9),
        "the slice's: {means:?}"
    );
}

#[test]
fn without_the_group_the_counters_are_left_alone() {
    let place = Place::new(HOPPER);
    let mut command = place.gpurun(&["--metrics", "-gpm", "--log", "x.csv", "--", "true"]);
    let output = command.env("GPURUN_FAKE_NVML_LOG", place.path("calls")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(calls(&place, "nvmlDeviceGetMemoryInfo") > 0);
    assert_eq!(calls(&place, "nvmlGpm"), 0);
    let rows = place.csv("x.csv");
    assert!(rows.has("gpu/temperature gpu=0") && !rows.has("gpu/sm_utilization gpu=0"));
}

#[test]
fn the_samples_are_given_back_before_the_driver_is_shut_down() {
    let place = Place::new(HOPPER);
    let mut command = place.gpurun(&["--interval", "150ms", "--log", "x.csv", "--", "sleep", "0.5"]);
    let output = command.env("GPURUN_FAKE_NVML_LOG", place.path("calls")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let log = std::fs::read_to_string(place.path("calls")).unwrap();
    assert_eq!((calls(&place, "nvmlGpmSampleAlloc"), calls(&place, "nvmlGpmSampleFree")), (2, 2), "{log}");
    let frees: Vec<_> = log.lines().filter(|line| line.contains("nvmlGpmSampleFree")).collect();
    assert!(frees.iter().all(|line| line.ends_with(" 0")), "{frees:?}");
}

#[test]
fn counters_that_a_profiler_holds_are_null_and_said_once() {
    let place = Place::new(&format!(
        "{HOPPER}\n[[fault]]\nfunction = \"nvmlGpmSampleGet\"\nerror = \"IN_USE\"\nwhile_exists = \"DIR/profiler\"\n"
    ));
    place.write("profiler", "");
    let (rows, said) = run(&place, &[], |rows| rows.of("gpu/tensor_active gpu=0").len() >= 3);
    for (name, _) in NAMES {
        let of = rows.of(&format!("gpu/{name} gpu=0"));
        assert!(of.iter().all(|row| row.get("mean").is_none()), "{name}");
        assert!(of.iter().any(|row| row.number("missing") > 0.0), "{name}");
    }
    assert!(rows.of("gpu/temperature gpu=0").iter().all(|row| row.is_steady_at(40.0)));
    let lines: Vec<_> = said.lines().filter(|line| line.contains("holds the counters")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(NAMES.iter().all(|(name, _)| lines[0].contains(name)), "{said}");
}
