//! Steps: which time belongs to which row, and when a row is complete.
//!
//! A row covers the time from the start of its first step to the end of its last, without tags beside the steps
//! (evaluation, checkpoint). A tag that opens between the same two marks in every step, or inside a step, is part of
//! the steps. A complete row waits for scalars of its steps until the next step has ended.

use std::sync::Arc;
use std::time::Duration;

use crate::model::time::Mono;
use crate::model::window::RowKind;

use super::super::durations::{Durations, StepTimes};
use super::super::points::PointTable;
use super::super::span::{Epoch, Span};
use super::Fold;
use super::marks::Stack;

/// Names of tags that are remembered between two steps.
const NAMES: usize = 64;

/// The end of a step, or of several that end together.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepEnd {
    /// Number of the last one.
    pub(super) step: i64,
    pub(super) count: u32,
    pub(super) began: Option<Mono>,
    pub(super) at: Mono,
    /// Training samples in all of them.
    pub(super) samples: Option<u64>,
}

/// The row that some steps have.
#[derive(Debug)]
pub(super) struct StepRow {
    pub(super) span: u64,
    /// Steps so far.
    pub(super) count: u32,
    /// The last step of the row before.
    after: Option<i64>,
    /// The last step so far.
    pub(super) last: i64,
    durations: Durations,
}

impl StepRow {
    /// Whether a step is one of this row's so far.
    pub(super) fn covers(&self, step: i64) -> bool {
        self.count > 0 && step <= self.last && self.after.is_none_or(|after| after < step)
    }
}

/// The steps that are marked in one opening of a tag.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// The row of the next steps. Without a step so far its time may have begun too early.
    pub(super) row: Option<StepRow>,
    /// The row before, which is complete and waits for scalars.
    pub(super) due: Option<StepRow>,
    /// The step that has begun and not ended, with its number if that is known.
    pub(super) running: Option<Option<i64>>,
    /// The last step; before the first one, that of the opening before.
    pub(super) last: Option<i64>,
    /// Both ends of the last step were marked.
    pub(super) timed: bool,
    /// End of the last step; none in a new epoch.
    pub(super) ended: Option<Mono>,
    /// Time of tags beside the steps since then.
    other_tags: Duration,
    /// Marks so far, and the only one of them.
    marks: u32,
    only: Option<StepEnd>,
    /// Scalars without a step, from before the first row.
    pub(super) unplaced: PointTable,
    /// The tags that were opened since the last step, and between the two before.
    opened: Vec<Arc<str>>,
    opened_before: Vec<Arc<str>>,
}

impl Steps {
    /// No step yet in this opening of the tag; the one before ended with this step.
    pub(super) fn after(last: Option<i64>) -> Self {
        Steps { last, ..Steps::default() }
    }

    /// Whether any step was marked, or will be as in the opening before.
    pub(super) fn any(&self) -> bool {
        self.last.is_some() || self.running.is_some()
    }
}

impl Fold {
    pub(super) fn begin_step(&mut self, stack: &mut Stack, at: Mono, step: Option<i64>) {
        let level = stack.level();
        // A callback and the loop may both mark the step.
        if step.is_some() && stack.steps(level).running == Some(step) {
            return;
        }
        if let Some(step) = step {
            self.end_row_before(stack, level, step, at);
        }
        let steps = stack.steps_mut(level);
        steps.running = Some(step);
        steps.unplaced.clear();
        if steps.row.as_ref().is_none_or(|row| row.count == 0) {
            self.begin_row(stack, level, at);
        }
    }

    /// Ends the row before a step with a smaller number than the last one: the numbers begin again, as in each pass over
    /// the data, and a row is of one pass.
    fn end_row_before(&mut self, stack: &mut Stack, level: usize, step: i64, at: Mono) {
        let steps = stack.steps(level);
        let has_steps = steps.row.as_ref().is_some_and(|row| row.count > 0);
        if has_steps && steps.last.is_some_and(|last| step < last) {
            self.begin_epoch_of_steps(stack, level, at);
        }
    }

    /// A row begins here, with the scalars of one that has no step yet.
    fn begin_row(&mut self, stack: &mut Stack, level: usize, at: Mono) {
        let (from, epoch) = (self.active(at), Epoch::new(stack.epoch));
        if let Some(row) = &stack.steps(level).row {
            if let Some(span) = self.span_mut(row.span) {
                span.restart(at, from);
                span.epoch = epoch;
            }
            return;
        }
        let (tag, piece) = (self.tag_of(stack, level), self.piece(at, from));
        let span = self.open_span(RowKind::Step, tag, stack.rank, piece);
        if let Some(span) = self.span_mut(span) {
            span.epoch = epoch;
        }
        let steps = stack.steps_mut(level);
        let (after, durations) = (steps.last, Durations::default());
        steps.row = Some(StepRow { span, count: 0, after, last: 0, durations });
    }

    /// The begin of the first step was not marked: it began no later than its tag. Nothing is known of the time before
    /// the first mark outside of all tags.
    fn begin_row_with_tag(&mut self, stack: &mut Stack, level: usize, at: Mono) {
        self.begin_row(stack, level, at);
        let tag = level.checked_sub(1).and_then(|place| stack.tags.get(place));
        let tag = tag.and_then(|tag| self.spans.iter().find(|span| span.key == tag.span));
        let piece = tag.map(Span::copy_of_open);
        let steps = stack.steps_mut(level);
        let unplaced = std::mem::take(&mut steps.unplaced);
        if let Some(row) = &steps.row
            && let Some(span) = self.span_mut(row.span)
        {
            span.points.merge(&unplaced);
            piece.into_iter().for_each(|piece| span.begin_with(piece));
        }
    }

    pub(super) fn end_step(&mut self, stack: &mut Stack, end: StepEnd) {
        let level = stack.level();
        if stack.steps(level).running.is_none() {
            self.end_row_before(stack, level, end.step, end.at);
        }
        if stack.steps(level).row.is_none() {
            self.begin_row_with_tag(stack, level, end.at);
        }
        let to = self.active(end.at);
        if let Some(row) = &stack.steps(level).row
            && let Some(span) = self.span_mut(row.span)
        {
            span.cut(end.at, to);
        }
        self.add_step(stack, level, &end);
        self.ended.extend(stack.apart.take());
    }

    /// Counts a step in the row of a level, whose span has its time already.
    fn add_step(&mut self, stack: &mut Stack, level: usize, end: &StepEnd) {
        let due = stack.steps_mut(level).due.take();
        self.release(due);
        let steps = stack.steps(level);
        let began = end.began.map(|began| began.min(end.at));
        let between = steps.ended.map(|before| {
            let until = began.unwrap_or(end.at).max(before);
            self.active_between(before, until).saturating_sub(steps.other_tags)
        });
        let inside = began.map(|began| self.active_between(began, end.at));
        let times = StepTimes { steps: end.count, inside, between, samples: end.samples };
        let steps = stack.steps_mut(level);
        if let Some(row) = steps.row.as_mut().filter(|row| row.count == 0)
            && row.after.is_none_or(|after| end.step <= after)
        {
            // The first step, or the numbers begin again.
            row.after = Some(end.step.saturating_sub(i64::from(end.count)));
        }
        (steps.last, steps.ended, steps.other_tags) = (Some(end.step), Some(end.at), Duration::ZERO);
        (steps.running, steps.timed) = (None, began.is_some());
        steps.only = (steps.marks == 0).then_some(*end);
        steps.marks = steps.marks.saturating_add(1);
        steps.opened_before = std::mem::take(&mut steps.opened);
        let Some(row) = &mut steps.row else { return };
        row.durations.push(&times);
        row.count = row.count.saturating_add(end.count);
        row.last = end.step;
        let full = row.count >= self.settings.every_n_steps.max(1);
        self.take_early_scalars(stack, level);
        if full {
            self.complete_row(stack, level, end.at);
        }
    }

    /// The row of the steps so far is complete, and the next one begins.
    fn complete_row(&mut self, stack: &mut Stack, level: usize, at: Mono) {
        if let Some(row) = stack.steps_mut(level).row.take() {
            if let Some(place) = self.spans.iter().position(|span| span.key == row.span) {
                self.spans[place].end_at_cut(&self.table);
            }
            let before = stack.steps_mut(level).due.replace(row);
            self.release(before);
        }
        self.begin_row(stack, level, at);
    }

    /// Gives out a row that is complete.
    fn release(&mut self, row: Option<StepRow>) {
        let Some(mut row) = row else { return };
        let Some(mut span) = self.take_span(row.span) else { return };
        span.step = Some(row.last);
        span.extra = row.durations.rows(&self.step_series);
        self.ended.push_back(span);
    }

    /// The tag of these steps ends: they have their rows now.
    pub(super) fn end_steps(&mut self, steps: Steps) {
        self.release(steps.due);
        let Some(row) = steps.row else { return };
        let place = self.spans.iter().position(|span| span.key == row.span);
        if place.is_some_and(|place| self.spans[place].end_at_cut(&self.table)) {
            self.release(Some(row));
        } else {
            self.discard(&row);
        }
    }

    fn discard(&mut self, row: &StepRow) {
        if let Some(span) = self.take_span(row.span) {
            self.recycle(span);
        }
    }

    /// A tag begins: whether it is part of the steps around it. Otherwise their row pauses.
    pub(super) fn begin_tag_beside_steps(&mut self, stack: &mut Stack, at: Mono, name: &Arc<str>) -> bool {
        let level = stack.level();
        let steps = stack.steps_mut(level);
        if steps.running.is_some() {
            return true;
        }
        let part_of_steps = steps.opened_before.contains(name);
        if steps.opened.len() < NAMES && !steps.opened.contains(name) {
            steps.opened.push(Arc::clone(name));
        }
        if part_of_steps {
            return true;
        }
        let Some(row) = &steps.row else { return false };
        if steps.marks > 0 {
            let to = self.active(at);
            if let Some(place) = self.spans.iter().position(|span| span.key == row.span) {
                self.spans[place].pause(&self.table, at, to);
            }
        } else if let Some(row) = steps.row.take() {
            // A first step whose begin is not marked is counted from the end of this tag.
            self.discard(&row);
        }
        false
    }

    /// A tag beside the steps of a stack's level ends, after this long. Its own steps have their rows, except for a
    /// single one: the tag was that step's own, and it counts among the steps around.
    pub(super) fn end_tag_beside_steps(
        &mut self,
        stack: &mut Stack,
        mut inner: Steps,
        name: &Arc<str>,
        at: Mono,
        length: Duration,
        goes_on: bool,
    ) {
        let level = stack.level();
        if inner.marks > 0 {
            stack.steps_mut(level).opened.retain(|opened| opened != name);
        }
        let around = stack.steps(level);
        let follows = |only: &StepEnd| around.marks == 0 || around.last.is_none_or(|last| last < only.step);
        let only = inner.only.filter(|only| inner.marks == 1 && follows(only));
        match only {
            Some(only) => {
                let row = inner.due.take().or_else(|| inner.row.take().filter(|row| row.count > 0));
                self.adopt(stack, level, row, &only, at);
            }
            None => stack.steps_mut(level).other_tags += length,
        }
        self.end_steps(inner);
        if !goes_on {
            return;
        }
        let steps = stack.steps(level);
        match &steps.row {
            Some(row) => {
                let (piece, now) = (self.piece(at, self.active(at)), self.active(self.horizon));
                if let Some(place) = self.spans.iter().position(|span| span.key == row.span)
                    && self.spans[place].is_paused()
                {
                    self.spans[place].resume(piece, &self.table, now);
                }
            }
            // Nothing is known of the time before the first mark outside of all tags.
            None if level > 0 || steps.marks > 0 => self.begin_row(stack, level, at),
            None => {}
        }
    }

    /// Counts the only step of an inner tag in the row of the steps around it.
    fn adopt(&mut self, stack: &mut Stack, level: usize, row: Option<StepRow>, end: &StepEnd, at: Mono) {
        let Some(mut span) = row.and_then(|row| self.take_span(row.span)) else { return };
        let to = self.active(at);
        span.pause(&self.table, at, to);
        span.keep_end(end.at, self.active(end.at));
        if stack.steps(level).row.is_none() {
            self.begin_row(stack, level, at);
        }
        let now = self.active(self.horizon);
        if let Some(row) = &stack.steps(level).row
            && let Some(place) = self.spans.iter().position(|span| span.key == row.span)
        {
            self.spans[place].append(span, &self.table, now);
        }
        self.add_step(stack, level, end);
    }

    /// A new epoch for the steps of a level: those so far have their row, and the time since them is no step's.
    pub(super) fn begin_epoch_of_steps(&mut self, stack: &mut Stack, level: usize, at: Mono) {
        let current = stack.level() == level;
        let steps = stack.steps_mut(level);
        (steps.ended, steps.other_tags) = (None, Duration::ZERO);
        if steps.row.as_ref().is_some_and(|row| row.count > 0) {
            self.complete_row(stack, level, at);
        } else if steps.row.is_some() {
            self.begin_row(stack, level, at);
        }
        if !current && let Some(row) = stack.steps_mut(level).row.take() {
            // A tag beside the steps is open: they go on at its end.
            self.discard(&row);
        }
    }
}
