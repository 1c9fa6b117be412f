//! A day in fast-forward through each writer: rows a second, bytes a row, peak memory.
//!
//! `cargo bench --bench writers`; a format alone: `cargo bench --bench writers -- parquet`. Each format runs
//! in a process of its own, so that its peak memory is its own.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpurun::internals::{
    CATALOGUE, DeviceIdentity, GpuUuid, JobExit, Layout, MetricId, Mono, Row, RowKind, RunEnd, RunInfo,
    Scope, SeriesInfo, Stats, Subject, Target, Wall, WindowBatch, WriterSettings, check,
};

const GPUS: u32 = 8;
const METRICS: usize = 30;
const WINDOWS: u64 = 8640;
const SAMPLES: u32 = 10;
const FORMATS: [&str; 4] = ["csv", "parquet", "wide.parquet", "tensorboard"];

fn main() -> io::Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    if let Ok(format) = std::env::var("GPURUN_BENCH_FORMAT") {
        return one(&format);
    }
    for format in FORMATS.iter().filter(|f| wanted.is_empty() || wanted.iter().any(|w| w == *f)) {
        let status = Command::new(std::env::current_exe()?).env("GPURUN_BENCH_FORMAT", format).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("{format} failed")));
        }
    }
    Ok(())
}

fn one(format: &str) -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let run = run_info();
    let target = match format {
        "tensorboard" => Target::TensorBoard(dir.path().to_owned()),
        "csv" => Target::Csv(dir.path().join("m.csv")),
        _ => Target::Parquet(dir.path().join("m.parquet")),
    };
    let layout = if format.starts_with("wide") { Layout::Wide } else { Layout::Long };
    // The fan-out never blocks: the bench holds back by itself, or it would measure a queue.
    let settings = WriterSettings { layout, memory_bound: usize::MAX, ..WriterSettings::default() };
    let (checked, failures) = check(&[target], &settings);
    assert!(failures.is_empty(), "{failures:?}");
    let (opened, failures) = checked.create();
    if let Some(failure) = failures.first() {
        return Err(io::Error::other(failure.error.to_string()));
    }
    let fan_out = opened.start(Arc::clone(&run));
    let mut day = Day::new(Arc::clone(&run));
    for n in 1..=WINDOWS {
        fan_out.send(Arc::new(day.window(n)));
        while fan_out.queued() > 64 {
            std::thread::yield_now();
        }
    }
    while fan_out.queued() > 0 {
        std::thread::yield_now();
    }
    let writing = writer_time();
    let before_finish = peak_memory();
    let ending = Instant::now();
    let end = RunEnd { exit: Some(JobExit::Code(0)), end: Wall(0), duration_s: 86_400.0 };
    let reports = fan_out.finish(end, Duration::from_secs(600));
    let ending = ending.elapsed();
    let report = &reports[0];
    if let Some(error) = &report.error {
        return Err(io::Error::other(error.clone()));
    }
    let size = size_of(dir.path())?;
    writeln!(
        io::stdout(),
        "{format:>13}: {} rows, {:.0} rows/s of CPU, {:.1} bytes/row in the file, {:.1} appended; finish {:.2} s; \
         peak memory {:.0} MiB, {:.0} MiB more at the finish",
        report.rows,
        report.rows as f64 / writing.as_secs_f64(),
        size as f64 / report.rows as f64,
        report.bytes as f64 / report.rows as f64,
        ending.as_secs_f64(),
        peak_memory() as f64 / 1024.0,
        peak_memory().saturating_sub(before_finish) as f64 / 1024.0,
    )
}

fn size_of(path: &Path) -> io::Result<u64> {
    if path.is_file() {
        return Ok(path.metadata()?.len());
    }
    fs::read_dir(path)?.map(|entry| size_of(&entry?.path())).sum()
}

/// Time on a CPU of the writer's thread, the only one beside the main thread, which makes the data.
fn writer_time() -> Duration {
    let main = std::process::id().to_string();
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = tasks
        .filter(|task| task.file_name().to_string_lossy() != main)
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|stat| stat.split(' ').next()?.parse::<u64>().ok())
        .sum();
    Duration::from_nanos(nanos)
}

/// VmHWM in KiB.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn run_info() -> Arc<RunInfo> {
    let devices: Vec<_> = (0..GPUS)
        .map(|n| {
            Arc::new(DeviceIdentity {
                index: n,
                mig: None,
                cuda: Some(n),
                uuid: GpuUuid::new(format!("GPU-{n:08x}-5d5b-4c1e-9f0a-0123456789ab")),
                name: Some("NVIDIA H100 80GB HBM3".into()),
                memory_total: Some(85_520_809_984),
                facts: Vec::new(),
            })
        })
        .collect();
    let per_device: Vec<MetricId> = MetricId::ALL
        .iter()
        .copied()
        .filter(|id| {
            let metric = CATALOGUE[*id as usize];
            metric.subject != Subject::Whole
                && matches!(metric.scope, Scope::Gpu | Scope::Job | Scope::Process)
        })
        .cycle()
        .take(METRICS)
        .collect();
    let mut series = Vec::new();
    for device in &devices {
        for metric in &per_device {
            series.push(Arc::new(SeriesInfo {
                metric: *metric,
                label: None,
                device: Some(Arc::clone(device)),
                process: None,
                pace: Duration::from_secs(1),
            }));
        }
    }
    Arc::new(RunInfo {
        run: "20260921T141320Z-node1-42".into(),
        host: "node1".into(),
        rank: None,
        node_rank: None,
        job: "train.py".into(),
        root_tag: "run".into(),
        argv: vec!["python".into(), "train.py".into()],
        version: "0.1.0",
        driver: Some("580.65.06".into()),
        devices,
        interval: Duration::from_secs(1),
        window: Duration::from_secs(10),
        start: Wall(1_790_000_000_000_000),
        start_mono: Mono(0),
        series,
    })
}

/// Values as a training job has them: quantised as NVML gives them, means weighted by jittering times.
struct Day {
    run: Arc<RunInfo>,
    random: u64,
    level: Vec<f64>,
}

impl Day {
    fn new(run: Arc<RunInfo>) -> Day {
        let level = vec![0.5; run.series.len()];
        Day { run, random: 0x9e37_79b9_7f4a_7c15, level }
    }

    /// Uniform in [0, 1).
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    fn sample(&mut self, series: usize) -> Option<f64> {
        let metric = self.run.series[series].metric.get().name;
        let r = self.random();
        let walk = (self.level[series] + (r - 0.5) * 0.02).clamp(0.0, 1.0);
        self.level[series] = walk;
        let noise = self.random();
        Some(match metric {
            // A step with its dips.
            "gpu_utilization" | "gpu_sm_utilization" => {
                if r < 0.1 {
                    (noise * 60.0).floor()
                } else {
                    94.0 + (noise * 7.0).floor()
                }
            }
            "memory_utilization" | "gpu_memory_utilization" => 30.0 + (noise * 40.0).floor(),
            // Grows in blocks of 2 MiB, seldom.
            "memory_used" | "gpu_memory" => 61_440.0 + (walk * 64.0).floor() * 2.0,
            "memory_free" => 20_119.0 - (walk * 64.0).floor() * 2.0,
            "memory_total" => 81_559.0,
            "memory_percent" | "gpu_memory_percent" => (61_440.0 + (walk * 64.0).floor() * 2.0) / 815.59,
            "temperature" => 55.0 + (walk * 12.0).floor(),
            "memory_temperature" => 65.0 + (walk * 12.0).floor(),
            "power_usage" => ((450.0 + walk * 150.0 + noise * 100.0) * 1000.0).round() / 1000.0,
            "power_limit" => 700.0,
            "energy" => self.level[series] + noise * 600.0,
            "sm_clock" => {
                if r < 0.05 {
                    1965.0
                } else {
                    1980.0
                }
            }
            "memory_clock" => 2619.0,
            // Rates of byte counters over a jittering second.
            "pcie_rx" | "pcie_tx" => noise * 900.0,
            "nvlink_rx" | "nvlink_tx" => 90_000.0 + noise * 20_000.0,
            // An H100 has no fan.
            "fan_speed" => return None,
            "throttled_power" if r < 0.02 => noise * 20.0,
            _ => 0.0,
        })
    }

    fn window(&mut self, n: u64) -> WindowBatch {
        let jitter = i64::try_from(n % 997).unwrap_or(0);
        let rows = (0..self.run.series.len())
            .map(|series| {
                let mut stats = Stats::default();
                let mut sum = 0.0;
                let mut time = 0.0;
                for _ in 0..SAMPLES {
                    let Some(value) = self.sample(series) else {
                        stats.missing += 1;
                        continue;
                    };
                    let width = 1.0 + (self.random() - 0.5) * 1e-3;
                    sum += value * width;
                    time += width;
                    stats.samples += 1;
                    stats.min = Some(stats.min.map_or(value, |m: f64| m.min(value)));
                    stats.max = Some(stats.max.map_or(value, |m: f64| m.max(value)));
                    stats.last = Some(value);
                }
                if stats.samples > 0 {
                    // The mean of a constant is that constant, as in the fold.
                    stats.mean = if stats.min == stats.max { stats.min } else { Some(sum / time) };
                }
                Row { series: Arc::clone(&self.run.series[series]), stats }
            })
            .collect();
        WindowBatch {
            kind: RowKind::Window,
            tag: Arc::clone(&self.run.root_tag),
            occurrence: 1,
            epoch: None,
            step: None,
            rank: None,
            ordinal: n,
            start: Mono((n - 1) * 10_000_000_000),
            end: Mono(n * 10_000_000_000),
            time: Wall(self.run.start.0 + i64::try_from(n).unwrap_or(0) * 10_000_000 + jitter),
            window_s: 10.0,
            rows,
        }
    }
}
