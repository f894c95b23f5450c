//! The memory of each site in two recordings.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use vramscope_trace::{
    Category, Churn, Definitions, DeviceId, DeviceLifetimes, DeviceState, PerRecording, SiteId, frame_name, site_name,
};

use crate::group::{Grouping, MemoryCategory};
use crate::matching::RequestedChurn;

/// Maximum number of frames of a call stack that a [`SiteChange`] lists; outer frames beyond are
/// left out. Sites are matched by their whole stacks.
const SHOWN_FRAMES: usize = 64;

/// The number and bytes of the live blocks of one site at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockTotals {
    /// Bytes of the allocated blocks, after rounding.
    pub bytes: u64,
    /// Number of the allocated blocks.
    pub blocks: u64,
    /// Bytes of the blocks that are pending free.
    pub pending_bytes: u64,
    /// Number of the blocks that are pending free.
    pub pending_blocks: u64,
    /// Bytes that the program requested for all live blocks.
    pub requested_bytes: u64,
}

/// The memory of one site on one device in each of two recordings: its live blocks at the compared
/// moments and at the end, and its allocations in all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteChange {
    /// The device in each recording.
    pub device: PerRecording<DeviceId>,
    /// The site as one line (see [`site_name`]), from B if that has it.
    pub name: String,
    /// The scope path, empty for none.
    pub scope: String,
    /// The recorded category.
    pub category: Category,
    /// The category of most of its bytes, inferred where it was not recorded.
    pub inferred_category: MemoryCategory,
    /// Up to 64 frames of the call stack as lines, innermost first.
    pub stack: Vec<String>,
    /// Live blocks at the compared moments.
    pub at_moment: PerRecording<BlockTotals>,
    /// Live blocks at the end.
    pub end: PerRecording<BlockTotals>,
    /// The recorded allocations, freed ones included.
    pub churn: PerRecording<Churn>,
    /// Bytes that the program requested for these allocations. Unlike the blocks' sizes, they do
    /// not depend on which free blocks the allocator found.
    pub requested_churn_bytes: PerRecording<u64>,
    /// True if the programs' requests first differ at this site.
    pub is_first_difference: bool,
}

impl BlockTotals {
    /// Returns the bytes of all live blocks: allocated or pending free.
    #[must_use]
    pub fn live_bytes(self) -> u64 {
        self.bytes.saturating_add(self.pending_bytes)
    }

    /// Returns the number of all live blocks: allocated or pending free.
    #[must_use]
    pub fn live_blocks(self) -> u64 {
        self.blocks.saturating_add(self.pending_blocks)
    }

    /// Adds the live blocks of another site.
    fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blocks += other.blocks;
        self.pending_bytes = self.pending_bytes.saturating_add(other.pending_bytes);
        self.pending_blocks += other.pending_blocks;
        self.requested_bytes = self.requested_bytes.saturating_add(other.requested_bytes);
    }
}

impl SiteChange {
    /// Returns how many more allocated bytes the site has in B than in A, at the compared moments
    /// and at the end; negative if it has fewer.
    #[must_use]
    pub fn growth(&self) -> (i128, i128) {
        let grown = |of: &PerRecording<BlockTotals>| i128::from(of.b.bytes) - i128::from(of.a.bytes);
        (grown(&self.at_moment), grown(&self.end))
    }

    /// Returns how many more live bytes the site has in B than in A at the compared moments. The
    /// changes of all sites add up to the difference of the device's active bytes.
    #[must_use]
    pub fn live_growth(&self) -> i128 {
        i128::from(self.at_moment.b.live_bytes()) - i128::from(self.at_moment.a.live_bytes())
    }

    /// Returns how many more bytes the site allocated in B than in A in the whole recordings.
    #[must_use]
    pub fn churn_growth(&self) -> i128 {
        i128::from(self.churn.b.bytes) - i128::from(self.churn.a.bytes)
    }
}

/// The live blocks of one site of a recording at the compared moment and at the end, and its
/// recorded allocations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SiteFigures {
    at_moment: BlockTotals,
    end: BlockTotals,
    churn: RequestedChurn,
}

/// The figures of every site of a device that has any.
pub(super) type SitesOfDevice = BTreeMap<SiteId, SiteFigures>;

/// Returns the figures of a device's sites; `moment` and `end` are its states at the compared
/// moment and at the end.
pub(super) fn sites_of_device(
    moment: &DeviceState,
    end: &DeviceState,
    churn: &BTreeMap<SiteId, RequestedChurn>,
) -> SitesOfDevice {
    let mut sites = SitesOfDevice::new();
    add_blocks(moment, |site, totals| sites.entry(site).or_default().at_moment.add(totals));
    add_blocks(end, |site, totals| sites.entry(site).or_default().end.add(totals));
    for (&site, &of_site) in churn {
        sites.entry(site).or_default().churn = of_site;
    }
    sites
}

/// Calls `add` with the site and the totals of every live block of a device.
fn add_blocks(device: &DeviceState, mut add: impl FnMut(SiteId, BlockTotals)) {
    for block in device.blocks() {
        let (bytes, blocks, requested_bytes) = (block.size, 1, block.requested);
        add(
            block.site,
            if block.pending_free {
                BlockTotals { pending_bytes: bytes, pending_blocks: blocks, requested_bytes, ..BlockTotals::default() }
            } else {
                BlockTotals { bytes, blocks, requested_bytes, ..BlockTotals::default() }
            },
        );
    }
}

/// One of two recordings whose sites are compared.
pub(super) struct SitesOfRecording<'a> {
    pub(super) definitions: &'a Definitions,
    /// Knows the categories of sites.
    pub(super) grouping: &'a Grouping,
    /// By site number, the line of the program that makes the site's requests, as named in B.
    pub(super) lines: &'a [Arc<str>],
    /// By site number of this recording, the number that stands for the matched site in both
    /// recordings.
    pub(super) shared_numbers: &'a [SiteId],
    /// `None` if the recording lacks the device.
    pub(super) sites: Option<&'a SitesOfDevice>,
    /// `None` if the device has no allocation.
    pub(super) lifetimes: Option<&'a DeviceLifetimes>,
}

impl<'a> SitesOfRecording<'a> {
    /// Returns the line of the program that makes a site's requests, as named in B.
    pub(super) fn line(&self, site: SiteId) -> &'a str {
        self.lines.get(site.0 as usize).map_or("", |line| &**line)
    }

    /// Returns the number that stands for a site of this recording in both recordings.
    pub(super) fn shared_number(&self, site: SiteId) -> SiteId {
        self.shared_numbers.get(site.0 as usize).copied().unwrap_or_default()
    }

    /// Creates the change of a site without memory. Its name, scope, category and stack come from
    /// this recording.
    fn new_change(&self, device: PerRecording<DeviceId>, id: SiteId) -> SiteChange {
        let site = self.definitions.site(id);
        let stack = self.definitions.stack(site.stack).take(SHOWN_FRAMES);
        SiteChange {
            device,
            name: site_name(self.definitions, id),
            scope: self.definitions.string(site.scope).to_owned(),
            category: site.category,
            inferred_category: [false, true]
                .map(|is_older| self.grouping.category(id, is_older))
                .into_iter()
                .find(|one| one.category != Category::Unknown)
                .unwrap_or(MemoryCategory::inferred(Category::Unknown)),
            stack: stack.map(|frame| frame_name(self.definitions, frame, false)).collect(),
            ..SiteChange::default()
        }
    }
}

/// The change of a site, with the values by which it is matched and ranked.
pub(super) struct MatchedSite {
    /// The number that stands for the site in both recordings.
    pub(super) number: SiteId,
    /// The line of the program that makes its requests, as named in B.
    pub(super) line: Arc<str>,
    pub(super) change: SiteChange,
}

/// Returns the changes of all sites of a device, in no particular order.
pub(super) fn site_changes(
    device: PerRecording<DeviceId>,
    of: &PerRecording<SitesOfRecording<'_>>,
) -> Vec<MatchedSite> {
    let mut matched: HashMap<SiteId, MatchedSite> = HashMap::new();
    // B comes first, so that a site of both is described as in B.
    for (recording, is_b) in [(&of.b, true), (&of.a, false)] {
        for (&site, figures) in recording.sites.into_iter().flatten() {
            let number = recording.shared_number(site);
            let of_site = matched.entry(number).or_insert_with(|| {
                let line = recording.lines.get(site.0 as usize).cloned().unwrap_or_default();
                MatchedSite { number, line, change: recording.new_change(device, site) }
            });
            let change = &mut of_site.change;
            side(&mut change.at_moment, is_b).add(figures.at_moment);
            side(&mut change.end, is_b).add(figures.end);
            side(&mut change.churn, is_b).add_all(figures.churn.churn);
            let requested = side(&mut change.requested_churn_bytes, is_b);
            *requested = requested.saturating_add(figures.churn.requested_bytes);
        }
    }
    matched.into_values().collect()
}

/// Returns B's value if `is_b` is true, else A's.
fn side<T>(values: &mut PerRecording<T>, is_b: bool) -> &mut T {
    if is_b { &mut values.b } else { &mut values.a }
}
