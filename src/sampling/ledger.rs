//! Conserved sums: what the tree has used in all, ended processes included, nothing counted twice.
//!
//! The kernel moves what a process used into its parent when the parent waits for it. So the sum of
//! (own + waited children's) over the live tree is conserved, and three things can break it:
//! a process that its parent does not wait for because it ignores `SIGCHLD` (its use vanishes), one
//! that left for a parent outside the tree (the same), and one that gpurun itself reaped (`wait4`
//! reports it). An [`Account`] is one process's part, the [`Ledger`] what is left of the ended ones.

/// Where the use of a process that has ended is counted from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UsageRecipient {
    /// A process of the tree, by its place: the kernel adds it to the waited children's use there.
    Parent(usize),
    /// gpurun reaped it, or will: `wait4` reports all of it.
    Reaper,
    /// None is known: the last value seen is kept.
    Retired,
}

/// One process's part of a sum. All amounts are totals since the process began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    /// Own use plus that of waited children, as last read.
    total: f64,
    /// The part in which the use of waited children shows, as last read.
    absorbing: f64,
    /// Growth of `absorbing` at the last read that no ended child explains yet.
    credit: f64,
    /// What children that ended since then had used: it should show up in `absorbing`.
    pending: f64,
    read_once: bool,
}

impl Account {
    /// Takes a new read in. What ended children had used and the kernel did not pass on goes to
    /// `ledger`, so that it is neither lost nor counted twice.
    pub(super) fn update(&mut self, total: f64, absorbing: f64, ledger: &mut Ledger) {
        let growth = if self.read_once { (absorbing - self.absorbing).max(0.0) } else { 0.0 };
        if self.pending > 0.0 {
            let available = self.credit + growth;
            let used = self.pending.min(available);
            ledger.retired += self.pending - used;
            self.credit = growth.min(available - used);
            self.pending = 0.0;
        } else {
            self.credit = growth;
        }
        self.total = self.total.max(total);
        self.absorbing = absorbing;
        self.read_once = true;
    }

    /// Own use plus that of waited children, as last read.
    pub(super) fn total(&self) -> f64 {
        self.total
    }

    /// A child ended whose last seen amount was `amount`.
    pub(super) fn expect(&mut self, amount: f64) {
        self.pending += amount;
    }

    /// What the process has used in all when it ends. What its ended children had used is inside `total` already
    /// as far as the last read had grown by it.
    pub(super) fn final_amount(&self) -> f64 {
        self.total + (self.pending - self.credit).max(0.0)
    }
}

/// The ended processes' part of a sum, and the promise that the sum never falls.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ledger {
    retired: f64,
    reaped: f64,
    base: f64,
    held: f64,
    lower_for: u32,
}

/// After this many samples below the held total the loss is taken as final. A child that was reaped
/// in the middle of a sample is back in the next one.
const FINAL_AFTER: u32 = 3;

impl Ledger {
    /// gpurun reaped a process that had used this much, as `wait4` reports.
    pub(super) fn reaped(&mut self, amount: f64) {
        self.reaped += amount;
    }

    /// The last seen amount of a process whose use is passed on to no known process.
    pub(super) fn retire(&mut self, amount: f64) {
        self.retired += amount;
    }

    /// Use from before the run, which is not the run's.
    pub(super) fn exclude(&mut self, amount: f64) {
        self.base += amount;
    }

    /// The total since the run began, given the sum over the live processes. Never falls.
    pub(super) fn total(&mut self, live: f64) -> f64 {
        let now = live + self.retired + self.reaped - self.base;
        if now >= self.held {
            self.held = now;
            self.lower_for = 0;
        } else {
            self.lower_for += 1;
            if self.lower_for >= FINAL_AFTER {
                self.retired += self.held - now;
                self.lower_for = 0;
            }
        }
        self.held
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_waited_child_counts_once() {
        let (mut ledger, mut parent, mut child) = (Ledger::default(), Account::default(), Account::default());
        parent.update(1.0, 0.0, &mut ledger);
        child.update(5.0, 0.0, &mut ledger);
        assert_eq!(ledger.total(6.0), 6.0);
        // Pass 2: the parent is read, then the child is found gone.
        parent.update(1.5, 0.0, &mut ledger);
        parent.expect(child.final_amount());
        assert_eq!(ledger.total(1.5), 6.0);
        // Pass 3: the kernel has added the child's 5.25 to the parent.
        parent.update(7.0, 5.25, &mut ledger);
        assert_eq!(ledger.total(parent.total()), 7.0);
    }

    #[test]
    fn a_child_that_was_absorbed_before_its_parent_was_read_counts_once() {
        let (mut ledger, mut parent, mut child) = (Ledger::default(), Account::default(), Account::default());
        parent.update(1.0, 0.0, &mut ledger);
        child.update(5.0, 0.0, &mut ledger);
        parent.update(6.5, 5.0, &mut ledger);
        parent.expect(child.final_amount());
        assert_eq!(ledger.total(6.5), 6.5);
        parent.update(6.6, 5.0, &mut ledger);
        assert!((ledger.total(parent.total()) - 6.6).abs() < 1e-9);
    }

    #[test]
    fn a_child_that_nobody_waited_for_is_kept() {
        let (mut ledger, mut parent, mut child) = (Ledger::default(), Account::default(), Account::default());
        parent.update(1.0, 0.0, &mut ledger);
        child.update(5.0, 0.0, &mut ledger);
        assert_eq!(ledger.total(6.0), 6.0);
        parent.update(1.1, 0.0, &mut ledger);
        parent.expect(child.final_amount());
        ledger.total(1.1);
        parent.update(1.2, 0.0, &mut ledger);
        assert!((ledger.total(parent.total()) - 6.2).abs() < 1e-9);
    }

    #[test]
    fn a_loss_that_stays_does_not_swallow_what_comes() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.total(100.0), 100.0);
        for _ in 0..FINAL_AFTER {
            assert_eq!(ledger.total(10.0), 100.0);
        }
        assert_eq!(ledger.total(11.0), 101.0);
    }

    /// A process of the simulated machine. Its children's use arrives when it is waited for.
    #[derive(Clone, Debug, Default)]
    struct Process {
        parent: Option<usize>,
        seen_parent: Option<usize>,
        own: f64,
        waited: f64,
        ended: bool,
        reaped: bool,
        known: bool,
        account: Account,
    }

    #[derive(Clone, Debug)]
    enum Step {
        Fork(usize),
        Work(usize, u8),
        /// It ends and its parent waits for it at once; its children go to gpurun, which reaps them.
        End(usize),
        Sample,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let one = prop_oneof![
            2 => (0usize..64).prop_map(Step::Fork),
            5 => ((0usize..64), 1u8..50).prop_map(|(p, n)| Step::Work(p, n)),
            3 => (1usize..64).prop_map(Step::End),
            4 => Just(Step::Sample),
        ];
        prop::collection::vec(one, 1..200)
    }

    /// One pass as the tree makes it: parents before children.
    fn pass(all: &mut [Process], ledger: &mut Ledger) -> f64 {
        for place in 0..all.len() {
            if !all[place].ended {
                let process = &mut all[place];
                process.account.update(process.own + process.waited, process.waited, ledger);
                process.seen_parent = process.parent;
                process.known = true;
            } else if std::mem::take(&mut all[place].known)
                && !all[place].reaped
                && let Some(parent) = all[place].seen_parent
                && !all[parent].ended
            {
                let amount = all[place].account.final_amount();
                all[parent].account.expect(amount);
            }
        }
        ledger.total(all.iter().filter(|process| !process.ended).map(|p| p.account.total()).sum())
    }

    proptest! {
        /// Whatever forks, works, ends and is orphaned between samples: the sum never falls, never
        /// passes the truth, and equals it when a sample follows a quiet one.
        #[test]
        fn the_sum_is_the_truth(steps in steps()) {
            let mut ledger = Ledger::default();
            let mut all = vec![Process::default()];
            let (mut truth, mut shown) = (0.0, 0.0);
            for step in steps.into_iter().chain([Step::Sample, Step::Sample]) {
                let count = all.len();
                match step {
                    Step::Fork(p) if !all[p % count].ended => {
                        all.push(Process { parent: Some(p % count), ..Process::default() });
                    }
                    Step::Work(p, amount) if !all[p % count].ended => {
                        all[p % count].own += f64::from(amount);
                        truth += f64::from(amount);
                    }
                    Step::End(p) if p % count > 0 && !all[p % count].ended => {
                        let p = p % count;
                        all[p].ended = true;
                        let amount = all[p].own + all[p].waited;
                        match all[p].parent {
                            Some(parent) => all[parent].waited += amount,
                            None => {
                                all[p].reaped = true;
                                ledger.reaped(amount);
                            }
                        }
                        for orphan in all.iter_mut().filter(|c| !c.ended && c.parent == Some(p)) {
                            orphan.parent = None;
                        }
                    }
                    Step::Sample => {
                        let total = pass(&mut all, &mut ledger);
                        prop_assert!(total >= shown - 1e-9, "fell from {} to {}", shown, total);
                        prop_assert!(total <= truth + 1e-9, "{} is more than the truth {}", total, truth);
                        shown = total;
                    }
                    _ => {}
                }
            }
            prop_assert!((shown - truth).abs() < 1e-6, "{} instead of {}", shown, truth);
        }
    }
}
