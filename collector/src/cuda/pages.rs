//! Expandable segments: reserved addresses, and memory mapped behind them page by page.

use std::collections::BTreeMap;
use std::mem;

use cudarc::driver::{DriverError, sys};
use vramscope_pool::DeviceError;

use super::error::refused;

/// The addresses and pages of one device. Every method is called with the device's context current.
#[derive(Debug)]
pub(super) struct Pages {
    device: sys::CUdevice,
    /// Whether other devices on the bus, network cards above all, may be let into the memory.
    remote_access: bool,
    /// What page sizes and addresses are multiples of.
    granularity: u64,
    /// Bytes of reserved addresses, by the first.
    ranges: BTreeMap<u64, u64>,
    /// What is mapped, by its first address.
    mapped: BTreeMap<u64, Page>,
}

#[derive(Clone, Copy, Debug)]
struct Page {
    bytes: u64,
    handle: sys::CUmemGenericAllocationHandle,
}

impl Pages {
    pub(super) fn new(device: sys::CUdevice) -> Result<Self, DeviceError> {
        use sys::CUdevice_attribute_enum as Attribute;
        if attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED)? == 0 {
            let reason = "it has no virtual memory management, which expandable segments need";
            return Err(DeviceError::Failed(reason.to_owned()));
        }
        let remote_access =
            attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)? != 0;
        let mut pages =
            Self { device, remote_access, granularity: 0, ranges: BTreeMap::new(), mapped: BTreeMap::new() };
        let mut granularity = 0;
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: The driver reads a description and writes a number, both there for the call.
        let asked = unsafe { sys::cuMemGetAllocationGranularity(&mut granularity, &pages.properties(), minimum) };
        asked.result().map_err(|error| refused("cuMemGetAllocationGranularity", error))?;
        pages.granularity = granularity as u64;
        Ok(pages)
    }

    pub(super) fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        self.check_multiple(bytes)?;
        let mut address = 0;
        // SAFETY: The driver writes to a variable that is there. It chooses addresses that nothing else uses.
        let reserved =
            unsafe { sys::cuMemAddressReserve(&mut address, bytes as usize, self.granularity as usize, 0, 0) };
        reserved.result().map_err(|error| refused("cuMemAddressReserve", error))?;
        self.ranges.insert(address, bytes);
        Ok(address)
    }

    pub(super) fn release(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        if self.ranges.get(&address) != Some(&bytes) {
            return Err(DeviceError::Failed(format!("no {bytes} bytes of addresses are reserved at {address:#x}")));
        }
        if let Some((page, _)) = self.mapped.range(address..address + bytes).next() {
            return Err(DeviceError::Failed(format!("there is still memory at {page:#x}")));
        }
        // SAFETY: The addresses were reserved as this range, and nothing is mapped at them.
        let freed = unsafe { sys::cuMemAddressFree(address, bytes as usize) };
        freed.result().map_err(|error| refused("cuMemAddressFree", error))?;
        self.ranges.remove(&address);
        Ok(())
    }

    pub(super) fn map(&mut self, address: u64, bytes: u64, page_bytes: u64) -> Result<(), DeviceError> {
        self.check_pages(address, bytes, page_bytes)?;
        if let Some((page, _)) = self.mapped.range(address..address + bytes).next() {
            return Err(DeviceError::Failed(format!("there is memory at {page:#x} already")));
        }
        let mut pages = Vec::new();
        for _ in 0..bytes / page_bytes {
            match self.create(page_bytes) {
                Ok(page) => pages.push(page),
                Err(error) => {
                    release_all(&pages);
                    return Err(refused("cuMemCreate", error));
                }
            }
        }
        if let Err(error) = self.put(address, &pages) {
            release_all(&pages);
            return Err(error);
        }
        self.mapped.extend(addresses(address, page_bytes).zip(pages));
        Ok(())
    }

    /// Takes pages away that no work uses any more.
    pub(super) fn unmap(&mut self, address: u64, bytes: u64, page_bytes: u64) -> Result<(), DeviceError> {
        self.check_pages(address, bytes, page_bytes)?;
        let pages: Vec<Page> = self.mapped.range(address..address + bytes).map(|(_, &page)| page).collect();
        // As many pages of that size as there is room for, each at a multiple of the size: so all of them are there.
        if pages.len() as u64 != bytes / page_bytes || pages.iter().any(|page| page.bytes != page_bytes) {
            return Err(DeviceError::Failed(format!("not all of {bytes} bytes at {address:#x} is mapped")));
        }
        for (done, at) in addresses(address, page_bytes).take(pages.len()).enumerate() {
            if let Err(error) = unmap_page(at, page_bytes) {
                // What a page holds is kept until its handle is released. Where it cannot be put back either, the context is broken
                // and so is everything in it.
                let _ = self.put(address, &pages[..done]);
                return Err(refused("cuMemUnmap", error));
            }
        }
        release_all(&pages);
        self.mapped.retain(|at, _| !(address..address + bytes).contains(at));
        Ok(())
    }

    /// Gives all of it back.
    pub(super) fn destroy(&mut self) {
        // Where these fail the driver has shut down, and the memory is gone with it.
        for (address, page) in mem::take(&mut self.mapped) {
            let _ = unmap_page(address, page.bytes);
            release_all(&[page]);
        }
        for (address, bytes) in mem::take(&mut self.ranges) {
            // SAFETY: The addresses were reserved as this range, and what was mapped at them is not any more.
            let _ = unsafe { sys::cuMemAddressFree(address, bytes as usize) };
        }
    }

    fn check_multiple(&self, bytes: u64) -> Result<(), DeviceError> {
        if bytes == 0 || !bytes.is_multiple_of(self.granularity) {
            let reason = format!("{bytes} bytes are no multiple of the device's page size, {}", self.granularity);
            return Err(DeviceError::Failed(reason));
        }
        Ok(())
    }

    /// Whether a stretch is a whole number of pages inside reserved addresses. The pool maps pages of one size in a range; the driver
    /// refuses one that would overlap another.
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
            let reason = format!("{bytes} bytes at {address:#x} are no pages of {page_bytes} in reserved addresses");
            return Err(DeviceError::Failed(reason));
        }
        Ok(())
    }

    fn create(&self, bytes: u64) -> Result<Page, DriverError> {
        let mut handle = 0;
        // SAFETY: The driver reads a description and writes a handle, both there for the call.
        unsafe { sys::cuMemCreate(&mut handle, bytes as usize, &self.properties(), 0) }.result()?;
        Ok(Page { bytes, handle })
    }

    /// Maps pages of one size one after another from `address` on, all or none, and lets the device read and write them.
    fn put(&self, address: u64, pages: &[Page]) -> Result<(), DeviceError> {
        let Some(first) = pages.first() else { return Ok(()) };
        let back_out = |count: usize| {
            // Nothing has used them yet. Where this fails there is nothing more to be done.
            for at in addresses(address, first.bytes).take(count) {
                let _ = unmap_page(at, first.bytes);
            }
        };
        for (done, (at, page)) in addresses(address, first.bytes).zip(pages).enumerate() {
            // SAFETY: The addresses are reserved and nothing is mapped at them, as the callers have checked; the handle is ours.
            if let Err(error) = unsafe { sys::cuMemMap(at, page.bytes as usize, 0, page.handle, 0) }.result() {
                back_out(done);
                return Err(refused("cuMemMap", error));
            }
        }
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location: self.location(), flags };
        let bytes = first.bytes * pages.len() as u64;
        // SAFETY: All of it was just mapped; the driver reads one description that is there for the call.
        if let Err(error) = unsafe { sys::cuMemSetAccess(address, bytes as usize, &access, 1) }.result() {
            back_out(pages.len());
            return Err(refused("cuMemSetAccess", error));
        }
        Ok(())
    }

    fn location(&self) -> sys::CUmemLocation {
        // The second field lies in a union since CUDA 13.2, which would be another text for the same bytes.
        // SAFETY: In every version of CUDA a location is two C ints, what it is and its number, and 1 is a device.
        unsafe { mem::transmute::<[i32; 2], sys::CUmemLocation>([1, self.device]) }
    }

    /// What memory the pages are made of.
    fn properties(&self) -> sys::CUmemAllocationProp {
        // SAFETY: Of zeros it is a description that asks for nothing: numbers, null, and enumerations that have a 0.
        let mut properties: sys::CUmemAllocationProp = unsafe { mem::zeroed() };
        properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = self.location();
        properties.allocFlags.gpuDirectRDMACapable = self.remote_access.into();
        properties
    }
}

/// Where pages of one size lie that begin at `address`.
fn addresses(address: u64, page_bytes: u64) -> impl Iterator<Item = u64> {
    (0..).map(move |page| address + page * page_bytes)
}

fn unmap_page(address: u64, bytes: u64) -> Result<(), DriverError> {
    // SAFETY: The callers know that one page of that size was mapped at that address, and that no work uses it.
    unsafe { sys::cuMemUnmap(address, bytes as usize) }.result()
}

/// Gives the memory of pages back that are mapped nowhere.
fn release_all(pages: &[Page]) {
    for page in pages {
        // SAFETY: The handle is ours and not used again. There is no error that leaves it to be released once more.
        let _ = unsafe { sys::cuMemRelease(page.handle) };
    }
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<i32, DeviceError> {
    let mut value = 0;
    // SAFETY: The driver writes to a variable that is there.
    let asked = unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) };
    asked.result().map_err(|error| refused("cuDeviceGetAttribute", error))?;
    Ok(value)
}
