//! Follows PyTorch's allocator while it runs: a snapshot of its state, then its trace entries.
//!
//! A trace entry has the address and the requested size of a block, as an entry of a snapshot's
//! history does. [`LiveDevice`] derives events from entries by the rules of `torch/rebuild`.

use std::ops::ControlFlow;

use vramscope_pool::Settings;
use vramscope_trace::{DeviceId, DeviceState, EventKind, MempoolId, SiteId, StackId, StringId};

use super::json;
use super::pickle::PickleReader;
use super::rebuild::{DeviceHistory, ForwardWalk, SizeRules};
use super::snapshot::{Context, Entry, NO_TIME, Snapshot, TraceAction};
use crate::error::ReadError;
use crate::limits::Limits;
use crate::progress::{ImportProgress, ProgressReporter};
use crate::sniff::is_pickle;

/// A trace entry of PyTorch's allocator: an action on a block or segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveEntry {
    /// The action.
    pub action: TraceAction,
    /// The address; for [`TraceAction::OutOfMemory`] the free bytes of the device.
    pub address: u64,
    /// Requested bytes of a block, or all bytes of a segment.
    pub size: u64,
    /// The stream's handle.
    pub stream: u64,
    /// The private pool, if this version of PyTorch reports it.
    pub mempool: Option<MempoolId>,
}

/// The state of PyTorch's allocator, read from `torch.cuda.memory._snapshot()`. Its history, if it
/// has one, is not used.
#[derive(Debug)]
pub struct LiveSnapshot {
    snapshot: Snapshot,
}

impl LiveSnapshot {
    /// Reads a snapshot from a pickle or from JSON.
    ///
    /// # Errors
    /// If the bytes are neither, are damaged, or reading them takes more memory than `limits`
    /// allow.
    pub fn read(bytes: &[u8], limits: &Limits) -> Result<Self, ReadError> {
        let mut snapshot = if is_pickle(bytes) {
            let mut reader = PickleReader::new(limits);
            reader.buffer_mut().extend_from_slice(bytes);
            reader.run()?;
            reader.finish()?
        } else {
            let progress = &mut |_: &ImportProgress| ControlFlow::Continue(());
            json::read(bytes, limits, &mut ProgressReporter::new(ImportProgress::default(), progress))?
        };
        snapshot.traces.clear();
        snapshot.host_trace.clear();
        Ok(Self { snapshot })
    }

    /// Returns the settings with which PyTorch's allocator ran when the snapshot was taken.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.snapshot.settings.effective()
    }

    /// Returns the allocator's settings in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.
    #[must_use]
    pub fn alloc_conf(&self) -> String {
        self.snapshot.settings.alloc_conf()
    }

    /// Returns all settings as JSON text, including settings that vramscope does not know.
    #[must_use]
    pub fn settings_json(&self) -> &str {
        &self.snapshot.settings.json
    }

    /// Returns the numbers of the devices that have segments, sorted; pinned host memory is last.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceId> {
        self.snapshot.devices().into_iter().map(DeviceId).collect()
    }

    /// Returns a device's segments and blocks, and a [`LiveDevice`] that continues from them.
    #[must_use]
    pub fn device(&self, device: DeviceId) -> (DeviceState, LiveDevice) {
        let history = DeviceHistory::new(&self.snapshot, device.0, &mut |_| Ok(()));
        let history = history.expect("the progress function never fails");
        let mut state = DeviceState::default();
        history.fill_start_without_sites(&mut state);
        (state, LiveDevice { walk: history.into_forward() })
    }
}

/// Derives events from the trace entries of one device. It knows the device's segments and blocks
/// after the entries so far.
#[derive(Debug)]
pub struct LiveDevice {
    walk: ForwardWalk,
}

impl LiveDevice {
    /// Creates a follower of a device that has no segments yet.
    #[must_use]
    pub fn empty(settings: Settings, device: DeviceId) -> Self {
        Self { walk: ForwardWalk::empty(SizeRules::new(settings, device)) }
    }

    /// Applies the next entry and returns its event; `site` is the site of the entry's request.
    pub fn apply(&mut self, entry: &LiveEntry, site: SiteId) -> EventKind {
        let LiveEntry { action, address, size, stream, mempool } = *entry;
        let context = Context { stream, mempool, scope: StringId(0), ..Context::default() };
        self.walk.apply(&Entry::new(address, size, NO_TIME, StackId(0), action, 0), &context, site)
    }

    /// Returns how many entries contradicted the entries before them. If any did, entries are
    /// missing.
    #[must_use]
    pub fn contradictions(&self) -> u64 {
        self.walk.contradictions
    }
}
