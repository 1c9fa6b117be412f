//! Lists of processes and of their use.

use super::*;

/// A process that is there now.
pub(super) struct Live {
    pid: u32,
    kind: String,
    /// Bytes.
    pub(super) memory: Option<u64>,
    /// SM, memory, encoder, decoder %, and how old the sample always is (s).
    utilization: Option<([c_uint; 4], Option<f64>)>,
    instances: (c_uint, c_uint),
}

pub(super) fn live(call: &Call) -> Vec<Live> {
    const WHOLE: (c_uint, c_uint) = (c_uint::MAX, c_uint::MAX);
    let Ok(gpu) = call.gpu() else {
        return Vec::new();
    };
    let mut all = Vec::new();
    match call.mig() {
        Some((place, mig)) => {
            for process in &mig.process {
                add_live(process, instances((place, mig)), call.t, &mut all);
            }
        }
        None => {
            for process in &gpu.process {
                add_live(process, WHOLE, call.t, &mut all);
            }
            for (place, mig) in gpu.mig.iter().enumerate() {
                for process in &mig.process {
                    add_live(process, instances((place, mig)), call.t, &mut all);
                }
            }
        }
    }
    all
}

pub(super) fn add_live(process: &Process, instances: (c_uint, c_uint), t: f64, all: &mut Vec<Live>) {
    if process.from.is_some_and(|from| t < from) || process.until.is_some_and(|until| t >= until) {
        return;
    }
    // Any error name where a process's number belongs means that the driver does not know it.
    let value = |signal: &Option<Signal>| signal.as_ref().and_then(|signal| signal.at(t).ok());
    let percent = |signal: &Option<Signal>| uint(value(signal).unwrap_or(0.0));
    let memory = value(&process.memory);
    let mut add = |pid: u32, memory: Option<f64>, sm: Option<f64>| {
        all.push(Live {
            pid,
            kind: process.kind.clone().unwrap_or_else(|| "C".to_owned()),
            memory: memory.map(|mib| ulong(mib * MIB)),
            utilization: sm.map(|sm| {
                (
                    [uint(sm), percent(&process.mem), percent(&process.enc), percent(&process.dec)],
                    process.stamp_age,
                )
            }),
            instances,
        });
    };
    if let Some(pid) = process.pid {
        add(pid, memory, value(&process.sm));
    }
    let text =
        process.pid_file.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let Some(pid) = words.next().and_then(|word| word.parse().ok()) {
            let own_memory = words.next().and_then(|word| word.parse().ok());
            let own_sm = words.next().and_then(|word| word.parse().ok());
            add(pid, own_memory.or(memory), own_sm.or_else(|| value(&process.sm)));
        }
    }
}

pub(super) fn v3_stride(call: &Call) -> usize {
    call.scenario().v3_process_stride.unwrap_or(24)
}

/// Checks the caller's room: how many there are goes out in any case.
pub(super) fn check_capacity(count: *mut c_uint, list: *mut c_void, needed: usize) -> Result<(), Ret> {
    let capacity = get(count)?;
    put(count, needed as c_uint)?;
    if needed == 0 {
        return Ok(());
    }
    if (capacity as usize) < needed {
        return Err(INSUFFICIENT_SIZE);
    }
    if list.is_null() { Err(INVALID_ARGUMENT) } else { Ok(()) }
}

/// Writes a process list whose entries are `stride` bytes: 16 (v1), 24 (v2, v3), 32 (early 535 and the detail list).
pub(super) fn list_processes(
    call: &Call,
    kind: &str,
    stride: usize,
    count: *mut c_uint,
    list: *mut c_void,
) -> Result<(), Ret> {
    let found: Vec<Live> =
        live(call).into_iter().filter(|process| process.kind.split('+').any(|one| one == kind)).collect();
    check_capacity(count, list, found.len())?;
    for (place, process) in found.iter().enumerate() {
        let entry = list.wrapping_byte_add(place * stride);
        put(entry.cast::<u32>(), process.pid)?;
        put(entry.wrapping_byte_add(8).cast::<u64>(), process.memory.unwrap_or(NOT_AVAILABLE))?;
        if stride >= 24 {
            put(entry.wrapping_byte_add(16).cast::<u32>(), process.instances.0)?;
            put(entry.wrapping_byte_add(20).cast::<u32>(), process.instances.1)?;
        }
        if stride >= 32 {
            put(entry.wrapping_byte_add(24).cast::<u64>(), 0)?;
        }
    }
    Ok(())
}

/// Writes utilisation samples: 32 bytes each, or 40 with the stamp first. Samples not newer than `last_seen` are not
/// given; none at all is `NOT_FOUND`, which is what an idle GPU answers.
pub(super) fn process_utilization(
    call: &Call,
    list: *mut c_void,
    count: *mut c_uint,
    last_seen: u64,
    stride: usize,
) -> Result<(), Ret> {
    call.whole()?;
    if call.gpu()?.mig_state() == Some(1) {
        return Err(NOT_SUPPORTED);
    }
    let period = call.scenario().utilization_period.unwrap_or(0.2);
    let sampled = (call.t / period).floor() * period;
    let mut found = Vec::new();
    for process in live(call) {
        if let Some((percent, age)) = process.utilization {
            let stamp = u64::try_from(call.runtime.stamp(sampled - age.unwrap_or(0.0))).unwrap_or(0);
            if stamp > last_seen {
                found.push((process.pid, stamp, percent));
            }
        }
    }
    if found.is_empty() {
        put(count, 0)?;
        return Err(NOT_FOUND);
    }
    check_capacity(count, list, found.len())?;
    for (place, (pid, stamp, percent)) in found.iter().enumerate() {
        let entry = list.wrapping_byte_add(place * stride);
        let (pid_at, stamp_at, percent_at) = if stride == 32 { (0, 8, 16) } else { (8, 0, 12) };
        put(entry.wrapping_byte_add(pid_at).cast(), *pid)?;
        put(entry.wrapping_byte_add(stamp_at).cast(), *stamp)?;
        for (number, value) in percent.iter().enumerate() {
            put(entry.wrapping_byte_add(percent_at + 4 * number).cast(), *value)?;
        }
        if stride == 40 {
            put(entry.wrapping_byte_add(28).cast::<u64>(), 0)?;
        }
    }
    Ok(())
}
