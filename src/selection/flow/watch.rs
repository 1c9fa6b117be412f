//! Waking up when a lock is let go, without asking again and again.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::selection::directory::LeaseDirectory;
use crate::sys::signals::SignalSet;

/// Threads that block in the kernel until a lock is let go, and then wake the one that waits.
pub(super) struct Watchers {
    sender: mpsc::Sender<String>,
    receiver: mpsc::Receiver<String>,
    watched: BTreeSet<String>,
}

impl Watchers {
    pub(super) fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        Self { sender, receiver, watched: BTreeSet::new() }
    }

    /// Watches a lock file, once.
    pub(super) fn watch(&mut self, directory: &Arc<LeaseDirectory>, name: &str) {
        if !self.watched.insert(name.to_owned()) {
            return;
        }
        let directory = Arc::clone(directory);
        let sender = self.sender.clone();
        let name = name.to_owned();
        let started =
            thread::Builder::new().name("lease-watch".to_owned()).stack_size(64 * 1024).spawn(move || {
                // This thread may outlive the wait: it must not take a signal that the main thread reports.
                SignalSet::ALL.block();
                // A file that is no lock is left to the poll.
                if directory.wait_for_release(&name).is_ok() {
                    let _ = sender.send(name);
                }
            });
        if started.is_err() {
            // Without a thread the poll finds it, a little later.
            self.watched.clear();
        }
    }

    /// Sleeps until a watched lock is let go, at most this long.
    pub(super) fn sleep(&mut self, at_most: Duration) {
        if let Ok(name) = self.receiver.recv_timeout(at_most) {
            self.watched.remove(&name);
            while let Ok(name) = self.receiver.try_recv() {
                self.watched.remove(&name);
            }
        }
    }
}
