//! The children of processes: the kernel's lists of children, one for each thread, or all of `/proc` where it has none.

use std::collections::HashSet;

use super::Tree;
use crate::collectors::procfs::file::{Dir, KernelFile, StackPath};
use crate::collectors::procfs::parse;
use crate::sampling::proc::{Kept, Proc};
use crate::sys::stat::Stat;

/// The lists of the children of one process.
#[derive(Debug)]
pub(super) struct Children {
    pid: i32,
    of_first_thread: Kept<KernelFile>,
    threads_dir: Option<Kept<Dir>>,
    /// Threads other than the first, by tid.
    threads: Vec<Thread>,
}

#[derive(Debug)]
struct Thread {
    tid: i32,
    children: Kept<KernelFile>,
}

impl Children {
    pub(super) fn new(pid: i32, proc: &mut Proc) -> Self {
        let of_first_thread = proc.keep_file(StackPath::children(pid, pid));
        Self { pid, of_first_thread, threads_dir: None, threads: Vec::new() }
    }

    /// Adds the children of every thread to `found`. `tids` is a buffer.
    pub(super) fn list(
        &mut self,
        has_threads: bool,
        proc: &mut Proc,
        tids: &mut Vec<i32>,
        found: &mut Vec<i32>,
    ) {
        if let Ok(text) = proc.read(&self.of_first_thread) {
            found.extend(parse::children(text));
        }
        if !has_threads {
            return;
        }
        self.find_threads(proc, tids);
        for thread in &self.threads {
            if let Ok(text) = proc.read(&thread.children) {
                found.extend(parse::children(text));
            }
        }
    }

    fn find_threads(&mut self, proc: &mut Proc, tids: &mut Vec<i32>) {
        let pid = self.pid;
        let dir = self.threads_dir.get_or_insert_with(|| proc.keep_dir(StackPath::of_process(pid, "task")));
        if proc.numbers(dir, tids).is_err() {
            return;
        }
        tids.sort_unstable();
        for ended in self.threads.extract_if(.., |thread| tids.binary_search(&thread.tid).is_err()) {
            proc.close(ended.children);
        }
        for tid in tids.iter().filter(|tid| **tid != pid) {
            if let Err(place) = self.threads.binary_search_by_key(tid, |thread| thread.tid) {
                let children = proc.keep_file(StackPath::children(pid, *tid));
                self.threads.insert(place, Thread { tid: *tid, children });
            }
        }
    }

    pub(super) fn close(self, proc: &mut Proc) {
        proc.close(self.of_first_thread);
        if let Some(dir) = self.threads_dir {
            proc.close(dir);
        }
        for thread in self.threads {
            proc.close(thread.children);
        }
    }
}

/// For kernels without lists of children: which processes are known not to be the job's.
#[derive(Debug, Default)]
pub(super) struct Scan {
    unrelated: HashSet<i32>,
    listed: HashSet<i32>,
    /// New pids with their parents.
    unseen: Vec<(i32, i32)>,
    passes: u64,
}

impl Scan {
    /// A pid may pass from an unrelated process to one of the job between two scans: after so many all are looked at
    /// again.
    const FORGET_AFTER: u64 = 30;

    /// Lists `/proc`, and reads the parent of each pid that was not seen before.
    fn list(&mut self, proc: &mut Proc, is_known: impl Fn(i32) -> bool) -> bool {
        self.listed.clear();
        self.unseen.clear();
        self.passes += 1;
        if self.passes.is_multiple_of(Self::FORGET_AFTER) {
            self.unrelated.clear();
        }
        let Self { unrelated, listed, unseen, .. } = self;
        let result = proc.processes(|pid| {
            listed.insert(pid);
            if !is_known(pid) && !unrelated.contains(&pid) {
                unseen.push((pid, 0));
            }
        });
        if result.is_err() {
            return false;
        }
        unrelated.retain(|pid| listed.contains(pid));
        for (pid, ppid) in unseen {
            let stat = proc.read_once(&StackPath::of_process(*pid, "stat"));
            *ppid = stat.ok().and_then(Stat::parse).map_or(0, |stat| stat.ppid);
        }
        true
    }
}

impl Tree {
    /// Takes in the descendants of known processes from a scan of all.
    pub(super) fn add_scanned(&mut self) {
        let Some(mut scan) = self.scan.take() else { return };
        if scan.list(&mut self.proc, |pid| self.by_pid.contains_key(&pid)) {
            // A child may be listed before its parent.
            loop {
                let before = self.nodes.len();
                for (pid, ppid) in &mut scan.unseen {
                    if *ppid > 0 && (self.by_pid.contains_key(ppid) || self.is_minder(*ppid)) {
                        self.add_child(*pid);
                        *ppid = 0;
                    }
                }
                if self.nodes.len() == before {
                    break;
                }
            }
            scan.unrelated.extend(scan.unseen.iter().filter(|(_, ppid)| *ppid > 0).map(|(pid, _)| *pid));
        }
        self.scan = Some(scan);
    }
}
