//! Standard output that nobody reads, and one that cannot be written: the same rule for every command that prints.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};

use fake_nvml::Scenario;

use super::selection::{Host, gpus};

/// Where standard output goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stdout {
    Read,
    /// A pipe whose reader has gone.
    NoReader,
    Closed,
    Full,
}

fn run(mut command: Command, stdout: Stdout) -> Output {
    command.stdin(Stdio::null());
    match stdout {
        Stdout::Read => {}
        Stdout::NoReader => {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            command.stdout(writer);
        }
        Stdout::Full => {
            command.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        }
        Stdout::Closed => {
            // SAFETY: `close` may be called between fork and exec.
            unsafe {
                command.pre_exec(|| match libc::close(1) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                });
            }
        }
    }
    command.stderr(Stdio::piped());
    if stdout == Stdout::Read {
        return command.output().unwrap();
    }
    command.spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn output_that_nobody_reads_is_no_error_and_output_that_has_no_room_is() {
    let host = Host::new(&Scenario { gpu: gpus(&[0, 0]), ..Scenario::default() });
    let log = host.path().join("m.csv");
    let log = log.to_str().unwrap();
    let logged = host.gpurun().args(["--log", log, "--", "true"]).output().unwrap();
    assert!(logged.status.success(), "{logged:?}");
    let mut job =
        host.gpurun().args(["--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut hold = job.stdin.take().unwrap();
    std::io::Write::write_all(&mut hold, b"x").unwrap();
    // The job runs, so its gpurun has a socket.
    std::io::Read::read_exact(&mut job.stdout.take().unwrap(), &mut [0]).unwrap();
    let pid = job.id().to_string();
    let commands: [&[&str]; 18] = [
        &["select"],
        &["select", "--json"],
        &["select", "-n", "3", "--json"],
        &["devices"],
        &["devices", "--json"],
        &["devices", "--check"],
        &["metrics"],
        &["metrics", "--json"],
        &["completions", "bash"],
        &["man"],
        &["help", "select"],
        &["--help"],
        &["--version"],
        &["recover", log],
        &["export", log, "-o", "-"],
        &["report", log],
        &["report", log, "-o", "-"],
        &["status", &pid],
    ];
    for words in commands {
        let run = |stdout| {
            let mut command = host.gpurun();
            command.args(words);
            run(command, stdout)
        };
        let read = run(Stdout::Read);
        assert!(!read.stdout.is_empty(), "{words:?}: {read:?}");
        for stdout in [Stdout::NoReader, Stdout::Closed] {
            let output = run(stdout);
            assert_eq!(output.status, read.status, "{words:?} {stdout:?}: {output:?}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!said.contains("standard output"), "{words:?} {stdout:?}: {said}");
        }
        let full = run(Stdout::Full);
        assert_eq!(full.status.code(), Some(1), "{words:?}: {full:?}");
        let said = String::from_utf8_lossy(&full.stderr);
        let errors =
            said.lines().filter(|line| line.contains("cannot write to standard output: No space left"));
        assert_eq!(errors.count(), 1, "{words:?}: {said}");
    }
    drop(hold);
    assert!(job.wait().unwrap().success());
}

#[test]
fn logs_are_recovered_also_where_nobody_reads_how() {
    let host = Host::new(&Scenario { gpu: gpus(&[0]), ..Scenario::default() });
    let logs = host.path().join("logs");
    let names = ["a.csv", "b.csv", "c.csv"];
    for stdout in [Stdout::NoReader, Stdout::Closed, Stdout::Full] {
        for name in names {
            let path = logs.join(name);
            let mut command = host.gpurun();
            command.args(["--overwrite", "--log", path.to_str().unwrap(), "--", "true"]);
            assert!(run(command, Stdout::Read).status.success());
            let whole = fs::read(&path).unwrap();
            fs::write(host.path().join(name), &whole).unwrap();
            fs::write(&path, [&whole[..], b"2026-0"].concat()).unwrap();
        }
        let mut command = host.gpurun();
        command.args(["recover", logs.to_str().unwrap()]);
        let output = run(command, stdout);
        let expected = if stdout == Stdout::Full { 1 } else { 0 };
        assert_eq!(output.status.code(), Some(expected), "{stdout:?}: {output:?}");
        for name in names {
            assert_eq!(
                fs::read(logs.join(name)).unwrap(),
                fs::read(host.path().join(name)).unwrap(),
                "{name}"
            );
        }
    }
}
