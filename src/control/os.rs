//! The few calls that std lacks: `poll`, `SO_PEERCRED`, `send` without SIGPIPE, the monotonic clock.
//!
//! The only `unsafe` of the control room; every wrapper is safe to call.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::model::time::Mono;

/// `CLOCK_MONOTONIC` now, the clock that clients stamp their messages with.
pub(super) fn monotonic_now() -> Mono {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid timespec to write to; CLOCK_MONOTONIC exists on every Linux.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    if rc != 0 {
        return Mono(0);
    }
    let seconds = u64::try_from(ts.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(ts.tv_nsec).unwrap_or(0);
    Mono(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// Lets the calling thread be woken without pushing the waker off its CPU (`SCHED_BATCH`): a mark must
/// not cost the job the time that gpurun takes to read it. Where the kernel refuses, nothing changes.
pub(super) fn never_preempt() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 means the calling thread; `parameters` outlives the call, which only reads it.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters) };
}

/// Our effective user id.
pub(super) fn effective_uid() -> u32 {
    // SAFETY: geteuid takes nothing, touches no memory and cannot fail.
    unsafe { libc::geteuid() }
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// Process that connected, in our PID namespace; 0 if it is of another.
    pub(super) pid: i32,
    /// Its effective user id at that moment.
    pub(super) uid: u32,
}

/// `SO_PEERCRED` of a connection: set by the kernel when the peer connected.
pub(super) fn peer_of(stream: &UnixStream) -> io::Result<Peer> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as `stream` is borrowed; `cred` and `len` describe a
    // buffer of exactly the size that is passed.
    let rc = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &mut len,
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer { pid: cred.pid, uid: cred.uid })
}

/// Sends what fits, without blocking and without SIGPIPE when the peer is gone.
pub(super) fn send_now(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the descriptor is open for as long as `stream` is borrowed; pointer and length are of one slice.
    let sent = unsafe { libc::send(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// One descriptor to wait for.
pub(super) struct Interest<'a> {
    fd: BorrowedFd<'a>,
    events: i16,
}

impl<'a> Interest<'a> {
    /// Wait for reading, writing, both or (neither) for the peer's death alone.
    pub(super) fn new(fd: BorrowedFd<'a>, read: bool, write: bool) -> Self {
        let mut events = 0;
        if read {
            events |= libc::POLLIN;
        }
        if write {
            events |= libc::POLLOUT;
        }
        Self { fd, events }
    }
}

/// What `poll` said of one descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ready {
    /// Something can be read, or the peer is gone and a read will say so.
    pub(super) read: bool,
    /// Something can be written.
    pub(super) write: bool,
    /// The peer hung up or the descriptor is in error.
    pub(super) hung_up: bool,
}

/// Waits until one descriptor is ready, or for `timeout` (`None`: as long as it takes).
/// An interrupted wait answers as a time-out.
pub(super) fn poll(interests: &[Interest<'_>], timeout: Option<Duration>) -> io::Result<Vec<Ready>> {
    let mut fds: Vec<libc::pollfd> = interests
        .iter()
        .map(|i| libc::pollfd { fd: i.fd.as_raw_fd() as RawFd, events: i.events, revents: 0 })
        .collect();
    let millis = match timeout {
        None => -1,
        // Rounded up: a wait that ends early would only begin again.
        Some(d) => i32::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX),
    };
    // SAFETY: `fds` is a live array of `fds.len()` entries, and every descriptor in it is borrowed for
    // the length of the call.
    let rc = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, millis) };
    if rc < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        return Ok(vec![Ready::default(); interests.len()]);
    }
    Ok(fds
        .iter()
        .map(|fd| {
            let hung_up = fd.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0;
            Ready { read: fd.revents & libc::POLLIN != 0, write: fd.revents & libc::POLLOUT != 0, hung_up }
        })
        .collect())
}
