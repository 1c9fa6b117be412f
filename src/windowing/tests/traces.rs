//! Random samples against a brute-force integral.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
struct Read {
    at: u64,
    /// Instant in active time.
    active: u64,
    value: Option<f64>,
}

#[derive(Clone, Debug)]
struct Trace {
    gauge: Vec<(u64, Option<f64>)>,
    counter: Vec<(u64, Option<f64>)>,
    close: Option<u64>,
    suspends: Vec<(u64, u64)>,
    tags: Vec<(u64, u64)>,
    delays: Vec<u64>,
    mark_delay: u64,
    window: u64,
    end: u64,
}

const SLACK: u64 = 700;
const LIMIT: u64 = 2500;
/// How long after a span a value still tells where the last one inside was going.
const EDGE: u64 = 500;

fn reads() -> impl Strategy<Value = Vec<(u64, Option<u32>)>> {
    let gap = prop_oneof![8 => 900u64..1100, 3 => 1u64..3000, 1 => 2499u64..2502, 1 => 3000u64..6000];
    let value = prop_oneof![6 => (0u32..100).prop_map(Some), 1 => Just(None)];
    prop::collection::vec((gap, value), 0..14)
}

fn trace() -> impl Strategy<Value = Trace> {
    (
        (reads(), reads(), prop::collection::vec(any::<prop::sample::Index>(), 0..3)),
        prop::option::weighted(0.3, 0u64..12_000),
        prop::collection::vec((0u64..4000, 1u64..3000), 0..3),
        prop::collection::vec((0u64..14_000, 0u64..6000), 0..4),
        prop::collection::vec(0..SLACK, 40),
        (0..SLACK, 300u64..4000, 0u64..15_000),
    )
        .prop_map(
            |((gauge, counter, resets), close, suspends, tags, delays, (mark_delay, window, end))| {
                let mut at = 0;
                let gauge = gauge.into_iter().map(|(gap, value)| {
                    at += gap;
                    (at, value.map(f64::from))
                });
                let gauge: Vec<_> = gauge.filter(|(at, _)| close.is_none_or(|close| *at <= close)).collect();
                let resets: Vec<usize> = resets
                    .iter()
                    .filter(|_| !counter.is_empty())
                    .map(|index| index.index(counter.len()))
                    .collect();
                let (mut at, mut total) = (0, 1000.0);
                let counter = counter.into_iter().enumerate().map(|(number, (gap, value))| {
                    at += gap;
                    total += value.map_or(0.0, f64::from);
                    if resets.contains(&number) {
                        total /= 2.0;
                    }
                    (at, value.map(|_| total))
                });
                let counter: Vec<_> = counter.collect();
                // A run ends with a span that includes its end; the brute force knows half-open ones only.
                let mut end = end;
                while gauge.iter().chain(&counter).any(|(at, _)| *at == end) {
                    end += 1;
                }
                let mut at = 0;
                let suspends = suspends
                    .into_iter()
                    .map(|(gap, length)| {
                        let start = at + 1 + gap;
                        at = start + length;
                        (start, at)
                    })
                    .collect();
                let tags = tags.into_iter().map(|(start, length)| (start, start + length)).collect();
                Trace { gauge, counter, close, suspends, tags, delays, mark_delay, window, end }
            },
        )
}

impl Trace {
    fn active(&self, at: u64) -> u64 {
        self.suspends.iter().fold(at, |left, (start, end)| left - (at.min(*end)).saturating_sub(*start))
    }

    /// The reads that count: those of suspended time, and those after the end, do not.
    fn reads(&self, raw: &[(u64, Option<f64>)]) -> Vec<Read> {
        raw.iter()
            .filter(|(at, _)| *at <= self.end && !self.suspends.iter().any(|(s, e)| s < at && at < e))
            .map(|(at, value)| Read { at: *at, active: self.active(*at), value: *value })
            .collect()
    }

    /// Runs the fold with everything delivered late by its own delay.
    fn run(&self, late: bool) -> Vec<WindowBatch> {
        enum Arrival {
            Gauge(u64, Option<f64>),
            Counter(u64, Option<f64>),
            Close(u64),
            Suspend(u64),
            Resume(u64),
            Mark(StackId, u64, MarkOp),
        }
        let mut arrivals: Vec<(u64, Arrival)> = Vec::new();
        let mut delays = self.delays.iter().cycle().map(|delay| if late { *delay } else { 0 });
        let mut delay = || delays.next().unwrap_or(0);
        for (at, value) in self.gauge.iter().filter(|(at, _)| *at <= self.end) {
            arrivals.push((at + delay(), Arrival::Gauge(*at, *value)));
        }
        for (at, value) in self.counter.iter().filter(|(at, _)| *at <= self.end) {
            arrivals.push((at + delay(), Arrival::Counter(*at, *value)));
        }
        if let Some(close) = self.close.filter(|close| *close <= self.end) {
            arrivals.push((close + delay(), Arrival::Close(close)));
        }
        for (start, end) in self.suspends.iter().filter(|(start, _)| *start <= self.end) {
            arrivals.push((start + delay(), Arrival::Suspend(*start)));
            if *end <= self.end {
                arrivals.push((end + delay(), Arrival::Resume(*end)));
            }
        }
        let mark_delay = if late { self.mark_delay } else { 0 };
        for (number, (start, end)) in
            self.tags.iter().enumerate().filter(|(_, (start, _))| *start <= self.end)
        {
            let stack = StackId(10 + u32::try_from(number).unwrap());
            let rank = i32::try_from(number).ok();
            for (at, op) in [(*start, MarkOp::Open { rank }), (*start, begin("tag")), (*end, MarkOp::Close)] {
                if at <= self.end {
                    arrivals.push((at + mark_delay, Arrival::Mark(stack, at, op)));
                }
            }
        }
        arrivals.sort_by_key(|(at, _)| *at);
        let mut fold = fold(self.window, SLACK);
        let mut out = Vec::new();
        for (at, arrival) in arrivals {
            let reading = |value: Option<f64>| value.map_or(Reading::Missing, Reading::Value);
            match arrival {
                Arrival::Gauge(at, value) => sample(&mut fold, at, GAUGE, reading(value)),
                Arrival::Counter(at, value) => sample(&mut fold, at, COUNTER, reading(value)),
                Arrival::Close(at) => fold.close_series(GAUGE, ms(at)),
                Arrival::Suspend(at) => fold.suspend(ms(at)),
                Arrival::Resume(at) => fold.resume(ms(at)),
                Arrival::Mark(stack, at, op) => mark(&mut fold, stack, at, op),
            }
            if at < self.end {
                fold.advance(clock(at), &mut out);
            }
        }
        fold.finish(clock(self.end), &mut out);
        out
    }
}

/// What one span must hold, by looking at every millisecond of it.
#[derive(Debug, Default)]
struct Brute {
    integral: f64,
    covered: u64,
    noted: Vec<f64>,
    last: Option<f64>,
    samples: u32,
    missing: u32,
}

impl Brute {
    fn note(&mut self, value: f64) {
        self.noted.push(value);
        self.last = Some(value);
    }

    /// Reads that never came, in the part of the span before the series ended.
    fn count_misses(&mut self, reads: &[Read], from: u64, to: u64) {
        for (number, read) in reads.iter().enumerate() {
            let until = reads.get(number + 1).map_or(u64::MAX, |next| next.active).min(to);
            let mut due = read.active + LIMIT;
            let mut weight = 2;
            while due < until {
                if due >= from {
                    self.missing += weight;
                }
                due += 1000;
                weight = 1;
            }
        }
    }

    fn gauge(reads: &[Read], real: (u64, u64), from: u64, to: u64, close: Option<u64>) -> Brute {
        let mut brute = Brute::default();
        let inside = |read: &Read| real.0 <= read.at && read.at < real.1;
        let until = close.map_or(to, |close| close.min(to));
        for cell in from..until {
            let Some(before) = reads.iter().rev().find(|read| read.active <= cell) else { continue };
            let Some(value) = before.value else { continue };
            let beyond = |read: &&Read| {
                let reached = read.active <= to + EDGE && read.active - before.active <= LIMIT;
                reached && read.value.is_some() && close.is_none_or(|close| read.active <= close)
            };
            let after = reads.iter().find(|read| read.active > cell);
            let after = after.filter(|read| read.at < real.1 || beyond(read));
            let reach = after.map_or(until, |read| read.active);
            if reach - before.active > LIMIT {
                continue;
            }
            let start = before.active.max(from);
            let middle = match after.and_then(|read| read.value.map(|next| (read.active, next))) {
                Some((at, next)) => {
                    value + (next - value) * (cell as f64 + 0.5 - start as f64) / (at - start) as f64
                }
                None => value,
            };
            brute.integral += middle;
            brute.covered += 1;
            brute.note(value);
        }
        for read in reads.iter().filter(|read| inside(read)) {
            match read.value {
                Some(value) => {
                    brute.samples += 1;
                    brute.note(value);
                }
                None => brute.missing += 1,
            }
        }
        brute.count_misses(reads, from, until);
        brute
    }

    fn counter(trace: &Trace, reads: &[Read], real: (u64, u64), from: u64, to: u64) -> Brute {
        let mut brute = Brute::default();
        let totals: Vec<(u64, u64, f64)> =
            reads.iter().filter_map(|read| read.value.map(|value| (read.at, read.active, value))).collect();
        let broken = |a: u64, b: u64| trace.suspends.iter().any(|(start, _)| a <= *start && *start < b);
        let rate = |a: &(u64, u64, f64), b: &(u64, u64, f64)| {
            let near = b.1 - a.1 <= LIMIT && !broken(a.0, b.0);
            (near && b.2 >= a.2).then(|| (b.2 - a.2) / (b.1 - a.1) as f64 * 1000.0)
        };
        // Over a gap the mean is known, for the span in which it ends.
        let bridge = |a: &(u64, u64, f64), b: &(u64, u64, f64)| {
            let known = b.1 - a.1 > LIMIT && !broken(a.0, b.0) && b.2 >= a.2 && from < b.1 && b.1 < to;
            known.then(|| (b.2 - a.2) / (b.1 - a.1) as f64 * 1000.0)
        };
        // What min, max and last go by: short ones with the time before them.
        let mut anchor: Option<(u64, u64, f64)> = None;
        let mut steady = Vec::new();
        for pair in totals.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            if rate(&a, &b).is_none() {
                anchor = None;
                steady.push(f64::NAN);
                continue;
            }
            let since = if b.1 - a.1 >= 500 { a } else { anchor.unwrap_or(a) };
            let length = b.1 - since.1;
            steady.push(if length >= 500 { (b.2 - since.2) / length as f64 * 1000.0 } else { f64::NAN });
            let long = b.1 - a.1 >= 500 || b.1 - since.1 >= 1500;
            anchor = Some(if long { a } else { since });
        }
        for cell in from..to {
            let before = totals.iter().rposition(|total| total.1 <= cell);
            let Some((a, place)) = before.and_then(|place| Some((totals.get(place)?, place))) else {
                continue;
            };
            let Some(rate) = totals.get(place + 1).and_then(|b| rate(a, b).or_else(|| bridge(a, b))) else {
                continue;
            };
            brute.integral += rate;
            brute.covered += 1;
            if !steady[place].is_nan() {
                brute.note(steady[place]);
            }
        }
        for pair in totals.windows(2) {
            if rate(&pair[0], &pair[1]).is_some() {
                // The time of a rate ends at its second total: (from, to], not [from, to).
                brute.samples += u32::from(from < pair[1].1 && pair[1].1 <= to);
                continue;
            }
            brute.samples += u32::from(bridge(&pair[0], &pair[1]).is_some());
            let fell =
                pair[1].2 < pair[0].2 && pair[1].1 - pair[0].1 <= LIMIT && !broken(pair[0].0, pair[1].0);
            brute.missing += u32::from(fell && real.0 <= pair[1].0 && pair[1].0 < real.1);
        }
        let failed =
            reads.iter().filter(|read| read.value.is_none() && real.0 <= read.at && read.at < real.1);
        brute.missing += u32::try_from(failed.count()).unwrap();
        brute.count_misses(reads, from, to);
        brute
    }

    fn check(&self, got: Stats, gauge: bool, what: &str) -> Result<(), TestCaseError> {
        prop_assert_eq!(got.samples, self.samples, "samples of {}", what);
        prop_assert_eq!(got.missing, self.missing, "missing of {}", what);
        if self.covered > 0 {
            let lowest = self.noted.iter().copied().fold(f64::INFINITY, f64::min);
            let highest = self.noted.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mut mean = self.integral / self.covered as f64;
            if gauge {
                // A value on the edge, which is the next span's, may pull the mean outside.
                mean = mean.clamp(lowest, highest);
            }
            prop_assert!(near(got.mean, mean), "mean of {}: {:?}, brute {}", what, got, mean);
        }
        if self.noted.is_empty() {
            if !gauge && self.covered > 0 {
                prop_assert!(got.mean == got.min && got.mean == got.max && got.mean == got.last, "{:?}", got);
            }
            return Ok(());
        }
        let mut min = self.noted.iter().copied().fold(f64::INFINITY, f64::min);
        let mut max = self.noted.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if !gauge && self.covered > 0 {
            let mean = self.integral / self.covered as f64;
            (min, max) = (min.min(mean), max.max(mean));
        }
        prop_assert!(near(got.min, min) && near(got.max, max), "{}: {:?}, brute {} {}", what, got, min, max);
        prop_assert!(near(got.last, self.last.unwrap()), "{}: {:?}, brute last {:?}", what, got, self.last);
        Ok(())
    }
}

/// CPU time in ticks of 10 ms of a process that uses all of one core, with an extra look after 4 ms.
#[test]
fn a_rate_over_a_moment_is_no_extreme() {
    let mut fold = fold(3000, 0);
    let ticks = [(0, 0.0), (1000, 1.0), (2000, 2.0), (2004, 2.0), (3000, 3.0)];
    values(&mut fold, COUNTER, &ticks);
    let out = finish(fold, 3000);
    let got = counter(&out[0]);
    assert_eq!((got.mean, got.samples), (Some(1.0), 4));
    assert!(got.min.unwrap() > 0.99 && got.max.unwrap() < 1.01, "{got:?}");
}

/// A wave that turns between samples at every phase: no window is partial to its last value.
#[test]
fn windows_of_whole_periods_have_the_mean_of_the_period() {
    for phase in 0..4u64 {
        let mut fold = fold(4000, 300);
        let mut out = Vec::new();
        for second in 0..=16u64 {
            let high = (second + phase) % 4 < 2;
            values(&mut fold, GAUGE, &[(second * 1000, if high { 100.0 } else { 0.0 })]);
            fold.advance(clock(second * 1000), &mut out);
        }
        fold.advance(clock(16_500), &mut out);
        let windows = of_kind(&out, RowKind::Window);
        assert_eq!(windows.len(), 4);
        for window in windows {
            let got = stats(window, MetricId::HostMemoryPercent).unwrap();
            assert_eq!((got.mean, got.min, got.max), (Some(50.0), Some(0.0), Some(100.0)), "phase {phase}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_row_is_the_brute_force_integral_of_its_span(trace in trace()) {
        let (gauges, counters) = (trace.reads(&trace.gauge), trace.reads(&trace.counter));
        let close = trace.close.filter(|close| *close <= trace.end);
        let out = trace.run(true);
        for batch in &out {
            let real = (millis(batch.start), millis(batch.end));
            let (from, to) = (trace.active(real.0), trace.active(real.1));
            prop_assert!(near(Some(batch.window_s), (to - from) as f64 / 1e3));
            let what = format!("{} {:?} {}..{}", batch.tag, batch.kind, real.0, real.1);
            if from == to || close.is_some_and(|close| real.0 >= close) {
                continue;
            }
            let want = Brute::gauge(&gauges, real, from, to, close.map(|close| trace.active(close)));
            match stats(batch, MetricId::HostMemoryPercent) {
                Some(got) => want.check(got, true, &what)?,
                None => prop_assert!(want.samples + want.missing == 0 && want.covered == 0, "no row: {}", what),
            }
            let want = Brute::counter(&trace, &counters, real, from, to);
            match stats(batch, MetricId::HostDiskRead) {
                Some(got) => {
                    want.check(got, false, &what)?;
                    if want.covered == 0 && got.mean.is_some() {
                        prop_assert_eq!(got.samples, 0, "a held rate is no sample");
                        prop_assert_eq!(got.mean, got.last);
                    }
                }
                None => prop_assert!(want.samples + want.missing == 0 && want.covered == 0, "no row: {}", what),
            }
            for row in &batch.rows {
                let Stats { mean, min, max, .. } = row.stats;
                prop_assert!(min <= mean && mean <= max && min.is_some() == mean.is_some(), "{:?}", row);
            }
        }
    }

    #[test]
    fn late_delivery_changes_nothing(trace in trace()) {
        prop_assert_eq!(trace.run(true), trace.run(false));
    }

    #[test]
    fn windows_and_tags_have_exactly_their_spans(trace in trace()) {
        let out = trace.run(true);
        let windows = of_kind(&out, RowKind::Window);
        let mut at = 0;
        for (number, window) in windows.iter().enumerate() {
            prop_assert_eq!(trace.active(millis(window.start)), at);
            prop_assert_eq!(window.ordinal, number as u64 + 1);
            at = trace.active(millis(window.end));
            if number + 1 < windows.len() {
                prop_assert_eq!(window.window_s, trace.window as f64 / 1e3);
            }
        }
        prop_assert_eq!(at, trace.active(trace.end));
        for (number, (start, end)) in trace.tags.iter().enumerate().filter(|(_, (start, _))| *start <= trace.end) {
            let rank = i32::try_from(number).ok();
            let batches: Vec<_> = out.iter().filter(|b| b.kind == RowKind::Tag && b.rank == rank).collect();
            prop_assert_eq!(batches.len(), 1);
            let span = (millis(batches[0].start), millis(batches[0].end));
            prop_assert_eq!(span, (*start, (*end).min(trace.end)));
        }
    }

    #[test]
    fn counters_are_conserved(
        steps in prop::collection::vec((1u64..2500, 0u32..1000), 1..30),
        window in 50u64..5000,
        start in 0u64..500,
    ) {
        let mut fold = fold(window, 300);
        let mut out = Vec::new();
        let (mut at, mut total) = (start, 77.0);
        values(&mut fold, COUNTER, &[(at, total)]);
        for (gap, rise) in &steps {
            at += gap;
            total += f64::from(*rise);
            values(&mut fold, COUNTER, &[(at, total)]);
            fold.advance(clock(at), &mut out);
        }
        fold.finish(clock(at), &mut out);
        let sum: f64 = out.iter().filter_map(|batch| {
            let covered = millis(batch.end).max(start) - millis(batch.start).max(start);
            Some(stats(batch, MetricId::HostDiskRead)?.mean? * covered as f64 / 1e3)
        }).sum();
        prop_assert!(near(Some(sum), total - 77.0), "{} of {}", sum, total - 77.0);
    }
}
