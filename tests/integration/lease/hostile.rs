//! What others do to the lease directory: cleaners, planted files, locks that are kept, waiters that are stopped.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use fake_nvml::Fault;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::*;

pub(super) fn leases(host: &Host) -> PathBuf {
    host.path().join("leases")
}

pub(super) fn mkfifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

/// A process that has locked a file, as `flock FILE sleep` does, and ends with this.
pub(super) struct Locker(Child);

impl Locker {
    pub(super) fn start(path: &Path) -> Self {
        let mut child = Command::new("flock")
            .args(["--no-fork", path.to_str().unwrap(), "sh", "-c", "echo locked; exec sleep 1000"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "locked\n");
        Self(child)
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A waiter in a process group of its own, once it has its ticket.
fn waiter(host: &Host, words: &[&str], tickets: usize) -> Running {
    use std::os::unix::process::CommandExt as _;
    let mut command = host.gpurun();
    command.args(words).process_group(0);
    let running = Running::run(command, HOLD);
    until("its ticket", || (waiting(host) == tickets).then_some(()));
    running
}

#[test]
fn a_cleaner_leaves_a_directory_with_leases_or_tickets_alone() {
    let host = idle(1);
    let mut holder = Running::start(&host, &["-n", "1"]);
    assert_eq!(holder.line(), "0");
    // What systemd-tmpfiles does before it looks into a directory.
    let is_locked = || {
        let directory = std::fs::File::open(leases(&host)).unwrap();
        directory.try_lock().is_err()
    };
    assert!(is_locked());
    // A job that outlives its gpurun keeps the directory as well.
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    assert!(is_locked());
    assert_eq!(run(&host, &["-n", "1", "--", "true"]).status.code(), Some(75));
    holder.hold = None;
    until("nobody keeps it", || (!is_locked()).then_some(()));
    // A waiter keeps it, though it holds nothing.
    let mut foreign = gpus(&[9_900]);
    foreign[0].memory_total = Some(10_000.into());
    let busy = Host::new(&Scenario { gpu: foreign, ..Scenario::default() });
    let mut waiting = waiter(&busy, &["-n", "1", "-f", "5GiB", "--wait"], 1);
    assert!(std::fs::File::open(leases(&busy)).unwrap().try_lock().is_err());
    waiting.child.kill().unwrap();
    waiting.child.wait().unwrap();
}

#[test]
fn systemd_tmpfiles_takes_no_lease_away() {
    if Command::new("systemd-tmpfiles").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: no systemd-tmpfiles");
        return;
    }
    let host = idle(1);
    let place = host.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let config = host.path().join("clean.conf");
    std::fs::write(&config, format!("d {} - - - 0\n", place.display())).unwrap();
    let clean = || {
        std::fs::write(place.join("old"), "").unwrap();
        let cleaned = Command::new("systemd-tmpfiles").arg("--clean").arg(&config).output().unwrap();
        assert!(cleaned.status.success(), "{cleaned:?}");
        assert!(!place.join("old").exists(), "it cleans");
    };
    let gpurun = || {
        let mut command = host.gpurun();
        command.env("GPURUN_LEASE_DIR", place.join("leases")).args(["-n", "1"]);
        command
    };
    let mut holder = Running::run(gpurun(), HOLD);
    assert_eq!(holder.line(), "0");
    clean();
    let refused = gpurun().args(["--", "true"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    holder.succeed();
    clean();
    assert!(!place.join("leases").exists(), "nothing is held");
}

#[test]
fn a_lease_whose_directory_is_removed_is_seen_again() {
    let host = idle(1);
    let mut holder = Running::start(&host, &["-n", "1"]);
    assert_eq!(holder.line(), "0");
    let lock_file = || {
        let mut names = std::fs::read_dir(leases(&host)).ok()?.map(|entry| entry.unwrap().path());
        names.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("GPU-"))
    };
    let refused = |host: &Host| {
        let output = run(host, &["-n", "1", "--", "true"]);
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        assert!(said(&output).contains(&format!("held by pid {} ", holder_pid(host))), "{}", said(&output));
    };
    // The whole directory, then the file alone.
    std::fs::remove_dir_all(leases(&host)).unwrap();
    until("the lease in a new directory", lock_file);
    until("its note", || (!holders(&host)[&0].is_empty()).then_some(()));
    refused(&host);
    std::fs::remove_file(lock_file().unwrap()).unwrap();
    until("the lease in a new file", lock_file);
    until("its note", || (!holders(&host)[&0].is_empty()).then_some(()));
    refused(&host);
    holder.succeed();
    assert!(run(&host, &["-n", "1", "--", "true"]).status.success());
}

/// The process that `devices` names as the holder of GPU 0.
fn holder_pid(host: &Host) -> u64 {
    holders(host)[&0][0]["process"].as_u64().unwrap()
}

#[test]
fn a_lease_that_was_taken_when_its_file_was_removed_is_said() {
    let host = idle(1);
    let mut holder = Running::start(&host, &["-n", "1"]);
    assert_eq!(holder.line(), "0");
    std::fs::rename(leases(&host), host.path().join("gone")).unwrap();
    let mut thief = Running::start(&host, &["-n", "1"]);
    match thief.line().as_str() {
        // It came in between.
        "0" => {
            let mut err = BufReader::new(holder.err.take().unwrap());
            let mut line = String::new();
            while !line.contains("is held by another process too") {
                line.clear();
                assert!(err.read_line(&mut line).unwrap() > 0, "never said");
            }
            holder.err = Some(err.into_inner());
            thief.succeed();
        }
        // The holder was faster.
        _ => assert_eq!(thief.finish().0.code(), Some(75)),
    }
    holder.succeed();
}

#[test]
fn waiters_whose_directory_is_removed_queue_again() {
    let host = idle(1);
    let mut holder = Running::start(&host, &["-n", "1"]);
    assert_eq!(holder.line(), "0");
    let mut first = waiter(&host, &["-n", "1", "--wait"], 1);
    let mut second = waiter(&host, &["-n", "1", "--wait"], 2);
    std::fs::remove_dir_all(leases(&host)).unwrap();
    until("both tickets in a new directory", || (waiting(&host) == 2).then_some(()));
    until("the lease there", || (!holders(&host)[&0].is_empty()).then_some(()));
    holder.succeed();
    // Whoever is first there; both have their turn, and never at once.
    let (a, b) = (first.child.id(), second.child.id());
    let served = until("one is served", || {
        let process = holders(&host)[&0].first()?["pid"].as_u64()?;
        [a, b].into_iter().find(|pid| u64::from(*pid) == process)
    });
    assert_eq!(holders(&host)[&0].len(), 1);
    if served == b {
        std::mem::swap(&mut first, &mut second);
    }
    assert_eq!(first.line(), "0");
    first.succeed();
    assert_eq!(second.line(), "0");
    second.succeed();
    assert_eq!(waiting(&host), 0);
}

#[test]
fn planted_fifos_and_links_block_nobody() {
    let host = idle(1);
    let secret = host.path().join("secret");
    std::fs::write(&secret, "kept").unwrap();
    // The first makes the files.
    assert!(run(&host, &["--share", "2", "--", "true"]).status.success());
    let mut names: Vec<String> = std::fs::read_dir(leases(&host))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let device = names.iter().find(|name| !name.contains('+') && name.starts_with("GPU-")).unwrap().clone();
    names.push(device.replace(".lock", "+n.lock"));
    names.push("wait.00000000000000000001.0123456789abcdef.lock".to_owned());
    assert_eq!(names.len(), 5, "{names:?}");
    for name in &names {
        for plant in [mkfifo as fn(&Path), |path| symlink("../secret", path).unwrap()] {
            let path = leases(&host).join(name);
            let _ = std::fs::remove_file(&path);
            plant(&path);
            let expected = match name.as_str() {
                "select.lock" => 125,
                // Waiters make no such files.
                _ if name.starts_with("wait.") => 0,
                _ if name.contains("+s0") => 75,
                _ => 75,
            };
            for words in [&["-n", "1"][..], &["--share", "2"], &["-n", "1", "--wait", "300ms"]] {
                let output = run(&host, &[words, &["--", "true"]].concat());
                let timed_out = words.contains(&"--wait") && expected == 75;
                let expected = if timed_out { 124 } else { expected };
                let shares = words.contains(&"--share") && name.contains("+s0");
                let expected = if shares { 0 } else { expected };
                assert_eq!(output.status.code(), Some(expected), "{name} {words:?}: {output:?}");
            }
            assert!(run(&host, &["devices"]).status.success());
            std::fs::remove_file(&path).unwrap();
        }
    }
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "kept");
    // The directory itself.
    std::fs::remove_dir_all(leases(&host)).unwrap();
    mkfifo(&leases(&host));
    assert_eq!(run(&host, &["-n", "1", "--", "true"]).status.code(), Some(125));
}

#[test]
fn a_select_lock_that_is_kept_ends_a_wait_at_its_time_and_names_who_keeps_it() {
    let host = idle(1);
    assert!(run(&host, &["-n", "1", "--", "true"]).status.success());
    let locker = Locker::start(&leases(&host).join("select.lock"));
    let named = format!("select.lock has been locked for 0 s by pid {} of root (sleep 1000)", locker.pid());
    let output = run(&host, &["-n", "1", "--wait", "500ms", "--", "true"]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert!(
        said(&output).contains("timed out after 0.5 s: ") && said(&output).contains(&named),
        "{output:?}"
    );
    // A stopped gpurun that is choosing is named like anything else. The wait goes on when the lock is let go.
    let mut waiting = Running::start(&host, &["-n", "1", "--wait", "1h"]);
    drop(locker);
    assert_eq!(waiting.line(), "0");
    waiting.succeed();
}

#[test]
fn a_select_lock_that_one_process_keeps_is_a_temporary_failure() {
    let host = idle(1);
    assert!(run(&host, &["-n", "1", "--", "true"]).status.success());
    let locker = Locker::start(&leases(&host).join("select.lock"));
    let output = run(&host, &["-n", "1", "--", "true"]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    let text = said(&output);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(&format!("s by pid {} of root (sleep 1000): end or", locker.pid())), "{text}");
}

#[test]
fn a_slow_driver_and_many_starts_cost_patience_and_nobody() {
    // Each start keeps the lock for the time of its calls, all together for longer than one process may keep it.
    let slow =
        Fault { function: "nvmlDeviceGetMemoryInfo*".to_owned(), sleep_ms: Some(70), ..Fault::default() };
    let slow = Scenario { gpu: gpus(&[0; 24]), fault: vec![slow], ..Scenario::default() };
    let host = Host::new(&slow);
    let mut all: Vec<Running> = (0..24).map(|_| Running::start(&host, &["-n", "1"])).collect();
    let seen: BTreeSet<String> = all.iter_mut().map(Running::line).collect();
    assert_eq!(seen.len(), 24, "{seen:?}");
    all.into_iter().for_each(Running::succeed);
}

#[test]
fn a_stopped_waiter_is_passed_over_and_has_its_place_again() {
    for whole_group in [true, false] {
        let host = idle(1);
        let mut holder = Running::start(&host, &["-n", "1"]);
        assert_eq!(holder.line(), "0");
        let mut stopped = waiter(&host, &["-n", "1", "--wait"], 1);
        let mut second = waiter(&host, &["-n", "1", "--wait"], 2);
        let third = run(&host, &["-n", "1", "--wait", "100ms", "--", "true"]);
        assert_eq!(third.status.code(), Some(124));
        let ahead = format!("2 ahead in the queue, first pid {} of root since ", stopped.child.id());
        assert!(said(&third).contains(&ahead), "{}", said(&third));
        let signal = |signal| match whole_group {
            true => kill_process_group(pid(&stopped.child), signal).unwrap(),
            // Its second process goes on alone, and takes nothing.
            false => kill_process(pid(&stopped.child), signal).unwrap(),
        };
        signal(Signal::STOP);
        holder.succeed();
        assert_eq!(second.line(), "0", "the one that answers is served");
        let late = waiter(&host, &["-n", "1", "--wait"], 2);
        signal(Signal::CONT);
        until("the first shows itself again", || {
            let output = run(&host, &["-n", "1", "--wait", "0", "--", "true"]);
            said(&output).contains(&ahead).then_some(())
        });
        second.succeed();
        assert_eq!(stopped.line(), "0", "its number is the lowest");
        stopped.succeed();
        let mut late = late;
        assert_eq!(late.line(), "0");
        late.succeed();
    }
}

#[test]
fn a_lease_deeper_than_names_can_tell_is_refused_in_one_line() {
    use std::io::Write as _;
    let host = idle(1);
    assert!(run(&host, &["-n", "1", "--", "true"]).status.success());
    let names: Vec<PathBuf> =
        std::fs::read_dir(leases(&host)).unwrap().map(|entry| entry.unwrap().path()).collect();
    let device = names.iter().find(|path| path.to_string_lossy().contains("GPU-")).unwrap();
    let root = device.file_stem().unwrap().to_str().unwrap();
    let inside = |depth: usize| {
        let scope = format!("{root}{}", "+n".repeat(depth));
        let mut file = std::fs::File::create(leases(&host).join(format!("{scope}.lock"))).unwrap();
        file.write_all(b"{\"token\":\"t\"}\n").unwrap();
        file.lock().unwrap();
        let output = host
            .gpurun()
            .env("GPURUN_LEASES", format!("t:{scope}"))
            .args(["-n", "1", "--", "true"])
            .output()
            .unwrap();
        drop(file);
        output
    };
    let room = (255 - ".lock".len() - "+s9999999".len() - root.len()) / "+n".len();
    let inner = inside(room - 1);
    assert_eq!(inner.status.code(), Some(0), "{inner:?}");
    let refused = inside(room);
    assert_eq!(refused.status.code(), Some(125));
    let text = said(&refused);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(&format!("{} leases inside one another", room + 2)), "{text}");
    assert!(text.contains("--no-lease"), "{text}");
}
