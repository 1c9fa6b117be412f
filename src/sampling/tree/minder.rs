//! The process that started the job, and the pids by which it and the job are known.

use super::Tree;
use super::children::Children;
use crate::collectors::procfs::file::{FileError, KernelFile, StackPath};
use crate::collectors::procfs::parse;
use crate::sampling::proc::{Kept, Proc};
use crate::sys::stat::Stat;

/// The process that started the job and reaps its orphans.
#[derive(Debug)]
pub(super) struct Minder {
    pub(super) pid: i32,
    start_ticks: u64,
    pub(super) alive: bool,
    usage: MinderUsage,
    stat: Kept<KernelFile>,
    status: Kept<KernelFile>,
    pub(super) children: Children,
}

/// What the minder, where it is another process than this, has used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MinderUsage {
    /// CPU seconds since it began; the last known value once it has ended.
    pub cpu_seconds: f64,
    /// Resident bytes, 0 once it has ended; `None` where they could not be read.
    pub rss: Option<u64>,
}

impl Minder {
    /// `start_ticks` is `None` where it has ended.
    fn new(pid: i32, start_ticks: Option<u64>, proc: &mut Proc) -> Self {
        Self {
            pid,
            start_ticks: start_ticks.unwrap_or(0),
            alive: start_ticks.is_some(),
            usage: MinderUsage::default(),
            stat: proc.keep_file(StackPath::of_process(pid, "stat")),
            status: proc.keep_file(StackPath::of_process(pid, "status")),
            children: Children::new(pid, proc),
        }
    }

    /// Whether it lives, and what it has used. Once it has ended its pid may be another process's.
    pub(super) fn read(&mut self, proc: &mut Proc, seconds_per_tick: f64) {
        if !self.alive {
            return;
        }
        let stat = match proc.read(&self.stat) {
            Ok(text) => Stat::parse(text).filter(|stat| stat.start_ticks == self.start_ticks),
            Err(FileError::NoDescriptor) => return,
            Err(_) => None,
        };
        let Some(stat) = stat.filter(|stat| !stat.has_ended()) else {
            self.alive = false;
            self.usage.rss = Some(0);
            return;
        };
        self.usage.cpu_seconds = stat.own_ticks as f64 * seconds_per_tick;
        let memory = proc.read(&self.status).ok().and_then(parse::status_memory);
        self.usage.rss = memory.map(|memory| memory.resident);
    }
}

impl Tree {
    /// Begins at the job of a minder.
    pub(super) fn find_job(&mut self, minder: i32, main_pid: i32, sidecar: i32) {
        let (minder, main_pid, sidecar) = self.as_shown(minder, main_pid, sidecar);
        self.sidecar = sidecar;
        // It may have ended already; then nothing older needs to be kept out either.
        let main = self.start_of(main_pid);
        self.main_start = main.map_or(0, |(start, _)| start);
        // What began after the main process has only the minder's pid.
        let minder_start = self
            .start_of(minder)
            .map(|(start, _)| start)
            .filter(|start| main.is_none_or(|(main_start, _)| *start <= main_start));
        self.minder = Some(Minder::new(minder, minder_start, &mut self.proc));
        // A minder whose peak is not known may have left any peak to the job.
        self.inherited_peak = self.peak_of(minder).unwrap_or(u64::MAX);
        // Without its minder nothing leads to the main process but its pid.
        if main.is_some_and(|(_, ppid)| ppid == minder || minder_start.is_none()) {
            self.add_root(main_pid);
        }
    }

    /// The pids as this `/proc` shows them. Where it shows an outer PID namespace they are unknown, except those of
    /// this process and of its parent; the main process is then found among the minder's children.
    fn as_shown(&mut self, minder: i32, main_pid: i32, sidecar: i32) -> (i32, i32, i32) {
        let status = self.proc.read_once(&StackPath::of_process(self.self_pid, "status"));
        match status.ok().and_then(parse::status_namespaces) {
            Some((own, depth)) if depth > 1 => {
                let parent = self.start_of(self.self_pid).map_or(0, |(_, ppid)| ppid);
                let minder = if minder == own { self.self_pid } else { parent };
                (minder, 0, if sidecar == own { self.self_pid } else { 0 })
            }
            _ => (minder, main_pid, sidecar),
        }
    }

    fn peak_of(&mut self, pid: i32) -> Option<u64> {
        let text = self.proc.read_once(&StackPath::of_process(pid, "status")).ok()?;
        parse::status_memory(text)?.peak
    }

    /// What the minder has used, where it is another process than this.
    pub fn minder(&self) -> Option<MinderUsage> {
        self.minder.as_ref().filter(|minder| minder.pid != self.self_pid).map(|minder| minder.usage)
    }

    /// Whether `pid` is the minder, which reaps what is its child.
    pub(super) fn is_minder(&self, pid: i32) -> bool {
        self.minder.as_ref().is_some_and(|minder| minder.alive && minder.pid == pid)
    }
}
