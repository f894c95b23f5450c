//! Defects of PyTorch's allocator that a recording shows without a failed request.
//!
//! Each defect has a function that looks for it at the moment at which most memory was reserved.
//! `tests/labelled/DEFECTS.md` describes the defects and has a recording of each.

use std::collections::BTreeSet;

use vramscope_pool::Settings;
use vramscope_pool::rerun::{Edits, Workload};
use vramscope_trace::{Block, ByteSize, Count, DeviceId, DeviceState, FormatError, IncidentKind, Recording, Replay};

/// Divisor: a defect is reported if it wastes at least a quarter of the reserved memory.
const MIN_WASTED_PART: u64 = 4;

/// Minimum number of blocks with deferred frees for a defect: one or two may just be waiting.
const MIN_DEFERRED: usize = 3;

/// A defect of PyTorch's allocator that a recording shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defect {
    /// The issue of pytorch/pytorch that describes it.
    pub pytorch_issue: u32,
    /// The device.
    pub device: DeviceId,
    /// The moment at which most memory was reserved.
    pub event: u64,
    /// Bytes that are wasted at that moment.
    pub bytes: u64,
    /// One sentence that says which memory is wasted, and why.
    pub summary: String,
    /// One sentence that says how to avoid the waste.
    pub remedy: &'static str,
    /// The remedy, where a simulation can apply it: other settings, or requests whose blocks are
    /// freed at once.
    fix: Option<(Settings, Vec<u64>)>,
}

impl Defect {
    /// Simulates the program with the remedy. Returns the bytes by which its reserved peak is lower
    /// than that of the unchanged program; `None` if the simulation cannot apply the remedy.
    ///
    /// `workload` is the program of the device, recorded under `settings`.
    #[must_use]
    pub fn saved_bytes(&self, workload: &Workload, settings: &Settings) -> Option<u64> {
        let (changed, at_once) = self.fix.as_ref()?;
        let mut edits = Edits::default();
        edits.freed_at_once.extend(at_once);
        let unchanged = workload.simulate(settings, None);
        let fixed = workload.edited(&edits).simulate(changed, None);
        Some(unchanged.peak_reserved_bytes.saturating_sub(fixed.peak_reserved_bytes))
    }
}

/// Finds the defects that a recording shows on each device. `settings` are the allocator's, with
/// the cap as `limit_bytes` if it is known.
///
/// `private_pool_requests` returns the requests of a device that private pools served
/// ([`Workload::private_pool_requests`]); it is called only for devices with many pending frees.
///
/// # Errors
/// If a chunk cannot be read.
pub fn defects(
    recording: &Recording,
    settings: &Settings,
    private_pool_requests: &mut dyn FnMut(DeviceId) -> BTreeSet<u64>,
) -> Result<Vec<Defect>, FormatError> {
    let mut found = Vec::new();
    let mut replay = Replay::new();
    for id in recording.devices() {
        let Some(peak) = recording.series(id).map(|series| series.peak_reserved()) else { continue };
        let state = replay.seek(recording, peak.event)?;
        let Some(device) = state.device(id) else { continue };
        let defects = [
            oversize_ranges(device, settings),
            ignored_threshold(device, settings),
            deferred_frees(device, settings, &mut || private_pool_requests(id)),
        ];
        let is_large = |defect: &Defect| defect.bytes > 0 && defect.bytes >= peak.bytes / MIN_WASTED_PART;
        let defects = defects.into_iter().flatten().filter(is_large);
        found.extend(defects.map(|defect| Defect { device: id, event: peak.event, ..defect }));
    }
    // A cap that refused a request makes the threshold effective.
    let has_failure = recording.incidents().iter().any(|one| matches!(one.kind, IncidentKind::OutOfMemory { .. }));
    found.retain(|defect| defect.pytorch_issue != 106_660 || !has_failure);
    Ok(found)
}

/// Finds pytorch/pytorch#193400: free ranges of expandable segments that are larger than
/// `max_split_size` are not used
/// for smaller requests.
fn oversize_ranges(device: &DeviceState, settings: &Settings) -> Option<Defect> {
    let max_split = settings.max_split_size_bytes.filter(|_| settings.expandable_segments)?;
    let expandable = device.segments().filter(|segment| segment.expandable);
    let free = expandable.flat_map(|segment| device.extents(segment)).filter(|extent| extent.block.is_none());
    let bytes: u64 = free.map(|extent| extent.size).filter(|&bytes| bytes >= max_split).sum();
    let summary = format!(
        "{} are free in ranges above max_split_size_mb, which smaller requests do not use: expandable segments are \
         extended instead.",
        ByteSize(bytes)
    );
    let fixed = Settings { max_split_size_bytes: None, ..settings.clone() };
    let remedy = "Omit max_split_size_mb with expandable_segments:True.";
    Some(Defect { pytorch_issue: 193_400, bytes, summary, remedy, fix: Some((fixed, Vec::new())), ..Defect::default() })
}

/// Finds pytorch/pytorch#106660: `garbage_collection_threshold` has no effect without a memory
/// fraction.
fn ignored_threshold(device: &DeviceState, settings: &Settings) -> Option<Defect> {
    let has_cap = settings.per_process_memory_fraction < 1.0 || settings.limit_bytes.is_some();
    if settings.garbage_collection_threshold <= 0.0 || has_cap || settings.expandable_segments {
        return None;
    }
    let free = device.segments().filter(|segment| !segment.expandable && device.is_free(segment));
    let bytes: u64 = free.map(|segment| segment.size).sum();
    let summary = format!(
        "{} of segments are free as a whole, but garbage_collection_threshold releases none without \
         torch.cuda.set_per_process_memory_fraction.",
        ByteSize(bytes)
    );
    let remedy = "Call torch.cuda.set_per_process_memory_fraction, for example with 0.9.";
    // No `fix`: the threshold is a share of the device's memory, whose size is not recorded.
    Some(Defect { pytorch_issue: 106_660, bytes, summary, remedy, ..Defect::default() })
}

/// Finds pytorch/pytorch#175015: inside of `use_mem_pool`, frees of blocks that another stream used
/// do not complete.
fn deferred_frees(
    device: &DeviceState,
    settings: &Settings,
    private_pool_requests: &mut dyn FnMut() -> BTreeSet<u64>,
) -> Option<Defect> {
    let pending = |block: &&Block| block.pending_free;
    let pending_bytes: u64 = device.blocks().filter(pending).map(|block| block.size).sum();
    let is_much = pending_bytes >= device.counters().reserved / MIN_WASTED_PART;
    if !is_much || device.blocks().filter(pending).count() < MIN_DEFERRED {
        return None;
    }
    let private = private_pool_requests();
    let request_of = |block: &Block| block.since_event.saturating_add(1);
    let deferred: Vec<&Block> =
        device.blocks().filter(pending).filter(|block| private.contains(&request_of(block))).collect();
    let bytes = deferred.iter().map(|block| block.size).sum();
    let requests: Vec<u64> = deferred.into_iter().map(request_of).collect();
    if requests.len() < MIN_DEFERRED {
        return None;
    }
    let summary = format!(
        "{} in {} wait in a private pool for another stream: inside of torch.cuda.use_mem_pool no such free completes \
         before the context ends, not even after torch.cuda.synchronize().",
        ByteSize(bytes),
        Count(requests.len() as u64).of("freed block", "freed blocks")
    );
    let remedy = "Let the allocating stream wait (current_stream().wait_stream(other)) in place of record_stream.";
    Some(Defect {
        pytorch_issue: 175_015,
        bytes,
        summary,
        remedy,
        fix: Some((settings.clone(), requests)),
        ..Defect::default()
    })
}
