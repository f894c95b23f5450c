//! Who holds the device's memory: this process or others.
//!
//! The driver says only how much is free. Who holds the rest is told by its management library, NVML, which lists the processes that
//! have a context on a device. In a container it lists none, or by numbers that mean nothing inside; so this also looks for the one
//! process that appeared in the list when our context was made. Where neither finds this process, what was in use when the device was
//! opened is taken to be what others hold, and everything above it to be ours: the band of others then stays as it was, and what
//! others take or give back later is shown as held by this process outside the pool.

use std::collections::BTreeSet;
use std::process;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use vramscope_pool::DeviceMemory;

use crate::memory::DeviceUsage;

/// Tells what processes hold.
#[derive(Debug)]
pub(super) struct Usage {
    nvml: Option<Nvml>,
    /// By which NVML knows the device.
    bus_id: String,
    /// The number under which NVML may list this process.
    process: u32,
    /// What was in use when the device was opened.
    others_at_opening_bytes: u64,
}

/// What was to be seen before this process had a context on the device.
#[derive(Debug)]
pub(super) struct Before {
    nvml: Option<Nvml>,
    bus_id: String,
    processes: BTreeSet<u32>,
    /// Nothing where this process had a context already, or where there is no NVML.
    used_bytes: Option<u64>,
}

impl Before {
    /// Looks at the device with that bus id, on which this process `has_context` already or has not.
    pub(super) fn look(bus_id: String, has_context: bool) -> Self {
        let nvml = Nvml::init().ok();
        let looked = nvml.as_ref().filter(|_| !has_context).and_then(|nvml| {
            let device = nvml.device_by_pci_bus_id(&*bus_id).ok()?;
            Some((processes(&device).ok()?.keys().copied().collect(), device.memory_info().ok()?.used))
        });
        let (processes, used_bytes) = looked.map_or_else(Default::default, |(processes, used)| (processes, Some(used)));
        Self { nvml, bus_id, processes, used_bytes }
    }

    /// The same once there is a context, by which the driver says `memory`.
    pub(super) fn opened(self, memory: DeviceMemory) -> Usage {
        let used_bytes = memory.total_bytes - memory.free_bytes;
        let others_at_opening_bytes = self.used_bytes.unwrap_or(used_bytes).min(used_bytes);
        let mut usage = Usage { nvml: self.nvml, bus_id: self.bus_id, process: process::id(), others_at_opening_bytes };
        if self.used_bytes.is_some()
            && let Some(now) = usage.processes()
            && !now.contains_key(&usage.process)
        {
            let mut new = now.keys().filter(|process| !self.processes.contains(process));
            if let (Some(&process), None) = (new.next(), new.next()) {
                usage.process = process;
            }
        }
        usage
    }
}

impl Usage {
    /// Who holds what of `memory`, where this process surely holds `ours_at_least_bytes`.
    pub(super) fn sample(&self, memory: DeviceMemory, ours_at_least_bytes: u64) -> DeviceUsage {
        let listed = self.processes().and_then(|processes| processes.get(&self.process).copied());
        split(memory, listed, ours_at_least_bytes, self.others_at_opening_bytes)
    }

    fn processes(&self) -> Option<Processes> {
        let device = self.nvml.as_ref()?.device_by_pci_bus_id(&*self.bus_id).ok()?;
        processes(&device).ok()
    }
}

/// Bytes held by the processes that NVML lists.
type Processes = std::collections::BTreeMap<u32, u64>;

fn processes(device: &Device<'_>) -> Result<Processes, NvmlError> {
    let known = |memory| match memory {
        UsedGpuMemory::Used(bytes) => bytes,
        UsedGpuMemory::Unavailable => 0,
    };
    let listed = device.running_compute_processes()?;
    Ok(listed.into_iter().map(|process| (process.pid, known(process.used_gpu_memory))).collect())
}

/// Divides what is in use. What is `listed` for this process is believed where it can be true.
fn split(
    memory: DeviceMemory,
    listed: Option<u64>,
    ours_at_least_bytes: u64,
    others_at_opening_bytes: u64,
) -> DeviceUsage {
    let used_bytes = memory.total_bytes.saturating_sub(memory.free_bytes);
    let believed = listed.filter(|&bytes| bytes > 0 && (ours_at_least_bytes..=used_bytes).contains(&bytes));
    let process_bytes = believed
        .unwrap_or_else(|| used_bytes.saturating_sub(others_at_opening_bytes).max(ours_at_least_bytes).min(used_bytes));
    DeviceUsage { process_bytes, other_processes_bytes: used_bytes - process_bytes, free_bytes: memory.free_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_is_divided() {
        let memory = DeviceMemory { free_bytes: 60, total_bytes: 100 };
        let check = |listed, at_least, at_opening, ours, others| {
            let expected = DeviceUsage { process_bytes: ours, other_processes_bytes: others, free_bytes: 60 };
            assert_eq!(split(memory, listed, at_least, at_opening), expected);
        };
        // As listed.
        check(Some(25), 20, 5, 25, 15);
        // Another's number, or one that was not told.
        check(Some(15), 20, 5, 35, 5);
        check(Some(50), 20, 5, 35, 5);
        check(Some(0), 0, 5, 35, 5);
        // Others gave back what they held at first.
        check(None, 38, 5, 38, 2);
        check(None, 0, 90, 0, 40);
        check(None, 70, 0, 40, 0);
    }
}
