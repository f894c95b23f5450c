//! Defects of PyTorch's allocator that a recording shows without a failed request.
//!
//! Each rule looks at the moment at which most memory was reserved.
//! `tests/labelled/DEFECTS.md` describes the defects and has a recording of each.

use vramscope_pool::Settings;
use vramscope_trace::{ByteSize, DeviceId, DeviceState, FormatError, IncidentKind, Recording, Replay};

/// A defect is reported if it wastes at least this part of the reserved memory: a quarter.
const MIN_WASTED_PART: u64 = 4;

/// A defect of PyTorch's allocator that a recording shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defect {
    /// The issue of pytorch/pytorch that describes it.
    pub pytorch_issue: u32,
    /// The device.
    pub device: DeviceId,
    /// The moment at which most memory was reserved.
    pub event: u64,
    /// Bytes that are wasted at that moment.
    pub bytes: u64,
    /// What is wasted and why, as one sentence.
    pub summary: String,
    /// What avoids it, as one sentence.
    pub remedy: &'static str,
}

/// Finds the defects that a recording shows on each device. `settings` are the allocator's, with
/// the cap as `limit_bytes` if it is known.
///
/// # Errors
/// If a chunk cannot be read.
pub fn defects(recording: &Recording, settings: &Settings) -> Result<Vec<Defect>, FormatError> {
    let mut found = Vec::new();
    let mut replay = Replay::new();
    for id in recording.devices() {
        let Some(peak) = recording.series(id).map(|series| series.peak_reserved()) else { continue };
        let state = replay.seek(recording, peak.event)?;
        let Some(device) = state.device(id) else { continue };
        let rules = [oversize_ranges(device, settings), ignored_threshold(device, settings)];
        for (pytorch_issue, bytes, summary, remedy) in rules.into_iter().flatten() {
            if bytes > 0 && bytes >= peak.bytes / MIN_WASTED_PART {
                found.push(Defect { pytorch_issue, device: id, event: peak.event, bytes, summary, remedy });
            }
        }
    }
    // A cap that refused a request makes the threshold effective.
    let has_failure = recording.incidents().iter().any(|one| matches!(one.kind, IncidentKind::OutOfMemory { .. }));
    found.retain(|defect| defect.pytorch_issue != 106_660 || !has_failure);
    Ok(found)
}

/// A defect's issue, wasted bytes, sentence and remedy.
type Rule = Option<(u32, u64, String, &'static str)>;

/// #193400: free ranges of expandable segments that are larger than `max_split_size` are not used
/// for smaller requests.
fn oversize_ranges(device: &DeviceState, settings: &Settings) -> Rule {
    let max_split = settings.max_split_size_bytes.filter(|_| settings.expandable_segments)?;
    let expandable = device.segments().filter(|segment| segment.expandable);
    let free = expandable.flat_map(|segment| device.extents(segment)).filter(|extent| extent.block.is_none());
    let bytes: u64 = free.map(|extent| extent.size).filter(|&bytes| bytes >= max_split).sum();
    let summary = format!(
        "{} are free in ranges above max_split_size_mb, which smaller requests do not use: expandable segments are \
         extended instead.",
        ByteSize(bytes)
    );
    Some((193_400, bytes, summary, "Omit max_split_size_mb with expandable_segments:True."))
}

/// #106660: `garbage_collection_threshold` has no effect without a memory fraction.
fn ignored_threshold(device: &DeviceState, settings: &Settings) -> Rule {
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
    Some((106_660, bytes, summary, "Call torch.cuda.set_per_process_memory_fraction, for example with 0.9."))
}
