//! One sample: host, GPU, job, process and gpurun values of one instant, under dense series numbers.
//! Allocates nothing while no process and no series comes or goes.

mod devices;
mod job;
mod processes;
mod pss;

use std::sync::Arc;

use super::MIB;
use super::attribution::PidMatch;
use super::deadline::Due;
use super::frame::GpuFrame;
use super::registry::{Registry, SeriesChange};
use super::settings::{Notice, SamplerSettings, SamplingError, TreeRoot};
use super::tree::{ReapedUsage, Tree};
use crate::collectors::cgroup::Throttling;
use crate::collectors::host::HostReader;
use crate::collectors::procfs::file::{Buffer, KernelFile};
use crate::collectors::procfs::parse;
use crate::collectors::share::ShareOfTime;
use crate::model::device::DeviceIdentity;
use crate::model::id::SeriesId;
use crate::model::metric::{MetricId, Scope, Subject, Tier};
use crate::model::reading::Reading;
use crate::model::sample::Sample;
use crate::model::series::{ProcessIdentity, SeriesInfo};
use crate::model::time::Mono;
use crate::sys::{clock, limits};

use devices::DeviceSeries;
use processes::ProcessTable;
use pss::PssRound;

fn known(value: Option<f64>) -> Reading {
    value.map_or(Reading::Missing, Reading::Value)
}

/// Series of metrics, by catalogue number.
#[derive(Debug)]
struct SeriesTable(Vec<Option<SeriesId>>);

impl SeriesTable {
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

/// The quota that binds the job. A job that gpurun starts is in gpurun's own cgroup; processes of several cgroups, as
/// `record` may follow, have none in common.
fn throttling(settings: &SamplerSettings) -> Option<Throttling> {
    let of = |process: &str| Throttling::find(&settings.proc_root, &settings.cgroup_root, process);
    match &settings.root {
        TreeRoot::Job { .. } => of("self"),
        TreeRoot::Pids(pids) if pids.len() == 1 => of(&pids[0].to_string()),
        TreeRoot::Pids(_) | TreeRoot::GpuProcesses => None,
    }
}

/// Reads everything once per call.
#[derive(Debug)]
pub struct Sampler {
    settings: SamplerSettings,
    registry: Registry,
    host: HostReader,
    pub(super) tree: Tree,
    /// Series of the host, the job and gpurun as wholes.
    whole: SeriesTable,
    devices: Vec<DeviceSeries>,
    job_memory_total: Option<SeriesId>,
    processes: ProcessTable,
    pid_match: PidMatch,
    other_namespace_noticed: bool,
    /// A device's process list could be read at least once.
    lists_seen: bool,
    notices: Vec<Notice>,
    pss: PssRound,
    /// Of the job's cgroup, where a CPU quota binds it.
    throttling: Option<Throttling>,
    own_status: Option<KernelFile>,
    buffer: Buffer,
    late: u64,
    dropped: u64,
    ticks_per_second: f64,
    /// The kernel counts CPU time in ticks: over a moment that can be more than all CPUs can give.
    job_cpu: ShareOfTime,
    /// The job was seen alive at least once.
    seen_alive: bool,
}

impl Sampler {
    /// Opens the files, finds the root of the tree and makes the series known from the start.
    /// Takes no sample.
    pub fn new(settings: SamplerSettings) -> Result<Self, SamplingError> {
        let descriptors = settings.descriptors.unwrap_or_else(|| {
            let limit = limits::descriptors();
            limit.saturating_sub(256).max(limit / 2).min(16_384)
        });
        let tree = Tree::new(&settings.proc_root, settings.root.clone(), descriptors)?;
        let ticks_per_second = clock::ticks_per_second();
        let host =
            HostReader::new(&settings.proc_root, &settings.cgroup_root, &settings.sys_root, ticks_per_second);
        let mut sampler = Self {
            pid_match: PidMatch::of_self(&settings.proc_root),
            own_status: KernelFile::open(&settings.proc_root.join("self/status")).ok(),
            registry: Registry::default(),
            host,
            throttling: throttling(&settings),
            tree,
            whole: SeriesTable::new(),
            devices: Vec::new(),
            job_memory_total: None,
            processes: ProcessTable::default(),
            other_namespace_noticed: false,
            lists_seen: false,
            notices: Vec::new(),
            pss: PssRound::default(),
            buffer: Buffer::default(),
            late: 0,
            dropped: 0,
            ticks_per_second,
            job_cpu: ShareOfTime::of(100.0 * clock::online_cpus()),
            seen_alive: false,
            settings,
        };
        for scope in [Scope::Host, Scope::Job, Scope::Gpurun] {
            sampler.open_whole(scope);
        }
        let energies = sampler.settings.metrics.of_scope(Scope::Host).any(|id| id.get().group == "powercap");
        if energies && sampler.host.energy_is_refused() {
            sampler.notices.push(Notice::NoEnergyPermission);
        }
        Ok(sampler)
    }

    /// The series known from the start: host, GPU, job and gpurun, in that order.
    pub fn initial_series(&self) -> Vec<(SeriesId, Arc<SeriesInfo>)> {
        self.registry.all()
    }

    /// What is known before the first sample: a job that gpurun starts has used nothing at its `start`. What it uses
    /// until the first sample would otherwise count as used after it.
    pub fn begin(&mut self, start: Mono, out: &mut Sample) {
        out.clear(start);
        if matches!(self.settings.root, TreeRoot::Job { .. }) {
            for metric in [MetricId::JobCpuPercent, MetricId::JobIoRead, MetricId::JobIoWrite] {
                self.whole.push(metric, Reading::Value(0.0), out);
            }
            self.job_cpu.clamp(start, 0.0);
            self.sample_throttling(out);
        }
    }

    /// A closed series is used nowhere any more; its number may be given out again.
    pub fn release(&mut self, id: SeriesId) {
        self.registry.release(id);
    }

    /// gpurun reaped a process of the job: its main process or an adopted orphan.
    pub fn reaped(&mut self, usage: &ReapedUsage) {
        self.tree.reaped(usage);
    }

    /// What to tell the user, once each; empty nearly always.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        self.tree.take_notices(&mut self.notices);
        std::mem::take(&mut self.notices)
    }

    /// Reads everything into `out`, labelled `now`.
    ///
    /// `gpu` gives a frame that no earlier sample had, and may wait for it: it is called once what can be read without
    /// it has been. `changes` gets the series that `out` names for the first time, and those that no later sample
    /// names; it is not cleared.
    pub fn sample<'f>(
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
        self.compare_namespaces(gpu);
        if lists_make_the_tree {
            self.follow_listed(gpu);
            self.tree.refresh();
        }
        self.sample_job(out);
        self.sample_throttling(out);
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
        let settings = &self.settings;
        let entry = metric.get();
        let pace = match metric {
            MetricId::JobMemoryPss => settings.pss_interval,
            _ if entry.group == "gpu_processes" => settings.gpu_processes_interval,
            _ if entry.tier == Tier::Expensive
                || (entry.tier == Tier::OptIn && entry.scope == Scope::Gpu) =>
            {
                settings.expensive_interval
            }
            _ => settings.interval,
        };
        let info = Arc::new(SeriesInfo {
            metric,
            label: None,
            device: device.cloned(),
            process: process.cloned(),
            pace: pace.max(settings.interval),
        });
        (self.registry.open(Arc::clone(&info)), info)
    }

    /// As [`Sampler::open`], entered among the changes.
    fn open_changed(
        &mut self,
        metric: MetricId,
        device: Option<&Arc<DeviceIdentity>>,
        process: Option<&Arc<ProcessIdentity>>,
        changes: &mut Vec<SeriesChange>,
    ) -> SeriesId {
        let (id, info) = self.open(metric, device, process);
        changes.push(SeriesChange::Opened(id, info));
        id
    }

    /// Whether there is such a thing here at all; no series is made for what there is not.
    fn offers(&self, metric: MetricId) -> bool {
        match metric {
            MetricId::JobCpuThrottled | MetricId::JobCpuThrottledPeriods => self.throttling.is_some(),
            _ => metric.get().scope != Scope::Host || self.host.offers(metric),
        }
    }

    fn open_whole(&mut self, scope: Scope) {
        for metric in self.settings.metrics.of_scope(scope) {
            if metric.get().subject == Subject::Whole && self.offers(metric) {
                let (id, _) = self.open(metric, None, None);
                self.whole.set(metric, id);
            }
        }
    }

    fn sample_own(&mut self, start: Mono, out: &mut Sample) {
        let memory =
            self.own_status.as_ref().and_then(|f| parse::status_memory(f.read(&mut self.buffer).ok()?));
        let minder = self.tree.minder();
        let minder_rss = minder.map_or(Some(0), |minder| minder.rss);
        let rss = memory.zip(minder_rss).map(|(own, minder)| (own.resident + minder) as f64);
        let cpu = clock::own_cpu().as_secs_f64() + minder.map_or(0.0, |minder| minder.cpu_seconds);
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
    use crate::sampling::ProcessDetail;

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
        sampler.sample(Mono(1), Due::unscheduled(), || None, &mut sample, &mut changes);
        assert_eq!(reading(&sampler, &sample, MetricId::JobCpuPercent), [Reading::Value(0.0)]);
        let [Reading::Value(rss)] = reading(&sampler, &sample, MetricId::JobMemoryRss)[..] else { panic!() };
        assert!(rss > 0.5, "{rss} MiB");
        assert_eq!(reading(&sampler, &sample, MetricId::JobProcesses), [Reading::Value(1.0)]);
        let opened = changes.iter().filter(|c| matches!(c, SeriesChange::Opened(..))).count();
        assert_eq!(opened, 8, "of the process as a whole");
        assert!(sample.readings.iter().all(|(id, _)| id.index() < initial.len() + opened));
        assert_eq!(sampler.tree.nodes()[0].key().pid, own_pid);
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
