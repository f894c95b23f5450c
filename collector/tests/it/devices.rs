//! Tests that every device passes: host memory, the simulated device and, if present, a GPU.

use std::ptr;

use cudarc::driver::result;
use fastrand::Rng;
use vramscope_collector::{CudaDevice, HostDevice, Settings};
use vramscope_pool::{AllocateError, Device, DeviceError, Origin, Pool, SimulatedDevice};
use vramscope_trace::{DeviceId, NullSink, SiteId, StreamId};

use crate::gpu;

const MIB: u64 = 1 << 20;
/// Minimum memory that a device needs for these tests, in bytes.
const CAPACITY: u64 = 256 * MIB;
const STREAM: StreamId = StreamId(0);

/// A device whose memory the tests can write and read.
trait TestDevice: Device {
    /// True if the device rejects addresses that it did not return.
    const CHECKS_ADDRESSES: bool;
    /// True if no other program uses the memory, so that the number of free bytes is exact.
    const FREE_BYTES_ARE_EXACT: bool;

    /// Sets all bytes of a range.
    fn fill(&self, address: u64, bytes: u64, value: u8);

    /// Returns true if all bytes of a range are `value`.
    fn holds(&self, address: u64, bytes: u64, value: u8) -> bool;
}

impl TestDevice for SimulatedDevice {
    const CHECKS_ADDRESSES: bool = false;
    const FREE_BYTES_ARE_EXACT: bool = true;

    fn fill(&self, _: u64, _: u64, _: u8) {}

    fn holds(&self, _: u64, _: u64, _: u8) -> bool {
        true
    }
}

impl TestDevice for HostDevice {
    const CHECKS_ADDRESSES: bool = true;
    const FREE_BYTES_ARE_EXACT: bool = true;

    fn fill(&self, address: u64, bytes: u64, value: u8) {
        // SAFETY: The tests write only memory that the device handed out and no other test uses.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(address as usize).write_bytes(value, bytes as usize) };
    }

    fn holds(&self, address: u64, bytes: u64, value: u8) -> bool {
        let start = ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: The tests read only memory that the device handed out, which the operating system
        // has zeroed.
        *unsafe { std::slice::from_raw_parts(start, bytes as usize) } == *vec![value; bytes as usize]
    }
}

impl TestDevice for CudaDevice {
    const CHECKS_ADDRESSES: bool = true;
    const FREE_BYTES_ARE_EXACT: bool = false;

    fn fill(&self, address: u64, bytes: u64, value: u8) {
        self.context().bind_to_thread().unwrap();
        // SAFETY: The tests write only memory that the device handed out.
        unsafe { result::memset_d8_sync(address, value, bytes as usize) }.unwrap();
    }

    fn holds(&self, address: u64, bytes: u64, value: u8) -> bool {
        self.context().bind_to_thread().unwrap();
        let mut bytes = vec![!value; bytes as usize];
        // SAFETY: The tests read only memory that the device handed out; the call returns when the
        // copy is complete.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, address) }.unwrap();
        bytes == vec![value; bytes.len()]
    }
}

/// Checks the number of free bytes: exactly if it is exact, otherwise within 64 MiB, because a
/// driver keeps some memory for itself.
fn check_free<D: TestDevice>(device: &D, expected: u64) {
    let free = device.memory().free_bytes;
    if D::FREE_BYTES_ARE_EXACT {
        assert_eq!(free, expected);
    } else {
        assert!(free.abs_diff(expected) < 64 * MIB, "{free} bytes are free, {expected} expected");
    }
}

fn segments_are_disjoint_and_released<D: TestDevice>(open: impl Fn() -> D) {
    let mut device = open();
    let before = device.memory();
    let sizes = [2, 20, 2, 34, 22].map(|mib| mib * MIB);
    let addresses = sizes.map(|bytes| device.reserve(bytes).unwrap());
    let ranges: Vec<(u64, u64)> = addresses.into_iter().zip(sizes).collect();
    for (index, &(address, bytes)) in ranges.iter().enumerate() {
        assert!(address != 0 && address.is_multiple_of(512));
        let others = ranges.iter().enumerate().filter(|&(other, _)| other != index);
        assert!(
            others.map(|(_, other)| other).all(|&(other, size)| other + size <= address || address + bytes <= other)
        );
        device.fill(address, bytes, index as u8 + 1);
    }
    assert_eq!(device.memory().total_bytes, before.total_bytes);
    check_free(&device, before.free_bytes - sizes.iter().sum::<u64>());
    let (released, kept) = ranges.split_at(2);
    for &(address, bytes) in released {
        assert_eq!(device.release(address, bytes), Ok(()));
        if D::CHECKS_ADDRESSES {
            assert!(matches!(device.release(address, bytes), Err(DeviceError::Failed(_))));
        }
    }
    for (index, &(address, bytes)) in kept.iter().enumerate() {
        assert!(device.holds(address, bytes, index as u8 + 3), "releasing other segments changed this one");
        assert_eq!(device.release(address, bytes), Ok(()));
    }
    check_free(&device, before.free_bytes);
}

fn failed_reserve_changes_nothing<D: TestDevice>(open: impl Fn() -> D) {
    let mut device = open();
    let before = device.memory();
    let more_than_total = before.total_bytes.next_multiple_of(2 * MIB) + 2 * MIB;
    assert_eq!(device.reserve(more_than_total), Err(DeviceError::OutOfMemory));
    let most = before.free_bytes / 4 * 3 / (2 * MIB) * (2 * MIB);
    let address = device.reserve(most).unwrap();
    assert_eq!(device.reserve(most), Err(DeviceError::OutOfMemory));
    assert_eq!(device.release(address, most), Ok(()));
    let again = device.reserve(most).unwrap();
    assert_eq!(device.release(again, most), Ok(()));
    check_free(&device, before.free_bytes);
}

fn pages_are_mapped_and_unmapped<D: TestDevice>(open: impl Fn() -> D) {
    let mut device = open();
    let before = device.memory();
    for page in [2 * MIB, 20 * MIB] {
        // A pool reserves more addresses than the device has memory.
        let length = before.total_bytes.next_multiple_of(page) * 9 / 8 / page * page;
        let start = device.reserve_addresses(length).unwrap();
        assert!(start.is_multiple_of(2 * MIB));
        check_free(&device, before.free_bytes);
        assert_eq!(device.map(start, 2 * page, page), Ok(()));
        device.fill(start, 2 * page, 1);
        assert_eq!(device.map(start + 2 * page, page, page), Ok(()));
        device.fill(start + 2 * page, page, 2);
        assert!(device.holds(start, 2 * page, 1), "mapped pages keep their contents as the segment grows");
        assert_eq!(device.map(start + length - page, page, page), Ok(()), "the last page");
        check_free(&device, before.free_bytes - 4 * page);

        assert_eq!(device.unmap(start + page, page, page, STREAM), Ok(()));
        assert!(device.holds(start, page, 1) && device.holds(start + 2 * page, page, 2));
        check_free(&device, before.free_bytes - 3 * page);
        assert_eq!(device.map(start + page, page, page), Ok(()), "a page between mapped ones");
        device.fill(start + page, page, 3);
        assert!(device.holds(start, page, 1) && device.holds(start + page, page, 3));
        assert!(device.holds(start + 2 * page, page, 2));

        assert_eq!(device.unmap(start, 3 * page, page, STREAM), Ok(()), "pages that were mapped by several calls");
        assert_eq!(device.unmap(start + length - page, page, page, STREAM), Ok(()));
        check_free(&device, before.free_bytes);
        assert_eq!(device.release_addresses(start, length), Ok(()));
    }
}

fn failed_map_maps_no_page<D: TestDevice>(open: impl Fn() -> D) {
    let mut device = open();
    let before = device.memory();
    let page = before.free_bytes / 4 * 3 / (2 * MIB) * (2 * MIB);
    let start = device.reserve_addresses(2 * page).unwrap();
    assert_eq!(device.map(start, 2 * page, page), Err(DeviceError::OutOfMemory));
    check_free(&device, before.free_bytes);
    assert_eq!(device.map(start, page, page), Ok(()), "the failed call left no page mapped");
    assert_eq!(device.unmap(start, page, page, STREAM), Ok(()));
    assert_eq!(device.release_addresses(start, 2 * page), Ok(()));
    check_free(&device, before.free_bytes);
}

fn invalid_page_ranges_are_rejected<D: TestDevice>(open: impl Fn() -> D) {
    if !D::CHECKS_ADDRESSES {
        return;
    }
    let mut device = open();
    let page = 2 * MIB;
    let start = device.reserve_addresses(8 * page).unwrap();
    assert_eq!(device.map(start + page, 2 * page, page), Ok(()));
    let before = device.memory().free_bytes;
    let check_rejected = |case: &str, result: Result<(), DeviceError>| {
        assert!(matches!(result, Err(DeviceError::Failed(_))), "{case}: {result:?}");
    };
    check_rejected("mapped twice", device.map(start, 2 * page, page));
    check_rejected("beyond the end", device.map(start + 7 * page, 2 * page, page));
    check_rejected("before the beginning", device.map(start - page, page, page));
    check_rejected("not whole pages", device.map(start + 4 * page, page / 2, page));
    check_rejected("not at a page boundary", device.map(start + 4 * page + page / 2, page, page));
    check_rejected("page size 0", device.map(start + 4 * page, page, 0));
    check_rejected("not a page size of the device", device.map(start + 4 * page, page, 4096));
    check_rejected("overflow", device.map(start + 4 * page, u64::MAX - page + 1, page));
    check_rejected("not mapped", device.unmap(start, page, page, STREAM));
    check_rejected("partly mapped", device.unmap(start, 2 * page, page, STREAM));
    check_rejected("pages of another size", device.unmap(start + page, 2 * page, 2 * page, STREAM));
    check_rejected("still mapped", device.release_addresses(start, 8 * page));
    check_rejected("only a part of the range", device.release_addresses(start, 4 * page));
    check_rejected("not the start of a range", device.release_addresses(start + page, 7 * page));
    check_free(&device, before);
    assert_eq!(device.unmap(start + page, 2 * page, page, STREAM), Ok(()), "the rejected calls changed nothing");
    assert_eq!(device.release_addresses(start, 8 * page), Ok(()));
}

fn events_complete<D: TestDevice>(open: impl Fn() -> D) {
    let mut device = open();
    for _ in 0..3 {
        let mut events: Vec<_> = (0..100).map(|_| device.record_event(STREAM).unwrap()).collect();
        let late = events.split_off(50);
        for event in events {
            assert_eq!(device.wait_for(event), Ok(()));
        }
        for event in late {
            while !device.has_passed(event).unwrap() {
                std::thread::yield_now();
            }
        }
    }
}

/// Makes requests of all sizes to a pool limited to 96 MiB. Every block is filled, and checked
/// before it is freed.
fn pool_blocks_do_not_overlap<D: TestDevice>(open: impl Fn() -> D) {
    let base = Settings { limit_bytes: Some(96 * MIB), ..Settings::default() };
    let settings = [
        Settings { expandable_segments: true, ..base.clone() },
        Settings { max_split_size_bytes: Some(20 * MIB), garbage_collection_threshold: 0.5, ..base.clone() },
        base,
    ];
    for settings in settings {
        let (mut pool, origin) = (Pool::new(DeviceId(0), settings, open()), Origin { site: SiteId(0), time_ns: 0 });
        let (mut held, mut ooms, mut random) = (Vec::<(u64, u64, u8)>::new(), 0, Rng::with_seed(1));
        for step in 0..1000_u32 {
            let unit = [1, 16, 64, 256][random.usize(..4)];
            let bytes = 1 + random.u64(..1 << 16) * unit;
            match pool.allocate(bytes, STREAM, origin, &mut NullSink) {
                Ok(block) => {
                    let block = block.expect("the request is for more than 0 bytes");
                    assert!(block.size >= bytes);
                    pool.device().fill(block.address, bytes, step as u8);
                    held.push((block.address, bytes, step as u8));
                }
                Err(AllocateError::OutOfMemory(_)) => ooms += 1,
                Err(error) => panic!("{error}"),
            }
            let most = if step < 500 { 40 } else { 15 };
            while held.len() > most || ooms > 0 && held.len() > most / 2 {
                let (address, bytes, value) = held.swap_remove(random.usize(..held.len()));
                assert!(pool.device().holds(address, bytes, value), "another block overlaps this one");
                pool.free(address, origin, &mut NullSink).unwrap();
            }
            ooms = 0;
        }
        assert!(pool.stats().num_ooms > 0, "the pool reached its limit and continued");
        for (address, ..) in held {
            pool.free(address, origin, &mut NullSink).unwrap();
        }
        pool.empty_cache(origin, &mut NullSink).unwrap();
        assert_eq!(pool.stats().reserved_bytes.all.current, 0);
        assert!(pool.allocate(80 * MIB, STREAM, origin, &mut NullSink).is_ok());
    }
}

/// Defines a test of each function for each device.
macro_rules! on_each_device {
    ($($name:ident)*) => {
        mod host {
            use super::*;
            $(#[test] fn $name() { super::$name(|| HostDevice::new(CAPACITY)); })*
        }
        mod simulated {
            use super::*;
            $(#[test] fn $name() { super::$name(|| SimulatedDevice::new(CAPACITY)); })*
        }
        mod cuda {
            use super::*;
            $(#[test] fn $name() {
                if let Some(_turn) = gpu::turn() {
                    super::$name(|| CudaDevice::new(0).unwrap());
                }
            })*
        }
    };
}

on_each_device! {
    segments_are_disjoint_and_released
    failed_reserve_changes_nothing
    pages_are_mapped_and_unmapped
    failed_map_maps_no_page
    invalid_page_ranges_are_rejected
    events_complete
    pool_blocks_do_not_overlap
}
