//! A row of any source as cells, and the cells as what the columns of a log hold.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use super::super::WriterError;
use super::super::columns::{FIXED, ReadRow, STATS};
use super::super::metadata::{self, Metadata};
use super::super::wide::{Key, device_labels, parse_column};

/// Texts that occur in many rows, kept once.
#[derive(Default)]
pub(super) struct Texts(HashSet<Arc<str>>);

impl Texts {
    pub(super) fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return Arc::clone(known);
        }
        let text: Arc<str> = text.into();
        self.0.insert(Arc::clone(&text));
        text
    }
}

/// What a cell holds. Programs that rewrite a log change the types of its columns: a whole number may come as a float,
/// a time as text, and a column without any value as anything.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    Missing,
    Int(i64),
    Float(f64),
    /// Microseconds since the Unix epoch.
    Time(i64),
    Text(&'a str),
    Shared(Arc<str>),
}

/// The cells of one row, by place.
pub(super) trait Cells {
    fn value(&self, place: usize) -> Value<'_>;

    /// Where the row is, for errors.
    fn place(&self) -> String;
}

/// Where the columns of a log stand.
pub(super) struct Shape {
    fixed: FixedPlaces,
    rest: Rest,
}

struct FixedPlaces {
    time: usize,
    start: usize,
    window_s: usize,
    run: usize,
    host: usize,
    rank: usize,
    kind: usize,
    tag: usize,
    occurrence: usize,
    epoch: usize,
    step: usize,
}

enum Rest {
    Long(LongPlaces),
    Wide(Vec<WideSeries>),
}

struct LongPlaces {
    scope: usize,
    gpu: usize,
    cuda: usize,
    uuid: usize,
    pid: usize,
    process: usize,
    metric: usize,
    unit: usize,
    stats: [usize; STATS.len()],
    samples: usize,
    missing: usize,
}

struct WideSeries {
    scope: Arc<str>,
    gpu: Option<i32>,
    cuda: Option<i32>,
    uuid: Option<Arc<str>>,
    metric: Arc<str>,
    unit: Arc<str>,
    /// A statistic that is not there is unknown.
    places: [Option<usize>; STATS.len()],
}

fn not_a_log(path: &Path, what: impl ToString) -> WriterError {
    WriterError::NotALog { path: path.to_owned(), what: what.to_string() }
}

impl Shape {
    /// The shape of a log with these columns; columns of others' are left out.
    pub(super) fn of(
        path: &Path,
        names: &[String],
        metadata: &Metadata,
        texts: &mut Texts,
    ) -> Result<Shape, WriterError> {
        if let Some(version) = metadata.get(metadata::VERSION)
            && *version != crate::model::run::SCHEMA_VERSION.to_string()
        {
            let what = format!("its schema has version {version}, this gpurun reads version 1");
            return Err(not_a_log(path, what));
        }
        let place = |name: &str| {
            let found = names.iter().position(|n| n == name);
            found.ok_or_else(|| not_a_log(path, format!("it has no column {name}")))
        };
        let fixed = FixedPlaces {
            time: place("time")?,
            start: place("start")?,
            window_s: place("window_s")?,
            run: place("run")?,
            host: place("host")?,
            rank: place("rank")?,
            kind: place("kind")?,
            tag: place("tag")?,
            occurrence: place("occurrence")?,
            epoch: place("epoch")?,
            step: place("step")?,
        };
        if !names.iter().any(|name| name == "metric") {
            let series = wide_series(names, metadata, texts);
            // A damaged header of the long layout is no wide one.
            if series.is_empty() && names.len() > FIXED {
                place("metric")?;
            }
            return Ok(Shape { fixed, rest: Rest::Wide(series) });
        }
        let [mean, min, max, last] = STATS;
        let rest = Rest::Long(LongPlaces {
            scope: place("scope")?,
            gpu: place("gpu")?,
            cuda: place("cuda")?,
            uuid: place("uuid")?,
            pid: place("pid")?,
            process: place("process")?,
            metric: place("metric")?,
            unit: place("unit")?,
            stats: [place(mean)?, place(min)?, place(max)?, place(last)?],
            samples: place("samples")?,
            missing: place("missing")?,
        });
        Ok(Shape { fixed, rest })
    }

    pub(super) fn is_wide(&self) -> bool {
        matches!(self.rest, Rest::Wide(_))
    }

    /// Where the column `time` stands.
    pub(super) fn time(&self) -> usize {
        self.fixed.time
    }
}

fn wide_series(names: &[String], metadata: &Metadata, texts: &mut Texts) -> Vec<WideSeries> {
    let uuids: HashMap<String, String> =
        device_labels(metadata).into_iter().map(|(uuid, label)| (label, uuid)).collect();
    let mut places: HashMap<Key, usize> = HashMap::new();
    let mut series: Vec<WideSeries> = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let Some((key, stat)) = parse_column(name) else { continue };
        let at = *places.entry(key).or_insert_with_key(|key| {
            let uuid = key.label.as_ref().and_then(|label| uuids.get(label));
            series.push(WideSeries {
                scope: texts.intern(key.scope),
                gpu: key.gpu,
                cuda: key.cuda,
                uuid: uuid.map(|uuid| texts.intern(uuid)),
                metric: texts.intern(&key.metric),
                unit: texts.intern(&key.unit),
                places: [None; STATS.len()],
            });
            series.len() - 1
        });
        series[at].places[stat] = Some(n);
    }
    series
}

/// Turns the cells of one row into the rows of the long layout.
pub(super) fn rows_of(
    path: &Path,
    shape: &Shape,
    cells: &impl Cells,
    texts: &mut Texts,
    out: &mut VecDeque<ReadRow>,
) -> Result<(), WriterError> {
    let row = RowReader { path, cells };
    let fixed = row.fixed(&shape.fixed, texts)?;
    match &shape.rest {
        Rest::Long(at) => out.push_back(ReadRow {
            scope: row.need(at.scope, "scope", texts)?,
            gpu: row.narrow(at.gpu)?,
            cuda: row.narrow(at.cuda)?,
            uuid: row.text(at.uuid, texts)?,
            pid: row.int(at.pid)?,
            process: row.text(at.process, texts)?,
            metric: row.need(at.metric, "metric", texts)?,
            unit: row.text(at.unit, texts)?.unwrap_or_else(|| texts.intern("")),
            mean: row.float(at.stats[0])?,
            min: row.float(at.stats[1])?,
            max: row.float(at.stats[2])?,
            last: row.float(at.stats[3])?,
            samples: row.narrow(at.samples)?,
            missing: row.narrow(at.missing)?,
            ..fixed
        }),
        Rest::Wide(series) => {
            for series in series {
                let get = |n: usize| series.places[n].map_or(Ok(None), |place| row.float(place));
                out.push_back(ReadRow {
                    scope: Arc::clone(&series.scope),
                    gpu: series.gpu,
                    cuda: series.cuda,
                    uuid: series.uuid.clone(),
                    metric: Arc::clone(&series.metric),
                    unit: Arc::clone(&series.unit),
                    mean: get(0)?,
                    min: get(1)?,
                    max: get(2)?,
                    last: get(3)?,
                    ..fixed.clone()
                });
            }
        }
    }
    Ok(())
}

/// The largest whole number up to which every one is a float of its own.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The cells of a row with the types that their columns should have.
struct RowReader<'a, C> {
    path: &'a Path,
    cells: &'a C,
}

impl<C: Cells> RowReader<'_, C> {
    fn fixed(&self, at: &FixedPlaces, texts: &mut Texts) -> Result<ReadRow, WriterError> {
        let blank = texts.intern("");
        Ok(ReadRow {
            time_us: self.time(at.time, "time")?,
            start_us: self.time(at.start, "start")?,
            window_s: self.float(at.window_s)?.ok_or_else(|| self.empty("window_s"))?,
            run: self.need(at.run, "run", texts)?,
            host: self.need(at.host, "host", texts)?,
            rank: self.narrow(at.rank)?,
            kind: self.need(at.kind, "kind", texts)?,
            tag: self.need(at.tag, "tag", texts)?,
            occurrence: self.narrow(at.occurrence)?,
            epoch: self.int(at.epoch)?,
            step: self.int(at.step)?,
            scope: Arc::clone(&blank),
            gpu: None,
            cuda: None,
            uuid: None,
            pid: None,
            process: None,
            metric: Arc::clone(&blank),
            unit: blank,
            mean: None,
            min: None,
            max: None,
            last: None,
            samples: None,
            missing: None,
        })
    }

    fn bad(&self, value: &Value<'_>) -> WriterError {
        let shown = match value {
            Value::Missing => "nothing".to_owned(),
            Value::Int(n) | Value::Time(n) => n.to_string(),
            Value::Float(x) => x.to_string(),
            Value::Text(text) => format!("{text:?}"),
            Value::Shared(text) => format!("{text:?}"),
        };
        not_a_log(self.path, format!("{}: {shown} is not a valid value of its column", self.cells.place()))
    }

    fn empty(&self, column: &str) -> WriterError {
        not_a_log(self.path, format!("{}: {column} is empty", self.cells.place()))
    }

    fn text(&self, place: usize, texts: &mut Texts) -> Result<Option<Arc<str>>, WriterError> {
        match self.cells.value(place) {
            Value::Missing => Ok(None),
            Value::Text(text) => Ok(Some(texts.intern(text))),
            Value::Shared(text) => Ok(Some(text)),
            // A column without any text, as pandas writes it.
            Value::Float(x) if x.is_nan() => Ok(None),
            other => Err(self.bad(&other)),
        }
    }

    fn need(&self, place: usize, column: &str, texts: &mut Texts) -> Result<Arc<str>, WriterError> {
        self.text(place, texts)?.ok_or_else(|| self.empty(column))
    }

    fn float(&self, place: usize) -> Result<Option<f64>, WriterError> {
        let value = self.cells.value(place);
        let number = match &value {
            Value::Missing => return Ok(None),
            Value::Float(x) => Some(*x),
            Value::Int(n) => Some(*n as f64),
            Value::Text(text) => text.parse().ok(),
            Value::Shared(text) => text.parse().ok(),
            Value::Time(_) => None,
        };
        match number {
            Some(x) if x.is_nan() => Ok(None),
            Some(x) if x.is_finite() => Ok(Some(x)),
            _ => Err(self.bad(&value)),
        }
    }

    fn int(&self, place: usize) -> Result<Option<i64>, WriterError> {
        let value = self.cells.value(place);
        let whole = |x: f64| (x.fract() == 0.0 && x.abs() <= EXACT).then_some(x as i64);
        let number = match &value {
            Value::Missing => return Ok(None),
            Value::Float(x) if x.is_nan() => return Ok(None),
            Value::Int(n) => Some(*n),
            Value::Float(x) => whole(*x),
            Value::Text(text) => text.parse().ok().or_else(|| whole(text.parse().ok()?)),
            Value::Shared(text) => text.parse().ok().or_else(|| whole(text.parse().ok()?)),
            Value::Time(_) => None,
        };
        number.map(Some).ok_or_else(|| self.bad(&value))
    }

    /// A whole number of a column with less than 64 bits.
    fn narrow<T: TryFrom<i64>>(&self, place: usize) -> Result<Option<T>, WriterError> {
        let number = self.int(place)?;
        number.map(|n| T::try_from(n).map_err(|_| self.bad(&Value::Int(n)))).transpose()
    }

    fn time(&self, place: usize, column: &str) -> Result<i64, WriterError> {
        let value = self.cells.value(place);
        let parsed = match &value {
            Value::Missing => return Err(self.empty(column)),
            Value::Time(us) => Some(*us),
            Value::Text(text) => parse_time(text),
            Value::Shared(text) => parse_time(text),
            Value::Int(_) | Value::Float(_) => None,
        };
        parsed.ok_or_else(|| self.bad(&value))
    }
}

/// RFC 3339, and what pandas, Polars and DuckDB make of it: a blank for the `T`, `+00`, `+0000`.
fn parse_time(text: &str) -> Option<i64> {
    let stamp: jiff::Timestamp = text.parse().ok()?;
    Some(stamp.as_microsecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_other_programs_are_read() {
        let us = 1_790_000_000_000_123;
        for text in [
            "2026-09-21T14:13:20.000123Z",
            "2026-09-21 14:13:20.000123+00:00",
            "2026-09-21T14:13:20.000123+0000",
            "2026-09-21 14:13:20.000123+00",
            "2026-09-21 16:13:20.000123+02:00",
        ] {
            assert_eq!(parse_time(text), Some(us), "{text}");
        }
        assert_eq!(parse_time("2026-09-21"), None);
        assert_eq!(parse_time("time"), None);
    }
}
