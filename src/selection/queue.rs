//! The queue of those who wait: first come, first served, among those who want the same devices.
//!
//! A ticket is a locked file in the lease directory whose name holds its number; it ends with its process.
//! Who is not first blocks in the kernel on the ticket before its own, so a long queue costs nothing.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use super::SelectionError;
use super::lease::{LeaseDirectory, Selecting, file_stem, fresh_token, unusable};
use crate::model::id::GpuUuid;

const PREFIX: &str = "wait.";

/// What a waiter says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Waiter {
    pid: u32,
    devices: BTreeSet<String>,
}

/// A place in the queue, given up when dropped.
#[derive(Debug)]
pub struct Ticket<'a> {
    directory: &'a LeaseDirectory,
    name: String,
    devices: BTreeSet<String>,
    _lock: File,
}

impl LeaseDirectory {
    /// Joins the queue for any of `devices`. Under the host-wide lock, so that numbers are given in order.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub fn join_queue<'a>(
        &'a self,
        _selecting: &Selecting<'_>,
        devices: &[&GpuUuid],
    ) -> Result<Ticket<'a>, SelectionError> {
        let last = self.names()?.iter().filter_map(|name| number(name)).max().unwrap_or(0);
        let devices: BTreeSet<String> = devices.iter().map(|uuid| file_stem(uuid)).collect();
        let waiter = Waiter { pid: std::process::id(), devices: devices.clone() };
        let publish = || -> io::Result<(String, File)> {
            let name = format!("{PREFIX}{:020}.{}.lock", last + 1, fresh_token()?);
            let text = serde_json::to_string(&waiter)?;
            // Locked before it is seen: an unlocked ticket is one whose process has ended.
            let lock = self.publish(&name, |file| {
                file.write_all(text.as_bytes())?;
                file.lock()
            })?;
            Ok((name, lock))
        };
        let (name, lock) = publish().map_err(|error| unusable(self.path(), &error))?;
        Ok(Ticket { directory: self, name, devices, _lock: lock })
    }

    /// Whether anybody waits for any of `devices`.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn anybody_waits(&self, devices: &[&GpuUuid]) -> Result<bool, SelectionError> {
        let devices: BTreeSet<String> = devices.iter().map(|uuid| file_stem(uuid)).collect();
        let names = self.names()?;
        Ok(names.iter().any(|name| number(name).is_some() && self.waits_for(name, &devices)))
    }

    /// Whether `name` is the ticket of a live waiter who may take any of `devices`.
    fn waits_for(&self, name: &str, devices: &BTreeSet<String>) -> bool {
        if !self.is_locked(name) {
            // Its process has ended. Only its user may remove it; the next of that user does.
            let _ = std::fs::remove_file(self.at(name));
            return false;
        }
        let mut text = String::new();
        let waiter = self
            .open_lock(name)
            .and_then(|file| file.take(64 * 1024).read_to_string(&mut text))
            .ok()
            .and_then(|_| serde_json::from_str::<Waiter>(&text).ok());
        // Who cannot be read may want anything.
        waiter.is_none_or(|waiter| !waiter.devices.is_disjoint(devices))
    }
}

impl Ticket<'_> {
    /// The tickets before this one whose holders may take a device that this one may take, oldest first.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn ahead(&self) -> Result<Vec<String>, SelectionError> {
        let mut names = self.directory.names()?;
        names.retain(|name| {
            number(name).is_some() && *name < self.name && self.directory.waits_for(name, &self.devices)
        });
        Ok(names)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.directory.at(&self.name));
    }
}

/// The number in a ticket's name.
fn number(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.split('.').next()?.parse().ok()
}
