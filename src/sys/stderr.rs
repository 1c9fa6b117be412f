//! gpurun's own words on stderr, which it shares with the job: they must never make gpurun wait.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

/// Writes to stderr without ever waiting for a reader; what does not fit is dropped.
///
/// The open file is shared with the job, so it cannot be made non-blocking; a pipe or terminal is opened
/// once more for gpurun alone. Every signal is blocked in gpurun, SIGTTOU among them, so a background
/// gpurun is not stopped for writing to its terminal.
#[derive(Debug)]
pub struct NonBlockingStderr {
    /// What it was opened as once more.
    own: Option<File>,
    fd: RawFd,
    is_socket: bool,
    is_terminal: bool,
    piece: usize,
    closed: bool,
}

impl NonBlockingStderr {
    /// Opens it. A stderr that was closed at entry swallows everything.
    pub fn new() -> NonBlockingStderr {
        Self::of(2, super::inherited::inherited().closed_stdio[2])
    }

    fn of(fd: RawFd, closed: bool) -> NonBlockingStderr {
        let kind = kind_of(fd);
        // Every terminal is a character device; what is none need not be asked.
        // SAFETY: asks whether a descriptor is a terminal.
        let is_terminal = kind == libc::S_IFCHR && unsafe { libc::isatty(fd) } == 1;
        let again = kind == libc::S_IFIFO || is_terminal;
        let own = again.then(|| {
            let path = format!("/proc/self/fd/{fd}");
            OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()
        });
        let own = own.flatten();
        // A pipe that is writable takes PIPE_BUF bytes at once; a terminal may have less room.
        let piece = if is_terminal { 256 } else { libc::PIPE_BUF };
        let is_socket = kind == libc::S_IFSOCK;
        NonBlockingStderr { own, fd, is_socket, is_terminal, piece, closed }
    }

    fn fd(&self) -> RawFd {
        self.own.as_ref().map_or(self.fd, AsRawFd::as_raw_fd)
    }

    /// Columns of the terminal it is; 80 where the terminal does not tell, `None` where it is none.
    pub fn columns(&self) -> Option<usize> {
        if self.closed || !self.is_terminal {
            return None;
        }
        let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the kernel fills the live structure or leaves it alone.
        let known = unsafe { libc::ioctl(self.fd(), libc::TIOCGWINSZ, &raw mut size) } == 0;
        Some(if known && size.ws_col > 0 { usize::from(size.ws_col) } else { 80 })
    }

    /// Writes a piece if that needs no waiting.
    fn put(&self, piece: &[u8]) -> Option<usize> {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one live pollfd; then a write of a live buffer to a descriptor that takes it now.
        let wrote = unsafe {
            if libc::poll(&mut poll, 1, 0) != 1 || poll.revents & libc::POLLOUT == 0 {
                return None;
            }
            if self.is_socket {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                libc::send(self.fd(), piece.as_ptr().cast(), piece.len(), flags)
            } else {
                libc::write(self.fd(), piece.as_ptr().cast(), piece.len())
            }
        };
        usize::try_from(wrote).ok().filter(|n| *n > 0)
    }
}

/// The type bits of an open file; none where there is no such file.
fn kind_of(fd: RawFd) -> libc::mode_t {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `fstat` fills the structure when it succeeds, and only then it is read.
    unsafe {
        if libc::fstat(fd, status.as_mut_ptr()) == 0 {
            status.assume_init().st_mode & libc::S_IFMT
        } else {
            0
        }
    }
}

impl Default for NonBlockingStderr {
    fn default() -> Self {
        Self::new()
    }
}

impl Write for NonBlockingStderr {
    /// Always takes everything: what cannot be written now is dropped.
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let mut rest = if self.closed { &[] } else { buffer };
        while !rest.is_empty() {
            let piece = rest.get(..self.piece).unwrap_or(rest);
            match self.put(piece) {
                Some(n) => rest = rest.get(n..).unwrap_or_default(),
                None => break,
            }
        }
        Ok(buffer.len())
    }

    /// One line is one write: in pieces it would mix with what the job says.
    fn write_fmt(&mut self, arguments: fmt::Arguments<'_>) -> io::Result<()> {
        match arguments.as_str() {
            Some(text) => self.write_all(text.as_bytes()),
            None => self.write_all(arguments.to_string().as_bytes()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_full_pipe_is_not_waited_for() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut out = NonBlockingStderr::of(writer.as_raw_fd(), false);
        assert!(out.own.is_some(), "a race for the last room could block");
        let line = [b'x'; 1000];
        for _ in 0..200 {
            out.write_all(&line).unwrap();
        }
        // The job's own end still blocks: the shared description was not touched.
        // SAFETY: reads the flags of a live descriptor.
        let flags = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETFL) };
        assert_eq!(flags & libc::O_NONBLOCK, 0);
        drop((out, writer));
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        assert!(got.len() <= 65_536, "{} bytes", got.len());
    }

    #[test]
    fn a_line_is_one_write() {
        let (reader, writer) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let mut out = NonBlockingStderr::of(writer.as_raw_fd(), false);
        let (name, number) = ("GPU", 7);
        let line: &mut dyn Write = &mut out;
        writeln!(line, "gpurun: {name} {number}: {}", "x".repeat(9)).unwrap();
        let mut packet = [0; 100];
        let got = reader.recv(&mut packet).unwrap();
        assert_eq!(&packet[..got], b"gpurun: GPU 7: xxxxxxxxx\n");
    }

    #[test]
    fn a_pipe_without_a_reader_and_a_closed_stderr_swallow() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut out = NonBlockingStderr::of(writer.as_raw_fd(), false);
        out.write_all(b"hello").unwrap();
        let mut closed = NonBlockingStderr::of(writer.as_raw_fd(), true);
        closed.write_all(b"hello").unwrap();
    }

    #[test]
    fn files_and_sockets_get_everything() {
        let file = tempfile::NamedTempFile::new().unwrap();
        NonBlockingStderr::of(file.as_file().as_raw_fd(), false).write_all(&[b'y'; 10_000]).unwrap();
        assert_eq!(std::fs::metadata(file.path()).unwrap().len(), 10_000);
        let (one, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
        NonBlockingStderr::of(one.as_raw_fd(), false).write_all(b"socket").unwrap();
        drop(one);
        let mut got = String::new();
        other.read_to_string(&mut got).unwrap();
        assert_eq!(got, "socket");
    }
}
