//! Pinned host memory: rounded sizes, and buffers that are kept beyond those in use.
//!
//! PyTorch's allocator of pinned memory rounds a request up to a power of two and keeps each freed
//! block for later requests of the same size (`aten/src/ATen/core/CachingHostAllocator.h`). The
//! simulation does not cover it: savings are computed from the recorded blocks.

use std::collections::BTreeMap;

use vramscope_trace::{Allocation, ByteSize};

use super::context::{Context, requested_bytes, total_bytes};
use super::finding::{Finding, Problem, Severity, is_share};
use crate::autopsy::RecordingLines;

/// Minimum bytes lost by rounding, in percent of the reserved peak.
const MIN_ROUNDING_PERCENT: u64 = 20;
/// Minimum bytes that are kept and never in use at once, in percent of the reserved peak.
const MIN_KEPT_PERCENT: u64 = 40;
/// Minimum bytes of either.
const MIN_BYTES: u64 = 64 << 20;

/// Finds the problems of pinned host memory.
pub(super) fn find(context: &Context<'_>, lines: &RecordingLines<'_>) -> Vec<Finding> {
    [rounding(context, lines), kept(context, lines)].into_iter().flatten().collect()
}

/// Finds bytes that rounding adds to requests.
fn rounding(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let (peak, reserved_bytes) = (context.peak_allocated, context.peak_reserved.bytes);
    let is_rounded = |one: &Allocation| one.requested < one.size;
    let blocks: Vec<Allocation> = context.lifetimes.live_at(peak.event).filter(is_rounded).collect();
    let requested_bytes = requested_bytes(&blocks);
    // A buffer needs contiguous memory: the rest of a block is lost.
    let largest = blocks.iter().map(|one| one.size).max().unwrap_or(1).max(1);
    let used_bytes = requested_bytes.checked_next_multiple_of(largest).unwrap_or(u64::MAX);
    let saved_bytes = total_bytes(&blocks).saturating_sub(used_bytes);
    let bytes = total_bytes(&blocks).saturating_sub(requested_bytes);
    if bytes < MIN_BYTES || !is_share(bytes, MIN_ROUNDING_PERCENT, reserved_bytes) {
        return None;
    }
    let summary = format!(
        "{} of {} of pinned host memory are lost by rounding: requests of {} take {}, because sizes are powers of two.",
        ByteSize(bytes),
        ByteSize(reserved_bytes),
        ByteSize(requested_bytes),
        ByteSize(total_bytes(&blocks))
    );
    let mut finding = context.finding(lines, Problem::PinnedRounding, bytes, &blocks, summary);
    finding.events = (peak.event, peak.event);
    finding.severity = finding.severity.min(Severity::Medium);
    let setting = "where PyTorch has it, set pinned_max_round_threshold_mb";
    finding.remedy = Some(match saved_bytes {
        0 => format!("W{}: saves up to {} of host memory (estimate).", &setting[1..], ByteSize(bytes)),
        saved_bytes => format!(
            "Pin buffers whose sizes are powers of two and use parts of them: saves {} of host memory (estimate). Or, \
             {setting}.",
            ByteSize(saved_bytes)
        ),
    });
    Some(finding)
}

/// Returns the bytes of the end that no block used in the last third of the recording.
fn left_bytes(context: &Context<'_>, reserved_bytes: u64) -> u64 {
    let (first, end) = (context.recording.first_event(), context.recording.end_event());
    let from = end - (end - first) / 3;
    let mut used: BTreeMap<u64, u64> = BTreeMap::new();
    for one in context.lifetimes.iter().filter(|one| one.active_until.is_none_or(|until| until > from)) {
        let bytes = used.entry(one.address).or_default();
        *bytes = one.size.max(*bytes);
    }
    reserved_bytes.saturating_sub(used.into_values().fold(0, u64::saturating_add))
}

/// Finds freed buffers that are kept although the program never uses as many at once.
fn kept(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let (peak, used_bytes) = (context.peak_reserved, context.peak_active_bytes);
    let end = context.recording.end_state().device(context.device)?.counters();
    let unused_bytes = peak.bytes.saturating_sub(used_bytes);
    let left_bytes = left_bytes(context, end.reserved);
    let bytes = unused_bytes.max(left_bytes);
    if bytes < MIN_BYTES || !is_share(bytes, MIN_KEPT_PERCENT, peak.bytes) {
        return None;
    }
    let summary = match unused_bytes >= left_bytes {
        true => format!(
            "{} of pinned host memory are reserved for {} in use at most: freed buffers serve only requests of their \
             own size.",
            ByteSize(peak.bytes),
            ByteSize(used_bytes)
        ),
        false => format!(
            "{} of {} of pinned host memory are kept at the end, but not used in the last third of the recording.",
            ByteSize(left_bytes),
            ByteSize(end.reserved)
        ),
    };
    let freed: Vec<Allocation> =
        context.lifetimes.iter().filter(|one| one.active_until.is_some_and(|until| until <= peak.event)).collect();
    let mut finding = context.finding(lines, Problem::PinnedBuffersKept, bytes, &freed, summary);
    finding.events = (peak.event, peak.event);
    finding.severity = finding.severity.min(Severity::Medium);
    finding.remedy = Some(format!(
        "Allocate buffers of a few fixed sizes once and reuse them; after the phase that needed them, return the cache \
         with torch._C._host_emptyCache(): saves {} of host memory (estimate).",
        ByteSize(bytes)
    ));
    finding.code = &["torch._C._host_emptyCache()  # PyTorch 2.5 or later"];
    Some(finding)
}
