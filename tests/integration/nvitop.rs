//! nvitop's collector and gpurun on the same simulated GPUs and the same job: the script that anybody can run.

use std::path::Path;
use std::process::Command;

use crate::support;

fn side_by_side(args: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/nvitop_side_by_side.py");
    let simulate = support::gpurun().with_file_name("simulate");
    assert!(simulate.exists(), "{} is missing: cargo build --workspace", simulate.display());
    let output = Command::new(support::python())
        .arg(script)
        .args(args)
        .arg("--gpurun")
        .arg(support::gpurun())
        .arg("--simulate")
        .arg(simulate)
        .env_remove("GPURUN_SOCKET")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn means_are_the_same_where_nvitop_is_right() {
    let text = side_by_side(&["--seconds", "4"]);
    assert!(text.contains("gpu:0/gpu_utilization") && text.contains("pid:JOB/gpu:0/gpu_memory"), "{text}");
    assert!(!text.contains("DIFFERENT"), "{text}");
}

#[test]
fn what_the_document_lists_still_shows() {
    let text = side_by_side(&["--show", "all"]);
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/nvitop-differences.md");
    let document = std::fs::read_to_string(document).unwrap();
    let listed: Vec<&str> =
        document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let shown: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with(' '))
        .filter_map(|line| line.split(':').next())
        .collect();
    assert_eq!(listed, shown);
}
