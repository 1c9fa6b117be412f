//! Shares of time as running totals: the kernel and the driver add to them in steps, and no share passes what there is.

use crate::model::time::Mono;

/// Slightly less than all of it, so that no rounding shows more.
const FULL_RATE: f64 = 0.999_999_999;

/// A share of time as a growing total of percent x seconds. The kernel and the driver add to it in steps, which over a
/// short time can be more than 100 %: the excess is passed on with the next reads, so that nothing is lost.
#[derive(Clone, Copy, Debug)]
pub struct ShareOfTime {
    /// All of it, in percent: 100 for each CPU where they are counted so.
    full: f64,
    /// The instant and the total of the last read.
    last: Option<(Mono, f64)>,
}

impl Default for ShareOfTime {
    fn default() -> Self {
        Self::of(100.0)
    }
}

impl ShareOfTime {
    /// A share of so many percent.
    pub fn of(full: f64) -> Self {
        Self { full, last: None }
    }

    /// The total as it can be at this instant.
    pub fn clamp(&mut self, now: Mono, total: f64) -> f64 {
        let clamped = match self.last {
            None => total,
            // A total that begins anew is for the windows to see.
            Some((_, last)) if total < last => total,
            Some((before, last)) => total.min(last + FULL_RATE * self.full * now.seconds_since(before)),
        };
        self.last = Some((now, clamped));
        clamped
    }
}
