//! One client's connection: bytes in, whole lines out of them; replies in, bytes out of them. Knows no message.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use super::limits::{Bucket, Limits};
use super::os::{self, Peer};
use super::protocol::MAX_LINE;
use crate::model::time::Mono;

/// A connection, with what its client has said about itself.
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    pub(super) pid: Option<i32>,
    pub(super) lines: LineBuffer,
    out: Vec<u8>,
    written: usize,
    /// Rank of the client, from its `hello`.
    pub(super) rank: Option<i32>,
    /// The client's tag stack, once it has one.
    pub(super) stack: Option<u32>,
    /// Name of a stack that stays when the connection ends.
    pub(super) named: Option<String>,
    /// Requests that wait for an answer.
    pub(super) requests: usize,
    pub(super) marks: Bucket,
    pub(super) tags: Bucket,
    pub(super) bytes: Bucket,
}

/// What one read gave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// Bytes, now in the line buffer. There may be more.
    Some,
    /// Nothing for now.
    Nothing,
    /// The client is gone.
    End,
}

impl Connection {
    /// A connection that has said nothing yet.
    pub(super) fn new(stream: UnixStream, peer: Peer, limits: &Limits, now: Mono) -> Self {
        Self {
            stream,
            pid: peer.pid,
            lines: LineBuffer::default(),
            out: Vec::new(),
            written: 0,
            rank: None,
            stack: None,
            named: None,
            requests: 0,
            marks: Bucket::of_rate(limits.marks_per_second, now),
            tags: Bucket::new(limits.tags_per_second, limits.tag_burst, now),
            bytes: Bucket::of_rate(limits.bytes_per_second, now),
        }
    }

    /// Reads once, into the line buffer.
    pub(super) fn read(&mut self, chunk: &mut [u8], now: Mono) -> ReadOutcome {
        match (&self.stream).read(chunk) {
            Ok(0) => ReadOutcome::End,
            Ok(n) => {
                self.bytes.charge(n, now);
                self.lines.extend(&chunk[..n]);
                ReadOutcome::Some
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => ReadOutcome::Nothing,
                _ => ReadOutcome::End,
            },
        }
    }

    /// Whether replies wait for the client to read.
    pub(super) fn has_output(&self) -> bool {
        self.written < self.out.len()
    }

    /// Adds a reply. Says whether it found room: at most `bound` bytes wait, but the first reply always has room,
    /// since a snapshot of a large job is as long as it is.
    pub(super) fn reply(&mut self, line: &[u8], bound: usize) -> bool {
        let waiting = self.out.len() - self.written;
        if waiting > 0 && waiting + line.len() > bound {
            return false;
        }
        self.out.extend_from_slice(line);
        self.write_out(bound);
        true
    }

    /// Writes what the client takes now.
    pub(super) fn write_out(&mut self, bound: usize) {
        while self.has_output() {
            match os::send_now(&self.stream, &self.out[self.written..]) {
                Ok(n) => self.written += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The reader is gone. What it said before can still be read; reading finds the end.
                Err(_) => self.written = self.out.len(),
            }
        }
        if !self.has_output() {
            self.out.clear();
            self.out.shrink_to(64 * 1024);
            self.written = 0;
        } else if self.written > bound / 2 {
            self.out.drain(..self.written);
            self.written = 0;
        }
    }
}

/// A line longer than [`MAX_LINE`]; it was skipped whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Cuts a stream of bytes into lines. Holds at most one read and one line.
#[derive(Debug, Default)]
pub(super) struct LineBuffer {
    bytes: Vec<u8>,
    /// Where the next line begins.
    start: usize,
    /// In the middle of a line that is too long.
    skipping: bool,
}

impl LineBuffer {
    /// Adds what was read.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole line, without its newline; `None`: more bytes are needed.
    pub(super) fn next_line(&mut self) -> Option<Result<&[u8], TooLong>> {
        let Some(length) = memchr::memchr(b'\n', &self.bytes[self.start..]) else {
            self.keep_the_rest();
            return None;
        };
        let line = self.start..self.start + length;
        self.start = line.end + 1;
        if std::mem::take(&mut self.skipping) || length >= MAX_LINE {
            return Some(Err(TooLong));
        }
        Some(Ok(&self.bytes[line]))
    }

    fn keep_the_rest(&mut self) {
        if self.skipping || self.bytes.len() - self.start >= MAX_LINE {
            self.skipping = true;
            self.bytes.clear();
        } else {
            self.bytes.drain(..self.start);
        }
        self.start = 0;
        self.bytes.shrink_to(4096);
    }

    /// Whether a line has begun that has not ended.
    pub(super) fn is_torn(&self) -> bool {
        self.skipping || self.start < self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The lines of `bytes`, read in pieces of the given lengths.
    fn lines(bytes: &[u8], pieces: &[usize]) -> (Vec<Option<Vec<u8>>>, bool) {
        let mut buffer = LineBuffer::default();
        let (mut found, mut rest, mut pieces) = (Vec::new(), bytes, pieces.iter().cycle());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at((*pieces.next().unwrap()).clamp(1, rest.len()));
            rest = after;
            buffer.extend(piece);
            while let Some(line) = buffer.next_line() {
                found.push(line.ok().map(<[u8]>::to_vec));
            }
            assert!(buffer.bytes.len() < MAX_LINE);
        }
        (found, buffer.is_torn())
    }

    #[test]
    fn a_line_at_the_limit_is_whole_and_one_byte_more_is_not() {
        let mut text = vec![b'a'; MAX_LINE - 1];
        text.push(b'\n');
        text.extend(vec![b'b'; MAX_LINE]);
        text.extend(b"\nc\nd");
        for piece in [1000, 64 * 1024, 1 << 20] {
            let (found, torn) = lines(&text, &[piece]);
            let lengths: Vec<_> = found.iter().map(|line| line.as_ref().map(Vec::len)).collect();
            assert_eq!(lengths, [Some(MAX_LINE - 1), None, Some(1)], "read {piece} bytes at a time");
            assert!(torn);
        }
    }

    proptest! {
        #[test]
        fn how_bytes_arrive_does_not_matter(
            text in "[a\n]{0,200}",
            pieces in proptest::collection::vec(1usize..50, 1..10),
        ) {
            let (found, torn) = lines(text.as_bytes(), &pieces);
            let mut expected: Vec<Vec<u8>> = text.split('\n').map(|line| line.as_bytes().to_vec()).collect();
            let rest = expected.pop().unwrap();
            prop_assert_eq!(found.into_iter().flatten().collect::<Vec<_>>(), expected);
            prop_assert_eq!(torn, !rest.is_empty());
        }
    }
}
