//! What a finished engine leaves.

use std::sync::Arc;

use crate::model::metric::MetricId;
use crate::model::run::{RunEnd, RunInfo};
use crate::summary::Totals;
use crate::writers::WriterReport;

/// What a finished engine leaves.
pub struct EngineEnd {
    /// Totals of the whole run.
    pub totals: Totals,
    /// The run as the files describe it.
    pub run: Arc<RunInfo>,
    /// Its end.
    pub end: RunEnd,
    /// What each target got.
    pub reports: Vec<WriterReport>,
}

impl EngineEnd {
    /// Device memory that a process held at the last look, over all GPUs, in MiB.
    pub fn process_gpu_memory(&self, pid: i32) -> Option<f64> {
        let of_process = self.totals.series().filter(|total| {
            total.series.metric == MetricId::ProcessGpuMemory
                && total.series.process.as_ref().is_some_and(|process| process.key.pid == pid)
        });
        of_process.filter_map(|total| total.last).reduce(|sum, memory| sum + memory)
    }
}

/// Why an engine left nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfinished {
    /// It did not hand over its last windows in time.
    #[error("the last window is lost: the sampler did not answer in time")]
    Hung,
    /// The user did not want to wait for the files.
    #[error("gpurun did not wait for the files: 'gpurun recover' finishes a Parquet journal")]
    GivenUp,
}
