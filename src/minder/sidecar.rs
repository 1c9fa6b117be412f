//! The minder's hold on the sidecar process: its start, the messages, and how it ended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::children;
use crate::link::{self, Closed, MinderEnd, SidecarEnd, ToMinder, ToSidecar};
use crate::model::run::JobExit;
use crate::sys::process;

/// The sidecar, or what was one.
#[derive(Debug)]
pub(super) struct Sidecar {
    pid: i32,
    link: Option<MinderEnd>,
    exit: Option<JobExit>,
    /// Why it could not even be started.
    failure: Option<String>,
}

impl Sidecar {
    /// Starts the sidecar as a copy of this process, which must have a single thread. `body` is its whole life; it gives the status.
    ///
    /// # Errors
    /// No process, or no descriptors for the link.
    pub(super) fn start(body: impl FnOnce(SidecarEnd) -> u8) -> io::Result<Self> {
        let (minder, sidecar) = link::pair()?;
        let mut ends = Some((minder, sidecar));
        let pid = process::fork(|| match ends.take() {
            Some((minder, sidecar)) => {
                drop(minder);
                body(sidecar)
            }
            None => 0,
        })?;
        let link = ends.map(|(minder, _)| minder);
        Ok(Self { pid, link, exit: None, failure: None })
    }

    /// One that could not be started.
    pub(super) fn none(error: io::Error) -> Self {
        Self { pid: 0, link: None, exit: None, failure: Some(format!("cannot be started: {error}")) }
    }

    /// Why it could not be started, as the end of a sentence.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.clone()
    }

    /// Process id, also after its end; 0 where there is none.
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it can be spoken to.
    pub(super) fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// The descriptor of the link, and whether messages wait until it can be written to.
    pub(super) fn link(&self) -> Option<(BorrowedFd<'_>, bool)> {
        self.link.as_ref().map(|link| (link.as_fd(), link.has_backlog()))
    }

    /// Sends a message, without waiting; a sidecar that has ended gets none.
    pub(super) fn send(&mut self, message: &ToSidecar) {
        if let Some(link) = &mut self.link {
            link.send(message);
        }
    }

    /// The next message, if one has come.
    ///
    /// # Errors
    /// It has ended; said once, and from then on it is not connected.
    pub(super) fn receive(&mut self) -> Result<Option<(ToMinder, Vec<OwnedFd>)>, Closed> {
        let Some(link) = &mut self.link else { return Ok(None) };
        link.send_backlog();
        link.receive().inspect_err(|Closed| self.link = None)
    }

    /// Closes the link: a sidecar whose job was never started cleans up and ends.
    pub(super) fn disconnect(&mut self) {
        self.link = None;
    }

    /// Notes how it ended, once it was reaped elsewhere.
    pub(super) fn reaped(&mut self, exit: JobExit) {
        self.exit = Some(exit);
    }

    /// Ends it, whatever it does. One that hangs in the kernel stays until it comes out.
    pub(super) fn kill(&self) {
        if self.exit.is_none() && self.pid > 0 {
            // SAFETY: the process is this one's own child and was not reaped.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
    }

    /// Waits until it has ended, at most `patience`, and reaps it.
    pub(super) fn wait(&mut self, patience: Duration) -> Option<JobExit> {
        if self.pid == 0 {
            return None;
        }
        let end = Instant::now() + patience;
        let pidfd = children::pidfd(self.pid);
        loop {
            self.exit = self.exit.or_else(|| children::reap(self.pid).map(|reaped| reaped.exit));
            let left = end.saturating_duration_since(Instant::now());
            if self.exit.is_some() || left.is_zero() || !children::is_there(self.pid) {
                return self.exit;
            }
            children::wait_readable(pidfd.as_ref(), left);
        }
    }
}
