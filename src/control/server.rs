//! The thread that serves the socket: accepts, reads lines, turns them into events, writes replies.
//!
//! One thread waits on all connections. It never blocks on a client (reads and writes take what is
//! there), never blocks on the engine (a full channel keeps what must arrive and drops the rest), and
//! holds at most what [`Limits`] allows.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ControlError;
use super::bucket::Bucket;
use super::directory::{self, PrivateDirectory};
use super::os::{self, Interest};
use super::protocol::{self, MAX_LINE, MAX_NAME, MAX_VALUES, Message, PROTOCOL_VERSION};
use crate::model::id::StackId;
use crate::model::mark::{Mark, MarkOp};
use crate::model::time::Mono;

/// What a client may cost.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once, of all clients together.
    pub connections: usize,
    /// Connections at once from one process.
    pub connections_per_process: usize,
    /// New tag stacks a second that a server accepts after a burst of 1,024.
    pub stacks_per_second: u32,
    /// Marks a second and connection, after a burst of twice as many. Further marks are dropped.
    pub marks_per_second: u32,
    /// Tags begun a second and connection, after a burst of twice as many: each costs a set of rows.
    pub tags_per_second: u32,
    /// Bytes a second and connection, after a burst of twice as many. Beyond, it is not read for a while.
    pub bytes_per_second: u32,
    /// Tags open at once in one stack.
    pub depth: usize,
    /// Different scalar names in one run.
    pub names: usize,
    /// Requests of one connection that wait for an answer.
    pub requests: usize,
    /// Bytes of replies that may wait for one client to read them while another is added.
    pub reply_bytes: usize,
    /// Events that wait for the engine, beyond those that must arrive (ends of tags and of clients).
    pub waiting_events: usize,
    /// How long a client that only marks, with stamps of its own, is left alone after each read. A mark that finds
    /// nobody waiting for it costs the client no wake-up, which on a virtual machine is most of its price.
    pub rest: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            connections_per_process: 16,
            stacks_per_second: 64,
            marks_per_second: 10_000,
            tags_per_second: 1_000,
            bytes_per_second: 16 << 20,
            depth: 64,
            names: 1024,
            requests: 8,
            reply_bytes: 1 << 20,
            waiting_events: 4096,
            rest: Duration::from_millis(20),
        }
    }
}

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to make the private directory; `None`: `$XDG_RUNTIME_DIR/gpurun`, else `/tmp/gpurun-<uid>`.
    pub dir: Option<PathBuf>,
    /// Bounds.
    pub limits: Limits,
    /// Number of the first stack that a client gets; smaller numbers are the engine's own.
    pub first_stack: u32,
    /// Name of the run, told to clients that say hello.
    pub run: Arc<str>,
    /// Process id under which `gpurun status` finds the socket.
    pub pid: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            dir: None,
            limits: Limits::default(),
            first_stack: 1,
            run: Arc::from(""),
            pid: std::process::id(),
        }
    }
}

/// What the engine hears.
#[derive(Debug)]
pub enum ControlEvent {
    /// A client said something about its progress. The first mark of a stack is [`MarkOp::Open`],
    /// its last [`MarkOp::Close`]; instants of one stack never go back.
    Mark(Mark),
    /// A client asks for the statistics of its innermost open tag so far.
    Collect {
        /// The client's stack.
        stack: StackId,
        /// The client's own instant.
        at: Mono,
        /// Where the answer ([`super::reply::collected`]) goes.
        reply: ReplyHandle,
    },
    /// A client asks for the run's current window.
    Snapshot {
        /// Where the answer ([`super::reply::snapshot`]) goes.
        reply: ReplyHandle,
    },
    /// After [`Server::drain`]: everything that clients had sent by then has been delivered.
    Drained,
}

/// What was refused or lost, for the engine's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that said something.
    pub clients: u64,
    /// Connections refused: another user's, or over a bound.
    pub refused: u64,
    /// Lines that were no message, or too long.
    pub bad_messages: u64,
    /// Marks dropped: over a bound, against a rule, or because the engine did not keep up.
    pub dropped_marks: u64,
    /// Scalars dropped because they are not finite numbers, or are named against the rules.
    pub dropped_values: u64,
    /// Replies dropped because their client did not read.
    pub dropped_replies: u64,
}

#[derive(Debug, Default)]
struct Tally {
    clients: AtomicU64,
    refused: AtomicU64,
    bad_messages: AtomicU64,
    dropped_marks: AtomicU64,
    dropped_values: AtomicU64,
    dropped_replies: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Tally {
    fn read(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            clients: get(&self.clients),
            refused: get(&self.refused),
            bad_messages: get(&self.bad_messages),
            dropped_marks: get(&self.dropped_marks),
            dropped_values: get(&self.dropped_values),
            dropped_replies: get(&self.dropped_replies),
        }
    }
}

const SERVING: u8 = 0;
const DRAINING: u8 = 1;
const STOPPING: u8 = 2;

/// What other threads hand to the server's thread.
#[derive(Debug)]
struct Shared {
    answers: Mutex<VecDeque<Answer>>,
    wake: UnixStream,
    phase: AtomicU8,
    tally: Tally,
}

impl Shared {
    fn wake(&self) {
        // A full pipe means that a wake-up is already on its way.
        let _ = os::send_now(&self.wake, &[1]);
    }

    fn put(&self, answer: Answer) {
        match self.answers.lock() {
            Ok(mut answers) => answers.push_back(answer),
            // The queue is whole whatever the other thread was doing when it panicked.
            Err(poisoned) => poisoned.into_inner().push_back(answer),
        }
        self.wake();
    }
}

#[derive(Debug)]
struct Answer {
    connection: u64,
    id: Value,
    keep: Keep,
    outcome: Result<Value, String>,
}

/// Which parts of a reply the client wants; the rest is not even sent.
#[derive(Clone, Debug, Default)]
struct Keep {
    parts: Option<Vec<String>>,
    metrics: Option<Vec<String>>,
}

/// Where the answer to one request goes. Dropped without an answer, it tells the client so.
#[derive(Debug)]
pub struct ReplyHandle {
    shared: Arc<Shared>,
    connection: u64,
    id: Value,
    keep: Keep,
    answered: bool,
}

impl ReplyHandle {
    /// Answers. Never blocks: the server's thread formats and writes it.
    pub fn send(mut self, json: Value) {
        self.answer(Ok(json));
    }

    /// Says why there is no answer, in one sentence.
    pub fn refuse(mut self, reason: impl Into<String>) {
        self.answer(Err(reason.into()));
    }

    fn answer(&mut self, outcome: Result<Value, String>) {
        if self.answered {
            return;
        }
        self.answered = true;
        self.shared.put(Answer {
            connection: self.connection,
            id: self.id.take(),
            keep: std::mem::take(&mut self.keep),
            outcome,
        });
    }
}

impl Drop for ReplyHandle {
    fn drop(&mut self) {
        self.answer(Err("gpurun has no answer to this now".to_owned()));
    }
}

/// The running server. Its socket and directory disappear when it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    directory: PrivateDirectory,
    done: Receiver<()>,
}

impl Server {
    /// Makes the private directory, listens, and starts the thread.
    ///
    /// `sink` takes each event on the server's thread and must not block. It hands an event back when
    /// it has no room; the server keeps it and tries again. Once nobody listens any more it should take
    /// everything and drop it. [`Server::sink`] makes one of a bounded channel.
    ///
    /// # Errors
    /// No private directory, no socket in it, or no thread. None of them need stop a run: the job then
    /// simply has no socket to talk to.
    pub fn start<S>(settings: Settings, sink: S) -> Result<Self, ControlError>
    where
        S: FnMut(ControlEvent) -> Result<(), ControlEvent> + Send + 'static,
    {
        let (directory, listener) = directory::listen(settings.dir.as_deref(), settings.pid)?;
        let pair = || -> io::Result<_> {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            theirs.set_nonblocking(true)?;
            Ok((ours, theirs))
        };
        let (woken, wake) = pair().map_err(ControlError::Thread)?;
        let shared = Arc::new(Shared {
            answers: Mutex::new(VecDeque::new()),
            wake,
            phase: AtomicU8::new(SERVING),
            tally: Tally::default(),
        });
        let (finished, done) = sync_channel(1);
        let room = Room::new(settings, listener, woken, Arc::clone(&shared), sink);
        std::thread::Builder::new()
            .name("gpurun-control".to_owned())
            .spawn(move || {
                os::never_preempt();
                // A bug here must cost the job its marks, never its life; the engine sees `done`.
                let _ = catch_unwind(AssertUnwindSafe(move || room.serve()));
                let _ = finished.try_send(());
            })
            .map_err(ControlError::Thread)?;
        Ok(Self { shared, directory, done })
    }

    /// A sink that puts events, made into the engine's own by `wrap`, into a bounded channel. Events are
    /// handed back by `unwrap` when it is full and dropped when the receiver is gone.
    pub fn sink<E, W, U>(
        channel: SyncSender<E>,
        wrap: W,
        unwrap: U,
    ) -> impl FnMut(ControlEvent) -> Result<(), ControlEvent> + Send + 'static
    where
        E: Send + 'static,
        W: Fn(ControlEvent) -> E + Send + 'static,
        U: Fn(E) -> Option<ControlEvent> + Send + 'static,
    {
        move |event| match channel.try_send(wrap(event)) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
            Err(TrySendError::Full(event)) => unwrap(event).map_or(Ok(()), Err),
        }
    }

    /// The socket's path, for `GPURUN_SOCKET`.
    pub fn path(&self) -> &Path {
        self.directory.socket()
    }

    /// What was refused or lost so far.
    pub fn counts(&self) -> Counts {
        self.shared.tally.read()
    }

    /// Asks for [`ControlEvent::Drained`] once everything that clients have sent by now is delivered,
    /// rate limits aside. For the engine after the job's exit: keep receiving until it comes.
    pub fn drain(&self) {
        let _ = self.shared.phase.compare_exchange(SERVING, DRAINING, Ordering::SeqCst, Ordering::SeqCst);
        self.shared.wake();
    }

    /// Delivers what clients have sent, closes their stacks, ends the thread and removes the socket.
    ///
    /// Waits at most `timeout`. Events still go to the sink meanwhile: an engine that calls this on the
    /// thread that also empties the channel finds there what fitted, and should `drain` first.
    pub fn stop(self, timeout: Duration) -> Counts {
        self.shared.phase.store(STOPPING, Ordering::SeqCst);
        self.shared.wake();
        // A thread that is stuck in the sink is left behind; the process is about to end.
        match self.done.recv_timeout(timeout) {
            Ok(()) | Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => {}
        }
        self.shared.tally.read()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.phase.store(STOPPING, Ordering::SeqCst);
        self.shared.wake();
    }
}

/// How long a stopping server tries to hand its last events to a sink without room.
const LAST_TRY: Duration = Duration::from_millis(500);

/// How long to leave the listener alone after `accept` failed for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How soon a sink without room, or a connection over its byte rate, is tried again.
const RETRY: Duration = Duration::from_millis(5);

/// How long a client that asked for an answer, or whose marks have no stamp, is read at once.
const PROMPT: Duration = Duration::from_secs(5);

/// After a read of more than this a client is not left alone: what it says next must find room in the socket.
const MUCH: usize = 1024;

/// One read.
const CHUNK: usize = 64 * 1024;

/// Named stacks, which outlive their connections, at most.
const NAMED_STACKS: usize = 64;

/// How many connections are accepted before the others get their turn.
const ACCEPTS_A_TURN: usize = 32;

struct OpenTag {
    tag: Arc<str>,
    span: Option<i64>,
    /// The engine knows of it. A tag that was refused is kept here so that its end ends nothing else.
    delivered: bool,
}

/// The server's own picture of one stack of tags.
struct Stack {
    id: StackId,
    tags: Vec<OpenTag>,
    last: Mono,
}

struct Connection {
    stream: UnixStream,
    pid: i32,
    /// Bytes of a line whose end has not come yet.
    partial: Vec<u8>,
    /// In the middle of a line that is too long: skip to its end.
    skipping: bool,
    out: Vec<u8>,
    written: usize,
    rank: Option<i32>,
    /// Key of the stack, once it has one.
    stack: Option<u32>,
    /// The stack stays when the connection ends.
    named: Option<String>,
    requests: usize,
    marks: Bucket,
    tags: Bucket,
    bytes: Bucket,
    /// It has said something.
    spoke: bool,
    /// Not read before then.
    rests_until: Mono,
    /// Read at once until then.
    prompt_until: Mono,
}

struct Room<S> {
    settings: Settings,
    listener: UnixListener,
    woken: UnixStream,
    shared: Arc<Shared>,
    sink: S,
    started: Mono,
    connections: HashMap<u64, Connection>,
    next_connection: u64,
    stacks: HashMap<u32, Stack>,
    named: HashMap<(String, Option<i32>), u32>,
    next_stack: u32,
    new_stacks: Bucket,
    names: HashSet<Arc<str>>,
    outbox: VecDeque<ControlEvent>,
    chunk: Vec<u8>,
    accept_again: Option<Instant>,
    drained: bool,
}

impl<S> Room<S>
where
    S: FnMut(ControlEvent) -> Result<(), ControlEvent>,
{
    fn new(
        settings: Settings,
        listener: UnixListener,
        woken: UnixStream,
        shared: Arc<Shared>,
        sink: S,
    ) -> Self {
        let started = os::monotonic_now();
        let new_stacks = Bucket::new(settings.limits.stacks_per_second, 1024, started);
        let next_stack = settings.first_stack;
        Self {
            settings,
            listener,
            woken,
            shared,
            sink,
            started,
            connections: HashMap::new(),
            next_connection: 0,
            stacks: HashMap::new(),
            named: HashMap::new(),
            next_stack,
            new_stacks,
            names: HashSet::new(),
            outbox: VecDeque::new(),
            chunk: vec![0; CHUNK],
            accept_again: None,
            drained: false,
        }
    }

    fn tally(&self) -> &Tally {
        &self.shared.tally
    }

    fn serve(mut self) {
        loop {
            match self.shared.phase.load(Ordering::SeqCst) {
                STOPPING => return self.finish(),
                DRAINING if !self.drained => {
                    self.drained = true;
                    self.read_everything();
                    self.emit(ControlEvent::Drained, true);
                }
                _ => {}
            }
            if self.turn().is_err() {
                // poll itself failed (no memory): there is nothing to wait on, so wait a little.
                std::thread::sleep(RETRY);
            }
        }
    }

    /// Waits for something to happen and deals with it.
    fn turn(&mut self) -> io::Result<()> {
        let now = os::monotonic_now();
        let accepting = self.accept_again.is_none_or(|at| Instant::now() >= at);
        let mut timeout = (!accepting || !self.outbox.is_empty()).then_some(RETRY);
        let mut within = |limit: Duration| timeout = Some(timeout.map_or(limit, |t: Duration| t.min(limit)));

        let mut interests = vec![Interest::new(self.woken.as_fd(), true, false)];
        let mut order = Vec::with_capacity(self.connections.len());
        if accepting {
            interests.push(Interest::new(self.listener.as_fd(), true, false));
        }
        let fixed = interests.len();
        for (&key, connection) in &mut self.connections {
            if connection.bytes.is_open(now) {
                order.push(key);
            } else {
                within(RETRY);
            }
        }
        for key in &order {
            if let Some(connection) = self.connections.get(key) {
                let write = connection.written < connection.out.len();
                let read = connection.rests_until <= now;
                if !read {
                    within(connection.rests_until.since(now));
                }
                // Whoever rests is still seen to die.
                interests.push(Interest::new(connection.stream.as_fd(), read, write));
            }
        }
        let ready = os::poll(&interests, timeout)?;
        drop(interests);

        if ready.first().is_some_and(|r| r.read) {
            self.drain_wakeups();
        }
        self.flush_outbox();
        self.take_answers();
        if accepting && ready.get(1).is_some_and(|r| r.read) {
            self.accept();
        }
        for (key, ready) in order.into_iter().zip(ready.into_iter().skip(fixed)) {
            if ready.write {
                self.write_out(key);
            }
            if ready.read || ready.hung_up {
                self.read_from(key);
            }
        }
        Ok(())
    }

    fn drain_wakeups(&mut self) {
        let mut bytes = [0; 256];
        while matches!((&self.woken).read(&mut bytes), Ok(n) if n > 0) {}
    }

    // ---- towards the engine -------------------------------------------------------------------

    /// Hands an event to the engine, or keeps it for later. What need not arrive is dropped when too
    /// much already waits; says whether the event was taken.
    fn emit(&mut self, event: ControlEvent, must: bool) -> bool {
        if self.outbox.is_empty() {
            match (self.sink)(event) {
                Ok(()) => return true,
                Err(event) => self.outbox.push_back(event),
            }
            return true;
        }
        if !must && self.outbox.len() >= self.settings.limits.waiting_events {
            if matches!(event, ControlEvent::Mark(_)) {
                add(&self.tally().dropped_marks, 1);
            }
            return false;
        }
        self.outbox.push_back(event);
        true
    }

    fn flush_outbox(&mut self) {
        while let Some(event) = self.outbox.pop_front() {
            if let Err(event) = (self.sink)(event) {
                self.outbox.push_front(event);
                return;
            }
        }
    }

    // ---- connections --------------------------------------------------------------------------

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_A_TURN {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    // A client that says much at once connects once more to say so.
                    for connection in self.connections.values_mut() {
                        connection.rests_until = Mono(0);
                    }
                    self.admit(stream);
                }
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
        let allowed = os::peer_of(&stream).ok().filter(|peer| {
            let ours = peer.uid == os::effective_uid() || peer.uid == 0;
            let of_process = self.connections.values().filter(|c| c.pid == peer.pid).count();
            ours && self.connections.len() < limits.connections && of_process < limits.connections_per_process
        });
        let Some(peer) = allowed.filter(|_| stream.set_nonblocking(true).is_ok()) else {
            add(&self.tally().refused, 1);
            return;
        };
        let now = os::monotonic_now();
        let twice = |rate: u32| Bucket::new(rate, rate.saturating_mul(2), now);
        let connection = Connection {
            stream,
            pid: peer.pid,
            partial: Vec::new(),
            skipping: false,
            out: Vec::new(),
            written: 0,
            rank: None,
            stack: None,
            named: None,
            requests: 0,
            marks: twice(limits.marks_per_second),
            tags: twice(limits.tags_per_second),
            bytes: twice(limits.bytes_per_second),
            spoke: false,
            rests_until: Mono(0),
            prompt_until: Mono(0),
        };
        self.connections.insert(self.next_connection, connection);
        self.next_connection += 1;
    }

    /// One read of one connection; says whether there may be more.
    fn read_from(&mut self, key: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&key) else { return false };
        let mut chunk = std::mem::take(&mut self.chunk);
        let more = match (&connection.stream).read(&mut chunk) {
            Ok(0) => {
                self.end_of(key);
                false
            }
            Ok(n) => {
                let now = os::monotonic_now();
                connection.bytes.charge(n, now);
                if !std::mem::replace(&mut connection.spoke, true) {
                    add(&self.shared.tally.clients, 1);
                }
                self.take_bytes(key, &chunk[..n]);
                if let Some(connection) = self.connections.get_mut(&key)
                    && n <= MUCH
                    && connection.prompt_until <= now
                {
                    connection.rests_until = now + self.settings.limits.rest;
                }
                true
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => false,
                io::ErrorKind::Interrupted => true,
                _ => {
                    self.end_of(key);
                    false
                }
            },
        };
        self.chunk = chunk;
        more
    }

    fn take_bytes(&mut self, key: u64, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|&b| b == b'\n') {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            let Some(connection) = self.connections.get_mut(&key) else { return };
            let mut partial = std::mem::take(&mut connection.partial);
            if std::mem::take(&mut connection.skipping) || partial.len() + line.len() >= MAX_LINE {
                add(&self.tally().bad_messages, 1);
            } else if partial.is_empty() {
                self.take_line(key, line);
            } else {
                partial.extend_from_slice(line);
                self.take_line(key, &partial);
            }
            if let Some(connection) = self.connections.get_mut(&key) {
                // Keeps the buffer's memory, unless a long line made it large.
                partial.clear();
                partial.shrink_to(4096);
                connection.partial = partial;
            }
        }
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if connection.skipping {
            return;
        }
        if connection.partial.len() + bytes.len() >= MAX_LINE {
            connection.skipping = true;
            connection.partial = Vec::new();
        } else {
            connection.partial.extend_from_slice(bytes);
        }
    }

    fn end_of(&mut self, key: u64) {
        let Some(connection) = self.connections.remove(&key) else { return };
        if connection.skipping || !connection.partial.is_empty() {
            add(&self.tally().bad_messages, 1);
        }
        if connection.named.is_none()
            && let Some(stack) = connection.stack
        {
            self.close_stack(stack);
        }
    }

    fn close_stack(&mut self, key: u32) {
        if let Some(stack) = self.stacks.remove(&key) {
            let at = os::monotonic_now().max(stack.last);
            self.emit(ControlEvent::Mark(Mark { stack: stack.id, at, op: MarkOp::Close }), true);
        }
    }

    // ---- replies ------------------------------------------------------------------------------

    fn take_answers(&mut self) {
        let answers = match self.shared.answers.lock() {
            Ok(mut answers) => std::mem::take(&mut *answers),
            Err(poisoned) => std::mem::take(&mut *poisoned.into_inner()),
        };
        for answer in answers {
            if let Some(connection) = self.connections.get_mut(&answer.connection) {
                connection.requests = connection.requests.saturating_sub(1);
                let reply = match answer.outcome {
                    Ok(mut result) => {
                        retain(&mut result, &answer.keep);
                        json!({"id": answer.id, "ok": true, "result": result})
                    }
                    Err(error) => json!({"id": answer.id, "ok": false, "error": error}),
                };
                self.reply(answer.connection, &reply);
            }
        }
    }

    fn reply(&mut self, key: u64, reply: &Value) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let mut line = reply.to_string().into_bytes();
        line.push(b'\n');
        let waiting = connection.out.len() - connection.written;
        // The first reply always has room: a snapshot of a large job is as long as it is.
        if waiting > 0 && waiting + line.len() > self.settings.limits.reply_bytes {
            add(&self.shared.tally.dropped_replies, 1);
            return;
        }
        connection.out.extend_from_slice(&line);
        self.write_out(key);
    }

    fn write_out(&mut self, key: u64) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        while connection.written < connection.out.len() {
            match os::send_now(&connection.stream, &connection.out[connection.written..]) {
                Ok(n) => connection.written += n,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => break,
                    // The reader is gone. What it still said before can be read; reading finds the end.
                    _ => {
                        connection.written = connection.out.len();
                    }
                },
            }
        }
        if connection.written == connection.out.len() {
            connection.out.clear();
            connection.out.shrink_to(64 * 1024);
            connection.written = 0;
        } else if connection.written > self.settings.limits.reply_bytes / 2 {
            connection.out.drain(..connection.written);
            connection.written = 0;
        }
    }

    // ---- messages -----------------------------------------------------------------------------

    fn take_line(&mut self, key: u64, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let message = match protocol::parse(line) {
            Ok(message) => message,
            Err(_) => {
                add(&self.tally().bad_messages, 1);
                return;
            }
        };
        let id = message.reply_id();
        let waits = id.is_some() && !message.patient;
        if (waits || message.t.is_none())
            && message.op != "hello"
            && let Some(connection) = self.connections.get_mut(&key)
        {
            connection.prompt_until = os::monotonic_now() + PROMPT;
        }
        let outcome = self.act(key, message, id.clone());
        let (Some(id), Some(outcome)) = (id, outcome) else { return };
        let reply = match outcome {
            Ok(result) => json!({"id": id, "ok": true, "result": result}),
            Err(error) => json!({"id": id, "ok": false, "error": error}),
        };
        self.reply(key, &reply);
    }

    /// Carries one message out. `None`: the answer comes later, from the engine.
    fn act(&mut self, key: u64, message: Message, id: Option<Value>) -> Option<Result<Value, String>> {
        let done = |result: Result<(), String>| Some(result.map(|()| Value::Null));
        match message.op.as_str() {
            "hello" => Some(self.hello(key, &message)),
            "begin" => done(self.begin(key, &message)),
            "end" => done(self.end(key, &message)),
            "clear" => done(self.clear(key, &message)),
            "step" => done(self.step(key, &message)),
            "log" => done(self.log(key, message)),
            "collect" | "snapshot" => match self.request(key, message, id) {
                Ok(()) => None,
                Err(error) => Some(Err(error)),
            },
            _ => {
                add(&self.tally().bad_messages, 1);
                Some(Err(format!("unknown op; this is protocol version {PROTOCOL_VERSION}")))
            }
        }
    }

    fn hello(&mut self, key: u64, message: &Message) -> Result<Value, String> {
        if message.version.is_some_and(|version| version > PROTOCOL_VERSION) {
            // Its messages are still read: an unknown op or field is ignored.
            add(&self.tally().bad_messages, 1);
        }
        let known = self.named.len();
        let Some(connection) = self.connections.get_mut(&key) else { return Ok(Value::Null) };
        if connection.stack.is_some() {
            return Err("hello must come first".to_owned());
        }
        connection.rank = message.rank;
        if let Some(name) = &message.stack {
            if name.is_empty() || name.len() > MAX_NAME {
                return Err(format!("a stack's name must have 1 to {MAX_NAME} bytes"));
            }
            if known >= NAMED_STACKS && !self.named.contains_key(&(name.clone(), message.rank)) {
                return Err("too many named stacks".to_owned());
            }
            connection.named = Some(name.clone());
        }
        Ok(json!({
            "version": PROTOCOL_VERSION,
            "server": concat!("gpurun ", env!("CARGO_PKG_VERSION")),
            "run": &*self.settings.run,
            "pid": std::process::id(),
        }))
    }

    /// The stack of a connection, made and announced at its first need.
    fn stack_of(&mut self, key: u64, now: Mono) -> Result<u32, String> {
        let Some(connection) = self.connections.get(&key) else { return Err("gone".to_owned()) };
        if let Some(stack) = connection.stack {
            return Ok(stack);
        }
        let rank = connection.rank;
        let name = connection.named.clone().map(|name| (name, rank));
        let known = name.as_ref().and_then(|name| self.named.get(name).copied());
        let stack = match known {
            Some(stack) => stack,
            None => {
                if !self.new_stacks.take(now) {
                    add(&self.tally().dropped_marks, 1);
                    return Err("too many clients begin at once".to_owned());
                }
                let number = self.next_stack;
                let id = StackId(number);
                let open = Mark { stack: id, at: self.started.max(now), op: MarkOp::Open { rank } };
                if !self.emit(ControlEvent::Mark(open), false) {
                    return Err("gpurun does not keep up".to_owned());
                }
                self.next_stack = self.next_stack.wrapping_add(1).max(self.settings.first_stack);
                self.stacks.insert(number, Stack { id, tags: Vec::new(), last: self.started });
                if let Some(name) = name {
                    self.named.insert(name, number);
                }
                number
            }
        };
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.stack = Some(stack);
        }
        Ok(stack)
    }

    /// Whether a mark of this connection is within its rate.
    fn within_rate(&mut self, key: u64, begins: bool) -> Result<(), String> {
        let now = os::monotonic_now();
        let Some(connection) = self.connections.get_mut(&key) else { return Ok(()) };
        let open = connection.marks.take(now) && (!begins || connection.tags.take(now));
        if open {
            return Ok(());
        }
        add(&self.tally().dropped_marks, 1);
        Err("over the rate of marks".to_owned())
    }

    fn drop_mark(&self, why: impl Into<String>) -> String {
        add(&self.tally().dropped_marks, 1);
        why.into()
    }

    /// The instant of a message: the client's own, between the run's start and now, never before the
    /// stack's last.
    fn stamp(&mut self, stack: u32, t: Option<u64>) -> Mono {
        let now = os::monotonic_now();
        let said = t.map_or(now, Mono).clamp(self.started, now);
        match self.stacks.get_mut(&stack) {
            Some(stack) => {
                stack.last = said.max(stack.last);
                stack.last
            }
            None => said,
        }
    }

    fn mark(&mut self, stack: u32, at: Mono, op: MarkOp, must: bool) -> Result<(), String> {
        let mark = Mark { stack: StackId(stack), at, op };
        if self.emit(ControlEvent::Mark(mark), must) {
            return Ok(());
        }
        Err("gpurun does not keep up".to_owned())
    }

    /// The earliest instant of a new stack is the client's first own stamp, not when we came to read it.
    fn prepare(&mut self, key: u64, t: Option<u64>) -> Result<(u32, Mono), String> {
        let now = os::monotonic_now();
        let first = t.map_or(now, Mono).clamp(self.started, now);
        let stack = self.stack_of(key, first)?;
        Ok((stack, self.stamp(stack, t)))
    }

    fn begin(&mut self, key: u64, message: &Message) -> Result<(), String> {
        let Some(tag) = message.tag.as_deref() else {
            return Err(self.drop_mark("begin needs a tag"));
        };
        let depth = self.settings.limits.depth;
        let allowed = protocol::check_tag(tag).map_err(|why| self.drop_mark(why));
        let allowed = allowed.and_then(|()| self.within_rate(key, true));
        let (number, at) = self.prepare(key, message.t)?;
        let Some(stack) = self.stacks.get(&number) else { return Err("gone".to_owned()) };
        // A refused tag is remembered so that its end does not end another, but not without bound.
        if stack.tags.len() >= depth.saturating_mul(4) {
            return Err(self.drop_mark(format!("more than {depth} tags are open")));
        }
        let delivered = stack.tags.iter().filter(|open| open.delivered);
        let taken = delivered.clone().any(|open| &*open.tag == tag);
        let deep = delivered.count() >= depth;
        let tag: Arc<str> = Arc::from(if tag.len() <= MAX_NAME { tag } else { "" });
        let outcome = match allowed {
            Err(why) => Err(why),
            Ok(()) if taken => Err(self.drop_mark("a tag of this name is already open")),
            Ok(()) if deep => Err(self.drop_mark(format!("more than {depth} tags are open"))),
            Ok(()) => self.mark(number, at, MarkOp::Begin { tag: Arc::clone(&tag) }, false),
        };
        if let Some(stack) = self.stacks.get_mut(&number) {
            stack.tags.push(OpenTag { tag, span: message.span, delivered: outcome.is_ok() });
        }
        outcome
    }

    fn end(&mut self, key: u64, message: &Message) -> Result<(), String> {
        let (number, at) = self.prepare(key, message.t)?;
        let Some(stack) = self.stacks.get_mut(&number) else { return Err("gone".to_owned()) };
        let place = match (message.span, &message.tag) {
            (Some(span), _) => stack.tags.iter().rposition(|open| open.span == Some(span)),
            (None, Some(tag)) => stack.tags.iter().rposition(|open| *open.tag == **tag),
            (None, None) => stack.tags.len().checked_sub(1),
        };
        // An inner tag that an outer one's end already ended is nothing to complain about.
        let Some(place) = place else { return Err("no such tag is open".to_owned()) };
        let ended: Vec<_> = stack.tags.drain(place..).filter(|open| open.delivered).collect();
        match ended.into_iter().next() {
            // The engine ends what was begun inside by itself.
            Some(outer) => self.mark(number, at, MarkOp::End { tag: Some(outer.tag) }, true),
            None => Ok(()),
        }
    }

    fn clear(&mut self, key: u64, message: &Message) -> Result<(), String> {
        self.within_rate(key, true)?;
        let (number, at) = self.prepare(key, message.t)?;
        let tag = match &message.tag {
            None => None,
            Some(tag) => {
                let open = self
                    .stacks
                    .get(&number)
                    .and_then(|stack| stack.tags.iter().find(|open| open.delivered && *open.tag == **tag));
                match open {
                    Some(open) => Some(Arc::clone(&open.tag)),
                    None => return Err(self.drop_mark("no such tag is open")),
                }
            }
        };
        self.mark(number, at, MarkOp::Clear { tag }, false)
    }

    fn step(&mut self, key: u64, message: &Message) -> Result<(), String> {
        let Some(step) = message.step else {
            return Err(self.drop_mark("step needs a step"));
        };
        self.within_rate(key, false)?;
        let (number, at) = self.prepare(key, message.t)?;
        let began = message.began.map(|began| Mono(began).clamp(self.started, at));
        self.mark(number, at, MarkOp::Step { step, began, first_of_epoch: message.first }, false)
    }

    fn log(&mut self, key: u64, message: Message) -> Result<(), String> {
        self.within_rate(key, false)?;
        let Some(values) = message.values else {
            return Err(self.drop_mark("log needs values"));
        };
        let given = values.len();
        let mut kept: Vec<(Arc<str>, f64)> = Vec::with_capacity(given.min(MAX_VALUES));
        for (name, value) in values.into_iter().take(MAX_VALUES) {
            let Some(value) = value.as_f64().filter(|value| value.is_finite()) else { continue };
            if protocol::check_scalar_name(&name).is_err() {
                continue;
            }
            if let Some(name) = self.name(name) {
                kept.push((name, value));
            }
        }
        let lost = given - kept.len();
        if lost > 0 {
            add(&self.tally().dropped_values, lost as u64);
        }
        if !kept.is_empty() {
            let (number, at) = self.prepare(key, message.t)?;
            self.mark(number, at, MarkOp::Log { step: message.step, values: kept }, false)?;
        }
        if lost > 0 {
            return Err(format!(
                "{lost} of {given} values were dropped: not finite, named against the rules, or too many"
            ));
        }
        Ok(())
    }

    /// The one copy of a scalar's name, if the run may have another.
    fn name(&mut self, name: String) -> Option<Arc<str>> {
        if let Some(known) = self.names.get(name.as_str()) {
            return Some(Arc::clone(known));
        }
        if self.names.len() >= self.settings.limits.names {
            return None;
        }
        let name: Arc<str> = Arc::from(name);
        self.names.insert(Arc::clone(&name));
        Some(name)
    }

    fn request(&mut self, key: u64, message: Message, id: Option<Value>) -> Result<(), String> {
        let Some(id) = id else {
            add(&self.tally().bad_messages, 1);
            return Err("a request needs an id".to_owned());
        };
        let allowed = self.settings.limits.requests;
        match self.connections.get_mut(&key) {
            Some(connection) if connection.requests < allowed => connection.requests += 1,
            Some(_) => return Err(format!("{allowed} requests already wait for an answer")),
            None => return Ok(()),
        }
        let keep = Keep { parts: message.parts, metrics: message.metrics };
        let shared = Arc::clone(&self.shared);
        let reply = ReplyHandle { shared, connection: key, id, keep, answered: false };
        let event = if message.op == "snapshot" {
            ControlEvent::Snapshot { reply }
        } else {
            // If there is no stack, dropping `reply` would answer twice.
            match self.prepare(key, message.t) {
                Ok((stack, at)) => ControlEvent::Collect { stack: StackId(stack), at, reply },
                Err(why) => {
                    reply.refuse(why);
                    return Ok(());
                }
            }
        };
        // An event that finds no room is dropped, and its handle says so to the client.
        self.emit(event, false);
        Ok(())
    }

    // ---- the end ------------------------------------------------------------------------------

    /// Reads what clients have sent so far, whatever their rates, and notices who is gone.
    fn read_everything(&mut self) {
        self.accept_again = None;
        // A client that keeps sending must not hold this up: at most a socket buffer's worth each.
        for _ in 0..self.settings.limits.connections.div_ceil(ACCEPTS_A_TURN) {
            self.accept();
        }
        let keys: Vec<u64> = self.connections.keys().copied().collect();
        for key in keys {
            let mut turns = 64;
            while turns > 0 && self.read_from(key) {
                turns -= 1;
            }
        }
        self.flush_outbox();
        self.take_answers();
    }

    fn finish(mut self) {
        self.read_everything();
        let keys: Vec<u64> = self.connections.keys().copied().collect();
        for key in keys {
            self.end_of(key);
        }
        let mut left: Vec<u32> = self.stacks.keys().copied().collect();
        left.sort_unstable();
        for stack in left {
            self.close_stack(stack);
        }
        let deadline = Instant::now() + LAST_TRY;
        loop {
            self.flush_outbox();
            if self.outbox.is_empty() || Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(RETRY);
        }
        let lost = self.outbox.iter().filter(|event| matches!(event, ControlEvent::Mark(_))).count();
        add(&self.tally().dropped_marks, lost as u64);
    }
}

/// Removes from a snapshot what the client did not ask for.
fn retain(result: &mut Value, keep: &Keep) {
    if let (Some(parts), Some(object)) = (&keep.parts, result.as_object_mut()) {
        let whole = ["gpus", "host", "job", "gpurun", "processes"];
        object.retain(|key, _| !whole.contains(&key.as_str()) || parts.iter().any(|part| part == key));
    }
    if let Some(metrics) = &keep.metrics {
        retain_metrics(result, metrics);
    }
}

fn retain_metrics(value: &mut Value, wanted: &[String]) {
    match value {
        Value::Object(object) => {
            for (key, inner) in object.iter_mut() {
                match inner {
                    Value::Object(metrics) if key == "metrics" => {
                        metrics.retain(|name, _| wanted.iter().any(|w| w == name));
                    }
                    _ => retain_metrics(inner, wanted),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|inner| retain_metrics(inner, wanted)),
        _ => {}
    }
}
