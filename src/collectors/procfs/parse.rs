//! Parsers of `/proc` texts, on bytes and without allocation. Whatever the bytes are, they give a
//! value or `None`, never a panic and never an invented 0.

/// An unsigned decimal number that fills the whole slice.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// A signed decimal number that fills the whole slice.
fn signed(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(digits) => i64::try_from(number(digits)?).ok().map(|n| -n),
        None => i64::try_from(number(text)?).ok(),
    }
}

/// The words of a text, separated by blanks of any kind.
pub fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// The lines of a text, empty ones left out.
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        // On a large host these files are tens of kilobytes.
        while !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
            let line = &rest[..end];
            rest = rest.get(end + 1..).unwrap_or_default();
            if !line.is_empty() {
                return Some(line);
            }
        }
        None
    })
}

/// What gpurun uses of `/proc/PID/stat`. Times are in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat<'a> {
    /// The name between the first `(` and the last `)`; any bytes.
    pub comm: &'a [u8],
    /// State letter; `Z` is a zombie.
    pub state: u8,
    /// Parent, as of now.
    pub ppid: i32,
    /// User and system time of the process, ended threads included.
    pub own_ticks: u64,
    /// User and system time of the children that it has waited for.
    pub children_ticks: u64,
    /// Number of threads.
    pub threads: u64,
    /// Start, in ticks since boot.
    pub start_ticks: u64,
}

impl Stat<'_> {
    /// Whether its first thread has ended: the process is a zombie, unless other threads live.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Parses `/proc/PID/stat`.
pub fn stat(text: &[u8]) -> Option<Stat<'_>> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    // The name may hold anything, `) ` included; none of the fields after it holds a bracket.
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let comm = text.get(open + 1..close)?;
    let mut fields = words(text.get(close + 1..)?);
    let state = *fields.next()?.first()?;
    let ppid = i32::try_from(signed(fields.next()?)?).ok()?;
    // Fields 5-13: pgrp, session, tty, tpgid, flags, minflt, cminflt, majflt, cmajflt.
    let user = number(fields.nth(9)?)?;
    let system = number(fields.next()?)?;
    // The children's times are signed in the kernel's format.
    let children_user = u64::try_from(signed(fields.next()?)?).unwrap_or(0);
    let children_system = u64::try_from(signed(fields.next()?)?).unwrap_or(0);
    // Fields 18, 19: priority, nice.
    let threads = u64::try_from(signed(fields.nth(2)?)?).ok()?;
    let start_ticks = number(fields.nth(1)?)?;
    Some(Stat {
        comm,
        state,
        ppid,
        own_ticks: user.saturating_add(system),
        children_ticks: children_user.saturating_add(children_system),
        threads,
        start_ticks,
    })
}

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

/// The first number of the line that begins with `label`.
pub fn labelled(text: &[u8], label: &[u8]) -> Option<u64> {
    let line = lines(text).find(|line| line.starts_with(label))?;
    number(words(&line[label.len()..]).next()?)
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

    fn stat_text(comm: &[u8]) -> Vec<u8> {
        let mut text = b"42 (".to_vec();
        text.extend_from_slice(comm);
        text.extend_from_slice(
            b") S 7 42 42 0 -1 4194304 100 200 3 4 50 60 70 80 20 0 9 0 123456 1000 250 18446744073709551615 1 1\n",
        );
        text
    }

    #[test]
    fn stat_fields_are_where_proc_5_says() {
        let text = stat_text(b"python");
        let stat = stat(&text).unwrap();
        assert_eq!(stat.comm, b"python");
        assert_eq!((stat.state, stat.ppid, stat.threads, stat.start_ticks), (b'S', 7, 9, 123_456));
        assert_eq!((stat.own_ticks, stat.children_ticks), (110, 150));
    }

    #[test]
    fn a_torn_stat_is_none() {
        let text = stat_text(b"x");
        for cut in 0..60 {
            assert_eq!(stat(&text[..cut]), None, "cut at {cut}");
        }
        assert_eq!(stat(b") ("), None);
    }

    proptest! {
        #[test]
        fn any_name_leaves_the_fields_alone(comm in prop::collection::vec(any::<u8>(), 0..64)) {
            let text = stat_text(&comm);
            let parsed = stat(&text).unwrap();
            prop_assert_eq!(parsed.comm, &comm[..]);
            prop_assert_eq!((parsed.ppid, parsed.start_ticks), (7, 123_456));
        }

        #[test]
        fn names_with_brackets_and_blanks(parts in prop::collection::vec(prop::sample::select(vec![") ", "(", ")", " ", ") S 1 ", "\n"]), 0..8)) {
            let comm = parts.concat();
            let text = stat_text(comm.as_bytes());
            let parsed = stat(&text).unwrap();
            prop_assert_eq!(parsed.comm, comm.as_bytes());
            prop_assert_eq!(parsed.ppid, 7);
        }

        #[test]
        fn garbage_never_panics(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = stat(&text);
            let _ = io(&text);
            let _ = status_memory(&text);
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
