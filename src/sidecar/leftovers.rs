//! Processes that outlived the job's main one, in words.

use std::fs;

use crate::sys::stat::Stat;

/// The command line of a process with spaces between the arguments, `[name]` where it is empty; `None` once it has ended.
pub(super) fn command_of(pid: i32) -> Option<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<_> =
        words.split(|byte| *byte == 0).filter(|word| !word.is_empty()).map(String::from_utf8_lossy).collect();
    if !words.is_empty() {
        return Some(words.join(" "));
    }
    // A kernel thread, a zombie, or a process that wiped its arguments.
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    (!Stat::read(pid)?.has_ended()).then(|| format!("[{}]", String::from_utf8_lossy(&name).trim_end()))
}
