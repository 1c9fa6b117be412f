//! The processes of the job over time: who belongs to it, what each uses, what the ended ones used.
//!
//! Every pass reads parents before children, so a child that is reaped in the middle of a pass is
//! missed once and never counted twice. Descriptors are kept: a kept one of a reaped process answers
//! `ESRCH` even when its pid lives on as another process. Never looks at a process outside the tree,
//! except on kernels without `children` files.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::ledger::{Account, Heir, Ledger};
use super::settings::{Notice, SamplingError, TreeRoot};
use crate::collectors::procfs::file::{Buffer, Dir, FileError, KernelFile, StackPath};
use crate::collectors::procfs::parse;
use crate::collectors::{clock, own};
use crate::model::id::ProcessKey;

/// Longest name the kernel writes (kernel threads; programs have 15 bytes).
const COMM_CAPACITY: usize = 64;

/// A process of the job.
#[derive(Debug)]
pub struct Node {
    key: ProcessKey,
    ppid: i32,
    comm: [u8; COMM_CAPACITY],
    comm_length: usize,
    comm_changed: bool,
    zombie: bool,
    threads: u64,
    own_seconds: f64,
    cpu: Account,
    read: Account,
    written: Account,
    io: IoState,
    written_gross: f64,
    rss: Option<u64>,
    faults: Option<u64>,
    /// Highest `VmHWM` known; what is above it is news.
    peak_known: Option<u64>,
    peak_news: Option<u64>,
    history: bool,
    reads: u64,
    gone: bool,
    reaped: bool,
    heir: Heir,
    rest: Rest,
    /// Passes for which it is not tried again whether it rests.
    restless: u8,
    /// It had no children when they were last looked for, which was after its last read.
    childless: bool,
    /// It is the first process of a PID namespace, or may be: orphans of those who joined the namespace become its
    /// children, though they descend from others.
    adopts: bool,
    /// Its first thread has ended and others live on: the kernel shows a zombie without memory.
    leaderless: bool,
    files: Files,
    tasks: Vec<Task>,
    task_turn: usize,
    /// Whether the process was seen on a GPU.
    pub on_gpu: bool,
    /// The caller's own number for it.
    pub tag: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IoState {
    Unread,
    Known,
    Denied,
}

/// Whether a process can be known not to have run since it was last read: then nothing of it has changed, and one
/// short read stands for three long ones.
///
/// Its CPU clock stands still as long as it does not run, and `/proc/PID/schedstat` counts how often the first thread
/// got a CPU and for how long. Either speaks for the whole process where that is the only thread, and for all the time
/// since the read where the thread was off its CPU then. The clock is brought up to date at each tick and when the process
/// leaves its CPU: who has just begun to run looks asleep for some milliseconds more, as if it had been read that much
/// earlier. On a host that shares its CPUs with others, a turn of microseconds may go uncounted altogether.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// It has run lately, has several threads, or is new.
    Awake,
    /// It did not seem to run between its last two reads: from now on the count is read before the rest.
    Drowsy,
    /// It was off its CPU when it was last read, and the count was this before that.
    Asleep {
        count: SchedCount,
        /// Passes since that read.
        passes: u32,
        /// Its memory is read again after so many, whatever the count: others can take that away.
        limit: u32,
        /// Times that only its memory was read since all of it was.
        looks: u8,
    },
    /// The kernel does not count, or does not say.
    Unknown,
}

/// How much a process has run: the nanoseconds of its CPU clock, or what `/proc/PID/schedstat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SchedCount {
    /// Nanoseconds on a CPU.
    ran: u64,
    /// How often it got one; 0 where the clock was asked.
    times: u64,
}

impl SchedCount {
    /// `None` where nothing is counted: a process that was started has run.
    fn new(ran: u64, times: u64) -> Option<Self> {
        (ran > 0).then_some(Self { ran, times })
    }
}

/// Where the counts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SchedSource {
    /// The process's CPU clock: no descriptor, no text.
    Clock,
    /// `/proc/PID/schedstat`, where this `/proc` may show other processes than the clocks, or where a running
    /// process's clock may stand still for a while.
    File,
}

impl SchedSource {
    /// The clocks speak of the processes of gpurun's own PID namespace. Of another process they tell what the
    /// scheduler last noted down, at each tick and whenever it leaves its CPU; CPUs without ticks note it once a second.
    /// A kernel that keeps no count in nanoseconds may have clocks that stand still for long, too.
    fn of(proc: &Dir, self_pid: i32, buffer: &mut Buffer) -> Self {
        let read = |name: &str| proc.file(&StackPath::of_process(self_pid, name)).ok();
        let counts = read("schedstat").and_then(|file| parse::schedstat(file.read(buffer).ok()?));
        let is_counted = counts.is_some_and(|(ran, _)| ran > 0);
        // One number: this `/proc` shows gpurun's own namespace, and not one around it.
        let spaces = read("status").and_then(|file| parse::status_namespaces(file.read(buffer).ok()?));
        let is_own = spaces.is_some_and(|(_, depth)| depth == 1);
        if is_counted && is_own && !own::has_tickless_cpus() { Self::Clock } else { Self::File }
    }
}

/// After so many looks at its memory alone, all of a process that rests is read once more.
const LOOKS: u8 = 6;

/// Who has rested for fewer passes than this when it wakes is restless,
const RESTLESS_BELOW: u32 = 4;

/// and is read without a look at its count for so many.
const RESTLESS_FOR: u8 = 8;

/// Kept descriptors of one process; all are `None` when the budget is spent, and each read then opens its file.
#[derive(Debug, Default)]
struct Files {
    stat: Option<KernelFile>,
    statm: Option<KernelFile>,
    io: Option<KernelFile>,
    status: Option<KernelFile>,
    sched: Option<KernelFile>,
    children: Option<KernelFile>,
    task: Option<Dir>,
    held: usize,
}

/// A thread other than the first.
#[derive(Debug)]
struct Task {
    tid: i32,
    children: Option<KernelFile>,
    fertile: bool,
    pass: u64,
}

impl Node {
    /// Pid and start time.
    pub fn key(&self) -> ProcessKey {
        self.key
    }

    /// The name, bad bytes replaced.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.comm[..self.comm_length]).into_owned()
    }

    /// Whether the name is another one than at the pass before: the process executed a program, or
    /// renamed itself.
    pub fn renamed(&self) -> bool {
        self.comm_changed
    }

    /// Whether it has ended and was reaped; such a node stays until the next pass.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether it has ended and waits to be reaped.
    pub fn is_zombie(&self) -> bool {
        self.zombie
    }

    /// Passes in which it was read, the present one included.
    pub fn age(&self) -> u64 {
        self.reads
    }

    /// Threads.
    pub fn threads(&self) -> u64 {
        self.threads
    }

    /// CPU seconds of its own threads since it began.
    pub fn own_seconds(&self) -> f64 {
        self.own_seconds
    }

    /// Resident bytes; `None` where they could not be read.
    pub fn rss(&self) -> Option<u64> {
        self.rss
    }

    /// A peak in bytes that was reached since the last pass.
    pub fn peak(&self) -> Option<u64> {
        self.peak_news
    }

    /// Bytes read from and written towards storage since it began, reaped children included.
    pub fn io(&self) -> Option<(f64, f64)> {
        (self.io == IoState::Known).then(|| (self.read.total(), self.written.total()))
    }
}

/// What `wait4` told of a process that gpurun reaped: the main process or an adopted orphan.
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
    /// Bytes read from storage since the run began; `None` while no process's counters can be read.
    pub read: Option<f64>,
    /// Bytes written towards storage since the run began.
    pub written: Option<f64>,
}

/// How many descriptors may be kept.
#[derive(Clone, Copy, Debug)]
struct Budget {
    left: usize,
}

impl Budget {
    /// Opens a file to be kept, where one more may be.
    fn keep<T>(&mut self, held: &mut usize, open: impl FnOnce() -> Result<T, FileError>) -> Option<T> {
        if self.left == 0 {
            return None;
        }
        let kept = open().ok()?;
        self.left -= 1;
        *held += 1;
        Some(kept)
    }
}

/// Opens of threads' `children` files that one pass may make beside the kept ones; above that the
/// threads that never had children take turns.
const THREAD_OPENS: usize = 256;

/// The process that started the job.
#[derive(Debug)]
struct Minder {
    pid: i32,
    start_ticks: u64,
    /// The calling process: gpurun's own use is counted elsewhere.
    is_self: bool,
    alive: bool,
    cpu_seconds: f64,
    rss: Option<u64>,
    files: Files,
    threads: Vec<Task>,
}

/// What the minder, where it is another process, has used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MinderUsage {
    /// CPU seconds since it began; the last known value once it has ended.
    pub cpu_seconds: f64,
    /// Resident bytes, 0 once it has ended; `None` where they could not be read.
    pub rss: Option<u64>,
}

/// The tree.
#[derive(Debug)]
pub struct Tree {
    proc: Dir,
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
    budget: Budget,
    buffer: Buffer,
    names: Buffer,
    found: Vec<i32>,
    scan: Option<Scan>,
    cpu: Ledger,
    read: Ledger,
    written: Ledger,
    io_seen: bool,
    io_denied: bool,
    reaped_any: bool,
    reaped_peak: u64,
    /// `ru_maxrss` of a program begins at what gpurun held when it was forked from it.
    inherited_peak: u64,
    highest_rss: u64,
    totals: TreeTotals,
    pass: u64,
    unkept_threads: usize,
    /// The host's count of forks before the last whole walk.
    walked_at: Option<u64>,
    /// Something of the tree ended: the next pass walks whatever the count says.
    unsettled: bool,
    /// A process that does not run is read all the same after so many passes.
    rest_passes: u32,
    /// Not looked for before the first process seems to rest: a short job needs none.
    sched_source: Option<SchedSource>,
    seconds_per_tick: f64,
    page_bytes: u64,
    notices: Vec<Notice>,
}

/// State of the fallback for kernels without `children` files: who is known not to be ours.
#[derive(Debug, Default)]
struct Scan {
    strangers: HashSet<i32>,
    listed: HashSet<i32>,
    unseen: Vec<(i32, i32)>,
}

impl Tree {
    /// Finds the root. `descriptors` is how many files may be kept open.
    pub fn new(proc_root: &Path, root: TreeRoot, descriptors: usize) -> Result<Self, SamplingError> {
        let no_proc =
            |reason: String| SamplingError::NoProc { path: proc_root.display().to_string(), reason };
        let proc = Dir::open(proc_root).map_err(|error| no_proc(error.to_string()))?;
        // Not getpid(): this /proc may show another PID namespace than the one gpurun's calls speak of.
        let self_pid = std::fs::read_link(proc_root.join("self"))
            .ok()
            .and_then(|target| target.to_str()?.parse().ok())
            .ok_or_else(|| no_proc("no link self".to_owned()))?;
        let mut tree = Self {
            scan: None,
            proc,
            self_pid,
            minder: None,
            sidecar: 0,
            main_start: 0,
            began: (own::since_boot().as_secs_f64() * own::ticks_per_second()) as u64,
            nodes: Vec::new(),
            by_pid: HashMap::new(),
            budget: Budget { left: descriptors },
            buffer: Buffer::default(),
            names: Buffer::default(),
            found: Vec::new(),
            cpu: Ledger::default(),
            read: Ledger::default(),
            written: Ledger::default(),
            io_seen: false,
            io_denied: false,
            reaped_any: false,
            reaped_peak: 0,
            inherited_peak: own::peak_bytes(),
            highest_rss: 0,
            totals: TreeTotals::default(),
            pass: 0,
            unkept_threads: 0,
            walked_at: None,
            unsettled: false,
            rest_passes: 0,
            sched_source: (proc_root != Path::new("/proc")).then_some(SchedSource::File),
            seconds_per_tick: 1.0 / own::ticks_per_second(),
            page_bytes: own::page_bytes(),
            notices: Vec::new(),
            root,
        };
        if tree.root != TreeRoot::GpuProcesses
            && tree.proc.file(&StackPath::children(self_pid, self_pid)).err() == Some(FileError::Gone)
        {
            tree.scan = Some(Scan::default());
            tree.notices.push(Notice::NoChildrenFiles);
        }
        match tree.root.clone() {
            TreeRoot::Job { minder, main_pid, sidecar } => tree.find_job(minder, main_pid, sidecar),
            TreeRoot::Pids(pids) => {
                for pid in &pids {
                    tree.start_of(*pid).ok_or(SamplingError::NoProcess { pid: *pid })?;
                }
                for pid in &pids {
                    // One that is below another root is found from there, after its parent.
                    if !tree.has_ancestor_in(*pid, &pids) {
                        tree.add(*pid, true);
                    }
                }
            }
            TreeRoot::GpuProcesses => {}
        }
        Ok(tree)
    }

    fn find_job(&mut self, minder: i32, main_pid: i32, sidecar: i32) {
        let (minder, main_pid, sidecar) = self.as_shown(minder, main_pid, sidecar);
        self.sidecar = sidecar;
        let mut held = 0;
        let mut files = Files::default();
        let mut keep_file = |path| self.budget.keep(&mut held, || self.proc.file(&path));
        files.children = keep_file(StackPath::children(minder, minder));
        files.stat = keep_file(StackPath::of_process(minder, "stat"));
        files.statm = keep_file(StackPath::of_process(minder, "statm"));
        files.task = self.budget.keep(&mut held, || self.proc.dir(&StackPath::of_process(minder, "task")));
        // It may have ended already; then nothing older needs to be kept out either.
        let main = self.start_of(main_pid);
        self.main_start = main.map_or(0, |(start, _)| start);
        // What began after the main process has only the minder's pid.
        let started = self
            .start_of(minder)
            .filter(|(start, _)| main.is_none_or(|(main_start, _)| *start <= main_start));
        let is_self = minder == self.self_pid;
        self.minder = Some(Minder {
            pid: minder,
            start_ticks: started.map_or(0, |(start, _)| start),
            is_self,
            alive: started.is_some(),
            cpu_seconds: 0.0,
            rss: None,
            files,
            threads: Vec::new(),
        });
        self.inherited_peak = if is_self { own::peak_bytes() } else { self.peak_of(minder).unwrap_or(0) };
        // Without its minder nothing leads to the main process but its pid.
        if main.is_some_and(|(_, ppid)| ppid == minder || started.is_none()) {
            self.add(main_pid, true);
        }
    }

    /// The pids as this `/proc` shows them. Where it shows an outer PID namespace they are unknown, except those of
    /// this process and of its parent; the main process is then found among the minder's children.
    fn as_shown(&mut self, minder: i32, main_pid: i32, sidecar: i32) -> (i32, i32, i32) {
        let status = self.proc.file(&StackPath::of_process(self.self_pid, "status"));
        let namespaces =
            status.ok().and_then(|file| parse::status_namespaces(file.read(&mut self.buffer).ok()?));
        match namespaces {
            Some((inner, depth)) if depth > 1 => {
                let parent = self.start_of(self.self_pid).map_or(0, |(_, ppid)| ppid);
                let shown = |pid: i32| if pid == inner { self.self_pid } else { 0 };
                (if minder == inner { self.self_pid } else { parent }, 0, shown(sidecar))
            }
            _ => (minder, main_pid, sidecar),
        }
    }

    fn peak_of(&mut self, pid: i32) -> Option<u64> {
        let file = self.proc.file(&StackPath::of_process(pid, "status")).ok()?;
        parse::status_peak(file.read(&mut self.buffer).ok()?)
    }

    fn start_of(&mut self, pid: i32) -> Option<(u64, i32)> {
        let file = self.proc.file(&StackPath::of_process(pid, "stat")).ok()?;
        let stat = parse::stat(file.read(&mut self.buffer).ok()?)?;
        Some((stat.start_ticks, stat.ppid))
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

    /// Lets a process that has not run since it was read go unread for at most so many passes. What others may do to
    /// its memory meanwhile (take it away, or give it huge pages) is seen then; all else of it is read some times more
    /// seldom. Before this call every pass reads all.
    pub fn rest(&mut self, passes: u32) {
        self.rest_passes = passes;
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

    /// What the user should hear, once each.
    pub fn take_notices(&mut self, into: &mut Vec<Notice>) {
        into.append(&mut self.notices);
    }

    /// Adds a process that NVML lists, for [`TreeRoot::GpuProcesses`].
    pub fn follow(&mut self, pid: i32) {
        if self.root == TreeRoot::GpuProcesses && !self.by_pid.contains_key(&pid) {
            self.add(pid, true);
        }
    }

    /// Whether this `/proc` knows the process at all, of the job or not.
    pub fn exists(&mut self, pid: i32) -> bool {
        self.by_pid.contains_key(&pid) || self.start_of(pid).is_some()
    }

    /// gpurun reaped a process of the job.
    pub fn reaped(&mut self, usage: &ReapedUsage) {
        const BLOCK: f64 = 512.0;
        self.cpu.reaped(usage.cpu_seconds);
        self.read.reaped(usage.blocks_read as f64 * BLOCK);
        let mut written = usage.blocks_written as f64 * BLOCK;
        if let Some(place) = self.place_of(usage.pid) {
            let node = &mut self.nodes[place];
            node.reaped = true;
            // `wait4` does not take off what was truncated before it reached the disk; we did while it lived.
            if node.io == IoState::Known {
                written = node.written.total() + (written - node.written_gross).max(0.0);
            }
        }
        self.written.reaped(written);
        self.io_seen = true;
        self.reaped_any = true;
        self.unsettled = true;
        self.reaped_peak = self.reaped_peak.max(usage.max_rss_kib.saturating_mul(1024));
    }

    /// Reads the whole tree once.
    ///
    /// `forks` is the host's count of processes and threads made since boot, read before this call. Where it
    /// has not moved since before the last whole walk, there are no children that the walk did not see, and
    /// the files that name them are left alone.
    pub fn refresh(&mut self, forks: Option<u64>) {
        self.pass += 1;
        self.sweep();
        let settled = forks.is_some() && forks == self.walked_at && self.unkept_threads == 0;
        // Who ends in the middle of a walk may leave children to one whose own were read before.
        let unsettled = std::mem::take(&mut self.unsettled);
        let quiet = settled && !unsettled;
        if !quiet {
            self.walked_at = forks;
        }
        self.read_minder();
        if let Some(minder) = &mut self.minder
            && minder.alive
            && self.scan.is_none()
            && !quiet
        {
            self.found.clear();
            let source = TaskSource { pid: minder.pid, files: &minder.files, many: true };
            let mut turn = 0;
            source.children(
                &self.proc,
                &mut minder.threads,
                &mut turn,
                Reading {
                    pass: self.pass,
                    budget: &mut self.budget,
                    unkept: usize::MAX,
                    buffer: &mut self.buffer,
                    names: &mut self.names,
                    found: &mut self.found,
                },
            );
            self.add_found();
        }
        let unkept = std::mem::take(&mut self.unkept_threads);
        let may_walk = self.scan.is_none() && self.root != TreeRoot::GpuProcesses;
        let mut place = 0;
        while place < self.nodes.len() {
            let rests = self.read(place);
            let node = &mut self.nodes[place];
            // Who does not run makes no children. It may be given those of its descendants, if it has any.
            let was_childless = node.childless;
            node.childless &= rests && !unsettled;
            // Who has just begun to run may not be seen to by its clock: in a pass that walked all others it made a
            // child, and was passed over. What is found so late has not been asked for its own either.
            let passed_over = (was_childless && !node.childless) || node.reads == 1;
            if may_walk && (!quiet || passed_over) && !node.gone && !node.childless {
                self.found.clear();
                if node.threads > 1 && node.files.task.is_none() {
                    let task = StackPath::of_process(node.key.pid, "task");
                    node.files.task = self.budget.keep(&mut node.files.held, || self.proc.dir(&task));
                }
                let source = TaskSource { pid: node.key.pid, files: &node.files, many: node.threads > 1 };
                self.unkept_threads += source.children(
                    &self.proc,
                    &mut node.tasks,
                    &mut node.task_turn,
                    Reading {
                        pass: self.pass,
                        budget: &mut self.budget,
                        unkept: if unkept > THREAD_OPENS { unkept / THREAD_OPENS + 1 } else { 1 },
                        buffer: &mut self.buffer,
                        names: &mut self.names,
                        found: &mut self.found,
                    },
                );
                node.childless = self.found.is_empty() && !node.adopts;
                self.add_found();
            }
            place += 1;
        }
        if self.scan.is_some() {
            let known = self.nodes.len();
            self.scan_all();
            for place in known..self.nodes.len() {
                self.read(place);
            }
        }
        self.sum();
    }

    /// Whether the minder lives, and what it has used. Once it has ended its pid may be another process's.
    fn read_minder(&mut self) {
        let Some(minder) = &mut self.minder else { return };
        if !minder.alive {
            return;
        }
        let at = |name: &str| StackPath::of_process(minder.pid, name);
        let text = read_kept(minder.files.stat.as_ref(), &self.proc, || at("stat"), &mut self.buffer);
        let stat = match text {
            Ok(text) => parse::stat(text),
            Err(FileError::NoDescriptor) => return,
            Err(_) => None,
        };
        let is_it = |stat: &parse::Stat<'_>| {
            stat.start_ticks == minder.start_ticks && !matches!(stat.state, b'Z' | b'X')
        };
        let Some(stat) = stat.filter(is_it) else {
            minder.alive = false;
            minder.rss = Some(0);
            return;
        };
        if !minder.is_self {
            minder.cpu_seconds = stat.own_ticks as f64 * self.seconds_per_tick;
            let pages = resident(minder.files.statm.as_ref(), &self.proc, || at("statm"), &mut self.buffer);
            minder.rss = pages.map(|pages| pages * self.page_bytes);
        }
    }

    /// What the minder has used, where it is another process than this.
    pub fn minder(&self) -> Option<MinderUsage> {
        let minder = self.minder.as_ref().filter(|minder| !minder.is_self)?;
        Some(MinderUsage { cpu_seconds: minder.cpu_seconds, rss: minder.rss })
    }

    /// Whether `ppid` is the job's minder and will reap what is its child.
    fn is_minder(&self, ppid: i32) -> bool {
        self.minder.as_ref().is_some_and(|minder| minder.alive && minder.pid == ppid)
    }

    /// Forgets the processes that ended in the last pass.
    fn sweep(&mut self) {
        if !self.nodes.iter().any(|node| node.gone) {
            return;
        }
        for node in self.nodes.iter().filter(|node| node.gone) {
            self.budget.left += node.files.held + node.tasks.iter().filter(|t| t.children.is_some()).count();
        }
        self.nodes.retain(|node| !node.gone);
        self.by_pid.clear();
        self.by_pid.extend(self.nodes.iter().enumerate().map(|(place, node)| (node.key.pid, place)));
    }

    fn add_found(&mut self) {
        for at in 0..self.found.len() {
            let pid = self.found[at];
            if self.by_pid.get(&pid).is_none_or(|place| self.nodes[*place].gone) {
                self.add(pid, false);
            }
        }
    }

    /// Takes a process in; `history` says that it lived before the run.
    fn add(&mut self, pid: i32, history: bool) {
        if pid == self.sidecar {
            return;
        }
        let Ok(file) = self.proc.file(&StackPath::of_process(pid, "stat")) else { return };
        let Some(stat) = file.read(&mut self.buffer).ok().and_then(parse::stat) else { return };
        let (ppid, start_ticks) = (stat.ppid, stat.start_ticks);
        if !history {
            // Between the list and now the pid may have become another's, or the process an orphan
            // that the next pass finds elsewhere.
            let ours = if self.is_minder(ppid) {
                start_ticks >= self.main_start
            } else {
                self.by_pid.contains_key(&ppid)
            };
            if !ours {
                return;
            }
        }
        let mut files = Files::default();
        let held = &mut files.held;
        if self.budget.left >= 4 {
            files.stat = self.budget.keep(held, || Ok(file));
            files.statm = self.budget.keep(held, || self.proc.file(&StackPath::of_process(pid, "statm")));
            files.io = self.budget.keep(held, || self.proc.file(&StackPath::of_process(pid, "io")));
            if self.scan.is_none() && self.root != TreeRoot::GpuProcesses {
                files.children = self.budget.keep(held, || self.proc.file(&StackPath::children(pid, pid)));
            }
        }
        self.by_pid.insert(pid, self.nodes.len());
        self.nodes.push(Node {
            key: ProcessKey { pid, start_ticks },
            ppid,
            comm: [0; COMM_CAPACITY],
            comm_length: 0,
            comm_changed: false,
            zombie: false,
            threads: 0,
            own_seconds: 0.0,
            cpu: Account::default(),
            read: Account::default(),
            written: Account::default(),
            io: IoState::Unread,
            written_gross: 0.0,
            rss: None,
            faults: None,
            peak_known: None,
            peak_news: None,
            // The job's own processes all began within the run. A followed process that is found late
            // may have begun before; what it used until then is not the run's.
            history: !matches!(self.root, TreeRoot::Job { .. }) && (history || start_ticks < self.began),
            reads: 0,
            gone: false,
            reaped: false,
            heir: Heir::Retired,
            rest: Rest::Awake,
            restless: 0,
            childless: false,
            adopts: true,
            leaderless: false,
            files,
            tasks: Vec::new(),
            task_turn: 0,
            on_gpu: false,
            tag: None,
        });
    }

    /// The count of [`Rest`], and whether it is what it was when the process was last read, so that nothing of it
    /// has changed.
    fn look_at_rest(&mut self, place: usize) -> (Option<SchedCount>, bool) {
        let rest = self.nodes[place].rest;
        if matches!(rest, Rest::Awake | Rest::Unknown) || self.rest_passes == 0 {
            return (None, false);
        }
        let source = *self
            .sched_source
            .get_or_insert_with(|| SchedSource::of(&self.proc, self.self_pid, &mut self.buffer));
        let count = match source {
            SchedSource::Clock => {
                clock::of_process(self.nodes[place].key.pid).and_then(|ran| SchedCount::new(ran, 0))
            }
            SchedSource::File => match self.sched_file(place) {
                Ok(count) => count,
                // Without a kept descriptor the open would cost more than it saves.
                Err(()) => return (None, false),
            },
        };
        let node = &mut self.nodes[place];
        let Some(count) = count else {
            node.rest = Rest::Unknown;
            return (None, false);
        };
        let settled = node.cpu.is_settled() && node.read.is_settled() && node.written.is_settled();
        let rests = match &mut node.rest {
            Rest::Asleep { count: known, passes, limit, looks } if *known == count && settled => {
                if *passes < *limit {
                    *passes += 1;
                    true
                } else if *looks < LOOKS {
                    (*passes, *limit, *looks) = (0, self.rest_passes, *looks + 1);
                    let at = || StackPath::of_process(node.key.pid, "statm");
                    let pages = resident(node.files.statm.as_ref(), &self.proc, at, &mut self.buffer);
                    node.rss = pages.map(|pages| pages * self.page_bytes).or(node.rss);
                    pages.is_some()
                } else {
                    false
                }
            }
            _ => false,
        };
        (Some(count), rests)
    }

    /// What `schedstat` says; an error where no descriptor is left for it.
    fn sched_file(&mut self, place: usize) -> Result<Option<SchedCount>, ()> {
        let Node { key, files, .. } = &mut self.nodes[place];
        if files.sched.is_none() && self.budget.left > 0 {
            let path = StackPath::of_process(key.pid, "schedstat");
            files.sched = self.budget.keep(&mut files.held, || self.proc.file(&path));
            if files.sched.is_none() {
                return Ok(None);
            }
        }
        let file = files.sched.as_ref().ok_or(())?;
        let counts = file.read(&mut self.buffer).ok().and_then(parse::schedstat);
        Ok(counts.and_then(|(ran, times)| SchedCount::new(ran, times)))
    }

    /// Reads one process; says whether it rests, so that what was known of it stands.
    fn read(&mut self, place: usize) -> bool {
        let (count, rests) = self.look_at_rest(place);
        let node = &mut self.nodes[place];
        node.peak_news = None;
        if rests {
            node.comm_changed = false;
            node.reads += 1;
            return true;
        }
        let pid = node.key.pid;
        let at = |name: &str| StackPath::of_process(pid, name);
        let text = read_kept(node.files.stat.as_ref(), &self.proc, || at("stat"), &mut self.buffer);
        let stat = match text {
            Ok(text) => parse::stat(text).filter(|stat| stat.start_ticks == node.key.start_ticks),
            // No descriptor left is our trouble, not the end of the process: last values stay.
            Err(FileError::NoDescriptor) => return false,
            Err(_) => None,
        };
        let Some(stat) = stat else {
            self.end(place);
            return false;
        };
        let known_name = &node.comm[..node.comm_length];
        let name = &stat.comm[..stat.comm.len().min(COMM_CAPACITY)];
        node.comm_changed = node.reads > 0 && known_name != name;
        if node.reads == 0 || node.comm_changed {
            node.comm_length = name.len();
            node.comm[..name.len()].copy_from_slice(name);
        }
        node.ppid = stat.ppid;
        let ended = matches!(stat.state, b'Z' | b'X');
        let zombie = ended && stat.threads <= 1;
        let leaderless = ended && !zombie;
        // A thread that ends hands its children to another one, a process to gpurun.
        let hands_over = zombie && !node.zombie;
        self.unsettled |= hands_over || stat.threads < node.threads || (leaderless && !node.leaderless);
        node.leaderless = leaderless;
        node.zombie = zombie;
        node.threads = stat.threads;
        let own = stat.own_ticks as f64 * self.seconds_per_tick;
        let still = node.faults == Some(stat.faults) && own <= node.own_seconds;
        node.rest = match (node.rest, count) {
            (Rest::Unknown, _) => Rest::Unknown,
            // On a CPU or waiting for one: the count does not tell what it does until it leaves it.
            _ if stat.threads != 1 || zombie || stat.state == b'R' || !still => Rest::Awake,
            // Who wakes all the time is not looked at once more each time.
            (Rest::Asleep { count: known, passes, .. }, Some(count))
                if known != count && passes < RESTLESS_BELOW =>
            {
                node.restless = RESTLESS_FOR;
                Rest::Awake
            }
            (Rest::Asleep { .. }, Some(count)) => {
                Rest::Asleep { count, passes: 0, limit: self.rest_passes, looks: 0 }
            }
            // Processes that fell asleep together are not all read again in one pass.
            (_, Some(count)) => {
                let early = u32::try_from(pid).unwrap_or(0) % self.rest_passes.max(1);
                Rest::Asleep { count, passes: 0, limit: self.rest_passes - early, looks: 0 }
            }
            (_, None) if node.restless > 0 => {
                node.restless -= 1;
                Rest::Awake
            }
            (_, None) => Rest::Drowsy,
        };
        let children = stat.children_ticks as f64 * self.seconds_per_tick;
        node.own_seconds = node.own_seconds.max(own);
        if self.root == TreeRoot::GpuProcesses {
            // Not a whole tree: a waited child may have been counted in its own right.
            node.cpu.update(own, 0.0, &mut self.cpu);
        } else {
            node.cpu.update(own + children, children, &mut self.cpu);
        }
        let faulted = node.faults != Some(stat.faults);
        node.faults = Some(stat.faults);
        let first = node.reads == 0;
        node.reads += 1;

        if node.zombie {
            node.rss = Some(0);
        } else {
            // Memory is told by a thread that lives; the first one nearly always does.
            let other = if leaderless { living_thread(&self.proc, pid, &mut self.names) } else { None };
            let at = |name: &str| match other {
                Some(tid) => StackPath::of_thread(pid, tid, name),
                None => StackPath::of_process(pid, name),
            };
            let kept = node.files.statm.as_ref().filter(|_| other.is_none());
            let pages = resident(kept, &self.proc, || at("statm"), &mut self.buffer);
            node.rss = pages.map(|pages| pages * self.page_bytes);
            // What the process itself does to its memory makes it rise with a page fault only.
            if faulted {
                if node.files.status.is_none() && other.is_none() {
                    node.files.status =
                        self.budget.keep(&mut node.files.held, || self.proc.file(&at("status")));
                }
                let kept = node.files.status.as_ref().filter(|_| other.is_none());
                let status = read_kept(kept, &self.proc, || at("status"), &mut self.buffer);
                if let Some((inner, _)) = status.ok().and_then(parse::status_namespaces) {
                    node.adopts = inner == 1;
                }
                if let Some(peak) = status.ok().and_then(parse::status_peak) {
                    let since_start = first && !node.history;
                    if (since_start || node.peak_known.is_some_and(|known| peak > known))
                        && node.rss.is_some_and(|rss| peak > rss)
                    {
                        node.peak_news = Some(peak);
                    }
                    // A smaller one is a new program, whose peaks are news again.
                    node.peak_known = Some(peak);
                }
            }
        }
        if node.io != IoState::Denied {
            match read_kept(node.files.io.as_ref(), &self.proc, || at("io"), &mut self.buffer) {
                Ok(text) => {
                    if let Some(io) = parse::io(text) {
                        let net = io.written.saturating_sub(io.cancelled) as f64;
                        node.read.update(io.read as f64, io.read as f64, &mut self.read);
                        node.written.update(net, net, &mut self.written);
                        node.written_gross = io.written as f64;
                        node.io = IoState::Known;
                        self.io_seen = true;
                    }
                }
                Err(FileError::Denied) => {
                    if node.io == IoState::Unread {
                        node.io = IoState::Denied;
                    }
                    if !self.io_denied {
                        self.io_denied = true;
                        self.notices.push(Notice::NoIoPermission);
                    }
                }
                Err(_) => {}
            }
        }
        if first && node.history {
            self.cpu.exclude(node.cpu.total());
            self.read.exclude(node.read.total());
            self.written.exclude(node.written.total());
        }
        if hands_over {
            self.wake_children(pid);
        }
        false
    }

    /// Children of a process that ends get another parent without running themselves.
    fn wake_children(&mut self, pid: i32) {
        for child in self.nodes.iter_mut().filter(|node| node.ppid == pid) {
            if matches!(child.rest, Rest::Asleep { .. }) {
                child.rest = Rest::Drowsy;
            }
        }
    }

    /// A process is no longer there: decides where what it used has gone.
    fn end(&mut self, place: usize) {
        let (pid, ppid, reaped) = {
            self.unsettled = true;
            let node = &mut self.nodes[place];
            node.gone = true;
            node.peak_news = None;
            (node.key.pid, node.ppid, node.reaped)
        };
        self.wake_children(pid);
        let parent = self.by_pid.get(&ppid).copied().filter(|parent| *parent < place);
        let is_minded = self.minder.as_ref().is_some_and(|minder| minder.alive);
        let heir = match parent {
            _ if reaped => Heir::Reaped,
            _ if self.root == TreeRoot::GpuProcesses => Heir::Retired,
            Some(parent) if !self.nodes[parent].gone => Heir::Node(parent),
            // The parent went in this pass as well. Under a minder the child was then either reaped by
            // its parent or adopted and told of by `wait4`: to keep it could count it twice.
            _ if is_minded => Heir::Reaped,
            Some(parent) => self.nodes[parent].heir,
            None => Heir::Retired,
        };
        self.nodes[place].heir = heir;
        let node = &self.nodes[place];
        let estates = [node.cpu.estate(), node.read.estate(), node.written.estate()];
        match heir {
            Heir::Node(parent) => {
                let parent = &mut self.nodes[parent];
                for (account, estate) in
                    [&mut parent.cpu, &mut parent.read, &mut parent.written].into_iter().zip(estates)
                {
                    account.expect(estate);
                }
            }
            Heir::Reaped => {}
            Heir::Retired => {
                for (ledger, estate) in
                    [&mut self.cpu, &mut self.read, &mut self.written].into_iter().zip(estates)
                {
                    ledger.retire(estate);
                }
            }
        }
        if self.by_pid.get(&pid) == Some(&place) {
            self.by_pid.remove(&pid);
        }
    }

    fn sum(&mut self) {
        let mut totals = TreeTotals::default();
        let (mut cpu, mut read, mut written) = (0.0, 0.0, 0.0);
        let mut above = 0u64;
        for node in self.nodes.iter().filter(|node| !node.gone) {
            cpu += node.cpu.total();
            read += node.read.total();
            written += node.written.total();
            if !node.zombie {
                totals.processes += 1;
                totals.threads += node.threads;
            }
            let rss = node.rss.unwrap_or(0);
            totals.rss += rss;
            above = above.max(node.peak_news.unwrap_or(0).saturating_sub(rss));
        }
        totals.reaped = self.reaped_any;
        totals.cpu_seconds = self.cpu.total(cpu);
        let (read, written) = (self.read.total(read), self.written.total(written));
        if self.io_seen {
            (totals.read, totals.written) = (Some(read), Some(written));
        }
        let mut peak = if above > 0 { totals.rss + above } else { 0 };
        // `ru_maxrss` is over the process's whole life: it is news only when nothing so far was as high.
        let reaped = std::mem::take(&mut self.reaped_peak);
        if reaped > self.highest_rss.max(self.inherited_peak) {
            peak = peak.max(reaped);
        }
        totals.rss_peak = (peak > totals.rss).then_some(peak);
        self.highest_rss = self.highest_rss.max(totals.rss).max(peak);
        self.totals = totals;
    }

    /// Proportional set size of a process in bytes: about 15 ms of CPU for each GB of its memory.
    pub fn pss(&mut self, pid: i32) -> Result<u64, FileError> {
        let file = self.proc.file(&StackPath::of_process(pid, "smaps_rollup"))?;
        parse::rollup_pss(file.read(&mut self.buffer)?).ok_or(FileError::Gone)
    }

    /// Without `children` files: lists `/proc`, and reads the parent of every pid not seen before.
    fn scan_all(&mut self) {
        let Some(scan) = &mut self.scan else { return };
        scan.listed.clear();
        scan.unseen.clear();
        // A stranger's pid may become a process of the job within one pass: forget them now and then.
        if self.pass.is_multiple_of(30) {
            scan.strangers.clear();
        }
        let by_pid = &self.by_pid;
        let listed = self.proc.numbers(&mut self.names, |pid| {
            scan.listed.insert(pid);
            if !by_pid.contains_key(&pid) && !scan.strangers.contains(&pid) {
                scan.unseen.push((pid, 0));
            }
        });
        if listed.is_err() {
            return;
        }
        scan.strangers.retain(|pid| scan.listed.contains(pid));
        for (pid, ppid) in &mut scan.unseen {
            let stat = self.proc.file(&StackPath::of_process(*pid, "stat"));
            if let Some(stat) = stat.ok().and_then(|file| parse::stat(file.read(&mut self.buffer).ok()?)) {
                *ppid = stat.ppid;
            }
        }
        let mut unseen = std::mem::take(&mut scan.unseen);
        loop {
            let before = self.nodes.len();
            for (pid, ppid) in &mut unseen {
                if *ppid > 0 && (self.by_pid.contains_key(ppid) || self.is_minder(*ppid)) {
                    self.add(*pid, false);
                    *ppid = 0;
                }
            }
            if self.nodes.len() == before {
                break;
            }
        }
        if let Some(scan) = &mut self.scan {
            scan.strangers.extend(unseen.iter().filter(|(_, ppid)| *ppid > 0).map(|(pid, _)| *pid));
            unseen.clear();
            scan.unseen = unseen;
        }
    }
}

/// Reads a kept file, or opens it for once.
fn read_kept<'b>(
    kept: Option<&KernelFile>,
    proc: &Dir,
    path: impl FnOnce() -> StackPath,
    buffer: &'b mut Buffer,
) -> Result<&'b [u8], FileError> {
    match kept {
        Some(file) => file.read(buffer),
        None => proc.file(&path())?.read(buffer),
    }
}

/// Resident pages.
fn resident(
    kept: Option<&KernelFile>,
    proc: &Dir,
    path: impl FnOnce() -> StackPath,
    buffer: &mut Buffer,
) -> Option<u64> {
    parse::statm_resident(read_kept(kept, proc, path, buffer).ok()?)
}

/// A thread of the process other than the first.
fn living_thread(proc: &Dir, pid: i32, names: &mut Buffer) -> Option<i32> {
    let mut found = None;
    let dir = proc.dir(&StackPath::of_process(pid, "task")).ok()?;
    dir.numbers(names, |tid| {
        if tid != pid {
            found.get_or_insert(tid);
        }
    })
    .ok()?;
    found
}

/// Where the children of one process are listed.
struct TaskSource<'a> {
    pid: i32,
    files: &'a Files,
    /// It has threads beside the first.
    many: bool,
}

/// What reading the lists needs of the tree.
struct Reading<'a> {
    pass: u64,
    budget: &'a mut Budget,
    /// Of the threads without a kept descriptor and without children so far, one in so many is read.
    unkept: usize,
    buffer: &'a mut Buffer,
    names: &'a mut Buffer,
    found: &'a mut Vec<i32>,
}

impl TaskSource<'_> {
    /// Adds the children of every thread to `found`; the number of threads without a kept descriptor.
    fn children(&self, proc: &Dir, tasks: &mut Vec<Task>, turn: &mut usize, reading: Reading<'_>) -> usize {
        let Reading { pass, budget, unkept, buffer, names, found } = reading;
        let path = |tid| StackPath::children(self.pid, tid);
        if let Ok(text) = read_kept(self.files.children.as_ref(), proc, || path(self.pid), buffer) {
            found.extend(parse::children(text));
        }
        if !self.many {
            return 0;
        }
        let mut cursor = 0;
        let mut note = |tid: i32| {
            if tid == self.pid {
                return;
            }
            // The kernel lists threads in the order of their numbers, as `tasks` is.
            while tasks.get(cursor).is_some_and(|task| task.tid < tid) {
                cursor += 1;
            }
            if tasks.get(cursor).is_none_or(|task| task.tid != tid) {
                cursor = tasks.partition_point(|task| task.tid < tid);
                if tasks.get(cursor).is_none_or(|task| task.tid != tid) {
                    let mut held = 0;
                    let children = budget.keep(&mut held, || proc.file(&path(tid)));
                    tasks.insert(cursor, Task { tid, children, fertile: false, pass });
                }
            }
            tasks[cursor].pass = pass;
        };
        let listed = match &self.files.task {
            Some(dir) => dir.numbers(names, &mut note),
            None => proc
                .dir(&StackPath::of_process(self.pid, "task"))
                .and_then(|dir| dir.numbers(names, &mut note)),
        };
        if listed.is_ok() {
            tasks.retain(|task| {
                let stays = task.pass == pass;
                if !stays && task.children.is_some() {
                    budget.left += 1;
                }
                stays
            });
        }
        *turn = turn.wrapping_add(1);
        let mut without = 0;
        for (place, task) in tasks.iter_mut().enumerate() {
            if task.children.is_none() {
                without += 1;
                if !task.fertile && !(place + *turn).is_multiple_of(unkept.max(1)) {
                    continue;
                }
            }
            let before = found.len();
            if let Ok(text) = read_kept(task.children.as_ref(), proc, || path(task.tid), buffer) {
                found.extend(parse::children(text));
            }
            task.fertile = found.len() > before;
        }
        without
    }
}
