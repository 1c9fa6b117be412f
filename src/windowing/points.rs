//! Scalars of the job and times of its steps: statistics of points, not of something with a value all the
//! time. Knows nothing of spans.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::model::metric::MetricId;
use crate::model::series::SeriesInfo;
use crate::model::window::{Row, Stats};

/// Plain statistics of some numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Points {
    /// Kept instead of a sum, which may be beyond what a double can hold.
    mean: f64,
    min: f64,
    max: f64,
    last: f64,
    count: u32,
    /// Points that are no finite number.
    missing: u32,
}

impl Points {
    pub(super) fn push(&mut self, value: f64) {
        self.push_times(value, 1);
    }

    /// Adds the same value several times.
    pub(super) fn push_times(&mut self, value: f64, times: u32) {
        if value.is_finite() {
            self.merge(&Points {
                mean: value,
                min: value,
                max: value,
                last: value,
                count: times,
                missing: 0,
            });
        } else {
            self.missing = self.missing.saturating_add(times);
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Adds points that came after those already here.
    fn merge(&mut self, later: &Points) {
        let missing = self.missing.saturating_add(later.missing);
        if self.count == 0 {
            *self = *later;
        } else if later.count > 0 {
            let count = self.count.saturating_add(later.count);
            let share = f64::from(later.count) / f64::from(count);
            self.mean += later.mean * share - self.mean * share;
            self.min = self.min.min(later.min);
            self.max = self.max.max(later.max);
            self.last = later.last;
            self.count = count;
        }
        self.missing = missing;
    }

    /// A row, unless there was no point at all.
    pub(super) fn row(&self, series: &Arc<SeriesInfo>) -> Option<Row> {
        if self.count == 0 {
            let stats = Stats { missing: self.missing, ..Stats::default() };
            return (self.missing > 0).then(|| Row { series: Arc::clone(series), stats });
        }
        // Rounding may leave the mean of a constant a hair outside.
        let mean = self.mean.max(self.min).min(self.max);
        Some(Row {
            series: Arc::clone(series),
            stats: Stats {
                mean: Some(mean),
                min: Some(self.min),
                max: Some(self.max),
                last: Some(self.last),
                samples: self.count,
                missing: self.missing,
            },
        })
    }
}

/// A series of points: no pace, so no gaps.
pub(super) fn point_series(metric: MetricId, label: Option<Arc<str>>) -> Arc<SeriesInfo> {
    Arc::new(SeriesInfo { metric, label, device: None, process: None, pace: Duration::ZERO })
}

/// Every name that the job logged under, as a dense number.
#[derive(Debug, Default)]
pub(super) struct Labels {
    numbers: HashMap<Arc<str>, usize>,
    series: Vec<Arc<SeriesInfo>>,
}

impl Labels {
    pub(super) fn len(&self) -> usize {
        self.series.len()
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.numbers.contains_key(name)
    }

    /// The number of a name; a new name gets the next one.
    pub(super) fn number(&mut self, name: &Arc<str>) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.series.len();
        self.series.push(point_series(MetricId::UserValue, Some(Arc::clone(name))));
        self.numbers.insert(Arc::clone(name), number);
        number
    }

    /// The rows of a table, in the order in which the names were first logged.
    pub(super) fn rows<'a>(&'a self, table: &'a PointTable) -> impl Iterator<Item = Row> + 'a {
        table.0.iter().zip(&self.series).filter_map(|(points, series)| points.row(series))
    }
}

/// Points by the number of their name.
#[derive(Clone, Debug, Default)]
pub(super) struct PointTable(Vec<Points>);

impl PointTable {
    pub(super) fn push(&mut self, number: usize, value: f64) {
        if self.0.len() <= number {
            self.0.resize(number + 1, Points::default());
        }
        self.0[number].push(value);
    }

    /// Adds points that came after those already here.
    pub(super) fn merge(&mut self, later: &PointTable) {
        if self.0.len() < later.0.len() {
            self.0.resize(later.0.len(), Points::default());
        }
        for (mine, other) in self.0.iter_mut().zip(&later.0) {
            mine.merge(other);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_of(values: &[f64]) -> f64 {
        let (mut all, mut later) = (Points::default(), Points::default());
        let (before, after) = values.split_at(values.len() / 2);
        before.iter().for_each(|value| all.push(*value));
        after.iter().for_each(|value| later.push(*value));
        all.merge(&later);
        all.row(&point_series(MetricId::UserValue, None)).unwrap().stats.mean.unwrap()
    }

    #[test]
    fn the_mean_of_the_largest_numbers_is_their_mean() {
        assert_eq!(mean_of(&[1.0, 2.0, 6.0]), 3.0);
        assert_eq!(mean_of(&[f64::MAX; 5]), f64::MAX);
        assert!((mean_of(&[1.6e308, 1.2e308]) - 1.4e308).abs() < 1e293);
        assert_eq!(mean_of(&[f64::MAX, f64::MAX, -f64::MAX, -f64::MAX]), 0.0);
        assert_eq!(mean_of(&[f64::MIN_POSITIVE; 3]), f64::MIN_POSITIVE);
    }

    #[test]
    fn what_is_not_finite_is_missing() {
        let series = point_series(MetricId::UserValue, None);
        let mut points = Points::default();
        assert!(points.row(&series).is_none());
        points.push(f64::NAN);
        let stats = points.row(&series).unwrap().stats;
        assert_eq!(stats, Stats { missing: 1, ..Stats::default() });
        points.push(2.0);
        points.push(f64::NEG_INFINITY);
        let mut later = Points::default();
        later.push(f64::INFINITY);
        for merged in [points, {
            later.merge(&points);
            later
        }] {
            let stats = merged.row(&series).unwrap().stats;
            assert_eq!(
                (stats.mean, stats.min, stats.max, stats.last),
                (Some(2.0), Some(2.0), Some(2.0), Some(2.0))
            );
            assert_eq!(stats.samples, 1);
            assert!(stats.missing >= 2);
        }
        assert_eq!(later.row(&series).unwrap().stats.missing, 3);
    }
}
