//! What the GPU reader hands over: one frame of driver values, still by metric and device.
//!
//! The driver is read on a thread of its own, so that a call that hangs costs GPU values and
//! nothing else; the frame is the hand-over between that thread and the sampler.

use crate::model::metric::MetricId;
use crate::model::reading::{Reading, Reason};
use crate::model::time::Mono;

/// The values of all followed devices, read at about one instant.
#[derive(Clone, Debug, Default)]
pub struct GpuFrame {
    /// When the reads began.
    pub at: Mono,
    /// One entry for each followed device, in the order in which they were given.
    pub devices: Vec<DeviceFrame>,
}

/// The values of one device.
#[derive(Clone, Debug, Default)]
pub struct DeviceFrame {
    /// The metrics that were due in this frame, with what the driver said.
    pub readings: Vec<(MetricId, Reading)>,
    /// The processes on it, when their lists were due in this frame.
    pub processes: Option<Result<Vec<GpuProcessUse>, Reason>>,
}

/// What one process uses of one device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuProcessUse {
    /// As NVML prints it; of the host's PID namespace.
    pub pid: u32,
    /// Device memory in bytes; `None` where the driver does not report it.
    pub memory: Option<u64>,
    /// SM share in percent; `None` where the driver does not report it.
    pub sm: Option<f64>,
    /// Memory-bandwidth share in percent; `None` where the driver does not report it.
    pub memory_utilization: Option<f64>,
}
