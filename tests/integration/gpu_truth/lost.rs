//! GPUs that are lost and drivers that are reloaded.

use super::*;

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
    assert!(rows.of("gpu/temperature gpu=0").iter().all(|row| row.number("missing") == 0.0));
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
