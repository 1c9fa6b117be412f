//! The long layout: its columns, its Arrow schema, rows as they go in and as they come back.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{Float64Builder, Int32Builder, Int64Builder, UInt32Builder};
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, DictionaryArray, Int32Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};

use crate::model::metric::Scope;
use crate::model::run::RunInfo;
use crate::model::time::Wall;
use crate::model::window::{Row, WindowBatch};

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Time,
    Text,
    Int32,
    Int64,
    UInt32,
    Float,
}

/// One column of the long layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) content: Content,
    pub(super) nullable: bool,
    pub(super) about: &'static str,
}

const fn column(name: &'static str, content: Content, nullable: bool, about: &'static str) -> Column {
    Column { name, content, nullable, about }
}

/// The columns of the long layout, in their order.
pub(super) const LONG: [Column; 25] = [
    column("time", Content::Time, false, "end of the window, UTC"),
    column("start", Content::Time, false, "start of the window, UTC, by the clock that gave its end"),
    column("window_s", Content::Float, false, "length of the window in seconds, suspended time excluded"),
    column("run", Content::Text, false, "name of the run"),
    column("host", Content::Text, false, "host name"),
    column("rank", Content::Int32, true, "RANK of the process that the row is about, where there is one"),
    column(
        "kind",
        Content::Text,
        false,
        "window (periodic), tag (the span of a closed tag) or step (a number of training steps)",
    ),
    column("tag", Content::Text, false, "tag path, root tag first"),
    column(
        "occurrence",
        Content::Int32,
        true,
        "1 the first time that the tag was opened on this rank, 2 the second, ...",
    ),
    column(
        "epoch",
        Content::Int64,
        true,
        "epoch that the job said; null where none was said, or where several began in the window",
    ),
    column("step", Content::Int64, true, "training step of step rows and of scalars logged with one"),
    column("scope", Content::Text, false, "host, gpu, job, process, gpurun, user or batch_time"),
    column("gpu", Content::Int32, true, "NVML index of the GPU"),
    column("cuda", Content::Int32, true, "ordinal in the job's CUDA_VISIBLE_DEVICES"),
    column("uuid", Content::Text, true, "UUID of the GPU or MIG slice"),
    column("pid", Content::Int64, true, "process id"),
    column("process", Content::Text, true, "process name"),
    column("metric", Content::Text, false, "name of the metric"),
    column("unit", Content::Text, false, "unit of mean, min, max and last; empty for a bare number"),
    column("mean", Content::Float, true, "time-weighted mean over the window; null is unknown"),
    column("min", Content::Float, true, "smallest value seen"),
    column("max", Content::Float, true, "largest value seen"),
    column("last", Content::Float, true, "value at the end of the window"),
    column(
        "samples",
        Content::UInt32,
        true,
        "reads that gave a value; null only where a wide file was the source",
    ),
    column("missing", Content::UInt32, true, "reads that were due and gave none; null as samples"),
];

/// Columns that the wide layout shares with the long one, in front of its series.
pub(super) const FIXED: usize = 11;

/// The statistics of the wide layout, in their order.
pub(super) const STATS: [&str; 4] = ["mean", "min", "max", "last"];

pub(super) fn data_type(content: Content) -> DataType {
    match content {
        Content::Time => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        Content::Text => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        Content::Int32 => DataType::Int32,
        Content::Int64 => DataType::Int64,
        Content::UInt32 => DataType::UInt32,
        Content::Float => DataType::Float64,
    }
}

fn field(column: &Column) -> Field {
    Field::new(column.name, data_type(column.content), column.nullable)
}

/// The Arrow schema of the long layout.
pub(super) fn long_schema() -> SchemaRef {
    Arc::new(Schema::new(LONG.iter().map(field).collect::<Vec<_>>()))
}

/// The Arrow schema of the wide layout with these series columns.
pub(super) fn wide_schema(series: &[String]) -> SchemaRef {
    let mut fields: Vec<Field> = LONG[..FIXED].iter().map(field).collect();
    fields.extend(series.iter().map(|name| Field::new(name, DataType::Float64, true)));
    Arc::new(Schema::new(fields))
}

/// RFC 3339 in UTC with microseconds.
pub(super) fn rfc3339(time: Wall) -> String {
    let stamp = jiff::Timestamp::from_microsecond(time.0).unwrap_or_default();
    format!("{stamp:.6}")
}

/// A row on its way into a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LongRow<'a> {
    pub(super) time: i64,
    pub(super) start: i64,
    pub(super) window_s: f64,
    pub(super) run: &'a str,
    pub(super) host: &'a str,
    pub(super) rank: Option<i32>,
    pub(super) kind: &'a str,
    pub(super) tag: &'a str,
    pub(super) occurrence: Option<i32>,
    pub(super) epoch: Option<i64>,
    pub(super) step: Option<i64>,
    pub(super) scope: &'a str,
    pub(super) gpu: Option<i32>,
    pub(super) cuda: Option<i32>,
    pub(super) uuid: Option<&'a str>,
    pub(super) pid: Option<i64>,
    pub(super) process: Option<&'a str>,
    pub(super) metric: &'a str,
    pub(super) unit: &'a str,
    pub(super) stats: [Option<f64>; 4],
    pub(super) samples: Option<u32>,
    pub(super) missing: Option<u32>,
}

impl<'a> LongRow<'a> {
    /// The row as the long layout has it. Non-finite numbers are unknown.
    pub(super) fn of(run: &'a RunInfo, batch: &'a WindowBatch, row: &'a Row) -> LongRow<'a> {
        let series = &*row.series;
        let device = series.device.as_deref();
        let process = series.process.as_deref();
        let stats = &row.stats;
        LongRow {
            time: batch.time.0,
            start: start_of(batch),
            window_s: batch.window_s,
            run: &run.run,
            host: &run.host,
            rank: batch.rank.or(run.rank),
            kind: batch.kind.name(),
            tag: &batch.tag,
            occurrence: i32::try_from(batch.occurrence).ok(),
            epoch: batch.epoch,
            step: batch.step,
            scope: series.scope().name(),
            gpu: device.and_then(|d| i32::try_from(d.index).ok()),
            cuda: device.and_then(|d| d.cuda).and_then(|n| i32::try_from(n).ok()),
            uuid: device.map(|d| d.uuid.as_str()),
            pid: process.map(|p| i64::from(p.key.pid)),
            process: process.map(|p| &*p.name),
            metric: series.name(),
            unit: series.unit(),
            stats: [stats.mean, stats.min, stats.max, stats.last].map(|v| v.filter(|v| v.is_finite())),
            samples: Some(stats.samples),
            missing: Some(stats.missing),
        }
    }
}

/// The label of a batch's begin: as far before that of its end as the monotonic clock says, suspended time included.
fn start_of(batch: &WindowBatch) -> i64 {
    let length = batch.end.since(batch.start).as_micros();
    batch.time.0.saturating_sub(i64::try_from(length).unwrap_or(i64::MAX))
}

/// A row as it comes back out of a log, whatever the file's format and layout.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadRow {
    /// End of the window, in microseconds since the Unix epoch, UTC.
    pub time_us: i64,
    /// Begin of the window, in microseconds since the Unix epoch, UTC.
    pub start_us: i64,
    /// Length of the window in seconds.
    pub window_s: f64,
    /// Name of the run.
    pub run: Arc<str>,
    /// Host name.
    pub host: Arc<str>,
    /// Rank.
    pub rank: Option<i32>,
    /// `window`, `tag` or `step`.
    pub kind: Arc<str>,
    /// Tag path, root tag first.
    pub tag: Arc<str>,
    /// How often the tag had been opened on this rank.
    pub occurrence: Option<i32>,
    /// Epoch.
    pub epoch: Option<i64>,
    /// Training step.
    pub step: Option<i64>,
    /// `host`, `gpu`, `job`, `process`, `gpurun`, `user` or `batch_time`.
    pub scope: Arc<str>,
    /// NVML index.
    pub gpu: Option<i32>,
    /// Ordinal in the job's `CUDA_VISIBLE_DEVICES`.
    pub cuda: Option<i32>,
    /// UUID of the GPU or MIG slice.
    pub uuid: Option<Arc<str>>,
    /// Process id.
    pub pid: Option<i64>,
    /// Process name.
    pub process: Option<Arc<str>>,
    /// Name of the metric.
    pub metric: Arc<str>,
    /// Unit; empty for a bare number.
    pub unit: Arc<str>,
    /// Time-weighted mean; `None` is unknown.
    pub mean: Option<f64>,
    /// Smallest value.
    pub min: Option<f64>,
    /// Largest value.
    pub max: Option<f64>,
    /// Value at the end of the window.
    pub last: Option<f64>,
    /// Reads that gave a value; `None` from a wide file, which does not have it.
    pub samples: Option<u32>,
    /// Reads that gave none; `None` as for `samples`.
    pub missing: Option<u32>,
}

impl ReadRow {
    pub(super) fn as_long(&self) -> LongRow<'_> {
        LongRow {
            time: self.time_us,
            start: self.start_us,
            window_s: self.window_s,
            run: &self.run,
            host: &self.host,
            rank: self.rank,
            kind: &self.kind,
            tag: &self.tag,
            occurrence: self.occurrence,
            epoch: self.epoch,
            step: self.step,
            scope: &self.scope,
            gpu: self.gpu,
            cuda: self.cuda,
            uuid: self.uuid.as_deref(),
            pid: self.pid,
            process: self.process.as_deref(),
            metric: &self.metric,
            unit: &self.unit,
            stats: [self.mean, self.min, self.max, self.last],
            samples: self.samples,
            missing: self.missing,
        }
    }
}

/// Scopes that the wide layout has columns for: those whose series are known at the start.
pub(super) fn has_wide_columns(scope: &str) -> bool {
    [Scope::Host, Scope::Gpu, Scope::Job].iter().any(|s| s.name() == scope)
}

/// The series columns of a run in the wide layout: `run/cuda:0 (gpu:3)/gpu_utilization (%)/mean`.
pub(super) fn wide_columns(run: &RunInfo) -> Vec<String> {
    // As readers of the rows see it: the first component of the tag.
    let root = run.root_tag.split('/').next().unwrap_or_default();
    let mut seen = std::collections::HashSet::new();
    let mut out = Vec::new();
    for series in run.series.iter().filter(|s| has_wide_columns(s.scope().name())) {
        let key = series.key();
        if seen.insert(key.clone()) {
            out.extend(STATS.iter().map(|stat| format!("{root}/{key}/{stat}")));
        }
    }
    out
}

/// Distinct texts of one column, numbered in the order of their first use.
#[derive(Default)]
struct Texts {
    numbers: HashMap<Arc<str>, i32>,
    values: Vec<Arc<str>>,
    /// The values as an array, while no new one has come: the same array is recognised by its address.
    array: Option<ArrayRef>,
    keys: Vec<Option<i32>>,
}

impl Texts {
    fn push(&mut self, text: Option<&str>) {
        let key = text.map(|text| match self.numbers.get(text) {
            Some(&n) => n,
            None => {
                let n = i32::try_from(self.values.len()).unwrap_or(i32::MAX);
                let text: Arc<str> = text.into();
                self.values.push(Arc::clone(&text));
                self.numbers.insert(text, n);
                self.array = None;
                n
            }
        });
        self.keys.push(key);
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let values = self
            .array
            .get_or_insert_with(|| Arc::new(StringArray::from_iter_values(self.values.iter().map(|v| &**v))));
        let keys = Int32Array::from(std::mem::take(&mut self.keys));
        Ok(Arc::new(DictionaryArray::<Int32Type>::try_new(keys, Arc::clone(values))?))
    }
}

/// The columns that both layouts share.
#[derive(Default)]
struct FixedBuilder {
    time: Vec<i64>,
    start: Vec<i64>,
    window_s: Float64Builder,
    run: Texts,
    host: Texts,
    rank: Int32Builder,
    kind: Texts,
    tag: Texts,
    occurrence: Int32Builder,
    epoch: Int64Builder,
    step: Int64Builder,
}

impl FixedBuilder {
    fn push(&mut self, row: &LongRow<'_>) {
        self.time.push(row.time);
        self.start.push(row.start);
        self.window_s.append_value(row.window_s);
        self.run.push(Some(row.run));
        self.host.push(Some(row.host));
        self.rank.append_option(row.rank);
        self.kind.push(Some(row.kind));
        self.tag.push(Some(row.tag));
        self.occurrence.append_option(row.occurrence);
        self.epoch.append_option(row.epoch);
        self.step.append_option(row.step);
    }

    fn finish(&mut self) -> Result<Vec<ArrayRef>, ArrowError> {
        let times = |values: &mut Vec<i64>| {
            Arc::new(TimestampMicrosecondArray::from(std::mem::take(values)).with_timezone("UTC"))
        };
        Ok(vec![
            times(&mut self.time),
            times(&mut self.start),
            Arc::new(self.window_s.finish()),
            self.run.finish()?,
            self.host.finish()?,
            Arc::new(self.rank.finish()),
            self.kind.finish()?,
            self.tag.finish()?,
            Arc::new(self.occurrence.finish()),
            Arc::new(self.epoch.finish()),
            Arc::new(self.step.finish()),
        ])
    }
}

/// Gathers rows into record batches of the long layout; dictionaries only grow from batch to batch.
pub(super) struct LongBuilder {
    schema: SchemaRef,
    fixed: FixedBuilder,
    scope: Texts,
    gpu: Int32Builder,
    cuda: Int32Builder,
    uuid: Texts,
    pid: Int64Builder,
    process: Texts,
    metric: Texts,
    unit: Texts,
    stats: [Float64Builder; 4],
    samples: UInt32Builder,
    missing: UInt32Builder,
}

impl LongBuilder {
    pub(super) fn new() -> LongBuilder {
        LongBuilder {
            schema: long_schema(),
            fixed: FixedBuilder::default(),
            scope: Texts::default(),
            gpu: Int32Builder::new(),
            cuda: Int32Builder::new(),
            uuid: Texts::default(),
            pid: Int64Builder::new(),
            process: Texts::default(),
            metric: Texts::default(),
            unit: Texts::default(),
            stats: Default::default(),
            samples: UInt32Builder::new(),
            missing: UInt32Builder::new(),
        }
    }

    pub(super) fn push(&mut self, row: &LongRow<'_>) {
        self.fixed.push(row);
        self.scope.push(Some(row.scope));
        self.gpu.append_option(row.gpu);
        self.cuda.append_option(row.cuda);
        self.uuid.push(row.uuid);
        self.pid.append_option(row.pid);
        self.process.push(row.process);
        self.metric.push(Some(row.metric));
        self.unit.push(Some(row.unit));
        for (builder, value) in self.stats.iter_mut().zip(row.stats) {
            builder.append_option(value);
        }
        self.samples.append_option(row.samples);
        self.missing.append_option(row.missing);
    }

    pub(super) fn rows(&self) -> usize {
        self.fixed.time.len()
    }

    pub(super) fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let mut columns = self.fixed.finish()?;
        columns.extend([
            self.scope.finish()?,
            Arc::new(self.gpu.finish()) as ArrayRef,
            Arc::new(self.cuda.finish()),
            self.uuid.finish()?,
            Arc::new(self.pid.finish()),
            self.process.finish()?,
            self.metric.finish()?,
            self.unit.finish()?,
        ]);
        columns.extend(self.stats.iter_mut().map(|b| Arc::new(b.finish()) as ArrayRef));
        columns.push(Arc::new(self.samples.finish()));
        columns.push(Arc::new(self.missing.finish()));
        RecordBatch::try_new(Arc::clone(&self.schema), columns)
    }
}

/// Gathers rows of the wide layout.
pub(super) struct WideBuilder {
    schema: SchemaRef,
    fixed: FixedBuilder,
    series: Vec<Float64Builder>,
}

impl WideBuilder {
    pub(super) fn new(columns: &[String]) -> WideBuilder {
        WideBuilder {
            schema: wide_schema(columns),
            fixed: FixedBuilder::default(),
            series: columns.iter().map(|_| Float64Builder::new()).collect(),
        }
    }

    /// `values` has one entry for each series column.
    pub(super) fn push(&mut self, fixed: &LongRow<'_>, values: &[Option<f64>]) {
        self.fixed.push(fixed);
        for (builder, value) in self.series.iter_mut().zip(values) {
            builder.append_option(*value);
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.fixed.time.len()
    }

    pub(super) fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let mut columns = self.fixed.finish()?;
        columns.extend(self.series.iter_mut().map(|b| Arc::new(b.finish()) as ArrayRef));
        RecordBatch::try_new(Arc::clone(&self.schema), columns)
    }
}
