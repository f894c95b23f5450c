//! Writes allocations as slices, grouped by site.
//!
//! Slices of one track that overlap must be nested, so a group has one lane (track) for each of its
//! allocations that are live at one time. An allocation takes the lowest free lane. The page shows
//! the lanes of a group as one track. Allocations of unknown sites are grouped by size.
//!
//! The number of sites is limited by [`MAX_GROUPS`], the lanes of a group by [`MAX_GROUP_LANES`],
//! the lanes of a device by [`MAX_DEVICE_LANES`]: more would be unreadable. Other sites share one
//! group, and other allocations have no slice. The trace contains the number of allocations without
//! a slice, and their bytes at each moment.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use vramscope_trace::{DeviceId, EventKind, Recording, SiteId};

use super::proto::{INSTANT, MERGE_BY_KEY, SLICE_BEGIN, TrackDescriptor};
use super::texts::{Argument, Text};
use super::writer::{TraceWriter, get_or_create, rank};
use crate::export::error::{ExportError, Result};
use crate::export::steps::{ExportedLifetime, Moment};
use crate::export::walk::for_each_event_and_relabels;

/// Maximum number of sites of a device whose allocations get a row of their own in the trace: the
/// sites that allocated the most bytes. Allocations of the remaining sites share the row "other
/// sites".
const MAX_GROUPS: usize = 1000;
/// Maximum number of live allocations that one row of the trace draws at a time, whether the row
/// has one site or several. An allocation that would exceed it is left out of the trace and only
/// counted.
const MAX_GROUP_LANES: u32 = 512;
/// Maximum number of tracks for the allocations of a device, over all sites. An allocation that
/// would need another track is left out of the trace and only counted.
const MAX_DEVICE_LANES: u32 = 16 << 10;

/// The sites of one device whose allocations get a row of their own; `None` if all sites get one.
pub(super) type GroupedSites = Option<Arc<HashSet<SiteId>>>;

/// The sites whose allocations get a row of their own, by device. `devices` is `None` if all sites
/// get one.
pub(super) struct LargestSites {
    devices: Option<HashMap<DeviceId, Arc<HashSet<SiteId>>>>,
}

impl LargestSites {
    /// Returns the sites of a device whose allocations get a row of their own; `None` if all sites
    /// get one.
    pub(super) fn of_device(&self, device: DeviceId) -> GroupedSites {
        self.devices.as_ref().map(|devices| devices.get(&device).cloned().unwrap_or_default())
    }
}

/// Finds for each device the [`MAX_GROUPS`] sites that allocated the most bytes; skips the search
/// if the recording has at most this number of sites. Streams the events, because a lifetime index
/// would take 23 bytes an allocation.
pub(super) fn find_largest_sites(recording: &Recording) -> Result<LargestSites> {
    if recording.definitions().site_count() <= MAX_GROUPS {
        return Ok(LargestSites { devices: None });
    }
    let mut sums: HashMap<DeviceId, HashMap<SiteId, u64>> = HashMap::new();
    for_each_event_and_relabels(recording, &mut |_, _| {}, |before, _, event, relabels| {
        let mut add = |device: DeviceId, site: SiteId, size: u64| {
            let sum = sums.entry(device).or_default().entry(site).or_default();
            *sum = sum.saturating_add(size);
        };
        for relabel in relabels {
            let block = before.device(relabel.device).and_then(|device| device.block(relabel.address));
            block.into_iter().for_each(|block| add(relabel.device, relabel.site, block.size));
        }
        if let EventKind::BlockAllocated { size, site, .. } = event.kind {
            add(event.device, site, size);
        }
        Ok::<(), ExportError>(())
    })?;
    let most = |sums: HashMap<SiteId, u64>| {
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|&(site, bytes)| (Reverse(bytes), site));
        Arc::new(sums.into_iter().take(MAX_GROUPS).map(|(site, _)| site).collect())
    };
    Ok(LargestSites { devices: Some(sums.into_iter().map(|(device, sums)| (device, most(sums))).collect()) })
}

/// Identifies one row of the trace: the site of its allocations, the size (as a power of two) of
/// allocations with an unknown site, or all sites without a row of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum GroupKey {
    Site(SiteId),
    /// The site is unknown, the size is at least 2ⁿ bytes.
    Unknown(u32),
    /// The site has no group of its own, because others allocated more bytes.
    Others,
}

/// One row of the trace: the tracks (lanes) with the allocations of one site, which Perfetto draws
/// as one. Each lane holds one allocation at a time.
#[derive(Debug)]
struct Group {
    /// The group's number; Perfetto's page draws lanes with equal numbers as one track.
    number: u64,
    /// Number of lanes of the group.
    lanes: u32,
    /// Free lanes, by number and track.
    free: BinaryHeap<Reverse<(u32, u64)>>,
}

/// The row in which a live allocation is drawn, and its lane (track) in that row. Another
/// allocation of the row may use the lane once this one ends.
#[derive(Clone, Copy, Debug)]
struct Slice {
    group: GroupKey,
    lane: u32,
    track: u64,
}

/// Writes the allocations of one device to a Perfetto trace, each as a slice from its allocation to
/// its free, grouped by site.
#[derive(Debug, Default)]
pub(super) struct AllocationSlices {
    /// Track of the device's process.
    process: u64,
    /// Track below which the device's allocations are drawn.
    parent: u64,
    largest: GroupedSites,
    groups: HashMap<GroupKey, Group>,
    lanes: u32,
    /// The slices of live allocations, by address.
    slices: HashMap<u64, Slice>,
    omitted: OmittedAllocations,
}

/// Allocations that are left out of the trace because of the limits: their number, their bytes, and
/// their live bytes at the current moment.
#[derive(Debug, Default)]
struct OmittedAllocations {
    /// Track of the counter of live bytes; `None` until it is needed.
    track: Option<u64>,
    allocations: u64,
    bytes: u64,
    live_bytes: u64,
}

impl AllocationSlices {
    pub(super) fn new(process: u64, parent: u64, largest: GroupedSites) -> Self {
        Self { process, parent, largest, ..Self::default() }
    }

    /// Returns the key of the group (row) in which an allocation is drawn.
    fn key(&self, trace: &TraceWriter<'_>, lifetime: &ExportedLifetime) -> GroupKey {
        let site = lifetime.block.site;
        if !trace.texts.is_known(site) {
            GroupKey::Unknown(lifetime.block.size.max(1).ilog2())
        } else if self.largest.as_ref().is_none_or(|largest| largest.contains(&site)) {
            GroupKey::Site(site)
        } else {
            GroupKey::Others
        }
    }

    /// Returns a free lane of a group and that lane's track; creates the lane if all are in use.
    /// `None` if a limit on lanes is reached.
    fn take_lane(&mut self, trace: &mut TraceWriter<'_>, key: GroupKey) -> Result<Option<(u32, u64)>> {
        let number = self.groups.len() as u64 + 1;
        let group = self.groups.entry(key).or_insert_with(|| Group { number, lanes: 0, free: BinaryHeap::new() });
        if let Some(Reverse(lane)) = group.free.pop() {
            return Ok(Some(lane));
        }
        if group.lanes == MAX_GROUP_LANES || self.lanes == MAX_DEVICE_LANES {
            return Ok(None);
        }
        let name = match key {
            GroupKey::Site(site) => trace.texts.resolve(Text::Site(site)),
            GroupKey::Unknown(power) => trace.texts.resolve(Text::UnknownSite(power)),
            GroupKey::Others => "other sites".to_owned(),
        };
        let track = trace.track(TrackDescriptor {
            name: Some(name),
            parent_uuid: Some(self.parent),
            sibling_merge_behavior: Some(MERGE_BY_KEY),
            sibling_merge_key_int: Some(group.number),
            ..TrackDescriptor::default()
        })?;
        group.lanes += 1;
        self.lanes += 1;
        Ok(Some((group.lanes - 1, track)))
    }

    /// Begins the slice of a new allocation, or counts the allocation as left out if no lane is
    /// available.
    pub(super) fn begin(&mut self, trace: &mut TraceWriter<'_>, lifetime: &ExportedLifetime) -> Result {
        let time_ns = lifetime.allocated.map_or(lifetime.block.since_ns, |moment| moment.time_ns);
        self.begin_slice(trace, lifetime, time_ns)
    }

    /// Ends the slice of an allocation and begins one in the group of its new site; nothing if the
    /// allocation has no slice.
    pub(super) fn relabel(&mut self, trace: &mut TraceWriter<'_>, lifetime: &ExportedLifetime, time_ns: u64) -> Result {
        let Some(slice) = self.slices.remove(&lifetime.block.address) else { return Ok(()) };
        self.release_lane(trace, slice, time_ns)?;
        self.begin_slice(trace, lifetime, time_ns)
    }

    /// Ends a slice at `time_ns` and makes its lane free for another allocation.
    fn release_lane(&mut self, trace: &mut TraceWriter<'_>, slice: Slice, time_ns: u64) -> Result {
        let Slice { group, lane, track } = slice;
        if let Some(group) = self.groups.get_mut(&group) {
            group.free.push(Reverse((lane, track)));
        }
        trace.write_slice_end(track, time_ns)
    }

    /// Begins a slice of an allocation at `time_ns`, or counts the allocation as left out if no
    /// lane is available.
    fn begin_slice(&mut self, trace: &mut TraceWriter<'_>, lifetime: &ExportedLifetime, time_ns: u64) -> Result {
        let block = &lifetime.block;
        let group = self.key(trace, lifetime);
        let Some((lane, track)) = self.take_lane(trace, group)? else {
            self.omitted.allocations += 1;
            self.omitted.bytes = self.omitted.bytes.saturating_add(block.size);
            return self.write_omitted_bytes(trace, time_ns, self.omitted.live_bytes.saturating_add(block.size));
        };
        let name = match group {
            GroupKey::Unknown(power) => Text::UnknownSite(power),
            GroupKey::Site(_) | GroupKey::Others => Text::Site(block.site),
        };
        let mut arguments = vec![
            ("bytes", Argument::Number(block.size)),
            ("requested", Argument::Number(block.requested)),
            ("address", Argument::Pointer(block.address)),
            ("stream", Argument::Pointer(block.stream.0)),
        ];
        // Allocations that are older than the recording have no event.
        arguments.extend(lifetime.allocated.map(|moment| ("event", Argument::Number(moment.event))));
        arguments.extend(trace.texts.site_arguments(block.site));
        self.slices.insert(block.address, Slice { group, lane, track });
        trace.write_named(SLICE_BEGIN, (track, time_ns), name, &arguments)
    }

    /// Writes the end of an allocation and makes its lane free; nothing if the allocation is live
    /// at the end of the recording.
    pub(super) fn end_slice(&mut self, trace: &mut TraceWriter<'_>, lifetime: &ExportedLifetime) -> Result {
        let block = &lifetime.block;
        // An allocation that does not end is live when the recording ends, and its slice stays
        // open.
        let Some(completed) = lifetime.completed else { return Ok(()) };
        let Some(slice) = self.slices.remove(&block.address) else {
            return self.write_omitted_bytes(
                trace,
                completed.time_ns,
                self.omitted.live_bytes.saturating_sub(block.size),
            );
        };
        self.release_lane(trace, slice, completed.time_ns)
    }

    /// Writes a new value of the counter "active bytes without a slice": the live bytes of left-out
    /// allocations.
    fn write_omitted_bytes(&mut self, trace: &mut TraceWriter<'_>, time_ns: u64, live_bytes: u64) -> Result {
        let process = self.process;
        let track = get_or_create(&mut self.omitted.track, || {
            trace.counter_under(process, "active bytes without a slice", rank::OMITTED_BYTES, "allocator")
        })?;
        self.omitted.live_bytes = live_bytes;
        trace.write_counter(track, time_ns, live_bytes)
    }

    /// Writes number and bytes of the allocations that were left out, at the end of the trace;
    /// writes nothing if all were drawn.
    pub(super) fn finish(self, trace: &mut TraceWriter<'_>, end: Moment) -> Result {
        let OmittedAllocations { allocations, bytes, .. } = self.omitted;
        if allocations == 0 {
            return Ok(());
        }
        let track = trace.track_under(self.process, "left out", rank::OMITTED)?;
        let arguments = [("allocations", Argument::Number(allocations)), ("bytes", Argument::Number(bytes))];
        trace.write_named(INSTANT, (track, end.time_ns), Text::Constant("allocations without a slice"), &arguments)
    }
}
