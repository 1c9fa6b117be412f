//! The thread of the socket: waits on all connections, reads, writes, and hands events on.
//!
//! It never blocks on a client (reads and writes take what is there), never blocks on the receiver of events, and
//! holds at most what [`Limits`](super::limits::Limits) allows: while too many events wait, no client is read, and
//! what clients say stays in their sockets.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::connection::{Connection, ReadOutcome};
use super::directory::SocketDirectory;
use super::event::{ControlEvent, Settings, Shared};
use super::os;
use super::stacks::Stacks;
use crate::model::loss::Loss;
use crate::sys::{clock, users};

/// How long a stopping server waits for a sink that takes no event.
const LAST_PATIENCE: Duration = Duration::from_millis(500);

/// How long to leave the listener alone after `accept` failed for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How soon a sink without room, or a connection over its byte rate, is tried again.
const RETRY: Duration = Duration::from_millis(5);

/// One read.
const CHUNK: usize = 64 * 1024;

/// How many connections are accepted before the others get their turn.
const ACCEPTS_A_TURN: usize = 32;

/// How many reads of one connection the end of the run waits for: a client that keeps sending does not hold it up.
const LAST_READS: usize = 64;

/// The state of the thread.
pub(super) struct EventLoop<S> {
    pub(super) settings: Settings,
    directory: SocketDirectory,
    listener: UnixListener,
    woken: UnixStream,
    pub(super) shared: Arc<Shared>,
    sink: S,
    pub(super) connections: HashMap<u64, Connection>,
    next_connection: u64,
    pub(super) stacks: Stacks,
    /// The one copy of each scalar's name.
    pub(super) names: HashSet<Arc<str>>,
    /// Events that found no room in the sink.
    waiting: VecDeque<ControlEvent>,
    chunk: Vec<u8>,
    accept_again: Option<Instant>,
    /// When to look whether the socket is there; `None` once it cannot be made again.
    check_again: Option<Instant>,
}

impl<S> EventLoop<S>
where
    S: FnMut(ControlEvent) -> Result<(), ControlEvent>,
{
    pub(super) fn new(
        settings: Settings,
        (directory, listener): (SocketDirectory, UnixListener),
        woken: UnixStream,
        shared: Arc<Shared>,
        sink: S,
    ) -> Self {
        let stacks = Stacks::new(&settings.limits, settings.first_stack, clock::monotonic());
        let check_again = Some(Instant::now() + settings.check_every);
        Self {
            settings,
            directory,
            listener,
            woken,
            shared,
            sink,
            connections: HashMap::new(),
            next_connection: 0,
            stacks,
            names: HashSet::new(),
            waiting: VecDeque::new(),
            chunk: vec![0; CHUNK],
            accept_again: None,
            check_again,
        }
    }

    /// Serves until it is told to stop.
    pub(super) fn serve(mut self) {
        while !self.shared.stopping.load(Ordering::SeqCst) {
            if self.turn().is_err() {
                // poll itself failed (no memory): there is nothing to wait on, so wait a little.
                std::thread::sleep(RETRY);
            }
        }
        self.finish();
    }

    /// Waits for something to happen and deals with it.
    fn turn(&mut self) -> io::Result<()> {
        let (readable, writable) = self.wait()?;
        self.drain_wakeups();
        self.flush_waiting();
        self.take_answers();
        self.accept();
        for key in writable {
            if let Some(connection) = self.connections.get_mut(&key) {
                connection.write_out(self.settings.limits.reply_bytes);
            }
        }
        for key in readable {
            if self.waiting.len() < self.settings.limits.waiting_events {
                self.read_from(key);
            }
        }
        self.check_socket();
        Ok(())
    }

    /// Waits, and says which connections can be read and which can be written.
    fn wait(&mut self) -> io::Result<(Vec<u64>, Vec<u64>)> {
        let now = clock::monotonic();
        let mut timeout = self.check_again.map(|at| at.saturating_duration_since(Instant::now()));
        let mut within = |limit: Duration| timeout = Some(timeout.map_or(limit, |t| t.min(limit)));
        let accepting = self.accept_again.is_none_or(|at| Instant::now() >= at);
        if !accepting || !self.waiting.is_empty() {
            within(RETRY);
        }
        let has_room = self.waiting.len() < self.settings.limits.waiting_events;
        let mut keys = Vec::with_capacity(self.connections.len());
        let mut interests = Vec::with_capacity(self.connections.len() + 2);
        interests.push(os::interest(self.woken.as_fd(), true, false));
        interests.push(os::interest(self.listener.as_fd(), accepting, false));
        let fixed = interests.len();
        for (key, connection) in &mut self.connections {
            let within_rate = connection.bytes.is_open(now);
            if !within_rate {
                within(RETRY);
            }
            let (read, write) = (has_room && within_rate, connection.has_output());
            // A peer that is gone is reported whatever is asked for, and would be again and again.
            if read || write {
                keys.push((*key, read));
                interests.push(os::interest(connection.stream.as_fd(), read, write));
            }
        }
        os::poll(&mut interests, timeout)?;
        let (mut readable, mut writable) = (Vec::new(), Vec::new());
        for ((key, read), interest) in keys.into_iter().zip(&interests[fixed..]) {
            if read && os::is_readable(interest) {
                readable.push(key);
            }
            if os::is_writable(interest) {
                writable.push(key);
            }
        }
        Ok((readable, writable))
    }

    fn drain_wakeups(&mut self) {
        let mut bytes = [0; 256];
        while matches!((&self.woken).read(&mut bytes), Ok(n) if n > 0) {}
    }

    // ---- events -------------------------------------------------------------------------------

    /// Hands an event on, or keeps it until there is room.
    pub(super) fn emit(&mut self, event: ControlEvent) {
        let event = if self.waiting.is_empty() { (self.sink)(event).err() } else { Some(event) };
        self.waiting.extend(event);
    }

    fn flush_waiting(&mut self) {
        while let Some(event) = self.waiting.pop_front() {
            if let Err(event) = (self.sink)(event) {
                self.waiting.push_front(event);
                return;
            }
        }
    }

    /// Counts what was lost, and says so when it begins.
    pub(super) fn lose(&mut self, loss: Loss, n: u64) {
        if n > 0 && self.shared.losses.add(loss, n) {
            self.emit(ControlEvent::Notice(format!("not recorded: {loss}")));
        }
    }

    // ---- connections --------------------------------------------------------------------------

    fn accept(&mut self) {
        if self.accept_again.is_some_and(|at| Instant::now() < at) {
            return;
        }
        self.accept_again = None;
        for _ in 0..ACCEPTS_A_TURN {
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // No descriptors left: the listener stays readable, so look away for a while.
                    self.accept_again = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn admit(&mut self, stream: UnixStream) {
        let limits = &self.settings.limits;
        let Ok(peer) = os::peer_of(&stream) else { return };
        if peer.uid != users::effective_uid() && peer.uid != 0 || stream.set_nonblocking(true).is_err() {
            return;
        }
        let of_process = match peer.pid {
            Some(pid) => self.connections.values().filter(|c| c.pid == Some(pid)).count(),
            None => 0,
        };
        if self.connections.len() >= limits.connections || of_process >= limits.connections_per_process {
            return self.lose(Loss::Connections, 1);
        }
        let connection = Connection::new(stream, peer, limits, clock::monotonic());
        self.connections.insert(self.next_connection, connection);
        self.next_connection += 1;
    }

    /// One read of one connection, and what its lines say. Says whether there may be more.
    fn read_from(&mut self, key: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&key) else { return false };
        match connection.read(&mut self.chunk, clock::monotonic()) {
            ReadOutcome::Nothing => return false,
            ReadOutcome::End => {
                self.end_of(key);
                return false;
            }
            ReadOutcome::Some => {}
        }
        // Taken out, so that a message can act on everything else.
        let mut lines = std::mem::take(&mut connection.lines);
        while let Some(line) = lines.next_line() {
            match line {
                Ok(line) => self.take_line(key, line),
                Err(_) => self.lose(Loss::Messages, 1),
            }
        }
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.lines = lines;
        }
        true
    }

    fn end_of(&mut self, key: u64) {
        let Some(connection) = self.connections.remove(&key) else { return };
        if connection.lines.is_torn() {
            self.lose(Loss::Messages, 1);
        }
        if connection.named.is_none()
            && let Some(stack) = connection.stack
            && let Some(mark) = self.stacks.close(stack, clock::monotonic())
        {
            self.emit(ControlEvent::Mark(mark));
        }
    }

    // ---- replies ------------------------------------------------------------------------------

    fn take_answers(&mut self) {
        for answer in self.shared.answers.take() {
            if let Some(connection) = self.connections.get_mut(&answer.connection) {
                connection.requests = connection.requests.saturating_sub(1);
                self.reply(answer.connection, answer.id, answer.outcome);
            }
        }
    }

    /// Sends a client its reply.
    pub(super) fn reply(&mut self, key: u64, id: Value, outcome: Result<Value, String>) {
        let reply = match outcome {
            Ok(result) => json!({"id": id, "ok": true, "result": result}),
            Err(error) => json!({"id": id, "ok": false, "error": error}),
        };
        let line = format!("{reply}\n");
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if !connection.reply(line.as_bytes(), self.settings.limits.reply_bytes) {
            self.lose(Loss::Replies, 1);
        }
    }

    // ---- the socket ---------------------------------------------------------------------------

    /// Makes the socket again if it was removed, so that processes of the job that start later find it.
    fn check_socket(&mut self) {
        if self.check_again.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.check_again = Some(Instant::now() + self.settings.check_every);
        if self.directory.is_there() {
            return;
        }
        let path = self.directory.socket().display().to_string();
        match self.directory.make_again() {
            Ok(listener) => {
                self.listener = listener;
                self.emit(ControlEvent::Notice(format!(
                    "the job's socket {path} was removed; it was made again"
                )));
            }
            Err(error) => {
                self.check_again = None;
                self.emit(ControlEvent::Notice(format!(
                    "the job's socket {path} was removed and cannot be made again ({error}): \
                     processes of the job that start from now on cannot set tags, steps or scalars"
                )));
            }
        }
    }

    // ---- the end ------------------------------------------------------------------------------

    fn finish(mut self) {
        // Connections that were never accepted have said things too.
        for _ in 0..self.settings.limits.connections.div_ceil(ACCEPTS_A_TURN) {
            self.accept();
        }
        let keys: Vec<u64> = self.connections.keys().copied().collect();
        for key in keys {
            for _ in 0..LAST_READS {
                if !self.read_from(key) {
                    break;
                }
            }
            self.end_of(key);
        }
        for mark in self.stacks.close_all(clock::monotonic()) {
            self.emit(ControlEvent::Mark(mark));
        }
        let (mut left, mut since) = (self.waiting.len(), Instant::now());
        while !self.waiting.is_empty() && since.elapsed() < LAST_PATIENCE {
            self.flush_waiting();
            if self.waiting.len() < left {
                (left, since) = (self.waiting.len(), Instant::now());
            } else {
                std::thread::sleep(RETRY);
            }
        }
        let late = self.waiting.iter().filter(|event| matches!(event, ControlEvent::Mark(_))).count();
        self.shared.losses.add(Loss::Late, late as u64);
    }
}
