//! Starting the job: what is prepared before the fork, and the few system calls between fork and exec.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::{children, stop};
use crate::link::{Job, ToSidecar, send_raw};
use crate::model::time::ClockPair;
use crate::sys::inherited::{Inherited, inherited};
use crate::sys::signals::{SignalSet, set_disposition};

/// The job as it is to be started; everything that is not named here it inherits.
#[derive(Clone, Debug, Default)]
pub(super) struct JobCommand {
    /// The command line, byte for byte.
    pub argv: Vec<OsString>,
    /// Variables to add or replace; all others stay as they are, in their order.
    pub env: Vec<(OsString, OsString)>,
    /// Descriptors the job keeps across exec (the lease). All others of gpurun's are close-on-exec.
    pub keep_fds: Vec<RawFd>,
    /// The kernel kills the job's main process when gpurun dies, however it dies.
    pub die_together: bool,
    /// How the new process tells the sidecar that it is about to execute the job.
    pub announcement: Option<Announcement>,
}

/// What the job's process tells before it executes the job. It does so itself: should the minder be killed in the moment
/// of the start, the sidecar knows which process to follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announcement {
    /// The minder's end of the link.
    pub link: RawFd,
    /// When the start began.
    pub at: ClockPair,
}

impl Announcement {
    /// Says in the new process that it is about to execute the job.
    fn starting(self) {
        // SAFETY: reads the caller's own id.
        let pid = unsafe { libc::getpid() };
        self.send(&ToSidecar::Starting(Job { pid, mono: self.at.mono, wall: self.at.wall }));
    }

    fn send(self, message: &ToSidecar) {
        // SAFETY: the new process has a copy of the minder's descriptor until it executes the job.
        send_raw(unsafe { BorrowedFd::borrow_raw(self.link) }, message);
    }
}

/// Why there is no job; its text is the one line for stderr, [`LaunchError::exit_code`] the status.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaunchError {
    /// No file of that name (127).
    #[error("cannot run `{command}`: {place}{advice}")]
    NotFound {
        /// The command as typed.
        command: String,
        /// Where it was looked for.
        place: &'static str,
        /// What to type instead, where the command tells; may be empty.
        advice: String,
    },
    /// There is a file, but the kernel does not run it (126).
    #[error("cannot run `{path}`: {reason}")]
    CannotExecute {
        /// The file that was tried.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// gpurun could not get as far as exec (125).
    #[error("cannot start the job: {what}: {source}")]
    System {
        /// What failed.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The command line or a variable cannot be passed on (125).
    #[error("cannot start the job: {0} contains a zero byte")]
    Unpassable(&'static str),
}

impl LaunchError {
    /// 127 not found, 126 cannot execute, 125 gpurun's own failure.
    pub fn exit_code(&self) -> u8 {
        match self {
            LaunchError::NotFound { .. } => 127,
            LaunchError::CannotExecute { .. } => 126,
            LaunchError::System { .. } | LaunchError::Unpassable(_) => 125,
        }
    }
}

/// Everything the child needs, allocated before the fork.
struct Prepared {
    /// The files to try in turn; execvp's list.
    candidates: Vec<CString>,
    argv: Vec<*const libc::c_char>,
    /// `/bin/sh FILE ARG...` for a script without `#!`; the second place is filled with the candidate.
    script_argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    keep_fds: Vec<RawFd>,
    die_together: bool,
    announcement: Option<Announcement>,
    parent: libc::pid_t,
    /// Owns what the pointers point to.
    _strings: Vec<CString>,
}

const SHELL: &CStr = c"/bin/sh";

impl Prepared {
    fn new(command: &JobCommand) -> Result<Prepared, LaunchError> {
        // As in a shell: a command without a name is one that is not found.
        let name = command.argv.first().filter(|n| !n.is_empty()).ok_or_else(|| LaunchError::NotFound {
            command: String::new(),
            place: "the name is empty",
            advice: String::new(),
        })?;
        let mut strings = Vec::with_capacity(command.argv.len() + command.env.len());
        for arg in &command.argv {
            strings.push(c_string(arg.as_bytes(), "an argument")?);
        }
        for (key, value) in &command.env {
            let bytes = [key.as_bytes(), b"=", value.as_bytes()].concat();
            strings.push(c_string(&bytes, "a variable")?);
        }
        let (args, variables) = strings.split_at(command.argv.len());
        let argv: Vec<_> = args.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect();
        let script_argv =
            [SHELL.as_ptr(), std::ptr::null()].into_iter().chain(argv.iter().skip(1).copied()).collect();
        let mut envp = environment_without(command.env.iter().map(|(key, _)| key.as_bytes()));
        envp.extend(variables.iter().map(|s| s.as_ptr()));
        envp.push(std::ptr::null());
        let path = variables
            .iter()
            .rev()
            .find_map(|v| v.to_bytes().strip_prefix(b"PATH=").map(|p| OsStr::from_bytes(p).to_owned()))
            .or_else(|| std::env::var_os("PATH"));
        let mut candidates = Vec::new();
        for file in candidate_files(name.as_bytes(), path.as_deref().map(OsStrExt::as_bytes)) {
            candidates.push(c_string(&file, "the command's path")?);
        }
        Ok(Prepared {
            candidates,
            argv,
            script_argv,
            envp,
            keep_fds: command.keep_fds.clone(),
            die_together: command.die_together,
            announcement: command.announcement,
            // SAFETY: reads the caller's own id.
            parent: unsafe { libc::getpid() },
            _strings: strings,
        })
    }
}

fn c_string(bytes: &[u8], what: &'static str) -> Result<CString, LaunchError> {
    CString::new(bytes).map_err(|_| LaunchError::Unpassable(what))
}

/// execvp's search: a name with a slash is itself; otherwise one file per directory of `PATH`, where an
/// empty directory is the current one.
fn candidate_files(name: &[u8], path: Option<&[u8]>) -> Vec<Vec<u8>> {
    if name.contains(&b'/') {
        return vec![name.to_vec()];
    }
    let path = path.unwrap_or(b"/bin:/usr/bin");
    path.split(|b| *b == b':')
        .map(|dir| if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() })
        .collect()
}

/// The environment as the kernel handed it over (also entries that are no `KEY=VALUE`), without `keys`.
fn environment_without<'a>(keys: impl Iterator<Item = &'a [u8]> + Clone) -> Vec<*const libc::c_char> {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let mut kept = Vec::new();
    // SAFETY: `environ` is null or a null-terminated array of C strings. gpurun never changes its own
    // environment, so the array and its strings live unchanged until exec.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let bytes = CStr::from_ptr(*entry).to_bytes();
            let is_key = |key: &[u8]| bytes.strip_prefix(key).is_some_and(|rest| rest.first() == Some(&b'='));
            if !keys.clone().any(is_key) {
                kept.push(*entry);
            }
            entry = entry.add(1);
        }
    }
    kept
}

/// Starts the job from the calling thread, which must be the main one: the kernel ties `die_together` to it. Every signal
/// must be blocked; what arrives meanwhile waits and is forwarded afterwards.
///
/// The minder becomes a child subreaper first, so that whatever the job leaves behind comes back to it. Returns the main
/// process's id once exec has succeeded.
///
/// # Errors
/// [`LaunchError`]; then no process is left.
pub(super) fn spawn(command: &JobCommand) -> Result<i32, LaunchError> {
    let mut prepared = Prepared::new(command)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|source| LaunchError::System { what: "PR_SET_CHILD_SUBREAPER", source: source.into() })?;
    let (report, report_child) = io::pipe().map_err(|source| LaunchError::System { what: "pipe", source })?;
    // Plain clone instead of libc's fork: no atfork handlers of preloaded libraries. A vfork would deadlock with Ctrl-Z:
    // the stopped child never reaches exec.
    let none: libc::c_long = 0;
    let flags = libc::c_long::from(libc::SIGCHLD);
    // SAFETY: without CLONE_VM and with a null stack this is fork. The child runs only `in_child`, which makes system
    // calls on memory prepared above and never returns.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) };
    if pid == 0 {
        in_child(&mut prepared, inherited(), report_child.as_raw_fd());
    }
    let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0).ok_or_else(|| system("fork"))?;
    drop(report_child);
    match exec_result(&report.into(), pid) {
        None => Ok(pid),
        Some((errno, candidate)) => {
            children::reap_ending(pid);
            Err(explain(errno, candidate, command, &prepared.candidates))
        }
    }
}

fn system(what: &'static str) -> LaunchError {
    LaunchError::System { what, source: io::Error::last_os_error() }
}

/// Between fork and exec: system calls only, nothing that allocates, locks or panics.
fn in_child(prepared: &mut Prepared, entry: &Inherited, report: RawFd) -> ! {
    for signal in SignalSet::all_numbers() {
        let action = if entry.ignored.contains(signal) { libc::SIG_IGN } else { libc::SIG_DFL };
        set_disposition(signal, action);
    }
    for (fd, closed) in (0..).zip(entry.closed_stdio) {
        if closed {
            // SAFETY: gpurun opened /dev/null there; the job gets it closed, as gpurun did.
            unsafe { libc::close(fd) };
        }
    }
    for fd in &prepared.keep_fds {
        // SAFETY: changes the flags of this process's own copy of the descriptor.
        unsafe {
            let flags = libc::fcntl(*fd, libc::F_GETFD);
            if flags != -1 {
                libc::fcntl(*fd, libc::F_SETFD, flags & !libc::FD_CLOEXEC);
            }
        }
    }
    let death_signal = if prepared.die_together { libc::SIGKILL } else { entry.parent_death_signal };
    if death_signal != 0 {
        // SAFETY: an attribute of this process; if gpurun died before it was set, the signal never comes,
        // so the parent is looked at afterwards.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::c_long::from(death_signal), 0, 0, 0);
            if libc::getppid() != prepared.parent {
                libc::_exit(125);
            }
        }
    }
    if entry.is_subreaper {
        // SAFETY: an attribute of this process.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    }
    if let Some(announcement) = prepared.announcement {
        announcement.starting();
    }
    entry.blocked.set_as_mask();
    let (errno, candidate) = exec(prepared);
    if let Some(announcement) = prepared.announcement {
        announcement.send(&ToSidecar::NotStarted);
    }
    let mut message = [0; 8];
    let (first, second) = message.split_at_mut(4);
    first.copy_from_slice(&errno.to_ne_bytes());
    second.copy_from_slice(&candidate.to_ne_bytes());
    // SAFETY: writes eight bytes to the pipe and ends without running anything of the parent's.
    unsafe {
        libc::write(report, message.as_ptr().cast(), message.len());
        libc::_exit(127);
    }
}

/// execvp: the first file that runs; a file without `#!` goes to the shell; which failure counts follows
/// glibc. Returns only on failure.
fn exec(prepared: &mut Prepared) -> (i32, u32) {
    let mut last = (libc::ENOENT, 0);
    let mut denied = None;
    for (index, file) in (0u32..).zip(&prepared.candidates) {
        // SAFETY: null-terminated arrays of C strings, prepared before the fork and still alive.
        unsafe { libc::execve(file.as_ptr(), prepared.argv.as_ptr(), prepared.envp.as_ptr()) };
        let mut errno = errno();
        if errno == libc::ENOEXEC {
            if let Some(place) = prepared.script_argv.get_mut(1) {
                *place = file.as_ptr();
            }
            // SAFETY: as above.
            unsafe {
                libc::execve(SHELL.as_ptr(), prepared.script_argv.as_ptr(), prepared.envp.as_ptr());
            }
            errno = self::errno();
        }
        last = (errno, index);
        match errno {
            libc::EACCES => denied = denied.or(Some(last)),
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return last,
        }
    }
    denied.unwrap_or(last)
}

fn errno() -> i32 {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() }
}

/// Waits until the child has executed the job (`None`) or has said why not. A terminal may stop the child
/// in between, so this looks up now and then and stops along with it.
fn exec_result(report: &OwnedFd, pid: i32) -> Option<(i32, u32)> {
    loop {
        let mut poll = libc::pollfd { fd: report.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        if unsafe { libc::poll(&mut poll, 1, 50) } == 0 {
            stop::beside_starting(pid);
            continue;
        }
        let mut message = [0u8; 8];
        // SAFETY: reads at most eight bytes into an array of eight; the pipe's writes are atomic.
        let got = unsafe { libc::read(report.as_raw_fd(), message.as_mut_ptr().cast(), message.len()) };
        if got != 8 {
            return None;
        }
        let (first, second) = message.split_at(4);
        let word = |bytes: &[u8]| bytes.try_into().map(i32::from_ne_bytes).unwrap_or_default();
        return Some((word(first), u32::try_from(word(second)).unwrap_or_default()));
    }
}

/// Puts the kernel's number into the distinctions a shell makes.
fn explain(errno: i32, candidate: u32, command: &JobCommand, candidates: &[CString]) -> LaunchError {
    let name = command.argv.first().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let path_of = |c: &CString| OsString::from_vec(c.as_bytes().to_vec());
    let tried = usize::try_from(candidate).ok().and_then(|i| candidates.get(i)).map(path_of);
    let tried = tried.unwrap_or_else(|| OsString::from(&name));
    // A directory of PATH that is none is as good as empty; a path that was typed is wrong then (126).
    if errno == libc::ENOENT || (errno == libc::ENOTDIR && !name.contains('/')) {
        // ENOENT is also what a missing interpreter gives: the file itself is there then.
        if let Some(file) = candidates.iter().map(path_of).find(|f| Path::new(f).is_file()) {
            let reason = interpreter_reason(Path::new(&file));
            return LaunchError::CannotExecute { path: file.to_string_lossy().into_owned(), reason };
        }
        let place = if name.contains('/') { "no such file or directory" } else { "no such command in PATH" };
        return LaunchError::NotFound { command: name, place, advice: advice(&command.argv) };
    }
    let reason = match errno {
        libc::EACCES if Path::new(&tried).is_dir() => "it is a directory".to_owned(),
        libc::EACCES => "permission denied (is it executable? try chmod +x)".to_owned(),
        libc::ENOEXEC => "its format is not executable here".to_owned(),
        other => io::Error::from_raw_os_error(other).to_string(),
    };
    LaunchError::CannotExecute { path: tried.to_string_lossy().into_owned(), reason }
}

/// What to type instead of a command that is not found: variables before a command, and a command line in quotes, are
/// read by a shell only.
fn advice(argv: &[OsString]) -> String {
    let words: Vec<_> = argv.iter().map(|word| word.to_string_lossy()).collect();
    let Some(name) = words.first() else { return String::new() };
    let is_assignment = name.split_once('=').is_some_and(|(key, _)| {
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    });
    match words.len() {
        1 if !name.trim().contains(char::is_whitespace) => String::new(),
        1 if name.contains(['|', '&', ';', '<', '>', '$', '*']) => {
            format!("; to run a shell command, write -- sh -c '{name}'")
        }
        1 => format!("; the quotes make it one word, write -- {}", name.trim()),
        _ if is_assignment => format!("; to set a variable, write -- env {}", words.join(" ")),
        _ => String::new(),
    }
}

/// Names the interpreter that a script or program asks for and that is not there.
fn interpreter_reason(file: &Path) -> String {
    use std::io::Read;
    let mut head = [0u8; 256];
    let got = std::fs::File::open(file).and_then(|mut f| f.read(&mut head)).unwrap_or(0);
    let head = head.get(..got).unwrap_or_default();
    match head.strip_prefix(b"#!") {
        Some(rest) => {
            let line = rest.split(|b| *b == b'\n').next().unwrap_or_default();
            let line = String::from_utf8_lossy(line);
            let interpreter = line.split_ascii_whitespace().next().unwrap_or_default();
            format!("its interpreter `{}` does not exist", interpreter.escape_debug())
        }
        None => "its program loader does not exist".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(files: Vec<Vec<u8>>) -> Vec<String> {
        files.into_iter().map(|f| String::from_utf8(f).unwrap()).collect()
    }

    #[test]
    fn the_search_is_execvps() {
        assert_eq!(strings(candidate_files(b"x", Some(b"/a::b/"))), ["/a/x", "x", "b//x"]);
        assert_eq!(strings(candidate_files(b"./x", Some(b"/a:/b"))), ["./x"]);
        assert_eq!(strings(candidate_files(b"x", None)), ["/bin/x", "/usr/bin/x"]);
        assert_eq!(strings(candidate_files(b"x", Some(b""))), ["x"]);
    }

    #[test]
    fn zero_bytes_and_nothing_are_refused_before_the_fork() {
        let bad = JobCommand { argv: vec![OsString::from("a\0b")], ..JobCommand::default() };
        assert_eq!(Prepared::new(&bad).err().unwrap().exit_code(), 125);
        // A shell says "not found" to an empty name.
        let nameless = JobCommand { argv: vec![OsString::new()], ..JobCommand::default() };
        for command in [nameless, JobCommand::default()] {
            assert_eq!(Prepared::new(&command).err().unwrap().exit_code(), 127);
        }
    }

    #[test]
    fn what_the_kernel_refuses_is_told_apart() {
        // One string longer than the kernel takes.
        let argv = vec![OsString::from("/bin/true"), OsString::from("x".repeat(200_000))];
        let error = spawn(&JobCommand { argv, ..JobCommand::default() }).err().unwrap();
        assert_eq!(error.exit_code(), 126);
        assert!(error.to_string().contains("too long"), "{error}");
    }

    #[test]
    fn only_named_variables_are_replaced() {
        let all = environment_without(std::iter::empty());
        let path: &[u8] = b"PATH";
        let without = environment_without([path].into_iter());
        assert_eq!(without.len() + usize::from(std::env::var_os("PATH").is_some()), all.len());
        let prefix: &[u8] = b"PAT";
        assert_eq!(environment_without([prefix].into_iter()).len(), all.len());
    }
}
