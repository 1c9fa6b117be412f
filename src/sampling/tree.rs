//! The processes of the job over time: which belong to it, what each uses, what the ended ones used.
//!
//! Every pass reads parents before children, so a child that is reaped in the middle of a pass is
//! missed once and never counted twice. Never reads a process outside the tree, except on kernels
//! without `children` files.

mod children;
mod minder;
mod node;
mod usage;

use std::collections::HashMap;
use std::path::Path;

use super::proc::Proc;
use super::settings::{Notice, SamplingError, TreeRoot};
use crate::collectors::procfs::file::{FileError, StackPath};
use crate::collectors::procfs::parse;
use crate::model::id::ProcessKey;
use crate::sys::clock;
use crate::sys::stat::Stat;

use children::Scan;
use minder::Minder;
use node::{CpuCount, Files, ReadOutcome};
use usage::Ledgers;

pub use node::Node;

/// What `wait4` reported of a process that gpurun reaped: the main process or an adopted orphan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReapedUsage {
    /// Its pid.
    pub pid: i32,
    /// `ru_utime + ru_stime` in seconds, its waited children included.
    pub cpu_seconds: f64,
    /// `ru_maxrss` in KiB: the largest of it and its waited children.
    pub max_rss_kib: u64,
    /// `ru_inblock`: blocks of 512 bytes, waited children included.
    pub blocks_read: u64,
    /// `ru_oublock`: blocks of 512 bytes, waited children included.
    pub blocks_written: u64,
}

/// Sums over the tree at one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TreeTotals {
    /// Live processes; zombies are not.
    pub processes: u64,
    /// Threads of the live processes.
    pub threads: u64,
    /// CPU seconds since the run began, ended processes included. Never falls.
    pub cpu_seconds: f64,
    /// Resident bytes of the live processes.
    pub rss: u64,
    /// The most resident bytes that the tree is known to have reached since the last pass, if that is
    /// more than `rss`.
    pub rss_peak: Option<u64>,
    /// Whether gpurun has reaped a process of the tree.
    pub reaped: bool,
    /// CPUs that the live processes may run on together; `None` where no process's mask could be read.
    pub cpus: Option<u32>,
    /// Bytes read from storage since the run began; `None` while no process's counters can be read.
    pub read: Option<f64>,
    /// Bytes written towards storage since the run began.
    pub written: Option<f64>,
}

/// The tree.
#[derive(Debug)]
pub struct Tree {
    proc: Proc,
    root: TreeRoot,
    self_pid: i32,
    minder: Option<Minder>,
    /// Never part of the tree; 0 where there is none.
    sidecar: i32,
    main_start: u64,
    /// When the run began, in the clock of start times.
    began: u64,
    nodes: Vec<Node>,
    by_pid: HashMap<i32, usize>,
    found: Vec<i32>,
    tids: Vec<i32>,
    scan: Option<Scan>,
    ledgers: Ledgers,
    io_seen: bool,
    io_denied: bool,
    reaped_any: bool,
    reaped_peak: u64,
    /// `ru_maxrss` of a program begins at what the minder held when it forked it.
    inherited_peak: u64,
    highest_rss: u64,
    totals: TreeTotals,
    seconds_per_tick: f64,
    notices: Vec<Notice>,
}

impl Tree {
    /// Finds the root. `descriptors` is how many files may be kept open.
    pub fn new(proc_root: &Path, root: TreeRoot, descriptors: usize) -> Result<Self, SamplingError> {
        let no_proc =
            |reason: String| SamplingError::NoProc { path: proc_root.display().to_string(), reason };
        let proc = Proc::open(proc_root, descriptors).map_err(|error| no_proc(error.to_string()))?;
        // Not getpid(): this /proc may show another PID namespace than gpurun's own.
        let self_pid = std::fs::read_link(proc_root.join("self"))
            .ok()
            .and_then(|target| target.to_str()?.parse().ok())
            .ok_or_else(|| no_proc("it is not mounted".to_owned()))?;
        let mut tree = Self {
            proc,
            root,
            self_pid,
            minder: None,
            sidecar: 0,
            main_start: 0,
            began: (clock::since_boot().as_secs_f64() * clock::ticks_per_second()) as u64,
            nodes: Vec::new(),
            by_pid: HashMap::new(),
            found: Vec::new(),
            tids: Vec::new(),
            scan: None,
            ledgers: Ledgers::default(),
            io_seen: false,
            io_denied: false,
            reaped_any: false,
            reaped_peak: 0,
            inherited_peak: 0,
            highest_rss: 0,
            totals: TreeTotals::default(),
            seconds_per_tick: 1.0 / clock::ticks_per_second(),
            notices: Vec::new(),
        };
        tree.find_root()?;
        Ok(tree)
    }

    fn find_root(&mut self) -> Result<(), SamplingError> {
        let children = StackPath::children(self.self_pid, self.self_pid);
        if self.root != TreeRoot::GpuProcesses
            && self.proc.read_once(&children).err() == Some(FileError::Gone)
        {
            self.scan = Some(Scan::default());
            self.notices.push(Notice::NoChildrenFiles);
        }
        match self.root.clone() {
            TreeRoot::Job { minder, main_pid, sidecar } => self.find_job(minder, main_pid, sidecar),
            TreeRoot::Pids(pids) => {
                for pid in &pids {
                    self.start_of(*pid).ok_or(SamplingError::NoProcess { pid: *pid })?;
                }
                for pid in &pids {
                    // One that is below another root is found from there, after its parent.
                    if !self.has_ancestor_in(*pid, &pids) {
                        self.add_root(*pid);
                    }
                }
            }
            TreeRoot::GpuProcesses => {}
        }
        Ok(())
    }

    /// Start time and parent of any process.
    fn start_of(&mut self, pid: i32) -> Option<(u64, i32)> {
        let text = self.proc.read_once(&StackPath::of_process(pid, "stat")).ok()?;
        Stat::parse(text).map(|stat| (stat.start_ticks, stat.ppid))
    }

    fn has_ancestor_in(&mut self, pid: i32, pids: &[i32]) -> bool {
        let mut at = pid;
        // Bounded: a chain of parents that changes while it is read must not hold us.
        for _ in 0..4096 {
            let Some((_, ppid)) = self.start_of(at) else { return false };
            if ppid <= 1 && !pids.contains(&ppid) {
                return false;
            }
            if ppid != pid && pids.contains(&ppid) {
                return true;
            }
            at = ppid;
        }
        false
    }

    /// The processes, parents before children; those that ended in the last pass included.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The same, for the caller's own marks on them.
    pub fn nodes_mut(&mut self) -> &mut [Node] {
        &mut self.nodes
    }

    /// The place of a live process among [`nodes`](Self::nodes).
    pub fn place_of(&self, pid: i32) -> Option<usize> {
        self.by_pid.get(&pid).copied()
    }

    /// Sums of the last pass.
    pub fn totals(&self) -> TreeTotals {
        self.totals
    }

    /// What to tell the user, once each.
    pub fn take_notices(&mut self, into: &mut Vec<Notice>) {
        into.append(&mut self.notices);
    }

    /// Adds a process that NVML lists, for [`TreeRoot::GpuProcesses`].
    pub fn follow(&mut self, pid: i32) {
        if self.root == TreeRoot::GpuProcesses && !self.by_pid.contains_key(&pid) {
            self.add_root(pid);
        }
    }

    /// Whether this `/proc` knows the process at all, of the job or not; one of the job that has just ended counts too.
    pub fn exists(&mut self, pid: i32) -> bool {
        self.nodes.iter().any(|node| node.key.pid == pid) || self.start_of(pid).is_some()
    }

    /// Proportional set size of a process in bytes: about 15 ms of CPU for each GB of its memory.
    pub fn pss(&mut self, pid: i32) -> Result<u64, FileError> {
        let text = self.proc.read_once(&StackPath::of_process(pid, "smaps_rollup"))?;
        parse::rollup_pss(text).ok_or(FileError::Gone)
    }

    /// Finds and reads the whole tree once.
    pub fn refresh(&mut self) {
        self.sweep();
        self.read_minder();
        let mut place = 0;
        while place < self.nodes.len() {
            self.read(place);
            self.find_children(place);
            place += 1;
        }
        let known = self.nodes.len();
        self.add_scanned();
        for place in known..self.nodes.len() {
            self.read(place);
        }
        self.sum();
    }

    /// Forgets the processes that ended in the last pass.
    fn sweep(&mut self) {
        if !self.nodes.iter().any(|node| node.gone) {
            return;
        }
        for node in self.nodes.extract_if(.., |node| node.gone) {
            node.files.close(&mut self.proc);
        }
        self.by_pid.clear();
        self.by_pid.extend(self.nodes.iter().enumerate().map(|(place, node)| (node.key.pid, place)));
    }

    fn read_minder(&mut self) {
        let Some(minder) = &mut self.minder else { return };
        minder.read(&mut self.proc, self.seconds_per_tick);
        if minder.alive && self.scan.is_none() {
            minder.children.list(true, &mut self.proc, &mut self.tids, &mut self.found);
            self.add_found();
        }
    }

    fn read(&mut self, place: usize) {
        let cpu = CpuCount {
            seconds_per_tick: self.seconds_per_tick,
            with_children: self.root != TreeRoot::GpuProcesses,
        };
        let outcome = self.nodes[place].read(&mut self.proc, &mut self.ledgers, cpu);
        if outcome == ReadOutcome::Gone {
            self.end(place);
        }
    }

    fn find_children(&mut self, place: usize) {
        let node = &mut self.nodes[place];
        if node.gone {
            return;
        }
        let has_threads = node.threads() > 1;
        if let Some(children) = &mut node.files.children {
            children.list(has_threads, &mut self.proc, &mut self.tids, &mut self.found);
            self.add_found();
        }
    }

    fn add_found(&mut self) {
        let mut found = std::mem::take(&mut self.found);
        for pid in found.drain(..) {
            if self.by_pid.get(&pid).is_none_or(|place| self.nodes[*place].gone) {
                self.add_child(pid);
            }
        }
        self.found = found;
    }

    /// Takes in a process that was found as a child of a known one.
    fn add_child(&mut self, pid: i32) {
        self.add(pid, false);
    }

    /// Takes in a process for its own sake.
    fn add_root(&mut self, pid: i32) {
        self.add(pid, true);
    }

    fn add(&mut self, pid: i32, is_root: bool) {
        if pid == self.sidecar {
            return;
        }
        let file = self.proc.keep_file(StackPath::of_process(pid, "stat"));
        let stat = self.proc.read(&file).ok().and_then(Stat::parse);
        let found = stat.map(|stat| (stat.ppid, stat.start_ticks));
        // Between the list and now the pid may have become another's, or the process an orphan
        // that the next pass finds elsewhere.
        let Some((ppid, start_ticks)) =
            found.filter(|(ppid, start)| is_root || self.is_parent(*ppid, *start))
        else {
            return self.proc.close(file);
        };
        let with_children = self.scan.is_none() && self.root != TreeRoot::GpuProcesses;
        let files = Files::new(pid, file, with_children, &mut self.proc);
        // The job's own processes all began within the run. A followed process that is found late
        // may have begun before; what it used until then is not the run's.
        let predates_run =
            !matches!(self.root, TreeRoot::Job { .. }) && (is_root || start_ticks < self.began);
        self.by_pid.insert(pid, self.nodes.len());
        self.nodes.push(Node::new(ProcessKey { pid, start_ticks }, ppid, predates_run, files));
    }

    /// Whether a child of `ppid` that began at `start_ticks` is of the tree.
    fn is_parent(&self, ppid: i32, start_ticks: u64) -> bool {
        if self.is_minder(ppid) { start_ticks >= self.main_start } else { self.by_pid.contains_key(&ppid) }
    }
}
