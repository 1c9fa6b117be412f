//! `gpurun recover`: finishes logs whose gpurun was killed. Says what it did, line by line.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::writers::{self, WriterError};

/// How a recovery went as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoverOutcome {
    /// Logs that were finished now.
    pub finished: usize,
    /// Logs that needed nothing.
    pub whole: usize,
    /// Logs that could not be finished; each has its line on the error output.
    pub failed: usize,
}

/// Finishes each path: a journal, a target, a CSV file, or everything below a directory.
///
/// `out` hears what was done, `err` what could not be done. A journal that a running gpurun writes is
/// refused when it was named, and left alone when it was found in a directory.
pub fn recover(paths: &[PathBuf], out: &mut dyn Write, err: &mut dyn Write) -> io::Result<RecoverOutcome> {
    let mut outcome = RecoverOutcome::default();
    for path in paths {
        if path.is_dir() {
            let mut found = Vec::new();
            if let Err(e) = find(path, &mut found) {
                outcome.failed += 1;
                writeln!(err, "gpurun: cannot read {}: {e}", path.display())?;
            }
            found.sort();
            if found.is_empty() {
                writeln!(out, "{}: nothing to recover", path.display())?;
            }
            for log in found {
                one(&log, false, &mut outcome, out, err)?;
            }
        } else {
            one(path, true, &mut outcome, out, err)?;
        }
    }
    Ok(outcome)
}

/// Journals and CSV logs below a directory. Links are not followed: a loop of them has no end.
fn find(dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let path = entry.path();
        if kind.is_dir() {
            find(&path, found)?;
        } else if kind.is_file() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let log = name.ends_with(".csv") && writers::read::rows(&path).is_ok();
            if log || (name.ends_with(".parquet.journal") && !name.starts_with('.')) {
                found.push(path);
            }
        }
    }
    Ok(())
}

fn one(
    path: &Path,
    named: bool,
    outcome: &mut RecoverOutcome,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<()> {
    match finish(path) {
        Ok((true, what)) => {
            outcome.finished += 1;
            writeln!(out, "{what}")
        }
        Ok((false, what)) => {
            outcome.whole += 1;
            if named { writeln!(out, "{what}") } else { Ok(()) }
        }
        Err(WriterError::Busy(path)) if !named => {
            writeln!(out, "{}: a running gpurun writes it; left alone", path.display())
        }
        Err(e) => {
            outcome.failed += 1;
            writeln!(err, "gpurun: {e}")
        }
    }
}

/// Whether there was anything to do, and the line about it.
fn finish(path: &Path) -> Result<(bool, String), WriterError> {
    if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("csv")) {
        let cut = writers::recover_csv(path)?;
        return Ok(match cut {
            0 => (false, format!("{}: whole already", path.display())),
            n => (true, format!("{}: cut an incomplete last line of {n} bytes", path.display())),
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
        return Ok((false, format!("{}: whole already", target.display())));
    }
    let done = writers::recover(&journal)?;
    let target = done.target.display();
    if done.was_done {
        return Ok((true, format!("{target}: was finished already; its journal is removed")));
    }
    let torn = match done.torn_bytes {
        0 => String::new(),
        n => format!("; {n} bytes of an incomplete last batch were dropped"),
    };
    Ok((true, format!("{target}: {} rows recovered{torn}", done.rows)))
}
