//! One run of one log, as its rows add up: devices, job, host, tags, steps, processes.

use std::collections::HashMap;

use super::about::{Row, RowKind, RunAbout};
use super::curve::{Figures, Series};
use super::spans::Bars;
use super::steps::Steps;

/// Bounds on what a log can make a report hold; a real run stays far below.
const DEVICES: usize = 128;
const TAGS: usize = 256;
const SCALARS: usize = 64;
const PROCESSES: usize = 4096;

/// Which run of a log a row belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PartKey {
    pub(super) source: usize,
    pub(super) run: String,
    pub(super) host: String,
    pub(super) rank: Option<i32>,
}

/// A GPU or MIG slice.
#[derive(Clone, Debug, Default)]
pub(super) struct Device {
    pub(super) gpu: Option<i32>,
    pub(super) cuda: Option<i32>,
    pub(super) uuid: Option<String>,
    pub(super) name: Option<String>,
    /// Index of the MIG slice.
    pub(super) mig: Option<u32>,
    /// Capacity in MiB.
    pub(super) memory_total: Option<f64>,
    pub(super) utilization: Series,
    pub(super) memory_used: Series,
    pub(super) job_memory: Series,
    pub(super) job_sm: Series,
    pub(super) power: Series,
    pub(super) power_limit: Option<f64>,
    pub(super) temperature: Series,
    pub(super) throttled_power: Series,
    pub(super) throttled_thermal: Series,
    pub(super) energy_counted: Option<f64>,
    pub(super) energy_from_power: Option<f64>,
    pub(super) sm_clock: Figures,
}

impl Device {
    /// `GPU 3`, `GPU 3:1` for a MIG slice.
    pub(super) fn label(&self) -> String {
        let index = self.gpu.map_or_else(|| "?".to_owned(), |n| n.to_string());
        match (self.mig, &self.uuid) {
            (Some(mig), _) => format!("GPU {index}:{mig}"),
            (None, Some(uuid)) if uuid.starts_with("MIG-") => {
                format!("GPU {index} {}", uuid.chars().take(12).collect::<String>())
            }
            _ => format!("GPU {index}"),
        }
    }

    /// Energy in J and whether it is an estimate from power readings.
    pub(super) fn energy(&self) -> Option<(f64, bool)> {
        self.energy_counted.map(|e| (e, false)).or(self.energy_from_power.map(|e| (e, true)))
    }

    fn add(&mut self, row: &Row<'_>) {
        let last = row.last.or(row.mean).filter(|v| v.is_finite());
        match (row.scope, row.metric) {
            ("gpu", "gpu_utilization") => self.utilization.add(row),
            ("gpu", "memory_used") => self.memory_used.add(row),
            ("gpu", "memory_total") => self.memory_total = last.or(self.memory_total),
            ("gpu", "power_usage") => self.power.add(row),
            ("gpu", "power_limit") => self.power_limit = last.or(self.power_limit),
            ("gpu", "temperature") => self.temperature.add(row),
            ("gpu", "throttled_power") => self.throttled_power.add(row),
            ("gpu", "throttled_thermal") => self.throttled_thermal.add(row),
            ("gpu", "energy") => self.energy_counted = last.or(self.energy_counted),
            ("gpu", "energy_from_power") => self.energy_from_power = last.or(self.energy_from_power),
            ("gpu", "sm_clock") => self.sm_clock.add(row.window_s, row.mean, row.min, row.max),
            ("job", "gpu_memory") => self.job_memory.add(row),
            ("job", "gpu_sm_utilization") => self.job_sm.add(row),
            _ => {}
        }
    }
}

/// A tag, as the rows of kind `tag` tell of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Tag {
    pub(super) path: String,
    pub(super) rank: Option<i32>,
    /// Times it was open.
    pub(super) count: u64,
    /// Seconds it was open, and the shortest and longest time.
    pub(super) seconds: Figures,
    pub(super) utilization: Figures,
    pub(super) cpu: Figures,
    pub(super) bars: Bars,
    latest: Option<(i64, u64)>,
}

impl Tag {
    fn add(&mut self, row: &Row<'_>) {
        let span = (row.time_us, row.window_s.to_bits());
        // All rows of one span stand together.
        if self.latest != Some(span) {
            self.latest = Some(span);
            self.count += 1;
            self.seconds.add(1.0, Some(row.window_s), None, None);
            self.bars.add(row.time_us, row.window_s);
        }
        match (row.scope, row.metric) {
            ("gpu", "gpu_utilization") => self.utilization.add(row.window_s, row.mean, row.min, row.max),
            ("job", "cpu_percent") => self.cpu.add(row.window_s, row.mean, row.min, row.max),
            _ => {}
        }
    }
}

/// A process of the job.
#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    pub(super) pid: i64,
    pub(super) name: String,
    pub(super) cpu: Figures,
    pub(super) rss: Figures,
    pub(super) gpu_memory: Figures,
}

/// A scalar that the job logged.
#[derive(Clone, Debug, Default)]
pub(super) struct Scalar {
    pub(super) name: String,
    pub(super) rank: Option<i32>,
    pub(super) series: Series,
}

/// One run of one log.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) key: PartKey,
    /// What the log says about it.
    pub(super) about: RunAbout,
    /// How it is called beside the others; set when all are known.
    pub(super) label: String,
    pub(super) root_tag: String,
    /// It has windows of more than scalars: it is a run, not a client of one.
    pub(super) measured: bool,
    pub(super) windows: u64,
    /// Seconds that the windows cover.
    pub(super) seconds: f64,
    first_us: Option<i64>,
    /// Begin of the row that comes first in the log.
    head_us: Option<i64>,
    last_us: Option<i64>,
    latest: Option<i64>,
    pub(super) devices: Vec<Device>,
    pub(super) job_cpu: Series,
    pub(super) job_rss: Series,
    pub(super) job_pss: Figures,
    pub(super) job_processes: Series,
    pub(super) job_gpu_memory: Figures,
    pub(super) job_read: Figures,
    pub(super) job_write: Figures,
    pub(super) host_cpu: Series,
    pub(super) host_memory: Series,
    pub(super) own_cpu: Figures,
    pub(super) own_rss: Figures,
    pub(super) late: Option<f64>,
    pub(super) dropped: Option<f64>,
    pub(super) tags: Vec<Tag>,
    pub(super) steps: Vec<Steps>,
    pub(super) processes: Vec<Process>,
    process_places: HashMap<(i64, String), usize>,
    pub(super) scalars: Vec<Scalar>,
    /// Facts about the run, in words.
    pub(super) notices: Vec<String>,
    /// What could not be kept: `3 more tags`.
    pub(super) beyond: Vec<&'static str>,
}

impl Part {
    pub(super) fn new(key: PartKey) -> Self {
        Self {
            key,
            about: RunAbout::default(),
            label: String::new(),
            root_tag: String::new(),
            measured: false,
            windows: 0,
            seconds: 0.0,
            first_us: None,
            head_us: None,
            last_us: None,
            latest: None,
            devices: Vec::new(),
            job_cpu: Series::default(),
            job_rss: Series::default(),
            job_pss: Figures::default(),
            job_processes: Series::default(),
            job_gpu_memory: Figures::default(),
            job_read: Figures::default(),
            job_write: Figures::default(),
            host_cpu: Series::default(),
            host_memory: Series::default(),
            own_cpu: Figures::default(),
            own_rss: Figures::default(),
            late: None,
            dropped: None,
            tags: Vec::new(),
            steps: Vec::new(),
            processes: Vec::new(),
            process_places: HashMap::new(),
            scalars: Vec::new(),
            notices: Vec::new(),
            beyond: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, row: &Row<'_>) {
        let from = row.time_us.saturating_sub((row.window_s.max(0.0) * 1e6) as i64);
        self.first_us = Some(self.first_us.map_or(from, |first| first.min(from)));
        self.head_us.get_or_insert(from);
        self.last_us = Some(self.last_us.map_or(row.time_us, |last| last.max(row.time_us)));
        match row.kind {
            RowKind::Window => self.add_window(row),
            RowKind::Tag => self.add_tag(row),
            RowKind::Step => self.add_step(row),
        }
    }

    fn add_window(&mut self, row: &Row<'_>) {
        if self.latest != Some(row.time_us) {
            self.latest = Some(row.time_us);
            self.windows += 1;
            self.seconds += row.window_s;
            if self.root_tag.is_empty() {
                row.tag.clone_into(&mut self.root_tag);
            }
        }
        self.measured |= row.scope != "user";
        let figures = |figures: &mut Figures| figures.add(row.window_s, row.mean, row.min, row.max);
        match (row.scope, row.metric) {
            ("process", _) => self.add_process(row),
            ("user", _) => self.add_scalar(row),
            ("job", "gpu_memory") if row.gpu.is_none() && row.uuid.is_none() => {
                figures(&mut self.job_gpu_memory)
            }
            ("gpu", _) | ("job", "gpu_memory" | "gpu_sm_utilization") => {
                if let Some(device) = self.device(row) {
                    device.add(row);
                }
            }
            ("job", "cpu_percent") => self.job_cpu.add(row),
            ("job", "memory_rss") => self.job_rss.add(row),
            ("job", "memory_pss") => figures(&mut self.job_pss),
            ("job", "processes") => self.job_processes.add(row),
            ("job", "io_read") => figures(&mut self.job_read),
            ("job", "io_write") => figures(&mut self.job_write),
            ("host", "cpu_percent") => self.host_cpu.add(row),
            ("host", "memory_percent") => self.host_memory.add(row),
            ("gpurun", "cpu_percent") => figures(&mut self.own_cpu),
            ("gpurun", "memory_rss") => figures(&mut self.own_rss),
            ("gpurun", "late_samples") => self.late = row.last.or(self.late),
            ("gpurun", "dropped_samples") => self.dropped = row.last.or(self.dropped),
            _ => {}
        }
    }

    fn device(&mut self, row: &Row<'_>) -> Option<&mut Device> {
        let same = |d: &Device| match (row.uuid, &d.uuid) {
            // Two cards with one UUID are told apart by their indices.
            (Some(uuid), Some(known)) => uuid == known && d.gpu == row.gpu,
            (None, None) => d.gpu == row.gpu && d.cuda == row.cuda,
            _ => false,
        };
        let place = match self.devices.iter().position(same) {
            Some(place) => place,
            None if self.devices.len() >= DEVICES => {
                self.leave_out("GPUs");
                return None;
            }
            None => {
                let mut device = Device { gpu: row.gpu, cuda: row.cuda, ..Device::default() };
                device.uuid = row.uuid.map(str::to_owned);
                self.devices.push(device);
                self.devices.len() - 1
            }
        };
        self.devices.get_mut(place)
    }

    fn add_process(&mut self, row: &Row<'_>) {
        let (Some(pid), name) = (row.pid, row.process.unwrap_or_default()) else { return };
        if !matches!(row.metric, "cpu_percent" | "memory_rss" | "gpu_memory") {
            return;
        }
        let key = (pid, name.to_owned());
        let place = match self.process_places.get(&key) {
            Some(place) => *place,
            None if self.processes.len() >= PROCESSES => return self.leave_out("processes"),
            None => {
                self.processes.push(Process { pid, name: key.1.clone(), ..Process::default() });
                self.process_places.insert(key, self.processes.len() - 1);
                self.processes.len() - 1
            }
        };
        let process = &mut self.processes[place];
        let figures = match row.metric {
            "cpu_percent" => &mut process.cpu,
            "memory_rss" => &mut process.rss,
            _ => &mut process.gpu_memory,
        };
        figures.add(row.window_s, row.mean, row.min, row.max);
    }

    fn add_scalar(&mut self, row: &Row<'_>) {
        let place = match self.scalars.iter().position(|s| s.name == row.metric) {
            Some(place) => place,
            None if self.scalars.len() >= SCALARS => return self.leave_out("scalars"),
            None => {
                let name = row.metric.to_owned();
                self.scalars.push(Scalar { name, rank: row.rank, series: Series::default() });
                self.scalars.len() - 1
            }
        };
        self.scalars[place].series.add(row);
    }

    fn add_tag(&mut self, row: &Row<'_>) {
        let place = match self.tags.iter().position(|t| t.path == row.tag && t.rank == row.rank) {
            Some(place) => place,
            None if self.tags.len() >= TAGS => return self.leave_out("tags"),
            None => {
                self.tags.push(Tag { path: row.tag.to_owned(), rank: row.rank, ..Tag::default() });
                self.tags.len() - 1
            }
        };
        self.tags[place].add(row);
    }

    fn add_step(&mut self, row: &Row<'_>) {
        let place = match self.steps.iter().position(|s| s.path == row.tag && s.rank == row.rank) {
            Some(place) => place,
            None if self.steps.len() >= TAGS => return self.leave_out("step series"),
            None => {
                self.steps.push(Steps::new(row.tag, row.rank));
                self.steps.len() - 1
            }
        };
        self.steps[place].add(row);
    }

    fn leave_out(&mut self, what: &'static str) {
        if !self.beyond.contains(&what) {
            self.beyond.push(what);
        }
    }

    /// Takes over the tags, steps and scalars of a client with a rank of its own.
    pub(super) fn adopt(&mut self, client: Part) {
        self.first_us = self.first_us.into_iter().chain(client.first_us).min();
        self.last_us = self.last_us.max(client.last_us);
        self.tags.extend(client.tags);
        self.steps.extend(client.steps);
        self.scalars.extend(client.scalars);
        for what in client.beyond {
            self.leave_out(what);
        }
        for (count, most, what) in [
            (self.tags.len(), TAGS, "tags"),
            (self.steps.len(), TAGS, "step series"),
            (self.scalars.len(), SCALARS, "scalars"),
        ] {
            if count > most {
                self.leave_out(what);
            }
        }
        self.tags.truncate(TAGS);
        self.steps.truncate(TAGS);
        self.scalars.truncate(SCALARS);
    }

    /// Puts what the log says beside what its rows say, and everything into the order it is shown in.
    pub(super) fn complete(&mut self, about: Option<&RunAbout>) {
        self.process_places = HashMap::new();
        if let Some(about) = about {
            self.about = about.clone();
        }
        for device in &mut self.devices {
            let known = self.about.devices.iter().find(|d| Some(&d.uuid) == device.uuid.as_ref());
            if let Some(known) = known {
                device.name.clone_from(&known.name);
                device.memory_total =
                    device.memory_total.or(known.memory_total.map(|bytes| bytes / f64::from(1 << 20)));
                device.mig = known.label.as_deref().and_then(mig_of_label);
            }
        }
        self.devices.sort_by(|a, b| (a.gpu, a.mig, a.cuda, &a.uuid).cmp(&(b.gpu, b.mig, b.cuda, &b.uuid)));
        self.tags.sort_by(|a, b| (a.rank, &a.path).cmp(&(b.rank, &b.path)));
        self.steps.sort_by(|a, b| (a.rank, &a.path).cmp(&(b.rank, &b.path)));
        self.steps.retain(|s| s.last.is_some());
        // In the order in which they were first logged, the ranks of a name side by side.
        let first: HashMap<String, usize> =
            self.scalars.iter().rev().enumerate().map(|(n, scalar)| (scalar.name.clone(), n)).collect();
        self.scalars.sort_by_key(|scalar| (std::cmp::Reverse(first.get(&scalar.name).copied()), scalar.rank));
        let cpu = |p: &Process| p.cpu.integral;
        self.processes.sort_by(|a, b| cpu(b).total_cmp(&cpu(a)).then_with(|| a.pid.cmp(&b.pid)));
    }

    /// Start of the run, microseconds since the Unix epoch.
    pub(super) fn start(&self) -> i64 {
        let first = self.first_us.unwrap_or(0);
        // A described start after the first row of the log is of another run of the same name. After a later one it is
        // right: the clock was set back meanwhile.
        let head = self.head_us.unwrap_or(first);
        self.about.start_us.filter(|start| *start <= head).unwrap_or(first)
    }

    /// End of the run as far as the log goes.
    pub(super) fn end(&self) -> i64 {
        self.last_us.unwrap_or(0).max(self.about.end_us.unwrap_or(i64::MIN)).max(self.start())
    }

    /// From start to end on the clock on the wall, in microseconds.
    pub(super) fn span(&self) -> i64 {
        self.end().saturating_sub(self.start())
    }

    /// Length in seconds: what the log says, else what its windows cover.
    pub(super) fn duration(&self) -> f64 {
        self.about.duration_s.unwrap_or(self.seconds)
    }
}

/// `1` of `cuda:0 (gpu:(3, 1))`.
fn mig_of_label(label: &str) -> Option<u32> {
    let (_, rest) = label.split_once("gpu:(")?;
    let (_, slice) = rest.split_once(", ")?;
    slice.trim_end_matches(')').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Builder, SourceAbout};

    #[test]
    fn slices_are_told_apart_by_their_labels() {
        assert_eq!(mig_of_label("cuda:0 (gpu:(3, 1))"), Some(1));
        assert_eq!(mig_of_label("gpu:(0, 12)"), Some(12));
        assert_eq!(mig_of_label("cuda:0 (gpu:3)"), None);
    }

    #[test]
    fn a_run_begins_when_it_did_though_the_clock_was_set_back() {
        let about = RunAbout { run: "r".to_owned(), start_us: Some(7_200_000_000), ..RunAbout::default() };
        let source = SourceAbout { name: "x.parquet".to_owned(), describes: true, runs: vec![about] };
        let mut builder = Builder::new();
        let source = builder.source(source);
        let row = |time_us| Row {
            time_us,
            window_s: 10.0,
            run: "r",
            host: "",
            rank: None,
            kind: RowKind::Window,
            tag: "run",
            step: None,
            scope: "host",
            gpu: None,
            cuda: None,
            uuid: None,
            pid: None,
            process: None,
            metric: "cpu_percent",
            mean: Some(50.0),
            min: Some(50.0),
            max: Some(50.0),
            last: Some(50.0),
            samples: Some(10),
        };
        // Back by an hour after twenty seconds.
        for time_us in [7_210_000_000, 7_220_000_000, 3_630_000_000, 3_640_000_000] {
            builder.add(source, &row(time_us));
        }
        let report = builder.finish();
        assert_eq!(report.parts[0].start(), 7_200_000_000);
    }
}
