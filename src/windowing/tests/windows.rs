//! Periodic windows: gauges, counters, gaps, suspensions.

use super::*;

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

#[test]
fn an_amount_is_that_of_the_window_and_adds_up() {
    let mut fold = fold(2000, 0);
    let energy = SeriesId(2);
    fold.open_series(energy, info(MetricId::GpuEnergyUsed, 1000));
    values(&mut fold, energy, &[(500, 0.0), (1500, 100.0), (2500, 300.0), (3500, 300.0)]);
    let out = finish(fold, 4500);
    let amounts: Vec<_> = out.iter().map(|batch| stats(batch, MetricId::GpuEnergyUsed).unwrap()).collect();
    // Of the 200 J between 1.5 and 2.5 s, half belongs to each window; the last one has no total to go by.
    assert_eq!(amounts[0], full(200.0, 200.0, 200.0, 200.0, 1, 0));
    assert_eq!(amounts[1], full(100.0, 100.0, 100.0, 100.0, 2, 0));
    assert_eq!(amounts[2], Stats::default());
}

/// CPU time comes in ticks of 10 ms: read every 10 ms, one busy thread rises by 0, 1 or 2 of them.
#[test]
fn ticks_make_no_extremes() {
    let mut fold = fold(60_000, 0);
    let cpu = SeriesId(2);
    fold.open_series(cpu, info(MetricId::JobCpuPercent, 10));
    for read in 0..=100u64 {
        // Every other read is just before its tick.
        let ticks = read - u64::from(read % 2 == 1);
        values(&mut fold, cpu, &[(read * 10, ticks as f64)]);
    }
    let got = stats(&finish(fold, 1000)[0], MetricId::JobCpuPercent).unwrap();
    assert!(near(got.mean, 100.0), "{got:?}");
    assert!(got.min.unwrap() >= 90.0 && got.max.unwrap() <= 110.0, "{got:?}");
}

#[test]
fn a_night_without_a_sample_is_one_window() {
    const NIGHT: u64 = 12 * 3_600_000;
    let mut fold = fold(1000, 0);
    let mut out = Vec::new();
    mark(&mut fold, Fold::OWN, 0, MarkOp::Begin { tag: Arc::from("epoch") });
    for at in (0..=5000).step_by(1000) {
        values(&mut fold, GAUGE, &[(at, 10.0)]);
        values(&mut fold, COUNTER, &[(at, 0.0)]);
        fold.advance(clock(at), &mut out);
    }
    for at in (NIGHT + 200..=NIGHT + 3200).step_by(1000) {
        values(&mut fold, GAUGE, &[(at, 30.0)]);
        values(&mut fold, COUNTER, &[(at, 0.0)]);
        fold.advance(clock(at), &mut out);
    }
    out.extend(finish(fold, NIGHT + 3200));
    let windows: Vec<&WindowBatch> = out.iter().filter(|batch| batch.kind == RowKind::Window).collect();
    let edges: Vec<(u64, u64)> =
        windows.iter().map(|batch| (millis(batch.start), millis(batch.end))).collect();
    let mut expected: Vec<(u64, u64)> = (0..6).map(|n| (n * 1000, n * 1000 + 1000)).collect();
    // The last sample before and the first one after are in windows of their usual length.
    expected.push((6000, NIGHT));
    expected.extend((0..3).map(|n| (NIGHT + n * 1000, NIGHT + n * 1000 + 1000)));
    expected.push((NIGHT + 3000, NIGHT + 3200));
    assert_eq!(edges, expected);
    let frozen = windows[6];
    assert_eq!((frozen.ordinal, frozen.window_s), (7, (NIGHT - 6000) as f64 / 1000.0));
    let night = gauge(frozen);
    assert_eq!((night.mean, night.min, night.max, night.samples), (None, None, None, 0));
    assert!(night.missing > 43_000, "{night:?}");
    let tag = out.iter().find(|batch| batch.kind == RowKind::Tag).unwrap();
    assert_eq!(tag.window_s, (NIGHT + 3200) as f64 / 1000.0);
}
