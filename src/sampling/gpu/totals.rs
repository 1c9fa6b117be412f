//! Running totals of one device: counters that wrap or jump, and the integral of power. Pure arithmetic.

use std::time::Duration;

use crate::collectors::nvml::{CallResult, Fault, FieldNumber};
use crate::model::time::Mono;

/// The rise of a counter of the driver since its first reading, as far as it can be believed.
///
/// A reading that is lower than the last, or higher than anything could have made it, is doubtful: it gives no value. If
/// the next one follows from the one before the doubtful one, that was noise; if it follows from the doubtful one, the
/// counter has begun again there, and what lies between the two is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Total {
    last: Option<(Mono, u64)>,
    doubtful: Option<(Mono, u64)>,
    risen: u64,
    /// What of it was given out: never more than there was time for. The rest comes with the next readings.
    given: u64,
    wrapped: bool,
}

/// How a counter rises.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rise {
    /// The most in a second, in the counter's unit.
    pub(super) fastest: f64,
    /// Whether a counter of 64 bits may wrap at 2^32; one of 32 bits always may.
    pub(super) wide_wraps: bool,
}

/// The driver brings its counters up to date every so often: as much more may be in one reading, in seconds.
const LAG: f64 = 0.5;

impl Rise {
    /// The rise from one reading to another, and whether the counter wrapped; `None` where there can be none.
    fn between(self, from: (Mono, u64), at: Mono, number: FieldNumber, value: u64) -> Option<(u64, bool)> {
        /// From here on a counter below 2^32 that falls has rather wrapped than begun anew.
        const LATE: u64 = 1 << 31;
        const ROUND: u64 = 1 << 32;
        let wraps = matches!(number, FieldNumber::Narrow(_))
            || (self.wide_wraps && (LATE..ROUND).contains(&from.1) && value < ROUND);
        let (rise, wrapped) = match value.checked_sub(from.1) {
            Some(rise) => (rise, false),
            None if wraps && from.1 < ROUND => (value + ROUND - from.1, true),
            None => return None,
        };
        let most = self.fastest * (at.seconds_since(from.0) + LAG);
        (rise as f64 <= most).then_some((rise, wrapped))
    }
}

impl Total {
    /// Takes a reading and gives the rise since the first one.
    ///
    /// # Errors
    /// Where the reading is doubtful, or no count.
    pub(super) fn feed(&mut self, at: Mono, number: FieldNumber, rise: Rise) -> CallResult<u64> {
        let value = number.as_count().ok_or(Fault::Implausible)?;
        let since = |from: Option<(Mono, u64)>| rise.between(from?, at, number, value);
        let known = if self.last.is_some() {
            since(self.last).or_else(|| since(self.doubtful))
        } else {
            Some((0, false))
        };
        let Some((more, wrapped)) = known else {
            self.doubtful = Some((at, value));
            return Err(Fault::Implausible);
        };
        self.risen = self.risen.saturating_add(more);
        self.wrapped |= wrapped;
        if let Some((before, _)) = self.last {
            let most = self.given as f64 + rise.fastest * at.seconds_since(before);
            self.given = if self.risen as f64 <= most { self.risen } else { most as u64 };
        }
        (self.last, self.doubtful) = (Some((at, value)), None);
        Ok(self.given)
    }

    /// Whether it has wrapped: then more than 2^32 between two readings cannot be seen.
    pub(super) fn has_wrapped(&self) -> bool {
        self.wrapped
    }

    /// The counter may have begun anew: the next reading is a new base.
    pub(super) fn forget(&mut self) {
        (self.last, self.doubtful) = (None, None);
    }
}

/// Energy since the first reading, as the integral of power.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PowerIntegral {
    last: Option<(Mono, f64)>,
    joules: f64,
}

impl PowerIntegral {
    /// Takes the power in W at an instant and gives the energy in J since the first one. A gap longer than `bridge`
    /// adds nothing.
    pub(super) fn feed(&mut self, at: Mono, watts: f64, bridge: Duration) -> f64 {
        if let Some((earlier, before)) = self.last
            && at.since(earlier) <= bridge
        {
            self.joules += (before + watts) / 2.0 * at.seconds_since(earlier);
        }
        self.last = Some((at, watts));
        self.joules
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ANY: Rise = Rise { fastest: f64::INFINITY, wide_wraps: false };

    fn at(second: usize) -> Mono {
        Mono(second as u64 * 1_000_000_000)
    }

    /// What each reading gives, one a second.
    fn fed(rise: Rise, readings: &[FieldNumber]) -> Vec<Option<u64>> {
        let mut total = Total::default();
        readings.iter().enumerate().map(|(n, number)| total.feed(at(n), *number, rise).ok()).collect()
    }

    fn wide(values: &[u64]) -> Vec<FieldNumber> {
        values.iter().map(|value| FieldNumber::Wide(*value)).collect()
    }

    proptest! {
        /// A 32-bit counter read often enough comes out as the wide counter that it really is.
        #[test]
        fn rounds_are_added(steps in prop::collection::vec(0_u32..=u32::MAX, 1..50)) {
            let mut truth = vec![0_u64];
            for step in steps {
                truth.push(truth[truth.len() - 1] + u64::from(step));
            }
            let narrow: Vec<_> = truth.iter().map(|value| FieldNumber::Narrow(*value as u32)).collect();
            prop_assert_eq!(fed(ANY, &narrow), truth.into_iter().map(Some).collect::<Vec<_>>());
        }

        /// Whatever the driver says, no total falls or rises faster than it can.
        #[test]
        fn no_total_jumps(
            readings in prop::collection::vec((any::<u64>(), any::<bool>(), 0_u32..3), 1..60),
            wide_wraps in any::<bool>(),
        ) {
            let rise = Rise { fastest: 1000.0, wide_wraps };
            let mut total = Total::default();
            let (mut before, mut known) = (0, at(0));
            for (n, (value, narrow, kind)) in readings.into_iter().enumerate() {
                // Garbage, and a counter that goes on as it should.
                let value = if kind == 0 { value } else { n as u64 * 500 };
                let number =
                    if narrow { FieldNumber::Narrow(value as u32) } else { FieldNumber::Wide(value) };
                if let Ok(now) = total.feed(at(n), number, rise) {
                    prop_assert!(now >= before, "it fell from {before} to {now}");
                    let most = 1000.0 * at(n).seconds_since(known);
                    prop_assert!((now - before) as f64 <= most, "from {before} to {now}");
                    (before, known) = (now, at(n));
                }
            }
        }

        /// Single readings of noise cost nothing but themselves.
        #[test]
        fn noise_between_good_readings_costs_no_rise(noise in prop::collection::vec(any::<u64>(), 1..20)) {
            let rise = Rise { fastest: 1000.0, wide_wraps: false };
            let mut readings = vec![FieldNumber::Wide(1_000_000)];
            for (n, value) in noise.iter().enumerate() {
                readings.push(FieldNumber::Wide(*value));
                readings.push(FieldNumber::Wide(1_000_000 + 1000 * (n as u64 + 1)));
            }
            let last = fed(rise, &readings).pop().unwrap();
            let most = 1000 * noise.len() as u64;
            // A value that noise hits by chance is no noise.
            prop_assert!(last == Some(most) || noise.iter().any(|value| value.abs_diff(1_000_000) < 100_000));
        }
    }

    #[test]
    fn a_forgotten_counter_may_begin_anew() {
        let mut total = Total::default();
        assert_eq!(total.feed(at(0), FieldNumber::Narrow(100), ANY), Ok(0));
        assert_eq!(total.feed(at(1), FieldNumber::Narrow(130), ANY), Ok(30));
        total.forget();
        assert_eq!(total.feed(at(2), FieldNumber::Narrow(5), ANY), Ok(30));
        assert_eq!(total.feed(at(3), FieldNumber::Wide(8), ANY), Ok(33));
        assert_eq!(total.feed(at(4), FieldNumber::Signed(-1), ANY), Err(Fault::Implausible));
    }

    #[test]
    fn a_wide_counter_wraps_only_where_it_is_known_to_and_late_in_its_round() {
        let bytes = Rise { wide_wraps: true, ..ANY };
        assert_eq!(fed(bytes, &wide(&[3 << 30, 7, 9])), [Some(0), Some((1 << 30) + 7), Some((1 << 30) + 9)]);
        // It began anew: what it counts from there on is known.
        assert_eq!(fed(ANY, &wide(&[3 << 30, 7, 9])), [Some(0), None, Some(2)]);
        assert_eq!(fed(bytes, &wide(&[1000, 7, 9])), [Some(0), None, Some(2)]);
        assert_eq!(fed(bytes, &wide(&[5 << 32, 7, 9])), [Some(0), None, Some(2)], "it is no 32-bit counter");
        let mut total = Total::default();
        for (n, value) in [3 << 30, 7].into_iter().enumerate() {
            assert!(!total.has_wrapped());
            let _ = total.feed(at(n), FieldNumber::Wide(value), bytes);
        }
        assert!(total.has_wrapped());
    }

    #[test]
    fn a_counter_that_jumps_adds_nothing_at_either_edge() {
        // One that is brought up to date late is passed on as fast as it can have risen.
        let late = Rise { fastest: 100.0, wide_wraps: false };
        assert_eq!(fed(late, &wide(&[0, 140, 140, 150])), [Some(0), Some(100), Some(140), Some(150)]);
        // mJ of a card of 400 W.
        let card = Rise { fastest: 800_000.0, wide_wraps: false };
        let start = 1_000_000_000_000;
        let readings = wide(&[start, start + 50_000, 0, start + 150_000, start + 200_000]);
        assert_eq!(fed(card, &readings), [Some(0), Some(50_000), None, Some(150_000), Some(200_000)]);
        let high = wide(&[500, u64::MAX, 100_500, u64::MAX, u64::MAX]);
        // Twice the same is a counter that stands still there.
        assert_eq!(fed(card, &high), [Some(0), None, Some(100_000), None, Some(100_000)]);
    }

    #[test]
    fn power_is_integrated_and_gaps_are_not_bridged() {
        let bridge = Duration::from_millis(2500);
        let at = |s: f64| Mono((s * 1e9) as u64);
        let mut integral = PowerIntegral::default();
        assert_eq!(integral.feed(at(1.0), 100.0, bridge), 0.0);
        assert_eq!(integral.feed(at(2.0), 200.0, bridge), 150.0);
        assert_eq!(integral.feed(at(10.0), 200.0, bridge), 150.0);
        assert_eq!(integral.feed(at(11.0), 200.0, bridge), 350.0);
    }
}
