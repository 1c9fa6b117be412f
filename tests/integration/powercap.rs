//! Energy of the CPUs, through the binary: counters that a test moves, mounted where the kernel has its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::logged::{Place, text};

/// Lays out two packages and the memory of one in `DIR/class/powercap`.
fn counters(place: &Place) {
    for (zone, name, energy) in [
        ("intel-rapl:0", "package-0", "5000000"),
        ("intel-rapl:0:0", "dram", "7"),
        ("intel-rapl:1", "package-1", "1000000"),
        ("intel-rapl-mmio:0", "package-0", "5000000"),
    ] {
        let zone = place.path("class/powercap").join(zone);
        fs::create_dir_all(&zone).unwrap();
        fs::write(zone.join("name"), format!("{name}\n")).unwrap();
        fs::write(zone.join("max_energy_range_uj"), "262143328850\n").unwrap();
        fs::write(zone.join("energy_uj"), format!("{energy}\n")).unwrap();
    }
}

/// Runs gpurun where `/sys/class` is the test's own. `None` where this user may not mount.
fn on_counters(place: &Place, before: &str, args: &[&str]) -> Option<Output> {
    let mount = format!("mount --bind {} /sys/class", place.path("class").display());
    let may = Command::new("unshare").args(["-m", "sh", "-c", &mount]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let script = format!("{mount} && exec {before} \"$@\"");
    let gpurun = crate::support::gpurun().to_str().unwrap();
    let words = [&["-m", "sh", "-c", &script, "sh", gpurun], args].concat();
    Some(place.program(Path::new("unshare"), &words).output().unwrap())
}

#[test]
fn what_the_packages_used_is_in_the_log() {
    let place = Place::new("");
    counters(&place);
    // Between two samples the first package uses 40 J, the second 10 J and the memory 2 J.
    let job = "sleep 0.5; cd /sys/class/powercap
        echo 45000000 > intel-rapl:0/energy_uj; echo 11000000 > intel-rapl:1/energy_uj
        echo 2000007 > intel-rapl:0:0/energy_uj; sleep 0.7";
    let args = ["--interval", "100ms", "--window", "300ms", "--log", "x.csv", "--", "sh", "-c", job];
    let Some(output) = on_counters(&place, "", &args) else {
        eprintln!("skipped: this user may not mount");
        return;
    };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = place.csv("x.csv");
    for (name, joules) in [("cpu", 50.0), ("dram", 2.0)] {
        let used = rows.of(&format!("host/{name}_energy_used"));
        let sum: f64 = used.iter().filter_map(|row| row.get("mean")).sum();
        assert!((sum - joules).abs() < 1e-6, "{name}: {sum} J");
        let power = rows.of(&format!("host/{name}_power"));
        let sum: f64 = power.iter().filter_map(|row| Some(row.get("mean")? * row.number("window_s"))).sum();
        assert!((sum - joules).abs() < 0.02 * joules, "{name}: {sum} J by its power");
    }
}

#[test]
fn counters_that_may_not_be_read_have_no_rows_and_a_reason() {
    let place = Place::new("");
    counters(&place);
    let energy = place.path("class/powercap/intel-rapl:0/energy_uj");
    fs::set_permissions(&energy, fs::Permissions::from_mode(0o400)).unwrap();
    for directory in [place.path(""), place.path("class")] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    if !Command::new("sh")
        .args(["-c", &format!("{nobody} {} --version", crate::support::gpurun().display())])
        .output()
        .is_ok_and(|output| output.status.success())
    {
        eprintln!("skipped: this user may not become another");
        return;
    }
    let args = ["--verbose", "--log", "x.csv", "--", "true"];
    let Some(output) = on_counters(&place, nobody, &args) else {
        eprintln!("skipped: this user may not mount");
        return;
    };
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let why = "no permission to read /sys/class/powercap/*/energy_uj";
    assert_eq!(said.matches(why).count(), 1, "{said}");
    let rows = place.csv("x.csv");
    assert!(rows.has("host/cpu_percent") && !rows.has("host/cpu_power") && !rows.has("host/dram_power"));
}
