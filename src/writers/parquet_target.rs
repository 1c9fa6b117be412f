//! A Parquet target: a journal beside it while the run lasts, one file made of that at the end. What stands under the
//! target's name is always whole.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;

use crate::model::run::{RunEnd, RunInfo};
use crate::model::window::WindowBatch;
use crate::sys::format;

use super::columns::{LongBuilder, long_schema};
use super::directory::{Directory, Placing, directory_of};
use super::format::{Finished, Format, Writer};
use super::journal::{rows_block, schema_block};
use super::journal_reader::{Damage, JournalReader, losses};
use super::log_file::LogFile;
use super::metadata::{self, Metadata};
use super::parquet_file::{ParquetFile, WideParquet};
use super::read::{self, LogReader};
use super::target::{Target, journal_path, numbered, target_of_journal};
use super::wide::{Columns, device_labels};
use super::{Layout, Mode, WriterError};

/// Rows of an earlier file that are copied together.
const COPIED_ROWS: usize = 8192;

struct ParquetFormat {
    layout: Layout,
    mode: Mode,
    run: Option<Arc<RunInfo>>,
}

/// Takes the target's name by making its journal. `path` is no link: the file at the end replaces it.
pub(super) fn open(
    target: &Target,
    directory: &Directory,
    path: &Path,
    layout: Layout,
    mode: Mode,
) -> Result<Writer, WriterError> {
    let journal = journal_path(path);
    let name = path.file_name().unwrap_or_default();
    let has = |name| directory.has(name).map_err(WriterError::io("read", path));
    let format = Box::new(ParquetFormat { layout, mode, run: None });
    let left = has(journal.file_name().unwrap_or_default())?;
    match mode {
        Mode::CreateNew if has(name)? => Err(WriterError::Exists(path.to_owned())),
        Mode::CreateNew if left => Err(WriterError::Unfinished(journal)),
        Mode::CreateNew => {
            let file = LogFile::create(directory, &journal)?;
            if has(name)? {
                // A run that ended in this moment made its file of a journal of this name.
                let _ = file.remove();
                return Err(WriterError::Exists(path.to_owned()));
            }
            Ok(Writer::new(target.clone(), file, format, true))
        }
        Mode::Overwrite if left => {
            let file = LogFile::existing(directory, &journal)?;
            Ok(Writer::new(target.clone(), file, format, false).replacing())
        }
        Mode::Append => {
            let mut note = None;
            if left {
                // The rows of the interrupted run come first.
                let done = finish_journal(&LogFile::existing(directory, &journal)?)?;
                if done.is_damaged() {
                    return Err(WriterError::DamagedJournal(journal));
                }
                note = Some(format!(
                    "{}: recovered {} of an interrupted run first",
                    done.target.display(),
                    format::counted(done.rows, "rows")
                ));
            }
            if has(name)? {
                check_layout(path, layout)?;
            }
            let mut writer = Writer::new(target.clone(), LogFile::create(directory, &journal)?, format, true);
            writer.add_notice(note);
            Ok(writer)
        }
        Mode::Overwrite => {
            Ok(Writer::new(target.clone(), LogFile::create(directory, &journal)?, format, true))
        }
    }
}

/// Whether rows of this layout can be appended to a file.
pub(super) fn check_layout(path: &Path, layout: Layout) -> Result<(), WriterError> {
    let log = read::rows(path)?;
    if log.is_wide() == (layout == Layout::Wide) {
        return Ok(());
    }
    let what = if log.is_wide() { "it has the wide layout" } else { "it has the long layout" };
    Err(WriterError::OtherColumns { path: path.to_owned(), what: what.to_owned() })
}

impl Format for ParquetFormat {
    fn begin(&mut self, run: &Arc<RunInfo>, _file: &mut LogFile) -> Result<Option<String>, WriterError> {
        self.run = Some(Arc::clone(run));
        Ok(None)
    }

    fn prefix(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let run = self.run()?;
        let name = format!("{}@{}", run.run, run.start.0);
        out.append(&mut schema_block(&metadata::of_run(run, self.layout, self.mode, &name))?);
        Ok(())
    }

    fn encode(&mut self, batch: &WindowBatch, out: &mut Vec<u8>) -> io::Result<u64> {
        if !batch.rows.is_empty() {
            out.append(&mut rows_block(self.run()?, batch)?);
        }
        Ok(self.layout.rows_of(batch))
    }

    fn finish(&mut self, file: &mut LogFile, end: &RunEnd) -> Result<Finished, WriterError> {
        // What follows makes it unneeded; if that fails, it is all there is.
        let synced = file.sync();
        let done = convert(file, Some(end)).map_err(|e| unfinished(e, file))?;
        synced.map_err(WriterError::io("sync", file.path()))?;
        let target = target_of(file)?;
        let mut notes = Vec::new();
        if done.target != target {
            notes.push(format!("{} exists now; the rows are in {}", target.display(), done.target.display()));
        }
        if done.is_damaged() {
            notes.push(format!(
                "{}; its journal {} is kept",
                done.losses().join("; "),
                file.path().display()
            ));
        } else {
            file.remove().map_err(WriterError::io("remove", file.path()))?;
        }
        let path = (done.target != target).then_some(done.target);
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        Ok(Finished { path, rows: Some(done.rows), note })
    }
}

impl ParquetFormat {
    fn run(&self) -> io::Result<&RunInfo> {
        self.run.as_deref().ok_or_else(|| io::Error::other("the run has not begun"))
    }
}

/// The error of an end that failed: the journal has the rows.
fn unfinished(error: WriterError, file: &LogFile) -> WriterError {
    let journal = match file.directory().renamed_to() {
        Some(directory) => directory.join(file.path().file_name().unwrap_or_default()),
        None => file.path().to_owned(),
    };
    WriterError::Encoding {
        action: "finish",
        path: target_of_journal(&journal).unwrap_or_default(),
        what: format!(
            "{error}; its rows are in {journal}, finish with `gpurun recover {journal}`",
            journal = journal.display()
        ),
    }
}

/// What became of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The Parquet file.
    pub target: PathBuf,
    /// Rows that the file got from the journal.
    pub rows: u64,
    /// Bytes of a last row set that was not written to its end.
    pub torn_bytes: u64,
    /// What could not be read. Where there is any, the journal is kept.
    pub damage: Vec<Damage>,
    /// The file had been finished already; only the journal was left behind.
    pub was_done: bool,
}

impl Recovered {
    /// Whether the journal has more than could be read.
    pub fn is_damaged(&self) -> bool {
        !self.damage.is_empty()
    }

    /// What is not in the file, in words.
    pub fn losses(&self) -> Vec<String> {
        losses(self.torn_bytes, &self.damage)
    }
}

/// Finishes the journal of a run whose gpurun was killed: writes the Parquet file, then removes the journal if all of it
/// but a torn end was read.
///
/// Fails with `WriterError::Busy` while a gpurun writes the journal.
pub fn recover(journal: &Path) -> Result<Recovered, WriterError> {
    let directory = directory_of(journal);
    let directory = Directory::open(directory).map_err(WriterError::io("open", directory))?;
    finish_journal(&LogFile::existing(&directory, journal)?)
}

fn finish_journal(file: &LogFile) -> Result<Recovered, WriterError> {
    let done = match file.len() {
        // gpurun died before the run began: there is nothing to keep.
        0 => Recovered {
            target: target_of(file)?,
            rows: 0,
            torn_bytes: 0,
            damage: Vec::new(),
            was_done: false,
        },
        _ => convert(file, None)?,
    };
    if !done.is_damaged() {
        file.remove().map_err(WriterError::io("remove", file.path()))?;
    }
    Ok(done)
}

fn target_of(file: &LogFile) -> Result<PathBuf, WriterError> {
    target_of_journal(file.path()).ok_or_else(|| WriterError::NotALog {
        path: file.path().to_owned(),
        what: "a journal's name ends in .journal".to_owned(),
    })
}

/// Writes the target from the journal. The journal stays.
fn convert(file: &LogFile, end: Option<&RunEnd>) -> Result<Recovered, WriterError> {
    let target = target_of(file)?;
    let mut journal = JournalRows::open(file)?;
    let mut about = journal.reader.metadata().clone();
    if let Some(end) = end {
        metadata::add_end(&mut about, end);
    }
    if end.is_none()
        && let Some(target) = already_made(file.directory(), &target, &about)?
    {
        while journal.next()?.is_some() {}
        return Ok(journal.recovered(target, 0, true));
    }
    let name = target.file_name().unwrap_or_default();
    let there = file.directory().has(name).map_err(WriterError::io("read", &target))?;
    let mode = about.get(metadata::MODE).cloned().unwrap_or_default();
    let old = if there && mode == "append" { Some(earlier(file.directory(), &target)?) } else { None };
    let of_file = metadata::of_file(old.as_ref().map(LogReader::metadata), about.clone());
    let job = Conversion { directory: file.directory(), target: &target, old, of_file };
    let wide = about.get(metadata::LAYOUT).is_some_and(|l| l == "wide");
    let (made, rows) = if wide { job.wide(&mut journal, &about)? } else { job.long(&mut journal)? };
    let placing = if mode == "append" || mode == "overwrite" { Placing::Replace } else { Placing::NextFree };
    let target = made.finish(placing)?;
    Ok(journal.recovered(target, rows, false))
}

/// A journal that is read to its end, with errors that name it.
struct JournalRows<'a> {
    path: &'a Path,
    reader: JournalReader,
}

impl<'a> JournalRows<'a> {
    fn open(file: &'a LogFile) -> Result<Self, WriterError> {
        let path = file.path();
        let handle = file.file().try_clone().map_err(WriterError::io("read", path))?;
        let reader = JournalReader::open(Arc::new(handle), file.len())
            .map_err(|error| read::journal_error(path, error))?;
        Ok(JournalRows { path, reader })
    }

    fn next(&mut self) -> Result<Option<RecordBatch>, WriterError> {
        self.reader.next_batch().map_err(WriterError::io("read", self.path))
    }

    fn recovered(self, target: PathBuf, rows: u64, was_done: bool) -> Recovered {
        let (torn_bytes, damage) = (self.reader.torn_bytes(), self.reader.damage().to_vec());
        Recovered { target, rows, torn_bytes, damage, was_done }
    }
}

/// The file that was made of a journal already, by a gpurun that died before it removed the journal.
fn already_made(
    directory: &Directory,
    target: &Path,
    journal: &Metadata,
) -> Result<Option<PathBuf>, WriterError> {
    let Some(name) = journal.get(metadata::JOURNAL) else { return Ok(None) };
    for n in 1.. {
        let path = numbered(target, n);
        if !directory.has(path.file_name().unwrap_or_default()).map_err(WriterError::io("read", &path))? {
            return Ok(None);
        }
        let made_of =
            earlier(directory, &path).map(|log| metadata::texts(log.metadata(), metadata::JOURNALS));
        if made_of.is_ok_and(|journals| journals.contains(name)) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Opens the file that rows are appended to.
fn earlier(directory: &Directory, path: &Path) -> Result<LogReader, WriterError> {
    let name = path.file_name().unwrap_or_default();
    read::rows_of_file(path, directory.read_file(name).map_err(WriterError::io("open", path))?)
}

fn bad(path: &Path) -> impl FnOnce(ArrowError) -> WriterError {
    let path = path.to_owned();
    move |e| WriterError::NotALog { path, what: e.to_string() }
}

/// A journal on its way into a Parquet file.
struct Conversion<'a> {
    directory: &'a Directory,
    target: &'a Path,
    old: Option<LogReader>,
    of_file: Metadata,
}

impl Conversion<'_> {
    /// The file, and the rows that it got from the journal.
    fn long(self, journal: &mut JournalRows<'_>) -> Result<(ParquetFile, u64), WriterError> {
        let mut out = ParquetFile::create(self.directory, self.target, &long_schema(), self.of_file)?;
        let mut copied = LongBuilder::new();
        for row in self.old.into_iter().flatten() {
            copied.push(&row?.as_long());
            if copied.rows() >= COPIED_ROWS {
                out.write(&copied.finish().map_err(bad(self.target))?)?;
            }
        }
        out.write(&copied.finish().map_err(bad(self.target))?)?;
        let before = out.rows();
        while let Some(batch) = journal.next()? {
            // The journal's schema carries metadata that is not the file's.
            let batch = RecordBatch::try_new(long_schema(), batch.columns().to_vec());
            out.write(&batch.map_err(bad(self.target))?)?;
        }
        let rows = out.rows() - before;
        Ok((out, rows))
    }

    fn wide(
        self,
        journal: &mut JournalRows<'_>,
        about: &Metadata,
    ) -> Result<(ParquetFile, u64), WriterError> {
        let mut names = match &self.old {
            Some(old) => old.series_columns(),
            None => Vec::new(),
        };
        names.extend(metadata::texts(about, metadata::WIDE_COLUMNS));
        let columns = Columns::from_names(&names);
        let mut out =
            WideParquet::create(self.directory, self.target, columns, device_labels(about), self.of_file)?;
        for row in self.old.into_iter().flatten() {
            out.push(&row?)?;
        }
        out.end_of_window()?;
        let before = out.rows();
        let mut rows = read::BatchRows::new(self.target, journal.reader.schema())?;
        while let Some(batch) = journal.next()? {
            out.end_of_window()?;
            for row in rows.read(&batch)? {
                out.push(&row)?;
            }
        }
        out.end_of_window()?;
        let rows = out.rows() - before;
        Ok((out.into_file()?, rows))
    }
}
