//! `gpurun select` on the simulated driver, against the real nvisel, and the deliberate differences between the two, one
//! test each.

mod nvisel;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fake_nvml::{Cuda, Fault, Gpu, Installed, Mig, Process, Scenario, Signal, Square, Wave};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::support;

/// A driver of a test's own, and leases of its own.
pub(crate) struct Host {
    directory: tempfile::TempDir,
    driver: Installed,
}

impl Host {
    /// Plays a scenario.
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let driver = fake_nvml::install(directory.path(), scenario).unwrap();
        Self { directory, driver }
    }

    /// A directory that ends with the host.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// gpurun on this host, with none of the variables that a real one may have.
    pub(crate) fn gpurun(&self) -> Command {
        let mut command = Command::new(support::gpurun());
        for name in ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPURUN_LEASES"] {
            command.env_remove(name);
        }
        self.driver.apply(&mut command).env("GPURUN_LEASE_DIR", self.directory.path().join("leases"));
        command
    }

    /// Runs `gpurun select` with these words.
    fn select(&self, words: &[&str]) -> Output {
        self.gpurun().arg("select").args(words).output().unwrap()
    }

    /// What `gpurun select` prints, where it must succeed.
    fn selected(&self, words: &[&str]) -> String {
        let output = self.select(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }
}

/// GPUs with this much of their 10000 MiB in use.
pub(crate) fn gpus(used: &[i32]) -> Vec<Gpu> {
    used.iter()
        .map(|used| Gpu {
            name: Some("Simulated GPU".to_owned()),
            memory_total: Some(10_000.into()),
            memory_used: Some((*used).into()),
            gpu_utilization: Some(0.into()),
            memory_utilization: Some(0.into()),
            compute_mode: Some(0.into()),
            ..Gpu::default()
        })
        .collect()
}

/// A host of such GPUs.
fn host_of(used: &[i32]) -> Host {
    Host::new(&Scenario { gpu: gpus(used), ..Scenario::default() })
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn output_forms_are_those_of_nvisel() {
    let host = host_of(&[0, 1000, 2000]);
    let printed = |words: &[&str]| String::from_utf8(host.select(words).stdout).unwrap();
    assert_eq!(printed(&[]), "0,1,2\n");
    assert_eq!(printed(&["-s", ":"]), "0:1:2\n");
    assert_eq!(printed(&["--separator", ""]), "012\n");
    assert_eq!(printed(&["--newline"]), "0\n1\n2\n");
    assert_eq!(printed(&["-0"]), "0\x001\x002\0");
    assert_eq!(printed(&["-C", "0"]), "\n");
    assert_eq!(stderr(&host.select(&["-s", ":"])), "CUDA_VISIBLE_DEVICES=\"0,1,2\"\n");
    assert!(printed(&["-O", "uuid", "-n", "1"]).starts_with("GPU-"));
    assert_eq!(printed(&["-S"]), "0,1,2\n");
}

/// nvisel prints what there is and exits 4; a `$(...)` around it then runs a job on too few GPUs.
#[test]
fn a_set_that_is_too_small_is_never_printed() {
    let host = host_of(&[0, 9000]);
    let output = host.select(&["-n", "2", "-f", "5G"]);
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(output.stdout, b"");
    let said = stderr(&output);
    assert!(
        said.contains(
            "1 of 2 GPUs satisfies the constraints now, 2 are needed; --wait waits until they do\n"
        ),
        "{said}"
    );
    assert!(said.contains("GPU 1 refused: 1000.0 MiB free, needs 5 GB"), "{said}");
    // A job says it with its own status, and does not start.
    let marker = host.path().join("ran");
    let output = host.gpurun().args(["-n", "2", "-f", "5G", "--", "touch"]).arg(&marker).output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{}", stderr(&output));
    assert!(!marker.exists());
}

/// nvisel exits 0 with an empty line where there is no driver.
#[test]
fn no_driver_is_an_error() {
    let host = host_of(&[]);
    let run = |words: &[&str]| {
        host.gpurun()
            .env("GPURUN_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so.1")
            .args(words)
            .output()
            .unwrap()
    };
    let output = run(&["select"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), b"".as_slice()), "{output:?}");
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert_eq!(run(&["-n", "1", "--", "true"]).status.code(), Some(125));
    assert_eq!(run(&["devices"]).status.code(), Some(125));
}

/// nvisel takes a lost GPU first, since N/A compares as more than any number.
#[test]
fn a_lost_gpu_is_skipped_with_its_reason() {
    let scenario = Scenario {
        gpu: gpus(&[100, 200, 300]),
        fault: vec![
            Fault {
                function: "*".to_owned(),
                gpu: Some(1),
                error: Some("GPU_IS_LOST".to_owned()),
                ..Fault::default()
            },
            Fault {
                function: "nvmlDeviceGetMemoryInfo*".to_owned(),
                gpu: Some(2),
                error: Some("NO_PERMISSION".to_owned()),
                ..Fault::default()
            },
        ],
        ..Scenario::default()
    };
    let host = Host::new(&scenario);
    assert_eq!(host.selected(&[]), "0");
    let output = host.select(&["-n", "2"]);
    assert_eq!(output.status.code(), Some(4));
    let said = stderr(&output);
    assert!(said.contains("GPU 1 refused: the GPU is lost"), "{said}");
    assert!(said.contains("GPU 2 refused: no permission"), "{said}");
}

/// nvisel lets an unreadable value pass a memory limit, and ranks it first.
#[test]
fn an_unreadable_value_satisfies_nothing_and_ranks_last() {
    let mut devices = gpus(&[100, 200]);
    devices[1].memory_total = Some("NOT_SUPPORTED".into());
    devices[1].memory_used = Some("NOT_SUPPORTED".into());
    let host = Host::new(&Scenario { gpu: devices, ..Scenario::default() });
    assert_eq!(host.selected(&["-n", "1"]), "0");
    assert_eq!(host.selected(&["-n", "2"]), "0,1");
    assert_eq!(host.selected(&["-f", "1M"]), "0");
}

/// nvisel compares free memory to the byte before it looks at utilisation.
#[test]
fn a_byte_of_memory_does_not_beat_an_idle_gpu() {
    let mut devices = gpus(&[101, 100]);
    devices[1].gpu_utilization = Some(100.into());
    let host = Host::new(&Scenario { gpu: devices, ..Scenario::default() });
    assert_eq!(host.selected(&["-n", "1"]), "0");
}

/// nvisel adds loosened devices even where strict ones are enough.
#[test]
fn tolerance_only_helps_to_reach_the_minimum() {
    let host = host_of(&[2000, 5500, 6000]);
    assert_eq!(host.selected(&["-c", "1", "-f", "5000MiB", "--tol", "20"]), "0");
    let output = host.select(&["-c", "2", "-f", "5000MiB", "--tol", "20"]);
    assert_eq!(output.stdout, b"0,1\n");
    assert!(stderr(&output).contains("chosen only with the tolerance of 20 %: GPU 1\n"));
}

/// nvisel passes over the better slice when a count is given.
#[test]
fn a_count_does_not_change_which_device_is_best() {
    let mut devices = gpus(&[9000, 0]);
    devices[1].mig = vec![
        Mig { memory_total: Some(5000.into()), memory_used: Some(0.into()), ..Mig::default() },
        Mig { memory_total: Some(4000.into()), memory_used: Some(0.into()), ..Mig::default() },
    ];
    let host = Host::new(&Scenario { gpu: devices, ..Scenario::default() });
    assert!(host.selected(&[]).starts_with("MIG-"));
    assert_eq!(host.selected(&["-n", "1"]), host.selected(&[]));
    let output = host.select(&["-n", "2"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("at most 1 of 3 GPUs can ever"), "{}", stderr(&output));
    // A mixed host refuses its slices with the reason; one with nothing else says that it cannot be asked.
    assert_eq!(host.selected(&["-G", "50"]), "0");
    let mut devices = gpus(&[0]);
    devices[0].mig =
        vec![Mig { memory_total: Some(5000.into()), memory_used: Some(0.into()), ..Mig::default() }];
    let host = Host::new(&Scenario { gpu: devices, ..Scenario::default() });
    let output = host.select(&["-G", "50"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("MIG slice"), "{}", stderr(&output));
}

#[test]
fn what_nvisel_cannot_be_asked() {
    let mut devices = gpus(&[0, 1000, 2000, 3000]);
    devices[0].name = Some("NVIDIA A100-SXM4-80GB".to_owned());
    devices[1].gpu_utilization = Some(6.into());
    devices[2].process =
        vec![Process { pid: Some(4_000_000), memory: Some(100.into()), ..Process::default() }];
    devices[3].compute_mode = Some(2.into());
    let host = Host::new(&Scenario { gpu: devices, ..Scenario::default() });
    assert_eq!(host.selected(&["--exclude", "0,2"]), "1,3");
    assert_eq!(host.selected(&["--gpu-name", "a100"]), "0");
    assert_eq!(host.selected(&["--idle"]), "0,3");
    assert_eq!(host.selected(&["--max-processes", "0"]), "0,1,3");
    // A compute mode that lets no job in matters to a job only.
    let output = host.gpurun().args(["--exclude", "0,1,2", "-n", "1", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    assert!(stderr(&output).contains("compute mode Prohibited"), "{}", stderr(&output));
    let all = host.selected(&["-O", "uuid", "-S"]);
    let uuids: Vec<&str> = all.split(',').collect();
    assert_eq!(host.selected(&["--exclude", &uuids[1][..12]]), "0,2,3");
}

#[test]
fn explain_and_json_tell_each_verdict() {
    let host = host_of(&[0, 9000]);
    let output = host.select(&["-f", "5G", "-G", "10", "--explain"]);
    let line = "GPU 0 chosen as cuda:0\nGPU 1 refused: 1000.0 MiB free, needs 5 GB\n";
    assert!(stderr(&output).starts_with(line), "{}", stderr(&output));
    let output = host.select(&["-f", "5G", "-G", "10", "--explain", "--verbose"]);
    let said = stderr(&output);
    assert!(
        said.lines().any(|l| l.starts_with("GPU 1") && l.contains("min-free-memory") && l.ends_with("fail"))
    );
    assert!(
        said.lines()
            .any(|l| l.starts_with("GPU 1") && l.contains("max-gpu-utilization") && l.ends_with("pass"))
    );
    let output = host.select(&["-f", "5G", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["cuda_visible_devices"], "0");
    assert_eq!(json["devices"][1]["chosen"], false);
    let verdicts = json["devices"][1]["verdicts"].as_array().unwrap();
    let verdict = verdicts.iter().find(|verdict| verdict["constraint"] == "min-free-memory").unwrap();
    assert_eq!(verdict["verdict"], "fail");
    assert_eq!(verdict["limit"], 5_000_000_000_u64);
    assert_eq!(verdict["value"], 1000 * 1024 * 1024);
    let output = host.select(&["-f", "5G", "-n", "2", "--json"]);
    assert_eq!(output.status.code(), Some(4));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["enough"], &json["cuda_visible_devices"]), (&false.into(), &serde_json::Value::Null));
    assert_eq!(json["devices"][0]["chosen"], false);
}

#[test]
fn free_accounts_count_by_name_and_by_uid() {
    let mut devices = gpus(&[8000, 3000]);
    devices[0].process =
        vec![Process { pid: Some(std::process::id()), memory: Some(7900.into()), ..Process::default() }];
    let host = Host::new(&Scenario { gpu: devices, ..Scenario::default() });
    let uid = std::fs::metadata("/proc/self").map(|meta| std::os::unix::fs::MetadataExt::uid(&meta)).unwrap();
    assert_eq!(host.selected(&["-n", "1"]), "1");
    for words in [vec!["--account-as-free"], vec!["--account-as-free", &uid.to_string()]] {
        assert_eq!(host.selected(&[words.as_slice(), &["-n", "1"]].concat()), "0", "{words:?}");
    }
    assert_eq!(host.selected(&["--account-as-free", "4000000000", "-n", "1"]), "1");
    let output = host.select(&["--account-as-free", "nobody-of-that-name"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn only_what_is_needed_is_read() {
    let host = Host::new(&Scenario { gpu: gpus(&[0; 8]), ..Scenario::default() });
    let mut command = host.gpurun();
    host.driver.log_calls(&mut command);
    assert!(command.args(["select", "-f", "1G"]).output().unwrap().status.success());
    let calls = host.driver.calls();
    let of_gpu = |gpu: usize| calls.iter().filter(|call| call.gpu == Some(gpu)).count();
    assert!(calls.iter().all(|call| !call.function.contains("Pcie") && !call.function.contains("Processes")));
    assert!((1..=16).contains(&of_gpu(3)), "{} calls a GPU: {calls:?}", of_gpu(3));
}

#[test]
fn a_job_is_told_its_devices_in_bus_order() {
    let host = host_of(&[5000, 0, 1000]);
    let seen = |words: &[&str], inherited: Option<&str>| {
        let mut command = host.gpurun();
        if let Some(inherited) = inherited {
            command.env("CUDA_VISIBLE_DEVICES", inherited);
        }
        let script = "echo ${CUDA_VISIBLE_DEVICES-unset} ${CUDA_DEVICE_ORDER-unset}";
        let output = command.args(words).args(["--", "sh", "-c", script]).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    };
    assert_eq!(seen(&[], None), "unset unset");
    assert_eq!(seen(&[], Some("2")), "2 unset");
    assert_eq!(seen(&["-n", "2"], None), "1,2 PCI_BUS_ID");
    // Inside what is already visible, unless told otherwise.
    assert_eq!(seen(&["-n", "1"], Some("2,0")), "2 PCI_BUS_ID");
    assert_eq!(seen(&["-n", "1", "--all-devices"], Some("2,0")), "1 PCI_BUS_ID");
    assert_eq!(seen(&["-n", "1", "-i", "0"], Some("2")), "0 PCI_BUS_ID");
    assert!(seen(&["-n", "1", "-O", "uuid"], None).starts_with("GPU-"));
    let mut command = host.gpurun();
    command.env("CUDA_VISIBLE_DEVICES", "0,9").args(["-n", "2", "--", "true"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    let ignored = "\"9\" is ignored: no GPU has the index 9\n";
    let by = |source: &str| format!("gpurun: {source}: {ignored}");
    assert!(stderr(&output).contains(&by("CUDA_VISIBLE_DEVICES")), "{}", stderr(&output));
    // What was typed is named, not a variable that is not set.
    for words in [&["-n", "1", "-i", "0,9", "--", "true"][..], &["select", "-i", "0,9"]] {
        let output = host.gpurun().args(words).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(stderr(&output).contains(&by("-i 0,9")), "{}", stderr(&output));
    }
}

#[test]
fn an_exclusion_that_matches_no_gpu_is_said_once() {
    let host = host_of(&[0, 0]);
    let said = |words: &[&str]| {
        let output = host.gpurun().args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        stderr(&output).lines().filter(|line| line.contains("--exclude")).collect::<Vec<_>>().join("\n")
    };
    let warning = "gpurun: no GPU matches --exclude 7,GPU-nosuch";
    assert_eq!(said(&["select", "--exclude", "0,7,GPU-nosuch"]), warning);
    assert_eq!(said(&["--exclude", "0,7,GPU-nosuch", "--wait", "--", "true"]), warning);
    // One that the variable hides is there.
    let mut hidden = host.gpurun();
    hidden.args(["--exclude", "1", "--", "true"]).env("CUDA_VISIBLE_DEVICES", "0");
    assert!(!stderr(&hidden.output().unwrap()).contains("--exclude"));
}

#[test]
fn integers_in_cudas_own_order_are_asked_from_libcuda() {
    let mut devices = gpus(&[0, 1000, 2000]);
    devices[0].name = Some("Old GPU".to_owned());
    let order = Cuda { fastest_first: Some(vec![2, 1, 0]), ..Cuda::default() };
    let host = Host::new(&Scenario { gpu: devices.clone(), cuda: Some(order), ..Scenario::default() });
    let inherited = |host: &Host, order: Option<&str>| {
        let mut command = host.gpurun();
        command.args(["select", "-i", "0"]);
        if let Some(order) = order {
            command.env("CUDA_DEVICE_ORDER", order);
        }
        command.output().unwrap()
    };
    assert_eq!(inherited(&host, None).stdout, b"2\n");
    assert_eq!(inherited(&host, Some("PCI_BUS_ID")).stdout, b"0\n");
    // No libcuda: PCI order, and a word about it.
    let broken = Cuda { init_error: Some(999), ..Cuda::default() };
    let host = Host::new(&Scenario { gpu: devices, cuda: Some(broken), ..Scenario::default() });
    let output = inherited(&host, None);
    assert_eq!(output.stdout, b"0\n");
    assert!(stderr(&output).contains("CUDA_DEVICE_ORDER=PCI_BUS_ID"), "{}", stderr(&output));
}

#[test]
fn utilisation_is_judged_by_its_maximum_while_observed() {
    // GPU 0 works every other half second: one look sees it idle or not, two seconds see it busy.
    let square = Square { low: 0.0, high: 100.0, period: 1.0, duty: 0.5, shift: 0.0 };
    let mut devices = gpus(&[0, 1000]);
    devices[0].gpu_utilization = Some(Signal::Wave(Wave::Square(square)));
    let host = Host::new(&Scenario { gpu: devices, ..Scenario::default() });
    assert_eq!(host.selected(&["-G", "10", "--observe", "2s"]), "1");
}

#[test]
fn mistakes_are_one_line() {
    let host = host_of(&[0]);
    for words in [
        vec!["-f", "5X"],
        vec!["-f", ""],
        vec!["-f", "99999999999999999999"],
        vec!["-f", "\u{ff15}G"],
        vec!["-G", "50%"],
        vec!["-n", "1.5"],
        vec!["-n", "-1"],
        vec!["-c", "2", "-C", "1"],
        vec!["--wait", "soon"],
        vec!["--share", "0"],
        vec!["--exclude", "first"],
        vec!["--observe", "0"],
        vec!["-O", "name"],
        vec!["--newline", "-0"],
    ] {
        let output = host.select(&words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        assert_eq!(output.stdout, b"", "{words:?}");
        assert_eq!(stderr(&output).trim_end().lines().count(), 1, "{words:?}: {}", stderr(&output));
    }
}
