//! The line that gpurun prints when the job starts.

use crate::model::device::DeviceIdentity;
use crate::sys::format;

/// What a run uses: `GPU 3 A100-SXM4-80GB GPU-1234abcd 79.1 GiB free; CUDA_VISIBLE_DEVICES=3; ...`.
pub fn line(
    devices: &[(&DeviceIdentity, Option<u64>)],
    variable: Option<&str>,
    targets: &[String],
    interval: std::time::Duration,
    window: std::time::Duration,
) -> String {
    let mut parts: Vec<String> = devices
        .iter()
        .map(|(device, free)| {
            let label = match device.mig {
                None => format!("GPU {}", device.index),
                Some(mig) => format!("GPU {}:{}", device.index, mig.index),
            };
            let name = device.name.as_deref().map(|n| format!(" {n}")).unwrap_or_default();
            let free = free.map(|free| format!(", {} free", format::bytes(free))).unwrap_or_default();
            format!("{label}{name} {}{free}", device.uuid.short())
        })
        .collect();
    if let Some(value) = variable {
        parts.push(format!("CUDA_VISIBLE_DEVICES={value}"));
    }
    if !targets.is_empty() {
        parts.push(format!("log {} every {window:?}, sampled every {interval:?}", targets.join(", ")));
    }
    parts.join("; ")
}
