//! The command line: wrong input is one clear line and exit 2, before anything happens.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output};

use regex_lite::Regex;

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

/// Each command line with the whole line that gpurun answers, its program name left out.
fn answers(table: &[(&[&str], &str)]) {
    for (args, expected) in table {
        assert_eq!(mistake(args), format!("gpurun: {expected}\n"), "{args:?}");
    }
}

#[test]
fn a_job_without_the_separator_is_told_where_it_goes() {
    answers(&[
        (&["python", "x.py"], "to run a job, put it after --: gpurun [OPTIONS] -- python x.py"),
        (
            &["-n", "2", "python3", "x.py", "--lr", "3", "a b", "it's", ""],
            r"to run a job, put it after --: gpurun -n 2 -- python3 x.py --lr 3 'a b' 'it'\''s' ''",
        ),
        (&["./train.sh"], "to run a job, put it after --: gpurun [OPTIONS] -- ./train.sh"),
        (&["record.sh"], "to run a job, put it after --: gpurun [OPTIONS] -- record.sh"),
        (&["python", "--help"], "to run a job, put it after --: gpurun [OPTIONS] -- python --help"),
        // The word stands earlier as a value.
        (
            &["--tag", "python", "python", "x.py"],
            "to run a job, put it after --: gpurun --tag python -- python x.py",
        ),
        (
            &["python", "--", "x.py"],
            "unexpected 'python' before --: only options go there, the job goes after --",
        ),
    ]);
}

#[test]
fn an_option_with_an_optional_value_gives_the_jobs_first_word_back() {
    answers(&[
        (
            &["--wait", "python3", "train.py"],
            "to run a job, put it after --: gpurun --wait -- python3 train.py",
        ),
        (
            &["--wait", "2h", "python3", "train.py"],
            "to run a job, put it after --: gpurun --wait 2h -- python3 train.py",
        ),
        (&["--wait", "./train.sh"], "to run a job, put it after --: gpurun --wait -- ./train.sh"),
        (
            &["-n", "1", "-i", "python", "x.py"],
            "to run a job, put it after --: gpurun -n 1 -i -- python x.py",
        ),
        (&["-i", "0,1", "python", "x.py"], "to run a job, put it after --: gpurun -i 0,1 -- python x.py"),
    ]);
}

#[test]
fn a_misspelt_command_is_recognised() {
    answers(&[
        (&["device"], "there is no command 'device'; did you mean 'devices'? (a job goes after --)"),
        (&["slect", "-n", "1"], "there is no command 'slect'; did you mean 'select'? (a job goes after --)"),
        (&["slect", "--", "true"], "there is no command 'slect'; did you mean 'select'?"),
        (&["help", "slect"], "there is no command 'slect'; did you mean 'select'?"),
        (&["man", "slect"], "there is no command 'slect'; did you mean 'select'?"),
        (&["tag", "bgin", "x"], "there is no command 'bgin'; did you mean 'begin'?"),
        (&["tag", "open"], "there is no command 'open'; there are begin, end"),
        (&["-n", "2", "select", "-f", "1G"], "options go after the command: gpurun select -n 2 -f 1G"),
        (&["select", "train.py"], "unexpected 'train.py'; see 'gpurun select --help'"),
        (&["select", "--", "true"], "'gpurun select' runs no job; to run one: gpurun [OPTIONS] -- true"),
        (
            &["select", "-n", "2", "--", "sh", "-c", "a b"],
            "'gpurun select' runs no job; to run one: gpurun -n 2 -- sh -c 'a b'",
        ),
        (
            &["devices", "--json", "--", "true"],
            "'gpurun devices' runs no job; to run one: gpurun [OPTIONS] -- true",
        ),
    ]);
}

#[test]
fn other_programs_options_for_the_number_of_gpus_are_answered_with_ours() {
    for option in ["--gpus", "--gpu", "--num-gpus", "--ngpus", "-g"] {
        let expected = format!("gpurun: there is no option '{option}'; for the number of GPUs use -n 2\n");
        assert_eq!(mistake(&[option, "2", "--", "true"]), expected);
        assert_eq!(mistake(&["select", option, "2"]), expected);
    }
    answers(&[
        (&["--gpus=2", "--", "true"], "there is no option '--gpus'; for the number of GPUs use -n 2"),
        (&["-g2", "--", "true"], "there is no option '-g'; for the number of GPUs use -n 2"),
        (&["--gpus", "all", "--", "true"], "there is no option '--gpus'; for the number of GPUs use -n N"),
    ]);
}

#[test]
fn a_misspelt_option_is_recognised() {
    answers(&[
        (&["--lgo", "x.csv", "--", "true"], "there is no option '--lgo'; did you mean '--log'?"),
        (&["-log", "x.csv", "--", "true"], "there is no option '-l'; did you mean '--log'?"),
        (
            &["--min-free", "8G", "--", "true"],
            "there is no option '--min-free'; did you mean '--min-free-memory'?",
        ),
        (&["devices", "--jsn"], "there is no option '--jsn'; did you mean '--json'?"),
        (&["devices", "--wait"], "there is no option '--wait'; see 'gpurun devices --help'"),
        (&["--frobnicate", "--", "true"], "there is no option '--frobnicate'; see 'gpurun --help'"),
    ]);
}

#[test]
fn a_blank_inside_a_value_is_recognised() {
    answers(&[
        (&["-f", "8", "GiB", "--", "true"], "unexpected 'GiB': a value has no blanks, write -f 8GiB"),
        (&["-f8", "GiB", "python", "x.py"], "unexpected 'GiB': a value has no blanks, write -f 8GiB"),
        (
            &["--min-free-memory=8", "GiB", "--", "true"],
            "unexpected 'GiB': a value has no blanks, write --min-free-memory 8GiB",
        ),
        (
            &["--exclude", "6", "7", "--", "true"],
            "unexpected '7': a value has no blanks, write --exclude 6,7",
        ),
        (
            &["select", "--exclude", "6,", "7", "8", "-n", "1"],
            "unexpected '7': a value has no blanks, write --exclude 6,7,8",
        ),
        (&["--wait", "2", "h", "--", "true"], "unexpected 'h': a value has no blanks, write --wait 2h"),
        (&["record", "--pid", "1", "2"], "unexpected '2': a value has no blanks, write --pid 1,2"),
        (
            &["--metrics", "+pss", "fan", "--", "true"],
            "unexpected 'fan': a value has no blanks, write --metrics +pss,fan",
        ),
        // What follows is no part of the value.
        (&["-f", "8G", "python"], "to run a job, put it after --: gpurun -f 8G -- python"),
    ]);
}

#[test]
fn a_log_without_a_known_form_is_answered_with_the_forms() {
    answers(&[
        (
            &["--log", "out", "--", "true"],
            "--log out: no suffix, and no such directory; use out.csv, out.parquet, tensorboard:out or out/",
        ),
        (
            &["--log", "-", "--", "true"],
            "--log -: standard output belongs to the job; log to FILE and print it with \
             'gpurun export FILE -o -'",
        ),
        (
            &["--log", "x.xlsx", "--", "true"],
            "--log x.xlsx: unknown suffix .xlsx; use .csv, .parquet, or tensorboard:DIR",
        ),
    ]);
    assert!(!std::path::Path::new("out").exists());
}

#[test]
fn a_command_that_only_a_shell_can_read_is_answered_with_what_runs() {
    for (job, expected) in [
        (
            &["LR=0.1", "python", "x.py"][..],
            "cannot run `LR=0.1`: no such command in PATH; to set a variable, write -- env LR=0.1 python x.py",
        ),
        (
            &["nosuch x.py"],
            "cannot run `nosuch x.py`: no such command in PATH; the quotes make it one word, write -- nosuch x.py",
        ),
        (
            &["nosuch x.py | tee log"],
            "cannot run `nosuch x.py | tee log`: no such command in PATH; to run a shell command, write \
             -- sh -c 'nosuch x.py | tee log'",
        ),
        (
            &["nosuch x/y.py"],
            "cannot run `nosuch x/y.py`: no such file or directory; the quotes make it one word, write \
             -- nosuch x/y.py",
        ),
        (&["nosuch"], "cannot run `nosuch`: no such command in PATH"),
        (&["A=1"], "cannot run `A=1`: no such command in PATH"),
    ] {
        let output = gpurun(&[&["--"], job].concat());
        assert_eq!(String::from_utf8(output.stderr).unwrap(), format!("gpurun: {expected}\n"));
        assert_eq!(output.status.code(), Some(127), "{job:?}");
    }
}

/// A limit of a few bytes is allowed, and said; every limit is printed as exactly as it was typed.
#[test]
fn limits_are_printed_as_they_were_meant() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = fake_nvml::scenario_file("idle-8xa100").unwrap();
    let driver = fake_nvml::install_file(dir.path(), &scenario).unwrap();
    let select = |args: &[&str]| {
        let mut command = Command::new(support::gpurun());
        command
            .arg("select")
            .args(args)
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env("GPURUN_LEASE_DIR", dir.path());
        let output = driver.apply(&mut command).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, stderr) = select(&["-n", "1", "-f", "8"]);
    assert_eq!(status, Some(0), "{stderr}");
    assert_eq!(stderr.lines().next(), Some("gpurun: -f 8 means 8 bytes; write 8GiB"));
    let (status, stderr) = select(&["-n", "1", "-t", "8000"]);
    assert_eq!(status, Some(0), "{stderr}");
    assert_eq!(stderr.lines().next(), Some("gpurun: -t 8000 means 8000 bytes; write 8000MiB"));
    for quiet in [&["-n", "1", "-q", "-f", "8"][..], &["-n", "1", "-f", "0"], &["-n", "1", "-f", "1MiB"]] {
        assert!(!select(quiet).1.contains("means"), "{quiet:?}");
    }
    let (_, stderr) = select(&["-n", "1", "-f", "39.9GiB", "-t", "8G", "--explain", "-v"]);
    assert!(stderr.contains("at least 39.9 GiB"), "{stderr}");
    assert!(stderr.contains("at least 8 GB"), "{stderr}");
    let (status, stderr) = select(&["-n", "1", "-f", "99.9GiB"]);
    assert_eq!(status, Some(4), "{stderr}");
    assert!(stderr.contains("needs 99.9 GiB"), "{stderr}");
}

#[test]
fn a_report_is_an_html_page() {
    answers(&[(
        &["report", "x.csv", "-o", "r.pdf"],
        "invalid value 'r.pdf' for '--output <FILE>': a report is an HTML page: use a name that ends in .html, \
         or - for standard output",
    )]);
}

#[test]
fn wrong_input_is_one_line_and_exit_2() {
    let table: &[(&[&str], &str)] = &[
        (&[], "nothing to do"),
        (&["--"], "no command after --"),
        (&["-n", "2"], "put it after --"),
        (&["-n", "x", "--", "true"], "--count"),
        (&["-n", "-1", "--", "true"], "--count \"-1\": must be a whole number, 0 or more"),
        (&["--observe", "-1", "--", "true"], "--observe \"-1\": a duration cannot have a sign"),
        (&["--interval", "-1", "--", "true"], "a duration cannot have a sign"),
        (&["-f", "8Gib5", "--", "true"], "8Gib5"),
        (&["-f", "", "--", "true"], "--min-free-memory"),
        (&["-f", "-5G", "--", "true"], "-5"),
        (&["-f", "５G", "--", "true"], "５G"),
        (&["-f", "99999999999999999999G", "--", "true"], "99999999999999999999G"),
        (&["-c", "3", "-C", "2", "--", "true"], "3"),
        (&["--interval", "5", "--window", "1", "--log", "x.csv", "--", "true"], "--window"),
        (&["--interval", "soon", "--", "true"], "soon"),
        (&["--interval", "1ms", "--", "true"], "10ms"),
        (&["--interval", "0", "--", "true"], "'0' for '--interval <D>': must be at least 10ms"),
        (&["--window", "0", "--", "true"], "'0' for '--window <D>': must be at least 10ms"),
        (&["--log", "a.csv", "--log", "./a.csv", "--", "true"], "./a.csv is given twice"),
        (&["--log", "/dev/full", "--", "true"], "--log /dev/full: not a regular file; use a file name"),
        (&["--metrics", "+warp", "--", "true"], "warp"),
        (&["--overwrite", "--append", "--log", "x.csv", "--", "true"], "--append"),
        (&["--every-n-steps", "0", "--", "true"], "--every-n-steps"),
        (&["--tag", "a/b", "--", "true"], "--tag"),
        (&["--gpu-name", "(", "--", "true"], "--gpu-name"),
        (&["record", "--pid", "1", "--all"], "--all"),
        (&["record", "--pid", "abc"], "'abc' for '--pid <PID>': not a whole number"),
        (&["record", "--log", "a.csv", "--pid", "-4"], "--pid -4: a process id is positive"),
        (&["status", "99999999999"], "too large"),
        (&["-q", "-v", "--", "true"], "--verbose"),
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
    let output = gpurun(&["-v", "--", "printf", "%s|", "-n", "--help", "--", "", "a b"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "-n|--help|--||a b|");
    assert_eq!(output.status.code(), Some(0));
}

/// A page of help as a terminal of 80 columns shows it.
fn page(args: &[&str]) -> String {
    let output = Command::new(support::gpurun()).args(args).env("COLUMNS", "80").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.is_empty(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands as `gpurun --help` lists them.
fn commands() -> Vec<String> {
    let help = page(&["--help"]);
    let list = help.split("\nCommands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    list.lines().map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

#[test]
fn the_short_help_fits_one_screen() {
    let short = page(&["-h"]);
    for line in short.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    // The last of the 24 lines is the shell's.
    assert!(short.lines().count() < 24, "{short}");
    for word in ["--count", "--min-free-memory", "--wait", "--log", "--help", "SIZE:", "D:", "TARGET:"] {
        assert!(short.contains(word), "{word} is not in -h");
    }
    assert!(!short.contains("--die-together"), "{short}");
    for command in commands() {
        assert!(short.contains(&format!(" {command}")), "{command} is not in -h");
        let short = page(&[&command, "-h"]);
        assert!(short.lines().count() < 24, "{short}");
    }
}

#[test]
fn the_long_help_has_everything_under_headings() {
    let long = page(&["--help"]);
    for heading in
        ["Commands:", "Selection:", "Logging:", "Job:", "General:", "Values:", "Examples:", "Exit status:"]
    {
        assert!(long.lines().any(|line| line == heading), "{heading} is not in --help");
    }
    assert_eq!(page(&["help"]), long);
    for command in commands() {
        assert_eq!(page(&["help", &command]), page(&[&command, "--help"]));
    }
    assert!(page(&["help", "tag", "begin"]).contains("Usage: gpurun tag begin <NAME>"));
    assert_eq!(page(&["--version"]), format!("gpurun {}\n", env!("CARGO_PKG_VERSION")));
}

/// Every page that a page names exists, and no option is missing from its page.
#[test]
fn every_command_has_a_manual_page() {
    let main = page(&["man"]);
    for section in [
        "NAME",
        "SYNOPSIS",
        "DESCRIPTION",
        "OPTIONS",
        "COMMANDS",
        "EXIT STATUS",
        "ENVIRONMENT",
        "FILES",
        "EXAMPLES",
        "SEE ALSO",
    ] {
        let section = if section.contains(' ') { format!("\"{section}\"") } else { section.to_owned() };
        assert!(main.contains(&format!("\n.SH {section}\n")), "{section} is not in the manual page");
    }
    let named = Regex::new(r"(?m)^\.BR gpurun\\-([a-z]+) ").unwrap();
    let named: Vec<String> = named.captures_iter(&main).map(|found| found[1].to_owned()).collect();
    assert_eq!(named, commands());
    let option = Regex::new("--[a-z][a-z-]*[a-z]").unwrap();
    for command in &named {
        let text = page(&["man", command]);
        assert!(text.contains(&format!("\n.TH GPURUN-{} 1 ", command.to_uppercase())), "{text}");
        assert!(text.contains("\n.BR gpurun (1)\n"), "{text}");
        let plain = text.replace(r"\-", "-");
        for option in option.find_iter(&page(&[command, "--help"])) {
            assert!(plain.contains(option.as_str()), "gpurun-{command}(1) does not name {}", option.as_str());
        }
    }
}

#[test]
fn the_catalogue_is_printed_for_people_and_programs() {
    let text = String::from_utf8(gpurun(&["metrics"]).stdout).unwrap();
    assert!(text.contains("gpu_utilization") && text.contains("MiB/s"));
    let json: serde_json::Value = serde_json::from_slice(&gpurun(&["metrics", "--json"]).stdout).unwrap();
    assert!(json.as_array().unwrap().len() > 60);
}

#[test]
fn completions_are_generated() {
    for shell in ["bash", "zsh", "fish"] {
        let script = page(&["completions", shell]);
        assert!(script.contains("gpurun") && script.contains("min-free-memory"), "{shell}");
    }
}
