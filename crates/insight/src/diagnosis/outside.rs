//! Memory outside of the pool: what grows, and what other processes hold.

use vramscope_trace::{ByteSize, Percent, SiteId};

use super::context::Context;
use super::finding::{Finding, Problem, Severity, is_share};
use crate::autopsy::RecordingLines;
use crate::failures::ReservedCap;

/// Divisor: growth counts if it is at least a twentieth of the bytes that the pool could obtain.
const MIN_SHARE: u64 = 20;
/// Minimum growth that counts, in bytes: libraries load their kernels when they are first used.
const MIN_BYTES: u64 = 128 << 20;
/// Minimum memory of other processes, in percent of the device's memory.
const MIN_OTHERS_PERCENT: u64 = 2;
/// Minimum memory of other processes, in bytes: a context takes about half as much.
const MIN_OTHERS_BYTES: u64 = 1 << 30;

/// Finds other processes that hold much of a device whose pool has no cap.
pub(super) fn other_processes(context: &Context<'_>) -> Option<Finding> {
    let others = context.profile.others_peak;
    let total_bytes = context.recording.info().device(context.device).map_or(0, |info| info.total_bytes);
    let is_large = others.bytes >= MIN_OTHERS_BYTES && is_share(others.bytes, MIN_OTHERS_PERCENT, total_bytes);
    let cap = ReservedCap::recorded(context.settings, total_bytes);
    // A pool that leaves the others their memory is as intended.
    let leaves_room = cap.is_some_and(|cap| cap.saturating_add(others.bytes) <= total_bytes);
    if !is_large || total_bytes == 0 || leaves_room {
        return None;
    }
    let cap = match cap {
        Some(cap) => format!("the cap of this pool, {}, is more than they leave", ByteSize(cap)),
        None => "nothing caps this pool".to_owned(),
    };
    let summary = format!(
        "Other processes hold {} of the device's {} ({}), and {cap}, which reserves up to {}.",
        ByteSize(others.bytes),
        ByteSize(total_bytes),
        Percent::of(others.bytes, total_bytes),
        ByteSize(context.peak_reserved.bytes)
    );
    let site = "memory of other processes".to_owned();
    let mut finding =
        context.finding_at(Problem::OtherProcesses, others.bytes, (others.event, others.event), site, summary);
    finding.severity = Severity::Low;
    finding.names_call = false;
    finding.remedy = Some(
        "End processes that are left over (nvidia-smi lists them; each that uses CUDA takes about half a GiB for its \
         context, data-loader workers too), or cap the pools that share the device."
            .to_owned(),
    );
    Some(finding)
}

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
