//! The host-wide lock under which devices are chosen, and how long its holder is waited for.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::SelectionError;
use super::directory::{LeaseDirectory, Pause, unusable, write_note};
use super::holder::{Holder, LockFile};
use crate::sys::random;

/// The file that is locked.
pub(super) const SELECT_LOCK: &str = "select.lock";
/// How long one holder may keep the lock: it takes as long as a few calls of the driver.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often to look whether it is still the same holder.
const LOOK: Duration = Duration::from_millis(200);

/// The host-wide lock; leases can be taken while it lives.
#[derive(Debug)]
pub struct Selecting {
    pub(super) directory: Arc<LeaseDirectory>,
    lock: File,
}

impl Drop for Selecting {
    fn drop(&mut self) {
        // A process that locks the file without a note is not mistaken for this one.
        let _ = self.lock.set_len(0);
    }
}

impl LeaseDirectory {
    /// Takes the host-wide lock under which devices are chosen, until `deadline` at the latest; `None` where the
    /// directory was removed meanwhile. Others are told that `me` has it. `meanwhile` is called again and again while another process has it.
    ///
    /// # Errors
    /// The directory cannot be used, or one process has kept the lock for too long, or to the deadline.
    pub fn select_lock(
        self: &Arc<Self>,
        me: &Holder,
        deadline: Option<Instant>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Option<Selecting>, SelectionError> {
        let wrap = |error| unusable(self.path(), &error);
        let mut keeper = Keeper::new(Instant::now());
        let mut pause = Pause::default();
        loop {
            let tried = self.try_lock(SELECT_LOCK, true);
            // A directory that was removed takes no files.
            if !self.is_there() {
                return Ok(None);
            }
            if let Some(lock) = tried.map_err(wrap)? {
                let token = random::token().map_err(wrap)?;
                write_note(&lock, &Holder { token, ..me.clone() });
                return Ok(Some(Selecting { directory: Arc::clone(self), lock }));
            }
            let now = Instant::now();
            let kept = keeper.kept(now, || self.note(SELECT_LOCK).token);
            if kept >= PATIENCE || deadline.is_some_and(|deadline| now >= deadline) {
                return Err(SelectionError::SelectLock {
                    path: self.path().join(SELECT_LOCK),
                    seconds: kept.as_secs(),
                    holder: Box::new(self.select_holder()),
                });
            }
            meanwhile();
            pause.sleep();
        }
    }

    /// The process that has the host-wide lock, whether or not it wrote a note.
    pub(super) fn select_holder(&self) -> Holder {
        let note = self.note(SELECT_LOCK);
        let Ok(metadata) = self.open_lock(SELECT_LOCK).and_then(|file| file.metadata()) else { return note };
        let held = note.clone().now(&LockFile::new(SELECT_LOCK, &metadata));
        match held.process {
            Some(pid) if pid != note.pid => Holder::of_process(pid),
            _ => held,
        }
    }
}

/// How long the lock has been in the same hands, by the token of its note.
struct Keeper {
    token: Option<String>,
    since: Instant,
    next_look: Instant,
}

impl Keeper {
    fn new(now: Instant) -> Self {
        Self { token: None, since: now, next_look: now }
    }

    fn kept(&mut self, now: Instant, token: impl FnOnce() -> String) -> Duration {
        if now >= self.next_look {
            self.next_look = now + LOOK;
            let token = Some(token());
            if self.token != token {
                self.token = token;
                self.since = now;
            }
        }
        now - self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_counts_while_the_same_holder_keeps_the_lock() {
        let begun = Instant::now();
        let mut keeper = Keeper::new(begun);
        let mut kept = |seconds, token: &str| {
            keeper.kept(begun + Duration::from_secs(seconds), || token.to_owned()).as_secs()
        };
        assert_eq!((kept(0, "a"), kept(29, "a")), (0, 29));
        assert_eq!((kept(30, "b"), kept(59, "b"), kept(60, "b")), (0, 29, 30));
        // A process that locks the file without a note is the same as long as no other writes one.
        assert_eq!((kept(61, ""), kept(91, "")), (0, 30));
    }

    #[test]
    fn a_lock_without_a_note_is_held_by_the_process_that_has_it_open() {
        let dir = tempfile::tempdir().unwrap();
        let leases = LeaseDirectory::open_or_create(dir.path()).unwrap();
        let me = Holder::this_process();
        drop(leases.select_lock(&me, None, &mut || {}).unwrap().unwrap());
        let path = dir.path().join(SELECT_LOCK);
        let mut other = std::process::Command::new("flock")
            .args([path.to_str().unwrap(), "sh", "-c", "echo; exec sleep 1000"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0];
        std::io::Read::read_exact(&mut other.stdout.take().unwrap(), &mut line).unwrap();
        let mut calls = 0;
        let soon = Some(Instant::now() + Duration::from_millis(20));
        let refused = leases.select_lock(&me, soon, &mut || calls += 1).unwrap_err();
        let said = refused.to_string();
        assert!(said.contains("select.lock") && said.contains(" sleep 1000)"), "{said}");
        assert!(calls > 0);
        // `flock` waits for its child, which inherited the lock.
        let child = leases.select_holder().process.unwrap();
        assert!(child == other.id() || said.contains(&format!("pid {child} ")), "{said}");
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(i32::try_from(child).unwrap()).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        let _ = other.kill();
        other.wait().unwrap();
    }
}
