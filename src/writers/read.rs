//! Logs back into rows: CSV, Parquet and journals, long and wide, finished or torn. Reads in batches,
//! in constant memory, and changes nothing.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, BufReader, Read, Take};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type, TimestampMicrosecondType, UInt32Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Schema};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::file::metadata::KeyValue;

use super::WriterError;
use super::columns::{FIXED, LONG};
use super::csv_file::whole_lines;
use super::decode::decode;
use super::journal_reader::{JournalReader, losses};
use super::metadata::{self, Metadata};
use super::target::{journal_path, target_of_journal};
use super::wide::{Key, device_labels, parse_column};

pub use super::columns::ReadRow;

/// The rows of one log, in the order in which they were written.
pub struct LogReader {
    path: PathBuf,
    metadata: Metadata,
    source: Source,
    shape: Shape,
    ready: VecDeque<ReadRow>,
    texts: HashSet<Arc<str>>,
    columns: Vec<String>,
    dropped: Option<String>,
    damaged: bool,
    size: u64,
    done: bool,
}

enum Source {
    Csv { reader: csv::Reader<Take<BufReader<File>>>, record: csv::StringRecord, torn: u64 },
    Parquet { reader: ParquetRecordBatchReader, rows: u64, read: u64 },
    Journal(JournalReader),
}

/// Where the columns stand.
enum Shape {
    /// Place of each long column.
    Long([usize; LONG.len()]),
    /// Places of the eight fixed columns, and of the statistics of each series.
    Wide { fixed: [usize; FIXED], series: Vec<WideSeries> },
}

struct WideSeries {
    scope: Arc<str>,
    gpu: Option<i32>,
    cuda: Option<i32>,
    uuid: Option<Arc<str>>,
    metric: Arc<str>,
    unit: Arc<str>,
    places: [Option<usize>; 4],
}

fn not_a_log(path: &Path, what: impl ToString) -> WriterError {
    WriterError::NotALog { path: path.to_owned(), what: what.to_string() }
}

/// Opens a log for reading: a CSV file, a Parquet file or a journal, told apart by their first bytes.
pub fn rows(path: &Path) -> Result<LogReader, WriterError> {
    rows_of_file(path, File::open(path).map_err(WriterError::io("open", path))?)
}

/// The rows of a log that is open; `path` is what it is called in errors.
pub(super) fn rows_of_file(path: &Path, mut file: File) -> Result<LogReader, WriterError> {
    let size = file.metadata().map_err(WriterError::io("look at", path))?.len();
    let mut start = Vec::new();
    Read::by_ref(&mut file).take(8).read_to_end(&mut start).map_err(WriterError::io("read", path))?;
    io::Seek::rewind(&mut file).map_err(WriterError::io("read", path))?;
    if start.starts_with(b"PAR1") {
        open_parquet(path, file, size)
    } else if start.starts_with(&[0xff, 0xff, 0xff, 0xff]) {
        open_journal(path, file, size)
    } else if start.is_empty() {
        Err(not_a_log(path, "it is empty"))
    } else {
        open_csv(path, file, size)
    }
}

/// The logs that a path means: a file itself, or the CSV, Parquet and journal files of a directory, by
/// name. A journal whose rows are in the finished file beside it is left out. A file that is not there yet
/// means its journal.
pub fn logs(path: &Path) -> Result<Vec<PathBuf>, WriterError> {
    if !path.is_dir() {
        let journal = journal_path(path);
        let unfinished = !path.exists() && journal.exists();
        return Ok(vec![if unfinished { journal } else { path.to_owned() }]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(WriterError::io("read", path))? {
        let entry = entry.map_err(WriterError::io("read", path))?.path();
        let name = entry.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let is_log = [".csv", ".parquet", ".parquet.journal"].iter().any(|suffix| name.ends_with(suffix));
        if is_log && !name.starts_with('.') && entry.is_file() && !is_finished_journal(&entry) {
            found.push(entry);
        }
    }
    if found.is_empty() {
        return Err(WriterError::NoLog(path.to_owned()));
    }
    found.sort();
    Ok(found)
}

fn is_finished_journal(path: &Path) -> bool {
    let Some(target) = target_of_journal(path) else { return false };
    if path.metadata().is_ok_and(|m| m.len() == 0) {
        return true;
    }
    match (rows(path), rows(&target)) {
        (Ok(journal), Ok(file)) => journal
            .metadata()
            .get(metadata::JOURNAL)
            .is_some_and(|name| metadata::texts(file.metadata(), metadata::JOURNALS).contains(name)),
        _ => false,
    }
}

fn open_csv(path: &Path, file: File, size: u64) -> Result<LogReader, WriterError> {
    let whole = whole_lines(&file, size).map_err(WriterError::io("read", path))?;
    let reader = BufReader::with_capacity(256 << 10, file).take(whole);
    let mut reader = csv::ReaderBuilder::new().from_reader(reader);
    let names: Vec<String> =
        reader.headers().map_err(|e| not_a_log(path, e))?.iter().map(str::to_owned).collect();
    let metadata = Metadata::new();
    let mut texts = HashSet::new();
    let shape = shape_of(path, &names, &metadata, &mut texts)?;
    let source = Source::Csv { reader, record: csv::StringRecord::new(), torn: size - whole };
    Ok(LogReader::new(path, metadata, source, shape, names, texts, size))
}

fn open_parquet(path: &Path, file: File, size: u64) -> Result<LogReader, WriterError> {
    let builder = decode(|| ParquetRecordBatchReaderBuilder::try_new(file))
        .map_err(|e| not_a_log(path, format!("not a whole Parquet file: {e}")))?;
    let metadata = key_values(builder.metadata().file_metadata().key_value_metadata());
    let rows = u64::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or(0);
    let mut texts = HashSet::new();
    let names = names_of(builder.schema());
    let shape = shape_of(path, &names, &metadata, &mut texts)?;
    let reader = decode(|| builder.with_batch_size(4096).build()).map_err(|e| not_a_log(path, e))?;
    let source = Source::Parquet { reader, rows, read: 0 };
    Ok(LogReader::new(path, metadata, source, shape, names, texts, size))
}

fn open_journal(path: &Path, file: File, size: u64) -> Result<LogReader, WriterError> {
    let reader = JournalReader::open(Arc::new(file), size).map_err(|error| journal_error(path, error))?;
    let metadata = reader.metadata().clone();
    let mut texts = HashSet::new();
    let names = names_of(reader.schema());
    let shape = shape_of(path, &names, &metadata, &mut texts)?;
    Ok(LogReader::new(path, metadata, Source::Journal(reader), shape, names, texts, size))
}

/// The error of a journal that cannot be opened.
pub(super) fn journal_error(path: &Path, error: io::Error) -> WriterError {
    match error.kind() {
        io::ErrorKind::InvalidData => not_a_log(path, error),
        _ => WriterError::io("read", path)(error),
    }
}

fn key_values(pairs: Option<&Vec<KeyValue>>) -> Metadata {
    pairs
        .into_iter()
        .flatten()
        .filter(|pair| pair.key.starts_with("gpurun."))
        .filter_map(|pair| Some((pair.key.clone(), pair.value.clone()?)))
        .collect()
}

fn names_of(schema: &Schema) -> Vec<String> {
    schema.fields().iter().map(|f| f.name().clone()).collect()
}

fn shape_of(
    path: &Path,
    names: &[String],
    metadata: &Metadata,
    texts: &mut HashSet<Arc<str>>,
) -> Result<Shape, WriterError> {
    if let Some(version) = metadata.get(metadata::VERSION)
        && *version != crate::model::run::SCHEMA_VERSION.to_string()
    {
        return Err(not_a_log(
            path,
            format!("its schema has version {version}, this gpurun reads version 1"),
        ));
    }
    let place = |name: &str| {
        names
            .iter()
            .position(|n| n == name)
            .ok_or_else(|| not_a_log(path, format!("it has no column {name}")))
    };
    if names.iter().any(|n| n == "metric") {
        let mut places = [0; LONG.len()];
        for (slot, column) in places.iter_mut().zip(LONG) {
            *slot = place(column.name)?;
        }
        return Ok(Shape::Long(places));
    }
    let mut fixed = [0; FIXED];
    for (slot, column) in fixed.iter_mut().zip(LONG) {
        *slot = place(column.name)?;
    }
    let uuids: HashMap<String, String> =
        device_labels(metadata).into_iter().map(|(uuid, label)| (label, uuid)).collect();
    let mut series: Vec<(Key, WideSeries)> = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let Some((key, stat)) = parse_column(name) else { continue };
        let at = match series.iter().position(|(k, _)| *k == key) {
            Some(at) => at,
            None => {
                let uuid = key.label.as_ref().and_then(|label| uuids.get(label));
                let entry = WideSeries {
                    scope: intern(texts, key.scope),
                    gpu: key.gpu,
                    cuda: key.cuda,
                    uuid: uuid.map(|uuid| intern(texts, uuid)),
                    metric: intern(texts, &key.metric),
                    unit: intern(texts, &key.unit),
                    places: [None; 4],
                };
                series.push((key, entry));
                series.len() - 1
            }
        };
        series[at].1.places[stat] = Some(n);
    }
    Ok(Shape::Wide { fixed, series: series.into_iter().map(|(_, s)| s).collect() })
}

fn intern(texts: &mut HashSet<Arc<str>>, text: &str) -> Arc<str> {
    if let Some(known) = texts.get(text) {
        return Arc::clone(known);
    }
    let text: Arc<str> = text.into();
    texts.insert(Arc::clone(&text));
    text
}

impl LogReader {
    fn new(
        path: &Path,
        metadata: Metadata,
        source: Source,
        shape: Shape,
        columns: Vec<String>,
        texts: HashSet<Arc<str>>,
        size: u64,
    ) -> Self {
        LogReader {
            columns,
            path: path.to_owned(),
            metadata,
            source,
            shape,
            ready: VecDeque::new(),
            texts,
            dropped: None,
            damaged: false,
            size,
            done: false,
        }
    }

    /// What the file says about its run; empty for CSV, which cannot say anything.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// What was left out because it was torn or damaged, in words; known when the rows are used up.
    pub fn dropped(&self) -> Option<&str> {
        self.dropped.as_deref()
    }

    /// Whether more was left out than the end of a log whose writer was killed; known when the rows are used up.
    pub fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// The part of the file that has been read, from 0 to its size in bytes.
    pub fn progress(&self) -> (u64, u64) {
        let done = match &self.source {
            Source::Csv { reader, .. } => reader.position().byte(),
            Source::Parquet { rows, read, .. } => {
                u64::try_from(u128::from(self.size) * u128::from(*read) / u128::from((*rows).max(1)))
                    .unwrap_or(self.size)
            }
            Source::Journal(reader) => reader.position(),
        };
        (done.min(self.size), self.size)
    }

    /// The series columns of a wide log, in their order.
    pub(super) fn series_columns(&self) -> Vec<String> {
        let is_series = |name: &&String| !LONG.iter().any(|column| column.name == **name);
        self.columns.iter().filter(is_series).cloned().collect()
    }

    /// Whether the log has the wide layout.
    pub fn is_wide(&self) -> bool {
        matches!(self.shape, Shape::Wide { .. })
    }

    fn fill(&mut self) -> Result<(), WriterError> {
        match &mut self.source {
            Source::Csv { reader, record, torn } => {
                if reader.read_record(record).map_err(|e| not_a_log(&self.path, e))? {
                    let cells = CsvCells { record, path: &self.path, line: reader.position().line() };
                    rows_of(&self.shape, &cells, &mut self.texts, &mut self.ready)?;
                } else {
                    self.done = true;
                    if *torn > 0 {
                        self.dropped = Some(format!("an incomplete last line of {torn} bytes was left out"));
                    }
                }
            }
            Source::Parquet { reader, read, .. } => {
                match decode(|| reader.next().transpose()).map_err(|e| not_a_log(&self.path, e))? {
                    Some(batch) => {
                        *read += batch.num_rows() as u64;
                        rows_of_batch(&self.path, &self.shape, &batch, &mut self.texts, &mut self.ready)?;
                    }
                    None => self.done = true,
                }
            }
            Source::Journal(reader) => {
                match reader.next_batch().map_err(WriterError::io("read", &self.path))? {
                    Some(batch) => {
                        rows_of_batch(&self.path, &self.shape, &batch, &mut self.texts, &mut self.ready)?;
                    }
                    None => {
                        self.done = true;
                        let losses = losses(reader.torn_bytes(), reader.damage());
                        self.dropped = (!losses.is_empty()).then(|| losses.join("; "));
                        self.damaged = !reader.damage().is_empty();
                    }
                }
            }
        }
        Ok(())
    }
}

impl Iterator for LogReader {
    type Item = Result<ReadRow, WriterError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.ready.pop_front() {
                return Some(Ok(row));
            }
            if self.done {
                return None;
            }
            if let Err(e) = self.fill() {
                self.done = true;
                return Some(Err(e));
            }
        }
    }
}

/// Cells of one row, by place.
trait Cells {
    fn text(&self, place: usize, texts: &mut HashSet<Arc<str>>) -> Result<Option<Arc<str>>, WriterError>;
    fn float(&self, place: usize) -> Result<Option<f64>, WriterError>;
    fn int(&self, place: usize) -> Result<Option<i64>, WriterError>;
    fn time(&self, place: usize) -> Result<i64, WriterError>;
    fn missing(&self, place: usize) -> WriterError;
}

fn rows_of(
    shape: &Shape,
    cells: &impl Cells,
    texts: &mut HashSet<Arc<str>>,
    out: &mut VecDeque<ReadRow>,
) -> Result<(), WriterError> {
    let narrow = |value: Option<i64>| value.and_then(|v| i32::try_from(v).ok());
    let count = |value: Option<i64>| value.and_then(|v| u32::try_from(v).ok());
    let need = |value: Option<Arc<str>>, place| value.ok_or_else(|| cells.missing(place));
    let fixed = match shape {
        Shape::Long(places) => &places[..FIXED],
        Shape::Wide { fixed, .. } => &fixed[..],
    };
    let blank = intern(texts, "");
    let mut row = ReadRow {
        time_us: cells.time(fixed[0])?,
        window_s: cells.float(fixed[1])?.ok_or_else(|| cells.missing(fixed[1]))?,
        run: need(cells.text(fixed[2], texts)?, fixed[2])?,
        host: need(cells.text(fixed[3], texts)?, fixed[3])?,
        rank: narrow(cells.int(fixed[4])?),
        kind: need(cells.text(fixed[5], texts)?, fixed[5])?,
        tag: need(cells.text(fixed[6], texts)?, fixed[6])?,
        step: cells.int(fixed[7])?,
        scope: Arc::clone(&blank),
        gpu: None,
        cuda: None,
        uuid: None,
        pid: None,
        process: None,
        metric: Arc::clone(&blank),
        unit: Arc::clone(&blank),
        mean: None,
        min: None,
        max: None,
        last: None,
        samples: None,
        missing: None,
    };
    match shape {
        Shape::Long(at) => {
            row.scope = need(cells.text(at[8], texts)?, at[8])?;
            row.gpu = narrow(cells.int(at[9])?);
            row.cuda = narrow(cells.int(at[10])?);
            row.uuid = cells.text(at[11], texts)?;
            row.pid = cells.int(at[12])?;
            row.process = cells.text(at[13], texts)?;
            row.metric = need(cells.text(at[14], texts)?, at[14])?;
            row.unit = cells.text(at[15], texts)?.unwrap_or(blank);
            row.mean = cells.float(at[16])?;
            row.min = cells.float(at[17])?;
            row.max = cells.float(at[18])?;
            row.last = cells.float(at[19])?;
            row.samples = count(cells.int(at[20])?);
            row.missing = count(cells.int(at[21])?);
            out.push_back(row);
        }
        Shape::Wide { series, .. } => {
            for series in series {
                let get = |n: usize| series.places[n].map_or(Ok(None), |place| cells.float(place));
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
                    ..row.clone()
                });
            }
        }
    }
    Ok(())
}

struct CsvCells<'a> {
    record: &'a csv::StringRecord,
    path: &'a Path,
    line: u64,
}

impl CsvCells<'_> {
    fn get(&self, place: usize) -> Option<&str> {
        self.record.get(place).filter(|text| !text.is_empty())
    }

    fn bad(&self, text: &str) -> WriterError {
        not_a_log(
            self.path,
            format!("line {}: {text:?} is no value of its column", self.line.saturating_sub(1)),
        )
    }
}

impl Cells for CsvCells<'_> {
    fn text(&self, place: usize, texts: &mut HashSet<Arc<str>>) -> Result<Option<Arc<str>>, WriterError> {
        Ok(self.get(place).map(|text| intern(texts, text)))
    }

    fn float(&self, place: usize) -> Result<Option<f64>, WriterError> {
        self.get(place).map(|text| text.parse().map_err(|_| self.bad(text))).transpose()
    }

    fn int(&self, place: usize) -> Result<Option<i64>, WriterError> {
        self.get(place).map(|text| text.parse().map_err(|_| self.bad(text))).transpose()
    }

    fn time(&self, place: usize) -> Result<i64, WriterError> {
        let text = self.get(place).ok_or_else(|| self.missing(place))?;
        let stamp: jiff::Timestamp = text.parse().map_err(|_| self.bad(text))?;
        Ok(stamp.as_microsecond())
    }

    fn missing(&self, place: usize) -> WriterError {
        not_a_log(self.path, format!("line {}: column {} is empty", self.line.saturating_sub(1), place + 1))
    }
}

/// Columns of a record batch, dictionaries already turned into shared texts.
struct Batch<'a> {
    path: &'a Path,
    columns: Vec<ColumnOf<'a>>,
    row: usize,
}

enum ColumnOf<'a> {
    Dictionary(&'a arrow_array::Int32Array, Vec<Arc<str>>),
    Text(&'a arrow_array::StringArray),
    Float(&'a arrow_array::Float64Array),
    Int32(&'a arrow_array::Int32Array),
    Int64(&'a arrow_array::Int64Array),
    UInt32(&'a arrow_array::UInt32Array),
    Time(&'a arrow_array::TimestampMicrosecondArray),
}

fn column_of<'a>(array: &'a ArrayRef, texts: &mut HashSet<Arc<str>>) -> Option<ColumnOf<'a>> {
    Some(match array.data_type() {
        DataType::Dictionary(_, _) => {
            let dictionary = array.as_dictionary_opt::<Int32Type>()?;
            let values = dictionary.values().as_string_opt::<i32>()?;
            let values = (0..values.len()).map(|n| intern(texts, values.value(n))).collect();
            ColumnOf::Dictionary(dictionary.keys(), values)
        }
        DataType::Utf8 => ColumnOf::Text(array.as_string_opt::<i32>()?),
        DataType::Float64 => ColumnOf::Float(array.as_primitive_opt::<Float64Type>()?),
        DataType::Int32 => ColumnOf::Int32(array.as_primitive_opt::<Int32Type>()?),
        DataType::Int64 => ColumnOf::Int64(array.as_primitive_opt::<Int64Type>()?),
        DataType::UInt32 => ColumnOf::UInt32(array.as_primitive_opt::<UInt32Type>()?),
        DataType::Timestamp(_, _) => ColumnOf::Time(array.as_primitive_opt::<TimestampMicrosecondType>()?),
        _ => return None,
    })
}

fn rows_of_batch(
    path: &Path,
    shape: &Shape,
    batch: &RecordBatch,
    texts: &mut HashSet<Arc<str>>,
    out: &mut VecDeque<ReadRow>,
) -> Result<(), WriterError> {
    let mut columns = Vec::with_capacity(batch.num_columns());
    for (array, field) in batch.columns().iter().zip(batch.schema().fields()) {
        let column = column_of(array, texts)
            .ok_or_else(|| not_a_log(path, format!("column {} has another type", field.name())))?;
        columns.push(column);
    }
    let mut cells = Batch { path, columns, row: 0 };
    for row in 0..batch.num_rows() {
        cells.row = row;
        rows_of(shape, &cells, texts, out)?;
    }
    Ok(())
}

/// Record batches of one schema into rows.
pub(super) struct BatchRows {
    path: PathBuf,
    shape: Shape,
    texts: HashSet<Arc<str>>,
}

impl BatchRows {
    pub(super) fn new(path: &Path, schema: &Schema) -> Result<BatchRows, WriterError> {
        let mut texts = HashSet::new();
        let shape = shape_of(path, &names_of(schema), &Metadata::new(), &mut texts)?;
        Ok(BatchRows { path: path.to_owned(), shape, texts })
    }

    pub(super) fn read(&mut self, batch: &RecordBatch) -> Result<VecDeque<ReadRow>, WriterError> {
        let mut out = VecDeque::with_capacity(batch.num_rows());
        rows_of_batch(&self.path, &self.shape, batch, &mut self.texts, &mut out)?;
        Ok(out)
    }
}

impl Batch<'_> {
    fn bad(&self, place: usize) -> WriterError {
        not_a_log(self.path, format!("column {} has another type", place + 1))
    }
}

impl Cells for Batch<'_> {
    fn text(&self, place: usize, texts: &mut HashSet<Arc<str>>) -> Result<Option<Arc<str>>, WriterError> {
        match &self.columns[place] {
            ColumnOf::Dictionary(keys, values) => {
                let key = keys.is_valid(self.row).then(|| keys.value(self.row));
                Ok(key.and_then(|key| values.get(usize::try_from(key).ok()?)).cloned())
            }
            ColumnOf::Text(array) => {
                Ok(array.is_valid(self.row).then(|| intern(texts, array.value(self.row))))
            }
            _ => Err(self.bad(place)),
        }
    }

    fn float(&self, place: usize) -> Result<Option<f64>, WriterError> {
        match &self.columns[place] {
            ColumnOf::Float(array) => Ok(array.is_valid(self.row).then(|| array.value(self.row))),
            _ => Err(self.bad(place)),
        }
    }

    fn int(&self, place: usize) -> Result<Option<i64>, WriterError> {
        match &self.columns[place] {
            ColumnOf::Int32(a) => Ok(a.is_valid(self.row).then(|| i64::from(a.value(self.row)))),
            ColumnOf::Int64(a) => Ok(a.is_valid(self.row).then(|| a.value(self.row))),
            ColumnOf::UInt32(a) => Ok(a.is_valid(self.row).then(|| i64::from(a.value(self.row)))),
            _ => Err(self.bad(place)),
        }
    }

    fn time(&self, place: usize) -> Result<i64, WriterError> {
        match &self.columns[place] {
            ColumnOf::Time(array) if array.is_valid(self.row) => Ok(array.value(self.row)),
            ColumnOf::Time(_) => Err(self.missing(place)),
            _ => Err(self.bad(place)),
        }
    }

    fn missing(&self, place: usize) -> WriterError {
        not_a_log(self.path, format!("column {} has a null", place + 1))
    }
}
