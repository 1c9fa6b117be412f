//! Reading the kernel's clocks. The only place that turns its time into ours.

use crate::model::time::{ClockPair, Mono, Wall};

/// Reads `CLOCK_MONOTONIC`, which does not advance while the host is suspended.
pub fn monotonic() -> Mono {
    Mono(nanos(read(libc::CLOCK_MONOTONIC)))
}

/// Reads `CLOCK_REALTIME`.
pub fn wall() -> Wall {
    let t = read(libc::CLOCK_REALTIME);
    Wall(t.tv_sec * 1_000_000 + t.tv_nsec / 1000)
}

/// Reads both, one right after the other.
pub fn pair() -> ClockPair {
    ClockPair { mono: monotonic(), wall: wall() }
}

/// Seconds that all threads of gpurun have been on a CPU; its children's are not in it.
pub fn own_cpu_seconds() -> f64 {
    let t = read(libc::CLOCK_PROCESS_CPUTIME_ID);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn nanos(t: libc::timespec) -> u64 {
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

/// A clock that exists on every Linux.
fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec for the call's duration.
    unsafe { libc::clock_gettime(clock, &raw mut t) };
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_does_not_go_back() {
        let first = monotonic();
        assert!(monotonic() >= first);
        // 2020-01-01 in microseconds: a wall clock before that was not read.
        assert!(wall().0 > 1_577_836_800_000_000);
    }
}
