//! Much more reserved than the live blocks need, without a failed request.

use vramscope_trace::{ByteSize, Percent};

use super::context::Context;
use super::finding::{Finding, MIN_OVER_RESERVED_PERCENT, Problem, is_share};
use crate::autopsy::RecordingLines;

/// Minimum reserved peak, in bytes: less fits every GPU.
const MIN_PEAK_BYTES: u64 = 64 << 20;

/// Finds a reserved peak that is much higher than the active peak. The finding counts once a
/// simulation proves that other settings reserve less.
pub(super) fn over_reserved(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let reserved = context.peak_reserved;
    let active_bytes = context.peak_active_bytes;
    let bytes = reserved.bytes.saturating_sub(active_bytes);
    if context.has_failure
        || reserved.bytes < MIN_PEAK_BYTES
        || !is_share(bytes, MIN_OVER_RESERVED_PERCENT, reserved.bytes)
    {
        return None;
    }
    let summary = format!(
        "{} were reserved for live blocks of {} at most: {} of the reserved memory was never needed at once.",
        ByteSize(reserved.bytes),
        ByteSize(active_bytes),
        Percent::of(bytes, reserved.bytes)
    );
    // The requests that obtained segments are where free memory did not fit.
    let profile = &context.profile;
    let sites = profile.obtained.iter().map(|(&site, &bytes)| (site, bytes));
    let site = lines.common_call(sites).unwrap_or_default();
    let events = (reserved.event, reserved.event);
    Some(context.finding_at(Problem::OverReserved, bytes, events, site, summary))
}
