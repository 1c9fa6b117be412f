//! Signal sets, the hold on all signals, and reading them with their origin.

use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::BareThread;

/// A set of signals 1 to 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalSet(u64);

impl SignalSet {
    /// No signal.
    pub const EMPTY: SignalSet = SignalSet(0);
    /// Every signal; the kernel and libc leave out those that cannot be blocked.
    pub const ALL: SignalSet = SignalSet(u64::MAX);

    /// The numbers a signal can have.
    pub fn all_numbers() -> std::ops::RangeInclusive<i32> {
        1..=64
    }

    /// Adds a signal; numbers that no signal has are left out.
    pub fn insert(&mut self, signal: i32) {
        if let Some(bit) = Self::bit(signal) {
            self.0 |= bit;
        }
    }

    /// Whether the signal is in the set.
    pub fn contains(self, signal: i32) -> bool {
        Self::bit(signal).is_some_and(|bit| self.0 & bit != 0)
    }

    fn bit(signal: i32) -> Option<u64> {
        Self::all_numbers().contains(&signal).then(|| 1 << (signal - 1))
    }

    /// The calling thread's blocked signals.
    pub(super) fn blocked_now() -> SignalSet {
        Self::change_mask(libc::SIG_BLOCK, None)
    }

    /// Signals that are blocked and waiting, for this thread or the process.
    pub(super) fn pending_now() -> SignalSet {
        // SAFETY: `sigpending` fills a plain-data set.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigpending(&mut set);
            set
        };
        Self::from_libc(&set)
    }

    /// Blocks these signals for the calling thread and returns what was blocked before.
    pub fn block(self) -> SignalSet {
        Self::change_mask(libc::SIG_BLOCK, Some(self))
    }

    /// Lets these signals through in the calling thread.
    pub(super) fn unblock(self) {
        Self::change_mask(libc::SIG_UNBLOCK, Some(self));
    }

    /// Makes exactly this set the calling thread's blocked signals.
    pub(super) fn set_as_mask(self) {
        Self::change_mask(libc::SIG_SETMASK, Some(self));
    }

    fn change_mask(how: i32, set: Option<SignalSet>) -> SignalSet {
        let new = set.map(SignalSet::to_libc);
        let new_ptr = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: both pointers are null or point to live sets; only this thread's mask changes.
        let old = unsafe {
            let mut old: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(how, new_ptr, &mut old);
            old
        };
        Self::from_libc(&old)
    }

    pub(super) fn to_libc(self) -> libc::sigset_t {
        // SAFETY: `sigemptyset` initialises the set; `sigaddset` refuses numbers it does not know.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in Self::all_numbers().filter(|s| self.contains(*s)) {
                libc::sigaddset(&mut set, signal);
            }
            set
        }
    }

    fn from_libc(set: &libc::sigset_t) -> SignalSet {
        let mut ours = SignalSet::EMPTY;
        for signal in Self::all_numbers() {
            // SAFETY: `set` is initialised; unknown numbers answer -1.
            if unsafe { libc::sigismember(set, signal) } == 1 {
                ours.insert(signal);
            }
        }
        ours
    }
}

/// All signals of the process are held back and read one by one.
///
/// Made in `main` before any thread starts, so that every thread inherits the mask and no thread but the
/// main one ever receives a signal. Also opens what the start of the job needs while there are
/// descriptors to be had.
#[derive(Debug)]
pub struct SignalHold {
    source: SignalSource,
    /// The pipe on which the child will say whether it has become the job: read end, write end.
    report: (OwnedFd, OwnedFd),
}

/// The descriptor from which held signals are read.
#[derive(Debug)]
pub(super) struct SignalSource(OwnedFd);

impl SignalHold {
    /// Blocks every signal in the calling thread.
    ///
    /// # Errors
    /// Fails when there are no descriptors for it; the mask is then as before.
    pub fn new() -> io::Result<SignalHold> {
        let before = SignalSet::ALL.block();
        let opened = SignalSource::open().and_then(|source| {
            let (reader, writer) = io::pipe()?;
            Ok(SignalHold { source, report: (reader.into(), writer.into()) })
        });
        if opened.is_err() {
            before.set_as_mask();
        } else {
            // Children must leave a zombie to be asked; a parent that ignores SIGCHLD would take that away.
            // The job gets the inherited disposition back.
            set_default(libc::SIGCHLD);
        }
        opened
    }

    /// What the start of the job takes over: the signals, and the pipe's read and write end.
    pub(super) fn into_parts(self) -> (SignalSource, (OwnedFd, OwnedFd)) {
        (self.source, self.report)
    }

    /// Runs `wait` with signals acting as on any program, for the time before there is a job: Ctrl-C and
    /// TERM end gpurun, Ctrl-Z stops it.
    ///
    /// They act through a thread made for it, and only that one has them unblocked. The calling thread and
    /// whatever threads `wait` starts (a driver's, a reader's that stays) keep them held, so that none of
    /// those can take a signal away from the job later.
    pub fn released<T>(&self, wait: impl FnOnce() -> T) -> T {
        let Ok((mut end, stop)) = io::pipe() else {
            return wait();
        };
        // A thread of the standard library would hang beside a driver library that hangs while it is loaded, with the
        // signals still held.
        let receiver = BareThread::start(move || {
            super::inherited().blocked.set_as_mask();
            // Ends with the other side of the pipe; nothing is ever written to it.
            let mut nothing = [0];
            while end.read(&mut nothing).is_err_and(|e| e.kind() == io::ErrorKind::Interrupted) {}
        });
        let result = wait();
        drop(stop);
        // Where it could not be made the signals are still held for the job.
        if let Ok(receiver) = receiver {
            receiver.join();
        }
        result
    }

    pub(super) fn fd(&self) -> RawFd {
        self.source.fd()
    }

    /// The next signal that waits, if any.
    pub(super) fn read(&self) -> Option<libc::signalfd_siginfo> {
        self.source.read()
    }
}

impl SignalSource {
    fn open() -> io::Result<SignalSource> {
        let set = SignalSet::ALL.to_libc();
        // SAFETY: a new signalfd for a live set; owned when it is one, and by nobody else.
        unsafe {
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd == -1 {
                Err(io::Error::last_os_error())
            } else {
                Ok(SignalSource(OwnedFd::from_raw_fd(fd)))
            }
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// The next signal that waits, if any.
    pub(super) fn read(&self) -> Option<libc::signalfd_siginfo> {
        // SAFETY: the kernel fills exactly one structure of plain data or returns an error.
        unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let size = std::mem::size_of_val(&info);
            let got = libc::read(self.fd(), (&raw mut info).cast(), size);
            (usize::try_from(got) == Ok(size)).then_some(info)
        }
    }
}

/// Gives a signal its default action.
pub(super) fn set_default(signal: i32) -> bool {
    set_disposition(signal, libc::SIG_DFL)
}

/// Ignores a signal from now on.
pub(super) fn ignore(signal: i32) -> bool {
    set_disposition(signal, libc::SIG_IGN)
}

/// The kernel's own `struct sigaction`, the same on x86-64 and aarch64. libc's call refuses the two signals
/// that libc keeps for its threads; their dispositions are the job's all the same.
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// The size of the kernel's signal set, which it wants to hear.
const KERNEL_SET: usize = size_of::<u64>();

/// Sets `SIG_DFL` or `SIG_IGN`. Async-signal-safe: used between fork and exec.
pub(super) fn set_disposition(signal: i32, action: libc::sighandler_t) -> bool {
    let new = KernelAction { handler: action, ..KernelAction::default() };
    let none = std::ptr::null_mut::<KernelAction>();
    // SAFETY: the action is SIG_DFL or SIG_IGN without flags, so no handler of ours ever runs; the kernel
    // reads one structure of its own layout.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, libc::c_long::from(signal), &raw const new, none, KERNEL_SET)
            == 0
    }
}

/// Whether a signal is ignored now.
pub(super) fn is_ignored(signal: i32) -> bool {
    let mut old = KernelAction::default();
    let none = std::ptr::null::<KernelAction>();
    // SAFETY: changes nothing; the kernel fills one structure of its own layout.
    let known = unsafe {
        libc::syscall(libc::SYS_rt_sigaction, libc::c_long::from(signal), none, &raw mut old, KERNEL_SET) == 0
    };
    known && old.handler == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_in() {
        let mut set = SignalSet::EMPTY;
        for bad in [0, 65, -1] {
            set.insert(bad);
        }
        assert_eq!(set, SignalSet::EMPTY);
        for signal in [1, 15, 31, 34, 64] {
            set.insert(signal);
            assert!(set.contains(signal));
        }
        assert_eq!(SignalSet::from_libc(&set.to_libc()), set);
    }
}
