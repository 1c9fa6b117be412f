//! What marks do to the open tags: each tag is a span, and has the steps that are marked in it. Steps are in
//! [`super::steps`], scalars in [`super::scalars`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::model::mark::MarkOp;
use crate::model::time::Mono;
use crate::model::window::RowKind;

use super::super::span::{Epoch, Span, TagOf};
use super::Fold;
use super::steps::{StepEnd, Steps};

/// An open tag.
#[derive(Debug)]
pub(super) struct Tag {
    name: Arc<str>,
    pub(super) of: TagOf,
    pub(super) span: u64,
    began: Mono,
    /// Its time is that of the steps around it, and so are the steps that are marked inside it.
    part_of_steps: bool,
    pub(super) steps: Steps,
}

/// One stack of tags, as far as it was applied.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) rank: Option<i32>,
    pub(super) epoch: Option<i64>,
    pub(super) tags: Vec<Tag>,
    /// The steps that are marked outside of all tags.
    pub(super) outside: Steps,
    /// The last step of each tag when it ended.
    last_steps: HashMap<Arc<str>, i64>,
    /// Scalars that were logged for a step before its end was marked, by its number.
    pub(super) early: BTreeMap<i64, Span>,
    /// Scalars of a step that have rows of their own: its row is gone, or steps are not marked.
    pub(super) apart: Option<Span>,
}

impl Stack {
    pub(super) fn new(rank: Option<i32>) -> Self {
        Stack {
            rank,
            epoch: None,
            tags: Vec::new(),
            outside: Steps::default(),
            last_steps: HashMap::new(),
            early: BTreeMap::new(),
            apart: None,
        }
    }

    /// How deep the tag is whose steps are marked now: 0 is outside of all tags.
    pub(super) fn level(&self) -> usize {
        self.tags.iter().rposition(|tag| !tag.part_of_steps).map_or(0, |place| place + 1)
    }

    /// The steps at a level.
    pub(super) fn steps(&self, level: usize) -> &Steps {
        level.checked_sub(1).and_then(|place| self.tags.get(place)).map_or(&self.outside, |tag| &tag.steps)
    }

    /// The steps at a level.
    pub(super) fn steps_mut(&mut self, level: usize) -> &mut Steps {
        match level.checked_sub(1).and_then(|place| self.tags.get_mut(place)) {
            Some(tag) => &mut tag.steps,
            None => &mut self.outside,
        }
    }

    /// Where a tag stands; none named: the innermost one.
    fn place(&self, tag: Option<&Arc<str>>) -> usize {
        match tag {
            Some(name) => self.tags.iter().position(|tag| tag.name == *name).unwrap_or(self.tags.len()),
            None => self.tags.len().saturating_sub(1),
        }
    }
}

impl Fold {
    pub(super) fn apply_mark(&mut self, number: u32, at: Mono, op: MarkOp) {
        if let MarkOp::Open { rank } = op {
            self.stacks.insert(number, Stack::new(rank));
            return;
        }
        // The fold's methods need the whole of it.
        let Some(mut stack) = self.stacks.remove(&number) else { return };
        let mut keep = true;
        match op {
            MarkOp::Open { .. } => {}
            MarkOp::Close => {
                self.close_stack(&mut stack, at);
                // The run's own stack is there to the end.
                keep = number == 0;
            }
            MarkOp::Begin { tag } => self.begin_tag(&mut stack, at, tag),
            MarkOp::End { tag } => {
                let place = stack.place(tag.as_ref());
                self.end_tags(&mut stack, place, at);
            }
            MarkOp::Clear { tag } => {
                let place = if tag.is_some() { stack.place(tag.as_ref()) } else { 0 };
                let from = self.active(at);
                for tag in stack.tags.iter().skip(place) {
                    if let Some(span) = self.span_mut(tag.span) {
                        span.clear(at, from);
                    }
                }
            }
            MarkOp::Epoch { epoch } => self.begin_epoch(&mut stack, at, epoch),
            MarkOp::StepBegin { step } => self.begin_step(&mut stack, at, step),
            MarkOp::Step { step, count, began, samples } => {
                self.end_step(&mut stack, StepEnd { step, count: count.max(1), began, at, samples });
            }
            MarkOp::Log { step, values } => self.log(&mut stack, at, step, &values),
        }
        if keep {
            self.stacks.insert(number, stack);
        }
    }

    /// What rows of a level are of: its tag, or the root tag.
    pub(super) fn tag_of(&self, stack: &Stack, level: usize) -> TagOf {
        match level.checked_sub(1).and_then(|place| stack.tags.get(place)) {
            Some(tag) => tag.of.clone(),
            None => TagOf { path: Arc::clone(&self.settings.root_tag), occurrence: 1 },
        }
    }

    fn begin_tag(&mut self, stack: &mut Stack, at: Mono, name: Arc<str>) {
        let part_of_steps = self.begin_tag_beside_steps(stack, at, &name);
        let path: Arc<str> = Arc::from(format!("{}/{name}", self.tag_of(stack, stack.tags.len()).path));
        let occurrence = self.occurrences.entry((Arc::clone(&path), stack.rank)).or_default();
        *occurrence = occurrence.saturating_add(1);
        let of = TagOf { path, occurrence: *occurrence };
        let piece = self.piece(at, self.active(at));
        let span = self.open_span(RowKind::Tag, of.clone(), stack.rank, piece);
        if let Some(span) = self.span_mut(span) {
            span.epoch = Epoch::new(stack.epoch);
        }
        let steps = Steps::after(stack.last_steps.get(&of.path).copied());
        stack.tags.push(Tag { name, of, span, began: at, part_of_steps, steps });
    }

    /// Ends the tags from `place` on, the innermost first.
    pub(super) fn end_tags(&mut self, stack: &mut Stack, place: usize, at: Mono) {
        let to = self.active(at);
        while stack.tags.len() > place
            && let Some(tag) = stack.tags.pop()
        {
            if !tag.part_of_steps {
                let length = self.active_between(tag.began, at);
                let goes_on = stack.level() <= place;
                if let Some(last) = tag.steps.last {
                    stack.last_steps.insert(tag.of.path, last);
                }
                self.end_tag_beside_steps(stack, tag.steps, &tag.name, at, length, goes_on);
            }
            if let Some(span) = self.take_span(tag.span) {
                self.end_span(span, at, to);
            }
        }
    }

    /// Ends everything that is open in a stack.
    pub(super) fn close_stack(&mut self, stack: &mut Stack, at: Mono) {
        self.end_tags(stack, 0, at);
        self.end_steps(std::mem::take(&mut stack.outside));
        self.ended.extend(stack.apart.take());
        self.ended.extend(std::mem::take(&mut stack.early).into_values());
    }

    /// An epoch begins: steps from here on have other rows, and their time is counted from here.
    fn begin_epoch(&mut self, stack: &mut Stack, at: Mono, epoch: Option<i64>) {
        if epoch.is_some() && stack.epoch == epoch {
            return;
        }
        if let Some(epoch) = epoch {
            (stack.epoch, self.epoch) = (Some(epoch), Some(epoch));
            self.spans[0].epoch.begin(epoch);
            for tag in &stack.tags {
                if let Some(span) = self.span_mut(tag.span) {
                    span.epoch.begin(epoch);
                }
            }
        }
        for level in 0..=stack.tags.len() {
            self.begin_epoch_of_steps(stack, level, at);
        }
    }
}
