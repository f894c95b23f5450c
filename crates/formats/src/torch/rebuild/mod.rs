//! Rebuilds what happened to a device's memory from its history, which says only part of it.
//!
//! First [`backward`] from the state at the end to the state before the first entry, then [`start`] settles how large the blocks
//! there were, then [`forward`] through the entries; at last [`check`] compares where that led with the snapshot.

mod backward;
mod check;
mod forward;
mod segments;
mod size;
mod start;
mod trace;

use vramscope_trace::{DeviceId, DeviceState, EventKind, Interner, Site, SiteId};

use self::backward::Past;
use self::forward::{Forward, fill_state};
use self::size::Rules;
use self::start::Start;
use self::trace::{Entries, Trace};
use super::snapshot::{Entry, Origin, Snapshot};

/// Gives out sites; what is asked for next is nearly always what was asked for last.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    pub(crate) interner: Interner,
    last: (Origin, SiteId),
}

impl Sites {
    pub(crate) fn new(interner: Interner) -> Self {
        Self { interner, ..Self::default() }
    }

    pub(crate) fn of(&mut self, origin: Origin) -> SiteId {
        if self.last.0 != origin {
            let Origin { stack, scope, compiled: compile_context } = origin;
            self.last = (origin, self.interner.site(Site { stack, scope, compile_context, ..Site::default() }));
        }
        self.last.1
    }
}

/// One device's history, ready to be told from its beginning.
#[derive(Debug)]
pub(crate) struct History<'a> {
    pub(crate) device: u16,
    /// How many entries it has.
    pub(crate) len: u64,
    /// Nothing was there before the first entry, and nothing is known to be missing.
    pub(crate) is_complete: bool,
    /// When the earliest of its entries was.
    pub(crate) earliest_us: Option<i64>,
    /// How many of the snapshot's segments and blocks contradict others, or are none that there can be.
    contradictions: u64,
    snapshot: &'a Snapshot,
    rest: Entries<'a>,
    next: Option<&'a Entry>,
    /// Which entry is next.
    place: i64,
    start: Start,
    forward: Forward,
}

impl<'a> History<'a> {
    pub(crate) fn new(snapshot: &'a Snapshot, device: u16) -> Self {
        let trace = Trace::new(snapshot, device);
        let rules = Rules::new(snapshot.settings.effective(), DeviceId(device));
        let past = Past::walk(snapshot, device, &trace, &rules);
        let is_complete = past.is_empty() && !snapshot.settings.overflowed;
        let start = Start::new(&past, &trace, &rules);
        let earliest_us = if snapshot.has_times { past.earliest_us } else { (trace.len() > 0).then_some(0) };
        let contradictions = past.misfits + start.misfits;
        let forward = Forward::new(&start, past.pools, past.survivors, rules);
        let mut rest = trace.entries();
        let next = rest.next();
        Self {
            device,
            len: trace.len(),
            is_complete,
            earliest_us,
            contradictions,
            snapshot,
            rest,
            next,
            place: 0,
            start,
            forward,
        }
    }

    /// When the next entry happened, in microseconds; its place in the history where the snapshot has no times.
    pub(crate) fn next_time_us(&self) -> Option<i64> {
        let next = self.next?;
        Some(if self.snapshot.has_times { next.time_us } else { self.place })
    }

    /// What the next entry did.
    pub(crate) fn next_event(&mut self, sites: &mut Sites) -> Option<EventKind> {
        let entry = self.next?;
        self.next = self.rest.next();
        self.place += 1;
        let context = self.snapshot.context(entry);
        let site = sites.of(self.forward.origin(entry, &context));
        Some(self.forward.apply(entry, &context, site))
    }

    /// Puts what was there before the first entry into `state`.
    pub(crate) fn fill_start(&self, state: &mut DeviceState, sites: &mut Sites) {
        fill_state(&self.start, state, |origin| sites.of(origin));
    }

    /// How many entries come before the state is certain.
    pub(crate) fn uncertain_entries(&self) -> u64 {
        self.start.unsure_entries
    }

    /// Whether anything was there before the first entry.
    pub(crate) fn starts_empty(&self) -> bool {
        self.start.segments.iter().len() == 0 && self.start.blocks.is_empty()
    }

    /// How many entries, segments and blocks contradicted what was known, once all entries were told.
    pub(crate) fn misfits(&self) -> u64 {
        self.contradictions + self.forward.misfits
    }

    /// What there is to say of this device, once all its entries were told.
    pub(crate) fn add_notes(&self, notes: &mut Vec<String>) {
        let of_device = match DeviceId(self.device) {
            DeviceId::HOST => "of the host's pinned memory".to_owned(),
            DeviceId(number) => format!("of device {number}"),
        };
        if !self.starts_empty() {
            let blocks = counted(self.start.blocks.len() as u64, "block");
            let segments = counted(self.start.segments.iter().len() as u64, "segment");
            notes.push(format!(
                "The history {of_device} began late: {segments} and {blocks} were there before its first event and were rebuilt from the snapshot's segments."
            ));
        } else if !self.is_complete {
            notes.push(format!(
                "The snapshot says that a history overflowed; that {of_device} may have lost its beginning."
            ));
        }
        if self.start.unsure > 0 {
            let unsure = counted(self.start.unsure, "block");
            notes.push(format!(
                "{unsure} {of_device} from before its first event may have been up to 1 MiB larger than shown."
            ));
        }
        if self.contradictions > 0 {
            let rows = counted(self.contradictions, "row");
            notes.push(format!(
                "{rows} of the snapshot's segments and blocks {of_device} contradict others or cannot be; the last was believed."
            ));
        }
        if self.forward.misfits > 0 {
            let entries = if self.forward.misfits == 1 {
                "1 entry".to_owned()
            } else {
                format!("{} entries", self.forward.misfits)
            };
            notes.push(format!("{entries} {of_device} did not fit what was known of its memory."));
        }
        if self.forward.irregular > 0 {
            let blocks = counted(self.forward.irregular, "block");
            notes.push(format!(
                "{blocks} {of_device}: not of the size that the settings give; the snapshot was believed."
            ));
        }
        if self.snapshot.has_segments {
            let difference = check::difference(self.snapshot, self.device, &self.forward);
            if difference != check::Difference::default() {
                notes.push(format!(
                    "The history {of_device} does not lead to the snapshot's end: {} segments and {} blocks differ.",
                    difference.segments, difference.blocks
                ));
            }
        }
    }
}

/// So many of something, in words.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
