//! One sample: host, GPU, job, process and gpurun values of one instant, under dense series numbers.
//! Allocates nothing while no process and no series comes or goes.

use std::sync::Arc;
use std::time::Duration;

use super::attribution::{self, JobUse, PidMatch};
use super::deadline::Due;
use super::frame::GpuFrame;
use super::gpu::{Followed, Role};
use super::registry::{Registry, SeriesChange};
use super::settings::{Notice, ProcessDetail, SamplerSettings, SamplingError, TreeRoot};
use super::tree::{Node, ReapedUsage, Tree};
use crate::collectors::host::HostReader;
use crate::collectors::own;
use crate::collectors::procfs::file::{Buffer, FileError, KernelFile};
use crate::collectors::procfs::parse;
use crate::model::device::DeviceIdentity;
use crate::model::id::{ProcessKey, SeriesId};
use crate::model::metric::{MetricId, Scope, Subject, Tier};
use crate::model::reading::Reading;
use crate::model::sample::Sample;
use crate::model::series::{ProcessIdentity, SeriesInfo};
use crate::model::time::Mono;
use crate::sys::clock;

const MIB: f64 = (1u64 << 20) as f64;

/// What the job's tree of processes has as a whole.
const JOB_TREE: [MetricId; 6] = [
    MetricId::JobProcesses,
    MetricId::JobThreads,
    MetricId::JobCpuPercent,
    MetricId::JobMemoryRss,
    MetricId::JobIoRead,
    MetricId::JobIoWrite,
];

/// Metrics of a process as a whole, in the order of [`ProcessSeries::whole`].
const PROCESS_WHOLE: [MetricId; 7] = [
    MetricId::ProcessCpuPercent,
    MetricId::ProcessMemoryRss,
    MetricId::ProcessMemoryPercent,
    MetricId::ProcessThreads,
    MetricId::ProcessIoRead,
    MetricId::ProcessIoWrite,
    MetricId::ProcessRunningTime,
];

/// Metrics of a process on one GPU, in the order of [`ProcessSeries::on_device`].
const PROCESS_DEVICE: [MetricId; 4] = [
    MetricId::ProcessGpuMemory,
    MetricId::ProcessGpuMemoryPercent,
    MetricId::ProcessGpuSmUtilization,
    MetricId::ProcessGpuMemoryUtilization,
];

/// A process whose name changes this early in its life has only now become what it is: it was
/// forked and then executed its program.
const NAME_SETTLES: u64 = 10;

/// Series of metrics, by catalogue number.
#[derive(Debug)]
struct Table(Vec<Option<SeriesId>>);

impl Table {
    fn new() -> Self {
        Self(vec![None; MetricId::ALL.len()])
    }

    fn get(&self, metric: MetricId) -> Option<SeriesId> {
        self.0[metric as usize]
    }

    fn set(&mut self, metric: MetricId, id: SeriesId) {
        self.0[metric as usize] = Some(id);
    }

    fn push(&self, metric: MetricId, reading: Reading, out: &mut Sample) {
        if let Some(id) = self.get(metric) {
            out.push(id, reading);
        }
    }
}

/// The series of one followed device.
#[derive(Debug)]
struct DeviceSeries {
    identity: Arc<DeviceIdentity>,
    /// The physical GPU of a followed slice: its processes are its slices' and would count twice.
    parent: bool,
    gpu: Table,
    job_use: JobUse,
    job_memory: Option<SeriesId>,
    job_sm: Option<SeriesId>,
}

/// The series of one process.
#[derive(Debug)]
struct ProcessSeries {
    identity: Arc<ProcessIdentity>,
    whole: [Option<SeriesId>; PROCESS_WHOLE.len()],
    on_device: Vec<(usize, [Option<SeriesId>; PROCESS_DEVICE.len()])>,
}

/// A running read of the tree's proportional set size: some processes in each sample.
#[derive(Debug, Default)]
struct PssRound {
    next: Option<Mono>,
    waiting: Vec<i32>,
    running: bool,
    bytes: u64,
    failed: bool,
    spent: Duration,
}

/// Time that one sample may spend on `smaps_rollup`, beyond the process it is in.
const PSS_SLICE: Duration = Duration::from_millis(20);

/// The next round waits for at least so many times the time that the last one took.
const PSS_REST: u32 = 50;

/// The live processes of the job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Pid, start time and name of each, parents before children; zombies are not among them.
    pub processes: Vec<ProcessIdentity>,
}

/// Reads everything once per call.
#[derive(Debug)]
pub struct Sampler {
    settings: SamplerSettings,
    registry: Registry,
    host: HostReader,
    tree: Tree,
    whole: Table,
    devices: Vec<DeviceSeries>,
    job_memory_total: Option<SeriesId>,
    processes: Vec<Option<ProcessSeries>>,
    free_slots: Vec<usize>,
    followed: usize,
    limit_told: bool,
    pid_match: PidMatch,
    other_told: bool,
    /// A device's process list could be read at least once.
    lists_seen: bool,
    notices: Vec<Notice>,
    pss: PssRound,
    own_status: Option<KernelFile>,
    buffer: Buffer,
    late: u64,
    dropped: u64,
    ticks_per_second: f64,
    seen_alive: bool,
}

impl Sampler {
    /// Opens the files, finds the root of the tree and makes the series known from the start.
    /// Takes no sample.
    pub fn new(settings: SamplerSettings) -> Result<Self, SamplingError> {
        let descriptors = settings.descriptors.unwrap_or_else(|| {
            let limit = own::descriptor_limit();
            limit.saturating_sub(256).max(limit / 2).min(16_384)
        });
        let tree = Tree::new(&settings.proc_root, settings.root.clone(), descriptors)?;
        let ticks_per_second = own::ticks_per_second();
        let host = HostReader::new(&settings.proc_root, &settings.cgroup_root, ticks_per_second);
        let mut sampler = Self {
            pid_match: PidMatch::of_self(&settings.proc_root),
            own_status: KernelFile::open(&settings.proc_root.join("self/status")).ok(),
            registry: Registry::default(),
            host,
            tree,
            whole: Table::new(),
            devices: Vec::new(),
            job_memory_total: None,
            processes: Vec::new(),
            free_slots: Vec::new(),
            followed: 0,
            limit_told: false,
            other_told: false,
            lists_seen: false,
            notices: Vec::new(),
            pss: PssRound::default(),
            buffer: Buffer::default(),
            late: 0,
            dropped: 0,
            ticks_per_second,
            seen_alive: false,
            settings,
        };
        sampler.open_first();
        Ok(sampler)
    }

    /// The series known from the start: host, GPU, job and gpurun, in that order.
    pub fn initial_series(&self) -> Vec<(SeriesId, Arc<SeriesInfo>)> {
        self.registry.all()
    }

    /// What is known without a look: a job that gpurun starts has used nothing at its `start`. What it uses until the
    /// first sample would otherwise count as used after it.
    pub fn begin(&self, start: Mono, out: &mut Sample) {
        out.clear(start);
        if matches!(self.settings.root, TreeRoot::Job { .. }) {
            for metric in [MetricId::JobCpuPercent, MetricId::JobIoRead, MetricId::JobIoWrite] {
                self.whole.push(metric, Reading::Value(0.0), out);
            }
        }
    }

    /// Everyone is done with a closed series; its number may be reused.
    pub fn release(&mut self, id: SeriesId) {
        self.registry.release(id);
    }

    /// gpurun reaped a process of the job: its main process or an adopted orphan.
    pub fn reaped(&mut self, usage: &ReapedUsage) {
        self.tree.reaped(usage);
    }

    /// The live processes of the job as of the last sample.
    pub fn live(&self) -> Live {
        let live = self.tree.nodes().iter().filter(|node| node.is_alive());
        Live { processes: live.map(|n| ProcessIdentity { key: n.key(), name: n.name().into() }).collect() }
    }

    /// Pid and start time of the live processes as of the last sample, without allocating.
    pub fn live_keys(&self) -> impl Iterator<Item = ProcessKey> + '_ {
        self.tree.nodes().iter().filter(|node| node.is_alive()).map(Node::key)
    }

    /// What the user should hear, once each; empty nearly always.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        self.tree.take_notices(&mut self.notices);
        std::mem::take(&mut self.notices)
    }

    /// Samples that the engine gave up for a reason of its own (a full channel).
    pub fn count_dropped(&mut self, samples: u64) {
        self.dropped += samples;
    }

    /// Reads everything into `out`, labelled `now`. `gpu` is a frame that no earlier sample had.
    ///
    /// `changes` gets the series that `out` names for the first time, and those that no later sample
    /// names; it is not cleared.
    pub fn sample(
        &mut self,
        now: Mono,
        due: Due,
        gpu: Option<&GpuFrame>,
        out: &mut Sample,
        changes: &mut Vec<SeriesChange>,
    ) {
        self.sample_beside(now, due, || gpu, out, changes);
    }

    /// As [`Sampler::sample`], for a frame that is still on its way: `gpu` waits for it, and is asked once what can be
    /// read without it has been.
    pub fn sample_beside<'f>(
        &mut self,
        now: Mono,
        due: Due,
        gpu: impl FnOnce() -> Option<&'f GpuFrame>,
        out: &mut Sample,
        changes: &mut Vec<SeriesChange>,
    ) {
        let start = clock::monotonic();
        out.clear(now);
        if due.late * 2 > self.settings.interval {
            self.late += 1;
        }
        self.dropped += due.skipped;

        let (host, whole) = (&mut self.host, &self.whole);
        host.read(now, |id| whole.get(id).is_some(), |id, reading| whole.push(id, reading, out));
        let lists_make_the_tree = self.settings.root == TreeRoot::GpuProcesses;
        if !lists_make_the_tree {
            self.tree.refresh();
        }
        let waiting = clock::monotonic();
        let gpu = gpu();
        let waited = clock::monotonic().since(waiting);
        self.sample_gpus(gpu, out, changes);
        self.learn_pids(gpu);
        if let (TreeRoot::GpuProcesses, Some(frame)) = (&self.settings.root, gpu)
            && self.pid_match != PidMatch::Other
        {
            let lists = frame.devices.iter().filter_map(|d| d.processes.as_ref()?.as_ref().ok());
            for process in lists.flatten() {
                if let Ok(pid) = i32::try_from(process.pid) {
                    self.tree.follow(pid);
                }
            }
        }
        if lists_make_the_tree {
            self.tree.refresh();
        }
        self.sample_job(out);
        self.sample_pss(now, out);
        self.attribute(gpu, out);
        self.sample_processes(gpu, out, changes);
        self.sample_own(start + waited, out);
    }

    fn open(
        &mut self,
        metric: MetricId,
        device: Option<&Arc<DeviceIdentity>>,
        process: Option<&Arc<ProcessIdentity>>,
    ) -> (SeriesId, Arc<SeriesInfo>) {
        let pace = match metric {
            MetricId::JobMemoryPss => self.settings.pss_interval.max(self.settings.interval),
            _ if metric.get().group == "gpu_processes" => {
                self.settings.gpu_processes_interval.max(self.settings.interval)
            }
            _ if metric.get().tier == Tier::Dear => self.settings.dear_interval.max(self.settings.interval),
            _ => self.settings.interval,
        };
        let info = Arc::new(SeriesInfo {
            metric,
            label: None,
            device: device.cloned(),
            process: process.cloned(),
            pace,
        });
        (self.registry.open(Arc::clone(&info)), info)
    }

    fn open_whole(&mut self, scope: Scope) {
        for metric in self.settings.metrics.of_scope(scope) {
            if metric.get().subject == Subject::Whole && (scope != Scope::Host || self.host.offers(metric)) {
                let (id, _) = self.open(metric, None, None);
                self.whole.set(metric, id);
            }
        }
    }

    fn open_first(&mut self) {
        self.open_whole(Scope::Host);
        self.open_whole(Scope::Job);
        self.open_whole(Scope::Gpurun);
    }

    /// Opens the series of the followed devices; once, when the driver has said which there are.
    /// From then on the frames of [`Sampler::sample`] hold them in this order.
    pub fn attach_devices(&mut self, followed: &[Followed], changes: &mut Vec<SeriesChange>) {
        for device in followed {
            let identity = &device.identity;
            let mut gpu = Table::new();
            for metric in self.settings.metrics.of_scope(Scope::Gpu) {
                // The estimate is opened when it has a value: only cards without an energy counter need it.
                if device.metrics.contains(&metric) && metric != MetricId::GpuEnergyFromPower {
                    gpu.set(metric, self.open_told(metric, Some(identity), changes));
                }
            }
            self.devices.push(DeviceSeries {
                identity: Arc::clone(identity),
                parent: device.role == Role::Parent,
                gpu,
                job_use: JobUse::UNKNOWN,
                job_memory: None,
                job_sm: None,
            });
        }
        let has = |metric| self.settings.metrics.has(metric);
        let (memory, sm) = (has(MetricId::JobGpuMemory), has(MetricId::JobGpuSmUtilization));
        if !followed.is_empty() && memory {
            self.job_memory_total = Some(self.open_told(MetricId::JobGpuMemory, None, changes));
        }
        let first = self.devices.len() - followed.len();
        // The parent of a slice is followed for what only a whole GPU has: its processes are its slices'.
        for (place, device) in followed.iter().enumerate().filter(|(_, d)| d.role != Role::Parent) {
            if memory {
                let id = self.open_told(MetricId::JobGpuMemory, Some(&device.identity), changes);
                self.devices[first + place].job_memory = Some(id);
            }
            if sm {
                let id = self.open_told(MetricId::JobGpuSmUtilization, Some(&device.identity), changes);
                self.devices[first + place].job_sm = Some(id);
            }
        }
    }

    fn open_told(
        &mut self,
        metric: MetricId,
        device: Option<&Arc<DeviceIdentity>>,
        changes: &mut Vec<SeriesChange>,
    ) -> SeriesId {
        let (id, info) = self.open(metric, device, None);
        changes.push(SeriesChange::Opened(id, info));
        id
    }

    fn sample_gpus(&mut self, gpu: Option<&GpuFrame>, out: &mut Sample, changes: &mut Vec<SeriesChange>) {
        for place in 0..self.devices.len() {
            let Some(frame) = gpu.and_then(|frame| frame.devices.get(place)) else {
                // The reader is late or hangs: what is read every time was due and is not there.
                let table = &self.devices[place].gpu;
                for id in MetricId::ALL {
                    if id.get().tier == Tier::Cheap {
                        table.push(*id, Reading::Missing, out);
                    }
                }
                continue;
            };
            for (metric, reading) in &frame.readings {
                if *metric == MetricId::GpuEnergyFromPower
                    && self.devices[place].gpu.get(*metric).is_none()
                    && self.settings.metrics.has(*metric)
                    && matches!(reading, Reading::Value(_))
                {
                    let identity = Arc::clone(&self.devices[place].identity);
                    let (id, info) = self.open(*metric, Some(&identity), None);
                    self.devices[place].gpu.set(*metric, id);
                    changes.push(SeriesChange::Opened(id, info));
                }
                self.devices[place].gpu.push(*metric, *reading, out);
            }
        }
    }

    /// Whether it is known which processes are the job.
    fn knows_the_job(&self) -> bool {
        self.settings.root != TreeRoot::GpuProcesses || (self.lists_seen && self.pid_match != PidMatch::Other)
    }

    fn sample_job(&mut self, out: &mut Sample) {
        let totals = self.tree.totals();
        let whole = &self.whole;
        if !self.knows_the_job() {
            // "Every process on a GPU" means nobody while no list can be read, and nobody is not none.
            for metric in JOB_TREE {
                whole.push(metric, Reading::Missing, out);
            }
            return;
        }
        whole.push(MetricId::JobCpuPercent, Reading::Value(100.0 * totals.cpu_seconds), out);
        let io = |total: Option<f64>| total.map_or(Reading::Missing, |bytes| Reading::Value(bytes / MIB));
        whole.push(MetricId::JobIoRead, io(totals.read), out);
        whole.push(MetricId::JobIoWrite, io(totals.written), out);
        // A job that has ended has no memory; it would be wrong to let its last window sink to 0.
        if totals.processes > 0 || matches!(self.settings.root, TreeRoot::GpuProcesses) {
            self.seen_alive = true;
            whole.push(MetricId::JobProcesses, Reading::Value(totals.processes as f64), out);
            whole.push(MetricId::JobThreads, Reading::Value(totals.threads as f64), out);
            whole.push(MetricId::JobMemoryRss, Reading::Value(totals.rss as f64 / MIB), out);
        } else if !self.seen_alive {
            // It ended before anybody looked. Once its end is known, one process there was.
            let known = totals.reaped;
            for metric in [MetricId::JobProcesses, MetricId::JobThreads, MetricId::JobMemoryRss] {
                let peak = known && metric != MetricId::JobMemoryRss;
                whole.push(metric, if peak { Reading::Peak(1.0) } else { Reading::Missing }, out);
            }
        }
        if let Some(peak) = totals.rss_peak {
            whole.push(MetricId::JobMemoryRss, Reading::Peak(peak as f64 / MIB), out);
        }
    }

    fn sample_pss(&mut self, now: Mono, out: &mut Sample) {
        let Some(id) = self.whole.get(MetricId::JobMemoryPss) else { return };
        if !self.knows_the_job() {
            return;
        }
        let round = &mut self.pss;
        // The first round waits a little: at its very start a job is not itself yet.
        let next = *round.next.get_or_insert(now + self.settings.pss_interval.min(Duration::from_secs(5)));
        if !round.running {
            if now < next {
                return;
            }
            *round = PssRound {
                running: true,
                waiting: std::mem::take(&mut round.waiting),
                ..PssRound::default()
            };
            round.waiting.clear();
            let live = self.tree.nodes().iter().filter(|node| node.is_alive());
            round.waiting.extend(live.map(|node| node.key().pid));
        }
        let begin = clock::monotonic();
        let mut slice = Duration::ZERO;
        while slice < PSS_SLICE {
            let Some(pid) = round.waiting.pop() else { break };
            match self.tree.pss(pid) {
                Ok(bytes) => round.bytes += bytes,
                // It has ended meanwhile: its memory is free again.
                Err(FileError::Gone) => {}
                Err(_) => round.failed = true,
            }
            slice = clock::monotonic().since(begin);
        }
        round.spent += slice;
        if round.waiting.is_empty() {
            round.running = false;
            round.next = Some(now + self.settings.pss_interval.max(round.spent * PSS_REST));
            let known = !round.failed && round.bytes > 0;
            out.push(id, if known { Reading::Value(round.bytes as f64 / MIB) } else { Reading::Missing });
        } else {
            round.next = Some(now);
        }
    }

    /// Whether the frame's pids mean the same here.
    fn learn_pids(&mut self, gpu: Option<&GpuFrame>) {
        let Some(frame) = gpu else { return };
        let tree = &mut self.tree;
        self.lists_seen |= frame.devices.iter().any(|device| matches!(device.processes, Some(Ok(_))));
        let lists = frame.devices.iter().filter_map(|device| device.processes.as_ref()?.as_ref().ok());
        self.pid_match =
            self.pid_match.learn(lists.flatten().map(|process| process.pid), |pid| tree.exists(pid));
        if self.pid_match == PidMatch::Other && !self.other_told {
            self.other_told = true;
            self.notices.push(Notice::OtherPidNamespace);
        }
    }

    /// Joins the frame's process lists with the tree: the job's use of each device.
    fn attribute(&mut self, gpu: Option<&GpuFrame>, out: &mut Sample) {
        let Some(frame) = gpu else { return };
        let mut listed = false;
        let other = self.pid_match == PidMatch::Other;
        for (series, device) in self.devices.iter_mut().zip(&frame.devices) {
            let Some(processes) = &device.processes else { continue };
            listed = true;
            series.job_use = match processes {
                Ok(list) if !other => JobUse::of(list, &self.tree),
                _ => JobUse::UNKNOWN,
            };
            if let Ok(list) = processes
                && !other
            {
                for process in list {
                    let place = i32::try_from(process.pid).ok().and_then(|pid| self.tree.place_of(pid));
                    if let Some(place) = place {
                        self.tree.nodes_mut()[place].on_gpu = true;
                    }
                }
            }
            if let Some(id) = series.job_memory {
                out.push(id, series.job_use.memory);
            }
            if let Some(id) = series.job_sm {
                out.push(id, series.job_use.sm);
            }
        }
        if let (true, Some(id)) = (listed, self.job_memory_total) {
            let mut with_processes = self.devices.iter().filter(|device| !device.parent);
            let total = with_processes.try_fold(0.0, |sum, device| match device.job_use.memory {
                Reading::Value(value) => Some(sum + value),
                _ => None,
            });
            out.push(id, total.map_or(Reading::Missing, Reading::Value));
        }
    }

    fn sample_processes(
        &mut self,
        gpu: Option<&GpuFrame>,
        out: &mut Sample,
        changes: &mut Vec<SeriesChange>,
    ) {
        if self.settings.processes == ProcessDetail::None {
            return;
        }
        let since_boot = own::since_boot().as_secs_f64();
        for place in 0..self.tree.nodes().len() {
            let node = &self.tree.nodes()[place];
            let tag = node.tag;
            if let Some(slot) = tag
                && (node.is_gone() || (node.renamed() && node.age() <= NAME_SETTLES))
            {
                self.close_process(slot, changes);
                self.tree.nodes_mut()[place].tag = None;
            }
            let node = &self.tree.nodes()[place];
            let wanted = self.settings.processes == ProcessDetail::All || node.on_gpu;
            if node.is_gone() || !wanted {
                continue;
            }
            let slot = match node.tag {
                Some(slot) => slot,
                None if node.is_zombie() => continue,
                None => match self.open_process(place, changes) {
                    Some(slot) => slot,
                    None => continue,
                },
            };
            self.read_process(place, slot, since_boot, out);
            if self.tree.nodes()[place].on_gpu
                && let Some(frame) = gpu
            {
                self.read_process_on_gpus(place, slot, frame, out, changes);
            }
        }
    }

    fn open_process(&mut self, place: usize, changes: &mut Vec<SeriesChange>) -> Option<usize> {
        if self.followed >= self.settings.process_limit {
            if !self.limit_told {
                self.limit_told = true;
                self.notices.push(Notice::TooManyProcesses { limit: self.settings.process_limit });
            }
            return None;
        }
        let node = &self.tree.nodes()[place];
        let identity = Arc::new(ProcessIdentity { key: node.key(), name: node.name().into() });
        let mut whole = [None; PROCESS_WHOLE.len()];
        for (metric, series) in PROCESS_WHOLE.into_iter().zip(&mut whole) {
            if self.settings.metrics.has(metric) {
                let (id, info) = self.open(metric, None, Some(&identity));
                *series = Some(id);
                changes.push(SeriesChange::Opened(id, info));
            }
        }
        let series = ProcessSeries { identity, whole, on_device: Vec::new() };
        let slot = match self.free_slots.pop() {
            Some(slot) => {
                self.processes[slot] = Some(series);
                slot
            }
            None => {
                self.processes.push(Some(series));
                self.processes.len() - 1
            }
        };
        self.tree.nodes_mut()[place].tag = Some(slot);
        self.followed += 1;
        Some(slot)
    }

    fn close_process(&mut self, slot: usize, changes: &mut Vec<SeriesChange>) {
        let Some(series) = self.processes.get_mut(slot).and_then(Option::take) else { return };
        let on_device = series.on_device.iter().flat_map(|(_, ids)| ids.iter());
        changes.extend(series.whole.iter().chain(on_device).flatten().map(|id| SeriesChange::Closed(*id)));
        self.free_slots.push(slot);
        self.followed -= 1;
    }

    fn read_process(&self, place: usize, slot: usize, since_boot: f64, out: &mut Sample) {
        let Some(Some(series)) = self.processes.get(slot) else { return };
        let node = &self.tree.nodes()[place];
        let known = |value: Option<f64>| value.map_or(Reading::Missing, Reading::Value);
        let rss = node.rss().map(|bytes| bytes as f64);
        let percent = rss.zip(self.host.memory_total()).map(|(rss, total)| 100.0 * rss / total as f64);
        let age = since_boot - node.key().start_ticks as f64 / self.ticks_per_second;
        // The order of PROCESS_WHOLE.
        let mut readings = [
            Reading::Value(100.0 * node.own_seconds()),
            known(rss.map(|bytes| bytes / MIB)),
            known(percent),
            Reading::Value(node.threads() as f64),
            known(node.io().map(|io| io.0 / MIB)),
            known(node.io().map(|io| io.1 / MIB)),
            Reading::Value(age.max(0.0) / 60.0),
        ]
        .into_iter();
        for (id, reading) in series.whole.iter().zip(&mut readings) {
            // A zombie has used what it used, and holds no memory and no threads any more.
            if node.is_zombie() && !matches!(reading, Reading::Value(v) if v > 0.0) {
                continue;
            }
            if let Some(id) = id {
                out.push(*id, reading);
            }
        }
        if let (Some(id), Some(peak)) = (series.whole[1], node.peak()) {
            out.push(id, Reading::Peak(peak as f64 / MIB));
        }
    }

    fn read_process_on_gpus(
        &mut self,
        place: usize,
        slot: usize,
        frame: &GpuFrame,
        out: &mut Sample,
        changes: &mut Vec<SeriesChange>,
    ) {
        let pid = self.tree.nodes()[place].key().pid;
        for (at, device) in frame.devices.iter().enumerate().take(self.devices.len()) {
            let Some(list) = &device.processes else { continue };
            if self.devices[at].parent {
                continue;
            }
            let used = attribution::use_of(device, pid);
            let Some(Some(series)) = self.processes.get(slot) else { return };
            let known = series.on_device.iter().position(|(place, _)| *place == at);
            let ids = match (known, used) {
                (Some(known), _) => series.on_device[known].1,
                (None, None) => continue,
                (None, Some(_)) => {
                    let (device, process) =
                        (Arc::clone(&self.devices[at].identity), Arc::clone(&series.identity));
                    let mut ids = [None; PROCESS_DEVICE.len()];
                    for (metric, slot) in PROCESS_DEVICE.into_iter().zip(&mut ids) {
                        if self.settings.metrics.has(metric) {
                            let (id, info) = self.open(metric, Some(&device), Some(&process));
                            *slot = Some(id);
                            changes.push(SeriesChange::Opened(id, info));
                        }
                    }
                    if let Some(Some(series)) = self.processes.get_mut(slot) {
                        series.on_device.push((at, ids));
                    }
                    ids
                }
            };
            let total = self.devices[at].identity.memory_total.filter(|total| *total > 0);
            let known = |value: Option<f64>| value.map_or(Reading::Missing, Reading::Value);
            // The order of PROCESS_DEVICE.
            let readings = match (list, used) {
                (Ok(_), Some(used)) => [
                    attribution::mib(used.memory),
                    known(used.memory.zip(total).map(|(memory, total)| 100.0 * memory as f64 / total as f64)),
                    known(used.sm),
                    known(used.memory_utilization),
                ],
                // It has left the device: measured, and nothing.
                (Ok(_), None) => [Reading::Value(0.0); PROCESS_DEVICE.len()],
                (Err(_), _) => [Reading::Missing; PROCESS_DEVICE.len()],
            };
            for (id, reading) in ids.iter().zip(readings) {
                if let Some(id) = id {
                    out.push(*id, reading);
                }
            }
        }
    }

    fn sample_own(&mut self, start: Mono, out: &mut Sample) {
        let known = |value: Option<f64>| value.map_or(Reading::Missing, Reading::Value);
        let memory =
            self.own_status.as_ref().and_then(|f| parse::status_memory(f.read(&mut self.buffer).ok()?));
        let minder = self.tree.minder();
        let minder_rss = minder.map_or(Some(0), |minder| minder.rss);
        let rss = memory.zip(minder_rss).map(|(own, minder)| (own.resident + minder) as f64);
        let cpu = clock::own_cpu_seconds() + minder.map_or(0.0, |minder| minder.cpu_seconds);
        let whole = &self.whole;
        whole.push(MetricId::GpurunCpuPercent, Reading::Value(100.0 * cpu), out);
        whole.push(MetricId::GpurunMemoryRss, known(rss.map(|bytes| bytes / MIB)), out);
        whole.push(MetricId::GpurunLateSamples, Reading::Value(self.late as f64), out);
        whole.push(MetricId::GpurunDroppedSamples, Reading::Value(self.dropped as f64), out);
        let spent = clock::monotonic().since(start);
        whole.push(MetricId::GpurunSampleTime, Reading::Value(spent.as_secs_f64() * 1e3), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(sampler: &Sampler, sample: &Sample, metric: MetricId) -> Vec<Reading> {
        let id = sampler.whole.get(metric).unwrap();
        sample.readings.iter().filter(|(at, _)| *at == id).map(|(_, reading)| *reading).collect()
    }

    #[test]
    fn this_process_is_sampled() {
        let own_pid = i32::try_from(std::process::id()).unwrap();
        let mut settings = SamplerSettings::new(TreeRoot::Pids(vec![own_pid]));
        settings.processes = ProcessDetail::All;
        let mut sampler = Sampler::new(settings).unwrap();
        let initial = sampler.initial_series();
        let (mut sample, mut changes) = (Sample::default(), Vec::new());
        sampler.sample(Mono(1), Due::unscheduled(), None, &mut sample, &mut changes);
        assert_eq!(reading(&sampler, &sample, MetricId::JobCpuPercent), [Reading::Value(0.0)]);
        let [Reading::Value(rss)] = reading(&sampler, &sample, MetricId::JobMemoryRss)[..] else { panic!() };
        assert!(rss > 0.5, "{rss} MiB");
        assert_eq!(reading(&sampler, &sample, MetricId::JobProcesses), [Reading::Value(1.0)]);
        let opened = changes.iter().filter(|c| matches!(c, SeriesChange::Opened(..))).count();
        assert_eq!(opened, PROCESS_WHOLE.len());
        assert!(sample.readings.iter().all(|(id, _)| id.index() < initial.len() + opened));
        assert_eq!(sampler.live().processes[0].key.pid, own_pid);
        assert!(sampler.take_notices().is_empty());
    }

    #[test]
    fn what_cannot_be_followed_is_said() {
        let error = |settings| Sampler::new(settings).err().unwrap();
        let mut settings = SamplerSettings::new(TreeRoot::Pids(vec![i32::MAX]));
        assert_eq!(error(settings.clone()), SamplingError::NoProcess { pid: i32::MAX });
        settings.proc_root = "/no/such/place".into();
        assert!(matches!(error(settings), SamplingError::NoProc { .. }));
    }
}
