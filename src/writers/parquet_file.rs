//! Parquet: a journal beside the target while the run lasts, one file written aside and renamed at
//! its end. What stands under the target's name is always whole.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

use crate::model::run::{RunEnd, RunInfo};
use crate::model::window::WindowBatch;

use super::columns::{LONG, ReadRow, WideBuilder, long_schema, wide_schema};
use super::disk::{LogFile, sync_directory_of};
use super::format::{Format, Writer};
use super::journal::{JournalEncoder, JournalReader};
use super::metadata::{self, Metadata};
use super::read;
use super::target::Target;
use super::wide::{Columns, Pivot, device_labels};
use super::{Layout, Mode, WriterError, WriterSettings};

/// Rows of a row group: large enough for small files, small enough for constant memory.
const ROW_GROUP: usize = 64 << 10;

/// A row group is held in memory until it is whole: wide rows get fewer of them.
const ROW_GROUP_CELLS: usize = 1 << 20;

/// `metrics.parquet.journal` of `metrics.parquet`.
pub fn journal_path(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".journal");
    PathBuf::from(name)
}

/// The target of a journal; `None` for another file.
pub fn target_of_journal(journal: &Path) -> Option<PathBuf> {
    let name = journal.file_name()?.to_str()?.strip_suffix(".journal")?;
    Some(journal.with_file_name(name))
}

/// Where the file is written before it gets its name; hidden, so that dataset readers pass it by.
pub(super) fn aside_path(target: &Path) -> PathBuf {
    let name = target.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    target.with_file_name(format!(".{name}.tmp"))
}

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
        .set_created_by(concat!("gpurun ", env!("CARGO_PKG_VERSION")).to_owned());
    for field in fields.iter().filter(|f| *f.data_type() == DataType::Float64 && f.name() != "window_s") {
        let column = ColumnPath::new(vec![field.name().clone()]);
        builder = builder.set_column_dictionary_enabled(column, false);
    }
    builder.build()
}

/// A Parquet file that is being written aside.
pub(super) struct Aside {
    writer: ArrowWriter<BufWriter<File>>,
    aside: PathBuf,
    target: PathBuf,
    rows: u64,
}

fn encoding(action: &'static str, path: &Path) -> impl Fn(parquet::errors::ParquetError) -> WriterError {
    let path = path.to_owned();
    move |e| WriterError::Encoding { action, path: path.clone(), what: e.to_string() }
}

impl Aside {
    /// The metadata goes to two places: DuckDB reads it beside the schema, pyarrow only inside it.
    pub(super) fn create(
        target: &Path,
        schema: &SchemaRef,
        metadata: Metadata,
    ) -> Result<Aside, WriterError> {
        let properties = properties(&metadata, schema);
        let schema = Schema::new_with_metadata(
            schema.fields().clone(),
            metadata.into_iter().collect::<HashMap<_, _>>(),
        );
        let aside = aside_path(target);
        let file = File::create(&aside).map_err(WriterError::io("create", &aside))?;
        let writer = ArrowWriter::try_new(
            BufWriter::with_capacity(256 << 10, file),
            Arc::new(schema),
            Some(properties),
        )
        .map_err(encoding("write", &aside))?;
        Ok(Aside { writer, aside, target: target.to_owned(), rows: 0 })
    }

    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<(), WriterError> {
        self.rows += batch.num_rows() as u64;
        self.writer.write(batch).map_err(encoding("write", &self.aside))
    }

    /// Closes, syncs and renames. `replace` is whether a file of that name may be there.
    pub(super) fn finish(mut self, replace: bool) -> Result<u64, WriterError> {
        self.writer.finish().map_err(encoding("write", &self.aside))?;
        let out = self.writer.inner_mut();
        out.flush().map_err(WriterError::io("write", &self.aside))?;
        out.get_ref().sync_all().map_err(WriterError::io("sync", &self.aside))?;
        put_in_place(&self.aside, &self.target, replace)?;
        Ok(self.rows)
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // After a rename there is nothing of that name; after a failure it would only take room.
        let _ = fs::remove_file(&self.aside);
    }
}

/// Gives a finished file its name and brings that to the disk.
pub(super) fn put_in_place(aside: &Path, target: &Path, replace: bool) -> Result<(), WriterError> {
    if replace {
        if let Ok(old) = fs::metadata(target) {
            // The successor is as readable as what it replaces.
            let _ = fs::set_permissions(aside, old.permissions());
        }
        fs::rename(aside, target).map_err(WriterError::io("rename to", target))?;
    } else {
        match fs::hard_link(aside, target) {
            Ok(()) => fs::remove_file(aside).map_err(WriterError::io("remove", aside))?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                return Err(WriterError::Exists(target.to_owned()));
            }
            // A filesystem without hard links cannot refuse to replace.
            Err(_) if !target.exists() => {
                fs::rename(aside, target).map_err(WriterError::io("rename to", target))?;
            }
            Err(_) => return Err(WriterError::Exists(target.to_owned())),
        }
    }
    sync_directory_of(target).map_err(WriterError::io("sync the directory of", target))
}

struct ParquetFormat {
    target: PathBuf,
    layout: Layout,
    mode: Mode,
    run: Option<Arc<RunInfo>>,
    encoder: Option<JournalEncoder>,
}

pub(super) fn open(target: &Target, path: &Path, settings: &WriterSettings) -> Result<Writer, WriterError> {
    // `path` is no link: the rename at the end replaces the file itself.
    let journal = journal_path(path);
    match settings.mode {
        Mode::CreateNew if path.exists() => return Err(WriterError::taken(path)),
        _ if path.exists() && !path.is_file() => return Err(WriterError::NotAFile(path.to_owned())),
        Mode::Append if path.exists() => check_layout(path, settings.layout)?,
        _ => {}
    }
    let format = Box::new(ParquetFormat {
        target: path.to_owned(),
        layout: settings.layout,
        mode: settings.mode,
        run: None,
        encoder: None,
    });
    if !journal.exists() {
        return Ok(Writer::new(target.clone(), LogFile::create(&journal)?, format, true));
    }
    let old = LogFile::existing(&journal)?;
    match settings.mode {
        Mode::CreateNew if old.len() > 0 => Err(WriterError::Unfinished(journal)),
        Mode::CreateNew | Mode::Overwrite => Ok(Writer::new(target.clone(), old, format, false).replacing()),
        Mode::Append => {
            // The rows of the interrupted run come first.
            let done = finish_journal(&old, path)?;
            drop(old);
            let mut writer = Writer::new(target.clone(), LogFile::create(&journal)?, format, true);
            writer.tell(Some(format!(
                "{}: {} rows of an interrupted run were recovered first",
                path.display(),
                done.rows
            )));
            Ok(writer)
        }
    }
}

fn check_layout(path: &Path, layout: Layout) -> Result<(), WriterError> {
    let log = read::rows(path)?;
    if log.is_wide() == (layout == Layout::Wide) {
        return Ok(());
    }
    let what = if log.is_wide() { "it has the wide layout" } else { "it has the long layout" };
    Err(WriterError::OtherColumns { path: path.to_owned(), what: what.to_owned() })
}

impl Format for ParquetFormat {
    fn begin(&mut self, run: &Arc<RunInfo>, _file: &mut LogFile) -> Result<Option<String>, WriterError> {
        let name = format!("{}@{}", run.run, run.start.0);
        self.encoder = Some(JournalEncoder::new(metadata::of_run(run, self.layout, self.mode, &name)));
        self.run = Some(Arc::clone(run));
        Ok(None)
    }

    fn prefix(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        match &mut self.encoder {
            Some(encoder) => encoder.prefix(out),
            None => Err(io::Error::other("the run has not begun")),
        }
    }

    fn encode(&mut self, batch: &WindowBatch, out: &mut Vec<u8>) -> io::Result<()> {
        match (&mut self.encoder, &self.run) {
            (Some(encoder), Some(run)) => encoder.encode(run, batch, out),
            _ => Err(io::Error::other("the run has not begun")),
        }
    }

    fn finish(&mut self, file: &mut LogFile, end: &RunEnd) -> Result<Option<String>, WriterError> {
        let journal = file.path().to_owned();
        // What follows makes it unneeded; if that fails, it is all there is.
        let synced = file.sync();
        let done = convert(file, &self.target, Some(end)).map_err(|e| kept(e, &journal))?;
        synced.map_err(WriterError::io("sync", &journal))?;
        remove_journal(&journal)?;
        Ok(done.note())
    }
}

fn kept(error: WriterError, journal: &Path) -> WriterError {
    WriterError::Encoding {
        action: "finish",
        path: target_of_journal(journal).unwrap_or_default(),
        what: match journal.exists() {
            true => format!(
                "{error}; its rows are safe in {journal}, finish with `gpurun recover {journal}`",
                journal = journal.display()
            ),
            false => format!("{error}; its journal was deleted"),
        },
    }
}

fn remove_journal(journal: &Path) -> Result<(), WriterError> {
    match fs::remove_file(journal) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(WriterError::io("remove", journal)(e)),
        _ => sync_directory_of(journal).map_err(WriterError::io("sync the directory of", journal)),
    }
}

/// What became of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The Parquet file.
    pub target: PathBuf,
    /// Rows that came from the journal.
    pub rows: u64,
    /// Bytes after the last whole batch.
    pub torn_bytes: u64,
    /// The file had been finished already; only the journal was left behind.
    pub was_done: bool,
}

impl Recovered {
    fn note(&self) -> Option<String> {
        (self.torn_bytes > 0).then(|| format!("{} bytes of its journal were not whole", self.torn_bytes))
    }
}

/// Finishes the journal of a run whose gpurun was killed: writes the Parquet file, then removes it.
///
/// Fails with [`WriterError::Busy`] while a gpurun writes the journal.
pub fn recover(journal: &Path) -> Result<Recovered, WriterError> {
    let target = target_of_journal(journal).ok_or_else(|| WriterError::NotALog {
        path: journal.to_owned(),
        what: "a journal's name ends in .journal".to_owned(),
    })?;
    let file = LogFile::existing(journal)?;
    finish_journal(&file, &target)
}

fn finish_journal(file: &LogFile, target: &Path) -> Result<Recovered, WriterError> {
    if file.len() == 0 {
        // gpurun died before the run began: there is nothing to keep.
        remove_journal(file.path())?;
        return Ok(Recovered { target: target.to_owned(), rows: 0, torn_bytes: 0, was_done: false });
    }
    let done = convert(file, target, None)?;
    remove_journal(file.path())?;
    Ok(done)
}

/// Writes the target from the journal. The journal stays.
fn convert(file: &LogFile, target: &Path, end: Option<&RunEnd>) -> Result<Recovered, WriterError> {
    let path = file.path();
    let handle = file.file().try_clone().map_err(WriterError::io("read", path))?;
    let mut journal = JournalReader::open(Arc::new(handle), file.len()).map_err(|e| {
        WriterError::NotALog { path: path.to_owned(), what: format!("not even its start is whole: {e}") }
    })?;
    let mut about = journal.metadata();
    if let Some(end) = end {
        metadata::add_end(&mut about, end);
    }
    let mut done = Recovered { target: target.to_owned(), rows: 0, torn_bytes: 0, was_done: false };
    let exists = target.exists();
    let earlier = if exists { earlier_metadata(target).ok() } else { None };
    if let (None, Some(name), Some(earlier)) = (end, about.get(metadata::JOURNAL), &earlier)
        && metadata::texts(earlier, metadata::JOURNALS).contains(name)
    {
        done.was_done = true;
        return Ok(done);
    }
    let mode = about.get(metadata::MODE).cloned().unwrap_or_default();
    let append = exists && mode == "append";
    if exists && mode == "create" {
        return Err(WriterError::Exists(target.to_owned()));
    }
    let old = if append { Some(target) } else { None };
    let earlier = if append { earlier } else { None };
    let replace = mode != "create";
    let wide = about.get(metadata::LAYOUT).is_some_and(|l| l == "wide");
    let of_file = metadata::of_file(earlier.as_ref(), about.clone());
    let aside = if wide {
        wide_file(&mut journal, target, old, &about, of_file, &mut done)?
    } else {
        let mut aside = Aside::create(target, &long_schema(), of_file)?;
        if let Some(old) = old {
            copy_rows(old, &mut aside)?;
        }
        while let Some(batch) = journal.next_batch() {
            done.rows += batch.num_rows() as u64;
            // The journal's schema carries metadata that is not the file's.
            let batch = RecordBatch::try_new(long_schema(), batch.columns().to_vec())
                .map_err(|e| WriterError::NotALog { path: path.to_owned(), what: e.to_string() })?;
            aside.write(&batch)?;
        }
        aside
    };
    done.torn_bytes = journal.torn_bytes();
    aside.finish(replace)?;
    Ok(done)
}

fn earlier_metadata(target: &Path) -> Result<Metadata, WriterError> {
    Ok(read::rows(target)?.metadata().clone())
}

fn copy_rows(from: &Path, aside: &mut Aside) -> Result<(), WriterError> {
    let file = File::open(from).map_err(WriterError::io("open", from))?;
    let reader = ParquetRecordBatchReaderBuilder::try_new(file)
        .and_then(|b| b.with_batch_size(8192).build())
        .map_err(encoding("read", from))?;
    for batch in reader {
        let bad =
            |e: arrow_schema::ArrowError| WriterError::NotALog { path: from.to_owned(), what: e.to_string() };
        let batch =
            batch.and_then(|b| RecordBatch::try_new(long_schema(), b.columns().to_vec())).map_err(bad)?;
        aside.write(&batch)?;
    }
    Ok(())
}

fn wide_file(
    journal: &mut JournalReader,
    target: &Path,
    old: Option<&Path>,
    about: &Metadata,
    of_file: Metadata,
    done: &mut Recovered,
) -> Result<Aside, WriterError> {
    let mut names = match old {
        Some(old) => wide_names(old)?,
        None => Vec::new(),
    };
    names.extend(metadata::texts(about, metadata::WIDE_COLUMNS));
    let columns = Columns::from_names(&names);
    let mut out = WideParquet::create(target, columns, device_labels(about), of_file)?;
    if let Some(old) = old {
        for row in read::rows(old)? {
            out.push(&row?)?;
        }
    }
    let mut rows = read::BatchRows::new(target, &journal.schema())?;
    while let Some(batch) = journal.next_batch() {
        done.rows += batch.num_rows() as u64;
        out.end_of_window()?;
        for row in rows.read(&batch)? {
            out.push(&row)?;
        }
    }
    out.into_aside()
}

/// The series columns of a wide Parquet file.
fn wide_names(path: &Path) -> Result<Vec<String>, WriterError> {
    let file = File::open(path).map_err(WriterError::io("open", path))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(encoding("read", path))?;
    let names = builder.schema().fields().iter().map(|f| f.name().clone());
    Ok(names.filter(|name| !LONG.iter().any(|c| c.name == name)).collect())
}

/// Long rows into a wide Parquet file.
pub(super) struct WideParquet {
    pivot: Pivot,
    builder: WideBuilder,
    aside: Aside,
}

impl WideParquet {
    pub(super) fn create(
        target: &Path,
        columns: Columns,
        labels: HashMap<String, String>,
        metadata: Metadata,
    ) -> Result<WideParquet, WriterError> {
        let aside = Aside::create(target, &wide_schema(columns.names()), metadata)?;
        let builder = WideBuilder::new(columns.names());
        Ok(WideParquet { pivot: Pivot::new(columns, labels), builder, aside })
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

    fn put(&mut self, (fixed, values): super::wide::WideRow) -> Result<(), WriterError> {
        self.builder.push(&fixed.as_long(), &values);
        if self.builder.rows() >= 256 { self.write_batch() } else { Ok(()) }
    }

    fn write_batch(&mut self) -> Result<(), WriterError> {
        let batch = self.builder.finish().map_err(|e| WriterError::Encoding {
            action: "write",
            path: self.aside.target.clone(),
            what: e.to_string(),
        })?;
        self.aside.write(&batch)
    }

    pub(super) fn into_aside(mut self) -> Result<Aside, WriterError> {
        self.end_of_window()?;
        self.write_batch()?;
        Ok(self.aside)
    }
}
