//! A driver library that crashes, prints or forks: it costs GPU values or the log, never the job.

use std::path::Path;
use std::process::Stdio;

use fake_nvml::{Die, Fault};

use super::{driver_with, lines};
use crate::faults::{gpurun, known, machine, said, with_job};
use crate::transparency::harness::describe;

/// How a driver library ends its process, and what is said of it.
const ENDINGS: [(Die, &str); 3] = [
    (Die::Segv, "was killed by SIGSEGV"),
    (Die::Abort, "was killed by SIGABRT"),
    (Die::Exit, "exited with status 1"),
];

/// A job that ends once it is the only child of its gpurun.
const AFTER_THE_SIDECAR: &str =
    "until [ $(wc -w < /proc/$PPID/task/$PPID/children) = 1 ]; do sleep 0.02; done; exit 4";

fn dies(function: &str, after: u64, die: Die) -> Fault {
    Fault { function: function.to_owned(), after: Some(after), die: Some(die), ..Fault::default() }
}

#[test]
fn a_driver_that_ends_its_process_costs_the_rest_of_the_log() {
    for (die, how) in ENDINGS {
        let dir = tempfile::tempdir().unwrap();
        let (csv, parquet) = (dir.path().join("m.csv"), dir.path().join("m.parquet"));
        let mut command = gpurun(dir.path(), &["-q", "--interval", "200ms", "--window", "200ms"]);
        machine(dir.path(), dies("nvmlDeviceGetTemperature*", 5, die)).apply(&mut command);
        command.arg("--log").arg(&csv).arg("--log").arg(&parquet);
        let output = with_job(command, &["sh", "-c", AFTER_THE_SIDECAR]);
        assert_eq!(describe(output.status), "code 4", "{die:?}: {}", said(&output));
        let line = format!(
            "gpurun: the measuring process {how}: the log ends here, the job does not; to finish the log: gpurun recover {}",
            parquet.display()
        );
        assert_eq!(lines(&output), [line], "{die:?}");
        assert!(known(&csv, "host") > 0 && known(&csv, "gpu") > 0, "{die:?}: rows from before are there");
        let recovered = gpurun(dir.path(), &["recover"]).arg(&parquet).output().unwrap();
        assert!(recovered.status.success() && parquet.exists(), "{}", said(&recovered));
    }
}

#[test]
fn a_driver_that_ends_its_process_at_its_start_costs_the_log() {
    for (die, how) in ENDINGS {
        let dir = tempfile::tempdir().unwrap();
        let mut command = gpurun(dir.path(), &["-q", "--log", "m.csv"]);
        machine(dir.path(), dies("nvmlInit*", 0, die)).apply(&mut command).current_dir(dir.path());
        let output = with_job(command, &["sh", "-c", AFTER_THE_SIDECAR]);
        assert_eq!(describe(output.status), "code 4", "{die:?}: {}", said(&output));
        let line = format!("gpurun: the measuring process {how}: the log ends here, the job does not");
        assert_eq!(lines(&output), [line], "{die:?}");
    }
}

/// Ends the process while the library is loaded.
fn dies_while_it_is_loaded(dir: &Path, statement: &str) -> fake_nvml::Installed {
    let source = format!(
        "#include <stdlib.h>\n__attribute__((constructor)) static void die(void) {{ {statement}; }}\n"
    );
    driver_with(dir, &source)
}

/// How, what is said of the process, and what is said of the library.
const AT_LOAD: [(&str, &str, &str); 3] = [
    ("*(volatile char *)0x1000", "was killed by SIGSEGV", "(SIGSEGV)"),
    ("abort()", "was killed by SIGABRT", "(SIGABRT)"),
    ("exit(1)", "exited with status 1", "(exit status 1)"),
];

#[test]
fn a_driver_library_that_cannot_be_loaded_alive_costs_its_own_values_only() {
    for (statement, _, how) in AT_LOAD {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("m.csv");
        let mut command = gpurun(dir.path(), &["--log"]);
        dies_while_it_is_loaded(dir.path(), statement).apply(command.arg(&log));
        let output = with_job(command, &["sh", "-c", "sleep 0.5; exit 4"]);
        assert_eq!(describe(output.status), "code 4", "{statement}: {}", said(&output));
        let line =
            format!("gpurun: no GPU values: the NVIDIA driver library ends the process that loads it {how}");
        assert!(lines(&output).contains(&line), "{}", said(&output));
        assert!(known(&log, "host") > 0 && known(&log, "job") > 0, "{statement}");
    }
}

#[test]
fn a_driver_that_ends_its_process_while_gpus_are_chosen_is_an_error_of_one_line() {
    let cases: [(&[&str], &str, &str); 3] = [
        (&["-n", "1", "--", "touch", "ran"], "code 125", "GPUs cannot be chosen: the measuring process"),
        (&["select"], "code 2", "the process that asks the NVIDIA driver"),
        (&["devices"], "code 125", "the process that asks the NVIDIA driver"),
    ];
    let check = |dir: &Path, driver: &fake_nvml::Installed, how: &str| {
        for (words, status, subject) in cases {
            let mut command = gpurun(dir, words);
            let output = driver.apply(&mut command).current_dir(dir).stdin(Stdio::null()).output().unwrap();
            assert_eq!(describe(output.status), status, "{how}: {words:?}: {}", said(&output));
            assert_eq!(output.stdout, b"");
            let [line] = &lines(&output)[..] else { panic!("{words:?}: {}", said(&output)) };
            assert!(line.starts_with(&format!("gpurun: {subject} {how}")), "{line}");
            assert!(!dir.join("ran").exists(), "no job without its GPUs");
        }
    };
    for (die, how) in ENDINGS {
        for function in ["nvmlInit*", "nvmlDeviceGetMemoryInfo*"] {
            let dir = tempfile::tempdir().unwrap();
            check(dir.path(), &machine(dir.path(), dies(function, 0, die)), how);
        }
    }
    for (statement, how, _) in AT_LOAD {
        let dir = tempfile::tempdir().unwrap();
        check(dir.path(), &dies_while_it_is_loaded(dir.path(), statement), how);
    }
}
