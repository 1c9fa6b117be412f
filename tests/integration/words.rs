//! What gpurun says while it runs: how much, in how many columns, in colour, and the way out of a mistake.

use std::path::Path;
use std::process::Stdio;

use fake_nvml::{Fault, Gpu, Process, Scenario};

use super::selection::{Host, gpus};
use super::transparency::pty::Terminal;

/// Two idle GPUs without a fan.
fn two() -> Host {
    Host::new(&Scenario { gpu: gpus(&[0, 500]), ..Scenario::default() })
}

/// Standard error of gpurun with these words, in the host's own directory.
fn said(host: &Host, words: &[&str]) -> String {
    let output = host.gpurun().args(words).current_dir(host.path()).stdin(Stdio::null()).output().unwrap();
    String::from_utf8(output.stderr).unwrap()
}

/// The lines without their figures.
fn shape(said: &str) -> Vec<String> {
    let figures = regex_lite::Regex::new(r"[0-9]+(\.[0-9]+)?").unwrap();
    said.lines().map(|line| figures.replace_all(line, "N").into_owned()).collect()
}

#[test]
fn a_run_says_what_it_uses_and_what_came_of_it() {
    let host = two();
    let run = |more: &[&str]| {
        let words = ["-n", "2", "--overwrite", "--log", "a.csv", "--log", "b.csv"];
        said(&host, &[&words, more, &["--", "sh", "-c", "sleep 0.1; exit 3"]].concat())
    };
    let plain = run(&[]);
    let lines = shape(&plain);
    assert_eq!(lines[0], "gpurun: GPUs N, N (Simulated GPU); log a.csv, b.csv", "{plain}");
    assert!(lines[1].starts_with("gpurun: exited with status N after N s; CPU "), "{plain}");
    assert!(lines[2].starts_with("gpurun: GPU N: util. "), "{plain}");
    assert!(lines[3].starts_with("gpurun: GPU N: util. "), "{plain}");
    assert_eq!(lines[4], "gpurun: wrote a.csv (N rows), b.csv (N rows)", "{plain}");
    assert_eq!(lines.len(), 5, "{plain}");
    let verbose = run(&["--verbose"]);
    for more in ["cuda:0 is GPU ", "CUDA_VISIBLE_DEVICES=", "a sample every 1s, a window every 10s"] {
        assert!(verbose.contains(more), "no {more:?} in {verbose}");
    }
    let unsupported =
        |line: &str| line.contains("fan_speed") && line.ends_with(" of gpu:0, gpu:1: not supported");
    assert!(verbose.lines().any(unsupported), "{verbose}");
    assert!(verbose.contains("gpurun itself: 1 window"), "{verbose}");
    assert_eq!(run(&["--quiet"]), "");
}

#[test]
fn a_summary_that_is_replaced_has_the_name_that_was_asked_for() {
    let host = two();
    let run = |more: &[&str]| said(&host, &[&["--summary", "z.json"], more, &["--", "true"]].concat());
    assert!(!run(&[]).contains("z.json"));
    assert!(run(&[]).contains("gpurun: z.json exists; the summary is z-2.json\n"));
    assert!(!run(&["--overwrite"]).contains("z.json"));
}

#[test]
fn a_job_that_ends_before_the_driver_has_answered_has_a_line_for_its_gpu() {
    // Asked after the choice, before the first value.
    let fault = Fault { function: "nvmlDeviceGetMaxClockInfo".to_owned(), hang: true, ..Fault::default() };
    let host = Host::new(&Scenario { gpu: gpus(&[0]), fault: vec![fault], ..Scenario::default() });
    let said = said(&host, &["-n", "1", "--", "true"]);
    assert!(said.contains("gpurun: GPU 0: util. unknown, memory unknown\n"), "{said}");
}

#[test]
fn colour_is_for_terminals_that_want_it() {
    let host = two();
    let shown = |variable: &str, value: &str| {
        let mut command = host.gpurun();
        command.args(["-n", "1", "--", "true"]).current_dir(host.path());
        command.env("TERM", "xterm").env_remove("NO_COLOR").env(variable, value);
        let mut terminal = Terminal::with(command);
        terminal.expect("gpurun:").to_owned() + &terminal.expect("exited with status 0")
    };
    let colored = shown("NO_COLOR", "");
    assert!(colored.contains("\x1b[1mgpurun:\x1b[0m GPU 0"), "{colored:?}");
    assert!(colored.contains("\x1b[1;32mgpurun:\x1b[0m exited with status 0"), "{colored:?}");
    for (variable, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = shown(variable, value);
        assert!(!plain.contains('\x1b') && plain.contains("gpurun: exited"), "{plain:?}");
    }
}

#[test]
fn a_gpu_that_was_held_and_not_used_is_named_with_the_likely_reason() {
    let host = two();
    let hint = "note: GPU 0 was held and never used: does the job set CUDA_VISIBLE_DEVICES itself?";
    let idle = said(&host, &["-n", "1", "--interval", "500ms", "--", "sleep", "5.5"]);
    assert!(idle.contains(hint), "{idle}");
}

#[test]
fn too_few_gpus_names_who_uses_them_and_how_to_wait() {
    let mut devices = gpus(&[0, 9000]);
    devices[1].process =
        vec![Process { pid: Some(std::process::id()), memory: Some(9000.into()), ..Process::default() }];
    let host = Host::new(&Scenario { gpu: devices, ..Scenario::default() });
    let refused = said(&host, &["-n", "2", "-f", "5GiB", "--", "true"]);
    let mut lines = refused.lines();
    assert_eq!(
        lines.next(),
        Some("gpurun: 1 of 2 GPUs satisfies the constraints now, 2 are needed; --wait waits until they do")
    );
    assert_eq!(lines.next(), Some("  GPU 0 satisfies the constraints"));
    let user = format!("(pid {}, 8.7 GiB)", std::process::id());
    let second = lines.next().unwrap();
    assert!(second.starts_with("  GPU 1 refused: 1000.0 MiB free, needs 5 GiB; used by "), "{second}");
    assert!(second.ends_with(&user), "{second}");
    assert_eq!(lines.next(), None);
    // Who waits already needs no hint.
    let timed_out = said(&host, &["-n", "2", "-f", "5GiB", "--wait", "0", "--", "true"]);
    assert!(timed_out.contains("timed out after 0 s: 1 of 2 GPUs satisfies"), "{timed_out}");
    assert!(!timed_out.contains("--wait"), "{timed_out}");
    let timed_out = said(&host, &["-n", "2", "-f", "5GiB", "--wait", "20ms", "--", "true"]);
    assert!(timed_out.contains("timed out after 0.02 s: "), "{timed_out}");
}

#[test]
fn gpus_that_the_environment_hides_are_named() {
    let host = Host::new(&Scenario { gpu: gpus(&[0, 0, 0]), ..Scenario::default() });
    let refused = |words: &[&str]| {
        let mut command = host.gpurun();
        let output = command.args(words).env("CUDA_VISIBLE_DEVICES", "1").output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let job = refused(&["-n", "2", "--", "true"]);
    let hidden = "; CUDA_VISIBLE_DEVICES=\"1\" hides 2 of 3 GPUs: --all-devices ignores it\n";
    assert!(job.contains(hidden), "{job}");
    assert!(refused(&["select", "-i", "-n", "2"]).contains("2 of 3 GPUs: leave out -i"));
    assert!(!refused(&["-n", "4", "--all-devices", "--", "true"]).contains("hides"));
}

/// Eight GPUs with the longest names there are, one of them held.
#[test]
fn devices_and_explain_fit_eighty_columns() {
    let gpu = |used| Gpu {
        name: Some("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition".to_owned()),
        process: vec![Process {
            pid: Some(std::process::id()),
            memory: Some(70.into()),
            ..Process::default()
        }],
        ..gpus(&[used]).remove(0)
    };
    let host = Host::new(&Scenario { gpu: (0..8).map(|n| gpu(n * 1000)).collect(), ..Scenario::default() });
    let mut terminal = Terminal::bash();
    terminal.resize(24);
    let environment = host.gpurun();
    for (name, value) in environment.get_envs() {
        let name = name.to_str().unwrap();
        match value {
            Some(value) => terminal.run(&format!("export {name}='{}'", value.to_str().unwrap())),
            None => terminal.run(&format!("unset {name}")),
        };
    }
    let gpurun = Path::new(environment.get_program()).display().to_string();
    let screen = terminal.run(&format!("{gpurun} -q -n 1 -- {gpurun} devices"));
    let lines: Vec<&str> = screen.lines().filter(|line| !line.contains("PROMPT")).collect();
    assert_eq!(lines.len(), 9, "{screen}");
    assert!(lines[0].starts_with("GPU  UUID          NAME"), "{screen}");
    let long = lines.iter().find(|line| line.chars().count() > 80);
    assert_eq!(long, None, "{screen}");
    assert_eq!(lines.iter().filter(|line| line.contains("RTX PRO")).count(), 8, "{screen}");
    let held = lines[1..].iter().filter(|line| !line.ends_with("  none")).count();
    assert_eq!(held, 1, "{screen}");
    // A reason that is too long is cut on a terminal, and whole in a pipe.
    let explain = format!("{gpurun} select -n 1 --no-lease --gpu-name A100 --explain");
    let screen = terminal.run(&explain);
    let lines: Vec<&str> = screen.lines().filter(|line| line.contains(" refused: ")).collect();
    assert_eq!(lines.len(), 8, "{screen}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80 && line.ends_with("...")), "{screen}");
    let whole = terminal.run(&format!("{explain} 2>&1 | cat"));
    assert_eq!(whole.matches("Workstation Edition, does not match \"A100\"").count(), 8, "{whole}");
}

#[test]
fn details_of_a_device_are_whole() {
    let host = two();
    let text = host.gpurun().args(["devices", "-v"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.lines().nth(2).unwrap().starts_with("     GPU-"), "{text}");
    assert_eq!(text.lines().count(), 5, "{text}");
}
