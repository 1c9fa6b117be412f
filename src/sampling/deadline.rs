//! When samples are due: absolute instants on the monotonic clock, so that lateness never adds up.
//! A pure state machine; never reads a clock, never sleeps.

use std::time::Duration;

use crate::model::time::Mono;

/// What is known about the timing of one sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// How long after its deadline it is taken.
    pub late: Duration,
    /// Deadlines that had passed by then and get no sample of their own.
    pub skipped: u64,
}

impl Due {
    /// A sample at an instant of its own: the first, the last, or one that a client asked for.
    pub fn unscheduled() -> Self {
        Self::default()
    }
}

/// The grid of deadlines.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    interval: Duration,
    next: Mono,
}

impl Deadlines {
    /// A grid with its first deadline one interval after `start`. An interval of 0 counts as 1 ms.
    pub fn new(start: Mono, interval: Duration) -> Self {
        let interval = interval.max(Duration::from_millis(1));
        Self { interval, next: start + interval }
    }

    /// The next deadline.
    pub fn next(&self) -> Mono {
        self.next
    }

    /// Whether a sample is due at `now`. If so the next deadline is the first one after `now`: those
    /// in between are counted, never made up for in a bunch.
    pub fn take(&mut self, now: Mono) -> Option<Due> {
        if now < self.next {
            return None;
        }
        let behind = now.since(self.next);
        let skipped = behind.as_nanos() / self.interval.as_nanos();
        let skipped = u64::try_from(skipped).unwrap_or(u64::MAX);
        let nanos = u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX);
        let deadline = Mono(self.next.0.saturating_add(nanos.saturating_mul(skipped)));
        self.next = deadline + self.interval;
        Some(Due { late: now.since(deadline), skipped })
    }

    /// The job was suspended and goes on at `now`: the grid starts anew, nothing was missed.
    pub fn restart(&mut self, now: Mono) {
        self.next = now + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_late_sample_does_not_move_the_grid() {
        let mut grid = Deadlines::new(Mono(0), Duration::from_secs(1));
        assert_eq!(grid.take(Mono(S - 1)), None);
        assert_eq!(grid.take(Mono(S + 5)), Some(Due { late: Duration::from_nanos(5), skipped: 0 }));
        assert_eq!(grid.next(), Mono(2 * S));
        assert_eq!(grid.take(Mono(5 * S + 7)), Some(Due { late: Duration::from_nanos(7), skipped: 3 }));
        assert_eq!(grid.next(), Mono(6 * S));
        grid.restart(Mono(100 * S + 1));
        assert_eq!(grid.next(), Mono(101 * S + 1));
    }

    proptest! {
        #[test]
        fn taken_and_skipped_make_up_the_grid(
            interval in 1_000_000u64..5_000_000_000,
            waits in prop::collection::vec(0u64..20_000_000_000, 1..100),
        ) {
            let mut grid = Deadlines::new(Mono(0), Duration::from_nanos(interval));
            let (mut now, mut counted) = (Mono(0), 0u64);
            for wait in waits {
                now = now + Duration::from_nanos(wait);
                if let Some(due) = grid.take(now) {
                    counted += 1 + due.skipped;
                    prop_assert!(due.late < Duration::from_nanos(interval));
                    prop_assert_eq!(now.0 - due.late.as_nanos() as u64, counted * interval);
                }
                prop_assert!(grid.next() > now);
                prop_assert_eq!(counted, now.0 / interval);
                prop_assert_eq!(grid.take(now), None);
            }
        }
    }
}
