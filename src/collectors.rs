//! The machine's edge: NVML, `/proc`, cgroup. One read is one value or the reason for its absence.

pub mod cgroup;
pub mod cuda;
pub mod host;
pub mod nvml;
pub mod powercap;
pub mod procfs;
pub mod share;
