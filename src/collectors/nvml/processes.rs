//! The processes of a device: lists of three kinds in three versions, and their utilisation.
//!
//! Drivers exist whose entries have another size than their function's version promises, which turns every entry
//! from the second on into noise. So the size is judged by what it makes of the bytes.

use std::cmp::Reverse;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::Ordering;

use libloading::Library;
use nvml_wrapper_sys::bindings as sys;

use super::calls::call;
use super::error::{CallResult, Fault, check};
use super::{Handle, Nvml};

/// One process in one list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessEntry {
    /// Process id, of the host's PID namespace.
    pub pid: u32,
    /// Device memory in bytes; `None` where the driver does not report it.
    pub memory: Option<u64>,
    /// It is in the compute or the MPS list.
    pub compute: bool,
}

/// One utilisation sample of one process, as the driver keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtilizationSample {
    /// Process id, of the host's PID namespace.
    pub pid: u32,
    /// µs since 1970 by the driver's clock.
    pub stamp: u64,
    /// SM share in percent; more than 100 is noise.
    pub sm: u32,
    /// Memory bandwidth share in percent; more than 100 is noise.
    pub memory: u32,
}

type ListFunction = unsafe extern "C" fn(sys::nvmlDevice_t, *mut c_uint, *mut c_void) -> sys::nvmlReturn_t;

/// Kinds of lists, in the order in which they are merged.
const COMPUTE: usize = 0;
const GRAPHICS: usize = 1;
const MPS: usize = 2;

/// The list functions by kind, newest version first: the bindings leave the older versions out.
#[derive(Debug)]
pub(super) struct ListFunctions([[Option<ListFunction>; 3]; 3]);

impl ListFunctions {
    /// # Safety
    /// `library` must be the driver library, and never be unloaded.
    pub(super) unsafe fn find(library: &Library) -> Self {
        const NAMES: [[&[u8]; 3]; 3] = [
            [
                b"nvmlDeviceGetComputeRunningProcesses_v3",
                b"nvmlDeviceGetComputeRunningProcesses_v2",
                b"nvmlDeviceGetComputeRunningProcesses",
            ],
            [
                b"nvmlDeviceGetGraphicsRunningProcesses_v3",
                b"nvmlDeviceGetGraphicsRunningProcesses_v2",
                b"nvmlDeviceGetGraphicsRunningProcesses",
            ],
            [
                b"nvmlDeviceGetMPSComputeRunningProcesses_v3",
                b"nvmlDeviceGetMPSComputeRunningProcesses_v2",
                b"nvmlDeviceGetMPSComputeRunningProcesses",
            ],
        ];
        Self(NAMES.map(|kind| {
            kind.map(|name| {
                // SAFETY: these functions take a handle, a count and a buffer; the library stays, by the caller's word.
                let found = unsafe { library.get::<ListFunction>(name) };
                found.ok().map(|function| *function)
            })
        }))
    }

    fn get(&self, kind: usize, version: usize) -> Option<ListFunction> {
        *self.0.get(kind)?.get(version)?
    }
}

/// Entry sizes to try for a list of each version, the promised one first. 32 bytes is what early 535 drivers wrote
/// for version 3.
fn strides(version: usize) -> [usize; 3] {
    if version == 2 { [16, 24, 32] } else { [24, 32, 16] }
}

/// Room for an entry, more than any known layout takes.
const ROOM: usize = 40;
/// Linux's highest pid (`PID_MAX_LIMIT`).
const PID_MAX: u32 = 4 << 20;
/// More instances than any GPU can be cut into.
const INSTANCES: u32 = 64;
/// What the buffer holds before a call: reads as an impossible entry.
const BLANK: u64 = u64::MAX;

/// Buffers for the process lists of a device. Kept between reads.
#[derive(Debug)]
pub struct ProcessBuffer {
    raw: Vec<u64>,
    one: Vec<ProcessEntry>,
    merged: Vec<ProcessEntry>,
    samples: Vec<sys::nvmlProcessUtilizationSample_t>,
    kept: Vec<UtilizationSample>,
}

/// Room for a sample that the driver fills.
const BLANK_SAMPLE: sys::nvmlProcessUtilizationSample_t = sys::nvmlProcessUtilizationSample_t {
    pid: 0,
    timeStamp: 0,
    smUtil: 0,
    memUtil: 0,
    encUtil: 0,
    decUtil: 0,
};

impl Default for ProcessBuffer {
    fn default() -> Self {
        Self {
            raw: vec![BLANK; 64 * ROOM / 8],
            one: Vec::with_capacity(64),
            merged: Vec::with_capacity(64),
            samples: vec![BLANK_SAMPLE; 128],
            kept: Vec::with_capacity(128),
        }
    }
}

impl ProcessBuffer {
    fn capacity(&self) -> usize {
        self.raw.len() * 8 / ROOM
    }

    fn grow(&mut self, entries: usize) {
        // A wild count from a driver must not take the host's memory.
        let entries = entries.saturating_add(16).min(1 << 16);
        self.raw.resize(entries * ROOM / 8, BLANK);
    }
}

fn word(raw: &[u64], byte: usize) -> u32 {
    let pair = raw.get(byte / 8).copied().unwrap_or(BLANK).to_ne_bytes();
    let half = byte % 8;
    match (pair.get(half..half + 4)).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()) {
        Some(bytes) => u32::from_ne_bytes(bytes),
        None => u32::MAX,
    }
}

fn long(raw: &[u64], byte: usize) -> u64 {
    raw.get(byte / 8).copied().unwrap_or(BLANK)
}

/// Reads `count` entries of `stride` bytes; appends those that name a process and says how many are impossible.
fn decode(
    raw: &[u64],
    count: usize,
    stride: usize,
    total: Option<u64>,
    out: &mut Vec<ProcessEntry>,
) -> usize {
    let mut impossible = 0;
    for entry in 0..count {
        let at = entry * stride;
        let pid = word(raw, at);
        let memory = long(raw, at + 8);
        let fits = |bytes: u64| bytes == u64::MAX || total.is_none_or(|total| bytes <= total);
        let instance = |id: u32| id == u32::MAX || id < INSTANCES;
        let sized = fits(memory) && (stride < 32 || fits(long(raw, at + 24)));
        let named = pid != 0
            && pid <= PID_MAX
            && (stride < 24 || (instance(word(raw, at + 16)) && instance(word(raw, at + 20))));
        if named {
            // One that holds more than there is holds we do not know what: it is there all the same.
            let memory = Some(memory).filter(|bytes| sized && *bytes != u64::MAX);
            out.push(ProcessEntry { pid, memory, compute: false });
        }
        if !(named && sized) {
            impossible += 1;
        }
    }
    impossible
}

/// Reads `count` entries by the entry size that leaves the fewest impossible ones, then that which names the most
/// processes; the promised one where that does not decide.
fn decode_best(raw: &[u64], count: usize, version: usize, total: Option<u64>, out: &mut Vec<ProcessEntry>) {
    let sizes = strides(version);
    let mut best = ((usize::MAX, Reverse(0)), sizes[0]);
    for stride in sizes {
        out.clear();
        let impossible = decode(raw, count, stride, total, out);
        if impossible == 0 {
            return;
        }
        let score = (impossible, Reverse(out.len()));
        if score < best.0 {
            best = (score, stride);
        }
    }
    out.clear();
    decode(raw, count, best.1, total, out);
}

/// Adds one list to what earlier lists gave. A process in two lists holds its memory once.
fn merge(merged: &mut Vec<ProcessEntry>, one: &[ProcessEntry], compute: bool) {
    let earlier = merged.len();
    for entry in one {
        let known = merged.iter_mut().enumerate().find(|(_, known)| known.pid == entry.pid);
        match known {
            None => merged.push(ProcessEntry { compute, ..*entry }),
            // Twice in one list: two instances of the same GPU, which add up.
            Some((place, known)) if place >= earlier => {
                known.memory = match (known.memory, entry.memory) {
                    (Some(a), Some(b)) => Some(a.saturating_add(b)),
                    _ => None,
                };
            }
            Some((_, known)) => {
                known.memory = known.memory.max(entry.memory);
                known.compute |= compute;
            }
        }
    }
}

impl Nvml {
    /// The processes on a device or slice: the compute, graphics and MPS lists merged by pid. `total` is the
    /// device's memory in bytes, above which no process can be.
    ///
    /// # Errors
    /// Where the compute list cannot be read. The other two only add to it: few drivers have all three.
    pub fn processes<'buffer>(
        &self,
        device: Handle,
        total: Option<u64>,
        buffer: &'buffer mut ProcessBuffer,
    ) -> CallResult<&'buffer [ProcessEntry]> {
        buffer.merged.clear();
        for kind in [COMPUTE, GRAPHICS, MPS] {
            match self.list(device, kind, total, buffer) {
                Ok(()) => merge(&mut buffer.merged, &buffer.one, kind != GRAPHICS),
                Err(fault) if kind == COMPUTE || fault.is_fatal() => {
                    return Err(fault);
                }
                Err(_) => {}
            }
        }
        Ok(&buffer.merged)
    }

    fn list(
        &self,
        device: Handle,
        kind: usize,
        total: Option<u64>,
        buffer: &mut ProcessBuffer,
    ) -> CallResult<()> {
        buffer.one.clear();
        let first = self.list_versions.get(kind).map_or(0, |version| version.load(Ordering::Relaxed));
        let mut fault = Fault::Missing("nvmlDeviceGetComputeRunningProcesses");
        for version in first..3 {
            let Some(function) = self.lists.get(kind, version) else { continue };
            match list_by(function, device, buffer) {
                Ok(count) => {
                    let ProcessBuffer { raw, one, .. } = buffer;
                    decode_best(raw, count, version, total, one);
                    return Ok(());
                }
                // This version only is refused: the next older one may do.
                Err(refusal)
                    if refusal.is(sys::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND)
                        || refusal.is(sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
                        || refusal.is(sys::nvmlReturn_enum_NVML_ERROR_DEPRECATED) =>
                {
                    if let Some(remembered) = self.list_versions.get(kind) {
                        remembered.store(version + 1, Ordering::Relaxed);
                    }
                    fault = refusal;
                }
                Err(other) => return Err(other),
            }
        }
        Err(fault)
    }

    /// The utilisation samples of the processes on a device that are newer than `since` (µs since 1970 by the
    /// driver's clock). No sample is no error: nothing ran.
    ///
    /// # Errors
    /// As the driver answers; not supported on MIG.
    pub fn process_utilization<'buffer>(
        &self,
        device: Handle,
        since: u64,
        buffer: &'buffer mut ProcessBuffer,
    ) -> CallResult<&'buffer [UtilizationSample]> {
        buffer.kept.clear();
        // Processes may come between a refusal and the next try, so each try leaves some room.
        for _ in 0..4 {
            let mut count = c_uint::try_from(buffer.samples.len()).unwrap_or(c_uint::MAX);
            let samples = buffer.samples.as_mut_ptr();
            let answer =
                call!(self, nvmlDeviceGetProcessUtilization(device.0, samples, &raw mut count, since));
            match answer {
                Ok(()) => {
                    let written = buffer.samples.iter().take(count as usize);
                    buffer.kept.extend(
                        written.filter(|sample| sample.pid != 0 && sample.pid <= PID_MAX).map(|sample| {
                            UtilizationSample {
                                pid: sample.pid,
                                stamp: sample.timeStamp,
                                sm: sample.smUtil,
                                memory: sample.memUtil,
                            }
                        }),
                    );
                    return Ok(&buffer.kept);
                }
                Err(fault) if fault.is(sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND) => return Ok(&buffer.kept),
                Err(fault) if fault.is(sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE) => {
                    let wanted = (count as usize).max(buffer.samples.len()).saturating_add(64).min(1 << 16);
                    buffer.samples.resize(wanted, BLANK_SAMPLE);
                }
                Err(fault) => return Err(fault),
            }
        }
        Err(Fault::Code(sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE))
    }
}

/// Calls one list function, growing the buffer until the list fits. Gives the number of entries.
fn list_by(function: ListFunction, device: Handle, buffer: &mut ProcessBuffer) -> CallResult<usize> {
    for _ in 0..4 {
        let capacity = buffer.capacity();
        // What an entry of another size than promised leaves unwritten must not look like an old entry.
        buffer.raw.fill(BLANK);
        let mut count = c_uint::try_from(capacity).unwrap_or(c_uint::MAX);
        // SAFETY: the buffer has room for `count` entries of any known layout, and is aligned for them.
        let code = unsafe { function(device.0, &raw mut count, buffer.raw.as_mut_ptr().cast()) };
        match check(code) {
            Ok(()) => return Ok((count as usize).min(capacity)),
            Err(fault) if fault.is(sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE) => {
                buffer.grow((count as usize).max(capacity));
            }
            Err(fault) => return Err(fault),
        }
    }
    Err(Fault::Code(sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOTAL: u64 = 80 << 30;

    /// Lays entries out as a driver with this entry size does, in a blank buffer.
    fn layout(entries: &[(u32, u64)], stride: usize) -> Vec<u64> {
        let mut bytes = vec![0xFF_u8; (entries.len() + 2) * ROOM];
        for (place, (pid, memory)) in entries.iter().enumerate() {
            let at = place * stride;
            bytes[at..at + 4].copy_from_slice(&pid.to_ne_bytes());
            bytes[at + 4..at + 8].fill(0);
            bytes[at + 8..at + 16].copy_from_slice(&memory.to_ne_bytes());
            if stride >= 24 {
                bytes[at + 16..at + 24].fill(0xFF);
            }
            if stride >= 32 {
                bytes[at + 24..at + 32].fill(0);
            }
        }
        bytes.chunks_exact(8).map(|chunk| u64::from_ne_bytes(chunk.try_into().unwrap())).collect()
    }

    proptest! {
        /// Whatever size of entry the driver really uses, every process comes out.
        #[test]
        fn the_real_entry_size_is_found(
            entries in prop::collection::vec((1_u32..=PID_MAX, prop_oneof![1_u64..=TOTAL, Just(u64::MAX)]), 0..20),
            stride in prop::sample::select(vec![16_usize, 24, 32]),
            version in 0_usize..3,
        ) {
            let mut out = Vec::new();
            decode_best(&layout(&entries, stride), entries.len(), version, Some(TOTAL), &mut out);
            let expected: Vec<_> = entries
                .iter()
                .map(|(pid, memory)| (*pid, (*memory != u64::MAX).then_some(*memory)))
                .collect();
            let found: Vec<_> = out.iter().map(|entry| (entry.pid, entry.memory)).collect();
            prop_assert_eq!(found, expected);
        }

        /// No bytes at all make an impossible process or a panic.
        #[test]
        fn noise_never_becomes_a_process(raw in prop::collection::vec(any::<u64>(), 0..64), count in 0_usize..40) {
            let mut out = Vec::new();
            for version in 0..3 {
                decode_best(&raw, count, version, Some(TOTAL), &mut out);
                for entry in &out {
                    prop_assert!(entry.pid != 0 && entry.pid <= PID_MAX);
                    prop_assert!(entry.memory.is_none_or(|memory| memory <= TOTAL));
                }
            }
        }
    }

    #[test]
    fn garbage_between_good_entries_is_dropped_and_a_process_without_size_is_not() {
        let good = 300 << 20;
        let entries = [(100, good), (0, good), (u32::MAX, good), (7, TOTAL + 1), (200, good)];
        for stride in [16, 24, 32] {
            let mut out = Vec::new();
            decode_best(&layout(&entries, stride), 5, 0, Some(TOTAL), &mut out);
            let found: Vec<_> = out.iter().map(|entry| (entry.pid, entry.memory)).collect();
            assert_eq!(found, [(100, Some(good)), (7, None), (200, Some(good))], "{stride} bytes");
        }
    }

    #[test]
    fn lists_are_merged_by_pid() {
        let entry = |pid, memory| ProcessEntry { pid, memory, compute: false };
        let mut merged = Vec::new();
        merge(&mut merged, &[entry(1, Some(10)), entry(2, None), entry(1, Some(5))], true);
        merge(&mut merged, &[entry(2, Some(7)), entry(3, Some(1))], false);
        assert_eq!(
            merged,
            [
                ProcessEntry { pid: 1, memory: Some(15), compute: true },
                ProcessEntry { pid: 2, memory: Some(7), compute: true },
                ProcessEntry { pid: 3, memory: Some(1), compute: false },
            ]
        );
    }
}
