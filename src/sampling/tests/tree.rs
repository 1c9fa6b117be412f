//! Which processes belong to the job, and what is counted of them.

use std::fs;
use std::time::Duration;

use super::support::*;
use crate::model::reading::Reading;
use crate::model::sample::Sample;
use crate::model::time::Mono;
use crate::sampling::{Due, Notice, ReapedUsage, TreeRoot};

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
    assert_eq!(watch.live(), [10, 40, 20, 30]);
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

#[test]
fn a_reused_pid_is_another_process() {
    let fake = FakeProc::new();
    fake.put(&Fake { own: 100, ..Fake::new(10, GPURUN) });
    fake.put(&Fake { own: 500, ..Fake::new(20, 10) });
    fake.children(GPURUN, GPURUN, &[10]);
    fake.children(10, 10, &[20]);
    let mut watch = Watch::job(&fake);
    assert_eq!(value(&watch.sample(None), "job/cpu_percent (%)"), 600.0);
    // 20 was waited for, and its number is now that of an unrelated process.
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
    // The root ends, and another process reaps it: what it used stays.
    fake.remove(10);
    assert_eq!(value(&watch.sample(None), "job/cpu_percent (%)"), 60.0);
    assert!(watch.live().is_empty());
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
fn lateness_and_drops_are_counted() {
    let fake = FakeProc::new();
    let mut watch = Watch::job(&fake);
    let (mut sample, mut changes) = (Sample::default(), Vec::new());
    for (late, skipped) in [(400, 0), (600, 2), (501, 1)] {
        let due = Due { late: Duration::from_millis(late), skipped };
        watch.sampler.sample(Mono(1), due, || None, &mut sample, &mut changes);
    }
    let all = watch.sample(None);
    assert_eq!(value(&all, "gpurun/late_samples (count)"), 2.0);
    assert_eq!(value(&all, "gpurun/dropped_samples (count)"), 3.0);
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
