//! The host as a device: segments are anonymous memory maps, so that a machine without a GPU can run real work in the pool.

use std::collections::BTreeMap;
use std::io;

use memmap2::MmapMut;
use vramscope_pool::{Device, DeviceError, DeviceMemory};

/// What segments' addresses are multiples of, as on a GPU.
const SEGMENT_ALIGNMENT: usize = 2 << 20;

/// The memory of this machine, up to a capacity.
#[derive(Debug)]
pub struct HostDevice {
    capacity_bytes: u64,
    used_bytes: u64,
    /// What is reserved, by the address handed out for it.
    maps: BTreeMap<u64, MmapMut>,
}

impl HostDevice {
    /// A device that gives out at most `capacity_bytes`. The operating system provides pages as they are first written.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, used_bytes: 0, maps: BTreeMap::new() }
    }
}

impl Device for HostDevice {
    fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        let used = self.used_bytes.checked_add(bytes).filter(|&used| used <= self.capacity_bytes);
        let used = used.ok_or(DeviceError::OutOfMemory)?;
        let len = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_add(SEGMENT_ALIGNMENT));
        let mut map = MmapMut::map_anon(len.ok_or(DeviceError::OutOfMemory)?).map_err(|error| match error.kind() {
            io::ErrorKind::OutOfMemory => DeviceError::OutOfMemory,
            _ => DeviceError::Failed(error.to_string()),
        })?;
        // Buffers make their pointers out of addresses; exposing says that they may.
        let address = map.as_mut_ptr().expose_provenance().next_multiple_of(SEGMENT_ALIGNMENT) as u64;
        self.maps.insert(address, map);
        self.used_bytes = used;
        Ok(address)
    }

    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        if self.maps.remove(&address).is_none() {
            return Err(DeviceError::Failed(format!("nothing is reserved at {address:#x}")));
        }
        self.used_bytes -= bytes;
        Ok(())
    }

    fn memory(&self) -> DeviceMemory {
        DeviceMemory { free_bytes: self.capacity_bytes - self.used_bytes, total_bytes: self.capacity_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_aligned_and_within_the_capacity() {
        let mut device = HostDevice::new(6 << 20);
        let a = device.reserve(4 << 20).expect("room");
        assert_eq!(a % (2 << 20), 0);
        assert_eq!(device.reserve(4 << 20), Err(DeviceError::OutOfMemory));
        assert_eq!(device.reserve(u64::MAX), Err(DeviceError::OutOfMemory));
        assert_eq!(device.memory(), DeviceMemory { free_bytes: 2 << 20, total_bytes: 6 << 20 });
        device.release(a, 4 << 20).expect("reserved before");
        assert!(device.release(a, 4 << 20).is_err());
        assert_eq!(device.memory().free_bytes, 6 << 20);
    }

    #[test]
    fn more_than_the_machine_can_map_is_out_of_memory() {
        assert_eq!(HostDevice::new(u64::MAX).reserve(1 << 60), Err(DeviceError::OutOfMemory));
    }
}
