//! What is read of the GPUs, and how often.

use std::time::Duration;

use crate::model::metric::{MetricId, Scope, Tier};
use crate::model::metric_set::MetricSet;

/// What the reader reads and at which paces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuSettings {
    /// The metrics of the `gpu` scope that are wanted; others are ignored.
    pub metrics: Vec<MetricId>,
    /// Whether process lists and process utilisation are read at all.
    pub processes: bool,
    /// Time between frames.
    pub interval: Duration,
    /// Least time between reads of metrics of the dear tier.
    pub dear_every: Duration,
    /// Least time between reads of the process lists.
    pub processes_every: Duration,
    /// Least time between attempts to find a lost GPU or driver again.
    pub retry_every: Duration,
}

impl GpuSettings {
    /// These metrics of each device at this interval, dear ones every five seconds or every frame, whichever is
    /// slower, process lists every two.
    pub fn new(metrics: Vec<MetricId>, interval: Duration) -> Self {
        Self {
            metrics,
            processes: true,
            interval,
            dear_every: interval.max(Duration::from_secs(5)),
            processes_every: interval.max(Duration::from_secs(2)),
            retry_every: interval.max(Duration::from_secs(5)),
        }
    }

    /// The time between reads of a metric: what its series expects.
    pub fn pace(&self, metric: MetricId) -> Duration {
        let entry = metric.get();
        match (entry.scope, entry.tier) {
            (Scope::Gpu, Tier::Dear | Tier::OptIn) => self.dear_every,
            (Scope::Job | Scope::Process, Tier::Dear) => self.processes_every,
            _ => self.interval,
        }
    }

    pub(super) fn wanted(&self) -> MetricSet {
        self.metrics.iter().copied().filter(|id| id.get().scope == Scope::Gpu).collect()
    }

    /// Those of the wanted metrics that are not read in every frame.
    pub(super) fn slow(&self) -> MetricSet {
        let slow = |id: &MetricId| matches!(id.get().tier, Tier::Dear | Tier::OptIn);
        self.wanted().iter().filter(slow).collect()
    }

    /// A gap that an integral still bridges, as windows do.
    pub(super) fn bridge(&self) -> Duration {
        self.interval * 5 / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces_follow_the_tiers_and_never_pass_the_interval() {
        let second = Duration::from_secs(1);
        let settings = GpuSettings::new(MetricId::ALL.to_vec(), second);
        assert_eq!(settings.pace(MetricId::GpuPowerUsage), second);
        assert_eq!(settings.pace(MetricId::GpuFanSpeed), 5 * second);
        assert_eq!(settings.pace(MetricId::GpuPcieRxSampled), 5 * second);
        assert_eq!(settings.pace(MetricId::JobGpuMemory), 2 * second);
        assert_eq!(settings.pace(MetricId::ProcessGpuSmUtilization), 2 * second);
        assert_eq!(settings.pace(MetricId::HostCpuPercent), second);
        let slow = GpuSettings::new(Vec::new(), 30 * second);
        assert!(MetricId::ALL.iter().all(|id| slow.pace(*id) == 30 * second));
    }

    #[test]
    fn only_the_gpu_scope_is_wanted() {
        let settings = GpuSettings::new(MetricId::ALL.to_vec(), Duration::from_secs(1));
        assert!(settings.wanted().iter().all(|id| id.get().scope == Scope::Gpu));
        assert!(
            settings.slow().has(MetricId::GpuFanSpeed) && !settings.slow().has(MetricId::GpuGpuUtilization)
        );
    }
}
