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
    /// Least time between reads of metrics of the expensive tier.
    pub expensive_every: Duration,
    /// Least time between reads of the process lists.
    pub processes_every: Duration,
    /// Least time between attempts to find a lost GPU or driver again.
    pub retry_every: Duration,
}

impl GpuSettings {
    /// These metrics of each device at this interval, expensive ones every five seconds or every frame, whichever is
    /// slower, process lists every two.
    pub fn new(metrics: Vec<MetricId>, interval: Duration) -> Self {
        Self {
            metrics,
            processes: true,
            interval,
            expensive_every: interval.max(Duration::from_secs(5)),
            processes_every: interval.max(Duration::from_secs(2)),
            retry_every: interval.max(Duration::from_secs(5)),
        }
    }

    pub(super) fn wanted(&self) -> MetricSet {
        self.metrics.iter().copied().filter(|id| id.get().scope == Scope::Gpu).collect()
    }

    /// Those of the wanted metrics that are not read in every frame.
    pub(super) fn expensive(&self) -> MetricSet {
        let expensive = |id: &MetricId| matches!(id.get().tier, Tier::Expensive | Tier::OptIn);
        self.wanted().iter().filter(expensive).collect()
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
    fn only_the_gpu_scope_is_wanted() {
        let settings = GpuSettings::new(MetricId::ALL.to_vec(), Duration::from_secs(1));
        assert!(settings.wanted().iter().all(|id| id.get().scope == Scope::Gpu));
        assert!(
            settings.expensive().has(MetricId::GpuFanSpeed)
                && !settings.expensive().has(MetricId::GpuGpuUtilization)
        );
    }
}
