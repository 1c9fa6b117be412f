//! A Parquet file that is being made: rows go to a temporary file, which gets the target's name when it is whole.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

use super::WriterError;
use super::columns::{ReadRow, WideBuilder, wide_schema};
use super::directory::{Directory, Placing, TempFile};
use super::metadata::Metadata;
use super::parquet_checksum;
use super::wide::{Columns, Pivot, WideRow};

/// Rows of a row group: large enough for small files, small enough for constant memory.
const ROW_GROUP: usize = 64 << 10;

/// A row group is held in memory until it is whole: wide rows get fewer of them.
const ROW_GROUP_CELLS: usize = 1 << 20;

/// Wide rows that are written together.
const WIDE_BATCH: usize = 256;

/// Chosen on a day of 8 GPUs (`cargo bench --bench writers`): plain values under zstd take 10.2 bytes a row,
/// dictionaries of values 12.0, split byte streams 12.1; higher levels save 2 % for twice the time.
fn properties(metadata: &Metadata, schema: &Schema) -> WriterProperties {
    let fields = schema.fields();
    let rows = (ROW_GROUP_CELLS / fields.len().max(1)).clamp(1024, ROW_GROUP);
    let pairs = metadata.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect();
    let mut builder = WriterProperties::builder()
        .set_key_value_metadata(Some(pairs))
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1).unwrap_or_default()))
        .set_max_row_group_row_count(Some(rows))
        .set_created_by(parquet_checksum::CREATED_BY.to_owned());
    for field in fields.iter().filter(|f| *f.data_type() == DataType::Float64 && f.name() != "window_s") {
        let column = ColumnPath::new(vec![field.name().clone()]);
        builder = builder.set_column_dictionary_enabled(column, false);
    }
    builder.build()
}

/// The error of a library call about a Parquet file.
pub(super) fn encoding(action: &'static str, path: &Path) -> impl Fn(ParquetError) -> WriterError {
    let path = path.to_owned();
    move |e| WriterError::Encoding { action, path: path.clone(), what: e.to_string() }
}

/// A Parquet file without its name.
pub(super) struct ParquetFile {
    writer: ArrowWriter<BufWriter<File>>,
    temp: TempFile,
    target: PathBuf,
    rows: u64,
}

impl ParquetFile {
    /// `target` is a path in the directory. The metadata goes to two places: DuckDB reads it beside the schema, pyarrow
    /// only inside it.
    pub(super) fn create(
        directory: &Directory,
        target: &Path,
        schema: &SchemaRef,
        metadata: Metadata,
    ) -> Result<ParquetFile, WriterError> {
        let properties = properties(&metadata, schema);
        let schema = Schema::new_with_metadata(
            schema.fields().clone(),
            metadata.into_iter().collect::<HashMap<_, _>>(),
        );
        let temp = TempFile::create(directory)
            .map_err(WriterError::io("make a temporary file in", directory.path()))?;
        let file = temp.file().try_clone().map_err(WriterError::io("write", target))?;
        let out = BufWriter::with_capacity(256 << 10, file);
        let writer = ArrowWriter::try_new(out, Arc::new(schema), Some(properties))
            .map_err(encoding("write", target))?;
        Ok(ParquetFile { writer, temp, target: target.to_owned(), rows: 0 })
    }

    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// Rows written so far.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<(), WriterError> {
        self.rows += batch.num_rows() as u64;
        self.writer.write(batch).map_err(encoding("write", &self.target))
    }

    /// Closes the file, brings it to the disk and gives it its name, or the next free one; answers with that.
    pub(super) fn finish(mut self, placing: Placing) -> Result<PathBuf, WriterError> {
        self.writer.append_key_value_metadata(parquet_checksum::placeholder());
        self.writer.finish().map_err(encoding("write", &self.target))?;
        let flushed = self.writer.inner_mut().flush();
        flushed
            .and_then(|()| parquet_checksum::seal(self.temp.file()))
            .map_err(WriterError::io("write", &self.target))?;
        self.temp.place(&self.target, placing).map_err(WriterError::io("write", &self.target))
    }
}

/// Long rows into a wide Parquet file.
pub(super) struct WideParquet {
    pivot: Pivot,
    builder: WideBuilder,
    file: ParquetFile,
}

impl WideParquet {
    pub(super) fn create(
        directory: &Directory,
        target: &Path,
        columns: Columns,
        labels: HashMap<String, String>,
        metadata: Metadata,
    ) -> Result<WideParquet, WriterError> {
        let file = ParquetFile::create(directory, target, &wide_schema(columns.names()), metadata)?;
        let builder = WideBuilder::new(columns.names());
        Ok(WideParquet { pivot: Pivot::new(columns, labels), builder, file })
    }

    pub(super) fn push(&mut self, row: &ReadRow) -> Result<(), WriterError> {
        match self.pivot.push(row) {
            Some(wide) => self.put(wide),
            None => Ok(()),
        }
    }

    pub(super) fn add_labels(&mut self, labels: HashMap<String, String>) {
        self.pivot.add_labels(labels);
    }

    pub(super) fn end_of_window(&mut self) -> Result<(), WriterError> {
        match self.pivot.flush() {
            Some(wide) => self.put(wide),
            None => Ok(()),
        }
    }

    fn put(&mut self, (fixed, values): WideRow) -> Result<(), WriterError> {
        self.builder.push(&fixed.as_long(), &values);
        if self.builder.rows() >= WIDE_BATCH { self.write_batch() } else { Ok(()) }
    }

    fn write_batch(&mut self) -> Result<(), WriterError> {
        let batch = self.builder.finish().map_err(|e| WriterError::Encoding {
            action: "write",
            path: self.file.target.clone(),
            what: e.to_string(),
        })?;
        self.file.write(&batch)
    }

    /// Rows so far, the one that is being gathered left out.
    pub(super) fn rows(&self) -> u64 {
        self.file.rows() + self.builder.rows() as u64
    }

    pub(super) fn into_file(mut self) -> Result<ParquetFile, WriterError> {
        self.end_of_window()?;
        self.write_batch()?;
        Ok(self.file)
    }
}
