//! gpurun's own process and the constants of the kernel it runs on.

use std::time::Duration;

use crate::model::time::Mono;

fn sysconf(name: libc::c_int) -> Option<u64> {
    // SAFETY: sysconf takes a number and gives a number; it touches no memory of ours.
    let value = unsafe { libc::sysconf(name) };
    u64::try_from(value).ok().filter(|value| *value > 0)
}

/// Clock ticks of `/proc/PID/stat` in a second; 100 on every Linux so far.
pub fn ticks_per_second() -> f64 {
    sysconf(libc::_SC_CLK_TCK).unwrap_or(100) as f64
}

/// Bytes of a memory page.
pub fn page_bytes() -> u64 {
    sysconf(libc::_SC_PAGESIZE).unwrap_or(4096)
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec into `time`; both clocks exist on every Linux we run on.
    unsafe { libc::clock_gettime(id, &mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// `CLOCK_MONOTONIC`, for the time that a sample takes.
pub fn monotonic() -> Mono {
    Mono(u64::try_from(clock(libc::CLOCK_MONOTONIC).as_nanos()).unwrap_or(u64::MAX))
}

/// Time since boot, suspended time included: the clock of a process's start time.
pub fn since_boot() -> Duration {
    clock(libc::CLOCK_BOOTTIME)
}

/// CPU seconds of gpurun itself, all threads; its children's are not in it.
pub fn cpu_seconds() -> Option<f64> {
    // SAFETY: an all-zero rusage is a valid value of that plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one rusage into `usage`.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) } != 0 {
        return None;
    }
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    Some(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}

/// How many descriptors this process may have open (the soft limit).
pub fn descriptor_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit into `limit`.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return 1024;
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers() {
        assert!(ticks_per_second() >= 1.0 && page_bytes() >= 4096 && descriptor_limit() > 3);
        let before = cpu_seconds().unwrap();
        let start = monotonic();
        while cpu_seconds().unwrap() <= before {
            std::hint::spin_loop();
        }
        assert!(monotonic() > start && since_boot() > Duration::ZERO);
    }
}
