//! Expandable segments: reserved addresses, and memory mapped behind them page by page.

use std::collections::BTreeMap;
use std::mem;

use cudarc::driver::{DriverError, sys};
use vramscope_pool::DeviceError;

use super::error::{device_error, of_call};

/// The reserved address ranges and mapped pages of one device. Every method needs the device's
/// context to be current.
#[derive(Debug)]
pub(super) struct Pages {
    device: sys::CUdevice,
    /// True if other devices, such as network cards, may access the memory.
    remote_access: bool,
    /// Alignment of page sizes and addresses.
    granularity: u64,
    /// Bytes of reserved ranges by address.
    ranges: BTreeMap<u64, u64>,
    /// Mapped pages by address.
    mapped: BTreeMap<u64, Page>,
}

/// Physical memory from `cuMemCreate`: its size and its handle.
#[derive(Clone, Copy, Debug)]
struct Page {
    bytes: u64,
    handle: sys::CUmemGenericAllocationHandle,
}

impl Pages {
    /// Creates an empty set of ranges and pages. Returns an error if the device has no virtual
    /// memory management.
    pub(super) fn new(device: sys::CUdevice) -> Result<Self, DeviceError> {
        use sys::CUdevice_attribute_enum as Attribute;
        if attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)? == 0 {
            let reason = "the device has no virtual memory management, which expandable segments need";
            return Err(DeviceError::Failed(reason.to_owned()));
        }
        let remote_access =
            attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)? != 0;
        let mut pages =
            Self { device, remote_access, granularity: 0, ranges: BTreeMap::new(), mapped: BTreeMap::new() };
        let mut granularity = 0;
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: The driver reads a description and writes a number, both valid for the call.
        let status = unsafe { sys::cuMemGetAllocationGranularity(&mut granularity, &pages.properties(), minimum) };
        of_call("cuMemGetAllocationGranularity", status.result())?;
        pages.granularity = granularity as u64;
        Ok(pages)
    }

    /// Reserves a range of `bytes` addresses without memory behind it (`cuMemAddressReserve`), and
    /// returns its first address.
    pub(super) fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.check_multiple(bytes)?;
        let mut address = 0;
        // SAFETY: The driver writes to a valid variable and chooses addresses that nothing else
        // uses.
        let status = unsafe { sys::cuMemAddressReserve(&mut address, bytes as usize, self.granularity as usize, 0, 0) };
        of_call("cuMemAddressReserve", status.result())?;
        self.ranges.insert(address, bytes);
        Ok(address)
    }

    /// Gives back the whole range of `bytes` addresses at `address` that [`reserve`](Self::reserve)
    /// returned. Returns an error if memory is still mapped in it.
    pub(super) fn release(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        if self.ranges.get(&address) != Some(&bytes) {
            return Err(DeviceError::Failed(format!("no range of {bytes} bytes is reserved at {address:#x}")));
        }
        if let Some((page, _)) = self.mapped.range(address..address + bytes).next() {
            return Err(DeviceError::Failed(format!("the range still has mapped memory at {page:#x}")));
        }
        // SAFETY: `ranges` shows that the addresses were reserved as this range, and `mapped` that
        // nothing is mapped there.
        of_call("cuMemAddressFree", unsafe { sys::cuMemAddressFree(address, bytes as usize) }.result())?;
        self.ranges.remove(&address);
        Ok(())
    }

    /// Creates pages of `page_bytes` each and maps them to the `bytes` addresses from `address` on.
    /// If one page fails, none is mapped.
    pub(super) fn map(&mut self, address: u64, bytes: u64, page_bytes: u64) -> Result<(), DeviceError> {
        self.check_pages(address, bytes, page_bytes)?;
        if let Some((page, _)) = self.mapped.range(address..address + bytes).next() {
            return Err(DeviceError::Failed(format!("memory is already mapped at {page:#x}")));
        }
        let mut pages = Vec::new();
        for _ in 0..bytes / page_bytes {
            match self.create(page_bytes) {
                Ok(page) => pages.push(page),
                Err(error) => {
                    release_all(&pages);
                    return Err(device_error("cuMemCreate", error));
                }
            }
        }
        if let Err(error) = self.map_all(address, &pages) {
            release_all(&pages);
            return Err(error);
        }
        self.mapped.extend(addresses(address, page_bytes).zip(pages));
        Ok(())
    }

    /// Unmaps and releases all pages, of `page_bytes` each, in the `bytes` addresses from `address`
    /// on. If one page fails, all stay mapped. No work may use them.
    pub(super) fn unmap(&mut self, address: u64, bytes: u64, page_bytes: u64) -> Result<(), DeviceError> {
        self.check_pages(address, bytes, page_bytes)?;
        let pages: Vec<Page> = self.mapped.range(address..address + bytes).map(|(_, &page)| page).collect();
        // The range has room for exactly this many pages of this size, all aligned to it, so no
        // page is missing if the count is right.
        if pages.len() as u64 != bytes / page_bytes || pages.iter().any(|page| page.bytes != page_bytes) {
            return Err(DeviceError::Failed(format!("{bytes} bytes at {address:#x} are not completely mapped")));
        }
        for (done, at) in addresses(address, page_bytes).take(pages.len()).enumerate() {
            if let Err(error) = unmap_page(at, page_bytes) {
                // A page keeps its content until its handle is released. If it cannot be mapped
                // again either, the context is broken.
                let _ = self.map_all(address, &pages[..done]);
                return Err(device_error("cuMemUnmap", error));
            }
        }
        release_all(&pages);
        self.mapped.retain(|at, _| !(address..address + bytes).contains(at));
        Ok(())
    }

    /// Unmaps and releases all pages and gives back all address ranges.
    pub(super) fn destroy(&mut self) {
        // If a call fails, the driver has shut down and released the memory.
        for (address, page) in mem::take(&mut self.mapped) {
            let _ = unmap_page(address, page.bytes);
            release_all(&[page]);
        }
        for (address, bytes) in mem::take(&mut self.ranges) {
            // SAFETY: `ranges` has only addresses that were reserved and not yet given back, and
            // all pages were unmapped above.
            let _ = unsafe { sys::cuMemAddressFree(address, bytes as usize) };
        }
    }

    /// Returns an error unless `bytes` is a positive multiple of the device's page size.
    fn check_multiple(&self, bytes: u64) -> Result<(), DeviceError> {
        if bytes == 0 || !bytes.is_multiple_of(self.granularity) {
            let reason = format!("{bytes} bytes are not a multiple of the device's page size, {}", self.granularity);
            return Err(DeviceError::Failed(reason));
        }
        Ok(())
    }

    /// Returns an error unless the `bytes` addresses from `address` on are whole pages of
    /// `page_bytes` inside one reserved range. All pages of a range have one size, and the driver
    /// rejects overlapping ones.
    fn check_pages(&self, address: u64, bytes: u64, page_bytes: u64) -> Result<(), DeviceError> {
        self.check_multiple(page_bytes)?;
        let range = self.ranges.range(..=address).next_back();
        let inside = range.is_some_and(|(&start, &length)| {
            let offset = address - start;
            bytes > 0
                && bytes.is_multiple_of(page_bytes)
                && offset.is_multiple_of(page_bytes)
                && bytes <= length.saturating_sub(offset)
        });
        if !inside {
            let reason =
                format!("{bytes} bytes at {address:#x} are not whole pages of {page_bytes} bytes in a reserved range");
            return Err(DeviceError::Failed(reason));
        }
        Ok(())
    }

    /// Allocates a page of `bytes` of physical memory on the device, not mapped to any address.
    fn create(&self, bytes: u64) -> Result<Page, DriverError> {
        let mut handle = 0;
        // SAFETY: The driver reads a description and writes a handle, both valid for the call.
        unsafe { sys::cuMemCreate(&mut handle, bytes as usize, &self.properties(), 0) }.result()?;
        Ok(Page { bytes, handle })
    }

    /// Maps consecutive pages of equal size from `address` on, readable and writable for the
    /// device. If one page fails, none is mapped.
    fn map_all(&self, address: u64, pages: &[Page]) -> Result<(), DeviceError> {
        let Some(first) = pages.first() else { return Ok(()) };
        let unmap_first = |count: usize| {
            // No work has used these pages yet. An error is ignored: nothing more can be done.
            for at in addresses(address, first.bytes).take(count) {
                let _ = unmap_page(at, first.bytes);
            }
        };
        for (done, (at, page)) in addresses(address, first.bytes).zip(pages).enumerate() {
            // SAFETY: The addresses are reserved and free, as the callers have checked; the handle
            // belongs to this object.
            if let Err(error) = unsafe { sys::cuMemMap(at, page.bytes as usize, 0, page.handle, 0) }.result() {
                unmap_first(done);
                return Err(device_error("cuMemMap", error));
            }
        }
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location: self.location(), flags };
        let bytes = first.bytes * pages.len() as u64;
        // SAFETY: The whole range was just mapped; the description is valid for the call.
        if let Err(error) = unsafe { sys::cuMemSetAccess(address, bytes as usize, &access, 1) }.result() {
            unmap_first(pages.len());
            return Err(device_error("cuMemSetAccess", error));
        }
        Ok(())
    }

    /// Returns the driver's description of where the pages' physical memory is: on this device.
    fn location(&self) -> sys::CUmemLocation {
        // Since CUDA 13.2 the second field is in a union, which does not change the layout.
        // SAFETY: In every version of CUDA a location is two C ints, a type and a number; type 1 is
        // a device.
        unsafe { mem::transmute::<[i32; 2], sys::CUmemLocation>([1, self.device]) }
    }

    /// Returns the driver's description of the physical memory to create for pages.
    fn properties(&self) -> sys::CUmemAllocationProp {
        // SAFETY: All zeros are a valid description: numbers, null pointers, and enumerations that
        // have a 0.
        let mut properties: sys::CUmemAllocationProp = unsafe { mem::zeroed() };
        properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = self.location();
        properties.allocFlags.gpuDirectRDMACapable = self.remote_access.into();
        properties
    }
}

/// Returns the addresses of consecutive pages from `address` on; the iterator has no end.
fn addresses(address: u64, page_bytes: u64) -> impl Iterator<Item = u64> {
    (0..).map(move |page| address + page * page_bytes)
}

/// Unmaps the page of `bytes` at `address`; its physical memory stays until its handle is released.
fn unmap_page(address: u64, bytes: u64) -> Result<(), DriverError> {
    // SAFETY: The callers pass only pages of this size that `Pages` has mapped at this address; the
    // pool guarantees that no work uses them.
    unsafe { sys::cuMemUnmap(address, bytes as usize) }.result()
}

/// Releases the physical memory of pages that are not mapped to any address.
fn release_all(pages: &[Page]) {
    for page in pages {
        // SAFETY: The handle belongs to this object and is not used again, whatever the call
        // returns.
        let _ = unsafe { sys::cuMemRelease(page.handle) };
    }
}

/// Returns the value of attribute `which` of a device.
fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<i32, DeviceError> {
    let mut value = 0;
    // SAFETY: The driver writes to a valid variable, and rejects a handle that means no device.
    of_call("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) }.result())?;
    Ok(value)
}
