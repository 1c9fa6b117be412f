//! The command line: wrong input is one clear line and exit 2, before anything happens.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output};

use crate::support;

fn gpurun<T: AsRef<OsStr>>(args: &[T]) -> Output {
    Command::new(support::gpurun())
        .args(args)
        .env("GPURUN_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1")
        .env_remove("CUDA_VISIBLE_DEVICES")
        .output()
        .unwrap()
}

/// Runs it, asserts exit 2 with one line on stderr and nothing on stdout, and gives the line.
fn mistake<T: AsRef<OsStr> + std::fmt::Debug>(args: &[T]) -> String {
    let output = gpurun(args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?}");
    assert!(stderr.starts_with("gpurun: "), "{args:?}: {stderr}");
    stderr
}

#[test]
fn a_job_without_the_separator_is_told_where_it_goes() {
    for args in [&["python", "x.py"][..], &["-n", "2", "python3", "x.py"], &["./train.sh"]] {
        let line = mistake(args);
        assert!(line.contains("to run a job, put it after --"), "{line}");
    }
}

#[test]
fn wrong_input_is_one_line_and_exit_2() {
    let table: &[(&[&str], &str)] = &[
        (&[], "nothing to do"),
        (&["--"], "no command after --"),
        (&["-n", "2"], "put it after --"),
        (&["--frobnicate", "--", "true"], "--frobnicate"),
        (&["-n", "x", "--", "true"], "--count"),
        (&["-n", "-1", "--", "true"], "-1"),
        (&["-f", "8Gib5", "--", "true"], "8Gib5"),
        (&["-f", "", "--", "true"], "--min-free-memory"),
        (&["-f", "-5G", "--", "true"], "-5"),
        (&["-f", "５G", "--", "true"], "５G"),
        (&["-f", "99999999999999999999G", "--", "true"], "99999999999999999999G"),
        (&["-c", "3", "-C", "2", "--", "true"], "3"),
        (&["--interval", "5", "--window", "1", "--log", "x.csv", "--", "true"], "--window"),
        (&["--interval", "soon", "--", "true"], "soon"),
        (&["--interval", "1ms", "--", "true"], "10ms"),
        (&["--log", "x.xlsx", "--", "true"], "x.xlsx"),
        (&["--metrics", "+warp", "--", "true"], "warp"),
        (&["--overwrite", "--append", "--log", "x.csv", "--", "true"], "--append"),
        (&["--every-n-steps", "0", "--", "true"], "--every-n-steps"),
        (&["--tag", "a/b", "--", "true"], "--tag"),
        (&["--gpu-name", "(", "--", "true"], "--gpu-name"),
        (&["record", "--pid", "1", "--all"], "--all"),
        (&["devices", "extra"], "extra"),
        (&["export", "a.csv"], "--output"),
        (&["completions", "tcsh9"], "tcsh9"),
    ];
    for (args, word) in table {
        let line = mistake(args);
        assert!(line.contains(word), "{args:?}: {line}");
        assert!(line.len() < 400, "{args:?}: {line}");
    }
    let broken = OsStr::from_bytes(b"\xffx.csv");
    let line = mistake(&[OsStr::new("--log"), broken, OsStr::new("--"), OsStr::new("true")]);
    assert_eq!(line, "gpurun: \"\\xFFx.csv\" is not UTF-8\n");
    assert!(!std::path::Path::new("x.csv").exists(), "a usage error comes before any file");
}

#[test]
fn what_follows_the_separator_belongs_to_the_job() {
    let output = gpurun(&["-q", "--", "printf", "%s|", "-n", "--help", "--", "", "a b"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "-n|--help|--||a b|");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn help_names_every_subcommand_and_version_is_plain() {
    let help = String::from_utf8(gpurun(&["--help"]).stdout).unwrap();
    for word in [
        "select",
        "devices",
        "record",
        "recover",
        "export",
        "report",
        "status",
        "metrics",
        "completions",
        "--log",
    ] {
        assert!(help.contains(word), "{word} is not in --help");
    }
    let version = String::from_utf8(gpurun(&["--version"]).stdout).unwrap();
    assert_eq!(version, format!("gpurun {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_catalogue_is_printed_for_people_and_programs() {
    let text = String::from_utf8(gpurun(&["metrics"]).stdout).unwrap();
    assert!(text.contains("gpu_utilization") && text.contains("MiB/s"));
    let json: serde_json::Value = serde_json::from_slice(&gpurun(&["metrics", "--json"]).stdout).unwrap();
    assert!(json.as_array().unwrap().len() > 60);
}

#[test]
fn completions_and_the_manual_page_are_generated() {
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(gpurun(&["completions", shell]).stdout).unwrap();
        assert!(script.contains("gpurun") && script.contains("min-free-memory"), "{shell}");
    }
    let page = String::from_utf8(gpurun(&["man"]).stdout).unwrap();
    assert!(page.contains(".TH gpurun"));
}
