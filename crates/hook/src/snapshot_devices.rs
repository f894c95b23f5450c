//! Finds out which device a trace entry of a snapshot belongs to.
//!
//! A snapshot calls the tracker once for each device, in the order of device numbers and under the
//! device's lock, but PyTorch gives each of these entries the device 0 (seen in 2.11). So the
//! entries of this library's snapshots are counted, between [`begin`] and [`end`]. Entries of the
//! program's snapshots are not counted: after an exception in the middle of a snapshot, the count
//! would be wrong for the next snapshot, and two threads would write to the ring of one device.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::thread_table::{ThreadTable, thread_pointer};

/// Number of devices of PyTorch's allocator.
static DEVICES: AtomicUsize = AtomicUsize::new(1);
/// For each thread that takes a snapshot for this library, the device of the snapshot's next entry.
static NEXT: ThreadTable<16> = ThreadTable::new();

/// The device of a snapshot's trace entry, whose lock the thread holds while PyTorch passes the
/// entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotDevice {
    pub(crate) device: usize,
    /// True if this library takes the snapshot, false if the program does.
    pub(crate) is_own: bool,
}

/// Sets the number of devices that a snapshot reports.
pub(crate) fn set_devices(devices: usize) {
    DEVICES.store(devices.max(1), Ordering::Relaxed);
}

/// Marks the beginning of a snapshot that this thread takes for this library. If too many threads
/// take snapshots, this one counts as a snapshot of the program.
pub(crate) fn begin() {
    NEXT.set(thread_pointer(), [0, 0]);
}

/// Marks the end of this thread's snapshot, whether or not an exception has ended it.
pub(crate) fn end() {
    NEXT.remove(thread_pointer());
}

/// Forgets the snapshots in progress on all threads, in a forked child. The child does not have
/// these threads, and a new thread may get the thread pointer of one of them.
pub(crate) fn forget_all() {
    NEXT.clear();
}

/// Returns the device of the trace entry that PyTorch passes now for this thread's snapshot, and
/// counts the entry; `None` if the device is unknown. `reported` is the device in the entry.
pub(crate) fn next(reported: usize) -> Option<SnapshotDevice> {
    let (thread, devices) = (thread_pointer(), DEVICES.load(Ordering::Relaxed));
    let Some([counted, _]) = NEXT.get(thread) else {
        let is_known = devices == 1 || reported != 0;
        return is_known.then_some(SnapshotDevice { device: reported, is_own: false });
    };
    // A version of PyTorch may report the right device.
    let device = if reported == 0 { counted } else { reported };
    NEXT.set(thread, [device + 1, 0]);
    (device < devices).then_some(SnapshotDevice { device, is_own: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All checks are in one test, because the number of devices is global in the process.
    #[test]
    fn entries_of_own_snapshots_belong_to_each_device_in_turn() {
        let own = |device| Some(SnapshotDevice { device, is_own: true });
        let program = |device| Some(SnapshotDevice { device, is_own: false });
        set_devices(3);
        std::thread::spawn(move || {
            begin();
            assert_eq!([next(0), next(0), next(0), next(0)], [own(0), own(1), own(2), None], "more than devices");
            end();
            // A snapshot that ends early does not affect another thread.
            begin();
            assert_eq!([next(0), next(0)], [own(0), own(1)]);
            std::thread::spawn(move || assert_eq!([next(0), next(0)], [None, None])).join().expect("equal");
            end();
            assert_eq!([next(0), next(0)], [None, None], "the program's own");
            begin();
            // A version of PyTorch may report the right device.
            assert_eq!([next(0), next(1), next(2)], [own(0), own(1), own(2)]);
            end();
            assert_eq!([next(0), next(1), next(2)], [None, program(1), program(2)]);
            // The process may be forked in the middle of a snapshot.
            begin();
            forget_all();
            assert_eq!([next(0), next(1), next(2)], [None, program(1), program(2)]);
        })
        .join()
        .expect("the devices are as expected");
        set_devices(1);
        assert_eq!([next(0), next(0)], [program(0), program(0)]);
        begin();
        assert_eq!(next(0), own(0));
        end();
    }
}
