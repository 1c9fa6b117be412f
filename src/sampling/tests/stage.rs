//! A process in which the simulated driver plays a scenario, with scripted time.
//!
//! The simulated driver is configured by the environment, so each test runs itself once more in a process of its own
//! that has it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::collectors::nvml::Nvml;
use crate::model::device::{DeviceIdentity, ProbeRequest};
use crate::model::metric::{MetricId, Scope};
use crate::model::reading::Reading;
use crate::model::time::Mono;
use crate::sampling::frame::{GpuFrame, GpuProcessUse};
use crate::sampling::gpu::{GpuReader, GpuSettings};
use fake_nvml::{Counter, Energy, Gpu, Scenario};

/// Long enough for any loaded machine; nothing passes or fails by it.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
pub(super) const MIB: u64 = 1 << 20;
pub(super) const STAGE: &str = "GPURUN_TEST_STAGE";

/// What a test finds in its own process.
pub(super) struct Stage {
    pub(super) directory: PathBuf,
}

impl Stage {
    pub(super) fn library(&self) -> PathBuf {
        self.directory.join("libnvidia-ml.so.1")
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Moves the scripted time. The driver reads the file at every call, so it must never be half written.
    pub(super) fn set_clock(&self, seconds: f64) {
        let fresh = self.file("clock.new");
        std::fs::write(&fresh, seconds.to_string()).unwrap();
        std::fs::rename(fresh, self.file("clock")).unwrap();
    }

    pub(super) fn nvml(&self) -> Nvml {
        // A test that needs a certain amount of host memory has written a meminfo.
        let proc_root = if self.file("meminfo").exists() { &self.directory } else { Path::new("/proc") };
        Nvml::open_on(proc_root, &self.directory, Some(&self.library())).unwrap()
    }

    /// The calls logged since the last time, as `function` or `function gpu`.
    pub(super) fn calls(&self) -> Vec<(String, Option<usize>)> {
        let log = self.file("calls.log");
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let seen = self.file("calls.seen");
        let before: usize =
            std::fs::read_to_string(&seen).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        std::fs::write(seen, text.len().to_string()).unwrap();
        text[before..]
            .lines()
            .map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                (words[3].to_owned(), words[4].parse().ok())
            })
            .collect()
    }

    /// How often each function was called since the last time.
    pub(super) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (function, _) in self.calls() {
            *counts.entry(function).or_default() += 1;
        }
        counts
    }
}

/// Runs `body` in a process in which the simulated driver plays `scenario`. `test` is the test's own name, after that of its module.
pub(super) fn on_stage(test: &str, scenario: Scenario, body: impl FnOnce(&Stage)) {
    if let Some(directory) = std::env::var_os(STAGE) {
        return body(&Stage { directory: directory.into() });
    }
    let directory = tempfile::tempdir().unwrap();
    let clock = directory.path().join("clock");
    std::fs::write(&clock, "0").unwrap();
    let scenario = resolve(Scenario { clock_file: Some(clock), ..scenario }, directory.path());
    let installed = fake_nvml::install(directory.path(), &scenario).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([&format!("sampling::tests::{test}"), "--exact", "--nocapture"])
        .env(STAGE, directory.path());
    installed.apply(&mut command);
    installed.log_calls(&mut command);
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success() && text(&output.stdout).contains("1 passed"),
        "{}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
}

/// Puts the files that faults name into the test's own directory.
pub(super) fn resolve(mut scenario: Scenario, directory: &Path) -> Scenario {
    for fault in &mut scenario.fault {
        for file in [&mut fault.hang_while, &mut fault.while_exists].into_iter().flatten() {
            *file = directory.join(&*file);
        }
    }
    scenario
}

pub(super) fn ready_scenario(name: &str) -> Scenario {
    Scenario::load(&fake_nvml::scenario_file(name).unwrap()).unwrap()
}

pub(super) fn every_gpu_metric() -> Vec<MetricId> {
    let all = MetricId::ALL.iter().copied();
    all.filter(|id| id.get().scope == Scope::Gpu && id.get().on_by_default()).collect()
}

pub(super) fn settings() -> GpuSettings {
    GpuSettings::new(every_gpu_metric(), Duration::from_secs(1))
}

/// The devices that have a UUID, in NVML's order.
pub(super) fn identities(nvml: &Nvml) -> Vec<Arc<DeviceIdentity>> {
    let request = ProbeRequest { name: true, memory: true, ..ProbeRequest::default() };
    let snapshots = nvml.probe(&request).unwrap();
    snapshots.iter().filter_map(|device| device.identity(None)).map(Arc::new).collect()
}

/// A reader of every device, in NVML's order.
pub(super) fn reader(nvml: Nvml, settings: GpuSettings) -> GpuReader {
    let devices = identities(&nvml);
    let mut reader = GpuReader::launch(move || Ok((nvml, devices)), settings).unwrap();
    reader.ready(PATIENCE).unwrap().unwrap();
    reader
}

pub(super) fn mono(seconds: f64) -> Mono {
    Mono((seconds * 1e9).round() as u64)
}

/// The frame of a scripted second.
pub(super) fn frame(stage: &Stage, reader: &mut GpuReader, seconds: f64) -> GpuFrame {
    stage.set_clock(seconds);
    reader.request(mono(seconds));
    reader.take(PATIENCE).expect("a frame").clone()
}

/// What the frame says of a metric; `None` when it was not due.
pub(super) fn reading(frame: &GpuFrame, device: usize, id: MetricId) -> Option<Reading> {
    let mut found = frame.devices[device].readings.iter().filter(|(known, _)| *known == id);
    let first = found.next().map(|(_, reading)| *reading);
    assert!(found.next().is_none(), "{id:?} twice");
    first
}

#[track_caller]
pub(super) fn value(frame: &GpuFrame, device: usize, id: MetricId) -> f64 {
    match reading(frame, device, id) {
        Some(Reading::Value(value)) => value,
        other => panic!("{id:?} of {device}: {other:?}"),
    }
}

#[track_caller]
pub(super) fn near(value: f64, expected: f64) {
    assert!((value - expected).abs() <= 1e-6 * expected.abs().max(1e-3), "{value} is not {expected}");
}

pub(super) fn processes(frame: &GpuFrame, device: usize) -> &[GpuProcessUse] {
    match &frame.devices[device].processes {
        Some(Ok(list)) => list,
        other => panic!("{other:?}"),
    }
}

pub(super) fn gpu() -> Gpu {
    Gpu {
        temperature: Some(40.into()),
        power: Some(200.into()),
        power_limit: Some(300.into()),
        sm_clock: Some(1400.into()),
        memory_clock: Some(1200.into()),
        energy: Some(Energy::Named("from-power".to_owned())),
        throttled_power: Some(Counter::rate(0.25)),
        throttled_thermal: Some(Counter::rate(0.5)),
        ..Gpu::with_memory(81920.0, 1024.0, 70.0)
    }
}

pub(super) fn machine(gpu: Vec<Gpu>) -> Scenario {
    Scenario { gpu, ..Scenario::default() }
}

// ---- opening and probing ----
