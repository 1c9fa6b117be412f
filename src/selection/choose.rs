//! The pure choice: snapshots and lease states in, verdicts and an ordered set out.
//! Never reads a device, a lock or a clock.

use std::cmp::{Ordering, Reverse};

use super::SelectionError;
use super::holder::Holder;
use crate::model::device::{ComputeMode, DeviceSnapshot};
use crate::model::reading::Reason;
use crate::model::selection::{Constraints, IDLE_UTILIZATION};

/// Whether a lease stands in the way of taking a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// It can be taken.
    Free,
    /// It cannot: another process holds it.
    Held(Holder),
}

/// One thing that a device is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Constraint {
    /// It answers to its name and is not lost.
    Reachable,
    /// `--exclude`.
    NotExcluded,
    /// `--gpu-name`.
    Name,
    /// Its compute mode lets a job in.
    ComputeMode,
    /// No lease of another stands in the way.
    Lease,
    /// `--min-free-memory`.
    FreeMemory,
    /// `--min-total-memory`.
    TotalMemory,
    /// `--max-gpu-utilization`.
    GpuUtilization,
    /// `--max-memory-utilization`.
    MemoryUtilization,
    /// `--idle`: no compute process.
    IdleProcesses,
    /// `--idle`: little utilisation.
    IdleUtilization,
    /// `--max-processes`.
    Processes,
}

impl Constraint {
    /// The word for tables and JSON.
    pub fn label(self) -> &'static str {
        match self {
            Self::Reachable => "reachable",
            Self::NotExcluded => "exclude",
            Self::Name => "gpu-name",
            Self::ComputeMode => "compute-mode",
            Self::Lease => "lease",
            Self::FreeMemory => "min-free-memory",
            Self::TotalMemory => "min-total-memory",
            Self::GpuUtilization => "max-gpu-utilization",
            Self::MemoryUtilization => "max-memory-utilization",
            Self::IdleProcesses => "idle (processes)",
            Self::IdleUtilization => "idle (utilization)",
            Self::Processes => "max-processes",
        }
    }

    /// Whether waiting cannot change the verdict: it depends on what the device is, not on what it does.
    pub fn is_fixed(self) -> bool {
        matches!(self, Self::NotExcluded | Self::Name | Self::TotalMemory)
    }
}

/// A value or a limit of a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Bytes.
    Bytes(u64),
    /// Percent.
    Percent(u32),
    /// A number of things.
    Number(u64),
    /// Words.
    Text(String),
}

/// How a constraint came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Pass,
    /// It holds only with the tolerance.
    Loosened,
    /// It does not hold.
    Fail,
    /// Its value cannot be read, so it does not hold.
    Unreadable(Reason),
}

/// One device judged by one constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// By what.
    pub constraint: Constraint,
    /// What the device has, where it could be read.
    pub value: Option<Quantity>,
    /// What it should have.
    pub limit: Option<Quantity>,
    /// How that came out.
    pub outcome: Outcome,
}

impl Verdict {
    /// Whether this alone refuses the device.
    pub fn refuses(&self) -> bool {
        matches!(self.outcome, Outcome::Fail | Outcome::Unreadable(_))
    }
}

/// One device with all its verdicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Index into the candidates.
    pub candidate: usize,
    /// One for each constraint that was asked for, in a fixed order.
    pub verdicts: Vec<Verdict>,
    /// Free memory in bytes with free accounts' share, where it could be read.
    pub free_memory: Option<u64>,
}

impl Judged {
    /// How many constraints hold only with the tolerance.
    pub fn loosened(&self) -> usize {
        self.verdicts.iter().filter(|v| v.outcome == Outcome::Loosened).count()
    }

    /// Whether nothing refuses the device.
    pub fn passes(&self) -> bool {
        !self.verdicts.iter().any(Verdict::refuses)
    }

    /// Whether a refusal stands that no waiting lifts.
    pub fn never_passes(&self, candidates: &[DeviceSnapshot]) -> bool {
        self.verdicts.iter().any(|verdict| match &verdict.outcome {
            Outcome::Fail if verdict.constraint.is_fixed() => true,
            // More free memory than the device has in all.
            Outcome::Fail if verdict.constraint == Constraint::FreeMemory => {
                let total = candidates.get(self.candidate).and_then(|d| d.memory.as_ref().ok());
                match (total, &verdict.limit) {
                    (Some(memory), Some(Quantity::Bytes(limit))) => memory.total < *limit,
                    _ => false,
                }
            }
            Outcome::Unreadable(reason) => reason.is_permanent(),
            _ => false,
        })
    }
}

/// What was chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Every candidate with its verdicts, in the order of the candidates.
    pub judged: Vec<Judged>,
    /// The chosen, as indices into the candidates, best first (or in their order without sorting).
    /// Never more than the maximum; fewer than the minimum only when [`Choice::enough`] is false.
    pub chosen: Vec<usize>,
    /// Candidates that satisfy everything but are not taken because only one MIG slice, or only whole GPUs,
    /// can stand in one `CUDA_VISIBLE_DEVICES`.
    pub dropped_for_mig: Vec<usize>,
    /// The minimum that was asked for.
    pub wanted: u32,
    /// Whether the minimum is reached.
    pub enough: bool,
}

impl Choice {
    /// The chosen that satisfy a constraint only with the tolerance.
    pub fn loosened(&self) -> impl Iterator<Item = usize> + '_ {
        self.chosen
            .iter()
            .copied()
            .filter(|&index| self.judged.get(index).is_some_and(|judged| judged.loosened() > 0))
    }

    /// The most devices that waiting could ever give.
    pub fn attainable(&self, candidates: &[DeviceSnapshot]) -> usize {
        let possible = |mig: bool| {
            self.judged
                .iter()
                .filter(|judged| !judged.never_passes(candidates))
                .filter(|judged| candidates.get(judged.candidate).is_some_and(|d| d.mig.is_some() == mig))
                .count()
        };
        possible(false).max(possible(true).min(1))
    }
}

/// Chooses among `candidates`; `leases` tells for each what stands in the way of taking it
/// (a candidate without an entry is free).
///
/// # Errors
/// A utilisation constraint where every candidate is a MIG slice.
pub fn choose(
    constraints: &Constraints,
    candidates: &[DeviceSnapshot],
    leases: &[LeaseState],
) -> Result<Choice, SelectionError> {
    if constraints.limits_utilization()
        && !candidates.is_empty()
        && candidates.iter().all(|device| device.mig.is_some())
    {
        return Err(SelectionError::UtilizationOnMig);
    }
    let judged: Vec<Judged> = candidates
        .iter()
        .enumerate()
        .map(|(index, device)| judge(constraints, index, device, leases.get(index)))
        .collect();

    let mut ranked: Vec<(&Judged, &DeviceSnapshot)> =
        judged.iter().zip(candidates).filter(|(judged, _)| judged.passes()).collect();
    if constraints.sort {
        ranked.sort_by(|a, b| rank(a.0, a.1).compare(&rank(b.0, b.1)));
    }

    let min = constraints.count.min as usize;
    let (pool, dropped_for_mig) = one_kind(ranked, min);
    let max = constraints.count.max.map_or(usize::MAX, |max| max as usize);
    let chosen = take(&pool, min, max);
    let enough = chosen.len() >= min;
    Ok(Choice { judged, chosen, dropped_for_mig, wanted: constraints.count.min, enough })
}

/// Takes strict devices up to `max`, and loosened ones only as far as `min` needs them, in the order of `pool`.
fn take(pool: &[(&Judged, &DeviceSnapshot)], min: usize, max: usize) -> Vec<usize> {
    let strict = pool.iter().filter(|(judged, _)| judged.loosened() == 0).count();
    let mut loosened_left = min.saturating_sub(strict);
    pool.iter()
        .filter(|(judged, _)| {
            if judged.loosened() == 0 {
                return true;
            }
            let taken = loosened_left > 0;
            loosened_left = loosened_left.saturating_sub(1);
            taken
        })
        .map(|(judged, _)| judged.candidate)
        .take(max)
        .collect()
}

/// Keeps what one `CUDA_VISIBLE_DEVICES` can hold: whole GPUs, or a single MIG slice. The best device decides
/// which, unless a slice would be too few and whole GPUs are enough.
fn one_kind<'a>(
    ranked: Vec<(&'a Judged, &'a DeviceSnapshot)>,
    min: usize,
) -> (Vec<(&'a Judged, &'a DeviceSnapshot)>, Vec<usize>) {
    let whole = ranked.iter().filter(|(_, device)| device.mig.is_none()).count();
    let best_is_mig = ranked.first().is_some_and(|(_, device)| device.mig.is_some());
    let take_mig = best_is_mig && (min <= 1 || whole < min);
    let mut slices = 0_usize;
    let (kept, dropped): (Vec<_>, Vec<_>) = ranked.into_iter().partition(|(_, device)| {
        if device.mig.is_none() {
            return !take_mig;
        }
        slices += 1;
        take_mig && slices == 1
    });
    (kept, dropped.into_iter().map(|(judged, _)| judged.candidate).collect())
}

/// What devices are ordered by; the smaller is the better.
struct Rank {
    loosened: usize,
    free_bucket: Option<u64>,
    gpu_utilization: Option<u32>,
    memory_utilization: Option<u32>,
    index: u32,
    slice: Option<u32>,
}

impl Rank {
    /// A known value goes before an unknown one, always.
    fn compare(&self, other: &Self) -> Ordering {
        fn known_first<T: Ord>(a: Option<T>, b: Option<T>) -> Ordering {
            match (a, b) {
                (Some(a), Some(b)) => a.cmp(&b),
                (a, b) => b.is_some().cmp(&a.is_some()),
            }
        }
        self.loosened
            .cmp(&other.loosened)
            .then_with(|| known_first(self.free_bucket.map(Reverse), other.free_bucket.map(Reverse)))
            .then_with(|| known_first(self.gpu_utilization, other.gpu_utilization))
            .then_with(|| known_first(self.memory_utilization, other.memory_utilization))
            .then_with(|| other.index.cmp(&self.index))
            .then_with(|| other.slice.cmp(&self.slice))
    }
}

/// Ranks one device that passes.
fn rank(judged: &Judged, device: &DeviceSnapshot) -> Rank {
    let free_bucket = match (&device.memory, judged.free_memory) {
        (Ok(memory), Some(free)) => free_bucket(free, memory.total),
        _ => None,
    };
    Rank {
        loosened: judged.loosened(),
        free_bucket,
        gpu_utilization: device.gpu_utilization.as_ref().ok().copied(),
        memory_utilization: device.memory_utilization.as_ref().ok().copied(),
        index: device.index,
        slice: device.mig.map(|place| place.index),
    }
}

/// Free bytes rounded down to a whole twentieth of the device's total; `None` for a device without memory.
///
/// In bytes, not in twentieths, so that on unlike GPUs the one with more room still comes first.
pub fn free_bucket(free: u64, total: u64) -> Option<u64> {
    let twentieths = (u128::from(free) * 20).checked_div(u128::from(total))?;
    u64::try_from(twentieths * u128::from(total) / 20).ok()
}

/// Judges one device by every constraint that was asked for.
fn judge(
    constraints: &Constraints,
    candidate: usize,
    device: &DeviceSnapshot,
    lease: Option<&LeaseState>,
) -> Judged {
    let mut verdicts = Verdicts(vec![reachable(device)]);
    judge_eligibility(constraints, device, lease, &mut verdicts);
    let credit = account_credit(constraints, device);
    let free_memory =
        device.memory.as_ref().ok().map(|memory| memory.free.saturating_add(credit).min(memory.total));
    judge_memory(constraints, device, free_memory, &mut verdicts);
    judge_load(constraints, device, &mut verdicts);
    Judged { candidate, verdicts: verdicts.0, free_memory }
}

/// The verdicts on one device, in the order of the table of `--explain`.
struct Verdicts(Vec<Verdict>);

impl Verdicts {
    fn add(
        &mut self,
        constraint: Constraint,
        value: Option<Quantity>,
        limit: Option<Quantity>,
        outcome: Outcome,
    ) {
        self.0.push(Verdict { constraint, value, limit, outcome });
    }
}

/// Whether the job may have the device at all: by name, compute mode and lease.
fn judge_eligibility(
    constraints: &Constraints,
    device: &DeviceSnapshot,
    lease: Option<&LeaseState>,
    verdicts: &mut Verdicts,
) {
    if let Some(name) = constraints.exclude.iter().find(|name| name.covers(device)) {
        let named = Some(Quantity::Text(name.to_string()));
        verdicts.add(Constraint::NotExcluded, named, None, Outcome::Fail);
    }
    if let Some(pattern) = &constraints.gpu_name {
        let limit = Some(Quantity::Text(pattern.as_str().to_owned()));
        match &device.name {
            Ok(name) => {
                let outcome = pass_or_fail(pattern.is_match(name));
                verdicts.add(Constraint::Name, Some(Quantity::Text(name.clone())), limit, outcome);
            }
            Err(reason) => {
                verdicts.add(Constraint::Name, None, limit, Outcome::Unreadable(reason.clone()));
            }
        }
    }
    if constraints.for_job {
        let (value, outcome) = compute_mode(device);
        verdicts.add(Constraint::ComputeMode, value, None, outcome);
    }
    match lease {
        None => {}
        Some(LeaseState::Free) => verdicts.add(Constraint::Lease, None, None, Outcome::Pass),
        Some(LeaseState::Held(holder)) => {
            let holder = Some(Quantity::Text(holder.to_string()));
            verdicts.add(Constraint::Lease, holder, None, Outcome::Fail);
        }
    }
}

/// `--min-free-memory`, with the memory of processes that count as free, and `--min-total-memory`.
fn judge_memory(
    constraints: &Constraints,
    device: &DeviceSnapshot,
    free_memory: Option<u64>,
    verdicts: &mut Verdicts,
) {
    if let Some(limit) = constraints.min_free_memory {
        let value = known(&device.memory, free_memory);
        let (value, outcome) = at_least(value, limit, constraints.tolerance);
        verdicts.add(Constraint::FreeMemory, value, Some(Quantity::Bytes(limit)), outcome);
    }
    if let Some(limit) = constraints.min_total_memory {
        let value = device.memory.as_ref().map(|memory| memory.total).map_err(Clone::clone);
        let (value, outcome) = at_least(value, limit, constraints.tolerance);
        verdicts.add(Constraint::TotalMemory, value, Some(Quantity::Bytes(limit)), outcome);
    }
}

/// The limits of utilisation and of processes.
fn judge_load(constraints: &Constraints, device: &DeviceSnapshot, verdicts: &mut Verdicts) {
    let percents = [
        (Constraint::GpuUtilization, constraints.max_gpu_utilization, &device.gpu_utilization),
        (Constraint::MemoryUtilization, constraints.max_memory_utilization, &device.memory_utilization),
    ];
    for (constraint, limit, value) in percents {
        if let Some(limit) = limit {
            let (value, outcome) = at_most(value, limit, constraints.tolerance);
            verdicts.add(constraint, value, Some(Quantity::Percent(limit)), outcome);
        }
    }
    if constraints.idle {
        let (value, outcome) = few_processes(device, 0);
        verdicts.add(Constraint::IdleProcesses, value, Some(Quantity::Number(0)), outcome);
        let (value, outcome) = at_most(&device.gpu_utilization, IDLE_UTILIZATION, 0);
        let limit = Some(Quantity::Percent(IDLE_UTILIZATION));
        verdicts.add(Constraint::IdleUtilization, value, limit, outcome);
    }
    if let Some(limit) = constraints.max_processes {
        let (value, outcome) = few_processes(device, limit);
        verdicts.add(Constraint::Processes, value, Some(Quantity::Number(u64::from(limit))), outcome);
    }
}

/// Refuses a GPU that does not answer to its name, is lost, or is closed to this user.
fn reachable(device: &DeviceSnapshot) -> Verdict {
    let lost = |reason: &&Reason| matches!(reason, Reason::GpuLost | Reason::DriverGone | Reason::TimedOut);
    let readings = [
        device.memory.as_ref().err(),
        device.gpu_utilization.as_ref().err(),
        device.name.as_ref().err(),
        device.compute_mode.as_ref().err(),
    ];
    let forbidden = device.memory.as_ref().err().filter(|reason| **reason == Reason::NoPermission);
    let reason =
        device.uuid.as_ref().err().or_else(|| readings.into_iter().flatten().find(lost)).or(forbidden);
    let outcome = reason.map_or(Outcome::Pass, |reason| Outcome::Unreadable(reason.clone()));
    Verdict { constraint: Constraint::Reachable, value: None, limit: None, outcome }
}

/// Whether the compute mode lets one more process in.
fn compute_mode(device: &DeviceSnapshot) -> (Option<Quantity>, Outcome) {
    let text = |text: &str| Some(Quantity::Text(text.to_owned()));
    match &device.compute_mode {
        Ok(ComputeMode::Default) => (text("Default"), Outcome::Pass),
        Ok(ComputeMode::Prohibited) => (text("Prohibited"), Outcome::Fail),
        Ok(ComputeMode::ExclusiveProcess | ComputeMode::ExclusiveThread) => match &device.processes {
            Ok(processes) => match processes.iter().find(|process| process.compute) {
                None => (text("Exclusive, not in use"), Outcome::Pass),
                Some(process) => (text(&format!("Exclusive, in use by pid {}", process.pid)), Outcome::Fail),
            },
            Err(reason) => (text("Exclusive"), Outcome::Unreadable(reason.clone())),
        },
        // A driver without compute modes does not forbid anything.
        Err(Reason::NotSupported | Reason::MissingSymbol) => (text("none"), Outcome::Pass),
        Err(reason) => (None, Outcome::Unreadable(reason.clone())),
    }
}

/// Bytes held by processes of the free accounts, as far as they can be read.
fn account_credit(constraints: &Constraints, device: &DeviceSnapshot) -> u64 {
    let Ok(processes) = &device.processes else { return 0 };
    processes
        .iter()
        .filter(|process| process.uid.is_some_and(|uid| constraints.free_accounts.contains(&uid)))
        .filter_map(|process| process.memory.as_ref().ok())
        .fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// Judges by the number of compute processes.
fn few_processes(device: &DeviceSnapshot, limit: u32) -> (Option<Quantity>, Outcome) {
    match &device.processes {
        Ok(processes) => {
            let number = processes.iter().filter(|process| process.compute).count() as u64;
            (Some(Quantity::Number(number)), pass_or_fail(number <= u64::from(limit)))
        }
        Err(reason) => (None, Outcome::Unreadable(reason.clone())),
    }
}

/// Joins a derived value with the reason why its source is missing.
fn known<T>(source: &Result<T, Reason>, value: Option<u64>) -> Result<u64, Reason> {
    match (source, value) {
        (Err(reason), _) => Err(reason.clone()),
        (Ok(_), Some(value)) => Ok(value),
        (Ok(_), None) => Err(Reason::NotAsked),
    }
}

/// Memory: relative tolerance, `value >= limit * (100 - tolerance) / 100`, in integers.
fn at_least(value: Result<u64, Reason>, limit: u64, tolerance: u32) -> (Option<Quantity>, Outcome) {
    match value {
        Ok(value) => {
            let loosened =
                u128::from(value) * 100 >= u128::from(limit) * u128::from(100_u32.saturating_sub(tolerance));
            (Some(Quantity::Bytes(value)), three_way(value >= limit, loosened))
        }
        Err(reason) => (None, Outcome::Unreadable(reason)),
    }
}

/// Utilisation: absolute tolerance in points, `value <= limit + tolerance`.
fn at_most(value: &Result<u32, Reason>, limit: u32, tolerance: u32) -> (Option<Quantity>, Outcome) {
    match value {
        Ok(value) => {
            let outcome = three_way(*value <= limit, *value <= limit.saturating_add(tolerance));
            (Some(Quantity::Percent(*value)), outcome)
        }
        Err(reason) => (None, Outcome::Unreadable(reason.clone())),
    }
}

/// Strict, else loosened, else failed.
fn three_way(strict: bool, loosened: bool) -> Outcome {
    match (strict, loosened) {
        (true, _) => Outcome::Pass,
        (false, true) => Outcome::Loosened,
        (false, false) => Outcome::Fail,
    }
}

/// For constraints that know no tolerance.
fn pass_or_fail(holds: bool) -> Outcome {
    if holds { Outcome::Pass } else { Outcome::Fail }
}
