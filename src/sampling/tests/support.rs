//! A made-up `/proc`, and a sampler whose readings are looked up by the names of their series.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use crate::model::device::DeviceIdentity;
use crate::model::id::{GpuUuid, SeriesId};
use crate::model::metric::MetricId;
use crate::model::reading::{Reading, Reason};
use crate::model::sample::Sample;
use crate::model::time::Mono;
use crate::sampling::frame::{DeviceFrame, GpuFrame, GpuProcessUse};
use crate::sampling::gpu::{Followed, Role};
use crate::sampling::{Due, Sampler, SamplerSettings, SeriesChange, TreeRoot};

pub(super) const GPURUN: i32 = 1000;
pub(super) const HOST_NAMESPACE: &str = "pid:[4026531836]";

/// A job that gpurun itself minds.
pub(super) fn job(main_pid: i32) -> TreeRoot {
    TreeRoot::Job { minder: GPURUN, main_pid, sidecar: 0 }
}

/// A made-up `/proc` in which gpurun is process 1000.
pub(super) struct FakeProc {
    pub(super) root: tempfile::TempDir,
}

/// One made-up process; times in ticks of 10 ms, memory in pages.
#[derive(Clone)]
pub(super) struct Fake {
    pub(super) pid: i32,
    pub(super) ppid: i32,
    pub(super) comm: &'static str,
    pub(super) start: u64,
    pub(super) own: u64,
    pub(super) waited: u64,
    pub(super) threads: Vec<i32>,
    pub(super) pages: u64,
    pub(super) read: u64,
}

impl Fake {
    pub(super) fn new(pid: i32, ppid: i32) -> Self {
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
    pub(super) fn new() -> Self {
        let fake = Self { root: tempfile::tempdir().unwrap() };
        symlink(GPURUN.to_string(), fake.root.path().join("self")).unwrap();
        fake.write(format!("{GPURUN}/task/{GPURUN}/children"), "");
        fake.write(format!("{GPURUN}/status"), "Name:\tgpurun\nVmHWM:\t20 kB\nVmRSS:\t20 kB\n");
        fake.write(format!("{GPURUN}/stat"), &stat(&Fake { comm: "gpurun", ..Fake::new(GPURUN, 1) }));
        fake.namespace(HOST_NAMESPACE);
        fake
    }

    pub(super) fn path(&self, name: impl Into<PathBuf>) -> PathBuf {
        self.root.path().join(name.into())
    }

    pub(super) fn write(&self, name: impl Into<PathBuf>, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(super) fn namespace(&self, link: &str) {
        let path = self.path(format!("{GPURUN}/ns/pid"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        symlink(link, path).unwrap();
    }

    /// Writes a process; its lists of children stay as they are, or start empty.
    pub(super) fn put(&self, process: &Fake) {
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

    pub(super) fn children(&self, pid: i32, tid: i32, children: &[i32]) {
        let text: String = children.iter().map(|child| format!("{child} ")).collect();
        self.write(format!("{pid}/task/{tid}/children"), &text);
    }

    pub(super) fn remove(&self, pid: i32) {
        fs::remove_dir_all(self.path(pid.to_string())).unwrap();
    }

    pub(super) fn settings(&self, root: TreeRoot) -> SamplerSettings {
        let mut settings = SamplerSettings::new(root);
        settings.proc_root = self.root.path().to_owned();
        settings.cgroup_root = self.path("no-cgroup");
        // A kept descriptor of a made-up file outlives the file; the real /proc answers ESRCH.
        settings.descriptors = Some(0);
        settings
    }
}

pub(super) fn stat(p: &Fake) -> String {
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
pub(super) struct Watch {
    pub(super) sampler: Sampler,
    pub(super) names: HashMap<SeriesId, String>,
    pub(super) changes: Vec<SeriesChange>,
    pub(super) at: u64,
}

impl Watch {
    pub(super) fn new(settings: SamplerSettings) -> Self {
        let sampler = Sampler::new(settings).unwrap();
        let names = sampler.initial_series().into_iter().map(|(id, info)| (id, info.key())).collect();
        Self { sampler, names, changes: Vec::new(), at: 0 }
    }

    pub(super) fn job(fake: &FakeProc) -> Self {
        Self::new(fake.settings(job(10)))
    }

    pub(super) fn attach(&mut self, devices: &[Followed]) {
        let mut changes = Vec::new();
        self.sampler.attach_devices(devices, &mut changes);
        self.learn(&changes);
    }

    pub(super) fn learn(&mut self, changes: &[SeriesChange]) {
        for change in changes {
            if let SeriesChange::Opened(id, info) = change {
                let known = self.names.insert(*id, info.key());
                assert_eq!(known, None, "a number was given out twice");
            }
        }
    }

    pub(super) fn sample(&mut self, gpu: Option<&GpuFrame>) -> HashMap<String, Reading> {
        self.at += 1_000_000_000;
        let (mut sample, mut changes) = (Sample::default(), Vec::new());
        self.sampler.sample(Mono(self.at), Due::unscheduled(), || gpu, &mut sample, &mut changes);
        self.learn(&changes);
        self.changes = changes;
        let name = |id| self.names.get(&id).unwrap_or_else(|| panic!("{id:?} was never opened")).clone();
        let peak = |reading: &Reading| if matches!(reading, Reading::Peak(_)) { "peak:" } else { "" };
        sample.readings.iter().map(|(id, r)| (format!("{}{}", peak(r), name(*id)), *r)).collect()
    }

    /// The pids of the live processes.
    pub(super) fn live(&self) -> Vec<i32> {
        let live = self.sampler.tree.nodes().iter().filter(|node| node.is_alive());
        live.map(|node| node.key().pid).collect()
    }

    pub(super) fn closed(&self) -> Vec<SeriesId> {
        let closed = |change: &SeriesChange| match change {
            SeriesChange::Closed(id) => Some(*id),
            SeriesChange::Opened(..) => None,
        };
        self.changes.iter().filter_map(closed).collect()
    }
}

pub(super) fn value(readings: &HashMap<String, Reading>, key: &str) -> f64 {
    match readings.get(key) {
        // Sums of ticks are not exact in binary.
        Some(Reading::Value(value)) => (*value * 1e9).round() / 1e9,
        other => panic!("{key}: {other:?}"),
    }
}

pub(super) fn device(index: u32) -> Followed {
    let identity = DeviceIdentity {
        index,
        mig: None,
        cuda: None,
        uuid: GpuUuid::new(format!("GPU-{index}")),
        name: None,
        memory_total: Some(1 << 30),
        facts: Vec::new(),
    };
    Followed {
        identity: Arc::new(identity),
        role: Role::Whole,
        metrics: vec![MetricId::GpuGpuUtilization, MetricId::GpuEnergyFromPower],
    }
}

pub(super) fn used(pid: u32, mib: u64, sm: f64) -> GpuProcessUse {
    GpuProcessUse { pid, memory: Some(mib << 20), sm: Some(sm), memory_utilization: None }
}

pub(super) fn frame(lists: Vec<Option<Result<Vec<GpuProcessUse>, Reason>>>) -> GpuFrame {
    let devices = lists.into_iter().map(|processes| DeviceFrame {
        readings: vec![(MetricId::GpuGpuUtilization, Reading::Value(50.0))],
        processes,
    });
    GpuFrame { at: Mono(1), devices: devices.collect() }
}
