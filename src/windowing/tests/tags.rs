//! Tags and stacks.

use super::*;

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
