//! A job on a terminal: its keys, the foreground and the background, and the end of the terminal.

use super::*;

/// The line to type for a job in a terminal.
fn line(way: Way, args: &str) -> String {
    let job = job().display();
    if way == Way::Bare { format!("{job} {args}") } else { format!("{GPURUN} -- {job} {args}") }
}

/// Asks a counting job in a terminal until it has had `count` signals.
fn counted(terminal: &mut Terminal, count: usize) -> Vec<String> {
    let mut all = Vec::new();
    until("the signals arrive", || {
        terminal.type_in("\n");
        terminal.expect("signals");
        let words = terminal.expect("\n");
        all.extend(words.split_ascii_whitespace().map(str::to_owned));
        all.len() >= count
    });
    all
}

#[test]
fn what_the_terminal_sends_arrives_once() {
    for way in BOTH {
        let mut terminal = Terminal::bash();
        terminal.type_in(&format!("{}\n", line(way, "count")));
        terminal.expect("ready ");
        terminal.expect("\n");
        for (keys, signal) in [("\x03", "2"), ("\x1c", "3"), ("\x1a", "20")] {
            terminal.type_in(keys);
            // A second copy would come with or before the next key's signal and break its count.
            assert_eq!(counted(&mut terminal, 1), [signal], "{way:?}");
        }
        terminal.resize(30);
        assert_eq!(counted(&mut terminal, 1), ["28"], "{way:?}");
        terminal.type_in("\x03");
        assert_eq!(counted(&mut terminal, 1), ["2"], "{way:?}");
        terminal.type_in("\x04");
        terminal.expect("PROMPT> ");
        assert_eq!(terminal.status(), "0", "{way:?}");
    }
}

#[test]
fn ctrl_z_fg_and_bg_work() {
    let seen = BOTH.map(|way| {
        let mut terminal = Terminal::bash();
        let mut log = Vec::new();
        terminal.type_in(&format!("{}\n", line(way, "wait")));
        terminal.expect("ready ");
        let job: i32 = terminal.expect("\n").trim().parse().unwrap();
        // A key typed before the shell's CONT has arrived would be undone by it.
        let running = || until("it runs again", || !matches!(state(job), Some('T')));
        for _ in 0..10 {
            terminal.type_in("\x1a");
            log.push(terminal.expect("Stopped").contains("[1]+"));
            terminal.expect("PROMPT> ");
            log.push(terminal.status() == "148");
            terminal.type_in("fg\n");
            terminal.expect("wait");
            terminal.expect("\r\n");
            running();
        }
        // In the background it reads the terminal and is stopped for it.
        terminal.type_in("\x1a");
        terminal.expect("Stopped");
        terminal.expect("PROMPT> ");
        terminal.type_in("bg\n");
        terminal.expect("PROMPT> ");
        until("it is stopped for reading", || {
            let jobs = terminal.run("jobs -s");
            jobs.contains("Stopped")
        });
        terminal.type_in("fg\n");
        terminal.expect("wait");
        terminal.expect("\r\n");
        terminal.type_in("\x04");
        terminal.expect("PROMPT> ");
        log.push(terminal.status() == "0");
        log
    });
    assert!(seen[0].iter().all(|ok| *ok), "{:?}", seen[0]);
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn ctrl_c_stops_a_shells_loop() {
    let seen = BOTH.map(|way| {
        let mut terminal = Terminal::bash();
        terminal.type_in(&format!("for i in 1 2 3; do {}; echo \"next $i\"; done\n", line(way, "wait")));
        terminal.expect("ready ");
        terminal.type_in("\x03");
        let shown = terminal.expect("PROMPT> ");
        assert!(!shown.contains("next "), "{way:?} {shown}");
        terminal.status()
    });
    assert_eq!(seen[0], "130");
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn a_job_in_the_background_reads_when_it_is_in_the_foreground_again() {
    let seen = BOTH.map(|way| {
        let mut terminal = Terminal::bash();
        terminal.run(&format!("{} &", line(way, "read-terminal")));
        until("it is stopped for reading", || terminal.run("jobs -s").contains("Stopped"));
        terminal.type_in("fg\n");
        terminal.expect("read-terminal");
        terminal.expect("\r\n");
        terminal.type_in("hello\n");
        terminal.expect("got hello");
        terminal.expect("PROMPT> ");
        terminal.status()
    });
    assert_eq!(seen, ["0", "0"]);
}

#[test]
fn a_background_job_that_may_not_write_stops_and_gpurun_with_it() {
    let seen = BOTH.map(|way| {
        let mut terminal = Terminal::bash();
        terminal.run("stty tostop");
        terminal.run(&format!("{} &", line(way, "stop-self 18")));
        until("it is stopped for writing", || terminal.run("jobs -s").contains("Stopped"));
        terminal.type_in("fg\n");
        terminal.expect("running");
        terminal.expect("PROMPT> ");
        terminal.status()
    });
    assert_eq!(seen, ["5", "5"]);
}

#[test]
fn a_closed_terminal_ends_the_job() {
    let dir = tempfile::tempdir().unwrap();
    for way in BOTH {
        for leader in ["bash", "itself"] {
            let file = dir.path().join(format!("{way:?}-{leader}"));
            let path = file.to_str().unwrap();
            let terminal = if leader == "bash" {
                let mut terminal = Terminal::bash();
                terminal.type_in(&format!("{}\n", line(way, &format!("wait {path}"))));
                terminal
            } else {
                Terminal::with(command(way, &job_argv(&["wait", path])))
            };
            until("the job is ready", || file.exists());
            let job: i32 = std::fs::read_to_string(&file).unwrap()[6..].trim().parse().unwrap();
            let shell = terminal.leader();
            terminal.hang_up();
            until("the job ends", || !alive(job));
            until("the leader ends", || !alive(shell));
        }
    }
}

#[test]
fn a_pseudo_terminal_is_the_jobs_own() {
    for way in BOTH {
        let mut terminal = Terminal::bash();
        let prefix = if way == Way::Bare { "env".to_owned() } else { format!("{GPURUN} --") };
        let text = terminal.run(&format!(
            "{prefix} sh -c 'test -t 0 && test -t 1 && test -t 2 && tty >/dev/null && stty size'"
        ));
        assert!(text.contains("24 200"), "{way:?} {text}");
    }
}
