//! Leases: advisory locks, one per device, that the kernel drops however their holder ends.
//!
//! A lease is an `flock` on an open file, so it lives exactly as long as the last descriptor of that open
//! file: gpurun's own, and the one that the job's main process inherits. What a lock file *contains* is only
//! a note about its holder; whether it is held is asked from the kernel.
//!
//! Files in the lease directory, for a device with UUID `U`:
//!
//! * `U.lock`: locked exclusively by who has the device alone, shared by each of its sharers;
//! * `U+s0.lock`, `U+s1.lock`, ...: one sharer each;
//! * `U+n.lock`: a gpurun inside the job of the one that holds `U.lock`, and so on: `U+n+n`, `U+s1+n`.
//!
//! Everything is taken under `select.lock`. Looking takes a shared lock for a moment and disturbs nobody:
//! who takes a lock has made sure under `select.lock` that nobody holds it, and outlasts such a moment.
//!
//! Lock files are opened read-only and without `O_CREAT` where they exist: `flock` needs no more, and
//! `fs.protected_regular` then leaves files of other users alone. Links are never followed.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::SelectionError;
use super::choose::LeaseState;
use super::holder::{Holder, LockFile};
use crate::model::id::GpuUuid;
use crate::model::selection::Hold;

/// Names the lease directory.
pub const DIRECTORY_VARIABLE: &str = "GPURUN_LEASE_DIR";
/// Tells a gpurun inside a job what the outer one holds: a token, then the scopes of its leases.
pub const LEASES_VARIABLE: &str = "GPURUN_LEASES";

/// How long to wait for the host-wide lock before saying so.
const SELECT_LOCK_PATIENCE: Duration = Duration::from_secs(30);
/// How long a look of another process can keep a lock from us.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);
/// Longest note that is read back.
const NOTE_BYTES: u64 = 4096;

/// A name that no other lease on this host has.
///
/// # Errors
/// No `/dev/urandom`.
pub fn fresh_token() -> io::Result<String> {
    let mut bytes = [0_u8; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// What an outer gpurun says it holds for us. Believed only where the lock files bear it out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outer {
    token: String,
    scopes: Vec<String>,
}

impl Outer {
    /// Reads the value of [`LEASES_VARIABLE`]; anything else is as if it were unset.
    pub fn parse(text: &str) -> Self {
        let clean = |part: &str| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_+.".contains(&b))
        };
        match text.split_once(':') {
            Some((token, scopes)) if clean(token) => Self {
                token: token.to_owned(),
                scopes: scopes.split(',').filter(|s| clean(s)).map(str::to_owned).collect(),
            },
            _ => Self::default(),
        }
    }
}

/// The directory with the locks, held open so that nobody can swap it.
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
    /// Opens the directory, making it (sticky, for all users) where it is missing.
    ///
    /// # Errors
    /// It cannot be made, or is no directory.
    pub fn open_or_create(path: &Path) -> Result<Self, SelectionError> {
        match Self::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => return other.map_err(|error| unusable(path, &error)),
        }
        let made = DirBuilder::new().mode(0o1777).create(path);
        match made {
            Ok(()) => {
                let opened = Self::open(path).map_err(|error| unusable(path, &error))?;
                // The umask had its say at mkdir.
                opened
                    .dir
                    .set_permissions(Permissions::from_mode(0o1777))
                    .map_err(|error| unusable(path, &error))?;
                Ok(opened)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Self::open(path).map_err(|error| unusable(path, &error))
            }
            Err(error) => Err(unusable(path, &error)),
        }
    }

    /// Opens the directory if there is one: nobody holds anything where there is none.
    ///
    /// # Errors
    /// It is there and cannot be read, or is no directory.
    pub fn open_existing(path: &Path) -> Result<Option<Self>, SelectionError> {
        match Self::open(path) {
            Ok(opened) => Ok(Some(opened)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unusable(path, &error)),
        }
    }

    fn open(path: &Path) -> io::Result<Self> {
        let dir =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path)?;
        Ok(Self { dir, path: path.to_owned() })
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
        let read = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(self.at("."))? {
                if let Ok(name) = entry?.file_name().into_string()
                    && name.ends_with(".lock")
                {
                    names.push(name);
                }
            }
            names.sort_unstable();
            Ok(names)
        };
        read().map_err(|error| unusable(&self.path, &error))
    }

    /// Opens an existing lock file for locking or looking.
    pub(super) fn open_lock(&self, name: &str) -> io::Result<File> {
        // Non-blocking, so that a FIFO somebody put there cannot hang us.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.at(name))?;
        if file.metadata()?.is_file() {
            return Ok(file);
        }
        Err(io::Error::new(ErrorKind::InvalidInput, format!("{name} is not a regular file")))
    }

    /// Opens a lock file, making it where it is missing.
    fn open_or_make_lock(&self, name: &str) -> io::Result<File> {
        loop {
            match self.open_lock(name) {
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
    fn lock(&self, name: &str, exclusive: bool, patience: Duration) -> io::Result<Option<File>> {
        let deadline = Instant::now() + patience;
        let mut pause = Duration::from_millis(1);
        loop {
            let file = self.open_or_make_lock(name)?;
            let tried = if exclusive { file.try_lock() } else { file.try_lock_shared() };
            match tried {
                // A cleaner may have taken the name away meanwhile: then others would lock another file.
                Ok(()) if self.is_current(name, &file)? => return Ok(Some(file)),
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    fn is_current(&self, name: &str, file: &File) -> io::Result<bool> {
        let ours = file.metadata()?;
        Ok(std::fs::symlink_metadata(self.at(name))
            .is_ok_and(|meta| meta.ino() == ours.ino() && meta.dev() == ours.dev()))
    }

    /// Whether somebody holds `name` exclusively.
    pub(super) fn is_locked(&self, name: &str) -> bool {
        match self.open_lock(name) {
            Ok(file) => matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)),
            // What cannot be opened cannot be excluded: a file that others put there is not a free device.
            Err(error) => error.kind() != ErrorKind::NotFound,
        }
    }

    /// The note in a lock file.
    fn note(&self, name: &str) -> Holder {
        let mut text = String::new();
        let read = self.open_lock(name).and_then(|file| file.take(NOTE_BYTES).read_to_string(&mut text));
        match read {
            Ok(_) => text.lines().next().and_then(|line| serde_json::from_str::<Holder>(line).ok()),
            Err(_) => None,
        }
        .unwrap_or_default()
        .cleaned()
    }

    /// Who holds a locked file, with the processes that do so now.
    fn holder(&self, name: &str) -> Holder {
        let note = self.note(name);
        match self.open_lock(name).and_then(|file| file.metadata()) {
            Ok(metadata) => note.now(&LockFile::new(name, &metadata)),
            Err(_) => note,
        }
    }

    /// Writes the note into a lock file. A note is a courtesy: failing to write it fails nothing.
    fn write_note(&self, name: &str, holder: &Holder) {
        let write = || -> io::Result<()> {
            let mut text = serde_json::to_string(holder)?;
            text.push('\n');
            let mut file =
                OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(self.at(name))?;
            file.write_all(text.as_bytes())?;
            file.set_len(text.len() as u64)
        };
        let _ = write();
    }

    /// Takes the host-wide lock under which devices are chosen.
    ///
    /// # Errors
    /// The directory cannot be used, or another gpurun does not let go of the lock.
    pub fn select_lock(&self) -> Result<Selecting<'_>, SelectionError> {
        match self.lock("select.lock", true, SELECT_LOCK_PATIENCE) {
            Ok(Some(lock)) => Ok(Selecting { directory: self, _lock: lock }),
            Ok(None) => Err(SelectionError::SelectLock {
                path: self.path.join("select.lock"),
                seconds: SELECT_LOCK_PATIENCE.as_secs(),
            }),
            Err(error) => Err(unusable(&self.path, &error)),
        }
    }

    /// The name under which a device is held: inside an outer gpurun's lease, a name of that level.
    fn scope(&self, uuid: &GpuUuid, outer: &Outer) -> String {
        let root = file_stem(uuid);
        let inside = outer.scopes.iter().find(|scope| {
            scope.split('+').next() == Some(root.as_str()) && {
                let name = format!("{scope}.lock");
                self.is_locked(&name) && self.note(&name).token == outer.token
            }
        });
        inside.map_or(root, |scope| format!("{scope}+n"))
    }

    /// What stands in the way of holding each device as `hold` says.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn states(
        &self,
        uuids: &[Option<&GpuUuid>],
        outer: &Outer,
        hold: Hold,
    ) -> Result<Vec<LeaseState>, SelectionError> {
        let names = self.names()?;
        let state = |uuid: &GpuUuid| self.state(&self.scope(uuid, outer), &names, hold);
        Ok(uuids
            .iter()
            .map(|uuid| match (uuid, hold) {
                (None, _) | (_, Hold::None) => LeaseState::Free,
                (Some(uuid), _) => state(uuid),
            })
            .collect())
    }

    fn state(&self, scope: &str, names: &[String], hold: Hold) -> LeaseState {
        let own = format!("{scope}.lock");
        if listed(names, &own) && self.is_locked(&own) {
            return LeaseState::Held(self.holder(&own));
        }
        let taken = self.taken_below(scope, names);
        let Hold::Shared(slots) = hold else {
            return match taken.values().next() {
                Some(name) => LeaseState::Held(self.holder(name)),
                None => LeaseState::Free,
            };
        };
        // A process inside an ended job still has the device to itself.
        if let Some(name) = taken.get("n") {
            return LeaseState::Held(self.holder(name));
        }
        let limit = taken.values().filter_map(|name| self.note(name).share).fold(slots, u32::min) as usize;
        match taken.values().next() {
            Some(name) if taken.len() >= limit => LeaseState::Held(self.holder(name)),
            _ => LeaseState::Free,
        }
    }

    /// The files of the locked parts of a scope, by the word after it (`s0`, `n`).
    fn taken_below<'a>(&self, scope: &str, names: &'a [String]) -> BTreeMap<String, &'a str> {
        let mut taken = BTreeMap::new();
        for name in names {
            let Some(below) = name
                .strip_prefix(scope)
                .and_then(|r| r.strip_prefix('+'))
                .and_then(|r| r.strip_suffix(".lock"))
            else {
                continue;
            };
            let part = below.split('+').next().unwrap_or(below);
            if !taken.contains_key(part) && self.is_locked(name) {
                taken.insert(part.to_owned(), name.as_str());
            }
        }
        taken
    }

    /// Every lease on a device, whatever its kind and level.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn holders(&self, uuid: &GpuUuid) -> Result<Vec<Holder>, SelectionError> {
        let names = self.names()?;
        let root = file_stem(uuid);
        let own = format!("{root}.lock");
        let mut holders = Vec::new();
        if listed(&names, &own) && self.is_locked(&own) {
            holders.push(self.holder(&own));
        }
        holders.extend(self.taken_below(&root, &names).into_values().map(|name| self.holder(name)));
        Ok(holders)
    }

    /// The lock files whose release may make a device free for `hold`.
    pub fn obstacles(&self, uuid: &GpuUuid, outer: &Outer) -> Result<Vec<String>, SelectionError> {
        let scope = self.scope(uuid, outer);
        let below = format!("{scope}+");
        let own = format!("{scope}.lock");
        let mut names = self.names()?;
        names.retain(|name| (*name == own || name.starts_with(&below)) && self.is_locked(name));
        Ok(names)
    }

    /// Waits until nobody holds `name` exclusively. Blocks in the kernel, for as long as it takes.
    ///
    /// # Errors
    /// The system's words; a file that is gone is not an error.
    pub fn wait_for_release(&self, name: &str) -> io::Result<()> {
        loop {
            let locked = match self.open_lock(name) {
                Ok(file) => file.lock_shared(),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            };
            match locked {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// A second handle on the same open directory, for a helper thread.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn try_clone(&self) -> Result<Self, SelectionError> {
        let dir = self.dir.try_clone().map_err(|error| unusable(&self.path, &error))?;
        Ok(Self { dir, path: self.path.clone() })
    }
}

/// The host-wide lock; leases can be taken while it lives.
#[derive(Debug)]
pub struct Selecting<'a> {
    directory: &'a LeaseDirectory,
    _lock: File,
}

impl Selecting<'_> {
    /// Takes the devices, all or none; `None` when one of them was not free after all.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn take(
        &self,
        uuids: &[GpuUuid],
        outer: &Outer,
        hold: Hold,
        holder: &Holder,
    ) -> Result<Option<Lease>, SelectionError> {
        let directory = self.directory;
        let wrap = |error: io::Error| unusable(&directory.path, &error);
        let mut lease = Lease {
            directory: directory.try_clone()?,
            holder: Holder {
                share: match hold {
                    Hold::Shared(slots) => Some(slots),
                    Hold::Exclusive | Hold::None => None,
                },
                ..holder.clone()
            },
            parts: Vec::new(),
        };
        if hold == Hold::None {
            return Ok(Some(lease));
        }
        for uuid in uuids {
            let scope = directory.scope(uuid, outer);
            let own = format!("{scope}.lock");
            let exclusive = hold == Hold::Exclusive;
            let Some(file) = directory.lock(&own, exclusive, LOOK_PATIENCE).map_err(wrap)? else {
                return Ok(None);
            };
            if exclusive {
                lease.parts.push(Part { scope, files: vec![file] });
                continue;
            }
            let names = directory.names()?;
            let taken = directory.taken_below(&scope, &names);
            let slot = (0_u32..).map(|slot| format!("s{slot}")).find(|slot| !taken.contains_key(slot));
            let scope = format!("{scope}+{}", slot.unwrap_or_default());
            let Some(slot) = directory.lock(&format!("{scope}.lock"), true, LOOK_PATIENCE).map_err(wrap)?
            else {
                return Ok(None);
            };
            lease.parts.push(Part { scope, files: vec![file, slot] });
        }
        lease.write_notes();
        Ok(Some(lease))
    }
}

/// Devices held. Dropping it closes gpurun's descriptors; the job's own keep the lease until it ends.
#[derive(Debug)]
pub struct Lease {
    directory: LeaseDirectory,
    holder: Holder,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    scope: String,
    files: Vec<File>,
}

impl Lease {
    /// The descriptors that the job's main process must inherit (they are close-on-exec here).
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.files().map(AsFd::as_fd)
    }

    fn files(&self) -> impl Iterator<Item = &File> {
        self.parts.iter().flat_map(|part| &part.files)
    }

    /// Gives the devices up, whichever processes have inherited the descriptors.
    pub fn release(&self) {
        for file in self.files() {
            // Nothing can be done about a failure; the kernel drops the lock with its last descriptor.
            let _ = file.unlock();
        }
    }

    /// The value of [`LEASES_VARIABLE`] for the job.
    pub fn variable(&self) -> String {
        let scopes: Vec<&str> = self.parts.iter().map(|part| part.scope.as_str()).collect();
        format!("{}:{}", self.holder.token, scopes.join(","))
    }

    /// Notes the job's main process, which holds the lease too, so that others can name it.
    pub fn note_job(&mut self, pid: u32) {
        self.holder.job = Some(pid);
        self.write_notes();
    }

    fn write_notes(&self) {
        for part in &self.parts {
            self.directory.write_note(&format!("{}.lock", part.scope), &self.holder);
        }
    }
}

/// Whether a file is among the sorted `names`: one that is not there need not be opened to know that nobody holds it.
fn listed(names: &[String], name: &str) -> bool {
    names.binary_search_by(|listed| listed.as_str().cmp(name)).is_ok()
}

/// The beginning of a device's file names.
pub(super) fn file_stem(uuid: &GpuUuid) -> String {
    uuid.as_str()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
        .take(100)
        .collect()
}

/// Wraps the system's words.
pub(super) fn unusable(path: &Path, error: &io::Error) -> SelectionError {
    // The directory is used through its descriptor.
    if error.kind() == ErrorKind::NotFound && !Path::new("/proc/self").exists() {
        return SelectionError::NoProc;
    }
    SelectionError::LeaseDirectory { path: path.to_owned(), why: error.to_string() }
}
