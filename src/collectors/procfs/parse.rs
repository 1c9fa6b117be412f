//! Parsers of `/proc` texts, on bytes and without allocation. Whatever the bytes are, they give a
//! value or `None`, never a panic and never an invented 0.

use crate::sys::text::{labelled, lines, number, words};

/// Storage bytes of `/proc/PID/io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Io {
    /// Bytes fetched from storage, reaped children included.
    pub read: u64,
    /// Bytes made dirty towards storage, reaped children included.
    pub written: u64,
    /// Of those, bytes truncated away before they reached it.
    pub cancelled: u64,
}

/// Parses `/proc/PID/io`.
pub fn io(text: &[u8]) -> Option<Io> {
    Some(Io {
        read: labelled(text, b"read_bytes:")?,
        written: labelled(text, b"write_bytes:")?,
        cancelled: labelled(text, b"cancelled_write_bytes:")?,
    })
}

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// `VmRSS`.
    pub resident: u64,
    /// `VmHWM`: the most that was resident since the program began; `None` on kernels that do not keep it.
    pub peak: Option<u64>,
}

/// Memory of `/proc/PID/status`; `None` for zombies and kernel threads.
pub fn status_memory(text: &[u8]) -> Option<Memory> {
    let kib = |label: &[u8]| labelled(text, label)?.checked_mul(1024);
    Some(Memory { resident: kib(b"VmRSS:")?, peak: kib(b"VmHWM:") })
}

/// The CPUs that a process may run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuMask([u64; CpuMask::WORDS]);

impl CpuMask {
    /// Room for 1024 CPUs, as in `cpu_set_t`.
    const WORDS: usize = 16;

    /// Adds the CPUs of another mask.
    pub fn add(&mut self, other: &CpuMask) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }

    /// How many CPUs it names.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

/// `Cpus_allowed` of `/proc/PID/status`: hexadecimal, in groups of eight digits. `None` for more CPUs than the mask has
/// room for.
pub fn status_affinity(text: &[u8]) -> Option<CpuMask> {
    let label = b"Cpus_allowed:";
    let line = lines(text).find(|line| line.starts_with(label))?;
    let mut mask = CpuMask::default();
    let digits = words(&line[label.len()..]).next()?.iter().rev().filter(|byte| **byte != b',');
    for (place, digit) in digits.enumerate() {
        let bits = u64::from(char::from(*digit).to_digit(16)?);
        match mask.0.get_mut(place / 16) {
            Some(word) => *word |= bits << (4 * (place % 16)),
            None if bits == 0 => {}
            None => return None,
        }
    }
    Some(mask)
}

/// The innermost pid of `NSpid` in `/proc/PID/status` and the number of namespaces listed.
pub fn status_namespaces(text: &[u8]) -> Option<(i32, usize)> {
    let label = b"NSpid:";
    let line = lines(text).find(|line| line.starts_with(label))?;
    let list = &line[label.len()..];
    let inner = i32::try_from(number(words(list).last()?)?).ok()?;
    Some((inner, words(list).count()))
}

/// `Pss` of `/proc/PID/smaps_rollup`, in bytes.
pub fn rollup_pss(text: &[u8]) -> Option<u64> {
    labelled(text, b"Pss:")?.checked_mul(1024)
}

/// The pids of a `children` file.
pub fn children(text: &[u8]) -> impl Iterator<Item = i32> {
    words(text).filter_map(|word| number(word).and_then(|n| i32::try_from(n).ok()).filter(|pid| *pid > 0))
}

/// The first line of `/proc/stat` and the number of CPUs that follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTimes {
    /// Ticks in which a CPU did something: all but idle and iowait.
    pub busy: u64,
    /// CPUs that are online.
    pub cpus: u32,
}

/// Parses the CPU lines of `/proc/stat`.
pub fn cpu_times(text: &[u8]) -> Option<CpuTimes> {
    let mut all = lines(text);
    let first = all.next()?.strip_prefix(b"cpu ")?;
    let mut busy = 0u64;
    // user nice system idle iowait irq softirq steal; guest time is already inside user and nice.
    let mut fields = 0;
    for (place, word) in words(first).take(8).enumerate() {
        let ticks = number(word)?;
        if place != 3 && place != 4 {
            busy = busy.saturating_add(ticks);
        }
        fields += 1;
    }
    if fields < 4 {
        return None;
    }
    let cpus = all.take_while(|line| line.starts_with(b"cpu")).count();
    Some(CpuTimes { busy, cpus: u32::try_from(cpus).ok().filter(|n| *n > 0)? })
}

/// What gpurun uses of `/proc/meminfo`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// `MemTotal`.
    pub total: u64,
    /// `MemAvailable`; `None` before Linux 3.14.
    pub available: Option<u64>,
    /// `SwapTotal`.
    pub swap_total: u64,
    /// `SwapFree`.
    pub swap_free: u64,
}

/// Parses `/proc/meminfo`.
pub fn meminfo(text: &[u8]) -> Option<MemInfo> {
    let (mut total, mut available, mut swap_total, mut swap_free) = (None, None, None, None);
    for line in lines(text) {
        let slot = if line.starts_with(b"MemTotal:") {
            &mut total
        } else if line.starts_with(b"MemAvailable:") {
            &mut available
        } else if line.starts_with(b"SwapTotal:") {
            &mut swap_total
        } else if line.starts_with(b"SwapFree:") {
            &mut swap_free
        } else {
            continue;
        };
        *slot = words(line).nth(1).and_then(number).and_then(|kib| kib.checked_mul(1024));
        if total.is_some() && available.is_some() && swap_total.is_some() && swap_free.is_some() {
            break;
        }
    }
    Some(MemInfo {
        total: total?,
        available,
        swap_total: swap_total.unwrap_or(0),
        swap_free: swap_free.unwrap_or(0),
    })
}

/// The three means of `/proc/loadavg`.
pub fn loadavg(text: &[u8]) -> Option<[f64; 3]> {
    let mut values = words(text).map(|word| std::str::from_utf8(word).ok()?.parse::<f64>().ok());
    Some([values.next()??, values.next()??, values.next()??])
}

/// `total` of the `some` line of a pressure file, in microseconds.
pub fn pressure_some(text: &[u8]) -> Option<u64> {
    let line = lines(text).find(|line| line.starts_with(b"some "))?;
    words(line).find_map(|word| number(word.strip_prefix(b"total=")?))
}

/// One line of `/proc/diskstats`: name, sectors read, sectors written (512 bytes each).
pub fn diskstats(text: &[u8]) -> impl Iterator<Item = (&[u8], u64, u64)> {
    lines(text).filter_map(|line| {
        let mut fields = words(line).skip(2);
        let name = fields.next()?;
        let read = number(fields.nth(2)?)?;
        let written = number(fields.nth(3)?)?;
        Some((name, read, written))
    })
}

/// Whether a block device is a stack on others, memory, or a medium that is never a job's disk.
pub fn is_virtual_disk(name: &[u8]) -> bool {
    const PREFIXES: &[&[u8]] = &[b"loop", b"ram", b"zram", b"dm-", b"md", b"sr", b"fd", b"bcache", b"drbd"];
    PREFIXES.iter().any(|prefix| {
        name.strip_prefix(*prefix).is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_digit))
    }) || is_nvme_path(name)
}

/// `nvme0c1n1`: one path of a multipath drive, whose bytes `nvme0n1` counts too.
fn is_nvme_path(name: &[u8]) -> bool {
    name.strip_prefix(b"nvme").is_some_and(|rest| rest.contains(&b'c'))
}

/// Whether `name` is a partition of the whole device `disk`: `sda1` of `sda`, `nvme0n1p2` of `nvme0n1`.
pub fn is_partition_of(name: &[u8], disk: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(disk) else { return false };
    let digits = match disk.last() {
        Some(last) if last.is_ascii_digit() => rest.strip_prefix(b"p"),
        Some(_) => Some(rest),
        None => None,
    };
    digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

/// One line of `/proc/net/dev`: name, bytes received, bytes sent.
pub fn net_dev(text: &[u8]) -> impl Iterator<Item = (&[u8], u64, u64)> {
    lines(text).filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = words(&line[..colon]).next()?;
        let mut fields = words(&line[colon + 1..]);
        let received = number(fields.next()?)?;
        let sent = number(fields.nth(7)?)?;
        Some((name, received, sent))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn garbage_never_panics(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = io(&text);
            let _ = (status_memory(&text), status_affinity(&text));
            let _ = status_namespaces(&text);
            let _ = rollup_pss(&text);
            let _ = cpu_times(&text);
            let _ = meminfo(&text);
            let _ = loadavg(&text);
            let _ = pressure_some(&text);
            let _ = children(&text).count() + diskstats(&text).count() + net_dev(&text).count();
        }
    }

    #[test]
    fn io_and_memory_texts() {
        let text = b"rchar: 5\nwchar: 6\nsyscr: 1\nsyscw: 2\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 100\n";
        assert_eq!(io(text), Some(Io { read: 4096, written: 8192, cancelled: 100 }));
        assert_eq!(
            status_memory(b"Name:\tx\nVmHWM:\t   12 kB\nVmRSS:\t 4 kB\n"),
            Some(Memory { resident: 4 << 10, peak: Some(12 << 10) })
        );
        assert_eq!(status_memory(b"VmRSS:\t 4 kB\n"), Some(Memory { resident: 4 << 10, peak: None }));
        assert_eq!(status_memory(b"Name:\tzombie\n"), None);
        let cpus = |mask: &str| status_affinity(format!("Name:\tx\nCpus_allowed:\t{mask}\n").as_bytes());
        assert_eq!(cpus("3").map(|mask| mask.count()), Some(2));
        assert_eq!(cpus("ff,80000001,00000000").map(|mask| mask.count()), Some(10));
        assert_eq!(
            cpus(&format!("0,{}", "ffffffff,".repeat(32).trim_end_matches(','))).map(|m| m.count()),
            Some(1024)
        );
        assert_eq!(cpus(&format!("1,{}", "ffffffff,".repeat(32).trim_end_matches(','))), None, "too many");
        assert_eq!((cpus("3-5"), cpus("")), (None, None));
        let mut both = cpus("c").unwrap();
        both.add(&cpus("1,00000008").unwrap());
        assert_eq!(both.count(), 3);
        assert_eq!(status_namespaces(b"NSpid:\t900\t12\t1\n"), Some((1, 3)));
        assert_eq!(
            rollup_pss(b"00-ff ---p 0 0 [rollup]\nRss: 9 kB\nPss: 3 kB\nPss_Dirty: 1 kB\n"),
            Some(3072)
        );
        assert_eq!(children(b"12 13 4000 ").collect::<Vec<_>>(), [12, 13, 4000]);
    }

    #[test]
    fn cpu_lines_leave_idle_iowait_and_guest_out() {
        let text =
            b"cpu  10 20 30 400 50 6 7 8 9 9\ncpu0 1 1 1 1 1 1 1 1 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\nintr 5\n";
        assert_eq!(cpu_times(text), Some(CpuTimes { busy: 10 + 20 + 30 + 6 + 7 + 8, cpus: 2 }));
        assert_eq!(cpu_times(b"cpu  1 2\n"), None);
    }

    #[test]
    fn meminfo_without_available_and_swap() {
        assert_eq!(
            meminfo(b"MemTotal: 8 kB\nMemFree: 1 kB\n"),
            Some(MemInfo { total: 8192, available: None, swap_total: 0, swap_free: 0 })
        );
        assert_eq!(meminfo(b"MemFree: 1 kB\n"), None);
    }

    #[test]
    fn whole_disks_only() {
        assert!(is_partition_of(b"sda1", b"sda") && is_partition_of(b"nvme0n1p2", b"nvme0n1"));
        assert!(is_partition_of(b"mmcblk0p1", b"mmcblk0"));
        assert!(!is_partition_of(b"sdaa", b"sda") && !is_partition_of(b"nvme0n10", b"nvme0n1"));
        assert!(!is_partition_of(b"sda", b"sda"));
        assert!(is_virtual_disk(b"dm-0") && is_virtual_disk(b"loop7") && is_virtual_disk(b"md127"));
        assert!(is_virtual_disk(b"nvme0c0n1"));
        assert!(!is_virtual_disk(b"sda") && !is_virtual_disk(b"nvme0n1") && !is_virtual_disk(b"vda"));
    }

    #[test]
    fn counters_of_disks_and_interfaces() {
        let disks = b" 254 0 vda 100 5 2000 30 200 6 4000 70 0 1 2 0 0 0 0 0 0\n";
        assert_eq!(diskstats(disks).collect::<Vec<_>>(), [(&b"vda"[..], 2000, 4000)]);
        let net = b"Inter-|   Receive  |  Transmit\n face |bytes packets\n  eth0: 56 2 0 0 0 0 0 0 30 4 0 0 0 0 0 0\n    lo:7 1 0 0 0 0 0 0 8 1 0 0 0 0 0 0\n";
        assert_eq!(net_dev(net).collect::<Vec<_>>(), [(&b"eth0"[..], 56, 30), (&b"lo"[..], 7, 8)]);
        assert_eq!(
            pressure_some(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=123\nfull avg10=0 total=9\n"),
            Some(123)
        );
        assert_eq!(loadavg(b"0.50 1.25 2.00 1/97 11004\n"), Some([0.5, 1.25, 2.0]));
    }
}
