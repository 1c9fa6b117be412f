//! The targets of a run: checked before GPUs are chosen, made when the job starts, reported on after it has ended.

use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use crate::cli::exit::Exit;
use crate::cli::logging::Logging;
use crate::model::run::RunInfo;
use crate::summary::json::{Summary, TargetSummary};
use crate::summary::text;
use crate::writers::directory::{
    Directory, Placing, TempFile, check_directory, directory_of, make_directories,
};
use crate::writers::target::Target;
use crate::writers::{
    self, Checked, Layout, Mode, Opened, TargetFailure, WriterError, WriterReport, WriterSettings,
};

use super::choice::Refusal;
use super::describe;
use crate::sys::notice::Notices;

/// Checks every target and the summary, and makes nothing. One that cannot be written stops gpurun, or, with
/// `--best-effort`, is warned about.
pub(super) fn check(
    logging: &Logging,
    run: &RunInfo,
    pid: u32,
    notices: &Notices,
) -> Result<Option<Checked>, Refusal> {
    check_summary(logging, notices)?;
    if logging.targets.is_empty() {
        return Ok(None);
    }
    let values = describe::template(run, pid);
    let mut targets = Vec::new();
    for typed in &logging.targets {
        let target = Target::parse(typed).map_err(|error| Refusal::new(Exit::Usage, error.to_string()))?;
        targets.push(target.resolve(&values));
    }
    let mode = match (logging.overwrite, logging.append) {
        (true, _) => Mode::Overwrite,
        (_, true) => Mode::Append,
        _ => Mode::CreateNew,
    };
    let settings = WriterSettings {
        layout: if logging.wide { Layout::Wide } else { Layout::Long },
        mode,
        tensorboard_all: logging.tensorboard_all,
        host: run.host.to_string(),
        rank: run.rank,
        ..WriterSettings::default()
    };
    let (checked, failures) = writers::check(&targets, &settings);
    refuse(&failures, logging, notices)?;
    Ok(Some(checked))
}

/// Makes the targets, when the job is about to start, and the directory of the summary.
pub(super) fn create(
    checked: Option<Checked>,
    logging: &Logging,
    notices: &Notices,
) -> Result<Option<Opened>, Refusal> {
    if let Some(path) = &logging.summary {
        summary_trouble(path, make_directories(directory_of(path)).map(drop), logging, notices)?;
    }
    let Some(checked) = checked else { return Ok(None) };
    let (opened, failures) = checked.create();
    refuse(&failures, logging, notices)?;
    Ok(Some(opened))
}

/// Checks and makes the targets at once, and says which of them did not get the name that was asked for.
pub(super) fn open(
    logging: &Logging,
    run: &RunInfo,
    pid: u32,
    notices: &Notices,
) -> Result<Option<Opened>, Refusal> {
    let opened = create(check(logging, run, pid, notices)?, logging, notices)?;
    for (target, reason) in opened.iter().flat_map(Opened::names) {
        if let Some(reason) = reason {
            notices.say(&format!("{reason}; rows go to {target}"));
        }
    }
    Ok(opened)
}

fn refuse(failures: &[TargetFailure], logging: &Logging, notices: &Notices) -> Result<(), Refusal> {
    if let Some(first) = failures.first()
        && !logging.best_effort
    {
        let line = format!("--log {}: {}", first.target, first.error);
        let exit = match first.error {
            WriterError::Twice(_) => Exit::Usage,
            _ => Exit::OwnFailure,
        };
        return Err(Refusal::new(exit, line));
    }
    for failure in failures {
        notices.warn(&format!("--log {}: {}; the job runs without it", failure.target, failure.error));
    }
    Ok(())
}

/// Whether the summary can be written later.
fn check_summary(logging: &Logging, notices: &Notices) -> Result<(), Refusal> {
    let Some(path) = &logging.summary else { return Ok(()) };
    let checked = match std::fs::metadata(path) {
        Ok(there) if !there.is_file() => Err((path.clone(), io::Error::other("not a regular file"))),
        _ => check_directory(directory_of(path)),
    };
    summary_trouble(path, checked, logging, notices)
}

fn summary_trouble(
    summary: &Path,
    result: Result<(), (PathBuf, io::Error)>,
    logging: &Logging,
    notices: &Notices,
) -> Result<(), Refusal> {
    let Err((path, error)) = result else { return Ok(()) };
    let line = format!("--summary {}: cannot write to {}: {error}", summary.display(), path.display());
    if logging.best_effort {
        notices.warn(&line);
        return Ok(());
    }
    Err(Refusal::new(Exit::OwnFailure, line))
}

/// Writes the summary, which is whole or not there. Where its name is taken it gets the next free one, which is said.
fn write_summary(logging: &Logging, summary: &Summary, notices: &Notices) {
    let Some(path) = &logging.summary else { return };
    let placing = if logging.overwrite { Placing::Replace } else { Placing::NextFree };
    match put_summary(path, summary, placing) {
        Ok(placed) if placing == Placing::NextFree && placed != *path => {
            notices.say(&format!("{} exists; the summary is {}", path.display(), placed.display()));
        }
        Ok(_) => {}
        Err(error) => notices.error(&format!("--summary {}: {error}", path.display())),
    }
}

fn put_summary(path: &Path, summary: &Summary, placing: Placing) -> io::Result<PathBuf> {
    // A link that is replaced stays a link to the summary.
    let path = match placing {
        Placing::Replace => std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
        Placing::New | Placing::NextFree => path.to_owned(),
    };
    let temp = TempFile::create(&Directory::open(directory_of(&path))?)?;
    let mut out = BufWriter::new(temp.file());
    serde_json::to_writer_pretty(&mut out, summary)?;
    out.write_all(b"\n")?;
    out.flush()?;
    drop(out);
    temp.place(&path, placing)
}

/// Says and writes the totals of a run that has ended. Logs that are not whole are said to quiet users too.
pub(super) fn say_summary(summary: &Summary, reports: &[WriterReport], logging: &Logging, notices: &Notices) {
    for report in reports {
        if let Some(note) = &report.note {
            notices.warn(&format!("{}: {note}", report.target));
        }
    }
    let succeeded = summary.exit.as_ref().is_none_or(|exit| exit.code == Some(0));
    for (n, line) in text::lines(summary).iter().enumerate() {
        // The first says how the job ended.
        if n == 0 { notices.outcome(succeeded, line) } else { notices.say(line) }
    }
    text::details(summary).iter().for_each(|line| notices.detail(line));
    text::warnings(summary).iter().for_each(|line| notices.warn(line));
    text::troubles(summary).iter().for_each(|line| notices.error(line));
    write_summary(logging, summary, notices);
}

/// The targets that are written, each with the reason if it has not the name that was asked for.
pub(super) fn names(opened: Option<&Opened>) -> Vec<String> {
    let name = |(target, reason): (&Target, Option<&str>)| match reason {
        Some(reason) => format!("{target} ({reason})"),
        None => target.to_string(),
    };
    opened.map(|opened| opened.names().map(name).collect()).unwrap_or_default()
}

/// The reports as the summary has them.
pub(super) fn summaries(reports: &[WriterReport]) -> Vec<TargetSummary> {
    reports
        .iter()
        .map(|r| TargetSummary {
            target: r.target.to_string(),
            rows: r.rows,
            lost_rows: r.lost_rows,
            error: r.error.clone(),
        })
        .collect()
}
