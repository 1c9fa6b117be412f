//! What the processes of the tree have used in all, those that ended included.

use super::{ReapedUsage, Tree, TreeTotals};
use crate::collectors::procfs::parse::CpuMask;
use crate::model::id::ProcessKey;
use crate::sampling::ledger::{Account, Ledger, UsageRecipient};
use crate::sampling::settings::{Notice, TreeRoot};

/// A process's part of each sum.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Accounts {
    pub(super) cpu: Account,
    pub(super) read: Account,
    pub(super) written: Account,
}

/// The ended processes' part of each sum.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ledgers {
    pub(super) cpu: Ledger,
    pub(super) read: Ledger,
    pub(super) written: Ledger,
}

impl Accounts {
    fn final_amounts(&self) -> [f64; 3] {
        [self.cpu.final_amount(), self.read.final_amount(), self.written.final_amount()]
    }

    fn expect(&mut self, [cpu, read, written]: [f64; 3]) {
        self.cpu.expect(cpu);
        self.read.expect(read);
        self.written.expect(written);
    }
}

impl Ledgers {
    fn retire(&mut self, [cpu, read, written]: [f64; 3]) {
        self.cpu.retire(cpu);
        self.read.retire(read);
        self.written.retire(written);
    }

    /// What a process used before the run is not the run's.
    pub(super) fn exclude(&mut self, accounts: &Accounts) {
        self.cpu.exclude(accounts.cpu.total());
        self.read.exclude(accounts.read.total());
        self.written.exclude(accounts.written.total());
    }
}

impl Tree {
    /// gpurun reaped a process of the job.
    pub fn reaped(&mut self, usage: &ReapedUsage) {
        const BLOCK: f64 = 512.0;
        self.ledgers.cpu.reaped(usage.cpu_seconds);
        self.ledgers.read.reaped(usage.blocks_read as f64 * BLOCK);
        let mut written = usage.blocks_written as f64 * BLOCK;
        if let Some(place) = self.place_of(usage.pid) {
            let node = &mut self.nodes[place];
            node.reaped = true;
            // `wait4` does not take off what was truncated before it reached the disk; we did while it lived.
            if node.io_known {
                written = node.accounts.written.total() + (written - node.written_gross).max(0.0);
            }
        }
        self.ledgers.written.reaped(written);
        self.io_seen = true;
        self.reaped_any = true;
        self.reaped_peak = self.reaped_peak.max(usage.max_rss_kib.saturating_mul(1024));
    }

    /// A process is no longer there: decides where what it used has gone.
    pub(super) fn end(&mut self, place: usize) {
        let recipient = self.recipient_of(place);
        let node = &mut self.nodes[place];
        node.gone = true;
        node.recipient = recipient;
        let ProcessKey { pid, .. } = node.key;
        let amounts = node.accounts.final_amounts();
        match recipient {
            UsageRecipient::Parent(parent) => self.nodes[parent].accounts.expect(amounts),
            UsageRecipient::Reaper => {}
            UsageRecipient::Retired => self.ledgers.retire(amounts),
        }
        if self.by_pid.get(&pid) == Some(&place) {
            self.by_pid.remove(&pid);
        }
    }

    fn recipient_of(&self, place: usize) -> UsageRecipient {
        let node = &self.nodes[place];
        let has_reaper = self.minder.as_ref().is_some_and(|minder| minder.alive);
        let parent = self.by_pid.get(&node.ppid).copied().filter(|parent| *parent < place);
        match parent {
            _ if node.reaped => UsageRecipient::Reaper,
            _ if self.root == TreeRoot::GpuProcesses => UsageRecipient::Retired,
            Some(parent) if !self.nodes[parent].gone => UsageRecipient::Parent(parent),
            // The parent went in this pass as well. Under a minder the child was then either reaped by
            // its parent, or adopted and reported by `wait4`: keeping it could count it twice.
            _ if has_reaper => UsageRecipient::Reaper,
            Some(parent) => self.nodes[parent].recipient,
            None => UsageRecipient::Retired,
        }
    }

    /// Sums over the tree as it was just read.
    pub(super) fn sum(&mut self) {
        let mut totals = TreeTotals { reaped: self.reaped_any, ..TreeTotals::default() };
        let (mut cpu, mut read, mut written) = (0.0, 0.0, 0.0);
        let mut above = 0;
        let mut io_denied = false;
        let mut cpus: Option<CpuMask> = None;
        for node in self.nodes.iter().filter(|node| !node.gone) {
            cpu += node.accounts.cpu.total();
            read += node.accounts.read.total();
            written += node.accounts.written.total();
            self.io_seen |= node.io_known;
            io_denied |= node.io_denied;
            if node.is_alive() {
                totals.processes += 1;
                totals.threads += node.threads();
                if let Some(mask) = node.cpus() {
                    cpus.get_or_insert_default().add(mask);
                }
            }
            let rss = node.rss().unwrap_or(0);
            totals.rss += rss;
            above = above.max(node.peak().unwrap_or(0).saturating_sub(rss));
        }
        totals.cpus = cpus.map(|mask| mask.count());
        totals.cpu_seconds = self.ledgers.cpu.total(cpu);
        let (read, written) = (self.ledgers.read.total(read), self.ledgers.written.total(written));
        if self.io_seen {
            (totals.read, totals.written) = (Some(read), Some(written));
        }
        if io_denied && !std::mem::replace(&mut self.io_denied, true) {
            self.notices.push(Notice::NoIoPermission);
        }
        totals.rss_peak = self.peak(totals.rss, above);
        self.totals = totals;
    }

    /// The most resident bytes that the tree is known to have reached since the last pass, if that is more than `rss`.
    /// `above` is what one of its processes had more than now.
    fn peak(&mut self, rss: u64, above: u64) -> Option<u64> {
        let mut peak = rss + above;
        // `ru_maxrss` is over the process's whole life: it is news only when nothing so far was as high.
        let reaped = std::mem::take(&mut self.reaped_peak);
        if reaped > self.highest_rss.max(self.inherited_peak) {
            peak = peak.max(reaped);
        }
        self.highest_rss = self.highest_rss.max(peak);
        (peak > rss).then_some(peak)
    }
}
