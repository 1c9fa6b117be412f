//! The limits of the cgroup that gpurun runs in, version 2 or 1, ancestors included. Reads only;
//! never creates or changes a cgroup.

use std::fs;
use std::path::{Path, PathBuf};

use super::procfs::file::{Buffer, KernelFile};
use crate::model::cause::OutOfMemory;
use crate::sys::text;

/// One level of the hierarchy that has a memory limit.
#[derive(Debug)]
struct MemoryLevel {
    limit_file: PathBuf,
    /// As last read.
    limit: Option<u64>,
    usage: KernelFile,
    stat: KernelFile,
    /// `inactive_file` in version 2, `total_inactive_file` in version 1.
    inactive_label: &'static [u8],
}

/// The limit in force and what is used of it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBound {
    /// The limit of the level that leaves least.
    pub limit: u64,
    /// Its working set: usage without the page cache that can be dropped at once.
    pub used: u64,
}

/// The cgroup limits that bind gpurun and its children.
#[derive(Debug, Default)]
pub struct CgroupLimits {
    memory: Vec<MemoryLevel>,
    cpu: Vec<CpuLevel>,
    /// As last read.
    cpu_limit: Option<f64>,
    pressure: Option<PathBuf>,
    calls: u32,
}

#[derive(Debug)]
enum CpuLevel {
    /// `cpu.max` of version 2.
    Max(PathBuf),
    /// `cpu.cfs_quota_us` and `cpu.cfs_period_us` of version 1.
    Quota(PathBuf, PathBuf),
}

impl CgroupLimits {
    /// Limits can be changed under a running job: they are read again after so many calls of `refresh`.
    const REFRESH_EVERY: u32 = 30;

    /// Finds the limited levels from `/proc/self/cgroup` and the mounted hierarchies.
    ///
    /// `proc_root` is normally `/proc`, `cgroup_root` `/sys/fs/cgroup`. A hierarchy that is not mounted
    /// or not readable is taken as unlimited.
    pub fn find(proc_root: &Path, cgroup_root: &Path) -> Self {
        let mut found = Self::default();
        for Group { hierarchy, levels } in groups(proc_root, cgroup_root, "self") {
            for level in levels {
                match hierarchy {
                    Hierarchy::Unified => found.add_v2(&level),
                    Hierarchy::Memory | Hierarchy::Cpu => found.add_v1(hierarchy, &level),
                }
            }
        }
        found.read_limits();
        found
    }

    fn add_v2(&mut self, level: &Path) {
        let limits = self.memory.len() + self.cpu.len();
        if read_number(&level.join("memory.max")).is_some() {
            self.add_memory(level, "memory.max", "memory.current", b"inactive_file ");
        }
        let cpu = level.join("cpu.max");
        if fs::read_to_string(&cpu).is_ok_and(|text| quota_of_max(&text).is_some()) {
            self.cpu.push(CpuLevel::Max(cpu));
        }
        // The innermost limited level: above it are others' tasks as well.
        if self.pressure.is_none()
            && self.memory.len() + self.cpu.len() > limits
            && level.join("cpu.pressure").exists()
        {
            self.pressure = Some(level.to_owned());
        }
    }

    /// Where the pressure on gpurun's own cgroup stands, in files `cpu.pressure`, `memory.pressure` and `io.pressure`:
    /// the innermost limited level of version 2. `None` outside a limited cgroup and on version 1, which has none.
    pub fn pressure_level(&self) -> Option<&Path> {
        self.pressure.as_deref()
    }

    fn add_v1(&mut self, hierarchy: Hierarchy, level: &Path) {
        if hierarchy == Hierarchy::Memory {
            if read_number(&level.join("memory.limit_in_bytes")).is_some_and(is_limit) {
                self.add_memory(
                    level,
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    b"total_inactive_file ",
                );
            }
            return;
        }
        let (quota, period) = (level.join("cpu.cfs_quota_us"), level.join("cpu.cfs_period_us"));
        if read_number(&quota).is_some() {
            self.cpu.push(CpuLevel::Quota(quota, period));
        }
    }

    fn add_memory(&mut self, level: &Path, limit: &str, usage: &str, inactive_label: &'static [u8]) {
        let (Ok(usage), Ok(stat)) =
            (KernelFile::open(&level.join(usage)), KernelFile::open(&level.join("memory.stat")))
        else {
            return;
        };
        self.memory.push(MemoryLevel {
            limit_file: level.join(limit),
            limit: None,
            usage,
            stat,
            inactive_label,
        });
    }

    /// Reads the limits again once in a while: it opens files.
    pub fn refresh(&mut self) {
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(Self::REFRESH_EVERY) {
            self.read_limits();
        }
    }

    fn read_limits(&mut self) {
        for level in &mut self.memory {
            level.limit = read_number(&level.limit_file).filter(|bytes| is_limit(*bytes));
        }
        let cores = self.cpu.iter().filter_map(|level| match level {
            CpuLevel::Max(path) => quota_of_max(&fs::read_to_string(path).ok()?),
            CpuLevel::Quota(quota, period) => {
                let (quota, period) = (read_number(quota)?, read_number(period)?);
                (period > 0).then(|| quota as f64 / period as f64)
            }
        });
        self.cpu_limit = cores.reduce(f64::min);
    }

    /// Cores that may be used; `None` where nothing limits them.
    pub fn cpu_limit(&self) -> Option<f64> {
        self.cpu_limit
    }

    /// The smallest memory limit in bytes; `None` where nothing limits it.
    pub fn memory_limit(&self) -> Option<u64> {
        self.memory.iter().filter_map(|level| level.limit).min()
    }

    /// The level that leaves least, with its working set; `None` where nothing limits the memory.
    pub fn memory_bound(&self, buffer: &mut Buffer) -> Option<MemoryBound> {
        let mut tightest: Option<MemoryBound> = None;
        for level in &self.memory {
            let Some(limit) = level.limit else { continue };
            let usage = level.usage.read(buffer).ok().and_then(first_number);
            let inactive =
                level.stat.read(buffer).ok().and_then(|stat| text::labelled(stat, level.inactive_label));
            let (Some(usage), Some(inactive)) = (usage, inactive) else { continue };
            let bound = MemoryBound { limit, used: usage.saturating_sub(inactive) };
            let left = |b: MemoryBound| b.limit.saturating_sub(b.used);
            if tightest.is_none_or(|t| left(bound) < left(t)) {
                tightest = Some(bound);
            }
        }
        tightest
    }
}

/// How the CPU quota of a cgroup has held its tasks back so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttled {
    /// Periods of the quota in which it was used up.
    pub periods: u64,
    /// Seconds for which CPUs were held back, added up over the CPUs.
    pub seconds: f64,
}

/// The innermost cgroup of a process that has a CPU quota.
#[derive(Debug)]
pub struct Throttling {
    stat: KernelFile,
    time_label: &'static [u8],
    per_second: f64,
}

impl Throttling {
    /// Finds the cgroup of a process, which is a pid or `self`. `None` where no quota binds it.
    pub fn find(proc_root: &Path, cgroup_root: &Path, process: &str) -> Option<Self> {
        groups(proc_root, cgroup_root, process).into_iter().find_map(|group| {
            let (label, per_second): (&[u8], _) = match group.hierarchy {
                Hierarchy::Unified => (b"throttled_usec ", 1e6),
                Hierarchy::Cpu => (b"throttled_time ", 1e9),
                Hierarchy::Memory => return None,
            };
            let has_quota = |level: &&PathBuf| match group.hierarchy {
                Hierarchy::Unified => {
                    fs::read_to_string(level.join("cpu.max")).is_ok_and(|text| quota_of_max(&text).is_some())
                }
                _ => read_number(&level.join("cpu.cfs_quota_us")).is_some(),
            };
            let level = group.levels.iter().find(has_quota)?;
            let stat = KernelFile::open(&level.join("cpu.stat")).ok()?;
            Some(Self { stat, time_label: label, per_second })
        })
    }

    /// The counters of now; `None` where they cannot be read.
    pub fn read(&self, buffer: &mut Buffer) -> Option<Throttled> {
        let stat = self.stat.read(buffer).ok()?;
        let time = text::labelled(stat, self.time_label)?;
        Some(Throttled {
            periods: text::labelled(stat, b"nr_throttled ")?,
            seconds: time as f64 / self.per_second,
        })
    }
}

/// The count of the out-of-memory killer for the cgroup of this process.
#[derive(Debug)]
pub struct OomWatch {
    /// `memory.events` of version 2, `memory.oom_control` of version 1.
    events: PathBuf,
    before: u64,
    limits: Vec<MemoryFiles>,
}

/// The files of one level with a memory limit.
#[derive(Debug)]
struct MemoryFiles {
    limit: PathBuf,
    peak: PathBuf,
}

impl OomWatch {
    /// Remembers the count of now. `None` where no cgroup counts: on kernels before 4.13, and in the root of version 2.
    pub fn start(proc_root: &Path, cgroup_root: &Path) -> Option<Self> {
        groups(proc_root, cgroup_root, "self").iter().find_map(|group| {
            let (events, limit, peak) = match group.hierarchy {
                Hierarchy::Unified => ("memory.events", "memory.max", "memory.peak"),
                Hierarchy::Memory => {
                    ("memory.oom_control", "memory.limit_in_bytes", "memory.max_usage_in_bytes")
                }
                Hierarchy::Cpu => return None,
            };
            let events = group.levels.first()?.join(events);
            let before = oom_kills(&events)?;
            let files = |level: &PathBuf| MemoryFiles { limit: level.join(limit), peak: level.join(peak) };
            Some(Self { events, before, limits: group.levels.iter().map(files).collect() })
        })
    }

    /// What the killer did since the start; `None` if nothing.
    pub fn killed(&self) -> Option<OutOfMemory> {
        let killed = oom_kills(&self.events)?.saturating_sub(self.before);
        let limited = |files: &MemoryFiles| {
            let limit = read_number(&files.limit).filter(|bytes| is_limit(*bytes))?;
            Some((limit, read_number(&files.peak)))
        };
        let tightest = self.limits.iter().filter_map(limited).min_by_key(|(limit, _)| *limit);
        let (limit, peak) = tightest.map_or((None, None), |(limit, peak)| (Some(limit), peak));
        (killed > 0).then_some(OutOfMemory { killed, limit, peak })
    }
}

/// Processes of the cgroup that the out-of-memory killer has killed so far.
fn oom_kills(events: &Path) -> Option<u64> {
    text::labelled(&fs::read(events).ok()?, b"oom_kill ")
}

/// The hierarchies that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hierarchy {
    /// Version 2, or its branch in the hybrid layout.
    Unified,
    /// `memory` of version 1.
    Memory,
    /// `cpu` of version 1.
    Cpu,
}

/// The cgroup of a process in one hierarchy.
struct Group {
    hierarchy: Hierarchy,
    /// Its directory and those of its ancestors, innermost first.
    levels: Vec<PathBuf>,
}

/// The cgroups of a process, as `/proc/PROCESS/cgroup` lists them, in the hierarchies that are mounted.
fn groups(proc_root: &Path, cgroup_root: &Path, process: &str) -> Vec<Group> {
    let mut found = Vec::new();
    let list = fs::read_to_string(proc_root.join(process).join("cgroup")).unwrap_or_default();
    for line in list.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if number == "0" && controllers.is_empty() {
            let roots = [cgroup_root.to_owned(), cgroup_root.join("unified")];
            let root = roots.iter().find(|root| root.join("cgroup.procs").exists());
            let group = |root: &PathBuf| Group { hierarchy: Hierarchy::Unified, levels: levels(root, path) };
            found.extend(root.map(group));
            continue;
        }
        for controller in controllers.split(',') {
            let hierarchy = match controller {
                "memory" => Hierarchy::Memory,
                "cpu" => Hierarchy::Cpu,
                _ => continue,
            };
            let roots = [cgroup_root.join(controller), cgroup_root.join(controllers)];
            let root = roots.iter().find(|root| root.is_dir());
            found.extend(root.map(|root| Group { hierarchy, levels: levels(root, path) }));
        }
    }
    found
}

/// The directories of a cgroup and its ancestors, innermost first. Inside a container the path of
/// `/proc/self/cgroup` may be the host's: then only the mount's own root is there.
fn levels(root: &Path, path: &str) -> Vec<PathBuf> {
    let relative = path.trim_start_matches('/');
    let mut all = Vec::new();
    let inside = !relative.split('/').any(|part| part == "..");
    if inside && root.join(relative).is_dir() {
        let mut at = Path::new(relative);
        while !at.as_os_str().is_empty() {
            all.push(root.join(at));
            at = at.parent().unwrap_or(Path::new(""));
        }
    }
    all.push(root.to_owned());
    all
}

fn first_number(content: &[u8]) -> Option<u64> {
    text::number(text::words(content).next()?)
}

/// A number alone in a file; `max` and negative numbers are `None`.
fn read_number(path: &Path) -> Option<u64> {
    first_number(&fs::read(path).ok()?)
}

/// Version 1 writes "no limit" as the largest page-aligned number.
fn is_limit(bytes: u64) -> bool {
    bytes < 1 << 60
}

/// Cores of `cpu.max`: `200000 100000` is 2, `max 100000` is none.
fn quota_of_max(text: &str) -> Option<f64> {
    let mut words = text.split_ascii_whitespace();
    let quota: f64 = words.next()?.parse().ok()?;
    let period: f64 = words.next()?.parse().ok()?;
    (period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn version_2_takes_the_level_that_leaves_least() {
        let dir = tempfile::tempdir().unwrap();
        let (proc_root, cgroup) = (dir.path().join("proc"), dir.path().join("cgroup"));
        write(proc_root.join("self/cgroup"), "0::/outer/leaf\n");
        write(cgroup.join("cgroup.procs"), "");
        write(cgroup.join("outer/memory.max"), "1000000\n");
        write(cgroup.join("outer/memory.current"), "900000\n");
        write(cgroup.join("outer/memory.stat"), "anon 5\ninactive_file 100000\nactive_file 7\n");
        write(cgroup.join("outer/cpu.max"), "max 100000\n");
        write(cgroup.join("outer/cpu.pressure"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
        write(cgroup.join("outer/leaf/memory.max"), "500000\n");
        write(cgroup.join("outer/leaf/memory.current"), "100000\n");
        write(cgroup.join("outer/leaf/memory.stat"), "inactive_file 0\n");
        write(cgroup.join("outer/leaf/cpu.max"), "150000 100000\n");
        let limits = CgroupLimits::find(&proc_root, &cgroup);
        assert_eq!(limits.cpu_limit(), Some(1.5));
        assert_eq!(limits.pressure_level(), Some(cgroup.join("outer").as_path()), "the leaf tells none");
        assert_eq!(limits.memory_limit(), Some(500_000));
        let bound = limits.memory_bound(&mut Buffer::default());
        assert_eq!(bound, Some(MemoryBound { limit: 1_000_000, used: 800_000 }));
    }

    #[test]
    fn version_1_and_its_way_to_say_unlimited() {
        let dir = tempfile::tempdir().unwrap();
        let (proc_root, cgroup) = (dir.path().join("proc"), dir.path().join("cgroup"));
        write(proc_root.join("self/cgroup"), "4:memory:/box\n2:cpu,cpuacct:/\n0::/\n");
        write(cgroup.join("memory/memory.limit_in_bytes"), "9223372036854771712\n");
        write(cgroup.join("memory/box/memory.limit_in_bytes"), "4096000\n");
        write(cgroup.join("memory/box/memory.usage_in_bytes"), "2048000\n");
        write(cgroup.join("memory/box/memory.stat"), "inactive_file 1\ntotal_inactive_file 48000\n");
        write(cgroup.join("cpu,cpuacct/cpu.cfs_quota_us"), "-1\n");
        write(cgroup.join("cpu,cpuacct/cpu.cfs_period_us"), "100000\n");
        let limits = CgroupLimits::find(&proc_root, &cgroup);
        assert_eq!(limits.cpu_limit(), None);
        assert_eq!(
            limits.memory_bound(&mut Buffer::default()),
            Some(MemoryBound { limit: 4_096_000, used: 2_000_000 })
        );
    }

    #[test]
    fn a_host_path_seen_from_a_container_falls_back_to_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        let (proc_root, cgroup) = (dir.path().join("proc"), dir.path().join("cgroup"));
        write(proc_root.join("self/cgroup"), "0::/../../docker/abc\n");
        write(cgroup.join("cgroup.procs"), "");
        write(cgroup.join("cpu.max"), "50000 100000\n");
        assert_eq!(CgroupLimits::find(&proc_root, &cgroup).cpu_limit(), Some(0.5));
        let nothing = CgroupLimits::find(&dir.path().join("no"), &cgroup);
        assert_eq!((nothing.cpu_limit(), nothing.memory_limit()), (None, None));
    }

    #[test]
    fn throttling_is_that_of_the_innermost_quota_in_either_version() {
        let dir = tempfile::tempdir().unwrap();
        let (proc_root, cgroup) = (dir.path().join("proc"), dir.path().join("cgroup"));
        let mut buffer = Buffer::default();
        write(proc_root.join("self/cgroup"), "0::/pod/box/leaf\n");
        write(proc_root.join("77/cgroup"), "0::/other\n");
        write(cgroup.join("cgroup.procs"), "");
        for (level, quota, periods) in [("pod", "400000 100000", 3), ("pod/box", "200000 100000", 5)] {
            write(cgroup.join(level).join("cpu.max"), quota);
            let stat =
                format!("usage_usec 9\nnr_periods 8\nnr_throttled {periods}\nthrottled_usec 2500000\n");
            write(cgroup.join(level).join("cpu.stat"), &stat);
        }
        write(cgroup.join("pod/box/leaf/cpu.max"), "max 100000");
        write(cgroup.join("other/cpu.stat"), "usage_usec 9\n");
        let found = Throttling::find(&proc_root, &cgroup, "self").unwrap();
        assert_eq!(found.read(&mut buffer), Some(Throttled { periods: 5, seconds: 2.5 }));
        assert!(Throttling::find(&proc_root, &cgroup, "77").is_none());

        write(proc_root.join("self/cgroup"), "4:memory:/box\n2:cpu,cpuacct:/box\n");
        let level = cgroup.join("cpu,cpuacct/box");
        write(level.join("cpu.cfs_quota_us"), "-1\n");
        assert!(Throttling::find(&proc_root, &cgroup, "self").is_none());
        write(level.join("cpu.cfs_quota_us"), "50000\n");
        write(level.join("cpu.stat"), "nr_periods 4\nnr_throttled 2\nthrottled_time 1500000000\n");
        let found = Throttling::find(&proc_root, &cgroup, "self").unwrap();
        assert_eq!(found.read(&mut buffer), Some(Throttled { periods: 2, seconds: 1.5 }));
        write(level.join("cpu.stat"), "nr_periods 4\n");
        assert_eq!(found.read(&mut buffer), None);
    }

    #[test]
    fn the_killer_counts_in_either_version() {
        let dir = tempfile::tempdir().unwrap();
        let (proc_root, cgroup) = (dir.path().join("proc"), dir.path().join("cgroup"));
        let start = || OomWatch::start(&proc_root, &cgroup);
        assert!(start().is_none());
        write(proc_root.join("self/cgroup"), "0::/outer/leaf\n");
        write(cgroup.join("cgroup.procs"), "");
        let leaf = cgroup.join("outer/leaf");
        write(leaf.join("memory.events"), "low 0\noom 3\noom_kill 2\noom_group_kill 0\n");
        write(leaf.join("memory.max"), "max\n");
        write(cgroup.join("outer/memory.max"), "4096000\n");
        write(cgroup.join("outer/memory.peak"), "4095000\n");
        let watch = start().unwrap();
        assert_eq!(watch.killed(), None);
        write(leaf.join("memory.events"), "low 0\noom 4\noom_kill 5\noom_group_kill 0\n");
        let killed = OutOfMemory { killed: 3, limit: Some(4_096_000), peak: Some(4_095_000) };
        assert_eq!(watch.killed(), Some(killed));

        write(proc_root.join("self/cgroup"), "4:memory:/box\n");
        let level = cgroup.join("memory/box");
        write(level.join("memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
        write(level.join("memory.limit_in_bytes"), "9223372036854771712\n");
        let watch = start().unwrap();
        write(level.join("memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
        assert_eq!(watch.killed(), Some(OutOfMemory { killed: 1, limit: None, peak: None }));
    }
}
