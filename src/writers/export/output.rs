//! Where the rows of an export go: a Parquet file, or lines of CSV or JSON.

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use arrow_schema::ArrowError;
use serde::ser::{Serialize, Serializer};
use serde_json::{Value, json};

use super::super::columns::{FIXED, LONG, LongBuilder, LongRow, ReadRow, long_schema, rfc3339};
use super::super::csv_lines::Lines;
use super::super::directory::{Directory, Placing, TempFile, directory_of};
use super::super::metadata::Metadata;
use super::super::parquet_file::{ParquetFile, WideParquet};
use super::super::wide::{Columns, Pivot, WideRow};
use super::super::{Layout, WriterError};
use super::ExportFormat;
use crate::model::time::Wall;

/// Long rows that are written together.
const BATCH: usize = 8192;

/// An output that is being made; dropped before its end, it leaves nothing.
pub(super) enum Output<'a> {
    Long(Box<LongParquet>),
    Wide(Box<WideParquet>),
    Text(Box<Text<'a>>),
}

/// What an output is to be.
pub(super) struct Plan<'a> {
    pub(super) format: ExportFormat,
    pub(super) layout: Layout,
    pub(super) path: &'a Path,
    /// The series of the wide layout.
    pub(super) columns: Columns,
    pub(super) metadata: Metadata,
    /// Lines go here instead of to the path.
    pub(super) stdout: Option<&'a mut dyn Write>,
}

impl<'a> Output<'a> {
    pub(super) fn create(plan: Plan<'a>) -> Result<Output<'a>, WriterError> {
        let directory = || {
            let directory = directory_of(plan.path);
            Directory::open(directory).map_err(WriterError::io("open", directory))
        };
        if plan.format != ExportFormat::Parquet {
            return Ok(Output::Text(Box::new(match plan.stdout {
                Some(_) => Text::to_stdout(plan)?,
                None => Text::to_file(&directory()?, plan)?,
            })));
        }
        let (directory, path) = (directory()?, plan.path);
        Ok(match plan.layout {
            Layout::Long => {
                let file = ParquetFile::create(&directory, path, &long_schema(), plan.metadata)?;
                Output::Long(Box::new(LongParquet { builder: LongBuilder::new(), file }))
            }
            Layout::Wide => {
                let (columns, labels) = (plan.columns, HashMap::new());
                Output::Wide(Box::new(WideParquet::create(&directory, path, columns, labels, plan.metadata)?))
            }
        })
    }

    /// The rows that follow are those of another input, whose devices have these labels.
    pub(super) fn next_input(&mut self, labels: HashMap<String, String>) {
        match self {
            Output::Text(text) => {
                if let Some(pivot) = &mut text.pivot {
                    pivot.add_labels(labels);
                }
            }
            Output::Wide(wide) => wide.add_labels(labels),
            Output::Long(_) => {}
        }
    }

    pub(super) fn push(&mut self, row: &ReadRow) -> Result<(), WriterError> {
        match self {
            Output::Long(long) => long.push(row),
            Output::Wide(wide) => wide.push(row),
            Output::Text(text) => text.push(row),
        }
    }

    /// Ends the output and gives a file its name.
    pub(super) fn finish(self, placing: Placing) -> Result<(), WriterError> {
        match self {
            Output::Long(mut long) => {
                long.write()?;
                long.file.finish(placing).map(drop)
            }
            Output::Wide(wide) => wide.into_file()?.finish(placing).map(drop),
            Output::Text(text) => text.finish(placing),
        }
    }
}

/// A long Parquet file.
pub(super) struct LongParquet {
    builder: LongBuilder,
    file: ParquetFile,
}

impl LongParquet {
    fn push(&mut self, row: &ReadRow) -> Result<(), WriterError> {
        self.builder.push(&row.as_long());
        if self.builder.rows() < BATCH { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<(), WriterError> {
        let batch = self.builder.finish().map_err(|e: ArrowError| WriterError::Encoding {
            action: "write",
            path: self.file.target().to_owned(),
            what: e.to_string(),
        })?;
        self.file.write(&batch)
    }
}

/// Lines of CSV or JSON.
pub(super) struct Text<'a> {
    format: TextFormat<'a>,
    pivot: Option<Pivot>,
    /// The file without its name; none for standard output.
    temp: Option<TempFile>,
    path: PathBuf,
}

enum TextFormat<'a> {
    Csv(Box<Lines<Box<dyn Write + 'a>>>),
    Json(Box<dyn Write + 'a>),
}

impl<'a> Text<'a> {
    fn to_stdout(mut plan: Plan<'a>) -> Result<Text<'a>, WriterError> {
        let out: Box<dyn Write + 'a> = match plan.stdout.take() {
            Some(stdout) => Box::new(BufWriter::with_capacity(64 << 10, stdout)),
            None => Box::new(io::sink()),
        };
        Text::begin(plan, out, None, PathBuf::from(super::STANDARD_OUTPUT))
    }

    fn to_file(directory: &Directory, plan: Plan<'a>) -> Result<Text<'a>, WriterError> {
        let path = plan.path.to_owned();
        let temp = TempFile::create(directory)
            .map_err(WriterError::io("make a temporary file in", directory.path()))?;
        let file = temp.file().try_clone().map_err(WriterError::io("write", &path))?;
        let out = Box::new(BufWriter::with_capacity(256 << 10, file));
        Text::begin(plan, out, Some(temp), path)
    }

    fn begin(
        plan: Plan<'a>,
        out: Box<dyn Write + 'a>,
        temp: Option<TempFile>,
        path: PathBuf,
    ) -> Result<Text<'a>, WriterError> {
        let format = if plan.format == ExportFormat::JsonLines {
            TextFormat::Json(out)
        } else {
            let mut lines = Lines::new(out);
            let names = LONG.iter().map(|column| column.name);
            let header = match plan.layout {
                Layout::Long => lines.header(names),
                Layout::Wide => {
                    let series = plan.columns.names().iter().map(String::as_str);
                    lines.header(names.take(FIXED).chain(series))
                }
            };
            header.map_err(WriterError::io("write", &path))?;
            TextFormat::Csv(Box::new(lines))
        };
        let pivot = (plan.layout == Layout::Wide).then(|| Pivot::new(plan.columns, HashMap::new()));
        Ok(Text { format, pivot, temp, path })
    }

    fn push(&mut self, row: &ReadRow) -> Result<(), WriterError> {
        let written = match &mut self.pivot {
            None => match &mut self.format {
                TextFormat::Csv(lines) => lines.long(&row.as_long()),
                TextFormat::Json(out) => json_long(out, &row.as_long()),
            },
            Some(pivot) => match pivot.push(row) {
                Some(wide) => return self.wide(wide),
                None => Ok(()),
            },
        };
        written.map_err(WriterError::io("write", &self.path))
    }

    fn wide(&mut self, (fixed, values): WideRow) -> Result<(), WriterError> {
        let names = self.pivot.as_ref().map_or(&[][..], |pivot| pivot.columns().names());
        let written = match &mut self.format {
            TextFormat::Csv(lines) => lines.wide(&fixed.as_long(), &values),
            TextFormat::Json(out) => json_wide(out, &fixed.as_long(), names, &values),
        };
        written.map_err(WriterError::io("write", &self.path))
    }

    fn finish(mut self, placing: Placing) -> Result<(), WriterError> {
        if let Some(wide) = self.pivot.as_mut().and_then(Pivot::flush) {
            self.wide(wide)?;
        }
        let flushed = match &mut self.format {
            TextFormat::Csv(lines) => lines.flush(),
            TextFormat::Json(out) => out.flush(),
        };
        flushed.map_err(WriterError::io("write", &self.path))?;
        if let Some(temp) = self.temp {
            temp.place(&self.path, placing).map_err(WriterError::io("write", &self.path))?;
        }
        Ok(())
    }
}

/// The members of a JSON object, in the order of the columns.
struct Members<'a>(Vec<(&'a str, Value)>);

impl Serialize for Members<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

fn json_fixed<'a>(row: &LongRow<'_>) -> Members<'a> {
    let values = [
        json!(rfc3339(Wall(row.time))),
        json!(rfc3339(Wall(row.start))),
        json!(row.window_s),
        json!(row.run),
        json!(row.host),
        json!(row.rank),
        json!(row.kind),
        json!(row.tag),
        json!(row.occurrence),
        json!(row.epoch),
        json!(row.step),
    ];
    Members(LONG.iter().map(|c| c.name).zip(values).collect())
}

fn json_long(out: &mut dyn Write, row: &LongRow<'_>) -> io::Result<()> {
    let mut members = json_fixed(row);
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
    members.0.extend(LONG.iter().skip(FIXED).map(|c| c.name).zip(values));
    json_line(out, &members)
}

fn json_wide(
    out: &mut dyn Write,
    fixed: &LongRow<'_>,
    names: &[String],
    values: &[Option<f64>],
) -> io::Result<()> {
    let mut members = json_fixed(fixed);
    members.0.extend(names.iter().map(String::as_str).zip(values.iter().map(|v| json!(v))));
    json_line(out, &members)
}

fn json_line(out: &mut dyn Write, members: &Members<'_>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, members)?;
    out.write_all(b"\n")
}
