//! System calls that std lacks: `poll`, `send` without SIGPIPE, and whose connection it is.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// The process that connected; `None` if it is not visible in our PID namespace.
    pub(super) pid: Option<i32>,
    /// Its effective user id at that moment.
    pub(super) uid: u32,
}

/// `SO_PEERCRED` of a connection: set by the kernel when the peer connected.
///
/// rustix has it as well, but with a pid that cannot be 0, which the kernel says of a process in another PID namespace.
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
    Ok(Peer { pid: Some(cred.pid).filter(|pid| *pid != 0), uid: cred.uid })
}

/// Sends what fits, without blocking and without SIGPIPE when the peer is gone.
pub(super) fn send_now(stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(stream, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?)
}

/// One descriptor to wait for: for reading, writing, both or (neither) for the peer's end alone.
pub(super) fn interest(fd: BorrowedFd<'_>, read: bool, write: bool) -> PollFd<'_> {
    let mut events = PollFlags::empty();
    events.set(PollFlags::IN, read);
    events.set(PollFlags::OUT, write);
    PollFd::from_borrowed_fd(fd, events)
}

/// Waits until one descriptor is ready, or for `timeout` (`None`: as long as it takes).
/// An interrupted wait answers as a time-out.
pub(super) fn poll(interests: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match rustix::event::poll(interests, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether something can be read, or the peer is gone and a read will say so.
pub(super) fn is_readable(fd: &PollFd<'_>) -> bool {
    fd.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

/// Whether something can be written.
pub(super) fn is_writable(fd: &PollFd<'_>) -> bool {
    fd.revents().contains(PollFlags::OUT)
}

/// Connects without waiting: a stopped process accepts no connection, and once its queue is full a plain connect would
/// wait until it goes on.
///
/// # Errors
/// The kernel's; `WouldBlock` where the queue is full.
pub(super) fn connect_now(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_full_queue_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let mut waiting = Vec::new();
        let refused = loop {
            match connect_now(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(listener.accept().is_ok() && connect_now(&path).is_ok());
        drop(listener);
        assert_eq!(connect_now(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
