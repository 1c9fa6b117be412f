//! The targets of a run: checked before GPUs are chosen, made when the job starts.
//!
//! A check makes nothing, so that a wait that is broken off leaves nothing behind. A name that is taken when the files
//! are made never stops a run: the next free one is used.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Access;

use crate::model::run::RunInfo;

use super::directory::{Directory, check_directory, directory_of, is_missing, make_directories};
use super::fanout::FanOut;
use super::format::Writer;
use super::target::{Target, numbered};
use super::{Mode, WriterError, WriterSettings, csv_file, parquet_target, tensorboard};

/// A target that cannot be used.
#[derive(Debug)]
pub struct TargetFailure {
    /// Which one.
    pub target: Target,
    /// Why.
    pub error: WriterError,
}

/// Targets that can be made, as far as that can be told without making them.
#[derive(Debug)]
pub struct Checked {
    targets: Vec<Target>,
    settings: WriterSettings,
}

/// Checks every target and makes nothing. Those that fail are listed.
pub fn check(targets: &[Target], settings: &WriterSettings) -> (Checked, Vec<TargetFailure>) {
    let mut checked = Checked { targets: Vec::new(), settings: settings.clone() };
    let mut failures = Vec::new();
    let mut seen: Vec<PathBuf> = Vec::new();
    for target in targets {
        let path = through_links(target.path());
        let result = if seen.contains(&path) {
            Err(WriterError::Twice(target.path().to_owned()))
        } else {
            check_one(target, &file_behind(target.path()), settings)
        };
        seen.push(path);
        match result {
            Ok(()) => checked.targets.push(target.clone()),
            Err(error) => failures.push(TargetFailure { target: target.clone(), error }),
        }
    }
    (checked, failures)
}

fn check_one(target: &Target, path: &Path, settings: &WriterSettings) -> Result<(), WriterError> {
    let there = match fs::metadata(path) {
        Ok(there) => Some(there),
        Err(error) if is_missing(&error) => None,
        Err(error) => return Err(WriterError::io("look at", path)(error)),
    };
    if matches!(target, Target::TensorBoard(_)) {
        return check_directory(path).map_err(cannot_make);
    }
    check_directory(directory_of(path)).map_err(cannot_make)?;
    let Some(there) = there else { return Ok(()) };
    if !there.is_file() {
        return Err(WriterError::NotAFile(path.to_owned()));
    }
    if settings.mode == Mode::CreateNew {
        return Ok(());
    }
    rustix::fs::access(path, Access::WRITE_OK)
        .map_err(|error| WriterError::io("write", path)(error.into()))?;
    match (target, settings.mode) {
        (Target::Csv(_), Mode::Append) => csv_file::check_layout(path, settings.layout),
        (Target::Parquet(_), Mode::Append) => parquet_target::check_layout(path, settings.layout),
        _ => Ok(()),
    }
}

fn cannot_make((path, error): (PathBuf, std::io::Error)) -> WriterError {
    WriterError::io("make files in", path)(error)
}

/// What keeps a run from using the name that it was given.
fn is_taken(error: &WriterError) -> bool {
    use WriterError::{Busy, DamagedJournal, Exists, Unfinished};
    matches!(error, Exists(_) | Busy(_) | Unfinished(_) | DamagedJournal(_))
}

/// Targets that are open and locked. Dropped without a start, it removes the files and directories that it made.
pub struct Opened {
    writers: Vec<Writer>,
    settings: WriterSettings,
    /// For each writer, why it has not the name that it was given.
    renamed: Vec<Option<String>>,
    /// Directories that were made, outermost first.
    made: Vec<PathBuf>,
}

impl Checked {
    /// Makes and locks every target. Those that fail are listed; the others are open.
    pub fn create(self) -> (Opened, Vec<TargetFailure>) {
        let Checked { targets, settings } = self;
        let mut opened = Opened { writers: Vec::new(), settings, renamed: Vec::new(), made: Vec::new() };
        let mut failures = Vec::new();
        for target in targets {
            match opened.create_one(&target) {
                Ok((writer, renamed)) => {
                    opened.writers.push(writer);
                    opened.renamed.push(renamed);
                }
                Err(error) => failures.push(TargetFailure { target, error }),
            }
        }
        (opened, failures)
    }
}

impl Opened {
    /// The target, and why it has another name than the given one.
    fn create_one(&mut self, target: &Target) -> Result<(Writer, Option<String>), WriterError> {
        if matches!(target, Target::TensorBoard(_)) {
            let path = file_behind(target.path());
            return Ok((tensorboard::open(target, &path, &self.settings, &mut self.made)?, None));
        }
        let mut reason = None;
        let mut n = 1;
        loop {
            let numbered = target.at(numbered(target.path(), n));
            match self.create_file(&numbered, if n == 1 { self.settings.mode } else { Mode::CreateNew }) {
                Ok(writer) => return Ok((writer, reason)),
                Err(error) if is_taken(&error) => {
                    reason.get_or_insert_with(|| error.to_string());
                    n += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn create_file(&mut self, target: &Target, mode: Mode) -> Result<Writer, WriterError> {
        let path = file_behind(target.path());
        let directory = directory_of(&path);
        self.make_directories(directory)?;
        let directory = Directory::open(directory).map_err(WriterError::io("open", directory))?;
        let layout = self.settings.layout;
        match target {
            Target::Parquet(_) => parquet_target::open(target, &directory, &path, layout, mode),
            _ => csv_file::open(target, &directory, &path, layout, mode),
        }
    }

    fn make_directories(&mut self, path: &Path) -> Result<(), WriterError> {
        let made = make_directories(path).map_err(|(path, error)| WriterError::io("make", path)(error))?;
        self.made.extend(made);
        Ok(())
    }

    /// The targets that are open.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.writers.iter().map(|writer| &writer.target)
    }

    /// The targets that are open, each with the reason why it has not the name that it was given, if so.
    pub fn names(&self) -> impl Iterator<Item = (&Target, Option<&str>)> {
        self.targets().zip(self.renamed.iter().map(Option::as_deref))
    }

    /// The files that `gpurun recover` can finish should this process not.
    pub fn journaled(&self) -> impl Iterator<Item = PathBuf> {
        let is_journaled = |writer: &&Writer| matches!(writer.target, Target::Parquet(_));
        self.writers.iter().filter(is_journaled).map(|writer| writer.target.path().to_owned())
    }

    /// Starts one thread per target.
    pub fn start(mut self, run: Arc<RunInfo>) -> FanOut {
        self.made.clear();
        FanOut::start(std::mem::take(&mut self.writers), &self.settings, &run)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        for writer in self.writers.iter().filter(|writer| writer.created) {
            // The job never ran: an empty log would only be in the way of the next try.
            let _ = writer.file.remove();
        }
        for directory in self.made.iter().rev() {
            // One that something else was put into stays.
            let _ = fs::remove_dir(directory);
        }
    }
}

/// What a name stands for: links are followed, also one that leads to a file still to be made. Names that
/// cannot be followed stay as they are, and fail where they are opened.
fn through_links(path: &Path) -> PathBuf {
    /// The kernel's own limit.
    const LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        if let Ok(real) = fs::canonicalize(&path) {
            return real;
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { break };
        let here = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        match fs::read_link(&path) {
            Ok(to) => path = parent.join(to),
            Err(_) => return fs::canonicalize(here).map_or(path.clone(), |dir| dir.join(name)),
        }
    }
    path
}

/// The path of the file itself: as given, unless that is a link.
fn file_behind(path: &Path) -> PathBuf {
    let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    if is_link { through_links(path) } else { path.to_owned() }
}
