//! Is the simulated driver a driver? Programs from PyPI and nvml-wrapper must run on it and see the scenario's values.

#![allow(clippy::unwrap_used, reason = "what a helper of a test cannot have fails the test")]

use std::ffi::CString;
use std::fmt::Write as _;
use std::io::{BufRead as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use fake_nvml::{Counter, Cuda, Energy, Fault, Gpu, Installed, Level, Mig, Process, Scenario, Signal};
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use crate::support;

/// A scenario file of ours, laid out in a fresh directory.
fn ready(name: &str) -> (tempfile::TempDir, Installed) {
    let directory = tempfile::tempdir().unwrap();
    let file = fake_nvml::scenario_file(name).unwrap();
    let installed = fake_nvml::install_file(directory.path(), &file).unwrap();
    (directory, installed)
}

fn laid_out(scenario: &Scenario) -> (tempfile::TempDir, Installed) {
    let directory = tempfile::tempdir().unwrap();
    let installed = fake_nvml::install(directory.path(), scenario).unwrap();
    (directory, installed)
}

/// Runs Python code on simulated GPUs and reads the JSON that it prints last.
fn python(installed: &Installed, code: &str) -> serde_json::Value {
    let mut command = Command::new(support::python());
    installed.log_calls(installed.apply(command.arg("-c").arg(code)));
    let output = succeeded(&mut command);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stdout)))
}

fn succeeded(command: &mut Command) -> Output {
    command.env_remove("CUDA_VISIBLE_DEVICES").env_remove("CUDA_DEVICE_ORDER");
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// A program of the test virtual environment, such as `nvitop`.
fn tool(name: &str) -> Command {
    Command::new(support::python().with_file_name(name))
}

const SCENARIOS: [&str; 9] = [
    "busy-shared-box",
    "four-2080ti",
    "four-gpus-two-full",
    "gb10-unified",
    "h100-8",
    "idle-8xa100",
    "lost-gpu",
    "mig-a100",
    "old-driver",
];

#[test]
fn every_scenario_is_listed_and_nvitop_shows_it() {
    let directory = fake_nvml::scenario_file(SCENARIOS[0]).unwrap();
    let mut found: Vec<String> = std::fs::read_dir(directory.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    found.sort();
    assert_eq!(found, SCENARIOS, "a scenario that no test looks at");

    for name in SCENARIOS {
        let (_directory, installed) = ready(name);
        let scenario = Scenario::load(&installed.scenario).unwrap();
        let mut command = tool("nvitop");
        let output = succeeded(installed.apply(command.arg("-1").env("LINES", "60").env("COLUMNS", "120")));
        let screen = String::from_utf8(output.stdout).unwrap();
        assert!(screen.contains(scenario.driver()), "{name}: no driver version in\n{screen}");
        let readable = scenario.gpu.iter().filter(|gpu| gpu.lost_from.is_none()).collect::<Vec<_>>();
        for gpu in &readable {
            // nvitop leaves "NVIDIA" out of names and cuts the heads of long ones.
            let name = gpu.name.as_deref().unwrap();
            let model = name.strip_prefix("NVIDIA ").unwrap_or(name);
            assert!(
                screen.contains(&model[model.len().saturating_sub(10)..]),
                "{name}: no {model} in\n{screen}"
            );
        }
        if name == "four-gpus-two-full" {
            for text in ["512.0MiB / 80.00GiB", "78.12GiB / 80.00GiB", "77.15GiB / 80.00GiB", "0B / 80.00GiB"]
            {
                assert!(screen.contains(text), "{text} not in\n{screen}");
            }
        }
    }
}

#[test]
fn nvitop_reads_the_values_of_the_scenarios() {
    let code = "
import json
from nvitop import Device
number = lambda value: value if isinstance(value, (int, float)) else None
print(json.dumps([{
    'name': str(d.name()), 'uuid': str(d.uuid()), 'total': number(d.memory_total()), 'used': number(d.memory_used()),
    'utilization': number(d.gpu_utilization()), 'temperature': number(d.temperature()), 'power': number(d.power_usage()),
    'limit': number(d.power_limit()), 'fan': number(d.fan_speed()), 'sm_clock': number(d.sm_clock()),
    'processes': {p: [number(v.gpu_memory()), v.type] for p, v in d.processes().items()},
} for d in Device.all()]))";
    for name in SCENARIOS {
        let (_directory, installed) = ready(name);
        let scenario = Scenario::load(&installed.scenario).unwrap();
        let seen = python(&installed, code);
        assert_eq!(seen.as_array().unwrap().len(), scenario.gpu.len(), "{name}");
        for (index, gpu) in scenario.gpu.iter().enumerate() {
            let device = &seen[index];
            if gpu.lost_from.is_some() {
                assert_eq!(device["name"], "ERROR: GPU is Lost", "{name} {index}");
                continue;
            }
            assert_eq!(device["name"], gpu.name.as_deref().unwrap(), "{name} {index}");
            assert_eq!(device["uuid"], scenario.uuid(index), "{name} {index}");
            // Only what stands still can be compared with a value read some milliseconds later.
            let fixed = |signal: &Option<Signal>| match signal {
                Some(Signal::Constant(Level::Value(value))) => Some(*value),
                _ => None,
            };
            for (key, signal, scale) in [
                ("total", &gpu.memory_total, 1_048_576.0),
                ("used", &gpu.memory_used, 1_048_576.0),
                ("utilization", &gpu.gpu_utilization, 1.0),
                ("temperature", &gpu.temperature, 1.0),
                ("power", &gpu.power, 1000.0),
                ("limit", &gpu.power_limit, 1000.0),
                ("fan", &gpu.fan_speed, 1.0),
                ("sm_clock", &gpu.sm_clock, 1.0),
            ] {
                if let Some(value) = fixed(signal) {
                    // Memory in its first form counts what the driver reserves as used.
                    let reserved =
                        fixed(&gpu.memory_reserved).filter(|_| key == "used" && name == "old-driver");
                    let expected = (value + reserved.unwrap_or(0.0)) * scale;
                    assert_eq!(device[key].as_f64(), Some(expected), "{name} {index} {key}");
                } else if signal.is_none() && name != "gb10-unified" {
                    assert!(device[key].is_null(), "{name} {index} {key}: {}", device[key]);
                }
            }
            for process in &gpu.process {
                let kind = process.kind.as_deref().unwrap_or("C");
                if kind == "M" {
                    continue;
                }
                let pid = process.pid.unwrap().to_string();
                let memory = fixed(&process.memory).unwrap() * 1_048_576.0;
                assert_eq!(device["processes"][&pid][0].as_f64(), Some(memory), "{name} {index} {pid}");
            }
        }
    }
}

#[test]
fn gpustat_reads_the_values_of_the_scenarios() {
    for name in ["busy-shared-box", "four-2080ti", "idle-8xa100", "h100-8", "four-gpus-two-full"] {
        let (_directory, installed) = ready(name);
        let scenario = Scenario::load(&installed.scenario).unwrap();
        let output = succeeded(installed.apply(tool("gpustat").arg("--json")));
        let seen: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(seen["driver_version"], scenario.driver());
        let gpus = seen["gpus"].as_array().unwrap();
        assert_eq!(gpus.len(), scenario.gpu.len());
        for (index, gpu) in scenario.gpu.iter().enumerate() {
            assert_eq!(gpus[index]["uuid"], scenario.uuid(index));
            for (key, signal) in [
                ("memory.total", &gpu.memory_total),
                ("memory.used", &gpu.memory_used),
                ("utilization.gpu", &gpu.gpu_utilization),
                ("enforced.power.limit", &gpu.power_limit),
            ] {
                if let Some(Signal::Constant(Level::Value(value))) = signal {
                    assert_eq!(gpus[index][key].as_f64(), Some(*value), "{name} {index} {key}");
                }
            }
        }
    }
}

#[test]
fn pynvml_reads_what_nvitop_does_not() {
    let (_directory, installed) = laid_out(&Scenario {
        driver_version: Some("580.95.05".into()),
        clock_file: Some("/nonexistent/so/second/zero".into()),
        gpu: vec![Gpu {
            serial: Some("1322021".into()),
            memory_reserved: Some(3.into()),
            minor_number: Some(5),
            pci_bus_id: Some("00000001:65:00.0".into()),
            throttle_reasons: Some(0x24.into()),
            throttled_power: Some(Counter::Signal(1.5.into())),
            ecc_volatile_corrected: Some(Counter::Signal(3.into())),
            ecc_aggregate_uncorrected: Some(Counter::Signal(4.into())),
            temperature: Some((-5).into()),
            temperature_slowdown: Some(87.into()),
            nvlink: Some(vec![1.into(), 0.into()]),
            pcie_tx: Some(Counter::rate(1024.0 * 77.0)),
            compute_capability: Some([9, 0]),
            ..Gpu::with_memory(1000.0, 10.0, 3.0)
        }],
        ..Scenario::default()
    });
    let seen = python(
        &installed,
        "
import json, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByPciBusId('00000001:65:00.0')
pci = n.nvmlDeviceGetPciInfo(h)
violation = n.nvmlDeviceGetViolationStatus(h, n.NVML_PERF_POLICY_POWER)
try:
    n.nvmlDeviceGetHandleByIndex(1)
    beyond = 0
except n.NVMLError as error:
    beyond = error.value
try:
    n.nvmlDeviceGetFanSpeed(h)
    fan = 0
except n.NVMLError as error:
    fan = error.value
v1, v2 = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
print(json.dumps([
    n.nvmlDeviceGetSerial(h), n.nvmlDeviceGetMinorNumber(h), pci.busId, pci.domain, pci.bus,
    n.nvmlDeviceGetCurrentClocksThrottleReasons(h), violation.violationTime,
    n.nvmlDeviceGetTotalEccErrors(h, 0, 0), n.nvmlDeviceGetTotalEccErrors(h, 1, 1),
    n.nvmlDeviceGetTemperatureV(h, 0), n.nvmlDeviceGetTemperatureThreshold(h, 1),
    n.nvmlDeviceGetNvLinkState(h, 0), n.nvmlDeviceGetNvLinkState(h, 1), n.nvmlDeviceGetPcieThroughput(h, 0),
    list(n.nvmlDeviceGetCudaComputeCapability(h)), beyond, fan, [v1.used, v2.used, v2.free],
    n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h))),
    n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleBySerial('1322021')),
]))",
    );
    let mib = 1_048_576;
    assert_eq!(
        seen,
        serde_json::json!([
            "1322021",
            5,
            "00000001:65:00.0",
            1,
            0x65,
            0x24,
            1_500_000_000,
            3,
            4,
            -5,
            87,
            1,
            0,
            77,
            [9, 0],
            2,
            3,
            [13 * mib, 10 * mib, 987 * mib],
            0,
            0
        ])
    );
}

#[test]
fn nvml_wrapper_finds_devices_processes_and_slices() {
    let (_directory, installed) = ready("mig-a100");
    let scenario = Scenario::load(&installed.scenario).unwrap();
    let seen = nvml_in_child(&installed, "child_lists_slices");
    assert_eq!(
        seen,
        format!(
            "2 gpus\n{} mig true\n0 {} 19968 2/0\n1 {} 4864 9/0\n2 NotFound\n3 {} 9856 5/0\n4003001 8100 2\n4003002 2000 5\n",
            scenario.uuid(0),
            scenario.mig_uuid(0, 0),
            scenario.mig_uuid(0, 1),
            scenario.mig_uuid(0, 2)
        )
    );
}

#[test]
fn a_hidden_symbol_is_really_not_there() {
    let (_directory, installed) = ready("old-driver");
    let find = |symbol: &str| {
        let library = CString::new(installed.library.as_os_str().as_bytes()).unwrap();
        let symbol = CString::new(symbol).unwrap();
        // SAFETY: both are C strings; the library's initialisers are Rust's own and do nothing.
        unsafe {
            let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null(), "the rewritten library does not load");
            !libc::dlsym(handle, symbol.as_ptr()).is_null()
        }
    };
    for hidden in [
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetMPSComputeRunningProcesses",
        "nvmlDeviceGetAttributes_v2",
    ] {
        assert!(!find(hidden), "{hidden}");
    }
    for kept in [
        "nvmlInit_v2",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetTemperature",
    ] {
        assert!(find(kept), "{kept}");
    }
    let wrong = Scenario { missing_symbols: vec!["nvmlNoSuchThing".into()], ..Scenario::default() };
    let directory = tempfile::tempdir().unwrap();
    assert!(fake_nvml::install(directory.path(), &wrong).unwrap_err().contains("nvmlNoSuchThing"));
}

#[test]
fn faults_begin_end_and_name_their_gpu() {
    let directory = tempfile::tempdir().unwrap();
    let clock = directory.path().join("clock");
    std::fs::write(&clock, "0").unwrap();
    let fault = |function: &str, error: &str| Fault {
        function: function.into(),
        error: Some(error.into()),
        ..Fault::default()
    };
    let gpu = || Gpu {
        power: Some(100.into()),
        temperature: Some(40.into()),
        fan_speed: Some(30.into()),
        ..Gpu::with_memory(1000.0, 0.0, 0.0)
    };
    let scenario = Scenario {
        clock_file: Some(clock.clone()),
        gpu: vec![gpu(), gpu(), Gpu { lost_from: Some(20.0), lost_until: Some(30.0), ..gpu() }],
        fault: vec![
            Fault {
                gpu: Some(1),
                after: Some(2),
                count: Some(1),
                ..fault("nvmlDeviceGetPowerUsage", "TIMEOUT")
            },
            Fault { gpu: Some(1), ..fault("nvmlDeviceGetHandleByUUID", "NO_PERMISSION") },
            Fault { from: Some(10.0), until: Some(11.0), ..fault("nvmlDeviceGetTemperature*", "UNKNOWN") },
        ],
        reload_at: vec![40.0],
        ..Scenario::default()
    };
    let installed = fake_nvml::install(directory.path(), &scenario).unwrap();
    let code = format!(
        "
import json, pynvml as n
def t(second):
    open({clock:?}, 'w').write(str(second))
def code(call, *args):
    try:
        call(*args)
        return 0
    except n.NVMLError as error:
        return error.value
n.nvmlInit()
h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(3)]
out = [[code(n.nvmlDeviceGetPowerUsage, h[1]) for _ in range(4)], [code(n.nvmlDeviceGetPowerUsage, h[0]) for _ in range(4)],
    [code(n.nvmlDeviceGetHandleByUUID, n.nvmlDeviceGetUUID(x)) for x in h]]
for second in (9.9, 10, 11):
    t(second)
    out.append([code(n.nvmlDeviceGetTemperature, h[0], 0), code(n.nvmlDeviceGetTemperatureV, h[0], 0), code(n.nvmlDeviceGetFanSpeed, h[0])])
for second in (20, 30):
    t(second)
    out.append([code(n.nvmlDeviceGetFanSpeed, h[i]) for i in range(3)])
t(40)
out.append([code(n.nvmlDeviceGetFanSpeed, h[0]), code(n.nvmlDeviceGetCount)])
n.nvmlInit()
out.append(code(n.nvmlDeviceGetFanSpeed, h[0]))
print(json.dumps(out))",
        clock = clock.to_str().unwrap()
    );
    assert_eq!(
        python(&installed, &code),
        serde_json::json!([
            [0, 0, 10, 0],
            [0, 0, 0, 0],
            [0, 4, 0],
            [0, 0, 0],
            [999, 999, 0],
            [0, 0, 0],
            [0, 0, 15],
            [0, 0, 0],
            [1, 1],
            0
        ])
    );
    let calls = installed.calls();
    assert_eq!(
        calls.iter().filter(|call| call.function == "nvmlDeviceGetPowerUsage" && call.gpu == Some(1)).count(),
        4
    );
    let timeout = calls.iter().position(|call| call.code == Some(10)).unwrap();
    assert_eq!(calls[timeout].function, "nvmlDeviceGetPowerUsage");
    assert_eq!(calls[0].function, "nvmlInitWithFlags");
    assert!(
        calls
            .windows(2)
            .all(|pair| pair[0].monotonic_ns <= pair[1].monotonic_ns && pair[0].pid == pair[1].pid)
    );
}

#[test]
fn a_call_hangs_until_the_test_lets_it_go() {
    let directory = tempfile::tempdir().unwrap();
    let gate = directory.path().join("gate");
    std::fs::write(&gate, "").unwrap();
    let scenario = Scenario {
        gpu: vec![Gpu { power: Some(5.into()), ..Gpu::default() }],
        fault: vec![Fault {
            function: "nvmlDeviceGetPowerUsage".into(),
            hang_while: Some(gate.clone()),
            ..Fault::default()
        }],
        ..Scenario::default()
    };
    let installed = fake_nvml::install(directory.path(), &scenario).unwrap();
    let code = "
import sys, threading, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
hung = threading.Thread(target=lambda: print(n.nvmlDeviceGetPowerUsage(h), flush=True))
hung.start()
sys.stdin.readline()
print(n.nvmlDeviceGetCount(), flush=True)
hung.join()";
    let mut command = Command::new(support::python());
    command.args(["-c", code]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = installed.log_calls(installed.apply(&mut command)).spawn().unwrap();
    let power = |ended: bool| {
        let calls = installed.calls();
        calls.iter().any(|call| call.function == "nvmlDeviceGetPowerUsage" && call.code.is_some() == ended)
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !power(false) {
        assert!(Instant::now() < deadline, "the call never began");
        std::thread::sleep(Duration::from_millis(2));
    }
    // Another thread's calls go on while this one hangs.
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "1");
    assert!(!power(true), "the call ended by itself");
    std::fs::remove_file(&gate).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "5000");
    assert!(child.wait().unwrap().success());
}

#[test]
fn field_values_have_scopes_results_and_new_numbers() {
    let gpu = Gpu {
        power: Some(250.into()),
        energy: Some(Energy::Named("from-power".into())),
        memory_temperature: Some(70.into()),
        pcie_tx: Some(Counter::rate(1e6)),
        throttled_power: Some(Counter::rate(0.5)),
        throttled_sw_thermal: Some(Counter::Signal(2.into())),
        nvlink: Some(vec![1.into(); 4]),
        nvlink_rx: Some(Counter::rate(1024.0 * 1000.0)),
        fields: [
            ("230:int".to_owned(), Counter::Signal((-3).into())),
            ("186@1".to_owned(), Counter::Signal(900_000.into())),
        ]
        .into(),
        ..Gpu::default()
    };
    for (driver, sw_thermal) in [("550.54.15", 251), ("580.65.06", 251), ("580.82.07", 269), ("590.1", 269)] {
        let directory = tempfile::tempdir().unwrap();
        let clock = directory.path().join("clock");
        std::fs::write(&clock, "8").unwrap();
        let scenario = Scenario {
            driver_version: Some(driver.into()),
            clock_file: Some(clock),
            gpu: vec![gpu.clone()],
            ..Scenario::default()
        };
        let installed = fake_nvml::install(directory.path(), &scenario).unwrap();
        let code = format!(
            "
import json, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
ids = [82, 83, 186, (186, 1), (185, 1), 197, 198, 74, {sw_thermal}, (139, 2), (139, 2**32 - 1), (139, 9), 230, 0]
read = {{0: 'dVal', 1: 'uiVal', 2: 'ulVal', 3: 'ullVal', 4: 'sllVal', 5: 'siVal'}}
print(json.dumps([[v.nvmlReturn, getattr(v.value, read[v.valueType]) if v.nvmlReturn == 0 else None]
                  for v in n.nvmlDeviceGetFieldValues(h, ids)]))"
        );
        assert_eq!(
            python(&installed, &code),
            serde_json::json!([
                [0, 70],
                [0, 2_000_000],
                [0, 250_000],
                [0, 900_000],
                [3, null],
                [0, 8_000_000],
                [3, null],
                [0, 4_000_000_000_u64],
                [0, 2_000_000_000],
                [0, 8000],
                [0, 32000],
                [2, null],
                [0, -3],
                [2, null]
            ]),
            "{driver}"
        );
    }
}

#[test]
fn processes_come_from_files_and_go_with_time() {
    let directory = tempfile::tempdir().unwrap();
    let (clock, pids) = (directory.path().join("clock"), directory.path().join("pids"));
    std::fs::write(&clock, "1").unwrap();
    let scenario = Scenario {
        clock_file: Some(clock.clone()),
        gpu: vec![Gpu {
            process: vec![
                Process {
                    pid_file: Some(pids.clone()),
                    memory: Some(64.into()),
                    sm: Some(10.into()),
                    ..Process::default()
                },
                Process {
                    pid: Some(50),
                    from: Some(2.0),
                    until: Some(3.0),
                    memory: Some("N/A".into()),
                    ..Process::default()
                },
                Process {
                    pid: Some(u32::MAX),
                    kind: Some("none".into()),
                    sm: Some(4_000_000_000.0.into()),
                    stamp_age: Some(3600.0),
                    ..Process::default()
                },
            ],
            ..Gpu { memory_total: Some(1000.into()), ..Gpu::default() }
        }],
        ..Scenario::default()
    };
    let installed = fake_nvml::install(directory.path(), &scenario).unwrap();
    let code = format!(
        "
import json, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
def look(second, pids):
    open({clock:?}, 'w').write(str(second))
    if pids is not None: open({pids:?}, 'w').write(pids)
    found = [[p.pid, p.usedGpuMemory and p.usedGpuMemory >> 20] for p in n.nvmlDeviceGetComputeRunningProcesses(h)]
    return found, n.nvmlDeviceGetMemoryInfo(h).used >> 20
def use(since):
    try: return sorted([s.pid, s.timeStamp, s.smUtil] for s in n.nvmlDeviceGetProcessUtilization(h, since))
    except n.NVMLError as error: return error.value
out = [look(1, None), look(1, '7\\n8 100 55\\n'), look(2, '7'), look(3, '')]
look(10, '7 64')
samples = use(0)
newest = max(s[1] for s in samples)
out += [samples, use(newest)]
look(10.5, None)
out.append(len(use(newest)))
print(json.dumps(out))",
        clock = clock.to_str().unwrap(),
        pids = pids.to_str().unwrap()
    );
    let zero: u64 = 1_750_000_000_000_000;
    assert_eq!(
        python(&installed, &code),
        serde_json::json!([
            [[], 0],
            [[[7, 64], [8, 100]], 164],
            [[[7, 64], [50, null]], 64],
            [[], 0],
            [[7, zero + 10_000_000, 10], [u32::MAX, zero - 3_590_000_000, 4_000_000_000_u32]],
            6,
            1
        ])
        .as_array()
        .map(|expected| {
            let mut expected = expected.clone();
            expected[4].as_array_mut().unwrap().sort_by_key(|sample| sample[0].as_u64());
            serde_json::Value::from(expected)
        })
        .unwrap()
    );
}

#[test]
fn sizes_go_in_and_out_as_nvml_h_says() {
    let scenario = Scenario {
        gpu: vec![Gpu {
            name_bytes: Some(vec![b'A', 0xff, 0xfe, b'Z']),
            process: vec![Process::compute(11, 1.0), Process::compute(12, 2.0), Process::compute(0, 3.0)],
            ..Gpu::default()
        }],
        ..Scenario::default()
    };
    let (_directory, installed) = laid_out(&scenario);
    let seen = python(
        &installed,
        "
import ctypes as c, json, os
lib = c.CDLL('libnvidia-ml.so.1')
class P(c.Structure): _fields_ = [('pid', c.c_uint), ('memory', c.c_ulonglong), ('gi', c.c_uint), ('ci', c.c_uint)]
out = [lib.nvmlDeviceGetCount_v2(c.byref(c.c_uint()))]
lib.nvmlInit_v2()
h = c.c_void_p()
lib.nvmlDeviceGetHandleByIndex_v2(0, c.byref(h))
def ask(room, null=False):
    n, a = c.c_uint(room), (P * 8)()
    a[room].pid = 77
    return [lib.nvmlDeviceGetComputeRunningProcesses_v3(h, c.byref(n), None if null else a), n.value, [p.pid for p in a]]
out += [ask(0, True)[:2], ask(2), ask(3), ask(5)]
def name(length):
    b = c.create_string_buffer(b'........', 9)
    return [lib.nvmlDeviceGetName(h, b, length), b.raw.hex()]
out += [name(4), name(5)]
out.append(lib.nvmlDeviceGetName(None, None, 5))
class M(c.Structure): _fields_ = [('version', c.c_uint), ('rest', c.c_ulonglong * 4)]
out.append(lib.nvmlDeviceGetMemoryInfo_v2(h, c.byref(M(0x01000028))))
lib.nvmlErrorString.restype = c.c_char_p
out.append(lib.nvmlErrorString(15).decode())
print(json.dumps(out))",
    );
    assert_eq!(
        seen,
        serde_json::json!([
            1,
            [7, 3],
            [7, 3, [0, 0, 77, 0, 0, 0, 0, 0]],
            [0, 3, [11, 12, 0, 77, 0, 0, 0, 0]],
            [0, 3, [11, 12, 0, 0, 0, 77, 0, 0]],
            [7, "2e2e2e2e2e2e2e2e00"],
            [0, "41fffe5a002e2e2e00"],
            2,
            25,
            "GPU is lost"
        ])
    );
}

#[test]
fn two_processes_share_one_time_and_counters_follow_it() {
    let directory = tempfile::tempdir().unwrap();
    let scenario = Scenario {
        epoch_file: Some(directory.path().join("epoch")),
        gpu: vec![Gpu { energy: Some(Energy::Counter(Counter::rate(1000.0))), ..Gpu::default() }],
        ..Scenario::default()
    };
    let installed = fake_nvml::install(directory.path(), &scenario).unwrap();
    let code = "
import json, time, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
before = time.monotonic_ns(); energy = n.nvmlDeviceGetTotalEnergyConsumption(h); after = time.monotonic_ns()
print(json.dumps([before, energy, after]))";
    let (first, second) = (python(&installed, code), python(&installed, code));
    let epoch: i64 = std::fs::read_to_string(directory.path().join("epoch")).unwrap().trim().parse().unwrap();
    for seen in [first, second] {
        let [before, energy, after] = [0, 1, 2].map(|place| seen[place].as_i64().unwrap());
        // 1000 W: one mJ a microsecond.
        assert!(
            (before - epoch) / 1000 <= energy + 1 && energy <= (after - epoch) / 1000 + 1,
            "{before} {energy} {after} {epoch}"
        );
    }
}

#[test]
fn cuda_orders_and_hides_devices_by_the_drivers_rules() {
    let gpu = |uuid: &str| Gpu { uuid: Some(uuid.into()), ..Gpu::with_memory(1000.0, 0.0, 0.0) };
    let uuids = [
        "GPU-aaaa1111-0000-4000-8000-000000000000",
        "GPU-aaaa2222-0000-4000-8000-000000000000",
        "GPU-bbbb1111-0000-4000-8000-000000000000",
    ];
    let scenario = Scenario {
        cuda: Some(Cuda { fastest_first: Some(vec![2, 0, 1]), ..Cuda::default() }),
        gpu: uuids.map(gpu).into(),
        ..Scenario::default()
    };
    let (_directory, installed) = laid_out(&scenario);
    let code = "
import ctypes as c
lib = c.CDLL('libcuda.so.1')
first = lib.cuInit(0)
n = c.c_int()
lib.cuDeviceGetCount(c.byref(n))
names = []
for i in range(n.value):
    d, u = c.c_int(), (c.c_ubyte * 16)()
    assert lib.cuDeviceGet(c.byref(d), i) == 0 and lib.cuDeviceGetUuid_v2(u, d) == 0
    names.append(bytes(u)[:4].hex())
print(first, *names)";
    for (order, list, expected) in [
        (None, None, "0 bbbb1111 aaaa1111 aaaa2222"),
        (Some("PCI_BUS_ID"), None, "0 aaaa1111 aaaa2222 bbbb1111"),
        (None, Some("0,2"), "0 bbbb1111 aaaa2222"),
        (Some("PCI_BUS_ID"), Some("0,2"), "0 aaaa1111 bbbb1111"),
        (None, Some("GPU-bbbb,GPU-aaaa2"), "0 bbbb1111 aaaa2222"),
        (None, Some("GPU-bbbb,GPU-aaaa,1"), "0 bbbb1111"),
        (None, Some("1,9,2"), "0 aaaa1111"),
        (None, Some("1,1"), "100"),
        (None, Some(""), "100"),
        (None, Some("-1"), "100"),
    ] {
        let mut command = Command::new(support::python());
        installed.apply(command.args(["-c", code]));
        command.env_remove("CUDA_VISIBLE_DEVICES").env_remove("CUDA_DEVICE_ORDER");
        command.envs(order.map(|order| ("CUDA_DEVICE_ORDER", order)));
        command.envs(list.map(|list| ("CUDA_VISIBLE_DEVICES", list)));
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{order:?} {list:?} {output:?}");
    }
}

#[test]
fn without_a_scenario_there_is_no_driver() {
    let (_directory, installed) = laid_out(&Scenario::default());
    let mut command = Command::new(support::python());
    installed
        .apply(command.args(["-c", "import ctypes; print(ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())"]));
    assert_eq!(succeeded(command.env_remove("GPURUN_FAKE_NVML")).stdout, b"9\n");
    command.env("GPURUN_FAKE_NVML", "/nonexistent");
    assert_eq!(command.output().unwrap().stdout, b"999\n");
}

/// What nvml-wrapper sees, in a process of its own: the library reads its scenario from the environment.
fn nvml_in_child(installed: &Installed, child: &str) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let out = installed.directory.join("seen");
    command.args(["--exact", &format!("fake_driver::{child}"), "--nocapture", "--ignored"]).env(CHILD, &out);
    succeeded(installed.apply(&mut command));
    std::fs::read_to_string(out).unwrap()
}

/// Where a child writes what it saw. Unset: it is not a child.
const CHILD: &str = "FAKE_DRIVER_OUT";

fn in_child(look: impl FnOnce(&Nvml, &mut String)) {
    let Some(out) = std::env::var_os(CHILD) else { return };
    let nvml = Nvml::builder().lib_path(&std::env::var_os("GPURUN_NVML_LIBRARY").unwrap()).init().unwrap();
    let mut seen = String::new();
    look(&nvml, &mut seen);
    std::fs::write(out, seen).unwrap();
}

#[test]
#[ignore = "run by nvml_in_child, in an environment of its own"]
fn child_lists_slices() {
    in_child(|nvml, seen| {
        writeln!(seen, "{} gpus", nvml.device_count().unwrap()).unwrap();
        let device = nvml.device_by_index(0).unwrap();
        writeln!(seen, "{} mig {}", device.uuid().unwrap(), device.mig_mode().unwrap().current == 1).unwrap();
        for index in 0..4 {
            match device.mig_device_by_index(index) {
                Ok(slice) => {
                    let total = slice.memory_info().unwrap().total >> 20;
                    let mut ids = (0, 0);
                    // SAFETY: a live handle and two valid places.
                    unsafe {
                        (nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref().unwrap())(
                            slice.handle(),
                            &raw mut ids.0,
                        );
                        (nvml.lib().nvmlDeviceGetComputeInstanceId.as_ref().unwrap())(
                            slice.handle(),
                            &raw mut ids.1,
                        );
                    }
                    writeln!(seen, "{index} {} {total} {}/{}", slice.uuid().unwrap(), ids.0, ids.1).unwrap();
                }
                Err(NvmlError::NotFound) => writeln!(seen, "{index} NotFound").unwrap(),
                Err(other) => panic!("{other}"),
            }
        }
        for process in device.running_compute_processes().unwrap() {
            let UsedGpuMemory::Used(bytes) = process.used_gpu_memory else { panic!("no memory") };
            writeln!(seen, "{} {} {}", process.pid, bytes >> 20, process.gpu_instance_id.unwrap()).unwrap();
        }
    });
}

#[test]
fn nvml_wrapper_reads_every_value_of_a_new_driver() {
    let file = Scenario::load(&fake_nvml::scenario_file("h100-8").unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let clock = directory.path().join("clock");
    std::fs::write(&clock, "30").unwrap();
    let mut scenario = Scenario { clock_file: Some(clock), ..file };
    scenario.gpu[7].process = vec![
        Process { sm: Some(61.into()), mem: Some(20.into()), ..Process::compute(4321, 512.0) },
        Process { kind: Some("G".into()), memory: None, ..Process::compute(99, 0.0) },
    ];
    let installed = fake_nvml::install(directory.path(), &scenario).unwrap();
    // At second 30: memory has grown to 71680 MiB; temperatures are half way; 30 s are seven and a half periods of power.
    let joules = 7.0 * (3.6 * 690.0 + 0.4 * 250.0) + 2.0 * 690.0;
    let expected = format!(
        "\
uuid {}
name NVIDIA H100 80GB HBM3
pci 00000000:BD:00.0 bus 189
memory {} {} {} {}
utilization 100 58
temperature 50
power 690000 limit 700000 enforced 700000
energy {}
clocks 1755 1755 2619 1545 max 1980 1980 2619 1545
throttle SW_POWER_CAP
violation 6600000000 300000000
ecc 0 0 2 0
pcie 5 16 5 16 {} {}
encoder 0 decoder 0
capability 9.0 cores 16896 arch Hopper brand Nvidia
mode Default persistence true P Zero
links 18 true v4
mig false fan NotSupported
compute 4321 512 graphics 99 unavailable
use 4321 61 20 0 0 then NotFound
fields 82:62 83:{energy} 186:690000 197:{} 74:6600000000 251:300000000
",
        scenario.uuid(7),
        81559_u64 << 20,
        473_u64 << 20,
        71680_u64 << 20,
        (81559_u64 - 473 - 71680) << 20,
        joules * 1000.0,
        (1_500_000_000.0_f64 / 1024.0).round(),
        (6_000_000_000.0_f64 / 1024.0).round(),
        (45_000_000_000_u64) % (1 << 32),
        energy = joules * 1000.0,
    );
    assert_eq!(nvml_in_child(&installed, "child_reads_every_value"), expected);
}

#[test]
#[ignore = "run by nvml_in_child, in an environment of its own"]
fn child_reads_every_value() {
    use nvml_wrapper::enum_wrappers::device::{
        Clock, EccCounter, MemoryError, PcieUtilCounter, PerformancePolicy, TemperatureSensor,
    };
    use nvml_wrapper::enums::device::SampleValue;
    use nvml_wrapper::structs::device::FieldId;
    in_child(|nvml, out| {
        let gpu = nvml.device_by_index(7).unwrap();
        let memory = gpu.memory_info().unwrap();
        let pci = gpu.pci_info().unwrap();
        let load = gpu.utilization_rates().unwrap();
        writeln!(out, "uuid {}\nname {}", gpu.uuid().unwrap(), gpu.name().unwrap()).unwrap();
        writeln!(out, "pci {} bus {}", pci.bus_id, pci.bus).unwrap();
        writeln!(out, "memory {} {} {} {}", memory.total, memory.reserved, memory.used, memory.free).unwrap();
        writeln!(out, "utilization {} {}", load.gpu, load.memory).unwrap();
        writeln!(out, "temperature {}", gpu.temperature(TemperatureSensor::Gpu).unwrap()).unwrap();
        let (power, limit) = (gpu.power_usage().unwrap(), gpu.power_management_limit().unwrap());
        writeln!(out, "power {power} limit {limit} enforced {}", gpu.enforced_power_limit().unwrap())
            .unwrap();
        writeln!(out, "energy {}", gpu.total_energy_consumption().unwrap()).unwrap();
        let kinds = [Clock::Graphics, Clock::SM, Clock::Memory, Clock::Video];
        let [a, b, c, d] = kinds.map(|kind| gpu.clock_info(kind).unwrap());
        let [e, f, g, h] = kinds.map(|kind| gpu.max_clock_info(kind).unwrap());
        writeln!(out, "clocks {a} {b} {c} {d} max {e} {f} {g} {h}").unwrap();
        let reasons = gpu.current_throttle_reasons().unwrap();
        writeln!(
            out,
            "throttle {}",
            reasons.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join("+")
        )
        .unwrap();
        let violation = |policy| gpu.violation_status(policy).unwrap().violation_time;
        let (by_power, by_heat) =
            (violation(PerformancePolicy::Power), violation(PerformancePolicy::Thermal));
        writeln!(out, "violation {by_power} {by_heat}").unwrap();
        let ecc = |error, counter| gpu.total_ecc_errors(error, counter).unwrap();
        writeln!(
            out,
            "ecc {} {} {} {}",
            ecc(MemoryError::Corrected, EccCounter::Volatile),
            ecc(MemoryError::Uncorrected, EccCounter::Volatile),
            ecc(MemoryError::Corrected, EccCounter::Aggregate),
            ecc(MemoryError::Uncorrected, EccCounter::Aggregate)
        )
        .unwrap();
        writeln!(
            out,
            "pcie {} {} {} {} {} {}",
            gpu.current_pcie_link_gen().unwrap(),
            gpu.current_pcie_link_width().unwrap(),
            gpu.max_pcie_link_gen().unwrap(),
            gpu.max_pcie_link_width().unwrap(),
            gpu.pcie_throughput(PcieUtilCounter::Send).unwrap(),
            gpu.pcie_throughput(PcieUtilCounter::Receive).unwrap()
        )
        .unwrap();
        let coders = (gpu.encoder_utilization().unwrap(), gpu.decoder_utilization().unwrap());
        writeln!(out, "encoder {} decoder {}", coders.0.utilization, coders.1.utilization).unwrap();
        let capability = gpu.cuda_compute_capability().unwrap();
        writeln!(
            out,
            "capability {}.{} cores {} arch {:?} brand {:?}",
            capability.major,
            capability.minor,
            gpu.num_cores().unwrap(),
            gpu.architecture().unwrap(),
            gpu.brand().unwrap()
        )
        .unwrap();
        writeln!(
            out,
            "mode {:?} persistence {} P {:?}",
            gpu.compute_mode().unwrap(),
            gpu.is_in_persistent_mode().unwrap(),
            gpu.performance_state().unwrap()
        )
        .unwrap();
        let links = (0..32).take_while(|link| gpu.link_wrapper_for(*link).is_active().is_ok()).count();
        let first = gpu.link_wrapper_for(0);
        writeln!(out, "links {links} {} v{}", first.is_active().unwrap(), first.version().unwrap()).unwrap();
        let fan = gpu.fan_speed(0).unwrap_err();
        let fan = if matches!(fan, NvmlError::NotSupported) { "NotSupported" } else { "?" };
        writeln!(out, "mig {} fan {fan}", gpu.mig_mode().unwrap().current == 1).unwrap();
        let (compute, graphics) =
            (gpu.running_compute_processes().unwrap(), gpu.running_graphics_processes().unwrap());
        let UsedGpuMemory::Used(bytes) = compute[0].used_gpu_memory else { panic!("no memory") };
        assert!(matches!(graphics[0].used_gpu_memory, UsedGpuMemory::Unavailable));
        writeln!(out, "compute {} {} graphics {} unavailable", compute[0].pid, bytes >> 20, graphics[0].pid)
            .unwrap();
        let samples = gpu.process_utilization_stats(None).unwrap();
        let [one] = samples.as_slice() else { panic!("{samples:?}") };
        let newer = gpu.process_utilization_stats(one.timestamp).unwrap_err();
        assert!(matches!(newer, NvmlError::NotFound));
        writeln!(
            out,
            "use {} {} {} {} {} then NotFound",
            one.pid, one.sm_util, one.mem_util, one.enc_util, one.dec_util
        )
        .unwrap();
        // nvml-wrapper takes the old number of a field and asks a new driver for the new one.
        let ids = [82, 83, 186, 197, 74, 251];
        let values = gpu.field_values_for(&ids.map(FieldId)).unwrap();
        let values = ids.iter().zip(values).map(|(id, value)| match value.unwrap().value.unwrap() {
            SampleValue::U32(value) => format!("{id}:{value}"),
            SampleValue::U64(value) => format!("{id}:{value}"),
            other => panic!("{id}: {other:?}"),
        });
        writeln!(out, "fields {}", values.collect::<Vec<_>>().join(" ")).unwrap();
    });
}

#[test]
fn the_struct_sizes_are_those_of_the_bindings() {
    use nvml_wrapper_sys::bindings as sys;
    // Sizes that the library and the bindings state independently; a version number holds one of them.
    assert_eq!(size_of::<sys::nvmlFieldValue_t>(), size_of::<fake_nvml::nvml::FieldValue>());
    assert_eq!(size_of::<sys::nvmlMemory_v2_t>(), size_of::<fake_nvml::nvml::MemoryV2>());
    assert_eq!(size_of::<sys::nvmlMemory_t>(), size_of::<fake_nvml::nvml::MemoryV1>());
    assert_eq!(size_of::<sys::nvmlPciInfo_t>(), size_of::<fake_nvml::nvml::PciInfo>());
    assert_eq!(size_of::<sys::nvmlUUID_t>(), size_of::<fake_nvml::nvml::UuidV1>());
    assert_eq!(size_of::<sys::nvmlTemperature_t>(), size_of::<fake_nvml::nvml::TemperatureV1>());
    assert_eq!(size_of::<sys::nvmlDeviceAttributes_t>(), size_of::<fake_nvml::nvml::Attributes>());
    assert_eq!(size_of::<sys::nvmlViolationTime_t>(), size_of::<fake_nvml::nvml::ViolationTime>());
    assert_eq!(size_of::<sys::nvmlSample_t>(), size_of::<fake_nvml::nvml::Sample>());
    assert_eq!(size_of::<sys::nvmlProcessDetailList_t>(), size_of::<fake_nvml::nvml::ProcessDetailList>());
    assert_eq!(
        size_of::<sys::nvmlProcessesUtilizationInfo_t>(),
        size_of::<fake_nvml::nvml::ProcessesUtilization>()
    );
    assert_eq!(size_of::<sys::nvmlProcessUtilizationSample_t>(), 32);
    assert_eq!(size_of::<sys::nvmlProcessUtilizationInfo_v1_t>(), 40);
    assert_eq!(size_of::<sys::nvmlProcessInfo_v1_t>(), 16);
    assert_eq!(size_of::<sys::nvmlProcessInfo_v2_t>(), 24);
    assert_eq!(size_of::<sys::nvmlProcessDetail_v1_t>(), 32);
}

#[test]
fn random_scenarios_survive_their_file_and_reach_the_reader() {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree as _;
    // One reader process for all of them: it re-reads the scenario at each nvmlInit.
    let gpu = (1_u32..200_000, 0_u32..100, any::<u16>(), 0_usize..4).prop_map(
        |(total, used_percent, pid, processes)| {
            let used = f64::from(total) * f64::from(used_percent) / 100.0;
            Gpu {
                process: (0..processes)
                    .map(|n| Process::compute(u32::from(pid) + u32::try_from(n).unwrap() + 1, 10.0))
                    .collect(),
                ..Gpu::with_memory(f64::from(total), used.floor(), f64::from(used_percent))
            }
        },
    );
    let machines: Vec<Scenario> = {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let strategy = proptest::collection::vec(gpu, 0..6);
        (0..40)
            .map(|_| Scenario {
                gpu: strategy.new_tree(&mut runner).unwrap().current(),
                ..Scenario::default()
            })
            .collect()
    };
    let directory = tempfile::tempdir().unwrap();
    let installed = fake_nvml::install(directory.path(), &machines[0]).unwrap();
    for (place, machine) in machines.iter().enumerate() {
        assert_eq!(&Scenario::parse(&machine.to_toml()).unwrap(), machine);
        std::fs::write(directory.path().join(format!("{place}.toml")), machine.to_toml()).unwrap();
    }
    let code = format!(
        "
import json, os, pynvml as n
out = []
for place in range({}):
    os.environ['GPURUN_FAKE_NVML'] = os.path.join({:?}, f'{{place}}.toml')
    n.nvmlInit()
    h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
    out.append([[m.total >> 20, m.used >> 20, n.nvmlDeviceGetUtilizationRates(d).gpu, [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(d)]]
                for d in h for m in [n.nvmlDeviceGetMemoryInfo(d)]])
    n.nvmlShutdown()
print(json.dumps(out))",
        machines.len(),
        Path::new(directory.path()).to_str().unwrap()
    );
    let seen = python(&installed, &code);
    let value = |signal: &Option<Signal>| signal.as_ref().unwrap().at(0.0).unwrap();
    for (place, machine) in machines.iter().enumerate() {
        let expected: Vec<serde_json::Value> = machine
            .gpu
            .iter()
            .map(|gpu| {
                let pids: Vec<u32> = gpu.process.iter().map(|process| process.pid.unwrap()).collect();
                serde_json::json!([
                    value(&gpu.memory_total) as u64,
                    value(&gpu.memory_used) as u64,
                    value(&gpu.gpu_utilization) as u64,
                    pids
                ])
            })
            .collect();
        assert_eq!(seen[place], serde_json::Value::from(expected), "machine {place}");
    }
}

#[test]
fn slices_are_what_nvitop_takes_for_mig() {
    let scenario = Scenario {
        gpu: vec![Gpu {
            mig: vec![Mig {
                memory_total: Some(4864.into()),
                memory_used: Some(64.into()),
                profile: Some("1g.5gb".into()),
                ..Mig::default()
            }],
            ..Gpu::with_memory(40960.0, 100.0, 0.0)
        }],
        ..Scenario::default()
    };
    let (_directory, installed) = laid_out(&scenario);
    let seen = python(
        &installed,
        "
import json
from nvitop import Device, MigDevice
d = Device(0)
print(json.dumps([d.is_mig_mode_enabled(), [[m.uuid(), str(m.name()), m.memory_used(), m.gpu_instance_id()] for m in d.mig_devices()]]))",
    );
    assert_eq!(
        seen,
        serde_json::json!([true, [[scenario.mig_uuid(0, 0), "Simulated GPU MIG 1g.5gb", 64 * 1_048_576, 7]]])
    );
}

#[test]
fn one_layout_of_535_and_an_entry_past_the_end_are_what_nvitop_guards_against() {
    // Early 535 drivers: entries of 32 bytes, and no detail list by which nvitop tells them from later ones.
    let (_directory, installed) = laid_out(&Scenario {
        driver_version: Some("535.43.02".into()),
        v3_process_stride: Some(32),
        missing_symbols: vec!["nvmlDeviceGetRunningProcessDetailList".into()],
        field_values_overrun: true,
        gpu: vec![Gpu {
            process: vec![Process::compute(21, 5.0), Process::compute(22, 6.0), Process::compute(0, 7.0)],
            energy: Some(Energy::Counter(Counter::Signal(12.into()))),
            ..Gpu::default()
        }],
        ..Scenario::default()
    });
    let seen = python(
        &installed,
        "
import ctypes, json, pynvml
from nvitop import libnvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
right = [[p.pid, p.usedGpuMemory >> 20] for p in n.nvmlQuery('nvmlDeviceGetComputeRunningProcesses', h)]
wrong = [p.pid for p in (lambda a: (pynvml._nvmlGetFunctionPointer('nvmlDeviceGetComputeRunningProcesses_v3')(h, ctypes.byref(ctypes.c_uint(8)), a), a)[1])((pynvml.c_nvmlProcessInfo_v2_t * 8)())]
values = (pynvml.c_nvmlFieldValue_t * 3)()
values[0].fieldId, values[2].fieldId = 83, 7
pynvml._nvmlGetFunctionPointer('nvmlDeviceGetFieldValues')(h, 1, ctypes.byref(values))
print(json.dumps([right, wrong[:3], [values[0].value.ullVal, values[1].fieldId, values[2].fieldId]]))",
    );
    // Read with the wrong stride the second entry is rubbish: the very thing that gpurun has to notice.
    assert_eq!(
        seen,
        serde_json::json!([[[21, 5], [22, 6], [0, 7]], [21, 0, 0xffff_ffff_u32], [12_000, 0xDEAD, 7]])
    );
}

#[test]
fn a_reload_and_a_loss_come_after_so_many_calls() {
    let scenario = Scenario {
        reload_after_calls: Some(5),
        gpu: vec![
            Gpu { lost_after_calls: Some(2), fan_speed: Some(1.into()), ..Gpu::default() },
            Gpu { fan_speed: Some(2.into()), ..Gpu::default() },
        ],
        fault: vec![Fault {
            function: "nvmlInit*".into(),
            error: Some("DRIVER_NOT_LOADED".into()),
            after: Some(1),
            count: Some(1),
            ..Fault::default()
        }],
        ..Scenario::default()
    };
    let (_directory, installed) = laid_out(&scenario);
    let seen = python(
        &installed,
        "
import ctypes as c, json
lib = c.CDLL('libnvidia-ml.so.1')
v, h = c.c_uint(), [c.c_void_p(), c.c_void_p()]
fan = lambda gpu: lib.nvmlDeviceGetFanSpeed(h[gpu], c.byref(v))
out = [lib.nvmlInit_v2()] + [lib.nvmlDeviceGetHandleByIndex_v2(i, c.byref(h[i])) for i in (0, 1)]
out += [fan(0), fan(0), fan(1), fan(1), fan(1), lib.nvmlInit_v2(), fan(1), lib.nvmlInit_v2(), fan(1), fan(0), lib.nvmlShutdown(), fan(1)]
print(json.dumps(out))",
    );
    assert_eq!(seen, serde_json::json!([0, 0, 0, 0, 15, 0, 1, 1, 9, 1, 0, 0, 15, 0, 1]));
}
