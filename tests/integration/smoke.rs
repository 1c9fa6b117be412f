//! `tests/gpu-smoke`, which people run on their own GPUs, on simulated ones.

use std::path::Path;
use std::process::Command;

use crate::support;

/// Runs the script on a ready scenario; its exit status and what it printed.
fn smoke(scenario: &str) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = fake_nvml::scenario_file(scenario).unwrap();
    let gpus = fake_nvml::install_file(directory.path(), &file).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu-smoke");
    let mut command = Command::new("python3");
    command.arg(script).arg(support::gpurun()).env("TMPDIR", directory.path());
    let output = gpus.apply(&mut command).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_smoke_script_passes_on_healthy_gpus() {
    let (code, said) = smoke("idle-8xa100");
    assert_eq!(code, Some(0), "{said}");
    for line in ["| power_usage | 6", "| kill -9, then gpurun recover |", ", 0 failed, "] {
        assert!(said.contains(line), "no {line:?} in:\n{said}");
    }
    // Every call that gpurun makes is in the table, with its answer.
    assert!(said.contains("| nvmlDeviceGetFanSpeed | NOT_SUPPORTED |"), "{said}");
    assert!(said.contains("| nvmlDeviceGetFieldValues | ok |"), "{said}");
}

#[test]
fn the_smoke_script_fails_where_there_is_no_driver() {
    let output = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu-smoke"))
        .arg(support::gpurun())
        .env("GPURUN_NVML_LIBRARY", "/no/such/library")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("/no/such/library"), "{said}");
}
