//! The lease directory: opening it, and its files under their names. All users share it, so nothing here blocks on what
//! another user put there, and no link is followed.
//!
//! A process that holds or waits for devices keeps a shared lock on the directory: `systemd-tmpfiles` and its like leave a
//! locked directory alone. Where it is removed all the same, [`LeaseDirectory::is_there`] tells.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::SelectionError;
use super::holder::{Holder, LockFile};

/// Names the lease directory.
pub const DIRECTORY_VARIABLE: &str = "GPURUN_LEASE_DIR";

/// How long a cleaner may look through the directory.
const CLEANER_PATIENCE: Duration = Duration::from_secs(2);
/// Longest note that is read back.
const NOTE_BYTES: u64 = 4096;

/// The directory with the locks, held open so that it cannot be swapped.
#[derive(Debug)]
pub struct LeaseDirectory {
    pub(super) dir: File,
    path: PathBuf,
}

/// Where leases live unless [`DIRECTORY_VARIABLE`] says otherwise: the same place for every user.
pub fn default_directory() -> PathBuf {
    // Not age-cleaned as /tmp is, and not emptied at logout as /dev/shm can be.
    let run_lock = Path::new("/run/lock");
    let shared =
        std::fs::metadata(run_lock).is_ok_and(|meta| meta.is_dir() && meta.mode() & 0o1777 == 0o1777);
    if shared { run_lock.join("gpurun") } else { PathBuf::from("/tmp/gpurun-leases") }
}

impl LeaseDirectory {
    /// Opens the directory and keeps cleaners away from it, making it (sticky, for all users) where it is missing.
    ///
    /// # Errors
    /// It cannot be made, or is no directory.
    pub fn open_or_create(path: &Path) -> Result<Arc<Self>, SelectionError> {
        let deadline = Instant::now() + CLEANER_PATIENCE;
        loop {
            let opened = Self::open_or_make(path).map_err(|error| unusable(path, &error))?;
            let is_kept = opened.keep_from_cleaners();
            // A process that keeps it locked for longer is no cleaner, and keeps cleaners away as well.
            if (is_kept || Instant::now() >= deadline) && opened.is_there() {
                return Ok(Arc::new(opened));
            }
            if Instant::now() >= deadline {
                return Err(unusable(path, &io::Error::other("it is removed again and again")));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Opens the directory if there is one: nothing is held where there is none.
    ///
    /// # Errors
    /// It is there and cannot be read, or is no directory.
    pub fn open_existing(path: &Path) -> Result<Option<Arc<Self>>, SelectionError> {
        match Self::open(path) {
            Ok(opened) => Ok(Some(Arc::new(opened))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unusable(path, &error)),
        }
    }

    fn open_or_make(path: &Path) -> io::Result<Self> {
        match Self::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => return other,
        }
        match DirBuilder::new().mode(0o1777).create(path) {
            Ok(()) => {
                let opened = Self::open(path)?;
                // The umask had its say at mkdir.
                opened.dir.set_permissions(Permissions::from_mode(0o1777))?;
                Ok(opened)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Self::open(path),
            Err(error) => Err(error),
        }
    }

    fn open(path: &Path) -> io::Result<Self> {
        let dir =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path)?;
        Ok(Self { dir, path: path.to_owned() })
    }

    /// Takes the shared lock that keeps cleaners away; false while one is at work.
    fn keep_from_cleaners(&self) -> bool {
        // Where locks do not work at all, locking a file says so.
        !matches!(self.dir.try_lock_shared(), Err(TryLockError::WouldBlock))
    }

    /// Whether its path still leads to it.
    pub fn is_there(&self) -> bool {
        let same = || -> io::Result<bool> {
            Ok(identity(&std::fs::symlink_metadata(&self.path)?) == identity(&self.dir.metadata()?))
        };
        same().unwrap_or(false)
    }

    /// As it was named.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file through the open directory, whatever its name points at by now.
    pub(super) fn at(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.dir.as_raw_fd()))
    }

    /// Names of the lock files, sorted.
    pub(super) fn names(&self) -> Result<Vec<String>, SelectionError> {
        let mut names = self.all_names()?;
        names.retain(|name| name.ends_with(".lock"));
        Ok(names)
    }

    /// Names of all files that have text for a name, sorted.
    pub(super) fn all_names(&self) -> Result<Vec<String>, SelectionError> {
        let read = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(self.at("."))? {
                names.extend(entry?.file_name().into_string().ok());
            }
            names.sort_unstable();
            Ok(names)
        };
        read().map_err(|error| unusable(&self.path, &error))
    }

    /// Opens an existing lock file for looking.
    pub(super) fn open_lock(&self, name: &str) -> io::Result<File> {
        self.open_regular(name, OpenOptions::new().read(true))
    }

    /// Opens an existing file, and nothing else that may stand under its name.
    fn open_regular(&self, name: &str, options: &mut OpenOptions) -> io::Result<File> {
        // Non-blocking, so that a FIFO that was put there cannot hang us.
        let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(self.at(name))?;
        if file.metadata()?.is_file() {
            return Ok(file);
        }
        Err(io::Error::new(ErrorKind::InvalidInput, format!("{name} is not a regular file")))
    }

    /// Opens a lock file for locking, making it where it is missing; to be written to, where that is allowed.
    fn open_or_make_lock(&self, name: &str) -> io::Result<File> {
        loop {
            let opened = match self.open_regular(name, OpenOptions::new().read(true).write(true)) {
                // A lock needs no more than reading; its note is then that of an earlier holder.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => self.open_lock(name),
                other => other,
            };
            match opened {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => return other,
            }
            match self.publish(name, |_| Ok(())) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes a lock for good, giving up after `patience`; `Ok(None)` when it stayed taken.
    pub(super) fn lock(&self, name: &str, exclusive: bool, patience: Duration) -> io::Result<Option<File>> {
        let deadline = Instant::now() + patience;
        let mut pause = Pause::default();
        loop {
            if let Some(file) = self.try_lock(name, exclusive)? {
                return Ok(Some(file));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            pause.sleep();
        }
    }

    /// Takes a lock that is free.
    pub(super) fn try_lock(&self, name: &str, exclusive: bool) -> io::Result<Option<File>> {
        let file = self.open_or_make_lock(name)?;
        match if exclusive { file.try_lock() } else { file.try_lock_shared() } {
            // The name may lead elsewhere by now: then others would lock another file.
            Ok(()) => Ok(Some(file).filter(|file| self.is_current(name, file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Whether a name still leads to an open file.
    pub(super) fn is_current(&self, name: &str, file: &File) -> bool {
        let same = || -> io::Result<bool> {
            Ok(identity(&std::fs::symlink_metadata(self.at(name))?) == identity(&file.metadata()?))
        };
        same().unwrap_or(false)
    }

    /// Whether a process holds `name` exclusively.
    pub(super) fn is_locked(&self, name: &str) -> bool {
        match self.open_lock(name) {
            Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
            // What cannot be opened cannot be excluded: a file that others put there is not a free device.
            Err(error) => error.kind() != ErrorKind::NotFound,
        }
    }

    /// The text of a file, as far as a note goes.
    pub(super) fn text(&self, name: &str, at_most: u64) -> io::Result<String> {
        let mut bytes = Vec::new();
        self.open_lock(name)?.take(at_most).read_to_end(&mut bytes)?;
        String::from_utf8(bytes).map_err(io::Error::other)
    }

    /// The note in a lock file.
    pub(super) fn note(&self, name: &str) -> Holder {
        self.text(name, NOTE_BYTES).map(|text| Holder::read(&text)).unwrap_or_default()
    }

    /// The holder of a locked file, with the processes that hold it now.
    pub(super) fn holder(&self, name: &str) -> Holder {
        let note = self.note(name);
        match self.open_lock(name).and_then(|file| file.metadata()) {
            Ok(metadata) => note.now(&LockFile::new(name, &metadata)),
            Err(_) => note,
        }
    }
}

/// Writes the note into a locked file, through its own descriptor: its name may lead elsewhere by now. A note is a
/// courtesy: failing to write it fails nothing.
pub(super) fn write_note(file: &File, holder: &Holder) {
    let write = || -> io::Result<()> {
        let mut text = serde_json::to_string(holder)?;
        text.push('\n');
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)
    };
    let _ = write();
}

/// The pauses between two tries, which grow.
pub(super) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(Duration::from_millis(1))
    }
}

impl Pause {
    pub(super) fn sleep(&mut self) {
        thread::sleep(self.0);
        self.0 = (self.0 * 2).min(Duration::from_millis(50));
    }
}

/// What tells a file from every other on this host.
fn identity(metadata: &std::fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Wraps the system's words.
pub(super) fn unusable(path: &Path, error: &io::Error) -> SelectionError {
    // The directory is used through its descriptor.
    if error.kind() == ErrorKind::NotFound && !Path::new("/proc/self").exists() {
        return SelectionError::NoProc;
    }
    SelectionError::LeaseDirectory { path: path.to_owned(), why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::id::GpuUuid;
    use crate::model::selection::Hold;
    use crate::selection::choose::LeaseState;
    use crate::selection::lease::Outer;
    use crate::sys::escape::is_unsafe;
    use crate::tests::fuzz::fuzz;

    const NOTE: &str = r#"{"pid":7,"job":8,"uid":1000,"user":"ann","command":"python x.py","since":1790000000,"share":2,"token":"0123","devices":["GPU-1"]}"#;

    #[test]
    fn fuzz_no_lease_note_or_ticket_makes_gpurun_panic_or_frees_a_gpu() {
        let dir = tempfile::tempdir().unwrap();
        let leases = LeaseDirectory::open_or_create(dir.path()).unwrap();
        let uuid = GpuUuid::new("GPU-1");
        let held = leases.lock("GPU-1.lock", true, Duration::ZERO).unwrap().unwrap();
        let ticket = leases.lock("wait.00000000000000000001.a.lock", true, Duration::ZERO).unwrap().unwrap();
        let edit = (any::<prop::sample::Index>(), 0usize..30, prop::collection::vec(any::<u8>(), 0..20));
        let note = prop_oneof![
            3 => prop::collection::vec(edit, 0..4).prop_map(|edits| {
                let mut note = NOTE.as_bytes().to_vec();
                for (at, removed, inserted) in edits {
                    let at = at.index(note.len() + 1);
                    let end = (at + removed).min(note.len());
                    note.splice(at..end, inserted);
                }
                note
            }),
            1 => prop::collection::vec(any::<u8>(), 0..6000),
        ];
        let outer = "\\PC{0,20}:?(GPU-1(\\+(n|s[0-9]{1,12}))*|[a-z.+,/]{0,20})";
        fuzz(100, |config| {
            proptest!(config, |(note in note.clone(), outer in outer)| {
                for file in [&held, &ticket] {
                    file.write_all_at(&note, 0).unwrap();
                    file.set_len(note.len() as u64).unwrap();
                }
                let outer = Outer::parse(&outer);
                for hold in [Hold::Exclusive, Hold::Shared(2)] {
                    let states = leases.states(&[Some(&uuid)], &outer, hold).unwrap();
                    prop_assert!(matches!(&states[..], [LeaseState::Held(_)]), "{:?}", states);
                }
                let holders = leases.holders(&uuid).unwrap();
                prop_assert_eq!(holders.len(), 1);
                prop_assert!(!holders[0].to_string().contains(is_unsafe));
                prop_assert!(holders[0].to_string().chars().count() < 1000);
                let _ = leases.anybody_waits(&[&uuid]).unwrap();
            });
        });
    }
}
