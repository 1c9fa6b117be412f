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
    sum: f64,
    min: f64,
    max: f64,
    last: f64,
    count: u32,
}

impl Points {
    pub(super) fn push(&mut self, value: f64) {
        if self.count == 0 {
            (self.min, self.max) = (value, value);
        }
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.sum += value;
        self.last = value;
        self.count = self.count.saturating_add(1);
    }

    fn merge(&mut self, earlier: &Points) {
        if earlier.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = *earlier;
            return;
        }
        self.min = self.min.min(earlier.min);
        self.max = self.max.max(earlier.max);
        self.sum += earlier.sum;
        self.count = self.count.saturating_add(earlier.count);
    }

    /// A row, unless there was no point at all.
    pub(super) fn row(&self, series: &Arc<SeriesInfo>) -> Option<Row> {
        if self.count == 0 {
            return None;
        }
        let mean = (self.sum / f64::from(self.count)).max(self.min).min(self.max);
        Some(Row {
            series: Arc::clone(series),
            stats: Stats {
                mean: Some(mean),
                min: Some(self.min),
                max: Some(self.max),
                last: Some(self.last),
                samples: self.count,
                missing: 0,
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

    /// Adds points that came before those already here.
    pub(super) fn merge(&mut self, earlier: &PointTable) {
        if self.0.len() < earlier.0.len() {
            self.0.resize(earlier.0.len(), Points::default());
        }
        for (mine, other) in self.0.iter_mut().zip(&earlier.0) {
            mine.merge(other);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
