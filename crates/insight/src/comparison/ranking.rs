//! The order of sites: which one explains the difference, then the largest changes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use vramscope_trace::{DeviceLifetimes, PerRecording, SiteId};

use super::first_difference::{FirstDifference, FirstDifferenceKind, RequestAt};
use super::site_changes::{MatchedSite, SiteChange, SitesOfRecording};

/// Minimum share of all recorded allocations that both recordings make at common sites, for them to
/// count as two versions of one program.
const MIN_COMMON_SHARE: f64 = 0.5;
/// Minimum relative change of the line of the first difference, as a share of the relative change
/// of the line that changed most. Sizes that vary by chance between two runs fall short of it.
const MIN_RELATIVE_CHANGE: f64 = 0.5;
/// Divisor: an allocation that is kept longer is compared by its lifetime only if it has at least a
/// tenth of the largest change of a line's live bytes.
const MIN_SIZE_DIVISOR: u64 = 10;

/// The requests of all sites of one line in both recordings. Blocks may be larger than requested,
/// depending on which free blocks the allocator found, so they are not compared.
#[derive(Clone, Copy, Default)]
struct LineSums {
    /// Bytes requested for live blocks at the compared moments.
    live: PerRecording<u64>,
    /// Bytes requested for all allocations.
    allocated: PerRecording<u64>,
    /// Number of allocations.
    allocations: PerRecording<u64>,
    /// Peak of the live bytes.
    peak: PerRecording<u64>,
}

impl LineSums {
    /// Adds the requests of one site of the line.
    fn add(&mut self, change: &SiteChange) {
        let SiteChange { at_moment, churn, requested_churn_bytes: requested, .. } = change;
        self.live.a = self.live.a.saturating_add(at_moment.a.requested_bytes);
        self.live.b = self.live.b.saturating_add(at_moment.b.requested_bytes);
        self.allocated.a = self.allocated.a.saturating_add(requested.a);
        self.allocated.b = self.allocated.b.saturating_add(requested.b);
        self.allocations.a = self.allocations.a.saturating_add(churn.a.allocations);
        self.allocations.b = self.allocations.b.saturating_add(churn.b.allocations);
    }

    /// Returns the change of the live bytes.
    fn live_change(self) -> u64 {
        self.live.a.abs_diff(self.live.b)
    }

    /// Returns a weight, which is larger the more likely the line was changed, and the change of
    /// the live bytes, which decides between equal weights. Live bytes also change if the peak
    /// moves to another part of the program. So the weight is the change in bytes times the
    /// relative change of figures that do not depend on that moment: the bytes of all the line's
    /// allocations, and the line's own peak.
    fn weight(self) -> (f64, u64) {
        let allocated_change = self.allocated.a.abs_diff(self.allocated.b);
        let per_allocation = allocated_change / self.allocations.a.max(self.allocations.b).max(1);
        let bytes = self.live_change().max(per_allocation).max(self.peak.a.abs_diff(self.peak.b));
        (bytes as f64 * relative(self.allocated).max(relative(self.peak)), self.live_change())
    }

    /// Returns the size of the change as a share of the larger value, from 0 to 1.
    fn relative(self) -> f64 {
        relative(self.live).max(relative(self.allocated))
    }
}

/// Returns the peak of the requested bytes of each line's live allocations.
fn peaks_by_line<'a>(recording: &SitesOfRecording<'a>) -> HashMap<&'a str, u64> {
    /// Bytes requested by the live allocations of a line, and their peak so far.
    #[derive(Default)]
    struct LiveBytes {
        now: u64,
        most: u64,
    }
    let mut lines: HashMap<&str, LiveBytes> = HashMap::new();
    // The allocations that are not freed yet, the next free first.
    let mut frees: BinaryHeap<Reverse<(u64, u64, SiteId)>> = BinaryHeap::new();
    for one in recording.lifetimes.into_iter().flat_map(DeviceLifetimes::iter) {
        while let Some(Reverse((until, requested, site))) = frees.peek().copied()
            && until <= one.first_moment
        {
            frees.pop();
            let live = lines.entry(recording.line(site)).or_default();
            live.now = live.now.saturating_sub(requested);
        }
        let live = lines.entry(recording.line(one.site)).or_default();
        live.now = live.now.saturating_add(one.requested);
        live.most = live.most.max(live.now);
        if let Some(until) = one.allocated_until {
            frees.push(Reverse((until, one.requested, one.site)));
        }
    }
    lines.into_iter().map(|(line, live)| (line, live.most)).collect()
}

/// Returns the relative size of the change of a site whose requests differ, from 0 to 1. `live` are
/// the live bytes of its line. If an allocation is freed earlier in one recording, the difference
/// of its lifetimes counts, too, unless it is small compared with `largest_change`.
fn relative_change(
    site: &SiteChange,
    live: PerRecording<u64>,
    difference: &FirstDifference,
    largest_change: u64,
) -> f64 {
    let bytes = |request: Option<RequestAt>| request.map_or(0, |request| request.requested_bytes);
    let (a, b) = (bytes(difference.requests.a), bytes(difference.requests.b));
    if let Some(kept_for) = difference.kept_for {
        let is_small = a.max(b).saturating_mul(MIN_SIZE_DIVISOR) < largest_change;
        return relative(live).max(if is_small { 0.0 } else { relative(kept_for) });
    }
    if difference.kind == FirstDifferenceKind::Size {
        return relative(PerRecording { a, b });
    }
    relative(site.requested_churn_bytes)
}

/// Returns the difference of two numbers as a share of the larger one, from 0 to 1.
fn relative(of: PerRecording<u64>) -> f64 {
    match of.a.max(of.b) {
        0 => 0.0,
        larger => of.a.abs_diff(of.b) as f64 / larger as f64,
    }
}

/// Sorts sites: the largest change of live bytes first, then of all allocations' bytes.
///
/// Also returns the difference of the requests that explains the difference of the bytes, if one
/// does.
///
/// If `is_two_programs`, the site of the line that explains the difference comes before all others.
/// That is the line of one of `first_differences` that changed most in proportion, if it changed
/// about as much as the line with the largest change; otherwise the line with the largest change.
pub(super) fn rank(
    mut sites: Vec<MatchedSite>,
    of: &PerRecording<SitesOfRecording<'_>>,
    first_differences: &[FirstDifference],
    is_two_programs: bool,
) -> (Vec<SiteChange>, Option<FirstDifference>) {
    let size = |change: &SiteChange| (change.live_growth().unsigned_abs(), change.churn_growth().unsigned_abs());
    sites.sort_by(|one, other| {
        let largest = |change: &SiteChange| (change.at_moment.b.live_bytes(), change.churn.b.allocations);
        let rank = |site: &MatchedSite| Reverse((size(&site.change), largest(&site.change)));
        // The rest only makes the order deterministic.
        let rest = |site: &MatchedSite| (site.change.end.b.bytes, site.number);
        let by_name =
            || one.change.name.cmp(&other.change.name).then_with(|| one.change.stack.cmp(&other.change.stack));
        rank(one).cmp(&rank(other)).then_with(by_name).then_with(|| rest(one).cmp(&rest(other)))
    });
    let first = if is_two_programs { explaining_site(&sites, of, first_differences) } else { None };
    let mut first_difference = None;
    if let Some(Explanation { index, difference }) = first {
        sites[..=index].rotate_right(1);
        sites[0].change.is_first_difference = difference.is_some();
        first_difference = difference;
    }
    (sites.into_iter().map(|site| site.change).collect(), first_difference)
}

/// The index of the site that explains the difference, and the difference in its requests if that
/// is the reason.
struct Explanation {
    index: usize,
    difference: Option<FirstDifference>,
}

/// Returns which of the sorted sites explains the difference between two versions of a program;
/// `None` if none changed, or if the programs have too little in common.
fn explaining_site(
    sites: &[MatchedSite],
    of: &PerRecording<SitesOfRecording<'_>>,
    first_differences: &[FirstDifference],
) -> Option<Explanation> {
    if common_share(sites) < MIN_COMMON_SHARE {
        return None;
    }
    let mut lines: HashMap<&str, LineSums> = HashMap::new();
    for site in sites {
        lines.entry(&site.line).or_default().add(&site.change);
    }
    for (peaks, is_b) in [(peaks_by_line(&of.a), false), (peaks_by_line(&of.b), true)] {
        for (line, peak) in peaks {
            let Some(sums) = lines.get_mut(line) else { continue };
            *(if is_b { &mut sums.peak.b } else { &mut sums.peak.a }) = peak;
        }
    }
    let sums = |site: &MatchedSite| lines.get(&*site.line).copied().unwrap_or_default();
    // Requests without a stack have no line to name.
    let named = |site: &&MatchedSite| !site.change.stack.is_empty();
    let weight = |site: &&MatchedSite| sums(site).weight();
    let largest = sites.iter().filter(named).max_by(|one, other| {
        let (one_weight, other_weight) = (weight(one), weight(other));
        let by_bytes = || one_weight.1.cmp(&other_weight.1).then_with(|| other.line.cmp(&one.line));
        one_weight.0.total_cmp(&other_weight.0).then_with(by_bytes)
    })?;
    if sums(largest).weight() == (0.0, 0) {
        return None;
    }
    let least = sums(largest).relative() * MIN_RELATIVE_CHANGE;
    let candidates = first_differences.iter().flat_map(|first| {
        let PerRecording { a, b } = first.requests;
        let numbers = [b.map(|b| of.b.shared_number(b.site)), a.map(|a| of.a.shared_number(a.site))];
        numbers.into_iter().flatten().filter_map(move |number| {
            let index = sites.iter().position(|site| site.number == number).filter(|index| named(&&sites[*index]))?;
            let (change, live) = (&sites[index].change, sums(&sites[index]).live);
            Some((index, first, relative_change(change, live, first, sums(largest).live_change())))
        })
    });
    // Of sites with equal weights, take the first.
    let best =
        candidates.filter(|(.., change)| *change >= least).reduce(|best, one| if one.2 > best.2 { one } else { best });
    if let Some((index, first, _)) = best {
        return Some(Explanation { index, difference: Some(*first) });
    }
    let index = sites.iter().position(|site| site.line == largest.line)?;
    Some(Explanation { index, difference: None })
}

/// Returns the share of the recorded allocations of both recordings that are made at sites which
/// the other one has, too.
fn common_share(sites: &[MatchedSite]) -> f64 {
    let allocations = |change: &SiteChange| change.churn.a.allocations.saturating_add(change.churn.b.allocations);
    let is_common = |site: &&MatchedSite| site.change.churn.a.allocations > 0 && site.change.churn.b.allocations > 0;
    let sum = |sites: &mut dyn Iterator<Item = &MatchedSite>| {
        sites.map(|site| allocations(&site.change)).fold(0, u64::saturating_add)
    };
    let (common, all) = (sum(&mut sites.iter().filter(is_common)), sum(&mut sites.iter()));
    if all == 0 { 0.0 } else { common as f64 / all as f64 }
}
