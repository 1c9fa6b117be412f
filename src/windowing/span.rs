//! A span of time with the statistics of every series in it. Decides nothing about when it begins or ends.

use std::sync::Arc;

use crate::model::series::SeriesInfo;
use crate::model::time::Mono;
use crate::model::window::{Row, RowKind};

use super::accumulator::{Acc, Series};
use super::points::{Labels, PointTable};

/// Series by their dense numbers; a closed number is empty until it is used again.
pub(super) type Table = Vec<Option<Series>>;

/// One span: open, or over and waiting for the totals that settle its edge.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// Number inside the fold.
    pub(super) key: u64,
    pub(super) kind: RowKind,
    pub(super) tag: Arc<str>,
    pub(super) step: Option<i64>,
    pub(super) rank: Option<i32>,
    /// Real and active start.
    pub(super) start: Mono,
    pub(super) from: u64,
    /// Real and active end, once it is over.
    pub(super) end: Mono,
    pub(super) to: u64,
    /// Holds scalars only, no series.
    pub(super) bare: bool,
    pub(super) accs: Vec<Acc>,
    /// Rows of series that ended in the span.
    ended: Vec<(usize, Arc<SeriesInfo>, Acc)>,
    pub(super) points: PointTable,
    /// Scalars of other ranks than the span's own; only periodic windows have these.
    pub(super) others: Vec<(Option<i32>, PointTable)>,
    /// Rows that are finished already: times of steps.
    pub(super) extra: Vec<Row>,
    /// Series whose next total settles the edge.
    waiting: Vec<usize>,
}

impl Span {
    pub(super) fn new(
        key: u64,
        kind: RowKind,
        tag: Arc<str>,
        rank: Option<i32>,
        start: Mono,
        from: u64,
    ) -> Self {
        Span {
            key,
            kind,
            tag,
            step: None,
            rank,
            start,
            from,
            end: start,
            to: from,
            bare: false,
            accs: Vec::new(),
            ended: Vec::new(),
            points: PointTable::default(),
            others: Vec::new(),
            extra: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// The statistics of one series.
    pub(super) fn acc(&mut self, index: usize) -> &mut Acc {
        if self.accs.len() <= index {
            self.accs.resize(index + 1, Acc::default());
        }
        &mut self.accs[index]
    }

    /// Forgets everything: the span begins here.
    pub(super) fn restart(&mut self, start: Mono, from: u64) {
        (self.start, self.from) = (start, from);
        self.accs.fill(Acc::default());
        self.ended.clear();
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

    /// Ends the span here, as far as is known by now.
    pub(super) fn finish(&mut self, table: &Table, end: Mono, to: u64) {
        (self.end, self.to) = (end, to);
        if self.bare {
            return;
        }
        self.accs.resize(table.len().max(self.accs.len()), Acc::default());
        for (index, (series, acc)) in table.iter().zip(&mut self.accs).enumerate() {
            let Some(series) = series else { continue };
            series.settle(acc, self.from, to);
            if series.is_waiting(to, to) {
                self.waiting.push(index);
            }
        }
    }

    /// Whether a total that settles the edge can still come.
    pub(super) fn is_waiting(&mut self, table: &Table, now: u64) -> bool {
        let to = self.to;
        self.waiting.retain(|index| {
            table.get(*index).and_then(Option::as_ref).is_some_and(|series| series.is_waiting(to, now))
        });
        !self.waiting.is_empty()
    }

    /// Moves the row of a series that ends at `to` (of an ended span: before it) out of the dense table.
    pub(super) fn retire(&mut self, index: usize, series: &Series, ended_at: Option<u64>) {
        if self.bare {
            return;
        }
        let mut acc = self.accs.get(index).copied().unwrap_or_default();
        let to = match ended_at {
            Some(at) => {
                series.settle(&mut acc, self.from, at);
                at
            }
            None => self.to,
        };
        series.settle_rate(&mut acc, to);
        if acc.is_touched() || series.is_born_before(to) {
            self.ended.push((index, Arc::clone(&series.info), acc));
        }
        if let Some(slot) = self.accs.get_mut(index) {
            *slot = Acc::default();
        }
    }

    /// The rows of a span that is over (`Some`: of an open one, as of that instant).
    pub(super) fn rows(&self, table: &Table, labels: &Labels, as_of: Option<u64>) -> Vec<Row> {
        let mut rows = Vec::with_capacity(table.len() + self.ended.len() + self.extra.len());
        let to = as_of.unwrap_or(self.to);
        // A number that was used again stands for several series: the earlier ones come first.
        let mut ended: Vec<_> = self.ended.iter().collect();
        ended.sort_by_key(|(index, ..)| *index);
        let mut ended = ended.into_iter().peekable();
        let mut earlier = |rows: &mut Vec<Row>, until: usize| {
            while let Some((_, info, acc)) = ended.next_if(|(index, ..)| *index <= until) {
                rows.push(Row { series: Arc::clone(info), stats: acc.stats(info.kind()) });
            }
        };
        let series = if self.bare { &[][..] } else { &table[..] };
        for (index, series) in series.iter().enumerate() {
            earlier(&mut rows, index);
            let Some(series) = series else { continue };
            let mut acc = self.accs.get(index).copied().unwrap_or_default();
            if as_of.is_some() {
                series.settle(&mut acc, self.from, to);
            }
            series.settle_rate(&mut acc, to);
            if acc.is_touched() || series.is_born_before(to) {
                rows.push(Row { series: Arc::clone(&series.info), stats: acc.stats(series.info.kind()) });
            }
        }
        earlier(&mut rows, usize::MAX);
        rows.extend(self.extra.iter().cloned());
        rows.extend(labels.rows(&self.points));
        rows
    }
}
