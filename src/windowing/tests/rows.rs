//! Which row a step's time and scalars stand in: hand-made cases, and random jobs against a plain model of them.

use proptest::prelude::*;

use super::*;

fn step_begin(step: i64) -> MarkOp {
    MarkOp::StepBegin { step: Some(step) }
}

fn fold_of(every_n_steps: u32, slack: u64) -> Fold {
    let mut fold = Fold::new(FoldSettings { every_n_steps, ..settings(60_000, slack) }, ms(0));
    fold.open_series(GAUGE, info(MetricId::HostMemoryPercent, 100));
    fold
}

/// A step with both ends marked, as Python's `with gpurun.step(n)` does.
fn timed(fold: &mut Fold, n: i64, from: u64, to: u64) {
    mark(fold, Fold::OWN, from, step_begin(n));
    mark(fold, Fold::OWN, to, step(n, Some(from)));
}

/// Step, start, end and length in milliseconds.
fn rows(out: &[WindowBatch]) -> Vec<(i64, u64, u64, u64)> {
    let row = |b: &&WindowBatch| {
        (b.step.unwrap(), millis(b.start), millis(b.end), (b.window_s * 1e3).round() as u64)
    };
    of_kind(out, RowKind::Step).iter().map(row).collect()
}

#[test]
fn a_scalar_stands_in_the_row_of_its_step_whenever_it_is_logged() {
    for slack in [0, 5000] {
        let mut fold = fold_of(1, slack);
        mark(&mut fold, Fold::OWN, 0, begin("train"));
        mark(&mut fold, Fold::OWN, 90, log(Some(1), "before", 1.0));
        mark(&mut fold, Fold::OWN, 100, step_begin(1));
        mark(&mut fold, Fold::OWN, 150, log(Some(1), "inside", 1.0));
        mark(&mut fold, Fold::OWN, 200, step(1, Some(100)));
        mark(&mut fold, Fold::OWN, 210, log(Some(1), "after", 1.0));
        mark(&mut fold, Fold::OWN, 300, step_begin(2));
        mark(&mut fold, Fold::OWN, 310, log(Some(1), "due", 1.0));
        mark(&mut fold, Fold::OWN, 400, step(2, Some(300)));
        mark(&mut fold, Fold::OWN, 410, log(Some(1), "late", 1.0));
        mark(&mut fold, Fold::OWN, 420, log(Some(2), "after", 2.0));
        mark(&mut fold, Fold::OWN, 430, end("train"));
        let out = finish(fold, 1000);
        let of_name = |name: &str| {
            let batches = of_kind(&out, RowKind::Step).into_iter();
            let rows = batches.filter_map(|b| Some((b.step?, user(b, name)?.mean?)));
            rows.collect::<Vec<_>>()
        };
        for name in ["before", "inside", "due", "late"] {
            assert_eq!(of_name(name), [(1, 1.0)], "{name}");
        }
        assert_eq!(of_name("after"), [(1, 1.0), (2, 2.0)]);
        // One row for each step, and one of the scalar whose row was gone.
        assert_eq!(rows(&out), [(1, 100, 200, 100), (2, 300, 400, 100), (1, 410, 410, 0)]);
    }
}

#[test]
fn with_more_steps_in_a_row_the_row_that_covers_the_step() {
    let mut fold = fold_of(3, 0);
    for n in 1..=7 {
        let at = u64::try_from(n).unwrap() * 100;
        timed(&mut fold, n, at, at + 50);
        mark(&mut fold, Fold::OWN, at + 60, log(Some(n), "loss", n as f64));
    }
    let out = finish(fold, 1000);
    let losses: Vec<_> =
        of_kind(&out, RowKind::Step).iter().map(|b| (b.step.unwrap(), user(b, "loss").unwrap())).collect();
    assert_eq!(
        losses,
        [
            (3, full(2.0, 1.0, 3.0, 3.0, 3, 0)),
            (6, full(5.0, 4.0, 6.0, 6.0, 3, 0)),
            (7, full(7.0, 7.0, 7.0, 7.0, 1, 0))
        ]
    );
}

#[test]
fn what_is_logged_for_no_step_in_particular_stands_in_the_row_of_its_time() {
    let mut fold = fold_of(1, 0);
    for n in 1..=2 {
        let at = u64::try_from(n).unwrap() * 100;
        mark(&mut fold, Fold::OWN, at, step_begin(n));
        mark(&mut fold, Fold::OWN, at + 20, log(None, "inside", n as f64));
        mark(&mut fold, Fold::OWN, at + 50, step(n, Some(at)));
        mark(&mut fold, Fold::OWN, at + 60, log(None, "after", n as f64));
    }
    let out = finish(fold, 1000);
    for name in ["inside", "after"] {
        let steps = of_kind(&out, RowKind::Step);
        let values: Vec<_> =
            steps.iter().map(|b| (b.step.unwrap(), user(b, name).unwrap().mean.unwrap())).collect();
        assert_eq!(values, [(1, 1.0), (2, 2.0)], "{name}");
    }
}

#[test]
fn evaluation_is_in_no_step_row() {
    for both_ends in [true, false] {
        let mut fold = fold_of(4, 0);
        let mut out = Vec::new();
        for at in 0..60 {
            let inside = (1000..3000).contains(&(at * 100));
            values(&mut fold, GAUGE, &[(at * 100, if inside { 90.0 } else { 10.0 })]);
        }
        mark(&mut fold, Fold::OWN, 0, begin("train"));
        let mark_step = |fold: &mut Fold, n: i64, from: u64, to: u64| match both_ends {
            true => timed(fold, n, from, to),
            false => mark(fold, Fold::OWN, to, step(n, None)),
        };
        mark_step(&mut fold, 1, 0, 400);
        mark_step(&mut fold, 2, 400, 950);
        mark(&mut fold, Fold::OWN, 990, begin("evaluate"));
        mark(&mut fold, Fold::OWN, 3050, end("evaluate"));
        mark_step(&mut fold, 3, 3100, 3400);
        mark_step(&mut fold, 4, 3400, 3800);
        mark_step(&mut fold, 5, 3800, 4200);
        mark(&mut fold, Fold::OWN, 4200, begin("checkpoint"));
        mark(&mut fold, Fold::OWN, 5000, end("checkpoint"));
        mark(&mut fold, Fold::OWN, 5100, end("train"));
        fold.finish(clock(6000), &mut out);
        assert_eq!(rows(&out), [(4, 0, 3800, 3800 - 2060), (5, 3800, 4200, 400)], "both ends: {both_ends}");
        let steps = of_kind(&out, RowKind::Step);
        // Up to 3,000 ms the gauge stands at 90, and from there it falls: the last value before the end of the tag.
        assert!(gauge(steps[0]).mean.unwrap() < 11.0, "{:?}", gauge(steps[0]));
        let between = stats(steps[0], MetricId::BatchTimeInterStep).unwrap();
        let whole = stats(steps[0], MetricId::BatchTimeStep).unwrap();
        // From the end of step 2 to the begin (the end) of step 3, less the evaluation.
        assert_eq!(between.max, Some(if both_ends { 90.0 } else { 550.0 }));
        assert_eq!((whole.max, whole.samples), (Some(550.0), 3));
    }
}

#[test]
fn tags_that_every_step_has_are_part_of_the_steps() {
    let mut fold = fold_of(10, 0);
    mark(&mut fold, Fold::OWN, 0, begin("train"));
    for n in 1..=5 {
        let at = u64::try_from(n).unwrap() * 1000;
        mark(&mut fold, Fold::OWN, at + 100, begin("forward"));
        mark(&mut fold, Fold::OWN, at + 500, end("forward"));
        mark(&mut fold, Fold::OWN, at + 500, begin("backward"));
        mark(&mut fold, Fold::OWN, at + 900, end("backward"));
        mark(&mut fold, Fold::OWN, at + 1000, step(n, None));
    }
    let out = finish(fold, 9000);
    // What came before the first step is not known to be one's own: its row begins with the end of the last tag.
    assert_eq!(rows(&out), [(5, 1900, 6000, 4100)]);
    let step = stats(of_kind(&out, RowKind::Step)[0], MetricId::BatchTimeStep).unwrap();
    assert_eq!((step.min, step.max, step.samples), (Some(1000.0), Some(1000.0), 4));
}

#[test]
fn tags_inside_a_step_are_part_of_it() {
    let mut fold = fold_of(2, 0);
    for (n, at) in [(1, 1000), (2, 2000)] {
        mark(&mut fold, Fold::OWN, at, step_begin(n));
        mark(&mut fold, Fold::OWN, at + 100, begin(if n == 1 { "compile" } else { "run" }));
        mark(&mut fold, Fold::OWN, at + 500, MarkOp::End { tag: None });
        mark(&mut fold, Fold::OWN, at + 600, step(n, Some(at)));
    }
    assert_eq!(rows(&finish(fold, 9000)), [(2, 1000, 2600, 1600)]);
}

#[test]
fn a_phase_with_steps_of_its_own_has_rows_of_its_own() {
    let mut fold = fold_of(4, 0);
    mark(&mut fold, Fold::OWN, 0, begin("train"));
    timed(&mut fold, 1, 100, 200);
    timed(&mut fold, 2, 300, 400);
    mark(&mut fold, Fold::OWN, 500, begin("validate"));
    timed(&mut fold, 1, 600, 700);
    timed(&mut fold, 2, 800, 900);
    mark(&mut fold, Fold::OWN, 1000, end("validate"));
    timed(&mut fold, 3, 1100, 1200);
    mark(&mut fold, Fold::OWN, 1300, end("train"));
    let out = finish(fold, 9000);
    assert_eq!(rows(&out), [(2, 600, 900, 300), (3, 100, 1200, 600)]);
    let tags: Vec<_> = of_kind(&out, RowKind::Step).iter().map(|b| &*b.tag).collect();
    assert_eq!(tags, ["run/train/validate", "run/train"]);
}

#[test]
fn a_row_is_of_one_epoch_and_one_opening_of_its_tag() {
    let mut fold = fold_of(100, 0);
    let mut at = 0;
    for epoch in 0..2 {
        mark(&mut fold, Fold::OWN, at, MarkOp::Epoch { epoch: Some(epoch) });
        for _ in 0..2 {
            mark(&mut fold, Fold::OWN, at + 10, begin("train"));
            for n in 1..=3u64 {
                timed(&mut fold, i64::try_from(n).unwrap(), at + 100 * n, at + 100 * n + 50);
            }
            mark(&mut fold, Fold::OWN, at + 500, end("train"));
            at += 1000;
        }
    }
    mark(&mut fold, Fold::OWN, at, begin("all"));
    for epoch in 5..=6 {
        mark(&mut fold, Fold::OWN, at + 10, MarkOp::Epoch { epoch: Some(epoch) });
        for n in 1..=3u64 {
            timed(&mut fold, i64::try_from(n).unwrap(), at + 100 * n, at + 100 * n + 50);
        }
        at += 1000;
    }
    let out = finish(fold, at);
    let of =
        |kind| -> Vec<_> { of_kind(&out, kind).iter().map(|b| (&*b.tag, b.occurrence, b.epoch)).collect() };
    let train = [
        ("run/train", 1, Some(0)),
        ("run/train", 2, Some(0)),
        ("run/train", 3, Some(1)),
        ("run/train", 4, Some(1)),
    ];
    let all = [("run/all", 1, Some(5)), ("run/all", 1, Some(6))];
    assert_eq!(of(RowKind::Step), [&train[..], &all].concat());
    // Two epochs ran in the last tag, and four in the only window: it is of none.
    assert_eq!(of(RowKind::Tag), [&train[..], &[("run/all", 1, None)]].concat());
    assert_eq!(of(RowKind::Window), [("run", 1, None)]);
}

#[test]
fn a_row_ends_where_the_numbers_of_steps_begin_again() {
    for both_ends in [true, false] {
        let mut fold = fold_of(4, 0);
        let mut at = 0;
        for _ in 0..3 {
            for n in 0..10 {
                at += 100;
                match both_ends {
                    true => timed(&mut fold, n, at, at + 50),
                    false => mark(&mut fold, Fold::OWN, at + 50, step(n, None)),
                }
                mark(&mut fold, Fold::OWN, at + 60, log(Some(n), "loss", n as f64));
            }
        }
        let out = finish(fold, at + 1000);
        let losses: Vec<_> = of_kind(&out, RowKind::Step)
            .iter()
            .map(|b| (b.step.unwrap(), user(b, "loss").unwrap().min, user(b, "loss").unwrap().samples))
            .collect();
        let pass = [(3, Some(0.0), 4), (7, Some(4.0), 4), (9, Some(8.0), 2)];
        assert_eq!(losses, [pass, pass, pass].concat(), "both ends: {both_ends}");
    }
}

#[test]
fn a_window_is_of_the_epoch_that_began_in_it_else_of_the_running_one() {
    let mut fold = fold(1000, 0);
    mark(&mut fold, CLIENT, 0, MarkOp::Open { rank: Some(1) });
    mark(&mut fold, Fold::OWN, 1500, MarkOp::Epoch { epoch: Some(3) });
    mark(&mut fold, CLIENT, 1600, MarkOp::Epoch { epoch: Some(3) });
    mark(&mut fold, CLIENT, 3100, MarkOp::Epoch { epoch: Some(4) });
    mark(&mut fold, CLIENT, 3900, MarkOp::Epoch { epoch: Some(5) });
    let out = finish(fold, 5000);
    let epochs: Vec<_> = of_kind(&out, RowKind::Window).iter().map(|b| b.epoch).collect();
    assert_eq!(epochs, [None, Some(3), Some(3), None, Some(5)]);
}

#[test]
fn a_step_that_raised_is_not_one() {
    let mut fold = fold_of(2, 0);
    timed(&mut fold, 1, 100, 200);
    mark(&mut fold, Fold::OWN, 300, step_begin(2));
    timed(&mut fold, 3, 400, 500);
    mark(&mut fold, Fold::OWN, 600, step_begin(4));
    assert_eq!(rows(&finish(fold, 9000)), [(3, 100, 500, 400)]);
}

/// What a job does, one thing after another.
#[derive(Clone, Debug)]
enum Act {
    /// A step: idle before it, its length, and idle after it.
    Step {
        before: u64,
        length: u64,
    },
    /// A tag beside the steps.
    Tag {
        name: usize,
        length: u64,
    },
    Epoch,
}

/// When a scalar is logged for a step.
#[derive(Clone, Copy, Debug)]
enum When {
    Before,
    Inside,
    /// After the end of this many more steps of the job.
    After(usize),
}

#[derive(Clone, Debug)]
struct Job {
    /// What happens in each opening of the tag `train`.
    openings: Vec<Vec<Act>>,
    /// Scalars by the steps' places, wrapped around.
    scalars: Vec<Vec<When>>,
    both_ends: bool,
    every: u32,
    delays: Vec<u64>,
}

const NAMES: [&str; 3] = ["evaluate", "checkpoint", "load"];

fn job() -> impl Strategy<Value = Job> {
    let act = prop_oneof![
        6 => (0u64..400, 1u64..1200).prop_map(|(before, length)| Act::Step { before, length }),
        2 => (0usize..3, 0u64..3000).prop_map(|(name, length)| Act::Tag { name, length }),
        1 => Just(Act::Epoch),
    ];
    let when = prop_oneof![Just(When::Before), Just(When::Inside), (0usize..4).prop_map(When::After)];
    (
        prop::collection::vec(prop::collection::vec(act, 1..20), 1..4),
        prop::collection::vec(prop::collection::vec(when, 0..3), 1..20),
        any::<bool>(),
        1u32..5,
        prop::collection::vec(0u64..300, 1..30),
    )
        .prop_map(|(mut openings, scalars, both_ends, every, delays)| {
            for acts in &mut openings {
                // A tag around a single step is that step's own.
                for _ in 0..2 {
                    acts.push(Act::Step { before: 50, length: 100 });
                }
                // Where the first step began is known only where both ends are marked.
                if !both_ends {
                    let first = acts.iter().position(|act| matches!(act, Act::Step { .. })).unwrap_or(0);
                    acts.drain(..first);
                }
            }
            Job { openings, scalars, both_ends, every, delays }
        })
}

/// A step as the job had it.
#[derive(Clone, Debug)]
struct Truth {
    n: i64,
    began: u64,
    ended: u64,
    /// Opening and epoch.
    section: (usize, usize),
    /// Time of tags beside the steps since the end of the step before.
    beside: u64,
}

/// A scalar as the job logged it: its own name, its step's place, and how many steps of the job had ended by then.
#[derive(Clone, Debug)]
struct Logged {
    name: String,
    place: usize,
    ended: usize,
    /// Whether its tag was still open.
    in_time: bool,
}

/// Everything the job says, in order, and the truth about it.
struct Scripted {
    marks: Vec<(u64, MarkOp)>,
    steps: Vec<Truth>,
    scalars: Vec<Logged>,
    end: u64,
}

impl Job {
    fn tell(&self) -> Scripted {
        let mut scripted = Scripted { marks: Vec::new(), steps: Vec::new(), scalars: Vec::new(), end: 0 };
        let (mut at, mut epoch) = (10, 0);
        for (opening, acts) in self.openings.iter().enumerate() {
            scripted.marks.push((at, begin("train")));
            // The earliest that a step may have begun, if its begin is not marked.
            let mut earliest = at;
            let (mut opened, mut opened_before): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
            let mut beside = 0;
            for act in acts {
                at += 1;
                match act {
                    Act::Epoch => {
                        epoch += 1;
                        scripted.marks.push((at, MarkOp::Epoch { epoch: Some(epoch as i64) }));
                        (earliest, beside) = (at, 0);
                    }
                    Act::Tag { name, length } => {
                        scripted.marks.push((at, begin(NAMES[*name])));
                        at += length;
                        scripted.marks.push((at, end(NAMES[*name])));
                        if !opened_before.contains(name) {
                            beside += length;
                        }
                        opened.push(*name);
                    }
                    Act::Step { before, length } => {
                        let place = scripted.steps.len();
                        let n = place as i64 + 1;
                        self.log(&mut scripted, place, at, |when| matches!(when, When::Before));
                        at += before;
                        if self.both_ends {
                            scripted.marks.push((at, step_begin(n)));
                        }
                        let began = if self.both_ends { at } else { earliest };
                        self.log(&mut scripted, place, at, |when| matches!(when, When::Inside));
                        at += length;
                        scripted.marks.push((at, step(n, self.both_ends.then_some(ms(began)).map(millis))));
                        let section = (opening, epoch);
                        scripted.steps.push(Truth { n, began, ended: at, section, beside });
                        (earliest, beside) = (at, 0);
                        opened_before = std::mem::take(&mut opened);
                        for back in 0..4 {
                            let Some(place) = place.checked_sub(back) else { break };
                            self.log(
                                &mut scripted,
                                place,
                                at,
                                |when| matches!(when, When::After(n) if *n == back),
                            );
                        }
                    }
                }
            }
            at += 7;
            scripted.marks.push((at, end("train")));
            at += 20;
        }
        scripted.end = at + 100;
        scripted
    }

    fn log(&self, scripted: &mut Scripted, place: usize, at: u64, now: impl Fn(&When) -> bool) {
        let Some(scalars) = self.scalars.get(place % self.scalars.len()) else { return };
        for (number, _) in scalars.iter().enumerate().filter(|(_, when)| now(when)) {
            let name = format!("scalar {place} {number}");
            scripted.marks.push((at, log(Some(place as i64 + 1), &name, 1.0)));
            let opening = scripted.marks.iter().filter(|(_, op)| *op == begin("train")).count() - 1;
            let in_time = scripted.steps.get(place).is_none_or(|step| step.section.0 == opening);
            scripted.scalars.push(Logged { name, place, ended: scripted.steps.len(), in_time });
        }
    }

    /// Everything delivered late, in the order in which the job said it.
    fn run(&self, scripted: &Scripted) -> Vec<WindowBatch> {
        let mut fold = Fold::new(FoldSettings { every_n_steps: self.every, ..settings(4000, 300) }, ms(0));
        fold.open_series(GAUGE, info(MetricId::HostMemoryPercent, 1000));
        let mut out = Vec::new();
        let mut arrivals: Vec<(u64, Option<(u64, MarkOp)>)> = Vec::new();
        let mut now = 0;
        for ((at, op), delay) in scripted.marks.iter().zip(self.delays.iter().cycle()) {
            now = (at + delay).max(now);
            arrivals.push((now, Some((*at, op.clone()))));
        }
        arrivals.extend((0..=scripted.end / 1000).map(|second| (second * 1000, None)));
        arrivals.sort_by_key(|(at, _)| *at);
        for (now, mark) in arrivals {
            match mark {
                Some((at, op)) => super::mark(&mut fold, Fold::OWN, at, op),
                None => values(&mut fold, GAUGE, &[(now, now as f64)]),
            }
            if now < scripted.end {
                fold.advance(clock(now), &mut out);
            }
        }
        fold.finish(clock(scripted.end), &mut out);
        out
    }

    /// The steps of each row.
    fn rows<'a>(&self, steps: &'a [Truth]) -> Vec<&'a [Truth]> {
        let sections = steps.chunk_by(|a, b| a.section == b.section);
        sections.flat_map(|section| section.chunks(self.every as usize)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn rows_have_the_time_of_their_steps(job in job()) {
        let scripted = job.tell();
        let out = job.run(&scripted);
        let mut got: Vec<_> = of_kind(&out, RowKind::Step).into_iter().filter(|b| gauge_or_none(b)).collect();
        got.sort_by_key(|batch| batch.step);
        let want = job.rows(&scripted.steps);
        prop_assert_eq!(got.len(), want.len());
        for (row, steps) in got.iter().zip(&want) {
            let (first, last) = (&steps[0], &steps[steps.len() - 1]);
            prop_assert_eq!(row.step, Some(last.n));
            let beside: u64 = steps.iter().map(|step| step.beside).sum::<u64>()
                - if job.both_ends { first.beside } else { 0 };
            let length = last.ended - first.began - beside;
            prop_assert!(near(Some(row.window_s), length as f64 / 1e3), "step {}: {} s, {} ms", last.n, row.window_s, length);
            prop_assert_eq!(row.epoch, Some(first.section.1 as i64).filter(|epoch| *epoch > 0));
            prop_assert_eq!(row.occurrence as usize, first.section.0 + 1);
            // The times of the single steps add up to the row's.
            let sum = |metric| stats(row, metric).map_or(0.0, |s| s.mean.unwrap() * f64::from(s.samples));
            let first_known = steps[0].section == scripted.steps.iter().rev().find(|s| s.n < first.n).map_or((9, 9), |s| s.section);
            if job.both_ends {
                let lead = if first_known { first.began - scripted.steps[first.n as usize - 2].ended - first.beside } else { 0 };
                let all = sum(MetricId::BatchTimeIntraStep) + sum(MetricId::BatchTimeInterStep) - lead as f64;
                prop_assert!((all - length as f64).abs() < 1e-6, "step {}: {} of {} ms", last.n, all, length);
            } else {
                let first_step = if first_known { 0 } else { first.ended - first.began - first.beside };
                let all = sum(MetricId::BatchTimeStep) + first_step as f64;
                prop_assert!((all - length as f64).abs() < 1e-6, "step {}: {} of {} ms", last.n, all, length);
            }
        }
    }

    #[test]
    fn each_scalar_stands_in_the_row_of_its_step_and_nowhere_else(job in job()) {
        let scripted = job.tell();
        let out = job.run(&scripted);
        for scalar in &scripted.scalars {
            let rows = of_kind(&out, RowKind::Step).into_iter();
            let rows: Vec<_> = rows.filter_map(|b| Some((b, user(b, &scalar.name)?.samples))).collect();
            prop_assert_eq!(rows.len(), 1, "{}", &scalar.name);
            let (row, samples) = rows[0];
            prop_assert_eq!(samples, 1);
            let n = scripted.steps[scalar.place].n;
            let steps = job.rows(&scripted.steps).into_iter().find(|row| row.iter().any(|step| step.n == n)).unwrap();
            let last = steps[steps.len() - 1].n;
            // The row waits until the step after its last one has ended, or its tag.
            let gone = !scalar.in_time || scalar.ended > last as usize;
            // That steps are marked is unknown before the first mark, and a window may have ended since.
            let unforeseen = scalar.ended == 0 && row.window_s == 0.0;
            if gone || unforeseen {
                prop_assert_eq!((row.step, row.window_s), (Some(n), 0.0), "{}", &scalar.name);
            } else {
                prop_assert_eq!(row.step, Some(last), "{}", &scalar.name);
                prop_assert!(gauge_or_none(row) , "{}", &scalar.name);
            }
            // By its time it is in the windows and tags, once as well.
            for kind in [RowKind::Window, RowKind::Tag] {
                let times = of_kind(&out, kind).into_iter().filter_map(|b| user(b, &scalar.name)).map(|s| s.samples);
                prop_assert_eq!(times.sum::<u32>(), 1, "{} in {:?}", &scalar.name, kind);
            }
        }
    }

    #[test]
    fn late_delivery_changes_no_row(job in job()) {
        let scripted = job.tell();
        let in_time = Job { delays: vec![0], ..job.clone() };
        prop_assert_eq!(job.run(&scripted), in_time.run(&scripted));
    }
}

/// Whether the batch has rows of series, not only of scalars.
fn gauge_or_none(batch: &WindowBatch) -> bool {
    stats(batch, MetricId::HostMemoryPercent).is_some()
}
