//! Which series come and go, and what the devices say of the processes.

use std::collections::HashMap;

use super::support::*;
use crate::model::id::SeriesId;
use crate::model::metric::MetricId;
use crate::model::reading::{Reading, Reason};
use crate::sampling::gpu::Role;
use crate::sampling::{Notice, ProcessDetail, SeriesChange, TreeRoot};

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
    assert_eq!(closed.len(), 8 + 2 * 4);
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
    assert_eq!(opened.len(), 8 + 4);
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
fn a_listed_process_that_has_just_ended_is_no_sign_of_another_namespace() {
    let fake = FakeProc::new();
    fake.namespace("pid:[4026532999]");
    fake.put(&Fake::new(10, GPURUN));
    fake.put(&Fake::new(20, 10));
    fake.children(GPURUN, GPURUN, &[10]);
    fake.children(10, 10, &[20]);
    let mut watch = Watch::job(&fake);
    watch.attach(&[device(0)]);
    let translated = frame(vec![Some(Ok(vec![used(20, 100, 1.0)]))]);
    assert_eq!(value(&watch.sample(Some(&translated)), "job/gpu_memory (MiB)"), 100.0);
    // It ends between the driver's list and the look at the tree.
    fake.remove(20);
    fake.children(10, 10, &[]);
    assert_eq!(value(&watch.sample(Some(&translated)), "job/gpu_memory (MiB)"), 0.0);
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
    assert!(missing(&watch.sample(None)), "nothing has been read yet");
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
    assert_eq!(watch.closed().len(), 8);
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
