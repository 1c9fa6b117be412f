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

/// Nanoseconds that all threads of a process of this PID namespace have been on a CPU, as the scheduler last noted them
/// down: at each tick, and whenever one left its CPU. No permission is asked for. `None`: there is no such process.
pub fn of_process(pid: i32) -> Option<u64> {
    /// `CPUCLOCK_SCHED` in the lowest bits of a clock's number; above them, inverted, the pid.
    const SCHED: libc::clockid_t = 2;
    /// No kernel has pids as high; their clocks' numbers would be those of other clocks.
    const PIDS: std::ops::Range<i32> = 1..1 << 28;
    if !PIDS.contains(&pid) {
        return None;
    }
    try_read((!pid << 3) | SCHED).map(nanos)
}

fn nanos(t: libc::timespec) -> u64 {
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

/// A clock that exists on every Linux.
fn read(clock: libc::clockid_t) -> libc::timespec {
    try_read(clock).unwrap_or(libc::timespec { tv_sec: 0, tv_nsec: 0 })
}

fn try_read(clock: libc::clockid_t) -> Option<libc::timespec> {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec for the call's duration; the kernel refuses a clock that it does not have.
    let answer = unsafe { libc::clock_gettime(clock, &raw mut t) };
    (answer == 0).then_some(t)
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

    #[test]
    fn a_process_has_a_clock_that_runs_while_it_does() {
        let own = i32::try_from(std::process::id()).unwrap();
        let (seconds, first) = (own_cpu_seconds(), of_process(own).unwrap());
        while of_process(own).unwrap() <= first {
            std::hint::spin_loop();
        }
        assert!(own_cpu_seconds() > seconds);
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(of_process(pid).is_some());
        drop(child.stdin.take());
        // A zombie still has its clock; once it is reaped there is none.
        child.wait().unwrap();
        assert_eq!(of_process(pid), None);
        for none in [i32::MAX, 0, -1, i32::MIN] {
            assert_eq!(of_process(none), None);
        }
    }
}
