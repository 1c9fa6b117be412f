//! Known truths about processes: real jobs whose use is known, read by the real sampler.
//!
//! A test starts a *watcher* (this test binary again), which becomes a child subreaper as gpurun is,
//! starts a *job* (this test binary once more) and samples it. Job and watcher go hand in hand: the
//! job does something, says `@label value` and waits; the watcher takes a sample, prints it and lets
//! the job go on. So no test waits for time, and what a sample must show is known exactly.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::model::metric::MetricId;
use crate::model::reading::Reading;
use crate::model::sample::Sample;
use crate::model::time::Mono;
use crate::sampling::{Due, ProcessDetail, ReapedUsage, Sampler, SamplerSettings, TreeRoot};

const MIB: usize = 1 << 20;
const ROLE: &str = "GPURUN_TRUTH_ROLE";
/// Orphans that one job leaves behind.
const ORPHANS: usize = 3;

/// What a sample showed when the job said a label.
#[derive(Debug, Default, Clone)]
struct Seen {
    /// The number that the job said with the label.
    said: f64,
    values: HashMap<String, f64>,
}

impl Seen {
    fn get(&self, key: &str) -> f64 {
        *self.values.get(key).unwrap_or_else(|| panic!("no {key} in {self:?}"))
    }
}

fn again(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Runs a job under a watcher; what was seen at each label, in order.
fn watch(job: &str) -> Vec<(String, Seen)> {
    let output = again("sampling::tests::truth::watcher", job).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "watcher failed:\n{text}\n{errors}");
    let mut all = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("SEEN ")) {
        let mut words = line.split(' ');
        let label = words.next().unwrap().to_owned();
        let said = words.next().unwrap().parse().unwrap();
        let values =
            words.filter_map(|word| word.split_once('=')).map(|(k, v)| (k.to_owned(), v.parse().unwrap()));
        all.push((label, Seen { said, values: values.collect() }));
    }
    all
}

fn at(all: &[(String, Seen)], label: &str) -> Seen {
    all.iter().find(|(l, _)| l == label).unwrap_or_else(|| panic!("no {label} in {all:?}")).1.clone()
}

/// The watcher's part; does nothing as an ordinary test.
#[test]
#[allow(clippy::zombie_processes, reason = "it is reaped as gpurun reaps: by wait4 of any child")]
fn watcher() {
    let Ok(job) = std::env::var(ROLE) else { return };
    // SAFETY: prctl with plain numbers changes only this process's place in the process tree.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }, 0);
    let mut child = again("sampling::tests::truth::job", &job)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let main_pid = i32::try_from(child.id()).unwrap();
    let mut settings = SamplerSettings::new(TreeRoot::Job {
        minder: std::process::id().cast_signed(),
        main_pid,
        sidecar: 0,
    });
    settings.processes = ProcessDetail::All;
    settings.pss_interval = Duration::ZERO;
    settings.metrics.set(MetricId::JobMemoryPss, true);
    let mut sampler = Sampler::new(settings).unwrap();
    let names: HashMap<_, _> =
        sampler.initial_series().into_iter().map(|(id, info)| (id, info.key().replace(' ', "_"))).collect();
    let (mut sample, mut changes) = (Sample::default(), Vec::new());
    let mut input = child.stdin.take().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut clock, mut orphans) = (0, 0);
    let mut see = |sampler: &mut Sampler, label: &str, said: &str| {
        // Far apart, so that nothing that has a pace of its own is left out.
        clock += 1_000_000_000_000;
        sampler.sample(Mono(clock), Due::unscheduled(), || None, &mut sample, &mut changes);
        let mut line = format!("SEEN {label} {said}");
        for (id, reading) in &sample.readings {
            let Some(name) = names.get(id) else { continue };
            match reading {
                Reading::Value(value) => line += &format!(" {name}={value}"),
                Reading::Peak(value) => line += &format!(" peak:{name}={value}"),
                Reading::Missing => {}
            }
        }
        println!("{line}");
    };
    see(&mut sampler, "start", "0");
    for line in lines {
        let line = line.unwrap();
        // The harness writes `test sampling::tests::truth::job ... ` before the job's first words on the same line.
        let Some((_, said)) = line.split_once('@') else { continue };
        let (label, value) = said.split_once(' ').unwrap();
        if label == "orphan" {
            // It ends now, and only this process reaps it.
            reap_one(&mut sampler, main_pid);
        }
        see(&mut sampler, label, value);
        // A job that has already ended needs no answer.
        let _ = input.write_all(b"\n");
        orphans += usize::from(label == "orphan");
        // These jobs wait for the end of their input.
        if label == "daemon" || orphans == ORPHANS {
            break;
        }
    }
    drop(input);
    while reap_one(&mut sampler, 0) {}
    see(&mut sampler, "end", "0");
}

/// Reaps one child other than `except`, as gpurun does; false when there is none.
fn reap_one(sampler: &mut Sampler, except: i32) -> bool {
    // Leaves the main process alone while it lives: it never ends before the orphans in these jobs.
    let mut status = 0;
    // SAFETY: an all-zero rusage is a valid value of that plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one status and one rusage into live locals.
    let pid = unsafe { libc::wait4(-1, &mut status, 0, &mut usage) };
    if pid <= 0 {
        return false;
    }
    assert_ne!(pid, except, "the main process ended early");
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    sampler.reaped(&ReapedUsage {
        pid,
        cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        max_rss_kib: usage.ru_maxrss as u64,
        blocks_read: usage.ru_inblock as u64,
        blocks_written: usage.ru_oublock as u64,
    });
    true
}

/// The jobs' part; does nothing as an ordinary test.
#[test]
fn job() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.split(':');
    match words.next().unwrap() {
        "thread" => {
            // The harness runs tests on a thread that is not the first; one more makes it plain.
            let child =
                std::thread::spawn(|| again("sampling::tests::truth::job", "burner:1.0").spawn().unwrap());
            child.join().unwrap().wait().unwrap();
        }
        "burner" => {
            burn(words.next().unwrap().parse().unwrap());
            say("burned", used(libc::RUSAGE_SELF));
        }
        "flicker" => {
            burn(words.next().unwrap().parse().unwrap());
        }
        "spike" => {
            say("before", 0.0);
            // SAFETY: `touch` maps anonymous memory that nothing else uses, and it is unmapped once.
            unsafe {
                let memory = touch(400 * MIB);
                libc::munmap(memory, 400 * MIB);
            }
            say("after", 0.0);
            say("later", 0.0);
        }
        "shared" => shared_memory(),
        "daemon" => daemon(),
        "workers" => {
            for _ in 0..150 {
                again("sampling::tests::truth::job", "flicker:0.01").stdout(Stdio::null()).status().unwrap();
            }
            say("worked", used(libc::RUSAGE_CHILDREN) + used(libc::RUSAGE_SELF));
        }
        "orphans" => {
            for _ in 0..ORPHANS {
                // Leaves a child behind without waiting for it.
                again("sampling::tests::truth::job", "parent").status().unwrap();
            }
            wait_for_eof();
        }
        "parent" => {
            let child = again("sampling::tests::truth::job", "orphan").spawn().unwrap();
            forget(child);
        }
        "orphan" => {
            burn(0.3);
            // The watcher reaps us before it samples.
            println!("\n@orphan {}", used(libc::RUSAGE_SELF));
        }
        "ignored" => {
            // SAFETY: no handler is installed; children are then reaped by the kernel itself.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
            let mut child = again("sampling::tests::truth::job", "burner:0.5").spawn().unwrap();
            let _ = child.wait();
            burn(0.5);
            say("alone", 0.5 + used(libc::RUSAGE_SELF));
            say("after", 0.5 + used(libc::RUSAGE_SELF));
        }
        other => panic!("no job {other}"),
    }
}

/// Four children that share 200 MiB with this process.
fn shared_memory() {
    // SAFETY: anonymous memory of our own, for the life of the process.
    unsafe { touch(200 * MIB) };
    let mut children = Vec::new();
    for _ in 0..4 {
        // SAFETY: the child calls only pause, which is async-signal-safe.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: waits for a signal; touches nothing.
                unsafe { libc::pause() };
            },
            pid => children.push(pid),
        }
    }
    // A round of PSS may take more than one sample: it has a budget.
    for _ in 0..8 {
        say("shared", 0.0);
    }
    for pid in children {
        // SAFETY: ends and reaps children that we have just made.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
    }
}

/// A child of a child that has lost its parent and holds 150 MiB.
fn daemon() {
    // SAFETY: the children call only async-signal-safe functions before they end.
    let middle = unsafe { libc::fork() };
    if middle == 0 {
        // SAFETY: as above.
        unsafe {
            libc::setsid();
            if libc::fork() == 0 {
                touch(150 * MIB);
                while libc::getppid() == middle_of_daemon() {}
                raw_say(b"\n@daemon 0\n");
            }
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: reaps the child made above.
    unsafe { libc::waitpid(middle, &mut status, 0) };
    wait_for_eof();
}

fn middle_of_daemon() -> i32 {
    // SAFETY: asks for the session, whose leader the middle process is.
    unsafe { libc::getsid(0) }
}

fn forget(child: Child) {
    std::mem::forget(child);
}

fn used(of: i32) -> f64 {
    // SAFETY: an all-zero rusage is a valid value of that plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one rusage into `usage`.
    unsafe { libc::getrusage(of, &mut usage) };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn burn(seconds: f64) {
    let end = used(libc::RUSAGE_SELF) + seconds;
    while used(libc::RUSAGE_SELF) < end {
        std::hint::black_box((0..10_000u64).fold(0u64, |a, b| a.wrapping_mul(31).wrapping_add(b)));
    }
}

/// Maps memory and writes to every page of it.
///
/// # Safety
/// Only system calls and writes to the new mapping: fit for a forked child. Null where it fails.
unsafe fn touch(bytes: usize) -> *mut libc::c_void {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping overlaps nothing.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return std::ptr::null_mut();
    }
    for page in (0..bytes).step_by(4096) {
        // SAFETY: inside the mapping made above.
        unsafe { memory.cast::<u8>().add(page).write_volatile(1) };
    }
    memory
}

/// Says a label and waits until the watcher has sampled.
fn say(label: &str, value: f64) {
    // The harness holds the lock of stdout while a test runs with `--nocapture`; the raw call does not care.
    // SAFETY: writes a live buffer to stdout and reads one byte from stdin.
    unsafe { raw_say(format!("\n@{label} {value}\n").as_bytes()) };
}

/// # Safety
/// Only write and read on 1 and 0: fit for a forked child.
unsafe fn raw_say(line: &[u8]) {
    let mut byte = 0u8;
    // SAFETY: both buffers live through the calls.
    unsafe {
        libc::write(1, line.as_ptr().cast(), line.len());
        libc::read(0, (&raw mut byte).cast(), 1);
    }
}

fn wait_for_eof() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn a_busy_child_of_another_thread_is_the_jobs() {
    let burned = at(&watch("thread"), "burned");
    let cpu = burned.get("job/cpu_percent_(%)") / 100.0;
    assert!(burned.said >= 1.0);
    assert_eq!(burned.get("job/processes_(count)"), 2.0);
    // The job's first process has used a little as well.
    assert!(cpu > burned.said * 0.95 && cpu < burned.said * 1.05 + 0.05, "{cpu} of {}", burned.said);
}

#[test]
fn a_spike_between_two_samples_is_in_the_peak() {
    let all = watch("spike");
    let (before, after, later) = (at(&all, "before"), at(&all, "after"), at(&all, "later"));
    let rss = before.get("job/memory_rss_(MiB)");
    assert!(after.get("job/memory_rss_(MiB)") < rss + 100.0, "the spike has not ended: {after:?}");
    let peak = after.get("peak:job/memory_rss_(MiB)");
    assert!(peak > rss + 395.0 && peak < rss + 420.0, "{peak} on top of {rss}");
    assert!(!later.values.contains_key("peak:job/memory_rss_(MiB)"), "reported twice: {later:?}");
}

#[test]
fn shared_memory_counts_once_in_pss() {
    let all = watch("shared");
    let shared = at(&all, "shared");
    let rss = shared.get("job/memory_rss_(MiB)");
    let of_shared = all.iter().filter(|(label, _)| label == "shared");
    let told: Vec<f64> =
        of_shared.filter_map(|(_, seen)| seen.values.get("job/memory_pss_(MiB)")).copied().collect();
    let pss = *told.last().expect("no value in eight samples");
    assert_eq!(shared.get("job/processes_(count)"), 5.0);
    assert!(rss > 1000.0 && rss < 1150.0, "rss {rss}");
    assert!(pss > 195.0 && pss < 230.0, "pss {pss}");
}

#[test]
fn a_double_forked_daemon_stays_in_the_tree() {
    let daemon = at(&watch("daemon"), "daemon");
    assert_eq!(daemon.get("job/processes_(count)"), 2.0);
    assert!(daemon.get("job/memory_rss_(MiB)") > 150.0, "{daemon:?}");
}

#[test]
fn short_children_count() {
    let all = watch("workers");
    let worked = at(&all, "worked");
    let cpu = worked.get("job/cpu_percent_(%)") / 100.0;
    assert!(worked.said > 1.5, "{}", worked.said);
    assert!((cpu / worked.said - 1.0).abs() < 0.1, "{cpu} of {}", worked.said);
    // `wait4` of the main process tells the same once more, and nothing counts twice.
    let end = at(&all, "end").get("job/cpu_percent_(%)") / 100.0;
    assert!((end / worked.said - 1.0).abs() < 0.1, "{end} of {}", worked.said);
}

#[test]
fn orphans_that_live_between_two_samples_count_once() {
    let all = watch("orphans");
    let truth: f64 = all.iter().filter(|(label, _)| label == "orphan").map(|(_, seen)| seen.said).sum();
    assert!(truth > 0.9, "{truth}");
    let end = all.last().unwrap().1.get("job/cpu_percent_(%)") / 100.0;
    // Beside what the orphans say, their parents and the job have started programs.
    assert!(end > truth * 0.97 && end < truth + 0.35, "{end} of {truth}");
}

#[test]
fn what_a_job_that_ignores_sigchld_lost_is_kept() {
    let all = watch("ignored");
    let after = at(&all, "after");
    let cpu = after.get("job/cpu_percent_(%)") / 100.0;
    assert!((cpu / after.said - 1.0).abs() < 0.1, "{cpu} of {}", after.said);
}
