//! GPUs without memory of their own (GB10, N1X, Jetson): what the host says instead of the driver.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::error::{CallResult, Fault};
use super::{Handle, MemoryInfo, Nvml};
use crate::collectors::cgroup::CgroupLimits;
use crate::collectors::procfs::file::{Buffer, KernelFile};
use crate::collectors::procfs::parse;

/// The host's memory in bytes, as far as this process may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// `MemTotal`, or a cgroup's limit where that is smaller.
    pub total: u64,
    /// `MemAvailable`, or what the cgroup leaves where that is less.
    pub available: u64,
}

/// Where the budget of a GPU with unified memory comes from: `meminfo`, bounded by the memory cgroup that gpurun runs in.
#[derive(Debug)]
pub(super) struct HostMemorySource {
    proc_root: PathBuf,
    cgroup_root: PathBuf,
    /// Opened at the first read: most GPUs have memory of their own.
    files: OnceLock<Option<Mutex<Files>>>,
}

impl HostMemorySource {
    pub(super) fn new(proc_root: &Path, cgroup_root: &Path) -> Self {
        Self { proc_root: proc_root.to_owned(), cgroup_root: cgroup_root.to_owned(), files: OnceLock::new() }
    }

    /// The host's memory now.
    fn read(&self) -> Option<HostMemory> {
        let files =
            self.files.get_or_init(|| Files::open(&self.proc_root, &self.cgroup_root).map(Mutex::new));
        files.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).read()
    }
}

/// The open files behind a source.
#[derive(Debug)]
struct Files {
    meminfo: KernelFile,
    cgroup: CgroupLimits,
    buffer: Buffer,
}

impl Files {
    fn open(proc_root: &Path, cgroup_root: &Path) -> Option<Self> {
        Some(Self {
            meminfo: KernelFile::open(&proc_root.join("meminfo")).ok()?,
            cgroup: CgroupLimits::find(proc_root, cgroup_root),
            buffer: Buffer::default(),
        })
    }

    fn read(&mut self) -> Option<HostMemory> {
        self.cgroup.refresh();
        let info = parse::meminfo(self.meminfo.read(&mut self.buffer).ok()?)?;
        let host = HostMemory { total: info.total, available: info.available? };
        Some(match self.cgroup.memory_bound(&mut self.buffer) {
            Some(bound) if bound.limit < host.total => HostMemory {
                total: bound.limit,
                available: host.available.min(bound.limit.saturating_sub(bound.used)),
            },
            _ => host,
        })
    }
}

/// Whether the product is known to have no memory of its own, whatever the driver reports as its memory: some
/// answer with a carve-out, some with all of the host's.
fn shares_by_name(name: &str) -> bool {
    const PRODUCTS: [&str; 5] = ["GB10", "N1X", "Thor", "Orin", "Xavier"];
    name.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| PRODUCTS.iter().any(|p| word.eq_ignore_ascii_case(p)))
}

impl Nvml {
    /// Whether the device's memory is the host's. `memory` is what the driver says of it.
    ///
    /// A memory call that is not supported proves nothing alone (old boards have that too): the product's name or
    /// address translation through the CPU's page tables (ATS) must agree.
    pub(crate) fn shares_host_memory(&self, device: Handle, memory: &CallResult<MemoryInfo>) -> bool {
        /// `NVML_DEVICE_ADDRESSING_MODE_ATS`.
        const ATS: u32 = 2;
        if self.name(device).is_ok_and(|name| shares_by_name(&name)) {
            return true;
        }
        let silent = match memory {
            Ok(memory) => memory.total == 0,
            Err(fault) => fault.is_permanent(),
        };
        silent && self.addressing_mode(device) == Ok(ATS)
    }

    /// The host's memory, for devices that share it.
    pub(crate) fn host_memory(&self) -> CallResult<HostMemory> {
        self.host_memory.read().ok_or(Fault::Implausible)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_whole_words() {
        assert!(shares_by_name("NVIDIA GB10"));
        assert!(shares_by_name("NVIDIA N1X (Laptop)"));
        assert!(!shares_by_name("NVIDIA GB100"));
        assert!(!shares_by_name("NVIDIA GH200 480GB"));
    }

    #[test]
    fn the_budget_is_meminfo_bounded_by_the_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        let (proc_root, cgroup) = (dir.path().join("proc"), dir.path().join("cgroup"));
        let source = || HostMemorySource::new(&proc_root, &cgroup);
        assert_eq!(source().read(), None);

        std::fs::create_dir_all(proc_root.join("self")).unwrap();
        std::fs::create_dir_all(cgroup.join("box")).unwrap();
        std::fs::write(
            proc_root.join("meminfo"),
            "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    600 kB\n",
        )
        .unwrap();
        assert_eq!(source().read(), Some(HostMemory { total: 1_024_000, available: 614_400 }));

        std::fs::write(proc_root.join("self/cgroup"), "0::/box\n").unwrap();
        std::fs::write(cgroup.join("cgroup.procs"), "").unwrap();
        std::fs::write(cgroup.join("box/memory.max"), "500000\n").unwrap();
        std::fs::write(cgroup.join("box/memory.current"), "300000\n").unwrap();
        std::fs::write(cgroup.join("box/memory.stat"), "inactive_file 100000\n").unwrap();
        assert_eq!(source().read(), Some(HostMemory { total: 500_000, available: 300_000 }));
    }
}
