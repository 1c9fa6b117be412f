//! The shape of the replies: rows in, JSON out. Never computes a number.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::model::device::DeviceIdentity;
use crate::model::metric::Scope;
use crate::model::run::RunInfo;
use crate::model::series::SeriesInfo;
use crate::model::time::Wall;
use crate::model::window::{Stats, WindowBatch};

/// The reply to `snapshot`: the run's devices, host and job with the statistics of one window.
///
/// `time` is seconds since the Unix epoch, `window_s` seconds. Every device of the run is listed, also
/// one without a single value; a value that is unknown is null.
pub fn snapshot(run: &RunInfo, window: &WindowBatch) -> Value {
    let mut gpus: Vec<Value> = Vec::with_capacity(run.devices.len());
    for device in &run.devices {
        let rows = window.rows.iter().filter(|row| {
            row.series.scope() == Scope::Gpu
                && row.series.device.as_ref().is_some_and(|d| d.uuid == device.uuid)
        });
        let mut gpu = device_head(device);
        gpu.insert("metrics".to_owned(), metrics(rows.map(|row| (&row.series, &row.stats))));
        gpus.push(Value::Object(gpu));
    }
    json!({
        "time": unix_seconds(window.time),
        "window_s": window.window_s,
        "window": window.ordinal,
        "run": &*run.run,
        "hostname": &*run.host,
        "rank": run.rank,
        "argv": run.argv,
        "driver": run.driver,
        "start": unix_seconds(run.start),
        "gpus": gpus,
        "host": {"metrics": whole(window, Scope::Host)},
        "job": {"metrics": whole(window, Scope::Job), "gpus": per_device(run, window, Scope::Job, None)},
        "gpurun": {"metrics": whole(window, Scope::Gpurun)},
        "processes": processes(run, window),
    })
}

/// The reply to `collect`: nvitop's flat keys, `<tag>/<scope>/<metric (unit)>/<mean|min|max|last>`.
///
/// `tag_path` is the full path of the innermost open tag (`run/train`), `duration_s` its age in seconds.
pub fn collected(tag_path: &str, duration_s: f64, rows: &[(Arc<SeriesInfo>, Stats)]) -> Value {
    let mut flat = Map::new();
    for (series, stats) in rows {
        let key = series.key();
        for (name, value) in statistics(stats) {
            flat.insert(format!("{tag_path}/{key}/{name}"), number(value));
        }
    }
    flat.insert(format!("{tag_path}/duration (s)"), json!(duration_s));
    json!({"tag": tag_path, "duration_s": duration_s, "metrics": flat})
}

fn statistics(stats: &Stats) -> [(&'static str, Option<f64>); 4] {
    [("mean", stats.mean), ("min", stats.min), ("max", stats.max), ("last", stats.last)]
}

/// JSON has no NaN: what is not finite is null as well.
fn number(value: Option<f64>) -> Value {
    value.map_or(Value::Null, Value::from)
}

// Microseconds since the epoch stay exact in an f64 for another two centuries.
fn unix_seconds(at: Wall) -> f64 {
    at.0 as f64 / 1e6
}

fn metrics<'a>(rows: impl Iterator<Item = (&'a Arc<SeriesInfo>, &'a Stats)>) -> Value {
    let mut all = Map::new();
    for (series, stats) in rows {
        let mut entry: Map<String, Value> =
            statistics(stats).into_iter().map(|(name, value)| (name.to_owned(), number(value))).collect();
        entry.insert("samples".to_owned(), stats.samples.into());
        entry.insert("missing".to_owned(), stats.missing.into());
        all.insert(series.name_with_unit(), Value::Object(entry));
    }
    Value::Object(all)
}

/// The metrics of a scope as a whole.
fn whole(window: &WindowBatch, scope: Scope) -> Value {
    let rows = window.rows.iter().filter(|row| row.series.scope() == scope && row.series.device.is_none());
    metrics(rows.map(|row| (&row.series, &row.stats)))
}

/// The metrics of a scope (or of one process) that have one series a GPU.
fn per_device(run: &RunInfo, window: &WindowBatch, scope: Scope, pid: Option<i32>) -> Vec<Value> {
    let mut gpus = Vec::new();
    for device in &run.devices {
        let rows: Vec<_> = window
            .rows
            .iter()
            .filter(|row| {
                row.series.scope() == scope
                    && row.series.process.as_ref().map(|p| p.key.pid) == pid
                    && row.series.device.as_ref().is_some_and(|d| d.uuid == device.uuid)
            })
            .map(|row| (&row.series, &row.stats))
            .collect();
        if rows.is_empty() {
            continue;
        }
        let mut gpu = device_head(device);
        gpu.insert("metrics".to_owned(), metrics(rows.into_iter()));
        gpus.push(Value::Object(gpu));
    }
    gpus
}

fn processes(run: &RunInfo, window: &WindowBatch) -> Vec<Value> {
    let mut seen = Vec::new();
    for row in &window.rows {
        if let Some(process) = &row.series.process
            && !seen.iter().any(|(key, _)| *key == process.key)
        {
            seen.push((process.key, Arc::clone(&process.name)));
        }
    }
    seen.into_iter()
        .map(|(key, name)| {
            let rows = window.rows.iter().filter(|row| {
                row.series.device.is_none() && row.series.process.as_ref().is_some_and(|p| p.key == key)
            });
            json!({
                "pid": key.pid,
                "name": &*name,
                "metrics": metrics(rows.map(|row| (&row.series, &row.stats))),
                "gpus": per_device(run, window, Scope::Process, Some(key.pid)),
            })
        })
        .collect()
}

fn device_head(device: &DeviceIdentity) -> Map<String, Value> {
    let mut head = Map::new();
    head.insert("gpu".to_owned(), device.index.into());
    head.insert("mig".to_owned(), device.mig.map_or(Value::Null, |place| place.index.into()));
    head.insert("cuda".to_owned(), device.cuda.map_or(Value::Null, Value::from));
    head.insert("uuid".to_owned(), device.uuid.as_str().into());
    head.insert("name".to_owned(), device.name.clone().map_or(Value::Null, Value::from));
    head
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::id::{GpuUuid, ProcessKey};
    use crate::model::metric::MetricId;
    use crate::model::series::ProcessIdentity;
    use crate::model::time::Mono;
    use crate::model::window::{Row, RowKind};

    fn device() -> Arc<DeviceIdentity> {
        Arc::new(DeviceIdentity {
            index: 3,
            mig: None,
            cuda: Some(0),
            uuid: GpuUuid::new("GPU-aaaaaaaa-1"),
            name: Some("Test GPU".to_owned()),
            memory_total: None,
            facts: Vec::new(),
        })
    }

    fn series(
        metric: MetricId,
        device: Option<Arc<DeviceIdentity>>,
        process: Option<Arc<ProcessIdentity>>,
    ) -> Arc<SeriesInfo> {
        Arc::new(SeriesInfo { metric, label: None, device, process, pace: Duration::from_secs(1) })
    }

    fn run(devices: Vec<Arc<DeviceIdentity>>) -> RunInfo {
        RunInfo {
            run: "r".into(),
            host: "h".into(),
            rank: None,
            node_rank: None,
            job: "j".into(),
            root_tag: "run".into(),
            argv: vec!["python".to_owned()],
            version: "0",
            driver: None,
            devices,
            interval: Duration::from_secs(1),
            window: Duration::from_secs(10),
            start: Wall(1_000_000),
            start_mono: Mono(0),
            series: Vec::new(),
        }
    }

    fn batch(rows: Vec<Row>) -> WindowBatch {
        WindowBatch {
            kind: RowKind::Window,
            tag: "run".into(),
            occurrence: 1,
            epoch: None,
            step: None,
            rank: None,
            ordinal: 4,
            start: Mono(0),
            end: Mono(1),
            time: Wall(2_500_000),
            window_s: 1.5,
            rows,
        }
    }

    #[test]
    fn a_snapshot_sorts_rows_by_subject_and_keeps_null() {
        let gpu = device();
        let process =
            Arc::new(ProcessIdentity { key: ProcessKey { pid: 42, start_ticks: 1 }, name: "python".into() });
        let known = Stats {
            mean: Some(50.0),
            min: Some(0.0),
            max: Some(100.0),
            last: Some(1.0),
            samples: 2,
            missing: 0,
        };
        let unknown = Stats { missing: 3, ..Stats::default() };
        let rows = vec![
            Row { series: series(MetricId::GpuGpuUtilization, Some(gpu.clone()), None), stats: known },
            Row { series: series(MetricId::GpuFanSpeed, Some(gpu.clone()), None), stats: unknown },
            Row { series: series(MetricId::HostCpuPercent, None, None), stats: known },
            Row { series: series(MetricId::JobGpuMemory, Some(gpu.clone()), None), stats: known },
            Row {
                series: series(MetricId::ProcessGpuMemory, Some(gpu.clone()), Some(process)),
                stats: known,
            },
        ];
        let reply = snapshot(&run(vec![gpu]), &batch(rows));
        assert_eq!(reply["time"], json!(2.5));
        assert_eq!(reply["gpus"][0]["cuda"], json!(0));
        assert_eq!(reply["gpus"][0]["metrics"]["gpu_utilization (%)"]["mean"], json!(50.0));
        let fan = &reply["gpus"][0]["metrics"]["fan_speed (%)"];
        assert_eq!((&fan["last"], &fan["missing"]), (&Value::Null, &json!(3)));
        assert!(reply["gpus"][0]["metrics"].get("gpu_memory (MiB)").is_none());
        assert_eq!(reply["host"]["metrics"]["cpu_percent (%)"]["max"], json!(100.0));
        assert_eq!(reply["job"]["gpus"][0]["metrics"]["gpu_memory (MiB)"]["mean"], json!(50.0));
        assert_eq!(reply["processes"][0]["pid"], json!(42));
        assert_eq!(reply["processes"][0]["gpus"][0]["metrics"]["gpu_memory (MiB)"]["last"], json!(1.0));
    }

    #[test]
    fn collected_has_nvitops_keys() {
        let stats = Stats { mean: Some(1.5), last: Some(f64::NAN), ..Stats::default() };
        let rows = [(series(MetricId::GpuGpuUtilization, Some(device()), None), stats)];
        let reply = collected("run/train", 2.0, &rows);
        let metrics = &reply["metrics"];
        assert_eq!(metrics["run/train/cuda:0 (gpu:3)/gpu_utilization (%)/mean"], json!(1.5));
        assert_eq!(metrics["run/train/cuda:0 (gpu:3)/gpu_utilization (%)/min"], Value::Null);
        assert_eq!(metrics["run/train/cuda:0 (gpu:3)/gpu_utilization (%)/last"], Value::Null);
        assert_eq!(metrics["run/train/duration (s)"], json!(2.0));
    }
}
