//! How a run ends: descendants, requests to end, a killed gpurun, a stderr that takes nothing.

use super::*;

#[test]
fn daemons_stay_in_the_tree_are_named_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("daemon");
    let mut run = command(Way::Wrapped, &job_argv(&["daemon", file.to_str().unwrap()]));
    let output = run.stdout(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let pid = std::fs::read_to_string(&file).unwrap().trim().trim_start_matches("ready ").parse().unwrap();
    let left = alive(pid);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(output.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(left, "the daemon was ended");
    assert!(stderr.contains(&pid.to_string()) && stderr.contains("daemon"), "{stderr}");
    until("the daemon ends", || !alive(pid));
}

/// Reads the pid that a job wrote to its file, once it is there.
fn pid_in(file: &Path) -> i32 {
    until("the job writes its pid", || file.exists());
    std::fs::read_to_string(file).unwrap().trim().trim_start_matches("ready ").parse().unwrap()
}

/// gpurun with options of its own before the job.
pub(super) fn with_options(options: &[&str], argv: &[OsString]) -> Command {
    let mut gpurun = Command::new(GPURUN);
    gpurun.args(options).arg("--").args(argv);
    gpurun
}

#[test]
fn kill_tree_ends_what_is_left_politely_then_surely() {
    let dir = tempfile::tempdir().unwrap();

    // A daemon that obeys; the main process's code is kept.
    let file = dir.path().join("daemon");
    let mut run = with_options(&["--kill-tree"], &job_argv(&["daemon", file.to_str().unwrap()]));
    let status = finish(&mut run.stdout(Stdio::null()).spawn().unwrap());
    assert_eq!(describe(status), "code 3");
    assert!(!alive(pid_in(&file)));

    // One that does not, and one that is stopped.
    let stubborn = dir.path().join("stubborn");
    let stopped = dir.path().join("stopped");
    let script = "\"$0\" ignore-term \"$1\" >/dev/null & (\"$0\" ignore-term \"$2\" >/dev/null & wait) & \
        while ! [ -e \"$1\" -a -e \"$2\" ]; do sleep 0.01; done; \
        read _ pid < \"$2\"; kill -STOP $pid; exit 6";
    let mut argv: Vec<OsString> = ["sh", "-c", script].map(OsString::from).to_vec();
    argv.extend([job().into(), stubborn.clone().into(), stopped.clone().into()]);
    let mut run = with_options(&["--kill-tree", "--kill-after", "200ms"], &argv);
    let status = finish(&mut run.spawn().unwrap());
    assert_eq!(describe(status), "code 6");
    assert!(!alive(pid_in(&stubborn)) && !alive(pid_in(&stopped)));

    // A whole tree, left by a main process that is killed.
    let mark = format!("tree-{}", std::process::id());
    let mut run = with_options(&["--kill-tree"], &job_argv(&["tree", "3", "2"]));
    run.env("TEST_MARK", &mark);
    let mut running = Running::start_command(run);
    // The minder, the sidecar, the job and its 3 + 9 descendants. The child that tries to load the driver has ended soon.
    until("15 processes are left", || marked(&mark).len() == 15);
    kill(running.job, libc::SIGKILL);
    assert_eq!(describe(finish(&mut running.child)), "signal 9");
    assert_eq!(marked(&mark), Vec::<i32>::new());
}

#[test]
fn kill_after_kills_the_tree_only_after_a_request_to_end() {
    let mark = format!("after-{}", std::process::id());
    let mut run = with_options(&["--kill-after", "200ms"], &job_argv(&["ignore-term"]));
    run.env("TEST_MARK", &mark);
    let mut running = Running::start_command(run);
    // No request to end: it must not start the clock, nor end the job.
    kill(running.outer(), libc::SIGWINCH);
    kill(running.outer(), libc::SIGTERM);
    assert_eq!(describe(finish(&mut running.child)), "signal 9");
    assert_eq!(marked(&mark), Vec::<i32>::new());

    // A job that ends in time keeps its own end.
    let mut running =
        Running::start_command(with_options(&["--kill-after", "20000ms"], &job_argv(&["wait"])));
    kill(running.outer(), libc::SIGTERM);
    assert_eq!(describe(finish(&mut running.child)), "signal 15");
}

#[test]
fn die_together_takes_the_job_along() {
    let mut running = Running::start_command(with_options(&["--die-together"], &job_argv(&["wait"])));
    kill(running.outer(), libc::SIGKILL);
    finish(&mut running.child);
    let job = running.job;
    until("the job is gone too", || !alive(job));
}

#[test]
fn orphans_are_reaped_while_the_job_runs() {
    let script = "\"$0\" orphans 200 >/dev/null; echo \"ready $$\"; read x; exit 0";
    let mut run = Command::new(GPURUN);
    run.args(["--", "sh", "-c", script]).arg(job());
    let running = Running::start_command(run);
    let children = || -> Vec<i32> {
        let list = format!("/proc/{0}/task/{0}/children", running.outer());
        let list = std::fs::read_to_string(list).unwrap();
        list.split_ascii_whitespace().map(|p| p.parse().unwrap()).collect()
    };
    until("only the sidecar and the job are left", || children().len() == 2);
    assert!(children().contains(&running.job));
    running.end();
}

#[test]
fn killing_gpurun_leaves_the_job_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let mut run = command(Way::Wrapped, &job_argv(&["wait", file.to_str().unwrap()]));
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let stdin = child.stdin.take();
    until("the job is ready", || file.exists());
    let job: i32 = std::fs::read_to_string(&file).unwrap()[6..].trim().parse().unwrap();
    kill(pid_of(&child), libc::SIGKILL);
    assert_eq!(describe(finish(&mut child)), "signal 9");
    assert!(alive(job));
    drop(stdin);
    until("the job ends by itself", || !alive(job));
}

#[test]
fn a_stderr_that_is_full_closed_or_broken_does_not_hold_up_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("daemon");
    // The daemon is left over, so gpurun has something to say.
    let argv = job_argv(&["daemon", file.to_str().unwrap()]);
    for case in ["full", "no reader", "closed"] {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut run = command(Way::Wrapped, &argv);
        run.stdout(Stdio::null());
        match case {
            "full" => {
                let mut filler = writer.try_clone().unwrap();
                // Exactly the capacity of a pipe.
                std::io::Write::write_all(&mut filler, &vec![0; 65_536]).unwrap();
                run.stderr(writer);
            }
            "no reader" => {
                run.stderr(writer);
            }
            _ => with_setup(&mut run, close_stderr),
        }
        let reader = (case != "no reader").then_some(reader);
        let mut child = run.spawn().unwrap();
        let status = describe(finish(&mut child));
        drop(reader);
        let pid = std::fs::read_to_string(&file).unwrap()[6..].trim().parse().unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(status, "code 3", "{case}");
        until("the daemon ends", || !alive(pid));
    }
}

fn close_stderr() {
    // SAFETY: between fork and exec; nothing else uses the descriptor.
    unsafe { libc::close(2) };
}
