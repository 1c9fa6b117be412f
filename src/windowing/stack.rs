//! Which tags are open, as seen by whoever marks them: a mark is judged at once, although it is applied
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
struct Front {
    /// Number of the stack inside the fold; never reused, unlike [`StackId`].
    number: u32,
    tags: Vec<OpenTag>,
    last: Mono,
    /// The last step that was marked while no tag was open.
    last_step: Option<i64>,
    stepped: bool,
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
    /// Where the first step of the stack began, when this is its end.
    pub(super) first_step: Option<Mono>,
}

/// All stacks, by the ids that marks use.
#[derive(Debug)]
pub(super) struct Fronts {
    stacks: HashMap<StackId, Front>,
    next: u32,
}

impl Fronts {
    /// The run's own stack is open from the start.
    pub(super) fn new(own: StackId, start: Mono) -> Self {
        let front = Front::new(0, start);
        Fronts { stacks: HashMap::from([(own, front)]), next: 1 }
    }

    pub(super) fn number(&self, stack: StackId) -> Option<u32> {
        self.stacks.get(&stack).map(|front| front.number)
    }

    /// Judges a mark and notes it. Marks of one stack happen in the order in which they come.
    pub(super) fn accept(
        &mut self,
        stack: StackId,
        at: Mono,
        op: &MarkOp,
        own: StackId,
    ) -> Result<Accepted, MarkError> {
        if matches!(op, MarkOp::Open { .. }) {
            if self.stacks.contains_key(&stack) {
                return Err(MarkError::StackOpen(stack));
            }
            let number = self.next;
            self.next = self.next.wrapping_add(1);
            self.stacks.insert(stack, Front::new(number, at));
            return Ok(Accepted { number, at, first_step: None });
        }
        let front = self.stacks.get_mut(&stack).ok_or(MarkError::UnknownStack(stack))?;
        let mut first_step = None;
        match op {
            MarkOp::Open { .. } | MarkOp::Log { .. } => {}
            MarkOp::Begin { tag } => {
                if tag.is_empty() {
                    return Err(MarkError::EmptyTag);
                }
                if front.tags.iter().any(|open| open.name == *tag) {
                    return Err(MarkError::TagOpen(Arc::clone(tag)));
                }
                if front.tags.len() >= TAG_DEPTH {
                    return Err(MarkError::TooDeep);
                }
                front.tags.push(OpenTag { name: Arc::clone(tag), last_step: None });
            }
            MarkOp::End { tag: None } => {
                front.tags.pop().ok_or(MarkError::NoTagOpen)?;
            }
            MarkOp::End { tag: Some(tag) } => {
                let place = front.find(tag)?;
                front.tags.truncate(place);
            }
            MarkOp::Clear { tag: Some(tag) } => {
                front.find(tag)?;
            }
            MarkOp::Clear { tag: None } => {}
            MarkOp::Step { step, began, first_of_epoch, .. } => {
                let last = front.tags.last_mut().map_or(&mut front.last_step, |tag| &mut tag.last_step);
                // An epoch may begin with the number that the last one ended with.
                if last.replace(*step) == Some(*step) && !first_of_epoch {
                    return Err(MarkError::StepRepeated);
                }
                if !front.stepped {
                    first_step = *began;
                }
                front.stepped = true;
            }
            MarkOp::Close => front.tags.clear(),
        }
        front.last = front.last.max(at);
        let accepted = Accepted { number: front.number, at: front.last, first_step };
        if matches!(op, MarkOp::Close) && stack != own {
            self.stacks.remove(&stack);
        }
        Ok(accepted)
    }

    /// Nothing happens later than now.
    pub(super) fn cap(&mut self, now: Mono) {
        for front in self.stacks.values_mut() {
            front.last = front.last.min(now);
        }
    }
}

impl Front {
    fn new(number: u32, at: Mono) -> Self {
        Front { number, tags: Vec::new(), last: at, last_step: None, stepped: false }
    }

    fn find(&self, tag: &Arc<str>) -> Result<usize, MarkError> {
        self.tags
            .iter()
            .position(|open| open.name == *tag)
            .ok_or_else(|| MarkError::TagNotOpen(Arc::clone(tag)))
    }
}
