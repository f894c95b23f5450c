//! Finds out which device an entry of a snapshot is about.
//!
//! A snapshot calls the tracker once for each device, in the order of their numbers and under the
//! lock of each, but PyTorch gives every such entry the device 0 (seen in 2.11). So the entries of
//! a thread are counted. The count of a thread is wrong after an exception ended one of its
//! snapshots early, until [`begin`]; PyTorch throws there only if memory for the result runs out.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::thread_table::{ThreadTable, thread_pointer};

/// Number of devices of PyTorch's allocator.
static DEVICES: AtomicUsize = AtomicUsize::new(1);
/// The device of the next entry, of each thread that is in the middle of a snapshot.
static NEXT: ThreadTable<16> = ThreadTable::new();

/// Sets the number of devices that a snapshot reports.
pub(crate) fn set_devices(devices: usize) {
    DEVICES.store(devices.max(1), Ordering::Relaxed);
}

/// Marks the beginning of a snapshot on this thread, whether or not its last one ended.
pub(crate) fn begin() {
    NEXT.remove(thread_pointer());
}

/// Returns the device that this thread's next entry of a snapshot is about. `reported` is the
/// device that the entry has.
pub(crate) fn next(reported: usize) -> usize {
    let (thread, devices) = (thread_pointer(), DEVICES.load(Ordering::Relaxed));
    if devices == 1 {
        return reported;
    }
    let counted = NEXT.get(thread).map_or(0, |[next, _]| next);
    // In case a version reports the device.
    let device = if reported == 0 { counted } else { reported };
    let next = device + 1;
    if next < devices {
        NEXT.set(thread, [next, 0]);
    } else {
        NEXT.remove(thread);
    }
    device
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because the number of devices is that of the process.
    #[test]
    fn entries_of_a_snapshot_are_about_each_device_in_turn() {
        set_devices(3);
        std::thread::spawn(|| {
            let seen: Vec<usize> = (0..6).map(|_| next(0)).collect();
            assert_eq!(seen, [0, 1, 2, 0, 1, 2]);
            // A snapshot that ended early; another thread is not affected.
            assert_eq!([next(0), next(0)], [0, 1]);
            std::thread::spawn(|| assert_eq!([next(0), next(0), next(0)], [0, 1, 2])).join().expect("equal");
            begin();
            assert_eq!([next(0), next(0), next(0)], [0, 1, 2]);
            // Versions that report the device.
            assert_eq!([next(0), next(1), next(2), next(0), next(1)], [0, 1, 2, 0, 1]);
        })
        .join()
        .expect("the devices are as expected");
        set_devices(1);
        assert_eq!([next(0), next(0)], [0, 0]);
    }
}
