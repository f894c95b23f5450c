//! A GPU's memory: segments, streams and events.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use vramscope_pool::{Device, DeviceError, DeviceMemory, MIN_BLOCK_BYTES, StreamEvent};
use vramscope_trace::{DeviceInfo, StreamId};

use super::driver::{CurrentContext, without_context};
use super::error::{CudaError, of_call};
use super::events::Events;
use super::pages::Pages;
use super::usage::{Usage, UsageBeforeOpening};
use crate::memory::DeviceUsage;

/// CUDA's handle of the per-thread default stream (`CU_STREAM_PER_THREAD`), which is another stream
/// on each thread.
pub(super) const PER_THREAD_STREAM: u64 = 2;

/// The memory of a GPU.
///
/// Segments come from `cuMemAlloc`, pages of expandable segments from `cuMemCreate`. A stream is
/// identified by its handle, 0 being the default stream; the per-thread default stream (2) differs
/// from thread to thread and is rejected. A stream that memory was requested on, that used a
/// buffer, or whose requests were redirected is kept until the device is dropped: keep a few
/// streams instead of creating new ones for each step. A stream given by number alone must outlive
/// the pool. Dropping the device releases all memory.
#[derive(Debug)]
pub struct CudaDevice {
    context: Arc<CudaContext>,
    name: String,
    compute_capability: (i32, i32),
    total_bytes: u64,
    /// Bytes of segments by address.
    segments: BTreeMap<u64, u64>,
    /// Created with the first expandable segment.
    pages: Option<Pages>,
    mapped_bytes: u64,
    events: Events,
    usage: Usage,
    /// Streams by handle. They are kept because freed memory is reused for work on the stream with
    /// this handle, which must then still mean this stream.
    streams: BTreeMap<u64, Arc<CudaStream>>,
}

impl CudaDevice {
    /// Opens the device with this number in its primary context, the one that cudarc and the CUDA
    /// runtime use.
    ///
    /// A program that has a `CudaContext` uses [`from_context`](Self::from_context) instead: cudarc
    /// orders streams only within one `CudaContext` object.
    ///
    /// # Errors
    /// If there is no driver, the driver is too old, or it has no device with this number.
    pub fn new(ordinal: usize) -> Result<Self, CudaError> {
        load_driver(ordinal)?;
        let handle = find_device(ordinal)?;
        let before = UsageBeforeOpening::measure(bus_id(handle)?, has_primary_context(handle)?);
        let context = of_call("cuDevicePrimaryCtxRetain", without_context(|| CudaContext::new(ordinal)))?;
        Self::open(context, before)
    }

    /// Returns number, name and total memory of each device, in order of their numbers, without
    /// opening any.
    ///
    /// # Errors
    /// If there is no driver, no device, or the driver is too old.
    pub fn list() -> Result<Vec<DeviceInfo>, CudaError> {
        load_driver(0)?;
        let devices = of_call("cuDeviceGetCount", result::device::get_count())?;
        (0..u16::try_from(devices).unwrap_or(0)).map(describe_device).collect()
    }

    /// Opens the device of the program's context, whose streams can then be used with the pool.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn from_context(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let before = UsageBeforeOpening::measure(bus_id(context.cu_device())?, true);
        Self::open(Arc::clone(context), before)
    }

    /// Opens the device of `context`. `before` is what NVML reported before the context existed, to
    /// tell this process's memory from that of others.
    fn open(context: Arc<CudaContext>, before: UsageBeforeOpening) -> Result<Self, CudaError> {
        let memory = {
            let _current = CurrentContext::new(&context)?;
            of_call("cuMemGetInfo", driver_memory())?
        };
        let name = of_call("cuDeviceGetName", result::device::get_name(context.cu_device()))?;
        Ok(Self {
            name,
            compute_capability: compute_capability(context.cu_device())?,
            total_bytes: memory.total_bytes,
            segments: BTreeMap::new(),
            pages: None,
            mapped_bytes: 0,
            events: Events::default(),
            usage: before.opened(memory),
            streams: BTreeMap::new(),
            context,
        })
    }

    /// Returns the cudarc context that the device was opened with; its streams can be used with the
    /// pool.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Returns the device's product name, such as `NVIDIA H200`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the compute capability as (major, minor); (9, 0) for Hopper.
    #[must_use]
    pub fn compute_capability(&self) -> (i32, i32) {
        self.compute_capability
    }

    /// Returns the device's total memory in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Returns how much of the device's memory this process and others hold.
    ///
    /// If the driver does not tell processes apart, as in many containers, memory in use when the
    /// device was opened counts as other processes' memory and everything above it as this
    /// process's. The call takes about as long as allocating memory from the driver.
    #[must_use]
    pub fn sample(&self) -> DeviceUsage {
        let held_bytes = self.segments.values().sum::<u64>() + self.mapped_bytes;
        self.usage.sample(self.memory(), held_bytes)
    }

    /// Returns the number of `stream`, its handle, and keeps the stream alive until the device is
    /// dropped.
    ///
    /// # Errors
    /// If the stream belongs to another `CudaContext` object, even of the same GPU, because cudarc
    /// does not order their streams; or if it is the per-thread default stream, whose number means
    /// another stream on each thread.
    pub(super) fn keep(&mut self, stream: &Arc<CudaStream>) -> Result<StreamId, DeviceError> {
        if !Arc::ptr_eq(stream.context(), &self.context) {
            return Err(stream_error(
                "the stream belongs to another CudaContext than the pool: use a stream of the pool's context",
            ));
        }
        let number = stream.cu_stream() as u64;
        if number == PER_THREAD_STREAM {
            return Err(stream_error(
                "the per-thread default stream cannot be used with a pool: it is another stream on each thread",
            ));
        }
        self.streams.entry(number).or_insert_with(|| Arc::clone(stream));
        Ok(StreamId(number))
    }

    /// Returns the address ranges and pages of expandable segments, initialized at the first call.
    /// Returns an error if the device has no virtual memory management.
    fn pages(&mut self) -> Result<&mut Pages, DeviceError> {
        match &mut self.pages {
            Some(pages) => Ok(pages),
            empty => Ok(empty.insert(Pages::new(self.context.cu_device())?)),
        }
    }
}

impl Device for CudaDevice {
    fn reserve(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        let _current = CurrentContext::new(&self.context)?;
        let mut address = 0;
        // SAFETY: The context is current, and the driver writes to a valid variable.
        of_call("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) }.result())?;
        // Buffers rely on this alignment. The driver promises 256 bytes, but aligns large
        // allocations to more.
        if !address.is_multiple_of(MIN_BLOCK_BYTES) {
            // SAFETY: The driver just returned the address and nothing uses it. If this fails, the
            // memory leaks.
            let _ = unsafe { sys::cuMemFree_v2(address) };
            return Err(DeviceError::Failed(format!(
                "the driver's memory at {address:#x} is not aligned to {MIN_BLOCK_BYTES} bytes"
            )));
        }
        self.segments.insert(address, bytes);
        Ok(address)
    }

    fn release(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        if self.segments.get(&address) != Some(&bytes) {
            return Err(DeviceError::Failed(format!("no segment of {bytes} bytes is reserved at {address:#x}")));
        }
        let _current = CurrentContext::new(&self.context)?;
        // SAFETY: `segments` has only addresses that the driver returned and that have not been
        // freed. The pool guarantees that no block of the segment is live, and the call waits for
        // work that is still queued on the device.
        of_call("cuMemFree", unsafe { sys::cuMemFree_v2(address) }.result())?;
        self.segments.remove(&address);
        Ok(())
    }

    /// Returns zeros if the driver fails, because it then allocates nothing either.
    fn memory(&self) -> DeviceMemory {
        let memory = CurrentContext::new(&self.context).ok().and_then(|_current| driver_memory().ok());
        memory.unwrap_or(DeviceMemory { free_bytes: 0, total_bytes: self.total_bytes })
    }

    fn reserve_addresses(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        let _current = CurrentContext::new(&self.context)?;
        self.pages()?.reserve(bytes)
    }

    fn release_addresses(&mut self, address: u64, bytes: u64) -> Result<(), DeviceError> {
        let _current = CurrentContext::new(&self.context)?;
        self.pages()?.release(address, bytes)
    }

    fn map(&mut self, address: u64, bytes: u64, page_bytes: u64) -> Result<(), DeviceError> {
        let _current = CurrentContext::new(&self.context)?;
        self.pages()?.map(address, bytes, page_bytes)?;
        self.mapped_bytes += bytes;
        Ok(())
    }

    fn unmap(&mut self, address: u64, bytes: u64, page_bytes: u64, stream: StreamId) -> Result<(), DeviceError> {
        let _current = CurrentContext::new(&self.context)?;
        // SAFETY: `CudaDevice::keep` keeps the streams that are given as objects. The caller of
        // `DevicePool::caching_allocator_alloc` guarantees that a stream given by number exists
        // until the pool is dropped.
        of_call("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream.0 as sys::CUstream) }.result())?;
        self.pages()?.unmap(address, bytes, page_bytes)?;
        self.mapped_bytes -= bytes;
        Ok(())
    }

    fn record_event(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError> {
        let _current = CurrentContext::new(&self.context)?;
        self.events.record(stream)
    }

    fn has_passed(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        let _current = CurrentContext::new(&self.context)?;
        self.events.has_passed(event)
    }

    fn wait_for(&mut self, event: StreamEvent) -> Result<(), DeviceError> {
        let _current = CurrentContext::new(&self.context)?;
        self.events.wait_for(event)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Errors are ignored: the driver has shut down or the context is broken, and the memory is
        // already released.
        let Ok(_current) = CurrentContext::new(&self.context) else { return };
        let _ = result::ctx::synchronize();
        self.events.destroy();
        if let Some(pages) = &mut self.pages {
            pages.destroy();
        }
        for &address in self.segments.keys() {
            // SAFETY: `segments` has only addresses that the driver returned and that have not been
            // freed; the call of `synchronize` above waited for all work.
            let _ = unsafe { sys::cuMemFree_v2(address) };
        }
    }
}

/// Returns the error, with the text `reason`, for a stream that cannot be used with the device's
/// memory.
#[cold]
fn stream_error(reason: &str) -> DeviceError {
    DeviceError::Failed(reason.to_owned())
}

/// Loads and initializes the driver, and checks its version. `ordinal` is the requested device's
/// number, used only in the error for a machine without devices.
fn load_driver(ordinal: usize) -> Result<(), CudaError> {
    // SAFETY: Loading the driver's library runs its initializers, which are safe in any program.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let mut cuda_version = 0;
    // SAFETY: The library is loaded and every version has this function; it writes to a valid
    // variable.
    of_call("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut cuda_version) }.result())?;
    // The oldest version that cudarc supports. It has every function that this crate calls.
    if cuda_version < 11040 {
        return Err(CudaError::OldDriver { cuda_version });
    }
    match result::init() {
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Err(CudaError::NoDevice { ordinal, devices: 0 }),
        initialized => Ok(of_call("cuInit", initialized)?),
    }
}

/// Returns the driver's handle of the device with number `ordinal`, counted from 0.
fn find_device(ordinal: usize) -> Result<sys::CUdevice, CudaError> {
    let devices = of_call("cuDeviceGetCount", result::device::get_count())?;
    let valid = i32::try_from(ordinal).ok().filter(|&ordinal| ordinal < devices);
    let valid = valid.ok_or(CudaError::NoDevice { ordinal, devices: usize::try_from(devices).unwrap_or(0) })?;
    Ok(of_call("cuDeviceGet", result::device::get(valid))?)
}

/// Returns the name and the total memory of the device with this number, without opening it.
fn describe_device(device: u16) -> Result<DeviceInfo, CudaError> {
    let handle = find_device(usize::from(device))?;
    let name = of_call("cuDeviceGetName", result::device::get_name(handle))?;
    // SAFETY: `find_device` returned the handle from the driver.
    let total = unsafe { result::device::total_mem(handle) };
    let total_bytes = of_call("cuDeviceTotalMem", total)? as u64;
    Ok(DeviceInfo { device, name, total_bytes, history_complete: true, ..DeviceInfo::default() })
}

/// Returns the device's PCI bus id, such as `0000:3b:00.0`, by which NVML also identifies it.
fn bus_id(device: sys::CUdevice) -> Result<String, CudaError> {
    let mut text: [c_char; 32] = [0; 32];
    // SAFETY: The driver writes at most as many characters as the given length, and rejects a
    // handle that means no device.
    let status = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, device) };
    of_call("cuDeviceGetPCIBusId", status.result())?;
    // SAFETY: The text ends with a 0: the driver writes one, and the array was zeroed.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}

/// Returns true if this process already has an active primary context on the device, so that NVML
/// may already list this process.
fn has_primary_context(device: sys::CUdevice) -> Result<bool, CudaError> {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: The driver writes to two valid variables, and rejects a handle that means no device.
    let status = unsafe { sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) };
    of_call("cuDevicePrimaryCtxGetState", status.result())?;
    Ok(active != 0)
}

/// Returns the device's compute capability as (major, minor).
fn compute_capability(device: sys::CUdevice) -> Result<(i32, i32), CudaError> {
    use sys::CUdevice_attribute_enum as Attribute;
    // SAFETY: The caller has the handle from a context, which has it from the driver.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) };
    let version = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        .and_then(|major| Ok((major, attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?)));
    Ok(of_call("cuDeviceGetAttribute", version)?)
}

/// Returns the free and total bytes of the current context's device, whatever process holds them.
fn driver_memory() -> Result<DeviceMemory, DriverError> {
    let (free_bytes, total_bytes) = result::mem_get_info()?;
    Ok(DeviceMemory { free_bytes: free_bytes as u64, total_bytes: total_bytes as u64 })
}
