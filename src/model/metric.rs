//! The metric catalogue: the only source of names, units, kinds, sources and cost tiers.
//!
//! Columns, TensorBoard tags, schemas, the README's table, `gpurun metrics` and `--metrics` all
//! derive from [`CATALOGUE`]. A counter's reading is the running total of `unit x seconds`, so that
//! its rate has the catalogue's unit; that of an amount is a running total in the unit itself.

mod catalogue;

pub use catalogue::{CATALOGUE, MetricId};

/// What a metric is about; the `scope` column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The host, or the cgroup that gpurun runs in.
    Host,
    /// A GPU or MIG slice as a whole, with all processes that use it.
    Gpu,
    /// The job: the tree of processes under the command.
    Job,
    /// One process of the job.
    Process,
    /// gpurun itself.
    Gpurun,
    /// Scalars of the job's own.
    User,
    /// Times of training steps.
    BatchTime,
}

impl Scope {
    /// The word in the `scope` column and in keys.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Host => "host",
            Scope::Gpu => "gpu",
            Scope::Job => "job",
            Scope::Process => "process",
            Scope::Gpurun => "gpurun",
            Scope::User => "user",
            Scope::BatchTime => "batch_time",
        }
    }
}

/// How readings become statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Statistics of the value itself.
    Gauge,
    /// Statistics of the rate of a running total.
    Counter,
    /// By how much a running total rises in a span: all four statistics are that amount, which adds up over spans.
    Amount,
}

impl Kind {
    /// The word in the catalogue's listing.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Amount => "amount",
        }
    }

    /// Whether readings are running totals.
    pub fn is_total(self) -> bool {
        self != Kind::Gauge
    }
}

/// What a read costs, and so how often it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Every sample.
    Cheap,
    /// At a slower pace of its own.
    Expensive,
    /// Once, at the start.
    Static,
    /// Only when `--metrics +NAME` asks for it.
    OptIn,
}

impl Tier {
    /// The word in the catalogue's listing.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Cheap => "cheap",
            Tier::Expensive => "expensive",
            Tier::Static => "static",
            Tier::OptIn => "opt-in",
        }
    }
}

/// Whether a metric has one series per scope subject, or one per GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// One series for the whole scope (or process).
    Whole,
    /// One series for each GPU.
    Device,
    /// One series for each GPU and one for the total.
    WholeAndDevice,
}

/// One entry of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// What it is about.
    pub scope: Scope,
    /// Name, unique within its scope.
    pub name: &'static str,
    /// Unit as written; empty for a bare number.
    pub unit: &'static str,
    /// Gauge or counter.
    pub kind: Kind,
    /// Cost tier.
    pub tier: Tier,
    /// Name of the group that `--metrics +GROUP` and `-GROUP` address.
    pub group: &'static str,
    /// Whole scope or per GPU.
    pub subject: Subject,
    /// Where the value comes from.
    pub source: &'static str,
    /// Where it is null for good; empty when nowhere.
    pub absent: &'static str,
    /// What it means, in one phrase.
    pub about: &'static str,
}

impl Metric {
    /// Whether it is recorded unless `--metrics` says otherwise.
    pub fn on_by_default(&self) -> bool {
        self.tier != Tier::OptIn
    }

    /// Whether a `--metrics` word means this metric: its name, its group, or `scope.name`.
    pub fn answers_to(&self, word: &str) -> bool {
        match word.split_once('.') {
            Some((scope, name)) => scope == self.scope.name() && (name == self.name || name == self.group),
            None => word == self.name || word == self.group,
        }
    }
}

impl MetricId {
    /// The catalogue's entry.
    pub fn get(self) -> &'static Metric {
        &CATALOGUE[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_within_a_scope_and_plain() {
        let mut seen = HashSet::new();
        for metric in CATALOGUE {
            assert!(seen.insert((metric.scope, metric.name)), "{} twice", metric.name);
            assert!(metric.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
            assert!(!metric.source.is_empty() && !metric.about.is_empty());
        }
        assert_eq!(MetricId::ALL.len(), CATALOGUE.len());
    }

    #[test]
    fn the_number_is_the_row() {
        for (row, id) in MetricId::ALL.iter().enumerate() {
            assert_eq!(*id as usize, row);
        }
        assert_eq!(MetricId::GpuGpuUtilization.get().name, "gpu_utilization");
    }

    #[test]
    fn words_address_names_groups_and_scoped_names() {
        let rx = MetricId::GpuPcieRx.get();
        assert!(rx.answers_to("pcie_rx") && rx.answers_to("pcie") && rx.answers_to("gpu.pcie"));
        assert!(!rx.answers_to("host.pcie") && !rx.answers_to("nvlink"));
        assert!(!MetricId::JobMemoryPss.get().on_by_default());
    }
}
