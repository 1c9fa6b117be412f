//! The driver's face: what opening and probing it give.

use fake_nvml::{Fault, Gpu, Mig, Process, Scenario};

use super::stage::*;
use crate::collectors::nvml::{Nvml, NvmlError};
use crate::model::device::{DeviceMemory, ProbeRequest};
use crate::model::metric::MetricId;
use crate::model::reading::{Reading, Reason};
use crate::sampling::gpu::{GpuReader, Role};

#[test]
fn a_missing_or_useless_library_is_one_clear_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("libnvidia-ml.so.1");
    let error = Nvml::open(Some(&path)).unwrap_err();
    assert!(matches!(error, NvmlError::NoLibrary { .. }), "{error:?}");
    assert!(error.to_string().contains(path.to_str().unwrap()) && !error.to_string().contains('\n'));

    std::fs::write(&path, "no library").unwrap();
    let error = Nvml::open(Some(&path)).unwrap_err();
    assert!(matches!(error, NvmlError::BadLibrary { .. }), "{error:?}");

    // The simulated driver without a scenario is a library without a driver.
    let installed = fake_nvml::install(directory.path(), &machine(vec![])).unwrap();
    assert!(std::env::var_os("GPURUN_FAKE_NVML").is_none(), "this test needs a clean environment");
    let error = Nvml::open(Some(&installed.library)).unwrap_err();
    assert!(matches!(error, NvmlError::NoDriver { .. }), "{error:?}");
}

#[test]
fn a_refusing_driver_keeps_its_class() {
    let refusal = |error: &str| Fault {
        function: "nvmlInit_v2".to_owned(),
        error: Some(error.to_owned()),
        ..Fault::default()
    };
    let scenario = Scenario {
        fault: vec![
            Fault { until: Some(1.0), ..refusal("NO_PERMISSION") },
            Fault { from: Some(1.0), until: Some(2.0), ..refusal("LIB_RM_VERSION_MISMATCH") },
            Fault { from: Some(2.0), ..refusal("UNKNOWN") },
        ],
        ..machine(vec![gpu()])
    };
    on_stage("driver::a_refusing_driver_keeps_its_class", scenario, |stage| {
        let open = || Nvml::open(Some(&stage.library())).unwrap_err();
        assert!(matches!(open(), NvmlError::NoPermission { .. }));
        stage.set_clock(1.0);
        assert!(matches!(open(), NvmlError::VersionMismatch { .. }));
        stage.set_clock(2.0);
        assert!(matches!(open(), NvmlError::Init { .. }));
    });
}

#[test]
fn a_probe_reads_only_what_is_asked() {
    on_stage("driver::a_probe_reads_only_what_is_asked", machine(vec![gpu(), gpu()]), |stage| {
        let nvml = stage.nvml();
        assert_eq!(nvml.driver_version(), Some("550.54.15"));
        stage.calls();
        let seen = nvml.probe(&ProbeRequest::default()).unwrap();
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[1].index, 1);
        assert_eq!(seen[0].memory, Err(Reason::NotAsked));
        assert_eq!(
            stage.counts().into_keys().collect::<Vec<_>>(),
            [
                "nvmlDeviceGetCount_v2",
                "nvmlDeviceGetHandleByIndex_v2",
                "nvmlDeviceGetMigMode",
                "nvmlDeviceGetUUID"
            ]
        );

        let seen = nvml.probe(&ProbeRequest { utilization: true, ..ProbeRequest::default() }).unwrap();
        assert_eq!((seen[0].gpu_utilization.clone(), seen[0].memory_utilization.clone()), (Ok(70), Ok(0)));
        let counts = stage.counts();
        assert_eq!(counts.get("nvmlDeviceGetUtilizationRates"), Some(&2));
        assert!(!counts.keys().any(|function| function.contains("Memory") || function.contains("Processes")));
    });
}

#[test]
fn one_bad_gpu_spoils_no_other() {
    let forbidden = |function: &str, gpu, error: &str| Fault {
        function: function.to_owned(),
        gpu: Some(gpu),
        error: Some(error.to_owned()),
        ..Fault::default()
    };
    let name_bytes = Some(b"Odd \xff name".to_vec());
    let scenario = Scenario {
        fault: vec![
            forbidden("nvmlDeviceGetHandleByIndex_v2", 1, "NO_PERMISSION"),
            forbidden("nvmlDeviceGetMemoryInfo*", 3, "UNKNOWN"),
        ],
        ..machine(vec![
            gpu(),
            gpu(),
            Gpu { lost_after_calls: Some(0), ..gpu() },
            Gpu { name_bytes, compute_mode: Some(3.into()), ..gpu() },
        ])
    };
    on_stage("driver::one_bad_gpu_spoils_no_other", scenario, |stage| {
        let request = ProbeRequest::ALL;
        let seen = stage.nvml().probe(&request).unwrap();
        assert_eq!(seen.iter().map(|device| device.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let memory = DeviceMemory { total: 81920 * MIB, free: 80896 * MIB, used: 1024 * MIB, unified: false };
        assert_eq!(seen[0].memory, Ok(memory));
        assert_eq!(
            (&seen[1].uuid, &seen[1].memory),
            (&Err(Reason::NoPermission), &Err(Reason::NoPermission))
        );
        assert_eq!(seen[2].uuid, Err(Reason::GpuLost));
        assert!(matches!(&seen[3].memory, Err(Reason::Other(_))));
        assert_eq!(seen[3].name.as_deref(), Ok("Odd \u{fffd} name"));
        assert_eq!(seen[3].compute_mode, Ok(crate::model::device::ComputeMode::ExclusiveProcess));
        assert_eq!(seen[3].gpu_utilization, Ok(70));
        assert_eq!(identities(&stage.nvml()).len(), 2, "what has no UUID is not followed");
    });
}

#[test]
fn processes_come_with_owners_and_without_garbage() {
    let own = std::process::id();
    let scenario = Scenario {
        v3_process_stride: Some(32),
        ..machine(vec![Gpu {
            process: vec![
                Process::compute(own, 500.0),
                Process { kind: Some("C+G".to_owned()), ..Process::compute(4_000_001, 300.0) },
                Process { kind: Some("G".to_owned()), memory: None, ..Process::compute(4_000_002, 0.0) },
                Process { kind: Some("M".to_owned()), ..Process::compute(4_000_003, 100.0) },
                Process::compute(0, 10.0),
                Process::compute(u32::MAX, 10.0),
                Process::compute(4_000_004, 1e9),
            ],
            ..gpu()
        }])
    };
    on_stage("driver::processes_come_with_owners_and_without_garbage", scenario, |stage| {
        let seen = stage.nvml().probe(&ProbeRequest { processes: true, ..ProbeRequest::default() }).unwrap();
        let list = seen[0].processes.as_ref().unwrap();
        let found: Vec<_> =
            list.iter().map(|one| (one.pid > 4_000_000, one.memory.clone(), one.compute)).collect();
        assert_eq!(
            found,
            [
                (false, Ok(500 * MIB), true),
                (true, Ok(300 * MIB), true),
                // One that holds more than there is holds we do not know what.
                (true, Err(Reason::NotSupported), true),
                (true, Err(Reason::NotSupported), false),
                (true, Ok(100 * MIB), true),
            ]
        );
        // The process that laid the stage is of this test's own user.
        let me = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
        assert_eq!(list[0].uid, Some(me));
        assert_eq!(list[1].uid, None);
    });
}

// ---- MIG ----

#[test]
fn slices_have_their_own_memory_and_the_parent_has_the_rest() {
    on_stage(
        "driver::slices_have_their_own_memory_and_the_parent_has_the_rest",
        ready_scenario("mig-a100"),
        |stage| {
            let nvml = stage.nvml();
            let all = ProbeRequest::ALL;
            let seen = nvml.probe(&all).unwrap();
            let places: Vec<_> = seen.iter().map(|one| (one.index, one.mig.map(|mig| mig.index))).collect();
            assert_eq!(
                places,
                [(0, Some(0)), (0, Some(1)), (0, Some(3)), (1, None)],
                "the hole ends nothing"
            );
            assert_eq!(seen[2].mig.unwrap().gpu_instance, Some(5));
            assert!(
                seen[0].uuid.as_ref().unwrap().as_str().starts_with("MIG-")
                    && seen[0].parent_uuid.as_ref().unwrap().as_str().starts_with("GPU-")
            );
            assert_eq!(seen[0].gpu_utilization, Err(Reason::NotSupported));
            assert_eq!(seen[0].memory.as_ref().unwrap().used, 8200 * MIB);
            assert_eq!(seen[0].processes.as_ref().unwrap().len(), 1);

            let devices: Vec<_> = identities(&nvml).into_iter().take(2).collect();
            stage.calls();
            let mut reader = GpuReader::launch(move || Ok((nvml, devices)), settings()).unwrap();
            let followed = reader.ready(PATIENCE).unwrap().unwrap();
            let roles: Vec<_> = followed.iter().map(|one| one.role).collect();
            assert_eq!(roles, [Role::Slice, Role::Slice, Role::Parent]);
            assert_eq!((followed[2].identity.mig, followed[2].identity.index), (None, 0));
            assert_eq!(Some(&followed[2].identity.uuid), seen[0].parent_uuid.as_ref());

            for at in [0.0, 10.0] {
                let frame = frame(stage, &mut reader, at);
                near(value(&frame, 0, MetricId::GpuMemoryUsed), 8200.0);
                near(value(&frame, 1, MetricId::GpuMemoryTotal), 4864.0);
                assert_eq!(reading(&frame, 0, MetricId::GpuGpuUtilization), Some(Reading::Missing));
                assert_eq!(reading(&frame, 0, MetricId::GpuPowerUsage), None, "it is the parent's");
                near(value(&frame, 2, MetricId::GpuPowerUsage), 120.0);
                near(value(&frame, 2, MetricId::GpuTemperature), 41.0);
                near(value(&frame, 2, MetricId::GpuEnergy), 120.0 * at);
                assert_eq!(reading(&frame, 2, MetricId::GpuMemoryUsed), None, "it is the slices'");
                assert_eq!(processes(&frame, 0).len(), 1);
                assert_eq!(
                    (processes(&frame, 0)[0].memory, processes(&frame, 0)[0].sm),
                    (Some(8100 * MIB), None)
                );
                assert_eq!(frame.devices[2].processes, None);
            }
            let counts = stage.counts();
            assert_eq!(counts.get("nvmlDeviceGetProcessUtilization"), None);
            assert_eq!(counts.get("nvmlDeviceGetUtilizationRates"), None);
            assert!(reader.stop(PATIENCE));
        },
    );
}

#[test]
fn a_gpu_in_mig_mode_without_slices_is_listed_with_the_reason() {
    let scenario = machine(vec![
        Gpu { mig_mode: Some(1), ..gpu() },
        Gpu { mig: vec![Mig { index: Some(4), memory_total: Some(100.into()), ..Mig::default() }], ..gpu() },
    ]);
    on_stage("driver::a_gpu_in_mig_mode_without_slices_is_listed_with_the_reason", scenario, |stage| {
        let nvml = stage.nvml();
        let seen = nvml.probe(&ProbeRequest::default()).unwrap();
        assert_eq!(
            seen.iter().map(|one| (one.index, one.mig.map(|m| m.index))).collect::<Vec<_>>(),
            [(0, None), (1, Some(4))]
        );
        let why = seen[0].uuid.as_ref().unwrap_err().to_string();
        assert_eq!(why, "MIG mode is on and there are no slices");
    });
}

// ---- unified memory ----

#[test]
fn unified_memory_is_the_hosts() {
    on_stage("driver::unified_memory_is_the_hosts", ready_scenario("gb10-unified"), |stage| {
        let text = format!("MemTotal: {} kB\nMemAvailable: {} kB\n", 120 << 20, 70 << 20);
        std::fs::write(stage.file("meminfo"), text).unwrap();
        let nvml = stage.nvml();
        let seen = nvml.probe(&ProbeRequest { memory: true, ..ProbeRequest::default() }).unwrap();
        let memory = DeviceMemory { total: 120 << 30, free: 70 << 30, used: 20480 * MIB, unified: true };
        assert_eq!(seen[0].memory, Ok(memory));
        let mut reader = reader(nvml, settings());
        for at in [0.0, 1.0, 2.0] {
            let frame = frame(stage, &mut reader, at);
            near(value(&frame, 0, MetricId::GpuMemoryUsed), 20480.0);
            near(value(&frame, 0, MetricId::GpuMemoryFree), 70.0 * 1024.0);
            near(value(&frame, 0, MetricId::GpuMemoryTotal), 120.0 * 1024.0);
            near(value(&frame, 0, MetricId::GpuMemoryPercent), 100.0 * 20.0 / 120.0);
        }
    });
}

#[test]
fn a_carve_out_is_no_budget_and_silence_alone_is_no_unified_memory() {
    let scenario = machine(vec![
        Gpu { name: Some("NVIDIA N1X".to_owned()), ..Gpu::with_memory(8128.0, 10.0, 0.0) },
        Gpu { gpu_utilization: Some(1.into()), memory_utilization: Some(1.into()), ..Gpu::default() },
        Gpu {
            name: Some("NVIDIA GH200 480GB".to_owned()),
            addressing_mode: Some(2),
            ..Gpu::with_memory(97871.0, 1.0, 0.0)
        },
    ]);
    on_stage("driver::a_carve_out_is_no_budget_and_silence_alone_is_no_unified_memory", scenario, |stage| {
        std::fs::write(stage.file("meminfo"), "MemTotal: 48000000 kB\nMemAvailable: 30000000 kB\n").unwrap();
        let nvml = stage.nvml();
        let seen = nvml.probe(&ProbeRequest { memory: true, ..ProbeRequest::default() }).unwrap();
        let memory = DeviceMemory { total: 48_000_000 << 10, free: 30_000_000 << 10, used: 0, unified: true };
        assert_eq!(seen[0].memory, Ok(memory));
        assert_eq!(seen[1].memory, Err(Reason::NotSupported));
        assert_eq!(seen[2].memory.as_ref().map(|memory| memory.unified), Ok(false));
    });
}
