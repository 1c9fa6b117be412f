//! What integers in `CUDA_VISIBLE_DEVICES` count: the bus order, or CUDA's own, asked in a short-lived child.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{CUDA_ORDER_COMMAND, CudaOrder, ORDER_VARIABLE, Surroundings, VISIBLE_VARIABLE};
use crate::model::device::DeviceSnapshot;
use crate::model::id::GpuUuid;
use crate::selection::visible::{self, Ordinals};

/// How long libcuda may take to tell its order.
const CUDA_PATIENCE: Duration = Duration::from_secs(20);

/// What the integers of the list `text`, which is from `source`, count on this host.
pub(super) fn ordinals(
    text: &str,
    source: &str,
    surroundings: &Surroundings,
    snapshots: &[DeviceSnapshot],
    ask: CudaOrder<'_>,
    notes: &mut Vec<String>,
) -> Ordinals {
    let by_bus = surroundings.order.as_deref() == Some("PCI_BUS_ID");
    if by_bus || !visible::has_ordinals(text) || !unlike(snapshots) {
        return Ordinals::PciBus;
    }
    match ask() {
        Ok(order) => Ordinals::Cuda(order),
        Err(why) => {
            notes.push(format!(
                "{source} counts in CUDA's order, fastest first, which cannot be read here ({why}); PCI \
                 order is assumed: set {ORDER_VARIABLE}=PCI_BUS_ID or use UUIDs"
            ));
            Ordinals::PciBus
        }
    }
}

/// Whether the host has GPUs of different kinds, as far as can be read.
fn unlike(snapshots: &[DeviceSnapshot]) -> bool {
    let kinds: BTreeSet<&str> = snapshots
        .iter()
        .filter_map(|device| device.name.as_ref().ok())
        .map(|name| name.split(" MIG ").next().unwrap_or(name))
        .collect();
    kinds.len() > 1
}

/// Set by the gpurun command: the running program answers to [`CUDA_ORDER_COMMAND`].
static IS_GPURUN: AtomicBool = AtomicBool::new(false);

/// Tells that the running program is gpurun itself, and not one that uses the library.
pub fn this_is_gpurun() {
    IS_GPURUN.store(true, Ordering::Relaxed);
}

/// Asks libcuda in a child of our own binary, so that nothing of CUDA stays in this process.
pub fn ask_cuda() -> Result<Vec<GpuUuid>, String> {
    if !IS_GPURUN.load(Ordering::Relaxed) {
        // Started once more, another program would do its own work.
        return Err("only the gpurun command can read it".to_owned());
    }
    let binary = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut child = Command::new(binary)
        .arg(CUDA_ORDER_COMMAND)
        .env_remove(VISIBLE_VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let deadline = Instant::now() + CUDA_PATIENCE;
    // The answer is a few lines: it fits the pipe, so the child never waits for us.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            other => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(match other {
                    Err(error) => error.to_string(),
                    _ => format!("no answer within {} s", CUDA_PATIENCE.as_secs()),
                });
            }
        }
    };
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if !status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(text
            .lines()
            .next()
            .unwrap_or("the process that reads it failed without a message")
            .trim()
            .to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(GpuUuid::new).collect())
}
