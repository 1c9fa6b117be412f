//! The reorder buffer: what was said, in the order in which it was meant. Applies nothing.

use std::collections::VecDeque;

use crate::model::id::SeriesId;
use crate::model::mark::MarkOp;
use crate::model::reading::Reading;
use crate::model::time::Mono;

/// Something that happened at an instant.
#[derive(Debug)]
pub(super) enum What {
    /// Suspended time ends.
    Resume,
    /// A mark on the stack with this internal number.
    Mark(u32, MarkOp),
    /// Reads.
    Sample(Vec<(SeriesId, Reading)>),
    /// A series ended.
    CloseSeries(SeriesId),
    /// Suspended time begins.
    Suspend,
}

impl What {
    /// The order within one instant: a span is `[start, end)`, so marks come before samples; the last
    /// sample of a series, or before a suspension, still counts.
    fn rank(&self) -> u8 {
        match self {
            What::Resume => 0,
            What::Mark(..) => 1,
            What::Sample(_) => 2,
            What::CloseSeries(_) => 3,
            What::Suspend => 4,
        }
    }
}

#[derive(Debug)]
pub(super) struct Event {
    pub(super) at: Mono,
    pub(super) what: What,
}

impl Event {
    fn key(&self) -> (Mono, u8) {
        (self.at, self.what.rank())
    }
}

/// Sorted by instant, then by [`What::rank`], then by arrival.
#[derive(Debug, Default)]
pub(super) struct Queue {
    events: VecDeque<Event>,
    /// Emptied buffers of samples, for the next ones.
    spare: Vec<Vec<(SeriesId, Reading)>>,
}

impl Queue {
    pub(super) fn push(&mut self, at: Mono, what: What) {
        let event = Event { at, what };
        // Nearly everything arrives in order and goes to the end.
        if self.events.back().is_none_or(|last| last.key() <= event.key()) {
            self.events.push_back(event);
        } else {
            let place = self.events.partition_point(|other| other.key() <= event.key());
            self.events.insert(place, event);
        }
    }

    pub(super) fn push_sample(&mut self, at: Mono, readings: &[(SeriesId, Reading)]) {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.extend_from_slice(readings);
        self.push(at, What::Sample(buffer));
    }

    /// Takes back the buffer of an applied sample.
    pub(super) fn recycle(&mut self, mut buffer: Vec<(SeriesId, Reading)>) {
        buffer.clear();
        self.spare.push(buffer);
    }

    /// The next event before `horizon` (`inclusive`: or at it).
    pub(super) fn pop(&mut self, horizon: Mono, inclusive: bool) -> Option<Event> {
        let first = self.events.front()?.at;
        if first < horizon || (inclusive && first == horizon) { self.events.pop_front() } else { None }
    }

    /// How much is kept: events, spare buffers and their room.
    #[cfg(test)]
    pub(super) fn footprint(&self) -> usize {
        self.events.len() + self.spare.len() + self.spare.iter().map(Vec::capacity).sum::<usize>()
    }

    /// Nothing happens later than now: stamps from the future become `now`.
    pub(super) fn cap(&mut self, now: Mono) {
        let mut capped = false;
        for event in self.events.iter_mut().rev().take_while(|event| event.at > now) {
            event.at = now;
            capped = true;
        }
        if capped {
            self.events.make_contiguous().sort_by_key(Event::key);
        }
    }
}
