//! The fold itself: takes samples and marks in, in any order within the slack, and gives batches out.
//! Never reads a clock: every instant is an argument.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::model::id::{SeriesId, StackId};
use crate::model::limits::SCALAR_NAMES;
use crate::model::mark::{Mark, MarkOp};
use crate::model::metric::MetricId;
use crate::model::reading::Reading;
use crate::model::sample::Sample;
use crate::model::series::SeriesInfo;
use crate::model::time::{ClockPair, Mono};
use crate::model::window::{Row, RowKind, WindowBatch};

use super::accumulator::{Acc, Series, Step};
use super::points::{Labels, Points, point_series};
use super::queue::{Event, Queue, What};
use super::span::{Span, Table};
use super::stack::{Fronts, MarkError};

/// Suspensions that are remembered for the times of steps that began before them.
const SUSPENSIONS: usize = 64;

/// Batches that wait for their last totals; beyond this many, the oldest go without.
const MAX_WAITING: usize = 512;

/// What a fold has to know beforehand.
#[derive(Clone, Debug)]
pub struct FoldSettings {
    /// Length of a periodic window, in active time.
    pub window: Duration,
    /// First component of every tag path, and the tag of periodic windows.
    pub root_tag: Arc<str>,
    /// Rank of the run itself.
    pub rank: Option<i32>,
    /// Steps in one step row.
    pub every_n_steps: u32,
    /// How late a sample or mark may arrive and still count at its own instant.
    pub slack: Duration,
}

/// The statistics of the innermost open tag of a stack so far: nvitop's `collect()`. Nothing is cleared.
#[derive(Clone, Debug, PartialEq)]
pub struct Collected {
    /// Full path of the tag, the root tag first; the root tag alone if none is open.
    pub tag: Arc<str>,
    /// Rank of the stack.
    pub rank: Option<i32>,
    /// Active seconds since the tag began or was cleared (no tag open: since the window began).
    pub duration_s: f64,
    /// The series with their statistics.
    pub rows: Vec<Row>,
}

/// An open tag.
#[derive(Debug)]
struct Tag {
    name: Arc<str>,
    path: Arc<str>,
    span: u64,
}

/// The steps since the last step row of a stack.
#[derive(Debug)]
struct Steps {
    span: u64,
    count: u32,
    last: i64,
    /// The tags, outermost first, in which all of these steps ended: a tag of each step's own is not among them.
    around: Vec<u64>,
    /// The path of the innermost of those tags.
    path: Arc<str>,
    intra: Points,
    inter: Points,
}

/// One stack of tags, as far as it was applied.
#[derive(Debug)]
struct Stack {
    rank: Option<i32>,
    tags: Vec<Tag>,
    steps: Option<Steps>,
    /// End of the last step.
    stepped: Option<Mono>,
    /// Scalars of a training step, where steps are not marked.
    lone: Option<Span>,
}

impl Stack {
    fn new(rank: Option<i32>) -> Self {
        Stack { rank, tags: Vec::new(), steps: None, stepped: None, lone: None }
    }
}

/// Samples and marks in, batches of rows out. The rules are those of [`windowing`](crate::windowing).
#[derive(Debug)]
pub struct Fold {
    settings: FoldSettings,
    start: Mono,
    window_ns: u64,
    queue: Queue,
    fronts: Fronts,
    /// Everything before this instant was applied.
    horizon: Mono,
    /// Suspended nanoseconds so far, the present suspension not counted.
    offset: u64,
    suspended: Option<Mono>,
    suspensions: VecDeque<(Mono, Mono)>,
    table: Table,
    freed: Vec<SeriesId>,
    labels: Labels,
    /// Open spans: the periodic window is always the first.
    open: Vec<Span>,
    /// Spans that are over, oldest first.
    ended: VecDeque<Span>,
    stacks: HashMap<u32, Stack>,
    ordinals: HashMap<(RowKind, Arc<str>, Option<i32>), u64>,
    next_span: u64,
    spare: Vec<Vec<Acc>>,
    intra: Arc<SeriesInfo>,
    inter: Arc<SeriesInfo>,
}

impl Fold {
    /// The run's own stack, open from start to finish. Its marks carry the run's rank.
    pub const OWN: StackId = StackId(0);

    /// A fold whose first window begins at `start`.
    pub fn new(settings: FoldSettings, start: Mono) -> Fold {
        let window_ns = u64::try_from(settings.window.as_nanos()).unwrap_or(u64::MAX).max(1_000_000);
        let window =
            Span::new(0, RowKind::Window, Arc::clone(&settings.root_tag), settings.rank, start, start.0);
        let own = Stack::new(settings.rank);
        Fold {
            start,
            window_ns,
            queue: Queue::default(),
            fronts: Fronts::new(Self::OWN, start),
            horizon: start,
            offset: 0,
            suspended: None,
            suspensions: VecDeque::new(),
            table: Vec::new(),
            freed: Vec::new(),
            labels: Labels::default(),
            open: vec![window],
            ended: VecDeque::new(),
            stacks: HashMap::from([(0, own)]),
            ordinals: HashMap::new(),
            next_span: 1,
            spare: Vec::new(),
            intra: point_series(MetricId::BatchTimeIntraStep, None),
            inter: point_series(MetricId::BatchTimeInterStep, None),
            settings,
        }
    }

    /// Names a series. The number must be new or have come out of [`Fold::freed`].
    pub fn open_series(&mut self, id: SeriesId, info: Arc<SeriesInfo>) {
        let index = id.index();
        if self.table.len() <= index {
            self.table.resize_with(index + 1, || None);
        }
        let slack = u64::try_from(self.settings.slack.as_nanos()).unwrap_or(u64::MAX);
        self.table[index] = Some(Series::new(info, slack));
    }

    /// Ends a series: its last value is held until `at`. Its rows in the spans that are open still come.
    pub fn close_series(&mut self, id: SeriesId, at: Mono) {
        self.queue.push(at.max(self.horizon), What::CloseSeries(id));
    }

    /// The numbers of series that are closed for good and may be used again. Each is given once.
    pub fn freed(&mut self) -> impl Iterator<Item = SeriesId> {
        self.freed.drain(..)
    }

    /// Takes a sample. It allocates nothing once its buffers have grown.
    ///
    /// Readings of series that are not open, and samples of suspended time, are ignored; a value that is
    /// not finite counts as missing.
    pub fn sample(&mut self, sample: &Sample) {
        self.queue.push_sample(sample.at.max(self.horizon), &sample.readings);
    }

    /// Takes a mark. Its instant should not lie after the moment of its receipt; if it does, it counts as
    /// of the next [`Fold::advance`]. Marks of one stack happen in the order in which they come.
    ///
    /// # Errors
    ///
    /// A mark that makes no sense (a tag that is open already, one that is not open, an unknown stack)
    /// is refused, and changes nothing.
    pub fn mark(&mut self, mark: Mark) -> Result<(), MarkError> {
        let Mark { stack, at, op } = mark;
        if let MarkOp::Log { values, .. } = &op {
            let new = values.iter().filter(|(name, _)| !self.labels.contains(name)).count();
            if new > 0 && self.labels.len() + new > SCALAR_NAMES {
                return Err(MarkError::TooManyNames);
            }
        }
        let accepted = self.fronts.accept(stack, at.max(self.horizon), &op, Self::OWN)?;
        if let MarkOp::Log { values, .. } = &op {
            for (name, _) in values {
                self.labels.number(name);
            }
        }
        if let Some(began) = accepted.first_step {
            let began = began.min(accepted.at).max(self.horizon);
            self.queue.push(began, What::FirstStep(accepted.number));
        }
        self.queue.push(accepted.at, What::Mark(accepted.number, op));
        Ok(())
    }

    /// Time stands still from `at`. A sample taken at `at` still counts; take one, so that the counters'
    /// increase up to here is not lost.
    pub fn suspend(&mut self, at: Mono) {
        self.queue.push(at.max(self.horizon), What::Suspend);
    }

    /// Time goes on from `at`. A sample taken at `at` counts; take one, so that counters go on from here.
    pub fn resume(&mut self, at: Mono) {
        self.queue.push(at.max(self.horizon), What::Resume);
    }

    /// Applies what is older than the slack and appends the batches that are over and settled, in the
    /// order of their ends. Call it after every sample, or at least every window.
    pub fn advance(&mut self, clock: ClockPair, out: &mut Vec<WindowBatch>) {
        self.queue.cap(clock.mono);
        self.fronts.cap(clock.mono);
        self.apply_until(clock.mono - self.settings.slack, false);
        self.flush(clock, false, out);
    }

    /// Applies everything, ends all tags, the last partial window and every pending batch.
    pub fn finish(&mut self, clock: ClockPair, out: &mut Vec<WindowBatch>) {
        let now = clock.mono.max(self.horizon);
        self.queue.cap(now);
        self.apply_until(now, true);
        let mut stacks: Vec<u32> = self.stacks.keys().copied().collect();
        stacks.sort_unstable();
        for number in stacks {
            self.close_stack(number);
        }
        let (to, from) = (self.active(now), self.open[0].from);
        // A run of no length at all still has its rows.
        if to > from || from == self.start.0 {
            self.close_window(now, to);
        }
        self.flush(clock, true, out);
    }

    /// The statistics of the innermost open tag of a stack, up to `at`; everything up to `at` is applied,
    /// so that what arrives later with an earlier stamp counts as of `at`. An unknown stack, and one
    /// without an open tag, gives the periodic window so far.
    pub fn collect(&mut self, stack: StackId, at: Mono) -> Collected {
        self.apply_until(at, true);
        let stack = self.fronts.number(stack).and_then(|number| self.stacks.get(&number));
        let tag = stack.and_then(|stack| stack.tags.last());
        let span = tag.and_then(|tag| self.open.iter().find(|span| span.key == tag.span));
        let span = span.unwrap_or(&self.open[0]);
        let to = self.active(self.horizon);
        Collected {
            tag: Arc::clone(&span.tag),
            rank: stack.map_or(self.settings.rank, |stack| stack.rank),
            duration_s: seconds(to - span.from),
            rows: span.rows(&self.table, &self.labels, Some(to)),
        }
    }

    /// The open periodic window as far as it was applied, which is up to the slack before now.
    pub fn current(&self, clock: ClockPair) -> WindowBatch {
        let span = &self.open[0];
        let to = self.active(self.horizon);
        let key = (RowKind::Window, Arc::clone(&span.tag), span.rank);
        WindowBatch {
            kind: RowKind::Window,
            tag: Arc::clone(&span.tag),
            step: None,
            rank: span.rank,
            ordinal: self.ordinals.get(&key).copied().unwrap_or(0) + 1,
            start: span.start,
            end: self.horizon,
            time: clock.label(self.horizon),
            window_s: seconds(to - span.from),
            rows: span.rows(&self.table, &self.labels, Some(to)),
        }
    }

    /// How much is kept: events, spans, spare buffers, names.
    #[cfg(test)]
    pub(super) fn footprint(&self) -> [usize; 7] {
        let spans = self.open.iter().chain(&self.ended).map(|span| span.accs.len()).sum();
        let (open, ended) = (self.open.len(), self.ended.len());
        [self.queue.footprint(), spans, open, ended, self.spare.len(), self.ordinals.len(), self.table.len()]
    }

    /// Active nanoseconds at an instant not before the last change.
    fn active(&self, at: Mono) -> u64 {
        let at = self.suspended.map_or(at, |since| since.min(at));
        at.0.saturating_sub(self.offset)
    }

    /// Active time between two instants, both in the past.
    fn active_between(&self, from: Mono, to: Mono) -> Duration {
        let mut length = to.since(from);
        let present = self.suspended.map(|since| (since, to));
        for (since, until) in self.suspensions.iter().copied().chain(present) {
            length = length.saturating_sub(until.min(to).since(since.max(from)));
        }
        length
    }

    fn apply_until(&mut self, until: Mono, inclusive: bool) {
        let until = until.max(self.horizon);
        while let Some(Event { at, what }) = self.queue.pop(until, inclusive) {
            let at = at.max(self.horizon);
            self.close_windows(at);
            self.horizon = at;
            self.apply(at, what);
        }
        self.close_windows(until);
        self.horizon = until;
    }

    /// Ends the periodic windows that are over at `at`.
    fn close_windows(&mut self, at: Mono) {
        loop {
            let to = self.open[0].from.saturating_add(self.window_ns);
            if to > self.active(at) {
                return;
            }
            self.close_window(Mono(to.saturating_add(self.offset)), to);
        }
    }

    fn close_window(&mut self, end: Mono, to: u64) {
        let key = self.span_key();
        let next =
            Span::new(key, RowKind::Window, Arc::clone(&self.settings.root_tag), self.settings.rank, end, to);
        let over = std::mem::replace(&mut self.open[0], next);
        self.reuse(0);
        let mut lone: Vec<Span> = self.stacks.values_mut().filter_map(|stack| stack.lone.take()).collect();
        lone.sort_by_key(|span| (span.end, span.key));
        self.ended.extend(lone);
        self.end_span(over, end, to);
    }

    fn span_key(&mut self) -> u64 {
        self.next_span += 1;
        self.next_span
    }

    /// Gives an open span the memory of an emitted one.
    fn reuse(&mut self, place: usize) {
        if let Some(mut accs) = self.spare.pop() {
            accs.clear();
            accs.resize(self.table.len(), Acc::default());
            self.open[place].accs = accs;
        }
    }

    fn open_span(&mut self, kind: RowKind, tag: Arc<str>, rank: Option<i32>, at: Mono) -> u64 {
        let key = self.span_key();
        self.open.push(Span::new(key, kind, tag, rank, at, self.active(at)));
        self.reuse(self.open.len() - 1);
        key
    }

    fn end_span(&mut self, mut span: Span, end: Mono, to: u64) {
        span.finish(&self.table, end, to);
        self.ended.push_back(span);
    }

    fn take_span(&mut self, key: u64) -> Option<Span> {
        let place = self.open.iter().position(|span| span.key == key)?;
        Some(self.open.remove(place))
    }

    fn apply(&mut self, at: Mono, what: What) {
        match what {
            What::Sample(readings) => {
                if self.suspended.is_none() {
                    let now = self.active(at);
                    for (id, reading) in &readings {
                        self.read(*id, now, *reading);
                    }
                }
                self.queue.recycle(readings);
            }
            What::CloseSeries(id) => self.retire(id, self.active(at)),
            What::Suspend => {
                if self.suspended.is_none() {
                    self.suspended = Some(at);
                    for (index, series) in self.table.iter_mut().enumerate() {
                        let Some(series) = series else { continue };
                        for span in self.ended.iter_mut().filter(|span| !span.bare) {
                            let to = span.to;
                            series.settle_rate(span.acc(index), to);
                        }
                        series.suspend();
                    }
                }
            }
            What::Resume => {
                if let Some(since) = self.suspended.take() {
                    self.offset = self.offset.saturating_add(at.0.saturating_sub(since.0));
                    if self.suspensions.len() == SUSPENSIONS {
                        self.suspensions.pop_front();
                    }
                    self.suspensions.push_back((since, at));
                }
            }
            What::FirstStep(number) => {
                if self.stacks.get(&number).is_some_and(|stack| stack.steps.is_none()) {
                    self.begin_steps(number, at);
                }
            }
            What::Mark(number, op) => self.apply_mark(number, at, op),
        }
    }

    /// One reading, for every open span and for those that wait for it.
    fn read(&mut self, id: SeriesId, now: u64, reading: Reading) {
        let index = id.index();
        let Some(series) = self.table.get_mut(index).and_then(Option::as_mut) else { return };
        let value = match reading {
            Reading::Peak(value) => {
                if value.is_finite() {
                    for span in &mut self.open {
                        span.acc(index).peak(value);
                    }
                }
                return;
            }
            Reading::Value(value) => Some(value).filter(|value| value.is_finite()),
            Reading::Missing => None,
        };
        let step = series.take(now, value);
        for span in &mut self.open {
            let from = span.from;
            series.feed_open(span.acc(index), step, from, now);
        }
        if matches!(step, Step::Gauge { .. } | Step::Rate { .. } | Step::Base { .. }) {
            for span in self.ended.iter_mut().filter(|span| !span.bare) {
                let (from, to) = (span.from, span.to);
                series.feed_ended(span.acc(index), step, now, from, to);
            }
        }
        series.read_at(now);
    }

    fn retire(&mut self, id: SeriesId, now: u64) {
        let index = id.index();
        let Some(series) = self.table.get_mut(index).and_then(Option::take) else { return };
        for span in &mut self.open {
            span.retire(index, &series, Some(now));
        }
        for span in &mut self.ended {
            span.retire(index, &series, None);
        }
        self.freed.push(id);
    }

    fn apply_mark(&mut self, number: u32, at: Mono, op: MarkOp) {
        if let MarkOp::Open { rank } = op {
            self.stacks.insert(number, Stack::new(rank));
            return;
        }
        if !self.stacks.contains_key(&number) {
            return;
        }
        match op {
            MarkOp::Open { .. } => {}
            MarkOp::Close => {
                self.close_stack(number);
                if number != 0 {
                    self.stacks.remove(&number);
                }
            }
            MarkOp::Begin { tag } => {
                let path = Arc::from(format!("{}/{tag}", self.path(number)));
                let rank = self.stacks[&number].rank;
                let span = self.open_span(RowKind::Tag, Arc::clone(&path), rank, at);
                if let Some(stack) = self.stacks.get_mut(&number) {
                    stack.tags.push(Tag { name: tag, path, span });
                }
            }
            MarkOp::End { tag } => {
                let place = self.place(number, tag.as_ref());
                self.end_tags(number, place, at);
            }
            MarkOp::Clear { tag } => {
                let place = if tag.is_some() { self.place(number, tag.as_ref()) } else { 0 };
                let from = self.active(at);
                for tag in self.stacks[&number].tags.iter().skip(place) {
                    for span in self.open.iter_mut().filter(|span| span.key == tag.span) {
                        span.restart(at, from);
                    }
                }
            }
            MarkOp::Step { step, count, began, first_of_epoch } => {
                self.step(number, at, (step, count), began, first_of_epoch)
            }
            MarkOp::Log { step, values } => self.log(number, at, step, &values),
        }
    }

    /// The innermost tag's path.
    fn path(&self, number: u32) -> Arc<str> {
        let innermost = self.stacks.get(&number).and_then(|stack| stack.tags.last());
        Arc::clone(innermost.map_or(&self.settings.root_tag, |tag| &tag.path))
    }

    /// Where a tag stands in its stack; none named: the innermost one.
    fn place(&self, number: u32, tag: Option<&Arc<str>>) -> usize {
        let tags = &self.stacks[&number].tags;
        match tag {
            Some(name) => tags.iter().position(|tag| tag.name == *name).unwrap_or(tags.len()),
            None => tags.len().saturating_sub(1),
        }
    }

    /// Ends the tags from `place` on, the innermost first.
    fn end_tags(&mut self, number: u32, place: usize, at: Mono) {
        let to = self.active(at);
        self.end_steps_of(number, place, at);
        let Some(stack) = self.stacks.get_mut(&number) else { return };
        let tags: Vec<Tag> = stack.tags.drain(place.min(stack.tags.len())..).rev().collect();
        for tag in tags {
            if let Some(span) = self.take_span(tag.span) {
                self.end_span(span, at, to);
            }
        }
    }

    /// The steps of a tag that ends have their row now: what follows is not theirs. With one step so far it
    /// is not known whether the tag is around several, or that step's own.
    fn end_steps_of(&mut self, number: u32, place: usize, at: Mono) {
        let Some(stack) = self.stacks.get_mut(&number) else { return };
        let ending = stack.tags.get(place..).unwrap_or_default();
        let theirs =
            |steps: &Steps| steps.count > 1 && ending.iter().any(|tag| steps.around.contains(&tag.span));
        if stack.steps.as_ref().is_some_and(theirs)
            && let Some(steps) = stack.steps.take()
        {
            self.end_steps(steps, at);
        }
    }

    /// Ends what is open in a stack: the steps without a row yet, then the tags.
    fn close_stack(&mut self, number: u32) {
        let at = self.horizon;
        let Some(stack) = self.stacks.get_mut(&number) else { return };
        stack.stepped = None;
        self.ended.extend(stack.lone.take());
        if let Some(steps) = stack.steps.take() {
            self.end_steps(steps, at);
        }
        self.end_tags(number, 0, at);
    }

    fn begin_steps(&mut self, number: u32, at: Mono) {
        let Some(stack) = self.stacks.get(&number) else { return };
        let span = self.open_span(RowKind::Step, self.path(number), stack.rank, at);
        self.set_steps(number, span);
    }

    /// The first step was marked at its end only: it began no later than the tag around it; without a tag
    /// nothing is known of the time before the mark.
    fn begin_steps_late(&mut self, number: u32, at: Mono) {
        let Some(stack) = self.stacks.get(&number) else { return };
        let around = stack.tags.last().map(|tag| tag.span);
        let around = around.and_then(|key| self.open.iter().find(|span| span.key == key)).cloned();
        let inside = around.is_some();
        let key = match around {
            Some(mut span) => {
                span.key = self.span_key();
                span.kind = RowKind::Step;
                self.open.push(span);
                self.next_span
            }
            None => self.open_span(RowKind::Step, self.path(number), stack.rank, at),
        };
        self.set_steps(number, key);
        // What was logged for this step just before its mark belongs into its row.
        let span = self.open.last_mut().filter(|span| span.key == key);
        let stack = self.stacks.get_mut(&number);
        if let (Some(span), Some(stack)) = (span, stack) {
            match stack.lone.take() {
                Some(lone) if !inside => span.points.merge(&lone.points),
                // The tag around it has them already.
                Some(lone) if lone.start >= span.start => {}
                lone => stack.lone = lone,
            }
        }
    }

    fn set_steps(&mut self, number: u32, span: u64) {
        if let Some(stack) = self.stacks.get_mut(&number) {
            stack.steps = Some(Steps {
                span,
                count: 0,
                last: 0,
                around: Vec::new(),
                path: Arc::clone(&self.settings.root_tag),
                intra: Points::default(),
                inter: Points::default(),
            });
        }
    }

    /// The row of some steps; none, if none was made.
    fn end_steps(&mut self, steps: Steps, at: Mono) {
        let to = self.active(at);
        let Some(mut span) = self.take_span(steps.span) else { return };
        if steps.count == 0 {
            return;
        }
        span.tag = steps.path;
        span.step = Some(steps.last);
        span.extra.extend(steps.intra.row(&self.intra));
        span.extra.extend(steps.inter.row(&self.inter));
        self.end_span(span, at, to);
    }

    fn step(
        &mut self,
        number: u32,
        at: Mono,
        (step, count): (i64, u32),
        began: Option<Mono>,
        first_of_epoch: bool,
    ) {
        if self.stacks[&number].steps.is_none() {
            self.begin_steps_late(number, at);
        }
        let lone = self.stacks.get_mut(&number).and_then(|stack| stack.lone.take());
        self.ended.extend(lone);
        let began = began.map(|began| began.min(at));
        let intra = began.map(|began| self.active_between(began, at));
        let before = self.stacks[&number].stepped.filter(|_| !first_of_epoch);
        let inter = before.map(|before| self.active_between(before, began.unwrap_or(at).max(before)));
        let every = self.settings.every_n_steps.max(1);
        let Some(stack) = self.stacks.get_mut(&number) else { return };
        stack.stepped = Some(at);
        let Some(steps) = &mut stack.steps else { return };
        let here = stack.tags.iter().map(|tag| tag.span);
        if steps.count == 0 {
            steps.around = here.collect();
        } else {
            let shared = steps.around.iter().zip(here).take_while(|(a, b)| **a == *b).count();
            steps.around.truncate(shared);
        }
        let innermost = steps.around.len().checked_sub(1).and_then(|place| stack.tags.get(place));
        steps.path = Arc::clone(innermost.map_or(&self.settings.root_tag, |tag| &tag.path));
        steps.count = steps.count.saturating_add(count);
        steps.last = step;
        if let Some(intra) = intra {
            steps.intra.push_times(intra.as_secs_f64() * 1e3 / f64::from(count), count);
        }
        if let Some(inter) = inter {
            steps.inter.push(inter.as_secs_f64() * 1e3);
        }
        if steps.count >= every
            && let Some(steps) = stack.steps.take()
        {
            self.end_steps(steps, at);
            self.begin_steps(number, at);
        }
    }

    fn log(&mut self, number: u32, at: Mono, step: Option<i64>, values: &[(Arc<str>, f64)]) {
        let path = self.path(number);
        let now = self.active(at);
        let key = self.span_key();
        let Some(stack) = self.stacks.get_mut(&number) else { return };
        if let Some(step) = step
            && stack.steps.is_none()
        {
            if stack.lone.as_ref().is_some_and(|lone| lone.step != Some(step)) {
                self.ended.extend(stack.lone.take());
            }
            let lone = stack.lone.get_or_insert_with(|| {
                let mut span = Span::new(key, RowKind::Step, path, stack.rank, at, now);
                span.step = Some(step);
                span.bare = true;
                span
            });
            (lone.end, lone.to) = (at, now);
            for (name, value) in values {
                lone.points.push(self.labels.number(name), *value);
            }
        }
        let mine = |span: &Span| {
            span.kind == RowKind::Window
                || stack.tags.iter().any(|tag| tag.span == span.key)
                || stack.steps.as_ref().is_some_and(|steps| steps.span == span.key)
        };
        for span in self.open.iter_mut().filter(|span| mine(span)) {
            for (name, value) in values {
                span.log(stack.rank, self.labels.number(name), *value);
            }
        }
    }

    /// Gives out the batches that are settled, up to the first that is not.
    fn flush(&mut self, clock: ClockPair, all: bool, out: &mut Vec<WindowBatch>) {
        let now = self.active(self.horizon);
        let mut waiting = self.ended.len();
        while let Some(span) = self.ended.front_mut() {
            let patient = !all && waiting <= MAX_WAITING;
            if patient && span.is_waiting(&self.table, now) {
                return;
            }
            waiting -= 1;
            let Some(mut span) = self.ended.pop_front() else { return };
            let key = (span.kind, Arc::clone(&span.tag), span.rank);
            let ordinal = self.ordinals.entry(key).or_insert(0);
            *ordinal += 1;
            let ordinal = *ordinal;
            let shell = batch_shell(&span, ordinal, clock);
            out.push(WindowBatch { rows: span.rows(&self.table, &self.labels, None), ..shell });
            for (rank, points) in &span.others {
                let rows = self.labels.rows(points).collect();
                out.push(WindowBatch { rank: *rank, rows, ..batch_shell(&span, ordinal, clock) });
            }
            if !span.bare && self.spare.len() < 16 {
                self.spare.push(std::mem::take(&mut span.accs));
            }
        }
    }
}

/// A batch of a span without rows.
fn batch_shell(span: &Span, ordinal: u64, clock: ClockPair) -> WindowBatch {
    WindowBatch {
        kind: span.kind,
        tag: Arc::clone(&span.tag),
        step: span.step,
        rank: span.rank,
        ordinal,
        start: span.start,
        end: span.end,
        time: clock.label(span.end),
        window_s: seconds(span.to.saturating_sub(span.from)),
        rows: Vec::new(),
    }
}

fn seconds(nanos: u64) -> f64 {
    // One division rounds once; `Duration::as_secs_f64` rounds twice.
    nanos as f64 / 1e9
}
