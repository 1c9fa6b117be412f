//! CSV: a header, then whole lines, one write for each batch.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::model::run::{RunEnd, RunInfo};
use crate::model::window::WindowBatch;

use super::columns::{FIXED, LONG, LongRow, STATS, wide_columns};
use super::csv_lines::{Lines, whole_lines};
use super::directory::{Directory, directory_of};
use super::format::{Finished, Format, Writer};
use super::log_file::LogFile;
use super::target::{Target, numbered};
use super::{Layout, Mode, WriterError};

struct CsvFormat {
    layout: Layout,
    run: Option<Arc<RunInfo>>,
    /// Wide layout: first statistic of each series, by key.
    places: HashMap<String, usize>,
}

pub(super) fn open(
    target: &Target,
    directory: &Directory,
    path: &Path,
    layout: Layout,
    mode: Mode,
) -> Result<Writer, WriterError> {
    let format = Box::new(CsvFormat { layout, run: None, places: HashMap::new() });
    let name = path.file_name().unwrap_or_default();
    let there = directory.has(name).map_err(WriterError::io("read", path))?;
    match mode {
        Mode::Overwrite if there => {
            Ok(Writer::new(target.clone(), LogFile::existing(directory, path)?, format, false).replacing())
        }
        Mode::Append if there => {
            let mut file = LogFile::existing(directory, path)?;
            check_layout(path, layout)?;
            let note = cut_torn_line(&mut file)?;
            let mut writer = Writer::new(target.clone(), file, format, false);
            writer.add_notice(note);
            Ok(writer)
        }
        _ => Ok(Writer::new(target.clone(), LogFile::create(directory, path)?, format, true)),
    }
}

/// Longer first lines are no header of a log.
const LONGEST_HEADER: u64 = 256 << 20;

/// Whether rows of this layout can be appended to a file. The series of a wide file are compared when they are known.
pub(super) fn check_layout(path: &Path, layout: Layout) -> Result<(), WriterError> {
    let mut line = Vec::new();
    let file = File::open(path).map_err(WriterError::io("read", path))?;
    let mut start = BufReader::new(file).take(LONGEST_HEADER);
    start.read_until(b'\n', &mut line).map_err(WriterError::io("read", path))?;
    let headers = header(long_names()).and_then(|long| Ok((long, header(long_names().take(FIXED))?)));
    let (long, mut fixed) = headers.map_err(WriterError::io("read", path))?;
    fixed.pop();
    // A header that was cut is written again.
    let torn = !line.ends_with(b"\n");
    let is_long = if torn { long.starts_with(&line) } else { line == long };
    let is_wide = (torn && fixed.starts_with(&line)) || (!is_long && line.starts_with(&fixed));
    let what = match layout {
        Layout::Long if is_long => return Ok(()),
        Layout::Wide if is_wide => return Ok(()),
        Layout::Long if is_wide => "it has the wide layout",
        Layout::Wide if is_long => "it has the long layout",
        _ => "its header has other columns than this run writes",
    };
    Err(WriterError::OtherColumns { path: path.to_owned(), what: what.to_owned() })
}

/// Cuts what follows the last line end, and says so.
fn cut_torn_line(file: &mut LogFile) -> Result<Option<String>, WriterError> {
    let whole = whole_lines(file.file(), file.len()).map_err(WriterError::io("read", file.path()))?;
    let torn = file.len() - whole;
    if torn == 0 {
        return Ok(None);
    }
    let path = file.path().to_owned();
    file.truncate(whole).map_err(WriterError::io("cut", &path))?;
    Ok(Some(format!("{}: removed an incomplete last line of {torn} bytes", path.display())))
}

/// Cuts an incomplete last line of a log whose gpurun was killed; gives the bytes that were cut.
///
/// Fails with [`WriterError::Busy`] while a gpurun writes it, and leaves files alone that are not ours.
pub fn recover(path: &Path) -> Result<u64, WriterError> {
    super::read::rows(path)?;
    let directory = directory_of(path);
    let directory = Directory::open(directory).map_err(WriterError::io("open", directory))?;
    let mut file = LogFile::existing(&directory, path)?;
    let before = file.len();
    cut_torn_line(&mut file)?;
    file.sync().map_err(WriterError::io("sync", path))?;
    Ok(before - file.len())
}

fn check_header(file: &LogFile, expected: &[u8]) -> Result<(), WriterError> {
    let path = file.path();
    let mut start = vec![0; expected.len()];
    let read = file.file().read_exact_at(&mut start, 0);
    match read {
        Ok(()) if start == expected => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            Err(WriterError::io("read", path)(error))
        }
        _ => Err(WriterError::OtherColumns {
            path: path.to_owned(),
            what: "its header has other columns than this run writes".into(),
        }),
    }
}

fn header<'a>(names: impl IntoIterator<Item = &'a str>) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut lines = Lines::new(&mut out);
    lines.header(names)?;
    lines.flush()?;
    drop(lines);
    Ok(out)
}

fn long_names<'a>() -> impl Iterator<Item = &'a str> {
    LONG.iter().map(|column| column.name)
}

impl CsvFormat {
    fn header(&self) -> io::Result<Vec<u8>> {
        match (self.layout, &self.run) {
            (Layout::Wide, Some(run)) => {
                let series = wide_columns(run);
                header(long_names().take(FIXED).chain(series.iter().map(String::as_str)))
            }
            _ => header(long_names()),
        }
    }

    /// The values of a wide row, in the order of the columns.
    fn values(&self, run: &RunInfo, batch: &WindowBatch) -> Vec<Option<f64>> {
        let mut values = vec![None; self.places.len() * STATS.len()];
        for row in &batch.rows {
            if let Some(&place) = self.places.get(&row.series.key()) {
                values[place..place + STATS.len()].copy_from_slice(&LongRow::of(run, batch, row).stats);
            }
        }
        values
    }
}

impl Format for CsvFormat {
    fn begin(&mut self, run: &Arc<RunInfo>, file: &mut LogFile) -> Result<Option<String>, WriterError> {
        self.run = Some(Arc::clone(run));
        if self.layout == Layout::Long {
            return Ok(None);
        }
        let columns = wide_columns(run);
        for (n, name) in columns.iter().enumerate().step_by(STATS.len()) {
            let key = name.split_once('/').and_then(|(_, rest)| rest.rsplit_once('/'));
            if let Some((key, _)) = key {
                self.places.insert(key.to_owned(), n);
            }
        }
        let header = self.header().map_err(WriterError::io("write", file.path()))?;
        if file.len() == 0 || check_header(file, &header).is_ok() {
            return Ok(None);
        }
        // The job runs already: better a file beside it than no rows.
        let old = file.path().to_owned();
        let (directory, mut n) = (file.directory().clone(), 2);
        *file = loop {
            match LogFile::create(&directory, &numbered(&old, n)) {
                Err(WriterError::Exists(_)) => n += 1,
                other => break other?,
            }
        };
        Ok(Some(format!(
            "{} has other columns than this run writes; its rows go to {}",
            old.display(),
            file.path().display()
        )))
    }

    fn prefix(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        out.append(&mut self.header()?);
        Ok(())
    }

    fn encode(&mut self, batch: &WindowBatch, out: &mut Vec<u8>) -> io::Result<u64> {
        let run = self.run.as_deref().ok_or_else(|| io::Error::other("the run has not begun"))?;
        let Some(first) = batch.rows.first() else { return Ok(0) };
        let mut lines = Lines::new(out);
        match self.layout {
            Layout::Wide => lines.wide(&LongRow::of(run, batch, first), &self.values(run, batch))?,
            Layout::Long => {
                for row in &batch.rows {
                    lines.long(&LongRow::of(run, batch, row))?;
                }
            }
        }
        lines.flush()?;
        Ok(self.layout.rows_of(batch))
    }

    fn finish(&mut self, file: &mut LogFile, _end: &RunEnd) -> Result<Finished, WriterError> {
        let path = file.path().to_owned();
        file.sync().map_err(WriterError::io("sync", path))?;
        Ok(Finished::default())
    }
}
