//! The trait of the formats, and a target that is open: its file, its format, and what is still to be written.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::model::run::{RunEnd, RunInfo};
use crate::model::window::WindowBatch;

use super::WriterError;
use super::log_file::{FileState, LogFile};
use super::target::{Target, target_of_journal};

/// One file format: turns batches into bytes that are appended whole.
pub(super) trait Format: Send {
    /// Learns what the run is about, before anything else; may replace the file that it was opened with. The text is for
    /// the user.
    fn begin(&mut self, run: &Arc<RunInfo>, file: &mut LogFile) -> Result<Option<String>, WriterError>;

    /// What a fresh file starts with. Whatever was encoded before is forgotten.
    fn prefix(&mut self, out: &mut Vec<u8>) -> io::Result<()>;

    /// The bytes of one batch, to be appended as one record, and the rows that the file gets by them; may be none.
    fn encode(&mut self, batch: &WindowBatch, out: &mut Vec<u8>) -> io::Result<u64>;

    /// The end of the run: makes the file what its name says.
    fn finish(&mut self, file: &mut LogFile, end: &RunEnd) -> Result<Finished, WriterError>;

    /// A message for the user, given once.
    fn notice(&mut self) -> Option<String> {
        None
    }
}

/// What the end of a run made of a file.
#[derive(Debug, Default)]
pub(super) struct Finished {
    /// The finished file, where it is not the one that was appended to.
    pub(super) path: Option<PathBuf>,
    /// Rows that the run added to it, where that was counted again.
    pub(super) rows: Option<u64>,
    /// For the user.
    pub(super) note: Option<String>,
}

/// A target that is open and locked.
pub(super) struct Writer {
    pub(super) target: Target,
    pub(super) file: LogFile,
    format: Box<dyn Format>,
    /// The file did not exist before.
    pub(super) created: bool,
    /// The content that the file had before is to be dropped at the start.
    replace: bool,
    prefix_due: bool,
    /// A batch whose write failed: encoded once, since encoders remember what they sent.
    pending: Option<Pending>,
    notices: Vec<String>,
}

struct Pending {
    bytes: Vec<u8>,
    rows: u64,
}

/// What was appended for one batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub(super) rows: u64,
    pub(super) bytes: u64,
}

impl Writer {
    /// A writer of a file that was made for it, or is continued.
    pub(super) fn new(target: Target, file: LogFile, format: Box<dyn Format>, created: bool) -> Writer {
        let prefix_due = file.len() == 0;
        Writer {
            target,
            file,
            format,
            created,
            replace: false,
            prefix_due,
            pending: None,
            notices: Vec::new(),
        }
    }

    /// Drops the content of the file when the run begins.
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
        let before = self.file.path().to_owned();
        let note = self.format.begin(run, &mut self.file)?;
        self.notices.extend(note);
        self.follow_file(before);
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
    pub(super) fn write(&mut self, batch: &WindowBatch) -> io::Result<Written> {
        self.check_file()?;
        self.write_prefix()?;
        let pending = match self.pending.take() {
            Some(pending) => pending,
            None => {
                let mut bytes = Vec::new();
                let rows = self.format.encode(batch, &mut bytes)?;
                Pending { bytes, rows }
            }
        };
        if !pending.bytes.is_empty()
            && let Err(error) = self.file.append(&pending.bytes)
        {
            self.pending = Some(pending);
            return Err(error);
        }
        let note = self.format.notice();
        self.notices.extend(note);
        Ok(Written { rows: pending.rows, bytes: pending.bytes.len() as u64 })
    }

    /// Looks at what others did to the file.
    fn check_file(&mut self) -> io::Result<()> {
        let before = self.file.path().to_owned();
        let name = before.display();
        let notice = match self.file.check()? {
            FileState::Unchanged => return Ok(()),
            FileState::Restored => {
                format!("{name} was deleted while the job ran; it was made again with all its rows")
            }
            FileState::Replaced => format!(
                "another file has taken the name {name}; all rows are in {}",
                self.file.path().display()
            ),
            FileState::Renamed => {
                format!(
                    "{name} was renamed while the job runs; its rows go to {}",
                    self.file.path_now().display()
                )
            }
            FileState::Emptied => {
                self.prefix_due = true;
                self.pending = None;
                format!("{name} was truncated by another program: its earlier rows are lost, new rows follow")
            }
        };
        self.notices.push(notice);
        self.follow_file(before);
        Ok(())
    }

    /// The target is where its file is.
    fn follow_file(&mut self, before: PathBuf) {
        let path = self.file.path();
        if path != before {
            let path = target_of_journal(path).unwrap_or_else(|| path.to_owned());
            self.target = match self.target {
                Target::TensorBoard(_) => self.target.clone(),
                _ => self.target.at(path),
            };
        }
    }

    pub(super) fn finish(&mut self, end: &RunEnd) -> Result<Finished, WriterError> {
        let path = self.file.path().to_owned();
        self.write_prefix().map_err(WriterError::io("write", &path))?;
        let finished = self.format.finish(&mut self.file, end)?;
        if let Some(path) = &finished.path {
            self.target = self.target.at(path.clone());
        }
        if let (Some(now), Some(name)) = (self.file.directory().renamed_to(), self.target.path().file_name())
            && !matches!(self.target, Target::TensorBoard(_))
        {
            self.target = self.target.at(now.join(name));
        }
        Ok(finished)
    }

    pub(super) fn add_notice(&mut self, note: Option<String>) {
        self.notices.extend(note);
    }

    pub(super) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
}
