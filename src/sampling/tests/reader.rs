//! The GPU reader: units, paces, faults and recoveries.

use std::collections::BTreeMap;
use std::time::Duration;

use fake_nvml::{Counter, Energy, Fault, Gpu, Process, Scenario, Signal};

use super::stage::*;
use crate::collectors::nvml::Nvml;
use crate::model::metric::MetricId;
use crate::model::reading::{Reading, Reason};
use crate::sampling::gpu::{GpuNews, GpuReader, GpuSettings};

// ---- the reader: values, paces, calls ----

#[test]
fn every_value_is_in_its_unit() {
    let scenario = Scenario {
        driver_version: Some("580.95.05".to_owned()),
        field_values_overrun: true,
        ..machine(vec![Gpu {
            memory_reserved: Some(896.into()),
            memory_utilization: Some(33.into()),
            memory_temperature: Some(55.into()),
            encoder_utilization: Some(3.into()),
            decoder_utilization: Some(4.into()),
            fan_speed: Some(45.into()),
            enforced_power_limit: Some(250.into()),
            ecc_volatile_corrected: Some(Counter::Signal(7.into())),
            ecc_volatile_uncorrected: Some(Counter::Signal(1.into())),
            pcie_tx: Some(Counter::rate(3.0 * MIB as f64)),
            pcie_rx: Some(Counter::rate(5.0 * MIB as f64)),
            nvlink: Some(vec![1.into(); 4]),
            nvlink_tx: Some(Counter::rate(2.0 * MIB as f64)),
            nvlink_rx: Some(Counter::rate(1.0 * MIB as f64)),
            ..super::gpm::hopper()
        }])
    };
    on_stage("reader::every_value_is_in_its_unit", scenario, |stage| {
        let mut reader = reader(stage.nvml(), settings());
        let first = frame(stage, &mut reader, 2.0);
        for (id, expected) in [
            (MetricId::GpuGpuUtilization, 70.0),
            (MetricId::GpuMemoryUtilization, 33.0),
            (MetricId::GpuMemoryUsed, 1024.0),
            (MetricId::GpuMemoryFree, 80000.0),
            (MetricId::GpuMemoryTotal, 81920.0),
            (MetricId::GpuMemoryPercent, 1.25),
            (MetricId::GpuTemperature, 40.0),
            (MetricId::GpuMemoryTemperature, 55.0),
            (MetricId::GpuPowerUsage, 200.0),
            (MetricId::GpuPowerLimit, 250.0),
            (MetricId::GpuEnergy, 0.0),
            (MetricId::GpuFanSpeed, 45.0),
            (MetricId::GpuSmClock, 1400.0),
            (MetricId::GpuMemoryClock, 1200.0),
            (MetricId::GpuEncoderUtilization, 3.0),
            (MetricId::GpuDecoderUtilization, 4.0),
            (MetricId::GpuEccCorrected, 7.0),
            (MetricId::GpuEccUncorrected, 1.0),
        ] {
            near(value(&first, 0, id), expected);
        }
        assert_eq!(reading(&first, 0, MetricId::GpuEnergyFromPower), None, "the counter answers");
        let second = frame(stage, &mut reader, 6.0);
        near(value(&second, 0, MetricId::GpuEnergy), 800.0);
        for (id, rate) in [
            (MetricId::GpuThrottledPower, 25.0),
            (MetricId::GpuThrottledThermal, 50.0),
            (MetricId::GpuPcieTx, 3.0),
            (MetricId::GpuPcieRx, 5.0),
            (MetricId::GpuNvlinkTx, 8.0),
            (MetricId::GpuNvlinkRx, 4.0),
        ] {
            near((value(&second, 0, id) - value(&first, 0, id)) / 4.0, rate);
        }
        assert_eq!(reader.news(), [], "all is well");
    });
}

#[test]
fn eight_gpus_cost_so_many_calls_a_frame() {
    let mut scenario = ready_scenario("h100-8");
    for gpu in &mut scenario.gpu {
        gpu.process = vec![Process { sm: Some(50.into()), ..Process::compute(4_000_000, 1000.0) }];
        gpu.fan_speed = Some(40.into());
    }
    on_stage("reader::eight_gpus_cost_so_many_calls_a_frame", scenario, |stage| {
        let cheap: BTreeMap<String, usize> = [
            ("nvmlDeviceGetUtilizationRates", 8),
            ("nvmlDeviceGetMemoryInfo_v2", 8),
            ("nvmlDeviceGetTemperatureV", 8),
            ("nvmlDeviceGetClockInfo", 16),
            ("nvmlDeviceGetFieldValues", 8),
            ("nvmlDeviceGetPowerUsage", 8),
            ("nvmlGpmSampleGet", 8),
            ("nvmlGpmMetricsGet", 8),
        ]
        .map(|(function, count)| (function.to_owned(), count))
        .into();
        let with = |more: &[(&str, usize)]| {
            let mut all = cheap.clone();
            all.extend(more.iter().map(|(function, count)| ((*function).to_owned(), *count)));
            all
        };
        let lists = [
            ("nvmlDeviceGetComputeRunningProcesses_v3", 8),
            ("nvmlDeviceGetGraphicsRunningProcesses_v3", 8),
            ("nvmlDeviceGetMPSComputeRunningProcesses_v3", 8),
            ("nvmlDeviceGetProcessUtilization", 8),
        ];
        let slow = [
            ("nvmlDeviceGetEnforcedPowerLimit", 8),
            ("nvmlDeviceGetFanSpeed", 8),
            ("nvmlDeviceGetEncoderUtilization", 8),
            ("nvmlDeviceGetDecoderUtilization", 8),
            ("nvmlDeviceGetTotalEccErrors", 16),
        ];
        let everything = [lists.as_slice(), slow.as_slice()].concat();
        let mut reader = reader(stage.nvml(), settings());
        stage.calls();
        frame(stage, &mut reader, 0.0);
        let mut first = stage.counts();
        assert_eq!(first.remove("nvmlDeviceGetName"), Some(8), "once, to know unified memory");
        assert_eq!(first.remove("nvmlGpmSampleAlloc"), Some(16));
        // The first sample has nothing to be compared with.
        assert_eq!(first.insert("nvmlGpmMetricsGet".to_owned(), 8), None);
        assert_eq!(first, with(&everything));
        for second in 1..=10 {
            frame(stage, &mut reader, f64::from(second));
            let expected = match second {
                10 => with(&everything),
                5 => with(&slow),
                2 | 4 | 6 | 8 => with(&lists),
                _ => cheap.clone(),
            };
            assert_eq!(stage.counts(), expected, "second {second}");
        }
        assert_eq!(cheap.values().sum::<usize>(), 72);

        stage.set_clock(10.5);
        reader.request_everything(mono(10.5));
        reader.take(PATIENCE).unwrap();
        assert_eq!(stage.counts(), with(&everything), "the last frame reads everything");
    });
}

#[test]
fn the_sampling_pcie_call_is_made_only_when_asked() {
    let scenario = machine(vec![Gpu {
        pcie_tx: Some(Counter::rate(3.0 * MIB as f64)),
        pcie_rx: Some(Counter::rate(MIB as f64)),
        ..gpu()
    }]);
    on_stage("reader::the_sampling_pcie_call_is_made_only_when_asked", scenario, |stage| {
        let metrics = vec![MetricId::GpuPcieTxSampled, MetricId::GpuPcieRxSampled];
        let mut asking = reader(
            stage.nvml(),
            GpuSettings { processes: false, ..GpuSettings::new(metrics, Duration::from_secs(1)) },
        );
        stage.calls();
        let frame = frame(stage, &mut asking, 1.0);
        near(value(&frame, 0, MetricId::GpuPcieTxSampled), 3.0);
        near(value(&frame, 0, MetricId::GpuPcieRxSampled), 1.0);
        assert_eq!(stage.counts(), BTreeMap::from([("nvmlDeviceGetPcieThroughput".to_owned(), 2)]));
    });
}

#[test]
fn an_old_driver_gives_what_it_has_and_is_not_asked_twice_for_the_rest() {
    on_stage(
        "reader::an_old_driver_gives_what_it_has_and_is_not_asked_twice_for_the_rest",
        ready_scenario("old-driver"),
        |stage| {
            let mut reader = reader(stage.nvml(), settings());
            stage.calls();
            let first = frame(stage, &mut reader, 1.0);
            near(value(&first, 0, MetricId::GpuMemoryUsed), 9216.0);
            near(value(&first, 0, MetricId::GpuTemperature), 38.0);
            near(value(&first, 0, MetricId::GpuPowerUsage), 231.0);
            assert_eq!(reading(&first, 0, MetricId::GpuPcieRx), Some(Reading::Missing));
            assert_eq!(reading(&first, 0, MetricId::GpuFanSpeed), Some(Reading::Missing));
            let uses = processes(&first, 0);
            assert_eq!(uses.iter().map(|one| one.pid).collect::<Vec<_>>(), [4_005_001, 4_005_002]);
            assert_eq!((uses[0].memory, uses[0].sm), (Some(9100 * MIB), Some(82.0)));
            assert_eq!(stage.counts().get("nvmlDeviceGetFanSpeed"), Some(&2));

            let news = reader.news();
            let said = |id| news.iter().filter(|one| one.device == Some(0) && one.metric == Some(id)).count();
            assert_eq!((said(MetricId::GpuFanSpeed), said(MetricId::GpuPcieRx)), (1, 1));
            assert!(news.iter().all(|one| one.reason == Reason::NotSupported), "{news:?}");

            let second = frame(stage, &mut reader, 11.0);
            assert_eq!(reading(&second, 0, MetricId::GpuPcieRx), Some(Reading::Missing));
            assert_eq!(
                reading(&second, 0, MetricId::GpuFanSpeed),
                Some(Reading::Missing),
                "due, and still unknown"
            );
            near(value(&second, 0, MetricId::GpuEnergy), 2310.0);
            let counts = stage.counts();
            assert_eq!(counts.get("nvmlDeviceGetFanSpeed"), None);
            assert_eq!(counts.get("nvmlDeviceGetComputeRunningProcesses"), Some(&2));
            assert_eq!(reader.news(), [], "said once");
        },
    );
}

#[test]
fn without_field_values_the_older_calls_serve() {
    let missing = |id: &str| (id.to_owned(), Counter::Signal(Signal::from("NOT_SUPPORTED")));
    let scenario = machine(vec![
        Gpu { fields: [missing("74"), missing("75"), missing("83")].into(), ..gpu() },
        Gpu { energy: None, ..gpu() },
    ]);
    on_stage("reader::without_field_values_the_older_calls_serve", scenario, |stage| {
        let mut reader = reader(stage.nvml(), settings());
        let first = frame(stage, &mut reader, 0.0);
        near(value(&first, 0, MetricId::GpuEnergy), 0.0);
        for second in 1..=4 {
            let now = frame(stage, &mut reader, f64::from(second));
            near(value(&now, 0, MetricId::GpuEnergy), 200.0 * f64::from(second));
            near(value(&now, 0, MetricId::GpuThrottledPower), 25.0 * f64::from(second));
            near(value(&now, 0, MetricId::GpuThrottledThermal), 50.0 * f64::from(second));
            // Without any counter the integral of power stands under its own name.
            assert_eq!(reading(&now, 1, MetricId::GpuEnergy), None);
            let joules = value(&now, 1, MetricId::GpuEnergyFromPower);
            assert!((joules - 200.0 * f64::from(second)).abs() < 1e-3, "{joules}");
        }
        stage.calls();
        frame(stage, &mut reader, 5.0);
        let counts = stage.counts();
        assert_eq!(counts.get("nvmlDeviceGetTotalEnergyConsumption"), Some(&1));
        assert_eq!(counts.get("nvmlDeviceGetViolationStatus"), Some(&2));
    });
}

#[test]
fn byte_counters_that_wrap_go_on() {
    let wrapping = |rate: f64| {
        Some(Counter::Rate(fake_nvml::Rate {
            rate: rate.into(),
            start: 0.0,
            reset_at: vec![],
            wrap: Some(4_294_967_296.0),
        }))
    };
    let scenario = machine(vec![Gpu { pcie_tx: wrapping(1.5e9), pcie_rx: wrapping(1.0e9), ..gpu() }]);
    on_stage("reader::byte_counters_that_wrap_go_on", scenario, |stage| {
        let mut reader = reader(stage.nvml(), settings());
        for second in 0..12 {
            let now = frame(stage, &mut reader, f64::from(second));
            near(value(&now, 0, MetricId::GpuPcieTx), 1.5e9 / MIB as f64 * f64::from(second));
            near(value(&now, 0, MetricId::GpuPcieRx), 1.0e9 / MIB as f64 * f64::from(second));
        }
        let news = reader.news();
        let caveats = news.iter().filter(|one| one.reason.to_string().contains("wraps")).count();
        assert_eq!(caveats, 1, "{news:?}");
    });
}

#[test]
fn energy_goes_on_after_a_counter_that_begins_anew() {
    let energy = Energy::Counter(Counter::Rate(fake_nvml::Rate {
        rate: 100.into(),
        start: 5000.0,
        reset_at: vec![2.5],
        wrap: None,
    }));
    let scenario = machine(vec![Gpu { energy: Some(energy), ..gpu() }]);
    on_stage("reader::energy_goes_on_after_a_counter_that_begins_anew", scenario, |stage| {
        let mut reader = reader(stage.nvml(), settings());
        let readings: Vec<_> = (0..5)
            .map(|second| reading(&frame(stage, &mut reader, f64::from(second)), 0, MetricId::GpuEnergy))
            .collect();
        // At 3 s it may be noise; at 4 s it is known that it has begun anew.
        let [a, b, c, d] = [0.0, 100.0, 200.0, 300.0].map(|joules| Some(Reading::Value(joules)));
        assert_eq!(readings, [a, b, c, Some(Reading::Missing), d]);
    });
}

#[test]
fn newer_calls_that_refuse_are_replaced_for_good() {
    let refuse = |function: &str, error: &str| Fault {
        function: function.to_owned(),
        error: Some(error.to_owned()),
        ..Fault::default()
    };
    let scenario = Scenario {
        fault: vec![
            refuse("nvmlDeviceGetMemoryInfo_v2", "ARGUMENT_VERSION_MISMATCH"),
            refuse("nvmlDeviceGetTemperatureV", "NOT_SUPPORTED"),
            refuse("nvmlDeviceGetComputeRunningProcesses_v3", "FUNCTION_NOT_FOUND"),
        ],
        ..machine(vec![Gpu {
            memory_reserved: Some(96.into()),
            process: vec![Process::compute(4_000_001, 100.0)],
            ..gpu()
        }])
    };
    on_stage("reader::newer_calls_that_refuse_are_replaced_for_good", scenario, |stage| {
        let mut reader = reader(stage.nvml(), settings());
        frame(stage, &mut reader, 0.0);
        stage.calls();
        let now = frame(stage, &mut reader, 2.0);
        // Version 1 counts the driver's reserve as used.
        near(value(&now, 0, MetricId::GpuMemoryUsed), 1120.0);
        near(value(&now, 0, MetricId::GpuTemperature), 40.0);
        assert_eq!(processes(&now, 0)[0].memory, Some(100 * MIB));
        let counts = stage.counts();
        for refused in ["MemoryInfo_v2", "TemperatureV", "ComputeRunningProcesses_v3"] {
            assert_eq!(counts.get(&format!("nvmlDeviceGet{refused}")), None, "{refused}");
        }
        assert_eq!(counts.get("nvmlDeviceGetComputeRunningProcesses_v2"), Some(&1));
    });
}

// ---- the reader: processes ----

#[test]
fn lists_longer_than_the_buffer_are_whole() {
    let process = |pid| Process { sm: Some(1.into()), ..Process::compute(pid, 1.0) };
    let scenario = machine(vec![Gpu { process: (1..=700).map(process).collect(), ..gpu() }]);
    on_stage("reader::lists_longer_than_the_buffer_are_whole", scenario, |stage| {
        let mut reader = reader(stage.nvml(), settings());
        let first = frame(stage, &mut reader, 1.0);
        let uses = processes(&first, 0);
        assert_eq!(uses.len(), 700);
        assert!(uses.iter().all(|one| one.memory == Some(MIB) && one.sm == Some(1.0)));
        stage.calls();
        frame(stage, &mut reader, 3.0);
        assert_eq!(
            stage.counts().get("nvmlDeviceGetComputeRunningProcesses_v3"),
            Some(&1),
            "the buffer is kept"
        );
    });
}

#[test]
fn process_shares_are_of_the_time_since_the_last_look() {
    let process =
        |pid, sm: Signal| Process { sm: Some(sm), mem: Some(10.into()), ..Process::compute(pid, 100.0) };
    let scenario = machine(vec![Gpu {
        process: vec![
            process(4_000_001, 60.into()),
            // 4 billion per cent, as zombies have.
            process(4_000_002, 4e9.into()),
            Process::compute(4_000_003, 100.0),
            Process { stamp_age: Some(100.0), ..process(4_000_004, 99.into()) },
            Process { memory: None, ..process(4_000_005, 5.into()) },
        ],
        ..gpu()
    }]);
    on_stage("reader::process_shares_are_of_the_time_since_the_last_look", scenario, |stage| {
        let mut reader = reader(stage.nvml(), settings());
        for at in [200.0, 202.0] {
            let now = frame(stage, &mut reader, at);
            let uses = processes(&now, 0);
            let sm: Vec<_> = uses.iter().map(|one| one.sm).collect();
            // Impossible is unknown; a process without a sample did nothing, which is measured; a stale sample is none.
            assert_eq!(sm, [Some(60.0), None, Some(0.0), Some(0.0), Some(5.0)], "at {at}");
            assert_eq!(uses[0].memory_utilization, Some(10.0));
            assert_eq!(uses[4].memory, None);
        }
        assert_eq!(frame(stage, &mut reader, 203.0).devices[0].processes, None, "not due");
    });
}

#[test]
fn an_idle_gpu_is_a_measured_zero_and_a_refusal_is_unknown() {
    let scenario = Scenario {
        fault: vec![Fault {
            function: "nvmlDeviceGetProcessUtilization".to_owned(),
            error: Some("NO_PERMISSION".to_owned()),
            from: Some(5.0),
            ..Fault::default()
        }],
        ..machine(vec![Gpu { process: vec![Process::compute(4_000_001, 100.0)], ..gpu() }])
    };
    on_stage("reader::an_idle_gpu_is_a_measured_zero_and_a_refusal_is_unknown", scenario, |stage| {
        let mut reader = reader(stage.nvml(), settings());
        assert_eq!(processes(&frame(stage, &mut reader, 1.0), 0)[0].sm, Some(0.0));
        assert_eq!(processes(&frame(stage, &mut reader, 6.0), 0)[0].sm, None);
        let refusal = GpuNews {
            device: Some(0),
            metric: Some(MetricId::JobGpuSmUtilization),
            reason: Reason::NoPermission,
        };
        assert!(reader.news().contains(&refusal));
    });
}

// ---- the reader: what goes wrong ----

#[test]
fn a_refused_metric_is_retried_and_touches_no_other() {
    let scenario = Scenario {
        fault: vec![Fault {
            function: "nvmlDeviceGetPowerUsage".to_owned(),
            gpu: Some(1),
            error: Some("NO_PERMISSION".to_owned()),
            until: Some(3.0),
            ..Fault::default()
        }],
        ..machine(vec![gpu(), gpu()])
    };
    on_stage("reader::a_refused_metric_is_retried_and_touches_no_other", scenario, |stage| {
        let mut reader = reader(stage.nvml(), settings());
        for second in 0..3 {
            let now = frame(stage, &mut reader, f64::from(second));
            assert_eq!(reading(&now, 1, MetricId::GpuPowerUsage), Some(Reading::Missing));
            near(value(&now, 1, MetricId::GpuTemperature), 40.0);
            near(value(&now, 0, MetricId::GpuPowerUsage), 200.0);
        }
        near(value(&frame(stage, &mut reader, 3.0), 1, MetricId::GpuPowerUsage), 200.0);
        let refused: Vec<_> =
            reader.news().into_iter().filter(|one| one.metric == Some(MetricId::GpuPowerUsage)).collect();
        let once =
            GpuNews { device: Some(1), metric: Some(MetricId::GpuPowerUsage), reason: Reason::NoPermission };
        assert_eq!(refused, [once]);
    });
}

#[test]
fn a_gpu_that_is_lost_is_missing_until_it_comes_back() {
    let scenario = machine(vec![
        Gpu {
            lost_from: Some(2.5),
            lost_until: Some(12.0),
            process: vec![Process::compute(4_000_001, 1.0)],
            ..gpu()
        },
        gpu(),
    ]);
    on_stage("reader::a_gpu_that_is_lost_is_missing_until_it_comes_back", scenario, |stage| {
        let mut reader = reader(stage.nvml(), settings());
        for second in 0..3 {
            near(value(&frame(stage, &mut reader, f64::from(second)), 0, MetricId::GpuTemperature), 40.0);
        }
        reader.news();
        stage.calls();
        for second in 3..12 {
            let now = frame(stage, &mut reader, f64::from(second));
            for id in [
                MetricId::GpuTemperature,
                MetricId::GpuMemoryUsed,
                MetricId::GpuEnergy,
                MetricId::GpuNvlinkRx,
            ] {
                assert_eq!(reading(&now, 0, id), Some(Reading::Missing), "{id:?} at {second}");
            }
            assert_eq!(reading(&now, 0, MetricId::GpuEnergyFromPower), None);
            assert!(matches!(&now.devices[0].processes, None | Some(Err(Reason::GpuLost))));
            near(value(&now, 1, MetricId::GpuTemperature), 40.0);
        }
        let calls = stage.calls();
        let of_lost =
            |(function, gpu): &&(String, Option<usize>)| *gpu == Some(0) && !function.contains("Handle");
        assert_eq!(calls.iter().filter(of_lost).count(), 1, "the call that met the loss");
        // At once, then every five seconds.
        let searches = calls.iter().filter(|(function, _)| function == "nvmlDeviceGetHandleByUUID").count();
        assert_eq!(searches, 2);
        assert_eq!(reader.news(), [GpuNews { device: Some(0), metric: None, reason: Reason::GpuLost }]);

        let seen = (12..20).find(|second| {
            let now = frame(stage, &mut reader, f64::from(*second));
            reading(&now, 0, MetricId::GpuTemperature) == Some(Reading::Value(40.0))
        });
        assert!(seen.is_some_and(|second| second <= 17), "{seen:?}");
        let later = frame(stage, &mut reader, 21.0);
        near(value(&later, 0, MetricId::GpuEnergy), 200.0 * 21.0);
    });
}

#[test]
fn a_reloaded_driver_is_opened_anew() {
    let scenario = Scenario {
        reload_at: vec![2.5],
        fault: vec![Fault {
            function: "nvmlInit_v2".to_owned(),
            error: Some("DRIVER_NOT_LOADED".to_owned()),
            from: Some(2.5),
            until: Some(6.0),
            ..Fault::default()
        }],
        ..machine(vec![gpu(), gpu()])
    };
    on_stage("reader::a_reloaded_driver_is_opened_anew", scenario, |stage| {
        let mut reader = reader(stage.nvml(), settings());
        for second in 0..3 {
            near(value(&frame(stage, &mut reader, f64::from(second)), 1, MetricId::GpuTemperature), 40.0);
        }
        reader.news();
        let mut back = None;
        for second in 3..20 {
            let now = frame(stage, &mut reader, f64::from(second));
            match (0..2).map(|device| reading(&now, device, MetricId::GpuTemperature)).collect::<Vec<_>>()[..]
            {
                [Some(Reading::Missing), Some(Reading::Missing)] => assert!(back.is_none()),
                [Some(Reading::Value(_)), Some(Reading::Value(_))] => _ = back.get_or_insert(second),
                ref other => panic!("{other:?}"),
            }
        }
        assert!(back.is_some_and(|second| (6..=12).contains(&second)), "{back:?}");
        let gone = |device| GpuNews { device: Some(device), metric: None, reason: Reason::DriverGone };
        assert_eq!(reader.news(), [gone(0), gone(1)]);
        assert!(reader.stop(PATIENCE));
    });
}

#[test]
fn a_hanging_call_costs_frames_and_nothing_else() {
    let scenario = Scenario {
        fault: vec![Fault {
            function: "nvmlDeviceGetTemperatureV".to_owned(),
            hang_while: Some("hang".into()),
            ..Fault::default()
        }],
        ..machine(vec![gpu()])
    };
    on_stage("reader::a_hanging_call_costs_frames_and_nothing_else", scenario, |stage| {
        let mut one = reader(stage.nvml(), settings());
        near(value(&frame(stage, &mut one, 0.0), 0, MetricId::GpuTemperature), 40.0);
        std::fs::write(stage.file("hang"), "").unwrap();
        one.request(mono(1.0));
        assert!(one.take(Duration::ZERO).is_none());
        one.request(mono(2.0));
        assert!(one.take(Duration::ZERO).is_none());
        std::fs::remove_file(stage.file("hang")).unwrap();
        let late = one.take(PATIENCE).unwrap();
        assert!(late.at >= mono(1.0));
        near(value(late, 0, MetricId::GpuTemperature), 40.0);
        // Whichever request was begun, the youngest one is served.
        one.request(mono(3.0));
        assert!(one.take(PATIENCE).unwrap().at >= mono(3.0));

        // A thread that hangs for good is left behind, and the process still ends.
        stage.calls();
        std::fs::write(stage.file("hang"), "").unwrap();
        one.request(mono(4.0));
        while !stage.calls().iter().any(|(function, _)| function == "nvmlDeviceGetTemperatureV") {
            std::thread::yield_now();
        }
        assert!(!one.stop(Duration::from_millis(1)));
        assert!(!stage.calls().iter().any(|(function, _)| function == "nvmlShutdown"));
    });
}

#[test]
fn a_stopped_reader_has_shut_the_driver_down() {
    on_stage("reader::a_stopped_reader_has_shut_the_driver_down", machine(vec![gpu()]), |stage| {
        let library = stage.library();
        let open = move || {
            let nvml = Nvml::open(Some(&library))?;
            let devices = identities(&nvml);
            Ok((nvml, devices))
        };
        let mut reader = GpuReader::launch(open, settings()).unwrap();
        assert_eq!(reader.ready(PATIENCE).unwrap().unwrap().len(), 1);
        reader.request(mono(1.0));
        assert!(reader.stop(PATIENCE));
        assert_eq!(
            stage.calls().last().map(|(function, _)| function.clone()).as_deref(),
            Some("nvmlShutdown")
        );
    });
}
