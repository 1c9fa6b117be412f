//! The job's processes by their parents: who is in the tree, who is left over, and ending them.

use std::collections::VecDeque;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::sys::stat::Stat;

/// A process of the job that outlived the main one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Process id in gpurun's PID namespace.
    pub pid: i32,
    /// Command line with spaces between the arguments, or `[name]` where it is empty.
    pub command: String,
    /// Start time in clock ticks since boot: with the pid, the process's identity.
    pub start_ticks: u64,
}

/// What [`super::Launcher::kill_tree`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KillReport {
    /// Processes that were asked to end (SIGTERM).
    pub asked: usize,
    /// Processes that had to be killed (SIGKILL).
    pub killed: usize,
    /// Processes that were still there afterwards (in the kernel, or of another user).
    pub survivors: usize,
}

/// Name of a process (`comm`), also of a zombie.
pub(super) fn name(pid: i32) -> Option<String> {
    let mut bytes = fs::read(format!("/proc/{pid}/comm")).ok()?;
    while bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

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

/// Children that gpurun already had when it started (a shell's background jobs before `exec gpurun`).
pub(super) fn children_before_the_job() -> Vec<i32> {
    if !has_children() {
        return Vec::new();
    }
    // SAFETY: reads the caller's own id.
    children(unsafe { libc::getpid() })
}

/// Whether this process has any child, alive or dead; one system call.
pub(super) fn has_children() -> bool {
    // SAFETY: with WNOHANG and WNOWAIT this neither waits nor reaps; `info` is plain data.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let how = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_ALL, 0, &mut info, how) == 0
    }
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

/// Describes a process, if it is still alive.
pub(super) fn leftover(pid: i32) -> Option<Leftover> {
    let stat = Stat::read(pid).filter(|s| !s.has_ended())?;
    let cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> =
        cmdline.split(|b| *b == 0).filter(|w| !w.is_empty()).map(String::from_utf8_lossy).collect();
    let command =
        if words.is_empty() { format!("[{}]", name(pid).unwrap_or_default()) } else { words.join(" ") };
    Some(Leftover { pid, command, start_ticks: stat.start_ticks })
}

/// No flags, or a null pointer, as wide as the kernel reads it.
const NONE: libc::c_long = 0;

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
        // SAFETY: opens a descriptor for a process; owned below when it is one.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid), NONE) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0);
        // SAFETY: just opened, nobody else owns it.
        let fd = fd.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        // Asked after the descriptor was opened: if it still descends from us now, it is the right one.
        let stat = Stat::read(pid).filter(|s| !s.has_ended())?;
        (descends(pid, root) == Some(true)).then_some(Held { pid, start_ticks: stat.start_ticks, fd })
    }

    /// Whether it still runs.
    pub(super) fn alive(&self) -> bool {
        Stat::read(self.pid).is_some_and(|s| s.start_ticks == self.start_ticks && !s.has_ended())
    }

    /// Sends a signal; kernels before 5.3 have no such descriptors and get a checked `kill`.
    pub(super) fn send(&self, signal: i32) -> bool {
        match &self.fd {
            // SAFETY: a live pidfd and no siginfo.
            Some(fd) => unsafe {
                let fd = libc::c_long::from(fd.as_raw_fd());
                let signal = libc::c_long::from(signal);
                libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, NONE, NONE) == 0
            },
            // SAFETY: sends a signal to the process that was just seen to be the same one.
            None => self.alive() && unsafe { libc::kill(self.pid, signal) } == 0,
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
        assert!(has_children());
        assert!(descendants(own, &[]).contains(&pid));
        assert!(!descendants(own, &[pid]).contains(&pid));
        let held = Held::new(pid, own).unwrap();
        assert!(held.alive());
        assert!(held.send(libc::SIGKILL));
        child.wait().unwrap();
        assert!(!held.alive());
        assert_eq!(leftover(pid), None);
        assert!(Held::new(1, own).is_none());
    }
}
