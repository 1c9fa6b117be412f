//! Faults of a scenario: errors, hangs, reloads and losses.

use super::*;

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
