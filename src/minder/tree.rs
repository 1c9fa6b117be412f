//! The job's processes by their parents: which are in the tree, and signals to them.

use std::collections::VecDeque;
use std::fs;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::sys::stat::Stat;

/// Whether `pid` descends from `ancestor` (or is it). `None` when `/proc` no longer knows.
pub(super) fn descends(pid: i32, ancestor: i32) -> Option<bool> {
    let mut at = pid;
    // Deeper trees than this do not occur; the bound is against ids reused during the walk.
    for _ in 0..4096 {
        if at == ancestor {
            return Some(true);
        }
        if at <= 1 {
            return Some(false);
        }
        at = Stat::read(at)?.ppid;
    }
    None
}

/// Whether a process has something to do, whether or not it has a CPU.
pub(super) fn is_running(pid: i32) -> bool {
    Stat::read(pid).is_some_and(|stat| stat.state == b'R')
}

/// Children that gpurun already had when it started (a shell's background jobs before `exec gpurun`).
pub(super) fn children_before_the_job() -> Vec<i32> {
    children(rustix::process::getpid().as_raw_nonzero().get())
}

/// Children of every thread of `pid`; by the kernel's list, or by a look at all processes without it.
fn children(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let mut listed = false;
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        if let Ok(list) = fs::read_to_string(task.path().join("children")) {
            listed = true;
            found.extend(list.split_ascii_whitespace().filter_map(|p| p.parse::<i32>().ok()));
        }
    }
    if !listed && fs::metadata("/proc/self/task").is_ok() && !has_children_lists() {
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let other = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok());
            found.extend(other.filter(|o| Stat::read(*o).is_some_and(|s| s.ppid == pid)));
        }
    }
    found
}

fn has_children_lists() -> bool {
    fs::metadata("/proc/thread-self/children").is_ok()
}

/// Living descendants of `root` without it, parents before children; those under `except` are left out.
pub(super) fn descendants(root: i32, except: &[i32]) -> Vec<i32> {
    let mut found = Vec::new();
    let mut queue = VecDeque::from([root]);
    while let Some(pid) = queue.pop_front() {
        for child in children(pid) {
            if except.contains(&child) || found.contains(&child) {
                continue;
            }
            queue.push_back(child);
            if Stat::read(child).is_some_and(|s| !s.has_ended()) {
                found.push(child);
            }
        }
    }
    found
}

/// Sends a signal to every living descendant of `root` except those under `except`; returns to how many. With SIGKILL,
/// processes that are forked meanwhile are followed until none is new.
pub(super) fn signal_descendants(root: i32, except: &[i32], signal: Signal) -> usize {
    let mut sent: Vec<i32> = Vec::new();
    for _ in 0..64 {
        let new: Vec<i32> = descendants(root, except).into_iter().filter(|pid| !sent.contains(pid)).collect();
        if new.is_empty() {
            break;
        }
        for pid in new {
            if let Some(held) = Held::new(pid, root) {
                held.send(signal);
            }
            sent.push(pid);
        }
        if signal != Signal::KILL {
            break;
        }
    }
    sent.len()
}

/// A process held by a descriptor, so that a signal can never hit another one that got its number.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) pid: i32,
    start_ticks: u64,
    fd: Option<OwnedFd>,
}

impl Held {
    /// Holds `pid` if it is alive and a descendant of `root`.
    pub(super) fn new(pid: i32, root: i32) -> Option<Held> {
        let fd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok();
        // Asked after the descriptor was opened: if it still descends from us now, it is the right one.
        let stat = Stat::read(pid).filter(|s| !s.has_ended())?;
        (descends(pid, root) == Some(true)).then_some(Held { pid, start_ticks: stat.start_ticks, fd })
    }

    /// Whether it still runs.
    pub(super) fn alive(&self) -> bool {
        Stat::read(self.pid).is_some_and(|s| s.start_ticks == self.start_ticks && !s.has_ended())
    }

    /// Sends a signal; kernels before 5.3 have no such descriptors and get a checked `kill`.
    pub(super) fn send(&self, signal: Signal) -> bool {
        match (&self.fd, Pid::from_raw(self.pid)) {
            (Some(fd), _) => pidfd_send_signal(fd, signal).is_ok(),
            (None, Some(pid)) => self.alive() && kill_process(pid, signal).is_ok(),
            (None, None) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_descends_from_itself_and_not_from_a_stranger() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(descends(own, own), Some(true));
        assert_eq!(descends(own, i32::MAX), Some(false));
        assert_eq!(descends(i32::MAX, own), None);
        let parent = Stat::read(own).unwrap().ppid;
        assert_eq!(descends(own, parent), Some(true));
    }

    #[test]
    fn a_child_is_found_named_and_ended() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(descendants(own, &[]).contains(&pid));
        assert!(!descendants(own, &[pid]).contains(&pid));
        let held = Held::new(pid, own).unwrap();
        assert!(held.alive());
        assert!(held.send(Signal::KILL));
        child.wait().unwrap();
        assert!(!held.alive());
        assert!(Held::new(1, own).is_none());
    }
}
