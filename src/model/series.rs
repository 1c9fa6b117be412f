//! A series: one metric of one subject, with the names its rows carry.

use std::sync::Arc;
use std::time::Duration;

use super::device::DeviceIdentity;
use super::id::ProcessKey;
use super::metric::{Kind, MetricId, Scope};

/// A process as the rows of a run name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// Pid and start time.
    pub key: ProcessKey,
    /// `comm` of the process, bad bytes replaced.
    pub name: Arc<str>,
}

/// What a series is about. Shared by every row of the series.
#[derive(Clone, Debug, PartialEq)]
pub struct SeriesInfo {
    /// Entry of the catalogue.
    pub metric: MetricId,
    /// Name of a user scalar, which the catalogue cannot know.
    pub label: Option<Arc<str>>,
    /// The GPU or MIG slice, for per-device metrics.
    pub device: Option<Arc<DeviceIdentity>>,
    /// The process, for per-process metrics.
    pub process: Option<Arc<ProcessIdentity>>,
    /// Expected time between reads; a gap of more than 2.5 of these is not bridged.
    pub pace: Duration,
}

impl SeriesInfo {
    /// The scope its rows carry.
    pub fn scope(&self) -> Scope {
        self.metric.get().scope
    }

    /// Gauge or counter.
    pub fn kind(&self) -> Kind {
        self.metric.get().kind
    }

    /// The metric's name as rows carry it.
    pub fn name(&self) -> &str {
        match &self.label {
            Some(label) => label,
            None => self.metric.get().name,
        }
    }

    /// The unit as rows carry it; empty for a bare number.
    pub fn unit(&self) -> &'static str {
        self.metric.get().unit
    }

    /// `name (unit)`, or the bare name where there is no unit.
    pub fn name_with_unit(&self) -> String {
        match self.unit() {
            "" => self.name().to_owned(),
            unit => format!("{} ({unit})", self.name()),
        }
    }

    /// The path of the subject in nvitop's form, without tag, metric and statistic:
    /// `host`, `cuda:0 (gpu:3)`, `job`, `job/gpu:3`, `pid:42/host`, `pid:42/gpu:3`, `gpurun`, `user`.
    pub fn subject(&self, with_cuda: bool) -> String {
        let device = self.device.as_ref().map(|d| if with_cuda { d.scope_label() } else { d.gpu_label() });
        match (self.scope(), device, &self.process) {
            (Scope::Gpu, Some(device), _) => device,
            (Scope::Process, device, Some(process)) => {
                let inner = device.unwrap_or_else(|| "host".to_owned());
                format!("pid:{}/{inner}", process.key.pid)
            }
            (scope, Some(device), _) => format!("{}/{device}", scope.name()),
            (scope, None, _) => scope.name().to_owned(),
        }
    }

    /// The key of wide columns and `collect()`, without tag and statistic:
    /// `cuda:0 (gpu:3)/gpu_utilization (%)`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.subject(true), self.name_with_unit())
    }
}
