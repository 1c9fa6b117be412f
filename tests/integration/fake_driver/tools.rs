//! nvitop, gpustat and pynvml on the simulated driver.

use super::*;

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
