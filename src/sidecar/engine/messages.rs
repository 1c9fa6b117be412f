//! What the user is told while a run is measured, each thing once.

use std::sync::Arc;
use std::time::Duration;

use crate::model::device::DeviceIdentity;
use crate::model::reading::Reason;
use crate::sampling::gpu::GpuNews;
use crate::sys::notice::Notices;

/// How long a driver that was open may take for one read before the user is told.
const DRIVER_SILENCE: Duration = Duration::from_secs(5);

/// Metrics that devices lack for one reason, as one line.
struct Lack<'a> {
    /// Positions of the devices; none for NVML as a whole.
    devices: Vec<Option<usize>>,
    reason: &'a Reason,
    metrics: Vec<&'static str>,
}

/// The engine's messages.
pub(super) struct Messages {
    notices: Notices,
    dropped_said: bool,
    /// The user knows that the driver does not answer.
    silence_said: bool,
}

impl Messages {
    pub(super) fn new(notices: Notices) -> Self {
        Self { notices, dropped_said: false, silence_said: false }
    }

    pub(super) fn warn(&self, line: &str) {
        self.notices.warn(line);
    }

    pub(super) fn detail_once(&self, line: &str) {
        self.notices.detail_once(line);
    }

    pub(super) fn warn_once(&self, line: &str) {
        self.notices.warn_once(line);
    }

    /// Whether the user knows that the driver does not answer.
    pub(super) fn silence_said(&self) -> bool {
        self.silence_said
    }

    /// Messages of the job were dropped.
    pub(super) fn dropped(&mut self) {
        if !std::mem::replace(&mut self.dropped_said, true) {
            self.notices.warn("the job sends more messages than can be recorded: some are dropped");
        }
    }

    /// The driver has not answered at all.
    pub(super) fn not_answered_yet(&mut self) {
        if !std::mem::replace(&mut self.silence_said, true) {
            let line = "the NVIDIA driver has not answered since the start: no GPU values until it does";
            self.notices.warn(line);
        }
    }

    /// The driver was open and has been `busy` with one read, or answers again.
    pub(super) fn silence(&mut self, busy: Option<Duration>) {
        if busy.is_some_and(|busy| busy > DRIVER_SILENCE) {
            if !std::mem::replace(&mut self.silence_said, true) {
                let line = "the NVIDIA driver does not answer: GPU values are missing until it does";
                self.notices.warn(line);
            }
        } else if busy.is_none() && std::mem::take(&mut self.silence_said) {
            self.notices.say("the NVIDIA driver answers again");
        }
    }

    /// Metrics that cannot be read: one line for all that devices lack for the same reason.
    pub(super) fn gpu_news(&self, news: &[GpuNews], devices: &[Arc<DeviceIdentity>]) {
        for lack in lacks(news) {
            let subject = |place: &Option<usize>| {
                let device = place.and_then(|place| devices.get(place));
                device.map_or_else(|| "NVML".to_owned(), |device| device.gpu_label())
            };
            let subjects = lack.devices.iter().map(subject).collect::<Vec<_>>().join(", ");
            let reason = lack.reason;
            if lack.metrics.is_empty() {
                self.notices.warn_once(&format!("{subjects}: {reason}"));
                continue;
            }
            let line = format!("{} of {subjects}: {reason}", lack.metrics.join(", "));
            // What a card does not have is a detail, which the summary has too; what the user can mend is not.
            let can_change =
                [Reason::NoPermission, Reason::TimedOut, Reason::DriverGone, Reason::GpuLost, Reason::InUse]
                    .contains(reason);
            if can_change {
                self.notices.warn_once(&line);
            } else {
                self.notices.detail_once(&line);
            }
        }
    }
}

/// Groups the news by device and reason, then devices that lack the same: eight like GPUs are one line.
fn lacks(news: &[GpuNews]) -> Vec<Lack<'_>> {
    let mut by_device: Vec<Lack<'_>> = Vec::new();
    for item in news {
        let name = item.metric.map(|metric| metric.get().name);
        match by_device.iter_mut().find(|lack| lack.devices[0] == item.device && *lack.reason == item.reason)
        {
            Some(lack) => lack.metrics.extend(name),
            None => by_device.push(Lack {
                devices: vec![item.device],
                reason: &item.reason,
                metrics: name.into_iter().collect(),
            }),
        }
    }
    let mut alike: Vec<Lack<'_>> = Vec::new();
    for lack in by_device {
        match alike.iter_mut().find(|one| one.reason == lack.reason && one.metrics == lack.metrics) {
            Some(one) => one.devices.extend(lack.devices),
            None => alike.push(lack),
        }
    }
    alike
}
