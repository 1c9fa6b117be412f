//! Logs back into rows: CSV, Parquet and journals, long and wide, finished or torn. Reads in batches,
//! in constant memory, and changes nothing.

mod arrow_source;
mod cells;
mod csv_source;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::WriterError;
use super::columns::LONG;
use super::journal::CONTINUATION;
use super::journal_reader::{JournalReader, losses};
use super::metadata::{self, Metadata};
use super::target::{journal_path, target_of_journal};
use arrow_source::{ParquetAbout, ParquetSource, names_of, rows_of_batch};
use cells::{Shape, Texts};
use csv_source::CsvSource;

pub use super::columns::ReadRow;
pub(super) use arrow_source::BatchRows;

/// The rows of one log, in the order in which they were written.
pub struct LogReader {
    path: PathBuf,
    metadata: Metadata,
    source: Source,
    ready: VecDeque<ReadRow>,
    texts: Texts,
    dropped: Option<String>,
    damaged: bool,
    size: u64,
    done: bool,
}

enum Source {
    Csv(Box<CsvSource>),
    Parquet { source: ParquetSource, shape: Shape, names: Vec<String> },
    Journal { reader: Box<JournalReader>, shape: Shape },
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
    let mut texts = Texts::default();
    let (source, metadata) = if start.starts_with(b"PAR1") {
        let (source, ParquetAbout { metadata, names }) = ParquetSource::open(path, file)?;
        let shape = Shape::of(path, &names, &metadata, &mut texts)?;
        (Source::Parquet { source, shape, names }, metadata)
    } else if start.starts_with(&CONTINUATION) || target_of_journal(path).is_some() {
        let reader = JournalReader::open(Arc::new(file), size).map_err(|error| journal_error(path, error))?;
        let metadata = reader.metadata().clone();
        let shape = Shape::of(path, &names_of(reader.schema()), &metadata, &mut texts)?;
        (Source::Journal { reader: Box::new(reader), shape }, metadata)
    } else if start.is_empty() {
        return Err(not_a_log(path, "it is empty"));
    } else {
        (Source::Csv(Box::new(CsvSource::open(path, file, size, &mut texts)?)), Metadata::new())
    };
    Ok(LogReader {
        path: path.to_owned(),
        metadata,
        source,
        ready: VecDeque::new(),
        texts,
        dropped: None,
        damaged: false,
        size,
        done: false,
    })
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

/// The error of a journal that cannot be opened.
pub(super) fn journal_error(path: &Path, error: io::Error) -> WriterError {
    match error.kind() {
        io::ErrorKind::InvalidData => not_a_log(path, error),
        _ => WriterError::io("read", path)(error),
    }
}

impl LogReader {
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
            Source::Csv(source) => source.position(),
            Source::Parquet { source, .. } => source.position(self.size),
            Source::Journal { reader, .. } => reader.position(),
        };
        (done.min(self.size), self.size)
    }

    /// The series columns of a wide log, in their order.
    pub(super) fn series_columns(&self) -> Vec<String> {
        let names = match &self.source {
            Source::Csv(source) => source.names(),
            Source::Parquet { names, .. } => names,
            Source::Journal { .. } => &[],
        };
        let is_series = |name: &&String| !LONG.iter().any(|column| column.name == **name);
        names.iter().filter(is_series).cloned().collect()
    }

    /// Whether the log has the wide layout.
    pub fn is_wide(&self) -> bool {
        match &self.source {
            Source::Csv(source) => source.shape().is_wide(),
            Source::Parquet { shape, .. } | Source::Journal { shape, .. } => shape.is_wide(),
        }
    }

    fn fill(&mut self) -> Result<(), WriterError> {
        let LogReader { path, source, ready, texts, .. } = self;
        match source {
            Source::Csv(source) => {
                if !source.read(path, texts, ready)? {
                    self.done = true;
                    let torn = source.torn_bytes();
                    self.dropped =
                        (torn > 0).then(|| format!("an incomplete last line of {torn} bytes was left out"));
                }
            }
            Source::Parquet { source, shape, .. } => match source.next_batch(path)? {
                Some(batch) => rows_of_batch(path, shape, &batch, texts, ready)?,
                None => self.done = true,
            },
            Source::Journal { reader, shape } => {
                match reader.next_batch().map_err(WriterError::io("read", &*path))? {
                    Some(batch) => rows_of_batch(path, shape, &batch, texts, ready)?,
                    None => {
                        self.done = true;
                        self.damaged = !reader.damage().is_empty();
                        let losses = losses(reader.torn_bytes(), reader.damage());
                        self.dropped = (!losses.is_empty()).then(|| losses.join("; "));
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
