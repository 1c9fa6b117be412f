//! CSV: a header, then whole lines, one write for each batch.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write as _};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::model::run::{RunEnd, RunInfo};
use crate::model::series::SeriesInfo;
use crate::model::time::Wall;
use crate::model::window::WindowBatch;

use super::disk::LogFile;
use super::format::{Format, Writer};
use super::target::Target;
use super::{Layout, Mode, WriterError, WriterSettings};

/// The columns of the long layout, in their order.
pub(super) const LONG_COLUMNS: [&str; 22] = [
    "time", "window_s", "run", "host", "rank", "kind", "tag", "step", "scope", "gpu", "cuda", "uuid", "pid",
    "process", "metric", "unit", "mean", "min", "max", "last", "samples", "missing",
];

struct CsvFormat {
    layout: Layout,
    run: Option<Arc<RunInfo>>,
    text: Vec<u8>,
}

pub(super) fn open(target: &Target, path: &Path, settings: &WriterSettings) -> Result<Writer, WriterError> {
    let format = Box::new(CsvFormat { layout: settings.layout, run: None, text: Vec::new() });
    match settings.mode {
        Mode::CreateNew => Ok(Writer::new(target.clone(), LogFile::create(path)?, format, true)),
        Mode::Overwrite | Mode::Append if !path.exists() => {
            Ok(Writer::new(target.clone(), LogFile::create(path)?, format, true))
        }
        Mode::Overwrite => {
            Ok(Writer::new(target.clone(), LogFile::existing(path)?, format, false).replacing())
        }
        Mode::Append => {
            let mut file = LogFile::existing(path)?;
            let note = cut_torn_line(&mut file)?;
            if settings.layout == Layout::Long && file.len() > 0 {
                check_header(&file, &header(&LONG_COLUMNS))?;
            }
            let mut writer = Writer::new(target.clone(), file, format, false);
            writer.tell(note);
            Ok(writer)
        }
    }
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

fn header(columns: &[impl AsRef<[u8]>]) -> Vec<u8> {
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
        // Writing to a vector cannot fail.
        let _ = write!(out, "{value:?}");
    }
}

fn put_int(out: &mut Vec<u8>, value: Option<impl Into<i64>>) {
    if let Some(value) = value {
        let _ = write!(out, "{}", value.into());
    }
}

/// RFC 3339 in UTC with microseconds.
pub(super) fn rfc3339(time: Wall) -> String {
    let stamp = jiff::Timestamp::from_microsecond(time.0).unwrap_or_default();
    format!("{stamp:.6}")
}

/// The columns that all rows of a batch share, each with its comma.
fn put_batch_columns(out: &mut Vec<u8>, run: &RunInfo, batch: &WindowBatch) {
    out.extend_from_slice(rfc3339(batch.time).as_bytes());
    out.push(b',');
    put_float(out, Some(batch.window_s));
    out.push(b',');
    put_text(out, run.run.as_bytes());
    out.push(b',');
    put_text(out, run.host.as_bytes());
    out.push(b',');
    put_int(out, batch.rank.or(run.rank));
    out.push(b',');
    out.extend_from_slice(batch.kind.name().as_bytes());
    out.push(b',');
    put_text(out, batch.tag.as_bytes());
    out.push(b',');
    put_int(out, batch.step);
    out.push(b',');
}

fn put_series_columns(out: &mut Vec<u8>, series: &SeriesInfo) {
    out.extend_from_slice(series.scope().name().as_bytes());
    out.push(b',');
    let device = series.device.as_deref();
    put_int(out, device.map(|d| d.index));
    out.push(b',');
    put_int(out, device.and_then(|d| d.cuda));
    out.push(b',');
    put_text(out, device.map_or("", |d| d.uuid.as_str()).as_bytes());
    out.push(b',');
    put_int(out, series.process.as_ref().map(|p| p.key.pid));
    out.push(b',');
    put_text(out, series.process.as_ref().map_or("", |p| &*p.name).as_bytes());
    out.push(b',');
    put_text(out, series.name().as_bytes());
    out.push(b',');
    put_text(out, series.unit().as_bytes());
}

impl CsvFormat {
    fn run(&self) -> io::Result<Arc<RunInfo>> {
        self.run.clone().ok_or_else(|| io::Error::other("the run has not begun"))
    }
}

impl Format for CsvFormat {
    fn begin(&mut self, run: &Arc<RunInfo>, _file: &mut LogFile) -> Result<Option<String>, WriterError> {
        self.run = Some(Arc::clone(run));
        Ok(None)
    }

    fn prefix(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        out.extend_from_slice(&header(&LONG_COLUMNS));
        Ok(())
    }

    fn encode(&mut self, batch: &WindowBatch, out: &mut Vec<u8>) -> io::Result<()> {
        let run = self.run()?;
        self.text.clear();
        put_batch_columns(&mut self.text, &run, batch);
        for row in &batch.rows {
            out.extend_from_slice(&self.text);
            put_series_columns(out, &row.series);
            let stats = &row.stats;
            for value in [stats.mean, stats.min, stats.max, stats.last] {
                out.push(b',');
                put_float(out, value);
            }
            let _ = writeln!(out, ",{},{}", stats.samples, stats.missing);
        }
        Ok(())
    }

    fn finish(&mut self, file: &mut LogFile, _end: &RunEnd) -> Result<Option<String>, WriterError> {
        let path = file.path().to_owned();
        file.sync().map_err(WriterError::io("sync", path))?;
        Ok(None)
    }
}
