//! `simulate` hands a command everything that it needs to find the library.

use std::process::Command;

#[test]
fn a_command_gets_library_scenario_and_its_own_exit_status() {
    let script = r#"test -r "$GPURUN_NVML_LIBRARY" && test -r "${LD_LIBRARY_PATH%%:*}/libnvidia-ml.so.1" \
        && test -r "${LD_LIBRARY_PATH%%:*}/libcuda.so.1" && cat "$GPURUN_FAKE_NVML" && exit "$1""#;
    let output = Command::new(env!("CARGO_BIN_EXE_simulate"))
        .args(["idle-8xa100", "--", "sh", "-c", script, "sh", "7"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    let file = fake_nvml::scenario_file("idle-8xa100").unwrap();
    assert_eq!(output.stdout, std::fs::read(file).unwrap());
}

#[test]
fn mistakes_are_one_line() {
    for (words, expected) in [
        (&["no-such", "--", "true"][..], "no scenario \"no-such\"; there are: busy-shared-box, "),
        (&["idle-8xa100", "true"], "usage: simulate SCENARIO -- COMMAND"),
        (&["idle-8xa100", "--", "/no/such/program"], "/no/such/program: "),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_simulate")).args(words).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125));
        assert!(
            said.starts_with("simulate: ") && said.contains(expected) && said.lines().count() == 1,
            "{said}"
        );
    }
}
