//! The followed devices: which calls each frame makes, what is never asked again, what happens when a GPU is lost.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::settings::GpuSettings;
use super::totals::{EnergyMeter, PowerIntegral, Unwrapped};
use super::{Depth, Followed, GpuNews, Role, Source};
use crate::collectors::nvml::{
    CallResult, Fault, Field, FieldNumber, FieldRequest, Handle, Nvml, ProcessBuffer, UtilizationSample,
};
use crate::model::device::DeviceIdentity;
use crate::model::metric::MetricId;
use crate::model::metric_set::MetricSet;
use crate::model::reading::{Reading, Reason};
use crate::model::time::Mono;
use crate::sampling::frame::{DeviceFrame, GpuFrame, GpuProcessUse};

const MIB: f64 = 1_048_576.0;

/// What a MIG slice has of its own. Utilisation is in the list because its absence has to be said.
const OF_SLICES: [MetricId; 6] = [
    MetricId::GpuGpuUtilization,
    MetricId::GpuMemoryUtilization,
    MetricId::GpuMemoryUsed,
    MetricId::GpuMemoryFree,
    MetricId::GpuMemoryTotal,
    MetricId::GpuMemoryPercent,
];

/// Counters that come as field values, with what turns them into the metric's unit times seconds.
const FIELD_COUNTERS: [(Field, MetricId, f64); 6] = [
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

/// What has to be said of a byte counter of 32 bits, though its values are no absence.
const WRAPS: &str = "the byte counter wraps at 4 GiB: more than that between two samples cannot be seen";

/// Metrics that no older call gives where the driver lacks the field.
const ONLY_FIELDS: [MetricId; 5] = [
    MetricId::GpuMemoryTemperature,
    MetricId::GpuPcieTx,
    MetricId::GpuPcieRx,
    MetricId::GpuNvlinkTx,
    MetricId::GpuNvlinkRx,
];

/// The driver and every followed device.
pub(super) struct Follower {
    nvml: Nvml,
    settings: GpuSettings,
    devices: Vec<Device>,
    buffer: ProcessBuffer,
    /// Emptied process vectors, to be filled again.
    spare: Vec<Vec<GpuProcessUse>>,
    /// The driver was reloaded or is gone: no handle is valid.
    driver_gone: bool,
    retry_at: Mono,
}

struct Device {
    identity: Arc<DeviceIdentity>,
    role: Role,
    handle: Option<Handle>,
    /// When a lost device is looked for again.
    retry_at: Mono,
    wanted: MetricSet,
    slow: MetricSet,
    /// What this device or driver will never answer.
    dead: MetricSet,
    fields: FieldRequest,
    counters: [Unwrapped; FIELD_COUNTERS.len()],
    wrap_said: bool,
    /// Field values that turned out unsupported are asked for by their older calls.
    throttle_by_call: [bool; 2],
    energy_by_call: bool,
    energy: EnergyMeter,
    /// There is no energy counter: power is integrated.
    integrate: bool,
    integral: PowerIntegral,
    /// Whether it shares the host's memory, once known.
    unified: Option<bool>,
    /// Bytes above which no process can be.
    total: Option<u64>,
    slow_read: Option<Mono>,
    processes_read: Option<Mono>,
    /// Newest utilisation sample seen, µs since 1970 by the driver's clock.
    utilization_seen: Option<u64>,
    utilization_dead: bool,
    /// Why there will never be a process list.
    processes_dead: Option<Reason>,
    said: Vec<(Option<MetricId>, Reason)>,
}

/// Whether something read last at `last` is due again.
fn due(last: Option<Mono>, at: Mono, every: Duration, interval: Duration) -> bool {
    // Half an interval of slack: a frame that comes a little early is the one that is meant.
    last.is_none_or(|last| at.since(last) + interval / 2 >= every)
}

impl Follower {
    /// Follows these devices, and the parents of those that are slices.
    pub(super) fn new(nvml: Nvml, devices: Vec<Arc<DeviceIdentity>>, settings: GpuSettings) -> Self {
        let mut parents: Vec<Arc<DeviceIdentity>> = Vec::new();
        for slice in devices.iter().filter(|device| device.mig.is_some()) {
            if let Ok(parent) = nvml.parent_identity(slice)
                && !devices.iter().chain(&parents).any(|known| known.uuid == parent.uuid)
            {
                parents.push(Arc::new(parent));
            }
        }
        let whole = devices.into_iter().map(|identity| {
            let role = if identity.mig.is_some() { Role::Slice } else { Role::Whole };
            (identity, role)
        });
        let devices = whole
            .chain(parents.into_iter().map(|parent| (parent, Role::Parent)))
            .map(|(identity, role)| Device::new(&nvml, identity, role, &settings))
            .collect();
        Self {
            nvml,
            settings,
            devices,
            buffer: ProcessBuffer::default(),
            spare: Vec::new(),
            driver_gone: false,
            retry_at: Mono::default(),
        }
    }

    /// Looks for a driver that went away, at most every so often.
    fn seek_driver(&mut self, at: Mono) {
        if !self.driver_gone || at < self.retry_at {
            return;
        }
        self.retry_at = at + self.settings.retry_every;
        if self.nvml.reinitialise().is_err() {
            return;
        }
        self.driver_gone = false;
        for device in &mut self.devices {
            device.driver_reloaded();
        }
    }
}

impl Source for Follower {
    fn followed(&self) -> Vec<Followed> {
        self.devices
            .iter()
            .map(|device| Followed {
                identity: Arc::clone(&device.identity),
                role: device.role,
                metrics: device.wanted.iter().collect(),
            })
            .collect()
    }

    fn read(&mut self, at: Mono, depth: Depth, frame: &mut GpuFrame, news: &mut Vec<GpuNews>) {
        frame.devices.resize_with(self.devices.len(), DeviceFrame::default);
        for out in &mut frame.devices {
            out.readings.clear();
            if let Some(Ok(mut list)) = out.processes.take() {
                list.clear();
                self.spare.push(list);
            }
        }
        self.seek_driver(at);
        for (place, out) in frame.devices.iter_mut().enumerate() {
            let Some(device) = self.devices.get_mut(place) else { continue };
            let slow = depth == Depth::Everything
                || due(device.slow_read, at, self.settings.dear_every, self.settings.interval);
            let lists = self.settings.processes
                && device.role != Role::Parent
                && (depth == Depth::Everything
                    || due(device.processes_read, at, self.settings.processes_every, self.settings.interval));
            let mut pass = Pass {
                nvml: &self.nvml,
                settings: &self.settings,
                buffer: &mut self.buffer,
                spare: &mut self.spare,
                news,
                place,
                at,
                slow,
                lists,
            };
            if self.driver_gone {
                device.absent(&mut pass, out, Reason::DriverGone);
            } else if let Err(fault) = device.read(&mut pass, out) {
                if fault.is_driver_gone() {
                    self.driver_gone = true;
                    // A fresh session is worth one try at once.
                    self.retry_at = at;
                }
                device.absent(&mut pass, out, fault.reason());
            }
            if slow {
                device.slow_read = Some(at);
            }
            if lists {
                device.processes_read = Some(at);
            }
        }
    }
}

/// What one device's part of one frame has at hand.
struct Pass<'a> {
    nvml: &'a Nvml,
    settings: &'a GpuSettings,
    buffer: &'a mut ProcessBuffer,
    spare: &'a mut Vec<Vec<GpuProcessUse>>,
    news: &'a mut Vec<GpuNews>,
    place: usize,
    at: Mono,
    /// Metrics of the slower pace are due.
    slow: bool,
    /// Process lists are due.
    lists: bool,
}

impl Device {
    fn new(nvml: &Nvml, identity: Arc<DeviceIdentity>, role: Role, settings: &GpuSettings) -> Self {
        let of_slices: MetricSet = OF_SLICES.into_iter().collect();
        let wanted = match role {
            Role::Whole => settings.wanted(),
            Role::Slice => settings.wanted().and(of_slices),
            Role::Parent => settings.wanted().without(of_slices),
        };
        let mut fields: Vec<Field> =
            FIELD_COUNTERS.iter().filter(|(_, id, _)| wanted.has(*id)).map(|(field, _, _)| *field).collect();
        if wanted.has(MetricId::GpuMemoryTemperature) {
            fields.push(Field::MemoryTemperature);
        }
        let energy = wanted.has(MetricId::GpuEnergy) || wanted.has(MetricId::GpuEnergyFromPower);
        if energy {
            fields.push(Field::Energy);
        }
        Self {
            handle: nvml.handle_of(identity.uuid.as_str()).ok(),
            retry_at: Mono::default(),
            wanted,
            slow: settings.slow(),
            dead: MetricSet::NONE,
            fields: FieldRequest::new(&fields),
            counters: [Unwrapped::default(); FIELD_COUNTERS.len()],
            wrap_said: false,
            throttle_by_call: [false; 2],
            energy_by_call: false,
            energy: EnergyMeter::default(),
            integrate: false,
            integral: PowerIntegral::default(),
            unified: if role == Role::Whole { None } else { Some(false) },
            total: identity.memory_total,
            slow_read: None,
            processes_read: None,
            utilization_seen: None,
            utilization_dead: role == Role::Slice,
            processes_dead: None,
            said: Vec::new(),
            identity,
            role,
        }
    }

    /// The driver began anew: handles are void and its counters too.
    fn driver_reloaded(&mut self) {
        self.handle = None;
        self.retry_at = Mono::default();
        self.energy.rebase();
        for counter in &mut self.counters {
            counter.forget();
        }
    }

    /// Says a reason unless it was said before.
    fn say(&mut self, pass: &mut Pass<'_>, metric: Option<MetricId>, reason: Reason) {
        /// A driver with more to say than this says nothing new.
        const ENOUGH: usize = 64;
        if self.said.len() < ENOUGH
            && !self.said.iter().any(|(about, said)| *about == metric && *said == reason)
        {
            self.said.push((metric, reason.clone()));
            pass.news.push(GpuNews { device: Some(pass.place), metric, reason });
        }
    }

    fn is_due(&self, pass: &Pass<'_>, id: MetricId) -> bool {
        self.wanted.has(id) && (pass.slow || !self.slow.has(id))
    }

    /// Enters the absence of everything that is due and not yet in the frame.
    fn absent(&mut self, pass: &mut Pass<'_>, out: &mut DeviceFrame, reason: Reason) {
        for id in self.wanted.iter() {
            // Of the two energies only one is ever in use.
            let other = match id {
                MetricId::GpuEnergy => self.integrate && self.wanted.has(MetricId::GpuEnergyFromPower),
                MetricId::GpuEnergyFromPower => !self.integrate,
                _ => false,
            };
            if !other && self.is_due(pass, id) && !out.readings.iter().any(|(known, _)| *known == id) {
                out.readings.push((id, Reading::Missing));
            }
        }
        if pass.lists && out.processes.is_none() {
            out.processes = Some(Err(reason.clone()));
        }
        self.say(pass, None, reason);
    }

    /// Looks for a device that went away, at most every so often.
    fn seek(&mut self, pass: &Pass<'_>) -> CallResult<Handle> {
        if let Some(handle) = self.handle {
            return Ok(handle);
        }
        let lost = Fault::GPU_IS_LOST;
        if pass.at < self.retry_at {
            return Err(lost);
        }
        match pass.nvml.handle_of(self.identity.uuid.as_str()) {
            Ok(handle) => {
                self.handle = Some(handle);
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
    fn read(&mut self, pass: &mut Pass<'_>, out: &mut DeviceFrame) -> CallResult<()> {
        let found_again = self.handle.is_none();
        let device = self.seek(pass)?;
        let result = self.read_values(pass, device, out);
        match result {
            Err(_) => {
                // One try at the next frame, then at the slow pace.
                self.handle = None;
                self.retry_at = if found_again { pass.at + pass.settings.retry_every } else { pass.at };
            }
            // It is back: another loss is news again.
            Ok(()) => self.said.retain(|(about, _)| about.is_some()),
        }
        result
    }

    fn read_values(&mut self, pass: &mut Pass<'_>, device: Handle, out: &mut DeviceFrame) -> CallResult<()> {
        let nvml = pass.nvml;
        self.read_utilization(pass, device, out)?;
        self.read_memory(pass, device, out)?;
        self.gauge(pass, out, MetricId::GpuTemperature, || nvml.temperature(device).map(f64::from))?;
        self.gauge(pass, out, MetricId::GpuSmClock, || nvml.sm_clock(device).map(f64::from))?;
        self.gauge(pass, out, MetricId::GpuMemoryClock, || nvml.memory_clock(device).map(f64::from))?;
        // Before power: whether there is an energy counter decides whether power is integrated.
        self.read_fields(pass, device, out)?;
        self.read_power(pass, device, out)?;
        if pass.slow {
            self.read_slow(pass, device, out)?;
        }
        if pass.lists {
            self.read_processes(pass, device, out)?;
        }
        Ok(())
    }

    fn read_slow(&mut self, pass: &mut Pass<'_>, device: Handle, out: &mut DeviceFrame) -> CallResult<()> {
        let nvml = pass.nvml;
        self.gauge(pass, out, MetricId::GpuPowerLimit, || {
            nvml.enforced_power_limit(device).map(|milliwatts| f64::from(milliwatts) / 1e3)
        })?;
        self.gauge(pass, out, MetricId::GpuFanSpeed, || nvml.fan_speed(device).map(f64::from))?;
        self.gauge(pass, out, MetricId::GpuEncoderUtilization, || {
            nvml.encoder_utilization(device).map(f64::from)
        })?;
        self.gauge(pass, out, MetricId::GpuDecoderUtilization, || {
            nvml.decoder_utilization(device).map(f64::from)
        })?;
        self.gauge(pass, out, MetricId::GpuEccUncorrected, || {
            nvml.ecc_errors(device, true).map(|count| count as f64)
        })?;
        self.gauge(pass, out, MetricId::GpuEccCorrected, || {
            nvml.ecc_errors(device, false).map(|count| count as f64)
        })?;
        self.gauge(pass, out, MetricId::GpuPcieRxSampled, || {
            nvml.pcie_throughput(device, true).map(|rate| f64::from(rate) / 1024.0)
        })?;
        self.gauge(pass, out, MetricId::GpuPcieTxSampled, || {
            nvml.pcie_throughput(device, false).map(|rate| f64::from(rate) / 1024.0)
        })
    }

    /// Reads one value into one metric, if that is wanted.
    fn gauge(
        &mut self,
        pass: &mut Pass<'_>,
        out: &mut DeviceFrame,
        id: MetricId,
        read: impl FnOnce() -> CallResult<f64>,
    ) -> CallResult<()> {
        if !self.wanted.has(id) {
            return Ok(());
        }
        if self.dead.has(id) {
            out.readings.push((id, Reading::Missing));
            return Ok(());
        }
        let result = read();
        self.enter(pass, out, id, result)
    }

    /// Enters what a call gave. Only the loss of the device or driver is an error.
    fn enter(
        &mut self,
        pass: &mut Pass<'_>,
        out: &mut DeviceFrame,
        id: MetricId,
        result: CallResult<f64>,
    ) -> CallResult<()> {
        if !self.wanted.has(id) {
            return match result {
                Err(fault) if fault.is_lost() || fault.is_driver_gone() => Err(fault),
                _ => Ok(()),
            };
        }
        match result {
            Ok(value) => out.readings.push((id, Reading::Value(value))),
            Err(fault) if fault.is_lost() || fault.is_driver_gone() => return Err(fault),
            Err(fault) => {
                if fault.is_permanent() {
                    self.dead.set(id, true);
                }
                out.readings.push((id, Reading::Missing));
                self.say(pass, Some(id), fault.reason());
            }
        }
        Ok(())
    }

    fn read_utilization(
        &mut self,
        pass: &mut Pass<'_>,
        device: Handle,
        out: &mut DeviceFrame,
    ) -> CallResult<()> {
        const BOTH: [MetricId; 2] = [MetricId::GpuGpuUtilization, MetricId::GpuMemoryUtilization];
        if !BOTH.iter().any(|id| self.wanted.has(*id)) {
            return Ok(());
        }
        let result = if self.role == Role::Slice
            || BOTH.iter().all(|id| self.dead.has(*id) || !self.wanted.has(*id))
        {
            // NVML has none for slices; the parent's is not theirs.
            Err(Fault::NOT_SUPPORTED)
        } else {
            pass.nvml.utilization(device)
        };
        self.enter(pass, out, BOTH[0], result.map(|rates| f64::from(rates.gpu)))?;
        self.enter(pass, out, BOTH[1], result.map(|rates| f64::from(rates.memory)))
    }

    fn read_memory(&mut self, pass: &mut Pass<'_>, device: Handle, out: &mut DeviceFrame) -> CallResult<()> {
        const ALL: [MetricId; 4] = [
            MetricId::GpuMemoryUsed,
            MetricId::GpuMemoryFree,
            MetricId::GpuMemoryTotal,
            MetricId::GpuMemoryPercent,
        ];
        if !ALL.iter().any(|id| self.wanted.has(*id)) {
            return Ok(());
        }
        if self.unified == Some(true) {
            return self.read_unified_memory(pass, device, out);
        }
        if ALL.iter().all(|id| self.dead.has(*id) || !self.wanted.has(*id)) {
            for id in ALL.into_iter().filter(|id| self.wanted.has(*id)) {
                out.readings.push((id, Reading::Missing));
            }
            return Ok(());
        }
        let result = pass.nvml.memory(device);
        if result.is_err_and(Fault::is_invalid_handle) {
            // A slice that was taken apart, or a handle that a reload left behind.
            return Err(Fault::GPU_IS_LOST);
        }
        if self.unified.is_none() && result.map_or_else(Fault::is_permanent, |_| true) {
            let unified = pass.nvml.shares_host_memory(device, &result);
            self.unified = Some(unified);
            if unified {
                self.total = None;
                return self.read_unified_memory(pass, device, out);
            }
        }
        let result = match result {
            Ok(memory) if memory.total == 0 => Err(Fault::Implausible),
            other => other,
        };
        if let Ok(memory) = &result {
            self.total = Some(memory.total);
        }
        self.enter(pass, out, ALL[0], result.map(|memory| memory.used as f64 / MIB))?;
        self.enter(pass, out, ALL[1], result.map(|memory| memory.free as f64 / MIB))?;
        self.enter(pass, out, ALL[2], result.map(|memory| memory.total as f64 / MIB))?;
        let percent = result.map(|memory| 100.0 * memory.used as f64 / memory.total as f64);
        self.enter(pass, out, ALL[3], percent)
    }

    /// The host's memory, of which the GPU's part is what its processes hold.
    fn read_unified_memory(
        &mut self,
        pass: &mut Pass<'_>,
        device: Handle,
        out: &mut DeviceFrame,
    ) -> CallResult<()> {
        let host = pass.nvml.host_memory();
        let used = match pass.nvml.processes(device, None, pass.buffer) {
            Ok(list) => list
                .iter()
                .try_fold(0_u64, |sum, entry| entry.memory.map(|bytes| sum.saturating_add(bytes)))
                .ok_or(Fault::Implausible),
            Err(fault) => Err(fault),
        };
        self.enter(pass, out, MetricId::GpuMemoryUsed, used.map(|used| used as f64 / MIB))?;
        self.enter(pass, out, MetricId::GpuMemoryFree, host.map(|host| host.available as f64 / MIB))?;
        self.enter(pass, out, MetricId::GpuMemoryTotal, host.map(|host| host.total as f64 / MIB))?;
        let percent = match (used, host) {
            (Ok(used), Ok(host)) if host.total > 0 => Ok(100.0 * used as f64 / host.total as f64),
            (Err(fault), _) | (_, Err(fault)) => Err(fault),
            _ => Err(Fault::Implausible),
        };
        self.enter(pass, out, MetricId::GpuMemoryPercent, percent)
    }

    fn read_power(&mut self, pass: &mut Pass<'_>, device: Handle, out: &mut DeviceFrame) -> CallResult<()> {
        let integrate = self.integrate && self.wanted.has(MetricId::GpuEnergyFromPower);
        if !self.wanted.has(MetricId::GpuPowerUsage) && !integrate {
            return Ok(());
        }
        let result = if self.dead.has(MetricId::GpuPowerUsage) {
            Err(Fault::NOT_SUPPORTED)
        } else {
            pass.nvml.power_usage(device).map(|milliwatts| f64::from(milliwatts) / 1e3)
        };
        self.enter(pass, out, MetricId::GpuPowerUsage, result)?;
        if integrate {
            let bridge = pass.settings.bridge();
            let joules = result.map(|watts| self.integral.feed(pass.at, watts, bridge));
            self.enter(pass, out, MetricId::GpuEnergyFromPower, joules)?;
        }
        Ok(())
    }

    /// Everything that comes as field values, in one call; what the driver lacks there, by the older calls.
    fn read_fields(&mut self, pass: &mut Pass<'_>, device: Handle, out: &mut DeviceFrame) -> CallResult<()> {
        for id in ONLY_FIELDS {
            if self.wanted.has(id) && self.dead.has(id) {
                out.readings.push((id, Reading::Missing));
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
                self.enter_field(pass, out, field, answer)?;
            }
        }
        self.read_by_older_calls(pass, device, out)
    }

    fn enter_field(
        &mut self,
        pass: &mut Pass<'_>,
        out: &mut DeviceFrame,
        field: Field,
        answer: CallResult<FieldNumber>,
    ) -> CallResult<()> {
        let unsupported = answer.is_err_and(Fault::is_permanent);
        match field {
            Field::ThrottledPower if unsupported => self.throttle_by_call[0] = true,
            Field::ThrottledThermal if unsupported => self.throttle_by_call[1] = true,
            Field::Energy if unsupported => self.energy_by_call = true,
            Field::Energy => {
                let count = answer.and_then(|number| number.as_count().ok_or(Fault::Implausible));
                let joules = count.map(|millijoules| self.energy.feed(millijoules));
                self.enter(pass, out, MetricId::GpuEnergy, joules)?;
            }
            Field::MemoryTemperature => {
                // Cards without the sensor answer 0, which no memory at work has.
                let degrees = answer.map(FieldNumber::as_f64);
                let degrees = degrees
                    .and_then(|degrees| if degrees > 0.0 { Ok(degrees) } else { Err(Fault::Implausible) });
                self.enter(pass, out, MetricId::GpuMemoryTemperature, degrees)?;
            }
            counter => {
                let known =
                    FIELD_COUNTERS.iter().zip(&mut self.counters).find(|((field, ..), _)| *field == counter);
                if let Some(((_, id, scale), unwrapped)) = known {
                    let bytes = matches!(counter, Field::PcieTx | Field::PcieRx);
                    let count =
                        answer.and_then(|number| unwrapped.feed(number, bytes).ok_or(Fault::Implausible));
                    let wrapped = bytes && unwrapped.has_wrapped();
                    self.enter(pass, out, *id, count.map(|count| count as f64 * scale))?;
                    if wrapped && !self.wrap_said {
                        self.wrap_said = true;
                        self.say(pass, Some(*id), Reason::Other(WRAPS.into()));
                    }
                }
            }
        }
        Ok(())
    }

    /// What old drivers do not have as field values.
    fn read_by_older_calls(
        &mut self,
        pass: &mut Pass<'_>,
        device: Handle,
        out: &mut DeviceFrame,
    ) -> CallResult<()> {
        let nvml = pass.nvml;
        for (thermal, id) in [(false, MetricId::GpuThrottledPower), (true, MetricId::GpuThrottledThermal)] {
            if self.throttle_by_call.get(usize::from(thermal)) == Some(&true) {
                self.gauge(pass, out, id, || {
                    nvml.violation_ns(device, thermal).map(|ns| ns as f64 * (100.0 / 1e9))
                })?;
            }
        }
        if self.energy_by_call && !self.integrate {
            match nvml.total_energy(device) {
                Err(fault) if fault.is_permanent() => {
                    self.integrate = true;
                    self.say(pass, Some(MetricId::GpuEnergy), fault.reason());
                }
                result => {
                    let joules = result.map(|millijoules| self.energy.feed(millijoules));
                    self.enter(pass, out, MetricId::GpuEnergy, joules)?;
                }
            }
        }
        if self.integrate
            && self.wanted.has(MetricId::GpuEnergy)
            && !self.wanted.has(MetricId::GpuEnergyFromPower)
        {
            out.readings.push((MetricId::GpuEnergy, Reading::Missing));
        }
        Ok(())
    }

    fn read_processes(
        &mut self,
        pass: &mut Pass<'_>,
        device: Handle,
        out: &mut DeviceFrame,
    ) -> CallResult<()> {
        if let Some(reason) = &self.processes_dead {
            out.processes = Some(Err(reason.clone()));
            return Ok(());
        }
        let list = match pass.nvml.processes(device, self.total, pass.buffer) {
            Ok(list) => list,
            Err(fault) if fault.is_lost() || fault.is_driver_gone() => return Err(fault),
            Err(fault) => {
                if fault.is_permanent() {
                    self.processes_dead = Some(fault.reason());
                }
                out.processes = Some(Err(fault.reason()));
                self.say(pass, Some(MetricId::JobGpuMemory), fault.reason());
                return Ok(());
            }
        };
        let mut uses = pass.spare.pop().unwrap_or_default();
        uses.extend(list.iter().map(|entry| GpuProcessUse {
            pid: entry.pid,
            memory: entry.memory,
            sm: None,
            memory_utilization: None,
        }));
        let result = self.read_process_utilization(pass, device, &mut uses);
        out.processes = Some(Ok(uses));
        result
    }

    fn read_process_utilization(
        &mut self,
        pass: &mut Pass<'_>,
        device: Handle,
        uses: &mut [GpuProcessUse],
    ) -> CallResult<()> {
        if self.utilization_dead {
            return Ok(());
        }
        if uses.is_empty() {
            // Whoever comes later is judged from then on.
            self.utilization_seen = None;
            return Ok(());
        }
        // At least a second back: the driver's own period is up to that long, and a look that comes sooner after the one
        // before (the last of a run) would take the silence between two samples for idleness.
        let ago = self.one_second_ago();
        let since = self.utilization_seen.map_or(ago, |seen| seen.min(ago));
        match pass.nvml.process_utilization(device, since, pass.buffer) {
            Ok(samples) => {
                for one in uses {
                    one.sm = mean_share(samples, one.pid, since, |sample| sample.sm);
                    one.memory_utilization = mean_share(samples, one.pid, since, |sample| sample.memory);
                }
                let newest = samples.iter().map(|sample| sample.stamp).max().unwrap_or(since);
                self.utilization_seen = Some(newest.max(since));
            }
            Err(fault) if fault.is_lost() || fault.is_driver_gone() => return Err(fault),
            Err(fault) => {
                self.utilization_dead = fault.is_permanent();
                self.say(pass, Some(MetricId::JobGpuSmUtilization), fault.reason());
            }
        }
        Ok(())
    }

    /// A second ago in µs since 1970, by the driver's clock where a field value told it.
    fn one_second_ago(&self) -> u64 {
        let now = match self.fields.newest_stamp() {
            0 => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as u64),
            stamp => stamp,
        };
        now.saturating_sub(1_000_000)
    }
}

/// The mean of a process's samples newer than `since`, in percent. None at all is a measured 0: the driver keeps
/// samples only of those that ran. Only impossible ones are unknown.
fn mean_share(
    samples: &[UtilizationSample],
    pid: u32,
    since: u64,
    share: impl Fn(&UtilizationSample) -> u32,
) -> Option<f64> {
    let (mut sum, mut good, mut bad) = (0.0, 0_u32, false);
    // Some drivers do not heed how new the samples should be.
    for sample in samples.iter().filter(|sample| sample.pid == pid && sample.stamp > since) {
        let percent = share(sample);
        if percent <= 100 {
            sum += f64::from(percent);
            good += 1;
        } else {
            bad = true;
        }
    }
    match (good, bad) {
        (0, false) => Some(0.0),
        (0, true) => None,
        (good, _) => Some(sum / f64::from(good)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_shares_are_dropped_and_silence_is_zero() {
        let sample = |pid, stamp, sm| UtilizationSample { pid, stamp, sm, memory: 0 };
        let share = |samples: &[UtilizationSample]| mean_share(samples, 7, 100, |sample| sample.sm);
        assert_eq!(share(&[]), Some(0.0));
        assert_eq!(share(&[sample(7, 101, 40), sample(7, 102, 60), sample(7, 103, 4_000_000)]), Some(50.0));
        assert_eq!(share(&[sample(7, 101, 101)]), None);
        assert_eq!(share(&[sample(8, 101, 90), sample(7, 100, 90)]), Some(0.0), "another's, and an old one");
    }

    #[test]
    fn a_slow_read_is_due_at_the_frame_that_is_meant() {
        let (every, interval) = (Duration::from_secs(5), Duration::from_secs(1));
        let at = |s: f64| Mono((s * 1e9) as u64);
        assert!(due(None, at(0.0), every, interval));
        assert!(!due(Some(at(0.0)), at(4.0), every, interval));
        assert!(due(Some(at(0.0)), at(4.999), every, interval));
        assert!(due(Some(at(0.3)), at(5.0), every, interval));
    }
}
