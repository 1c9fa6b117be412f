//! Which processes hold a lease: what the holder wrote down when it took it, and which of them have the lock now.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::sys::escape::is_unsafe;
use crate::sys::stat::Stat;
use crate::sys::{process, users};

/// The holder of a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// The gpurun that took it; 0 where that is not known or it has ended.
    pub pid: u32,
    /// The job's main process, once it runs; it holds the lease too.
    pub job: Option<u32>,
    /// A living process that holds it: the job, else gpurun, else one that inherited the lock from them. Not in the note.
    #[serde(skip)]
    pub process: Option<u32>,
    /// Effective uid.
    pub uid: u32,
    /// User name, or the uid in digits.
    pub user: String,
    /// The job's command line, shortened.
    pub command: String,
    /// Seconds since the Unix epoch.
    pub since: i64,
    /// How many may share, for a sharer.
    pub share: Option<u32>,
    /// Tells this lease from any other.
    pub token: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.process {
            Some(pid) => write!(f, "pid {pid}")?,
            // Of another user, or in another container.
            None => f.write_str("a process that cannot be seen")?,
        }
        if !self.user.is_empty() {
            write!(f, " of {}", self.user)?;
        }
        if let Some(since) = self.since_text(jiff::Timestamp::now()) {
            write!(f, " since {since}")?;
        }
        if !self.command.is_empty() {
            write!(f, " ({})", self.command)?;
        }
        if let Some(share) = self.share {
            write!(f, ", shared by up to {share}")?;
        }
        Ok(())
    }
}

impl Holder {
    /// Since when, in local time with its zone; the date only where it is not that of `now`.
    pub fn since_text(&self, now: jiff::Timestamp) -> Option<String> {
        let local = |time: jiff::Timestamp| time.to_zoned_datetime(jiff::tz::TimeZone::system());
        let known = Some(self.since).filter(|since| *since != 0)?;
        let since = local(jiff::Timestamp::from_second(known).ok()?);
        let form = if since.date() == local(now).date() { "%H:%M %Z" } else { "%Y-%m-%d %H:%M %Z" };
        Some(since.strftime(form).to_string())
    }

    /// This process, in the words of its command line.
    pub fn this_process() -> Self {
        Self::of_process(process::id().unsigned_abs())
    }

    /// A process that wrote no note, as the system shows it.
    pub(super) fn of_process(pid: u32) -> Self {
        let uid = fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<String> = words
            .split(|byte| *byte == 0)
            .filter(|word| !word.is_empty())
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        Self {
            pid,
            process: Some(pid),
            uid: uid.as_ref().copied().unwrap_or_default(),
            user: uid.map(user).unwrap_or_default(),
            command: command_note(&words),
            ..Self::default()
        }
    }

    /// Reads a note; what is none says nothing.
    pub(super) fn read(text: &str) -> Self {
        let note = text.lines().next().and_then(|line| serde_json::from_str::<Self>(line).ok());
        note.unwrap_or_default().cleaned()
    }

    /// What others wrote is shown on terminals: no control characters, no screenfuls.
    pub(super) fn cleaned(mut self) -> Self {
        for text in [&mut self.user, &mut self.command, &mut self.token] {
            *text = text.chars().filter(|c| !is_unsafe(*c)).take(200).collect();
        }
        self
    }

    /// The holder as of now: processes that have ended, or that have the lock no more, are left out.
    pub(super) fn now(mut self, lock: &LockFile) -> Self {
        let noted = [self.job, Some(self.pid)].into_iter().flatten().filter(|pid| *pid != 0);
        self.process = noted.into_iter().find(|pid| lock.may_be_held_by(*pid)).or_else(|| lock.find_holder());
        self.job = self.job.filter(|pid| is_alive(*pid));
        if !is_alive(self.pid) {
            self.pid = 0;
        }
        self
    }
}

/// The name of a user, or the uid in digits.
pub fn user(uid: u32) -> String {
    users::name_of(uid).unwrap_or_else(|| uid.to_string())
}

/// Shortens a command line for a [`Holder`].
pub fn command_note(words: &[String]) -> String {
    let mut text: String = words.join(" ").chars().filter(|c| !is_unsafe(*c)).take(81).collect();
    if text.chars().count() > 80 {
        text = text.chars().take(77).collect::<String>() + "...";
    }
    text
}

/// A lock file, to be found among the open files of processes.
pub(super) struct LockFile {
    name: String,
    device: u64,
    inode: u64,
}

impl LockFile {
    pub(super) fn new(name: &str, metadata: &fs::Metadata) -> Self {
        Self { name: name.to_owned(), device: metadata.dev(), inode: metadata.ino() }
    }

    /// Whether a process has the lock; one of another user, whose files cannot be seen, is believed.
    fn may_be_held_by(&self, pid: u32) -> bool {
        match self.is_held_by(pid) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => is_alive(pid),
            held => held.unwrap_or(false),
        }
    }

    /// Any process but this one that has the lock.
    fn find_holder(&self) -> Option<u32> {
        let own = process::id().unsigned_abs();
        let entries = fs::read_dir("/proc").ok()?.flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(|pid| *pid != own && self.is_held_by(*pid).unwrap_or(false))
    }

    /// Whether a process has the locked file open, and locked: another gpurun that only looks has it open as well.
    fn is_held_by(&self, pid: u32) -> io::Result<bool> {
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            // The name first: to ask of what file it is can hang for one of a dead server.
            let is_named = fs::read_link(entry.path()).is_ok_and(|path| path.ends_with(&self.name));
            let is_same = is_named
                && fs::metadata(entry.path())
                    .is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode));
            let info = format!("/proc/{pid}/fdinfo/{}", entry.file_name().to_string_lossy());
            if is_same && fs::read_to_string(info)?.contains("FLOCK") {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Whether there is such a process and it is no zombie.
fn is_alive(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    // One of another user is there, and may not be signalled.
    matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM))
        && !Stat::read(pid.as_raw_nonzero().get()).is_some_and(|stat| stat.has_ended())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process that has ended and was reaped.
    fn dead() -> u32 {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    /// A process that inherits a file on its standard input, and one that does not.
    fn sleeping(file: Option<&File>) -> Child {
        let input = file.map_or_else(Stdio::null, |file| file.try_clone().unwrap().into());
        Command::new("sleep").arg("1000").stdin(input).spawn().unwrap()
    }

    #[test]
    fn a_holder_is_named_after_a_living_process_that_has_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.lock");
        let file = File::create(&path).unwrap();
        file.lock().unwrap();
        let lock = LockFile::new("x.lock", &file.metadata().unwrap());
        let (mut heir, mut other) = (sleeping(Some(&file)), sleeping(None));
        drop(file);
        let named = |pid: u32, job: Option<u32>| {
            let holder = Holder { pid, job, user: "u".to_owned(), ..Holder::default() }.now(&lock);
            (holder.process, holder.pid, holder.job, holder.to_string())
        };
        let (heir_id, other_id, dead) = (heir.id(), other.id(), dead());
        let words = format!("pid {heir_id} of u");
        assert_eq!(named(dead, Some(heir_id)), (Some(heir_id), 0, Some(heir_id), words.clone()));
        assert_eq!(named(heir_id, Some(dead)), (Some(heir_id), heir_id, None, words.clone()));
        // Both dead, or their numbers another process's by now.
        assert_eq!(named(dead, Some(dead)), (Some(heir_id), 0, None, words.clone()));
        assert_eq!(named(other_id, None).0, Some(heir_id));
        // One that only looks does not hold it.
        let looking = File::open(&path).unwrap();
        let mut looker = sleeping(Some(&looking));
        assert!(looking.as_raw_fd() > 0 && !lock.is_held_by(looker.id()).unwrap());
        heir.kill().unwrap();
        heir.wait().unwrap();
        assert_eq!(named(dead, Some(dead)).3, "a process that cannot be seen of u");
        for child in [&mut other, &mut looker] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
