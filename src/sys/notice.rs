//! Messages to the user: one line each on stderr, never blocking, never more than the user asked for.

use std::collections::HashSet;
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use super::escape::printable;
use super::stderr::NonBlockingStderr;

/// How many different lines `say_once` remembers.
const REMEMBERED: usize = 256;

/// A shared way to stderr. Clones share what was said.
#[derive(Clone)]
pub struct Notices {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    quiet: bool,
    said: HashSet<String>,
    stderr: NonBlockingStderr,
}

impl Notices {
    /// Messages for a user; `quiet` keeps everything but errors back.
    pub fn new(quiet: bool) -> Self {
        let inner = Inner { quiet, said: HashSet::new(), stderr: NonBlockingStderr::new() };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Says one line, unless quiet.
    pub fn say(&self, line: &str) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if !inner.quiet {
            inner.write(line);
        }
    }

    /// Says a line the first time only, unless quiet.
    pub fn say_once(&self, line: &str) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.said.len() < REMEMBERED && inner.said.insert(line.to_owned()) && !inner.quiet {
            inner.write(line);
        }
    }

    /// Says one line, quiet or not.
    pub fn error(&self, line: &str) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).write(line);
    }
}

impl Inner {
    fn write(&mut self, line: &str) {
        // One write for the whole line; names of files and processes and texts of the driver do nothing to a terminal.
        let line = line.replace('\n', " ");
        let clean = printable(&line);
        // A closed or full stderr costs the message, never the job.
        let _ = self.stderr.write_all(format!("gpurun: {clean}\n").as_bytes());
    }
}
