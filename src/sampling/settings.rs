//! The settings of a sampler, and what can stop it before it starts.

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::model::metric_set::MetricSet;

/// Which processes are the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeRoot {
    /// `gpurun -- job`: the main process and every process that the minder has as a descendant and that is not older
    /// than the main one. The minder is a child subreaper, so that orphans of the job come back to it. Pids are those
    /// of the caller's own PID namespace.
    Job {
        /// The process that started the job and reaps its orphans; it may be the caller itself. It may end before the
        /// job: then the known processes and their new children are followed.
        minder: i32,
        /// The job's main process. Older children of the minder (of a shell that `exec`ed gpurun) are not the job.
        main_pid: i32,
        /// The minder's child that measures, which is not the job's; 0 where there is none.
        sidecar: i32,
    },
    /// `record --pid`: the tree under each of these processes.
    Pids(Vec<i32>),
    /// `record --all`: every process that NVML lists, without its descendants.
    GpuProcesses,
}

/// Which processes get series of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessDetail {
    /// Those that were seen on a GPU.
    #[default]
    Gpu,
    /// All, up to [`SamplerSettings::process_limit`].
    All,
    /// None.
    None,
}

/// The settings of a sampler.
#[derive(Clone, Debug)]
pub struct SamplerSettings {
    /// Normally `/proc`.
    pub proc_root: PathBuf,
    /// Normally `/sys/fs/cgroup`.
    pub cgroup_root: PathBuf,
    /// Normally `/sys`.
    pub sys_root: PathBuf,
    /// Which processes are the job.
    pub root: TreeRoot,
    /// Which processes get series of their own.
    pub processes: ProcessDetail,
    /// At most this many at one time.
    pub process_limit: usize,
    /// What is recorded.
    pub metrics: MetricSet,
    /// Time between samples.
    pub interval: Duration,
    /// Time between the GPU reader's expensive reads.
    pub expensive_interval: Duration,
    /// Time between the GPU reader's reads of the process lists.
    pub gpu_processes_interval: Duration,
    /// Shortest time between two readings of `memory_pss`; 15 ms of CPU per GB each.
    pub pss_interval: Duration,
    /// How many files of processes may stay open; `None` is by the limit of this process, some left
    /// for sockets, logs and the driver. Without a kept one each read opens its file.
    pub descriptors: Option<usize>,
}

impl SamplerSettings {
    /// The usual settings for a root: the real `/proc`, no GPUs, the default metrics, 1 s.
    pub fn new(root: TreeRoot) -> Self {
        Self {
            proc_root: PathBuf::from("/proc"),
            cgroup_root: PathBuf::from("/sys/fs/cgroup"),
            sys_root: PathBuf::from("/sys"),
            root,
            processes: ProcessDetail::default(),
            process_limit: 512,
            metrics: MetricSet::default(),
            interval: Duration::from_secs(1),
            expensive_interval: Duration::from_secs(5),
            gpu_processes_interval: Duration::from_secs(2),
            pss_interval: Duration::from_secs(30),
            descriptors: None,
        }
    }
}

/// Why sampling cannot begin.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SamplingError {
    /// There is no process filesystem.
    #[error("cannot read {path}: {reason}; gpurun follows processes through it")]
    NoProc {
        /// The root that was tried.
        path: String,
        /// The kernel's answer.
        reason: String,
    },
    /// `record --pid` names a process that does not exist.
    #[error("no process {pid}: it has ended or belongs to another PID namespace")]
    NoProcess {
        /// The pid that was named.
        pid: i32,
    },
}

/// Something to tell the user once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// NVML lists processes and none of them exists here.
    OtherPidNamespace,
    /// The kernel lacks `/proc/PID/task/TID/children`: every sample lists all of `/proc`.
    NoChildrenFiles,
    /// More processes than get series of their own.
    TooManyProcesses {
        /// The limit.
        limit: usize,
    },
    /// The I/O counters of the job's processes cannot be read.
    NoIoPermission,
    /// The energy counters of the CPUs cannot be read.
    NoEnergyPermission,
}

impl Notice {
    /// Whether it is a detail: so on most hosts, and nothing that the user asked for.
    pub fn is_detail(&self) -> bool {
        *self == Notice::NoEnergyPermission
    }
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Notice::OtherPidNamespace => f.write_str(
                "the driver uses process ids of another PID namespace: GPU memory of the job is unknown; to read it, share the host's PID namespace (docker run --pid=host)",
            ),
            Notice::NoChildrenFiles => f.write_str(
                "this kernel has no /proc/PID/task/TID/children: following the job costs more on a host with many processes",
            ),
            Notice::TooManyProcesses { limit } => {
                write!(f, "more than {limit} processes: further ones count in the totals of the job and have no rows of their own")
            }
            Notice::NoIoPermission => {
                f.write_str("no permission to read /proc/PID/io of some of the job's processes: its I/O is incomplete or unknown")
            }
            Notice::NoEnergyPermission => f.write_str(
                "no permission to read /sys/class/powercap/*/energy_uj: power and energy of the CPUs are unknown; the administrator can allow it (chmod a+r)",
            ),
        }
    }
}
