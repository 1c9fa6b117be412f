//! What a value of a GPU can be. A driver's answer outside of it is not believed: the value is unknown.

use crate::collectors::nvml::Ceilings;
use crate::model::metric::MetricId;

/// The highest that a value can be, or the fastest that a total can rise.
#[derive(Clone, Copy, Debug)]
enum Top {
    /// The same for every GPU.
    Fixed(f64),
    /// So many times the highest power limit.
    PowerLimit(f64),
    /// The highest SM clock.
    SmClock,
    /// The highest memory clock.
    MemoryClock,
    /// What the PCIe link can carry.
    PcieLink,
    /// The memory of the device.
    Memory,
}

/// The bounds of one metric, in its unit; of a running total, those of its rise in a second.
struct Bound {
    metric: MetricId,
    lowest: f64,
    highest: Top,
    /// Whether readings are running totals.
    total: bool,
}

const fn gauge(metric: MetricId, lowest: f64, highest: Top) -> Bound {
    Bound { metric, lowest, highest, total: false }
}

const fn total(metric: MetricId, fastest: Top) -> Bound {
    Bound { metric, lowest: 0.0, highest: fastest, total: true }
}

/// Watts that no GPU draws, for a driver that does not say the limit: several times the largest board.
const ANY_POWER: f64 = 5000.0;
/// MHz that no SM runs at.
const ANY_SM_CLOCK: f64 = 10_000.0;
/// MHz that no memory runs at; drivers count the data rate for some kinds.
const ANY_MEMORY_CLOCK: f64 = 40_000.0;
/// MiB/s one way of sixteen lanes of the seventh generation.
const ANY_PCIE: f64 = 235_000.0;
/// MiB that no device has.
const ANY_MEMORY: f64 = 1e8;
/// Clocks and links may pass what the driver says by a little: it rounds.
const ROUNDING: f64 = 1.1;

/// Every metric of the scope `gpu`.
const TABLE: [Bound; 36] = {
    use MetricId as M;
    use Top::{Fixed, Memory, MemoryClock, PcieLink, PowerLimit, SmClock};
    // Shares of a time are at most all of it.
    let share = Fixed(100.0);
    // Twice what is allowed is more than a spike: the driver's value is an average.
    let power = PowerLimit(2.0);
    // Silicon does not work above 125 C, nor is any card sold for less than -40 C.
    let (cold, hot) = (-50.0, Fixed(150.0));
    // A card with far fewer is taken out of service.
    let errors = Fixed(1e12);
    // Several times the fastest generation of links, all together, one way.
    let nvlink = Fixed(4e6);
    [
        gauge(M::GpuGpuUtilization, 0.0, share),
        gauge(M::GpuMemoryUtilization, 0.0, share),
        gauge(M::GpuMemoryUsed, 0.0, Memory),
        gauge(M::GpuMemoryFree, 0.0, Memory),
        gauge(M::GpuMemoryTotal, 0.0, Fixed(ANY_MEMORY)),
        gauge(M::GpuMemoryPercent, 0.0, share),
        gauge(M::GpuTemperature, cold, hot),
        gauge(M::GpuMemoryTemperature, cold, hot),
        gauge(M::GpuPowerUsage, 0.0, power),
        gauge(M::GpuPowerLimit, 0.0, power),
        total(M::GpuEnergy, power),
        total(M::GpuEnergyFromPower, power),
        total(M::GpuEnergyUsed, power),
        // The intended speed may pass 100 % on some cards.
        gauge(M::GpuFanSpeed, 0.0, Fixed(200.0)),
        gauge(M::GpuSmClock, 0.0, SmClock),
        gauge(M::GpuMemoryClock, 0.0, MemoryClock),
        gauge(M::GpuEncoderUtilization, 0.0, share),
        gauge(M::GpuDecoderUtilization, 0.0, share),
        total(M::GpuThrottledPower, share),
        total(M::GpuThrottledThermal, share),
        gauge(M::GpuEccUncorrected, 0.0, errors),
        gauge(M::GpuEccCorrected, 0.0, errors),
        total(M::GpuPcieRx, PcieLink),
        total(M::GpuPcieTx, PcieLink),
        total(M::GpuNvlinkRx, nvlink),
        total(M::GpuNvlinkTx, nvlink),
        gauge(M::GpuPcieRxSampled, 0.0, PcieLink),
        gauge(M::GpuPcieTxSampled, 0.0, PcieLink),
        gauge(M::GpuSmUtilization, 0.0, share),
        gauge(M::GpuSmOccupancy, 0.0, share),
        gauge(M::GpuTensorActive, 0.0, share),
        gauge(M::GpuDramActive, 0.0, share),
        gauge(M::GpuFp64Active, 0.0, share),
        gauge(M::GpuFp32Active, 0.0, share),
        gauge(M::GpuFp16Active, 0.0, share),
        gauge(M::GpuIntegerActive, 0.0, share),
    ]
};

/// The bounds of one device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bounds {
    ceilings: Ceilings,
}

impl Bounds {
    /// The bounds of a device with these limits.
    pub(super) fn new(ceilings: Ceilings) -> Self {
        Self { ceilings }
    }

    fn of(metric: MetricId) -> Option<&'static Bound> {
        TABLE.iter().find(|bound| bound.metric == metric)
    }

    fn highest(&self, top: Top, memory_bytes: Option<u64>) -> f64 {
        // A driver's limit that is itself impossible is none.
        let or = |known: Option<f64>, any: f64| known.filter(|value| *value <= any).unwrap_or(any);
        let limits = &self.ceilings;
        match top {
            Top::Fixed(value) => value,
            Top::PowerLimit(times) => times * or(limits.power_w, ANY_POWER),
            Top::SmClock => ROUNDING * or(limits.sm_mhz, ANY_SM_CLOCK),
            Top::MemoryClock => ROUNDING * or(limits.memory_mhz, ANY_MEMORY_CLOCK),
            Top::PcieLink => ROUNDING * or(limits.pcie_mib_s, ANY_PCIE),
            Top::Memory => memory_bytes.map_or(ANY_MEMORY, |bytes| bytes as f64 / f64::from(1 << 20)),
        }
    }

    /// Whether a value can be: of a running total, whether it can be one at all.
    pub(super) fn allows(&self, metric: MetricId, value: f64, memory_bytes: Option<u64>) -> bool {
        let Some(bound) = Self::of(metric) else { return value.is_finite() };
        let highest = if bound.total { f64::MAX } else { self.highest(bound.highest, memory_bytes) };
        value >= bound.lowest && value <= highest
    }

    /// The most by which a running total can rise in a second, in the metric's unit.
    pub(super) fn fastest(&self, metric: MetricId) -> f64 {
        Self::of(metric).map_or(f64::MAX, |bound| self.highest(bound.highest, None))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::metric::Scope;

    const CARD: Ceilings = Ceilings {
        power_w: Some(400.0),
        sm_mhz: Some(1410.0),
        memory_mhz: Some(1593.0),
        pcie_mib_s: Some(30_000.0),
    };

    #[test]
    fn every_metric_of_a_gpu_has_a_bound() {
        for id in MetricId::ALL.iter().filter(|id| id.get().scope == Scope::Gpu) {
            let bound = Bounds::of(*id).unwrap_or_else(|| panic!("{id:?} has no bound"));
            let highest = Bounds::new(CARD).highest(bound.highest, Some(80 << 30));
            assert!(bound.lowest < highest, "{id:?}");
            assert_eq!(bound.total, id.get().kind.is_total() || id.get().unit == "J", "{id:?}");
        }
    }

    #[test]
    fn what_a_card_does_is_allowed_and_what_it_cannot_is_not() {
        let (card, unknown) = (Bounds::new(CARD), Bounds::default());
        let memory = Some(80 << 30);
        let cases = [
            (MetricId::GpuPowerUsage, 610.0, 801.0),
            (MetricId::GpuPowerUsage, 0.0, 4_294_967.295),
            (MetricId::GpuTemperature, 95.0, 255.0),
            (MetricId::GpuTemperature, -5.0, -128.0),
            (MetricId::GpuSmClock, 1410.0, 65_535.0),
            (MetricId::GpuMemoryClock, 1593.0, 40_000.0),
            (MetricId::GpuFanSpeed, 110.0, 65_535.0),
            (MetricId::GpuMemoryUsed, 81_920.0, 81_921.0),
            (MetricId::GpuEncoderUtilization, 100.0, 101.0),
            (MetricId::GpuPcieRxSampled, 30_000.0, 40_000.0),
            (MetricId::GpuEccCorrected, 1e6, u64::MAX as f64),
        ];
        for (metric, can, cannot) in cases {
            assert!(card.allows(metric, can, memory), "{metric:?} {can}");
            assert!(!card.allows(metric, cannot, memory), "{metric:?} {cannot}");
            assert!(unknown.allows(metric, can, None), "{metric:?} {can} of an unknown card");
        }
        // A limit that is itself impossible says nothing.
        let odd = Bounds::new(Ceilings { power_w: Some(4_294_967.0), ..CARD });
        assert!(odd.allows(MetricId::GpuPowerUsage, 610.0, None));
        assert!(!odd.allows(MetricId::GpuPowerUsage, 4_294_967.0, None));
    }

    proptest! {
        #[test]
        fn nothing_outside_is_allowed(bits in any::<u64>(), place in 0..TABLE.len()) {
            let (value, bound) = (f64::from_bits(bits), &TABLE[place]);
            let bounds = Bounds::new(CARD);
            let highest = bounds.highest(bound.highest, Some(80 << 30));
            if bounds.allows(bound.metric, value, Some(80 << 30)) {
                prop_assert!(value.is_finite() && value >= bound.lowest && (bound.total || value <= highest));
            }
        }
    }
}
