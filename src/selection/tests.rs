//! Tests: the choice against a second, plain formulation of its rules.

use proptest::prelude::*;

use super::choose::{LeaseState, choose};
use super::holder::Holder;
use crate::model::device::{ComputeMode, DeviceMemory, DeviceProcess, DeviceSnapshot, MigPlace};
use crate::model::id::GpuUuid;
use crate::model::reading::{Known, Reason};
use crate::model::selection::{Constraints, Count, DeviceName, NamePattern};

/// Compute processes on a device, where they can be listed.
fn compute_processes(device: &DeviceSnapshot) -> Option<u32> {
    device.processes.as_ref().ok().map(|list| list.iter().filter(|p| p.compute).count() as u32)
}

/// Free memory with that of the accounts that count as free.
fn free_memory(rules: &Constraints, device: &DeviceSnapshot) -> Option<u64> {
    let memory = device.memory.as_ref().ok()?;
    let ours: u64 = device
        .processes
        .iter()
        .flatten()
        .filter(|process| process.uid.is_some_and(|uid| rules.free_accounts.contains(&uid)))
        .filter_map(|process| process.memory.clone().ok())
        .sum();
    Some((memory.free + ours).min(memory.total))
}

/// Whether the job may have the device, whatever its values are; `None` if not.
fn is_eligible(rules: &Constraints, device: &DeviceSnapshot, leased: bool) -> Option<()> {
    let lost = |reason: &Reason| matches!(reason, Reason::GpuLost | Reason::DriverGone | Reason::TimedOut);
    if device.uuid.is_err() || leased {
        return None;
    }
    if matches!(&device.memory, Err(reason) if lost(reason) || *reason == Reason::NoPermission)
        || matches!(&device.gpu_utilization, Err(reason) if lost(reason))
        || matches!(&device.name, Err(reason) if lost(reason))
        || matches!(&device.compute_mode, Err(reason) if lost(reason))
    {
        return None;
    }
    for name in &rules.exclude {
        let hit = match name {
            DeviceName::Index(index) => *index == device.index,
            DeviceName::Uuid(text) => {
                let text = text.to_lowercase();
                device.uuid.as_ref().unwrap().as_str().to_lowercase().starts_with(&text)
                    || device
                        .parent_uuid
                        .as_ref()
                        .is_some_and(|u| u.as_str().to_lowercase().starts_with(&text))
            }
        };
        if hit {
            return None;
        }
    }
    if let Some(pattern) = &rules.gpu_name {
        let name = device.name.as_ref().ok()?;
        if !name.to_lowercase().contains(&pattern.as_str().to_lowercase()) {
            return None;
        }
    }
    if rules.for_job {
        match &device.compute_mode {
            Ok(ComputeMode::Default) | Err(Reason::NotSupported | Reason::MissingSymbol) => {}
            Ok(ComputeMode::Prohibited) | Err(_) => return None,
            Ok(_) if compute_processes(device) == Some(0) => {}
            Ok(_) => return None,
        }
    }
    Some(())
}

/// What a device is to the rules: refused, or taken with so many loosened constraints.
fn standing(rules: &Constraints, device: &DeviceSnapshot, leased: bool) -> Option<u32> {
    is_eligible(rules, device, leased)?;
    let mut loosened = 0;
    let tolerance = f64::from(rules.tolerance);
    if let Some(limit) = rules.min_free_memory {
        let free = free_memory(rules, device)?;
        if free < limit {
            if (free as f64) * 100.0 < (limit as f64) * (100.0 - tolerance) {
                return None;
            }
            loosened += 1;
        }
    }
    if let Some(limit) = rules.min_total_memory {
        let total = device.memory.as_ref().ok()?.total;
        if total < limit {
            if (total as f64) * 100.0 < (limit as f64) * (100.0 - tolerance) {
                return None;
            }
            loosened += 1;
        }
    }
    for (limit, value) in [
        (rules.max_gpu_utilization, &device.gpu_utilization),
        (rules.max_memory_utilization, &device.memory_utilization),
    ] {
        if let Some(limit) = limit {
            let value = *value.as_ref().ok()?;
            if value > limit {
                if value > limit + rules.tolerance {
                    return None;
                }
                loosened += 1;
            }
        }
    }
    if rules.idle && (compute_processes(device)? != 0 || *device.gpu_utilization.as_ref().ok()? > 5) {
        return None;
    }
    if let Some(limit) = rules.max_processes
        && compute_processes(device)? > limit
    {
        return None;
    }
    Some(loosened)
}

/// Free memory as the order sees it: whole twentieths of the total, in bytes; unknown is worse than nothing.
fn room(rules: &Constraints, device: &DeviceSnapshot) -> i128 {
    let Ok(memory) = &device.memory else { return -1 };
    let free = i128::from(free_memory(rules, device).unwrap());
    let total = i128::from(memory.total);
    let twentieths = (0..=20).rev().find(|n| free * 20 >= total * n).unwrap();
    twentieths * total / 20
}

fn busy(value: &Known<u32>) -> u64 {
    value.as_ref().map_or(u64::MAX, |value| u64::from(*value))
}

/// Whether `a` goes before `b`.
fn goes_before(rules: &Constraints, a: (u32, &DeviceSnapshot), b: (u32, &DeviceSnapshot)) -> bool {
    if a.0 != b.0 {
        return a.0 < b.0;
    }
    let (a, b) = (a.1, b.1);
    if room(rules, a) != room(rules, b) {
        return room(rules, a) > room(rules, b);
    }
    if busy(&a.gpu_utilization) != busy(&b.gpu_utilization) {
        return busy(&a.gpu_utilization) < busy(&b.gpu_utilization);
    }
    if busy(&a.memory_utilization) != busy(&b.memory_utilization) {
        return busy(&a.memory_utilization) < busy(&b.memory_utilization);
    }
    (a.index, a.mig.map(|m| m.index)) > (b.index, b.mig.map(|m| m.index))
}

/// The whole choice by hand.
fn by_hand(rules: &Constraints, devices: &[DeviceSnapshot], leased: &[bool]) -> (Vec<usize>, bool) {
    let mut left: Vec<(usize, u32)> = devices
        .iter()
        .zip(leased)
        .enumerate()
        .filter_map(|(index, (device, leased))| Some((index, standing(rules, device, *leased)?)))
        .collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        let mut best = 0;
        for other in 1..left.len() {
            let pick = |at: usize| (left[at].1, &devices[left[at].0]);
            if rules.sort && goes_before(rules, pick(other), pick(best)) {
                best = other;
            }
        }
        order.push(left.remove(best));
    }
    let min = rules.count.min as usize;
    let slice = |index: usize| devices[index].mig.is_some();
    let whole = order.iter().filter(|(index, _)| !slice(*index)).count();
    match order.first() {
        Some(&(best, _)) if slice(best) && (min < 2 || whole < min) => order.truncate(1),
        _ => order.retain(|(index, _)| !slice(*index)),
    }
    let strict = order.iter().filter(|(_, loosened)| *loosened == 0).count();
    let mut chosen = Vec::new();
    let mut loose_taken = 0;
    for (index, loosened) in order {
        if loosened == 0 {
            chosen.push(index);
        } else if strict + loose_taken < min {
            loose_taken += 1;
            chosen.push(index);
        }
    }
    chosen.truncate(rules.count.max.map_or(usize::MAX, |max| max as usize));
    let enough = chosen.len() >= min;
    (chosen, enough)
}

fn reason() -> impl Strategy<Value = Reason> {
    prop_oneof![
        4 => Just(Reason::NotSupported),
        1 => Just(Reason::MissingSymbol),
        1 => Just(Reason::NoPermission),
        1 => Just(Reason::GpuLost),
        1 => Just(Reason::Other("an odd error".into())),
    ]
}

fn known<T: std::fmt::Debug + Clone + 'static>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Known<T>> {
    prop_oneof![9 => value.prop_map(Ok), 1 => reason().prop_map(Err)]
}

prop_compose! {
    fn process()(
        pid in 1_u32..9999, memory in known(0_u64..6 << 30), compute in any::<bool>(),
        uid in proptest::option::of(0_u32..4),
    ) -> DeviceProcess {
        DeviceProcess { pid, memory, compute, uid }
    }
}

prop_compose! {
    fn memory()(total in prop_oneof![Just(8_u64 << 30), Just(24 << 30), 1_u64..100], share in 0_u64..=1000)
        -> DeviceMemory {
        let free = total * share / 1000;
        DeviceMemory { total, free, used: total - free, unified: false }
    }
}

prop_compose! {
    fn device()(
        is_slice in proptest::bool::weighted(0.2),
        slice in 0_u32..4,
        uuid in known(any::<u32>()),
        name in known(prop_oneof![Just("NVIDIA A100-SXM4-80GB"), Just("NVIDIA H100"), Just("Tesla T4")]),
        memory in known(memory()),
        gpu_utilization in known(prop_oneof![Just(0_u32), 0_u32..=100]),
        memory_utilization in known(prop_oneof![Just(0_u32), 0_u32..=100]),
        compute_mode in known(prop_oneof![
            6 => Just(ComputeMode::Default), 1 => Just(ComputeMode::Prohibited),
            1 => Just(ComputeMode::ExclusiveProcess), 1 => Just(ComputeMode::ExclusiveThread),
        ]),
        processes in known(proptest::collection::vec(process(), 0..3)),
    ) -> DeviceSnapshot {
        DeviceSnapshot {
            index: 0,
            mig: is_slice.then_some(MigPlace { index: slice, gpu_instance: None, compute_instance: None }),
            uuid: uuid.map(|n| GpuUuid::new(format!("{}-{n:08x}-0000", if is_slice { "MIG" } else { "GPU" }))),
            parent_uuid: is_slice.then(|| GpuUuid::new("GPU-ffffffff-0000")),
            name: name.map(str::to_owned),
            memory,
            gpu_utilization,
            memory_utilization,
            compute_mode,
            processes,
            facts: Vec::new(),
        }
    }
}

prop_compose! {
    fn host()(mut devices in proptest::collection::vec(device(), 0..9)) -> Vec<DeviceSnapshot> {
        for (index, device) in (0..).zip(devices.iter_mut()) {
            device.index = index;
        }
        devices
    }
}

prop_compose! {
    fn rules()(
        (min, extra) in (0_u32..5, proptest::option::of(0_u32..4)),
        min_free_memory in proptest::option::of(0_u64..26 << 30),
        min_total_memory in proptest::option::weighted(0.3, 0_u64..26 << 30),
        max_gpu_utilization in proptest::option::weighted(0.3, 0_u32..110),
        max_memory_utilization in proptest::option::weighted(0.3, 0_u32..110),
        tolerance in prop_oneof![Just(0_u32), 0_u32..130],
        free_accounts in proptest::collection::vec(0_u32..4, 0..2),
        exclude in proptest::collection::vec(prop_oneof![
            (0_u32..9).prop_map(DeviceName::Index),
            "(GPU|gpu|MIG)-[0-9a-fA-F]{0,2}".prop_map(DeviceName::Uuid),
        ], 0..2),
        gpu_name in proptest::option::weighted(0.2, prop_oneof![Just("a100"), Just("NVIDIA"), Just("t4")]),
        (idle, for_job, sort) in (proptest::bool::weighted(0.15), any::<bool>(), proptest::bool::weighted(0.9)),
        max_processes in proptest::option::weighted(0.2, 0_u32..3),
    ) -> Constraints {
        Constraints {
            count: Count { min, max: extra.map(|extra| min + extra) },
            min_free_memory, min_total_memory, max_gpu_utilization, max_memory_utilization, tolerance,
            free_accounts, exclude,
            gpu_name: gpu_name.map(|text| NamePattern::new(text).unwrap()),
            idle, max_processes, for_job, sort,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn the_choice_is_what_the_rules_say(
        rules in rules(), devices in host(), leased in proptest::collection::vec(proptest::bool::weighted(0.15), 9),
    ) {
        let leased = &leased[..devices.len()];
        let states: Vec<LeaseState> = leased
            .iter()
            .map(|held| if *held { LeaseState::Held(Holder::default()) } else { LeaseState::Free })
            .collect();
        let all_slices = !devices.is_empty() && devices.iter().all(|device| device.mig.is_some());
        let utilization =
            rules.idle || rules.max_gpu_utilization.is_some() || rules.max_memory_utilization.is_some();
        let choice = choose(&rules, &devices, &states);
        prop_assert_eq!(choice.is_err(), all_slices && utilization);
        let Ok(choice) = choice else { return Ok(()) };
        let (chosen, enough) = by_hand(&rules, &devices, leased);
        prop_assert_eq!(&choice.chosen, &chosen);
        prop_assert_eq!(choice.enough, enough);
        // A device that is refused has a reason, and one that is taken has none.
        for (judged, (device, leased)) in choice.judged.iter().zip(devices.iter().zip(leased)) {
            prop_assert_eq!(judged.passes(), standing(&rules, device, *leased).is_some());
        }
    }
}
