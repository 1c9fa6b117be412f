//! What one batch of rows is made of: the time it covers, in one piece or several, with the statistics of every
//! series, and the points that belong to it. Decides nothing about when it begins or ends.

use std::sync::Arc;

use crate::model::time::Mono;
use crate::model::window::{Row, RowKind};

use super::accumulator::{Acc, Series, Step};
use super::piece::{Piece, Table};
use super::points::{Labels, PointTable};

/// Pieces that are kept apart while values to come may still settle their edges.
const MAX_PIECES: usize = 64;

/// The tag that a span is of.
#[derive(Clone, Debug)]
pub(super) struct TagOf {
    pub(super) path: Arc<str>,
    /// 1 the first time that the tag was opened, 2 the second, ...
    pub(super) occurrence: u32,
}

/// The epoch of a span.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Epoch {
    /// The one that ran when the span began.
    before: Option<i64>,
    /// The one that began inside it.
    inside: Option<i64>,
    /// More than one began inside it.
    several: bool,
}

impl Epoch {
    pub(super) fn new(before: Option<i64>) -> Self {
        Epoch { before, ..Epoch::default() }
    }

    /// An epoch begins.
    pub(super) fn begin(&mut self, epoch: i64) {
        self.several |= self.inside.is_some_and(|inside| inside != epoch);
        self.inside = Some(epoch);
    }

    /// The span's epoch: none where none was said, or where several began.
    pub(super) fn value(self) -> Option<i64> {
        if self.several { None } else { self.inside.or(self.before) }
    }
}

/// The end of the last step in a span, which is the span's own end unless another step follows.
#[derive(Clone, Debug)]
struct Cut {
    end: Mono,
    to: u64,
    /// The piece that it lies in.
    place: usize,
    /// That piece as it was at the cut, once the piece itself has gone on.
    unchanged: Option<Piece>,
}

/// One span: it runs, it is paused, or it is over.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// Number inside the fold.
    pub(super) key: u64,
    pub(super) kind: RowKind,
    pub(super) tag: TagOf,
    pub(super) epoch: Epoch,
    pub(super) step: Option<i64>,
    pub(super) rank: Option<i32>,
    /// Holds scalars only, no series.
    scalars_only: bool,
    /// At least one; only the last one can be open.
    pieces: Vec<Piece>,
    cut: Option<Cut>,
    pub(super) points: PointTable,
    /// Scalars of other ranks than the span's own; only periodic windows have these.
    pub(super) others: Vec<(Option<i32>, PointTable)>,
    /// Rows that are finished already: times of steps.
    pub(super) extra: Vec<Row>,
}

impl Span {
    pub(super) fn new(key: u64, kind: RowKind, tag: TagOf, rank: Option<i32>, piece: Piece) -> Self {
        Span {
            key,
            kind,
            tag,
            epoch: Epoch::default(),
            step: None,
            rank,
            scalars_only: false,
            pieces: vec![piece],
            cut: None,
            points: PointTable::default(),
            others: Vec::new(),
            extra: Vec::new(),
        }
    }

    /// A span of the job's own scalars, logged for a step at one instant.
    pub(super) fn of_scalars(
        key: u64,
        tag: TagOf,
        rank: Option<i32>,
        step: i64,
        (at, from): (Mono, u64),
    ) -> Self {
        let span = Span::new(key, RowKind::Step, tag, rank, Piece::instant(at, from));
        Span { scalars_only: true, step: Some(step), ..span }
    }

    /// Moves the end of a span of scalars to that of the last one.
    pub(super) fn extend(&mut self, end: Mono, to: u64) {
        let last = self.last_mut();
        (last.end, last.to) = (end, to);
    }

    fn last(&self) -> &Piece {
        &self.pieces[self.pieces.len() - 1]
    }

    fn last_mut(&mut self) -> &mut Piece {
        let last = self.pieces.len() - 1;
        &mut self.pieces[last]
    }

    /// Real start.
    pub(super) fn start(&self) -> Mono {
        self.pieces[0].start
    }

    /// Real end, once it is over.
    pub(super) fn end(&self) -> Mono {
        self.last().end
    }

    /// Active start.
    pub(super) fn from(&self) -> u64 {
        self.pieces[0].from
    }

    /// Active nanoseconds of all pieces; the one that is open counts up to `as_of`.
    pub(super) fn length(&self, as_of: u64) -> u64 {
        self.pieces.iter().map(|piece| piece.length(as_of)).sum()
    }

    /// A copy of the piece that is open, for a span that began with this one.
    pub(super) fn copy_of_open(&self) -> Piece {
        self.last().clone()
    }

    /// The memory of the statistics, for another span.
    pub(super) fn into_memory(mut self) -> Option<Vec<Acc>> {
        if self.scalars_only { None } else { self.pieces.pop().map(|piece| piece.accs) }
    }

    /// The span begins here, with what was logged for it before.
    pub(super) fn restart(&mut self, start: Mono, from: u64) {
        self.pieces.drain(..self.pieces.len() - 1);
        self.last_mut().restart(start, from);
        self.cut = None;
    }

    /// The span began with a piece of another one.
    pub(super) fn begin_with(&mut self, piece: Piece) {
        self.pieces = vec![piece];
    }

    /// Forgets everything: the span begins here.
    pub(super) fn clear(&mut self, start: Mono, from: u64) {
        self.last_mut().restart(start, from);
        self.points.clear();
    }

    /// Adds a scalar of a client.
    pub(super) fn log(&mut self, rank: Option<i32>, number: usize, value: f64) {
        if rank == self.rank {
            self.points.push(number, value);
            return;
        }
        match self.others.iter_mut().find(|(other, _)| *other == rank) {
            Some((_, points)) => points.push(number, value),
            None => {
                let mut points = PointTable::default();
                points.push(number, value);
                self.others.push((rank, points));
            }
        }
    }

    /// Counts a read of a series.
    pub(super) fn feed(&mut self, index: usize, series: &Series, step: Step, now: u64) {
        if self.scalars_only {
            return;
        }
        for piece in self.all_pieces() {
            piece.feed(index, series, step, now);
        }
    }

    fn all_pieces(&mut self) -> impl Iterator<Item = &mut Piece> {
        self.pieces.iter_mut().chain(self.cut.as_mut().and_then(|cut| cut.unchanged.as_mut()))
    }

    /// A maximum that was reached.
    pub(super) fn peak(&mut self, index: usize, value: f64) {
        if !self.scalars_only {
            self.last_mut().peak(index, value);
        }
    }

    /// The counters' totals break here.
    pub(super) fn settle_rate(&mut self, index: usize, series: &Series) {
        if !self.scalars_only {
            self.all_pieces().for_each(|piece| piece.settle_rate(index, series));
        }
    }

    /// A series ends at `at`.
    pub(super) fn retire(&mut self, index: usize, series: &Series, at: u64) {
        if !self.scalars_only {
            self.all_pieces().for_each(|piece| piece.retire(index, series, at));
        }
    }

    /// The last step so far ends here.
    pub(super) fn cut(&mut self, end: Mono, to: u64) {
        self.cut = Some(Cut { end, to, place: self.pieces.len() - 1, unchanged: None });
    }

    /// The last step of a span that is over ended here.
    pub(super) fn keep_end(&mut self, end: Mono, to: u64) {
        if self.cut.is_none() {
            self.cut(end, to);
        }
    }

    /// Keeps a copy of the piece of the last step's end before it changes.
    pub(super) fn keep_cut(&mut self, table: &Table) {
        if let Some(cut) = &mut self.cut
            && cut.unchanged.is_none()
            && self.pieces[cut.place].is_open()
        {
            let mut piece = self.pieces[cut.place].clone();
            piece.finish(table, cut.end, cut.to);
            cut.unchanged = Some(piece);
        }
    }

    /// Ends the piece that is open, if one is.
    pub(super) fn pause(&mut self, table: &Table, end: Mono, to: u64) {
        self.keep_cut(table);
        if self.last().is_open() {
            self.last_mut().finish(table, end, to);
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        !self.last().is_open()
    }

    /// Goes on after a pause.
    pub(super) fn resume(&mut self, piece: Piece, table: &Table, now: u64) {
        self.pieces.push(piece);
        self.compact(table, now);
    }

    /// Adds the time of a later span that is paused. Without a step so far, the span begins with that one.
    pub(super) fn append(&mut self, later: Span, table: &Table, now: u64) {
        if self.cut.is_none() {
            self.pieces.clear();
        }
        let before = self.pieces.len();
        self.pieces.extend(later.pieces);
        self.cut = later.cut.map(|cut| Cut { place: cut.place + before, ..cut });
        self.points.merge(&later.points);
        self.compact(table, now);
    }

    /// Ends the span where its last step ended; `false`: it has none.
    pub(super) fn end_at_cut(&mut self, table: &Table) -> bool {
        let Some(cut) = self.cut.take() else { return false };
        match cut.unchanged {
            Some(piece) => {
                self.pieces.truncate(cut.place);
                self.pieces.push(piece);
            }
            None => {
                self.pieces.truncate(cut.place + 1);
                if self.last().is_open() {
                    self.last_mut().finish(table, cut.end, cut.to);
                }
            }
        }
        true
    }

    /// Joins pieces that nothing changes any more, so that a span of many tags stays small.
    fn compact(&mut self, table: &Table, now: u64) {
        // What lies after the last step's end may have to go again.
        let safe = self.cut.as_ref().map_or(0, |cut| cut.place);
        let mut joined = 0;
        while joined + 1 < safe {
            let full = self.pieces.len() - joined > MAX_PIECES;
            let (first, later) = self.pieces.split_at_mut(joined + 1);
            let waits = first[0].is_waiting(table, now) || later[0].is_waiting(table, now);
            if waits && !full {
                break;
            }
            first[0].absorb(&later[0], table);
            joined += 1;
        }
        self.pieces.drain(1..=joined);
        if let Some(cut) = &mut self.cut {
            cut.place -= joined;
        }
    }

    /// Whether a value that settles an edge can still come.
    pub(super) fn is_waiting(&mut self, table: &Table, now: u64) -> bool {
        !self.scalars_only && self.pieces.iter_mut().any(|piece| piece.is_waiting(table, now))
    }

    /// The rows of a span that is over (of an open one: as of `as_of`).
    pub(super) fn rows(&self, table: &Table, labels: &Labels, as_of: u64) -> Vec<Row> {
        let mut rows = Vec::with_capacity(table.len() + self.extra.len());
        match &self.pieces[..] {
            _ if self.scalars_only => {}
            [piece] => piece.rows(table, as_of, &mut rows),
            [first, later @ ..] => {
                let mut all = first.clone();
                later.iter().for_each(|piece| all.absorb(piece, table));
                all.rows(table, as_of, &mut rows);
            }
            [] => {}
        }
        rows.extend(self.extra.iter().cloned());
        rows.extend(labels.rows(&self.points));
        rows
    }

    /// How many statistics are kept.
    #[cfg(test)]
    pub(super) fn footprint(&self) -> usize {
        self.pieces.iter().map(|piece| piece.accs.len()).sum()
    }
}
