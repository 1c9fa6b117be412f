//! The values of single processes, which come and go.

use std::sync::Arc;

use super::{Sampler, known};
use crate::model::id::SeriesId;
use crate::model::metric::MetricId;
use crate::model::reading::Reading;
use crate::model::sample::Sample;
use crate::model::series::ProcessIdentity;
use crate::sampling::MIB;
use crate::sampling::attribution;
use crate::sampling::frame::{DeviceFrame, GpuFrame};
use crate::sampling::registry::SeriesChange;
use crate::sampling::settings::{Notice, ProcessDetail};
use crate::sys::clock;

/// Metrics of a process as a whole, in the order of [`ProcessSeries::whole`].
const WHOLE: [MetricId; 8] = [
    MetricId::ProcessCpuPercent,
    MetricId::ProcessMemoryRss,
    MetricId::ProcessMemoryPercent,
    MetricId::ProcessThreads,
    MetricId::ProcessIoRead,
    MetricId::ProcessIoWrite,
    MetricId::ProcessRunningTime,
    MetricId::ProcessCpuAffinity,
];

/// Metrics of a process on one GPU, in the order of [`ProcessSeries::on_device`].
const ON_DEVICE: [MetricId; 4] = [
    MetricId::ProcessGpuMemory,
    MetricId::ProcessGpuMemoryPercent,
    MetricId::ProcessGpuSmUtilization,
    MetricId::ProcessGpuMemoryUtilization,
];

/// A process whose name changes this early in its life has only now become what it is: it was
/// forked and then executed its program.
const NAME_SETTLES: u64 = 10;

type OnDevice = [Option<SeriesId>; ON_DEVICE.len()];

/// The processes that have series of their own, by the tags of their nodes.
#[derive(Debug, Default)]
pub(super) struct ProcessTable {
    slots: Vec<Option<ProcessSeries>>,
    free: Vec<usize>,
    limit_noticed: bool,
}

/// The series of one process.
#[derive(Debug)]
struct ProcessSeries {
    identity: Arc<ProcessIdentity>,
    whole: [Option<SeriesId>; WHOLE.len()],
    /// By the places of the devices that it was seen on.
    on_device: Vec<(usize, OnDevice)>,
}

impl ProcessTable {
    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn insert(&mut self, series: ProcessSeries) -> usize {
        if let Some(slot) = self.free.pop() {
            self.slots[slot] = Some(series);
            return slot;
        }
        self.slots.push(Some(series));
        self.slots.len() - 1
    }

    fn remove(&mut self, slot: usize) -> Option<ProcessSeries> {
        let series = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(series)
    }

    fn get(&self, slot: usize) -> Option<&ProcessSeries> {
        self.slots.get(slot)?.as_ref()
    }
}

impl ProcessSeries {
    fn on(&self, device: usize) -> Option<OnDevice> {
        self.on_device.iter().find(|(place, _)| *place == device).map(|(_, ids)| *ids)
    }
}

impl Sampler {
    pub(super) fn sample_processes(
        &mut self,
        gpu: Option<&GpuFrame>,
        out: &mut Sample,
        changes: &mut Vec<SeriesChange>,
    ) {
        if self.settings.processes == ProcessDetail::None {
            return;
        }
        let since_boot = clock::since_boot().as_secs_f64();
        for place in 0..self.tree.nodes().len() {
            self.close_ended(place, changes);
            let node = &self.tree.nodes()[place];
            let wanted = self.settings.processes == ProcessDetail::All || node.on_gpu;
            if node.is_gone() || !wanted {
                continue;
            }
            let slot = match node.tag {
                Some(slot) => Some(slot),
                None if node.is_zombie() => None,
                None => self.open_process(place, changes),
            };
            let Some(slot) = slot else { continue };
            self.read_process(place, slot, since_boot, out);
            if self.tree.nodes()[place].on_gpu
                && let Some(frame) = gpu
            {
                self.read_process_on_gpus(place, slot, frame, out, changes);
            }
        }
    }

    /// Closes the series of a process that has ended, or has only now got its name.
    fn close_ended(&mut self, place: usize, changes: &mut Vec<SeriesChange>) {
        let node = &mut self.tree.nodes_mut()[place];
        let ends = node.is_gone() || (node.renamed() && node.age() <= NAME_SETTLES);
        let Some(slot) = node.tag.take_if(|_| ends) else { return };
        let Some(series) = self.processes.remove(slot) else { return };
        let on_device = series.on_device.iter().flat_map(|(_, ids)| ids);
        changes.extend(series.whole.iter().chain(on_device).flatten().map(|id| SeriesChange::Closed(*id)));
    }

    fn open_process(&mut self, place: usize, changes: &mut Vec<SeriesChange>) -> Option<usize> {
        let limit = self.settings.process_limit;
        if self.processes.len() >= limit {
            if !std::mem::replace(&mut self.processes.limit_noticed, true) {
                self.notices.push(Notice::TooManyProcesses { limit });
            }
            return None;
        }
        let node = &self.tree.nodes()[place];
        let identity = Arc::new(ProcessIdentity { key: node.key(), name: node.name().into() });
        let whole = WHOLE.map(|metric| {
            let wanted = self.settings.metrics.has(metric);
            wanted.then(|| self.open_changed(metric, None, Some(&identity), changes))
        });
        let slot = self.processes.insert(ProcessSeries { identity, whole, on_device: Vec::new() });
        self.tree.nodes_mut()[place].tag = Some(slot);
        Some(slot)
    }

    fn read_process(&self, place: usize, slot: usize, since_boot: f64, out: &mut Sample) {
        let Some(series) = self.processes.get(slot) else { return };
        let node = &self.tree.nodes()[place];
        let rss = node.rss().map(|bytes| bytes as f64);
        let percent = rss.zip(self.host.memory_total()).map(|(rss, total)| 100.0 * rss / total as f64);
        let age = since_boot - node.key().start_ticks as f64 / self.ticks_per_second;
        // The order of WHOLE.
        let readings = [
            Reading::Value(100.0 * node.own_seconds()),
            known(rss.map(|bytes| bytes / MIB)),
            known(percent),
            Reading::Value(node.threads() as f64),
            known(node.io().map(|io| io.0 / MIB)),
            known(node.io().map(|io| io.1 / MIB)),
            Reading::Value(age.max(0.0) / 60.0),
            known(node.cpus().map(|mask| f64::from(mask.count()))),
        ];
        for (id, reading) in series.whole.iter().zip(readings) {
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
            if device.processes.is_none() || self.devices[at].is_parent {
                continue;
            }
            let is_known = self.processes.get(slot).is_some_and(|series| series.on(at).is_some());
            if !is_known && attribution::use_of(device, pid).is_some() {
                self.open_on_device(slot, at, changes);
            }
            let Some(ids) = self.processes.get(slot).and_then(|series| series.on(at)) else { continue };
            let readings = on_device(device, pid, self.devices[at].identity.memory_total);
            for (id, reading) in ids.into_iter().zip(readings) {
                if let Some(id) = id {
                    out.push(id, reading);
                }
            }
        }
    }

    fn open_on_device(&mut self, slot: usize, at: usize, changes: &mut Vec<SeriesChange>) {
        let Some(process) = self.processes.get(slot).map(|series| Arc::clone(&series.identity)) else {
            return;
        };
        let device = Arc::clone(&self.devices[at].identity);
        let ids = ON_DEVICE.map(|metric| {
            let wanted = self.settings.metrics.has(metric);
            wanted.then(|| self.open_changed(metric, Some(&device), Some(&process), changes))
        });
        if let Some(Some(series)) = self.processes.slots.get_mut(slot) {
            series.on_device.push((at, ids));
        }
    }
}

/// What a process uses of a device of so much memory, in the order of [`ON_DEVICE`].
fn on_device(device: &DeviceFrame, pid: i32, total: Option<u64>) -> [Reading; ON_DEVICE.len()] {
    let total = total.filter(|total| *total > 0);
    match (&device.processes, attribution::use_of(device, pid)) {
        (Some(Ok(_)), Some(used)) => [
            attribution::mib(used.memory),
            known(used.memory.zip(total).map(|(memory, total)| 100.0 * memory as f64 / total as f64)),
            known(used.sm),
            known(used.memory_utilization),
        ],
        // It has left the device: measured, and nothing.
        (Some(Ok(_)), None) => [Reading::Value(0.0); ON_DEVICE.len()],
        _ => [Reading::Missing; ON_DEVICE.len()],
    }
}
