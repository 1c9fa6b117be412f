//! The client's side of the socket, for `gpurun tag`, `step`, `log` and `status`.

use crate::sys::{clock, users};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::os;

/// Longest reply that is read, in bytes.
const MAX_REPLY: usize = 32 << 20;

/// Why a conversation with a running gpurun failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket is gone, refuses, or belongs to another user.
    #[error("cannot reach gpurun: {0}")]
    Unreachable(io::Error),
    /// gpurun accepts no connection now: it is stopped, or more clients wait than its queue holds.
    #[error("gpurun is stopped or too busy to answer: try again later")]
    Busy,
    /// The reply did not come in time.
    #[error("gpurun did not answer in time")]
    TimedOut,
    /// The reply is not one of the protocol.
    #[error("the reply of gpurun is not valid JSON")]
    Garbled,
    /// gpurun refused; in its words.
    #[error("{0}")]
    Refused(String),
}

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    buffer: Vec<u8>,
    next_id: u64,
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// [`ClientError::Busy`] where the queue of connections is full; else [`ClientError::Unreachable`], also where the
    /// listener is a process of another user and not of root.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = os::connect_now(path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => ClientError::Busy,
            _ => ClientError::Unreachable(error),
        })?;
        let peer = os::peer_of(&stream).map_err(ClientError::Unreachable)?;
        // Root may look at anybody's run; anybody else only at a socket of their own or of root.
        if peer.uid != users::effective_uid() && peer.uid != 0 && users::effective_uid() != 0 {
            return Err(ClientError::Unreachable(io::Error::other("it belongs to another user")));
        }
        Ok(Self { stream, buffer: Vec::new(), next_id: 0 })
    }

    /// `CLOCK_MONOTONIC` now, in nanoseconds: the `t` of messages.
    pub fn now() -> u64 {
        clock::monotonic().0
    }

    /// Sends one message with a fresh id and waits for its reply's `result`.
    ///
    /// # Errors
    /// The connection broke, `timeout` passed, or gpurun refused.
    pub fn ask(&mut self, mut message: Value, timeout: Duration) -> Result<Value, ClientError> {
        let deadline = Instant::now() + timeout;
        self.next_id += 1;
        let id = Value::from(self.next_id);
        message["id"] = id.clone();
        let mut line = message.to_string().into_bytes();
        line.push(b'\n');
        self.write(&line, deadline)?;
        loop {
            let reply = self.line(deadline)?;
            let mut reply: Value = serde_json::from_slice(&reply).map_err(|_| ClientError::Garbled)?;
            if reply["id"] != id {
                continue;
            }
            if reply["ok"] == Value::Bool(true) {
                return Ok(reply["result"].take());
            }
            let error = reply["error"].as_str().unwrap_or("refused").to_owned();
            return Err(ClientError::Refused(error));
        }
    }

    fn write(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<(), ClientError> {
        while !bytes.is_empty() {
            match os::send_now(&self.stream, bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(deadline, true)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ClientError::Unreachable(error)),
            }
        }
        Ok(())
    }

    fn wait(&self, deadline: Instant, write: bool) -> Result<(), ClientError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ClientError::TimedOut);
        }
        let mut interest = [os::interest(self.stream.as_fd(), !write, write)];
        os::poll(&mut interest, Some(left)).map_err(ClientError::Unreachable)?;
        Ok(())
    }

    fn line(&mut self, deadline: Instant) -> Result<Vec<u8>, ClientError> {
        let mut chunk = [0; 16 * 1024];
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|&b| b == b'\n') {
                let rest = self.buffer.split_off(searched + end + 1);
                return Ok(std::mem::replace(&mut self.buffer, rest));
            }
            searched = self.buffer.len();
            if searched > MAX_REPLY {
                return Err(ClientError::Garbled);
            }
            self.wait(deadline, false)?;
            self.stream.set_nonblocking(true).map_err(ClientError::Unreachable)?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ClientError::Unreachable(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(ClientError::Unreachable(error)),
            }
        }
    }
}
