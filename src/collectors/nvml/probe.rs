//! One snapshot of every device, for choosing; and the names of the devices, for logging.

use super::error::{CallResult, Fault, NvmlError};
use super::{Handle, Leaf, Nvml, ProcessBuffer};
use crate::model::device::{
    DeviceIdentity, DeviceMemory, DeviceProcess, DeviceSnapshot, MigPlace, ProbeRequest,
};
use crate::model::id::GpuUuid;
use crate::model::reading::{Known, Reason};

fn known<T>(result: CallResult<T>) -> Known<T> {
    result.map_err(Fault::reason)
}

impl Nvml {
    /// Reads what is asked of every physical GPU and every MIG slice of a GPU in MIG mode, in NVML's order.
    ///
    /// A device that cannot be read stands in the list with the reasons, as does a GPU in MIG mode without slices; it
    /// never keeps others out.
    ///
    /// # Errors
    /// Where the driver does not even count its GPUs.
    pub fn probe(&self, request: &ProbeRequest) -> Result<Vec<DeviceSnapshot>, NvmlError> {
        let mut buffer = ProcessBuffer::default();
        let inventory = self.inventory()?;
        Ok(inventory
            .into_iter()
            .map(|leaf| match leaf {
                Ok(leaf) => self.snapshot(&leaf, request, &mut buffer),
                Err((index, fault)) => unreadable(index, &fault.reason(), request),
            })
            .collect())
    }

    fn snapshot(&self, leaf: &Leaf, request: &ProbeRequest, buffer: &mut ProcessBuffer) -> DeviceSnapshot {
        let device = leaf.handle();
        let uuid = match self.uuid(device) {
            Ok(uuid) => Ok(GpuUuid::new(uuid)),
            // A lost GPU answers nothing else either, and every try may take seconds.
            Err(fault) if fault.is_fatal() => {
                return unreadable(leaf.index, &fault.reason(), request);
            }
            Err(fault) => Err(fault.reason()),
        };
        let memory = (request.memory || request.processes).then(|| self.memory(device));
        let unified = memory
            .as_ref()
            .is_some_and(|memory| leaf.slice.is_none() && self.shares_host_memory(device, memory));
        let total = match &memory {
            Some(Ok(memory)) if !unified && memory.total != 0 => Some(memory.total),
            _ => None,
        };
        let processes = (request.processes || (request.memory && unified))
            .then(|| known(self.processes(device, total, buffer).map(<[_]>::to_vec)));
        let asked_memory = match memory {
            Some(_) if request.memory && unified => self.unified_memory(processes.as_ref()),
            Some(memory) if request.memory => known(memory).and_then(|memory| match memory.total {
                0 => Err(Reason::NotSupported),
                _ => Ok(DeviceMemory {
                    total: memory.total,
                    free: memory.free,
                    used: memory.used,
                    unified: false,
                }),
            }),
            _ => Err(Reason::NotAsked),
        };
        let utilization = match (request.utilization, leaf.slice) {
            (false, _) => Err(Reason::NotAsked),
            // NVML has no utilisation of slices, and the parent's is not theirs.
            (true, Some(_)) => Err(Reason::NotSupported),
            (true, None) => known(self.utilization(device)),
        };
        DeviceSnapshot {
            index: leaf.index,
            mig: leaf.slice.map(|(index, slice)| self.place(index, slice)),
            uuid,
            parent_uuid: leaf.slice.and_then(|_| self.uuid(leaf.parent).ok()).map(GpuUuid::new),
            name: if request.name { known(self.name(device)) } else { Err(Reason::NotAsked) },
            memory: asked_memory,
            gpu_utilization: utilization.as_ref().map(|rates| rates.gpu).map_err(Reason::clone),
            memory_utilization: utilization.map(|rates| rates.memory),
            compute_mode: if request.compute_mode {
                known(self.compute_mode(leaf.parent))
            } else {
                Err(Reason::NotAsked)
            },
            processes: match processes {
                Some(processes) if request.processes => processes.map(|list| {
                    list.into_iter()
                        .map(|entry| DeviceProcess {
                            pid: entry.pid,
                            memory: entry.memory.ok_or(Reason::NotSupported),
                            compute: entry.compute,
                            uid: self.owner(entry.pid),
                        })
                        .collect()
                }),
                _ => Err(Reason::NotAsked),
            },
            facts: if request.facts && leaf.slice.is_none() { self.facts(device) } else { Vec::new() },
        }
    }

    fn place(&self, index: u32, slice: Handle) -> MigPlace {
        MigPlace {
            index,
            gpu_instance: self.gpu_instance(slice),
            compute_instance: self.compute_instance(slice),
        }
    }

    /// The budget of a GPU that shares the host's memory; `used` is what its processes hold.
    fn unified_memory(&self, processes: Option<&Known<Vec<super::ProcessEntry>>>) -> Known<DeviceMemory> {
        let host = known(self.host_memory())?;
        let listed = match processes {
            Some(Ok(list)) => {
                Some(list.iter().filter_map(|entry| entry.memory).fold(0_u64, u64::saturating_add))
            }
            _ => None,
        };
        // Without a list the GPU's part is unknown; what is not available is in use.
        let used = listed.unwrap_or_else(|| host.total.saturating_sub(host.available));
        Ok(DeviceMemory { total: host.total, free: host.available.min(host.total), used, unified: true })
    }

    /// The real uid of a process, where `/proc` knows it.
    fn owner(&self, pid: u32) -> Option<u32> {
        let status = std::fs::read(self.proc_root.join(pid.to_string()).join("status")).ok()?;
        real_uid(&status)
    }

    /// The physical GPU of a slice, as rows name it: power, temperature and clocks are the GPU's, not the slice's.
    ///
    /// # Errors
    /// As the driver answers.
    pub fn parent_identity(&self, slice: &DeviceIdentity) -> CallResult<DeviceIdentity> {
        let parent = self.parent_handle(self.handle_of(slice)?)?;
        Ok(DeviceIdentity {
            index: slice.index,
            mig: None,
            cuda: None,
            uuid: GpuUuid::new(self.uuid(parent)?),
            name: self.name(parent).ok(),
            memory_total: self.memory(parent).ok().map(|memory| memory.total),
            facts: Vec::new(),
        })
    }
}

fn unreadable(index: u32, reason: &Reason, request: &ProbeRequest) -> DeviceSnapshot {
    fn value<T>(asked: bool, reason: &Reason) -> Known<T> {
        Err(if asked { reason.clone() } else { Reason::NotAsked })
    }
    DeviceSnapshot {
        index,
        mig: None,
        uuid: Err(reason.clone()),
        parent_uuid: None,
        name: value(request.name, reason),
        memory: value(request.memory, reason),
        gpu_utilization: value(request.utilization, reason),
        memory_utilization: value(request.utilization, reason),
        compute_mode: value(request.compute_mode, reason),
        processes: value(request.processes, reason),
        facts: Vec::new(),
    }
}

/// The first number after `Uid:` in a `status` file.
fn real_uid(status: &[u8]) -> Option<u32> {
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"))?;
    std::str::from_utf8(line).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_uid_is_the_first() {
        assert_eq!(real_uid(b"Name:\tUid:\nUid:\t1000\t0\t0\t0\nGid:\t1\t1\t1\t1\n"), Some(1000));
        assert_eq!(real_uid(b"Name:\tx\n"), None);
    }
}
