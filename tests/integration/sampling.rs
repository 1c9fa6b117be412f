//! The sampler on made-up `/proc` trees and GPU frames: who belongs to the job, what is counted, which
//! series come and go.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod gpu;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpurun::model::device::DeviceIdentity;
use gpurun::model::id::{GpuUuid, SeriesId};
use gpurun::model::metric::MetricId;
use gpurun::model::reading::{Reading, Reason};
use gpurun::model::sample::Sample;
use gpurun::model::time::Mono;
use gpurun::sampling::frame::{DeviceFrame, GpuFrame, GpuProcessUse};
use gpurun::sampling::gpu::{Followed, Role};
use gpurun::sampling::{
    Due, Notice, ProcessDetail, ReapedUsage, Sampler, SamplerSettings, SeriesChange, TreeRoot,
};

const GPURUN: i32 = 1000;
const HOST_NAMESPACE: &str = "pid:[4026531836]";

/// A job that gpurun itself minds.
fn job(main_pid: i32) -> TreeRoot {
    TreeRoot::Job { minder: GPURUN, main_pid, sidecar: 0 }
}

/// A made-up `/proc` in which gpurun is process 1000.
struct FakeProc {
    root: tempfile::TempDir,
}

/// One made-up process; times in ticks of 10 ms, memory in pages.
#[derive(Clone)]
struct Fake {
    pid: i32,
    ppid: i32,
    comm: &'static str,
    start: u64,
    own: u64,
    waited: u64,
    threads: Vec<i32>,
    pages: u64,
    read: u64,
}

impl Fake {
    fn new(pid: i32, ppid: i32) -> Self {
        Self {
            pid,
            ppid,
            comm: "job",
            start: 1_000_000,
            own: 0,
            waited: 0,
            threads: vec![],
            pages: 256,
            read: 0,
        }
    }
}

impl FakeProc {
    fn new() -> Self {
        let fake = Self { root: tempfile::tempdir().unwrap() };
        symlink(GPURUN.to_string(), fake.root.path().join("self")).unwrap();
        fake.write(format!("{GPURUN}/task/{GPURUN}/children"), "");
        fake.write(format!("{GPURUN}/status"), "Name:\tgpurun\nVmHWM:\t20 kB\nVmRSS:\t20 kB\n");
        fake.write(format!("{GPURUN}/stat"), &stat(&Fake { comm: "gpurun", ..Fake::new(GPURUN, 1) }));
        fake.namespace(HOST_NAMESPACE);
        fake
    }

    fn path(&self, name: impl Into<PathBuf>) -> PathBuf {
        self.root.path().join(name.into())
    }

    fn write(&self, name: impl Into<PathBuf>, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn namespace(&self, link: &str) {
        let path = self.path(format!("{GPURUN}/ns/pid"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        symlink(link, path).unwrap();
    }

    /// Writes a process; its lists of children stay as they are, or start empty.
    fn put(&self, process: &Fake) {
        let pid = process.pid;
        self.write(format!("{pid}/stat"), &stat(process));
        let kib = process.pages * 4;
        self.write(format!("{pid}/status"), &format!("Name:\tx\nVmHWM:\t{kib} kB\nVmRSS:\t{kib} kB\n"));
        let io =
            format!("rchar: 1\nread_bytes: {}\nwrite_bytes: 0\ncancelled_write_bytes: 0\n", process.read);
        self.write(format!("{pid}/io"), &io);
        for tid in process.threads.iter().chain([&pid]) {
            let list = format!("{pid}/task/{tid}/children");
            if !self.path(&list).exists() {
                self.write(list, "");
            }
        }
    }

    fn children(&self, pid: i32, tid: i32, children: &[i32]) {
        let text: String = children.iter().map(|child| format!("{child} ")).collect();
        self.write(format!("{pid}/task/{tid}/children"), &text);
    }

    fn remove(&self, pid: i32) {
        fs::remove_dir_all(self.path(pid.to_string())).unwrap();
    }

    fn settings(&self, root: TreeRoot) -> SamplerSettings {
        let mut settings = SamplerSettings::new(root);
        settings.proc_root = self.root.path().to_owned();
        settings.cgroup_root = self.path("no-cgroup");
        // A kept descriptor of a made-up file outlives the file; the real /proc answers ESRCH.
        settings.descriptors = Some(0);
        settings
    }
}

fn stat(p: &Fake) -> String {
    format!(
        "{} ({}) S {} 1 1 0 -1 0 {} 0 0 0 {} 0 {} 0 20 0 {} 0 {} 0 0\n",
        p.pid,
        p.comm,
        p.ppid,
        p.own,
        p.own,
        p.waited,
        p.threads.len() + 1,
        p.start
    )
}

/// A sampler with the names of its series.
struct Watch {
    sampler: Sampler,
    names: HashMap<SeriesId, String>,
    changes: Vec<SeriesChange>,
    at: u64,
}

impl Watch {
    fn new(settings: SamplerSettings) -> Self {
        let sampler = Sampler::new(settings).unwrap();
        let names = sampler.initial_series().into_iter().map(|(id, info)| (id, info.key())).collect();
        Self { sampler, names, changes: Vec::new(), at: 0 }
    }

    fn job(fake: &FakeProc) -> Self {
        Self::new(fake.settings(job(10)))
    }

    fn attach(&mut self, devices: &[Followed]) {
        let mut changes = Vec::new();
        self.sampler.attach_devices(devices, &mut changes);
        self.learn(&changes);
    }

    fn learn(&mut self, changes: &[SeriesChange]) {
        for change in changes {
            if let SeriesChange::Opened(id, info) = change {
                let known = self.names.insert(*id, info.key());
                assert_eq!(known, None, "a number was given out twice");
            }
        }
    }

    fn sample(&mut self, gpu: Option<&GpuFrame>) -> HashMap<String, Reading> {
        self.at += 1_000_000_000;
        let (mut sample, mut changes) = (Sample::default(), Vec::new());
        self.sampler.sample(Mono(self.at), Due::unscheduled(), gpu, &mut sample, &mut changes);
        self.learn(&changes);
        self.changes = changes;
        let name = |id| self.names.get(&id).unwrap_or_else(|| panic!("{id:?} was never opened")).clone();
        let peak = |reading: &Reading| if matches!(reading, Reading::Peak(_)) { "peak:" } else { "" };
        sample.readings.iter().map(|(id, r)| (format!("{}{}", peak(r), name(*id)), *r)).collect()
    }

    fn closed(&self) -> Vec<SeriesId> {
        let closed = |change: &SeriesChange| match change {
            SeriesChange::Closed(id) => Some(*id),
            SeriesChange::Opened(..) => None,
        };
        self.changes.iter().filter_map(closed).collect()
    }
}

fn value(readings: &HashMap<String, Reading>, key: &str) -> f64 {
    match readings.get(key) {
        // Sums of ticks are not exact in binary.
        Some(Reading::Value(value)) => (*value * 1e9).round() / 1e9,
        other => panic!("{key}: {other:?}"),
    }
}

fn device(index: u32) -> Followed {
    let identity = DeviceIdentity {
        index,
        mig: None,
        cuda: None,
        uuid: GpuUuid::new(format!("GPU-{index}")),
        name: None,
        memory_total: Some(1 << 30),
    };
    Followed {
        identity: Arc::new(identity),
        role: Role::Whole,
        metrics: vec![MetricId::GpuGpuUtilization, MetricId::GpuEnergyFromPower],
    }
}

fn used(pid: u32, mib: u64, sm: f64) -> GpuProcessUse {
    GpuProcessUse { pid, memory: Some(mib << 20), sm: Some(sm), memory_utilization: None }
}

fn frame(lists: Vec<Option<Result<Vec<GpuProcessUse>, Reason>>>) -> GpuFrame {
    let devices = lists.into_iter().map(|processes| DeviceFrame {
        readings: vec![(MetricId::GpuGpuUtilization, Reading::Value(50.0))],
        processes,
    });
    GpuFrame { at: Mono(1), devices: devices.collect() }
}

#[test]
fn the_tree_has_children_of_every_thread_and_adopted_orphans() {
    let fake = FakeProc::new();
    fake.put(&Fake { threads: vec![11, 12], ..Fake::new(10, GPURUN) });
    fake.put(&Fake::new(20, 10));
    fake.put(&Fake::new(30, 20));
    fake.put(&Fake::new(40, GPURUN));
    fake.put(&Fake { start: 5, ..Fake::new(50, GPURUN) });
    fake.children(GPURUN, GPURUN, &[10, 40, 50]);
    fake.children(10, 12, &[20]);
    fake.children(20, 20, &[30]);
    let mut watch = Watch::job(&fake);
    let all = watch.sample(None);
    // 50 is older than the main process: a child of the shell that became gpurun.
    assert_eq!(value(&all, "job/processes (count)"), 4.0);
    assert_eq!(value(&all, "job/threads (count)"), 6.0);
    assert_eq!(value(&all, "job/memory_rss (MiB)"), 4.0);
    let live: Vec<i32> = watch.sampler.live().processes.iter().map(|p| p.key.pid).collect();
    assert_eq!(live, [10, 40, 20, 30]);
    // A list that leaves a known process out does not take it away.
    fake.children(10, 12, &[]);
    assert_eq!(value(&watch.sample(None), "job/processes (count)"), 4.0);
    // An orphan is found where the kernel puts it, though no process was made and its new parent never ran.
    fake.put(&Fake::new(60, 10));
    fake.children(10, 11, &[60]);
    assert_eq!(value(&watch.sample(None), "job/processes (count)"), 5.0);
    fake.remove(60);
    fake.remove(20);
    assert_eq!(value(&watch.sample(None), "job/processes (count)"), 3.0);
}

/// The kernel shows a process whose first thread has ended as a zombie, while the others live and hold its memory.
#[test]
fn a_process_outlives_its_first_thread() {
    let fake = FakeProc::new();
    fake.put(&Fake { threads: vec![11], ..Fake::new(10, GPURUN) });
    fake.children(GPURUN, GPURUN, &[10]);
    let mut settings = fake.settings(job(10));
    settings.descriptors = Some(64);
    let mut watch = Watch::new(settings);
    assert_eq!(value(&watch.sample(None), "job/memory_rss (MiB)"), 1.0);
    let alone = Fake { threads: vec![11], own: 70, ..Fake::new(10, GPURUN) };
    fake.put(&alone);
    fake.write("10/stat", &stat(&alone).replacen(") S ", ") Z ", 1));
    fake.write("10/status", "Name:\tx\n");
    fake.write("10/task/11/status", "Name:\tx\nVmHWM:\t4096 kB\nVmRSS:\t3072 kB\n");
    let all = watch.sample(None);
    assert_eq!(value(&all, "job/processes (count)"), 1.0);
    assert_eq!(value(&all, "job/memory_rss (MiB)"), 3.0);
    assert_eq!(value(&all, "job/cpu_percent (%)"), 70.0);
    assert_eq!(all["peak:job/memory_rss (MiB)"], Reading::Peak(4.0));
}

/// A `/proc` in which gpurun is the sidecar of the minder 900, whose job's main process is 10.
fn minded(fake: &FakeProc) -> TreeRoot {
    const MINDER: i32 = 900;
    fake.put(&Fake { comm: "gpurun", own: 30, pages: 512, ..Fake::new(MINDER, 1) });
    fake.put(&Fake { comm: "gpurun", ..Fake::new(GPURUN, MINDER) });
    fake.put(&Fake { own: 100, ..Fake::new(10, MINDER) });
    fake.children(MINDER, MINDER, &[10, GPURUN]);
    TreeRoot::Job { minder: MINDER, main_pid: 10, sidecar: GPURUN }
}

#[test]
fn the_sidecar_and_what_it_starts_are_not_the_job() {
    let fake = FakeProc::new();
    let root = minded(&fake);
    fake.put(&Fake::new(2000, GPURUN));
    fake.children(GPURUN, GPURUN, &[2000]);
    fake.put(&Fake::new(40, 900));
    fake.put(&Fake { start: 5, ..Fake::new(50, 900) });
    fake.children(900, 900, &[10, GPURUN, 40, 50]);
    let without_lists = FakeProc::new();
    minded(&without_lists);
    for process in [Fake::new(2000, GPURUN), Fake::new(40, 900), Fake { start: 5, ..Fake::new(50, 900) }] {
        without_lists.put(&process);
    }
    fs::remove_dir_all(without_lists.path(format!("{GPURUN}/task"))).unwrap();
    for fake in [&fake, &without_lists] {
        let mut watch = Watch::new(fake.settings(root.clone()));
        for _ in 0..2 {
            watch.sample(None);
            let live: Vec<i32> = watch.sampler.live().processes.iter().map(|p| p.key.pid).collect();
            assert_eq!(live, [10, 40]);
        }
    }
}

#[test]
fn gpuruns_own_use_is_that_of_both_its_processes() {
    let fake = FakeProc::new();
    let root = minded(&fake);
    let mut watch = Watch::new(fake.settings(root));
    // 0.3 s of CPU and 512 pages of the minder, 256 pages of the sidecar; its CPU time is that of this test.
    let own = |watch: &mut Watch| {
        let all = watch.sample(None);
        (value(&all, "gpurun/cpu_percent (%)"), value(&all, "gpurun/memory_rss (MiB)"))
    };
    let (cpu, rss) = own(&mut watch);
    assert!(cpu >= 30.0);
    assert_eq!(rss, 3.0);
    // What the minder used stays when it has ended; its memory does not.
    fake.remove(900);
    let (after, rss) = own(&mut watch);
    assert!(after >= cpu);
    assert_eq!(rss, 1.0);
    let mut alone = Watch::job(&FakeProc::new());
    assert!(own(&mut alone).0 < after);
}

#[test]
fn the_job_is_followed_after_its_minder_was_killed() {
    for killed_before in [false, true] {
        let fake = FakeProc::new();
        let root = minded(&fake);
        fake.put(&Fake { own: 50, ..Fake::new(20, 10) });
        fake.children(10, 10, &[20]);
        let live = |watch: &Watch| -> Vec<i32> {
            watch.sampler.live().processes.iter().map(|process| process.key.pid).collect()
        };
        let cpu = |watch: &mut Watch| value(&watch.sample(None), "job/cpu_percent (%)");
        let kill_minder = || {
            // Its number is another process's at once, with children that are not the job's.
            fake.put(&Fake { start: 2_000_000, ..Fake::new(900, 1) });
            fake.put(&Fake { start: 2_000_001, ..Fake::new(60, 900) });
            fake.children(900, 900, &[60]);
            fake.put(&Fake { own: 100, ..Fake::new(10, 1) });
        };
        if killed_before {
            kill_minder();
        }
        let mut watch = Watch::new(fake.settings(root));
        if !killed_before {
            assert_eq!(cpu(&mut watch), 150.0);
            kill_minder();
        }
        assert_eq!(cpu(&mut watch), 150.0);
        assert_eq!(live(&watch), [10, 20]);
        // New children of known processes, also of one that was re-parented.
        fake.put(&Fake { own: 5, ..Fake::new(30, 20) });
        fake.children(20, 20, &[30]);
        assert_eq!(cpu(&mut watch), 155.0);
        fake.remove(20);
        fake.put(&Fake { own: 6, ..Fake::new(30, 1) });
        fake.put(&Fake { own: 110, waited: 50, ..Fake::new(10, 1) });
        fake.children(10, 10, &[]);
        assert_eq!(cpu(&mut watch), 166.0);
        assert_eq!(live(&watch), [10, 30]);
        // Nobody tells what these used: the last that was seen stays.
        fake.remove(10);
        fake.remove(30);
        for _ in 0..5 {
            assert_eq!(cpu(&mut watch), 166.0);
        }
        assert!(live(&watch).is_empty());
    }
}

/// A real minder that is killed while its job runs.
#[test]
fn a_real_job_outlives_its_minder_in_the_tree() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    // The job's processes wait for the end of the input that the test holds: nothing outlives the test.
    let script = "exec 3<&0; sh -c 'sh -c \"read x; :\" <&3 & echo $$; read x; :' <&3 & wait";
    let mut minder =
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(minder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let main_pid: i32 = line.trim().parse().unwrap();
    let root = TreeRoot::Job {
        minder: minder.id().cast_signed(),
        main_pid,
        sidecar: std::process::id().cast_signed(),
    };
    let mut watch = Watch::new(SamplerSettings::new(root));
    let processes = |watch: &mut Watch| value(&watch.sample(None), "job/processes (count)");
    assert_eq!(processes(&mut watch), 2.0);
    let input = minder.stdin.take();
    minder.kill().unwrap();
    minder.wait().unwrap();
    assert_eq!(processes(&mut watch), 2.0);
    assert_eq!(watch.sampler.live().processes[0].key.pid, main_pid);
    drop(input);
    while !watch.sampler.live().processes.is_empty() {
        watch.sample(None);
    }
}

#[test]
fn a_reused_pid_is_another_process() {
    let fake = FakeProc::new();
    fake.put(&Fake { own: 100, ..Fake::new(10, GPURUN) });
    fake.put(&Fake { own: 500, ..Fake::new(20, 10) });
    fake.children(GPURUN, GPURUN, &[10]);
    fake.children(10, 10, &[20]);
    let mut watch = Watch::job(&fake);
    assert_eq!(value(&watch.sample(None), "job/cpu_percent (%)"), 600.0);
    // 20 was waited for, and its number is now a stranger's.
    fake.put(&Fake { own: 100, waited: 510, ..Fake::new(10, GPURUN) });
    fake.put(&Fake { own: 9999, start: 2_000_000, ..Fake::new(20, 1) });
    fake.children(10, 10, &[]);
    let all = watch.sample(None);
    assert_eq!(value(&all, "job/processes (count)"), 1.0);
    assert_eq!(value(&all, "job/cpu_percent (%)"), 610.0);
    // The number again, now for a new child of the job.
    fake.put(&Fake { own: 7, start: 3_000_000, ..Fake::new(20, 10) });
    fake.children(10, 10, &[20]);
    assert_eq!(value(&watch.sample(None), "job/cpu_percent (%)"), 617.0);
}

#[test]
fn what_wait4_tells_replaces_what_was_seen() {
    let fake = FakeProc::new();
    fake.put(&Fake { own: 100, read: 1 << 20, ..Fake::new(10, GPURUN) });
    fake.children(GPURUN, GPURUN, &[10]);
    let mut watch = Watch::job(&fake);
    let all = watch.sample(None);
    assert_eq!(value(&all, "job/cpu_percent (%)"), 100.0);
    assert_eq!(value(&all, "job/io_read (MiB/s)"), 1.0);
    fake.remove(10);
    watch.sampler.reaped(&ReapedUsage {
        pid: 10,
        cpu_seconds: 1.25,
        max_rss_kib: 300 << 10,
        blocks_read: 4096,
        blocks_written: 0,
    });
    let all = watch.sample(None);
    assert_eq!(value(&all, "job/cpu_percent (%)"), 125.0);
    assert_eq!(value(&all, "job/io_read (MiB/s)"), 2.0);
    assert_eq!(all["peak:job/memory_rss (MiB)"], Reading::Peak(300.0));
    // The job has ended: it has no memory that could be 0.
    assert!(!all.contains_key("job/memory_rss (MiB)") && !all.contains_key("job/processes (count)"));
    assert_eq!(value(&watch.sample(None), "job/cpu_percent (%)"), 125.0);
}

#[test]
fn a_job_that_was_never_seen_alive_is_unknown_not_zero() {
    let fake = FakeProc::new();
    let mut watch = Watch::job(&fake);
    let all = watch.sample(None);
    assert_eq!(all["job/memory_rss (MiB)"], Reading::Missing);
    assert_eq!(all["job/io_read (MiB/s)"], Reading::Missing);
    assert_eq!(all["host/memory_used (GiB)"], Reading::Missing);
    assert_eq!(value(&all, "job/cpu_percent (%)"), 0.0);
}

#[test]
fn a_followed_process_starts_at_zero_and_keeps_what_ended() {
    let fake = FakeProc::new();
    fake.put(&Fake { own: 5000, waited: 300, start: 1, read: 9 << 20, ..Fake::new(10, 1) });
    fake.put(&Fake { own: 700, start: 1, ..Fake::new(20, 10) });
    fake.children(10, 10, &[20]);
    // Named twice over: 20 is below 10 and must not count in its own right as well.
    let mut watch = Watch::new(fake.settings(TreeRoot::Pids(vec![20, 10])));
    let all = watch.sample(None);
    assert_eq!(value(&all, "job/cpu_percent (%)"), 0.0);
    assert_eq!(value(&all, "job/io_read (MiB/s)"), 0.0);
    assert_eq!(value(&all, "job/processes (count)"), 2.0);
    assert!(!all.contains_key("peak:job/memory_rss (MiB)"));
    // 20 uses 10 ticks more and is waited for: its 700 of before the run are still not the run's.
    fake.put(&Fake { own: 5050, waited: 300 + 710, start: 1, ..Fake::new(10, 1) });
    fake.remove(20);
    fake.children(10, 10, &[]);
    assert_eq!(value(&watch.sample(None), "job/cpu_percent (%)"), 60.0);
    // The root ends, and somebody else reaps it: what it used stays.
    fake.remove(10);
    assert_eq!(value(&watch.sample(None), "job/cpu_percent (%)"), 60.0);
    assert_eq!(watch.sampler.live().processes, []);
}

#[test]
fn a_kernel_without_children_files_costs_more_and_shows_the_same() {
    let fake = FakeProc::new();
    fake.put(&Fake::new(10, GPURUN));
    fake.put(&Fake::new(30, 10));
    fake.put(&Fake::new(20, 30));
    fake.put(&Fake::new(40, 1));
    fs::remove_dir_all(fake.path(format!("{GPURUN}/task"))).unwrap();
    let mut watch = Watch::job(&fake);
    assert_eq!(watch.sampler.take_notices(), [Notice::NoChildrenFiles]);
    assert_eq!(value(&watch.sample(None), "job/processes (count)"), 3.0);
    assert_eq!(value(&watch.sample(None), "job/processes (count)"), 3.0);
    fake.put(&Fake::new(5, 20));
    fake.remove(40);
    assert_eq!(value(&watch.sample(None), "job/processes (count)"), 4.0);
    fake.remove(5);
    assert_eq!(value(&watch.sample(None), "job/processes (count)"), 3.0);
    assert_eq!(watch.sampler.take_notices(), []);
}

#[test]
fn gpu_processes_of_the_job_get_series_and_others_do_not() {
    let fake = FakeProc::new();
    fake.put(&Fake { comm: "python", ..Fake::new(10, GPURUN) });
    fake.put(&Fake::new(20, 10));
    fake.put(&Fake::new(77, 1));
    fake.children(GPURUN, GPURUN, &[10]);
    fake.children(10, 10, &[20]);
    let mut watch = Watch::job(&fake);
    watch.attach(&[device(0), device(1)]);
    let all = watch.sample(None);
    // The GPU reader has nothing yet: what is read every time was due.
    assert_eq!(all["gpu:0/gpu_utilization (%)"], Reading::Missing);
    assert!(!all.contains_key("job/gpu_memory (MiB)") && !all.keys().any(|key| key.starts_with("pid:")));

    let lists = || {
        frame(vec![
            Some(Ok(vec![used(10, 100, 30.0), used(77, 500, 60.0)])),
            Some(Ok(vec![used(10, 28, 5.0)])),
        ])
    };
    let all = watch.sample(Some(&lists()));
    assert_eq!(value(&all, "gpu:0/gpu_utilization (%)"), 50.0);
    assert_eq!(value(&all, "job/gpu:0/gpu_memory (MiB)"), 100.0);
    assert_eq!(value(&all, "job/gpu:1/gpu_memory (MiB)"), 28.0);
    assert_eq!(value(&all, "job/gpu_memory (MiB)"), 128.0);
    assert_eq!(value(&all, "job/gpu:0/gpu_sm_utilization (%)"), 30.0);
    assert_eq!(value(&all, "pid:10/gpu:0/gpu_memory (MiB)"), 100.0);
    assert_eq!(value(&all, "pid:10/gpu:1/gpu_memory_percent (%)"), 100.0 * 28.0 / 1024.0);
    assert_eq!(all["pid:10/gpu:0/gpu_memory_utilization (%)"], Reading::Missing);
    assert_eq!(value(&all, "pid:10/host/memory_rss (MiB)"), 1.0);
    assert!(!all.keys().any(|key| key.starts_with("pid:20") || key.starts_with("pid:77")));

    // Lists that are not due leave the process's own values alone.
    let all = watch.sample(Some(&frame(vec![None, None])));
    assert_eq!(value(&all, "pid:10/host/threads (count)"), 1.0);
    assert!(!all.contains_key("job/gpu_memory (MiB)") && !all.contains_key("pid:10/gpu:0/gpu_memory (MiB)"));

    // A list that fails is unknown, and so is the total; an empty one is measured.
    let all = watch.sample(Some(&frame(vec![Some(Err(Reason::GpuLost)), Some(Ok(vec![]))])));
    assert_eq!(all["job/gpu:0/gpu_memory (MiB)"], Reading::Missing);
    assert_eq!(value(&all, "job/gpu:1/gpu_memory (MiB)"), 0.0);
    assert_eq!(all["job/gpu_memory (MiB)"], Reading::Missing);
    assert_eq!(all["pid:10/gpu:0/gpu_memory (MiB)"], Reading::Missing);
    assert_eq!(value(&all, "pid:10/gpu:1/gpu_memory (MiB)"), 0.0);

    // It ends: its series close once, and their numbers are free only after release.
    fake.remove(10);
    watch.sample(None);
    let closed = watch.closed();
    assert_eq!(closed.len(), 7 + 2 * 4);
    watch.sample(None);
    assert_eq!(watch.closed(), []);
    for id in &closed {
        watch.names.remove(id);
        watch.sampler.release(*id);
    }
    fake.put(&Fake::new(30, 20));
    fake.children(20, 20, &[30]);
    watch.sample(Some(&frame(vec![Some(Ok(vec![used(30, 1, 1.0)])), None])));
    let opened: Vec<SeriesId> = watch.names.keys().filter(|id| closed.contains(id)).copied().collect();
    assert_eq!(opened.len(), 7 + 4);
}

#[test]
fn the_parent_of_a_slice_does_not_hide_the_total() {
    let fake = FakeProc::new();
    fake.put(&Fake::new(10, GPURUN));
    fake.children(GPURUN, GPURUN, &[10]);
    let mut watch = Watch::job(&fake);
    let mut parent = device(0);
    parent.role = Role::Parent;
    let mut slice = device(1);
    slice.role = Role::Slice;
    watch.attach(&[slice, parent]);
    let list = || Some(Ok(vec![used(10, 64, 1.0)]));
    let all = watch.sample(Some(&frame(vec![list(), list()])));
    assert_eq!(value(&all, "job/gpu_memory (MiB)"), 64.0);
    assert!(!all.contains_key("pid:10/gpu:0/gpu_memory (MiB)"), "{all:?}");
}

#[test]
fn pids_of_another_namespace_are_said_once_and_never_believed() {
    let fake = FakeProc::new();
    fake.namespace("pid:[4026532999]");
    fake.put(&Fake::new(10, GPURUN));
    fake.children(GPURUN, GPURUN, &[10]);
    let mut watch = Watch::job(&fake);
    watch.attach(&[device(0)]);
    let all = watch.sample(Some(&frame(vec![Some(Ok(vec![]))])));
    assert_eq!(value(&all, "job/gpu_memory (MiB)"), 0.0);
    let alien = frame(vec![Some(Ok(vec![used(4_000_000, 100, 1.0)]))]);
    for _ in 0..2 {
        let all = watch.sample(Some(&alien));
        assert_eq!(all["job/gpu_memory (MiB)"], Reading::Missing);
        assert_eq!(all["job/gpu:0/gpu_sm_utilization (%)"], Reading::Missing);
    }
    assert_eq!(watch.sampler.take_notices(), [Notice::OtherPidNamespace]);
    assert_eq!(watch.sampler.take_notices(), []);
    // On the host itself a pid that has just ended is no sign of anything.
    fake.namespace(HOST_NAMESPACE);
    let mut watch = Watch::job(&fake);
    watch.attach(&[device(0)]);
    assert_eq!(value(&watch.sample(Some(&alien)), "job/gpu_memory (MiB)"), 0.0);
    assert_eq!(watch.sampler.take_notices(), []);
}

#[test]
fn record_all_follows_what_nvml_lists() {
    let fake = FakeProc::new();
    fake.put(&Fake { own: 1000, start: 1, ..Fake::new(10, 1) });
    fake.put(&Fake { start: 1, ..Fake::new(20, 10) });
    fake.children(10, 10, &[20]);
    let mut watch = Watch::new(fake.settings(TreeRoot::GpuProcesses));
    watch.attach(&[device(0)]);
    let missing = |all: &HashMap<String, Reading>| all["job/processes (count)"] == Reading::Missing;
    assert!(missing(&watch.sample(None)), "nobody has been asked yet");
    assert!(missing(&watch.sample(Some(&frame(vec![Some(Err(Reason::NoPermission))])))), "and no answer");
    assert_eq!(value(&watch.sample(Some(&frame(vec![Some(Ok(vec![]))]))), "job/processes (count)"), 0.0);
    let list = frame(vec![Some(Ok(vec![used(10, 100, 30.0), used(999, 1, 1.0)]))]);
    let all = watch.sample(Some(&list));
    assert_eq!(value(&all, "job/processes (count)"), 1.0);
    assert_eq!(value(&all, "job/cpu_percent (%)"), 0.0);
    assert_eq!(value(&all, "job/gpu_memory (MiB)"), 100.0);
    fake.put(&Fake { own: 1100, start: 1, ..Fake::new(10, 1) });
    assert_eq!(value(&watch.sample(None), "job/cpu_percent (%)"), 100.0);
}

#[test]
fn a_program_that_is_executed_gets_its_name() {
    let fake = FakeProc::new();
    fake.put(&Fake { comm: "gpurun", ..Fake::new(10, GPURUN) });
    fake.children(GPURUN, GPURUN, &[10]);
    let mut settings = fake.settings(job(10));
    settings.processes = ProcessDetail::All;
    let mut watch = Watch::new(settings);
    let name = |watch: &Watch| {
        let opened = watch.changes.iter().rev().find_map(|change| match change {
            SeriesChange::Opened(_, info) => info.process.clone(),
            SeriesChange::Closed(_) => None,
        });
        opened.map(|process| process.name.to_string())
    };
    watch.sample(None);
    assert_eq!(name(&watch), Some("gpurun".to_owned()));
    fake.put(&Fake { comm: "python", ..Fake::new(10, GPURUN) });
    watch.sample(None);
    assert_eq!(name(&watch), Some("python".to_owned()));
    assert_eq!(watch.closed().len(), 7);
    watch.sample(None);
    assert_eq!(watch.changes, []);
}

#[test]
fn processes_beyond_the_limit_are_in_the_totals_only() {
    let fake = FakeProc::new();
    let pids: Vec<i32> = (10..20).collect();
    for pid in &pids {
        fake.put(&Fake::new(*pid, GPURUN));
    }
    fake.children(GPURUN, GPURUN, &pids);
    let mut settings = fake.settings(job(10));
    settings.processes = ProcessDetail::All;
    settings.process_limit = 4;
    let mut watch = Watch::new(settings);
    let all = watch.sample(None);
    assert_eq!(value(&all, "job/processes (count)"), 10.0);
    assert_eq!(all.keys().filter(|key| key.ends_with("host/threads (count)")).count(), 4);
    watch.sample(None);
    assert_eq!(watch.sampler.take_notices(), [Notice::TooManyProcesses { limit: 4 }]);
    fake.remove(10);
    watch.sample(None);
    assert_eq!(watch.sampler.take_notices(), []);
}

#[test]
fn lateness_and_drops_are_counted() {
    let fake = FakeProc::new();
    let mut watch = Watch::job(&fake);
    let (mut sample, mut changes) = (Sample::default(), Vec::new());
    for (late, skipped) in [(400, 0), (600, 2), (501, 1)] {
        let due = Due { late: Duration::from_millis(late), skipped };
        watch.sampler.sample(Mono(1), due, None, &mut sample, &mut changes);
    }
    watch.sampler.count_dropped(5);
    let all = watch.sample(None);
    assert_eq!(value(&all, "gpurun/late_samples (count)"), 2.0);
    assert_eq!(value(&all, "gpurun/dropped_samples (count)"), 8.0);
    assert!(value(&all, "gpurun/memory_rss (MiB)") > 0.0);
    assert!(value(&all, "gpurun/sample_time (ms)") > 0.0);
}

#[test]
fn more_threads_than_descriptors_still_show_their_children() {
    let fake = FakeProc::new();
    let threads: Vec<i32> = (2000..3000).collect();
    fake.put(&Fake { threads: threads.clone(), ..Fake::new(10, GPURUN) });
    fake.children(GPURUN, GPURUN, &[10]);
    let mut watch = Watch::job(&fake);
    watch.sample(None);
    for (place, tid) in threads.iter().enumerate().step_by(97) {
        let child = 5000 + i32::try_from(place).unwrap();
        fake.put(&Fake::new(child, 10));
        fake.children(10, *tid, &[child]);
    }
    assert_eq!(value(&watch.sample(None), "job/processes (count)"), 12.0);
    // Threads that end take nothing away.
    fs::remove_dir_all(fake.path("10/task/2999")).unwrap();
    assert_eq!(value(&watch.sample(None), "job/processes (count)"), 12.0);
}

#[test]
fn energy_by_estimate_has_a_series_only_where_it_comes() {
    let fake = FakeProc::new();
    let mut watch = Watch::job(&fake);
    watch.attach(&[device(0)]);
    let key = "gpu:0/energy_from_power (J)";
    assert!(!watch.sample(Some(&frame(vec![None]))).contains_key(key));
    let mut with_energy = frame(vec![None]);
    with_energy.devices[0].readings.push((MetricId::GpuEnergyFromPower, Reading::Value(3.0)));
    assert_eq!(value(&watch.sample(Some(&with_energy)), key), 3.0);
    assert_eq!(watch.changes.len(), 1);
}
