//! Leases and waiting: nobody shares a GPU by accident, nobody holds one after its end, nobody waits in vain.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use fake_nvml::{Gpu, Mig, Scenario};

use super::selection::{Host, gpus};
use super::support;
use crate::support::until;

mod check;
mod hostile;

/// A gpurun whose job says which devices it has, and ends when its standard input does.
struct Running {
    child: Child,
    hold: Option<ChildStdin>,
    out: BufReader<std::process::ChildStdout>,
    err: Option<std::process::ChildStderr>,
}

/// The job of [`Running`].
const HOLD: &str = r#"echo "$CUDA_VISIBLE_DEVICES"; cat > /dev/null"#;

impl Running {
    /// Starts it with these options.
    fn start(host: &Host, words: &[&str]) -> Self {
        let mut command = host.gpurun();
        command.args(words);
        Self::run(command, HOLD)
    }

    /// Starts a prepared command with a shell script for a job.
    fn run(mut command: Command, script: &str) -> Self {
        let mut child = command
            .args(["--", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let hold = child.stdin.take();
        let out = BufReader::new(child.stdout.take().unwrap());
        let err = child.stderr.take();
        Self { child, hold, out, err }
    }

    /// The next line of the job; empty when there will be none.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Lets the job end, and waits for gpurun to.
    fn finish(mut self) -> (ExitStatus, String) {
        self.hold = None;
        let mut said = String::new();
        self.err.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }

    /// Lets the job end, which must have gone well.
    fn succeed(self) {
        let (status, said) = self.finish();
        assert!(status.success(), "{status:?}: {said}");
    }
}

fn idle(count: usize) -> Host {
    Host::new(&Scenario { gpu: gpus(&vec![0; count]), ..Scenario::default() })
}

fn run(host: &Host, words: &[&str]) -> Output {
    host.gpurun().args(words).stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Everything that holds a device, from `gpurun devices --json`.
fn holders(host: &Host) -> BTreeMap<u64, Vec<serde_json::Value>> {
    let output = run(host, &["devices", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let devices = json["devices"].as_array().unwrap();
    devices
        .iter()
        .map(|device| (device["index"].as_u64().unwrap(), device["held_by"].as_array().unwrap().clone()))
        .collect()
}

/// Names of live tickets.
fn waiting(host: &Host) -> usize {
    let Ok(entries) = std::fs::read_dir(host.path().join("leases")) else { return 0 };
    entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("wait.")).count()
}

#[test]
fn sixteen_at_once_get_eight_different_gpus() {
    let host = idle(8);
    for round in 0..50 {
        let mut all: Vec<Running> = (0..16).map(|_| Running::start(&host, &["-n", "1"])).collect();
        let mut seen = BTreeSet::new();
        let mut refused = 0;
        for running in &mut all {
            match running.line().as_str() {
                "" => refused += 1,
                gpu => assert!(seen.insert(gpu.to_owned()), "round {round}: GPU {gpu} twice"),
            }
        }
        assert_eq!((seen.len(), refused), (8, 8), "round {round}");
        let mut codes: Vec<Option<i32>> = all.into_iter().map(|running| running.finish().0.code()).collect();
        codes.sort_unstable();
        assert_eq!(codes, [[Some(0); 8], [Some(75); 8]].concat(), "round {round}");
    }
}

/// A job that writes when and where it ran.
fn stamping(host: &Host, words: &[&str]) -> Child {
    let script = r#"s=$(date +%s%N); sleep 0.02; echo "$CUDA_VISIBLE_DEVICES $s $(date +%s%N)" >> "$STAMPS""#;
    host.gpurun()
        .args(words)
        .args(["--", "sh", "-c", script])
        .env("STAMPS", host.path().join("stamps"))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The most jobs that were on one GPU at once, and how many ran at all.
fn crowding(host: &Host) -> (i32, usize) {
    let text = std::fs::read_to_string(host.path().join("stamps")).unwrap();
    let mut events: BTreeMap<&str, Vec<(u128, i32)>> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let gpu = events.entry(words[0]).or_default();
        gpu.push((words[1].parse().unwrap(), 1));
        gpu.push((words[2].parse().unwrap(), -1));
    }
    let mut most = 0;
    for gpu in events.values_mut() {
        gpu.sort_unstable();
        let mut now = 0;
        for (_, change) in gpu {
            now += *change;
            most = most.max(now);
        }
    }
    (most, text.lines().count())
}

#[test]
fn sixteen_that_wait_all_run_and_never_two_on_one() {
    let host = idle(8);
    for round in 1..=50 {
        let all: Vec<Child> = (0..16).map(|_| stamping(&host, &["-n", "1", "--wait"])).collect();
        for mut child in all {
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(crowding(&host), (1, round * 16));
    }
    assert_eq!(waiting(&host), 0);
}

/// CPU time of a process in clock ticks.
fn ticks(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn a_hundred_wait_for_nothing_share_in_twos_and_all_finish() {
    let host = idle(8);
    let mut holder = Running::start(&host, &["-n", "8"]);
    assert_eq!(holder.line().split(',').count(), 8);
    let mut all: Vec<Child> =
        (0..100).map(|_| stamping(&host, &["-n", "1", "--share", "2", "--wait"])).collect();
    until("a hundred tickets", || (waiting(&host) == 100).then_some(()));
    // What they use while they have nothing to do: a hundredth of a core each would already be too much.
    let used = |all: &[Child]| all.iter().map(|child| ticks(child.id())).sum::<u64>();
    let before = used(&all);
    std::thread::sleep(Duration::from_secs(5));
    let spent = used(&all) - before;
    assert!(spent < 100, "a hundred waiters used {spent} ticks of CPU in five seconds");
    holder.succeed();
    for child in &mut all {
        assert!(child.wait().unwrap().success());
    }
    let (most, ran) = crowding(&host);
    assert_eq!(ran, 100);
    assert!(most <= 2, "{most} on one GPU");
    assert_eq!(waiting(&host), 0);
}

#[test]
fn sharers_share_with_sharers_only_and_up_to_the_smallest_number() {
    let host = idle(1);
    let mut first = Running::start(&host, &["--share", "3"]);
    let mut second = Running::start(&host, &["--share", "3"]);
    assert_eq!((first.line().as_str(), second.line().as_str()), ("0", "0"));
    assert_eq!(run(&host, &["-n", "1", "--", "true"]).status.code(), Some(75));
    assert_eq!(run(&host, &["--share", "2", "--", "true"]).status.code(), Some(75));
    assert!(run(&host, &["--share", "3", "--", "true"]).status.success());
    assert_eq!(holders(&host)[&0].len(), 2);
    first.succeed();
    assert!(run(&host, &["--share", "2", "--", "true"]).status.success());
    second.succeed();
    let mut alone = Running::start(&host, &["-n", "1"]);
    assert_eq!(alone.line(), "0");
    assert_eq!(run(&host, &["--share", "3", "--", "true"]).status.code(), Some(75));
    assert!(run(&host, &["-n", "1", "--no-lease", "--", "true"]).status.success());
    alone.succeed();
}

#[test]
fn a_killed_gpurun_leaves_its_gpu_with_its_job() {
    let host = idle(1);
    let mut command = host.gpurun();
    command.args(["-n", "1"]);
    let mut running = Running::run(command, "echo $$; cat > /dev/null");
    let job: u64 = running.line().parse().unwrap();
    let gpurun = running.child.id();
    let held = until("the job is noted", || {
        let held = holders(&host)[&0].first()?.clone();
        (held["job"] == job).then_some(held)
    });
    assert_eq!(held["pid"], u64::from(gpurun));
    running.child.kill().unwrap();
    assert_eq!(running.child.wait().unwrap().signal(), Some(libc::SIGKILL));
    let output = run(&host, &["-n", "1", "--", "true"]);
    assert_eq!(output.status.code(), Some(75));
    assert!(said(&output).contains(&format!("held by pid {job} of ")), "{}", said(&output));
    assert!(said(&output).contains(" (sh -c echo $$; cat > /dev/null)"), "{}", said(&output));
    running.hold = None;
    until("the job's end frees the GPU", || {
        run(&host, &["-n", "1", "--", "true"]).status.success().then_some(())
    });
    assert!(holders(&host)[&0].is_empty());
}

#[test]
fn an_inner_gpurun_chooses_inside_the_outer_one() {
    let host = idle(4);
    let gpurun = support::gpurun().display();
    let script = format!(
        r#"echo "$CUDA_VISIBLE_DEVICES"
        {gpurun} -n 1 -- sh -c 'echo "$CUDA_VISIBLE_DEVICES"; {gpurun} -n 1 -- sh -c "echo \$CUDA_VISIBLE_DEVICES"'
        mkfifo "$PIPE"
        {gpurun} -n 1 -- sh -c 'echo "$CUDA_VISIBLE_DEVICES"; read line < "$PIPE"' &
        read line
        {gpurun} -n 1 -- sh -c 'echo "$CUDA_VISIBLE_DEVICES"'
        {gpurun} -n 2 -- true 2> /dev/null; echo $?
        echo > "$PIPE"; wait"#
    );
    let mut command = host.gpurun();
    command.args(["-n", "2"]).env("PIPE", host.path().join("pipe"));
    let mut outer = Running::run(command, &script);
    assert_eq!(outer.line(), "3,2");
    assert_eq!((outer.line().as_str(), outer.line().as_str()), ("3", "3"));
    let first = outer.line();
    use std::io::Write as _;
    outer.hold.as_mut().unwrap().write_all(b"go\n").unwrap();
    let second = outer.line();
    assert_eq!(BTreeSet::from([first.as_str(), second.as_str()]), BTreeSet::from(["2", "3"]));
    assert_eq!(outer.line(), "75", "two siblings do not share by accident");
    outer.succeed();
}

#[test]
fn a_stale_word_of_an_outer_gpurun_is_not_believed() {
    let host = idle(1);
    let mut command = host.gpurun();
    command.args(["-n", "1"]);
    let mut first = Running::run(command, r#"echo "$GPURUN_LEASES"; cat > /dev/null"#);
    let stale = first.line();
    first.succeed();
    let mut other = Running::start(&host, &["-n", "1"]);
    assert_eq!(other.line(), "0");
    for word in [stale.as_str(), "", ":", "x:y,z", "a:GPU-1,\u{1}"] {
        let output =
            host.gpurun().env("GPURUN_LEASES", word).args(["-n", "1", "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(75), "{word:?}");
    }
    other.succeed();
}

#[test]
fn slices_are_held_by_their_own_names() {
    let slice = || Mig { memory_total: Some(5000.into()), memory_used: Some(0.into()), ..Mig::default() };
    let device = Gpu { mig: vec![slice(), slice()], ..gpus(&[0]).remove(0) };
    let host = Host::new(&Scenario { gpu: vec![device], ..Scenario::default() });
    let mut first = Running::start(&host, &["-n", "1"]);
    let mut second = Running::start(&host, &["-n", "1"]);
    let (one, other) = (first.line(), second.line());
    assert!(one.starts_with("MIG-") && other.starts_with("MIG-") && one != other, "{one} {other}");
    assert_eq!(run(&host, &["-n", "1", "--", "true"]).status.code(), Some(75));
    first.succeed();
    second.succeed();
}

#[test]
fn two_users_see_each_other() {
    let me = std::fs::metadata("/proc/self").unwrap().uid();
    assert_eq!(me, 0, "this test takes a second user's place: run it as root");
    let host = idle(2);
    std::fs::set_permissions(host.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let binary = host.path().join("gpurun");
    std::fs::copy(support::gpurun(), &binary).unwrap();
    let leases = host.path().join("leases");
    let as_user = |uid: u32| {
        let like = host.gpurun();
        let mut command = Command::new("setpriv");
        command
            .args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups", "--"])
            .arg(&binary);
        for (name, value) in like.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.current_dir("/");
        command
    };
    // Whoever comes first makes the directory for all.
    for maker in [0_u32, 54_321] {
        let _ = std::fs::remove_dir_all(&leases);
        if maker != 0 {
            // Not everybody may make a directory there: as under /run/lock.
            std::fs::set_permissions(host.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        }
        let other = 54_321 - maker;
        let mut first = as_user(maker);
        first.args(["-n", "1"]);
        let mut first = Running::run(first, HOLD);
        assert_eq!(first.line(), "1");
        assert_eq!(std::fs::metadata(&leases).unwrap().mode() & 0o7777, 0o1777);
        let output = as_user(other).args(["-n", "2", "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(75));
        let name = if maker == 0 { "root" } else { "54321" };
        assert!(said(&output).contains(&format!(" of {name} since ")), "{}", said(&output));
        let listed = as_user(other).args(["devices"]).output().unwrap();
        assert!(String::from_utf8_lossy(&listed.stdout).contains(&format!("  {name} ")), "{listed:?}");
        let mut second = as_user(other);
        second.args(["-n", "1"]);
        let mut second = Running::run(second, HOLD);
        assert_eq!(second.line(), "0");
        // Each takes over files that the other made, and waits for the other.
        let mut third = as_user(maker);
        third.args(["--exclude", "1", "-n", "1", "--wait"]);
        let mut third = Running::run(third, HOLD);
        until("a ticket", || (waiting(&host) == 1).then_some(()));
        second.succeed();
        assert_eq!(third.line(), "0");
        let held = holders(&host);
        assert_eq!(held[&0][0]["uid"], maker);
        third.succeed();
        first.succeed();
    }
}

#[test]
fn links_and_odd_files_are_refused_and_left_alone() {
    let host = idle(1);
    let leases = host.path().join("leases");
    let victim = host.path().join("victim");
    std::fs::create_dir(&victim).unwrap();
    symlink(&victim, &leases).unwrap();
    let refused = |expected: &str| {
        let output = run(&host, &["-n", "1", "--", "true"]);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        let said = said(&output);
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        assert!(said.contains(expected) && said.contains("GPURUN_LEASE_DIR"), "{said}");
    };
    refused("leases");
    assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 0);
    std::fs::remove_file(&leases).unwrap();
    std::fs::create_dir(&leases).unwrap();
    let secret = victim.join("secret");
    std::fs::write(&secret, "kept").unwrap();
    symlink(&secret, leases.join("select.lock")).unwrap();
    refused("leases");
    std::fs::remove_file(leases.join("select.lock")).unwrap();
    let made = Command::new("mkfifo").arg(leases.join("select.lock")).status().unwrap();
    assert!(made.success());
    refused("not a regular file");
    std::fs::remove_file(leases.join("select.lock")).unwrap();
    assert!(run(&host, &["-n", "1", "--", "true"]).status.success());
    // A link in a device's place: the device is not free, and what it points at is not touched.
    let lock = std::fs::read_dir(&leases)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("GPU-")))
        .unwrap();
    std::fs::remove_file(&lock).unwrap();
    symlink(&secret, &lock).unwrap();
    assert_eq!(run(&host, &["-n", "1", "--", "true"]).status.code(), Some(75));
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "kept");
}

#[test]
fn a_directory_that_cannot_be_made_names_the_remedy() {
    let host = idle(1);
    for place in ["/proc/gpurun-leases", "/nonexistent/leases", "/proc/self/status"] {
        let words = ["-n", "1", "--", "true"];
        let output = host.gpurun().env("GPURUN_LEASE_DIR", place).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        let line = said(&output);
        assert_eq!(line.trim_end().lines().count(), 1, "{line}");
        assert!(
            line.contains(place) && line.contains("GPURUN_LEASE_DIR") && line.contains("--no-lease"),
            "{line}"
        );
        let words = ["-n", "1", "--no-lease", "--", "true"];
        assert!(host.gpurun().env("GPURUN_LEASE_DIR", place).args(words).status().unwrap().success());
    }
}

#[test]
fn who_waits_longer_is_served_first() {
    let host = idle(2);
    let mut holder = Running::start(&host, &["-n", "2"]);
    assert_eq!(holder.line(), "1,0");
    let order = host.path().join("order");
    let queue: Vec<Child> = (0..6)
        .map(|place| {
            // Two GPUs each, so that they run one after another; a small wish does not overtake a large one.
            let count = if place == 1 { "1" } else { "2" };
            let child = host
                .gpurun()
                .args(["-n", count, "--wait", "1h", "--", "sh", "-c"])
                .arg(format!("echo {place} >> {}; sleep 0.05", order.display()))
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            until("its ticket", || (waiting(&host) == place + 1).then_some(()));
            child
        })
        .collect();
    holder.succeed();
    for mut child in queue {
        assert!(child.wait().unwrap().success());
    }
    let text = std::fs::read_to_string(order).unwrap();
    assert_eq!(text.lines().collect::<Vec<_>>(), ["0", "1", "2", "3", "4", "5"]);
}

#[test]
fn a_dead_waiter_holds_nobody_up() {
    let host = idle(1);
    let mut holder = Running::start(&host, &["-n", "1"]);
    assert_eq!(holder.line(), "0");
    let mut dead = Running::start(&host, &["-n", "1", "--wait"]);
    until("its ticket", || (waiting(&host) == 1).then_some(()));
    let mut live = Running::start(&host, &["-n", "1", "--wait"]);
    until("both tickets", || (waiting(&host) == 2).then_some(()));
    dead.child.kill().unwrap();
    dead.child.wait().unwrap();
    holder.succeed();
    assert_eq!(live.line(), "0");
    live.succeed();
    assert_eq!(waiting(&host), 0, "the dead one's ticket is cleared away");
}

#[test]
fn a_wait_ends_by_time_by_signal_or_at_once_when_hopeless() {
    let host = idle(1);
    let mut holder = Running::start(&host, &["-n", "1"]);
    assert_eq!(holder.line(), "0");

    let output = run(&host, &["-n", "1", "--wait", "100ms", "--", "true"]);
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert!(
        said(&output).contains("waiting for 1 GPU (0 s): 0 of 1 available; GPU 0 held by pid "),
        "{}",
        said(&output)
    );
    assert!(said(&output).contains("timed out after 0.1 s: 0 of 1 GPU "), "{}", said(&output));

    // More than there are: no wait can help.
    let output = run(&host, &["-n", "2", "--wait", "--", "true"]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    assert!(
        said(&output).contains("2 GPUs are needed, but at most 1 of 1 GPU can ever"),
        "{}",
        said(&output)
    );
    let output = run(&host, &["-t", "1T", "--wait", "--", "true"]);
    assert_eq!(output.status.code(), Some(75), "{output:?}");

    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut waiter = Running::start(&host, &["-n", "1", "--wait"]);
        until("its ticket", || (waiting(&host) == 1).then_some(()));
        let sent = Command::new("kill")
            .args([&format!("-{signal}"), &waiter.child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
        assert_eq!(waiter.child.wait().unwrap().signal(), Some(signal));
        // Its ticket is dead; the next to look takes it away.
        assert_eq!(run(&host, &["-n", "1", "--wait", "0", "--", "true"]).status.code(), Some(124));
        until("no ticket", || (waiting(&host) == 0).then_some(()));
    }
    // `select` waits as well, and prints nothing until there is something.
    let output = run(&host, &["select", "-n", "1", "--wait", "50ms"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(124), b"".as_slice()), "{output:?}");
    holder.succeed();
    assert_eq!(run(&host, &["select", "-n", "1", "--wait"]).stdout, b"0\n");
}

#[test]
fn a_wait_ends_when_a_foreign_job_does() {
    // No lease tells of it: the driver must be asked again.
    let host = idle(1);
    let pids = host.path().join("pids");
    std::fs::write(&pids, "4000000 500\n").unwrap();
    let mut device = gpus(&[0]).remove(0);
    device.process =
        vec![fake_nvml::Process { pid_file: Some(pids.clone()), ..fake_nvml::Process::default() }];
    let host = Host::new(&Scenario { gpu: vec![device], ..Scenario::default() });
    let mut waiter = Running::start(&host, &["-n", "1", "--max-processes", "0", "--wait"]);
    until("its ticket", || (waiting(&host) == 1).then_some(()));
    std::fs::write(&pids, "").unwrap();
    assert_eq!(waiter.line(), "0");
    waiter.succeed();
}

#[test]
fn select_leaves_out_what_others_hold() {
    let host = idle(3);
    let before = run(&host, &["select"]);
    assert_eq!(before.stdout, b"2,1,0\n");
    assert!(!Path::new(&host.path().join("leases")).exists(), "looking makes nothing");
    let mut holder = Running::start(&host, &["-n", "1"]);
    assert_eq!(holder.line(), "2");
    assert_eq!(run(&host, &["select"]).stdout, b"1,0\n");
    assert_eq!(run(&host, &["select", "--no-lease"]).stdout, b"2,1,0\n");
    holder.succeed();
}
