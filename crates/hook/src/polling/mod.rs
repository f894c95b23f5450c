//! Recording without a tracker: derives events from snapshots that are taken at an interval.
//!
//! This is the fallback for a version or build of PyTorch whose tracker cannot be used. A block
//! that is allocated and freed between two snapshots is not seen, requests have no call stacks, and
//! failed requests are not reported; the state after each snapshot is right.
//!
//! Pinned host memory is always recorded from snapshots, because PyTorch calls no tracker for it.

mod changes;

use std::collections::{BTreeMap, HashMap, VecDeque};

use vramscope_collector::RecorderHandle;
use vramscope_formats::LiveSnapshot;
use vramscope_trace::{DeviceId, DeviceState, Event, EventKind, MemoryState, Relabel, Sink as _, SiteId};

use crate::definitions::Definitions;
use crate::notes::{Note, NoteKind, Notes, record_mark};
use crate::own_events::device_of;

/// A recorder of a process's devices that derives events from snapshots.
pub(crate) struct Poller {
    handle: RecorderHandle,
    devices: BTreeMap<DeviceId, PolledDevice>,
}

/// The state of a device in the last snapshot.
#[derive(Default)]
struct PolledDevice {
    state: DeviceState,
    /// Sites of the blocks that have been relabelled, by address.
    sites: HashMap<u64, SiteId>,
    definitions: Definitions,
    notes: VecDeque<Note>,
    /// Time of the last event, in nanoseconds since the recording began.
    time_ns: u64,
}

impl Poller {
    /// Creates a poller for the devices and records the state in `snapshot`. If the recording has
    /// already begun with the state in the snapshot `earlier`, records the changes since then.
    pub(crate) fn start(
        devices: impl Iterator<Item = DeviceId>,
        snapshot: &LiveSnapshot,
        earlier: Option<&LiveSnapshot>,
        mut handle: RecorderHandle,
    ) -> Self {
        let mut polled_devices = BTreeMap::new();
        let mut memory = MemoryState::default();
        let time_ns = handle.now_ns();
        memory.set_time_ns(time_ns);
        for device in devices {
            let (state, _) = device_of(earlier.unwrap_or(snapshot), device);
            if state.segments().len() > 0 && earlier.is_none() {
                *memory.device_mut(device) = state.clone();
            }
            polled_devices.insert(device, PolledDevice { state, time_ns, ..PolledDevice::default() });
        }
        if memory.devices().len() > 0 {
            handle.replace_state(&memory);
        }
        let mut poller = Self { handle, devices: polled_devices };
        if earlier.is_some() {
            poller.record(snapshot);
        }
        poller
    }

    /// Creates a poller for pinned host memory, which has not been recorded before.
    pub(crate) fn pinned_memory(handle: RecorderHandle) -> Self {
        Self { handle, devices: BTreeMap::from([(DeviceId::HOST, PolledDevice::default())]) }
    }

    /// Moves the waiting notes to the devices that they are for; the next
    /// [`record`](Self::record) records them.
    pub(crate) fn take_notes(&mut self, notes: &Notes) {
        notes.distribute(self.devices.iter_mut().map(|(&device, polled)| (device, &mut polled.notes)));
    }

    /// Records the changes since the last snapshot, at the current time, and the notes from
    /// [`take_notes`](Self::take_notes).
    pub(crate) fn record(&mut self, snapshot: &LiveSnapshot) {
        let handle = &mut self.handle;
        for (&device, polled) in &mut self.devices {
            let notes = std::mem::take(&mut polled.notes);
            let mut relabels = Vec::new();
            for Note { time, kind, .. } in notes {
                match kind {
                    NoteKind::Mark { name, stage } => {
                        // A mark that was made while the last snapshot was recorded may be earlier
                        // than the last event.
                        polled.time_ns = handle.ns_at_time_stamp(time).max(polled.time_ns);
                        record_mark(handle, device, polled.time_ns, &name, stage);
                    }
                    // The relabel may be for a block that first appears in this snapshot.
                    NoteKind::Relabel { address, category, scope } => relabels.push((address, category, scope)),
                    NoteKind::StepEnd { .. } => {}
                }
            }
            let (state, _) = device_of(snapshot, device);
            let time_ns = handle.now_ns().max(polled.time_ns);
            polled.time_ns = time_ns;
            for kind in changes::changes(&polled.state, &state) {
                if let EventKind::BlockAllocated { address, .. } = kind {
                    polled.sites.remove(&address);
                }
                handle.event(&Event { device, time_ns, kind });
            }
            polled.state = state;
            for (address, category, scope) in relabels {
                if polled.state.block(address).is_some() {
                    let site = polled.sites.entry(address).or_insert(SiteId(0));
                    let relabelled = polled.definitions.relabel(*site, category, &scope, handle);
                    if relabelled != *site {
                        *site = relabelled;
                        handle.relabel(&Relabel { device, time_ns, address, site: relabelled });
                    }
                }
            }
        }
    }
}
