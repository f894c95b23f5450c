//! The tracker: the function that PyTorch calls for each trace entry.
//!
//! PyTorch calls it under the allocator's lock of the entry's device, so the calls for one device
//! never overlap. A tracker cannot be detached; if it is off, it returns at once.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use vramscope_collector::ring::ring;
use vramscope_collector::session::lifecycle::ProcessClaim;
use vramscope_trace::DeviceId;

use crate::reader::DeviceReader;
use crate::snapshot_devices;
use crate::stacks::StackTable;
use crate::torch::{AttachError, Autograd, EntryReader, TorchLayout, attach};
use crate::writer::{DeviceWriter, Overflow, Stacks};

/// Maximum number of devices; entries of further devices are not recorded.
pub(crate) const MAX_DEVICES: usize = 64;

/// What the tracker does with the entries of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    /// Nothing: it returns at once.
    Off = 0,
    /// It records events without call stacks.
    Events = 1,
    /// It records events with Python call stacks.
    EventsWithStacks = 2,
    /// It records events with Python and C++ call stacks.
    EventsWithAllStacks = 3,
}

impl Mode {
    /// Returns which call stacks a mode (as a number) records.
    #[inline]
    fn stacks(mode: u8) -> Stacks {
        const PYTHON: u8 = Mode::EventsWithStacks as u8;
        const ALL: u8 = Mode::EventsWithAllStacks as u8;
        match mode {
            PYTHON => Stacks::Python,
            ALL => Stacks::All,
            _ => Stacks::None,
        }
    }
}

/// The tracker's state for one device.
struct DeviceSlot {
    mode: AtomicU8,
    /// The device's writer; null until the device is followed for the first time. Never freed.
    writer: AtomicPtr<DeviceWriter>,
}

/// The tracker's state for each device, by device number.
static DEVICES: [DeviceSlot; MAX_DEVICES] =
    [const { DeviceSlot { mode: AtomicU8::new(Mode::Off as u8), writer: AtomicPtr::new(ptr::null_mut()) } };
        MAX_DEVICES];

/// Which process has claimed the tracker.
static CLAIM: ProcessClaim = ProcessClaim::new();

/// Claims the tracker for this process. Must be called before the tracker is used.
///
/// # Errors
/// If a parent of this process had claimed it before the fork: the parent's threads may have left
/// the tracker's state inconsistent.
pub(crate) fn claim() -> Result<(), String> {
    if CLAIM.claim() { Ok(()) } else { Err("this process was forked after CUDA was used".to_owned()) }
}

/// Attaches the tracker for `devices` devices, with the mode [`Mode::Off`]. Returns the reading
/// ends of the devices' rings. `stacks` creates a device's table of call stacks, if the
/// interpreter's layout is known.
///
/// # Errors
/// If the allocator is not the one that `layout` describes.
///
/// # Panics
/// If it was called before.
pub(crate) fn install(
    layout: &TorchLayout,
    devices: usize,
    stacks: impl Fn() -> Option<StackTable>,
    autograd: Option<Autograd>,
) -> Result<Vec<DeviceReader>, AttachError> {
    snapshot_devices::set_devices(devices);
    // SAFETY: The tracker may be called from now on: without writers it returns at once. The
    // library is linked to stay loaded.
    unsafe { attach(layout, on_entry) }?;
    let entries = EntryReader::new(layout);
    let readers = (0..devices.min(MAX_DEVICES)).zip(&DEVICES).map(|(number, slot)| {
        let (producer, consumer) = ring();
        let overflow = Arc::new(Overflow::default());
        let writer = DeviceWriter::new(producer, Arc::clone(&overflow), entries, stacks(), autograd);
        let previous = slot.writer.swap(Box::into_raw(Box::new(writer)), Ordering::AcqRel);
        assert!(previous.is_null(), "the tracker is installed once");
        DeviceReader::new(DeviceId(number as u16), consumer, overflow, layout.mempool.is_some())
    });
    Ok(readers.collect())
}

/// Sets what the tracker does with the entries of all installed devices.
pub(crate) fn set_mode(mode: Mode) {
    for slot in &DEVICES {
        if !slot.writer.load(Ordering::Acquire).is_null() {
            slot.mode.store(mode as u8, Ordering::Release);
        }
    }
}

/// Receives a trace entry from PyTorch.
///
/// # Safety
/// `entry` points to a `TraceEntry` of the version that the tracker was installed for.
unsafe extern "C" fn on_entry(_functor: *const c_void, entry: *const u8) {
    // SAFETY: PyTorch passes a valid entry of the version whose layout `attach` checked.
    let Some(mut device) = (unsafe { EntryReader::device(entry) }) else { return };
    // SAFETY: As above.
    let is_snapshot = unsafe { EntryReader::is_snapshot(entry) };
    let mut is_own_snapshot = false;
    if is_snapshot {
        let Some(found) = snapshot_devices::next(device) else { return };
        (device, is_own_snapshot) = (found.device, found.is_own);
    }
    let Some(slot) = DEVICES.get(device) else { return };
    let mode = slot.mode.load(Ordering::Acquire);
    if mode == Mode::Off as u8 || !CLAIM.is_own() {
        return;
    }
    let writer = slot.writer.load(Ordering::Acquire);
    let result = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: The mode is set only if there is a writer, which is never freed. PyTorch holds
        // the lock of the entry's device (for snapshots see `snapshot_devices`), so no other thread
        // has a reference to it. The entry is valid, as above.
        unsafe {
            if is_own_snapshot {
                (*writer).write_own_snapshot(entry);
            } else {
                (*writer).write_entry(entry, Mode::stacks(mode));
            }
        }
    }));
    if result.is_err() {
        // A panic in this library must not unwind into PyTorch.
        slot.mode.store(Mode::Off as u8, Ordering::Release);
    }
}
