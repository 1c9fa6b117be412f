//! The fold against hand-made traces and random ones: what these tests share.

mod rows;
mod steps;
mod tags;
mod traces;
mod windows;

use std::sync::Arc;
use std::time::Duration;

use super::open_tags::MarkError;
use super::*;
use crate::model::id::{SeriesId, StackId};
use crate::model::limits::{SCALAR_NAMES, TAG_DEPTH};
use crate::model::mark::{Mark, MarkOp};
use crate::model::metric::MetricId;
use crate::model::reading::Reading;
use crate::model::sample::Sample;
use crate::model::series::SeriesInfo;
use crate::model::time::{ClockPair, Mono, Wall};
use crate::model::window::{RowKind, Stats, WindowBatch};

const BASE: u64 = 7_000_000_000;
const GAUGE: SeriesId = SeriesId(0);
const COUNTER: SeriesId = SeriesId(1);
const CLIENT: StackId = StackId(5);

fn ms(at: u64) -> Mono {
    Mono(BASE + at * 1_000_000)
}

fn millis(at: Mono) -> u64 {
    (at.0 - BASE) / 1_000_000
}

fn clock(at: u64) -> ClockPair {
    ClockPair { mono: ms(at), wall: Wall(1_000_000 + i64::try_from(at).unwrap() * 1000) }
}

fn info(metric: MetricId, pace: u64) -> Arc<SeriesInfo> {
    Arc::new(SeriesInfo {
        metric,
        label: None,
        device: None,
        process: None,
        pace: Duration::from_millis(pace),
    })
}

fn settings(window: u64, slack: u64) -> FoldSettings {
    FoldSettings {
        window: Duration::from_millis(window),
        root_tag: Arc::from("run"),
        rank: None,
        every_n_steps: 2,
        slack: Duration::from_millis(slack),
    }
}

/// A fold with a gauge and a counter that are read every second.
fn fold(window: u64, slack: u64) -> Fold {
    let mut fold = Fold::new(settings(window, slack), ms(0));
    fold.open_series(GAUGE, info(MetricId::HostMemoryPercent, 1000));
    fold.open_series(COUNTER, info(MetricId::HostDiskRead, 1000));
    fold
}

fn sample(fold: &mut Fold, at: u64, id: SeriesId, reading: Reading) {
    fold.sample(&Sample { at: ms(at), readings: vec![(id, reading)] });
}

fn values(fold: &mut Fold, id: SeriesId, values: &[(u64, f64)]) {
    for (at, value) in values {
        sample(fold, *at, id, Reading::Value(*value));
    }
}

fn mark(fold: &mut Fold, stack: StackId, at: u64, op: MarkOp) {
    fold.mark(Mark { stack, at: ms(at), op }).unwrap();
}

fn begin(tag: &str) -> MarkOp {
    MarkOp::Begin { tag: Arc::from(tag) }
}

fn end(tag: &str) -> MarkOp {
    MarkOp::End { tag: Some(Arc::from(tag)) }
}

fn step(step: i64, began: Option<u64>) -> MarkOp {
    MarkOp::Step { step, count: 1, began: began.map(ms), samples: None }
}

fn log(step: Option<i64>, name: &str, value: f64) -> MarkOp {
    MarkOp::Log { step, values: vec![(Arc::from(name), value)] }
}

fn finish(mut fold: Fold, at: u64) -> Vec<WindowBatch> {
    let mut out = Vec::new();
    fold.finish(clock(at), &mut out);
    out
}

fn stats(batch: &WindowBatch, metric: MetricId) -> Option<Stats> {
    let mut rows = batch.rows.iter().filter(|row| row.series.metric == metric);
    let first = rows.next()?.stats;
    assert!(rows.next().is_none(), "two rows of one series in a batch");
    Some(first)
}

fn gauge(batch: &WindowBatch) -> Stats {
    stats(batch, MetricId::HostMemoryPercent).expect("a row of the gauge")
}

fn counter(batch: &WindowBatch) -> Stats {
    stats(batch, MetricId::HostDiskRead).expect("a row of the counter")
}

fn user(batch: &WindowBatch, name: &str) -> Option<Stats> {
    batch.rows.iter().find(|row| row.series.label.as_deref() == Some(name)).map(|row| row.stats)
}

fn of_kind(batches: &[WindowBatch], kind: RowKind) -> Vec<&WindowBatch> {
    batches.iter().filter(|batch| batch.kind == kind).collect()
}

fn full(mean: f64, min: f64, max: f64, last: f64, samples: u32, missing: u32) -> Stats {
    Stats { mean: Some(mean), min: Some(min), max: Some(max), last: Some(last), samples, missing }
}

fn near(got: Option<f64>, want: f64) -> bool {
    got.is_some_and(|got| (got - want).abs() <= 1e-6 * want.abs().max(1.0))
}
