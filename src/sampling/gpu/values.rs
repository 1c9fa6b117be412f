//! Values that one call gives each: utilisation, memory, power, clocks and the expensive ones.

use super::Role;
use super::device::{Device, Pass};
use crate::collectors::nvml::{CallResult, Fault, Handle};
use crate::model::metric::MetricId;
use crate::model::reading::Reading;
use crate::sampling::MIB;

impl Device {
    pub(super) fn read_values(&mut self, pass: &mut Pass<'_>, device: Handle) -> CallResult<()> {
        let nvml = pass.nvml;
        self.read_utilization(pass, device)?;
        self.read_memory(pass, device)?;
        self.gauge(pass, MetricId::GpuTemperature, || nvml.temperature(device).map(f64::from))?;
        self.gauge(pass, MetricId::GpuSmClock, || nvml.sm_clock(device).map(f64::from))?;
        self.gauge(pass, MetricId::GpuMemoryClock, || nvml.memory_clock(device).map(f64::from))?;
        // Before power: whether there is an energy counter decides whether power is integrated.
        self.read_fields(pass, device)?;
        self.read_power(pass, device)?;
        self.read_gpm(pass, device)?;
        if pass.expensive {
            self.read_expensive(pass, device)?;
        }
        if pass.lists {
            self.read_processes(pass, device)?;
        }
        Ok(())
    }

    fn read_expensive(&mut self, pass: &mut Pass<'_>, device: Handle) -> CallResult<()> {
        let nvml = pass.nvml;
        self.gauge(pass, MetricId::GpuPowerLimit, || {
            nvml.enforced_power_limit(device).map(|milliwatts| f64::from(milliwatts) / 1e3)
        })?;
        self.gauge(pass, MetricId::GpuFanSpeed, || nvml.fan_speed(device).map(f64::from))?;
        self.gauge(pass, MetricId::GpuEncoderUtilization, || {
            nvml.encoder_utilization(device).map(f64::from)
        })?;
        self.gauge(pass, MetricId::GpuDecoderUtilization, || {
            nvml.decoder_utilization(device).map(f64::from)
        })?;
        self.gauge(pass, MetricId::GpuEccUncorrected, || {
            nvml.ecc_errors(device, true).map(|count| count as f64)
        })?;
        self.gauge(pass, MetricId::GpuEccCorrected, || {
            nvml.ecc_errors(device, false).map(|count| count as f64)
        })?;
        self.gauge(pass, MetricId::GpuPcieRxSampled, || {
            nvml.pcie_throughput(device, true).map(|rate| f64::from(rate) / 1024.0)
        })?;
        self.gauge(pass, MetricId::GpuPcieTxSampled, || {
            nvml.pcie_throughput(device, false).map(|rate| f64::from(rate) / 1024.0)
        })
    }

    fn read_utilization(&mut self, pass: &mut Pass<'_>, device: Handle) -> CallResult<()> {
        const BOTH: [MetricId; 2] = [MetricId::GpuGpuUtilization, MetricId::GpuMemoryUtilization];
        if !BOTH.iter().any(|id| self.wanted.has(*id)) {
            return Ok(());
        }
        let result = if self.role == Role::Slice
            || BOTH.iter().all(|id| self.unsupported.has(*id) || !self.wanted.has(*id))
        {
            // NVML has none for slices; the parent's is not theirs.
            Err(Fault::NOT_SUPPORTED)
        } else {
            pass.nvml.utilization(device)
        };
        self.enter(pass, BOTH[0], result.map(|rates| f64::from(rates.gpu)))?;
        self.enter(pass, BOTH[1], result.map(|rates| f64::from(rates.memory)))
    }

    fn read_memory(&mut self, pass: &mut Pass<'_>, device: Handle) -> CallResult<()> {
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
            return self.read_unified_memory(pass, device);
        }
        if ALL.iter().all(|id| self.unsupported.has(*id) || !self.wanted.has(*id)) {
            for id in ALL.into_iter().filter(|id| self.wanted.has(*id)) {
                pass.out.readings.push((id, Reading::Missing));
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
                return self.read_unified_memory(pass, device);
            }
        }
        let result = match result {
            Ok(memory) if memory.total == 0 => Err(Fault::Implausible),
            other => other,
        };
        if let Ok(memory) = &result {
            self.total = Some(memory.total);
        }
        self.enter(pass, ALL[0], result.map(|memory| memory.used as f64 / MIB))?;
        self.enter(pass, ALL[1], result.map(|memory| memory.free as f64 / MIB))?;
        self.enter(pass, ALL[2], result.map(|memory| memory.total as f64 / MIB))?;
        let percent = result.map(|memory| 100.0 * memory.used as f64 / memory.total as f64);
        self.enter(pass, ALL[3], percent)
    }

    /// The host's memory, of which the GPU's part is what its processes hold.
    fn read_unified_memory(&mut self, pass: &mut Pass<'_>, device: Handle) -> CallResult<()> {
        let host = pass.nvml.host_memory();
        let used = match pass.nvml.processes(device, None, pass.buffer) {
            Ok(list) => list
                .iter()
                .try_fold(0_u64, |sum, entry| entry.memory.map(|bytes| sum.saturating_add(bytes)))
                .ok_or(Fault::Implausible),
            Err(fault) => Err(fault),
        };
        self.enter(pass, MetricId::GpuMemoryUsed, used.map(|used| used as f64 / MIB))?;
        self.enter(pass, MetricId::GpuMemoryFree, host.map(|host| host.available as f64 / MIB))?;
        self.enter(pass, MetricId::GpuMemoryTotal, host.map(|host| host.total as f64 / MIB))?;
        let percent = match (used, host) {
            (Ok(used), Ok(host)) if host.total > 0 => Ok(100.0 * used as f64 / host.total as f64),
            (Err(fault), _) | (_, Err(fault)) => Err(fault),
            _ => Err(Fault::Implausible),
        };
        self.enter(pass, MetricId::GpuMemoryPercent, percent)
    }

    fn read_power(&mut self, pass: &mut Pass<'_>, device: Handle) -> CallResult<()> {
        let wanted = [MetricId::GpuEnergyFromPower, MetricId::GpuEnergyUsed];
        let integrate = self.integrate && wanted.into_iter().any(|id| self.wanted.has(id));
        if !self.wanted.has(MetricId::GpuPowerUsage) && !integrate {
            return Ok(());
        }
        let result = if self.unsupported.has(MetricId::GpuPowerUsage) {
            Err(Fault::NOT_SUPPORTED)
        } else {
            pass.nvml.power_usage(device).map(|milliwatts| f64::from(milliwatts) / 1e3)
        };
        // What cannot be is in no integral either.
        let result =
            result.and_then(|watts| match self.bounds.allows(MetricId::GpuPowerUsage, watts, None) {
                true => Ok(watts),
                false => Err(Fault::Implausible),
            });
        self.enter(pass, MetricId::GpuPowerUsage, result)?;
        if integrate {
            let bridge = pass.settings.bridge();
            let joules = result.map(|watts| self.integral.feed(pass.at, watts, bridge));
            self.enter(pass, MetricId::GpuEnergyFromPower, joules)?;
            self.enter(pass, MetricId::GpuEnergyUsed, joules)?;
        }
        Ok(())
    }
}
