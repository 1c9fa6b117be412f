//! Leases: advisory locks, one per device, that the kernel drops however their holder ends.
//!
//! A lease is an `flock` on an open file, so it lives exactly as long as the last descriptor of that open
//! file: gpurun's own, and the one that the job's main process inherits. What a lock file *contains* is only
//! a note about its holder; whether it is held is asked from the kernel.
//!
//! Files in the lease directory, for a device with UUID `U`:
//!
//! * `U.lock`: locked exclusively by the process that has the device alone, shared by each of its sharers;
//! * `U+s0.lock`, `U+s1.lock`, ...: one sharer each;
//! * `U+n.lock`: a gpurun inside the job of the one that holds `U.lock`, and so on: `U+n+n`, `U+s1+n`.
//!
//! Everything is taken under `select.lock`. Looking takes a shared lock for a moment and disturbs no other process:
//! a process that takes a lock has made sure under `select.lock` that it is free, and outlasts such a moment.
//!
//! Lock files that exist are opened without `O_CREAT`: `fs.protected_regular` then leaves files of other users alone.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::SelectionError;
use super::choose::LeaseState;
use super::directory::{LeaseDirectory, unusable, write_note};
use super::gate::Selecting;
use super::holder::Holder;
use crate::model::id::GpuUuid;
use crate::model::selection::Hold;

/// Tells a gpurun inside a job what the outer one holds: a token, then the scopes of its leases.
pub const LEASES_VARIABLE: &str = "GPURUN_LEASES";

/// How long such a look may keep a file from being locked again; the job is not followed meanwhile.
const RESTORE_PATIENCE: Duration = Duration::from_millis(200);
/// How often the holder of a lease looks whether its files are still there.
pub const HOLDER_LOOK: Duration = Duration::from_secs(2);

/// The bytes that a file name can have, with room for the slot of a sharer.
const LONGEST_NAME: usize = 255 - "+s9999999".len();
/// How long a look of another process can keep a lock from us.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);

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

impl LeaseDirectory {
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

    /// Waits until no process holds `name` exclusively. Blocks in the kernel, for as long as it takes.
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
}

impl Selecting {
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
        let directory = &self.directory;
        let wrap = |error: io::Error| unusable(directory.path(), &error);
        let mut lease = Lease {
            directory: Arc::clone(directory),
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
            if own.len() > LONGEST_NAME {
                return Err(SelectionError::TooDeep { levels: scope.matches("+n").count() + 1 });
            }
            let exclusive = hold == Hold::Exclusive;
            let Some(file) = directory.lock(&own, exclusive, LOOK_PATIENCE).map_err(wrap)? else {
                return Ok(None);
            };
            if exclusive {
                let held = vec![Held { name: own, exclusive, file }];
                lease.parts.push(Part { uuid: uuid.clone(), scope, held, taken: false });
                continue;
            }
            let names = directory.names()?;
            let taken = directory.taken_below(&scope, &names);
            let slot = (0_u32..).map(|slot| format!("s{slot}")).find(|slot| !taken.contains_key(slot));
            let scope = format!("{scope}+{}", slot.unwrap_or_default());
            let name = format!("{scope}.lock");
            let Some(slot) = directory.lock(&name, true, LOOK_PATIENCE).map_err(wrap)? else {
                return Ok(None);
            };
            let held = vec![Held { name: own, exclusive, file }, Held { name, exclusive: true, file: slot }];
            lease.parts.push(Part { uuid: uuid.clone(), scope, held, taken: false });
        }
        lease.write_notes();
        Ok(Some(lease))
    }
}

/// Devices held. Dropping it closes gpurun's descriptors; the job's own keep the lease until it ends.
#[derive(Debug)]
pub struct Lease {
    directory: Arc<LeaseDirectory>,
    holder: Holder,
    parts: Vec<Part>,
}

/// One device of a lease.
#[derive(Debug)]
struct Part {
    uuid: GpuUuid,
    scope: String,
    /// The last has the note.
    held: Vec<Held>,
    /// Its file was removed and another process has locked the new one.
    taken: bool,
}

/// A locked file.
#[derive(Debug)]
struct Held {
    name: String,
    exclusive: bool,
    file: File,
}

impl Lease {
    /// The descriptors that the job's main process must inherit (they are close-on-exec here).
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.files().map(AsFd::as_fd)
    }

    /// The locked files, and the directory, which its lock keeps from cleaners.
    fn files(&self) -> impl Iterator<Item = &File> {
        let directory = (!self.parts.is_empty()).then_some(&self.directory.dir);
        self.parts.iter().flat_map(|part| &part.held).map(|held| &held.file).chain(directory)
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

    /// Locks the files of the lease again where they, or the whole directory, were removed, so that others see it.
    /// Returns the devices that another process has taken meanwhile, each once.
    ///
    /// # Errors
    /// The directory cannot be made or used.
    pub fn restore(&mut self) -> Result<Vec<GpuUuid>, SelectionError> {
        let is_there = self.directory.is_there();
        let is_lost = |held: &Held| !is_there || !self.directory.is_current(&held.name, &held.file);
        if !self.parts.iter().flat_map(|part| &part.held).any(is_lost) {
            return Ok(Vec::new());
        }
        if !is_there {
            self.directory = LeaseDirectory::open_or_create(self.directory.path())?;
        }
        let directory = &self.directory;
        let mut taken = Vec::new();
        for part in &mut self.parts {
            for held in &mut part.held {
                if directory.is_current(&held.name, &held.file) {
                    continue;
                }
                let patience = if part.taken { Duration::ZERO } else { RESTORE_PATIENCE };
                let locked = directory.lock(&held.name, held.exclusive, patience);
                match locked.map_err(|error| unusable(directory.path(), &error))? {
                    Some(file) => held.file = file,
                    None if part.taken => {}
                    None => {
                        part.taken = true;
                        taken.push(part.uuid.clone());
                    }
                }
            }
        }
        self.write_notes();
        Ok(taken)
    }

    fn write_notes(&self) {
        for held in self.parts.iter().filter_map(|part| part.held.last()) {
            write_note(&held.file, &self.holder);
        }
    }
}

/// Whether a file is among the sorted `names`: one that is not there need not be opened to know that it is free.
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
