//! Steps and scalars.

use super::*;

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
            (Some(4), 600, 900, "run/fit", Some(1)),
            (Some(5), 1000, 1100, "run/fit", Some(1))
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
    mark(&mut fold, Fold::OWN, 2100, MarkOp::Epoch { epoch: None });
    mark(&mut fold, Fold::OWN, 2500, step(4, None));
    fold.finish(clock(3000), &mut out);
    let steps = of_kind(&out, RowKind::Step);
    let spans: Vec<_> = steps.iter().map(|b| (b.step, millis(b.start), millis(b.end))).collect();
    assert_eq!(spans, [(Some(2), 500, 1700), (Some(3), 1700, 2000), (Some(4), 2100, 2500)]);
    assert!(near(gauge(steps[0]).mean, (10.0 + 21.0) / 1.2));
    assert!(stats(steps[0], MetricId::BatchTimeIntraStep).is_none());
    assert_eq!(stats(steps[0], MetricId::BatchTimeInterStep), Some(full(200.0, 200.0, 200.0, 200.0, 1, 0)));
    // Nothing between the last step of an epoch and the first of the next.
    assert_eq!(stats(steps[1], MetricId::BatchTimeInterStep), Some(full(300.0, 300.0, 300.0, 300.0, 1, 0)));
    assert_eq!(stats(steps[2], MetricId::BatchTimeInterStep), None);
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
    let rows: Vec<_> = steps.iter().map(|b| (b.step, millis(b.start), millis(b.end), &*b.tag)).collect();
    assert_eq!(rows, [(Some(3), 110, 380, "run/train"), (Some(8), 600, 800, "run/eval")]);
    assert_eq!(steps[0].window_s, 0.27);
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
        let op = MarkOp::Step { step: 4 * n as i64, count: 4, began: Some(began), samples: None };
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
    let mark_step = |fold: &mut Fold, at: u64, n: i64| {
        fold.mark(Mark { stack: Fold::OWN, at: ms(at), op: step(n, None) })
    };
    mark(&mut fold, Fold::OWN, 0, begin("train"));
    assert_eq!(mark_step(&mut fold, 10, 1), Ok(()));
    assert_eq!(mark_step(&mut fold, 11, 1), Err(MarkError::StepRepeated));
    // A tag of its own between the two marks makes no difference to that of the steps.
    mark(&mut fold, Fold::OWN, 12, begin("save"));
    assert_eq!(mark_step(&mut fold, 13, 1), Ok(()), "another tag");
    mark(&mut fold, Fold::OWN, 14, end("save"));
    assert_eq!(mark_step(&mut fold, 15, 1), Err(MarkError::StepRepeated));
    mark(&mut fold, Fold::OWN, 16, MarkOp::Epoch { epoch: None });
    assert_eq!(mark_step(&mut fold, 16, 1), Ok(()), "an epoch of one step");
    assert_eq!(mark_step(&mut fold, 17, 2), Ok(()));
    mark(&mut fold, Fold::OWN, 18, end("train"));
    mark(&mut fold, Fold::OWN, 20, begin("train"));
    assert_eq!(mark_step(&mut fold, 21, 2), Ok(()), "the tag was opened again");
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
        if second == 51 || second == 9_999 {
            sizes.push(fold.footprint());
        }
    }
    assert!(batches > 24_000, "{batches}");
    assert_eq!(sizes[0], sizes[1]);
}
