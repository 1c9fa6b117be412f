//! Which metrics of the catalogue are recorded.

use super::metric::{CATALOGUE, MetricId, Scope};

/// A set of metrics, as dense bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricSet {
    on: Vec<bool>,
}

impl Default for MetricSet {
    /// What is recorded unless `--metrics` says otherwise.
    fn default() -> Self {
        Self { on: CATALOGUE.iter().map(super::metric::Metric::on_by_default).collect() }
    }
}

impl MetricSet {
    /// No metric at all.
    pub fn none() -> Self {
        Self { on: vec![false; CATALOGUE.len()] }
    }

    /// Whether the metric is recorded.
    pub fn has(&self, metric: MetricId) -> bool {
        self.on[metric as usize]
    }

    /// Adds or removes one metric.
    pub fn set(&mut self, metric: MetricId, on: bool) {
        self.on[metric as usize] = on;
    }

    /// Adds or removes every metric that answers to `word` (a name, a group, or `scope.name`);
    /// the number of metrics it meant, 0 for an unknown word.
    pub fn apply(&mut self, word: &str, on: bool) -> usize {
        let mut meant = 0;
        for (metric, slot) in CATALOGUE.iter().zip(&mut self.on) {
            if metric.answers_to(word) {
                *slot = on;
                meant += 1;
            }
        }
        meant
    }

    /// The recorded metrics of one scope, in catalogue order.
    pub fn of_scope(&self, scope: Scope) -> impl Iterator<Item = MetricId> + '_ {
        MetricId::ALL.iter().copied().filter(move |id| self.has(*id) && id.get().scope == scope)
    }
}

impl FromIterator<MetricId> for MetricSet {
    fn from_iter<I: IntoIterator<Item = MetricId>>(metrics: I) -> Self {
        let mut set = Self::none();
        for metric in metrics {
            set.set(metric, true);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_add_and_remove() {
        let mut set = MetricSet::default();
        assert!(set.has(MetricId::GpuFanSpeed) && !set.has(MetricId::JobMemoryPss));
        assert_eq!(set.apply("pss", true), 1);
        assert_eq!(set.apply("fan", false), 1);
        assert_eq!(set.apply("no_such_metric", true), 0);
        assert!(!set.has(MetricId::GpuFanSpeed) && set.has(MetricId::JobMemoryPss));
        assert_eq!(MetricSet::none().of_scope(Scope::Host).count(), 0);
    }
}
