//! GPM: how well a GPU or slice is used, as the change of its profiling counters between two samples (Hopper and later).

use std::ptr;

use nvml_wrapper_sys::bindings as sys;

use super::calls::call;
use super::error::{CallResult, Fault, check};
use super::{Handle, Nvml};

/// The metrics that gpurun reads, each a share in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum GpmMetric {
    /// SMs that had work.
    SmUtilization = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_UTIL,
    /// Warps that were resident, of those that the SMs can hold.
    SmOccupancy = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_SM_OCCUPANCY,
    /// Integer pipe.
    Integer = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_INTEGER_UTIL,
    /// Tensor pipes, all kinds together.
    Tensor = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    /// Bandwidth of the device memory.
    Dram = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_DRAM_BW_UTIL,
    /// 64-bit floating point pipe.
    Fp64 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_FP64_UTIL,
    /// 32-bit floating point pipe.
    Fp32 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_FP32_UTIL,
    /// 16-bit floating point pipe, without the tensor pipes.
    Fp16 = sys::nvmlGpmMetricId_t_NVML_GPM_METRIC_FP16_UTIL,
}

impl GpmMetric {
    /// Every metric, in the order of the answers.
    pub const ALL: [GpmMetric; 8] = [
        GpmMetric::SmUtilization,
        GpmMetric::SmOccupancy,
        GpmMetric::Tensor,
        GpmMetric::Dram,
        GpmMetric::Fp64,
        GpmMetric::Fp32,
        GpmMetric::Fp16,
        GpmMetric::Integer,
    ];
}

/// The counters to sample: those of a physical GPU, or of one GPU instance of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpmTarget {
    /// The physical GPU.
    pub device: Handle,
    /// The GPU instance that a slice lies in.
    pub instance: Option<u32>,
}

/// Two samples of the driver's. They are the driver's memory: [`Nvml::free_gpm_samples`] gives them back.
#[derive(Debug)]
pub struct GpmSamples {
    older: sys::nvmlGpmSample_t,
    newer: sys::nvmlGpmSample_t,
}

// SAFETY: samples are bound to no thread of the driver's; `&mut` keeps two threads from using one at once.
unsafe impl Send for GpmSamples {}

impl Nvml {
    /// The counters of a device.
    ///
    /// # Errors
    /// As the driver answers; not supported before Hopper, and for a slice whose GPU instance is not known.
    pub fn gpm_target(&self, device: Handle, is_slice: bool) -> CallResult<GpmTarget> {
        let target = if is_slice {
            let instance = self.gpu_instance(device).ok_or(Fault::NOT_SUPPORTED)?;
            GpmTarget { device: self.parent_handle(device)?, instance: Some(instance) }
        } else {
            GpmTarget { device, instance: None }
        };
        let mut support =
            sys::nvmlGpmSupport_t { version: sys::NVML_GPM_SUPPORT_VERSION, isSupportedDevice: 0 };
        call!(self, nvmlGpmQueryDeviceSupport(target.device.0, &raw mut support))?;
        if support.isSupportedDevice == 0 { Err(Fault::NOT_SUPPORTED) } else { Ok(target) }
    }

    /// Allocates the two samples, which hold nothing yet.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn allocate_gpm_samples(&self) -> CallResult<GpmSamples> {
        let mut samples = GpmSamples { older: ptr::null_mut(), newer: ptr::null_mut() };
        let allocated = call!(self, nvmlGpmSampleAlloc(&raw mut samples.older))
            .and_then(|()| call!(self, nvmlGpmSampleAlloc(&raw mut samples.newer)));
        match allocated {
            Ok(()) if !samples.older.is_null() && !samples.newer.is_null() => Ok(samples),
            other => {
                self.free_gpm_samples(samples);
                Err(other.err().unwrap_or(Fault::Implausible))
            }
        }
    }

    /// Gives the samples back. To be called before the driver is shut down.
    pub fn free_gpm_samples(&self, samples: GpmSamples) {
        for sample in [samples.older, samples.newer].into_iter().filter(|sample| !sample.is_null()) {
            // A driver that is gone has nothing to take back.
            let _ = call!(self, nvmlGpmSampleFree(sample));
        }
    }

    /// Takes a sample, which becomes the newer one; the newer one becomes the older.
    ///
    /// # Errors
    /// As the driver answers: also where a profiler holds the counters. The older sample is void then.
    pub fn take_gpm_sample(&self, target: GpmTarget, samples: &mut GpmSamples) -> CallResult<()> {
        std::mem::swap(&mut samples.older, &mut samples.newer);
        match target.instance {
            None => call!(self, nvmlGpmSampleGet(target.device.0, samples.newer)),
            Some(instance) => call!(self, nvmlGpmMigSampleGet(target.device.0, instance, samples.newer)),
        }
    }

    /// The means between the two samples in percent, in the order of [`GpmMetric::ALL`], each with its own result.
    /// Both samples must have been taken, at least 100 ms apart.
    ///
    /// # Errors
    /// Where the call as a whole fails.
    pub fn gpm_means(&self, samples: &mut GpmSamples) -> CallResult<[CallResult<f64>; GpmMetric::ALL.len()]> {
        // SAFETY: the structure is integers, floats and pointers, for which zero is a value.
        let mut request: sys::nvmlGpmMetricsGet_t = unsafe { std::mem::zeroed() };
        request.version = sys::NVML_GPM_METRICS_GET_VERSION;
        request.numMetrics = GpmMetric::ALL.len() as u32;
        request.sample1 = samples.older;
        request.sample2 = samples.newer;
        for (entry, metric) in request.metrics.iter_mut().zip(GpmMetric::ALL) {
            entry.metricId = metric as u32;
            // An entry that the driver leaves alone has no value.
            entry.nvmlReturn = sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
        }
        call!(self, nvmlGpmMetricsGet(&raw mut request))?;
        let mut means = [Err(Fault::NOT_SUPPORTED); GpmMetric::ALL.len()];
        for (mean, entry) in means.iter_mut().zip(&request.metrics) {
            *mean = check(entry.nvmlReturn).map(|()| entry.value);
        }
        Ok(means)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By nvml.h on a 64-bit machine.
    #[test]
    fn the_structures_have_the_sizes_of_the_header() {
        assert_eq!(size_of::<sys::nvmlGpmSupport_t>(), 8);
        assert_eq!(size_of::<sys::nvmlGpmMetric_t>(), 40);
        assert_eq!(std::mem::offset_of!(sys::nvmlGpmMetric_t, value), 8);
        assert_eq!(std::mem::offset_of!(sys::nvmlGpmMetricsGet_t, metrics), 24);
        // Older headers have room for fewer metrics; this many stand in all.
        assert!(size_of::<sys::nvmlGpmMetricsGet_t>() >= 24 + 40 * GpmMetric::ALL.len());
    }
}
