//! A run: what the files say about the whole, at its start and at its end.

use std::sync::Arc;
use std::time::Duration;

use super::device::DeviceIdentity;
use super::series::SeriesInfo;
use super::time::{Mono, Wall};

/// Version of the file layout; changes with every change of columns or their meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// What is known when logging starts.
#[derive(Clone, Debug)]
pub struct RunInfo {
    /// Name of the run, the same for all ranks of a job: `--run`, else Slurm's job and step, else torchrun's run id,
    /// else `<UTC start as YYYYMMDDThhmmssZ>-<host>-<pid>`.
    pub run: Arc<str>,
    /// Host name.
    pub host: Arc<str>,
    /// Rank of gpurun's own environment (`model::rank::own_rank`).
    pub rank: Option<i32>,
    /// Number of this node in a job of several, where a launcher says it.
    pub node_rank: Option<i32>,
    /// `{job}` of templates: Slurm's job id, or the command's base name.
    pub job: Arc<str>,
    /// The root tag of every row.
    pub root_tag: Arc<str>,
    /// The job's command line, bad bytes replaced; empty for `record`.
    pub argv: Vec<String>,
    /// gpurun's own version.
    pub version: &'static str,
    /// NVIDIA driver version, where there is one.
    pub driver: Option<String>,
    /// The devices whose rows the run can hold.
    pub devices: Vec<Arc<DeviceIdentity>>,
    /// Time between samples.
    pub interval: Duration,
    /// Length of a window.
    pub window: Duration,
    /// Wall clock at the start.
    pub start: Wall,
    /// Monotonic clock at the start.
    pub start_mono: Mono,
    /// The host, GPU and job series known at the start: the fixed columns of the wide layout.
    pub series: Vec<Arc<SeriesInfo>>,
}

/// How the job's main process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobExit {
    /// It called exit with this code.
    Code(u8),
    /// A signal ended it; the flag says whether it dumped a core.
    Signal {
        /// Signal number.
        signal: i32,
        /// The kernel wrote a core file.
        core: bool,
    },
}

/// What is known when logging ends.
#[derive(Clone, Debug)]
pub struct RunEnd {
    /// The job's exit; `None` for `record` and for a run whose gpurun was killed.
    pub exit: Option<JobExit>,
    /// Wall clock at the end.
    pub end: Wall,
    /// Length of the run in seconds, suspended time excluded.
    pub duration_s: f64,
}
