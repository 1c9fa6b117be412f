//! A driver library that crashes, prints or forks: it costs GPU values or the log, never the job.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use fake_nvml::{Die, Fault};

use super::{driver_with, lines};
use crate::faults::{FAST, gpurun, known, machine, said, with_job};
use crate::transparency::harness::{alive, describe, until};

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
            "gpurun: the measuring process {how}: the log ends here, the job continues; finish the log with 'gpurun recover {}'",
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
        let line = format!("gpurun: the measuring process {how}: the log ends here, the job continues");
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
            format!("gpurun: no GPU values: loading the NVIDIA driver library ended the process {how}");
        assert!(lines(&output).contains(&line), "{}", said(&output));
        assert!(known(&log, "host") > 0 && known(&log, "job") > 0, "{statement}");
    }
}

#[test]
fn a_driver_that_ends_its_process_while_gpus_are_chosen_is_an_error_of_one_line() {
    let cases: [(&[&str], &str, &str); 3] = [
        (&["-n", "1", "--", "touch", "ran"], "code 125", "cannot choose GPUs: the measuring process"),
        (&["select"], "code 2", "the process that reads the NVIDIA driver"),
        (&["devices"], "code 125", "the process that reads the NVIDIA driver"),
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

/// Prints in every way that C knows, while it is loaded, at its start and in a call; then there is a file `spoken`.
const PRINTS: &str = r#"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
static void print(void) {
    printf("driver\n");
    fflush(stdout);
    printf("driver, later\n");
    if (write(1, "driver\n", 7) != 7) perror("driver");
}
__attribute__((constructor)) static void load(void) { print(); }
int nvmlInit_v2(void) { print(); return ((int (*)(void))dlsym(RTLD_NEXT, "nvmlInit_v2"))(); }
int nvmlDeviceGetMemoryInfo(void *device, void *memory) {
    print();
    close(open("spoken", O_CREAT | O_WRONLY, 0600));
    return ((int (*)(void *, void *))dlsym(RTLD_NEXT, "nvmlDeviceGetMemoryInfo"))(device, memory);
}
int nvmlDeviceGetMemoryInfo_v2(void *device, void *memory) {
    print();
    close(open("spoken", O_CREAT | O_WRONLY, 0600));
    return ((int (*)(void *, void *))dlsym(RTLD_NEXT, "nvmlDeviceGetMemoryInfo_v2"))(device, memory);
}
"#;

#[test]
fn what_a_driver_library_prints_is_in_no_output() {
    let dir = tempfile::tempdir().unwrap();
    let driver = driver_with(dir.path(), PRINTS);
    let spoken = dir.path().join("spoken");
    let job = "until [ -e spoken ]; do sleep 0.02; done; echo out";
    let cases: [(&[&str], &str); 6] = [
        (&["--", "sh", "-c", job], "out\n"),
        (&["-n", "1", "--", "sh", "-c", job], "out\n"),
        (&["--log", "m.csv", "--", "sh", "-c", job], "out\n"),
        (&["select"], "0\n"),
        (&["record", "--log", "r.csv", "--duration", "0.2"], ""),
        (&["devices"], "GPU  UUID"),
    ];
    for (words, expected) in cases {
        let mut command = gpurun(dir.path(), words);
        let output = driver.apply(&mut command).current_dir(dir.path()).output().unwrap();
        assert_eq!(describe(output.status), "code 0", "{words:?}: {}", said(&output));
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        match words {
            ["devices"] => assert!(stdout.starts_with(expected) && !stdout.contains("driver"), "{stdout}"),
            _ => assert_eq!(stdout, expected, "{words:?}"),
        }
        assert!(fs::remove_file(&spoken).is_ok(), "{words:?}: the library was not asked");
    }
}

/// Forks in its first temperature call: a helper that burns a second of CPU, and a daemon that lives until there is a file
/// `end`. Later calls wait for the helper and tell how that went, in a file `reaped`.
const FORKS: &str = r#"
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static void note(const char *name, int a, int b) {
    FILE *file = fopen("fresh", "w");
    fprintf(file, "%d %d\n", a, b);
    fclose(file);
    rename("fresh", name);
}
static pid_t helper;
static void begin(void) {
    helper = fork();
    if (helper == 0) {
        while (clock() < CLOCKS_PER_SEC) {}
        _exit(7);
    }
    pid_t between = fork();
    if (between == 0) {
        setsid();
        if (fork() != 0) _exit(0);
        for (int fd = 0; fd < 256; fd++) close(fd);
        note("daemon", getpid(), 0);
        for (int n = 0; n < 6000 && access("end", F_OK) != 0; n++) usleep(10000);
        _exit(0);
    }
    waitpid(between, NULL, 0);
}
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *value) {
    int status = 0;
    if (helper == 0) begin();
    else if (helper > 0) {
        pid_t got = waitpid(helper, &status, WNOHANG);
        if (got != 0) {
            note("reaped", helper, got == helper ? WEXITSTATUS(status) : -errno);
            helper = -1;
        }
    }
    *value = 50;
    return 0;
}
"#;

#[test]
fn what_a_driver_library_forks_is_the_librarys() {
    let dir = tempfile::tempdir().unwrap();
    let driver = driver_with(dir.path(), FORKS);
    let options = ["--log", "m.csv", "--summary", "s.json", "--processes", "all"];
    let mut command = gpurun(dir.path(), &[&FAST[..], &options].concat());
    driver.apply(&mut command).current_dir(dir.path());
    let output = with_job(command, &["sh", "-c", "until [ -e reaped ]; do sleep 0.1; done; exit 4"]);
    let number = |file: &str| -> Vec<i32> {
        let text = fs::read_to_string(dir.path().join(file)).unwrap();
        text.split_ascii_whitespace().map(|word| word.parse().unwrap()).collect()
    };
    let daemon = number("daemon")[0];
    let lives = alive(daemon);
    fs::write(dir.path().join("end"), "").unwrap();
    assert_eq!(describe(output.status), "code 4", "{}", said(&output));
    assert!(lives, "the library's daemon was ended");
    let [helper, status] = number("reaped")[..] else { panic!() };
    assert_eq!(status, 7, "the library's waitpid");
    assert!(!said(&output).contains("left behind"), "{}", said(&output));
    let log = fs::read_to_string(dir.path().join("m.csv")).unwrap();
    let mut reader = csv::Reader::from_reader(log.as_bytes());
    let pid = reader.headers().unwrap().iter().position(|name| name == "pid").unwrap();
    let pids: BTreeSet<String> = reader.records().map(|row| row.unwrap()[pid].to_owned()).collect();
    assert!(pids.len() > 1, "processes are in the log: {pids:?}");
    assert!(!pids.contains(&helper.to_string()) && !pids.contains(&daemon.to_string()), "{pids:?}");
    let summary: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.path().join("s.json")).unwrap()).unwrap();
    assert_eq!(summary["leftovers"].as_array().map(Vec::len), Some(0), "{summary}");
    let used = summary["job"]["cpu_s"].as_f64().unwrap();
    assert!(used < 1.0, "{used} s: the helper's second is not the job's");
    until("the daemon ends", || !alive(daemon));
}
