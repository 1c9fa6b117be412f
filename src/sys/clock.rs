//! Reading the kernel's clocks. The only place that turns its time into ours.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::model::time::{ClockPair, Mono, Wall};

/// Reads `CLOCK_MONOTONIC`, which does not advance while the host is suspended.
pub fn monotonic() -> Mono {
    let time = clock_gettime(ClockId::Monotonic);
    Mono(u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Reads `CLOCK_REALTIME`.
pub fn wall() -> Wall {
    let time = clock_gettime(ClockId::Realtime);
    Wall(time.tv_sec * 1_000_000 + time.tv_nsec / 1000)
}

/// Reads both, one right after the other.
pub fn pair() -> ClockPair {
    ClockPair { mono: monotonic(), wall: wall() }
}

/// Time that all threads of this process have been on a CPU; its children's is not in it.
pub fn own_cpu() -> Duration {
    duration(clock_gettime(ClockId::ProcessCPUTime))
}

/// Time since boot, suspended time included: the clock of a process's start time.
pub fn since_boot() -> Duration {
    duration(clock_gettime(ClockId::Boottime))
}

/// Clock ticks of `/proc/PID/stat` in a second; 100 on every Linux so far.
pub fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

fn duration(time: Timespec) -> Duration {
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
