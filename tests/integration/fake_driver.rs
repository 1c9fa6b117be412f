//! Is the simulated driver a driver? Programs from PyPI and nvml-wrapper must run on it and see the scenario's values.

#![allow(clippy::unwrap_used, reason = "what a helper of a test cannot have fails the test")]

mod faults;
mod gpm;
mod tools;
mod wrapper;

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

use wrapper::nvml_in_child;

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
    assert_eq!(size_of::<sys::nvmlGpmSupport_t>(), size_of::<fake_nvml::nvml::GpmSupport>());
    assert_eq!(size_of::<sys::nvmlGpmMetric_t>(), size_of::<fake_nvml::nvml::GpmMetric>());
    assert_eq!(size_of::<sys::nvmlGpmMetricsGet_t>(), size_of::<fake_nvml::nvml::GpmMetricsGet>());
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
