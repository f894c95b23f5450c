//! The host's memory as a device, so that programs without a GPU can use the pool. Segments are
//! anonymous memory maps.

use std::collections::BTreeMap;
use std::io;

use memmap2::{MmapMut, MmapOptions};
use vramscope_pool::{Device, DeviceError, DeviceMemory};
use vramscope_trace::StreamId;

/// Alignment of segments and of pages of expandable segments, in bytes; the same as on a GPU.
const SEGMENT_ALIGNMENT: usize = 2 << 20;

/// This machine's memory as a device, up to a capacity. Work runs at once, so streams never wait.
///
/// ```
/// use vramscope_collector::{HostDevice, HostPool, Settings};
/// use vramscope_trace::NullSink;
///
/// let pool = HostPool::new(HostDevice::new(1 << 30), Settings::default(), NullSink, || 0);
/// assert_eq!(pool.mem_get_info().total_bytes, 1 << 30);
/// ```
#[derive(Debug)]
pub struct HostDevice {
    number: u16,
    capacity_bytes: u64,
    used_bytes: u64,
    /// Segments by address.
    maps: BTreeMap<u64, MmapMut>,
    /// Address ranges of expandable segments, by address.
    ranges: BTreeMap<u64, Range>,
}

/// A reserved address range. The operating system provides memory when a page is first written;
/// `mapped` says which pages count as used.
#[derive(Debug)]
struct Range {
    bytes: u64,
    map: MmapMut,
    /// Sizes of mapped pages, by address.
    mapped: BTreeMap<u64, u64>,
}

impl HostDevice {
    /// Creates device 0 with a capacity of `capacity_bytes`. The operating system provides pages
    /// when they are first written.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Self { number: 0, capacity_bytes, used_bytes: 0, maps: BTreeMap::new(), ranges: BTreeMap::new() }
    }

    /// Returns the device with another device number, to simulate a machine with several GPUs.
    #[must_use]
    pub fn with_number(self, number: u16) -> Self {
        Self { number, ..self }
    }

    /// Returns the device number, which identifies it in recordings.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Returns the bytes in use after allocating `bytes` more, or out of memory if that exceeds the
    /// capacity.
    fn used_with(&self, bytes: u64) -> Result<u64, DeviceError> {
        let used = self.used_bytes.checked_add(bytes).filter(|&used| used <= self.capacity_bytes);
        used.ok_or(DeviceError::OutOfMemory)
    }

    /// Returns the reserved range that contains the `bytes` addresses from `address` on. Fails
    /// unless these are whole pages of `page_bytes` in one range.
    fn range_of(&mut self, address: u64, bytes: u64, page_bytes: u64) -> Result<&mut Range, DeviceError> {
        let whole = bytes > 0 && page_bytes > 0 && page_bytes.is_multiple_of(SEGMENT_ALIGNMENT as u64);
        let range = self.ranges.range_mut(..=address).next_back().filter(|(start, range)| {
            let offset = address - **start;
            whole
                && bytes.is_multiple_of(page_bytes)
                && offset.is_multiple_of(page_bytes)
                && bytes <= range.bytes.saturating_sub(offset)
        });
        let error =
            || format!("{bytes} bytes at {address:#x} are not whole pages of {page_bytes} bytes in a reserved range");
        range.map(|(_, range)| range).ok_or_else(|| DeviceError::Failed(error()))
    }
}

/// Reserves `bytes` from the operating system. Returns the first address in it that is aligned to
/// [`SEGMENT_ALIGNMENT`], and the memory map, whose drop releases it.
fn map_aligned(bytes: u64, options: &mut MmapOptions) -> Result<(u64, MmapMut), DeviceError> {
    let len = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_add(SEGMENT_ALIGNMENT));
    let mut map = options.len(len.ok_or(DeviceError::OutOfMemory)?).map_anon().map_err(|error| match error.kind() {
        io::ErrorKind::OutOfMemory => DeviceError::OutOfMemory,
        _ => DeviceError::Failed(error.to_string()),
    })?;
    // Buffers are created from addresses, so the pointer's provenance must be exposed.
    let address = map.as_mut_ptr().expose_provenance().next_multiple_of(SEGMENT_ALIGNMENT) as u64;
    Ok((address, map))
}

/// Returns the memory of the `bytes` addresses from `address` on to the operating system; later
/// reads give zeros.
fn release_pages(map: &mut MmapMut, address: u64, bytes: u64) -> Result<(), DeviceError> {
    let offset = address as usize - map.as_ptr().addr();
    #[cfg(unix)]
    // SAFETY: The pool unmaps only pages without live blocks, so no pointer into them is used
    // again.
    let released = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, bytes as usize) };
    // Other systems lack this call, and keep the memory.
    #[cfg(not(unix))]
    let released: io::Result<()> = Ok(map[offset..offset + bytes as usize].fill(0));
    released.map_err(|error| DeviceError::Failed(error.to_string()))
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
            return Err(DeviceError::Failed(format!("no segment is reserved at {address:#x}")));
        }
        self.used_bytes -= bytes;
        Ok(())
    }

    fn memory(&self) -> DeviceMemory {
        DeviceMemory { free_bytes: self.capacity_bytes - self.used_bytes, total_bytes: self.capacity_bytes }
    }

    fn reserve_addresses(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        // An expandable segment reserves more addresses than the machine has memory, so no swap
        // space may be reserved for it.
        let (address, map) = map_aligned(bytes, MmapOptions::new().no_reserve_swap())?;
        self.ranges.insert(address, Range { bytes, map, mapped: BTreeMap::new() });
        Ok(address)
    }

    fn release_addresses(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let range = self.ranges.get(&address).filter(|range| range.bytes == bytes);
        let range = range
            .ok_or_else(|| DeviceError::Failed(format!("no range of {bytes} bytes is reserved at {address:#x}")))?;
        if let Some(page) = range.mapped.keys().next() {
            return Err(DeviceError::Failed(format!("the range still has mapped memory at {page:#x}")));
        }
        self.ranges.remove(&address);
        Ok(())
    }

    fn map(&mut self, address: u64, bytes: u64, page_bytes: u64) -> Result<(), DeviceError> {
        let used = self.used_with(bytes);
        let range = self.range_of(address, bytes, page_bytes)?;
        if let Some((page, _)) = range.mapped.range(address..address + bytes).next() {
            return Err(DeviceError::Failed(format!("memory is already mapped at {page:#x}")));
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
            return Err(DeviceError::Failed(format!("{bytes} bytes at {address:#x} are not completely mapped")));
        }
        release_pages(&mut range.map, address, bytes)?;
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
        let a = device.reserve(4 << 20).expect("the device is large enough");
        assert_eq!(a % (2 << 20), 0);
        assert_eq!(device.reserve(4 << 20), Err(DeviceError::OutOfMemory));
        assert_eq!(device.reserve(u64::MAX), Err(DeviceError::OutOfMemory));
        assert_eq!(device.memory(), DeviceMemory { free_bytes: 2 << 20, total_bytes: 6 << 20 });
        device.release(a, 4 << 20).expect("the segment is reserved");
        assert!(device.release(a, 4 << 20).is_err());
        assert_eq!(device.memory().free_bytes, 6 << 20);
    }

    #[test]
    fn mapping_more_than_the_machine_can_is_out_of_memory() {
        assert_eq!(HostDevice::new(u64::MAX).reserve(1 << 60), Err(DeviceError::OutOfMemory));
    }
}
