//! GPM: samples of a GPU's or slice's profiling counters, and the metrics between two of them.
//!
//! A sample is a token and never an address, so that one which was freed or never allocated is found out.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;
use crate::scenario::Gpm;

/// What one allocated sample holds: which GPU and slice it is of and at which scripted second it was taken.
#[derive(Clone, Copy, Default)]
struct Taken(Option<(usize, Option<usize>, f64)>);

/// Every sample that was ever allocated; `None` once it is freed.
static SAMPLES: Mutex<Vec<Option<Taken>>> = Mutex::new(Vec::new());

const TOKEN_BASE: usize = 0x6770_6d00_0000;

fn samples() -> MutexGuard<'static, Vec<Option<Taken>>> {
    SAMPLES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn place_of(sample: *mut c_void) -> Result<usize, Ret> {
    sample.addr().checked_sub(TOKEN_BASE).ok_or(INVALID_ARGUMENT)
}

fn taken(sample: *mut c_void) -> Result<Taken, Ret> {
    samples().get(place_of(sample)?).copied().flatten().ok_or(INVALID_ARGUMENT)
}

pub(super) fn allocate(sample: *mut *mut c_void) -> Result<(), Ret> {
    let mut samples = samples();
    samples.push(Some(Taken::default()));
    put(sample, std::ptr::without_provenance_mut(TOKEN_BASE + samples.len() - 1))
}

pub(super) fn free(sample: *mut c_void) -> Result<(), Ret> {
    let place = place_of(sample)?;
    samples().get_mut(place).ok_or(INVALID_ARGUMENT)?.take().map(drop).ok_or(INVALID_ARGUMENT)
}

/// Whether the device has GPM, by the version of the struct, which is a bare number here.
pub(super) fn support(call: &Call, support: *mut GpmSupport) -> Result<(), Ret> {
    if get(support)?.version != 1 {
        return Err(codes::ARGUMENT_VERSION_MISMATCH);
    }
    let has = |gpu: &Gpu| gpu.gpm.is_some() || gpu.mig.iter().any(|slice| slice.gpm.is_some());
    put(support, GpmSupport { version: 1, supported: c_uint::from(has(call.gpu()?)) })
}

fn gpm(gpu: &Gpu, slice: Option<usize>) -> Result<&Gpm, Ret> {
    let gpm = match slice {
        None => gpu.gpm.as_ref(),
        Some(place) => gpu.mig.get(place).and_then(|slice| slice.gpm.as_ref()),
    };
    gpm.ok_or(NOT_SUPPORTED)
}

/// Takes a sample of a GPU, or of the slice with this GPU instance.
pub(super) fn take(call: &Call, instance: Option<c_uint>, sample: *mut c_void) -> Result<(), Ret> {
    let gpu = call.whole()?;
    let slice = match instance {
        None => None,
        Some(id) => Some(
            gpu.mig
                .iter()
                .enumerate()
                .position(|(place, slice)| instances((place, slice)).0 == id)
                .ok_or(INVALID_ARGUMENT)?,
        ),
    };
    gpm(gpu, slice)?;
    taken(sample)?;
    let place = place_of(sample)?;
    if let Some(known) = samples().get_mut(place) {
        *known = Some(Taken(Some((call.index(), slice, call.t))));
    }
    Ok(())
}

/// The GPU that both samples of a request are of.
pub(super) fn sampled_gpu(request: *const GpmMetricsGet) -> Result<(usize, Option<usize>), Ret> {
    // Only the head: callers of newer headers have room for more metrics, callers of older ones for fewer.
    let head = get(request.cast::<GpmMetricsHead>())?;
    let (index, slice, _) = taken(head.sample1)?.0.ok_or(INVALID_ARGUMENT)?;
    Ok((index, slice))
}

type Key = fn(&Gpm) -> Option<&Signal>;

/// Metrics by `nvmlGpmMetricId_t`, with the short name and unit that the driver gives them.
const METRICS: [(c_uint, &CStr, &CStr, Key); 13] = [
    (1, c"GR Util", c"%", |gpm| gpm.graphics_utilization.as_ref()),
    (2, c"SM Util", c"%", |gpm| gpm.sm_utilization.as_ref()),
    (3, c"SM Occupancy", c"%", |gpm| gpm.sm_occupancy.as_ref()),
    (4, c"INT Util", c"%", |gpm| gpm.integer_active.as_ref()),
    (5, c"Tensor Util", c"%", |gpm| gpm.tensor_active.as_ref()),
    (10, c"DRAM BW Util", c"%", |gpm| gpm.dram_active.as_ref()),
    (11, c"FP64 Util", c"%", |gpm| gpm.fp64_active.as_ref()),
    (12, c"FP32 Util", c"%", |gpm| gpm.fp32_active.as_ref()),
    (13, c"FP16 Util", c"%", |gpm| gpm.fp16_active.as_ref()),
    (20, c"PCIe TX", c"MiB/s", |gpm| gpm.pcie_tx.as_ref()),
    (21, c"PCIe RX", c"MiB/s", |gpm| gpm.pcie_rx.as_ref()),
    (60, c"NVLink RX", c"MiB/s", |gpm| gpm.nvlink_rx.as_ref()),
    (61, c"NVLink TX", c"MiB/s", |gpm| gpm.nvlink_tx.as_ref()),
];

/// Answers every metric of a request with its exact mean between the two samples.
pub(super) fn metrics(call: &Call, request: *mut GpmMetricsGet) -> Result<(), Ret> {
    /// Samples that are closer together say nothing.
    const APART: f64 = 0.1;
    let head = get(request.cast::<GpmMetricsHead>())?;
    if head.version != 1 {
        return Err(codes::ARGUMENT_VERSION_MISMATCH);
    }
    let first = taken(head.sample1)?.0.ok_or(INVALID_ARGUMENT)?;
    let second = taken(head.sample2)?.0.ok_or(INVALID_ARGUMENT)?;
    // Scripted times are read from text: a tenth of a second is rarely exact.
    if (first.0, first.1) != (second.0, second.1) || second.2 - first.2 < APART - 1e-9 {
        return Err(INVALID_ARGUMENT);
    }
    let gpm = gpm(call.gpu()?, first.1)?;
    let entries = request.wrapping_byte_add(size_of::<GpmMetricsHead>()).cast::<GpmMetric>();
    for place in 0..head.count as usize {
        let entry = entries.wrapping_add(place);
        let asked = get(entry)?;
        let known = METRICS.iter().find(|(id, ..)| *id == asked.id);
        let signal = known.and_then(|(_, _, _, key)| key(gpm));
        let answer = signal.ok_or(NOT_SUPPORTED).and_then(|signal| {
            signal.at(second.2)?;
            Ok((signal.integral(second.2) - signal.integral(first.2)) / (second.2 - first.2))
        });
        let (name, unit) = known.map_or((c"", c""), |(_, name, unit, _)| (*name, *unit));
        put(
            entry,
            GpmMetric {
                result: answer.err().unwrap_or(codes::SUCCESS),
                value: answer.unwrap_or(f64::NAN),
                short_name: name.as_ptr(),
                long_name: name.as_ptr(),
                unit: unit.as_ptr(),
                ..asked
            },
        )?;
    }
    Ok(())
}
