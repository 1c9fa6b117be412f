//! What binds the job's CPUs, through the binary: its affinity, and the quota of a real cgroup.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::logged::{Place, Rows, text, until};

const NO_GPU: &str = "";

fn rows(place: &Place, output: &Output) -> Rows {
    assert!(output.status.success(), "{}", text(&output.stderr));
    place.csv("x.csv")
}

#[test]
fn a_pinned_job_may_run_on_the_cpus_that_it_was_given() {
    let place = Place::new(NO_GPU);
    let line = ["--interval", "100ms", "--processes", "all", "--log", "x.csv", "--"];
    // The first of the allowed CPUs: number 0 need not be one.
    let job = "import os, time; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); time.sleep(1)";
    let output = place.output(&[&line[..], &["python3", "-S", "-c", job]].concat());
    let rows = rows(&place, &output);
    for series in ["job/cpu_affinity", "process/cpu_affinity"] {
        let last = rows.of(series).pop().unwrap().number("last");
        assert!((last - 1.0).abs() < 1e-9, "{series}: {last}");
    }
    if fs::read_to_string("/proc/self/cgroup").unwrap().lines().all(|line| line.ends_with(":/")) {
        assert!(!rows.has("job/cpu_throttled"), "no quota binds it");
    }
}

/// A cgroup with a CPU quota, which is removed in the end.
struct Group {
    path: PathBuf,
    /// What the kernel's time of throttling is counted in: its label, and how many make a second.
    time: (&'static str, f64),
}

impl Group {
    /// In version 1 or 2, whichever limits CPUs here; `None` where this process may not make one.
    fn new() -> Option<Self> {
        let name = format!("gpurun-test-{}", std::process::id());
        let choices = [
            ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "20000", ("throttled_time ", 1e9)),
            ("/sys/fs/cgroup", "cpu.max", "20000 100000", ("throttled_usec ", 1e6)),
        ];
        choices.into_iter().find_map(|(root, file, quota, time)| {
            let path = Path::new(root).join(&name);
            fs::create_dir(&path).ok()?;
            let group = Self { path, time };
            fs::write(group.path.join(file), quota).ok()?;
            Some(group)
        })
    }

    /// Seconds and periods of throttling so far.
    fn throttled(&self) -> (f64, f64) {
        let stat = fs::read_to_string(self.path.join("cpu.stat")).unwrap();
        let number = |label: &str| -> f64 {
            let found = stat.lines().find_map(|line| line.strip_prefix(label));
            found.unwrap_or_else(|| panic!("no {label}in {stat}")).trim().parse().unwrap()
        };
        (number(self.time.0) / self.time.1, number("nr_throttled "))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have ended; one that is not reaped yet keeps it for a moment.
        until("the cgroup is empty", || fs::remove_dir(&self.path).ok());
    }
}

#[test]
fn a_job_under_a_quota_is_told_how_long_it_was_held_back() {
    let Some(group) = Group::new() else {
        eprintln!("skipped: this user may not make a cgroup with a CPU quota");
        return;
    };
    let place = Place::new(NO_GPU);
    let gpurun = crate::support::gpurun().display();
    let burn = "import time\nwhile time.process_time() < 0.4: pass";
    // The shell moves itself, then becomes gpurun.
    let script = format!(
        "echo $$ > {}; exec {gpurun} --interval 100ms --window 500ms --log x.csv -- python3 -S -c '{burn}'",
        group.path.join("cgroup.procs").display()
    );
    let output = place.program(Path::new("/bin/sh"), &["-c", &script]).output().unwrap();
    let rows = rows(&place, &output);
    let (seconds, periods) = group.throttled();
    assert!(seconds > 0.2, "0.4 s of CPU at a fifth of one: {seconds}");
    let logged: f64 = rows
        .of("job/cpu_throttled")
        .iter()
        .filter_map(|row| Some(row.get("mean")? / 100.0 * row.number("window_s")))
        .sum();
    // The start of gpurun itself and its end are throttled too, and are not the run's.
    assert!(logged <= seconds + 1e-6 && logged > 0.5 * seconds, "{logged} of {seconds} s");
    let logged: f64 = rows.of("job/cpu_throttled_periods").iter().filter_map(|row| row.get("mean")).sum();
    assert!(logged <= periods && logged > 0.5 * periods, "{logged} of {periods} periods");
    assert!(rows.of("host/cgroup_cpu_limit").iter().all(|row| row.is_steady_at(0.2)));
}
