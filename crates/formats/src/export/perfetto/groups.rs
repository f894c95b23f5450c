//! Allocations as slices, grouped by site.
//!
//! Each group has as many lanes, which are tracks, as it has allocations at a time; an allocation gets the lowest that is free. The
//! page draws the lanes of a group as one track. Allocations of which nothing is known but their size are grouped by that.
//!
//! What cannot be drawn in any useful way is bounded: the sites by [`GROUPS`], the lanes of one group by [`GROUP_LANES`], those of a
//! device by [`LANES`]. Sites beyond that share one group, allocations beyond that have no slice; how many, and how many bytes at each
//! moment, stands in the trace.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use vramscope_trace::{DeviceId, EventKind, Recording, SiteId};

use super::proto::{INSTANT, MERGE_BY_KEY, SLICE_BEGIN, TrackDescriptor};
use super::texts::Text;
use super::{Argument, Trace, lazily, rank};
use crate::export::follow::{Lifetime, Moment};
use crate::export::{ExportError, walk};

/// Sites with a group of their own on one device: those that allocated the most bytes.
const GROUPS: usize = 1000;
/// Allocations of one group at a time.
const GROUP_LANES: u32 = 512;
/// Allocations of one device at a time.
const LANES: u32 = 16 << 10;

/// The sites of a device that have a group of their own; `None` for all.
pub(super) type Sites = Option<Arc<HashSet<SiteId>>>;

/// Which sites have a group of their own.
pub(super) struct Largest {
    devices: Option<HashMap<DeviceId, Arc<HashSet<SiteId>>>>,
}

impl Largest {
    pub(super) fn of(&self, device: DeviceId) -> Sites {
        self.devices.as_ref().map(|devices| devices.get(&device).cloned().unwrap_or_default())
    }
}

/// Finds the sites that allocated the most, where there are too many.
pub(super) fn largest(recording: &Recording) -> Result<Largest, ExportError> {
    if recording.definitions().site_count() <= GROUPS {
        return Ok(Largest { devices: None });
    }
    let mut sums: HashMap<DeviceId, HashMap<SiteId, u64>> = HashMap::new();
    walk(recording, &mut |_, _| {}, |_, _, event| {
        if let EventKind::BlockAllocated { size, site, .. } = event.kind {
            let sum = sums.entry(event.device).or_default().entry(site).or_default();
            *sum = sum.saturating_add(size);
        }
        Ok::<(), ExportError>(())
    })?;
    let most = |sums: HashMap<SiteId, u64>| {
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|&(site, bytes)| (Reverse(bytes), site));
        Arc::new(sums.into_iter().take(GROUPS).map(|(site, _)| site).collect())
    };
    Ok(Largest { devices: Some(sums.into_iter().map(|(device, sums)| (device, most(sums))).collect()) })
}

/// What the allocations of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Site(SiteId),
    /// No site is known, the size is at least 2ⁿ bytes.
    Unknown(u32),
    /// Any of the sites that have no group of their own.
    Others,
}

#[derive(Debug)]
struct Group {
    /// Its number, which tells the page that its lanes are one track.
    number: u64,
    lanes: u32,
    /// Lanes that were made and have no allocation on them now, by number and track.
    free: BinaryHeap<Reverse<(u32, u64)>>,
}

/// A drawn allocation.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    group: Key,
    lane: u32,
    track: u64,
}

/// The groups of one device.
#[derive(Debug)]
pub(super) struct Groups {
    process: u64,
    parent: u64,
    largest: Sites,
    groups: HashMap<Key, Group>,
    lanes: u32,
    /// By address.
    drawn: HashMap<u64, Drawn>,
    left_out: LeftOut,
}

/// Allocations that have no slice.
#[derive(Debug, Default)]
struct LeftOut {
    track: Option<u64>,
    allocations: u64,
    bytes: u64,
    live_bytes: u64,
}

impl Groups {
    pub(super) fn new(process: u64, parent: u64, largest: Sites) -> Self {
        Self {
            process,
            parent,
            largest,
            groups: HashMap::new(),
            lanes: 0,
            drawn: HashMap::new(),
            left_out: LeftOut::default(),
        }
    }

    fn key(&self, trace: &Trace<'_>, lifetime: &Lifetime) -> Key {
        let site = lifetime.block.site;
        if !trace.texts.is_known(site) {
            Key::Unknown(lifetime.block.size.max(1).ilog2())
        } else if self.largest.as_ref().is_none_or(|largest| largest.contains(&site)) {
            Key::Site(site)
        } else {
            Key::Others
        }
    }

    /// The lane of a group that comes first of those that are free.
    fn lane(&mut self, trace: &mut Trace<'_>, key: Key) -> Result<Option<(u32, u64)>, ExportError> {
        let number = self.groups.len() as u64 + 1;
        let group = self.groups.entry(key).or_insert_with(|| Group { number, lanes: 0, free: BinaryHeap::new() });
        if let Some(Reverse(lane)) = group.free.pop() {
            return Ok(Some(lane));
        }
        if group.lanes == GROUP_LANES || self.lanes == LANES {
            return Ok(None);
        }
        let name = match key {
            Key::Site(site) => trace.texts.words(Text::Site(site)),
            Key::Unknown(power) => trace.texts.words(Text::UnknownOf(power)),
            Key::Others => "other sites".to_owned(),
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

    pub(super) fn began(&mut self, trace: &mut Trace<'_>, lifetime: &Lifetime) -> Result<(), ExportError> {
        let block = &lifetime.block;
        let group = self.key(trace, lifetime);
        let time_ns = lifetime.allocated.map_or(block.since_ns, |moment| moment.time_ns);
        let Some((lane, track)) = self.lane(trace, group)? else {
            self.left_out.allocations += 1;
            self.left_out.bytes = self.left_out.bytes.saturating_add(block.size);
            return self.count_left_out(trace, time_ns, self.left_out.live_bytes.saturating_add(block.size));
        };
        let name = match group {
            Key::Unknown(power) => Text::UnknownOf(power),
            Key::Site(_) | Key::Others => Text::Site(block.site),
        };
        let mut arguments = vec![
            ("bytes", Argument::Number(block.size)),
            ("requested", Argument::Number(block.requested)),
            ("address", Argument::Pointer(block.address)),
            ("stream", Argument::Pointer(block.stream.0)),
        ];
        // One that was there before the first event has none.
        arguments.extend(lifetime.allocated.map(|moment| ("event", Argument::Number(moment.event))));
        arguments.extend(trace.texts.site_arguments(block.site));
        self.drawn.insert(block.address, Drawn { group, lane, track });
        trace.named(SLICE_BEGIN, (track, time_ns), name, &arguments)
    }

    pub(super) fn ended(&mut self, trace: &mut Trace<'_>, lifetime: &Lifetime) -> Result<(), ExportError> {
        let block = &lifetime.block;
        // Without an end it is still there when the recording ends, and so is its slice.
        let Some(completed) = lifetime.completed else { return Ok(()) };
        let Some(Drawn { group, lane, track }) = self.drawn.remove(&block.address) else {
            return self.count_left_out(trace, completed.time_ns, self.left_out.live_bytes.saturating_sub(block.size));
        };
        if let Some(group) = self.groups.get_mut(&group) {
            group.free.push(Reverse((lane, track)));
        }
        trace.end_slice(track, completed.time_ns)
    }

    fn count_left_out(&mut self, trace: &mut Trace<'_>, time_ns: u64, live_bytes: u64) -> Result<(), ExportError> {
        let process = self.process;
        let track = lazily(&mut self.left_out.track, || {
            trace.counter_under(process, "active bytes without a slice", rank::LEFT_OUT_BYTES, "allocator")
        })?;
        self.left_out.live_bytes = live_bytes;
        trace.count(track, time_ns, live_bytes)
    }

    /// Says at the end of the recording what was left out.
    pub(super) fn finish(self, trace: &mut Trace<'_>, end: Moment) -> Result<(), ExportError> {
        let LeftOut { allocations, bytes, .. } = self.left_out;
        if allocations == 0 {
            return Ok(());
        }
        let track = trace.track_under(self.process, "left out", rank::LEFT_OUT)?;
        let arguments = [("allocations", Argument::Number(allocations)), ("bytes", Argument::Number(bytes))];
        trace.named(INSTANT, (track, end.time_ns), Text::Word("allocations without a slice"), &arguments)
    }
}
