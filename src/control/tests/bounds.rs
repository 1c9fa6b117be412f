//! Tests: what hostile and very busy clients may cost, and what is counted of them.

use super::*;

#[test]
fn garbage_and_lines_without_end_cost_only_themselves() {
    let limits = Limits { bytes_per_second: 1 << 30, ..Limits::default() };
    let server = TestServer::with(limits, 1000);
    let mut client = server.connect();
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
    let open = server.mark();
    let steps: Vec<i64> = server
        .marks_until_close(open.stack)
        .iter()
        .filter_map(|mark| match mark.op {
            MarkOp::Step { step, .. } => Some(step),
            _ => None,
        })
        .collect();
    assert_eq!(steps, [1, 2, 4]);
    server.still_serves();
    let (losses, _) = server.stop();
    // Five short lines, the brackets, the 64 MiB, the 64 KiB + 1.
    assert_eq!(losses.get(Loss::Messages), 8);
}

#[test]
fn a_flood_loses_marks_but_no_end_and_none_of_others() {
    let limits = Limits { marks_per_second: 100, tags_per_second: 10, tag_burst: 20, ..Limits::default() };
    let server = TestServer::with(limits, 100_000);
    let mut flooder = server.connect();
    let mut text = String::new();
    for n in 0..5000 {
        text.push_str(&format!(
            "{{\"op\":\"begin\",\"tag\":\"t\",\"span\":{n}}}\n{{\"op\":\"step\",\"step\":{n}}}\n"
        ));
        text.push_str(&format!("{{\"op\":\"end\",\"span\":{n}}}\n"));
    }
    flooder.write_all(text.as_bytes()).unwrap();
    server.still_serves();
    drop(flooder);
    let (losses, events) = server.stop();
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

/// While no events are taken, clients are not read: their marks wait in the socket, and none is lost.
#[test]
fn events_that_are_not_taken_cost_no_mark_and_little_memory() {
    const STEPS: usize = 20_000;
    let limits = Limits { waiting_events: 50, ..Limits::default() };
    let server = TestServer::with(limits, 4);
    let mut client = server.connect();
    let writer = std::thread::spawn(move || {
        say(&mut client, &json!({"op": "begin", "tag": "a"}));
        let mut lines = String::new();
        for n in 0..STEPS {
            lines.push_str(&format!("{{\"op\":\"step\",\"step\":{n}}}\n"));
        }
        client.write_all(lines.as_bytes()).unwrap();
        say(&mut client, &json!({"op": "end", "tag": "a"}));
    });
    let open = server.mark();
    let marks = server.marks_until_close(open.stack);
    writer.join().unwrap();
    assert_eq!(marks.len(), STEPS + 3);
    assert_eq!(marks.first().unwrap().op, begin("a"));
    assert_eq!(ops(&marks[marks.len() - 2..]), [end("a"), MarkOp::Close]);
    assert_eq!(server.stop().0, Losses::default());
}

/// What training does at its most: names of 10,000 layers, 100,000 scalars and 5,000 short tags at once.
#[test]
fn ordinary_training_reaches_no_bound() {
    let server = TestServer::with(Limits::default(), 1_000_000);
    let mut client = server.connect();
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
    let open = server.mark();
    assert_eq!(server.marks_until_close(open.stack).len(), 10_000 + 100_000 + 10_000 + 1);
    assert_eq!(server.stop().0, Losses::default());
}

#[test]
fn a_loss_is_said_when_it_begins_and_counted_to_the_end() {
    let limits = Limits { names: 2, depth: 1, ..Limits::default() };
    let server = TestServer::with(limits, 1000);
    let mut client = server.connect();
    let reply = ask(&mut client, &json!({"op": "log", "values": {"a": 1, "b": 2, "c": 3, "d": 4}, "id": 1}));
    assert_eq!(reply["ok"], json!(false));
    let names = format!("more than {} different names", limits::SCALAR_NAMES);
    let line = server.notice();
    assert_eq!(line, format!("not recorded: scalars of the job: {names}"));
    for tag in ["a", "b", "c"] {
        say(&mut client, &json!({"op": "begin", "tag": tag}));
    }
    let line = server.notice();
    assert!(line.contains("tags of the job: nested deeper than"), "{line}");
    say(&mut client, &json!({"op": "dropped", "dropped": 12}));
    assert!(server.notice().contains("faster than gpurun read them"));
    let lost = [(Loss::TagDepth, 2), (Loss::ScalarNames, 2), (Loss::Unread, 12)];
    let (losses, rest) = server.stop();
    assert_eq!(losses.iter().collect::<Vec<_>>(), lost);
    assert!(!rest.iter().any(|event| matches!(event, ControlEvent::Notice(_))), "{rest:?}");
}

#[test]
fn one_bad_value_costs_no_good_one() {
    let server = TestServer::new();
    let mut client = server.connect();
    let deep = "[".repeat(20_000) + &"]".repeat(20_000);
    let values = format!(r#"{{"a":1,"far":1e400,"deep":{deep},"text":"x","b":2,"diverged":null}}"#);
    client.write_all(format!("{{\"op\":\"log\",\"id\":1,\"values\":{values}}}\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(&client).read_line(&mut line).unwrap();
    assert!(line.contains("not a number"), "{line}");
    // A message that is no JSON in one field is answered where its id can be read.
    let reply = ask(&mut client, &json!({"op": "step", "step": "x", "id": 2}));
    assert_eq!((&reply["id"], &reply["ok"]), (&json!(2), &json!(false)));
    let _open = server.mark();
    let MarkOp::Log { values, .. } = server.mark().op else { panic!("no scalars") };
    let kept: Vec<(&str, Option<f64>)> = values
        .iter()
        .map(|(name, value)| (&**name, Some(*value).filter(|value| value.is_finite())))
        .collect();
    assert_eq!(kept, [("a", Some(1.0)), ("far", None), ("b", Some(2.0)), ("diverged", None)]);
    let losses = server.stop().0;
    assert_eq!(losses.iter().collect::<Vec<_>>(), [(Loss::Messages, 1), (Loss::Values, 2)]);
}

#[test]
fn a_reader_that_never_reads_stops_nothing() {
    let server = TestServer::new();
    let mut stuck = server.connect();
    let big = json!({"text": "y".repeat(400_000)});
    for n in 0..20 {
        say(&mut stuck, &json!({"op": "snapshot", "id": n}));
        loop {
            // Between the requests come the marks of `still_serves`' client.
            if let ControlEvent::Snapshot { reply } = server.next() {
                reply.send(big.clone());
                break;
            }
        }
        // Answered, so the count of open requests never refuses the next one; only the reader is slow.
        server.still_serves();
    }
    assert!(server.inner().losses().get(Loss::Replies) >= 10);
    // What did arrive are whole lines.
    stuck.shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = String::new();
    let _ = BufReader::new(&stuck).read_to_string(&mut all);
    let first = all.lines().next().unwrap();
    assert_eq!(serde_json::from_str::<Value>(first).unwrap()["id"], json!(0));
}

/// Only root can become another user; for others the kernel's own check of the 0600 socket has to do.
#[test]
fn another_user_is_refused_even_where_permissions_are_open() {
    if !Path::new("/proc/self").metadata().is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        return;
    }
    let server = TestServer::new();
    // Everything that the file system would stop is let through: only the peer's user is left to decide.
    for path in server.path().ancestors().take_while(|path| *path != std::env::temp_dir()) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let talk = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); \
        s.sendall(b'{\"op\":\"hello\",\"id\":1}\\n'); print(len(s.recv(1000)))";
    let mut other_user = Command::new("python3");
    other_user.args(["-c", talk]).arg(server.path()).uid(65534).gid(65534).current_dir("/");
    let output = other_user.output().unwrap();
    // Closed before or after it could write: it never gets an answer.
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said == "0\n" || error.contains("BrokenPipe") || error.contains("ConnectionReset"),
        "{said} {error}"
    );
    server.still_serves();
}

#[test]
fn connections_are_bounded_and_freed() {
    let server = TestServer::with(Limits { connections_per_process: 3, ..Limits::default() }, 100);
    let mut clients: Vec<_> = (0..3).map(|_| server.connect()).collect();
    for client in &mut clients {
        assert_eq!(ask(client, &json!({"op": "hello", "id": 1}))["ok"], json!(true));
    }
    let mut refused = server.connect();
    assert_eq!(refused.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(server.inner().losses().get(Loss::Connections), 1);
    drop(clients.pop());
    // Closing is asynchronous: a new client is let in as soon as the server has seen the old one go.
    loop {
        let mut client = server.connect();
        let _ = client.write_all(b"{\"op\":\"hello\",\"id\":1}\n");
        if matches!(client.read(&mut [0; 1]), Ok(1)) {
            break;
        }
    }
}
