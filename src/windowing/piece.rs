//! Statistics of every series over one uninterrupted stretch of time. Decides nothing about when it begins or ends.

use std::sync::Arc;

use crate::model::series::SeriesInfo;
use crate::model::time::Mono;
use crate::model::window::Row;

use super::accumulator::{Acc, Series, Step};

/// Series by their dense numbers; a closed number is empty until it is used again.
pub(super) type Table = Vec<Option<Series>>;

/// How far a piece has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// It has ended; the next values may still settle its edge.
    Over,
    /// Nothing changes it any more.
    Settled,
}

/// A stretch of time.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// Real and active start.
    pub(super) start: Mono,
    pub(super) from: u64,
    /// Real and active end, once it is over.
    pub(super) end: Mono,
    pub(super) to: u64,
    /// Active time between the start and the end that does not count: between pieces that were joined.
    left_out: u64,
    state: State,
    pub(super) accs: Vec<Acc>,
    /// Series that ended, by the number that they had.
    ended: Vec<(usize, Arc<SeriesInfo>, Acc)>,
    /// Series whose next value settles the edge.
    waiting: Vec<usize>,
}

impl Piece {
    pub(super) fn new(start: Mono, from: u64, accs: Vec<Acc>) -> Self {
        Piece {
            start,
            from,
            end: start,
            to: from,
            left_out: 0,
            state: State::Open,
            accs,
            ended: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// An instant of which no series is known.
    pub(super) fn instant(at: Mono, from: u64) -> Self {
        Piece { state: State::Settled, ..Piece::new(at, from, Vec::new()) }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Active nanoseconds; of an open piece, up to `as_of`.
    pub(super) fn length(&self, as_of: u64) -> u64 {
        let to = if self.is_open() { as_of } else { self.to };
        to.saturating_sub(self.from).saturating_sub(self.left_out)
    }

    /// The statistics of one series.
    fn acc(&mut self, index: usize) -> &mut Acc {
        if self.accs.len() <= index {
            self.accs.resize(index + 1, Acc::default());
        }
        &mut self.accs[index]
    }

    /// Forgets everything: the piece begins here.
    pub(super) fn restart(&mut self, start: Mono, from: u64) {
        (self.start, self.from, self.left_out, self.state) = (start, from, 0, State::Open);
        self.accs.fill(Acc::default());
        self.ended.clear();
        self.waiting.clear();
    }

    /// Counts a read of a series.
    pub(super) fn feed(&mut self, index: usize, series: &Series, step: Step, now: u64) {
        let (from, to) = (self.from, self.to);
        match self.state {
            State::Open => series.feed_open(self.acc(index), step, from, now),
            State::Over => series.feed_ended(self.acc(index), step, now, from, to),
            State::Settled => {}
        }
    }

    /// A maximum that was reached.
    pub(super) fn peak(&mut self, index: usize, value: f64) {
        if self.is_open() {
            self.acc(index).peak(value);
        }
    }

    /// Ends the piece here, as far as is known by now.
    pub(super) fn finish(&mut self, table: &Table, end: Mono, to: u64) {
        (self.end, self.to, self.state) = (end, to, State::Over);
        self.accs.resize(table.len().max(self.accs.len()), Acc::default());
        for (index, (series, acc)) in table.iter().zip(&mut self.accs).enumerate() {
            let Some(series) = series else { continue };
            series.settle(acc, self.from, to);
            if series.is_waiting(to, to) {
                self.waiting.push(index);
            }
        }
    }

    /// Whether a value that settles the edge can still come.
    pub(super) fn is_waiting(&mut self, table: &Table, now: u64) -> bool {
        let to = self.to;
        self.waiting.retain(|index| {
            table.get(*index).and_then(Option::as_ref).is_some_and(|series| series.is_waiting(to, now))
        });
        !self.waiting.is_empty()
    }

    /// The counters' totals break here: a piece that is over gets no other rate than the last known one.
    pub(super) fn settle_rate(&mut self, index: usize, series: &Series) {
        if self.state == State::Over {
            let to = self.to;
            series.settle_rate(self.acc(index), to);
        }
    }

    /// Moves the statistics of a series that ends at `at` out of the dense table.
    pub(super) fn retire(&mut self, index: usize, series: &Series, at: u64) {
        let mut acc = self.accs.get(index).copied().unwrap_or_default();
        let to = if self.is_open() { at } else { self.to };
        if self.is_open() {
            series.settle(&mut acc, self.from, to);
        }
        series.settle_rate(&mut acc, to);
        if acc.is_touched() || series.is_born_before(to) {
            self.ended.push((index, Arc::clone(&series.info), acc));
        }
        if let Some(slot) = self.accs.get_mut(index) {
            *slot = Acc::default();
        }
    }

    /// Adds a later piece that is over to this one, which is over as well.
    pub(super) fn absorb(&mut self, later: &Piece, table: &Table) {
        for (index, series) in table.iter().enumerate() {
            let Some(series) = series else { continue };
            let mut acc = later.accs.get(index).copied().unwrap_or_default();
            series.settle_rate(&mut acc, later.to);
            let to = self.to;
            let mine = self.acc(index);
            series.settle_rate(mine, to);
            mine.merge(&acc);
        }
        for (index, info, acc) in &later.ended {
            match self.ended.iter_mut().find(|(_, known, _)| Arc::ptr_eq(known, info)) {
                Some((_, _, mine)) => mine.merge(acc),
                None => self.ended.push((*index, Arc::clone(info), *acc)),
            }
        }
        self.left_out += later.left_out + later.from.saturating_sub(self.to);
        (self.end, self.to, self.state) = (later.end, later.to, State::Settled);
        self.waiting.clear();
    }

    /// The rows of a piece that is over (of an open one: as of `as_of`).
    pub(super) fn rows(&self, table: &Table, as_of: u64, rows: &mut Vec<Row>) {
        let to = if self.is_open() { as_of } else { self.to };
        // A number that was used again stands for several series: the earlier ones come first.
        let mut ended: Vec<_> = self.ended.iter().collect();
        ended.sort_by_key(|(index, ..)| *index);
        let mut ended = ended.into_iter().peekable();
        let mut earlier = |rows: &mut Vec<Row>, until: usize| {
            while let Some((_, info, acc)) = ended.next_if(|(index, ..)| *index <= until) {
                rows.push(Row { series: Arc::clone(info), stats: acc.stats(info.kind()) });
            }
        };
        for (index, series) in table.iter().enumerate() {
            earlier(rows, index);
            let Some(series) = series else { continue };
            let mut acc = self.accs.get(index).copied().unwrap_or_default();
            if self.is_open() {
                series.settle(&mut acc, self.from, to);
            }
            series.settle_rate(&mut acc, to);
            if acc.is_touched() || series.is_born_before(to) {
                rows.push(Row { series: Arc::clone(&series.info), stats: acc.stats(series.info.kind()) });
            }
        }
        earlier(rows, usize::MAX);
    }
}
