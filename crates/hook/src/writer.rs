//! The tracker's side of a device: packs PyTorch's entries into the device's ring.
//!
//! [`DeviceWriter::write_entry`] runs under PyTorch's allocator lock. It takes no lock, allocates
//! no memory and makes no system call: if the ring is full, events are counted instead of recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vramscope_collector::ring::Producer;

use crate::record::{self, LOST, OWN_SNAPSHOT, RING_LEN, SETTING, has_room};
use crate::scopes;
use crate::stacks::{CurrentStack, StackTable};
use crate::torch::{Autograd, EntryReader, TraceEntry};

/// State of a full ring, which a device's tracker and the follower share: whether events are only
/// counted, and how many were lost.
#[derive(Debug, Default)]
pub(crate) struct Overflow {
    /// True once an event found no room. The tracker then counts events, until the follower has
    /// read the ring and resets this.
    pub(crate) is_full: AtomicBool,
    /// Number of events that were not recorded. Only the tracker writes it. The follower reads it
    /// at the end of the recording, because a ring that stays full has no room for a record of it.
    pub(crate) lost: AtomicU64,
}

/// Which call stacks are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stacks {
    None,
    Python,
    /// Python and C++.
    All,
}

/// The writing end of one device's ring, which packs PyTorch's trace entries.
pub(crate) struct DeviceWriter {
    ring: Producer<RING_LEN>,
    overflow: Arc<Overflow>,
    entries: EntryReader,
    /// Stream and private pool of the last setting in the ring; `None` before the first one.
    setting: Option<[u64; 3]>,
    /// The last scope in the ring; 0 before the first one.
    scope: u32,
    /// Number of lost events in the last such record of the ring.
    reported_lost: u64,
    /// `None` if no call stacks are recorded.
    stacks: Option<StackTable>,
    /// `None` if the operations of autograd cannot be read.
    autograd: Option<Autograd>,
}

impl DeviceWriter {
    pub(crate) fn new(
        ring: Producer<RING_LEN>,
        overflow: Arc<Overflow>,
        entries: EntryReader,
        stacks: Option<StackTable>,
        autograd: Option<Autograd>,
    ) -> Self {
        Self { ring, overflow, entries, setting: None, scope: 0, reported_lost: 0, stacks, autograd }
    }

    /// Writes an entry, or counts it if the ring is full.
    ///
    /// # Safety
    /// `entry` points to a `TraceEntry` of the version of PyTorch that the writer was created for.
    #[inline]
    pub(crate) unsafe fn write_entry(&mut self, entry: *const u8, wanted: Stacks) {
        // SAFETY: The caller guarantees an entry of this version.
        let Some(entry) = (unsafe { self.entries.read(entry) }) else { return };
        self.write(&entry, wanted);
    }

    /// Writes the entry of a snapshot that this library takes, marked so that the follower can
    /// distinguish it from the program's snapshots.
    ///
    /// # Safety
    /// As for [`write_entry`](Self::write_entry).
    #[cold]
    pub(crate) unsafe fn write_own_snapshot(&mut self, entry: *const u8) {
        // SAFETY: The caller guarantees an entry of this version.
        let Some(entry) = (unsafe { self.entries.read(entry) }) else { return };
        self.write(&TraceEntry { address: OWN_SNAPSHOT, ..entry }, Stacks::None);
    }

    /// Writes an entry, or counts it if the ring is full.
    #[inline]
    fn write(&mut self, entry: &TraceEntry, wanted: Stacks) {
        if self.overflow.is_full.load(Ordering::Acquire) {
            // `is_full` is not set again here, because the follower may have reset it meanwhile.
            self.count_lost();
        } else if !self.try_write(entry, wanted) {
            self.count_lost();
            self.overflow.is_full.store(true, Ordering::Release);
        }
    }

    /// Returns the number of events that were not recorded.
    #[inline]
    fn lost(&self) -> u64 {
        self.overflow.lost.load(Ordering::Relaxed)
    }

    /// Counts an event that is not recorded.
    #[cold]
    fn count_lost(&mut self) {
        // Only the tracker writes this counter, under the allocator's lock.
        self.overflow.lost.store(self.lost() + 1, Ordering::Relaxed);
    }

    /// Writes an entry and returns true; returns false if there is no room.
    #[inline]
    fn try_write(&mut self, entry: &TraceEntry, wanted: Stacks) -> bool {
        let setting = [entry.stream, entry.mempool[0], entry.mempool[1]];
        if self.setting != Some(setting) {
            let [stream, first, second] = setting;
            if !self.put([u64::from(SETTING), stream, first, second]) {
                return false;
            }
            self.setting = Some(setting);
        }
        let lost = self.lost();
        if lost != self.reported_lost {
            if !self.put([u64::from(LOST), lost]) {
                return false;
            }
            self.reported_lost = lost;
        }
        let scope = scopes::current();
        if scope != self.scope && entry.is_request() {
            if !self.put([record::scope_head(scope)]) {
                return false;
            }
            self.scope = scope;
        }
        let (stack, sequence, node) = match &mut self.stacks {
            Some(stacks) if wanted != Stacks::None && entry.is_request() => {
                let stack = stacks.current(wanted == Stacks::All, &mut self.ring);
                let (sequence, node) = self.autograd.as_ref().map_or((0, None), |it| sequences(it.sequences(), stack));
                (stack.number, sequence, node)
            }
            _ => (0, 0, None),
        };
        if !has_room(&mut self.ring, 5) {
            return false;
        }
        if let Some(node) = node {
            self.ring.put([record::node_head(node)]);
        }
        self.ring.put([record::event_head(entry.action, sequence, stack), entry.address, entry.size, entry.time]);
        true
    }

    /// Writes a record that is not an event. Returns false if there is no room.
    #[cold]
    fn put<const N: usize>(&mut self, words: [u64; N]) -> bool {
        let has_room = has_room(&mut self.ring, N);
        if has_room {
            self.ring.put(words);
        }
        has_room
    }
}

/// Returns the sequence number for a request's event, and for a node record before it, if one is
/// needed. The arguments are the sequence numbers of the thread's next operation (`next`) and of
/// the node that it evaluates (`node`), and the request's call stack.
///
/// The event gets the number of the last forward operation if the thread has Python frames, else
/// that of the operation whose backward pass the thread runs; 0 without an operation. PyTorch
/// counts operations from 0, the records from 1.
#[inline]
fn sequences([next, node]: [Option<u64>; 2], stack: CurrentStack) -> (u64, Option<u64>) {
    // A node that belongs to no forward operation has the largest number.
    let node = node.map(|node| node.saturating_add(1));
    match stack {
        CurrentStack { has_python: false, .. } => (node.unwrap_or(0), None),
        // The ring had no room for the stack, so it is unknown whether the thread runs Python code.
        CurrentStack { number: 0, .. } => (0, None),
        // The next operation's number, counted from 0, equals the last one's, counted from 1.
        _ => (next.unwrap_or(0), node),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_count_from_one() {
        let stack = |number, has_python| CurrentStack { number, has_python };
        // The program's first operation has PyTorch's number 0: in its forward pass, the next one
        // is 1; in its backward pass, it is the node's.
        assert_eq!(sequences([Some(1), None], stack(7, true)), (1, None));
        assert_eq!(sequences([Some(0), Some(0)], stack(7, false)), (1, None));
        assert_eq!(sequences([Some(5), Some(0)], stack(7, true)), (5, Some(1)), "Python code in the backward pass");
        for next in [None, Some(0)] {
            assert_eq!(sequences([next, None], stack(7, true)), (0, None), "no operation so far");
        }
        assert_eq!(sequences([None, None], stack(0, false)), (0, None));
        assert_eq!(sequences([Some(5), None], stack(0, true)), (0, None), "no room for the stack");
        // The node that adds to a gradient belongs to no forward operation.
        assert_eq!(sequences([Some(0), Some(u64::MAX)], stack(7, false)), (u64::MAX, None));
    }
}
