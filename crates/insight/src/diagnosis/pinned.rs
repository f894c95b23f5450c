//! Pinned host memory: rounded sizes, and buffers that are kept beyond those in use.
//!
//! PyTorch's allocator of pinned memory rounds a request up to a power of two and keeps each freed
//! block for later requests of the same size (`aten/src/ATen/core/CachingHostAllocator.h`). The
//! simulation does not cover it: savings are computed from the recorded blocks.

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
    let peak = context.peak_reserved;
    let is_rounded = |one: &Allocation| one.requested < one.size;
    let blocks: Vec<Allocation> = context.lifetimes.live_at(peak.event).filter(is_rounded).collect();
    let requested_bytes = requested_bytes(&blocks);
    let bytes = total_bytes(&blocks).saturating_sub(requested_bytes);
    if bytes < MIN_BYTES || !is_share(bytes, MIN_ROUNDING_PERCENT, peak.bytes) {
        return None;
    }
    let summary = format!(
        "{} of {} of pinned host memory are lost by rounding: requests of {} take {}, because sizes are powers of two.",
        ByteSize(bytes),
        ByteSize(peak.bytes),
        ByteSize(requested_bytes),
        ByteSize(total_bytes(&blocks))
    );
    let mut finding = context.finding(lines, Problem::PinnedRounding, bytes, &blocks, summary);
    finding.events = (peak.event, peak.event);
    finding.severity = finding.severity.min(Severity::Medium);
    finding.remedy = Some(format!(
        "Pin buffers whose sizes are powers of two and use parts of them, or, where PyTorch has it, set \
         pinned_max_round_threshold_mb: saves up to {} of host memory (estimate).",
        ByteSize(bytes)
    ));
    Some(finding)
}

/// Finds freed buffers that are kept although the program never uses as many at once.
fn kept(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let (peak, used_bytes) = (context.peak_reserved, context.peak_active_bytes);
    let end = context.recording.end_state().device(context.device)?.counters();
    let unused_bytes = peak.bytes.saturating_sub(used_bytes);
    // What is kept after the last phase that needed it.
    let left_bytes = end.reserved.saturating_sub(end.active);
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
            "{} of pinned host memory stay reserved although {} are in use at the end: freed buffers are kept.",
            ByteSize(end.reserved),
            ByteSize(end.active)
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
