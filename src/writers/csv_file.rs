//! CSV: a header, then whole lines, one write for each batch.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::model::run::{RunEnd, RunInfo};
use crate::model::time::Wall;
use crate::model::window::WindowBatch;

use super::columns::{FIXED, LONG, LongRow, STATS, rfc3339, wide_columns};
use super::directory::{Directory, directory_of};
use super::format::{Finished, Format, Writer};
use super::log_file::LogFile;
use super::target::{Target, numbered};
use super::{Layout, Mode, WriterError};

struct CsvFormat {
    layout: Layout,
    run: Option<Arc<RunInfo>>,
    lines: Lines,
    /// The fixed columns of the current batch.
    text: Vec<u8>,
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
    let format = Box::new(CsvFormat {
        layout,
        run: None,
        lines: Lines::default(),
        text: Vec::new(),
        places: HashMap::new(),
    });
    let name = path.file_name().unwrap_or_default();
    let there = directory.has(name).map_err(WriterError::io("look at", path))?;
    match mode {
        Mode::Overwrite if there => {
            Ok(Writer::new(target.clone(), LogFile::existing(directory, path)?, format, false).replacing())
        }
        Mode::Append if there => {
            let mut file = LogFile::existing(directory, path)?;
            check_layout(path, layout)?;
            let note = cut_torn_line(&mut file)?;
            let mut writer = Writer::new(target.clone(), file, format, false);
            writer.tell(note);
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
    let long = header(&long_names());
    let mut fixed = header(&long_names()[..FIXED]);
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
    Ok(Some(format!("{}: cut an incomplete last line of {torn} bytes", path.display())))
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

/// Offset after the last line end. Our fields never hold one, quoted or not.
pub(super) fn whole_lines(file: &File, len: u64) -> io::Result<u64> {
    let mut end = len;
    let mut buffer = vec![0u8; 64 << 10];
    while end > 0 {
        let want = buffer.len().min(usize::try_from(end).unwrap_or(usize::MAX));
        let start = end - want as u64;
        file.read_exact_at(&mut buffer[..want], start)?;
        if let Some(at) = buffer[..want].iter().rposition(|&b| b == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

fn check_header(file: &LogFile, expected: &[u8]) -> Result<(), WriterError> {
    let path = file.path().to_owned();
    let reading = File::open(&path).map_err(WriterError::io("read", &path))?;
    let mut line = Vec::new();
    BufReader::new(reading).read_until(b'\n', &mut line).map_err(WriterError::io("read", &path))?;
    if line == expected {
        return Ok(());
    }
    Err(WriterError::OtherColumns { path, what: "its header has other columns than this run writes".into() })
}

fn long_names() -> [&'static str; LONG.len()] {
    LONG.map(|c| c.name)
}

pub(super) fn header(columns: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut out = Vec::new();
    for (n, column) in columns.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        put_text(&mut out, column.as_ref());
    }
    out.push(b'\n');
    out
}

/// A field, quoted where it must be. Line ends become blanks: a line of the file is a row.
fn put_text(out: &mut Vec<u8>, field: &[u8]) {
    if !field.iter().any(|b| matches!(b, b',' | b'"' | b'\n' | b'\r')) {
        out.extend_from_slice(field);
        return;
    }
    out.push(b'"');
    for &b in field {
        match b {
            b'"' => out.extend_from_slice(b"\"\""),
            b'\n' | b'\r' => out.push(b' '),
            b => out.push(b),
        }
    }
    out.push(b'"');
}

/// The shortest text that reads back as the same number, always with a point or an exponent.
fn put_float(out: &mut Vec<u8>, value: Option<f64>) {
    if let Some(value) = value.filter(|v| v.is_finite()) {
        out.extend_from_slice(zmij::Buffer::new().format_finite(value).as_bytes());
    }
}

fn put_int(out: &mut Vec<u8>, value: Option<impl Into<i64>>) {
    if let Some(value) = value {
        out.extend_from_slice(itoa::Buffer::new().format(value.into()).as_bytes());
    }
}

/// Lines of either layout. The columns that a row shares with the one before it are formatted once.
#[derive(Default)]
pub(super) struct Lines {
    time: Option<(i64, String)>,
}

impl Lines {
    fn put_fixed(&mut self, out: &mut Vec<u8>, row: &LongRow<'_>) {
        if self.time.as_ref().is_none_or(|(time, _)| *time != row.time) {
            self.time = Some((row.time, rfc3339(Wall(row.time))));
        }
        if let Some((_, text)) = &self.time {
            out.extend_from_slice(text.as_bytes());
        }
        out.push(b',');
        put_float(out, Some(row.window_s));
        out.push(b',');
        put_text(out, row.run.as_bytes());
        out.push(b',');
        put_text(out, row.host.as_bytes());
        out.push(b',');
        put_int(out, row.rank);
        out.push(b',');
        put_text(out, row.kind.as_bytes());
        out.push(b',');
        put_text(out, row.tag.as_bytes());
        out.push(b',');
        put_int(out, row.step);
    }

    /// A line of the long layout after its fixed columns, which may be copied from the line before.
    fn put_rest(out: &mut Vec<u8>, row: &LongRow<'_>) {
        for text in [
            Cell::Text(Some(row.scope)),
            Cell::Int(row.gpu.map(i64::from)),
            Cell::Int(row.cuda.map(i64::from)),
            Cell::Text(row.uuid),
            Cell::Int(row.pid),
            Cell::Text(row.process),
            Cell::Text(Some(row.metric)),
            Cell::Text(Some(row.unit)),
        ] {
            out.push(b',');
            match text {
                Cell::Text(text) => put_text(out, text.unwrap_or_default().as_bytes()),
                Cell::Int(value) => put_int(out, value),
            }
        }
        let mut before = (None, out.len()..out.len());
        for value in row.stats {
            out.push(b',');
            let (bits, start) = (value.map(f64::to_bits), out.len());
            // What stood still has the same mean, minimum, maximum and last value.
            if bits == before.0 {
                out.extend_from_within(before.1);
            } else {
                put_float(out, value);
            }
            before = (bits, start..out.len());
        }
        for count in [row.samples, row.missing] {
            out.push(b',');
            put_int(out, count);
        }
        out.push(b'\n');
    }

    pub(super) fn put_long(&mut self, out: &mut Vec<u8>, row: &LongRow<'_>) {
        self.put_fixed(out, row);
        Self::put_rest(out, row);
    }

    pub(super) fn put_wide(&mut self, out: &mut Vec<u8>, row: &LongRow<'_>, values: &[Option<f64>]) {
        self.put_fixed(out, row);
        for value in values {
            out.push(b',');
            put_float(out, *value);
        }
        out.push(b'\n');
    }
}

enum Cell<'a> {
    Text(Option<&'a str>),
    Int(Option<i64>),
}

impl CsvFormat {
    fn columns(&self) -> Vec<String> {
        let mut names: Vec<String> = long_names().map(str::to_owned).to_vec();
        if let (Layout::Wide, Some(run)) = (self.layout, &self.run) {
            names.truncate(FIXED);
            names.extend(wide_columns(run));
        }
        names
    }

    fn encode_wide(&mut self, run: &RunInfo, batch: &WindowBatch, out: &mut Vec<u8>) {
        let Some(first) = batch.rows.first() else { return };
        let mut values = vec![None; self.places.len() * STATS.len()];
        for row in &batch.rows {
            if let Some(&place) = self.places.get(&row.series.key()) {
                values[place..place + STATS.len()].copy_from_slice(&LongRow::of(run, batch, row).stats);
            }
        }
        self.lines.put_wide(out, &LongRow::of(run, batch, first), &values);
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
        if file.len() == 0 || check_header(file, &header(&self.columns())).is_ok() {
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
        out.extend_from_slice(&header(&self.columns()));
        Ok(())
    }

    fn encode(&mut self, batch: &WindowBatch, out: &mut Vec<u8>) -> io::Result<u64> {
        let run = self.run.clone().ok_or_else(|| io::Error::other("the run has not begun"))?;
        let Some(first) = batch.rows.first() else { return Ok(0) };
        if self.layout == Layout::Wide {
            self.encode_wide(&run, batch, out);
            return Ok(1);
        }
        self.text.clear();
        self.lines.put_fixed(&mut self.text, &LongRow::of(&run, batch, first));
        for row in &batch.rows {
            out.extend_from_slice(&self.text);
            Lines::put_rest(out, &LongRow::of(&run, batch, row));
        }
        Ok(batch.rows.len() as u64)
    }

    fn finish(&mut self, file: &mut LogFile, _end: &RunEnd) -> Result<Finished, WriterError> {
        let path = file.path().to_owned();
        file.sync().map_err(WriterError::io("sync", path))?;
        Ok(Finished::default())
    }
}
