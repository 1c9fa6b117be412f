//! Which of the processes that NVML lists are the job's: frames joined with the tree by pid, and
//! the doubt whether those pids mean the same here.

use std::path::Path;

use super::MIB;
use super::frame::{DeviceFrame, GpuProcessUse};
use super::tree::Tree;
use crate::model::reading::Reading;

/// Inode of the first PID namespace (`PROC_PID_INIT_INO`): NVML's pids are of this one.
const HOST_NAMESPACE: &str = "pid:[4026531836]";

/// Whether NVML's pids are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidMatch {
    /// gpurun is in the host's namespace.
    Same,
    /// gpurun is in another namespace, and nothing has contradicted the driver's pids so far.
    Doubtful,
    /// Most processes that NVML lists do not exist here.
    Other,
}

impl PidMatch {
    /// What the kernel says about gpurun's own namespace.
    pub fn of_self(proc_root: &Path) -> Self {
        match std::fs::read_link(proc_root.join("self/ns/pid")) {
            Ok(link) if link.as_os_str() == HOST_NAMESPACE => PidMatch::Same,
            _ => PidMatch::Doubtful,
        }
    }

    /// Takes one frame into account. In another namespace the driver may still translate its pids
    /// (newer drivers do): then they exist here. If most of the listed processes do not, they are not ours.
    pub fn learn(self, listed: impl Iterator<Item = u32>, mut exists: impl FnMut(i32) -> bool) -> Self {
        if self == PidMatch::Same {
            return self;
        }
        let (mut all, mut here) = (0_usize, 0_usize);
        for pid in listed {
            all += 1;
            here += usize::from(i32::try_from(pid).is_ok_and(&mut exists));
        }
        match all {
            0 => self,
            // One that has just ended is no contradiction, and a host's pid that exists here by chance no proof.
            _ if here * 2 < all => PidMatch::Other,
            _ => PidMatch::Doubtful,
        }
    }
}

/// What the job as a whole uses of one device, from its latest process list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JobUse {
    /// MiB.
    pub memory: Reading,
    /// Percent.
    pub sm: Reading,
}

impl JobUse {
    /// Nothing known.
    pub const UNKNOWN: JobUse = JobUse { memory: Reading::Missing, sm: Reading::Missing };

    /// Sums a device's list over the processes that are in the tree. A process whose memory the driver
    /// does not report makes the sum unknown; processes whose SM share it does not report are left out of
    /// the share unless all are such.
    pub fn of(frame: &[GpuProcessUse], tree: &Tree) -> JobUse {
        let (mut memory, mut memory_known) = (0u64, true);
        let (mut sm, mut sm_known, mut sm_unknown) = (0.0, false, false);
        for process in frame.iter().filter(|process| is_ours(process, tree)) {
            match process.memory {
                Some(bytes) => memory = memory.saturating_add(bytes),
                None => memory_known = false,
            }
            match process.sm {
                Some(share) => (sm, sm_known) = (sm + share, true),
                None => sm_unknown = true,
            }
        }
        JobUse {
            memory: if memory_known { Reading::Value(memory as f64 / MIB) } else { Reading::Missing },
            sm: if sm_known || !sm_unknown { Reading::Value(sm) } else { Reading::Missing },
        }
    }
}

fn is_ours(process: &GpuProcessUse, tree: &Tree) -> bool {
    i32::try_from(process.pid).is_ok_and(|pid| tree.place_of(pid).is_some())
}

/// The entry of one process in a device's list.
pub fn use_of(device: &DeviceFrame, pid: i32) -> Option<&GpuProcessUse> {
    let Some(Ok(list)) = &device.processes else { return None };
    list.iter().find(|process| i32::try_from(process.pid) == Ok(pid))
}

/// Bytes as MiB.
pub fn mib(bytes: Option<u64>) -> Reading {
    bytes.map_or(Reading::Missing, |bytes| Reading::Value(bytes as f64 / MIB))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_namespace_is_believed() {
        assert_eq!(PidMatch::Same.learn([7u32].into_iter(), |_| false), PidMatch::Same);
    }

    #[test]
    fn elsewhere_pids_must_exist() {
        let doubtful = PidMatch::Doubtful;
        assert_eq!(doubtful.learn([].into_iter(), |_| false), PidMatch::Doubtful);
        assert_eq!(doubtful.learn([7u32, 8].into_iter(), |_| false), PidMatch::Other);
        assert_eq!(doubtful.learn([7u32, 8].into_iter(), |pid| pid == 8), PidMatch::Doubtful);
        assert_eq!(doubtful.learn([7u32, 8, 9].into_iter(), |pid| pid == 8), PidMatch::Other, "by chance");
        // A driver that was reloaded, or a job that left a container: doubt may return.
        assert_eq!(PidMatch::Other.learn([8u32].into_iter(), |_| true), PidMatch::Doubtful);
        assert_eq!(PidMatch::Other.learn([].into_iter(), |_| true), PidMatch::Other);
        assert_eq!(doubtful.learn([u32::MAX].into_iter(), |_| true), PidMatch::Other);
    }
}
