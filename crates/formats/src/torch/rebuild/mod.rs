//! Rebuilds the events of a device from its history, whose entries lack some fields of events.
//!
//! [`backward`] walks from the state at the end to the state before the first entry, [`initial`]
//! determines the sizes of the blocks in that state, [`forward`] walks through the entries and
//! produces events, and [`check`] compares the result with the snapshot.

mod backward;
mod check;
mod forward;
mod initial;
mod segments;
mod size;
mod trace;

use vramscope_trace::{Count, DeviceId, DeviceState, EventKind, Interner, Site, SiteId, StringId};

use self::backward::BackwardWalk;
pub(crate) use self::forward::ForwardWalk;
use self::forward::fill_state;
use self::initial::InitialState;
pub(crate) use self::size::SizeRules;
use self::trace::{DeviceTrace, Entries};
use super::snapshot::{Entry, Origin, Snapshot};
use crate::progress::Cancelled;

/// Assigns numbers to sites: equal origins (call stack, scope, compile context) get one number.
#[derive(Debug, Default)]
pub(crate) struct SiteInterner {
    pub(crate) interner: Interner,
    /// The last origin that was numbered, and its site.
    last: (Origin, SiteId),
    /// The sites that consist of a call stack only, by stack number; site 0 for stacks without one.
    by_stack: Vec<SiteId>,
}

impl SiteInterner {
    /// Creates an interner that numbers new sites after the sites of `interner`.
    pub(crate) fn new(interner: Interner) -> Self {
        Self { interner, ..Self::default() }
    }

    /// Returns the number of the site for an origin, and defines the site if it is new.
    #[inline]
    pub(crate) fn site(&mut self, origin: Origin) -> SiteId {
        if self.last.0 != origin {
            self.last = (origin, self.find(origin));
        }
        self.last.1
    }

    /// Returns the number of the site for an origin, defining it if it is new; for an origin that
    /// is not the last one numbered.
    fn find(&mut self, origin: Origin) -> SiteId {
        let Origin { stack, scope, compile_context } = origin;
        let site = Site { stack, scope, compile_context, ..Site::default() };
        if scope != StringId(0) || compile_context != StringId(0) {
            return self.interner.site(site);
        }
        // Stacks have consecutive numbers, so the list is not longer than their definitions.
        let index = stack.0 as usize;
        if let Some(&known) = self.by_stack.get(index)
            && known != SiteId(0)
        {
            return known;
        }
        let found = self.interner.site(site);
        if self.by_stack.len() <= index {
            self.by_stack.resize(index + 1, SiteId(0));
        }
        self.by_stack[index] = found;
        found
    }
}

/// The history of one device, which is converted to events entry by entry.
#[derive(Debug)]
pub(crate) struct DeviceHistory<'a> {
    pub(crate) device: u16,
    /// Number of entries.
    pub(crate) len: u64,
    /// True if no memory was in use before the first entry and no entries are known to be missing.
    pub(crate) is_complete: bool,
    /// Time of the earliest entry in microseconds, 0 if entries have no times; `None` without
    /// entries.
    pub(crate) earliest_us: Option<i64>,
    /// Number of the snapshot's segments and blocks that are invalid or contradict others.
    contradicting_rows: u64,
    /// Number of private pools that the snapshot shows not to split their blocks.
    no_split_pools: u64,
    snapshot: &'a Snapshot,
    /// The entries after `next`.
    rest: Entries<'a>,
    /// The next entry to convert; `None` after the last.
    next: Option<&'a Entry>,
    /// Index of the next entry.
    next_index: i64,
    /// The state before the first entry.
    initial: InitialState,
    /// The state after the entries converted so far.
    forward: ForwardWalk,
}

impl<'a> DeviceHistory<'a> {
    /// Finds the state before the device's first entry, by walking its whole history backwards.
    /// `progress` receives the number of entries walked so far; fails if `progress` fails.
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        device: u16,
        progress: &mut dyn FnMut(u64) -> Result<(), Cancelled>,
    ) -> Result<Self, Cancelled> {
        let trace = DeviceTrace::new(snapshot, device);
        let rules = SizeRules::of_snapshot(snapshot, DeviceId(device));
        let backward = BackwardWalk::new(snapshot, device, &trace, &rules, progress)?;
        let is_complete = backward.is_empty() && !snapshot.settings.overflowed;
        let initial = InitialState::new(&backward, &trace, &rules);
        let earliest_us = if snapshot.has_times { backward.earliest_us } else { (trace.len() > 0).then_some(0) };
        let no_split_pools = rules.no_split_pools() as u64;
        let contradicting_rows = backward.contradictions + initial.contradictions;
        let forward = ForwardWalk::new(&initial, backward.pools, backward.surviving_blocks, rules);
        let mut rest = trace.entries();
        let next = rest.next();
        Ok(Self {
            device,
            len: trace.len(),
            is_complete,
            earliest_us,
            contradicting_rows,
            no_split_pools,
            snapshot,
            rest,
            next,
            next_index: 0,
            initial,
            forward,
        })
    }

    /// Returns the time of the next entry in microseconds since 1970; its index in the history if
    /// the snapshot has no times. `None` after the last entry.
    pub(crate) fn next_time_us(&self) -> Option<i64> {
        let next = self.next?;
        Some(if self.snapshot.has_times { next.time_us } else { self.next_index })
    }

    /// Returns the event for the next entry; `None` after the last entry.
    pub(crate) fn next_event(&mut self, sites: &mut SiteInterner) -> Option<EventKind> {
        let entry = self.next?;
        self.next = self.rest.next();
        self.next_index += 1;
        let context = self.snapshot.context(entry);
        let site = sites.site(self.forward.origin(entry, &context));
        Some(self.forward.apply(entry, &context, site))
    }

    /// Adds the segments and blocks from before the first entry to `state`, and defines their
    /// sites.
    pub(crate) fn fill_start(&self, state: &mut DeviceState, sites: &mut SiteInterner) {
        fill_state(&self.initial, state, |origin| sites.site(origin));
    }

    /// Adds the segments and blocks from before the first entry to `state`, with unknown sites.
    pub(crate) fn fill_start_without_sites(&self, state: &mut DeviceState) {
        fill_state(&self.initial, state, |_| SiteId(0));
    }

    /// Returns the walk, which can continue with entries that are not in the history.
    pub(crate) fn into_forward(self) -> ForwardWalk {
        self.forward
    }

    /// Returns the number of entries up to the one that frees the last block of uncertain size; 0
    /// if all sizes are known. Later entries are certain.
    pub(crate) fn uncertain_entries(&self) -> u64 {
        self.initial.uncertain_entries
    }

    /// Returns true if no memory was in use before the first entry.
    pub(crate) fn starts_empty(&self) -> bool {
        self.initial.segments.iter().len() == 0 && self.initial.blocks.is_empty()
    }

    /// Returns how many history entries, segments and blocks of this device are invalid or
    /// contradict another one. Complete only after the last entry.
    pub(crate) fn contradictions(&self) -> u64 {
        self.contradicting_rows + self.forward.contradictions
    }

    /// Appends sentences for the user about missing, uncertain or contradictory parts of this
    /// device. Call this after the last entry.
    pub(crate) fn add_notes(&self, notes: &mut Vec<String>) {
        let device = match DeviceId(self.device) {
            DeviceId::HOST => "Pinned host memory".to_owned(),
            DeviceId(number) => format!("Device {number}"),
        };
        let mut note = |text: String| notes.push(format!("{device}: {text}"));
        if !self.starts_empty() {
            let segments = Count(self.initial.segments.iter().len() as u64).of("segment", "segments");
            let blocks = Count(self.initial.blocks.len() as u64).of("block", "blocks");
            note("Recording began after memory was in use; earlier history is missing.".to_owned());
            note(format!(
                "{segments} and {blocks} from before the first event were rebuilt from the snapshot's segments."
            ));
        } else if !self.is_complete {
            note("The snapshot reports an overflowed history; its beginning may be missing.".to_owned());
        }
        if self.no_split_pools > 0 {
            let pools = Count(self.no_split_pools).of("private pool", "private pools");
            note(format!("{pools} do not split blocks (MemPool with no_split), as the sizes of blocks show."));
        }
        if self.initial.uncertain_blocks > 0 {
            let blocks = Count(self.initial.uncertain_blocks).of("block", "blocks");
            note(format!("{blocks} from before the first event may be up to 1 MiB larger than shown."));
        }
        if self.contradicting_rows > 0 {
            let rows = Count(self.contradicting_rows).of("segment or block is", "segments and blocks are");
            note(format!("{rows} invalid or in contradiction to others; the last one was used."));
        }
        if self.forward.contradictions > 0 {
            let entries = Count(self.forward.contradictions).of("entry contradicts", "entries contradict");
            note(format!("{entries} the entries before."));
        }
        if self.forward.irregular_sizes > 0 {
            let blocks = Count(self.forward.irregular_sizes).of("block has", "blocks have");
            note(format!("{blocks} another size than the settings give; the snapshot's size was used."));
        }
        if self.snapshot.has_segments {
            let difference = check::difference(self.snapshot, self.device, &self.forward);
            if difference != check::Difference::default() {
                let segments = Count(difference.segments).of("segment", "segments");
                let blocks = Count(difference.blocks).of("block", "blocks");
                note(format!("The history does not lead to the snapshot's end state: {segments} and {blocks} differ."));
            }
        }
    }
}
