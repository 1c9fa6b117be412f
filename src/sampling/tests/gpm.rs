//! The GPU reader on GPM: means between samples, their pace, slices, and counters that another program holds.

use std::time::Duration;

use fake_nvml::{Fault, Gpm, Gpu, Mig, Ramp, Scenario, Signal, Wave};

use super::stage::*;
use crate::model::metric::MetricId;
use crate::model::reading::{Reading, Reason};
use crate::sampling::frame::GpuFrame;
use crate::sampling::gpu::{GpuNews, GpuSettings};

fn ramp() -> Signal {
    Signal::Wave(Wave::Ramp(Ramp { from: 0.0, to: 100.0, start: 0.0, end: 10.0 }))
}

pub(super) fn hopper() -> Gpu {
    let gpm = Gpm {
        sm_utilization: Some(ramp()),
        sm_occupancy: Some(41.into()),
        integer_active: Some(12.into()),
        tensor_active: Some(52.5.into()),
        dram_active: Some(58.into()),
        fp64_active: Some(1.into()),
        fp32_active: Some(9.into()),
        fp16_active: Some(4.into()),
        ..Gpm::default()
    };
    Gpu { gpm: Some(gpm), ..gpu() }
}

#[test]
fn a_value_is_the_mean_between_two_samples() {
    on_stage("gpm::a_value_is_the_mean_between_two_samples", machine(vec![hopper()]), |stage| {
        let mut reader = reader(stage.nvml(), settings());
        assert_eq!(reading(&frame(stage, &mut reader, 1.0), 0, MetricId::GpuSmUtilization), None);
        let second = frame(stage, &mut reader, 3.0);
        for (id, percent) in [
            (MetricId::GpuSmUtilization, 20.0),
            (MetricId::GpuSmOccupancy, 41.0),
            (MetricId::GpuTensorActive, 52.5),
            (MetricId::GpuDramActive, 58.0),
            (MetricId::GpuFp64Active, 1.0),
            (MetricId::GpuFp32Active, 9.0),
            (MetricId::GpuFp16Active, 4.0),
            (MetricId::GpuIntegerActive, 12.0),
        ] {
            near(value(&second, 0, id), percent);
        }
        near(value(&frame(stage, &mut reader, 4.0), 0, MetricId::GpuSmUtilization), 35.0);
        let of_gpm = |news: &GpuNews| news.metric.is_some_and(|id| id.get().group == "gpm");
        assert!(!reader.news().iter().any(of_gpm), "all is well");
        // Another sample so soon would say nothing: the counters are left alone.
        assert_eq!(reading(&frame(stage, &mut reader, 4.0), 0, MetricId::GpuSmUtilization), None);
        near(value(&frame(stage, &mut reader, 6.0), 0, MetricId::GpuSmUtilization), 50.0);
        // The mean over a time without samples would be none of the next window.
        assert_eq!(reading(&frame(stage, &mut reader, 20.0), 0, MetricId::GpuSmUtilization), None);
        near(value(&frame(stage, &mut reader, 21.0), 0, MetricId::GpuSmUtilization), 100.0);

        assert!(reader.stop(PATIENCE));
        let calls = stage.calls();
        let count = |name: &str| calls.iter().filter(|(function, _)| function == name).count();
        assert_eq!((count("nvmlGpmSampleAlloc"), count("nvmlGpmSampleFree")), (2, 2));
        let place = |name: &str| calls.iter().rposition(|(function, _)| function == name);
        assert!(place("nvmlGpmSampleFree") < place("nvmlShutdown"), "{calls:?}");
    });
}

#[test]
fn a_slice_has_its_instance_and_the_parent_none() {
    let slice = |instance, occupancy: f64| Mig {
        gpu_instance: Some(instance),
        memory_total: Some(1000.into()),
        gpm: Some(Gpm { sm_occupancy: Some(occupancy.into()), ..Gpm::default() }),
        ..Mig::default()
    };
    let cut = Gpu { mig: vec![slice(3, 30.0), slice(5, 50.0)], ..hopper() };
    on_stage("gpm::a_slice_has_its_instance_and_the_parent_none", machine(vec![cut]), |stage| {
        let mut reader = reader(stage.nvml(), settings());
        frame(stage, &mut reader, 1.0);
        let second = frame(stage, &mut reader, 2.0);
        near(value(&second, 0, MetricId::GpuSmOccupancy), 30.0);
        near(value(&second, 1, MetricId::GpuSmOccupancy), 50.0);
        assert_eq!(reading(&second, 0, MetricId::GpuTensorActive), Some(Reading::Missing));
        assert_eq!(second.devices.len(), 3);
        assert_eq!(reading(&second, 2, MetricId::GpuSmOccupancy), None, "the parent's slices have it");
    });
}

#[test]
fn counters_that_a_profiler_holds_are_unknown_until_it_lets_go() {
    let scenario = Scenario {
        fault: vec![Fault {
            function: "nvmlGpmSampleGet".to_owned(),
            error: Some("IN_USE".to_owned()),
            from: Some(2.0),
            until: Some(5.0),
            ..Fault::default()
        }],
        ..machine(vec![hopper()])
    };
    on_stage("gpm::counters_that_a_profiler_holds_are_unknown_until_it_lets_go", scenario, |stage| {
        let metrics = vec![MetricId::GpuTemperature, MetricId::GpuSmUtilization];
        let mut reader = reader(stage.nvml(), GpuSettings::new(metrics, Duration::from_secs(1)));
        let at = |frame: &GpuFrame, id| reading(frame, 0, id);
        frame(stage, &mut reader, 1.0);
        for second in [2.0, 3.0, 4.0] {
            let held = frame(stage, &mut reader, second);
            assert_eq!(at(&held, MetricId::GpuSmUtilization), Some(Reading::Missing));
            near(value(&held, 0, MetricId::GpuTemperature), 40.0);
        }
        let once =
            GpuNews { device: Some(0), metric: Some(MetricId::GpuSmUtilization), reason: Reason::InUse };
        assert_eq!(reader.news(), [once]);
        // The sample of before the profiler is void: a pair has to be taken anew.
        assert_eq!(at(&frame(stage, &mut reader, 5.0), MetricId::GpuSmUtilization), None);
        near(value(&frame(stage, &mut reader, 6.0), 0, MetricId::GpuSmUtilization), 55.0);
    });
}

#[test]
fn without_the_group_no_gpm_call_is_made_and_old_cards_are_asked_once() {
    let scenario = machine(vec![hopper(), gpu()]);
    on_stage("gpm::without_the_group_no_gpm_call_is_made_and_old_cards_are_asked_once", scenario, |stage| {
        let gpm = |stage: &Stage| -> usize {
            stage.counts().iter().filter(|(name, _)| name.starts_with("nvmlGpm")).map(|(_, n)| n).sum()
        };
        let others = |id: &MetricId| id.get().group != "gpm";
        let metrics = every_gpu_metric().into_iter().filter(others).collect();
        let mut without = reader(stage.nvml(), GpuSettings::new(metrics, Duration::from_secs(1)));
        frame(stage, &mut without, 1.0);
        frame(stage, &mut without, 2.0);
        assert!(without.stop(PATIENCE));
        assert_eq!(gpm(stage), 0);

        let metrics = vec![MetricId::GpuSmUtilization];
        let mut with = reader(stage.nvml(), GpuSettings::new(metrics, Duration::from_secs(1)));
        frame(stage, &mut with, 3.0);
        assert_eq!(gpm(stage), 2 + 2 + 1, "the support of both, the samples of one");
        let next = frame(stage, &mut with, 4.0);
        assert_eq!(gpm(stage), 2);
        assert_eq!(reading(&next, 1, MetricId::GpuSmUtilization), None, "it has no series");
        assert_eq!(with.news(), []);
    });
}

#[test]
fn a_reloaded_driver_gets_new_samples() {
    let scenario = Scenario { reload_at: vec![3.0], ..machine(vec![hopper()]) };
    on_stage("gpm::a_reloaded_driver_gets_new_samples", scenario, |stage| {
        let mut reader = reader(stage.nvml(), settings());
        frame(stage, &mut reader, 1.0);
        near(value(&frame(stage, &mut reader, 2.0), 0, MetricId::GpuSmUtilization), 15.0);
        let gone = frame(stage, &mut reader, 3.0);
        assert_eq!(reading(&gone, 0, MetricId::GpuSmUtilization), Some(Reading::Missing));
        assert_eq!(reading(&frame(stage, &mut reader, 4.0), 0, MetricId::GpuSmUtilization), None);
        near(value(&frame(stage, &mut reader, 5.0), 0, MetricId::GpuSmUtilization), 45.0);
    });
}
