//! Lines of CSV: what the cells of a row hold, and how a text is read back from its cell.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;

use crate::model::time::Wall;
use crate::sys::escape::is_unsafe;

use super::columns::{LongRow, rfc3339};

/// Writes the lines of either layout.
pub(super) struct Lines<W: Write> {
    out: csv::Writer<W>,
    /// Rows of a window have the same times: each is formatted once.
    times: [(i64, String); 2],
}

impl<W: Write> Lines<W> {
    pub(super) fn new(out: W) -> Lines<W> {
        let out = csv::WriterBuilder::new()
            .terminator(csv::Terminator::Any(b'\n'))
            .buffer_capacity(64 << 10)
            .from_writer(out);
        let time = || (0, rfc3339(Wall(0)));
        Lines { out, times: [time(), time()] }
    }

    pub(super) fn header<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) -> io::Result<()> {
        for name in names {
            self.text(name)?;
        }
        self.end()
    }

    pub(super) fn long(&mut self, row: &LongRow<'_>) -> io::Result<()> {
        self.fixed(row)?;
        self.text(row.scope)?;
        self.int(row.gpu)?;
        self.int(row.cuda)?;
        self.text(row.uuid.unwrap_or_default())?;
        self.int(row.pid)?;
        self.text(row.process.unwrap_or_default())?;
        self.text(row.metric)?;
        self.text(row.unit)?;
        for value in row.stats {
            self.float(value)?;
        }
        self.int(row.samples)?;
        self.int(row.missing)?;
        self.end()
    }

    /// `values` has an entry for each column of a series.
    pub(super) fn wide(&mut self, fixed: &LongRow<'_>, values: &[Option<f64>]) -> io::Result<()> {
        self.fixed(fixed)?;
        for value in values {
            self.float(*value)?;
        }
        self.end()
    }

    fn fixed(&mut self, row: &LongRow<'_>) -> io::Result<()> {
        for (known, time) in self.times.iter_mut().zip([row.time, row.start]) {
            if known.0 != time {
                *known = (time, rfc3339(Wall(time)));
            }
            self.out.write_field(&known.1).map_err(io_error)?;
        }
        self.float(Some(row.window_s))?;
        self.text(row.run)?;
        self.text(row.host)?;
        self.int(row.rank)?;
        self.text(row.kind)?;
        self.text(row.tag)?;
        self.int(row.occurrence)?;
        self.int(row.epoch)?;
        self.int(row.step)
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.out.write_field(cell(text).as_ref()).map_err(io_error)
    }

    /// The shortest text that reads back as the same number, always with a point or an exponent.
    fn float(&mut self, value: Option<f64>) -> io::Result<()> {
        let mut buffer = zmij::Buffer::new();
        let text = value.filter(|v| v.is_finite()).map_or("", |value| buffer.format_finite(value));
        self.out.write_field(text).map_err(io_error)
    }

    fn int(&mut self, value: Option<impl itoa::Integer>) -> io::Result<()> {
        let mut buffer = itoa::Buffer::new();
        let text = value.map_or("", |value| buffer.format(value));
        self.out.write_field(text).map_err(io_error)
    }

    fn end(&mut self) -> io::Result<()> {
        self.out.write_record(None::<&[u8]>).map_err(io_error)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

/// The text of a cell. Control characters become blanks, so that a line is a row, and a text that a spreadsheet would run
/// as a formula gets a `'` in front, as one that begins with that character does.
fn cell(text: &str) -> Cow<'_, str> {
    let mut cell = Cow::Borrowed(text);
    if text.contains(is_unsafe) {
        cell = Cow::Owned(text.replace(is_unsafe, " "));
    }
    if cell.trim_start().starts_with(['=', '+', '-', '@', '\'']) {
        cell = Cow::Owned(format!("'{cell}"));
    }
    cell
}

/// The text that a cell was made of, but for control characters.
pub(super) fn text_of(cell: &str) -> &str {
    cell.strip_prefix('\'').unwrap_or(cell)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_cell_is_a_formula_or_more_than_a_line() {
        assert_eq!(cell("train.py"), "train.py");
        assert_eq!(cell("=cmd|' /C calc'!A0"), "'=cmd|' /C calc'!A0");
        assert_eq!(cell("\t@SUM(1)"), "' @SUM(1)");
        assert_eq!(cell("-loss"), "'-loss");
        assert_eq!(cell("'quoted"), "''quoted");
        assert_eq!(cell("a\x1b[31m\r\nb\u{202e}"), "a [31m  b ");
    }

    proptest! {
        #[test]
        fn a_text_reads_back_from_its_cell(text in any::<String>()) {
            let cell = cell(&text);
            prop_assert_eq!(text_of(&cell), text.replace(is_unsafe, " "));
            prop_assert!(!cell.trim_start().starts_with(['=', '+', '-', '@']));
        }
    }
}
