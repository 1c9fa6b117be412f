//! CSV logs: as gpurun writes them, joined with one another, and rewritten by other programs.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, Read as _, Take};
use std::path::Path;

use super::super::WriterError;
use super::super::columns::ReadRow;
use super::super::csv_lines::{text_of, whole_lines};
use super::super::metadata::Metadata;
use super::cells::{Cells, Shape, Texts, Value, rows_of};
use super::not_a_log;

pub(super) struct CsvSource {
    reader: csv::Reader<Take<BufReader<File>>>,
    record: csv::StringRecord,
    /// Columns of the lines that follow.
    names: Vec<String>,
    shape: Shape,
    torn: u64,
}

impl CsvSource {
    pub(super) fn open(
        path: &Path,
        file: File,
        size: u64,
        texts: &mut Texts,
    ) -> Result<CsvSource, WriterError> {
        let whole = whole_lines(&file, size).map_err(WriterError::io("read", path))?;
        let input = BufReader::with_capacity(256 << 10, file).take(whole);
        // Lines are checked here: a log of several files joined may change its columns.
        let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(input);
        let mut record = csv::StringRecord::new();
        reader.read_record(&mut record).map_err(|e| not_a_log(path, e))?;
        let names = names_of(&record);
        let shape = Shape::of(path, &names, &Metadata::new(), texts)?;
        Ok(CsvSource { reader, record, names, shape, torn: size - whole })
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.reader.position().byte()
    }

    /// Bytes after the last line end.
    pub(super) fn torn_bytes(&self) -> u64 {
        self.torn
    }

    /// Reads the next line that has rows; `false` at the end.
    pub(super) fn read(
        &mut self,
        path: &Path,
        texts: &mut Texts,
        out: &mut VecDeque<ReadRow>,
    ) -> Result<bool, WriterError> {
        while self.reader.read_record(&mut self.record).map_err(|e| not_a_log(path, e))? {
            let line = self.record.position().map_or(0, csv::Position::line);
            let bad = |what: &str| not_a_log(path, format!("line {line}: {what}"));
            if self.record.get(self.shape.time()) == Some("time") {
                // The start of a file that was joined to the one before.
                let names = names_of(&self.record);
                if names != self.names {
                    let shape = Shape::of(path, &names, &Metadata::new(), texts);
                    self.shape = shape.map_err(|_| bad("a second header without the columns of a log"))?;
                    self.names = names;
                }
                continue;
            }
            if self.record.len() != self.names.len() {
                let (has, should) = (self.record.len(), self.names.len());
                return Err(bad(&format!("it has {has} fields, its header has {should}")));
            }
            // Programs that write times in another form may have line ends in a text; gpurun never has.
            let ours = self.record.get(self.shape.time()).is_some_and(|time| time.ends_with('Z'));
            if ours && self.record.iter().any(|field| field.contains(['\n', '\r'])) {
                return Err(bad("a quote in it is not closed"));
            }
            rows_of(path, &self.shape, &CsvCells { record: &self.record, line }, texts, out)?;
            return Ok(true);
        }
        Ok(false)
    }
}

fn names_of(record: &csv::StringRecord) -> Vec<String> {
    record.iter().map(|name| text_of(name).to_owned()).collect()
}

struct CsvCells<'a> {
    record: &'a csv::StringRecord,
    line: u64,
}

impl Cells for CsvCells<'_> {
    fn value(&self, place: usize) -> Value<'_> {
        match self.record.get(place) {
            None | Some("") => Value::Missing,
            Some(cell) => Value::Text(text_of(cell)),
        }
    }

    fn place(&self) -> String {
        format!("line {}", self.line)
    }
}
