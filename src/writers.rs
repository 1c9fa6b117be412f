//! One trait, one file per format, the journal, the fan-out threads. Never computes a number.
//!
//! [`check`] looks at every target and makes nothing; [`Checked::create`] makes and locks them when the job starts;
//! [`Opened::start`] gives each its own thread; [`FanOut::send`] hands over window batches and never blocks;
//! [`FanOut::finish`] waits for the writers, but never past its deadline. What a writer cannot write now it keeps, up to
//! a bound, and tries again with the next window.

mod batch_queue;
mod columns;
mod csv_file;
mod csv_lines;
mod decode;
pub(crate) mod directory;
pub(crate) mod export;
mod fanout;
mod format;
mod journal;
mod journal_reader;
mod log_file;
mod metadata;
mod open;
mod parquet_checksum;
mod parquet_file;
mod parquet_target;
pub mod read;
pub mod schema;
pub mod target;
mod tensorboard;
mod wide;
mod writer_report;
mod writer_thread;

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

pub(crate) use csv_file::recover as recover_csv;
pub(crate) use decode::is_decoding;
pub use fanout::FanOut;
pub use metadata::Metadata;
pub use open::{Checked, Opened, TargetFailure, check};
pub use parquet_target::{Recovered, recover};
pub(crate) use target::{journal_path, target_of_journal};
pub use writer_report::WriterReport;

use crate::model::window::WindowBatch;

/// How rows are laid out in CSV and Parquet files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// One row per series and window.
    #[default]
    Long,
    /// One row per window and tag, a column per series and statistic.
    Wide,
}

impl Layout {
    /// Rows of a file that a batch becomes.
    fn rows_of(self, batch: &WindowBatch) -> u64 {
        match self {
            Layout::Long => batch.rows.len() as u64,
            Layout::Wide => u64::from(!batch.rows.is_empty()),
        }
    }
}

/// What to do with a file that is there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Leave it alone and take the next free name.
    #[default]
    CreateNew,
    /// Replace it.
    Overwrite,
    /// Add to it, if its columns are the same.
    Append,
}

/// What all writers of a run share.
#[derive(Clone, Debug)]
pub struct WriterSettings {
    /// Long or wide, for CSV and Parquet.
    pub layout: Layout,
    /// What to do with existing files.
    pub mode: Mode,
    /// Longest time between two syncs of a file to its disk.
    pub sync_every: Duration,
    /// Bytes of rows that each writer keeps while its target cannot be written.
    pub memory_bound: usize,
    /// Every metric to TensorBoard, not only the ten most important ones.
    pub tensorboard_all: bool,
    /// Host name, for the directory of event files of a ranked run.
    pub host: String,
    /// Rank; with one, event files go to `gpurun-<host>-<rank>` instead of `gpurun`.
    pub rank: Option<i32>,
}

impl Default for WriterSettings {
    fn default() -> Self {
        Self {
            layout: Layout::Long,
            mode: Mode::CreateNew,
            sync_every: Duration::from_secs(5),
            memory_bound: 64 << 20,
            tensorboard_all: false,
            host: String::new(),
            rank: None,
        }
    }
}

/// Why a target cannot be written or a log cannot be read.
#[derive(Debug, Error)]
pub enum WriterError {
    /// Something has the name.
    #[error("{path} exists", path = .0.display())]
    Exists(PathBuf),
    /// A device, a FIFO or a directory: rows are taken back after a failed write, which only a file allows.
    #[error("{path} is not a regular file", path = .0.display())]
    NotAFile(PathBuf),
    /// Another process writes it.
    #[error("{path} is being written by a running gpurun", path = .0.display())]
    Busy(PathBuf),
    /// The journal of an interrupted run is in the way.
    #[error("{journal} has the rows of an interrupted run; `gpurun recover` finishes it", journal = .0.display())]
    Unfinished(PathBuf),
    /// The journal of an interrupted run has more than could be read.
    #[error("{journal} is damaged; `gpurun recover` says what is missing", journal = .0.display())]
    DamagedJournal(PathBuf),
    /// The existing file has other columns.
    #[error("cannot append to {path}: {what}", path = .path.display())]
    OtherColumns {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// The same file is named by two targets.
    #[error("{path} is given twice", path = .0.display())]
    Twice(PathBuf),
    /// The output of an export is there and nothing says to replace it.
    #[error("{path} exists already; use --overwrite or another name", path = .0.display())]
    OutputExists(PathBuf),
    /// The suffix of an output names no format.
    #[error("{path}: unknown suffix; use .csv, .parquet or .jsonl", path = .0.display())]
    UnknownOutput(PathBuf),
    /// A directory without a log.
    #[error("there is no log in {path}", path = .0.display())]
    NoLog(PathBuf),
    /// The operating system refused.
    #[error("cannot {action} {path}: {source}", path = .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file is no log of ours, or is damaged before its end.
    #[error("cannot read {path}: {what}", path = .path.display())]
    NotALog {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Arrow or Parquet refused.
    #[error("cannot {action} {path}: {what}", path = .path.display())]
    Encoding {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The library's words.
        what: String,
    },
}

impl WriterError {
    fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| WriterError::Io { action, path, source }
    }
}
