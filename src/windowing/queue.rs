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
    /// The first step of a stack began.
    FirstStep(u32),
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
            What::Mark(..) | What::FirstStep(_) => 1,
            What::Sample(_) => 2,
            What::CloseSeries(_) => 3,
            What::Suspend => 4,
        }
    }
}

/// When two readings of a series are one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nearness {
    /// At most so many nanoseconds apart.
    pub(super) distance: u64,
    /// The value before them.
    pub(super) base: Option<Mono>,
    /// How many nanoseconds it may lie before the later one.
    pub(super) reach: u64,
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

    /// Leaves out readings that the last one of their series stands for: those from `since` on that lie near
    /// it, where it can count from one before them. Samples of suspended time are none.
    pub(super) fn merge_into_last(
        &mut self,
        since: Mono,
        mut suspended: bool,
        near: impl Fn(SeriesId) -> Option<Nearness>,
    ) {
        struct Last {
            id: SeriesId,
            at: Mono,
            near: Nearness,
        }
        let mut lasts: Vec<Last> = Vec::new();
        let mut pausing = suspended;
        for event in &self.events {
            match &event.what {
                What::Suspend => pausing = true,
                What::Resume => pausing = false,
                What::Sample(readings) if !pausing => {
                    for (id, reading) in readings {
                        if !matches!(reading, Reading::Value(_)) {
                            continue;
                        }
                        match lasts.iter_mut().find(|last| last.id == *id) {
                            Some(last) => last.at = event.at,
                            None => lasts.extend(near(*id).map(|near| Last { id: *id, at: event.at, near })),
                        }
                    }
                }
                _ => {}
            }
        }
        for event in &mut self.events {
            let at = event.at;
            match &mut event.what {
                What::Sample(_) if suspended => {}
                What::Sample(readings) => readings.retain(|(id, reading)| {
                    let last = lasts.iter_mut().find(|last| last.id == *id);
                    let (Reading::Value(_), Some(last)) = (reading, last) else { return true };
                    let near = at < last.at && last.at.0 - at.0 <= last.near.distance && at >= since;
                    let reached = last.near.base.is_some_and(|base| last.at.0 - base.0 <= last.near.reach);
                    if near && reached {
                        return false;
                    }
                    last.near.base = Some(at);
                    true
                }),
                // Time that was suspended is not counted across.
                What::Suspend => {
                    suspended = true;
                    lasts.iter_mut().for_each(|last| last.near.base = None);
                }
                What::Resume => suspended = false,
                _ => {}
            }
        }
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
