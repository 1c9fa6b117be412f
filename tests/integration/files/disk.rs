//! Writers that are killed, and disks that are full.

use super::*;

/// Not a test: the process that is killed. Says the number of each window when all three files have the
/// beginning of it, and so the whole of the window before.
#[test]
#[ignore = "helper of a_killed_writer_leaves_every_window_it_wrote"]
fn helper_writes_until_killed() {
    let Ok(dir) = std::env::var("GPURUN_TEST_WRITER_DIR") else { return };
    let dir = PathBuf::from(dir);
    let run = run_info(2, None);
    let targets = ["m.csv", "m.parquet", "tensorboard:tb"].map(|name| parse(&dir, name));
    let (opened, failures) = open(&targets, &settings(Mode::CreateNew));
    assert!(failures.is_empty(), "{failures:?}");
    let fan_out = opened.start(Arc::clone(&run));
    let files = [dir.join("m.csv"), dir.join("m.parquet.journal"), only_event_file(&dir.join("tb/gpurun"))];
    let sizes = || files.each_ref().map(|path| fs::metadata(path).unwrap().len());
    wait_until(|| sizes().iter().all(|&size| size > 0));
    for n in 1.. {
        fan_out.send(Arc::new(window(&run, n)));
        wait_until(|| fan_out.queued() == 0);
        use std::io::Write as _;
        writeln!(std::io::stdout(), "window {n}").unwrap();
    }
}

#[test]
fn a_killed_writer_leaves_every_window_it_wrote() {
    use std::io::{BufRead as _, BufReader};

    let run = run_info(2, None);
    let expected: Vec<ReadRow> = {
        let dir = tempfile::tempdir().unwrap();
        assert_clean(&write(
            &["m.parquet"],
            dir.path(),
            &settings(Mode::CreateNew),
            &run,
            (1..=5000).map(|n| window(&run, n)),
        ));
        read(&dir.path().join("m.parquet")).0
    };
    let rows = run.series.len() + 1;
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for round in 0..300 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["files::disk::helper_writes_until_killed", "--exact", "--ignored", "--nocapture"])
            .env("GPURUN_TEST_WRITER_DIR", dir.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let until = random % 12;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = 0;
        while said < until {
            let line = lines.next().expect("the helper ended by itself").unwrap();
            if let Some(n) = line.strip_prefix("window ") {
                said = n.parse().unwrap();
            }
        }
        // Some instant inside the next window.
        for _ in 0..random % 50_000 {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let said: usize = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("window ")?.parse().ok())
            .fold(usize::try_from(said).unwrap(), usize::max);

        let outcome = recover(dir.path(), &["."]);
        assert!(outcome.status.success(), "round {round}: {outcome:?}");
        if round % 20 == 0 {
            let again = recover(dir.path(), &["."]);
            assert!(again.status.success() && again.stderr.is_empty(), "{again:?}");
            let did = String::from_utf8_lossy(&again.stdout).into_owned();
            assert!(!did.contains("recovered") && !did.contains("cut"), "recover is not idempotent: {did}");
        }

        if said == 0 {
            // It may have died before it made its files.
            continue;
        }
        let (csv, torn) = read(&dir.path().join("m.csv"));
        assert_eq!(torn, None);
        assert!(
            csv.len() >= said * rows,
            "round {round}: CSV lost a window: {} rows, {said} windows",
            csv.len()
        );
        let (parquet, torn) = read(&dir.path().join("m.parquet"));
        assert_eq!(torn, None);
        assert!(parquet.len() >= said * rows, "round {round}: Parquet lost a window");
        assert_eq!(parquet.len() % rows, 0);
        assert!(parquet == expected[..parquet.len()], "round {round}: a recovered value differs");
        for (got, want) in csv.iter().zip(&expected) {
            assert_eq!(
                (got.time_us, got.mean, got.min, got.max, got.last),
                (want.time_us, want.mean, want.min, want.max, want.last)
            );
        }
        let (events, _) = event_records(&only_event_file(&dir.path().join("tb/gpurun")));
        assert!(events.len() > said, "round {round}: {} events for {said} windows", events.len());
    }
}

/// A tmpfs of a size of its own, unmounted when dropped.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(size: &str) -> Option<SmallDisk> {
        let disk = SmallDisk { dir: tempfile::tempdir().unwrap() };
        let mounted = disk.run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
        if !mounted {
            assert!(
                std::env::var_os("GPURUN_TEST_NO_MOUNT").is_some(),
                "cannot mount a tmpfs; run as root, or set GPURUN_TEST_NO_MOUNT to leave these tests out"
            );
            return None;
        }
        Some(disk)
    }

    fn grow(&self, size: &str) {
        assert!(self.run("mount", &["-o", &format!("remount,size={size}")]));
    }

    fn run(&self, program: &str, args: &[&str]) -> bool {
        std::process::Command::new(program)
            .args(args)
            .arg(self.dir.path())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap()
            .success()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.run("umount", &[]);
    }
}

const THREE: [&str; 3] = ["m.csv", "m.parquet", "tensorboard:tb"];

#[test]
fn a_disk_that_fills_and_grows_again_costs_no_window() {
    let Some(disk) = SmallDisk::mount("64k") else { return };
    let dir = disk.dir.path();
    let run = run_info(2, None);
    let (opened, failures) = open(&THREE.map(|n| parse(dir, n)), &settings(Mode::CreateNew));
    assert!(failures.is_empty(), "{failures:?}");
    let fan_out = opened.start(Arc::clone(&run));
    let mut notices = Vec::new();
    let mut n = 0;
    let failing = |notices: &[String]| notices.iter().filter(|t| t.contains("kept in memory")).count();
    while failing(&notices) < 3 {
        n += 1;
        assert!(n < 10_000, "the disk never filled: {notices:?}");
        fan_out.send(Arc::new(window(&run, n)));
        std::thread::yield_now();
        notices.extend(fan_out.notices().take());
    }
    for _ in 0..50 {
        n += 1;
        fan_out.send(Arc::new(window(&run, n)));
    }
    disk.grow("16m");
    // Sent again until each writer has met the room.
    while notices.iter().filter(|t| t.contains("nothing is lost")).count() < 3 {
        n += 1;
        fan_out.send(Arc::new(window(&run, n)));
        std::thread::yield_now();
        notices.extend(fan_out.notices().take());
    }
    let reports = fan_out.finish(run_end(), DEADLINE);
    assert_clean(&reports);
    let windows = usize::try_from(n).unwrap();
    let rows = run.series.len() + 1;
    for (report, per_window) in reports.iter().zip([rows, rows, 1]) {
        assert_eq!(report.rows as usize, windows * per_window, "{report:?}");
    }
    let (csv, _) = read(&dir.join("m.csv"));
    let (parquet, _) = read(&dir.join("m.parquet"));
    assert_eq!((csv.len(), parquet.len()), (windows * rows, windows * rows));
    for (k, rows) in csv.chunks(rows).enumerate() {
        assert_eq!(rows[0].time_us, window(&run, k as u64 + 1).time.0, "a gap or a repetition");
    }
    let (events, torn) = event_records(&only_event_file(&dir.join("tb/gpurun")));
    // The first two are the version and the layout.
    assert_eq!((events.len(), torn), (2 + windows, 0));
}

#[test]
fn a_disk_that_stays_full_is_said_once_and_its_loss_is_counted() {
    let Some(disk) = SmallDisk::mount("64k") else { return };
    let dir = disk.dir.path();
    let run = run_info(2, None);
    let small = WriterSettings { memory_bound: 20_000, ..settings(Mode::CreateNew) };
    let (opened, _) = open(&THREE.map(|n| parse(dir, n)), &small);
    let fan_out = opened.start(Arc::clone(&run));
    let mut notices = Vec::new();
    let mut sent = 0;
    while notices.len() < 3 || sent < 300 {
        sent += 1;
        assert!(sent < 10_000, "the disk never filled");
        fan_out.send(Arc::new(window(&run, sent)));
        std::thread::yield_now();
        notices.extend(fan_out.notices().take());
    }
    let rows = run.series.len() as u64 + 1;
    let reports = fan_out.finish(run_end(), DEADLINE);
    for (report, per_window) in reports.iter().zip([rows, rows, 1]) {
        assert!(report.error.is_some(), "{report:?}");
        assert!(report.lost_rows > 0, "{report:?}");
        assert_eq!(report.rows + report.lost_rows, sent * per_window, "{report:?}");
    }
    let (csv, torn) = read(&dir.join("m.csv"));
    assert_eq!((csv.len() as u64, torn), (reports[0].rows, None));
    // The Parquet file had no room; its journal is whole and can be finished elsewhere.
    let elsewhere = tempfile::tempdir().unwrap();
    let journal = elsewhere.path().join("m.parquet.journal");
    assert!(!dir.join("m.parquet").exists());
    fs::copy(dir.join("m.parquet.journal"), &journal).unwrap();
    assert_eq!(internals::recover(&journal).unwrap().rows, reports[1].rows);
    assert_eq!(event_records(&only_event_file(&dir.join("tb/gpurun"))).1, 0);
}

/// A gpurun without a driver that logs the host and its job in very short windows, to all three formats.
fn gpurun_that_logs(dir: &Path, job: &str) -> std::process::Command {
    let mut command = std::process::Command::new(support::gpurun());
    command
        .current_dir(dir)
        .env("GPURUN_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1")
        .args(["--interval", "10ms", "--window", "30ms", "--processes", "all"])
        .args(["--log", "m.csv", "--log", "m.parquet", "--log", "tensorboard:tb"])
        .args(["--", "sh", "-c", job])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null());
    command
}

/// A job that says its pid, waits for the file `stop`, and exits 7.
const PATIENT: &str =
    "echo $$ >pid.tmp; mv pid.tmp pid; while [ -e pid ] && [ ! -e stop ]; do sleep 0.02; done; exit 7";

#[test]
fn after_kill_9_recover_finishes_what_gpurun_wrote_and_the_job_lives_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let mut gpurun =
        gpurun_that_logs(dir.path(), PATIENT).stderr(std::process::Stdio::null()).spawn().unwrap();
    let csv_lines = || fs::read_to_string(path("m.csv")).map_or(0, |t| t.lines().count());
    wait_until(|| {
        path("pid").exists()
            && csv_lines() > 500
            && internals::rows(&path("m.parquet.journal"))
                .is_ok_and(|log| log.filter(Result::is_ok).count() > 500)
    });
    // Either process alone would finish the files or leave the job as it is; without both the journal is what is left.
    let sidecar = support::sidecar_of(gpurun.id());
    support::kill_sidecar(gpurun.id());
    gpurun.kill().unwrap();
    gpurun.wait().unwrap();
    // It holds its files until it is gone, or a zombie that nobody reaps.
    wait_until(|| {
        let status = fs::read_to_string(format!("/proc/{sidecar}/status"));
        status.map_or(true, |status| status.contains("State:\tZ"))
    });
    let pid = fs::read_to_string(path("pid")).unwrap();
    assert!(Path::new("/proc").join(pid.trim()).exists(), "the job died with gpurun");

    // The job holds nothing of the log: it can be recovered while the job runs.
    let recovered = recover(dir.path(), &["."]);
    assert!(recovered.status.success(), "{recovered:?}");
    assert!(String::from_utf8_lossy(&recovered.stdout).contains("rows recovered"), "{recovered:?}");
    fs::write(path("stop"), "").unwrap();

    let (csv, torn) = read(&path("m.csv"));
    assert_eq!(torn, None);
    let (parquet, _) = read(&path("m.parquet"));
    assert!(!path("m.parquet.journal").exists());
    let both = csv.len().min(parquet.len());
    assert!(both > 400, "{} and {} rows", csv.len(), parquet.len());
    assert!(csv[..both] == parquet[..both]);
    assert!(event_records(&only_event_file(&path("tb/gpurun"))).0.len() > 2);
    let again = recover(dir.path(), &["m.parquet", "m.csv"]);
    assert!(String::from_utf8_lossy(&again.stdout).matches("already complete").count() == 2, "{again:?}");
}

#[test]
fn a_full_disk_is_said_and_the_jobs_status_stays() {
    use std::io::{BufRead as _, BufReader};

    let Some(disk) = SmallDisk::mount("64k") else { return };
    let dir = disk.dir.path();
    // The pid file has no room either: the job only waits.
    let job = "while [ -d \"${STOP%/*}\" ] && [ ! -e \"$STOP\" ]; do sleep 0.02; done; exit 7";
    let elsewhere = tempfile::tempdir().unwrap();
    let stop = elsewhere.path().join("stop");
    let mut gpurun =
        gpurun_that_logs(dir, job).env("STOP", &stop).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(gpurun.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        let about = |what: &str| said.iter().filter(|l: &&String| l.contains(what)).count();
        if about("kept in memory") == 2 && line.contains("kept in memory") {
            disk.grow("32m");
        }
        if about("nothing is lost") == 2 && line.contains("nothing is lost") {
            fs::write(&stop, "").unwrap();
        }
        said.push(line);
    }
    assert_eq!(gpurun.wait().unwrap().code(), Some(7), "{said:#?}");
    let (csv, _) = read(&dir.join("m.csv"));
    let (parquet, _) = read(&dir.join("m.parquet"));
    assert!(csv == parquet, "{} and {} rows", csv.len(), parquet.len());
    // No window of 30 ms is missing: each begins where the one before it ended.
    let mut ends: Vec<_> =
        csv.iter().filter(|r| &*r.kind == "window").map(|r| (r.time_us, r.window_s)).collect();
    ends.dedup();
    assert!(ends.len() > 10);
    for pair in ends.windows(2) {
        let gap = (pair[1].0 - pair[0].0) as f64 / 1e6 - pair[1].1;
        assert!(gap.abs() < 0.015, "{pair:?}");
    }
}
