//! One process of the job: what is known of it and how that is read.

use super::children::Children;
use super::usage::{Accounts, Ledgers};
use crate::collectors::procfs::file::{FileError, KernelFile, StackPath};
use crate::collectors::procfs::parse::{self, CpuMask};
use crate::model::id::ProcessKey;
use crate::sampling::ledger::UsageRecipient;
use crate::sampling::proc::{Kept, Proc};
use crate::sys::stat::{self, Stat};

/// A process of the job.
#[derive(Debug)]
pub struct Node {
    pub(super) key: ProcessKey,
    pub(super) ppid: i32,
    name: Vec<u8>,
    renamed: bool,
    zombie: bool,
    threads: u64,
    own_seconds: f64,
    pub(super) accounts: Accounts,
    /// Its I/O counters were read at least once.
    pub(super) io_known: bool,
    /// The kernel refused them.
    pub(super) io_denied: bool,
    /// Bytes written with those that were truncated before they reached the disk, as `wait4` counts.
    pub(super) written_gross: f64,
    rss: Option<u64>,
    cpus: Option<CpuMask>,
    /// Highest `VmHWM` known.
    peak_known: Option<u64>,
    peak: Option<u64>,
    /// It began before the run: what it used until its first read is not the run's.
    predates_run: bool,
    reads: u64,
    pub(super) gone: bool,
    pub(super) reaped: bool,
    /// Where its use went when it ended.
    pub(super) recipient: UsageRecipient,
    pub(super) files: Files,
    /// Whether the process was seen on a GPU.
    pub on_gpu: bool,
    /// The caller's own number for it.
    pub tag: Option<usize>,
}

/// The files of one process.
#[derive(Debug)]
pub(super) struct Files {
    stat: Kept<KernelFile>,
    status: Kept<KernelFile>,
    io: Kept<KernelFile>,
    /// Where its descendants are part of the tree and the kernel lists children.
    pub(super) children: Option<Children>,
}

impl Files {
    pub(super) fn new(pid: i32, stat: Kept<KernelFile>, with_children: bool, proc: &mut Proc) -> Self {
        Self {
            stat,
            status: proc.keep_file(StackPath::of_process(pid, "status")),
            io: proc.keep_file(StackPath::of_process(pid, "io")),
            children: with_children.then(|| Children::new(pid, proc)),
        }
    }

    pub(super) fn close(self, proc: &mut Proc) {
        for file in [self.stat, self.status, self.io] {
            proc.close(file);
        }
        if let Some(children) = self.children {
            children.close(proc);
        }
    }
}

/// How a tree counts CPU time.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuCount {
    pub(super) seconds_per_tick: f64,
    /// Waited children count with their parent. Not so where a parent and its child may both be followed for their own
    /// sake.
    pub(super) with_children: bool,
}

/// What became of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// Its values are of now.
    Read,
    /// No descriptor was left: its values are the last ones.
    Kept,
    /// The process has ended and was reaped.
    Gone,
}

impl Node {
    pub(super) fn new(key: ProcessKey, ppid: i32, predates_run: bool, files: Files) -> Self {
        Self {
            key,
            ppid,
            name: Vec::new(),
            renamed: false,
            zombie: false,
            threads: 0,
            own_seconds: 0.0,
            accounts: Accounts::default(),
            io_known: false,
            io_denied: false,
            written_gross: 0.0,
            rss: None,
            cpus: None,
            peak_known: None,
            peak: None,
            predates_run,
            reads: 0,
            gone: false,
            reaped: false,
            recipient: UsageRecipient::Retired,
            files,
            on_gpu: false,
            tag: None,
        }
    }

    /// Pid and start time.
    pub fn key(&self) -> ProcessKey {
        self.key
    }

    /// The name, bad bytes replaced.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }

    /// Whether the name is another one than at the pass before: the process executed a program, or
    /// renamed itself.
    pub fn renamed(&self) -> bool {
        self.renamed
    }

    /// Whether it has ended and was reaped; such a node stays until the next pass.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether it has ended and waits to be reaped.
    pub fn is_zombie(&self) -> bool {
        self.zombie
    }

    /// Whether it runs.
    pub fn is_alive(&self) -> bool {
        !self.gone && !self.zombie
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

    /// The CPUs that it may run on; `None` where they could not be read.
    pub fn cpus(&self) -> Option<&CpuMask> {
        self.cpus.as_ref()
    }

    /// A peak of resident bytes that was reached since the last pass and is more than those of now.
    pub fn peak(&self) -> Option<u64> {
        self.peak
    }

    /// Bytes read from and written towards storage since it began, reaped children included.
    pub fn io(&self) -> Option<(f64, f64)> {
        self.io_known.then(|| (self.accounts.read.total(), self.accounts.written.total()))
    }

    /// Reads all of it.
    pub(super) fn read(&mut self, proc: &mut Proc, ledgers: &mut Ledgers, cpu: CpuCount) -> ReadOutcome {
        self.peak = None;
        let leaderless = match self.read_stat(proc, ledgers, cpu) {
            Ok(leaderless) => leaderless,
            Err(outcome) => return outcome,
        };
        let is_first = self.reads == 0;
        self.reads += 1;
        if self.zombie {
            self.cpus = None;
            self.rss = Some(0);
        } else {
            self.read_status(proc, leaderless, is_first);
        }
        self.read_io(proc, ledgers);
        if is_first && self.predates_run {
            ledgers.exclude(&self.accounts);
        }
        ReadOutcome::Read
    }

    /// Reads state, name, threads and CPU time. Says whether the first thread has ended while others live: the kernel
    /// shows such a process as a zombie without memory.
    fn read_stat(
        &mut self,
        proc: &mut Proc,
        ledgers: &mut Ledgers,
        cpu: CpuCount,
    ) -> Result<bool, ReadOutcome> {
        let stat = match proc.read(&self.files.stat) {
            Ok(text) => Stat::parse(text).zip(stat::name(text)),
            Err(FileError::NoDescriptor) => return Err(ReadOutcome::Kept),
            Err(_) => None,
        };
        let is_it = |(stat, _): &(Stat, _)| stat.start_ticks == self.key.start_ticks;
        let (stat, name) = stat.filter(is_it).ok_or(ReadOutcome::Gone)?;
        self.renamed = self.reads > 0 && self.name != name;
        if self.reads == 0 || self.renamed {
            self.name.clear();
            self.name.extend_from_slice(name);
        }
        self.ppid = stat.ppid;
        self.zombie = stat.has_ended() && stat.threads <= 1;
        self.threads = stat.threads;
        let own = stat.own_ticks as f64 * cpu.seconds_per_tick;
        let children =
            if cpu.with_children { stat.children_ticks as f64 * cpu.seconds_per_tick } else { 0.0 };
        self.own_seconds = self.own_seconds.max(own);
        self.accounts.cpu.update(own + children, children, &mut ledgers.cpu);
        Ok(stat.has_ended() && !self.zombie)
    }

    fn read_status(&mut self, proc: &mut Proc, leaderless: bool, is_first: bool) {
        // Only a live thread shows the memory; the first one is nearly always alive.
        let other = if leaderless { proc.other_thread(self.key.pid) } else { None };
        let text = match other {
            Some(tid) => proc.read_once(&StackPath::of_thread(self.key.pid, tid, "status")),
            None => proc.read(&self.files.status),
        };
        let text = text.ok();
        self.cpus = text.and_then(parse::status_affinity);
        let memory = text.and_then(parse::status_memory);
        self.rss = memory.map(|memory| memory.resident);
        let Some((resident, peak)) = memory.and_then(|memory| Some((memory.resident, memory.peak?))) else {
            return;
        };
        // A peak of before the run is not the run's. A smaller one than known is of a new program, whose peaks count.
        let is_news = match self.peak_known {
            Some(known) => peak > known,
            None => is_first && !self.predates_run,
        };
        if is_news && peak > resident {
            self.peak = Some(peak);
        }
        self.peak_known = Some(peak);
    }

    fn read_io(&mut self, proc: &mut Proc, ledgers: &mut Ledgers) {
        if self.io_denied && !self.io_known {
            return;
        }
        match proc.read(&self.files.io) {
            Ok(text) => {
                let Some(io) = parse::io(text) else { return };
                let read = io.read as f64;
                let net = io.written.saturating_sub(io.cancelled) as f64;
                self.accounts.read.update(read, read, &mut ledgers.read);
                self.accounts.written.update(net, net, &mut ledgers.written);
                self.written_gross = io.written as f64;
                self.io_known = true;
            }
            Err(FileError::Denied) => self.io_denied = true,
            Err(_) => {}
        }
    }
}
