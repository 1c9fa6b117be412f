//! Answers that take more than a line.

use super::*;

pub(super) fn name_of(gpu: &Gpu) -> &str {
    gpu.name.as_deref().unwrap_or("Simulated GPU")
}

pub(super) fn stamp(call: &Call) -> u64 {
    u64::try_from(call.runtime.stamp(call.t)).unwrap_or(0)
}

pub(super) fn by_uuid(scenario: &Scenario, wanted: &str) -> Result<(usize, Option<usize>), Ret> {
    for (index, gpu) in scenario.gpu.iter().enumerate() {
        if scenario.uuid(index) == wanted {
            return Ok((index, None));
        }
        for (place, mig) in gpu.mig.iter().enumerate() {
            let (gpu_instance, compute_instance) = instances((place, mig));
            let old_form = format!("MIG-{}/{gpu_instance}/{compute_instance}", scenario.uuid(index));
            if scenario.mig_uuid(index, place) == wanted || old_form == wanted {
                return Ok((index, Some(place)));
            }
        }
    }
    Err(NOT_FOUND)
}

pub(super) fn dashed(bytes: &[u8]) -> String {
    let hex: Vec<String> = bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    [0..4, 4..6, 6..8, 8..10, 10..16].map(|range| hex.get(range).unwrap_or_default().concat()).join("-")
}

/// The bus address of a GPU: given, or like those of an eight-GPU server.
pub(crate) fn bus_id_of(scenario: &Scenario, gpu: usize) -> String {
    const BUSES: [u8; 8] = [0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD];
    match scenario.gpu.get(gpu).and_then(|gpu| gpu.pci_bus_id.clone()) {
        Some(bus_id) => bus_id,
        None => format!("{:08X}:{:02X}:00.0", gpu / 8, BUSES[gpu % 8]),
    }
}

/// Domain, bus and device of `00000000:07:00.0`, `0000:07:00.0` or `07:00.0`.
pub(crate) fn pci_address(text: &str) -> Option<(c_uint, c_uint, c_uint)> {
    let parts: Vec<&str> = text.trim().split(':').collect();
    let (domain, bus, rest) = match parts.as_slice() {
        [domain, bus, rest] => (*domain, *bus, *rest),
        [bus, rest] => ("0", *bus, *rest),
        _ => return None,
    };
    let device = rest.split('.').next()?;
    let hex = |text| c_uint::from_str_radix(text, 16).ok();
    Some((hex(domain)?, hex(bus)?, hex(device)?))
}

pub(super) fn pci_info(call: &Call) -> Result<PciInfo, Ret> {
    let gpu = call.gpu()?;
    let (domain, bus, device) =
        pci_address(&bus_id_of(call.scenario(), call.index())).ok_or(codes::UNKNOWN)?;
    Ok(PciInfo {
        legacy: fixed(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        device_id: gpu.pci_device_id.unwrap_or(0x20B2_10DE),
        subsystem_id: 0x1463_10DE,
        bus_id: fixed(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
    })
}

pub(super) fn memory_of(call: &Call) -> Result<MemoryV2, Ret> {
    let gpu = call.gpu()?;
    let (total, used, reserved, free) = match call.mig() {
        None => (&gpu.memory_total, &gpu.memory_used, &gpu.memory_reserved, &gpu.memory_free),
        Some((_, mig)) => (&mig.memory_total, &mig.memory_used, &mig.memory_reserved, &mig.memory_free),
    };
    let bytes = |signal: &Option<Signal>| now(signal.as_ref(), call).map(|mib| ulong(mib * MIB));
    let total = bytes(total)?;
    let reserved = if reserved.is_some() { bytes(reserved)? } else { 0 };
    let used = if used.is_some() {
        bytes(used)?
    } else {
        live(call).iter().filter_map(|process| process.memory).fold(0, u64::saturating_add)
    };
    let free =
        if free.is_some() { bytes(free)? } else { total.saturating_sub(used).saturating_sub(reserved) };
    Ok(MemoryV2 { version: version::<MemoryV2>(2), total, reserved, free, used })
}

pub(super) fn enforced(gpu: &Gpu) -> Option<&Signal> {
    gpu.enforced_power_limit.as_ref().or(gpu.power_limit.as_ref())
}

pub(super) fn fans_of(gpu: &Gpu) -> c_uint {
    gpu.fans.unwrap_or(c_uint::from(gpu.fan_speed.is_some()))
}

/// Seconds of throttling by `nvmlPerfPolicyType_t`, whose numbers are also those of fields 74 to 79.
pub(super) fn violation(gpu: &Gpu, policy: c_uint) -> Option<&Counter> {
    match policy {
        0 => gpu.throttled_power.as_ref(),
        1 => gpu.throttled_thermal.as_ref(),
        2 => gpu.throttled_sync_boost.as_ref(),
        3 => gpu.throttled_board_limit.as_ref(),
        4 => gpu.throttled_low_utilization.as_ref(),
        5 => gpu.throttled_reliability.as_ref(),
        _ => None,
    }
}

pub(super) fn ecc(gpu: &Gpu, error: c_uint, counter: c_uint) -> Result<Option<&Counter>, Ret> {
    Ok(match (error, counter) {
        (0, 0) => gpu.ecc_volatile_corrected.as_ref(),
        (1, 0) => gpu.ecc_volatile_uncorrected.as_ref(),
        (0, 1) => gpu.ecc_aggregate_corrected.as_ref(),
        (1, 1) => gpu.ecc_aggregate_uncorrected.as_ref(),
        _ => return Err(INVALID_ARGUMENT),
    })
}

pub(super) fn ecc_mode(gpu: &Gpu, call: &Call) -> Result<c_uint, Ret> {
    match &gpu.ecc_mode {
        Some(mode) => Ok(uint(mode.at(call.t)?)),
        None if gpu.ecc_volatile_corrected.is_some() || gpu.ecc_volatile_uncorrected.is_some() => Ok(1),
        None => Err(NOT_SUPPORTED),
    }
}

pub(super) fn instances((place, mig): (usize, &crate::scenario::Mig)) -> (c_uint, c_uint) {
    (mig.gpu_instance.unwrap_or(place as c_uint + 7), mig.compute_instance.unwrap_or(0))
}

pub(super) fn samples_of(
    call: &Call,
    kind: c_uint,
    last_seen: u64,
    value_type: *mut c_uint,
    count: *mut c_uint,
    samples: *mut Sample,
) -> Result<(), Ret> {
    /// The driver's ring holds so many.
    const RING: u32 = 120;
    let gpu = call.whole()?;
    let (signal, scale) = match kind {
        0 => (&gpu.power, 1e3),
        1 => (&gpu.gpu_utilization, 1.0),
        2 => (&gpu.memory_utilization, 1.0),
        3 => (&gpu.encoder_utilization, 1.0),
        4 => (&gpu.decoder_utilization, 1.0),
        5 => (&gpu.sm_clock, 1.0),
        6 => (&gpu.memory_clock, 1.0),
        7..=9 => (&None, 1.0),
        _ => return Err(INVALID_ARGUMENT),
    };
    let signal = signal.as_ref().ok_or(NOT_SUPPORTED)?;
    signal.at(call.t)?;
    if samples.is_null() {
        return put(count, RING);
    }
    let capacity = get(count)?;
    let period = call.scenario().utilization_period.unwrap_or(0.2);
    let newest = (call.t / period).floor();
    let mut found = Vec::new();
    for back in (0..RING).rev() {
        let t = (newest - f64::from(back)) * period;
        let at = u64::try_from(call.runtime.stamp(t)).unwrap_or(0);
        if t >= 0.0
            && at > last_seen
            && let Ok(value) = signal.at(t)
        {
            found.push(Sample { stamp: at, value: u64::from(uint(value * scale)) });
        }
    }
    if found.is_empty() {
        return Err(NOT_FOUND);
    }
    // Too small a buffer gets the newest ones, as from a ring.
    let kept = found.len().min(capacity as usize);
    for (place, sample) in found[found.len() - kept..].iter().enumerate() {
        put(samples.wrapping_add(place), *sample)?;
    }
    put(value_type, 1)?;
    put(count, kept as c_uint)
}
