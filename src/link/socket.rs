//! The two ends of the socket pair. Descriptors travel with [`Ready`](super::Ready).

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::{ToMinder, ToSidecar};

/// The longest message to the minder in bytes.
const LONGEST: usize = 64 * 1024;

/// A lease is at most two descriptors a GPU; the kernel passes on 253 with one message.
const MOST_DESCRIPTORS: usize = 253;

/// Messages that wait for a sidecar that does not read; more are dropped. It reads at once unless it is stopped.
const BACKLOG: usize = 16 * 1024;

/// The other process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// A connected pair, both ends close-on-exec.
///
/// # Errors
/// No descriptors, or no memory for the socket.
pub fn pair() -> io::Result<(MinderEnd, SidecarEnd)> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let minder = MinderEnd { fd: ours, buffer: vec![0; LONGEST], backlog: VecDeque::new() };
    Ok((minder, SidecarEnd { fd: theirs }))
}

/// The minder's end. Never waits.
#[derive(Debug)]
pub struct MinderEnd {
    fd: OwnedFd,
    buffer: Vec<u8>,
    backlog: VecDeque<Vec<u8>>,
}

impl AsFd for MinderEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl MinderEnd {
    /// Sends a message, or keeps it for [`MinderEnd::send_backlog`] while the sidecar does not read.
    pub fn send(&mut self, message: &ToSidecar) {
        self.send_backlog();
        let packet = message.encode();
        if !self.backlog.is_empty() || self.try_send(packet.as_bytes()) == Err(Errno::AGAIN) {
            self.keep(packet.as_bytes());
        }
    }

    /// Whether messages wait for the socket to take them.
    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Sends what waits, as far as the socket takes it.
    pub fn send_backlog(&mut self) {
        while let Some(packet) = self.backlog.front() {
            if self.try_send(packet) == Err(Errno::AGAIN) {
                return;
            }
            self.backlog.pop_front();
        }
    }

    fn try_send(&self, packet: &[u8]) -> Result<usize, Errno> {
        send_packet(self.fd.as_fd(), packet)
    }

    /// Keeps a message; without memory it is lost, the job is not.
    fn keep(&mut self, packet: &[u8]) {
        let mut kept = Vec::new();
        if self.backlog.len() < BACKLOG
            && self.backlog.try_reserve(1).is_ok()
            && kept.try_reserve_exact(packet.len()).is_ok()
        {
            kept.extend_from_slice(packet);
            self.backlog.push_back(kept);
        }
    }

    /// The next message with its descriptors, if one has come.
    ///
    /// # Errors
    /// The sidecar has ended, and everything that it sent was read.
    pub fn receive(&mut self) -> Result<Option<(ToMinder, Vec<OwnedFd>)>, Closed> {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let slices = &mut [IoSliceMut::new(&mut self.buffer)];
            let length = match recvmsg(&self.fd, slices, &mut ancillary, flags) {
                Ok(received) => received.bytes,
                Err(Errno::AGAIN) => return Ok(None),
                // The kernel says once that the other end left messages unread; what it sent itself can still be read.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Err(_) => return Err(Closed),
            };
            if length == 0 {
                return Err(Closed);
            }
            let mut descriptors = Vec::new();
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = message {
                    descriptors.extend(passed);
                }
            }
            if let Some(message) = self.buffer.get(..length).and_then(ToMinder::decode) {
                return Ok(Some((message, descriptors)));
            }
        }
    }
}

/// Sends a message by the descriptor of a minder's end, with one system call and no memory of the heap: for a process
/// between fork and exec.
pub fn send_raw(minder: BorrowedFd<'_>, message: &ToSidecar) {
    // A sidecar that has ended hears nothing.
    let _ = send_packet(minder, message.encode().as_bytes());
}

fn send_packet(fd: BorrowedFd<'_>, packet: &[u8]) -> Result<usize, Errno> {
    rustix::net::send(fd, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// The sidecar's end. Sending waits while the minder is stopped.
#[derive(Debug)]
pub struct SidecarEnd {
    fd: OwnedFd,
}

impl AsFd for SidecarEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl SidecarEnd {
    /// The descriptor, to be moved.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Takes over the end under another descriptor.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Sends a message. A minder that has ended is noticed by [`SidecarEnd::receive`].
    pub fn send(&self, message: &ToMinder) {
        self.send_with(message, &[]);
    }

    /// Sends a message with descriptors.
    pub fn send_with(&self, message: &ToMinder, descriptors: &[BorrowedFd<'_>]) {
        let bytes = message.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let slices = [IoSlice::new(&bytes)];
        while sendmsg(&self.fd, &slices, &mut ancillary, SendFlags::NOSIGNAL) == Err(Errno::INTR) {}
    }

    /// Sends bytes for standard output, in pieces that fit.
    pub fn send_output(&self, bytes: &[u8]) {
        for piece in bytes.chunks(LONGEST / 2) {
            self.send(&ToMinder::Output(piece.to_vec()));
        }
    }

    /// The next message, if one has come.
    ///
    /// # Errors
    /// The minder has ended, and everything that it sent was read.
    pub fn receive(&self) -> Result<Option<ToSidecar>, Closed> {
        let mut buffer = [0; 4096];
        loop {
            let length = match rustix::net::recv(&self.fd, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((length, _)) => length,
                Err(Errno::AGAIN) => return Ok(None),
                // As in `MinderEnd::receive`.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Err(_) => return Err(Closed),
            };
            if length == 0 {
                return Err(Closed);
            }
            if let Some(message) = buffer.get(..length).and_then(ToSidecar::decode) {
                return Ok(Some(message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::link::Ready;

    #[test]
    fn messages_arrive_in_order_with_their_descriptors_and_the_end_is_seen() {
        let (mut minder, sidecar) = pair().unwrap();
        assert!(minder.receive().unwrap().is_none());
        let (mut reader, writer) = io::pipe().unwrap();
        let ready = Ready { env: vec![("A".into(), "1".into())], ..Ready::default() };
        sidecar.send(&ToMinder::DriverCall(true));
        sidecar.send_with(&ToMinder::Ready(ready.clone()), &[writer.as_fd()]);
        drop(writer);
        assert_eq!(minder.receive().unwrap().unwrap().0, ToMinder::DriverCall(true));
        let (message, descriptors) = minder.receive().unwrap().unwrap();
        assert_eq!(message, ToMinder::Ready(ready));
        let [descriptor] = <[OwnedFd; 1]>::try_from(descriptors).unwrap();
        std::fs::File::from(descriptor).write_all(b"x").unwrap();
        let mut text = String::new();
        io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "x");
        minder.send(&ToSidecar::GiveUp);
        assert_eq!(sidecar.receive(), Ok(Some(ToSidecar::GiveUp)));
        assert_eq!(sidecar.receive(), Ok(None));
        drop(minder);
        assert_eq!(sidecar.receive(), Err(Closed));
    }

    #[test]
    fn a_sidecar_that_does_not_read_holds_up_nothing_and_loses_nothing() {
        let (mut minder, sidecar) = pair().unwrap();
        for number in 0..5000 {
            minder.send(&ToSidecar::Ping(number));
        }
        assert!(minder.has_backlog());
        let mut next = 0;
        while next < 5000 {
            match sidecar.receive().unwrap() {
                Some(message) => {
                    assert_eq!(message, ToSidecar::Ping(next));
                    next += 1;
                }
                None => minder.send_backlog(),
            }
        }
        assert!(!minder.has_backlog());
    }

    #[test]
    fn an_ended_sidecar_is_seen_after_its_last_message() {
        let (mut minder, sidecar) = pair().unwrap();
        sidecar.send_output(&[7; 100_000]);
        drop(sidecar);
        let mut bytes = Vec::new();
        while let Ok(Some((ToMinder::Output(piece), _))) = minder.receive() {
            bytes.extend(piece);
        }
        assert_eq!(bytes, [7; 100_000]);
        assert_eq!(minder.receive().err(), Some(Closed));
        minder.send(&ToSidecar::GiveUp);
        assert!(!minder.has_backlog());
    }

    #[test]
    fn the_last_words_of_an_end_that_left_messages_unread_arrive() {
        let (mut minder, sidecar) = pair().unwrap();
        minder.send(&ToSidecar::Ping(1));
        sidecar.send(&ToMinder::Done);
        drop(sidecar);
        assert_eq!(minder.receive().unwrap().unwrap().0, ToMinder::Done);
        assert_eq!(minder.receive().err(), Some(Closed));
        let (mut minder, sidecar) = pair().unwrap();
        sidecar.send(&ToMinder::DriverCall(false));
        minder.send(&ToSidecar::GiveUp);
        drop(minder);
        assert_eq!(sidecar.receive(), Ok(Some(ToSidecar::GiveUp)));
        assert_eq!(sidecar.receive(), Err(Closed));
    }
}
