//! This process: its name, its parent, its end. And the command line of any process.

use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getppid, set_child_subreaper, set_parent_process_death_signal,
    waitpid,
};

use super::stat::Stat;

/// Ends the process with this status and runs nothing on the way out: exit handlers of a driver library may hang, or
/// crash beside a call of the driver that hangs.
pub fn exit_at_once(status: u8) -> ! {
    // SAFETY: ends the process; everything that had to be written was written before.
    unsafe { libc::_exit(i32::from(status)) }
}

/// Starts a copy of this process that runs `body` and ends with the status that it gives. The kernel kills the copy when
/// this process ends, until it calls [`outlive_parent`]. Only where this process has a single thread: another one could
/// hold a lock that the copy waits for.
///
/// # Errors
/// No process.
pub fn fork(body: impl FnOnce() -> u8) -> io::Result<i32> {
    let parent = id();
    // SAFETY: by the caller's word there is one thread, so the copy is whole; it runs `body` and ends.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => exit_at_once(if die_with(parent).is_ok() { body() } else { 1 }),
        pid => Ok(pid),
    }
}

/// Waits until the child `pid` has ended; how, or `None` where that cannot be known.
pub fn wait_for_end(pid: i32) -> Option<WaitStatus> {
    loop {
        match waitpid(Pid::from_raw(pid), WaitOptions::empty()) {
            Ok(ended) => return ended.map(|(_, status)| status),
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Has the kernel kill this process when its parent dies.
///
/// # Errors
/// The parent is dead already.
fn die_with(parent: i32) -> Result<(), Errno> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A parent outside this PID namespace has no number here.
    if [parent, 0].contains(&parent_id()) { Ok(()) } else { Err(Errno::SRCH) }
}

/// Lets this process live on when its parent dies.
pub fn outlive_parent() {
    // Fails for no valid argument.
    let _ = set_parent_process_death_signal(None);
}

/// Process id of the parent; 0 where it is outside this PID namespace.
pub fn parent_id() -> i32 {
    Pid::as_raw(getppid())
}

/// Process id of this process.
pub fn id() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Has orphans among this process's descendants come back to it.
pub fn adopt_orphans() {
    // Fails only on kernels before 3.4.
    let _ = set_child_subreaper(Some(rustix::process::getpid()));
}

/// Names the calling thread; of the main thread, `ps` and `/proc/PID/comm` show it as the process's name.
pub fn name_thread(name: &std::ffi::CStr) {
    // Fails for no valid argument.
    let _ = rustix::thread::set_name(name);
}

/// The command line of a process with spaces between the arguments, `[name]` where it is empty; `None` once it has ended.
pub fn command_of(pid: i32) -> Option<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<_> =
        words.split(|byte| *byte == 0).filter(|word| !word.is_empty()).map(String::from_utf8_lossy).collect();
    if !words.is_empty() {
        return Some(words.join(" "));
    }
    // A kernel thread, a zombie, or a process that wiped its arguments.
    let name = program_of(pid)?;
    (!Stat::read(pid)?.has_ended()).then(|| format!("[{name}]"))
}

/// The name of a process, at most 15 bytes; `None` once it has been reaped.
pub fn program_of(pid: i32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}
