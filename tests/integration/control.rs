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

use gpurun::control::{Client, ControlEvent, Limits, Server, Settings};
use gpurun::model::id::StackId;
use gpurun::model::limits;
use gpurun::model::loss::{Loss, Losses};
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
    let (losses, _) = room.stop();
    assert_eq!(losses.iter().collect::<Vec<_>>(), [(Loss::Values, 1)]);
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
        json!({"op": "log", "values": {"": 1, "x\n": 2, "text": "3", "list": [null]}, "id": 1}),
        json!({"op": "end", "tag": "never begun", "id": 1}),
        json!({"op": "sing", "id": 1}),
    ] {
        assert_eq!(ask(&mut client, &message)["ok"], json!(false), "{message}");
    }
    client.write_all(b"{\"op\":\"log\",\"values\":{\"a\":NaN}}\n").unwrap();
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
    let (losses, _) = room.stop();
    // Five short lines, the brackets, the 64 MiB, the 64 KiB + 1.
    assert_eq!(losses.get(Loss::Messages), 8);
}

#[test]
fn a_flood_loses_marks_but_no_end_and_nobody_elses() {
    let limits = Limits { marks_per_second: 100, tags_per_second: 10, tag_burst: 20, ..Limits::default() };
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
    drop(flooder);
    let (losses, events) = room.stop();
    let mut open = 0i32;
    let (mut begun, mut steps) = (0_u64, 0_u64);
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
    // `still_serves` has taken what came before its own mark; nothing is both marked and lost.
    assert!(losses.get(Loss::TagRate) > 0 && begun + losses.get(Loss::TagRate) <= 5000);
    assert!(losses.get(Loss::MarkRate) > 0 && steps + losses.get(Loss::MarkRate) <= 5000);
}

/// While nobody takes events, clients are not read: their marks wait in the socket, and none is lost.
#[test]
fn events_that_nobody_takes_cost_no_mark_and_little_memory() {
    const STEPS: usize = 20_000;
    let limits = Limits { waiting_events: 50, ..Limits::default() };
    let room = Room::with(limits, 4);
    let mut client = room.connect();
    let writer = std::thread::spawn(move || {
        say(&mut client, &json!({"op": "begin", "tag": "a"}));
        let mut lines = String::new();
        for n in 0..STEPS {
            lines.push_str(&format!("{{\"op\":\"step\",\"step\":{n}}}\n"));
        }
        client.write_all(lines.as_bytes()).unwrap();
        say(&mut client, &json!({"op": "end", "tag": "a"}));
    });
    let open = room.mark();
    let marks = room.marks_until_close(open.stack);
    writer.join().unwrap();
    assert_eq!(marks.len(), STEPS + 3);
    assert_eq!(marks.first().unwrap().op, begin("a"));
    assert_eq!(ops(&marks[marks.len() - 2..]), [end("a"), MarkOp::Close]);
    assert_eq!(room.stop().0, Losses::default());
}

/// What training does at its most: names of 10,000 layers, 100,000 scalars and 5,000 short tags at once.
#[test]
fn ordinary_training_reaches_no_bound() {
    let room = Room::with(Limits::default(), 1_000_000);
    let mut client = room.connect();
    let mut lines = String::new();
    for n in 0..10_000 {
        let value = json!({"op": "log", "values": {format!("layers.{n}.weight/norm"): n}});
        lines.push_str(&format!("{value}\n"));
    }
    for n in 0..100_000 {
        lines.push_str(&format!("{{\"op\":\"log\",\"step\":{n},\"values\":{{\"loss\":1}}}}\n"));
    }
    for n in 0..5_000 {
        lines.push_str(&format!("{{\"op\":\"begin\",\"tag\":\"t\",\"span\":{n}}}\n"));
        lines.push_str(&format!("{{\"op\":\"end\",\"span\":{n}}}\n"));
    }
    client.write_all(lines.as_bytes()).unwrap();
    drop(client);
    let open = room.mark();
    assert_eq!(room.marks_until_close(open.stack).len(), 10_000 + 100_000 + 10_000 + 1);
    assert_eq!(room.stop().0, Losses::default());
}

#[test]
fn a_loss_is_said_when_it_begins_and_counted_to_the_end() {
    let limits = Limits { names: 2, depth: 1, ..Limits::default() };
    let room = Room::with(limits, 1000);
    let mut client = room.connect();
    let reply = ask(&mut client, &json!({"op": "log", "values": {"a": 1, "b": 2, "c": 3, "d": 4}, "id": 1}));
    assert_eq!(reply["ok"], json!(false));
    let names = format!("more than {} different names", limits::SCALAR_NAMES);
    let line = room.notice();
    assert!(line.ends_with(&format!("scalars: {names}")), "{line}");
    for tag in ["a", "b", "c"] {
        say(&mut client, &json!({"op": "begin", "tag": tag}));
    }
    let line = room.notice();
    assert!(line.contains("tags: nested deeper than"), "{line}");
    say(&mut client, &json!({"op": "dropped", "dropped": 12}));
    assert!(room.notice().contains("faster than gpurun read them"));
    let lost = [(Loss::TagDepth, 2), (Loss::ScalarNames, 2), (Loss::Unread, 12)];
    let (losses, rest) = room.stop();
    assert_eq!(losses.iter().collect::<Vec<_>>(), lost);
    assert!(!rest.iter().any(|event| matches!(event, ControlEvent::Notice(_))), "{rest:?}");
}

#[test]
fn one_bad_value_costs_no_good_one() {
    let room = Room::new();
    let mut client = room.connect();
    let deep = "[".repeat(20_000) + &"]".repeat(20_000);
    let values = format!(r#"{{"a":1,"far":1e400,"deep":{deep},"text":"x","b":2,"diverged":null}}"#);
    client.write_all(format!("{{\"op\":\"log\",\"id\":1,\"values\":{values}}}\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(&client).read_line(&mut line).unwrap();
    assert!(line.contains("not a number"), "{line}");
    // A message that is no JSON in one field is answered where its id can be read.
    let reply = ask(&mut client, &json!({"op": "step", "step": "x", "id": 2}));
    assert_eq!((&reply["id"], &reply["ok"]), (&json!(2), &json!(false)));
    let _open = room.mark();
    let MarkOp::Log { values, .. } = room.mark().op else { panic!("no scalars") };
    let kept: Vec<(&str, Option<f64>)> = values
        .iter()
        .map(|(name, value)| (&**name, Some(*value).filter(|value| value.is_finite())))
        .collect();
    assert_eq!(kept, [("a", Some(1.0)), ("far", None), ("b", Some(2.0)), ("diverged", None)]);
    let losses = room.stop().0;
    assert_eq!(losses.iter().collect::<Vec<_>>(), [(Loss::Messages, 1), (Loss::Values, 2)]);
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
    let room = Room { server: Some(server), events, _dir: dir };
    std::fs::remove_dir_all(&base).unwrap();
    let line = room.notice();
    assert!(line.contains("was removed") && line.contains("made again"), "{line}");
    // Those that were connected stay so, and a new process finds the socket where it was.
    say(&mut old, &json!({"op": "begin", "tag": "old"}));
    assert_eq!([room.mark().op, room.mark().op], [MarkOp::Open { rank: None }, begin("old")]);
    room.still_serves();
    drop(room);
    assert!(!base.join(std::process::id().to_string()).exists());
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
    assert!(room.server().losses().get(Loss::Replies) >= 10);
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
    assert_eq!(room.server().losses().get(Loss::Connections), 1);
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
fn stopping_delivers_what_was_sent_and_removes_the_socket() {
    let room = Room::new();
    let mut clients: Vec<_> = (0..8).map(|_| room.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        for step in 0..100 {
            say(client, &json!({"op": "step", "step": step, "t": n}));
        }
    }
    let path = room.path().to_path_buf();
    let (losses, events) = room.stop();
    let of_kind = |wanted: fn(&MarkOp) -> bool| {
        events.iter().filter(|event| matches!(event, ControlEvent::Mark(mark) if wanted(&mark.op))).count()
    };
    assert_eq!(of_kind(|op| matches!(op, MarkOp::Step { .. })), 800);
    assert_eq!((of_kind(|op| matches!(op, MarkOp::Close)), losses), (8, Losses::default()));
    assert!(!path.exists() && !path.parent().unwrap().exists());
}
