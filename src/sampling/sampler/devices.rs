//! The values of the followed devices, and which processes of the job use them.

use std::sync::Arc;

use super::{Sampler, SeriesTable};
use crate::collectors::share::ShareOfTime;
use crate::model::device::DeviceIdentity;
use crate::model::id::SeriesId;
use crate::model::metric::{MetricId, Scope, Tier};
use crate::model::reading::Reading;
use crate::model::sample::Sample;
use crate::sampling::attribution::{JobUse, PidMatch};
use crate::sampling::frame::{GpuFrame, GpuProcessUse};
use crate::sampling::gpu::{Followed, Role};
use crate::sampling::registry::SeriesChange;
use crate::sampling::settings::Notice;

/// The series of one followed device.
#[derive(Debug)]
pub(super) struct DeviceSeries {
    pub(super) identity: Arc<DeviceIdentity>,
    /// The physical GPU of a followed slice: its processes are its slices' and would count twice.
    pub(super) is_parent: bool,
    gpu: SeriesTable,
    /// Shares of time that the driver counts, which no rounding of the clocks may show above 100 %.
    throttled: [ShareOfTime; 2],
    job_use: JobUse,
    job_memory: Option<SeriesId>,
    job_sm: Option<SeriesId>,
}

impl DeviceSeries {
    fn push(&mut self, metric: MetricId, reading: Reading, out: &mut Sample) {
        let share = match metric {
            MetricId::GpuThrottledPower => Some(&mut self.throttled[0]),
            MetricId::GpuThrottledThermal => Some(&mut self.throttled[1]),
            _ => None,
        };
        let reading = match (reading, share) {
            (Reading::Value(total), Some(share)) => Reading::Value(share.clamp(out.at, total)),
            (other, _) => other,
        };
        self.gpu.push(metric, reading, out);
    }
}

/// The process lists that a frame has.
fn lists(frame: &GpuFrame) -> impl Iterator<Item = &GpuProcessUse> {
    frame.devices.iter().filter_map(|device| device.processes.as_ref()?.as_ref().ok()).flatten()
}

impl Sampler {
    /// Opens the series of the followed devices; once, when the driver has said which there are.
    /// From then on the frames of [`Sampler::sample`] hold them in this order.
    pub fn attach_devices(&mut self, followed: &[Followed], changes: &mut Vec<SeriesChange>) {
        let mut devices: Vec<_> = followed.iter().map(|device| self.open_device(device, changes)).collect();
        let has = |metric| self.settings.metrics.has(metric);
        let (memory, sm) = (has(MetricId::JobGpuMemory), has(MetricId::JobGpuSmUtilization));
        if !followed.is_empty() && memory {
            self.job_memory_total = Some(self.open_changed(MetricId::JobGpuMemory, None, None, changes));
        }
        for device in devices.iter_mut().filter(|device| !device.is_parent) {
            let identity = Some(&device.identity);
            if memory {
                let id = self.open_changed(MetricId::JobGpuMemory, identity, None, changes);
                device.job_memory = Some(id);
            }
            if sm {
                let id = self.open_changed(MetricId::JobGpuSmUtilization, identity, None, changes);
                device.job_sm = Some(id);
            }
        }
        self.devices.append(&mut devices);
    }

    fn open_device(&mut self, device: &Followed, changes: &mut Vec<SeriesChange>) -> DeviceSeries {
        let mut gpu = SeriesTable::new();
        for metric in self.settings.metrics.of_scope(Scope::Gpu) {
            // The estimate is opened when it has a value: only cards without an energy counter need it.
            if device.metrics.contains(&metric) && metric != MetricId::GpuEnergyFromPower {
                gpu.set(metric, self.open_changed(metric, Some(&device.identity), None, changes));
            }
        }
        DeviceSeries {
            identity: Arc::clone(&device.identity),
            is_parent: device.role == Role::Parent,
            gpu,
            throttled: [ShareOfTime::default(); 2],
            job_use: JobUse::UNKNOWN,
            job_memory: None,
            job_sm: None,
        }
    }

    pub(super) fn sample_gpus(
        &mut self,
        gpu: Option<&GpuFrame>,
        out: &mut Sample,
        changes: &mut Vec<SeriesChange>,
    ) {
        for place in 0..self.devices.len() {
            let Some(frame) = gpu.and_then(|frame| frame.devices.get(place)) else {
                // The reader is late or hangs: what is read every time was due and is not there.
                for id in MetricId::ALL.iter().filter(|id| id.get().tier == Tier::Cheap) {
                    self.devices[place].gpu.push(*id, Reading::Missing, out);
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
                    let id = self.open_changed(*metric, Some(&identity), None, changes);
                    self.devices[place].gpu.set(*metric, id);
                }
                self.devices[place].push(*metric, *reading, out);
            }
        }
    }

    /// Whether the frame's pids mean the same here.
    pub(super) fn compare_namespaces(&mut self, gpu: Option<&GpuFrame>) {
        let Some(frame) = gpu else { return };
        self.lists_seen |= frame.devices.iter().any(|device| matches!(device.processes, Some(Ok(_))));
        let tree = &mut self.tree;
        let before = self.pid_match;
        self.pid_match = before.learn(lists(frame).map(|process| process.pid), |pid| tree.exists(pid));
        if self.pid_match == PidMatch::Other && !std::mem::replace(&mut self.other_namespace_noticed, true) {
            self.notices.push(Notice::OtherPidNamespace);
        }
    }

    /// Takes the listed processes into the tree, where they are the job.
    pub(super) fn follow_listed(&mut self, gpu: Option<&GpuFrame>) {
        if self.pid_match == PidMatch::Other {
            return;
        }
        for process in gpu.into_iter().flat_map(lists) {
            if let Ok(pid) = i32::try_from(process.pid) {
                self.tree.follow(pid);
            }
        }
    }

    /// Joins the frame's process lists with the tree: the job's use of each device.
    pub(super) fn attribute(&mut self, gpu: Option<&GpuFrame>, out: &mut Sample) {
        let Some(frame) = gpu else { return };
        let mut listed = false;
        for (series, device) in self.devices.iter_mut().zip(&frame.devices) {
            let Some(processes) = &device.processes else { continue };
            listed = true;
            series.job_use = JobUse::UNKNOWN;
            if let Ok(list) = processes
                && self.pid_match != PidMatch::Other
            {
                series.job_use = JobUse::of(list, &self.tree);
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
            let mut with_processes = self.devices.iter().filter(|device| !device.is_parent);
            let total = with_processes.try_fold(0.0, |sum, device| match device.job_use.memory {
                Reading::Value(value) => Some(sum + value),
                _ => None,
            });
            out.push(id, super::known(total));
        }
    }
}
