//! The followed devices as a source of frames: what is due in each, and the way back of a driver that went away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::{Device, Pass};
use super::settings::GpuSettings;
use super::{Depth, Followed, GpuNews, Role, Source};
use crate::collectors::nvml::{Nvml, ProcessBuffer};
use crate::model::device::DeviceIdentity;
use crate::model::reading::Reason;
use crate::model::time::Mono;
use crate::sampling::frame::{DeviceFrame, GpuFrame, GpuProcessUse};

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

    /// Gives back what the driver has allocated; before it is shut down.
    fn free_samples(&mut self) {
        for device in &mut self.devices {
            device.gpm.free(&self.nvml);
        }
    }

    /// Looks for a driver that went away, at most every so often.
    fn find_driver(&mut self, at: Mono) {
        if !self.driver_gone || at < self.retry_at {
            return;
        }
        self.retry_at = at + self.settings.retry_every;
        self.free_samples();
        if self.nvml.reinitialise().is_err() {
            return;
        }
        self.driver_gone = false;
        for device in &mut self.devices {
            device.driver_reloaded();
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.free_samples();
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
        self.find_driver(at);
        let began = (frame.at, Instant::now());
        for (place, (device, out)) in self.devices.iter_mut().zip(&mut frame.devices).enumerate() {
            let Self { nvml, settings, buffer, spare, .. } = self;
            let is_due = |last, every| depth == Depth::Everything || due(last, at, every, settings.interval);
            let expensive = is_due(device.expensive_read, settings.expensive_every);
            let lists = settings.processes
                && device.role != Role::Parent
                && is_due(device.processes_read, settings.processes_every);
            let mut pass =
                Pass { nvml, settings, buffer, spare, news, place, at, began, expensive, lists, out };
            if self.driver_gone {
                device.enter_missing(&mut pass, Reason::DriverGone);
            } else if let Err(fault) = device.read(&mut pass) {
                if fault.is_driver_gone() {
                    self.driver_gone = true;
                    // A fresh session is worth one try at once.
                    self.retry_at = at;
                }
                device.enter_missing(&mut pass, fault.reason());
            }
            if expensive {
                device.expensive_read = Some(at);
            }
            if lists {
                device.processes_read = Some(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expensive_read_is_due_at_the_frame_that_is_meant() {
        let (every, interval) = (Duration::from_secs(5), Duration::from_secs(1));
        let at = |s: f64| Mono((s * 1e9) as u64);
        assert!(due(None, at(0.0), every, interval));
        assert!(!due(Some(at(0.0)), at(4.0), every, interval));
        assert!(due(Some(at(0.0)), at(4.999), every, interval));
        assert!(due(Some(at(0.3)), at(5.0), every, interval));
    }
}
