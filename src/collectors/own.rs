//! gpurun's own process and the constants of the kernel it runs on.

use std::time::Duration;

fn sysconf(name: libc::c_int) -> Option<u64> {
    // SAFETY: sysconf takes a number and gives a number; it touches no memory of ours.
    let value = unsafe { libc::sysconf(name) };
    u64::try_from(value).ok().filter(|value| *value > 0)
}

/// Clock ticks of `/proc/PID/stat` in a second; 100 on every Linux so far.
pub fn ticks_per_second() -> f64 {
    sysconf(libc::_SC_CLK_TCK).unwrap_or(100) as f64
}

/// Time since boot, suspended time included: the clock of a process's start time.
pub fn since_boot() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec into `time`; the clock exists on every Linux we run on.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
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
        assert!(ticks_per_second() >= 1.0 && descriptor_limit() > 3);
        assert!(since_boot() > Duration::ZERO);
    }
}
