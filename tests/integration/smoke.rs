//! `tests/gpu-smoke`, which people run on their own GPUs, on simulated ones.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
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
    assert!(said.contains("| nvmlGpmQueryDeviceSupport | NOT_SUPPORTED |"), "{said}");
}

/// An `nvidia-smi` that says what the scenario beside it plays; dmon has columns of its own before those of GPM.
const NVIDIA_SMI: &str = r##"#!/bin/sh
case $1 in
--query-gpu=*) echo "70, 1024, 40, 200.00, 1400" ;;
dmon)
    echo "# gpu    pwr  gtemp   smUtil  smOcc  intUtil  tensor  dram  fp64  fp32  fp16"
    echo "# Idx      W      C        %      %        %       %     %     %     %     %"
    while echo "    0    200     40       88     41       12      52    30     -     9     4"; do sleep 1; done ;;
esac
"##;

const HOPPER: &str = r#"
[[gpu]]
memory_total = 81920
memory_used = 1024
gpu_utilization = 70
memory_utilization = 20
temperature = 40
power = 200
energy = "from-power"
sm_clock = 1400
gpm = { sm_utilization = 88, sm_occupancy = 41, integer_active = 12, tensor_active = 52, dram_active = 58, fp32_active = 9, fp16_active = 4 }
"#;

#[test]
fn the_smoke_script_compares_gpm_with_nvidia_smi() {
    let directory = tempfile::tempdir().unwrap();
    let gpus = fake_nvml::install(directory.path(), &fake_nvml::Scenario::parse(HOPPER).unwrap()).unwrap();
    let tools = directory.path().join("tools");
    std::fs::create_dir(&tools).unwrap();
    std::fs::write(tools.join("nvidia-smi"), NVIDIA_SMI).unwrap();
    std::fs::set_permissions(tools.join("nvidia-smi"), Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu-smoke")).arg(support::gpurun());
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    command.env("TMPDIR", directory.path()).env("PATH", path);
    let output = gpus.apply(&mut command).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    for line in [
        "| sm_utilization | 88.0 against 88.0 | ok |",
        "| tensor_active | 52.0 against 52.0 | ok |",
        "| fp16_active | 4.0 against 4.0 | ok |",
        // Their answer differs, and one is unknown to both.
        "| dram_active | 58.0 against 30.0 | FAILED |",
        "| fp64_active | unknown |",
        ", 1 failed, ",
        "| nvmlGpmQueryDeviceSupport | ok |",
        "| nvmlGpmSampleGet | ok |",
        "| nvmlGpmMetricsGet | ok |",
    ] {
        assert!(said.contains(line), "no {line:?} in:\n{said}");
    }
    assert_eq!(output.status.code(), Some(1), "{said}");
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
