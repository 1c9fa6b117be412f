//! Statistics of one series over one span, and what a series remembers between two reads.
//! All instants are active nanoseconds. Knows nothing of tags, steps or windows.

use std::sync::Arc;

use crate::model::metric::{Kind, MetricId};
use crate::model::series::SeriesInfo;
use crate::model::window::Stats;

const NANOS: f64 = 1e9;

/// Running statistics. NaN stands for "none yet", so that a table of these is plain memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acc {
    /// Value x seconds over the covered time.
    integral: f64,
    /// Covered nanoseconds.
    covered: u64,
    /// Sum of the values that were read, for spans that cover instants only.
    sum: f64,
    min: f64,
    max: f64,
    peak: f64,
    last: f64,
    samples: u32,
    missing: u32,
}

impl Default for Acc {
    fn default() -> Self {
        Acc {
            integral: 0.0,
            covered: 0,
            sum: 0.0,
            min: f64::NAN,
            max: f64::NAN,
            peak: f64::NAN,
            last: f64::NAN,
            samples: 0,
            missing: 0,
        }
    }
}

impl Acc {
    /// A value stood in the span, for however short a time.
    fn note(&mut self, value: f64) {
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.last = value;
    }

    /// A read inside the span gave this value.
    fn read(&mut self, value: f64) {
        self.note(value);
        self.sum += value;
        self.samples = self.samples.saturating_add(1);
    }

    /// The mean value over a stretch of time.
    fn cover(&mut self, mean: f64, nanos: u64) {
        self.integral += mean * (nanos as f64 / NANOS);
        self.covered += nanos;
    }

    /// Corrects the mean value over a stretch that is covered already.
    fn correct(&mut self, by: f64, nanos: u64) {
        self.integral += by * (nanos as f64 / NANOS);
    }

    fn miss(&mut self, count: u32) {
        self.missing = self.missing.saturating_add(count);
    }

    /// A rate that ends inside the span.
    fn rate(&mut self, rate: f64, steady: Option<f64>) {
        if let Some(steady) = steady {
            self.note(steady);
        }
        self.sum += rate;
        self.samples = self.samples.saturating_add(1);
    }

    /// Whether nothing is known of the value in the span so far.
    fn is_blank(&self) -> bool {
        self.last.is_nan() && self.covered == 0
    }

    /// A maximum that was reached.
    pub(super) fn peak(&mut self, value: f64) {
        self.peak = self.peak.max(value);
    }

    /// Whether anything at all is known of the series in the span.
    pub(super) fn is_touched(&self) -> bool {
        self.missing > 0 || !self.is_blank() || !self.peak.is_nan()
    }

    /// Adds what is known of a later stretch of time.
    pub(super) fn merge(&mut self, later: &Acc) {
        self.integral += later.integral;
        self.covered += later.covered;
        self.sum += later.sum;
        self.min = self.min.min(later.min);
        self.max = self.max.max(later.max);
        self.peak = self.peak.max(later.peak);
        self.last = if later.last.is_nan() { self.last } else { later.last };
        self.samples = self.samples.saturating_add(later.samples);
        self.missing = self.missing.saturating_add(later.missing);
    }

    /// The numbers as rows carry them.
    pub(super) fn stats(&self, kind: Kind) -> Stats {
        if kind == Kind::Amount {
            let amount = (self.covered > 0).then_some(self.integral);
            let (samples, missing) = (self.samples, self.missing);
            return Stats { mean: amount, min: amount, max: amount, last: amount, samples, missing };
        }
        let known = |value: f64| (!value.is_nan()).then_some(value);
        let mean = if self.covered > 0 {
            self.integral / (self.covered as f64 / NANOS)
        } else if self.samples > 0 {
            self.sum / f64::from(self.samples)
        } else {
            self.last
        };
        let (mut mean, mut min, mut max, mut last) = (mean, self.min, self.max, self.last);
        if min.is_nan() {
            // Rates over moments only: together they are the mean.
            (min, max, last) = (mean, mean, mean);
        }
        // Rounding may leave the mean of a constant a hair outside.
        let outside = mean < min - 1e-9 * min.abs() || mean > max + 1e-9 * max.abs();
        if kind == Kind::Counter && outside {
            // It is exact, and the extremes are over longer times.
            (min, max) = (min.min(mean), max.max(mean));
        } else if !mean.is_nan() {
            // A gauge's value on the edge, which is the next span's, may pull the mean outside.
            mean = mean.max(min).min(max);
        }
        Stats {
            mean: known(mean),
            min: known(min),
            max: known(max.max(self.peak)),
            last: known(last),
            samples: self.samples,
            missing: self.missing,
        }
    }
}

/// A value with its instant.
#[derive(Clone, Copy, Debug)]
struct Point {
    at: u64,
    value: f64,
}

/// What a value that was read means for the spans that are open, or that ended since the one before.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A gauge's value, bridged with the one before where that is near enough.
    Gauge { from: Option<(u64, f64)>, value: f64 },
    /// A gauge's failed read: the value before is held until here.
    GaugeHold { from: Option<(u64, f64)> },
    /// A rate, from the total before to this one; `steady` is the one that min, max and last go by, if there is one.
    Rate { from: u64, rate: f64, steady: Option<f64> },
    /// The mean rate over a gap, from the total before to this one. Spans that ended in the gap are as before a `Base`.
    Bridge { from: u64, rate: f64, held: Option<(u64, f64)> },
    /// A total that gives no rate: the first, or one that fell. Spans that ended since
    /// the total before get the rate before that.
    Base { held: Option<(u64, f64)>, fell: bool },
    /// A counter's failed read.
    CounterMissing,
    /// Two totals at one instant: the first one stands.
    Nothing,
}

/// Nanoseconds over which the steps of a total are small. CPU time of processes and of the host has ticks of 10 ms.
fn resolution(metric: MetricId) -> u64 {
    match metric {
        MetricId::HostCpuPercent | MetricId::JobCpuPercent | MetricId::ProcessCpuPercent => 100_000_000,
        _ => 0,
    }
}

/// A series and its last read.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) info: Arc<SeriesInfo>,
    kind: Kind,
    pace: u64,
    /// Rates over less than this say nothing.
    enough: u64,
    limit: u64,
    /// How long after the end of a span a gauge's value still tells where the last one inside was going.
    edge: u64,
    /// First read of whatever outcome.
    born: Option<u64>,
    /// Last read of whatever outcome.
    read: Option<u64>,
    /// Last value; of a gauge, unless a failed read ended it.
    value: Option<Point>,
    /// Last rate of a counter.
    rate: Option<f64>,
    /// The total from which a rate over a short time is taken instead.
    anchor: Option<Point>,
}

impl Series {
    pub(super) fn new(info: Arc<SeriesInfo>, slack: u64) -> Self {
        let pace = u64::try_from(info.pace.as_nanos()).unwrap_or(u64::MAX);
        // A series without a pace (read once, or whenever it likes) has no gaps.
        let limit =
            if pace == 0 { u64::MAX } else { (pace / 2).saturating_mul(5).saturating_add(pace % 2 * 5 / 2) };
        let kind = info.kind();
        let edge = slack.min(pace / 2);
        let enough = (pace / 2).max(resolution(info.metric));
        Series {
            info,
            kind,
            pace,
            enough,
            limit,
            edge,
            born: None,
            read: None,
            value: None,
            rate: None,
            anchor: None,
        }
    }

    /// Whether the series was read at all before `end`.
    pub(super) fn is_born_before(&self, end: u64) -> bool {
        self.born.is_some_and(|born| born < end)
    }

    /// The value before `at`, where it is near enough to be bridged or held up to there.
    fn within_reach(&self, at: u64) -> Option<Point> {
        self.value.filter(|point| at.saturating_sub(point.at) <= self.limit)
    }

    /// Takes a value (`None`: the read failed) at an instant not before any earlier one. The misses since
    /// the read before are still to be had from [`Series::missed`], and [`Series::read_at`] ends the read.
    pub(super) fn take(&mut self, at: u64, value: Option<f64>) -> Step {
        match (self.kind, value) {
            (Kind::Gauge, Some(value)) => {
                let from = self.within_reach(at).map(|p| (p.at, p.value));
                self.value = Some(Point { at, value });
                Step::Gauge { from, value }
            }
            (Kind::Gauge, None) => {
                let from = self.within_reach(at).map(|p| (p.at, p.value));
                self.value = None;
                Step::GaugeHold { from }
            }
            (Kind::Counter | Kind::Amount, None) => Step::CounterMissing,
            (Kind::Counter | Kind::Amount, Some(total)) => {
                let before = self.value;
                match before {
                    Some(point) if point.at >= at => return Step::Nothing,
                    _ => self.value = Some(Point { at, value: total }),
                }
                let held = before.and_then(|point| Some((point.at, self.rate?)));
                let Some(point) = before else {
                    (self.rate, self.anchor) = (None, None);
                    return Step::Base { held, fell: false };
                };
                let is_gap = at - point.at > self.limit;
                // Totals that are sums of many may wobble in their last digits.
                let rise = total - point.value;
                let fell = rise < -1e-9 * point.value.abs().max(1.0);
                let rate = rise.max(0.0) / ((at - point.at) as f64 / NANOS);
                if fell || is_gap {
                    (self.rate, self.anchor) = (None, None);
                }
                match (fell, is_gap) {
                    (true, _) => Step::Base { held, fell: !is_gap },
                    (false, true) => Step::Bridge { from: point.at, rate, held },
                    (false, false) => {
                        let steady = self.steady(point, Point { at, value: total }, rate);
                        self.rate = Some(steady.unwrap_or(rate));
                        Step::Rate { from: point.at, rate, steady }
                    }
                }
            }
        }
    }

    /// The rate that min, max and last go by. Many totals are counted in steps, so that a rate over less than half a pace,
    /// as between an extra read and the one before it, or over less than the steps resolve, may be 0 or many times the
    /// truth: it is taken together with the time before. `None` while even that is too short.
    fn steady(&mut self, point: Point, now: Point, rate: f64) -> Option<f64> {
        let enough = self.enough;
        if now.at - point.at >= enough {
            self.anchor = Some(point);
            return Some(rate);
        }
        let anchor = *self.anchor.get_or_insert(point);
        let length = now.at - anchor.at;
        if length >= enough * 3 {
            // Not forever: a series that is read more often than it says has its extremes too.
            self.anchor = Some(point);
        }
        (length >= enough).then(|| (now.value - anchor.value).max(0.0) / (length as f64 / NANOS))
    }

    /// Ends a read.
    pub(super) fn read_at(&mut self, at: u64) {
        self.born.get_or_insert(at);
        self.read = Some(at);
    }

    /// What was suspended breaks a counter: the host's totals ran on meanwhile.
    pub(super) fn suspend(&mut self) {
        if self.kind.is_total() {
            (self.value, self.anchor) = (None, None);
        }
    }

    /// Reads that never came, by the instants at which that was certain, in `[from, to)`.
    pub(super) fn missed(&self, from: u64, to: u64) -> u32 {
        let Some(read) = self.read else { return 0 };
        if self.pace == 0 {
            return 0;
        }
        let first = read.saturating_add(self.limit);
        if to <= first {
            return 0;
        }
        // Two reads are overdue at `first`, one more each pace after it.
        let before = |instant: u64| match instant.checked_sub(first) {
            None | Some(0) => 0,
            Some(past) => (past - 1) / self.pace + 2,
        };
        u32::try_from(before(to).saturating_sub(before(from.max(read)))).unwrap_or(u32::MAX)
    }

    /// Whether the edge of a span that ended at `end` is still open: a value or total to come can settle it.
    pub(super) fn is_waiting(&self, end: u64, now: u64) -> bool {
        let near = match self.kind {
            Kind::Counter | Kind::Amount => true,
            Kind::Gauge => now <= end + self.edge,
        };
        near && self.limit != u64::MAX
            && self.value.is_some_and(|p| p.at < end && now.saturating_sub(p.at) <= self.limit)
    }

    /// Ends a span `[start, end)` for this series, as far as is known by now.
    pub(super) fn settle(&self, acc: &mut Acc, start: u64, end: u64) {
        acc.miss(self.missed(start, end));
        if self.kind == Kind::Gauge
            && let Some(point) = self.within_reach(end)
        {
            hold(acc, start.max(point.at), end, start == end, point.value);
        }
    }

    /// Gives a span that no rate settled the last known rate, if that is near enough.
    pub(super) fn settle_rate(&self, acc: &mut Acc, end: u64) {
        if self.kind.is_total()
            && acc.is_blank()
            && let Some(rate) = self.rate
            && self.within_reach(end).is_some_and(|point| point.at < end)
        {
            acc.note(rate);
        }
    }

    /// Counts a step for a span that began at `start` and is open at `at`.
    pub(super) fn feed_open(&self, acc: &mut Acc, step: Step, start: u64, at: u64) {
        acc.miss(self.missed(start, at));
        match step {
            Step::Gauge { from, value } => {
                if let Some((since, before)) = from {
                    let since = since.max(start);
                    if at > since {
                        acc.cover((before + value) / 2.0, at - since);
                        acc.note(before);
                    }
                }
                acc.read(value);
            }
            Step::GaugeHold { from } => {
                if let Some((since, before)) = from {
                    hold(acc, since.max(start), at, false, before);
                }
                acc.miss(1);
            }
            Step::Rate { from, rate, steady } => {
                // A rate that ends where the span begins is all of the time before it.
                if at > start {
                    acc.cover(rate, at - from.max(start));
                    acc.rate(rate, steady);
                }
            }
            Step::Bridge { from, rate, .. } => {
                if at > start {
                    acc.cover(rate, at - from.max(start));
                    acc.rate(rate, None);
                }
            }
            Step::Base { fell, .. } => acc.miss(u32::from(fell)),
            Step::CounterMissing => acc.miss(1),
            Step::Nothing => {}
        }
    }

    /// Counts a step for a span `[start, end)` that is over but was waiting for it.
    pub(super) fn feed_ended(&self, acc: &mut Acc, step: Step, at: u64, start: u64, end: u64) {
        match step {
            // The next span's first value lies near the edge: what was held up to there was on its way to it.
            Step::Gauge { from: Some((since, before)), value } if since < end && at <= end + self.edge => {
                let since = since.max(start);
                if end > since {
                    let share = (end - since) as f64 / (at - since) as f64;
                    acc.correct(share * (value - before) / 2.0, end - since);
                }
            }
            Step::Rate { from, rate, steady } if from < end => {
                let since = from.max(start);
                if end > since {
                    acc.cover(rate, end - since);
                }
                if start == end {
                    acc.note(rate);
                } else if at == end {
                    acc.rate(rate, steady);
                } else if end > since
                    && let Some(steady) = steady
                {
                    acc.note(steady);
                }
            }
            Step::Base { held: Some((from, rate)), .. } | Step::Bridge { held: Some((from, rate)), .. }
                if from < end && acc.is_blank() && end - from <= self.limit =>
            {
                acc.note(rate);
            }
            _ => {}
        }
    }
}

/// A constant value from `since` to `until`; at an instant it is only noted.
fn hold(acc: &mut Acc, since: u64, until: u64, instant: bool, value: f64) {
    if until > since {
        acc.cover(value, until - since);
        acc.note(value);
    } else if instant {
        acc.note(value);
    }
}
