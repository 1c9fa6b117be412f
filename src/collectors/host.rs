//! Host values from `/proc` and the own cgroup: kept descriptors, one read each. Gives readings by
//! metric; never knows series, never computes a rate.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::cgroup::CgroupLimits;
use super::powercap::{Domain, Powercap};
use super::procfs::file::{Buffer, KernelFile};
use super::procfs::parse;
use super::share::ShareOfTime;
use crate::model::metric::MetricId;
use crate::model::reading::Reading;
use crate::model::time::Mono;

const GIB: f64 = (1u64 << 30) as f64;
const MIB: f64 = (1u64 << 20) as f64;
const SECTOR: f64 = 512.0;

/// Running totals of named counters. An entry that appears or starts anew adds only what it counts
/// from then on, and one that disappears takes nothing away, so the sum never falls.
#[derive(Debug, Default)]
struct Totals {
    entries: Vec<Entry>,
    sums: [u64; 2],
    pass: u64,
}

#[derive(Debug)]
struct Entry {
    name: Box<[u8]>,
    last: [u64; 2],
    pass: u64,
}

impl Totals {
    fn begin(&mut self) {
        self.pass += 1;
    }

    fn add(&mut self, name: &[u8], now: [u64; 2]) {
        match self.entries.iter_mut().find(|entry| *entry.name == *name) {
            Some(entry) => {
                for ((sum, now), last) in self.sums.iter_mut().zip(now).zip(entry.last) {
                    // A smaller number is a device that was taken away and came back.
                    *sum = sum.saturating_add(now.checked_sub(last).unwrap_or(now));
                }
                entry.last = now;
                entry.pass = self.pass;
            }
            None => self.entries.push(Entry { name: name.into(), last: now, pass: self.pass }),
        }
    }

    fn end(&mut self) {
        let pass = self.pass;
        self.entries.retain(|entry| entry.pass == pass);
    }
}

/// What the network interfaces have carried. A bond, a bridge or a tunnel counts again what its parts have carried: where
/// there are interfaces of devices, only they count.
#[derive(Debug)]
struct Networks {
    interfaces: PathBuf,
    /// Whether each interface that was seen is that of a device.
    known: Vec<(Box<[u8]>, bool)>,
    devices: Totals,
    others: Totals,
}

impl Networks {
    /// `sys_root` is normally `/sys`.
    fn new(sys_root: &Path) -> Self {
        Self {
            interfaces: sys_root.join("class/net"),
            known: Vec::new(),
            devices: Totals::default(),
            others: Totals::default(),
        }
    }

    fn is_device(&mut self, name: &[u8]) -> bool {
        if let Some((_, is_device)) = self.known.iter().find(|(known, _)| **known == *name) {
            return *is_device;
        }
        let is_device = self.interfaces.join(OsStr::from_bytes(name)).join("device").exists();
        // A host of containers makes and removes interfaces all the time.
        if self.known.len() >= 1024 {
            self.known.clear();
        }
        self.known.push((name.into(), is_device));
        is_device
    }

    fn sum<'a>(&mut self, interfaces: impl Iterator<Item = (&'a [u8], u64, u64)>) -> [u64; 2] {
        self.devices.begin();
        self.others.begin();
        for (name, received, sent) in interfaces.filter(|(name, ..)| *name != b"lo") {
            let totals = if self.is_device(name) { &mut self.devices } else { &mut self.others };
            totals.add(name, [received, sent]);
        }
        self.devices.end();
        self.others.end();
        if self.devices.entries.is_empty() { self.others.sums } else { self.devices.sums }
    }
}

/// The reader of the host's values.
#[derive(Debug)]
pub struct HostReader {
    buffer: Buffer,
    stat: Option<KernelFile>,
    meminfo: Option<KernelFile>,
    loadavg: Option<KernelFile>,
    diskstats: Option<KernelFile>,
    net_dev: Option<KernelFile>,
    pressure: [Option<KernelFile>; 3],
    pressure_counters: [ShareOfTime; 3],
    cgroup: CgroupLimits,
    /// Limits that were there at the start have series.
    has_cpu_limit: bool,
    has_memory_limit: bool,
    ticks_per_second: f64,
    last_busy: Option<u64>,
    busy_percent_seconds: f64,
    cpu_counter: ShareOfTime,
    disks: Totals,
    disk_names: Vec<Box<[u8]>>,
    networks: Networks,
    powercap: Powercap,
    memory_total: Option<u64>,
}

/// The pressure metrics and their resources: `/proc/pressure/cpu`, or `cpu.pressure` of a limited cgroup.
const PRESSURES: [(MetricId, &str); 3] = [
    (MetricId::HostCpuPressure, "cpu"),
    (MetricId::HostMemoryPressure, "memory"),
    (MetricId::HostIoPressure, "io"),
];

/// The energies, each as its rate and as its amount.
const ENERGIES: [(Domain, [MetricId; 2]); 2] = [
    (Domain::Package, [MetricId::HostCpuPower, MetricId::HostCpuEnergyUsed]),
    (Domain::Dram, [MetricId::HostDramPower, MetricId::HostDramEnergyUsed]),
];

impl HostReader {
    /// Opens what there is. `proc_root` is normally `/proc`, `cgroup_root` `/sys/fs/cgroup`;
    /// `ticks_per_second` is `sysconf(_SC_CLK_TCK)`.
    pub fn new(proc_root: &Path, cgroup_root: &Path, sys_root: &Path, ticks_per_second: f64) -> Self {
        let open = |name: &str| KernelFile::open(&proc_root.join(name)).ok();
        let cgroup = CgroupLimits::find(proc_root, cgroup_root);
        let mut buffer = Buffer::default();
        // With psi=0 on the kernel's command line the file opens and every read fails.
        let pressure = PRESSURES.map(|(_, name)| {
            // Inside a limited cgroup the host's tasks wait for what is not ours to have.
            let own = cgroup.pressure_level();
            let file = match own.map(|level| KernelFile::open(&level.join(format!("{name}.pressure")))) {
                Some(Ok(file)) => Some(file),
                Some(Err(_)) => None,
                None => open(&format!("pressure/{name}")),
            };
            file.filter(|file| file.read(&mut buffer).is_ok_and(|text| !text.is_empty()))
        });
        let mut reader = Self {
            buffer,
            stat: open("stat"),
            meminfo: open("meminfo"),
            loadavg: open("loadavg"),
            diskstats: open("diskstats"),
            // Not `net/dev`: `net` is a link to `self/net`, which another root need not have.
            net_dev: open("self/net/dev").or_else(|| open("net/dev")),
            pressure,
            pressure_counters: Default::default(),
            has_cpu_limit: cgroup.cpu_limit().is_some(),
            has_memory_limit: cgroup.memory_limit().is_some(),
            cgroup,
            ticks_per_second,
            last_busy: None,
            busy_percent_seconds: 0.0,
            cpu_counter: ShareOfTime::default(),
            disks: Totals::default(),
            disk_names: Vec::new(),
            networks: Networks::new(sys_root),
            powercap: Powercap::find(sys_root),
            memory_total: None,
        };
        reader.memory_total = reader
            .meminfo
            .as_ref()
            .and_then(|file| parse::meminfo(file.read(&mut reader.buffer).ok()?))
            .map(|m| m.total);
        reader
    }

    /// Whether the kernel offers the metric at all; no series is made for one that it does not.
    pub fn offers(&self, metric: MetricId) -> bool {
        match PRESSURES.iter().position(|(id, _)| *id == metric) {
            Some(place) => self.pressure[place].is_some(),
            None => match metric {
                MetricId::HostCgroupCpuLimit => self.has_cpu_limit,
                MetricId::HostCgroupMemoryLimit => self.has_memory_limit,
                _ => ENERGIES
                    .iter()
                    .find(|(_, ids)| ids.contains(&metric))
                    .is_none_or(|(domain, _)| self.powercap.has(*domain)),
            },
        }
    }

    /// The CPUs count their energy, and this user may not read it.
    pub fn energy_is_refused(&self) -> bool {
        self.powercap.is_refused()
    }

    /// Total memory of the host in bytes, as last read.
    pub fn memory_total(&self) -> Option<u64> {
        self.memory_total
    }

    /// Reads everything that `wants` asks for, at `now`, and hands each reading to `give`.
    pub fn read(
        &mut self,
        now: Mono,
        wants: impl Fn(MetricId) -> bool,
        mut give: impl FnMut(MetricId, Reading),
    ) {
        use MetricId as M;
        let any = |ids: &[MetricId]| ids.iter().any(|id| wants(*id));
        if wants(M::HostCpuPercent) {
            give(M::HostCpuPercent, reading(self.cpu(now)));
        }
        let memory = [M::HostMemoryPercent, M::HostMemoryUsed, M::HostMemoryAvailable, M::HostSwapPercent];
        if any(&memory) {
            let values = self.memory();
            for (id, value) in memory.into_iter().zip(values) {
                give(id, reading(value));
            }
        }
        let loads = [M::HostLoadAverage1m, M::HostLoadAverage5m, M::HostLoadAverage15m];
        if any(&loads) {
            let values =
                self.loadavg.as_ref().and_then(|file| parse::loadavg(file.read(&mut self.buffer).ok()?));
            for (place, id) in loads.into_iter().enumerate() {
                give(id, reading(values.map(|v| v[place])));
            }
        }
        if any(&[M::HostDiskRead, M::HostDiskWrite]) {
            let sums = self.disk();
            give(M::HostDiskRead, reading(sums.map(|s| s[0] as f64 * SECTOR / MIB)));
            give(M::HostDiskWrite, reading(sums.map(|s| s[1] as f64 * SECTOR / MIB)));
        }
        if any(&[M::HostNetRx, M::HostNetTx]) {
            let sums = self.network();
            give(M::HostNetRx, reading(sums.map(|s| s[0] as f64 / MIB)));
            give(M::HostNetTx, reading(sums.map(|s| s[1] as f64 / MIB)));
        }
        for (place, (id, _)) in PRESSURES.iter().enumerate() {
            if wants(*id) {
                let total = self.pressure[place]
                    .as_ref()
                    .and_then(|file| parse::pressure_some(file.read(&mut self.buffer).ok()?));
                let counter = &mut self.pressure_counters[place];
                // The kernel brings this total up to date only every 2 s.
                give(*id, reading(total.map(|micros| counter.clamp(now, micros as f64 / 1e6 * 100.0))));
            }
        }
        for (domain, ids) in ENERGIES {
            if any(&ids) {
                let joules = self.powercap.read(domain, now, &mut self.buffer);
                ids.into_iter().filter(|id| wants(*id)).for_each(|id| give(id, reading(joules)));
            }
        }
        self.cgroup.refresh();
        if wants(M::HostCgroupCpuLimit) {
            give(M::HostCgroupCpuLimit, reading(self.cgroup.cpu_limit()));
        }
        if wants(M::HostCgroupMemoryLimit) {
            give(
                M::HostCgroupMemoryLimit,
                reading(self.cgroup.memory_limit().map(|bytes| bytes as f64 / GIB)),
            );
        }
    }

    /// Busy time as percent x seconds of the whole machine, since the first read.
    fn cpu(&mut self, now: Mono) -> Option<f64> {
        let times = parse::cpu_times(self.stat.as_ref()?.read(&mut self.buffer).ok()?)?;
        // Steps, not the kernel's total: the number of CPUs may change, and the kernel's own sum can
        // fall a little when one of them goes away.
        let step = times.busy.saturating_sub(self.last_busy.unwrap_or(times.busy));
        self.last_busy = Some(times.busy);
        self.busy_percent_seconds += 100.0 * step as f64 / self.ticks_per_second / f64::from(times.cpus);
        // The kernel counts in ticks of 10 ms: over a short time that can be more than there was.
        Some(self.cpu_counter.clamp(now, self.busy_percent_seconds))
    }

    /// Percent, used GiB, available GiB, swap percent.
    fn memory(&mut self) -> [Option<f64>; 4] {
        let Some(info) =
            self.meminfo.as_ref().and_then(|file| parse::meminfo(file.read(&mut self.buffer).ok()?))
        else {
            return [None; 4];
        };
        self.memory_total = Some(info.total);
        let swap = (info.swap_total > 0)
            .then(|| 100.0 * info.swap_total.saturating_sub(info.swap_free) as f64 / info.swap_total as f64);
        let Some(available) = info.available else { return [None, None, None, swap] };
        let (mut total, mut used) = (info.total, info.total.saturating_sub(available));
        let mut left = available;
        if let Some(bound) = self.cgroup.memory_bound(&mut self.buffer)
            && bound.limit < info.total
        {
            (total, used) = (bound.limit, bound.used);
            left = available.min(bound.limit.saturating_sub(bound.used));
        }
        let percent = (total > 0).then(|| 100.0 * used as f64 / total as f64);
        [percent, Some(used as f64 / GIB), Some(left as f64 / GIB), swap]
    }

    fn disk(&mut self) -> Option<[u64; 2]> {
        let text = self.diskstats.as_ref()?.read(&mut self.buffer).ok()?;
        self.disks.begin();
        // A whole device stands before its partitions; the names kept here are the whole ones.
        let mut known = 0;
        for (name, read, written) in parse::diskstats(text) {
            if parse::is_virtual_disk(name)
                || self.disk_names[..known].iter().any(|disk| parse::is_partition_of(name, disk))
            {
                continue;
            }
            if self.disk_names.get(known).is_none_or(|kept| **kept != *name) {
                self.disk_names.truncate(known);
                self.disk_names.push(name.into());
            }
            known += 1;
            self.disks.add(name, [read, written]);
        }
        self.disk_names.truncate(known);
        self.disks.end();
        Some(self.disks.sums)
    }

    fn network(&mut self) -> Option<[u64; 2]> {
        let text = self.net_dev.as_ref()?.read(&mut self.buffer).ok()?;
        Some(self.networks.sum(parse::net_dev(text)))
    }
}

fn reading(value: Option<f64>) -> Reading {
    value.map_or(Reading::Missing, Reading::Value)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs;

    use super::*;

    fn read_at(reader: &mut HostReader, second: f64) -> HashMap<MetricId, Reading> {
        let mut all = HashMap::new();
        let now = Mono((second * 1e9) as u64);
        reader.read(
            now,
            |_| true,
            |id, reading| {
                all.insert(id, reading);
            },
        );
        all
    }

    fn read_all(reader: &mut HostReader) -> HashMap<MetricId, Reading> {
        read_at(reader, 0.0)
    }

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn rates_come_from_steps_and_survive_what_comes_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let net = |eth: u64, veth: Option<u64>| {
            let mut text = format!("h\nh\n  lo: 9 0 0 0 0 0 0 0 9 0\n eth0: {eth} 0 0 0 0 0 0 0 {eth} 0\n");
            if let Some(v) = veth {
                text += &format!(" veth1: {v} 0 0 0 0 0 0 0 0 0\n");
            }
            text
        };
        write(root, "stat", "cpu  100 0 0 900 0 0 0 0 0 0\ncpu0 1\ncpu1 1\nintr 0\n");
        write(
            root,
            "diskstats",
            " 8 0 sda 0 0 2048 0 0 0 4096 0\n 8 1 sda1 0 0 9999 0 0 0 9999 0\n 7 0 loop0 0 0 9 0 0 0 9 0\n",
        );
        write(root, "net/dev", &net(1 << 20, Some(1 << 30)));
        let mut reader = HostReader::new(root, &root.join("none"), &root.join("sys"), 100.0);
        let first = read_all(&mut reader);
        assert_eq!(first[&MetricId::HostNetRx], Reading::Value(0.0));
        assert_eq!(first[&MetricId::HostMemoryUsed], Reading::Missing);
        assert_eq!(first[&MetricId::HostSwapPercent], Reading::Missing);
        write(root, "stat", "cpu  150 0 50 950 0 0 0 0 0 0\ncpu0 1\ncpu1 1\nintr 0\n");
        write(root, "diskstats", " 8 0 sda 0 0 4096 0 0 0 4096 0\n 8 1 sda1 0 0 99999 0 0 0 9999 0\n");
        write(root, "net/dev", &net(3 << 20, None));
        // Half of the second of work would be 200 % of a quarter of a second: it is passed on as time passes.
        assert_eq!(
            read_at(&mut reader, 0.25)[&MetricId::HostCpuPercent],
            Reading::Value(99.999_999_9 * 0.25)
        );
        let second = read_at(&mut reader, 1.0);
        // 100 busy ticks = 1 s, on two CPUs: half of them for a second.
        assert_eq!(second[&MetricId::HostCpuPercent], Reading::Value(50.0));
        assert_eq!(second[&MetricId::HostDiskRead], Reading::Value(1.0));
        assert_eq!(second[&MetricId::HostDiskWrite], Reading::Value(0.0));
        assert_eq!(second[&MetricId::HostNetRx], Reading::Value(2.0));
        assert!(!reader.offers(MetricId::HostCpuPressure) && !reader.offers(MetricId::HostCgroupCpuLimit));
        // The interface comes back: its history is not traffic of this second.
        write(root, "net/dev", &net(3 << 20, Some(1 << 30)));
        assert_eq!(read_all(&mut reader)[&MetricId::HostNetRx], Reading::Value(2.0));
    }

    #[test]
    fn pressure_that_the_kernel_adds_in_lumps_never_exceeds_the_time() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let pressure = |micros: u64| {
            let text = format!(
                "some avg10=0.00 avg60=0.00 avg300=0.00 total={micros}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
            );
            write(root, "pressure/cpu", &text);
        };
        pressure(7_000_000);
        let mut reader = HostReader::new(root, &root.join("none"), &root.join("sys"), 100.0);
        let mut at = |second: f64| match read_at(&mut reader, second)[&MetricId::HostCpuPressure] {
            Reading::Value(total) => total,
            other => panic!("{other:?}"),
        };
        let base = at(0.0);
        assert_eq!(base, 700.0);
        // Two seconds at half load appear at once, between two reads 0.1 s apart.
        pressure(8_000_000);
        assert!((at(0.1) - base - 10.0).abs() < 1e-6);
        assert!((at(0.6) - base - 60.0).abs() < 1e-6);
        assert_eq!(at(1.6) - base, 100.0, "nothing is lost, nothing is invented");
        assert_eq!(at(2.6) - base, 100.0);
        // A total that begins anew is passed on as it is.
        pressure(0);
        assert_eq!(at(3.0), 0.0);
    }

    #[test]
    fn a_cgroup_bounds_the_memory() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        write(
            root,
            "proc/meminfo",
            "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 100 kB\nSwapFree: 25 kB\n",
        );
        write(root, "proc/self/cgroup", "0::/\n");
        write(root, "cg/cgroup.procs", "");
        write(root, "cg/memory.max", &format!("{}", 4u64 << 30));
        write(root, "cg/memory.current", &format!("{}", 3u64 << 30));
        write(root, "cg/memory.stat", &format!("inactive_file {}\n", 1u64 << 30));
        let mut reader = HostReader::new(&root.join("proc"), &root.join("cg"), &root.join("sys"), 100.0);
        let all = read_all(&mut reader);
        assert_eq!(all[&MetricId::HostMemoryUsed], Reading::Value(2.0));
        assert_eq!(all[&MetricId::HostMemoryAvailable], Reading::Value(2.0));
        assert_eq!(all[&MetricId::HostMemoryPercent], Reading::Value(50.0));
        assert_eq!(all[&MetricId::HostSwapPercent], Reading::Value(75.0));
        assert_eq!(all[&MetricId::HostCgroupMemoryLimit], Reading::Value(4.0));
        let mut host = HostReader::new(&root.join("proc"), &root.join("none"), &root.join("sys"), 100.0);
        assert_eq!(read_all(&mut host)[&MetricId::HostMemoryUsed], Reading::Value(8.0));
    }

    #[test]
    fn bonds_and_bridges_do_not_count_what_their_parts_have_carried() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let net = |bytes: u64| {
            let names = ["lo", "eth0", "eth1", "bond0", "docker0", "veth1", "tun0"];
            let lines = names.map(|name| format!("  {name}: {bytes} 0 0 0 0 0 0 0 {bytes} 0\n"));
            format!("h\nh\n{}", lines.concat())
        };
        for name in ["eth0", "eth1"] {
            fs::create_dir_all(root.join(format!("sys/class/net/{name}/device"))).unwrap();
        }
        fs::create_dir_all(root.join("sys/class/net/bond0")).unwrap();
        write(root, "net/dev", &net(0));
        let rise = |reader: &mut HostReader| {
            write(root, "net/dev", &net(0));
            read_all(reader);
            write(root, "net/dev", &net(4 << 20));
            let all = read_all(reader);
            [MetricId::HostNetRx, MetricId::HostNetTx].map(|id| all[&id])
        };
        let mut reader = HostReader::new(root, &root.join("none"), &root.join("sys"), 100.0);
        assert_eq!(rise(&mut reader), [Reading::Value(8.0); 2], "two cards");
        // In a container no interface is that of a device.
        let mut reader = HostReader::new(root, &root.join("none"), &root.join("no-sys"), 100.0);
        assert_eq!(rise(&mut reader), [Reading::Value(24.0); 2]);
    }

    #[test]
    fn pressure_inside_a_limited_cgroup_is_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let stalled = |micros: u64| format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={micros}\n");
        write(root, "proc/self/cgroup", "0::/\n");
        write(root, "proc/pressure/cpu", &stalled(5_000_000));
        write(root, "proc/pressure/io", &stalled(6_000_000));
        write(root, "cg/cgroup.procs", "");
        write(root, "cg/cpu.max", "max 100000\n");
        write(root, "cg/cpu.pressure", &stalled(2_000_000));
        let pressures = |reader: &mut HostReader| {
            let all = read_all(reader);
            [MetricId::HostCpuPressure, MetricId::HostIoPressure].map(|id| (reader.offers(id), all[&id]))
        };
        let mut unlimited = HostReader::new(&root.join("proc"), &root.join("cg"), &root.join("sys"), 100.0);
        assert_eq!(
            pressures(&mut unlimited),
            [(true, Reading::Value(500.0)), (true, Reading::Value(600.0))],
            "without a limit the host is ours"
        );
        write(root, "cg/cpu.max", "150000 100000\n");
        let mut limited = HostReader::new(&root.join("proc"), &root.join("cg"), &root.join("sys"), 100.0);
        assert_eq!(
            pressures(&mut limited),
            [(true, Reading::Value(200.0)), (false, Reading::Missing)],
            "and the host's does not stand in for what the cgroup does not have"
        );
    }

    #[test]
    fn this_machine_agrees_with_the_oracle() {
        let mut reader =
            HostReader::new(Path::new("/proc"), Path::new("/sys/fs/cgroup"), Path::new("/sys"), 100.0);
        let mut system = sysinfo::System::new().unwrap();
        system.refresh_memory();
        assert_eq!(reader.memory_total(), Some(system.total_memory()));
        let all = read_all(&mut reader);
        let load = sysinfo::System::load_average().unwrap();
        let Reading::Value(fifteen) = all[&MetricId::HostLoadAverage15m] else { panic!("no load average") };
        assert!((fifteen - load.fifteen).abs() < 0.5, "{fifteen} against {}", load.fifteen);
        for id in
            [MetricId::HostCpuPercent, MetricId::HostMemoryUsed, MetricId::HostDiskRead, MetricId::HostNetRx]
        {
            assert!(matches!(all[&id], Reading::Value(v) if v >= 0.0), "{id:?}: {:?}", all[&id]);
        }
    }
}
