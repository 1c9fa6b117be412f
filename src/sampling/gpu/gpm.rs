//! GPM of one followed device: when its counters are sampled, and what a pair of samples gives.

use std::time::Duration;

use super::Role;
use super::device::{Device, Pass};
use crate::collectors::nvml::{CallResult, GpmMetric, GpmSamples, GpmTarget, Handle, Nvml};
use crate::model::metric::MetricId;
use crate::model::reading::Reading;
use crate::model::time::Mono;

/// The metrics, in the order of [`GpmMetric::ALL`].
pub(super) const GPM_METRICS: [MetricId; GpmMetric::ALL.len()] = [
    MetricId::GpuSmUtilization,
    MetricId::GpuSmOccupancy,
    MetricId::GpuTensorActive,
    MetricId::GpuDramActive,
    MetricId::GpuFp64Active,
    MetricId::GpuFp32Active,
    MetricId::GpuFp16Active,
    MetricId::GpuIntegerActive,
];

/// Samples that are closer together have no meaning, by the driver's documentation.
const APART: Duration = Duration::from_millis(100);

/// Percent up to which a share is still all of it.
const ROUNDED: f64 = 101.0;

/// The samples of one device. Empty until its first reading.
#[derive(Debug, Default)]
pub(super) struct Gpm {
    target: Option<GpmTarget>,
    samples: Option<GpmSamples>,
    /// When the newer sample was taken, if it is of use.
    taken: Option<Mono>,
}

impl Gpm {
    /// The device's handle is void, or was.
    pub(super) fn forget(&mut self) {
        self.target = None;
        self.taken = None;
    }

    /// Gives the samples back to the driver, before that is shut down.
    pub(super) fn free(&mut self, nvml: &Nvml) {
        self.forget();
        if let Some(samples) = self.samples.take() {
            nvml.free_gpm_samples(samples);
        }
    }

    /// What is sampled for a device.
    ///
    /// # Errors
    /// It has no GPM, or as the driver answers.
    pub(super) fn open(&mut self, nvml: &Nvml, (device, role): (Handle, Role)) -> CallResult<GpmTarget> {
        match self.target {
            Some(target) => Ok(target),
            None => Ok(*self.target.insert(nvml.gpm_target(device, role == Role::Slice)?)),
        }
    }

    /// Takes a sample and gives the means since the one before. `None`: there is none before, it is too young for
    /// another, or so old that its mean is none of now: gpurun was suspended, or the driver did not answer.
    fn read(
        &mut self,
        nvml: &Nvml,
        device: (Handle, Role),
        now: Mono,
        interval: Duration,
    ) -> CallResult<Option<[CallResult<f64>; GPM_METRICS.len()]>> {
        if self.taken.is_some_and(|taken| now.since(taken) < APART) {
            return Ok(None);
        }
        let target = self.open(nvml, device)?;
        let samples = match &mut self.samples {
            Some(samples) => samples,
            empty => empty.insert(nvml.allocate_gpm_samples()?),
        };
        let recent = self.taken.take().filter(|taken| now.since(*taken) <= interval.max(APART) * 5 / 2);
        nvml.take_gpm_sample(target, samples)?;
        self.taken = Some(now);
        if recent.is_some() { nvml.gpm_means(samples).map(Some) } else { Ok(None) }
    }
}

impl Device {
    pub(super) fn read_gpm(&mut self, pass: &mut Pass<'_>, device: Handle) -> CallResult<()> {
        let wanted = GPM_METRICS.into_iter().filter(|id| self.wanted.has(*id));
        if wanted.clone().all(|id| self.unsupported.has(id)) {
            pass.out.readings.extend(wanted.map(|id| (id, Reading::Missing)));
            return Ok(());
        }
        let means = match self.gpm.read(pass.nvml, (device, self.role), pass.now(), pass.settings.interval) {
            Ok(None) => return Ok(()),
            Ok(Some(means)) => means,
            Err(fault) => [Err(fault); GPM_METRICS.len()],
        };
        for (id, mean) in GPM_METRICS.into_iter().zip(means) {
            // All of the time is sometimes a little more: the counters are not read at one instant.
            let mean = mean.map(|percent| if percent <= ROUNDED { percent.min(100.0) } else { percent });
            self.enter(pass, id, mean)?;
        }
        Ok(())
    }
}
