//! The totals as a value for programs; `--summary FILE.json` writes it, its schema is `schemas/summary.v1.json`.

use serde::Serialize;

use crate::model::device::Fact;

/// Everything the end of a run says.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Version of the file layout.
    pub schema: u32,
    /// gpurun's version.
    pub gpurun: String,
    /// Name of the run.
    pub run: String,
    /// Host name.
    pub host: String,
    /// Rank of gpurun's own environment.
    pub rank: Option<i32>,
    /// The job's command line.
    pub argv: Vec<String>,
    /// Wall-clock start, microseconds since the Unix epoch.
    pub start_us: i64,
    /// Wall-clock end, microseconds since the Unix epoch.
    pub end_us: i64,
    /// Length in seconds, suspended time excluded.
    pub duration_s: f64,
    /// How the job ended; null for `record`.
    pub exit: Option<ExitSummary>,
    /// NVIDIA driver.
    pub driver: Option<String>,
    /// One entry per followed GPU or MIG slice.
    pub gpus: Vec<GpuSummary>,
    /// The job.
    pub job: JobSummary,
    /// The host.
    pub host_totals: HostSummary,
    /// gpurun itself.
    pub own: OwnSummary,
    /// What each target got.
    pub targets: Vec<TargetSummary>,
    /// Processes left behind.
    pub leftovers: Vec<LeftoverSummary>,
    /// Series of host, GPUs, job and gpurun that were null at some time or always, with the reason.
    pub nulls: Vec<NullSummary>,
    /// Scalars of the job that were not finite at times.
    pub not_finite: Vec<NotFiniteSummary>,
    /// What the job said and gpurun did not record.
    pub dropped: Vec<DroppedSummary>,
    /// Facts worth knowing, in words.
    pub facts: Vec<String>,
}

/// A scalar of the job that was NaN or infinite at times.
#[derive(Clone, Debug, Serialize)]
pub struct NotFiniteSummary {
    /// Its name.
    pub name: String,
    /// Values that were not finite.
    pub count: u64,
    /// All values.
    pub values: u64,
    /// Training step of the first row with such a value; null where the job logs without steps.
    pub step: Option<i64>,
}

/// Messages of the job that were not recorded for one reason.
#[derive(Clone, Debug, Serialize)]
pub struct DroppedSummary {
    /// What is counted: scalars, tags, marks, ...
    pub what: &'static str,
    /// Why.
    pub reason: String,
    /// How many.
    pub count: u64,
}

/// A series that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct NullSummary {
    /// Subject, name and unit: `gpu:3/fan_speed (%)`.
    pub series: String,
    /// Why.
    pub reason: String,
    /// Reads that gave a value; 0 where there never was one.
    pub samples: u64,
    /// Reads that were due and gave none.
    pub missing: u64,
}

/// How the job ended.
#[derive(Clone, Debug, Serialize)]
pub struct ExitSummary {
    /// Exit code, if it called exit.
    pub code: Option<u8>,
    /// Signal, if one ended it.
    pub signal: Option<i32>,
    /// In words.
    pub words: String,
    /// Why, where that is known: a signal from outside with its sender, or the lack of memory.
    pub cause: Option<String>,
}

/// Mean and extremes of one metric over the run; null where unknown.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Figures {
    /// Time-weighted mean.
    pub mean: Option<f64>,
    /// Smallest value.
    pub min: Option<f64>,
    /// Largest value.
    pub max: Option<f64>,
}

/// One GPU.
#[derive(Clone, Debug, Serialize)]
pub struct GpuSummary {
    /// NVML index.
    pub index: u32,
    /// MIG index for a slice.
    pub mig: Option<u32>,
    /// Ordinal in the job.
    pub cuda: Option<u32>,
    /// UUID.
    pub uuid: String,
    /// Marketing name.
    pub name: Option<String>,
    /// Capacity in MiB.
    pub memory_total_mib: Option<f64>,
    /// Utilisation in percent.
    pub gpu_utilization: Figures,
    /// Memory used by all processes, MiB.
    pub memory_used_mib: Figures,
    /// Memory of the job, MiB.
    pub job_memory_mib: Figures,
    /// Core temperature, C.
    pub temperature_c: Figures,
    /// Board power, W.
    pub power_w: Figures,
    /// Energy of the run in J.
    pub energy_j: Option<f64>,
    /// The same in Wh.
    pub energy_wh: Option<f64>,
    /// `counter`, or `power` when integrated from the power readings; null without energy.
    pub energy_source: Option<&'static str>,
    /// Seconds held down by the power cap.
    pub throttled_power_s: Option<f64>,
    /// Seconds held down by heat.
    pub throttled_thermal_s: Option<f64>,
    /// Seconds of windows in which utilisation never passed 5 %.
    pub idle_s: f64,
    /// Seconds of windows in which it was below 50 % while the host's CPUs were over 90 % busy.
    pub starved_s: f64,
    /// Seconds of windows in which nothing of it was known because the driver lost it.
    pub silent_s: f64,
    /// If it was never known again: seconds from the start of the run to then.
    pub silent_since_s: Option<f64>,
    /// What the driver said.
    pub silent_why: Option<String>,
    /// Modes, links and state of the memory when the run began; none for a slice.
    pub device_facts: Vec<FactSummary>,
}

/// A fact about a GPU.
#[derive(Clone, Debug, Serialize)]
pub struct FactSummary {
    /// Its name.
    pub name: &'static str,
    /// Its value; null where it is not known.
    pub value: Option<Fact>,
    /// Why it is not known.
    pub reason: Option<String>,
}

/// The job's tree.
#[derive(Clone, Debug, Serialize)]
pub struct JobSummary {
    /// CPU time in seconds, ended processes included.
    pub cpu_s: Option<f64>,
    /// 100 = one core.
    pub cpu_percent: Figures,
    /// Resident memory, MiB.
    pub memory_rss_mib: Figures,
    /// Proportional set size, MiB.
    pub memory_pss_mib: Figures,
    /// Live processes.
    pub processes: Figures,
    /// Read from storage, MiB.
    pub io_read_mib: Option<f64>,
    /// Written towards storage, MiB.
    pub io_write_mib: Option<f64>,
    /// Device memory over all GPUs, MiB.
    pub gpu_memory_mib: Figures,
}

/// The host.
#[derive(Clone, Debug, Serialize)]
pub struct HostSummary {
    /// 100 = every core.
    pub cpu_percent: Figures,
    /// Of the memory (or the cgroup's limit).
    pub memory_percent: Figures,
    /// PSI.
    pub cpu_pressure: Figures,
    /// PSI.
    pub memory_pressure: Figures,
    /// PSI.
    pub io_pressure: Figures,
}

/// gpurun itself.
#[derive(Clone, Debug, Serialize)]
pub struct OwnSummary {
    /// CPU time in seconds.
    pub cpu_s: Option<f64>,
    /// 100 = one core.
    pub cpu_percent: Figures,
    /// Resident memory, MiB.
    pub memory_rss_mib: Figures,
    /// Time per sample, ms.
    pub sample_time_ms: Figures,
    /// Late samples.
    pub late_samples: Option<f64>,
    /// Samples that were not taken.
    pub dropped_samples: Option<f64>,
    /// Reads that were due and gave nothing, over all series that gave a value at other times.
    pub missing_reads: u64,
    /// Periodic windows.
    pub windows: u64,
}

/// One target.
#[derive(Clone, Debug, Serialize)]
pub struct TargetSummary {
    /// As typed, filled in.
    pub target: String,
    /// Rows written.
    pub rows: u64,
    /// Rows lost.
    pub lost_rows: u64,
    /// Last error, if the target is not complete.
    pub error: Option<String>,
}

/// A process left behind.
#[derive(Clone, Debug, Serialize)]
pub struct LeftoverSummary {
    /// Pid.
    pub pid: i32,
    /// Command line or name.
    pub command: String,
    /// Device memory it still held at the last look, MiB.
    pub gpu_memory_mib: Option<f64>,
}
