//! Memory outside of the pool that grows.

use vramscope_trace::{ByteSize, SiteId};

use super::context::Context;
use super::finding::{Finding, Problem};
use crate::autopsy::RecordingLines;

/// Divisor: growth counts if it is at least a twentieth of the bytes that the pool could obtain.
const MIN_SHARE: u64 = 20;
/// Minimum growth that counts, in bytes: libraries load their kernels when they are first used.
const MIN_BYTES: u64 = 128 << 20;

/// Finds a fall of the bytes that the pool can obtain: its reserved bytes and the driver's free
/// bytes.
pub(super) fn growth(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let reports = &context.profile.obtainable;
    let last = reports.last()?;
    // The bytes that the pool had reserved were obtainable.
    let reserved = Some(context.peak_reserved).filter(|peak| peak.event < last.event);
    let earlier = reports.iter().map(|one| (one.bytes, one.event)).chain(reserved.map(|peak| (peak.bytes, peak.event)));
    let (most_bytes, event) = earlier.max_by_key(|&(bytes, event)| (bytes, std::cmp::Reverse(event)))?;
    let bytes = most_bytes.saturating_sub(last.bytes);
    if bytes < MIN_BYTES || bytes < most_bytes / MIN_SHARE {
        return None;
    }
    let sites: Vec<(SiteId, u64)> = reports.iter().filter_map(|one| Some((one.site?, 1))).collect();
    let site = lines.common_call(sites.into_iter());
    let site = site.unwrap_or_else(|| "memory outside of the pool".to_owned());
    let summary = format!(
        "The memory that the pool can get fell from {} to {}: other libraries or processes took {}.",
        ByteSize(most_bytes),
        ByteSize(last.bytes),
        ByteSize(bytes)
    );
    let mut finding = context.finding_at(Problem::GrowthOutside, bytes, (event, last.event), site, summary);
    finding.remedy = Some("Limit the memory of the other library or process.".to_owned());
    Some(finding)
}
