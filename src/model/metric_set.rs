//! Which metrics of the catalogue are meant: one bit each.

use super::metric::{MetricId, Scope};

/// A set of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricSet(u128);

const _: () = assert!(MetricId::ALL.len() <= 128, "a set has one bit a metric");

fn bit(metric: MetricId) -> u128 {
    1 << (metric as u32)
}

impl Default for MetricSet {
    /// What is recorded unless `--metrics` says otherwise.
    fn default() -> Self {
        MetricId::ALL.iter().copied().filter(|id| id.get().on_by_default()).collect()
    }
}

impl MetricSet {
    /// No metric at all.
    pub const NONE: Self = Self(0);

    /// Whether the metric is in it.
    pub fn has(self, metric: MetricId) -> bool {
        self.0 & bit(metric) != 0
    }

    /// Adds or removes one metric.
    pub fn set(&mut self, metric: MetricId, on: bool) {
        if on {
            self.0 |= bit(metric);
        } else {
            self.0 &= !bit(metric);
        }
    }

    /// What is in both.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// What is in this one and not in the other.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Its metrics in catalogue order.
    pub fn iter(self) -> impl Iterator<Item = MetricId> {
        MetricId::ALL.iter().copied().filter(move |id| self.has(*id))
    }

    /// Its metrics of one scope, in catalogue order.
    pub fn of_scope(self, scope: Scope) -> impl Iterator<Item = MetricId> {
        self.iter().filter(move |id| id.get().scope == scope)
    }
}

impl FromIterator<MetricId> for MetricSet {
    fn from_iter<I: IntoIterator<Item = MetricId>>(metrics: I) -> Self {
        metrics.into_iter().fold(Self::NONE, |set, id| Self(set.0 | bit(id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_metrics_must_be_asked_for() {
        let set = MetricSet::default();
        assert!(set.has(MetricId::GpuFanSpeed) && !set.has(MetricId::JobMemoryPss));
        assert_eq!(MetricSet::NONE.of_scope(Scope::Host).count(), 0);
    }

    #[test]
    fn every_metric_has_its_bit() {
        let all: MetricSet = MetricId::ALL.iter().copied().collect();
        assert!(all.iter().eq(MetricId::ALL.iter().copied()));
        let last = MetricId::ALL[MetricId::ALL.len() - 1];
        let without = all.without([last].into_iter().collect());
        assert!(!without.has(last) && without.iter().count() == MetricId::ALL.len() - 1);
        assert_eq!(all.and([last].into_iter().collect()).iter().collect::<Vec<_>>(), [last]);
    }
}
