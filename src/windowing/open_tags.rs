//! Which tags are open after the marks that have come: a mark is accepted or refused at once, although it is applied
//! later. Knows nothing of statistics.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::id::StackId;
use crate::model::limits::{SCALAR_NAMES, TAG_DEPTH};
use crate::model::mark::MarkOp;
use crate::model::time::Mono;

/// Why a mark was refused. A refused mark changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkError {
    /// The stack was never opened, or was closed.
    #[error("no such tag stack: {}", .0.0)]
    UnknownStack(StackId),
    /// The stack is open already.
    #[error("tag stack {} is open already", .0.0)]
    StackOpen(StackId),
    /// A tag of this name is open in the stack; it is left alone.
    #[error("tag {0:?} is open already; a name can be used once among nested tags")]
    TagOpen(Arc<str>),
    /// No such tag is open in the stack.
    #[error("tag {0:?} is not open")]
    TagNotOpen(Arc<str>),
    /// No tag at all is open in the stack.
    #[error("no tag is open")]
    NoTagOpen,
    /// A tag needs a name.
    #[error("a tag needs a name")]
    EmptyTag,
    /// Tags nest deeper than [`TAG_DEPTH`].
    #[error("tags nest deeper than {TAG_DEPTH}")]
    TooDeep,
    /// The step was marked in this tag already.
    #[error(
        "a step was marked twice with the same number, by two callbacks or a callback and the loop; it counts once"
    )]
    StepRepeated,
    /// More than [`SCALAR_NAMES`] different names were logged.
    #[error("more than {SCALAR_NAMES} different names of scalars")]
    TooManyNames,
}

/// The open tags of one stack.
#[derive(Debug)]
struct Stack {
    /// Number of the stack inside the fold; never reused, unlike [`StackId`].
    number: u32,
    tags: Vec<OpenTag>,
    last: Mono,
    /// The last step that was marked while no tag was open.
    last_step: Option<i64>,
    /// A step's begin was marked, and its end was not.
    in_step: bool,
}

/// An open tag.
#[derive(Debug)]
struct OpenTag {
    name: Arc<str>,
    /// The last step that was marked while this was the innermost tag.
    last_step: Option<i64>,
}

/// A mark that was accepted.
pub(super) struct Accepted {
    pub(super) number: u32,
    pub(super) at: Mono,
    /// When a step began whose end this is, and whose begin was not marked by itself.
    pub(super) step_began: Option<Mono>,
}

/// All stacks, by the ids that marks use.
#[derive(Debug)]
pub(super) struct OpenTags {
    stacks: HashMap<StackId, Stack>,
    next: u32,
}

impl OpenTags {
    /// The run's own stack is open from the start.
    pub(super) fn new(own: StackId, start: Mono) -> Self {
        OpenTags { stacks: HashMap::from([(own, Stack::new(0, start))]), next: 1 }
    }

    pub(super) fn number(&self, stack: StackId) -> Option<u32> {
        self.stacks.get(&stack).map(|stack| stack.number)
    }

    /// Accepts a mark, or refuses it. Marks of one stack happen in the order in which they come.
    pub(super) fn accept(
        &mut self,
        id: StackId,
        at: Mono,
        op: &MarkOp,
        own: StackId,
    ) -> Result<Accepted, MarkError> {
        if matches!(op, MarkOp::Open { .. }) {
            if self.stacks.contains_key(&id) {
                return Err(MarkError::StackOpen(id));
            }
            let number = self.next;
            self.next = self.next.wrapping_add(1);
            self.stacks.insert(id, Stack::new(number, at));
            return Ok(Accepted { number, at, step_began: None });
        }
        let stack = self.stacks.get_mut(&id).ok_or(MarkError::UnknownStack(id))?;
        let step_began = stack.note(op)?;
        stack.last = stack.last.max(at);
        let accepted = Accepted { number: stack.number, at: stack.last, step_began };
        if matches!(op, MarkOp::Close) && id != own {
            self.stacks.remove(&id);
        }
        Ok(accepted)
    }

    /// Nothing happens later than now.
    pub(super) fn cap(&mut self, now: Mono) {
        for stack in self.stacks.values_mut() {
            stack.last = stack.last.min(now);
        }
    }
}

impl Stack {
    fn new(number: u32, at: Mono) -> Self {
        Stack { number, tags: Vec::new(), last: at, last_step: None, in_step: false }
    }

    /// Follows a mark; gives the start of the step that it ends, if that was not marked by itself.
    fn note(&mut self, op: &MarkOp) -> Result<Option<Mono>, MarkError> {
        match op {
            MarkOp::Open { .. } | MarkOp::Log { .. } | MarkOp::Clear { tag: None } => {}
            MarkOp::Begin { tag } => {
                if tag.is_empty() {
                    return Err(MarkError::EmptyTag);
                }
                if self.tags.iter().any(|open| open.name == *tag) {
                    return Err(MarkError::TagOpen(Arc::clone(tag)));
                }
                if self.tags.len() >= TAG_DEPTH {
                    return Err(MarkError::TooDeep);
                }
                self.tags.push(OpenTag { name: Arc::clone(tag), last_step: None });
            }
            MarkOp::End { tag: None } => {
                self.tags.pop().ok_or(MarkError::NoTagOpen)?;
            }
            MarkOp::End { tag: Some(tag) } => {
                let place = self.find(tag)?;
                self.tags.truncate(place);
            }
            MarkOp::Clear { tag: Some(tag) } => {
                self.find(tag)?;
            }
            MarkOp::Epoch { .. } => {
                // An epoch may begin with the number that the last one ended with.
                self.last_step = None;
                self.tags.iter_mut().for_each(|tag| tag.last_step = None);
            }
            MarkOp::StepBegin { step } => {
                if step.is_some() && *self.last_step() == *step {
                    return Err(MarkError::StepRepeated);
                }
                self.in_step = true;
            }
            MarkOp::Step { step, began, .. } => {
                if self.last_step().replace(*step) == Some(*step) {
                    return Err(MarkError::StepRepeated);
                }
                if !std::mem::take(&mut self.in_step) {
                    return Ok(*began);
                }
            }
            MarkOp::Close => self.tags.clear(),
        }
        Ok(None)
    }

    /// The last step that was marked in the innermost tag.
    fn last_step(&mut self) -> &mut Option<i64> {
        self.tags.last_mut().map_or(&mut self.last_step, |tag| &mut tag.last_step)
    }

    fn find(&self, tag: &Arc<str>) -> Result<usize, MarkError> {
        self.tags
            .iter()
            .position(|open| open.name == *tag)
            .ok_or_else(|| MarkError::TagNotOpen(Arc::clone(tag)))
    }
}
