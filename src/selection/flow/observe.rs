//! Utilisation over a while instead of one instant, for `--observe`.

use std::collections::{HashMap, VecDeque};
use std::thread;
use std::time::{Duration, Instant};

use super::{ChooseError, Probe};
use crate::model::device::{DeviceSnapshot, ProbeRequest};
use crate::model::id::GpuUuid;
use crate::model::reading::Known;

/// One read: when, the GPU's and the memory's utilisation.
type Seen = (Instant, Known<u32>, Known<u32>);

/// Keeps the utilisation of the last while, for `--observe`.
pub(super) struct Observer {
    span: Duration,
    seen: HashMap<GpuUuid, VecDeque<Seen>>,
}

impl Observer {
    pub(super) fn new(span: Duration) -> Self {
        Self { span, seen: HashMap::new() }
    }

    /// Time between two reads: NVML averages over a sixth of a second up to a second.
    pub(super) fn pace(&self) -> Duration {
        (self.span / 10).clamp(Duration::from_millis(100), Duration::from_secs(1))
    }

    /// Reads utilisation for the whole span.
    pub(super) fn observe(&mut self, probe: Probe<'_>) -> Result<(), ChooseError> {
        let request = ProbeRequest { utilization: true, ..ProbeRequest::default() };
        let end = Instant::now() + self.span;
        loop {
            let mut snapshots = probe(&request).map_err(ChooseError::Driver)?;
            self.fold(Instant::now(), &mut snapshots);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(self.pace()));
        }
    }

    /// Remembers what was just read, and puts the maximum over the span in its place.
    pub(super) fn fold(&mut self, now: Instant, snapshots: &mut [DeviceSnapshot]) {
        // A little more than the span, so that a read at its very edge still counts.
        let kept = self.span + self.pace();
        for device in snapshots {
            let Ok(uuid) = &device.uuid else { continue };
            let seen = self.seen.entry(uuid.clone()).or_default();
            seen.push_back((now, device.gpu_utilization.clone(), device.memory_utilization.clone()));
            while seen.front().is_some_and(|(at, ..)| now.saturating_duration_since(*at) > kept) {
                seen.pop_front();
            }
            let highest = |values: &mut dyn Iterator<Item = &Known<u32>>, latest: &Known<u32>| {
                values
                    .filter_map(|value| value.as_ref().ok())
                    .max()
                    .copied()
                    .ok_or(())
                    .or_else(|()| latest.clone())
            };
            device.gpu_utilization =
                highest(&mut seen.iter().map(|(_, gpu, _)| gpu), &device.gpu_utilization);
            device.memory_utilization =
                highest(&mut seen.iter().map(|(_, _, memory)| memory), &device.memory_utilization);
        }
    }
}
