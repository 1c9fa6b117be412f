//! Instants as values: monotonic for durations, wall clock for labels.
//!
//! Nothing here reads a clock; the rooms at the edge do and pass the result on.

use std::ops::{Add, Sub};
use std::time::Duration;

/// An instant of `CLOCK_MONOTONIC`, in nanoseconds; comparable between processes of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mono(pub u64);

impl Mono {
    /// The time from `earlier` to this instant; zero when `earlier` is later.
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Seconds from `earlier` to this instant; zero when `earlier` is later.
    pub fn seconds_since(self, earlier: Mono) -> f64 {
        self.since(earlier).as_secs_f64()
    }
}

impl Add<Duration> for Mono {
    type Output = Mono;

    fn add(self, d: Duration) -> Mono {
        Mono(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Mono {
    type Output = Mono;

    fn sub(self, d: Duration) -> Mono {
        Mono(self.0.saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A wall-clock instant in microseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Wall(pub i64);

/// Both clocks read at one moment, so that a monotonic instant can be labelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPair {
    /// `CLOCK_MONOTONIC` at that moment.
    pub mono: Mono,
    /// `CLOCK_REALTIME` at that moment.
    pub wall: Wall,
}

impl ClockPair {
    /// The wall-clock label of a monotonic instant, by this pair's offset.
    pub fn label(self, at: Mono) -> Wall {
        let delta = i128::from(at.0) - i128::from(self.mono.0);
        let micros = i64::try_from(delta / 1000).unwrap_or(0);
        Wall(self.wall.0.saturating_add(micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_go_both_ways() {
        let pair = ClockPair { mono: Mono(5_000_000), wall: Wall(100_000) };
        assert_eq!(pair.label(Mono(6_000_000)), Wall(101_000));
        assert_eq!(pair.label(Mono(4_000_000)), Wall(99_000));
    }

    #[test]
    fn spans_never_go_negative() {
        assert_eq!(Mono(1).since(Mono(2)), Duration::ZERO);
        assert_eq!(Mono(3) - Duration::from_nanos(5), Mono(0));
    }
}
