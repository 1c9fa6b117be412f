//! Reading the kernel's clocks. The only place that turns its time into ours.

use std::time::Duration;

use crate::model::time::{ClockPair, Mono, Wall};

/// Reads `CLOCK_MONOTONIC`, which does not advance while the host is suspended.
pub fn monotonic() -> Mono {
    let time = read(libc::CLOCK_MONOTONIC);
    Mono(u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Reads `CLOCK_REALTIME`.
pub fn wall() -> Wall {
    let time = read(libc::CLOCK_REALTIME);
    Wall(time.tv_sec * 1_000_000 + time.tv_nsec / 1000)
}

/// Reads both, one right after the other.
pub fn pair() -> ClockPair {
    ClockPair { mono: monotonic(), wall: wall() }
}

/// Time that all threads of this process have been on a CPU; its children's is not in it.
pub fn own_cpu() -> Duration {
    duration(read(libc::CLOCK_PROCESS_CPUTIME_ID))
}

/// Time since boot, suspended time included: the clock of a process's start time.
pub fn since_boot() -> Duration {
    duration(read(libc::CLOCK_BOOTTIME))
}

/// CPUs of the machine that are in use, at least 1.
pub fn online_cpus() -> f64 {
    // SAFETY: takes a number and reads what the kernel says.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    count.max(1) as f64
}

/// Clock ticks of `/proc/PID/stat` in a second; 100 on every Linux so far.
pub fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// Reads a clock that exists on every Linux. Through the C library, as the Python module does: what is preloaded to
/// shift the clocks then shifts both alike.
fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call's duration.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time
}

fn duration(time: libc::timespec) -> Duration {
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clocks_answer_and_do_not_go_back() {
        let first = monotonic();
        assert!(monotonic() >= first);
        // 2020-01-01 in microseconds: a wall clock before that was not read.
        assert!(wall().0 > 1_577_836_800_000_000);
        assert!(since_boot() > Duration::ZERO && own_cpu() > Duration::ZERO && ticks_per_second() >= 1.0);
    }
}
