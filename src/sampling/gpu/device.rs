//! One followed device: what is asked of it, what is never asked again, what happens when it is lost.

use std::sync::Arc;
use std::time::Instant;

use super::bounds::Bounds;
use super::fields::FIELD_COUNTERS;
use super::gpm::{GPM_METRICS, Gpm};
use super::settings::GpuSettings;
use super::totals::{PowerIntegral, Total};
use super::{GpuNews, Role};
use crate::collectors::nvml::{CallResult, Fault, Field, FieldRequest, Handle, Nvml, ProcessBuffer};
use crate::model::device::DeviceIdentity;
use crate::model::metric::MetricId;
use crate::model::metric_set::MetricSet;
use crate::model::reading::{Reading, Reason};
use crate::model::time::Mono;
use crate::sampling::frame::{DeviceFrame, GpuProcessUse};

/// What a MIG slice has of its own, beside GPM. Utilisation is in the list so that its absence is reported.
const OF_SLICES: [MetricId; 6] = [
    MetricId::GpuGpuUtilization,
    MetricId::GpuMemoryUtilization,
    MetricId::GpuMemoryUsed,
    MetricId::GpuMemoryFree,
    MetricId::GpuMemoryTotal,
    MetricId::GpuMemoryPercent,
];

pub(super) struct Device {
    pub(super) identity: Arc<DeviceIdentity>,
    pub(super) role: Role,
    pub(super) handle: Option<Handle>,
    /// What its values can be.
    pub(super) bounds: Bounds,
    /// When a lost device is looked for again.
    pub(super) retry_at: Mono,
    pub(super) wanted: MetricSet,
    /// Those of them that are not read in every frame.
    pub(super) expensive: MetricSet,
    /// What this device or driver will never answer.
    pub(super) unsupported: MetricSet,
    pub(super) fields: FieldRequest,
    pub(super) counters: [Total; FIELD_COUNTERS.len()],
    pub(super) wrap_reported: bool,
    /// Field values that turned out unsupported are asked for by their older calls.
    pub(super) throttle_by_call: [bool; 2],
    pub(super) energy_by_call: bool,
    /// In mJ.
    pub(super) energy: Total,
    /// There is no energy counter: power is integrated.
    pub(super) integrate: bool,
    pub(super) integral: PowerIntegral,
    pub(super) gpm: Gpm,
    /// Whether it shares the host's memory, once known.
    pub(super) unified: Option<bool>,
    /// Bytes above which no process can be.
    pub(super) total: Option<u64>,
    pub(super) expensive_read: Option<Mono>,
    pub(super) processes_read: Option<Mono>,
    /// Newest utilisation sample seen, µs since 1970 by the driver's clock.
    pub(super) utilization_seen: Option<u64>,
    pub(super) no_utilization: bool,
    /// Why there will never be a process list.
    pub(super) no_processes: Option<Reason>,
    pub(super) reported: Vec<(Option<MetricId>, Reason)>,
}

/// What one device's part of one frame has at hand.
pub(super) struct Pass<'a> {
    pub(super) nvml: &'a Nvml,
    pub(super) settings: &'a GpuSettings,
    pub(super) buffer: &'a mut ProcessBuffer,
    pub(super) spare: &'a mut Vec<Vec<GpuProcessUse>>,
    pub(super) news: &'a mut Vec<GpuNews>,
    pub(super) place: usize,
    pub(super) at: Mono,
    /// When the reads of the frame began, by the clock of the run and by the system's.
    pub(super) began: (Mono, Instant),
    /// Expensive metrics are due.
    pub(super) expensive: bool,
    /// Process lists are due.
    pub(super) lists: bool,
    pub(super) out: &'a mut DeviceFrame,
}

impl Pass<'_> {
    /// The time now; `at` is when the frame was asked for.
    pub(super) fn now(&self) -> Mono {
        self.began.0 + self.began.1.elapsed()
    }
}

impl Device {
    pub(super) fn new(
        nvml: &Nvml,
        identity: Arc<DeviceIdentity>,
        role: Role,
        settings: &GpuSettings,
    ) -> Self {
        let of_slices: MetricSet = OF_SLICES.into_iter().chain(GPM_METRICS).collect();
        let mut wanted = match role {
            Role::Whole => settings.wanted(),
            Role::Slice => settings.wanted().and(of_slices),
            Role::Parent => settings.wanted().without(of_slices),
        };
        let handle = nvml.handle_of(&identity).ok();
        // Most cards have no GPM: no rows that are always empty.
        let mut gpm = Gpm::default();
        if let Some(handle) = handle
            && GPM_METRICS.into_iter().any(|id| wanted.has(id))
            && gpm.open(nvml, (handle, role)).is_err_and(|fault| fault.is_permanent())
        {
            wanted = wanted.without(GPM_METRICS.into_iter().collect());
        }
        let mut fields: Vec<Field> =
            FIELD_COUNTERS.iter().filter(|(_, id, _)| wanted.has(*id)).map(|(field, _, _)| *field).collect();
        if wanted.has(MetricId::GpuMemoryTemperature) {
            fields.push(Field::MemoryTemperature);
        }
        let energies = [MetricId::GpuEnergy, MetricId::GpuEnergyFromPower, MetricId::GpuEnergyUsed];
        if energies.into_iter().any(|id| wanted.has(id)) {
            fields.push(Field::Energy);
        }
        // A slice has none of the values that the limits are for, nor facts of its own.
        let whole = handle.filter(|_| role != Role::Slice);
        let limits = whole.map(|handle| nvml.ceilings(handle));
        let facts = whole.map(|handle| nvml.facts(handle)).unwrap_or_default();
        let identity = Arc::new(DeviceIdentity { facts, ..identity.as_ref().clone() });
        Self {
            handle,
            bounds: Bounds::new(limits.unwrap_or_default()),
            retry_at: Mono::default(),
            wanted,
            expensive: settings.expensive(),
            unsupported: MetricSet::NONE,
            fields: FieldRequest::new(&fields),
            counters: [Total::default(); FIELD_COUNTERS.len()],
            wrap_reported: false,
            throttle_by_call: [false; 2],
            energy_by_call: false,
            energy: Total::default(),
            integrate: false,
            integral: PowerIntegral::default(),
            gpm,
            unified: if role == Role::Whole { None } else { Some(false) },
            total: identity.memory_total,
            expensive_read: None,
            processes_read: None,
            utilization_seen: None,
            no_utilization: role == Role::Slice,
            no_processes: None,
            reported: Vec::new(),
            identity,
            role,
        }
    }

    /// The driver began anew: handles are void and its counters too.
    pub(super) fn driver_reloaded(&mut self) {
        self.handle = None;
        self.retry_at = Mono::default();
        self.energy.forget();
        self.gpm.forget();
        for counter in &mut self.counters {
            counter.forget();
        }
    }

    /// Reports a reason once.
    pub(super) fn report(&mut self, pass: &mut Pass<'_>, metric: Option<MetricId>, reason: Reason) {
        /// A driver with more to say than this says nothing new.
        const ENOUGH: usize = 64;
        if self.reported.len() < ENOUGH
            && !self.reported.iter().any(|(about, known)| *about == metric && *known == reason)
        {
            self.reported.push((metric, reason.clone()));
            pass.news.push(GpuNews { device: Some(pass.place), metric, reason });
        }
    }

    pub(super) fn is_due(&self, pass: &Pass<'_>, id: MetricId) -> bool {
        self.wanted.has(id) && (pass.expensive || !self.expensive.has(id))
    }

    /// Enters as missing everything that is due and not yet in the frame.
    pub(super) fn enter_missing(&mut self, pass: &mut Pass<'_>, reason: Reason) {
        for id in self.wanted.iter() {
            // Of the two energies only one is ever in use.
            let other = match id {
                MetricId::GpuEnergy => self.integrate && self.wanted.has(MetricId::GpuEnergyFromPower),
                MetricId::GpuEnergyFromPower => !self.integrate,
                _ => false,
            };
            if !other && self.is_due(pass, id) && !pass.out.readings.iter().any(|(known, _)| *known == id) {
                pass.out.readings.push((id, Reading::Missing));
            }
        }
        if pass.lists && pass.out.processes.is_none() {
            pass.out.processes = Some(Err(reason.clone()));
        }
        self.report(pass, None, reason);
    }

    /// The device's handle. A device that went away is looked for at most every so often.
    pub(super) fn find(&mut self, pass: &Pass<'_>) -> CallResult<Handle> {
        if let Some(handle) = self.handle {
            return Ok(handle);
        }
        let lost = Fault::GPU_IS_LOST;
        if pass.at < self.retry_at {
            return Err(lost);
        }
        match pass.nvml.handle_of(&self.identity) {
            Ok(handle) => {
                self.handle = Some(handle);
                if self.role != Role::Slice {
                    self.bounds = Bounds::new(pass.nvml.ceilings(handle));
                }
                self.gpm.forget();
                for counter in &mut self.counters {
                    counter.forget();
                }
                Ok(handle)
            }
            Err(fault) => {
                self.retry_at = pass.at + pass.settings.retry_every;
                // "Not found" and whatever else: the device that rows speak of is not there.
                Err(if fault.is_driver_gone() { fault } else { lost })
            }
        }
    }

    /// Reads what is due. An error ends this device's part of the frame: it is lost, or the driver is.
    pub(super) fn read(&mut self, pass: &mut Pass<'_>) -> CallResult<()> {
        let found_again = self.handle.is_none();
        let device = self.find(pass)?;
        let result = self.read_values(pass, device);
        match result {
            Err(_) => {
                // One try at the next frame, then at the slow pace.
                self.handle = None;
                self.retry_at = if found_again { pass.at + pass.settings.retry_every } else { pass.at };
            }
            // It is back: another loss is news again.
            Ok(()) => self.reported.retain(|(about, _)| about.is_some()),
        }
        result
    }

    /// Reads one value into one metric, if that is wanted.
    pub(super) fn gauge(
        &mut self,
        pass: &mut Pass<'_>,
        id: MetricId,
        read: impl FnOnce() -> CallResult<f64>,
    ) -> CallResult<()> {
        if !self.wanted.has(id) {
            return Ok(());
        }
        if self.unsupported.has(id) {
            pass.out.readings.push((id, Reading::Missing));
            return Ok(());
        }
        let result = read();
        self.enter(pass, id, result)
    }

    /// Enters what a call gave. Only the loss of the device or driver is an error.
    pub(super) fn enter(
        &mut self,
        pass: &mut Pass<'_>,
        id: MetricId,
        result: CallResult<f64>,
    ) -> CallResult<()> {
        match result {
            Err(fault) if fault.is_fatal() => return Err(fault),
            _ if !self.wanted.has(id) => {}
            Ok(value) if !self.bounds.allows(id, value, self.total) => {
                return self.enter(pass, id, Err(Fault::Implausible));
            }
            Ok(value) => pass.out.readings.push((id, Reading::Value(value))),
            Err(fault) => {
                if fault.is_permanent() {
                    self.unsupported.set(id, true);
                }
                pass.out.readings.push((id, Reading::Missing));
                self.report(pass, Some(id), fault.reason());
            }
        }
        Ok(())
    }
}
