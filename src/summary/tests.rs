//! Summaries of made-up runs: figures, facts, wording, and the schema that programs rely on.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::model::device::{DeviceIdentity, Fact};
use crate::model::id::GpuUuid;
use crate::model::loss::{Loss, Losses};
use crate::model::metric::MetricId;
use crate::model::reading::Reason;
use crate::model::run::{JobExit, RunEnd, RunInfo};
use crate::model::series::SeriesInfo;
use crate::model::time::{Mono, Wall};
use crate::model::window::{Row, RowKind, Stats, WindowBatch};

use super::Totals;
use super::json::{LeftoverSummary, NotFiniteSummary, Summary, TargetSummary};
use super::text;

fn device() -> Arc<DeviceIdentity> {
    Arc::new(DeviceIdentity {
        index: 3,
        mig: None,
        cuda: Some(0),
        uuid: GpuUuid::new("GPU-12345678-0000"),
        name: Some("Card".to_owned()),
        memory_total: Some(80 << 30),
        facts: vec![
            ("retired_pages", Ok(Fact::Count(3))),
            ("ecc_mode", Ok(Fact::Flag(true))),
            ("nvlink_errors", Err(Reason::NotSupported)),
        ],
    })
}

fn row(metric: MetricId, device: Option<&Arc<DeviceIdentity>>, mean: Option<f64>, max: f64) -> Row {
    let series = SeriesInfo {
        metric,
        label: None,
        device: device.cloned(),
        process: None,
        pace: Duration::from_secs(1),
    };
    let max = mean.map(|_| max);
    let stats = Stats { mean, min: mean, max, last: max, samples: 10, missing: u32::from(mean.is_none()) };
    Row { series: Arc::new(series), stats }
}

fn window(window_s: f64, rows: Vec<Row>) -> WindowBatch {
    WindowBatch {
        kind: RowKind::Window,
        tag: "run".into(),
        occurrence: 1,
        epoch: None,
        step: None,
        rank: None,
        ordinal: 1,
        start: Mono(0),
        end: Mono(0),
        time: Wall(0),
        window_s,
        rows,
    }
}

fn run(devices: Vec<Arc<DeviceIdentity>>) -> RunInfo {
    RunInfo {
        run: "r".into(),
        host: "h".into(),
        rank: Some(0),
        node_rank: None,
        job: "python".into(),
        root_tag: "run".into(),
        argv: vec!["python".to_owned()],
        version: "0.1.0",
        driver: Some("580".to_owned()),
        devices,
        interval: Duration::from_secs(1),
        window: Duration::from_secs(10),
        start: Wall(0),
        start_mono: Mono(0),
        series: Vec::new(),
    }
}

fn end(exit: JobExit) -> RunEnd {
    RunEnd { exit: Some(exit), end: Wall(20_000_000), duration_s: 20.0 }
}

fn summary(windows: &[WindowBatch]) -> Summary {
    let mut totals = Totals::new(None);
    for window in windows {
        totals.add(window);
    }
    Summary::new(&run(vec![device()]), &end(JobExit::Code(0)), &totals, Vec::new(), Vec::new())
}

/// Sums of many windows round: 0.1 s of 200 W, time and again, is not 200 W on average.
#[test]
fn a_mean_lies_between_the_extremes() {
    let device = device();
    for watts in [200.0, 0.1, 61.7] {
        let windows: Vec<WindowBatch> = (1..50)
            .map(|n| {
                let row = row(MetricId::GpuPowerUsage, Some(&device), Some(watts), watts);
                window(10.0 / f64::from(n), vec![row])
            })
            .collect();
        assert_eq!(summary(&windows).gpus[0].power_w.mean, Some(watts));
    }
}

/// A summary in which everything is known.
fn full() -> Summary {
    let device = device();
    let rows = MetricId::ALL
        .iter()
        .filter(|id| id.get().scope.name() != "user")
        .flat_map(|id| [row(*id, None, Some(50.0), 99.0), row(*id, Some(&device), Some(50.0), 99.0)])
        .collect();
    let mut totals = Totals::new(None);
    totals.add(&window(10.0, rows));
    let target = TargetSummary {
        target: "x.csv".to_owned(),
        rows: 3,
        lost_rows: 1,
        error: Some("No space left on device".to_owned()),
    };
    let left = LeftoverSummary { pid: 7, command: "worker".to_owned(), gpu_memory_mib: Some(512.0) };
    let mut run = run(vec![device]);
    let mut slice = (*run.devices[0]).clone();
    slice.mig =
        Some(crate::model::device::MigPlace { index: 1, gpu_instance: Some(1), compute_instance: Some(0) });
    run.devices.push(Arc::new(slice));
    let mut summary = Summary::new(&run, &end(JobExit::Code(3)), &totals, vec![target], vec![left]);
    let mut losses = Losses::default();
    losses.add(Loss::ScalarNames, 476);
    summary.add_losses(&losses);
    summary.not_finite.push(NotFiniteSummary {
        name: "loss".to_owned(),
        count: 2,
        values: 9,
        step: Some(100),
    });
    summary
}

/// A summary in which nothing is known.
fn minimal() -> Summary {
    let mut run = run(Vec::new());
    (run.rank, run.driver) = (None, None);
    let mut device = (*device()).clone();
    (device.cuda, device.name, device.memory_total) = (None, None, None);
    run.devices = vec![Arc::new(device)];
    let target = TargetSummary { target: "x".to_owned(), rows: 0, lost_rows: 0, error: None };
    let left = LeftoverSummary { pid: 7, command: String::new(), gpu_memory_mib: None };
    let end = RunEnd { exit: None, ..end(JobExit::Code(0)) };
    Summary::new(&run, &end, &Totals::new(None), vec![target], vec![left])
}

#[test]
fn means_are_weighted_by_time_and_unknown_windows_do_not_count() {
    let device = device();
    let util = |mean, max| row(MetricId::GpuGpuUtilization, Some(&device), mean, max);
    let summary = summary(&[
        window(10.0, vec![util(Some(100.0), 100.0)]),
        window(30.0, vec![util(Some(20.0), 60.0)]),
        window(10.0, vec![util(None, 0.0)]),
    ]);
    let figures = summary.gpus[0].gpu_utilization;
    assert_eq!((figures.mean, figures.min, figures.max), (Some(40.0), Some(20.0), Some(100.0)));
    assert_eq!(summary.gpus[0].power_w.mean, None, "unknown is null");
    assert_eq!(summary.own.missing_reads, 1);
    assert_eq!(summary.own.windows, 3);
}

#[test]
fn rows_of_tags_and_steps_add_nothing() {
    let util = vec![row(MetricId::GpuGpuUtilization, Some(&device()), Some(90.0), 100.0)];
    let mut tag = window(10.0, util);
    tag.kind = RowKind::Tag;
    let summary = summary(&[tag]);
    assert_eq!((summary.own.windows, summary.gpus[0].gpu_utilization.mean), (0, None));
}

#[test]
fn energy_names_its_source() {
    let device = device();
    let counted = summary(&[window(10.0, vec![row(MetricId::GpuEnergy, Some(&device), Some(1.0), 840.0)])]);
    assert_eq!((counted.gpus[0].energy_j, counted.gpus[0].energy_source), (Some(840.0), Some("counter")));
    let rows = vec![row(MetricId::GpuEnergyFromPower, Some(&device), Some(1.0), 12_000.0)];
    let estimated = summary(&[window(10.0, rows)]);
    assert_eq!(estimated.gpus[0].energy_source, Some("power"));
    assert!(
        text::lines(&estimated)[1].contains("3.3 Wh (from power readings)"),
        "{:?}",
        text::lines(&estimated)
    );
}

#[test]
fn facts_are_told_when_they_hold_and_only_then() {
    let device = device();
    let gpu = |metric, mean, max| row(metric, Some(&device), Some(mean), max);
    let util = |mean, max| gpu(MetricId::GpuGpuUtilization, mean, max);
    let busy_host = || row(MetricId::HostCpuPercent, None, Some(97.0), 100.0);
    let cases: [(Vec<WindowBatch>, &[&str]); 9] = [
        (vec![window(10.0, vec![util(90.0, 100.0)])], &[]),
        (
            vec![window(10.0, vec![util(0.0, 0.0)])],
            &["GPU 3 was never used: utilisation was 0 % in every sample"],
        ),
        (
            vec![window(6.0, vec![util(1.0, 4.0)]), window(4.0, vec![util(90.0, 99.0)])],
            &["GPU 3 was idle (utilisation at most 5 %) for 60 % of the run"],
        ),
        (vec![window(4.0, vec![util(1.0, 4.0)]), window(6.0, vec![util(90.0, 99.0)])], &[]),
        (
            vec![window(10.0, vec![gpu(MetricId::GpuMemoryUsed, 100.0, 79_000.0)])],
            &["memory of GPU 3 was nearly full: 79000 of 81920 MiB"],
        ),
        (
            vec![window(100.0, vec![gpu(MetricId::GpuThrottledPower, 12.0, 50.0)])],
            &["clocks of GPU 3 were limited by its power limit for 12.0 s (12 % of the run)"],
        ),
        // Half a second in a hundred is no news.
        (vec![window(100.0, vec![gpu(MetricId::GpuThrottledThermal, 0.5, 50.0)])], &[]),
        (
            vec![window(10.0, vec![util(30.0, 60.0), busy_host()])],
            &[
                "GPU 3 may have waited for the CPUs: below 50 % while they were over 90 % busy, for 100 % of the run",
            ],
        ),
        (
            vec![window(10.0, vec![row(MetricId::HostMemoryPercent, None, Some(70.0), 96.5)])],
            &["memory of the host was nearly full: 96.5 %"],
        ),
    ];
    for (windows, facts) in cases {
        assert_eq!(summary(&windows).facts, facts, "{windows:?}");
    }
}

#[test]
fn scalars_that_are_not_finite_are_told_with_their_first_step() {
    let scalar = |name: &str, samples, missing| {
        let mut row = row(MetricId::UserValue, None, None, 0.0);
        let mut series = (*row.series).clone();
        series.label = Some(name.into());
        row.series = Arc::new(series);
        (row.stats.samples, row.stats.missing) = (samples, missing);
        row
    };
    let step = |step, missing| WindowBatch {
        kind: RowKind::Step,
        step: Some(step),
        ..window(1.0, vec![scalar("loss", 50 - missing, missing), scalar("lr", 50, 0)])
    };
    let mut windows =
        vec![window(10.0, vec![scalar("loss", 90, 60), scalar("lr", 150, 0), scalar("a", 0, 1)])];
    assert_eq!(
        summary(&windows).facts,
        ["scalars of the job were NaN or infinite: loss 60 of 150 times; a 1 of 1 times"]
    );
    windows.extend([step(50, 0), step(100, 10), step(150, 50)]);
    let told = summary(&windows);
    assert_eq!(
        told.facts,
        [
            "scalars of the job were NaN or infinite: loss 60 of 150 times, the first by step 100; a 1 of 1 times"
        ]
    );
    assert_eq!((told.not_finite[0].count, told.not_finite[1].step), (60, None));
}

#[test]
fn a_gpu_that_was_held_and_not_used_has_a_likely_reason() {
    let util = row(MetricId::GpuGpuUtilization, Some(&device()), Some(0.0), 0.0);
    let mut summary = summary(&[window(10.0, vec![util])]);
    summary.add_hold();
    assert_eq!(
        summary.facts,
        ["GPU 3 was held and never used: does the job set CUDA_VISIBLE_DEVICES itself?"]
    );
}

#[test]
fn a_gpu_whose_values_are_unknown_is_not_called_idle() {
    let unknown = row(MetricId::GpuGpuUtilization, Some(&device()), None, 0.0);
    assert!(summary(&[window(10.0, vec![unknown])]).facts.is_empty());
    assert!(minimal().facts.is_empty());
}

#[test]
fn a_job_that_held_memory_used_its_gpu() {
    let device = device();
    let rows = vec![
        row(MetricId::GpuGpuUtilization, Some(&device), Some(0.0), 0.0),
        row(MetricId::JobGpuMemory, Some(&device), Some(500.0), 500.0),
    ];
    assert_eq!(
        summary(&[window(10.0, rows)]).facts,
        ["GPU 3 was idle (utilisation at most 5 %) for 100 % of the run"]
    );
}

#[test]
fn the_text_says_the_end_in_words() {
    let words = |exit| super::build::exit_words(exit);
    assert_eq!(words(JobExit::Code(3)), "exited with status 3");
    assert_eq!(words(JobExit::Signal { signal: 9, core: false }), "killed by SIGKILL");
    assert_eq!(words(JobExit::Signal { signal: 11, core: true }), "killed by SIGSEGV, core dumped");
}

#[test]
fn the_text_of_a_full_summary_has_every_line() {
    let full = full();
    let parts = [text::lines(&full), text::warnings(&full), text::details(&full), text::troubles(&full)];
    let all = parts.concat().join("\n");
    for part in [
        "exited with status 3 after 20.0 s; CPU ",
        "GPU 3: util. 50 % (max 99 %), job memory 0.1/80.0 GiB, 50 W",
        "GPU 3:1",
        "clocks of GPU 3 were limited by its power limit",
        ", 99 processes",
        "host waited for CPU 50 %, for memory 50 %, for I/O 50 % of the time",
        "x.csv: 3 rows, 1 lost: No space left on device",
        "note: process 7 (worker) still held 512 MiB of GPU memory",
    ] {
        assert!(all.contains(part), "no {part:?} in\n{all}");
    }
}

/// A check of the few keywords that the schema uses; what a schema does not allow is listed.
fn check(schema: &Value, root: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        let definition = root.pointer(name.trim_start_matches('#'));
        return check(definition.expect("a definition for every reference"), root, value, at, wrong);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let fits = choices.iter().any(|choice| {
            let mut mistakes = Vec::new();
            check(choice, root, value, at, &mut mistakes);
            mistakes.is_empty()
        });
        if !fits {
            wrong.push(format!("{at}: {value} fits none of the choices"));
        }
        return;
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !(allowed.contains(&kind) || (kind == "integer" && allowed.contains(&"number"))) {
        wrong.push(format!("{at}: {kind} instead of {allowed:?}"));
    }
    if let Some(choices) = schema["enum"].as_array()
        && !choices.contains(value)
    {
        wrong.push(format!("{at}: {value} is not listed"));
    }
    for (place, item) in value.as_array().into_iter().flatten().enumerate() {
        check(&schema["items"], root, item, &format!("{at}[{place}]"), wrong);
    }
    if let Value::Object(fields) = value {
        let empty = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&empty);
        for (name, field) in fields {
            match properties.get(name) {
                Some(property) => check(property, root, field, &format!("{at}.{name}"), wrong),
                None => wrong.push(format!("{at}.{name} is not in the schema")),
            }
        }
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for name in properties.keys() {
            if !fields.contains_key(name) {
                wrong.push(format!("{at}.{name} is in the schema only"));
            }
            if !required.contains(&name.as_str()) {
                wrong.push(format!("{at}.{name} is always there but not required"));
            }
        }
    }
}

#[test]
fn what_was_not_recorded_is_counted_with_its_reason() {
    let lines = text::warnings(&full());
    assert!(
        lines.contains(&"not recorded: 476 scalars of the job: more than 16384 different names".to_owned())
    );
    assert!(!text::warnings(&minimal()).iter().any(|line| line.contains("not recorded")));
}

#[test]
fn summaries_and_their_schema_agree() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schemas/summary.v1.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for summary in [full(), minimal()] {
        let mut wrong = Vec::new();
        check(&schema, &schema, &serde_json::to_value(&summary).unwrap(), "summary", &mut wrong);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
    // The full one leaves nothing null that can be known, so that no type goes unchecked.
    let full = serde_json::to_value(full()).unwrap();
    assert_ne!(full["gpus"][1]["mig"], Value::Null);
    assert_ne!(full["gpus"][0]["power_w"]["mean"], Value::Null);
    // The checker itself can fail.
    let mut wrong = Vec::new();
    let mut odd = full;
    odd["gpus"][0]["index"] = json!("three");
    odd["extra"] = json!(1);
    odd.as_object_mut().unwrap().remove("host");
    check(&schema, &schema, &odd, "summary", &mut wrong);
    assert_eq!(wrong.len(), 3, "{wrong:?}");
}
