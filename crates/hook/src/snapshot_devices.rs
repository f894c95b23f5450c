//! Finds out which device an entry of a snapshot is about.
//!
//! A snapshot calls the tracker once for each device, in the order of their numbers and under the
//! lock of each, but PyTorch gives every such entry the device 0 (seen in 2.11). So the entries of
//! this library's snapshots are counted, between [`begin`] and [`end`]. The entries of the
//! program's snapshots are not: an exception in the middle of one would leave the count wrong for
//! the next one, and two threads would then write to the ring of one device.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::thread_table::{ThreadTable, thread_pointer};

/// Number of devices of PyTorch's allocator.
static DEVICES: AtomicUsize = AtomicUsize::new(1);
/// The device of the next entry, of each thread that takes a snapshot for this library.
static NEXT: ThreadTable<16> = ThreadTable::new();

/// The device whose lock a thread holds during the entry of a snapshot.
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

/// Marks the beginning of a snapshot that this thread takes for this library. Without room for
/// another thread, the snapshot counts as one of the program.
pub(crate) fn begin() {
    NEXT.set(thread_pointer(), [0, 0]);
}

/// Marks the end of this thread's snapshot, whether or not an exception has ended it.
pub(crate) fn end() {
    NEXT.remove(thread_pointer());
}

/// Forgets the snapshots of all threads, in a forked child: it has none of the threads that take
/// them, and a new thread may get the pointer of one of them.
pub(crate) fn forget_all() {
    NEXT.clear();
}

/// Returns the device that this thread's next entry of a snapshot is about; `None` if it is
/// unknown. `reported` is the device that the entry has.
pub(crate) fn next(reported: usize) -> Option<SnapshotDevice> {
    let (thread, devices) = (thread_pointer(), DEVICES.load(Ordering::Relaxed));
    let Some([counted, _]) = NEXT.get(thread) else {
        let is_known = devices == 1 || reported != 0;
        return is_known.then_some(SnapshotDevice { device: reported, is_own: false });
    };
    // In case a version reports the device.
    let device = if reported == 0 { counted } else { reported };
    NEXT.set(thread, [device + 1, 0]);
    (device < devices).then_some(SnapshotDevice { device, is_own: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because the number of devices is that of the process.
    #[test]
    fn entries_of_own_snapshots_are_about_each_device_in_turn() {
        let own = |device| Some(SnapshotDevice { device, is_own: true });
        let program = |device| Some(SnapshotDevice { device, is_own: false });
        set_devices(3);
        std::thread::spawn(move || {
            begin();
            assert_eq!([next(0), next(0), next(0), next(0)], [own(0), own(1), own(2), None], "more than devices");
            end();
            // A snapshot that ended early; another thread is not affected.
            begin();
            assert_eq!([next(0), next(0)], [own(0), own(1)]);
            std::thread::spawn(move || assert_eq!([next(0), next(0)], [None, None])).join().expect("equal");
            end();
            assert_eq!([next(0), next(0)], [None, None], "the program's own");
            begin();
            // Versions that report the device.
            assert_eq!([next(0), next(1), next(2)], [own(0), own(1), own(2)]);
            end();
            assert_eq!([next(0), next(1), next(2)], [None, program(1), program(2)]);
            // As in a child of a process that is forked in the middle of a snapshot.
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
