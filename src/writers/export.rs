//! One log made of others: another format, another layout, several inputs in a row. Streams, and
//! writes aside until everything is there.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::ser::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::model::run::SCHEMA_VERSION;
use crate::model::time::Wall;

use super::columns::{LONG, LongBuilder, LongRow, ReadRow, rfc3339};
use super::csv_file;
use super::directory::{Directory, Placing, TempFile, directory_of};
use super::metadata::{self, Metadata};
use super::parquet_file::{ParquetFile, WideParquet};
use super::read::{self, LogReader};
use super::wide::{Columns, Pivot, column_of, device_labels};
use super::{Layout, WriterError};

/// The formats of `gpurun export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExportFormat {
    /// `.csv`
    Csv,
    /// `.parquet`
    Parquet,
    /// `.jsonl`: one JSON object a row
    JsonLines,
}

impl ExportFormat {
    /// By the suffix of the output's name.
    pub fn of(path: &Path) -> Option<ExportFormat> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "csv" => Some(ExportFormat::Csv),
            "parquet" => Some(ExportFormat::Parquet),
            "jsonl" | "ndjson" => Some(ExportFormat::JsonLines),
            _ => None,
        }
    }
}

/// What to make of what.
#[derive(Clone, Debug)]
pub struct ExportRequest {
    /// Logs, or directories of logs; their rows follow one another.
    pub inputs: Vec<PathBuf>,
    /// The file to make; its suffix is the format. `-` is standard output, as JSON lines.
    pub output: PathBuf,
    /// Layout of the output.
    pub layout: Layout,
    /// Replace an existing output.
    pub overwrite: bool,
}

/// What an export made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Long rows that were read.
    pub rows: u64,
    /// Inputs with a torn end or damage, and what was left out of them.
    pub dropped: Vec<(PathBuf, String)>,
    /// More was left out than the torn ends of logs whose writer was killed.
    pub damaged: bool,
}

/// Makes the output. `progress` hears the bytes read so far and the bytes to read.
///
/// The output `-` is `stdout`, as JSON lines.
pub fn export(
    request: &ExportRequest,
    stdout: &mut dyn Write,
    mut progress: impl FnMut(u64, u64),
) -> Result<Exported, WriterError> {
    let output = &request.output;
    let to_stdout = output.as_os_str() == "-";
    let format = match ExportFormat::of(output) {
        _ if to_stdout => ExportFormat::JsonLines,
        Some(format) => format,
        None => return Err(WriterError::UnknownOutput(output.clone())),
    };
    if !to_stdout && output.exists() && !request.overwrite {
        return Err(WriterError::OutputExists(output.clone()));
    }
    let mut inputs = Vec::new();
    for input in &request.inputs {
        inputs.extend(read::logs(input)?);
    }
    let passes = if request.layout == Layout::Wide { 2 } else { 1 };
    let mut total = 0;
    let mut about = Vec::new();
    for input in &inputs {
        let log = read::rows(input)?;
        total += log.progress().1;
        about.push(log.metadata().clone());
    }
    let mut walk = Walk { inputs: &inputs, total: total * passes, done: 0, progress: &mut progress };
    let columns = match request.layout {
        Layout::Long => Columns::default(),
        Layout::Wide => walk.columns()?,
    };
    let stdout = if to_stdout { Some(stdout) } else { None };
    let mut sink =
        Sink::create(format, request.layout, output, columns, merged(about, request.layout), stdout)?;
    let mut exported = Exported::default();
    for input in &inputs {
        let mut log = read::rows(input)?;
        sink.next_input(device_labels(log.metadata()));
        walk.rows(&mut log, |row| {
            exported.rows += 1;
            sink.push(row)
        })?;
        exported.damaged |= log.is_damaged();
        if let Some(what) = log.dropped() {
            exported.dropped.push((input.clone(), what.to_owned()));
        }
    }
    let placing = if request.overwrite { Placing::Replace } else { Placing::New };
    sink.finish(placing)?;
    Ok(exported)
}

struct Walk<'a> {
    inputs: &'a [PathBuf],
    total: u64,
    done: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl Walk<'_> {
    fn rows(
        &mut self,
        log: &mut LogReader,
        mut each: impl FnMut(&ReadRow) -> Result<(), WriterError>,
    ) -> Result<(), WriterError> {
        let mut n = 0u32;
        while let Some(row) = log.next() {
            each(&row?)?;
            n = n.wrapping_add(1);
            if n.is_multiple_of(4096) {
                (self.progress)(self.done + log.progress().0, self.total);
            }
        }
        self.done += log.progress().1;
        (self.progress)(self.done, self.total);
        Ok(())
    }

    /// The series of the inputs, in the order of their first row.
    fn columns(&mut self) -> Result<Columns, WriterError> {
        let mut columns = Columns::default();
        for input in self.inputs {
            let mut log = read::rows(input)?;
            let labels = device_labels(log.metadata());
            self.rows(&mut log, |row| {
                if let Some(column) = column_of(row, &labels) {
                    columns.add(column);
                }
                Ok(())
            })?;
        }
        Ok(columns)
    }
}

/// What the output says about the runs of its inputs.
fn merged(inputs: Vec<Metadata>, layout: Layout) -> Metadata {
    let mut out = Metadata::new();
    let mut runs: Vec<Value> = Vec::new();
    let mut journals: Vec<String> = Vec::new();
    for about in inputs.into_iter().filter(|about| !about.is_empty()) {
        let about =
            if about.contains_key(metadata::JOURNAL) { metadata::of_file(None, about) } else { about };
        let listed: Vec<Value> =
            about.get(metadata::RUNS).and_then(|t| serde_json::from_str(t).ok()).unwrap_or_default();
        runs.extend(listed);
        journals.extend(metadata::texts(&about, metadata::JOURNALS));
        out = about;
    }
    out.insert(metadata::VERSION.to_owned(), SCHEMA_VERSION.to_string());
    out.insert(metadata::LAYOUT.to_owned(), metadata::layout_name(layout).to_owned());
    if !runs.is_empty() {
        out.insert(metadata::RUNS.to_owned(), json!(runs).to_string());
        out.insert(metadata::JOURNALS.to_owned(), json!(journals).to_string());
    }
    out
}

enum Sink<'a> {
    Text { file: TextOut<'a>, pivot: Option<Pivot>, json: bool, lines: csv_file::Lines, buffer: Vec<u8> },
    Long { builder: Box<LongBuilder>, out: Box<ParquetFile> },
    Wide(Box<WideParquet>),
}

impl<'a> Sink<'a> {
    fn create(
        format: ExportFormat,
        layout: Layout,
        output: &Path,
        columns: Columns,
        about: Metadata,
        stdout: Option<&'a mut dyn Write>,
    ) -> Result<Sink<'a>, WriterError> {
        let directory = || {
            let directory = directory_of(output);
            Directory::open(directory).map_err(WriterError::io("open", directory))
        };
        match (format, layout) {
            (ExportFormat::Parquet, Layout::Long) => {
                let out = ParquetFile::create(&directory()?, output, &super::columns::long_schema(), about)?;
                Ok(Sink::Long { builder: Box::new(LongBuilder::new()), out: Box::new(out) })
            }
            (ExportFormat::Parquet, Layout::Wide) => {
                let out = WideParquet::create(&directory()?, output, columns, HashMap::new(), about)?;
                Ok(Sink::Wide(Box::new(out)))
            }
            (format, layout) => {
                let json = format == ExportFormat::JsonLines;
                let mut buffer = Vec::new();
                if !json {
                    let mut names: Vec<&str> = LONG.iter().map(|c| c.name).collect();
                    if layout == Layout::Wide {
                        names.truncate(super::columns::FIXED);
                        names.extend(columns.names().iter().map(String::as_str));
                    }
                    buffer = csv_file::header(&names);
                }
                let pivot = (layout == Layout::Wide).then(|| Pivot::new(columns, HashMap::new()));
                let file = match stdout {
                    Some(stdout) => TextOut::Stream(stdout),
                    None => TextOut::File(TextFile::create(&directory()?, output)?),
                };
                Ok(Sink::Text { file, pivot, json, lines: csv_file::Lines::default(), buffer })
            }
        }
    }

    fn next_input(&mut self, labels: HashMap<String, String>) {
        match self {
            Sink::Text { pivot: Some(pivot), .. } => pivot.add_labels(labels),
            Sink::Wide(wide) => wide.add_labels(labels),
            _ => {}
        }
    }

    fn push(&mut self, row: &ReadRow) -> Result<(), WriterError> {
        match self {
            Sink::Long { builder, out } => {
                builder.push(&row.as_long());
                if builder.rows() < 8192 { Ok(()) } else { write_long(builder, out) }
            }
            Sink::Wide(wide) => wide.push(row),
            Sink::Text { file, pivot: None, json, lines, buffer } => {
                if *json {
                    json_line(buffer, &row.as_long());
                } else {
                    lines.put_long(buffer, &row.as_long());
                }
                file.take(buffer)
            }
            Sink::Text { file, pivot: Some(pivot), json, lines, buffer } => match pivot.push(row) {
                Some((fixed, values)) => {
                    put_wide(pivot, *json, lines, buffer, &fixed, &values);
                    file.take(buffer)
                }
                None => Ok(()),
            },
        }
    }

    fn finish(self, placing: Placing) -> Result<(), WriterError> {
        match self {
            Sink::Long { mut builder, mut out } => {
                write_long(&mut builder, &mut out)?;
                out.finish(placing).map(drop)
            }
            Sink::Wide(wide) => wide.into_file()?.finish(placing).map(drop),
            Sink::Text { mut file, pivot, json, mut lines, mut buffer } => {
                if let Some(mut pivot) = pivot
                    && let Some((fixed, values)) = pivot.flush()
                {
                    put_wide(&pivot, json, &mut lines, &mut buffer, &fixed, &values);
                }
                file.take(&mut buffer)?;
                file.finish(placing)
            }
        }
    }
}

fn write_long(builder: &mut LongBuilder, out: &mut ParquetFile) -> Result<(), WriterError> {
    let batch = builder.finish().map_err(|e| WriterError::Encoding {
        action: "write",
        path: out.target().to_owned(),
        what: e.to_string(),
    })?;
    out.write(&batch)
}

fn put_wide(
    pivot: &Pivot,
    json: bool,
    lines: &mut csv_file::Lines,
    out: &mut Vec<u8>,
    fixed: &ReadRow,
    values: &[Option<f64>],
) {
    let fixed = fixed.as_long();
    if !json {
        lines.put_wide(out, &fixed, values);
        return;
    }
    let mut object = fixed_object(&fixed);
    object.extend(pivot.columns().names().iter().map(String::as_str).zip(values.iter().map(|v| json!(v))));
    put_json(out, object);
}

/// The members of a JSON object, in the order of the columns.
type Members<'a> = Vec<(&'a str, Value)>;

fn fixed_object(row: &LongRow<'_>) -> Members<'static> {
    let values = [
        json!(rfc3339(Wall(row.time))),
        json!(row.window_s),
        json!(row.run),
        json!(row.host),
        json!(row.rank),
        json!(row.kind),
        json!(row.tag),
        json!(row.step),
    ];
    LONG.iter().map(|c| c.name).zip(values).collect()
}

fn json_line(out: &mut Vec<u8>, row: &LongRow<'_>) {
    let mut object = fixed_object(row);
    let [mean, min, max, last] = row.stats;
    let values = [
        json!(row.scope),
        json!(row.gpu),
        json!(row.cuda),
        json!(row.uuid),
        json!(row.pid),
        json!(row.process),
        json!(row.metric),
        json!(row.unit),
        json!(mean),
        json!(min),
        json!(max),
        json!(last),
        json!(row.samples),
        json!(row.missing),
    ];
    object.extend(LONG.iter().skip(super::columns::FIXED).map(|c| c.name).zip(values));
    put_json(out, object);
}

fn put_json(out: &mut Vec<u8>, members: Members<'_>) {
    // Neither texts nor finite numbers can fail to be JSON.
    let _ = serde_json::to_writer(&mut *out, &Object(members));
    out.push(b'\n');
}

struct Object<'a>(Members<'a>);

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Where lines go.
enum TextOut<'a> {
    Stream(&'a mut dyn Write),
    File(TextFile),
}

impl TextOut<'_> {
    fn take(&mut self, bytes: &mut Vec<u8>) -> Result<(), WriterError> {
        match self {
            TextOut::File(file) => {
                file.out.write_all(bytes).map_err(WriterError::io("write", &file.target))?
            }
            TextOut::Stream(out) => {
                out.write_all(bytes).map_err(WriterError::io("write", "standard output"))?;
            }
        }
        bytes.clear();
        Ok(())
    }

    fn finish(self, placing: Placing) -> Result<(), WriterError> {
        match self {
            TextOut::File(file) => file.finish(placing),
            TextOut::Stream(out) => out.flush().map_err(WriterError::io("write", "standard output")),
        }
    }
}

/// A text file without its name.
struct TextFile {
    out: BufWriter<File>,
    temp: TempFile,
    target: PathBuf,
}

impl TextFile {
    fn create(directory: &Directory, target: &Path) -> Result<TextFile, WriterError> {
        let temp = TempFile::create(directory)
            .map_err(WriterError::io("make a temporary file in", directory.path()))?;
        let file = temp.file().try_clone().map_err(WriterError::io("write", target))?;
        let out = BufWriter::with_capacity(256 << 10, file);
        Ok(TextFile { out, temp, target: target.to_owned() })
    }

    fn finish(mut self, placing: Placing) -> Result<(), WriterError> {
        self.out.flush().map_err(WriterError::io("write", &self.target))?;
        self.temp.place(&self.target, placing).map_err(WriterError::io("write", &self.target)).map(drop)
    }
}
