//! What is wrong with the lease directory, for administrators: each finding with the command that mends it.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::SelectionError;
use super::directory::{LeaseDirectory, Pause, unusable};
use super::gate::SELECT_LOCK;
use super::holder;
use super::queue;
use crate::sys::escape::shell_words;

/// How long the host-wide lock may be busy: choices take turns.
const BUSY: Duration = Duration::from_secs(2);

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What, and what comes of it.
    pub what: String,
    /// The command that mends it, for a shell of root.
    pub mend: String,
}

impl Finding {
    fn new(what: impl Into<String>, mend: &[&str]) -> Self {
        let words: Vec<String> = mend.iter().map(|word| (*word).to_owned()).collect();
        Self { what: what.into(), mend: shell_words(&words) }
    }
}

/// Looks at the directory and at each of its files; changes nothing.
///
/// # Errors
/// The directory cannot be read.
pub fn check(path: &Path) -> Result<Vec<Finding>, SelectionError> {
    let shown = path.to_string_lossy();
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mend = ["install", "-d", "-o", "root", "-g", "root", "-m", "1777", &shown];
            let what = format!("{shown} is not there: it will belong to the first user who holds a GPU");
            return Ok(vec![Finding::new(what, &mend)]);
        }
        Err(error) => return Err(unusable(path, &error)),
    };
    if !metadata.is_dir() {
        let what = format!("{shown} is not a directory: no GPU can be held");
        return Ok(vec![Finding::new(what, &["rm", "--", &shown])]);
    }
    let mut findings = owner_and_mode(&shown, &metadata);
    let Some(directory) = LeaseDirectory::open_existing(path)? else { return Ok(findings) };
    for name in directory.all_names()? {
        findings.extend(file(&directory, &name));
    }
    findings.extend(kept_select_lock(&directory));
    Ok(findings)
}

fn owner_and_mode(shown: &str, metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    if metadata.uid() != 0 {
        let owner = holder::user(metadata.uid());
        let what = format!("{shown} belongs to {owner}, who can remove the leases of others");
        findings.push(Finding::new(what, &["chown", "root:root", "--", shown]));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o1777 != 0o1777 {
        let why = match mode & 0o777 {
            0o777 => "without the sticky bit every user can remove the leases of others",
            _ => "some users cannot hold a GPU",
        };
        let what = format!("{shown} has the mode {mode:04o}: {why}");
        findings.push(Finding::new(what, &["chmod", "1777", "--", shown]));
    }
    findings
}

/// What is wrong with one file.
fn file(directory: &LeaseDirectory, name: &str) -> Vec<Finding> {
    let path = directory.path().join(name);
    let path = path.to_string_lossy();
    let Ok(metadata) = std::fs::symlink_metadata(directory.at(name)) else { return Vec::new() };
    let remove = ["rm", "-rf", "--", &path];
    if !metadata.is_file() || !name.ends_with(".lock") {
        return vec![Finding::new(format!("{path} is not a file of gpurun"), &remove)];
    }
    if queue::is_ticket(name) {
        // Others may have come and gone since the directory was read.
        let is_dead = !directory.is_locked(name) && directory.open_lock(name).is_ok();
        let what = format!("{path} is the place in the queue of a process that has ended");
        return is_dead.then(|| Finding::new(what, &remove)).into_iter().collect();
    }
    let mut findings = Vec::new();
    if metadata.uid() != 0 {
        let owner = holder::user(metadata.uid());
        let what = format!("{path} belongs to {owner}, who can remove it while others hold it");
        findings.push(Finding::new(what, &["chown", "root:root", "--", &path]));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o666 != 0o666 {
        let what = format!("{path} has the mode {mode:04o}: some users cannot hold what it stands for");
        findings.push(Finding::new(what, &["chmod", "666", "--", &path]));
    }
    if name != SELECT_LOCK && directory.is_locked(name) {
        findings.extend(stale_note(directory, name, &path));
    }
    findings
}

/// A lease that no process of its note has.
fn stale_note(directory: &LeaseDirectory, name: &str, path: &str) -> Option<Finding> {
    let note = directory.note(name);
    let now = directory.holder(name);
    match now.process {
        None => Some(Finding::new(
            format!("{path} is locked by a process that cannot be seen, as in another container"),
            &["lslocks", "--output-all"],
        )),
        Some(pid) if pid == note.pid || note.job == Some(pid) => None,
        Some(pid) => {
            let what = format!("{path} is held by pid {pid}, which is not the process of its note");
            Some(Finding::new(what, &["kill", &pid.to_string()]))
        }
    }
}

/// A process that does not let others choose.
fn kept_select_lock(directory: &LeaseDirectory) -> Option<Finding> {
    let deadline = Instant::now() + BUSY;
    let keeper = directory.note(SELECT_LOCK).token;
    let mut pause = Pause::default();
    while directory.is_locked(SELECT_LOCK) && directory.open_lock(SELECT_LOCK).is_ok() {
        if directory.note(SELECT_LOCK).token != keeper {
            return None;
        }
        if Instant::now() >= deadline {
            let holder = directory.select_holder();
            let path = directory.path().join(SELECT_LOCK);
            let what = format!("{} is kept by {holder}: nobody else can choose GPUs", path.display());
            return Some(match holder.process {
                Some(pid) => Finding::new(what, &["kill", &pid.to_string()]),
                None => Finding::new(what, &["lslocks", "--output-all"]),
            });
        }
        pause.sleep();
    }
    None
}
