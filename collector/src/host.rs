//! The host as a device: segments are anonymous memory maps, so that a machine without a GPU can run real work in the pool.

use std::collections::BTreeMap;
use std::io;

use memmap2::{MmapMut, MmapOptions};
use vramscope_pool::{Device, DeviceError, DeviceMemory};
use vramscope_trace::StreamId;

/// What segments' addresses are multiples of, and pages of expandable ones too, as on a GPU.
const SEGMENT_ALIGNMENT: usize = 2 << 20;

/// The memory of this machine, up to a capacity. Work on it is done at once, so that events in its streams pass at once.
#[derive(Debug)]
pub struct HostDevice {
    number: u16,
    capacity_bytes: u64,
    used_bytes: u64,
    /// What is reserved, by the address handed out for it.
    maps: BTreeMap<u64, MmapMut>,
    /// What expandable segments lie in, by the address handed out for it.
    ranges: BTreeMap<u64, Range>,
}

/// Reserved addresses. The operating system provides memory behind each as it is first written; which of it counts is kept here.
#[derive(Debug)]
struct Range {
    bytes: u64,
    map: MmapMut,
    /// Bytes of the pages that count as mapped, by address.
    mapped: BTreeMap<u64, u64>,
}

impl HostDevice {
    /// A device that gives out at most `capacity_bytes`. The operating system provides pages as they are first written.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Self { number: 0, capacity_bytes, used_bytes: 0, maps: BTreeMap::new(), ranges: BTreeMap::new() }
    }

    /// The same as a device of another number than 0: several stand for the several GPUs of a machine.
    #[must_use]
    pub fn with_number(self, number: u16) -> Self {
        Self { number, ..self }
    }

    /// Its number.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// What would be in use with `bytes` more.
    fn used_with(&self, bytes: u64) -> Result<u64, DeviceError> {
        let used = self.used_bytes.checked_add(bytes).filter(|&used| used <= self.capacity_bytes);
        used.ok_or(DeviceError::OutOfMemory)
    }

    /// The range that a whole number of pages lies in.
    fn range_of(&mut self, address: u64, bytes: u64, page_bytes: u64) -> Result<&mut Range, DeviceError> {
        let whole = bytes > 0 && page_bytes > 0 && page_bytes.is_multiple_of(SEGMENT_ALIGNMENT as u64);
        let range = self.ranges.range_mut(..=address).next_back().filter(|(start, range)| {
            let offset = address - **start;
            whole
                && bytes.is_multiple_of(page_bytes)
                && offset.is_multiple_of(page_bytes)
                && bytes <= range.bytes.saturating_sub(offset)
        });
        let lost = || format!("{bytes} bytes at {address:#x} are no pages of {page_bytes} in reserved addresses");
        range.map(|(_, range)| range).ok_or_else(|| DeviceError::Failed(lost()))
    }
}

/// Maps room for `bytes` that begin at a multiple of [`SEGMENT_ALIGNMENT`], and says where they begin.
fn map_aligned(bytes: u64, options: &mut MmapOptions) -> Result<(u64, MmapMut), DeviceError> {
    let len = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_add(SEGMENT_ALIGNMENT));
    let mut map = options.len(len.ok_or(DeviceError::OutOfMemory)?).map_anon().map_err(|error| match error.kind() {
        io::ErrorKind::OutOfMemory => DeviceError::OutOfMemory,
        _ => DeviceError::Failed(error.to_string()),
    })?;
    // Buffers make their pointers out of addresses; exposing says that they may.
    let address = map.as_mut_ptr().expose_provenance().next_multiple_of(SEGMENT_ALIGNMENT) as u64;
    Ok((address, map))
}

/// Gives the memory behind a stretch back to the operating system; what is read there later is zeros.
fn give_back(map: &mut MmapMut, address: u64, bytes: u64) -> Result<(), DeviceError> {
    let offset = address as usize - map.as_ptr().addr();
    #[cfg(unix)]
    // SAFETY: The pool takes pages back in which no block is live, so that nobody has a pointer into them that is used again.
    let given = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, bytes as usize) };
    // Where there is no such call the memory stays.
    #[cfg(not(unix))]
    let given: io::Result<()> = Ok(map[offset..offset + bytes as usize].fill(0));
    given.map_err(|error| DeviceError::Failed(error.to_string()))
}

impl Device for HostDevice {
    fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        let used = self.used_with(bytes)?;
        let (address, map) = map_aligned(bytes, &mut MmapOptions::new())?;
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

    fn reserve_addresses(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        // More than the machine has, and never all of it written: the operating system is not to set anything aside for it.
        let (address, map) = map_aligned(bytes, MmapOptions::new().no_reserve_swap())?;
        self.ranges.insert(address, Range { bytes, map, mapped: BTreeMap::new() });
        Ok(address)
    }

    fn release_addresses(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let range = self.ranges.get(&address).filter(|range| range.bytes == bytes);
        let range = range.ok_or_else(|| {
            DeviceError::Failed(format!("no {bytes} bytes of addresses are reserved at {address:#x}"))
        })?;
        if let Some(page) = range.mapped.keys().next() {
            return Err(DeviceError::Failed(format!("there is still memory at {page:#x}")));
        }
        self.ranges.remove(&address);
        Ok(())
    }

    fn map(&mut self, address: u64, bytes: u64, page_bytes: u64) -> Result<(), DeviceError> {
        let used = self.used_with(bytes);
        let range = self.range_of(address, bytes, page_bytes)?;
        if let Some((page, _)) = range.mapped.range(address..address + bytes).next() {
            return Err(DeviceError::Failed(format!("there is memory at {page:#x} already")));
        }
        let used = used?;
        let pages = (0..bytes / page_bytes).map(|page| (address + page * page_bytes, page_bytes));
        range.mapped.extend(pages);
        self.used_bytes = used;
        Ok(())
    }

    fn unmap(&mut self, address: u64, bytes: u64, page_bytes: u64, _: StreamId) -> Result<(), DeviceError> {
        let range = self.range_of(address, bytes, page_bytes)?;
        let pages = || range.mapped.range(address..address + bytes);
        if pages().count() as u64 != bytes / page_bytes || pages().any(|(_, &page)| page != page_bytes) {
            return Err(DeviceError::Failed(format!("not all of {bytes} bytes at {address:#x} is mapped")));
        }
        give_back(&mut range.map, address, bytes)?;
        range.mapped.retain(|page, _| !(address..address + bytes).contains(page));
        self.used_bytes -= bytes;
        Ok(())
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
