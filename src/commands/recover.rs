//! `gpurun recover`: finishes logs whose gpurun was killed. Says what it did, line by line.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::sys::escape::{printable, printable_path};
use crate::sys::format;
use crate::writers::{self, WriterError};

/// How a recovery went as a whole.
#[derive(Debug)]
pub struct RecoverOutcome {
    /// Logs that were finished now.
    pub finished: usize,
    /// Logs that needed nothing.
    pub whole: usize,
    /// Logs that could not be finished, not whole, or not even found; each has its line on the error output.
    pub failed: usize,
    /// Whether all of it could be told; logs are finished all the same.
    pub told: io::Result<()>,
}

impl RecoverOutcome {
    /// Notes whether a line could be written.
    fn tell(&mut self, written: io::Result<()>) {
        if self.told.is_ok() {
            self.told = written;
        }
    }
}

/// Finishes each path: a journal, a target, a CSV file, or everything below a directory.
///
/// `out` gets what was done, `err` what could not be done; neither a log nor a directory that cannot be read keeps the
/// others from being finished. A journal that a running gpurun writes is refused when it was named, and left alone when
/// it was found in a directory.
pub fn recover(paths: &[PathBuf], out: &mut dyn Write, err: &mut dyn Write) -> RecoverOutcome {
    let mut outcome = RecoverOutcome { finished: 0, whole: 0, failed: 0, told: Ok(()) };
    for path in paths {
        if path.is_dir() {
            let mut found = Found::default();
            found.look_into(path);
            found.logs.sort();
            for (directory, error) in &found.failed {
                outcome.failed += 1;
                let said = writeln!(err, "gpurun: cannot read {}: {error}", printable_path(directory));
                outcome.tell(said);
            }
            if found.logs.is_empty() {
                outcome.tell(writeln!(out, "{}: nothing to recover", printable_path(path)));
            }
            for log in found.logs {
                let told = recover_one(&log, false, &mut outcome, out, err);
                outcome.tell(told);
            }
        } else {
            let told = recover_one(path, true, &mut outcome, out, err);
            outcome.tell(told);
        }
    }
    outcome
}

/// Journals and CSV logs below a directory.
#[derive(Default)]
struct Found {
    logs: Vec<PathBuf>,
    failed: Vec<(PathBuf, io::Error)>,
}

impl Found {
    /// Links are not followed: a loop of them has no end.
    fn look_into(&mut self, directory: &Path) {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) => return self.failed.push((directory.to_owned(), error)),
        };
        for entry in entries {
            let found = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)));
            match found {
                Ok((path, kind)) if kind.is_dir() => self.look_into(&path),
                Ok((path, kind)) if kind.is_file() && is_log(&path) => self.logs.push(path),
                Ok(_) => {}
                Err(error) => self.failed.push((directory.to_owned(), error)),
            }
        }
    }
}

fn is_log(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let journal = name.ends_with(".parquet.journal") && !name.starts_with('.');
    journal || (name.ends_with(".csv") && writers::read::rows(path).is_ok())
}

/// What was done with a log.
enum Done {
    /// It was finished; the line says how.
    Finished(String),
    /// Nothing was needed.
    Whole(String),
    /// What could be read of it is in its file; the second line says what could not.
    Damaged(String, String),
}

fn recover_one(
    path: &Path,
    named: bool,
    outcome: &mut RecoverOutcome,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<()> {
    match finish(path) {
        Ok(Done::Finished(what)) => {
            outcome.finished += 1;
            writeln!(out, "{}", printable(&what))
        }
        Ok(Done::Whole(what)) => {
            outcome.whole += 1;
            if named { writeln!(out, "{}", printable(&what)) } else { Ok(()) }
        }
        Ok(Done::Damaged(what, missing)) => {
            outcome.failed += 1;
            writeln!(out, "{}", printable(&what))?;
            writeln!(err, "gpurun: {}", printable(&missing))
        }
        Err(WriterError::Busy(path)) if !named => {
            writeln!(out, "{}: skipped, a running gpurun writes it", printable_path(&path))
        }
        Err(error) => {
            outcome.failed += 1;
            writeln!(err, "gpurun: {}", printable(&error.to_string()))
        }
    }
}

fn finish(path: &Path) -> Result<Done, WriterError> {
    if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("csv")) {
        return Ok(match writers::recover_csv(path)? {
            0 => Done::Whole(format!("{}: already complete", path.display())),
            n => Done::Finished(format!("{}: removed an incomplete last line of {n} bytes", path.display())),
        });
    }
    let journal = match writers::target_of_journal(path) {
        Some(_) => path.to_owned(),
        None => writers::journal_path(path),
    };
    if !journal.exists() {
        // Without a journal there must be a whole file, or the name is wrong.
        let target = writers::target_of_journal(path).unwrap_or_else(|| path.to_owned());
        writers::read::rows(&target)?;
        return Ok(Done::Whole(format!("{}: already complete", target.display())));
    }
    let done = writers::recover(&journal)?;
    let target = done.target.display();
    let losses = done.losses().join("; ");
    let rows = format::counted(done.rows, "rows");
    if done.is_damaged() {
        let what = match done.was_done {
            true => format!("{target}: already has what could be read of its journal"),
            false => format!("{target}: {rows} recovered"),
        };
        return Ok(Done::Damaged(what, format!("{}: {losses}; the journal is kept", journal.display())));
    }
    Ok(Done::Finished(match (done.was_done, losses.as_str()) {
        (true, _) => format!("{target}: already complete; its journal was removed"),
        (false, "") => format!("{target}: {rows} recovered"),
        (false, losses) => format!("{target}: {rows} recovered; {losses}"),
    }))
}
