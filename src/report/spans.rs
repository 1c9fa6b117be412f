//! When a tag was open and where steps ended, in bounded memory.

/// Most bars and marks that are kept.
const MOST: usize = 800;

/// A bar: one span of a tag, or several with little between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bar {
    /// Microseconds since the Unix epoch.
    pub(super) from: i64,
    pub(super) to: i64,
    /// Microseconds inside of it that belong to a span.
    pub(super) busy: i64,
}

/// The spans of one tag.
#[derive(Clone, Debug, Default)]
pub(super) struct Bars {
    /// Spans closer than this are one bar, in microseconds.
    near: i64,
    bars: Vec<Bar>,
}

impl Bars {
    pub(super) fn add(&mut self, to: i64, seconds: f64) {
        if !(seconds.is_finite() && seconds >= 0.0) {
            return;
        }
        let length = (seconds * 1e6) as i64;
        let bar = Bar { from: to.saturating_sub(length), to, busy: length };
        let place = self.bars.partition_point(|b| b.from <= bar.from);
        self.bars.insert(place, bar);
        if self.near > 0 {
            // Only the neighbours of the new bar can have come close.
            let start = place.saturating_sub(1);
            let end = (place + 2).min(self.bars.len());
            let joined = join(&self.bars[start..end], self.near);
            self.bars.splice(start..end, joined);
        }
        while self.bars.len() > MOST {
            let span = self.bars.last().map_or(0, |b| b.to) - self.bars.first().map_or(0, |b| b.from);
            self.near = self.near.saturating_mul(2).max(span / MOST as i64).max(1);
            self.bars = join(&self.bars, self.near);
        }
    }

    /// Bars no closer than `near` microseconds.
    pub(super) fn bars(&self, near: i64) -> Vec<Bar> {
        join(&self.bars, near.max(self.near))
    }
}

fn join(bars: &[Bar], near: i64) -> Vec<Bar> {
    let mut out: Vec<Bar> = Vec::with_capacity(bars.len());
    for bar in bars {
        match out.last_mut() {
            // A bar much wider than the limit stays by itself: its edges are worth seeing.
            Some(last) if bar.from - last.from < near && bar.from - last.to < near => {
                last.to = last.to.max(bar.to);
                last.busy = (last.busy + bar.busy).min(last.to - last.from);
            }
            _ => out.push(*bar),
        }
    }
    out
}

/// Ends of step rows: every n-th is kept, n doubling.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    every: u64,
    seen: u64,
    marks: Vec<(i64, i64)>,
}

impl Marks {
    pub(super) fn add(&mut self, time: i64, step: i64) {
        let every = self.every.max(1);
        if self.seen.is_multiple_of(every) {
            self.marks.push((time, step));
        }
        self.seen += 1;
        if self.marks.len() > MOST {
            self.every = every * 2;
            let mut n = 0u64;
            self.marks.retain(|_| {
                n += 1;
                n % 2 == 1
            });
        }
    }

    /// `(time, step)` in the order in which they came.
    pub(super) fn marks(&self) -> &[(i64, i64)] {
        &self.marks
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn separate_spans_stay_separate_while_there_is_room() {
        let mut bars = Bars::default();
        bars.add(10_000_000, 5.0);
        bars.add(20_000_000, 5.0);
        let expected = [
            Bar { from: 5_000_000, to: 10_000_000, busy: 5_000_000 },
            Bar { from: 15_000_000, to: 20_000_000, busy: 5_000_000 },
        ];
        assert_eq!(bars.bars(0), expected);
        // Joined at a coarser look, the time that was open stays known.
        let joined = bars.bars(20_000_000);
        assert_eq!(joined, [Bar { from: 5_000_000, to: 20_000_000, busy: 10_000_000 }]);
    }

    #[test]
    fn a_million_spans_fit() {
        let mut bars = Bars::default();
        for n in 1..=100_000 {
            bars.add(n * 100_000, 0.05);
        }
        assert!(bars.bars.len() <= MOST && bars.bars.len() > 100, "{}", bars.bars.len());
        let busy: i64 = bars.bars.iter().map(|b| b.busy).sum();
        assert_eq!(busy, 100_000 * 50_000);
    }

    #[test]
    fn marks_thin_evenly() {
        let mut marks = Marks::default();
        for n in 0..10_000 {
            marks.add(n, n * 50);
        }
        assert!(marks.marks().len() <= MOST);
        let gaps: Vec<i64> = marks.marks().windows(2).map(|w| w[1].0 - w[0].0).collect();
        assert!(gaps.iter().all(|g| *g == gaps[0]));
    }

    proptest! {
        #[test]
        fn bars_stay_in_order_and_bounded(spans in prop::collection::vec((0i64..1_000_000_000, 0.0f64..50.0), 1..2500)) {
            let mut bars = Bars::default();
            let latest = spans.iter().map(|s| s.0).max().unwrap();
            for (to, seconds) in spans {
                bars.add(to, seconds);
            }
            prop_assert!(bars.bars.len() <= MOST);
            prop_assert!(bars.bars.windows(2).all(|w| w[0].from <= w[1].from));
            prop_assert!(bars.bars.iter().all(|b| b.busy >= 0 && b.busy <= b.to - b.from));
            prop_assert_eq!(bars.bars.iter().map(|b| b.to).max(), Some(latest));
        }
    }
}
