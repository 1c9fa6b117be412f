//! Reading signals from a descriptor, with their senders, whichever thread of this process gets them.
//!
//! gpurun's own threads have every signal blocked, so that each waits to be read. A foreign thread (of a
//! preloaded library, of the driver) may have them unblocked, and then the kernel gives a signal to that thread. A handler
//! runs there that passes it on through a pipe. While this process waits, its main thread lets signals through to the same
//! handler: the kernel gives them to the main thread first, and the other one cannot hold them up.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd, ioctl_fionbio};

use super::signals::{SignalSet, has_handler};

/// Where the handler writes, and in which process: a forked copy has the same handlers, but not the pipe.
static PIPE: AtomicI32 = AtomicI32::new(-1);
static OWNER: AtomicI32 = AtomicI32::new(0);

/// How often the handler has run.
static CAUGHT: AtomicU32 = AtomicU32::new(0);

/// How many signals were caught so far, to see whether one has come meanwhile.
pub fn caught() -> u32 {
    CAUGHT.load(Ordering::Acquire)
}

/// A descriptor from which signals are read.
#[derive(Debug)]
pub struct SignalSource {
    /// Readable when one of the other two is.
    ready: OwnedFd,
    blocked: OwnedFd,
    caught: PipeReader,
    /// Signals that have the handler.
    handled: SignalSet,
}

impl AsFd for SignalSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl SignalSource {
    /// Blocks every signal in the calling thread, so that each waits to be read. Call it before any thread is started:
    /// threads inherit the mask. One in a process.
    ///
    /// # Errors
    /// No descriptors for it; the mask is then as before.
    pub fn block_all() -> io::Result<SignalSource> {
        let before = SignalSet::ALL.block();
        Self::open().inspect_err(|_| before.set_as_mask())
    }

    fn open() -> io::Result<SignalSource> {
        let set = SignalSet::ALL.to_libc();
        // SAFETY: a new signalfd for a live set; owned here alone when it is one.
        let blocked = unsafe {
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd == -1 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let (caught, writer) = io::pipe()?;
        for end in [caught.as_fd(), writer.as_fd()] {
            fcntl_setfd(end, FdFlags::CLOEXEC)?;
            ioctl_fionbio(end, true)?;
        }
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        for source in [blocked.as_fd(), caught.as_fd()] {
            epoll::add(&ready, source, EventData::new_u64(0), EventFlags::IN)?;
        }
        OWNER.store(super::process::id(), Ordering::Relaxed);
        // It stays open for good: a handler may be about to write.
        PIPE.store(writer.into_raw_fd(), Ordering::Release);
        Ok(SignalSource { ready, blocked, caught, handled: SignalSet::EMPTY })
    }

    /// Catches every signal that another thread of this process gets. What a library handles itself is left to it, and so
    /// are signals that tell of a fault.
    pub fn catch_all(&mut self) {
        for signal in SignalSet::all_numbers().filter(|signal| !SignalSet::FAULTS.contains(signal)) {
            self.catch(signal);
        }
    }

    /// Catches one signal, as [`SignalSource::catch_all`] does.
    pub fn catch(&mut self, signal: i32) {
        if has_handler(signal) {
            return;
        }
        // SAFETY: the handler has the signature for SA_SIGINFO and does nothing that a handler must not do. Signals that
        // cannot be caught, and those that libc keeps for its threads, are refused. The stack is the thread's alternate
        // one where it has one.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = pass_on;
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
            libc::sigfillset(&mut action.sa_mask);
            if libc::sigaction(signal, &action, std::ptr::null_mut()) == 0 {
                self.handled.insert(signal);
            }
        }
    }

    /// Waits until one of `entries` is ready or a signal comes, at most `time`. How many are ready: none too if it was a
    /// signal and this source is not among them.
    pub fn poll(&self, entries: &mut [PollFd<'_>], time: Option<Duration>) -> usize {
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        self.handled.unblock();
        // Interrupted by the handler. What it wrote before the wait ends the wait as well.
        let ready = poll(entries, time.as_ref()).unwrap_or(0);
        self.handled.block();
        ready
    }

    /// The next signal that has come, if any.
    pub fn read(&self) -> Option<libc::signalfd_siginfo> {
        // What was caught came before what waits.
        read_from(self.caught.as_fd()).or_else(|| read_from(self.blocked.as_fd()))
    }
}

fn read_from(fd: BorrowedFd<'_>) -> Option<libc::signalfd_siginfo> {
    // SAFETY: the kernel fills exactly one structure of plain data or returns an error.
    unsafe {
        let mut info: libc::signalfd_siginfo = std::mem::zeroed();
        let size = std::mem::size_of_val(&info);
        let got = libc::read(fd.as_raw_fd(), (&raw mut info).cast(), size);
        (usize::try_from(got) == Ok(size)).then_some(info)
    }
}

/// The handler: writes the signal to the pipe as a signalfd would tell it. A full pipe drops it.
extern "C" fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: system calls that a handler may make, on plain data; the kernel passes a valid `info`, of which the fields
    // are read that a signal from a process and a change of a child have in common, and a valid `context`. `errno` is the
    // interrupted code's.
    unsafe {
        if libc::getpid() != OWNER.load(Ordering::Relaxed) {
            return;
        }
        let errno = *libc::__errno_location();
        let mut record: libc::signalfd_siginfo = std::mem::zeroed();
        record.ssi_signo = signal.cast_unsigned();
        record.ssi_code = (*info).si_code;
        record.ssi_pid = (*info).si_pid().cast_unsigned();
        record.ssi_uid = (*info).si_uid();
        record.ssi_ptr = (*info).si_value().sival_ptr.addr() as u64;
        CAUGHT.fetch_add(1, Ordering::Release);
        libc::write(PIPE.load(Ordering::Acquire), (&raw const record).cast(), size_of_val(&record));
        *libc::__errno_location() = errno;
        if libc::syscall(libc::SYS_gettid) == libc::c_long::from(OWNER.load(Ordering::Relaxed)) {
            // The main thread has them blocked again when it goes on: a burst waits in the kernel, not in the pipe.
            // The kernel's set has 64 bits, whatever libc's has.
            (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>().write(u64::MAX);
        }
    }
}
