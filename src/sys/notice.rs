//! Messages to the user: one line each on stderr, never blocking, never more than the user asked for.

use std::collections::HashSet;
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use super::escape::printable;
use super::stderr::NonBlockingStderr;
use super::terminal::{self, Kind};

/// How many different lines `say_once` remembers.
const REMEMBERED: usize = 256;

/// How much is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors only (`--quiet`).
    Quiet,
    /// Errors and news.
    #[default]
    Normal,
    /// Details too (`--verbose`).
    Verbose,
}

/// A shared way to stderr. Clones share what was said.
#[derive(Clone)]
pub struct Notices {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    verbosity: Verbosity,
    colored: bool,
    said: HashSet<String>,
    stderr: NonBlockingStderr,
}

impl Notices {
    /// Messages at this verbosity.
    pub fn new(verbosity: Verbosity) -> Self {
        let stderr = NonBlockingStderr::new();
        let colored = terminal::wants_color(stderr.columns().is_some());
        let inner = Inner { verbosity, colored, said: HashSet::new(), stderr };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Says one line, unless quiet.
    pub fn say(&self, line: &str) {
        self.put(Verbosity::Normal, Kind::Note, line);
    }

    /// Says one line that the user should look at, unless quiet.
    pub fn warn(&self, line: &str) {
        self.put(Verbosity::Normal, Kind::Warning, line);
    }

    /// Says how a job ended, unless quiet.
    pub fn outcome(&self, success: bool, line: &str) {
        self.put(Verbosity::Normal, if success { Kind::Success } else { Kind::Warning }, line);
    }

    /// Says one line that only a verbose run says.
    pub fn detail(&self, line: &str) {
        self.put(Verbosity::Verbose, Kind::Note, line);
    }

    /// Says a warning the first time only, unless quiet.
    pub fn warn_once(&self, line: &str) {
        self.once(Verbosity::Normal, Kind::Warning, line);
    }

    /// Says a detail the first time only.
    pub fn detail_once(&self, line: &str) {
        self.once(Verbosity::Verbose, Kind::Note, line);
    }

    /// Says one line, quiet or not.
    pub fn error(&self, line: &str) {
        self.put(Verbosity::Quiet, Kind::Error, line);
    }

    /// Says an error, quiet or not; the lines after the first belong to it and get no prefix.
    pub fn error_lines(&self, lines: &[String]) {
        self.lock().write(Kind::Error, lines.iter().map(String::as_str));
    }

    fn put(&self, least: Verbosity, kind: Kind, line: &str) {
        let mut inner = self.lock();
        if inner.verbosity >= least {
            inner.write(kind, std::iter::once(line));
        }
    }

    fn once(&self, least: Verbosity, kind: Kind, line: &str) {
        let mut inner = self.lock();
        let wanted = inner.verbosity >= least;
        if wanted && inner.said.len() < REMEMBERED && inner.said.insert(line.to_owned()) {
            inner.write(kind, std::iter::once(line));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn write<'a>(&mut self, kind: Kind, lines: impl Iterator<Item = &'a str>) {
        let mut text = terminal::prefix(kind, self.colored);
        for line in lines {
            // Names of files and processes and texts of the driver do nothing to a terminal.
            text.push_str(&printable(&line.replace('\n', " ")));
            text.push('\n');
        }
        // One write for all of it. A closed or full stderr costs the message, never the job.
        let _ = self.stderr.write_all(text.as_bytes());
    }
}
