//! The targets of a run: opened before the job starts, reported on after it has ended.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use crate::cli::exit::Exit;
use crate::cli::logging::Logging;
use crate::model::run::RunInfo;
use crate::summary::json::{Summary, TargetSummary};
use crate::writers::target::Target;
use crate::writers::{self, Layout, Mode, Opened, WriterReport, WriterSettings};

use super::choice::Refusal;
use super::describe;
use crate::sys::notice::Notices;

/// Opens every target. One that cannot be written stops gpurun, or, with `--best-effort`, is warned about.
pub(super) fn open(
    logging: &Logging,
    run: &RunInfo,
    pid: u32,
    notices: &Notices,
) -> Result<Option<Opened>, Refusal> {
    if logging.targets.is_empty() {
        return Ok(None);
    }
    let values = describe::template(run, pid);
    let mut targets = Vec::new();
    for text in &logging.targets {
        let target = Target::parse(text).map_err(|error| Refusal::new(Exit::Usage, error.to_string()))?;
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
        host: run.host.to_string(),
        rank: run.rank,
        ..WriterSettings::default()
    };
    let (opened, failures) = writers::open(&targets, &settings);
    if let Some(first) = failures.first()
        && !logging.best_effort
    {
        let line = format!("--log {}: {}", first.target, first.error);
        drop(opened);
        return Err(Refusal::new(Exit::OwnFailure, line));
    }
    for failure in &failures {
        notices.say(&format!("--log {}: {}; the job runs without it", failure.target, failure.error));
    }
    Ok(Some(opened))
}

/// Whether the summary can be written later: its directory is there and takes files.
pub(super) fn check_summary(logging: &Logging, notices: &Notices) -> Result<(), Refusal> {
    let Some(path) = &logging.summary else { return Ok(()) };
    let Err(why) = can_be_written(path, logging.overwrite) else { return Ok(()) };
    let line = format!("--summary {}: {why}", path.display());
    if logging.best_effort {
        notices.say(&line);
        return Ok(());
    }
    Err(Refusal::new(Exit::OwnFailure, line))
}

/// Whether a file can be made here, or replaced where that was allowed.
fn can_be_written(path: &Path, overwrite: bool) -> Result<(), String> {
    let existed = path.exists();
    if existed && !overwrite {
        return Err("the file exists; use --overwrite or another name".to_owned());
    }
    OpenOptions::new().append(true).create(true).open(path).map_err(|error| error.to_string())?;
    if !existed {
        // Only the right to create it was in question; an empty summary would be a lie.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Writes the summary aside and renames it, so that it is whole or not there.
fn write_summary(logging: &Logging, summary: &Summary, notices: &Notices) {
    let Some(path) = &logging.summary else { return };
    let mut aside = path.clone().into_os_string();
    aside.push(".tmp");
    let written = (|| {
        let mut file = File::create(&aside)?;
        serde_json::to_writer_pretty(&mut file, summary)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        std::fs::rename(&aside, path)
    })();
    if let Err(error) = written {
        notices.error(&format!("--summary {}: {error}", path.display()));
    }
}

/// Says and writes the totals of a run that has ended. Logs that are not whole are said to quiet users too.
pub(super) fn say_summary(summary: &Summary, reports: &[WriterReport], logging: &Logging, notices: &Notices) {
    for report in reports {
        if let Some(note) = &report.note {
            notices.say(&format!("{}: {note}", report.target));
        }
    }
    for line in crate::summary::text::lines(summary) {
        notices.say(&line);
    }
    for line in crate::summary::text::troubles(summary) {
        notices.error(&line);
    }
    write_summary(logging, summary, notices);
}

/// The targets that are written.
pub(super) fn names(opened: Option<&Opened>) -> Vec<String> {
    opened.map(|opened| opened.targets().map(ToString::to_string).collect()).unwrap_or_default()
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
