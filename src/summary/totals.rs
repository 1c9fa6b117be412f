//! The fold of periodic windows into whole-run figures.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::device::{DeviceIdentity, DevicePlace};
use crate::model::id::ProcessKey;
use crate::model::metric::{Kind, MetricId, Scope};
use crate::model::series::SeriesInfo;
use crate::model::window::{Row, RowKind, WindowBatch};

/// At most this many per-process series are kept; a run of many short processes stays small.
const PROCESS_SERIES: usize = 4096;

/// Below this utilisation (percent, maximum of a window) a GPU counts as idle for that window.
pub(crate) const IDLE_PERCENT: f64 = 5.0;

/// What identifies a series over the whole run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    metric: MetricId,
    label: Option<Arc<str>>,
    device: Option<DevicePlace>,
    process: Option<ProcessKey>,
}

impl Key {
    fn of(info: &SeriesInfo) -> Self {
        Self {
            metric: info.metric,
            label: info.label.clone(),
            device: info.device.as_ref().map(|device| device.place()),
            process: info.process.as_ref().map(|p| p.key),
        }
    }
}

/// One series over the whole run.
#[derive(Clone, Debug)]
pub struct SeriesTotal {
    /// What it is about.
    pub series: Arc<SeriesInfo>,
    /// Sum of `mean x seconds` over the windows that have a mean; of amounts, the sum of those.
    pub integral: f64,
    /// Seconds of those windows.
    pub known_s: f64,
    /// Smallest value.
    pub min: Option<f64>,
    /// Largest value.
    pub max: Option<f64>,
    /// Last value.
    pub last: Option<f64>,
    /// Reads that gave a value.
    pub samples: u64,
    /// Reads that gave none.
    pub missing: u64,
}

impl SeriesTotal {
    /// Time-weighted mean over the windows that have one; `None` also where a job's own numbers are too large for it.
    pub fn mean(&self) -> Option<f64> {
        let mean = (self.known_s > 0.0).then(|| self.integral / self.known_s)?;
        let (Some(min), Some(max)) = (self.min, self.max) else {
            return Some(mean).filter(|m| m.is_finite());
        };
        // A sum of many windows is rounded: the mean of equal values is that value. A mean that is really outside stays,
        // of windows of which only a mean is known.
        let inside = mean.max(min).min(max);
        let is_rounding = (mean - inside).abs() <= 1e-9 * mean.abs();
        Some(if is_rounding { inside } else { mean }).filter(|mean| mean.is_finite())
    }

    fn add(&mut self, row: &Row, window_s: f64) {
        let stats = &row.stats;
        if let Some(mean) = stats.mean {
            self.integral += if row.series.kind() == Kind::Amount { mean } else { mean * window_s };
            self.known_s += window_s;
        }
        self.min = fold(self.min, stats.min, f64::min);
        self.max = fold(self.max, stats.max, f64::max);
        self.last = stats.last.or(self.last);
        self.samples += u64::from(stats.samples);
        self.missing += u64::from(stats.missing);
    }
}

fn fold(old: Option<f64>, new: Option<f64>, pick: fn(f64, f64) -> f64) -> Option<f64> {
    match (old, new) {
        (Some(a), Some(b)) => Some(pick(a, b)),
        (a, b) => a.or(b),
    }
}

/// Whole-run figures.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Rank of the run itself: windows of other ranks are of the same time.
    rank: Option<i32>,
    /// In order of first sight.
    series: Vec<SeriesTotal>,
    places: HashMap<Key, usize>,
    process_series: usize,
    /// Periodic windows so far.
    pub windows: u64,
    /// Seconds they cover.
    pub seconds: f64,
    /// Seconds in which each GPU was idle, where its utilisation is known.
    idle_s: HashMap<DevicePlace, f64>,
    /// Training step of the first row in which each scalar of the job was not finite.
    not_finite_from: HashMap<Arc<str>, i64>,
    /// Seconds in which a GPU waited (mean below 50 %) while the host's CPUs were over 90 % busy.
    starved_s: HashMap<DevicePlace, f64>,
    /// Windows in which nothing of a GPU was known.
    silent: HashMap<DevicePlace, Silence>,
    unreadable: Vec<Unreadable>,
}

/// How long nothing of a GPU was known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Silence {
    /// Seconds of windows without any value.
    pub seconds: f64,
    /// If the last window has none: the seconds from the start of the run to the first window of those.
    pub since: Option<f64>,
}

/// Why something could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unreadable {
    device: Option<DevicePlace>,
    metric: Option<MetricId>,
    reason: String,
}

impl Totals {
    /// Totals of a run whose own windows have this rank.
    pub fn new(rank: Option<i32>) -> Self {
        Self {
            rank,
            series: Vec::new(),
            places: HashMap::new(),
            process_series: 0,
            windows: 0,
            seconds: 0.0,
            idle_s: HashMap::new(),
            starved_s: HashMap::new(),
            not_finite_from: HashMap::new(),
            silent: HashMap::new(),
            unreadable: Vec::new(),
        }
    }

    /// Keeps why a metric of a device could not be read; `None` stands for all of them.
    pub fn unreadable(&mut self, device: Option<&DeviceIdentity>, metric: Option<MetricId>, reason: &str) {
        /// A run that has more to tell than this tells nothing new.
        const ENOUGH: usize = 1024;
        let entry =
            Unreadable { device: device.map(DeviceIdentity::place), metric, reason: reason.to_owned() };
        if self.unreadable.len() < ENOUGH && !self.unreadable.contains(&entry) {
            self.unreadable.push(entry);
        }
    }

    /// Why a series has nulls, as far as it was told: of its own metric, else of its whole device.
    pub fn reason(&self, series: &SeriesInfo) -> Option<&str> {
        let device = series.device.as_ref().map(|device| device.place());
        // A total over all devices is unknown for the reason of any of them.
        let fits = |entry: &&Unreadable| device.is_none() || entry.device.is_none() || entry.device == device;
        let mut of_metric = self.unreadable.iter().filter(fits);
        let mut of_device = self.unreadable.iter().filter(fits);
        let about_gpus = device.is_some() || series.metric == MetricId::JobGpuMemory;
        of_metric
            .find(|entry| entry.metric == Some(series.metric))
            .or_else(|| of_device.find(|entry| entry.metric.is_none() && about_gpus))
            .map(|entry| entry.reason.as_str())
    }

    /// Adds a window; batches of tags and steps are views of the same time and add no time and no value.
    pub fn add(&mut self, batch: &WindowBatch) {
        if let Some(step) = batch.step {
            self.add_not_finite(step, &batch.rows);
        }
        if batch.kind != RowKind::Window {
            return;
        }
        if batch.rank == self.rank {
            self.windows += 1;
            self.seconds += batch.window_s;
        }
        for row in &batch.rows {
            if let Some(place) = self.place(&row.series) {
                self.series[place].add(row, batch.window_s);
            }
        }
        self.add_patterns(batch);
        self.add_silence(batch);
    }

    /// Notes the GPUs of which a window knows nothing.
    fn add_silence(&mut self, batch: &WindowBatch) {
        let mut known: Vec<(DevicePlace, bool)> = Vec::new();
        for row in batch.rows.iter().filter(|row| row.series.scope() == Scope::Gpu) {
            let Some(place) = row.series.device.as_ref().map(|device| device.place()) else { continue };
            let has_value = row.stats.samples > 0;
            match known.iter_mut().find(|(seen, _)| *seen == place) {
                Some((_, known)) => *known |= has_value,
                None => known.push((place, has_value)),
            }
        }
        let began = self.seconds - batch.window_s;
        for (place, has_value) in known {
            let silence = self.silent.entry(place).or_default();
            if has_value {
                silence.since = None;
            } else {
                silence.seconds += batch.window_s;
                silence.since.get_or_insert(began);
            }
        }
    }

    /// Where the total of a series stands; `None` for one too many.
    fn place(&mut self, series: &Arc<SeriesInfo>) -> Option<usize> {
        let key = Key::of(series);
        if let Some(place) = self.places.get(&key) {
            return Some(*place);
        }
        if series.scope() == Scope::Process {
            if self.process_series >= PROCESS_SERIES {
                return None;
            }
            self.process_series += 1;
        }
        let place = self.series.len();
        self.series.push(SeriesTotal {
            series: Arc::clone(series),
            integral: 0.0,
            known_s: 0.0,
            min: None,
            max: None,
            last: None,
            samples: 0,
            missing: 0,
        });
        self.places.insert(key, place);
        Some(place)
    }

    /// Patterns that need the values of one window side by side.
    fn add_patterns(&mut self, batch: &WindowBatch) {
        let cpu_busy = batch
            .rows
            .iter()
            .find(|row| row.series.metric == MetricId::HostCpuPercent)
            .and_then(|row| row.stats.mean)
            .is_some_and(|mean| mean > 90.0);
        for row in batch.rows.iter().filter(|row| row.series.metric == MetricId::GpuGpuUtilization) {
            let Some(device) = &row.series.device else { continue };
            if row.stats.max.is_some_and(|max| max <= IDLE_PERCENT) {
                *self.idle_s.entry(device.place()).or_default() += batch.window_s;
            }
            if cpu_busy && row.stats.mean.is_some_and(|mean| mean < 50.0) {
                *self.starved_s.entry(device.place()).or_default() += batch.window_s;
            }
        }
    }

    /// Notes the first step at which a scalar of the job was not finite: nothing else of it is ever missing.
    fn add_not_finite(&mut self, step: i64, rows: &[Row]) {
        for row in rows.iter().filter(|row| row.series.scope() == Scope::User && row.stats.missing > 0) {
            if let Some(name) = &row.series.label {
                self.not_finite_from.entry(Arc::clone(name)).or_insert(step);
            }
        }
    }

    /// The scalars of the job that were not finite at times, with the training step of the first row of those.
    pub fn not_finite(&self) -> impl Iterator<Item = (&SeriesTotal, Option<i64>)> {
        let scalars =
            self.series.iter().filter(|total| total.series.scope() == Scope::User && total.missing > 0);
        scalars.map(|total| {
            let name = total.series.label.as_ref();
            (total, name.and_then(|name| self.not_finite_from.get(name)).copied())
        })
    }

    fn of(&self, key: &Key) -> Option<&SeriesTotal> {
        self.series.get(*self.places.get(key)?)
    }

    /// The total of a metric without device and process.
    pub fn whole(&self, metric: MetricId) -> Option<&SeriesTotal> {
        self.of(&Key { metric, label: None, device: None, process: None })
    }

    /// The total of a metric of one device.
    pub fn of_device(&self, metric: MetricId, device: &DeviceIdentity) -> Option<&SeriesTotal> {
        self.of(&Key { metric, label: None, device: Some(device.place()), process: None })
    }

    /// How long nothing of a GPU was known, and why, where the driver said so of the whole GPU.
    pub fn silence(&self, device: &DeviceIdentity) -> Option<(Silence, &str)> {
        let silence = self.silent.get(&device.place()).filter(|silence| silence.seconds > 0.0)?;
        let fits = |entry: &&Unreadable| {
            entry.metric.is_none() && (entry.device.is_none() || entry.device == Some(device.place()))
        };
        self.unreadable.iter().rev().find(fits).map(|entry| (*silence, entry.reason.as_str()))
    }

    /// Every series in order of first sight.
    pub fn series(&self) -> impl Iterator<Item = &SeriesTotal> {
        self.series.iter()
    }

    /// Seconds in which the GPU was idle.
    pub fn idle_seconds(&self, device: &DeviceIdentity) -> f64 {
        self.idle_s.get(&device.place()).copied().unwrap_or(0.0)
    }

    /// Seconds in which the GPU waited while the host's CPUs were busy.
    pub fn starved_seconds(&self, device: &DeviceIdentity) -> f64 {
        self.starved_s.get(&device.place()).copied().unwrap_or(0.0)
    }
}
