//! Record batches into rows, whatever types a program that rewrote the log gave to the columns; Parquet files.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, ArrowTimestampType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Schema, TimeUnit};
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::file::metadata::{KeyValue, ParquetMetaData};

use super::super::WriterError;
use super::super::columns::ReadRow;
use super::super::decode::decode;
use super::super::metadata::Metadata;
use super::super::parquet_checksum;
use super::cells::{Cells, Shape, Texts, Value, rows_of};
use super::not_a_log;

/// Rows of a Parquet file that are read together.
const BATCH: usize = 4096;

/// A Parquet file that is being read.
pub(super) struct ParquetSource {
    reader: ParquetRecordBatchReader,
    /// The file with what it says about itself, until its checksum is compared before the first rows.
    unchecked: Option<(File, Arc<ParquetMetaData>)>,
    rows: u64,
    read: u64,
}

/// What a Parquet file has beside its rows.
pub(super) struct ParquetAbout {
    pub(super) metadata: Metadata,
    pub(super) names: Vec<String>,
}

impl ParquetSource {
    pub(super) fn open(path: &Path, file: File) -> Result<(ParquetSource, ParquetAbout), WriterError> {
        let handle = file.try_clone().map_err(WriterError::io("read", path))?;
        let builder = decode(|| ParquetRecordBatchReaderBuilder::try_new(file))
            .map_err(|e| not_a_log(path, format!("not a whole Parquet file: {e}")))?;
        let unchecked = Some((handle, Arc::clone(builder.metadata())));
        let of_file = builder.metadata().file_metadata();
        let metadata = key_values(of_file.key_value_metadata());
        let rows = u64::try_from(of_file.num_rows()).unwrap_or(0);
        let names = names_of(builder.schema());
        let reader = decode(|| builder.with_batch_size(BATCH).build()).map_err(|e| not_a_log(path, e))?;
        Ok((ParquetSource { reader, unchecked, rows, read: 0 }, ParquetAbout { metadata, names }))
    }

    /// The part of the rows that has been read, of this many bytes.
    pub(super) fn position(&self, size: u64) -> u64 {
        let done = u128::from(size) * u128::from(self.read) / u128::from(self.rows.max(1));
        u64::try_from(done).unwrap_or(size)
    }

    pub(super) fn next_batch(&mut self, path: &Path) -> Result<Option<RecordBatch>, WriterError> {
        if let Some((file, metadata)) = self.unchecked.take()
            && !parquet_checksum::is_whole(&file, &metadata).map_err(WriterError::io("read", path))?
        {
            return Err(not_a_log(path, "its checksum is wrong: it was damaged after it was written"));
        }
        let batch = decode(|| self.reader.next().transpose()).map_err(|e| not_a_log(path, e))?;
        self.read += batch.as_ref().map_or(0, |batch| batch.num_rows() as u64);
        Ok(batch)
    }
}

fn key_values(pairs: Option<&Vec<KeyValue>>) -> Metadata {
    pairs
        .into_iter()
        .flatten()
        .filter(|pair| pair.key.starts_with("gpurun.") && pair.key != parquet_checksum::KEY)
        .filter_map(|pair| Some((pair.key.clone(), pair.value.clone()?)))
        .collect()
}

pub(super) fn names_of(schema: &Schema) -> Vec<String> {
    schema.fields().iter().map(|f| f.name().clone()).collect()
}

/// Record batches of one schema into rows.
pub(crate) struct BatchRows {
    path: PathBuf,
    shape: Shape,
    texts: Texts,
}

impl BatchRows {
    pub(crate) fn new(path: &Path, schema: &Schema) -> Result<BatchRows, WriterError> {
        let mut texts = Texts::default();
        let shape = Shape::of(path, &names_of(schema), &Metadata::new(), &mut texts)?;
        Ok(BatchRows { path: path.to_owned(), shape, texts })
    }

    pub(crate) fn read(&mut self, batch: &RecordBatch) -> Result<VecDeque<ReadRow>, WriterError> {
        let mut out = VecDeque::with_capacity(batch.num_rows());
        rows_of_batch(&self.path, &self.shape, batch, &mut self.texts, &mut out)?;
        Ok(out)
    }
}

pub(super) fn rows_of_batch(
    path: &Path,
    shape: &Shape,
    batch: &RecordBatch,
    texts: &mut Texts,
    out: &mut VecDeque<ReadRow>,
) -> Result<(), WriterError> {
    let columns = batch.columns().iter().map(|array| column_of(array, texts)).collect();
    let mut cells = BatchCells { columns, row: 0 };
    for row in 0..batch.num_rows() {
        cells.row = row;
        rows_of(path, shape, &cells, texts, out)?;
    }
    Ok(())
}

/// The value of a column in a row.
type Column<'a> = Box<dyn Fn(usize) -> Value<'a> + 'a>;

struct BatchCells<'a> {
    columns: Vec<Column<'a>>,
    row: usize,
}

impl Cells for BatchCells<'_> {
    fn value(&self, place: usize) -> Value<'_> {
        self.columns.get(place).map_or(Value::Missing, |column| column(self.row))
    }

    fn place(&self) -> String {
        "a row".to_owned()
    }
}

/// How the values of a column are read. One of a type that no column of a log has reads as a text that says so, which
/// is an error where the column is one of ours.
fn column_of<'a>(array: &'a ArrayRef, texts: &mut Texts) -> Column<'a> {
    let known = match array.data_type() {
        DataType::Null => Some(boxed(|_| Value::Missing)),
        DataType::Int8 => ints::<Int8Type>(array),
        DataType::Int16 => ints::<Int16Type>(array),
        DataType::Int32 => ints::<Int32Type>(array),
        DataType::Int64 => ints::<Int64Type>(array),
        DataType::UInt8 => ints::<UInt8Type>(array),
        DataType::UInt16 => ints::<UInt16Type>(array),
        DataType::UInt32 => ints::<UInt32Type>(array),
        DataType::UInt64 => ints::<UInt64Type>(array),
        DataType::Float32 => floats::<Float32Type>(array),
        DataType::Float64 => floats::<Float64Type>(array),
        DataType::Timestamp(TimeUnit::Second, _) => times::<TimestampSecondType>(array),
        DataType::Timestamp(TimeUnit::Millisecond, _) => times::<TimestampMillisecondType>(array),
        DataType::Timestamp(TimeUnit::Microsecond, _) => times::<TimestampMicrosecondType>(array),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => times::<TimestampNanosecondType>(array),
        DataType::Dictionary(_, _) => dictionary(array, texts),
        _ => strings(array).map(|text| boxed(move |row| text(row).map_or(Value::Missing, Value::Text))),
    };
    let kind = array.data_type();
    known.unwrap_or_else(|| boxed(move |_| Value::Shared(format!("a {kind}").into())))
}

fn boxed<'a>(read: impl Fn(usize) -> Value<'a> + 'a) -> Column<'a> {
    Box::new(read)
}

fn ints<T: ArrowPrimitiveType<Native: TryInto<i64>>>(array: &ArrayRef) -> Option<Column<'_>> {
    let array = array.as_primitive_opt::<T>()?;
    Some(boxed(move |row| match array.is_valid(row) {
        true => array.value(row).try_into().map_or(Value::Float(f64::INFINITY), Value::Int),
        false => Value::Missing,
    }))
}

fn floats<T: ArrowPrimitiveType<Native: Into<f64>>>(array: &ArrayRef) -> Option<Column<'_>> {
    let array = array.as_primitive_opt::<T>()?;
    Some(boxed(move |row| match array.is_valid(row) {
        true => Value::Float(array.value(row).into()),
        false => Value::Missing,
    }))
}

fn times<T: ArrowTimestampType>(array: &ArrayRef) -> Option<Column<'_>> {
    let array = array.as_primitive_opt::<T>()?;
    let (times, over) = match T::UNIT {
        TimeUnit::Second => (1_000_000, 1),
        TimeUnit::Millisecond => (1_000, 1),
        TimeUnit::Microsecond => (1, 1),
        TimeUnit::Nanosecond => (1, 1_000),
    };
    Some(boxed(move |row| match array.is_valid(row) {
        true => Value::Time(array.value(row).saturating_mul(times).div_euclid(over)),
        false => Value::Missing,
    }))
}

/// The texts of an array, by row.
fn strings<'a>(array: &'a ArrayRef) -> Option<Box<dyn Fn(usize) -> Option<&'a str> + 'a>> {
    Some(match array.data_type() {
        DataType::Utf8 => {
            let array = array.as_string_opt::<i32>()?;
            Box::new(move |row| array.is_valid(row).then(|| array.value(row)))
        }
        DataType::LargeUtf8 => {
            let array = array.as_string_opt::<i64>()?;
            Box::new(move |row| array.is_valid(row).then(|| array.value(row)))
        }
        DataType::Utf8View => {
            let array = array.as_string_view_opt()?;
            Box::new(move |row| array.is_valid(row).then(|| array.value(row)))
        }
        _ => return None,
    })
}

fn dictionary<'a>(array: &'a ArrayRef, texts: &mut Texts) -> Option<Column<'a>> {
    let array = array.as_any_dictionary_opt()?;
    if array.values().is_empty() {
        return Some(boxed(|_| Value::Missing));
    }
    let text = strings(array.values())?;
    let values: Vec<Option<Arc<str>>> =
        (0..array.values().len()).map(|n| text(n).map(|text| texts.intern(text))).collect();
    let keys = array.normalized_keys();
    Some(boxed(move |row| {
        let value = array.keys().is_valid(row).then(|| keys.get(row)).flatten();
        value.and_then(|key| values.get(*key)?.clone()).map_or(Value::Missing, Value::Shared)
    }))
}
