//! The host's memory as a device, so that programs without a GPU can use the pool. Segments are
//! anonymous memory maps.

use std::collections::BTreeMap;
use std::io;

use memmap2::{MmapOptions, MmapRaw};
use vramscope_pool::{Device, DeviceError, DeviceMemory};
use vramscope_trace::StreamId;

/// Alignment of segments and of pages of expandable segments, in bytes: 2 MiB, as on a GPU.
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
    maps: BTreeMap<u64, MmapRaw>,
    /// Address ranges of expandable segments, by address.
    ranges: BTreeMap<u64, ReservedRange>,
}

/// The reserved address range of an expandable segment. The operating system provides memory when a
/// page is first written; `mapped` says which pages count as used.
#[derive(Debug)]
struct ReservedRange {
    bytes: u64,
    /// Raw, because a reference to the map would overlap those to the buffers in it.
    map: MmapRaw,
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

    /// Returns this device with device number `number` instead of 0, to simulate a machine with
    /// several GPUs.
    #[must_use]
    pub fn with_number(self, number: u16) -> Self {
        Self { number, ..self }
    }

    /// Returns the device number, which identifies the device in recordings.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// Returns the bytes in use after another `bytes` are allocated, or an out-of-memory error if
    /// that exceeds the capacity.
    fn used_with(&self, bytes: u64) -> Result<u64, DeviceError> {
        let used = self.used_bytes.checked_add(bytes).filter(|&used| used <= self.capacity_bytes);
        used.ok_or(DeviceError::OutOfMemory)
    }

    /// Returns the reserved range that contains the `bytes` addresses from `address` on. Returns an
    /// error unless they are whole pages of `page_bytes` in one range.
    fn range_of(&mut self, address: u64, bytes: u64, page_bytes: u64) -> Result<&mut ReservedRange, DeviceError> {
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

/// Maps at least `bytes` of anonymous memory, with `options`. Returns the first address in it that
/// is aligned to [`SEGMENT_ALIGNMENT`], and the memory map, whose drop releases it.
fn map_aligned(bytes: u64, options: &mut MmapOptions) -> Result<(u64, MmapRaw), DeviceError> {
    let len = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_add(SEGMENT_ALIGNMENT));
    let map = options.len(len.ok_or(DeviceError::OutOfMemory)?).map_anon().map_err(|error| match error.kind() {
        io::ErrorKind::OutOfMemory => DeviceError::OutOfMemory,
        _ => DeviceError::Failed(error.to_string()),
    })?;
    let map = MmapRaw::from(map);
    // Buffers are created from addresses, so the pointer's provenance must be exposed.
    let address = map.as_mut_ptr().expose_provenance().next_multiple_of(SEGMENT_ALIGNMENT) as u64;
    Ok((address, map))
}

/// Fills the `bytes` addresses from `address` on with zeros. On Linux, also returns their memory to
/// the operating system; other systems have no call that does both, and keep the memory.
///
/// # Safety
/// The addresses are in `map`, and nothing uses their memory.
unsafe fn release_pages(map: &MmapRaw, address: u64, bytes: u64) -> Result<(), DeviceError> {
    let (offset, len) = (address as usize - map.as_ptr().addr(), bytes as usize);
    #[cfg(target_os = "linux")]
    {
        // SAFETY: The caller guarantees that the addresses are in the map and that nothing uses
        // their memory. An anonymous private map has zeros after this call.
        let released = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, len) };
        released.map_err(|error| DeviceError::Failed(error.to_string()))
    }
    #[cfg(not(target_os = "linux"))]
    {
        // SAFETY: The caller guarantees that the addresses are in the map, which is writable, and
        // that nothing uses their memory. `as_mut_ptr` creates no reference to the map.
        unsafe { map.as_mut_ptr().add(offset).write_bytes(0, len) };
        Ok(())
    }
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
        self.ranges.insert(address, ReservedRange { bytes, map, mapped: BTreeMap::new() });
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
        // SAFETY: `range_of` has checked that the addresses are in this range's map. The pool
        // unmaps only pages without live blocks, and a buffer exists only while its block is live,
        // so nothing uses the memory.
        unsafe { release_pages(&range.map, address, bytes) }?;
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
    fn unmapped_pages_are_zero_when_mapped_again() {
        const PAGE: u64 = 2 << 20;
        let mut device = HostDevice::new(4 * PAGE);
        let start = device.reserve_addresses(4 * PAGE).expect("the machine has enough addresses");
        device.map(start, 3 * PAGE, PAGE).expect("the device is large enough");
        let memory = std::ptr::with_exposed_provenance_mut::<u8>(start as usize);
        // SAFETY: The pages are mapped, and only this test uses them.
        unsafe { memory.write_bytes(7, 3 * PAGE as usize) };
        device.unmap(start + PAGE, PAGE, PAGE, StreamId(0)).expect("the page is mapped");
        device.map(start + PAGE, PAGE, PAGE).expect("the device is large enough");
        // SAFETY: The pages are mapped, were written, and only this test uses them.
        let numbers = unsafe { std::slice::from_raw_parts(memory, 3 * PAGE as usize) };
        for (page, expected) in numbers.chunks(PAGE as usize).zip([7, 0, 7]) {
            assert!(page.iter().all(|&byte| byte == expected), "a page of {expected}");
        }
    }

    #[test]
    fn mapping_more_than_the_machine_can_is_out_of_memory() {
        assert_eq!(HostDevice::new(u64::MAX).reserve(1 << 60), Err(DeviceError::OutOfMemory));
    }
}
