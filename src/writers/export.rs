//! One log made of others: another format, another layout, several inputs in a row. Streams, and
//! writes a temporary file until it is complete.

mod output;

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::model::run::SCHEMA_VERSION;

use super::columns::ReadRow;
use super::directory::Placing;
use super::metadata::{self, Metadata};
use super::read::{self, LogReader};
use super::wide::{Columns, column_of, device_labels};
use super::{Layout, WriterError};
use output::{Output, Plan};

/// What errors call the output `-`.
pub const STANDARD_OUTPUT: &str = "standard output";

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

/// Makes the output. `progress` gets the bytes read so far and the bytes to read.
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
    let mut out = Output::create(Plan {
        format,
        layout: request.layout,
        path: output,
        columns,
        metadata: merged(about, request.layout),
        stdout: if to_stdout { Some(stdout) } else { None },
    })?;
    let mut exported = Exported::default();
    for input in &inputs {
        let mut log = read::rows(input)?;
        out.next_input(device_labels(log.metadata()));
        walk.rows(&mut log, |row| {
            exported.rows += 1;
            out.push(row)
        })?;
        exported.damaged |= log.is_damaged();
        if let Some(what) = log.dropped() {
            exported.dropped.push((input.clone(), what.to_owned()));
        }
    }
    let placing = if request.overwrite { Placing::Replace } else { Placing::New };
    out.finish(placing)?;
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
