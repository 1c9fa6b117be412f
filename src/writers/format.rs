//! The trait of the formats, and the opening of targets before the job starts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::model::run::{RunEnd, RunInfo};
use crate::model::window::WindowBatch;

use super::disk::{Fate, LogFile};
use super::fanout::FanOut;
use super::target::Target;
use super::{WriterError, WriterSettings, csv_file, parquet_file, tensorboard};

/// One file format: turns batches into bytes that are appended whole.
pub(super) trait Format: Send {
    /// Learns what the run is about, before anything else; may replace the file it was opened with.
    fn begin(&mut self, run: &Arc<RunInfo>, file: &mut LogFile) -> Result<Option<String>, WriterError>;

    /// What a fresh file starts with. Whatever was encoded before is forgotten.
    fn prefix(&mut self, out: &mut Vec<u8>) -> io::Result<()>;

    /// The bytes of one batch, to be appended as one record; may be none.
    fn encode(&mut self, batch: &WindowBatch, out: &mut Vec<u8>) -> io::Result<()>;

    /// The end of the run: makes the file what its name says. The text is for the user.
    fn finish(&mut self, file: &mut LogFile, end: &RunEnd) -> Result<Option<String>, WriterError>;

    /// Something to tell the user, once.
    fn notice(&mut self) -> Option<String> {
        None
    }
}

/// A target that is open, locked and not yet written.
pub(super) struct Writer {
    pub(super) target: Target,
    pub(super) file: LogFile,
    pub(super) format: Box<dyn Format>,
    /// The file is ours from its first byte.
    pub(super) created: bool,
    /// The content the file had before is to be dropped at the start.
    pub(super) replace: bool,
    prefix_due: bool,
    /// The bytes of a batch whose write failed: encoded once, since encoders remember what they sent.
    pending: Vec<u8>,
    has_pending: bool,
    notices: Vec<String>,
}

impl Writer {
    pub(super) fn new(target: Target, file: LogFile, format: Box<dyn Format>, created: bool) -> Writer {
        let prefix_due = file.len() == 0;
        Writer {
            target,
            file,
            format,
            created,
            replace: false,
            prefix_due,
            pending: Vec::new(),
            has_pending: false,
            notices: Vec::new(),
        }
    }

    pub(super) fn replacing(mut self) -> Writer {
        self.replace = true;
        self
    }

    pub(super) fn begin(&mut self, run: &Arc<RunInfo>) -> Result<(), WriterError> {
        if self.replace {
            let path = self.file.path().to_owned();
            self.file.truncate(0).map_err(WriterError::io("empty", path))?;
            self.prefix_due = true;
        }
        let note = self.format.begin(run, &mut self.file)?;
        self.notices.extend(note);
        self.prefix_due |= self.file.len() == 0;
        // An unwritable disk is met with the first batch, and then retried.
        let _ = self.write_prefix();
        Ok(())
    }

    fn write_prefix(&mut self) -> io::Result<()> {
        if self.prefix_due {
            let mut bytes = Vec::new();
            self.format.prefix(&mut bytes)?;
            self.file.append(&bytes)?;
            self.prefix_due = false;
        }
        Ok(())
    }

    /// Writes one batch whole or not at all; the same batch is to be given again after an error.
    pub(super) fn write(&mut self, batch: &WindowBatch) -> io::Result<u64> {
        match self.file.check()? {
            Fate::Same => {}
            Fate::Restored => self.notices.push(format!(
                "{} was deleted while the job ran; it was made again with all its rows",
                self.file.path().display()
            )),
            Fate::Emptied => {
                self.notices.push(format!(
                    "{} was cut by another program; earlier rows are gone, it starts anew",
                    self.file.path().display()
                ));
                self.prefix_due = true;
                self.has_pending = false;
            }
        }
        self.write_prefix()?;
        if !self.has_pending {
            self.pending.clear();
            self.format.encode(batch, &mut self.pending)?;
            self.has_pending = true;
        }
        if !self.pending.is_empty() {
            self.file.append(&self.pending)?;
        }
        self.has_pending = false;
        let note = self.format.notice();
        self.notices.extend(note);
        Ok(self.pending.len() as u64)
    }

    pub(super) fn finish(&mut self, end: &RunEnd) -> Result<Option<String>, WriterError> {
        let path = self.file.path().to_owned();
        self.write_prefix().map_err(WriterError::io("write", &path))?;
        self.format.finish(&mut self.file, end)
    }

    pub(super) fn tell(&mut self, note: Option<String>) {
        self.notices.extend(note);
    }

    pub(super) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
}

/// A target that could not be opened.
#[derive(Debug)]
pub struct OpenFailure {
    /// Which one.
    pub target: Target,
    /// Why.
    pub error: WriterError,
}

/// Targets that are open and locked. Dropped without a start, it removes the files it made.
pub struct Opened {
    pub(super) writers: Vec<Writer>,
    settings: WriterSettings,
}

impl Opened {
    /// The targets that are open.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.writers.iter().map(|w| &w.target)
    }

    /// The targets that `gpurun recover` can finish should this process not.
    pub fn journaled(&self) -> impl Iterator<Item = PathBuf> {
        self.targets().filter(|target| matches!(target, Target::Parquet(_))).map(|t| t.path().to_owned())
    }

    /// Starts one thread per target.
    pub fn start(mut self, run: Arc<RunInfo>) -> FanOut {
        FanOut::start(std::mem::take(&mut self.writers), &self.settings, &run)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        for writer in &self.writers {
            if writer.created {
                // The job never ran: an empty log would only be in the way of the next try.
                let _ = fs::remove_file(writer.file.path());
            }
        }
    }
}

/// Checks, creates and locks every target. Those that fail are listed; the others are open.
pub fn open(targets: &[Target], settings: &WriterSettings) -> (Opened, Vec<OpenFailure>) {
    let mut opened = Opened { writers: Vec::new(), settings: settings.clone() };
    let mut failures = Vec::new();
    let mut seen: Vec<PathBuf> = Vec::new();
    for target in targets {
        let path = through_links(target.path());
        let result = if seen.contains(&path) {
            Err(WriterError::Twice(target.path().to_owned()))
        } else {
            seen.push(path);
            open_one(target, settings)
        };
        match result {
            Ok(writer) => opened.writers.push(writer),
            Err(error) => failures.push(OpenFailure { target: target.clone(), error }),
        }
    }
    (opened, failures)
}

fn open_one(target: &Target, settings: &WriterSettings) -> Result<Writer, WriterError> {
    let is_link = fs::symlink_metadata(target.path()).is_ok_and(|found| found.is_symlink());
    let path = &if is_link { through_links(target.path()) } else { target.path().to_owned() };
    match target {
        Target::Csv(_) => csv_file::open(target, path, settings),
        Target::Parquet(_) => parquet_file::open(target, path, settings),
        Target::TensorBoard(_) => tensorboard::open(target, path, settings),
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
