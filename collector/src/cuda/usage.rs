//! How much of the device's memory this process and others hold.
//!
//! The driver reports only how much memory is free. NVML, its management library, lists the
//! processes that have a context on a device and what each holds. In a container the list is empty
//! or uses process ids of the host; then the one process that appeared when this process opened its
//! context is taken to be this one.
//!
//! If this process cannot be identified in NVML's list, or the feature `nvml` is off, the bytes in
//! use when the device was opened count as other processes' memory and all bytes above them as this
//! process's. Memory that other processes allocate or free later then shows as memory of this
//! process outside the pool.

use std::collections::{BTreeMap, BTreeSet};
use std::process;

use vramscope_pool::DeviceMemory;

use crate::memory::DeviceUsage;

/// Bytes of device memory by process id.
type ProcessBytes = BTreeMap<u32, u64>;

#[cfg(feature = "nvml")]
mod management {
    use nvml_wrapper::Nvml;
    use nvml_wrapper::enums::device::UsedGpuMemory;

    use super::ProcessBytes;

    /// NVML, the driver's management library, which lists the processes that use a device.
    #[derive(Debug)]
    pub(super) struct Management(Nvml);

    impl Management {
        /// Loads the library; `None` if that fails or this build has no NVML.
        pub(super) fn load() -> Option<Self> {
            Nvml::init().ok().map(Self)
        }

        /// Returns the bytes that each process listed by NVML holds on the device with this PCI bus
        /// id; `None` if NVML cannot tell.
        pub(super) fn processes(&self, bus_id: &str) -> Option<ProcessBytes> {
            let bytes = |memory| match memory {
                UsedGpuMemory::Used(bytes) => bytes,
                UsedGpuMemory::Unavailable => 0,
            };
            let listed = self.0.device_by_pci_bus_id(bus_id).ok()?.running_compute_processes().ok()?;
            Some(listed.into_iter().map(|process| (process.pid, bytes(process.used_gpu_memory))).collect())
        }

        /// Returns the bytes in use, by all processes, on the device with this PCI bus id; `None`
        /// if NVML cannot tell.
        pub(super) fn used_bytes(&self, bus_id: &str) -> Option<u64> {
            Some(self.0.device_by_pci_bus_id(bus_id).ok()?.memory_info().ok()?.used)
        }
    }
}

#[cfg(not(feature = "nvml"))]
mod management {
    use super::ProcessBytes;

    /// NVML, the driver's management library, which lists the processes that use a device.
    #[derive(Debug)]
    pub(super) enum Management {}

    impl Management {
        /// Loads the library; `None` if that fails or this build has no NVML.
        pub(super) fn load() -> Option<Self> {
            None
        }

        /// Returns the bytes that each process listed by NVML holds on the device with this PCI bus
        /// id; `None` if NVML cannot tell.
        pub(super) fn processes(&self, _: &str) -> Option<ProcessBytes> {
            match *self {}
        }

        /// Returns the bytes in use, by all processes, on the device with this PCI bus id; `None`
        /// if NVML cannot tell.
        pub(super) fn used_bytes(&self, _: &str) -> Option<u64> {
            match *self {}
        }
    }
}

use management::Management;

/// Measures how many bytes of a device's memory this process and other processes hold.
#[derive(Debug)]
pub(super) struct Usage {
    management: Option<Management>,
    /// The device's PCI bus id, by which NVML identifies it.
    bus_id: String,
    /// The process id under which NVML lists this process.
    process: u32,
    /// Bytes in use when the device was opened.
    others_at_opening_bytes: u64,
}

/// The processes and the bytes in use that NVML reported for a device before this process opened a
/// context there.
#[derive(Debug)]
pub(super) struct UsageBeforeOpening {
    management: Option<Management>,
    bus_id: String,
    processes: BTreeSet<u32>,
    /// Bytes in use; `None` if this process already had a context or NVML is not available.
    used_bytes: Option<u64>,
}

impl UsageBeforeOpening {
    /// Queries NVML about the device with this PCI bus id. If `has_context` is true, this process
    /// already has a context there, and nothing is measured.
    pub(super) fn measure(bus_id: String, has_context: bool) -> Self {
        let management = Management::load();
        let measured = management.as_ref().filter(|_| !has_context).and_then(|management| {
            Some((management.processes(&bus_id)?.keys().copied().collect(), management.used_bytes(&bus_id)?))
        });
        let (processes, used_bytes) =
            measured.map_or_else(Default::default, |(processes, used)| (processes, Some(used)));
        Self { management, bus_id, processes, used_bytes }
    }

    /// Returns the [`Usage`] that measures the device from now on, after this process has opened
    /// its context. Finds out which entry of NVML's list is this process. `memory` is the device's
    /// free and total memory now.
    pub(super) fn opened(self, memory: DeviceMemory) -> Usage {
        let used_bytes = memory.total_bytes - memory.free_bytes;
        let others_at_opening_bytes = self.used_bytes.unwrap_or(used_bytes).min(used_bytes);
        let process = process::id();
        let mut usage = Usage { management: self.management, bus_id: self.bus_id, process, others_at_opening_bytes };
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
    /// Divides the memory in use, according to `memory`, between this process and others. This
    /// process holds at least `own_at_least_bytes`.
    pub(super) fn sample(&self, memory: DeviceMemory, own_at_least_bytes: u64) -> DeviceUsage {
        let listed = self.processes().and_then(|processes| processes.get(&self.process).copied());
        split(memory, listed, own_at_least_bytes, self.others_at_opening_bytes)
    }

    /// Returns the bytes that each process listed by NVML holds on the device; `None` if NVML is
    /// not available or cannot tell.
    fn processes(&self) -> Option<ProcessBytes> {
        self.management.as_ref()?.processes(&self.bus_id)
    }
}

/// Divides the memory in use, according to `memory`, between this process and others. `listed` is
/// what NVML lists for this process; it is ignored if it is 0, less than `own_at_least_bytes`, or
/// more than is in use. Otherwise all above `others_at_opening_bytes` is this process's.
fn split(
    memory: DeviceMemory,
    listed: Option<u64>,
    own_at_least_bytes: u64,
    others_at_opening_bytes: u64,
) -> DeviceUsage {
    let used_bytes = memory.total_bytes.saturating_sub(memory.free_bytes);
    let plausible = listed.filter(|&bytes| bytes > 0 && (own_at_least_bytes..=used_bytes).contains(&bytes));
    let process_bytes = plausible
        .unwrap_or_else(|| used_bytes.saturating_sub(others_at_opening_bytes).max(own_at_least_bytes).min(used_bytes));
    DeviceUsage { process_bytes, other_processes_bytes: used_bytes - process_bytes, free_bytes: memory.free_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_memory_is_divided_among_this_process_and_others() {
        let memory = DeviceMemory { free_bytes: 60, total_bytes: 100 };
        let check = |listed, at_least, at_opening, process_bytes, other_processes_bytes| {
            let expected = DeviceUsage { process_bytes, other_processes_bytes, free_bytes: 60 };
            assert_eq!(split(memory, listed, at_least, at_opening), expected);
        };
        // NVML lists this process.
        check(Some(25), 20, 5, 25, 15);
        // Impossible values: less than the pool's own segments, more than is in use, or 0.
        check(Some(15), 20, 5, 35, 5);
        check(Some(50), 20, 5, 35, 5);
        check(Some(0), 0, 5, 35, 5);
        // NVML does not list this process; other processes freed memory they held at first.
        check(None, 38, 5, 38, 2);
        check(None, 0, 90, 0, 40);
        check(None, 70, 0, 40, 0);
    }
}
