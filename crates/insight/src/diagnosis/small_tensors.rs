//! Memory lost by rounding the sizes of very many small tensors.
//!
//! PyTorch rounds each request up to a multiple of 512 bytes (`c10/cuda/CUDACachingAllocator.cpp`,
//! `kMinBlockSize`), so that a tensor of one number takes 512 bytes.

use vramscope_trace::{Allocation, ByteSize, Count};

use super::context::{Context, requested_bytes, total_bytes};
use super::finding::{Finding, Problem, is_share};
use super::remedy::packed;
use crate::autopsy::RecordingLines;

/// Maximum size of a small tensor's block, in bytes: rounding can add a third of it.
const MAX_BLOCK_BYTES: u64 = 1536;
/// Minimum bytes lost, in percent of the reserved peak.
const MIN_PERCENT: u64 = 10;
/// Minimum bytes lost.
const MIN_BYTES: u64 = 8 << 20;

/// Finds small tensors at the reserved peak whose rounding costs a large part of it.
pub(super) fn find(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let peak = context.peak_reserved;
    let is_small = |one: &Allocation| one.size <= MAX_BLOCK_BYTES && one.requested < one.size;
    let small: Vec<Allocation> = context.lifetimes.live_at(peak.event).filter(is_small).collect();
    let requested_bytes = requested_bytes(&small);
    let bytes = total_bytes(&small).saturating_sub(requested_bytes);
    if bytes < MIN_BYTES || !is_share(bytes, MIN_PERCENT, peak.bytes) {
        return None;
    }
    let count = small.len() as u64;
    let summary = format!(
        "{} of the reserved {} are lost by rounding: {} of {} on average take {} each, because sizes are multiples of \
         512 B.",
        ByteSize(bytes),
        ByteSize(peak.bytes),
        Count(count).of("small tensor", "small tensors"),
        ByteSize(requested_bytes / count.max(1)),
        ByteSize(total_bytes(&small) / count.max(1))
    );
    let mut finding = context.finding(lines, Problem::SmallTensors, bytes, &small, summary);
    finding.events = (peak.event, peak.event);
    finding.remedy = Some(
        "Keep them in one tensor: allocate it once and write its parts, or concatenate them with offsets; keep single \
         numbers on the CPU (.item())."
            .to_owned(),
    );
    finding.trials = vec![packed(context, context.lifetimes.iter().filter(is_small))];
    Some(finding)
}
