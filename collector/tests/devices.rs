//! What every device does, checked on each: this machine's memory, a simulated device, and a GPU where there is one.

#![allow(missing_docs)]

use std::ptr;

use cudarc::driver::result;
use vramscope_collector::{CudaDevice, HostDevice, Settings};
use vramscope_pool::{AllocateError, Device, DeviceError, Origin, Pool, SimulatedDevice};
use vramscope_trace::{DeviceId, NullSink, SiteId, StreamId};

mod gpu;

const MIB: u64 = 1 << 20;
/// The least memory that a device must have for this.
const CAPACITY: u64 = 256 * MIB;
const STREAM: StreamId = StreamId(0);

/// A device with a look into its memory.
trait Tested: Device {
    /// Whether what it was not handed out, is refused.
    const CHECKS_ADDRESSES: bool;
    /// Whether it alone uses its memory, so that the free bytes are exact.
    const COUNTS_EXACTLY: bool;

    /// Sets all bytes of a stretch.
    fn fill(&self, address: u64, bytes: u64, value: u8);

    /// Whether all bytes of a stretch are `value`.
    fn holds(&self, address: u64, bytes: u64, value: u8) -> bool;
}

impl Tested for SimulatedDevice {
    const CHECKS_ADDRESSES: bool = false;
    const COUNTS_EXACTLY: bool = true;

    fn fill(&self, _: u64, _: u64, _: u8) {}

    fn holds(&self, _: u64, _: u64, _: u8) -> bool {
        true
    }
}

impl Tested for HostDevice {
    const CHECKS_ADDRESSES: bool = true;
    const COUNTS_EXACTLY: bool = true;

    fn fill(&self, address: u64, bytes: u64, value: u8) {
        // SAFETY: The tests fill only what the device handed out and nobody else uses.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(address as usize).write_bytes(value, bytes as usize) };
    }

    fn holds(&self, address: u64, bytes: u64, value: u8) -> bool {
        let start = ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: As for `fill`; the operating system has written what nobody filled.
        *unsafe { std::slice::from_raw_parts(start, bytes as usize) } == *vec![value; bytes as usize]
    }
}

impl Tested for CudaDevice {
    const CHECKS_ADDRESSES: bool = true;
    const COUNTS_EXACTLY: bool = false;

    fn fill(&self, address: u64, bytes: u64, value: u8) {
        self.context().bind_to_thread().unwrap();
        // SAFETY: The tests fill only what the device handed out.
        unsafe { result::memset_d8_sync(address, value, bytes as usize) }.unwrap();
    }

    fn holds(&self, address: u64, bytes: u64, value: u8) -> bool {
        self.context().bind_to_thread().unwrap();
        let mut bytes = vec![!value; bytes as usize];
        // SAFETY: The tests read only what the device handed out; the call returns when the copy is done.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, address) }.unwrap();
        bytes == vec![value; bytes.len()]
    }
}

/// Checks that memory is free again: all of it, or all but what a driver may keep for itself.
fn check_free<D: Tested>(device: &D, expected: u64) {
    let free = device.memory().free_bytes;
    if D::COUNTS_EXACTLY {
        assert_eq!(free, expected);
    } else {
        assert!(free.abs_diff(expected) < 64 * MIB, "{free} bytes are free in place of {expected}");
    }
}

fn memory_is_handed_out_apart_and_taken_back<D: Tested>(open: impl Fn() -> D) {
    let mut device = open();
    let before = device.memory();
    let sizes = [2, 20, 2, 34, 22].map(|mib| mib * MIB);
    let addresses = sizes.map(|bytes| device.reserve(bytes).unwrap());
    let ranges: Vec<(u64, u64)> = addresses.into_iter().zip(sizes).collect();
    for (place, &(address, bytes)) in ranges.iter().enumerate() {
        assert!(address != 0 && address.is_multiple_of(512));
        let others = ranges.iter().enumerate().filter(|&(other, _)| other != place);
        assert!(
            others.map(|(_, other)| other).all(|&(other, size)| other + size <= address || address + bytes <= other)
        );
        device.fill(address, bytes, place as u8 + 1);
    }
    assert_eq!(device.memory().total_bytes, before.total_bytes);
    check_free(&device, before.free_bytes - sizes.iter().sum::<u64>());
    let (gone, left) = ranges.split_at(2);
    for &(address, bytes) in gone {
        assert_eq!(device.release(address, bytes), Ok(()));
        if D::CHECKS_ADDRESSES {
            assert!(matches!(device.release(address, bytes), Err(DeviceError::Failed(_))));
        }
    }
    for (place, &(address, bytes)) in left.iter().enumerate() {
        assert!(device.holds(address, bytes, place as u8 + 3), "memory keeps what was written when other memory goes");
        assert_eq!(device.release(address, bytes), Ok(()));
    }
    check_free(&device, before.free_bytes);
}

fn a_refusal_leaves_it_as_it_was<D: Tested>(open: impl Fn() -> D) {
    let mut device = open();
    let before = device.memory();
    let more_than_there_is = before.total_bytes.next_multiple_of(2 * MIB) + 2 * MIB;
    assert_eq!(device.reserve(more_than_there_is), Err(DeviceError::OutOfMemory));
    let most = before.free_bytes / 4 * 3 / (2 * MIB) * (2 * MIB);
    let address = device.reserve(most).unwrap();
    assert_eq!(device.reserve(most), Err(DeviceError::OutOfMemory));
    assert_eq!(device.release(address, most), Ok(()));
    let again = device.reserve(most).unwrap();
    assert_eq!(device.release(again, most), Ok(()));
    check_free(&device, before.free_bytes);
}

fn pages_come_and_go<D: Tested>(open: impl Fn() -> D) {
    let mut device = open();
    let before = device.memory();
    for page in [2 * MIB, 20 * MIB] {
        // Far more addresses than memory, as a pool reserves them.
        let length = before.total_bytes.next_multiple_of(page) * 9 / 8 / page * page;
        let start = device.reserve_addresses(length).unwrap();
        assert!(start.is_multiple_of(2 * MIB));
        check_free(&device, before.free_bytes);
        assert_eq!(device.map(start, 2 * page, page), Ok(()));
        device.fill(start, 2 * page, 1);
        assert_eq!(device.map(start + 2 * page, page, page), Ok(()));
        device.fill(start + 2 * page, page, 2);
        assert!(device.holds(start, 2 * page, 1), "what was there stays as the segment grows");
        assert_eq!(device.map(start + length - page, page, page), Ok(()), "the last page");
        check_free(&device, before.free_bytes - 4 * page);

        assert_eq!(device.unmap(start + page, page, page, STREAM), Ok(()));
        assert!(device.holds(start, page, 1) && device.holds(start + 2 * page, page, 2));
        check_free(&device, before.free_bytes - 3 * page);
        assert_eq!(device.map(start + page, page, page), Ok(()), "a page in a hole");
        device.fill(start + page, page, 3);
        assert!(device.holds(start, page, 1) && device.holds(start + page, page, 3));
        assert!(device.holds(start + 2 * page, page, 2));

        assert_eq!(device.unmap(start, 3 * page, page, STREAM), Ok(()), "pages that were mapped one by one");
        assert_eq!(device.unmap(start + length - page, page, page, STREAM), Ok(()));
        check_free(&device, before.free_bytes);
        assert_eq!(device.release_addresses(start, length), Ok(()));
    }
}

fn pages_come_all_or_none<D: Tested>(open: impl Fn() -> D) {
    let mut device = open();
    let before = device.memory();
    let page = before.free_bytes / 4 * 3 / (2 * MIB) * (2 * MIB);
    let start = device.reserve_addresses(2 * page).unwrap();
    assert_eq!(device.map(start, 2 * page, page), Err(DeviceError::OutOfMemory));
    check_free(&device, before.free_bytes);
    assert_eq!(device.map(start, page, page), Ok(()), "the first page did not stay");
    assert_eq!(device.unmap(start, page, page, STREAM), Ok(()));
    assert_eq!(device.release_addresses(start, 2 * page), Ok(()));
    check_free(&device, before.free_bytes);
}

fn pages_that_cannot_be_are_refused<D: Tested>(open: impl Fn() -> D) {
    if !D::CHECKS_ADDRESSES {
        return;
    }
    let mut device = open();
    let page = 2 * MIB;
    let start = device.reserve_addresses(8 * page).unwrap();
    assert_eq!(device.map(start + page, 2 * page, page), Ok(()));
    let before = device.memory().free_bytes;
    let refused = |what: &str, answer: Result<(), DeviceError>| {
        assert!(matches!(answer, Err(DeviceError::Failed(_))), "{what}: {answer:?}");
    };
    refused("mapped twice", device.map(start, 2 * page, page));
    refused("beyond the end", device.map(start + 7 * page, 2 * page, page));
    refused("before the beginning", device.map(start - page, page, page));
    refused("no whole pages", device.map(start + 4 * page, page / 2, page));
    refused("not at a page", device.map(start + 4 * page + page / 2, page, page));
    refused("a page size of nothing", device.map(start + 4 * page, page, 0));
    refused("no page size of the device", device.map(start + 4 * page, page, 4096));
    refused("overflow", device.map(start + 4 * page, u64::MAX - page + 1, page));
    refused("not mapped", device.unmap(start, page, page, STREAM));
    refused("not all of it mapped", device.unmap(start, 2 * page, page, STREAM));
    refused("pages of another size", device.unmap(start + page, 2 * page, 2 * page, STREAM));
    refused("still mapped", device.release_addresses(start, 8 * page));
    refused("a part of it", device.release_addresses(start, 4 * page));
    refused("never reserved", device.release_addresses(start + page, 7 * page));
    check_free(&device, before);
    assert_eq!(device.unmap(start + page, 2 * page, page, STREAM), Ok(()), "nothing of that did harm");
    assert_eq!(device.release_addresses(start, 8 * page), Ok(()));
}

fn events_pass<D: Tested>(open: impl Fn() -> D) {
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

/// Requests of all sizes through a pool that may hold 96 MiB; every block is filled and looked at again before it is freed.
fn a_pool_keeps_blocks_apart<D: Tested>(open: impl Fn() -> D) {
    let base = Settings { limit_bytes: Some(96 * MIB), ..Settings::default() };
    let settings = [
        Settings { expandable_segments: true, ..base.clone() },
        Settings { max_split_size_bytes: Some(20 * MIB), garbage_collection_threshold: 0.5, ..base.clone() },
        base,
    ];
    for settings in settings {
        let (mut pool, origin) = (Pool::new(DeviceId(0), settings, open()), Origin { site: SiteId(0), time_ns: 0 });
        let (mut held, mut ooms, mut random) = (Vec::<(u64, u64, u8)>::new(), 0, 1_u32);
        for step in 0..1000_u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (kind, fraction) = (random >> 30, u64::from(random >> 8 & 0xffff));
            let bytes = 1 + fraction * [1, 16, 64, 256][kind as usize];
            match pool.allocate(bytes, STREAM, origin, &mut NullSink) {
                Ok(block) => {
                    let block = block.expect("more than 0 bytes");
                    assert!(block.size >= bytes);
                    pool.device().fill(block.address, bytes, step as u8);
                    held.push((block.address, bytes, step as u8));
                }
                Err(AllocateError::OutOfMemory(_)) => ooms += 1,
                Err(error) => panic!("{error}"),
            }
            let most = if step < 500 { 40 } else { 15 };
            while held.len() > most || ooms > 0 && held.len() > most / 2 {
                let (address, bytes, value) = held.swap_remove(random as usize % held.len());
                assert!(pool.device().holds(address, bytes, value), "nobody else wrote here");
                pool.free(address, origin, &mut NullSink).unwrap();
            }
            ooms = 0;
        }
        assert!(pool.stats().num_ooms > 0, "the limit was reached and the pool went on");
        for (address, ..) in held {
            pool.free(address, origin, &mut NullSink).unwrap();
        }
        pool.empty_cache(origin, &mut NullSink).unwrap();
        assert_eq!(pool.stats().reserved_bytes.all.current, 0);
        assert!(pool.allocate(80 * MIB, STREAM, origin, &mut NullSink).is_ok());
    }
}

/// Makes a test of each function for each device.
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
    memory_is_handed_out_apart_and_taken_back
    a_refusal_leaves_it_as_it_was
    pages_come_and_go
    pages_come_all_or_none
    pages_that_cannot_be_are_refused
    events_pass
    a_pool_keeps_blocks_apart
}
