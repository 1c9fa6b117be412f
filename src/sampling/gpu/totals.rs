//! Running totals of one device: counters that wrap, energy since the run began. Pure arithmetic.

use std::time::Duration;

use crate::collectors::nvml::FieldNumber;
use crate::model::time::Mono;

/// A counter that may wrap at 2^32: always in its narrow form, and in its wide one where the driver says that it
/// wraps without saying at what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unwrapped {
    last: Option<u64>,
    /// Whole rounds so far.
    rounds: u64,
}

impl Unwrapped {
    /// The running total; `None` for a number that is no count. `wide_wraps` says whether a wide form may wrap too.
    pub(super) fn feed(&mut self, number: FieldNumber, wide_wraps: bool) -> Option<u64> {
        /// From here on a counter below 2^32 that falls has rather wrapped than begun anew.
        const LATE: u64 = 1 << 31;
        const ROUND: u64 = 1 << 32;
        let value = number.as_count()?;
        let narrow = matches!(number, FieldNumber::Narrow(_));
        let fell = |last: u64| value < last && (narrow || (wide_wraps && (LATE..ROUND).contains(&last)));
        if self.last.is_some_and(fell) {
            self.rounds += 1;
        }
        self.last = Some(value);
        Some((self.rounds << 32).saturating_add(value))
    }

    /// Whether it has wrapped: then more than 2^32 between two readings cannot be seen.
    pub(super) fn has_wrapped(&self) -> bool {
        self.rounds > 0
    }

    /// The counter may have begun anew: a smaller value is no round.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }
}

/// Energy since the first reading, from a counter that may begin anew.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct EnergyMeter {
    last_mj: Option<u64>,
    total_mj: u64,
}

impl EnergyMeter {
    /// Takes the counter's value in mJ and gives the energy in J since the first one. A decrease adds nothing.
    pub(super) fn feed(&mut self, counter_mj: u64) -> f64 {
        if let Some(last) = self.last_mj {
            self.total_mj = self.total_mj.saturating_add(counter_mj.saturating_sub(last));
        }
        self.last_mj = Some(counter_mj);
        self.total_mj as f64 / 1e3
    }

    /// The counter began anew: the next value is a new base.
    pub(super) fn rebase(&mut self) {
        self.last_mj = None;
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

    proptest! {
        /// A 32-bit counter read often enough comes out as the wide counter that it really is.
        #[test]
        fn rounds_are_added(steps in prop::collection::vec(0_u32..=u32::MAX, 1..50)) {
            let mut unwrapped = Unwrapped::default();
            let mut truth = 0_u64;
            unwrapped.feed(FieldNumber::Narrow(0), false);
            for step in steps {
                truth += u64::from(step);
                prop_assert_eq!(unwrapped.feed(FieldNumber::Narrow(truth as u32), false), Some(truth));
            }
        }

        /// The meter never runs backwards, whatever the counter does, and adds exactly the increases.
        #[test]
        fn energy_adds_increases_only(values in prop::collection::vec(0_u64..1_000_000_000, 1..50)) {
            let mut meter = EnergyMeter::default();
            let mut joules = 0.0;
            for value in &values {
                let now = meter.feed(*value);
                prop_assert!(now >= joules);
                joules = now;
            }
            let truth: u64 = values.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).sum();
            prop_assert_eq!(joules, truth as f64 / 1e3);
        }
    }

    #[test]
    fn a_forgotten_counter_may_begin_anew() {
        let mut unwrapped = Unwrapped::default();
        assert_eq!(unwrapped.feed(FieldNumber::Narrow(100), false), Some(100));
        unwrapped.forget();
        assert_eq!(unwrapped.feed(FieldNumber::Narrow(5), false), Some(5));
        assert_eq!(unwrapped.feed(FieldNumber::Wide(3), false), Some(3));
        assert_eq!(unwrapped.feed(FieldNumber::Signed(-1), false), None);
    }

    #[test]
    fn a_wide_counter_wraps_only_where_it_is_known_to_and_late_in_its_round() {
        let (high, low) = (FieldNumber::Wide(3 << 30), FieldNumber::Wide(7));
        let mut bytes = Unwrapped::default();
        bytes.feed(high, true);
        assert_eq!(bytes.feed(low, true), Some((1 << 32) + 7));
        assert!(bytes.has_wrapped());

        let mut other = Unwrapped::default();
        other.feed(high, false);
        assert_eq!(other.feed(low, false), Some(7), "it began anew");

        let mut early = Unwrapped::default();
        early.feed(FieldNumber::Wide(1000), true);
        assert_eq!(early.feed(low, true), Some(7), "it began anew");

        let mut large = Unwrapped::default();
        large.feed(FieldNumber::Wide(5 << 32), true);
        assert_eq!(large.feed(low, true), Some(7), "it is no 32-bit counter");
        assert!(!early.has_wrapped() && !other.has_wrapped() && !large.has_wrapped());
    }

    #[test]
    fn a_rebased_meter_keeps_its_total() {
        let mut meter = EnergyMeter::default();
        assert_eq!(meter.feed(5_000), 0.0);
        assert_eq!(meter.feed(7_000), 2.0);
        meter.rebase();
        assert_eq!(meter.feed(900_000), 2.0);
        assert_eq!(meter.feed(901_000), 3.0);
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
