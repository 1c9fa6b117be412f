//! The machine's edge: NVML, `/proc`, cgroup. One read is one value or the reason for its absence.

pub mod nvml;
