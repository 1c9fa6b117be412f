//! How long the steps of a row took: their statistics, median and 95th percentile, and samples a second.

use std::sync::Arc;
use std::time::Duration;

use crate::model::metric::MetricId;
use crate::model::series::SeriesInfo;
use crate::model::window::{Row, Stats};

use super::points::{Points, point_series};

/// Most times that are kept for the percentiles of one row.
const MOST: usize = 4096;

/// Times of one kind, in milliseconds.
#[derive(Debug, Default)]
struct Times {
    points: Points,
    /// Every `stride`-th of them, with the number of steps that took that long each.
    kept: Vec<(f64, u32)>,
    stride: usize,
    seen: usize,
}

impl Times {
    fn push(&mut self, time: Duration, steps: u32) {
        let ms = time.as_secs_f64() * 1e3 / f64::from(steps);
        self.points.push_times(ms, steps);
        if self.kept.len() == MOST {
            let mut place = 0;
            self.kept.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.stride = self.stride.max(1) * 2;
        }
        if self.seen.is_multiple_of(self.stride.max(1)) {
            self.kept.push((ms, steps));
        }
        self.seen += 1;
    }

    /// The value that this share of the steps does not exceed: the smallest one for which that is so.
    fn quantile(&mut self, share: f64) -> Option<f64> {
        self.kept.sort_by(|a, b| a.0.total_cmp(&b.0));
        let all: f64 = self.kept.iter().map(|(_, steps)| f64::from(*steps)).sum();
        let mut below = 0.0;
        let found = self.kept.iter().find(|(_, steps)| {
            below += f64::from(*steps);
            below >= share * all
        });
        found.map(|(ms, _)| *ms)
    }
}

/// A kind of time with the series of its rows.
#[derive(Debug)]
struct TimeSeries {
    all: Arc<SeriesInfo>,
    p50: Arc<SeriesInfo>,
    p95: Arc<SeriesInfo>,
}

impl TimeSeries {
    fn new([all, p50, p95]: [MetricId; 3]) -> Self {
        let [all, p50, p95] = [all, p50, p95].map(|metric| point_series(metric, None));
        TimeSeries { all, p50, p95 }
    }

    fn rows(&self, times: &mut Times, rows: &mut Vec<Row>) {
        rows.extend(times.points.row(&self.all));
        for (series, share) in [(&self.p50, 0.5), (&self.p95, 0.95)] {
            let Some(value) = times.quantile(share) else { continue };
            let value = Some(value);
            let samples = times.points.count();
            let stats = Stats { mean: value, min: value, max: value, last: value, samples, missing: 0 };
            rows.push(Row { series: Arc::clone(series), stats });
        }
    }
}

/// The series of all times of steps.
#[derive(Debug)]
pub(super) struct StepSeries {
    whole: TimeSeries,
    inside: TimeSeries,
    between: TimeSeries,
    throughput: Arc<SeriesInfo>,
}

impl StepSeries {
    pub(super) fn new() -> Self {
        use MetricId::{
            BatchTimeInterStep, BatchTimeInterStepP50, BatchTimeInterStepP95, BatchTimeIntraStep,
            BatchTimeIntraStepP50, BatchTimeIntraStepP95, BatchTimeStep, BatchTimeStepP50, BatchTimeStepP95,
        };
        StepSeries {
            whole: TimeSeries::new([BatchTimeStep, BatchTimeStepP50, BatchTimeStepP95]),
            inside: TimeSeries::new([BatchTimeIntraStep, BatchTimeIntraStepP50, BatchTimeIntraStepP95]),
            between: TimeSeries::new([BatchTimeInterStep, BatchTimeInterStepP50, BatchTimeInterStepP95]),
            throughput: point_series(MetricId::BatchTimeThroughput, None),
        }
    }
}

/// The times of one mark: of one step, or of several that ended together.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepTimes {
    /// Steps that ended together.
    pub(super) steps: u32,
    /// From the start of the step to its end, if its begin was marked.
    pub(super) inside: Option<Duration>,
    /// From the end of the step before to the start of this one; to its end, if its begin was not marked.
    pub(super) between: Option<Duration>,
    /// Training samples in the steps, if the job says so.
    pub(super) samples: Option<u64>,
}

impl StepTimes {
    /// From the end of the step before to the end of this one.
    fn whole(&self) -> Option<Duration> {
        Some(self.between? + self.inside.unwrap_or_default())
    }
}

/// The times of all steps of a row.
#[derive(Debug, Default)]
pub(super) struct Durations {
    whole: Times,
    inside: Times,
    between: Times,
    rates: Points,
    /// Training samples, and the seconds of the steps that they were in.
    samples: (f64, f64),
}

impl Durations {
    pub(super) fn push(&mut self, times: &StepTimes) {
        if let Some(inside) = times.inside {
            self.inside.push(inside, times.steps);
        }
        if let Some(between) = times.between {
            // It lies before all of them together.
            self.between.push(between, 1);
        }
        let Some(whole) = times.whole() else { return };
        self.whole.push(whole, times.steps);
        if let Some(samples) = times.samples
            && !whole.is_zero()
        {
            let (samples, seconds) = (samples as f64, whole.as_secs_f64());
            self.rates.push_times(samples / seconds, times.steps);
            self.samples = (self.samples.0 + samples, self.samples.1 + seconds);
        }
    }

    pub(super) fn rows(&mut self, series: &StepSeries) -> Vec<Row> {
        let mut rows = Vec::new();
        series.whole.rows(&mut self.whole, &mut rows);
        series.inside.rows(&mut self.inside, &mut rows);
        series.between.rows(&mut self.between, &mut rows);
        if let Some(mut row) = self.rates.row(&series.throughput) {
            // All samples by all seconds, which is not the mean of the rates.
            row.stats.mean = Some(self.samples.0 / self.samples.1);
            rows.push(row);
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(rows: &[Row], metric: MetricId) -> Option<Stats> {
        rows.iter().find(|row| row.series.metric == metric).map(|row| row.stats)
    }

    #[test]
    fn percentiles_are_times_of_steps() {
        let mut durations = Durations::default();
        for ms in 1..=100 {
            let inside = Some(Duration::from_millis(ms));
            durations.push(&StepTimes { steps: 1, inside, between: None, samples: None });
        }
        let rows = durations.rows(&StepSeries::new());
        assert_eq!(stats(&rows, MetricId::BatchTimeIntraStepP50).unwrap().mean, Some(50.0));
        assert_eq!(stats(&rows, MetricId::BatchTimeIntraStepP95).unwrap().last, Some(95.0));
        assert_eq!(stats(&rows, MetricId::BatchTimeIntraStep).unwrap().samples, 100);
        assert_eq!((stats(&rows, MetricId::BatchTimeStep), rows.len()), (None, 3));
    }

    #[test]
    fn a_great_many_steps_keep_their_percentiles_in_bounded_memory() {
        let mut times = Times::default();
        for n in 0..100_000u64 {
            times.push(Duration::from_micros(n * 10), 1);
        }
        assert!(times.kept.len() <= MOST);
        let median = times.quantile(0.5).unwrap();
        assert!((median - 500.0).abs() < 2.0, "{median}");
    }

    #[test]
    fn samples_a_second_are_all_samples_by_all_seconds() {
        let mut durations = Durations::default();
        let mut step = |between: Option<u64>, inside, samples| {
            let [between, inside] = [between, Some(inside)].map(|ms| ms.map(Duration::from_millis));
            durations.push(&StepTimes { steps: 1, inside, between, samples: Some(samples) });
        };
        // What the first step waited for is not known.
        step(None, 10, 1000);
        step(Some(50), 50, 10);
        step(Some(100), 300, 10);
        let rows = durations.rows(&StepSeries::new());
        let got = stats(&rows, MetricId::BatchTimeThroughput).unwrap();
        assert_eq!((got.min, got.max, got.samples), (Some(25.0), Some(100.0), 2));
        assert_eq!(got.mean, Some(20.0 / 0.5));
    }
}
