//! A GPU as one probe saw it, for choosing; and as a run names it, for logging.

use std::fmt;

use serde::Serialize;

use super::id::GpuUuid;
use super::reading::Known;

/// Where a MIG slice sits in its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MigPlace {
    /// Index of the slice among the parent's MIG device handles.
    pub index: u32,
    /// GPU instance id.
    pub gpu_instance: Option<u32>,
    /// Compute instance id.
    pub compute_instance: Option<u32>,
}

/// What `nvmlDeviceGetComputeMode` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number of contexts.
    Default,
    /// One context of one thread (old drivers).
    ExclusiveThread,
    /// No compute context at all.
    Prohibited,
    /// One process at a time.
    ExclusiveProcess,
}

/// Device memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Whole capacity.
    pub total: u64,
    /// What a new allocation can have.
    pub free: u64,
    /// What all processes together use.
    pub used: u64,
    /// The pool is the host's own memory (GB10, N1X): `free` is `MemAvailable`, bounded by the cgroup.
    pub unified: bool,
}

/// A process that NVML lists on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProcess {
    /// As NVML prints it; of the host's PID namespace, which may not be ours.
    pub pid: u32,
    /// Device memory in bytes.
    pub memory: Known<u64>,
    /// It holds a compute context (as opposed to graphics only).
    pub compute: bool,
    /// Real uid, where `/proc` knows the process.
    pub uid: Option<u32>,
}

/// The value of a fact about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Fact {
    /// Something is so, or is not.
    Flag(bool),
    /// A number.
    Count(u64),
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fact::Flag(true) => f.write_str("yes"),
            Fact::Flag(false) => f.write_str("no"),
            Fact::Count(count) => count.fmt(f),
        }
    }
}

/// What a physical GPU is like beyond its name: state of its memory, its links and its modes, each under its name in
/// files. MIG slices have none.
pub type DeviceFacts = Vec<(&'static str, Known<Fact>)>;

/// One device as one probe saw it. What was not asked for is `Err(Reason::NotAsked)`.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSnapshot {
    /// NVML index of the physical GPU (PCI bus order).
    pub index: u32,
    /// Set for a MIG slice.
    pub mig: Option<MigPlace>,
    /// UUID; the reason is set for a GPU that does not even answer to its name.
    pub uuid: Known<GpuUuid>,
    /// UUID of the physical GPU, for a MIG slice.
    pub parent_uuid: Option<GpuUuid>,
    /// Marketing name, non-UTF-8 bytes replaced.
    pub name: Known<String>,
    /// Memory of the device or slice.
    pub memory: Known<DeviceMemory>,
    /// `utilization.gpu` in percent.
    pub gpu_utilization: Known<u32>,
    /// `utilization.memory` in percent.
    pub memory_utilization: Known<u32>,
    /// Compute mode of the physical GPU.
    pub compute_mode: Known<ComputeMode>,
    /// Processes on it, merged from the compute, graphics and MPS lists.
    pub processes: Known<Vec<DeviceProcess>>,
    /// Empty where they were not asked for.
    pub facts: DeviceFacts,
}

impl DeviceSnapshot {
    /// The device as rows name it, `cuda` being its ordinal in the job. `None` without a UUID, as nothing could be said
    /// of it later. Name and memory are known where the probe read them.
    pub fn identity(&self, cuda: Option<u32>) -> Option<DeviceIdentity> {
        Some(DeviceIdentity {
            index: self.index,
            mig: self.mig,
            cuda,
            uuid: self.uuid.as_ref().ok()?.clone(),
            name: self.name.as_ref().ok().cloned(),
            memory_total: self.memory.as_ref().ok().map(|memory| memory.total),
            facts: self.facts.clone(),
        })
    }
}

/// What a probe has to read; everything else is left alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeRequest {
    /// Name.
    pub name: bool,
    /// Total, free and used memory.
    pub memory: bool,
    /// GPU and memory utilisation.
    pub utilization: bool,
    /// Compute mode.
    pub compute_mode: bool,
    /// Process lists with owners.
    pub processes: bool,
    /// Facts of physical GPUs.
    pub facts: bool,
}

impl ProbeRequest {
    /// Everything.
    pub const ALL: Self = Self {
        name: true,
        memory: true,
        utilization: true,
        compute_mode: true,
        processes: true,
        facts: true,
    };
}

/// A device as the rows of a run name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// NVML index of the physical GPU.
    pub index: u32,
    /// Set for a MIG slice.
    pub mig: Option<MigPlace>,
    /// Ordinal inside the job's `CUDA_VISIBLE_DEVICES`, where known.
    pub cuda: Option<u32>,
    /// UUID of the device or slice.
    pub uuid: GpuUuid,
    /// Marketing name, where it could be read.
    pub name: Option<String>,
    /// Total memory in bytes, where it could be read.
    pub memory_total: Option<u64>,
    /// As they were when the device began to be followed; empty before.
    pub facts: DeviceFacts,
}

/// Where a device stands among those of its host: NVML index, and that of the slice. Nothing else has it.
pub type DevicePlace = (u32, Option<u32>);

impl DeviceIdentity {
    /// Its place: two cards may have one UUID.
    pub fn place(&self) -> DevicePlace {
        (self.index, self.mig.map(|place| place.index))
    }
}

impl DeviceIdentity {
    /// `gpu:3`, or `gpu:(0, 1)` for a MIG slice: nvitop's short scope.
    pub fn gpu_label(&self) -> String {
        match self.mig {
            None => format!("gpu:{}", self.index),
            Some(place) => format!("gpu:({}, {})", self.index, place.index),
        }
    }

    /// `cuda:0 (gpu:3)` where the ordinal is known, else `gpu:3`: nvitop's scope.
    pub fn scope_label(&self) -> String {
        match self.cuda {
            Some(cuda) => format!("cuda:{cuda} ({})", self.gpu_label()),
            None => self.gpu_label(),
        }
    }
}
