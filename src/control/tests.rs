//! Tests: the server against raw clients.

mod bounds;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::limits::Limits;
use super::{Client, ClientError, ControlEvent, Server, Settings};
use crate::model::id::StackId;
use crate::model::limits;
use crate::model::loss::{Loss, Losses};
use crate::model::mark::{Mark, MarkOp};
use crate::model::time::Mono;

/// Only bounds how long a broken server can hang a test; nothing is measured.
const PATIENCE: Duration = Duration::from_secs(60);

struct TestServer {
    server: Option<Server>,
    events: Receiver<ControlEvent>,
    _dir: tempfile::TempDir,
}

impl TestServer {
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

    fn inner(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    fn path(&self) -> &Path {
        self.inner().path()
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// The next event that is no notice.
    fn next(&self) -> ControlEvent {
        loop {
            match self.events.recv_timeout(PATIENCE).expect("an event in time") {
                ControlEvent::Notice(_) => {}
                event => return event,
            }
        }
    }

    /// The next notice; what else comes before it is dropped.
    fn notice(&self) -> String {
        loop {
            if let ControlEvent::Notice(line) = self.events.recv_timeout(PATIENCE).expect("a notice in time")
            {
                return line;
            }
        }
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

    fn stop(mut self) -> (Losses, Vec<ControlEvent>) {
        let losses = self.server.take().unwrap().stop(PATIENCE);
        (losses, self.events.try_iter().collect())
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
fn a_clients_marks_have_its_own_stamps() {
    let server = TestServer::new();
    let mode = std::fs::metadata(server.path()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let mut client = server.connect();
    let t0 = Client::now();
    let hello = ask(&mut client, &json!({"op": "hello", "version": 1, "rank": 3, "pid": 1, "id": 1}));
    assert_eq!(hello["result"]["run"], json!("test-run"));
    say(&mut client, &json!({"op": "begin", "tag": "train", "t": t0}));
    say(&mut client, &json!({"op": "begin", "tag": "batch", "t": t0 + 1}));
    say(&mut client, &json!({"op": "epoch", "epoch": 4, "t": t0 + 2}));
    say(&mut client, &json!({"op": "step_begin", "step": 8, "t": t0 + 2}));
    say(&mut client, &json!({"op": "step", "step": 8, "t": t0 + 3, "began": t0 + 2, "samples": 64}));
    say(&mut client, &json!({"op": "step", "step": 9, "t": t0 + 5, "began": t0 + 4, "first": true}));
    say(&mut client, &json!({"op": "log", "step": 9, "t": t0 + 6, "values": {"loss": 0.5, "bad": "x"}}));
    say(&mut client, &json!({"op": "clear", "tag": "batch", "t": t0 + 7}));
    say(&mut client, &json!({"op": "end", "t": t0 + 8}));
    say(&mut client, &json!({"op": "end", "tag": "train", "t": t0 + 9}));
    let open = server.mark();
    assert_eq!(open.op, MarkOp::Open { rank: Some(3) });
    drop(client);
    let marks = server.marks_until_close(open.stack);
    let step = |n: u64| t0 + n;
    let at: Vec<u64> = marks.iter().map(|mark| mark.at.0).collect();
    assert_eq!(at[..11], [0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9].map(step));
    assert!(at[11] > step(9));
    let began = |n: u64| Some(Mono(t0 + n));
    assert_eq!(
        ops(&marks),
        [
            begin("train"),
            begin("batch"),
            MarkOp::Epoch { epoch: Some(4) },
            MarkOp::StepBegin { step: Some(8) },
            MarkOp::Step { step: 8, count: 1, began: began(2), samples: Some(64) },
            MarkOp::Epoch { epoch: None },
            MarkOp::Step { step: 9, count: 1, began: began(4), samples: None },
            MarkOp::Log { step: Some(9), values: vec![("loss".into(), 0.5)] },
            MarkOp::Clear { tag: Some("batch".into()) },
            end("batch"),
            end("train"),
            MarkOp::Close,
        ]
    );
    let (losses, _) = server.stop();
    assert_eq!(losses.iter().collect::<Vec<_>>(), [(Loss::Values, 1)]);
}

#[test]
fn not_finite_as_python_writes_it_costs_no_other_value() {
    let server = TestServer::new();
    let mut client = server.connect();
    let line = r#"{"op":"log","id":1,"values":{"NaN":1,"loss":NaN,"lr":-Infinity,"acc":2}}"#;
    client.write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut reply = String::new();
    BufReader::new(&client).read_line(&mut reply).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&reply).unwrap()["ok"], json!(true));
    let open = server.mark();
    drop(client);
    let marks = ops(&server.marks_until_close(open.stack));
    let MarkOp::Log { values, .. } = &marks[0] else { panic!("{marks:?}") };
    let found: Vec<_> =
        values.iter().map(|(name, value)| (&**name, value.is_finite().then_some(*value))).collect();
    assert_eq!(found, [("NaN", Some(1.0)), ("loss", None), ("lr", None), ("acc", Some(2.0))]);
    let (losses, _) = server.stop();
    assert_eq!(losses.iter().count(), 0);
}

#[test]
fn stamps_from_the_future_and_the_past_are_brought_back() {
    let before = Client::now();
    let server = TestServer::new();
    let mut client = server.connect();
    say(&mut client, &json!({"op": "step", "step": 1, "t": 1}));
    say(&mut client, &json!({"op": "step", "step": 2, "t": u64::MAX, "began": 0}));
    say(&mut client, &json!({"op": "step", "step": 3, "t": 5, "began": u64::MAX}));
    let _open = server.mark();
    let marks = [server.mark(), server.mark(), server.mark()];
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
    let server = TestServer::new();
    let mut dying = server.connect();
    let mut living = server.connect();
    say(&mut dying, &json!({"op": "begin", "tag": "train"}));
    let open = server.mark();
    say(&mut living, &json!({"op": "begin", "tag": "train"}));
    dying.write_all(b"{\"op\":\"begin\",\"tag\":\"half a li").unwrap();
    let died = Client::now();
    drop(dying);
    let marks = server.marks_until_close(open.stack);
    assert_eq!(ops(&marks), [begin("train"), MarkOp::Close]);
    assert!(marks[1].at.0 >= died);
    // The other client's tag is still open: it can be ended, which only an open tag can.
    assert_eq!(ask(&mut living, &json!({"op": "end", "tag": "train", "id": 1}))["ok"], json!(true));
}

#[test]
fn an_end_only_ends_its_own_tag() {
    let server = TestServer::new();
    let mut client = server.connect();
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
    let open = server.mark();
    let marks = server.marks_until_close(open.stack);
    assert_eq!(ops(&marks), [begin("a"), begin("b"), begin("c"), end("b"), end("a"), MarkOp::Close]);
}

#[test]
fn names_against_the_rules_and_values_without_number_are_dropped() {
    let server = TestServer::new();
    let mut client = server.connect();
    for (n, tag) in ["", "a/b", "a\u{7}b", &"x".repeat(129)].into_iter().enumerate() {
        let reply = ask(&mut client, &json!({"op": "begin", "tag": tag, "id": n}));
        assert_eq!((&reply["ok"], &reply["id"]), (&json!(false), &json!(n)), "{tag}");
    }
    for message in [
        json!({"op": "begin", "id": 1}),
        json!({"op": "step", "id": 1}),
        json!({"op": "log", "id": 1}),
        json!({"op": "log", "values": {"": 1, "x\n": 2, "text": "3", "list": [null]}, "id": 1}),
        json!({"op": "end", "tag": "never begun", "id": 1}),
        json!({"op": "sing", "id": 1}),
    ] {
        assert_eq!(ask(&mut client, &message)["ok"], json!(false), "{message}");
    }
    client.write_all(b"{\"op\":\"log\",\"values\":{\"a\":nan}}\n").unwrap();
    let reply = ask(&mut client, &json!({"op": "log", "values": {"train/loss": 2, "é": -0.5}, "id": 1}));
    assert_eq!(reply["ok"], json!(true));
    drop(client);
    let open = server.mark();
    let marks = server.marks_until_close(open.stack);
    let MarkOp::Log { values, .. } = &marks[0].op else { panic!("{marks:?}") };
    assert_eq!(values.len(), 2);
    assert_eq!(marks[1].op, MarkOp::Close);
}

#[test]
fn a_socket_that_is_removed_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let (sender, events) = sync_channel(100);
    let base = dir.path().join("c");
    let settings =
        Settings { dir: Some(base.clone()), check_every: Duration::from_millis(1), ..Settings::default() };
    let server = Server::start(settings, Server::sink(sender, |e| e, Some)).unwrap();
    let mut old = UnixStream::connect(server.path()).unwrap();
    let server = TestServer { server: Some(server), events, _dir: dir };
    std::fs::remove_dir_all(&base).unwrap();
    let line = server.notice();
    assert!(line.contains("was removed") && line.contains("made again"), "{line}");
    // Those that were connected stay so, and a new process finds the socket where it was.
    say(&mut old, &json!({"op": "begin", "tag": "old"}));
    assert_eq!([server.mark().op, server.mark().op], [MarkOp::Open { rank: None }, begin("old")]);
    server.still_serves();
    drop(server);
    assert!(!base.join(std::process::id().to_string()).exists());
}

#[test]
fn requests_are_answered_filtered_refused_and_bounded() {
    let server = TestServer::with(Limits { requests: 2, ..Limits::default() }, 100);
    let mut client = Client::connect(server.path()).unwrap();
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
        let ControlEvent::Snapshot { reply } = server.next() else { panic!("no snapshot") };
        reply.send(answer.clone());
    }
    let Mark { op: MarkOp::Open { rank: None }, .. } = server.mark() else { panic!("no open") };
    let ControlEvent::Collect { reply, .. } = server.next() else { panic!("no collect") };
    drop(reply);
    let (whole, filtered, unanswered) = asked.join().unwrap();
    assert_eq!(whole, answer);
    assert_eq!(filtered, json!({"time": 1.0, "gpus": [{"gpu": 0, "metrics": {"b (%)": {"mean": 2}}}]}));
    assert!(unanswered.unwrap_err().to_string().contains("cannot answer"));

    let mut greedy = server.connect();
    for n in 0..3 {
        say(&mut greedy, &json!({"op": "snapshot", "id": n}));
    }
    let mut line = String::new();
    BufReader::new(&greedy).read_line(&mut line).unwrap();
    let reply: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&reply["id"], &reply["ok"]), (&json!(2), &json!(false)));
}

#[test]
fn a_named_stack_outlives_its_connections() {
    let server = TestServer::new();
    let hello = json!({"op": "hello", "version": 1, "stack": "shell", "rank": 0, "id": 1});
    for message in [
        json!({"op": "begin", "tag": "load", "id": 2}),
        json!({"op": "step", "step": 1, "id": 2}),
        json!({"op": "end", "id": 2}),
    ] {
        let mut client = server.connect();
        assert_eq!(ask(&mut client, &hello)["ok"], json!(true));
        assert_eq!(ask(&mut client, &message)["ok"], json!(true));
    }
    let open = server.mark();
    let (_, events) = server.stop();
    let marks: Vec<Mark> = events
        .into_iter()
        .filter_map(|event| match event {
            ControlEvent::Mark(mark) => Some(mark),
            _ => None,
        })
        .collect();
    assert!(marks.iter().all(|mark| mark.stack == open.stack));
    let step = MarkOp::Step { step: 1, count: 1, began: None, samples: None };
    assert_eq!(ops(&marks), [begin("load"), step, end("load"), MarkOp::Close]);
}

#[test]
fn stopping_delivers_what_was_sent_and_removes_the_socket() {
    let server = TestServer::new();
    let mut clients: Vec<_> = (0..8).map(|_| server.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        for step in 0..100 {
            say(client, &json!({"op": "step", "step": step, "t": n}));
        }
    }
    let path = server.path().to_path_buf();
    let (losses, events) = server.stop();
    let of_kind = |wanted: fn(&MarkOp) -> bool| {
        events.iter().filter(|event| matches!(event, ControlEvent::Mark(mark) if wanted(&mark.op))).count()
    };
    assert_eq!(of_kind(|op| matches!(op, MarkOp::Step { .. })), 800);
    assert_eq!((of_kind(|op| matches!(op, MarkOp::Close)), losses), (8, Losses::default()));
    assert!(!path.exists() && !path.parent().unwrap().exists());
}

#[test]
fn a_full_queue_is_busy_and_a_removed_socket_unreachable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut waiting = Vec::new();
    let error = loop {
        match Client::connect(&path) {
            Ok(client) => waiting.push(client),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ClientError::Busy), "{error}");
    drop(listener);
    assert!(matches!(Client::connect(&path), Err(ClientError::Unreachable(_))));
}
