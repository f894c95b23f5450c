//! Invalid calls and failing devices: the errors, and that the pool stays intact.

use std::error::Error;
use std::io;

use vramscope_pool::{
    AllocateError, AllocatedBlock, DeviceError, FreeError, MAX_REQUEST_BYTES, Origin, Pool, SegmentView, Settings,
    SimulatedDevice,
};
use vramscope_trace::{DeviceId, EventKind, MemorySink, StreamId};

const MIB: u64 = 1 << 20;

fn pool_on(device: SimulatedDevice) -> Pool<SimulatedDevice> {
    Pool::new(DeviceId(0), Settings::default(), device)
}

fn allocate(pool: &mut Pool<SimulatedDevice>, bytes: u64) -> Result<Option<AllocatedBlock>, AllocateError> {
    pool.allocate(bytes, StreamId(0), Origin::default(), &mut MemorySink::default())
}

fn free(pool: &mut Pool<SimulatedDevice>, address: u64) -> Result<(), FreeError> {
    pool.free(address, Origin::default(), &mut MemorySink::default())
}

#[test]
fn invalid_free_is_an_error_without_effect() {
    let mut pool = pool_on(SimulatedDevice::new(100 * MIB));
    let a = allocate(&mut pool, 4096).unwrap().unwrap().address;
    let b = allocate(&mut pool, 4096).unwrap().unwrap().address;
    free(&mut pool, a).unwrap();
    let before: Vec<SegmentView> = pool.segments();
    let stats = pool.stats();
    assert_eq!(free(&mut pool, a), Err(FreeError::NotAllocated { address: a }));
    assert_eq!(free(&mut pool, a + 512), Err(FreeError::NotAllocated { address: a + 512 }));
    assert_eq!(free(&mut pool, b + 512), Err(FreeError::InsideBlock { address: b + 512, block: b }));
    for address in [0, 1, a - 1, a + 2 * MIB, u64::MAX] {
        assert_eq!(free(&mut pool, address), Err(FreeError::UnknownAddress { address }));
    }
    assert_eq!(pool.segments(), before);
    assert_eq!(pool.stats(), stats);
    free(&mut pool, b).unwrap();
}

#[test]
fn request_of_zero_bytes_returns_none() {
    let mut pool = pool_on(SimulatedDevice::new(100 * MIB));
    assert_eq!(allocate(&mut pool, 0), Ok(None));
    assert_eq!(pool.segments().len(), 0);
}

#[test]
fn too_large_request_is_refused_without_an_attempt() {
    let mut pool = pool_on(SimulatedDevice::new(u64::MAX));
    for requested in [MAX_REQUEST_BYTES, MAX_REQUEST_BYTES + 1, u64::MAX] {
        assert_eq!(allocate(&mut pool, requested), Err(AllocateError::TooLarge { requested }));
    }
    assert!(allocate(&mut pool, MAX_REQUEST_BYTES - 1).is_ok());
}

#[test]
fn out_of_memory_reports_the_state_of_the_pool() {
    let mut pool = pool_on(SimulatedDevice::new(24 * MIB));
    allocate(&mut pool, 3 * MIB).unwrap();
    let mut sink = MemorySink::default();
    let error = pool.allocate(30 * MIB + 1, StreamId(5), Origin::default(), &mut sink).unwrap_err();
    let AllocateError::OutOfMemory(details) = error else { panic!("{error}") };
    assert_eq!((details.requested, details.segment_bytes, details.stream), (30 * MIB + 1, 32 * MIB, StreamId(5)));
    assert_eq!((details.device_free_bytes, details.device_total_bytes), (4 * MIB, 24 * MIB));
    assert_eq!(
        (details.allocated_bytes, details.reserved_bytes, details.largest_free_bytes),
        (3 * MIB, 20 * MIB, 17 * MIB)
    );
    assert_eq!(
        details.to_string(),
        "out of memory. Tried to allocate 32.00 MiB. Device 0 has a total capacity of 24.00 MiB of which \
         4.00 MiB is free. Of the allocated memory 3.00 MiB is allocated by the program, and 17.00 MiB is \
         reserved by the pool but unallocated. The largest free block has 17.00 MiB"
    );
    let kind = sink.events.last().unwrap().kind;
    assert!(matches!(kind, EventKind::OutOfMemory { requested, device_free, stream: StreamId(5), .. }
        if requested == 30 * MIB + 512 && device_free == 4 * MIB));
}

#[test]
fn limit_is_checked_before_the_device_is_called() {
    let fault = DeviceError::Failed("called".to_owned());
    let device = SimulatedDevice::new(100 * MIB).with_fault(0, fault.clone());
    let mut pool = Pool::new(DeviceId(0), Settings { limit_bytes: Some(MIB), ..Settings::default() }, device);
    let error = allocate(&mut pool, 1).unwrap_err();
    assert!(matches!(error, AllocateError::OutOfMemory(details) if details.limit_bytes == Some(MIB)));
}

#[test]
fn pool_works_after_a_device_failure() {
    let fault = DeviceError::Failed("the cable was pulled".to_owned());
    let mut pool = pool_on(SimulatedDevice::new(100 * MIB).with_fault(0, fault.clone()));
    assert_eq!(allocate(&mut pool, 1), Err(AllocateError::Device(fault)));
    assert!(allocate(&mut pool, 1).is_ok());
}

#[test]
fn driver_failure_has_the_drivers_error_as_source() {
    let refused = io::Error::from(io::ErrorKind::PermissionDenied);
    let fault = DeviceError::driver("mmap: permission denied", refused);
    assert_eq!(fault.to_string(), "the device failed: mmap: permission denied");
    let mut pool = pool_on(SimulatedDevice::new(100 * MIB).with_fault(0, fault.clone()));
    let error = allocate(&mut pool, 1).unwrap_err();
    assert_eq!(error, AllocateError::Device(fault.clone()));
    for error in [&error as &dyn Error, &fault, &FreeError::Device(fault.clone())] {
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::PermissionDenied));
    }
    assert!(DeviceError::Failed("the cable was pulled".to_owned()).source().is_none());
}

#[test]
fn result_of_an_allocation_stays_small() {
    assert!(size_of::<Result<Option<AllocatedBlock>, AllocateError>>() <= 32);
    assert!(size_of::<Result<(), FreeError>>() <= 24);
}

#[test]
fn overlapping_range_from_the_device_is_refused() {
    for second in [2 * MIB, 3 * MIB, MIB, 0, u64::MAX - MIB] {
        let mut pool = pool_on(SimulatedDevice::new(100 * MIB).with_addresses([2 * MIB, second]));
        allocate(&mut pool, MIB).unwrap();
        allocate(&mut pool, MIB).unwrap();
        assert!(matches!(allocate(&mut pool, MIB), Err(AllocateError::Device(_))), "{second:#x}");
        assert_eq!(pool.segments().len(), 1);
    }
}
