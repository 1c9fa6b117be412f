//! A series over time in bounded memory: thinned as it grows, with every minimum and maximum kept and
//! every gap left open. Knows nothing of pixels.

/// Most points that a curve keeps.
pub(super) const MOST: usize = 1200;

/// Mean and extremes of a series, whole run or part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Sum of mean × weight over the spans that have a mean.
    pub(super) integral: f64,
    /// Weight of those spans: seconds, or a count.
    pub(super) weight: f64,
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
    pub(super) last: Option<f64>,
}

impl Figures {
    pub(super) fn add(&mut self, weight: f64, mean: Option<f64>, min: Option<f64>, max: Option<f64>) {
        let finite = |v: Option<f64>| v.filter(|v| v.is_finite());
        if let Some(mean) = finite(mean)
            && weight.is_finite()
            && weight > 0.0
        {
            self.integral += mean * weight;
            self.weight += weight;
        }
        self.min = pick(self.min, finite(min).or(finite(mean)), f64::min);
        self.max = pick(self.max, finite(max).or(finite(mean)), f64::max);
    }

    pub(super) fn mean(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.integral / self.weight)
    }

    /// The integral, where anything is known.
    pub(super) fn amount(&self) -> Option<f64> {
        (self.weight > 0.0).then_some(self.integral)
    }
}

fn pick(a: Option<f64>, b: Option<f64>, pick: fn(f64, f64) -> f64) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(pick(a, b)),
        (a, b) => a.or(b),
    }
}

/// One or more neighbouring spans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    /// Order; the number of a grid cell once the curve is thinned.
    at: i64,
    /// Start of the first span, microseconds since the Unix epoch.
    pub(super) from: i64,
    /// End of the last span.
    pub(super) to: i64,
    integral: f64,
    seconds: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Point {
    pub(super) fn mean(&self) -> f64 {
        // Rounding must not put the line outside of its band.
        (self.integral / self.seconds).max(self.min).min(self.max)
    }

    fn middle(&self) -> i64 {
        self.from + (self.to - self.from) / 2
    }

    fn merge(&mut self, other: &Point) {
        self.from = self.from.min(other.from);
        self.to = self.to.max(other.to);
        self.integral += other.integral;
        self.seconds += other.seconds;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

/// A series over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Curve {
    /// Width of a grid cell in microseconds; 0 while every span is kept as it came.
    width: i64,
    points: Vec<Point>,
}

impl Curve {
    /// Adds the span that ends at `to`; one whose mean is unknown adds nothing, and so leaves a gap.
    pub(super) fn add(
        &mut self,
        to: i64,
        seconds: f64,
        mean: Option<f64>,
        min: Option<f64>,
        max: Option<f64>,
    ) {
        let finite = |v: Option<f64>| v.filter(|v| v.is_finite());
        let Some(mean) = finite(mean) else { return };
        if !(seconds.is_finite() && seconds > 0.0) {
            return;
        }
        let from = to.saturating_sub((seconds * 1e6) as i64);
        let point = Point {
            at: 0,
            from,
            to,
            integral: mean * seconds,
            seconds,
            min: finite(min).unwrap_or(mean).min(mean),
            max: finite(max).unwrap_or(mean).max(mean),
        };
        self.place(point);
        while self.points.len() > MOST {
            self.coarsen();
        }
    }

    fn place(&mut self, mut point: Point) {
        point.at = if self.width == 0 { point.from } else { point.middle().div_euclid(self.width) };
        match self.points.last_mut() {
            Some(last) if last.at == point.at => last.merge(&point),
            Some(last) if last.at > point.at => match self.points.binary_search_by_key(&point.at, |p| p.at) {
                Ok(place) => self.points[place].merge(&point),
                Err(place) => self.points.insert(place, point),
            },
            _ => self.points.push(point),
        }
    }

    fn coarsen(&mut self) {
        let span = match (self.points.first(), self.points.last()) {
            (Some(first), Some(last)) => last.to.saturating_sub(first.from).max(1),
            _ => return,
        };
        let least = span / (MOST as i64 / 2) + 1;
        self.width = self.width.saturating_mul(2).max(least);
        self.points = regrid(&self.points, self.width);
    }

    /// Points no closer than `width` microseconds.
    pub(super) fn thinned(&self, width: i64) -> Curve {
        if width <= self.width || self.points.len() < 2 {
            return self.clone();
        }
        // A grid finer than the spans would only pair some of them up by chance.
        let longest = self.points.iter().map(|p| p.to - p.from).max().unwrap_or(0);
        if width <= longest {
            return self.clone();
        }
        Curve { width, points: regrid(&self.points, width) }
    }

    /// Runs of points without a gap between them.
    pub(super) fn runs(&self) -> impl Iterator<Item = &[Point]> {
        let width = self.width;
        self.points.chunk_by(move |a, b| {
            let usual = if width > 0 { width } else { (a.to - a.from).min(b.to - b.from) };
            b.from - a.to <= usual / 2
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    pub(super) fn points(&self) -> &[Point] {
        &self.points
    }

    /// The largest value.
    pub(super) fn max(&self) -> Option<f64> {
        self.points.iter().map(|p| p.max).reduce(f64::max)
    }

    /// The smallest value.
    pub(super) fn min(&self) -> Option<f64> {
        self.points.iter().map(|p| p.min).reduce(f64::min)
    }
}

fn regrid(points: &[Point], width: i64) -> Vec<Point> {
    let mut out: Vec<Point> = Vec::with_capacity(points.len() / 2 + 1);
    for point in points {
        let mut point = *point;
        point.at = point.middle().div_euclid(width);
        match out.last_mut() {
            Some(last) if last.at >= point.at => last.merge(&point),
            _ => out.push(point),
        }
    }
    out
}

/// A curve with the totals of what it was made of.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    pub(super) figures: Figures,
    pub(super) curve: Curve,
}

impl Series {
    pub(super) fn add(&mut self, row: &super::Row<'_>) {
        self.figures.add(row.window_s, row.mean, row.min, row.max);
        self.figures.last = row.last.filter(|v| v.is_finite()).or(self.figures.last);
        self.curve.add(row.time_us, row.window_s, row.mean, row.min, row.max);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(curve: &Curve) -> (f64, f64, f64) {
        let seconds = curve.points.iter().map(|p| p.seconds).sum();
        (seconds, curve.min().unwrap(), curve.max().unwrap())
    }

    #[test]
    fn a_short_run_is_kept_as_it_came() {
        let mut curve = Curve::default();
        for n in 1..=5 {
            curve.add(n * 10_000_000, 10.0, Some(n as f64), None, Some(9.0));
        }
        assert_eq!(curve.points.len(), 5);
        assert_eq!(curve.points[2].mean(), 3.0);
        assert_eq!(curve.points[2].max, 9.0);
        assert_eq!(curve.runs().count(), 1);
    }

    #[test]
    fn an_unknown_window_is_a_gap_and_not_a_zero() {
        let mut curve = Curve::default();
        for n in 1..=9 {
            let mean = (n != 5).then_some(50.0);
            curve.add(n * 10_000_000, 10.0, mean, mean, mean);
        }
        let runs: Vec<usize> = curve.runs().map(<[Point]>::len).collect();
        assert_eq!(runs, [4, 4]);
        assert_eq!(curve.min(), Some(50.0));
    }

    #[test]
    fn a_spike_of_one_window_in_a_day_survives() {
        let mut curve = Curve::default();
        for n in 1..=86_400 {
            let max = if n == 40_000 { 99.0 } else { 10.0 };
            curve.add(n * 1_000_000, 1.0, Some(10.0), Some(10.0), Some(max));
        }
        assert!(curve.points.len() <= MOST && curve.points.len() > MOST / 4, "{}", curve.points.len());
        assert_eq!(curve.max(), Some(99.0));
        assert_eq!(curve.runs().count(), 1);
        assert_eq!(curve.thinned(400_000_000).max(), Some(99.0));
    }

    #[test]
    fn a_long_gap_stays_open_when_thinned() {
        let mut curve = Curve::default();
        for n in (1..=10_000).chain(20_000..=30_000) {
            curve.add(n * 1_000_000, 1.0, Some(1.0), None, None);
        }
        assert_eq!(curve.runs().count(), 2);
        assert_eq!(curve.thinned(100_000_000).runs().count(), 2);
    }

    proptest! {
        #[test]
        fn thinning_loses_no_time_no_extreme_and_no_order(
            spans in prop::collection::vec((1i64..100, 0.001f64..100.0, -1e6f64..1e6, 0.0f64..1e3, any::<bool>()), 1..4000),
            width in 1i64..10_000_000_000,
        ) {
            let mut curve = Curve::default();
            let (mut time, mut seconds) = (0, 0.0);
            let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
            for (gap, length, mean, spread, known) in spans {
                time += (length * 1e6) as i64 + gap;
                if known {
                    curve.add(time, length, Some(mean), Some(mean - spread), Some(mean + spread));
                    seconds += length;
                    min = min.min(mean - spread);
                    max = max.max(mean + spread);
                } else {
                    curve.add(time, length, None, None, None);
                }
            }
            prop_assume!(!curve.is_empty());
            prop_assert!(curve.points.len() <= MOST);
            for curve in [curve.clone(), curve.thinned(width)] {
                let (s, low, high) = whole(&curve);
                prop_assert!((s - seconds).abs() < 1e-6 * seconds.max(1.0));
                prop_assert_eq!((low, high), (min, max));
                prop_assert!(curve.points.windows(2).all(|w| w[0].at < w[1].at && w[0].from <= w[1].from));
                prop_assert!(curve.points.iter().all(|p| p.min <= p.mean() && p.mean() <= p.max));
                prop_assert_eq!(curve.runs().map(<[Point]>::len).sum::<usize>(), curve.points.len());
            }
        }

        #[test]
        fn any_order_gives_the_same_totals(mut starts in prop::collection::vec(-1000i64..1000, 1..200)) {
            let mut curve = Curve::default();
            for start in &starts {
                curve.add(start * 1_000_000, 1.0, Some(*start as f64), None, None);
            }
            starts.sort_unstable();
            prop_assert_eq!(curve.min(), starts.first().map(|s| *s as f64));
            prop_assert_eq!(curve.max(), starts.last().map(|s| *s as f64));
            prop_assert_eq!(whole(&curve).0, starts.len() as f64);
        }
    }
}
