//! The steps of one tag: how long they took, in and between them, over time and as a distribution.

use std::collections::BTreeMap;

use super::about::Row;
use super::curve::{Curve, Figures};
use super::spans::Marks;

/// Ratio of two neighbouring bins of a distribution.
const BIN: f64 = 1.01;

/// A distribution of positive values, by bins of one per cent: bounded memory, however many steps there were.
#[derive(Clone, Debug, Default)]
pub(super) struct Distribution {
    bins: BTreeMap<i32, f64>,
    total: f64,
    min: f64,
    max: f64,
}

impl Distribution {
    /// Adds values of which only some quantiles are known: between two of them they lie evenly.
    fn add(&mut self, count: f64, quantiles: [(f64, f64); 4]) {
        let [(_, min), .., (_, max)] = quantiles;
        if !(count > 0.0 && min >= 0.0 && max >= min) {
            return;
        }
        (self.min, self.max) =
            if self.total > 0.0 { (self.min.min(min), self.max.max(max)) } else { (min, max) };
        self.total += count;
        for pair in quantiles.windows(2) {
            let ((below, from), (until, to)) = (pair[0], pair[1]);
            self.spread(count * (until - below), from, to.max(from));
        }
    }

    fn spread(&mut self, count: f64, from: f64, to: f64) {
        let (first, last) = (bin(from), bin(to));
        for number in first..=last {
            let (low, high) = (BIN.powi(number).max(from), BIN.powi(number + 1).min(to));
            let share = if first == last { 1.0 } else { (high - low).max(0.0) / (to - from) };
            *self.bins.entry(number).or_default() += count * share;
        }
    }

    /// The value that this share of all does not exceed, to half a per cent.
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        let mut below = 0.0;
        let found = self.bins.iter().find(|(_, count)| {
            below += **count;
            // Shares of many rows add up with rounding errors.
            below >= share * self.total * (1.0 - 1e-9)
        });
        found.map(|(number, _)| (BIN.powi(*number) * BIN.sqrt()).max(self.min).min(self.max))
    }
}

/// The bin of a value; all values that no clock can tell from zero have one.
fn bin(value: f64) -> i32 {
    (value.max(1e-6).ln() / BIN.ln()).floor() as i32
}

/// Times of one kind, in milliseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    /// Weighted by steps.
    pub(super) figures: Figures,
    pub(super) distribution: Distribution,
    pub(super) curve: Curve,
    /// Count, smallest and largest value, and median of the row set that is being read.
    current: Option<(f64, f64, f64)>,
    median: Option<f64>,
}

impl Times {
    /// `name` is the metric's without that of the kind: empty, `_p50`, `_p95`.
    fn add(&mut self, name: &str, row: &Row<'_>) {
        match name {
            "" => {
                let weight = row.samples.map_or(1.0, f64::from);
                self.figures.add(weight, row.mean, row.min, row.max);
                self.curve.add(row.time_us, row.window_s, row.mean, row.min, row.max);
                self.current = row.min.zip(row.max).map(|(min, max)| (weight, min, max));
            }
            "_p50" => self.median = row.mean,
            "_p95" => {
                let current = self.current.take().zip(self.median.take()).zip(row.mean);
                if let Some((((count, min, max), p50), p95)) = current {
                    self.distribution.add(count, [(0.0, min), (0.5, p50), (0.95, p95), (1.0, max)]);
                }
            }
            _ => {}
        }
    }

    /// How many of them are known.
    pub(super) fn count(&self) -> u64 {
        self.figures.weight as u64
    }
}

/// The steps of one tag and rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps {
    pub(super) path: String,
    pub(super) rank: Option<i32>,
    pub(super) first: Option<i64>,
    pub(super) last: Option<i64>,
    /// From the end of the step before to the end of a step.
    pub(super) whole: Times,
    /// From the begin to the end of a step; none where only ends are marked.
    pub(super) inside: Times,
    /// From the end of a step to the start of the next.
    pub(super) between: Times,
    pub(super) utilization: Figures,
    pub(super) marks: Marks,
    /// Training samples, and the seconds of the steps that they were in.
    samples: (f64, f64),
    /// Mean time of a step in the row set that is being read.
    mean_ms: Option<f64>,
    latest: Option<(i64, u64)>,
}

impl Steps {
    pub(super) fn new(path: &str, rank: Option<i32>) -> Self {
        Self { path: path.to_owned(), rank, ..Self::default() }
    }

    pub(super) fn add(&mut self, row: &Row<'_>) {
        // Scalars that the job logged for a step are no step of their own.
        if row.scope == "user" {
            return;
        }
        let span = (row.time_us, row.window_s.to_bits());
        if self.latest != Some(span) {
            self.latest = Some(span);
            self.mean_ms = None;
            if let Some(step) = row.step {
                self.first = Some(self.first.map_or(step, |first| first.min(step)));
                self.last = Some(self.last.map_or(step, |last| last.max(step)));
                self.marks.add(row.time_us, step);
            }
        }
        match (row.scope, row.metric) {
            ("batch_time", "throughput") => {
                if let (Some(rate), Some(ms), Some(steps)) = (row.mean, self.mean_ms, row.samples) {
                    let seconds = f64::from(steps) * ms / 1e3;
                    self.samples = (self.samples.0 + rate * seconds, self.samples.1 + seconds);
                }
            }
            ("batch_time", metric) => {
                let (kind, rest) = match metric.split_once("_p") {
                    Some((kind, number)) => (kind, &metric[metric.len() - number.len() - 2..]),
                    None => (metric, ""),
                };
                match kind {
                    "step" => {
                        self.mean_ms = if rest.is_empty() { row.mean } else { self.mean_ms };
                        self.whole.add(rest, row);
                    }
                    "intra_step" => self.inside.add(rest, row),
                    "inter_step" => self.between.add(rest, row),
                    _ => {}
                }
            }
            ("gpu", "gpu_utilization") => self.utilization.add(row.window_s, row.mean, row.min, row.max),
            _ => {}
        }
    }

    /// The kinds of times that are known, by their names.
    pub(super) fn times(&self) -> impl Iterator<Item = (&'static str, &Times)> {
        // Where only ends are marked, what is between two of them is the step.
        let between = Some(&self.between).filter(|_| self.inside.count() > 0);
        let all = [("step", Some(&self.whole)), ("in step", Some(&self.inside)), ("between", between)];
        all.into_iter().filter_map(|(name, times)| Some((name, times.filter(|times| times.count() > 0)?)))
    }

    /// All samples by all seconds of the steps that say how many they took.
    pub(super) fn samples_per_second(&self) -> Option<f64> {
        let (samples, seconds) = self.samples;
        (seconds > 0.0).then(|| samples / seconds)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(got: Option<f64>, want: f64) -> bool {
        got.is_some_and(|got| (got - want).abs() <= 0.011 * want.abs())
    }

    /// What a row says about these times.
    fn quantiles(times: &mut [f64]) -> [(f64, f64); 4] {
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((share * times.len() as f64).ceil() as usize).saturating_sub(1)];
        [(0.0, times[0]), (0.5, at(0.5)), (0.95, at(0.95)), (1.0, times[times.len() - 1])]
    }

    #[test]
    fn one_step_in_ten_that_is_slow_is_no_matter_of_means() {
        let mut all = Distribution::default();
        for _ in 0..20 {
            let mut row: Vec<f64> = (0..50).map(|n| if n % 10 == 0 { 30.0 } else { 10.0 }).collect();
            all.add(50.0, quantiles(&mut row));
        }
        assert!(close(all.quantile(0.5), 10.0) && close(all.quantile(0.95), 30.0), "{all:?}");
    }

    #[test]
    fn a_row_for_each_step_gives_the_quantiles_of_the_steps() {
        let mut all = Distribution::default();
        for n in 1..=1000 {
            all.add(1.0, quantiles(&mut [f64::from(n)]));
        }
        assert!(close(all.quantile(0.5), 500.0) && close(all.quantile(0.95), 950.0), "{all:?}");
    }

    proptest! {
        #[test]
        fn quantiles_lie_between_the_extremes(
            rows in prop::collection::vec(prop::collection::vec(0.0f64..1e6, 1..60), 1..40),
        ) {
            let mut all = Distribution::default();
            for row in &rows {
                all.add(row.len() as f64, quantiles(&mut row.clone()));
            }
            let least = rows.iter().flatten().copied().fold(f64::INFINITY, f64::min);
            let most = rows.iter().flatten().copied().fold(0.0, f64::max);
            let [p50, p95] = [0.5, 0.95].map(|share| all.quantile(share).unwrap());
            prop_assert!(least <= p50 && p50 <= p95 && p95 <= most, "{least} {p50} {p95} {most}");
        }
    }
}
