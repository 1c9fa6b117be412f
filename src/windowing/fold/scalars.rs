//! Scalars of the job's own: which rows each of them stands in.

use std::sync::Arc;

use crate::model::time::Mono;
use crate::model::window::RowKind;

use super::super::span::{Epoch, Span};
use super::Fold;
use super::marks::Stack;
use super::steps::{StepRow, Steps};

/// Steps for which scalars may wait for the step's end.
const EARLY_STEPS: usize = 64;

impl Fold {
    /// A scalar stands in the periodic window and in every open tag of its stack, by the time at which it was logged,
    /// and in one row of steps: that of its step, else that of the time.
    pub(super) fn log(&mut self, stack: &mut Stack, at: Mono, step: Option<i64>, values: &[(Arc<str>, f64)]) {
        let row = match step {
            Some(step) => row_of_step(stack, step),
            None => row_of_now(stack.steps(stack.level())),
        };
        let row = row.map(|row| row.span);
        let mine = |span: &Span| {
            span.kind == RowKind::Window
                || row == Some(span.key)
                || stack.tags.iter().any(|tag| tag.span == span.key)
        };
        for span in self.spans.iter_mut().filter(|span| mine(span)) {
            for (name, value) in values {
                span.log(stack.rank, self.labels.number(name), *value);
            }
        }
        match step {
            _ if row.is_some() => {}
            Some(step) => self.log_without_row(stack, at, step, values),
            None => {
                let unplaced = &mut stack.steps_mut(stack.level()).unplaced;
                for (name, value) in values {
                    unplaced.push(self.labels.number(name), *value);
                }
            }
        }
    }

    /// Scalars of a step that has no row yet, or has it no more.
    fn log_without_row(&mut self, stack: &mut Stack, at: Mono, step: i64, values: &[(Arc<str>, f64)]) {
        if stack.apart.as_ref().is_some_and(|apart| apart.step != Some(step)) {
            self.ended.extend(stack.apart.take());
        }
        let is_early = awaits(stack, step);
        let (now, key) = (self.active(at), self.span_key());
        let tag = self.tag_of(stack, stack.tags.len());
        let (rank, epoch) = (stack.rank, Epoch::new(stack.epoch));
        let new = || {
            let mut span = Span::of_scalars(key, tag, rank, step, (at, now));
            span.epoch = epoch;
            span
        };
        let span = if is_early {
            // It may have been unknown until now that steps are marked.
            let apart = stack.apart.take();
            stack.early.entry(step).or_insert_with(|| apart.unwrap_or_else(new))
        } else {
            stack.apart.get_or_insert_with(new)
        };
        span.extend(at, now);
        for (name, value) in values {
            span.log(rank, self.labels.number(name), *value);
        }
        if stack.early.len() > EARLY_STEPS {
            self.ended.extend(stack.early.pop_first().map(|(_, span)| span));
        }
    }

    /// Steps of a level have ended: what was logged for them before goes into their row.
    pub(super) fn take_early_scalars(&mut self, stack: &mut Stack, level: usize) {
        let Some(row) = &stack.steps(level).row else { return };
        let early: Vec<i64> = stack.early.keys().copied().filter(|step| row.covers(*step)).collect();
        let apart = stack.apart.as_ref().and_then(|apart| apart.step).is_some_and(|step| row.covers(step));
        let Some(span) = self.spans.iter_mut().find(|span| span.key == row.span) else { return };
        let last = row.last;
        let apart = if apart { stack.apart.take() } else { None };
        for logged in apart.into_iter().chain(early.iter().filter_map(|step| stack.early.remove(step))) {
            span.points.merge(&logged.points);
        }
        // Of steps before this row: they have none any more.
        while let Some(late) = stack.early.first_entry().filter(|late| *late.key() <= last) {
            self.ended.push_back(late.remove());
        }
    }
}

/// The row that a step stands in, in the innermost tag that has one.
fn row_of_step(stack: &Stack, step: i64) -> Option<&StepRow> {
    let levels = (0..=stack.tags.len()).rev().map(|level| stack.steps(level));
    let mut rows = levels.flat_map(|steps| steps.row.iter().chain(&steps.due));
    rows.find(|row| row.covers(step))
}

/// The row that the present time belongs to.
fn row_of_now(steps: &Steps) -> Option<&StepRow> {
    let between = steps.running.is_none() && steps.timed;
    let row = steps.row.as_ref().filter(|row| row.count > 0 || !between);
    row.or(if between { steps.due.as_ref() } else { None })
}

/// Whether the end of this step is still to come, as far as is known.
fn awaits(stack: &Stack, step: i64) -> bool {
    let levels = (0..=stack.tags.len()).rev().map(|level| stack.steps(level));
    let marked = levels.into_iter().find(|steps| steps.any());
    marked.is_some_and(|steps| {
        // The numbers may begin again with an epoch.
        steps.running == Some(Some(step))
            || steps.ended.is_none()
            || steps.last.is_none_or(|last| last < step)
    })
}
