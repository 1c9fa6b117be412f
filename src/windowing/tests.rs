//! The fold against hand-made traces and against a brute-force integral of random ones.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

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
    MarkOp::Step { step, count: 1, began: began.map(ms), first_of_epoch: false }
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

// ---- windows

#[test]
fn a_value_is_carried_in_and_held_to_the_end() {
    let mut fold = fold(2000, 0);
    values(&mut fold, GAUGE, &[(500, 10.0), (1500, 20.0), (2500, 0.0)]);
    let out = finish(fold, 4000);
    assert_eq!(out.len(), 2);
    // 1 s of trapezoid from 10 to 20, then half a second of 20; nothing before the first value.
    assert_eq!(gauge(&out[0]), full(25.0 / 1.5, 10.0, 20.0, 20.0, 2, 0));
    // 20 is the value at 2 s, then half a second down to 0.
    assert_eq!(gauge(&out[1]), full(2.5, 0.0, 20.0, 0.0, 1, 0));
    assert_eq!((out[1].ordinal, out[1].start, out[1].end, out[1].window_s), (2, ms(2000), ms(4000), 2.0));
    assert_eq!(out[1].time, Wall(5_000_000));
}

#[test]
fn a_gap_is_not_bridged_and_counts() {
    let mut fold = fold(10_000, 0);
    values(&mut fold, GAUGE, &[(0, 10.0), (1000, 10.0), (3500, 20.0), (6001, 90.0), (7001, 90.0)]);
    let out = finish(fold, 10_000);
    // 2500 ms are bridged, 2501 are not; the last value is held for 3 s only if that is near enough: it is not.
    let covered = 1.0 * 10.0 + 2.5 * 15.0 + 1.0 * 90.0;
    assert_eq!(gauge(&out[0]), full(covered / 4.5, 10.0, 90.0, 90.0, 5, 4));
}

#[test]
fn a_failed_read_ends_the_hold() {
    let mut fold = fold(5000, 0);
    values(&mut fold, GAUGE, &[(0, 10.0)]);
    sample(&mut fold, 1000, GAUGE, Reading::Missing);
    sample(&mut fold, 2000, GAUGE, Reading::Value(f64::NAN));
    values(&mut fold, GAUGE, &[(3000, 40.0), (4000, 40.0)]);
    let out = finish(fold, 5000);
    assert_eq!(gauge(&out[0]), full(30.0 - 20.0 / 3.0 + 20.0 / 3.0, 10.0, 40.0, 40.0, 3, 2));
}

#[test]
fn unknown_all_along_is_null_with_its_count() {
    let mut fold = fold(3000, 0);
    for at in [0, 1000, 2000] {
        sample(&mut fold, at, GAUGE, Reading::Missing);
    }
    let out = finish(fold, 3000);
    assert_eq!(gauge(&out[0]), Stats { missing: 3, ..Stats::default() });
    assert!(stats(&out[0], MetricId::HostDiskRead).is_none(), "a series that was never read has no row");
}

#[test]
fn a_peak_raises_max_alone() {
    let mut fold = fold(2000, 0);
    values(&mut fold, GAUGE, &[(0, 10.0), (1000, 10.0)]);
    sample(&mut fold, 1000, GAUGE, Reading::Peak(400.0));
    let out = finish(fold, 4000);
    assert_eq!(gauge(&out[0]), full(10.0, 10.0, 400.0, 10.0, 2, 0));
    assert_eq!(gauge(&out[1]).max, None, "each row covers its own window only");
}

#[test]
fn counters_share_an_increase_over_the_edge() {
    let mut fold = fold(2000, 0);
    values(&mut fold, COUNTER, &[(0, 100.0), (1500, 100.0), (2500, 110.0), (3500, 130.0), (4000, 130.0)]);
    let out = finish(fold, 4000);
    assert_eq!(counter(&out[0]), full(2.5, 0.0, 10.0, 10.0, 1, 0));
    // 5 of the ten, 20 and 0: the rate up to the total at the very end belongs to the time before it.
    assert_eq!(counter(&out[1]), full(12.5, 0.0, 20.0, 0.0, 3, 0));
    let total: f64 = out.iter().map(|batch| counter(batch).mean.unwrap() * batch.window_s).sum();
    assert!((total - 30.0).abs() < 1e-9);
}

#[test]
fn a_batch_waits_for_the_total_that_settles_it() {
    let mut fold = fold(2000, 0);
    let mut out = Vec::new();
    values(&mut fold, COUNTER, &[(0, 0.0), (1500, 0.0)]);
    fold.advance(clock(2200), &mut out);
    assert!(out.is_empty());
    values(&mut fold, COUNTER, &[(2500, 10.0)]);
    fold.advance(clock(2501), &mut out);
    assert_eq!(counter(&out[0]), full(2.5, 0.0, 10.0, 10.0, 1, 0));
    // No total ever comes: the batch goes out once a total could no longer settle it.
    fold.advance(clock(5000), &mut out);
    assert_eq!(out.len(), 1);
    fold.advance(clock(5001), &mut out);
    assert_eq!(out.len(), 2);
    assert_eq!(counter(&out[1]), full(10.0, 10.0, 10.0, 10.0, 1, 0));
}

#[test]
fn a_counter_that_falls_adds_nothing() {
    let mut fold = fold(4000, 0);
    values(&mut fold, COUNTER, &[(0, 100.0), (1000, 110.0), (2000, 5.0), (3000, 25.0)]);
    let out = finish(fold, 4000);
    assert_eq!(counter(&out[0]), full(15.0, 10.0, 20.0, 20.0, 2, 1));
}

#[test]
fn a_failed_read_loses_no_increase() {
    let mut fold = fold(4000, 0);
    values(&mut fold, COUNTER, &[(0, 0.0)]);
    sample(&mut fold, 1000, COUNTER, Reading::Missing);
    values(&mut fold, COUNTER, &[(2000, 30.0)]);
    let out = finish(fold, 2000);
    assert_eq!(counter(&out[0]), full(15.0, 15.0, 15.0, 15.0, 1, 1));
}

#[test]
fn the_end_of_a_run_makes_no_rate_of_a_moment() {
    let mut out = Vec::new();
    let mut fold = fold(60_000, 300);
    for (at, total) in [(0, 0.0), (1000, 100.0), (2000, 200.0)] {
        values(&mut fold, COUNTER, &[(at, total)]);
        fold.advance(clock(at), &mut out);
    }
    // The end comes 10 ms after a sample, and three ticks of the clock are counted in it.
    values(&mut fold, COUNTER, &[(2010, 203.0)]);
    fold.finish(clock(2010), &mut out);
    let got = stats(&out[0], MetricId::HostDiskRead).unwrap();
    assert!(near(got.mean, 203.0 / 2.01) && near(got.max, 103.0 / 1.01), "{got:?}");
    assert_eq!(got.samples, 3);

    // A run of a moment has nothing else to count from.
    let mut fold = self::fold(60_000, 300);
    values(&mut fold, COUNTER, &[(0, 0.0), (4, 1.0)]);
    let out = finish(fold, 4);
    assert!(near(stats(&out[0], MetricId::HostDiskRead).unwrap().mean, 250.0));
}

#[test]
fn the_first_total_alone_gives_no_rate() {
    let mut fold = fold(4000, 0);
    values(&mut fold, COUNTER, &[(0, 100.0)]);
    let out = finish(fold, 1000);
    assert_eq!(counter(&out[0]), Stats::default());
}

#[test]
fn a_run_of_milliseconds_has_rows() {
    let mut fold = fold(10_000, 2000);
    for (at, total) in [(0, 0.0), (3, 6.0)] {
        fold.sample(&Sample {
            at: ms(at),
            readings: vec![(GAUGE, Reading::Value(5.0)), (COUNTER, Reading::Value(total))],
        });
    }
    let out = finish(fold, 3);
    assert_eq!(out.len(), 1);
    assert_eq!(gauge(&out[0]), full(5.0, 5.0, 5.0, 5.0, 2, 0));
    assert!(near(counter(&out[0]).mean, 2000.0));
}

#[test]
fn a_run_of_no_length_has_rows() {
    let mut fold = fold(10_000, 2000);
    values(&mut fold, GAUGE, &[(0, 5.0)]);
    let out = finish(fold, 0);
    assert_eq!((out.len(), out[0].window_s), (1, 0.0));
    assert_eq!(gauge(&out[0]), full(5.0, 5.0, 5.0, 5.0, 1, 0));
}

#[test]
fn no_empty_window_follows_a_run_that_ends_on_an_edge() {
    let mut fold = fold(1000, 0);
    values(&mut fold, GAUGE, &[(0, 5.0), (999, 5.0)]);
    assert_eq!(finish(fold, 1000).len(), 1);
}

#[test]
fn suspended_time_is_no_time() {
    let mut fold = fold(2000, 0);
    fold.sample(&Sample {
        at: ms(1000),
        readings: vec![(GAUGE, Reading::Value(10.0)), (COUNTER, Reading::Value(0.0))],
    });
    fold.sample(&Sample {
        at: ms(1500),
        readings: vec![(GAUGE, Reading::Value(10.0)), (COUNTER, Reading::Value(5.0))],
    });
    fold.suspend(ms(1500));
    sample(&mut fold, 30_000, GAUGE, Reading::Value(99.0));
    let mut out = Vec::new();
    fold.advance(clock(50_000), &mut out);
    assert!(out.is_empty(), "no window ends in suspended time");
    fold.resume(ms(61_500));
    // The host's counter ran on meanwhile: that is no rate of the job's time.
    fold.sample(&Sample {
        at: ms(61_500),
        readings: vec![(GAUGE, Reading::Value(10.0)), (COUNTER, Reading::Value(9000.0))],
    });
    fold.sample(&Sample {
        at: ms(62_500),
        readings: vec![(GAUGE, Reading::Value(30.0)), (COUNTER, Reading::Value(9010.0))],
    });
    fold.finish(clock(62_500), &mut out);
    assert_eq!((out[0].start, out[0].end, out[0].window_s), (ms(0), ms(62_000), 2.0));
    assert_eq!(gauge(&out[0]), full(10.0, 10.0, 10.0, 10.0, 3, 0));
    assert_eq!(counter(&out[0]), full(10.0, 10.0, 10.0, 10.0, 1, 0));
    assert_eq!((out[1].start, out[1].end, out[1].window_s), (ms(62_000), ms(62_500), 0.5));
}

#[test]
fn a_series_that_ends_has_its_row_and_gives_its_number_back() {
    let mut fold = fold(4000, 500);
    let mut out = Vec::new();
    values(&mut fold, GAUGE, &[(0, 10.0), (1000, 20.0)]);
    fold.close_series(GAUGE, ms(1500));
    assert_eq!(fold.freed().count(), 0, "what was said before the close is still pending");
    fold.advance(clock(2100), &mut out);
    assert_eq!(fold.freed().collect::<Vec<_>>(), [GAUGE]);
    assert_eq!(fold.freed().count(), 0);
    // The number goes to another series, in the same window.
    fold.open_series(GAUGE, info(MetricId::HostLoadAverage1m, 1000));
    values(&mut fold, GAUGE, &[(2200, 3.0)]);
    fold.finish(clock(8000), &mut out);
    assert_eq!(gauge(&out[0]), full(25.0 / 1.5, 10.0, 20.0, 20.0, 2, 0));
    let load = stats(&out[0], MetricId::HostLoadAverage1m).unwrap();
    assert_eq!(load, full(3.0, 3.0, 3.0, 3.0, 1, 0));
    assert!(
        stats(&out[1], MetricId::HostMemoryPercent).is_none(),
        "a dead series is no longer in later windows"
    );
}

#[test]
fn late_samples_count_at_their_own_instant_within_the_slack() {
    let mut fold = fold(2000, 1500);
    let mut out = Vec::new();
    values(&mut fold, GAUGE, &[(0, 0.0), (2000, 20.0)]);
    fold.advance(clock(2400), &mut out);
    values(&mut fold, GAUGE, &[(1000, 10.0)]);
    fold.finish(clock(4000), &mut out);
    // Up to 20, which stands on the edge and is the next window's.
    assert_eq!(gauge(&out[0]), full(10.0, 0.0, 10.0, 10.0, 2, 0));
}

#[test]
fn the_open_window_can_be_looked_at() {
    let mut fold = fold(10_000, 0);
    let mut out = Vec::new();
    values(&mut fold, GAUGE, &[(0, 10.0), (1000, 10.0)]);
    fold.advance(clock(1500), &mut out);
    let now = fold.current(clock(1500));
    assert_eq!((now.ordinal, now.end, now.window_s), (1, ms(1500), 1.5));
    assert_eq!(gauge(&now), full(10.0, 10.0, 10.0, 10.0, 2, 0));
}

// ---- tags

#[test]
fn tags_nest_and_closing_the_outer_closes_the_inner() {
    let mut fold = fold(60_000, 5000);
    values(&mut fold, GAUGE, &[(0, 0.0), (1000, 10.0), (2000, 20.0), (3000, 30.0), (4000, 40.0)]);
    mark(&mut fold, Fold::OWN, 1000, begin("train"));
    mark(&mut fold, Fold::OWN, 2500, begin("batch"));
    mark(&mut fold, Fold::OWN, 4000, end("train"));
    let out = finish(fold, 4000);
    let tags = of_kind(&out, RowKind::Tag);
    assert_eq!(tags.iter().map(|batch| &*batch.tag).collect::<Vec<_>>(), ["run/train/batch", "run/train"]);
    // 20 is the value at 2.5 s; up to 30 at 3 s; on to 40 at 4 s, which is not inside and does not take the mean out.
    assert_eq!(gauge(tags[0]), full(30.0, 20.0, 30.0, 30.0, 1, 0));
    assert_eq!(gauge(tags[1]), full(25.0, 10.0, 30.0, 30.0, 3, 0));
    assert_eq!((tags[1].start, tags[1].end, tags[1].window_s), (ms(1000), ms(4000), 3.0));
}

#[test]
fn a_name_used_twice_is_refused_and_the_outer_tag_lives() {
    let mut fold = fold(60_000, 0);
    mark(&mut fold, Fold::OWN, 0, begin("a"));
    mark(&mut fold, Fold::OWN, 1, begin("b"));
    let again = fold.mark(Mark { stack: Fold::OWN, at: ms(2), op: begin("a") });
    assert_eq!(again, Err(MarkError::TagOpen(Arc::from("a"))));
    assert_eq!(&*fold.collect(Fold::OWN, ms(3)).tag, "run/a/b");
    let unknown = fold.mark(Mark { stack: Fold::OWN, at: ms(3), op: end("c") });
    assert_eq!(unknown, Err(MarkError::TagNotOpen(Arc::from("c"))));
    mark(&mut fold, Fold::OWN, 4, MarkOp::End { tag: None });
    mark(&mut fold, Fold::OWN, 5, MarkOp::End { tag: None });
    let empty = fold.mark(Mark { stack: Fold::OWN, at: ms(6), op: MarkOp::End { tag: None } });
    assert_eq!(empty, Err(MarkError::NoTagOpen));
    mark(&mut fold, Fold::OWN, 7, begin("a"));
    let out = finish(fold, 9);
    let tags: Vec<_> = out.iter().map(|batch| (&*batch.tag, batch.ordinal)).collect();
    assert_eq!(tags, [("run/a/b", 1), ("run/a", 1), ("run/a", 2), ("run", 1)]);
}

#[test]
fn stacks_must_be_open_and_keep_apart() {
    let mut fold = fold(60_000, 0);
    let early = fold.mark(Mark { stack: CLIENT, at: ms(0), op: begin("a") });
    assert_eq!(early, Err(MarkError::UnknownStack(CLIENT)));
    mark(&mut fold, CLIENT, 0, MarkOp::Open { rank: Some(3) });
    mark(&mut fold, CLIENT, 1, begin("a"));
    mark(&mut fold, Fold::OWN, 2, begin("a"));
    mark(&mut fold, CLIENT, 3, MarkOp::Close);
    let late = fold.mark(Mark { stack: CLIENT, at: ms(4), op: end("a") });
    assert_eq!(late, Err(MarkError::UnknownStack(CLIENT)));
    // The id may be used again.
    mark(&mut fold, CLIENT, 5, MarkOp::Open { rank: Some(4) });
    mark(&mut fold, CLIENT, 6, begin("a"));
    let out = finish(fold, 9);
    let tags: Vec<_> =
        of_kind(&out, RowKind::Tag).iter().map(|b| (b.rank, millis(b.start), millis(b.end))).collect();
    assert_eq!(tags, [(Some(3), 1, 3), (None, 2, 9), (Some(4), 6, 9)]);
}

#[test]
fn a_tag_shorter_than_a_sample_has_the_held_values() {
    let mut fold = fold(60_000, 2000);
    for (at, value) in [(0, 0.0), (1000, 50.0), (2000, 80.0)] {
        fold.sample(&Sample {
            at: ms(at),
            readings: vec![(GAUGE, Reading::Value(value)), (COUNTER, Reading::Value(value))],
        });
    }
    mark(&mut fold, Fold::OWN, 1200, begin("blink"));
    mark(&mut fold, Fold::OWN, 1210, end("blink"));
    mark(&mut fold, Fold::OWN, 1300, begin("point"));
    mark(&mut fold, Fold::OWN, 1300, end("point"));
    mark(&mut fold, Fold::OWN, 2100, begin("tail"));
    mark(&mut fold, Fold::OWN, 2110, end("tail"));
    let out = finish(fold, 2200);
    let tags = of_kind(&out, RowKind::Tag);
    for (tag, value, rate) in [(tags[0], 50.0, 30.0), (tags[1], 50.0, 30.0), (tags[2], 80.0, 30.0)] {
        assert_eq!(gauge(tag), full(value, value, value, value, 0, 0), "{}", tag.tag);
        assert_eq!(counter(tag), full(rate, rate, rate, rate, 0, 0), "{}", tag.tag);
    }
}

#[test]
fn collect_gives_the_innermost_tag_and_clears_nothing() {
    let mut fold = fold(60_000, 2000);
    values(&mut fold, GAUGE, &[(0, 0.0), (1000, 10.0), (2000, 20.0)]);
    mark(&mut fold, Fold::OWN, 0, begin("train"));
    mark(&mut fold, Fold::OWN, 1000, begin("batch"));
    let first = fold.collect(Fold::OWN, ms(2000));
    assert_eq!((&*first.tag, first.duration_s), ("run/train/batch", 1.0));
    assert_eq!(first.rows[0].stats, full(15.0, 10.0, 20.0, 20.0, 2, 0));
    values(&mut fold, GAUGE, &[(3000, 20.0)]);
    let second = fold.collect(Fold::OWN, ms(3000));
    assert_eq!(second.duration_s, 2.0);
    assert_eq!(second.rows[0].stats, full(17.5, 10.0, 20.0, 20.0, 3, 0));
    mark(&mut fold, Fold::OWN, 3000, MarkOp::Clear { tag: Some(Arc::from("batch")) });
    let third = fold.collect(Fold::OWN, ms(4000));
    assert_eq!(third.duration_s, 1.0);
    assert_eq!(third.rows[0].stats, full(20.0, 20.0, 20.0, 20.0, 0, 0));
    mark(&mut fold, Fold::OWN, 4000, end("batch"));
    let outer = fold.collect(Fold::OWN, ms(4000));
    assert_eq!((&*outer.tag, outer.duration_s), ("run/train", 4.0));
    assert_eq!(outer.rows[0].stats.samples, 4);
}

#[test]
fn without_a_tag_collect_gives_the_window() {
    let mut fold = fold(2000, 0);
    values(&mut fold, GAUGE, &[(0, 0.0), (1000, 10.0), (2500, 10.0)]);
    let collected = fold.collect(Fold::OWN, ms(3000));
    assert_eq!((&*collected.tag, collected.duration_s), ("run", 1.0));
}

#[test]
fn a_stamp_of_the_future_counts_as_now() {
    let mut fold = fold(60_000, 1000);
    let mut out = Vec::new();
    mark(&mut fold, CLIENT, 0, MarkOp::Open { rank: None });
    mark(&mut fold, CLIENT, 900_000, begin("a"));
    fold.advance(clock(500), &mut out);
    mark(&mut fold, CLIENT, 1000, end("a"));
    fold.finish(clock(2000), &mut out);
    assert_eq!((millis(out[0].start), millis(out[0].end)), (500, 1000));
}

#[test]
fn floods_of_names_and_depth_are_bounded() {
    let mut fold = fold(60_000, 0);
    for depth in 0..TAG_DEPTH {
        mark(&mut fold, Fold::OWN, 1, begin(&format!("t{depth}")));
    }
    assert_eq!(fold.mark(Mark { stack: Fold::OWN, at: ms(1), op: begin("deeper") }), Err(MarkError::TooDeep));
    assert_eq!(fold.mark(Mark { stack: Fold::OWN, at: ms(1), op: begin("") }), Err(MarkError::EmptyTag));
    for number in 0..SCALAR_NAMES {
        mark(&mut fold, Fold::OWN, 2, log(None, &format!("n{number}"), 1.0));
    }
    let more = fold.mark(Mark { stack: Fold::OWN, at: ms(2), op: log(None, "more", 1.0) });
    assert_eq!(more, Err(MarkError::TooManyNames));
    mark(&mut fold, Fold::OWN, 2, log(None, "n7", 1.0));
}

// ---- steps and scalars

#[test]
fn steps_make_rows_of_exactly_their_span() {
    let mut fold = fold(60_000, 5000);
    values(&mut fold, GAUGE, &[(0, 10.0), (1000, 10.0), (2000, 50.0), (3000, 50.0)]);
    mark(&mut fold, CLIENT, 0, MarkOp::Open { rank: Some(1) });
    mark(&mut fold, CLIENT, 100, begin("fit"));
    mark(&mut fold, CLIENT, 300, step(1, Some(200)));
    mark(&mut fold, CLIENT, 500, step(2, Some(350)));
    mark(&mut fold, CLIENT, 700, step(3, Some(600)));
    mark(&mut fold, CLIENT, 900, step(4, Some(800)));
    mark(&mut fold, CLIENT, 1100, step(5, Some(1000)));
    mark(&mut fold, CLIENT, 1200, MarkOp::Close);
    let out = finish(fold, 3000);
    let steps = of_kind(&out, RowKind::Step);
    let spans: Vec<_> =
        steps.iter().map(|b| (b.step, millis(b.start), millis(b.end), &*b.tag, b.rank)).collect();
    assert_eq!(
        spans,
        [
            (Some(2), 200, 500, "run/fit", Some(1)),
            (Some(4), 500, 900, "run/fit", Some(1)),
            (Some(5), 900, 1200, "run/fit", Some(1))
        ]
    );
    let intra = |batch| stats(batch, MetricId::BatchTimeIntraStep).unwrap();
    let inter = |batch| stats(batch, MetricId::BatchTimeInterStep).unwrap();
    assert_eq!(intra(steps[0]), full(125.0, 100.0, 150.0, 150.0, 2, 0));
    assert_eq!(inter(steps[0]), full(50.0, 50.0, 50.0, 50.0, 1, 0));
    assert_eq!(inter(steps[1]), full(100.0, 100.0, 100.0, 100.0, 2, 0));
    assert_eq!(gauge(steps[0]), full(10.0, 10.0, 10.0, 10.0, 0, 0));
    assert_eq!(gauge(steps[2]).samples, 1);
}

#[test]
fn steps_marked_at_one_end_begin_with_their_tag() {
    let mut fold = fold(60_000, 0);
    let mut out = Vec::new();
    values(&mut fold, GAUGE, &[(0, 10.0), (1000, 30.0)]);
    mark(&mut fold, Fold::OWN, 500, begin("fit"));
    fold.advance(clock(1500), &mut out);
    for (at, number) in [(1500, 1), (1700, 2), (2000, 3)] {
        mark(&mut fold, Fold::OWN, at, step(number, None));
    }
    mark(&mut fold, Fold::OWN, 2500, MarkOp::Step { step: 4, count: 1, began: None, first_of_epoch: true });
    fold.finish(clock(3000), &mut out);
    let steps = of_kind(&out, RowKind::Step);
    let spans: Vec<_> = steps.iter().map(|b| (b.step, millis(b.start), millis(b.end))).collect();
    assert_eq!(spans, [(Some(2), 500, 1700), (Some(4), 1700, 2500)]);
    assert!(near(gauge(steps[0]).mean, (10.0 + 21.0) / 1.2));
    assert!(stats(steps[0], MetricId::BatchTimeIntraStep).is_none());
    assert_eq!(stats(steps[0], MetricId::BatchTimeInterStep), Some(full(200.0, 200.0, 200.0, 200.0, 1, 0)));
    // Nothing between the last step of an epoch and the first of the next.
    assert_eq!(stats(steps[1], MetricId::BatchTimeInterStep), Some(full(300.0, 300.0, 300.0, 300.0, 1, 0)));
}

#[test]
fn the_steps_of_a_tag_have_their_row_when_it_ends() {
    let mut fold = Fold::new(FoldSettings { every_n_steps: 50, ..settings(60_000, 5000) }, ms(0));
    fold.open_series(GAUGE, info(MetricId::HostMemoryPercent, 1000));
    values(&mut fold, GAUGE, &[(0, 10.0), (1000, 10.0)]);
    mark(&mut fold, Fold::OWN, 100, begin("train"));
    for n in 0..3 {
        // A tag of each step's own around it: the row is not that of the last one.
        mark(&mut fold, Fold::OWN, 110 + 100 * n, begin("batch"));
        mark(&mut fold, Fold::OWN, 180 + 100 * n, step(1 + i64::try_from(n).unwrap(), None));
        mark(&mut fold, Fold::OWN, 190 + 100 * n, end("batch"));
    }
    mark(&mut fold, Fold::OWN, 500, end("train"));
    mark(&mut fold, Fold::OWN, 600, begin("eval"));
    mark(&mut fold, Fold::OWN, 700, step(7, None));
    mark(&mut fold, Fold::OWN, 800, step(8, None));
    mark(&mut fold, Fold::OWN, 900, end("eval"));
    let out = finish(fold, 1000);
    let steps = of_kind(&out, RowKind::Step);
    let rows: Vec<_> = steps.iter().map(|b| (b.step, millis(b.end), &*b.tag)).collect();
    assert_eq!(rows, [(Some(3), 500, "run/train"), (Some(8), 900, "run/eval")]);
}

#[test]
fn times_of_steps_leave_suspended_time_out() {
    let mut fold = fold(60_000, 0);
    let mut out = Vec::new();
    fold.suspend(ms(100));
    fold.resume(ms(5100));
    fold.advance(clock(6000), &mut out);
    mark(&mut fold, Fold::OWN, 6000, step(1, Some(50)));
    mark(&mut fold, Fold::OWN, 6100, step(2, Some(6050)));
    fold.finish(clock(7000), &mut out);
    let steps = of_kind(&out, RowKind::Step);
    assert_eq!(stats(steps[0], MetricId::BatchTimeIntraStep), Some(full(500.0, 50.0, 950.0, 50.0, 2, 0)));
}

#[test]
fn steps_that_end_together_count_each_and_share_their_time() {
    let mut fold = Fold::new(FoldSettings { every_n_steps: 8, ..settings(60_000, 0) }, ms(0));
    for n in 1..=4 {
        let (began, end) = (ms(n * 100), n * 100 + 40 * n);
        let op = MarkOp::Step { step: 4 * n as i64, count: 4, began: Some(began), first_of_epoch: n == 1 };
        mark(&mut fold, Fold::OWN, end, op);
    }
    let out = finish(fold, 2000);
    let steps = of_kind(&out, RowKind::Step);
    let of = |batch: &WindowBatch, metric| {
        batch.rows.iter().find(|row| row.series.metric == metric).unwrap().stats
    };
    assert_eq!(steps.iter().map(|batch| batch.step).collect::<Vec<_>>(), [Some(8), Some(16)]);
    let intra = of(steps[0], MetricId::BatchTimeIntraStep);
    assert_eq!((intra.samples, intra.mean, intra.min, intra.max), (8, Some(15.0), Some(10.0), Some(20.0)));
    assert_eq!(of(steps[0], MetricId::BatchTimeInterStep).samples, 1);
}

#[test]
fn a_step_that_is_marked_twice_in_one_tag_is_one_step() {
    let mut fold = fold(60_000, 0);
    let mark_step = |fold: &mut Fold, at: u64, n: i64, first_of_epoch: bool| {
        let op = MarkOp::Step { step: n, count: 1, began: None, first_of_epoch };
        fold.mark(Mark { stack: Fold::OWN, at: ms(at), op })
    };
    mark(&mut fold, Fold::OWN, 0, begin("train"));
    assert_eq!(mark_step(&mut fold, 10, 1, true), Ok(()));
    assert_eq!(mark_step(&mut fold, 11, 1, false), Err(MarkError::StepRepeated));
    // A tag of its own between the two marks makes no difference to that of the steps.
    mark(&mut fold, Fold::OWN, 12, begin("save"));
    assert_eq!(mark_step(&mut fold, 13, 1, false), Ok(()), "another tag");
    mark(&mut fold, Fold::OWN, 14, end("save"));
    assert_eq!(mark_step(&mut fold, 15, 1, false), Err(MarkError::StepRepeated));
    assert_eq!(mark_step(&mut fold, 16, 1, true), Ok(()), "an epoch of one step");
    assert_eq!(mark_step(&mut fold, 17, 2, false), Ok(()));
    mark(&mut fold, Fold::OWN, 18, end("train"));
    mark(&mut fold, Fold::OWN, 20, begin("train"));
    assert_eq!(mark_step(&mut fold, 21, 2, false), Ok(()), "the tag was opened anew");
}

#[test]
fn scalars_are_points() {
    let mut fold = fold(1000, 0);
    mark(&mut fold, CLIENT, 0, MarkOp::Open { rank: Some(2) });
    mark(&mut fold, CLIENT, 100, log(None, "loss", 4.0));
    mark(&mut fold, CLIENT, 200, begin("fit"));
    mark(&mut fold, CLIENT, 300, log(None, "loss", 2.0));
    mark(&mut fold, CLIENT, 310, log(None, "loss", f64::INFINITY));
    mark(&mut fold, Fold::OWN, 400, log(None, "loss", 9.0));
    mark(&mut fold, CLIENT, 500, end("fit"));
    mark(&mut fold, CLIENT, 1500, log(None, "acc", 1.0));
    let out = finish(fold, 2000);
    let windows: Vec<_> =
        of_kind(&out, RowKind::Window).iter().map(|b| (b.rank, b.ordinal, user(b, "loss"))).collect();
    assert_eq!(windows[0], (None, 1, Some(full(9.0, 9.0, 9.0, 9.0, 1, 0))));
    assert_eq!(windows[1], (Some(2), 1, Some(full(3.0, 2.0, 4.0, 2.0, 2, 1))));
    assert_eq!((windows[2].0, windows[3].0, windows.len()), (None, Some(2), 4));
    let tags = of_kind(&out, RowKind::Tag);
    assert_eq!(user(tags[0], "loss"), Some(full(2.0, 2.0, 2.0, 2.0, 1, 1)));
}

#[test]
fn scalars_of_a_step_stand_in_its_row_or_in_one_of_their_own() {
    let mut fold = fold(60_000, 0);
    // This stack marks no steps.
    mark(&mut fold, Fold::OWN, 100, log(Some(1), "loss", 4.0));
    mark(&mut fold, Fold::OWN, 110, log(Some(1), "acc", 0.5));
    mark(&mut fold, Fold::OWN, 200, log(Some(2), "loss", 2.0));
    // This one does.
    mark(&mut fold, CLIENT, 0, MarkOp::Open { rank: Some(0) });
    mark(&mut fold, CLIENT, 300, log(Some(1), "loss", 8.0));
    mark(&mut fold, CLIENT, 301, step(1, None));
    mark(&mut fold, CLIENT, 400, log(Some(2), "loss", 6.0));
    mark(&mut fold, CLIENT, 401, step(2, None));
    let out = finish(fold, 1000);
    let steps = of_kind(&out, RowKind::Step);
    let own: Vec<_> = steps.iter().filter(|b| b.rank.is_none()).collect();
    assert_eq!((own.len(), own[0].step, own[1].step), (2, Some(1), Some(2)));
    assert_eq!((own[0].rows.len(), own[1].rows.len()), (2, 1));
    let client: Vec<_> = steps.iter().filter(|b| b.rank.is_some()).collect();
    assert_eq!((client.len(), client[0].step), (1, Some(2)));
    assert_eq!(user(client[0], "loss"), Some(full(7.0, 6.0, 8.0, 6.0, 2, 0)));
}

#[test]
fn scalars_inside_a_tag_do_not_count_twice_in_a_step_row() {
    let mut fold = fold(60_000, 0);
    mark(&mut fold, Fold::OWN, 0, begin("fit"));
    mark(&mut fold, Fold::OWN, 100, log(Some(1), "loss", 8.0));
    mark(&mut fold, Fold::OWN, 101, step(1, None));
    let out = finish(fold, 200);
    let steps = of_kind(&out, RowKind::Step);
    assert_eq!((steps.len(), user(steps[0], "loss").unwrap().samples), (1, 1));
}

#[test]
fn memory_is_flat_over_ten_thousand_windows() {
    let mut fold = fold(1000, 700);
    mark(&mut fold, CLIENT, 0, MarkOp::Open { rank: Some(0) });
    let mut sizes = Vec::new();
    let mut batches = 0;
    for second in 0..10_000 {
        let at = second * 1000;
        fold.sample(&Sample {
            at: ms(at),
            readings: vec![(GAUGE, Reading::Value(1.0)), (COUNTER, Reading::Value(second as f64))],
        });
        mark(&mut fold, CLIENT, at + 100, begin("epoch"));
        mark(&mut fold, CLIENT, at + 200, log(Some(second as i64), "loss", 1.0));
        mark(&mut fold, CLIENT, at + 300, step(second as i64, Some(at + 250)));
        mark(&mut fold, CLIENT, at + 400, end("epoch"));
        let process = SeriesId(2 + u32::try_from(second % 3).unwrap());
        fold.open_series(process, info(MetricId::ProcessThreads, 1000));
        sample(&mut fold, at + 500, process, Reading::Value(1.0));
        fold.close_series(process, ms(at + 600));
        let mut out = Vec::new();
        fold.advance(clock(at + 900), &mut out);
        batches += out.len();
        assert!(fold.freed().count() <= 1);
        if second == 50 || second == 9_999 {
            sizes.push(fold.footprint());
        }
    }
    assert!(batches > 24_000, "{batches}");
    assert_eq!(sizes[0], sizes[1]);
}

// ---- random traces

#[derive(Clone, Debug)]
struct Read {
    at: u64,
    /// Instant in active time.
    active: u64,
    value: Option<f64>,
}

#[derive(Clone, Debug)]
struct Trace {
    gauge: Vec<(u64, Option<f64>)>,
    counter: Vec<(u64, Option<f64>)>,
    close: Option<u64>,
    suspends: Vec<(u64, u64)>,
    tags: Vec<(u64, u64)>,
    delays: Vec<u64>,
    mark_delay: u64,
    window: u64,
    end: u64,
}

const SLACK: u64 = 700;
const LIMIT: u64 = 2500;
/// How long after a span a value still tells where the last one inside was going.
const EDGE: u64 = 500;

fn reads() -> impl Strategy<Value = Vec<(u64, Option<u32>)>> {
    let gap = prop_oneof![8 => 900u64..1100, 3 => 1u64..3000, 1 => 2499u64..2502, 1 => 3000u64..6000];
    let value = prop_oneof![6 => (0u32..100).prop_map(Some), 1 => Just(None)];
    prop::collection::vec((gap, value), 0..14)
}

fn trace() -> impl Strategy<Value = Trace> {
    (
        (reads(), reads(), prop::collection::vec(any::<prop::sample::Index>(), 0..3)),
        prop::option::weighted(0.3, 0u64..12_000),
        prop::collection::vec((0u64..4000, 1u64..3000), 0..3),
        prop::collection::vec((0u64..14_000, 0u64..6000), 0..4),
        prop::collection::vec(0..SLACK, 40),
        (0..SLACK, 300u64..4000, 0u64..15_000),
    )
        .prop_map(
            |((gauge, counter, resets), close, suspends, tags, delays, (mark_delay, window, end))| {
                let mut at = 0;
                let gauge = gauge.into_iter().map(|(gap, value)| {
                    at += gap;
                    (at, value.map(f64::from))
                });
                let gauge: Vec<_> = gauge.filter(|(at, _)| close.is_none_or(|close| *at <= close)).collect();
                let resets: Vec<usize> = resets
                    .iter()
                    .filter(|_| !counter.is_empty())
                    .map(|index| index.index(counter.len()))
                    .collect();
                let (mut at, mut total) = (0, 1000.0);
                let counter = counter.into_iter().enumerate().map(|(number, (gap, value))| {
                    at += gap;
                    total += value.map_or(0.0, f64::from);
                    if resets.contains(&number) {
                        total /= 2.0;
                    }
                    (at, value.map(|_| total))
                });
                let counter: Vec<_> = counter.collect();
                // A run ends with a span that includes its end; the brute force knows half-open ones only.
                let mut end = end;
                while gauge.iter().chain(&counter).any(|(at, _)| *at == end) {
                    end += 1;
                }
                let mut at = 0;
                let suspends = suspends
                    .into_iter()
                    .map(|(gap, length)| {
                        let start = at + 1 + gap;
                        at = start + length;
                        (start, at)
                    })
                    .collect();
                let tags = tags.into_iter().map(|(start, length)| (start, start + length)).collect();
                Trace { gauge, counter, close, suspends, tags, delays, mark_delay, window, end }
            },
        )
}

impl Trace {
    fn active(&self, at: u64) -> u64 {
        self.suspends.iter().fold(at, |left, (start, end)| left - (at.min(*end)).saturating_sub(*start))
    }

    /// The reads that count: those of suspended time, and those after the end, do not.
    fn reads(&self, raw: &[(u64, Option<f64>)]) -> Vec<Read> {
        raw.iter()
            .filter(|(at, _)| *at <= self.end && !self.suspends.iter().any(|(s, e)| s < at && at < e))
            .map(|(at, value)| Read { at: *at, active: self.active(*at), value: *value })
            .collect()
    }

    /// Runs the fold with everything delivered late by its own delay.
    fn run(&self, late: bool) -> Vec<WindowBatch> {
        enum Arrival {
            Gauge(u64, Option<f64>),
            Counter(u64, Option<f64>),
            Close(u64),
            Suspend(u64),
            Resume(u64),
            Mark(StackId, u64, MarkOp),
        }
        let mut arrivals: Vec<(u64, Arrival)> = Vec::new();
        let mut delays = self.delays.iter().cycle().map(|delay| if late { *delay } else { 0 });
        let mut delay = || delays.next().unwrap_or(0);
        for (at, value) in self.gauge.iter().filter(|(at, _)| *at <= self.end) {
            arrivals.push((at + delay(), Arrival::Gauge(*at, *value)));
        }
        for (at, value) in self.counter.iter().filter(|(at, _)| *at <= self.end) {
            arrivals.push((at + delay(), Arrival::Counter(*at, *value)));
        }
        if let Some(close) = self.close.filter(|close| *close <= self.end) {
            arrivals.push((close + delay(), Arrival::Close(close)));
        }
        for (start, end) in self.suspends.iter().filter(|(start, _)| *start <= self.end) {
            arrivals.push((start + delay(), Arrival::Suspend(*start)));
            if *end <= self.end {
                arrivals.push((end + delay(), Arrival::Resume(*end)));
            }
        }
        let mark_delay = if late { self.mark_delay } else { 0 };
        for (number, (start, end)) in
            self.tags.iter().enumerate().filter(|(_, (start, _))| *start <= self.end)
        {
            let stack = StackId(10 + u32::try_from(number).unwrap());
            let rank = i32::try_from(number).ok();
            for (at, op) in [(*start, MarkOp::Open { rank }), (*start, begin("tag")), (*end, MarkOp::Close)] {
                if at <= self.end {
                    arrivals.push((at + mark_delay, Arrival::Mark(stack, at, op)));
                }
            }
        }
        arrivals.sort_by_key(|(at, _)| *at);
        let mut fold = fold(self.window, SLACK);
        let mut out = Vec::new();
        for (at, arrival) in arrivals {
            let reading = |value: Option<f64>| value.map_or(Reading::Missing, Reading::Value);
            match arrival {
                Arrival::Gauge(at, value) => sample(&mut fold, at, GAUGE, reading(value)),
                Arrival::Counter(at, value) => sample(&mut fold, at, COUNTER, reading(value)),
                Arrival::Close(at) => fold.close_series(GAUGE, ms(at)),
                Arrival::Suspend(at) => fold.suspend(ms(at)),
                Arrival::Resume(at) => fold.resume(ms(at)),
                Arrival::Mark(stack, at, op) => mark(&mut fold, stack, at, op),
            }
            if at < self.end {
                fold.advance(clock(at), &mut out);
            }
        }
        fold.finish(clock(self.end), &mut out);
        out
    }
}

/// What one span must hold, by looking at every millisecond of it.
#[derive(Debug, Default)]
struct Brute {
    integral: f64,
    covered: u64,
    noted: Vec<f64>,
    last: Option<f64>,
    samples: u32,
    missing: u32,
}

impl Brute {
    fn note(&mut self, value: f64) {
        self.noted.push(value);
        self.last = Some(value);
    }

    /// Reads that never came, in the part of the span before the series ended.
    fn count_misses(&mut self, reads: &[Read], from: u64, to: u64) {
        for (number, read) in reads.iter().enumerate() {
            let until = reads.get(number + 1).map_or(u64::MAX, |next| next.active).min(to);
            let mut due = read.active + LIMIT;
            let mut weight = 2;
            while due < until {
                if due >= from {
                    self.missing += weight;
                }
                due += 1000;
                weight = 1;
            }
        }
    }

    fn gauge(reads: &[Read], real: (u64, u64), from: u64, to: u64, close: Option<u64>) -> Brute {
        let mut brute = Brute::default();
        let inside = |read: &Read| real.0 <= read.at && read.at < real.1;
        let until = close.map_or(to, |close| close.min(to));
        for cell in from..until {
            let Some(before) = reads.iter().rev().find(|read| read.active <= cell) else { continue };
            let Some(value) = before.value else { continue };
            let beyond = |read: &&Read| {
                let reached = read.active <= to + EDGE && read.active - before.active <= LIMIT;
                reached && read.value.is_some() && close.is_none_or(|close| read.active <= close)
            };
            let after = reads.iter().find(|read| read.active > cell);
            let after = after.filter(|read| read.at < real.1 || beyond(read));
            let reach = after.map_or(until, |read| read.active);
            if reach - before.active > LIMIT {
                continue;
            }
            let start = before.active.max(from);
            let middle = match after.and_then(|read| read.value.map(|next| (read.active, next))) {
                Some((at, next)) => {
                    value + (next - value) * (cell as f64 + 0.5 - start as f64) / (at - start) as f64
                }
                None => value,
            };
            brute.integral += middle;
            brute.covered += 1;
            brute.note(value);
        }
        for read in reads.iter().filter(|read| inside(read)) {
            match read.value {
                Some(value) => {
                    brute.samples += 1;
                    brute.note(value);
                }
                None => brute.missing += 1,
            }
        }
        brute.count_misses(reads, from, until);
        brute
    }

    fn counter(trace: &Trace, reads: &[Read], real: (u64, u64), from: u64, to: u64) -> Brute {
        let mut brute = Brute::default();
        let totals: Vec<(u64, u64, f64)> =
            reads.iter().filter_map(|read| read.value.map(|value| (read.at, read.active, value))).collect();
        let broken = |a: u64, b: u64| trace.suspends.iter().any(|(start, _)| a <= *start && *start < b);
        let rate = |a: &(u64, u64, f64), b: &(u64, u64, f64)| {
            let near = b.1 - a.1 <= LIMIT && !broken(a.0, b.0);
            (near && b.2 >= a.2).then(|| (b.2 - a.2) / (b.1 - a.1) as f64 * 1000.0)
        };
        // What min, max and last go by: short ones with the time before them.
        let mut anchor: Option<(u64, u64, f64)> = None;
        let mut steady = Vec::new();
        for pair in totals.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            if rate(&a, &b).is_none() {
                anchor = None;
                steady.push(f64::NAN);
                continue;
            }
            let since = if b.1 - a.1 >= 500 { a } else { anchor.unwrap_or(a) };
            let length = b.1 - since.1;
            steady.push(if length >= 500 { (b.2 - since.2) / length as f64 * 1000.0 } else { f64::NAN });
            let long = b.1 - a.1 >= 500 || b.1 - since.1 >= 1500;
            anchor = Some(if long { a } else { since });
        }
        for cell in from..to {
            let before = totals.iter().rposition(|total| total.1 <= cell);
            let Some((a, place)) = before.and_then(|place| Some((totals.get(place)?, place))) else {
                continue;
            };
            let Some(rate) = totals.get(place + 1).and_then(|b| rate(a, b)) else { continue };
            brute.integral += rate;
            brute.covered += 1;
            if !steady[place].is_nan() {
                brute.note(steady[place]);
            }
        }
        for pair in totals.windows(2) {
            if rate(&pair[0], &pair[1]).is_some() {
                // The time of a rate ends at its second total: (from, to], not [from, to).
                brute.samples += u32::from(from < pair[1].1 && pair[1].1 <= to);
                continue;
            }
            let fell =
                pair[1].2 < pair[0].2 && pair[1].1 - pair[0].1 <= LIMIT && !broken(pair[0].0, pair[1].0);
            brute.missing += u32::from(fell && real.0 <= pair[1].0 && pair[1].0 < real.1);
        }
        let failed =
            reads.iter().filter(|read| read.value.is_none() && real.0 <= read.at && read.at < real.1);
        brute.missing += u32::try_from(failed.count()).unwrap();
        brute.count_misses(reads, from, to);
        brute
    }

    fn check(&self, got: Stats, gauge: bool, what: &str) -> Result<(), TestCaseError> {
        prop_assert_eq!(got.samples, self.samples, "samples of {}", what);
        prop_assert_eq!(got.missing, self.missing, "missing of {}", what);
        if self.covered > 0 {
            let lowest = self.noted.iter().copied().fold(f64::INFINITY, f64::min);
            let highest = self.noted.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mut mean = self.integral / self.covered as f64;
            if gauge {
                // A value on the edge, which is the next span's, may pull the mean outside.
                mean = mean.clamp(lowest, highest);
            }
            prop_assert!(near(got.mean, mean), "mean of {}: {:?}, brute {}", what, got, mean);
        }
        if self.noted.is_empty() {
            if !gauge && self.covered > 0 {
                prop_assert!(got.mean == got.min && got.mean == got.max && got.mean == got.last, "{:?}", got);
            }
            return Ok(());
        }
        let mut min = self.noted.iter().copied().fold(f64::INFINITY, f64::min);
        let mut max = self.noted.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if !gauge && self.covered > 0 {
            let mean = self.integral / self.covered as f64;
            (min, max) = (min.min(mean), max.max(mean));
        }
        prop_assert!(near(got.min, min) && near(got.max, max), "{}: {:?}, brute {} {}", what, got, min, max);
        prop_assert!(near(got.last, self.last.unwrap()), "{}: {:?}, brute last {:?}", what, got, self.last);
        Ok(())
    }
}

/// CPU time in ticks of 10 ms of a process that uses all of one core, with an extra look after 4 ms.
#[test]
fn a_rate_over_a_moment_is_no_extreme() {
    let mut fold = fold(3000, 0);
    let ticks = [(0, 0.0), (1000, 1.0), (2000, 2.0), (2004, 2.0), (3000, 3.0)];
    values(&mut fold, COUNTER, &ticks);
    let out = finish(fold, 3000);
    let got = counter(&out[0]);
    assert_eq!((got.mean, got.samples), (Some(1.0), 4));
    assert!(got.min.unwrap() > 0.99 && got.max.unwrap() < 1.01, "{got:?}");
}

/// A wave that turns between samples at every phase: no window is partial to its last value.
#[test]
fn windows_of_whole_periods_have_the_mean_of_the_period() {
    for phase in 0..4u64 {
        let mut fold = fold(4000, 300);
        let mut out = Vec::new();
        for second in 0..=16u64 {
            let high = (second + phase) % 4 < 2;
            values(&mut fold, GAUGE, &[(second * 1000, if high { 100.0 } else { 0.0 })]);
            fold.advance(clock(second * 1000), &mut out);
        }
        fold.advance(clock(16_500), &mut out);
        let windows = of_kind(&out, RowKind::Window);
        assert_eq!(windows.len(), 4);
        for window in windows {
            let got = stats(window, MetricId::HostMemoryPercent).unwrap();
            assert_eq!((got.mean, got.min, got.max), (Some(50.0), Some(0.0), Some(100.0)), "phase {phase}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_row_is_the_brute_force_integral_of_its_span(trace in trace()) {
        let (gauges, counters) = (trace.reads(&trace.gauge), trace.reads(&trace.counter));
        let close = trace.close.filter(|close| *close <= trace.end);
        let out = trace.run(true);
        for batch in &out {
            let real = (millis(batch.start), millis(batch.end));
            let (from, to) = (trace.active(real.0), trace.active(real.1));
            prop_assert!(near(Some(batch.window_s), (to - from) as f64 / 1e3));
            let what = format!("{} {:?} {}..{}", batch.tag, batch.kind, real.0, real.1);
            if from == to || close.is_some_and(|close| real.0 >= close) {
                continue;
            }
            let want = Brute::gauge(&gauges, real, from, to, close.map(|close| trace.active(close)));
            match stats(batch, MetricId::HostMemoryPercent) {
                Some(got) => want.check(got, true, &what)?,
                None => prop_assert!(want.samples + want.missing == 0 && want.covered == 0, "no row: {}", what),
            }
            let want = Brute::counter(&trace, &counters, real, from, to);
            match stats(batch, MetricId::HostDiskRead) {
                Some(got) => {
                    want.check(got, false, &what)?;
                    if want.covered == 0 && got.mean.is_some() {
                        prop_assert_eq!(got.samples, 0, "a held rate is no sample");
                        prop_assert_eq!(got.mean, got.last);
                    }
                }
                None => prop_assert!(want.samples + want.missing == 0 && want.covered == 0, "no row: {}", what),
            }
            for row in &batch.rows {
                let Stats { mean, min, max, .. } = row.stats;
                prop_assert!(min <= mean && mean <= max && min.is_some() == mean.is_some(), "{:?}", row);
            }
        }
    }

    #[test]
    fn late_delivery_changes_nothing(trace in trace()) {
        prop_assert_eq!(trace.run(true), trace.run(false));
    }

    #[test]
    fn windows_and_tags_have_exactly_their_spans(trace in trace()) {
        let out = trace.run(true);
        let windows = of_kind(&out, RowKind::Window);
        let mut at = 0;
        for (number, window) in windows.iter().enumerate() {
            prop_assert_eq!(trace.active(millis(window.start)), at);
            prop_assert_eq!(window.ordinal, number as u64 + 1);
            at = trace.active(millis(window.end));
            if number + 1 < windows.len() {
                prop_assert_eq!(window.window_s, trace.window as f64 / 1e3);
            }
        }
        prop_assert_eq!(at, trace.active(trace.end));
        for (number, (start, end)) in trace.tags.iter().enumerate().filter(|(_, (start, _))| *start <= trace.end) {
            let rank = i32::try_from(number).ok();
            let batches: Vec<_> = out.iter().filter(|b| b.kind == RowKind::Tag && b.rank == rank).collect();
            prop_assert_eq!(batches.len(), 1);
            let span = (millis(batches[0].start), millis(batches[0].end));
            prop_assert_eq!(span, (*start, (*end).min(trace.end)));
        }
    }

    #[test]
    fn counters_are_conserved(
        steps in prop::collection::vec((1u64..2500, 0u32..1000), 1..30),
        window in 50u64..5000,
        start in 0u64..500,
    ) {
        let mut fold = fold(window, 300);
        let mut out = Vec::new();
        let (mut at, mut total) = (start, 77.0);
        values(&mut fold, COUNTER, &[(at, total)]);
        for (gap, rise) in &steps {
            at += gap;
            total += f64::from(*rise);
            values(&mut fold, COUNTER, &[(at, total)]);
            fold.advance(clock(at), &mut out);
        }
        fold.finish(clock(at), &mut out);
        let sum: f64 = out.iter().filter_map(|batch| {
            let covered = millis(batch.end).max(start) - millis(batch.start).max(start);
            Some(stats(batch, MetricId::HostDiskRead)?.mean? * covered as f64 / 1e3)
        }).sum();
        prop_assert!(near(Some(sum), total - 77.0), "{} of {}", sum, total - 77.0);
    }
}
