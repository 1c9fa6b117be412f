//! Tests: the control room against raw clients, polite and hostile, through the library.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use gpurun::control::{Client, ControlEvent, Counts, Limits, Server, Settings};
use gpurun::model::id::StackId;
use gpurun::model::mark::{Mark, MarkOp};
use serde_json::{Value, json};

/// Only bounds how long a broken server can hang a test; nothing is measured.
const PATIENCE: Duration = Duration::from_secs(60);

struct Room {
    server: Option<Server>,
    events: Receiver<ControlEvent>,
    _dir: tempfile::TempDir,
}

impl Room {
    fn new() -> Self {
        Self::with(Limits::default(), 100_000)
    }

    fn with(limits: Limits, capacity: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (sender, events) = sync_channel(capacity);
        let settings = Settings {
            dir: Some(dir.path().join("c")),
            limits,
            run: "test-run".into(),
            ..Settings::default()
        };
        let server = Server::start(settings, Server::sink(sender, |e| e, Some)).unwrap();
        Self { server: Some(server), events, _dir: dir }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    fn path(&self) -> &Path {
        self.server().path()
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn next(&self) -> ControlEvent {
        self.events.recv_timeout(PATIENCE).expect("an event in time")
    }

    fn mark(&self) -> Mark {
        match self.next() {
            ControlEvent::Mark(mark) => mark,
            other => panic!("expected a mark, got {other:?}"),
        }
    }

    /// Marks of one stack until it closes, `Close` included.
    fn marks_until_close(&self, stack: StackId) -> Vec<Mark> {
        let mut marks = Vec::new();
        loop {
            let mark = self.mark();
            if mark.stack != stack {
                continue;
            }
            let closed = mark.op == MarkOp::Close;
            marks.push(mark);
            if closed {
                return marks;
            }
        }
    }

    /// Proves that the server still serves: a new client's mark comes through, whatever else is queued.
    fn still_serves(&self) {
        let mut client = self.connect();
        say(&mut client, &json!({"op": "hello", "version": 1, "rank": 77}));
        say(&mut client, &json!({"op": "step", "step": 4242}));
        loop {
            if let ControlEvent::Mark(Mark { op: MarkOp::Step { step: 4242, .. }, .. }) = self.next() {
                return;
            }
        }
    }

    fn stop(mut self) -> (Counts, Vec<ControlEvent>) {
        let counts = self.server.take().unwrap().stop(PATIENCE);
        (counts, self.events.try_iter().collect())
    }
}

fn say(client: &mut UnixStream, message: &Value) {
    client.write_all(format!("{message}\n").as_bytes()).unwrap();
}

fn ask(client: &mut UnixStream, message: &Value) -> Value {
    say(client, message);
    let mut line = String::new();
    BufReader::new(&*client).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn ops(marks: &[Mark]) -> Vec<MarkOp> {
    marks.iter().map(|mark| mark.op.clone()).collect()
}

fn begin(tag: &str) -> MarkOp {
    MarkOp::Begin { tag: tag.into() }
}

fn end(tag: &str) -> MarkOp {
    MarkOp::End { tag: Some(tag.into()) }
}

#[test]
fn a_polite_client_is_heard_with_its_own_stamps() {
    let room = Room::new();
    let mode = std::fs::metadata(room.path()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let mut client = room.connect();
    let t0 = Client::now();
    let hello = ask(&mut client, &json!({"op": "hello", "version": 1, "rank": 3, "pid": 1, "id": 1}));
    assert_eq!(hello["result"]["run"], json!("test-run"));
    say(&mut client, &json!({"op": "begin", "tag": "train", "t": t0}));
    say(&mut client, &json!({"op": "begin", "tag": "batch", "t": t0 + 1}));
    say(&mut client, &json!({"op": "step", "step": 9, "t": t0 + 5, "began": t0 + 2, "first": true}));
    say(&mut client, &json!({"op": "log", "step": 9, "t": t0 + 6, "values": {"loss": 0.5, "bad": "x"}}));
    say(&mut client, &json!({"op": "clear", "tag": "batch", "t": t0 + 7}));
    say(&mut client, &json!({"op": "end", "t": t0 + 8}));
    say(&mut client, &json!({"op": "end", "tag": "train", "t": t0 + 9}));
    let open = room.mark();
    assert_eq!(open.op, MarkOp::Open { rank: Some(3) });
    drop(client);
    let marks = room.marks_until_close(open.stack);
    let step = |n: u64| t0 + n;
    let at: Vec<u64> = marks.iter().map(|mark| mark.at.0).collect();
    assert_eq!(at[..7], [step(0), step(1), step(5), step(6), step(7), step(8), step(9)]);
    assert!(at[7] > step(9));
    assert_eq!(
        ops(&marks),
        [
            begin("train"),
            begin("batch"),
            MarkOp::Step { step: 9, began: Some(gpurun::model::time::Mono(t0 + 2)), first_of_epoch: true },
            MarkOp::Log { step: Some(9), values: vec![("loss".into(), 0.5)] },
            MarkOp::Clear { tag: Some("batch".into()) },
            end("batch"),
            end("train"),
            MarkOp::Close,
        ]
    );
    let (counts, _) = room.stop();
    assert_eq!((counts.dropped_values, counts.dropped_marks, counts.clients), (1, 0, 1));
}

#[test]
fn stamps_from_the_future_and_the_past_are_brought_back() {
    let before = Client::now();
    let room = Room::new();
    let mut client = room.connect();
    say(&mut client, &json!({"op": "step", "step": 1, "t": 1}));
    say(&mut client, &json!({"op": "step", "step": 2, "t": u64::MAX, "began": 0}));
    say(&mut client, &json!({"op": "step", "step": 3, "t": 5, "began": u64::MAX}));
    let _open = room.mark();
    let marks = [room.mark(), room.mark(), room.mark()];
    let after = Client::now();
    assert!(marks.windows(2).all(|pair| pair[0].at <= pair[1].at));
    assert!(marks.iter().all(|mark| (before..=after).contains(&mark.at.0)));
    for mark in &marks[1..] {
        let MarkOp::Step { began: Some(began), .. } = mark.op else { panic!("{mark:?}") };
        assert!(began <= mark.at && began.0 >= before);
    }
}

#[test]
fn death_in_the_middle_of_a_tag_closes_it() {
    let room = Room::new();
    let mut dying = room.connect();
    let mut living = room.connect();
    say(&mut dying, &json!({"op": "begin", "tag": "train"}));
    let open = room.mark();
    say(&mut living, &json!({"op": "begin", "tag": "train"}));
    dying.write_all(b"{\"op\":\"begin\",\"tag\":\"half a li").unwrap();
    let died = Client::now();
    drop(dying);
    let marks = room.marks_until_close(open.stack);
    assert_eq!(ops(&marks), [begin("train"), MarkOp::Close]);
    assert!(marks[1].at.0 >= died);
    // The other client's tag is still open: it can be ended, which only an open tag can.
    assert_eq!(ask(&mut living, &json!({"op": "end", "tag": "train", "id": 1}))["ok"], json!(true));
}

/// A client that only marks is left alone after a read: its next mark lies in the socket and wakes nobody. What
/// ends the rest at once: another connection, and its own death.
#[test]
fn a_client_that_only_marks_is_left_alone_for_a_while() {
    // Far longer than the test: what comes before, comes for another reason.
    let room = Room::with(Limits { rest: Duration::from_secs(3600), ..Limits::default() }, 1000);
    let mut other = room.connect();
    let mut client = room.connect();
    let step = |n: u64| json!({"op": "step", "step": n, "t": Client::now()});
    say(&mut client, &step(1));
    let opened = room.mark();
    assert!(matches!(room.mark().op, MarkOp::Step { step: 1, .. }));
    let before = Client::now();
    say(&mut client, &step(2));
    let after = Client::now();
    // Whoever wants answers is read at once, and after two of them the step would have been seen.
    for _ in 0..2 {
        assert_eq!(ask(&mut other, &json!({"op": "end", "tag": "none", "id": 1}))["ok"], json!(false));
    }
    let others: Vec<ControlEvent> = room.events.try_iter().collect();
    let its_own = |event: &ControlEvent| matches!(event, ControlEvent::Mark(m) if m.stack == opened.stack);
    assert!(!others.iter().any(its_own), "{others:?}");
    drop(room.connect());
    let second = room.mark();
    assert!(matches!(second.op, MarkOp::Step { step: 2, .. }));
    assert!((before..=after).contains(&second.at.0), "the instant is the client's own");
    say(&mut client, &step(3));
    drop(client);
    let rest = room.marks_until_close(opened.stack);
    assert!(matches!(rest[0].op, MarkOp::Step { step: 3, .. }));
    assert_eq!(rest.len(), 2);
    assert_eq!(room.stop().0.clients, 2, "a connection that says nothing is no client");
}

/// Who waits for answers, and whose marks count when they are read, is read at once.
#[test]
fn a_client_in_a_hurry_is_not_left_alone() {
    let room = Room::with(Limits { rest: Duration::from_secs(3600), ..Limits::default() }, 1000);
    let mark = || loop {
        if let Mark { op: MarkOp::Step { step, .. }, .. } = room.mark() {
            return step;
        }
    };
    let mut asking = room.connect();
    assert_eq!(ask(&mut asking, &json!({"op": "step", "step": 1, "t": 1, "id": 1}))["ok"], json!(true));
    say(&mut asking, &json!({"op": "step", "step": 2, "t": 2}));
    say(&mut asking, &json!({"op": "step", "step": 3, "t": 3}));
    assert_eq!([mark(), mark(), mark()], [1, 2, 3]);
    let mut stampless = room.connect();
    for n in 4..7 {
        say(&mut stampless, &json!({"op": "step", "step": n}));
        assert_eq!(mark(), n);
    }
    let mut patient = room.connect();
    let first = ask(&mut patient, &json!({"op": "step", "step": 7, "t": 7, "id": 1, "patient": true}));
    assert_eq!((first["ok"].clone(), mark()), (json!(true), 7));
    say(&mut patient, &json!({"op": "step", "step": 8, "t": 8}));
    assert_eq!(ask(&mut asking, &json!({"op": "step", "step": 9, "t": 9, "id": 1}))["ok"], json!(true));
    assert_eq!(ask(&mut asking, &json!({"op": "step", "step": 10, "t": 10, "id": 1}))["ok"], json!(true));
    assert_eq!([mark(), mark()], [9, 10], "the patient one rests");
    drop(patient);
    assert_eq!(mark(), 8);
}

#[test]
fn an_end_only_ends_its_own_tag() {
    let room = Room::new();
    let mut client = room.connect();
    say(&mut client, &json!({"op": "begin", "tag": "a", "span": 1}));
    // Refused: the name is taken. Its end must not end the outer one (a bug of nvitop's collector).
    let refused = ask(&mut client, &json!({"op": "begin", "tag": "a", "span": 2, "id": 1}));
    assert_eq!(refused["ok"], json!(false));
    say(&mut client, &json!({"op": "end", "span": 2}));
    say(&mut client, &json!({"op": "begin", "tag": "b", "span": 3}));
    say(&mut client, &json!({"op": "begin", "tag": "c", "span": 4}));
    // Ends c with it; the late end of c then finds nothing and is harmless.
    say(&mut client, &json!({"op": "end", "span": 3}));
    say(&mut client, &json!({"op": "end", "span": 4}));
    say(&mut client, &json!({"op": "end", "span": 1}));
    drop(client);
    let open = room.mark();
    let marks = room.marks_until_close(open.stack);
    assert_eq!(ops(&marks), [begin("a"), begin("b"), begin("c"), end("b"), end("a"), MarkOp::Close]);
}

#[test]
fn names_against_the_rules_and_values_without_number_are_dropped() {
    let room = Room::new();
    let mut client = room.connect();
    for (n, tag) in ["", "a/b", "a\u{7}b", &"x".repeat(129)].into_iter().enumerate() {
        let reply = ask(&mut client, &json!({"op": "begin", "tag": tag, "id": n}));
        assert_eq!((&reply["ok"], &reply["id"]), (&json!(false), &json!(n)), "{tag}");
    }
    for message in [
        json!({"op": "begin", "id": 1}),
        json!({"op": "step", "id": 1}),
        json!({"op": "log", "id": 1}),
        json!({"op": "log", "values": {"": 1, "x\n": 2, "text": "3", "none": null}, "id": 1}),
        json!({"op": "end", "tag": "never begun", "id": 1}),
        json!({"op": "sing", "id": 1}),
    ] {
        assert_eq!(ask(&mut client, &message)["ok"], json!(false), "{message}");
    }
    client
        .write_all(b"{\"op\":\"log\",\"values\":{\"a\":1e999}}\n{\"op\":\"log\",\"values\":{\"a\":NaN}}\n")
        .unwrap();
    let reply = ask(&mut client, &json!({"op": "log", "values": {"train/loss": 2, "é": -0.5}, "id": 1}));
    assert_eq!(reply["ok"], json!(true));
    drop(client);
    let open = room.mark();
    let marks = room.marks_until_close(open.stack);
    let MarkOp::Log { values, .. } = &marks[0].op else { panic!("{marks:?}") };
    assert_eq!(values.len(), 2);
    assert_eq!(marks[1].op, MarkOp::Close);
}

#[test]
fn garbage_and_lines_without_end_cost_only_themselves() {
    let limits = Limits { bytes_per_second: 1 << 30, ..Limits::default() };
    let room = Room::with(limits, 1000);
    let mut client = room.connect();
    client.write_all(b"\x00\xff\xfe garbage \r\n[1,2]\n\n   \n\"text\"\nnull\n{\"op\":5}\n").unwrap();
    client.write_all("[".repeat(60_000).as_bytes()).unwrap();
    client.write_all(b"\n").unwrap();
    let block = vec![b'x'; 1 << 20];
    for _ in 0..64 {
        client.write_all(&block).unwrap();
    }
    client.write_all(b"\n{\"op\":\"step\",\"step\":1}\n").unwrap();
    // A line at the limit, newline included, is still a message; one byte more is not.
    for (length, step) in [(64 * 1024, 2), (64 * 1024 + 1, 3), (100, 4)] {
        let mut line = format!("{{\"op\":\"step\",\"step\":{step},\"pad\":\"");
        line.push_str(&"p".repeat(length - line.len() - 3));
        line.push_str("\"}\n");
        assert_eq!(line.len(), length);
        client.write_all(line.as_bytes()).unwrap();
    }
    drop(client);
    let open = room.mark();
    let steps: Vec<i64> = room
        .marks_until_close(open.stack)
        .iter()
        .filter_map(|mark| match mark.op {
            MarkOp::Step { step, .. } => Some(step),
            _ => None,
        })
        .collect();
    assert_eq!(steps, [1, 2, 4]);
    room.still_serves();
    let (counts, _) = room.stop();
    // Five short lines, the brackets, the 64 MiB, the 64 KiB + 1.
    assert_eq!(counts.bad_messages, 8);
}

#[test]
fn a_flood_loses_marks_but_no_end_and_nobody_elses() {
    let limits = Limits { marks_per_second: 100, tags_per_second: 10, ..Limits::default() };
    let room = Room::with(limits, 100_000);
    let mut flooder = room.connect();
    let mut text = String::new();
    for n in 0..5000 {
        text.push_str(&format!(
            "{{\"op\":\"begin\",\"tag\":\"t\",\"span\":{n}}}\n{{\"op\":\"step\",\"step\":{n}}}\n"
        ));
        text.push_str(&format!("{{\"op\":\"end\",\"span\":{n}}}\n"));
    }
    flooder.write_all(text.as_bytes()).unwrap();
    room.still_serves();
    let (counts, events) = {
        drop(flooder);
        room.stop()
    };
    let mut open = 0i32;
    let (mut begun, mut steps) = (0, 0);
    for event in &events {
        let ControlEvent::Mark(mark) = event else { continue };
        match mark.op {
            MarkOp::Begin { .. } => (open, begun) = (open + 1, begun + 1),
            MarkOp::End { .. } => open -= 1,
            MarkOp::Step { .. } => steps += 1,
            _ => {}
        }
        assert!((0..=1).contains(&open));
    }
    assert_eq!(open, 0);
    assert!(begun < 5000 && steps < 5000, "{begun} {steps}");
    assert!(counts.dropped_marks > 0);
}

#[test]
fn an_engine_that_does_not_listen_costs_marks_not_memory_and_ends_still_arrive() {
    let limits = Limits { waiting_events: 50, ..Limits::default() };
    let room = Room::with(limits, 4);
    let mut client = room.connect();
    say(&mut client, &json!({"op": "begin", "tag": "a"}));
    for n in 0..500 {
        say(&mut client, &json!({"op": "step", "step": n}));
    }
    say(&mut client, &json!({"op": "end", "tag": "a"}));
    // The reply shows that everything before it has been read, although nobody received an event yet.
    assert_eq!(ask(&mut client, &json!({"op": "nothing", "id": 1}))["ok"], json!(false));
    assert_eq!(room.server().counts().dropped_marks, 500 - (50 + 4 - 2));
    drop(client);
    let open = room.mark();
    let marks = room.marks_until_close(open.stack);
    assert_eq!(marks.first().unwrap().op, begin("a"));
    assert_eq!(ops(&marks[marks.len() - 2..]), [end("a"), MarkOp::Close]);
}

#[test]
fn a_reader_that_never_reads_stops_nothing() {
    let room = Room::new();
    let mut stuck = room.connect();
    let big = json!({"text": "y".repeat(400_000)});
    for n in 0..20 {
        say(&mut stuck, &json!({"op": "snapshot", "id": n}));
        loop {
            // Between the requests come the marks of `still_serves`' client.
            if let ControlEvent::Snapshot { reply } = room.next() {
                reply.send(big.clone());
                break;
            }
        }
        // Answered, so the count of open requests never refuses the next one; only the reader is slow.
        room.still_serves();
    }
    assert!(room.server().counts().dropped_replies >= 10);
    // What did arrive are whole lines.
    stuck.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = String::new();
    let _ = BufReader::new(&stuck).read_to_string(&mut all);
    let first = all.lines().next().unwrap();
    assert_eq!(serde_json::from_str::<Value>(first).unwrap()["id"], json!(0));
}

#[test]
fn requests_are_answered_filtered_refused_and_bounded() {
    let room = Room::with(Limits { requests: 2, ..Limits::default() }, 100);
    let mut client = Client::connect(room.path()).unwrap();
    let answer = json!({
        "time": 1.0,
        "gpus": [{"gpu": 0, "metrics": {"a (%)": {"mean": 1}, "b (%)": {"mean": 2}}}],
        "host": {"metrics": {"c": {}}},
    });
    let asked = std::thread::spawn(move || {
        let filtered = json!({"op": "snapshot", "parts": ["gpus"], "metrics": ["b (%)"]});
        let whole = client.ask(json!({"op": "snapshot"}), PATIENCE);
        let filtered = client.ask(filtered, PATIENCE);
        let unanswered = client.ask(json!({"op": "collect"}), PATIENCE);
        (whole.unwrap(), filtered.unwrap(), unanswered)
    });
    for _ in 0..2 {
        let ControlEvent::Snapshot { reply } = room.next() else { panic!("no snapshot") };
        reply.send(answer.clone());
    }
    let Mark { op: MarkOp::Open { rank: None }, .. } = room.mark() else { panic!("no open") };
    let ControlEvent::Collect { reply, .. } = room.next() else { panic!("no collect") };
    drop(reply);
    let (whole, filtered, unanswered) = asked.join().unwrap();
    assert_eq!(whole, answer);
    assert_eq!(filtered, json!({"time": 1.0, "gpus": [{"gpu": 0, "metrics": {"b (%)": {"mean": 2}}}]}));
    assert!(unanswered.unwrap_err().to_string().contains("no answer"));

    let mut greedy = room.connect();
    for n in 0..3 {
        say(&mut greedy, &json!({"op": "snapshot", "id": n}));
    }
    let mut line = String::new();
    BufReader::new(&greedy).read_line(&mut line).unwrap();
    let reply: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&reply["id"], &reply["ok"]), (&json!(2), &json!(false)));
}

/// Only root can become somebody else; for others the kernel's own check of the 0600 socket has to do.
#[test]
fn another_user_is_refused_even_with_the_doors_open() {
    if !Path::new("/proc/self").metadata().is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        return;
    }
    let room = Room::new();
    // Everything that the file system would stop is let through: only the peer's user is left to decide.
    for path in room.path().ancestors().take_while(|path| *path != std::env::temp_dir()) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let talk = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); \
        s.sendall(b'{\"op\":\"hello\",\"id\":1}\\n'); print(len(s.recv(1000)))";
    let mut stranger = Command::new("python3");
    stranger.args(["-c", talk]).arg(room.path()).uid(65534).gid(65534).current_dir("/");
    let output = stranger.output().unwrap();
    // Closed before or after it could write: it never gets an answer.
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said == "0\n" || error.contains("BrokenPipe") || error.contains("ConnectionReset"),
        "{said} {error}"
    );
    assert_eq!(room.server().counts().refused, 1);
    room.still_serves();
}

#[test]
fn connections_are_bounded_and_freed() {
    let room = Room::with(Limits { connections_per_process: 3, ..Limits::default() }, 100);
    let mut clients: Vec<_> = (0..3).map(|_| room.connect()).collect();
    for client in &mut clients {
        assert_eq!(ask(client, &json!({"op": "hello", "id": 1}))["ok"], json!(true));
    }
    let mut refused = room.connect();
    assert_eq!(refused.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(room.server().counts().refused, 1);
    drop(clients.pop());
    // Closing is asynchronous: a new client is let in as soon as the server has seen the old one go.
    loop {
        let mut client = room.connect();
        let _ = client.write_all(b"{\"op\":\"hello\",\"id\":1}\n");
        if matches!(client.read(&mut [0; 1]), Ok(1)) {
            break;
        }
    }
}

#[test]
fn a_named_stack_outlives_its_connections() {
    let room = Room::new();
    let hello = json!({"op": "hello", "version": 1, "stack": "shell", "rank": 0, "id": 1});
    for message in [
        json!({"op": "begin", "tag": "load", "id": 2}),
        json!({"op": "step", "step": 1, "id": 2}),
        json!({"op": "end", "id": 2}),
    ] {
        let mut client = room.connect();
        assert_eq!(ask(&mut client, &hello)["ok"], json!(true));
        assert_eq!(ask(&mut client, &message)["ok"], json!(true));
    }
    let open = room.mark();
    let (_, events) = room.stop();
    let marks: Vec<Mark> = events
        .into_iter()
        .filter_map(|event| match event {
            ControlEvent::Mark(mark) => Some(mark),
            _ => None,
        })
        .collect();
    assert!(marks.iter().all(|mark| mark.stack == open.stack));
    let step = MarkOp::Step { step: 1, began: None, first_of_epoch: false };
    assert_eq!(ops(&marks), [begin("load"), step, end("load"), MarkOp::Close]);
}

#[test]
fn draining_delivers_what_was_sent_and_stopping_removes_the_socket() {
    let room = Room::new();
    let mut clients: Vec<_> = (0..8).map(|_| room.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        for step in 0..100 {
            say(client, &json!({"op": "step", "step": step, "t": n}));
        }
    }
    room.server().drain();
    let mut steps = 0;
    loop {
        match room.next() {
            ControlEvent::Mark(Mark { op: MarkOp::Step { .. }, .. }) => steps += 1,
            ControlEvent::Mark(_) => {}
            ControlEvent::Drained => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(steps, 800);
    let path = room.path().to_path_buf();
    let (_, events) = room.stop();
    assert_eq!(events.len(), 8, "one Close each: {events:?}");
    assert!(!path.exists() && !path.parent().unwrap().exists());
}
