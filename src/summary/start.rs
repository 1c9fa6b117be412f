//! What gpurun prints when the job starts.

use std::time::Duration;

use crate::model::device::DeviceIdentity;
use crate::sys::format;

/// What a run uses: `GPUs 3, 2 (NVIDIA A100-SXM4-80GB); log run.csv`.
pub fn line(devices: &[&DeviceIdentity], targets: &[String]) -> String {
    let mut parts = Vec::new();
    if !devices.is_empty() {
        parts.push(devices_text(devices));
    }
    if !targets.is_empty() {
        parts.push(format!("log {}", targets.join(", ")));
    }
    parts.join("; ")
}

/// The devices in the order in which the job counts them; neighbours of one name share it.
fn devices_text(devices: &[&DeviceIdentity]) -> String {
    let groups = devices.chunk_by(|a, b| a.name == b.name).map(|group| {
        let labels: Vec<String> = group.iter().map(|device| index_text(device)).collect();
        let name = group.first().and_then(|device| device.name.as_deref());
        match name {
            Some(name) => format!("{} ({name})", labels.join(", ")),
            None => labels.join(", "),
        }
    });
    let groups: Vec<String> = groups.collect();
    format!("GPU{} {}", if devices.len() == 1 { "" } else { "s" }, groups.join(", "))
}

/// `3`, or `0:1` for a MIG slice.
fn index_text(device: &DeviceIdentity) -> String {
    match device.mig {
        None => device.index.to_string(),
        Some(mig) => format!("{}:{}", device.index, mig.index),
    }
}

/// What `--verbose` adds: a line for each device with its free memory in bytes, the variable, the times.
pub fn details(
    devices: &[(&DeviceIdentity, Option<u64>)],
    variable: Option<&str>,
    interval: Duration,
    window: Duration,
) -> Vec<String> {
    let mut lines: Vec<String> = devices
        .iter()
        .map(|(device, free)| {
            let cuda = device.cuda.map(|cuda| format!("cuda:{cuda} is ")).unwrap_or_default();
            let free = free.map(|free| format!(", {} free", format::bytes(free))).unwrap_or_default();
            format!("{cuda}GPU {}, {}{free}", index_text(device), device.uuid)
        })
        .collect();
    if let Some(value) = variable {
        lines.push(format!("CUDA_VISIBLE_DEVICES={value} CUDA_DEVICE_ORDER=PCI_BUS_ID"));
    }
    lines.push(format!("a sample every {interval:?}, a window every {window:?}"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::device::MigPlace;
    use crate::model::id::GpuUuid;

    fn device(index: u32, name: &str) -> DeviceIdentity {
        DeviceIdentity {
            index,
            mig: None,
            cuda: None,
            uuid: GpuUuid::new("GPU-12345678"),
            name: Some(name.to_owned()),
            memory_total: None,
            facts: Vec::new(),
        }
    }

    #[test]
    fn a_name_is_said_once() {
        let alike = [device(7, "A100"), device(6, "A100")];
        let targets = ["a.csv".to_owned(), "b.parquet".to_owned()];
        let devices: Vec<&DeviceIdentity> = alike.iter().collect();
        assert_eq!(line(&devices, &targets), "GPUs 7, 6 (A100); log a.csv, b.parquet");
        let mixed = [device(3, "T4"), device(0, "A100"), device(1, "A100")];
        assert_eq!(line(&mixed.iter().collect::<Vec<_>>(), &[]), "GPUs 3 (T4), 0, 1 (A100)");
        let place = MigPlace { index: 1, gpu_instance: None, compute_instance: None };
        let slice = DeviceIdentity { mig: Some(place), name: None, ..device(0, "") };
        assert_eq!(line(&[&slice], &[]), "GPU 0:1");
        assert_eq!(line(&[], &targets[..1]), "log a.csv");
    }
}
