//! The processes on a device, and their shares of it.

use std::time::{SystemTime, UNIX_EPOCH};

use super::device::{Device, Pass};
use crate::collectors::nvml::{CallResult, Handle, UtilizationSample};
use crate::model::metric::MetricId;
use crate::sampling::frame::GpuProcessUse;

impl Device {
    pub(super) fn read_processes(&mut self, pass: &mut Pass<'_>, device: Handle) -> CallResult<()> {
        if let Some(reason) = &self.no_processes {
            pass.out.processes = Some(Err(reason.clone()));
            return Ok(());
        }
        let list = match pass.nvml.processes(device, self.total, pass.buffer) {
            Ok(list) => list,
            Err(fault) if fault.is_fatal() => return Err(fault),
            Err(fault) => {
                if fault.is_permanent() {
                    self.no_processes = Some(fault.reason());
                }
                pass.out.processes = Some(Err(fault.reason()));
                self.report(pass, Some(MetricId::JobGpuMemory), fault.reason());
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
        pass.out.processes = Some(Ok(uses));
        result
    }

    fn read_process_utilization(
        &mut self,
        pass: &mut Pass<'_>,
        device: Handle,
        uses: &mut [GpuProcessUse],
    ) -> CallResult<()> {
        if self.no_utilization {
            return Ok(());
        }
        if uses.is_empty() {
            // A process that comes later counts from then on.
            self.utilization_seen = None;
            return Ok(());
        }
        // At least a second back: the driver's own period is up to that long, and a read that comes sooner after the one
        // before (the last of a run) would take the gap between two samples for idleness.
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
            Err(fault) if fault.is_fatal() => return Err(fault),
            Err(fault) => {
                self.no_utilization = fault.is_permanent();
                self.report(pass, Some(MetricId::JobGpuSmUtilization), fault.reason());
            }
        }
        Ok(())
    }

    /// A second ago in µs since 1970, by the driver's clock where a field value had it.
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
}
