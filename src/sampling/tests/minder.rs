//! A job that another process minds.

use std::fs;

use super::support::*;
use crate::sampling::{SamplerSettings, TreeRoot};

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
            assert_eq!(watch.live(), [10, 40]);
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
        assert_eq!(watch.live(), [10, 20]);
        // New children of known processes, also of one that was re-parented.
        fake.put(&Fake { own: 5, ..Fake::new(30, 20) });
        fake.children(20, 20, &[30]);
        assert_eq!(cpu(&mut watch), 155.0);
        fake.remove(20);
        fake.put(&Fake { own: 6, ..Fake::new(30, 1) });
        fake.put(&Fake { own: 110, waited: 50, ..Fake::new(10, 1) });
        fake.children(10, 10, &[]);
        assert_eq!(cpu(&mut watch), 166.0);
        assert_eq!(watch.live(), [10, 30]);
        // What these used is not reported: the last that was seen stays.
        fake.remove(10);
        fake.remove(30);
        for _ in 0..5 {
            assert_eq!(cpu(&mut watch), 166.0);
        }
        assert!(watch.live().is_empty());
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
    assert_eq!(watch.live()[0], main_pid);
    drop(input);
    while !watch.live().is_empty() {
        watch.sample(None);
    }
}
