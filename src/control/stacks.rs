//! The tag stacks of all clients: which tags are open, and when their last mark was. Makes marks, sends none.
//!
//! A tag that was refused is remembered, so that its end ends nothing else.

use std::collections::HashMap;
use std::sync::Arc;

use super::limits::{Bucket, Limits, Refused};
use crate::model::id::StackId;
use crate::model::limits::{STACK_BURST, STACKS_PER_SECOND};
use crate::model::loss::Loss;
use crate::model::mark::{Mark, MarkOp};
use crate::model::time::Mono;

/// What a client says about itself, as far as its stack depends on it.
pub(super) struct Client<'a> {
    /// Its rank.
    pub(super) rank: Option<i32>,
    /// The name of a stack that several connections share.
    pub(super) named: Option<&'a str>,
}

struct OpenTag {
    tag: Arc<str>,
    /// The client's own number for it.
    span: Option<i64>,
    /// It was marked; otherwise it was refused.
    marked: bool,
}

struct Stack {
    tags: Vec<OpenTag>,
    last: Mono,
}

/// Every stack of the run.
pub(super) struct Stacks {
    started: Mono,
    depth: usize,
    stacks: HashMap<u32, Stack>,
    named: HashMap<(String, Option<i32>), u32>,
    first: u32,
    next: u32,
    new: Bucket,
}

impl Stacks {
    /// No stack yet; the first gets the number `first`.
    pub(super) fn new(limits: &Limits, first: u32, started: Mono) -> Self {
        Self {
            started,
            depth: limits.depth,
            stacks: HashMap::new(),
            named: HashMap::new(),
            first,
            next: first,
            new: Bucket::new(STACKS_PER_SECOND, STACK_BURST, started),
        }
    }

    /// Whether a stack of this name and rank exists or may be made.
    pub(super) fn may_name(&self, name: &str, rank: Option<i32>) -> bool {
        self.named.len() < STACK_BURST as usize || self.named.contains_key(&(name.to_owned(), rank))
    }

    /// The stack of a client that has none yet, with the mark that opens it if it is new.
    ///
    /// It opens at the client's own first instant, not when its first message was read.
    pub(super) fn open(
        &mut self,
        client: &Client<'_>,
        first: Mono,
        now: Mono,
    ) -> Result<(u32, Option<Mark>), Refused> {
        let name = client.named.map(|name| (name.to_owned(), client.rank));
        if let Some(known) = name.as_ref().and_then(|name| self.named.get(name)) {
            return Ok((*known, None));
        }
        if !self.new.take(now) {
            return Err(Refused::from(Loss::Clients));
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1).max(self.first);
        self.stacks.insert(number, Stack { tags: Vec::new(), last: self.started });
        if let Some(name) = name {
            self.named.insert(name, number);
        }
        let at = first.clamp(self.started, now);
        Ok((number, Some(Mark { stack: StackId(number), at, op: MarkOp::Open { rank: client.rank } })))
    }

    /// The instant of a message: the client's own `t`, between the run's start and now, never before the
    /// stack's last.
    pub(super) fn stamp(&mut self, stack: u32, t: Option<u64>, now: Mono) -> Mono {
        let said = t.map_or(now, Mono).clamp(self.started, now);
        match self.stacks.get_mut(&stack) {
            Some(stack) => {
                stack.last = said.max(stack.last);
                stack.last
            }
            None => said,
        }
    }

    /// The start of a step: between the run's start and the step's end.
    pub(super) fn start_of_step(&self, began: u64, end: Mono) -> Mono {
        Mono(began).clamp(self.started, end)
    }

    /// Begins a tag; `allowed` is an earlier refusal, if any.
    pub(super) fn begin(
        &mut self,
        number: u32,
        tag: &Arc<str>,
        span: Option<i64>,
        allowed: Result<(), Refused>,
    ) -> Result<MarkOp, Refused> {
        let Some(stack) = self.stacks.get_mut(&number) else { return Err(Refused::from(Loss::Late)) };
        // Refused tags are remembered too, but not without bound.
        if stack.tags.len() >= self.depth.saturating_mul(4) {
            return Err(Refused::from(Loss::TagDepth));
        }
        let mut marked = stack.tags.iter().filter(|open| open.marked);
        let outcome = if let Err(refused) = allowed {
            Err(refused)
        } else if marked.clone().any(|open| open.tag == *tag) {
            Err(Refused::ignored("a tag of this name is already open"))
        } else if marked.nth(self.depth - 1).is_some() {
            Err(Refused::from(Loss::TagDepth))
        } else {
            Ok(MarkOp::Begin { tag: Arc::clone(tag) })
        };
        stack.tags.push(OpenTag { tag: Arc::clone(tag), span, marked: outcome.is_ok() });
        outcome
    }

    /// Ends a tag: by its number, else by its name, else the innermost. `None`: only refused tags end.
    pub(super) fn end(
        &mut self,
        number: u32,
        tag: Option<&str>,
        span: Option<i64>,
    ) -> Result<Option<MarkOp>, Refused> {
        let Some(stack) = self.stacks.get_mut(&number) else { return Err(Refused::from(Loss::Late)) };
        let place = match (span, tag) {
            (Some(span), _) => stack.tags.iter().rposition(|open| open.span == Some(span)),
            (None, Some(tag)) => stack.tags.iter().rposition(|open| *open.tag == *tag),
            (None, None) => stack.tags.len().checked_sub(1),
        };
        // An inner tag that an outer one's end already ended is nothing to complain about.
        let Some(place) = place else { return Err(Refused::ignored("no such tag is open")) };
        let outermost = stack.tags.drain(place..).find(|open| open.marked);
        // Its end ends what was begun inside it.
        Ok(outermost.map(|open| MarkOp::End { tag: Some(open.tag) }))
    }

    /// Starts the statistics of a tag (`None`: of all that are open) anew.
    pub(super) fn clear(&self, number: u32, tag: Option<&str>) -> Result<MarkOp, Refused> {
        let Some(tag) = tag else { return Ok(MarkOp::Clear { tag: None }) };
        let open = self.stacks.get(&number).into_iter().flat_map(|stack| &stack.tags);
        match open.filter(|open| open.marked).find(|open| *open.tag == *tag) {
            Some(open) => Ok(MarkOp::Clear { tag: Some(Arc::clone(&open.tag)) }),
            None => Err(Refused::ignored("no such tag is open")),
        }
    }

    /// Closes a stack, and with it every tag that is open there.
    pub(super) fn close(&mut self, number: u32, now: Mono) -> Option<Mark> {
        let stack = self.stacks.remove(&number)?;
        Some(Mark { stack: StackId(number), at: now.max(stack.last), op: MarkOp::Close })
    }

    /// Closes every stack, in the order in which they were opened.
    pub(super) fn close_all(&mut self, now: Mono) -> Vec<Mark> {
        let mut left: Vec<u32> = self.stacks.keys().copied().collect();
        left.sort_unstable();
        left.into_iter().filter_map(|stack| self.close(stack, now)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Mono = Mono(1_000);
    const NOW: Mono = Mono(9_000);

    fn stacks(depth: usize) -> (Stacks, u32) {
        let limits = Limits { depth, ..Limits::default() };
        let mut stacks = Stacks::new(&limits, 1, T0);
        let (number, open) = stacks.open(&Client { rank: Some(2), named: None }, Mono(5_000), NOW).unwrap();
        let open = open.unwrap();
        assert_eq!((open.at, open.op), (Mono(5_000), MarkOp::Open { rank: Some(2) }));
        (stacks, number)
    }

    fn begin(stacks: &mut Stacks, number: u32, tag: &str, span: i64) -> Result<MarkOp, Refused> {
        stacks.begin(number, &Arc::from(tag), Some(span), Ok(()))
    }

    #[test]
    fn the_end_of_a_refused_tag_ends_nothing() {
        let (mut stacks, number) = stacks(2);
        assert!(begin(&mut stacks, number, "a", 1).is_ok());
        assert_eq!(begin(&mut stacks, number, "a", 2).unwrap_err().loss, None);
        let refused = stacks.begin(number, &"b".into(), Some(3), Err(Loss::TagRate.into()));
        assert_eq!(refused, Err(Loss::TagRate.into()));
        assert_eq!(stacks.end(number, None, Some(3)), Ok(None));
        assert_eq!(stacks.end(number, None, Some(2)), Ok(None));
        let end = MarkOp::End { tag: Some("a".into()) };
        assert_eq!(stacks.end(number, None, Some(1)), Ok(Some(end)));
        assert_eq!(stacks.end(number, None, None).unwrap_err().loss, None);
    }

    #[test]
    fn depth_is_bounded_and_so_is_what_was_refused() {
        let (mut stacks, number) = stacks(2);
        for (span, tag) in ["a", "b"].into_iter().enumerate() {
            assert!(begin(&mut stacks, number, tag, span as i64).is_ok());
        }
        for span in 2..20 {
            assert_eq!(begin(&mut stacks, number, "c", span), Err(Refused::from(Loss::TagDepth)));
        }
        assert_eq!(stacks.stacks[&number].tags.len(), 8);
        assert_eq!(stacks.end(number, Some("a"), None), Ok(Some(MarkOp::End { tag: Some("a".into()) })));
        assert!(stacks.stacks[&number].tags.is_empty());
    }

    #[test]
    fn stamps_stay_in_the_run_and_never_go_back() {
        let (mut stacks, number) = stacks(2);
        assert_eq!(stacks.stamp(number, Some(10), NOW), T0);
        assert_eq!(stacks.stamp(number, Some(8_000), NOW), Mono(8_000));
        assert_eq!(stacks.stamp(number, Some(7_000), NOW), Mono(8_000));
        assert_eq!(stacks.stamp(number, Some(u64::MAX), NOW), NOW);
        assert_eq!(stacks.stamp(number, None, Mono(10_000)), Mono(10_000));
        assert_eq!(stacks.start_of_step(0, NOW), T0);
        assert_eq!(stacks.start_of_step(u64::MAX, NOW), NOW);
        assert_eq!(stacks.close(number, NOW).unwrap().at, Mono(10_000));
        assert!(stacks.close_all(NOW).is_empty());
    }

    #[test]
    fn connections_of_one_name_and_rank_share_a_stack() {
        let (mut stacks, _) = stacks(2);
        let shell = |rank| Client { rank, named: Some("shell") };
        let (first, open) = stacks.open(&shell(None), NOW, NOW).unwrap();
        assert!(open.is_some());
        assert_eq!(stacks.open(&shell(None), NOW, NOW).unwrap(), (first, None));
        assert_ne!(stacks.open(&shell(Some(1)), NOW, NOW).unwrap().0, first);
    }
}
