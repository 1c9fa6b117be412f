//! The fold itself: takes samples and marks in, in any order within the slack, and gives batches out. It keeps time
//! and the spans; what marks mean is in [`marks`]. Never reads a clock: every instant is an argument.

mod marks;
mod scalars;
mod steps;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::model::id::{SeriesId, StackId};
use crate::model::limits::SCALAR_NAMES;
use crate::model::mark::{Mark, MarkOp};
use crate::model::reading::Reading;
use crate::model::sample::Sample;
use crate::model::series::SeriesInfo;
use crate::model::time::{ClockPair, Mono};
use crate::model::window::{Row, RowKind, WindowBatch};

use super::accumulator::{Acc, Series};
use super::durations::StepSeries;

use super::open_tags::{MarkError, OpenTags};
use super::piece::{Piece, Table};
use super::points::Labels;
use super::queue::{Event, Queue, What};
use super::span::{Epoch, Span, TagOf};

use marks::Stack;

/// Suspensions that are remembered for the times of steps that began before them.
const SUSPENSIONS: usize = 64;

/// Batches that wait for their last totals; beyond this many, the oldest go without.
const MAX_WAITING: usize = 512;

/// More windows than this without a sample or a mark get one row set: the process, or the machine, was frozen.
const FROZEN_WINDOWS: u64 = 60;

/// Buffers of statistics that are kept for the next spans.
const SPARE: usize = 16;

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

/// Samples and marks in, batches of rows out. The rules are those of [`windowing`](crate::windowing).
#[derive(Debug)]
pub struct Fold {
    settings: FoldSettings,
    start: Mono,
    window_ns: u64,
    queue: Queue,
    open_tags: OpenTags,
    /// Everything before this instant was applied.
    horizon: Mono,
    /// Suspended nanoseconds so far, the present suspension not counted.
    offset: u64,
    suspended: Option<Mono>,
    suspensions: VecDeque<(Mono, Mono)>,
    table: Table,
    freed: Vec<SeriesId>,
    labels: Labels,
    /// Spans that are not given out yet: the periodic window, which is always the first, open tags, and rows of steps.
    spans: Vec<Span>,
    /// Spans that are over and go out once they are settled.
    ended: VecDeque<Span>,
    stacks: HashMap<u32, Stack>,
    /// The epoch that any client said last.
    epoch: Option<i64>,
    /// How often each tag was opened.
    occurrences: HashMap<(Arc<str>, Option<i32>), u32>,
    ordinals: HashMap<(RowKind, Arc<str>, Option<i32>), u64>,
    next_span: u64,
    spare: Vec<Vec<Acc>>,
    step_series: StepSeries,
}

impl Fold {
    /// The run's own stack, open from start to finish. Its marks carry the run's rank.
    pub const OWN: StackId = StackId(0);

    /// A fold whose first window begins at `start`.
    pub fn new(settings: FoldSettings, start: Mono) -> Fold {
        let window_ns = u64::try_from(settings.window.as_nanos()).unwrap_or(u64::MAX).max(1_000_000);
        let mut fold = Fold {
            start,
            window_ns,
            queue: Queue::default(),
            open_tags: OpenTags::new(Self::OWN, start),
            horizon: start,
            offset: 0,
            suspended: None,
            suspensions: VecDeque::new(),
            table: Vec::new(),
            freed: Vec::new(),
            labels: Labels::default(),
            spans: Vec::new(),
            ended: VecDeque::new(),
            stacks: HashMap::from([(0, Stack::new(settings.rank))]),
            epoch: None,
            occurrences: HashMap::new(),
            ordinals: HashMap::new(),
            next_span: 0,
            spare: Vec::new(),
            step_series: StepSeries::new(),
            settings,
        };
        let window = fold.new_window(start, start.0);
        fold.spans.push(window);
        fold
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
        let accepted = self.open_tags.accept(stack, at.max(self.horizon), &op, Self::OWN)?;
        if let MarkOp::Log { values, .. } = &op {
            for (name, _) in values {
                self.labels.number(name);
            }
        }
        if let (Some(began), MarkOp::Step { step, .. }) = (accepted.step_began, &op) {
            let began = began.min(accepted.at).max(self.horizon);
            let begin = MarkOp::StepBegin { step: Some(*step) };
            self.queue.push(began, What::Mark(accepted.number, begin));
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
    /// order of their ends; those of steps as soon as no scalar can come for them. Call it after every sample, or at
    /// least every window.
    pub fn advance(&mut self, clock: ClockPair, out: &mut Vec<WindowBatch>) {
        self.queue.cap(clock.mono);
        self.open_tags.cap(clock.mono);
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
            self.apply_mark(number, now, MarkOp::Close);
        }
        let (to, from) = (self.active(now), self.spans[0].from());
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
        let stack = self.open_tags.number(stack).and_then(|number| self.stacks.get(&number));
        let tag = stack.and_then(|stack| stack.tags.last());
        let span = tag.and_then(|tag| self.spans.iter().find(|span| span.key == tag.span));
        let span = span.unwrap_or(&self.spans[0]);
        let to = self.active(self.horizon);
        Collected {
            tag: Arc::clone(&span.tag.path),
            rank: stack.map_or(self.settings.rank, |stack| stack.rank),
            duration_s: seconds(span.length(to)),
            rows: span.rows(&self.table, &self.labels, to),
        }
    }

    /// The open periodic window as far as it was applied, which is up to the slack before now.
    pub fn current(&self, clock: ClockPair) -> WindowBatch {
        let span = &self.spans[0];
        let to = self.active(self.horizon);
        let key = (RowKind::Window, Arc::clone(&span.tag.path), span.rank);
        let ordinal = self.ordinals.get(&key).copied().unwrap_or(0) + 1;
        let shell = batch_shell(span, ordinal, self.horizon, to, clock);
        WindowBatch { rows: span.rows(&self.table, &self.labels, to), ..shell }
    }

    /// How much is kept: events, spans, spare buffers, names.
    #[cfg(test)]
    pub(super) fn footprint(&self) -> [usize; 7] {
        let accs = self.spans.iter().chain(&self.ended).map(Span::footprint).sum();
        let (spans, ended) = (self.spans.len(), self.ended.len());
        [self.queue.footprint(), accs, spans, ended, self.spare.len(), self.ordinals.len(), self.table.len()]
    }

    /// Active nanoseconds at an instant not before the last change.
    pub(super) fn active(&self, at: Mono) -> u64 {
        let at = self.suspended.map_or(at, |since| since.min(at));
        at.0.saturating_sub(self.offset)
    }

    /// Active time between two instants, both in the past.
    pub(super) fn active_between(&self, from: Mono, to: Mono) -> Duration {
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

    /// Ends the periodic windows that are over at `at`; nothing has happened since the last event. After the one that
    /// is open, many at once are a time in which this process did not run: they are one.
    fn close_windows(&mut self, at: Mono) {
        let mut join = false;
        loop {
            let from = self.spans[0].from();
            let over = self.active(at).saturating_sub(from) / self.window_ns;
            if over == 0 {
                return;
            }
            let windows = if join && over > FROZEN_WINDOWS { over } else { 1 };
            join = true;
            let to = from.saturating_add(windows.saturating_mul(self.window_ns));
            self.close_window(Mono(to.saturating_add(self.offset)), to);
        }
    }

    fn close_window(&mut self, end: Mono, to: u64) {
        let next = self.new_window(end, to);
        let over = std::mem::replace(&mut self.spans[0], next);
        let mut apart: Vec<Span> = self.stacks.values_mut().filter_map(|stack| stack.apart.take()).collect();
        apart.sort_by_key(|span| (span.end(), span.key));
        self.ended.extend(apart);
        self.end_span(over, end, to);
    }

    fn new_window(&mut self, start: Mono, from: u64) -> Span {
        let tag = TagOf { path: Arc::clone(&self.settings.root_tag), occurrence: 1 };
        let piece = self.piece(start, from);
        let mut window = Span::new(self.span_key(), RowKind::Window, tag, self.settings.rank, piece);
        window.epoch = Epoch::new(self.epoch);
        window
    }

    pub(super) fn span_key(&mut self) -> u64 {
        self.next_span += 1;
        self.next_span
    }

    /// A piece that begins here, with the memory of a span that is gone.
    pub(super) fn piece(&mut self, start: Mono, from: u64) -> Piece {
        let mut accs = self.spare.pop().unwrap_or_default();
        accs.clear();
        accs.resize(self.table.len(), Acc::default());
        Piece::new(start, from, accs)
    }

    /// Begins a span and gives its number.
    pub(super) fn open_span(&mut self, kind: RowKind, tag: TagOf, rank: Option<i32>, piece: Piece) -> u64 {
        let key = self.span_key();
        self.spans.push(Span::new(key, kind, tag, rank, piece));
        key
    }

    /// A span that is not given out yet.
    pub(super) fn span_mut(&mut self, key: u64) -> Option<&mut Span> {
        self.spans.iter_mut().find(|span| span.key == key)
    }

    pub(super) fn take_span(&mut self, key: u64) -> Option<Span> {
        let place = self.spans.iter().position(|span| span.key == key)?;
        Some(self.spans.remove(place))
    }

    pub(super) fn end_span(&mut self, mut span: Span, end: Mono, to: u64) {
        span.pause(&self.table, end, to);
        self.ended.push_back(span);
    }

    /// Takes back the memory of a span.
    pub(super) fn recycle(&mut self, span: Span) {
        if self.spare.len() < SPARE {
            self.spare.extend(span.into_memory());
        }
    }

    fn apply(&mut self, at: Mono, what: What) {
        if !matches!(what, What::Mark(..)) {
            self.spans.iter_mut().for_each(|span| span.keep_cut(&self.table));
        }
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
            What::Suspend => self.begin_suspension(at),
            What::Resume => {
                if let Some(since) = self.suspended.take() {
                    self.offset = self.offset.saturating_add(at.0.saturating_sub(since.0));
                    if self.suspensions.len() == SUSPENSIONS {
                        self.suspensions.pop_front();
                    }
                    self.suspensions.push_back((since, at));
                }
            }
            What::Mark(number, op) => self.apply_mark(number, at, op),
        }
    }

    fn begin_suspension(&mut self, at: Mono) {
        if self.suspended.is_some() {
            return;
        }
        self.suspended = Some(at);
        for (index, series) in self.table.iter_mut().enumerate() {
            let Some(series) = series else { continue };
            for span in self.spans.iter_mut().chain(&mut self.ended) {
                span.settle_rate(index, series);
            }
            series.suspend();
        }
    }

    /// One reading, for every span that is open or waits for it.
    fn read(&mut self, id: SeriesId, now: u64, reading: Reading) {
        let index = id.index();
        let Some(series) = self.table.get_mut(index).and_then(Option::as_mut) else { return };
        let value = match reading {
            Reading::Peak(value) => {
                if value.is_finite() {
                    self.spans.iter_mut().for_each(|span| span.peak(index, value));
                }
                return;
            }
            Reading::Value(value) => Some(value).filter(|value| value.is_finite()),
            Reading::Missing => None,
        };
        let step = series.take(now, value);
        for span in self.spans.iter_mut().chain(&mut self.ended) {
            span.feed(index, series, step, now);
        }
        series.read_at(now);
    }

    fn retire(&mut self, id: SeriesId, now: u64) {
        let index = id.index();
        let Some(series) = self.table.get_mut(index).and_then(Option::take) else { return };
        for span in self.spans.iter_mut().chain(&mut self.ended) {
            span.retire(index, &series, now);
        }
        self.freed.push(id);
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
            let Some(span) = self.ended.pop_front() else { return };
            let key = (span.kind, Arc::clone(&span.tag.path), span.rank);
            let ordinal = self.ordinals.entry(key).or_insert(0);
            *ordinal += 1;
            let ordinal = *ordinal;
            let shell = |rank| WindowBatch { rank, ..batch_shell(&span, ordinal, span.end(), now, clock) };
            out.push(WindowBatch { rows: span.rows(&self.table, &self.labels, now), ..shell(span.rank) });
            for (rank, points) in &span.others {
                out.push(WindowBatch { rows: self.labels.rows(points).collect(), ..shell(*rank) });
            }
            self.recycle(span);
        }
    }
}

/// A batch of a span without rows; the part that is open counts up to `as_of`.
fn batch_shell(span: &Span, ordinal: u64, end: Mono, as_of: u64, clock: ClockPair) -> WindowBatch {
    WindowBatch {
        kind: span.kind,
        tag: Arc::clone(&span.tag.path),
        occurrence: span.tag.occurrence,
        epoch: span.epoch.value(),
        step: span.step,
        rank: span.rank,
        ordinal,
        start: span.start(),
        end,
        time: clock.label(end),
        window_s: seconds(span.length(as_of)),
        rows: Vec::new(),
    }
}

fn seconds(nanos: u64) -> f64 {
    // One division rounds once; `Duration::as_secs_f64` rounds twice.
    nanos as f64 / 1e9
}
