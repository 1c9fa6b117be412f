//! The queue of waiting processes: first come, first served, among those that want the same devices.
//!
//! A ticket is a locked file in the lease directory whose name holds its number; it ends with its process. A waiter sets
//! the file's time again and again: one that does not (it is stopped, frozen, or hangs in the driver) is passed over, and
//! has its place again when it goes on. A waiter that is not first blocks in the kernel on the ticket before its
//! own, so a long queue costs next to nothing.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::SelectionError;
use super::directory::{LeaseDirectory, unusable};
use super::gate::Selecting;
use super::holder::Holder;
use super::lease::file_stem;
use crate::model::id::GpuUuid;
use crate::sys::random;

const PREFIX: &str = "wait.";
/// How often a waiter shows that it is there.
pub const BEAT: Duration = Duration::from_secs(2);
/// A waiter that has not shown itself for so long is passed over.
const SILENT: Duration = Duration::from_secs(10);
/// Longest ticket that is read.
const TICKET_BYTES: u64 = 64 * 1024;

/// What a waiter says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Waiter {
    #[serde(flatten)]
    process: Holder,
    devices: BTreeSet<String>,
}

/// A place in the queue, given up when dropped.
#[derive(Debug)]
pub struct Ticket {
    directory: Arc<LeaseDirectory>,
    name: String,
    devices: BTreeSet<String>,
    file: File,
}

impl Selecting {
    /// Joins the queue for any of `devices`. Under the host-wide lock, so that numbers are given in order.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn join_queue(&self, me: &Holder, devices: &[&GpuUuid]) -> Result<Ticket, SelectionError> {
        let directory = &self.directory;
        let last = directory.names()?.iter().filter_map(|name| number(name)).max().unwrap_or(0);
        let devices: BTreeSet<String> = devices.iter().map(|uuid| file_stem(uuid)).collect();
        let waiter = Waiter { process: me.clone(), devices: devices.clone() };
        let publish = || -> io::Result<(String, File)> {
            let name = format!("{PREFIX}{:020}.{}.lock", last.saturating_add(1), random::token()?);
            let text = serde_json::to_string(&waiter)?;
            // Locked before it is seen: an unlocked ticket is one whose process has ended.
            let file = directory.publish(&name, |file| {
                file.write_all(text.as_bytes())?;
                file.lock()
            })?;
            Ok((name, file))
        };
        let (name, file) = publish().map_err(|error| unusable(directory.path(), &error))?;
        Ok(Ticket { directory: Arc::clone(directory), name, devices, file })
    }
}

impl LeaseDirectory {
    /// Whether anybody waits for any of `devices`.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn anybody_waits(&self, devices: &[&GpuUuid]) -> Result<bool, SelectionError> {
        let devices: BTreeSet<String> = devices.iter().map(|uuid| file_stem(uuid)).collect();
        let names = self.names()?;
        Ok(names.iter().any(|name| number(name).is_some() && self.waits_for(name, &devices)))
    }

    /// Whether `name` is the ticket of a waiter that answers and may take any of `devices`.
    fn waits_for(&self, name: &str, devices: &BTreeSet<String>) -> bool {
        if !self.is_locked(name) {
            // Its process has ended. Only its user may remove it; the next of that user does.
            let _ = std::fs::remove_file(self.at(name));
            return false;
        }
        // A link, a FIFO, a file that cannot be read: no waiter makes those.
        let Ok(file) = self.open_lock(name) else { return false };
        if !file.metadata().and_then(|metadata| metadata.modified()).is_ok_and(answers) {
            return false;
        }
        self.waiter(name).is_some_and(|waiter| !waiter.devices.is_disjoint(devices))
    }

    fn waiter(&self, name: &str) -> Option<Waiter> {
        serde_json::from_str(&self.text(name, TICKET_BYTES).ok()?).ok()
    }
}

/// Whether a waiter that set the time of its ticket at `beat` still does. One in the future is a clock that was set back.
fn answers(beat: SystemTime) -> bool {
    beat.elapsed().map_or(true, |silent| silent < SILENT)
}

impl Ticket {
    /// Whether others see it: its file, or the whole directory, may have been removed.
    pub fn is_there(&self) -> bool {
        self.directory.is_there() && self.directory.is_current(&self.name, &self.file)
    }

    /// Shows that this waiter is there.
    pub fn beat(&self) {
        // A place that is lost by a failure is had again with the next.
        let _ = self.file.set_modified(SystemTime::now());
    }

    /// The tickets before this one whose holders may take a device that this one may take, the nearest first.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn ahead(&self) -> Result<impl Iterator<Item = String> + '_, SelectionError> {
        let names = self.directory.names()?;
        let before = move |name: &String| number(name).is_some() && *name < self.name;
        Ok(names
            .into_iter()
            .rev()
            .filter(before)
            .filter(|name| self.directory.waits_for(name, &self.devices)))
    }

    /// The process that has a ticket.
    pub fn holder_of(&self, name: &str) -> Holder {
        let waiter = self.directory.waiter(name).unwrap_or_default();
        let process = Some(waiter.process.pid).filter(|pid| *pid != 0);
        Holder { process, ..waiter.process.cleaned() }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = std::fs::remove_file(self.directory.at(&self.name));
        }
    }
}

/// Whether a file is a ticket, by its name.
pub(super) fn is_ticket(name: &str) -> bool {
    number(name).is_some()
}

/// The number in a ticket's name.
fn number(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_that_is_silent_for_long_does_not_answer() {
        let ago = |seconds| SystemTime::now() - Duration::from_secs(seconds);
        assert!(answers(ago(0)) && answers(ago(5)));
        assert!(!answers(ago(11)) && !answers(SystemTime::UNIX_EPOCH));
        assert!(answers(SystemTime::now() + Duration::from_secs(3600)));
    }

    #[test]
    fn links_and_odd_files_are_no_tickets_and_number_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let leases = LeaseDirectory::open_or_create(dir.path()).unwrap();
        let me = Holder::this_process();
        let uuid = GpuUuid::new("GPU-1");
        let wanted = [&uuid];
        let select = || leases.select_lock(&me, None, &mut || {}).unwrap().unwrap();
        let path = |name: &str| dir.path().join(name);
        let fifo = path("wait.00000000000000000001.a.lock");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        std::os::unix::fs::symlink("/etc/passwd", path("wait.00000000000000000002.b.lock")).unwrap();
        std::fs::create_dir(path("wait.00000000000000000003.c.lock")).unwrap();
        assert!(!leases.anybody_waits(&wanted).unwrap());
        let first = select().join_queue(&me, &wanted).unwrap();
        assert!(first.name.starts_with("wait.00000000000000000004."), "{}", first.name);
        assert_eq!(first.ahead().unwrap().count(), 0);
        let second = select().join_queue(&me, &wanted).unwrap();
        assert_eq!(second.ahead().unwrap().collect::<Vec<_>>(), std::slice::from_ref(&first.name));
        assert!(second.holder_of(&first.name).to_string().starts_with("pid "));
        // Its time stands still: it is passed over, and has its place again when it shows itself.
        first.file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(second.ahead().unwrap().count(), 0);
        first.beat();
        assert_eq!(second.ahead().unwrap().count(), 1);
        std::fs::remove_file(path(&first.name)).unwrap();
        assert!(!first.is_there() && second.is_there());
    }
}
