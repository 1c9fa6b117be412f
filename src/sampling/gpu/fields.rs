//! Values that come as field values, in one call; what the driver lacks there, by the older calls.

use super::device::{Device, Pass};
use super::totals::Rise;
use crate::collectors::nvml::{CallResult, Fault, Field, FieldNumber, Handle};
use crate::model::metric::MetricId;
use crate::model::reading::{Reading, Reason};
use crate::sampling::MIB;

/// Counters that come as field values, with what turns them into the metric's unit times seconds.
pub(super) const FIELD_COUNTERS: [(Field, MetricId, f64); 6] = [
    // Nanoseconds to percent of a second.
    (Field::ThrottledPower, MetricId::GpuThrottledPower, 100.0 / 1e9),
    (Field::ThrottledThermal, MetricId::GpuThrottledThermal, 100.0 / 1e9),
    // Bytes to MiB.
    (Field::PcieTx, MetricId::GpuPcieTx, 1.0 / MIB),
    (Field::PcieRx, MetricId::GpuPcieRx, 1.0 / MIB),
    // KiB to MiB.
    (Field::NvlinkTx, MetricId::GpuNvlinkTx, 1.0 / 1024.0),
    (Field::NvlinkRx, MetricId::GpuNvlinkRx, 1.0 / 1024.0),
];

/// Reported once of a 32-bit byte counter, although its values are there.
const WRAPS: &str = "the byte counter wraps at 4 GiB: more than that between two samples cannot be seen";

/// Metrics that no older call gives where the driver lacks the field.
const ONLY_FIELDS: [MetricId; 5] = [
    MetricId::GpuMemoryTemperature,
    MetricId::GpuPcieTx,
    MetricId::GpuPcieRx,
    MetricId::GpuNvlinkTx,
    MetricId::GpuNvlinkRx,
];

impl Device {
    /// Everything that comes as field values, in one call; what the driver lacks there, by the older calls.
    pub(super) fn read_fields(&mut self, pass: &mut Pass<'_>, device: Handle) -> CallResult<()> {
        for id in ONLY_FIELDS {
            if self.wanted.has(id) && self.unsupported.has(id) {
                pass.out.readings.push((id, Reading::Missing));
            }
        }
        if !self.fields.is_empty() {
            let mut answers: [Option<(Field, CallResult<FieldNumber>)>; Field::COUNT] = [None; Field::COUNT];
            match pass.nvml.field_values(device, &mut self.fields) {
                Ok(given) => {
                    answers.iter_mut().zip(given).for_each(|(slot, answer)| *slot = Some(*answer));
                }
                Err(fault) => {
                    let asked = answers.iter_mut().zip(self.fields.asked());
                    asked.for_each(|(slot, field)| *slot = Some((*field, Err(fault))));
                }
            }
            for (field, answer) in answers.into_iter().flatten() {
                if answer.is_err_and(Fault::is_permanent) {
                    self.fields.remove(field);
                }
                self.enter_field(pass, field, answer)?;
            }
        }
        self.read_by_older_calls(pass, device)
    }

    fn enter_field(
        &mut self,
        pass: &mut Pass<'_>,
        field: Field,
        answer: CallResult<FieldNumber>,
    ) -> CallResult<()> {
        let unsupported = answer.is_err_and(Fault::is_permanent);
        match field {
            Field::ThrottledPower if unsupported => self.throttle_by_call[0] = true,
            Field::ThrottledThermal if unsupported => self.throttle_by_call[1] = true,
            Field::Energy if unsupported => self.energy_by_call = true,
            Field::Energy => self.enter_energy(pass, answer)?,
            Field::MemoryTemperature => {
                // Cards without the sensor answer 0, which no memory at work has.
                let degrees = answer.map(FieldNumber::as_f64);
                let degrees = degrees
                    .and_then(|degrees| if degrees > 0.0 { Ok(degrees) } else { Err(Fault::Implausible) });
                self.enter(pass, MetricId::GpuMemoryTemperature, degrees)?;
            }
            counter => {
                let place = FIELD_COUNTERS.iter().position(|(field, ..)| *field == counter);
                if let Some(place) = place {
                    self.enter_counter(pass, place, answer)?;
                }
            }
        }
        Ok(())
    }

    /// Enters one of [`FIELD_COUNTERS`].
    fn enter_counter(
        &mut self,
        pass: &mut Pass<'_>,
        place: usize,
        answer: CallResult<FieldNumber>,
    ) -> CallResult<()> {
        let (Some((field, id, scale)), Some(total)) =
            (FIELD_COUNTERS.get(place), self.counters.get_mut(place))
        else {
            return Ok(());
        };
        let bytes = matches!(field, Field::PcieTx | Field::PcieRx);
        let rise = Rise { fastest: self.bounds.fastest(*id) / scale, wide_wraps: bytes };
        let count = answer.and_then(|number| total.feed(pass.at, number, rise));
        let wrapped = bytes && total.has_wrapped();
        self.enter(pass, *id, count.map(|count| count as f64 * scale))?;
        if wrapped && !self.wrap_reported {
            self.wrap_reported = true;
            self.report(pass, Some(*id), Reason::Other(WRAPS.into()));
        }
        Ok(())
    }

    /// Enters the counter of energy, in mJ.
    fn enter_energy(&mut self, pass: &mut Pass<'_>, answer: CallResult<FieldNumber>) -> CallResult<()> {
        let rise = Rise { fastest: self.bounds.fastest(MetricId::GpuEnergy) * 1e3, wide_wraps: false };
        let total = answer.and_then(|number| self.energy.feed(pass.at, number, rise));
        let joules = total.map(|millijoules| millijoules as f64 / 1e3);
        self.enter(pass, MetricId::GpuEnergy, joules)?;
        self.enter(pass, MetricId::GpuEnergyUsed, joules)
    }

    /// What old drivers do not have as field values.
    fn read_by_older_calls(&mut self, pass: &mut Pass<'_>, device: Handle) -> CallResult<()> {
        let nvml = pass.nvml;
        for (place, thermal) in [false, true].into_iter().enumerate() {
            if self.throttle_by_call[place] {
                let id = FIELD_COUNTERS[place].1;
                let answer = match self.unsupported.has(id) {
                    true => Err(Fault::NOT_SUPPORTED),
                    false => nvml.violation_ns(device, thermal).map(FieldNumber::Wide),
                };
                self.enter_counter(pass, place, answer)?;
            }
        }
        if self.energy_by_call && !self.integrate {
            match nvml.total_energy(device) {
                Err(fault) if fault.is_permanent() => {
                    self.integrate = true;
                    self.report(pass, Some(MetricId::GpuEnergy), fault.reason());
                }
                result => self.enter_energy(pass, result.map(FieldNumber::Wide))?,
            }
        }
        if self.integrate
            && self.wanted.has(MetricId::GpuEnergy)
            && !self.wanted.has(MetricId::GpuEnergyFromPower)
        {
            pass.out.readings.push((MetricId::GpuEnergy, Reading::Missing));
        }
        Ok(())
    }
}
