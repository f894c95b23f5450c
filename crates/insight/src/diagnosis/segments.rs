//! Problems of the allocator's segments: fragmentation, segments that come and go, waste inside of
//! segments.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::{Allocation, ByteSize, Count, MempoolId, Segment, SiteId};

use super::context::{Context, sizes_and_streams, total_bytes};
use super::finding::{Finding, Problem, Severity, is_share};
use super::remedy::{freed_at_once, without_emptying_cache};
use crate::autopsy::RecordingLines;

/// Divisor: bytes that are obtained again count if they are at least half of the reserved peak.
const MIN_OBTAINED_AGAIN: u64 = 2;
/// Minimum number of times that the cache is emptied for a finding.
const MIN_EMPTIED: usize = 4;
/// Minimum bytes lost by rounding and in nearly empty segments for a finding, in percent of the
/// reserved peak.
const MIN_WASTE_PERCENT: u64 = 18;
/// Number of streams from which on one nearly empty segment of each counts as waste.
const MANY_STREAMS: usize = 8;
/// Divisor: pending bytes count if they are at least a tenth of the reserved peak.
const MIN_PENDING: u64 = 10;

/// Finds segments that were released for requests, or by the program, and obtained again.
pub(super) fn recreated(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let (profile, reserved) = (&context.profile, context.peak_reserved.bytes);
    let again_bytes = profile.obtained_again_bytes;
    // Both settings release segments although no request needs their memory.
    let (max_split, garbage) =
        (context.settings.max_split_size_bytes.is_some(), context.settings.garbage_collection_threshold > 0.0);
    let releases = max_split || garbage;
    if context.has_failure {
        return None;
    }
    let released = ByteSize(profile.released_bytes);
    if releases && profile.released_bytes > 0 && again_bytes >= reserved / MIN_OBTAINED_AGAIN {
        let reason = if max_split {
            "max_split_size_mb keeps large free blocks from being divided"
        } else {
            "garbage_collection_threshold releases what is requested again soon"
        };
        let summary =
            format!("{released} of segments were released and {} obtained again: {reason}.", ByteSize(again_bytes));
        // All memory may be obtained again several times.
        let bytes = again_bytes.min(reserved);
        return Some(of_requests(context, lines, Problem::RecreatedSegments, bytes, summary));
    }
    // The retry with most free memory shows best how fragmented it was.
    if let Some(worst) = profile.retries.iter().max_by_key(|one| one.free_bytes) {
        let of_retries = profile.retries.iter().fold(0u64, |sum, one| sum.saturating_add(one.released_bytes));
        let summary = format!(
            "The cache had to be released for {} ({}), although {} of the reserved {} were free in pieces: nearly a \
             failure.",
            Count(profile.retries.len() as u64).of("request", "requests"),
            ByteSize(of_retries),
            ByteSize(worst.free_bytes),
            ByteSize(worst.reserved_bytes)
        );
        return Some(of_requests(context, lines, Problem::NearFailure, worst.free_bytes, summary));
    }
    let again = again_bytes >= reserved / MIN_OBTAINED_AGAIN;
    if !releases && profile.emptied.len() >= MIN_EMPTIED && again {
        let sites = profile.emptied.iter().map(|one| (one.site, one.bytes));
        let site = lines.common_call(sites).unwrap_or_else(|| segments_obtained(context));
        let events = (profile.emptied.first()?.event, profile.emptied.last()?.event);
        let summary = format!(
            "The cache was emptied {}: {released} of segments were released, and {} obtained again from the driver.",
            Count(profile.emptied.len() as u64).of("time", "times"),
            ByteSize(again_bytes)
        );
        let mut finding = context.finding_at(Problem::EmptiedCache, again_bytes.min(reserved), events, site, summary);
        finding.severity = finding.severity.min(Severity::Medium);
        finding.remedy = Some("Remove torch.cuda.empty_cache() from the loop.".to_owned());
        finding.trials = vec![without_emptying_cache(context)];
        return Some(finding);
    }
    None
}

/// Returns a finding whose site is the call that made the requests for which memory was obtained
/// again.
fn of_requests(
    context: &Context<'_>,
    lines: &RecordingLines<'_>,
    problem: Problem,
    bytes: u64,
    summary: String,
) -> Finding {
    let profile = &context.profile;
    let of_retries: Vec<(SiteId, u64)> =
        profile.retries.iter().map(|one| (one.site, one.released_bytes.max(1))).collect();
    let again = profile.obtained_again.iter().map(|((site, _), one)| (*site, one.bytes));
    let sites: Vec<(SiteId, u64)> = if of_retries.is_empty() { again.collect() } else { of_retries };
    let moments = profile.retries.iter().map(|one| one.event).chain(profile.emptied.iter().map(|one| one.event));
    let events = (moments.clone().min().unwrap_or(0), moments.max().unwrap_or(0));
    let site = lines.common_call(sites.into_iter()).unwrap_or_else(|| segments_obtained(context));
    let mut finding = context.finding_at(problem, bytes, events, site, summary);
    finding.severity = finding.severity.max(Severity::Medium);
    finding
}

/// Describes the segments that were obtained again: `segments of 20 MiB to 84 MiB on stream 0x0`.
fn segments_obtained(context: &Context<'_>) -> String {
    let again = &context.profile.obtained_again;
    let sizes = again.values().map(|one| one.least_bytes).min().zip(again.values().map(|one| one.most_bytes).max());
    let streams: BTreeSet<u64> = again.keys().map(|(_, stream)| stream.0).collect();
    sizes.map_or_else(String::new, |sizes| sizes_and_streams("segments", sizes, &streams))
}

/// Finds memory of segments that no block ever used, and bytes that rounding adds to requests.
pub(super) fn rounding(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let unused = unused_segments(context);
    let unused_bytes = unused.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let rounded_bytes = context.at_peak_reserved.counters().rounding_waste_bytes();
    let bytes = unused_bytes.saturating_add(rounded_bytes);
    if !is_share(bytes, MIN_WASTE_PERCENT, context.peak_reserved.bytes) {
        return None;
    }
    let summary = format!(
        "{} of the reserved {} hold nothing: {} in the rest of segments that no block ever used, {} because sizes are \
         rounded up.",
        ByteSize(bytes),
        ByteSize(context.peak_reserved.bytes),
        ByteSize(unused_bytes),
        ByteSize(rounded_bytes)
    );
    let is_inside = |one: &Allocation| {
        let position = unused.partition_point(|(segment, _)| segment.address <= one.address);
        position.checked_sub(1).is_some_and(|position| one.address < unused[position].0.end())
    };
    let live = context.lifetimes.live_at(context.peak_reserved.event);
    let blocks: Vec<Allocation> = live.filter(|one| rounded_bytes > unused_bytes || is_inside(one)).collect();
    let mut finding = context.finding(lines, Problem::RoundingWaste, bytes, &blocks, summary);
    finding.events = (context.peak_reserved.event, context.peak_reserved.event);
    Some(finding)
}

/// Returns the segments at the peak of the reserved bytes that no block used up as long as they
/// existed, with their unused bytes, by address.
///
/// The emptiest segment of each stream and pool is left out, because a program always has it,
/// unless many streams have one each.
fn unused_segments(context: &Context<'_>) -> Vec<(Segment, u64)> {
    let segments: BTreeMap<u64, Segment> =
        context.at_peak_reserved.segments().map(|segment| (segment.address, *segment)).collect();
    let mut ranges: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for one in context.lifetimes.iter() {
        let Some((address, segment)) = segments.range(..=one.address).next_back() else { continue };
        let is_later = one.allocated_until.is_none_or(|until| until > segment.since_event);
        if one.address < segment.end() && is_later {
            ranges.entry(*address).or_default().push((one.address, one.address.saturating_add(one.size)));
        }
    }
    let mut unused: Vec<(Segment, u64)> = Vec::new();
    for (address, segment) in segments {
        let covered = covered_bytes(ranges.remove(&address).unwrap_or_default());
        let bytes = segment.size.saturating_sub(covered);
        if bytes > 0 && covered > 0 {
            unused.push((segment, bytes));
        }
    }
    let streams: BTreeSet<_> = unused.iter().map(|(segment, _)| segment.stream).collect();
    if streams.len() < MANY_STREAMS {
        let mut emptiest: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for (segment, bytes) in &unused {
            let most = emptiest.entry((segment.stream, segment.pool)).or_default();
            *most = (*most).max((*bytes, segment.address));
        }
        let emptiest: BTreeSet<u64> = emptiest.into_values().map(|(_, address)| address).collect();
        unused.retain(|(segment, _)| !emptiest.contains(&segment.address));
    }
    unused
}

/// Returns how many bytes ranges of addresses (begin and end) cover together; common bytes count
/// once.
fn covered_bytes(mut ranges: Vec<(u64, u64)>) -> u64 {
    ranges.sort_unstable();
    let (mut covered, mut end) = (0u64, 0u64);
    for (from, to) in ranges {
        covered = covered.saturating_add(to.saturating_sub(from.max(end)));
        end = end.max(to);
    }
    covered
}

/// Finds blocks that the program freed but that wait for other streams.
pub(super) fn pending(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let peak = context.profile.pending_peak;
    if peak.bytes == 0 || peak.bytes < context.peak_reserved.bytes / MIN_PENDING || context.has_failure {
        return None;
    }
    let pending = context.lifetimes.live_at(peak.event).filter(|one| !one.is_allocated_at(peak.event));
    let pending: Vec<Allocation> = pending.collect();
    let bytes = total_bytes(&pending);
    let summary = format!(
        "{} were freed by the program, but could not be used again before other streams had finished with them.",
        ByteSize(bytes)
    );
    let mut finding = context.finding(lines, Problem::PendingFrees, bytes, &pending, summary);
    finding.events = (peak.event, peak.event);
    finding.remedy = Some(
        "Let the streams wait for each other (stream.wait_stream) before the tensor is freed, instead of \
         tensor.record_stream."
            .to_owned(),
    );
    let is_delayed = |one: &Allocation| {
        let is_default = one.pool.owner == MempoolId::default();
        let waits = |until: u64| one.active_until.is_none_or(|end| end > until.saturating_add(1));
        is_default && one.allocated_until.is_some_and(waits)
    };
    finding.trials = vec![freed_at_once(context, context.lifetimes.iter().filter(is_delayed))];
    Some(finding)
}
