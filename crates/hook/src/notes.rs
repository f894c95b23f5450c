//! Notes: marks, relabels and ends of steps, which Python adds to the allocator's events. Marks
//! name moments, and relabels say what a block is used for.
//!
//! A note has the time at which it was made. The follower records it between the events before and
//! after that time, although it reads the events later.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use vramscope_collector::RecorderHandle;
use vramscope_trace::{AnnotationStage, Category, DeviceId, Event, EventKind, Sink as _, SiteId};

/// Maximum number of notes that wait for the follower; further ones are dropped. A training step
/// makes some hundred notes.
const MAX_NOTES: usize = 1 << 18;

/// A mark, a relabel or the end of a step, with its time and device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// When the note was made: reading of the processor's time-stamp counter.
    pub(crate) time: u64,
    /// The device that the note is for; `None` for all devices.
    pub(crate) device: Option<DeviceId>,
    pub(crate) kind: NoteKind,
}

/// The content of a note, apart from time and device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoteKind {
    /// A named moment, or the beginning or end of a named span.
    Mark { name: Arc<str>, stage: AnnotationStage },
    /// What the live block at `address` is used for. An empty scope leaves the scope as it is.
    Relabel { address: u64, category: Category, scope: Arc<str> },
    /// A step of the program ended; workspaces of cuBLAS have this many bytes.
    StepEnd { workspace_bytes: u64 },
}

/// The notes that wait for the follower. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<Note>>>);

impl Notes {
    /// Adds notes with the current time, each for one device or (`None`) for all.
    pub(crate) fn add(&self, notes: impl IntoIterator<Item = (Option<DeviceId>, NoteKind)>) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let time = time_stamp();
        let room = MAX_NOTES.saturating_sub(waiting.len());
        waiting.extend(notes.into_iter().take(room).map(|(device, kind)| Note { time, device, kind }));
    }

    /// Moves the waiting notes to the queues of the devices that they are for.
    pub(crate) fn distribute<'a>(&self, queues: impl Iterator<Item = (DeviceId, &'a mut VecDeque<Note>)>) {
        let notes = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if notes.is_empty() {
            return;
        }
        for (device, queue) in queues {
            let is_for = |note: &&Note| note.device.is_none_or(|wanted| wanted == device);
            queue.extend(notes.iter().filter(is_for).cloned());
        }
    }
}

/// Records a mark on a device.
pub(crate) fn record_mark(
    handle: &mut RecorderHandle,
    device: DeviceId,
    time_ns: u64,
    name: &str,
    stage: AnnotationStage,
) {
    let name = handle.name(name);
    let kind = EventKind::Mark { stage, name, address: 0, site: SiteId(0) };
    handle.event(&Event { device, time_ns, kind });
}

/// True if the clock of PyTorch's trace entries is the system's, which can be set at any time.
pub(crate) const CLOCK_CAN_BE_SET: bool = !cfg!(target_arch = "x86_64");

/// Reads the clock of PyTorch's trace entries: the processor's time-stamp counter.
pub(crate) fn time_stamp() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Every x86-64 processor has this instruction; it only writes the registers of its
    // result.
    return unsafe { core::arch::x86_64::_rdtsc() };
    // Elsewhere, PyTorch uses nanoseconds since 1970.
    #[cfg(not(target_arch = "x86_64"))]
    {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
    }
}
