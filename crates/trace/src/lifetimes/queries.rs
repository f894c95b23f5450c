//! What can be asked of the lifetimes of a device.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Allocation;
use super::rows::{Block, Rows};
use crate::metrics::Churn;

/// The live sets of some moments, so that one of any moment is put together from few rows.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveSets {
    notes: Vec<Note>,
    /// Their rows, one set behind the other.
    live: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Note {
    moment: u64,
    /// How many rows there were.
    rows: usize,
    /// Where the next row went: block and place in it.
    next_row: (usize, usize),
    /// Where its rows end among all.
    end: usize,
}

impl LiveSets {
    /// How many rows there were when the last set was noted.
    pub(super) fn rows(&self) -> usize {
        self.notes.last().map_or(0, |note| note.rows)
    }

    /// Notes a live set: all of `rows` that are active at `moment`.
    #[inline(never)]
    pub(super) fn note(&mut self, moment: u64, rows: &Rows, live: impl Iterator<Item = u32>) {
        self.live.extend(live);
        let blocks = rows.blocks();
        let next_row = blocks.last().map_or((0, 0), |last| (blocks.len() - 1, last.len()));
        self.notes.push(Note { moment, rows: rows.len(), next_row, end: self.live.len() });
    }

    pub(super) fn finish(&mut self) {
        self.notes.shrink_to_fit();
        self.live.shrink_to_fit();
    }

    /// The last set noted at a moment or before, and where the rows behind it begin.
    fn before(&self, moment: u64) -> (&[u32], (usize, usize)) {
        let Some(note) = self.notes.partition_point(|note| note.moment <= moment).checked_sub(1) else {
            return (&[], (0, 0));
        };
        let start = note.checked_sub(1).map_or(0, |before| self.notes[before].end);
        (&self.live[start..self.notes[note].end], self.notes[note].next_row)
    }
}

/// What the rows of a block have in common, so that most questions skip most blocks.
#[derive(Clone, Copy, Debug)]
struct Zone {
    /// The first moment of the last row.
    last_begin: u64,
    /// The last of the ends; `u64::MAX` where one has none.
    active_until: u64,
    /// The first of the addresses.
    address: u64,
    /// The last of the ends in memory.
    end: u64,
}

impl Zone {
    fn of(rows: &Rows, number: usize, block: &Block) -> Self {
        let mut zone = Self { last_begin: block.base(), active_until: 0, address: u64::MAX, end: 0 };
        for index in 0..block.len() {
            let (address, (size, _)) = (rows.address(block, index), rows.sizes(block, index));
            zone.last_begin = block.first_moment(index);
            zone.active_until = zone.active_until.max(rows.active_until(number, block, index).unwrap_or(u64::MAX));
            zone.address = zone.address.min(address);
            zone.end = zone.end.max(address.saturating_add(size));
        }
        zone
    }
}

/// Sums over allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// How many there are: all that are active.
    pub count: u64,
    /// Bytes of those that the program has not freed.
    pub allocated: u64,
    /// Bytes of all.
    pub active: u64,
    /// Bytes asked for, of all.
    pub requested: u64,
}

impl Sums {
    fn add(&mut self, one: &Allocation, moment: u64) {
        self.count += 1;
        self.active = self.active.saturating_add(one.size);
        self.requested = self.requested.saturating_add(one.requested);
        if one.is_allocated_at(moment) {
            self.allocated = self.allocated.saturating_add(one.size);
        }
    }
}

/// The lifetimes of one device's allocations, in the order in which they began.
#[derive(Clone, Debug)]
pub struct DeviceLifetimes {
    rows: Rows,
    /// One for each block of rows.
    zones: Vec<Zone>,
    live_sets: LiveSets,
    left_out: u64,
}

impl DeviceLifetimes {
    pub(super) fn new(rows: Rows, live_sets: LiveSets, left_out: u64) -> Self {
        let blocks = rows.blocks().iter().enumerate();
        let zones = blocks.map(|(number, block)| Zone::of(&rows, number, block)).collect();
        Self { rows, zones, live_sets, left_out }
    }

    /// How many allocations there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many more there were than the index has numbers for: 0 up to four billion.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Bytes of memory that they occupy, about.
    #[must_use]
    pub fn size_in_memory(&self) -> usize {
        let notes = self.live_sets.notes.capacity() * size_of::<Note>() + self.live_sets.live.capacity() * 4;
        self.rows.size_in_memory() + self.zones.capacity() * size_of::<Zone>() + notes
    }

    /// All allocations.
    pub fn iter(&self) -> impl Iterator<Item = Allocation> + '_ {
        let blocks = self.rows.blocks().iter().enumerate();
        blocks.flat_map(move |(number, block)| (0..block.len()).map(move |index| self.rows.get(number, index)))
    }

    /// The places of the rows that begin after the moment `after` and by the moment `to`, in blocks that `wanted` takes.
    fn begun_in<'a>(
        &'a self,
        after: Option<u64>,
        to: u64,
        wanted: impl Fn(&Zone) -> bool + 'a,
    ) -> impl Iterator<Item = (usize, usize)> + 'a {
        let begun_by =
            |number: usize, moment: Option<u64>| moment.map_or(0, |moment| self.rows.blocks()[number].begun_by(moment));
        let first = after.map_or(0, |after| self.zones.partition_point(|zone| zone.last_begin <= after));
        let blocks = self.rows.blocks()[first..].iter().zip(&self.zones[first..]).enumerate();
        blocks
            .take_while(move |(_, (block, _))| block.base() <= to)
            .filter(move |(_, (_, zone))| wanted(zone))
            .map(move |(number, _)| first + number)
            .flat_map(move |number| {
                (begun_by(number, after)..begun_by(number, Some(to))).map(move |index| (number, index))
            })
    }

    fn is_active_at(&self, (number, index): (usize, usize), moment: u64) -> bool {
        let block = &self.rows.blocks()[number];
        self.rows.active_until(number, block, index).is_none_or(|until| until > moment)
    }

    /// The allocations that are active at a moment, in no order. Costs what is live then and was live at a moment noted shortly before.
    pub fn live_at(&self, moment: u64) -> impl Iterator<Item = Allocation> + '_ {
        let (noted, (next_block, next_index)) = self.live_sets.before(moment);
        let noted = noted.iter().map(|&row| Rows::place(row));
        let blocks = self.rows.blocks()[next_block.min(self.rows.blocks().len())..].iter().enumerate();
        let since = blocks.take_while(move |(_, block)| block.base() <= moment).flat_map(move |(after, block)| {
            let from = if after == 0 { next_index } else { 0 };
            (from..block.begun_by(moment).max(from)).map(move |index| (next_block + after, index))
        });
        noted
            .chain(since)
            .filter(move |&place| self.is_active_at(place, moment))
            .map(|(number, index)| self.rows.get(number, index))
    }

    /// The allocations that are active at any moment from `from` to `to`, both included. Costs what is live at the first and what
    /// begins until the last.
    pub fn alive_in(&self, from: u64, to: u64) -> impl Iterator<Item = Allocation> + '_ {
        let begun = self.begun_in(Some(from), to, |_| true).map(|(number, index)| self.rows.get(number, index));
        self.live_at(from).chain(begun)
    }

    /// The largest `count` allocations at a moment, the largest first, and of equal ones the one at the lowest address. Costs
    /// [`live_at`](Self::live_at) and sorting what it gives.
    #[must_use]
    pub fn largest_at(&self, moment: u64, count: usize) -> Vec<Allocation> {
        let mut live: Vec<Allocation> = self.live_at(moment).collect();
        let order = |one: &Allocation| (std::cmp::Reverse(one.size), one.address);
        if count > 0 && count < live.len() {
            live.select_nth_unstable_by_key(count - 1, order);
        }
        live.truncate(count);
        live.sort_unstable_by_key(order);
        live
    }

    /// The sums at a moment by whatever `key` says: site, category (by way of
    /// [`Definitions::site`](crate::Definitions::site)), stream, pool. Costs [`live_at`](Self::live_at).
    pub fn sums_at<K: Ord>(&self, moment: u64, key: impl Fn(&Allocation) -> K) -> BTreeMap<K, Sums> {
        let mut sums = BTreeMap::<K, Sums>::new();
        for one in self.live_at(moment) {
            sums.entry(key(&one)).or_default().add(&one, moment);
        }
        sums
    }

    /// Every allocation that had the byte at `address`, in order. Costs a look at each block of 1,024, and at each row of those whose
    /// range of addresses covers it: all *n* where a program uses all of its memory all of the time.
    pub fn history_of(&self, address: u64) -> impl Iterator<Item = Allocation> + '_ {
        let blocks = self.rows.blocks().iter().zip(&self.zones).enumerate();
        blocks.filter(move |(_, (_, zone))| zone.address <= address && address < zone.end).flat_map(
            move |(number, (block, _))| {
                (0..block.len())
                    .filter(move |&index| {
                        let start = self.rows.address(block, index);
                        // The size lies in another column, and is read only where the address may do.
                        start <= address && address - start < self.rows.sizes(block, index).0
                    })
                    .map(move |index| self.rows.get(number, index))
            },
        )
    }

    /// Of the allocations made by the events of a range those that are allocated at the moment `at`: leaks, where that is the end of the
    /// recording (or `u64::MAX`). Costs the allocations made in the range, less those whose block has nothing that lives so long.
    pub fn survivors(&self, made_by: Range<u64>, at: u64) -> impl Iterator<Item = Allocation> + '_ {
        self.made_by(made_by, move |zone| zone.active_until >= at).filter(move |one| one.is_allocated_at(at))
    }

    /// Of the allocations made by the events of a range those that the program freed within so many events: 1 where the very next event
    /// is the free. Costs the allocations made in the range.
    pub fn temporaries(&self, made_by: Range<u64>, within_events: u64) -> impl Iterator<Item = Allocation> + '_ {
        self.made_by(made_by, |_| true).filter(move |one| {
            let life = one.free_requested().zip(one.birth()).map(|(free, birth)| free.saturating_sub(birth));
            life.is_some_and(|life| life <= within_events)
        })
    }

    /// The sums over [`temporaries`](Self::temporaries) by whatever `key` says, each counted as allocated. Costs the same.
    pub fn temporaries_by<K: Ord>(
        &self,
        made_by: Range<u64>,
        within_events: u64,
        key: impl Fn(&Allocation) -> K,
    ) -> BTreeMap<K, Sums> {
        let mut sums = BTreeMap::<K, Sums>::new();
        for one in self.temporaries(made_by, within_events) {
            sums.entry(key(&one)).or_default().add(&one, one.first_moment);
        }
        sums
    }

    /// What the events of a range allocated, by whatever `key` says. Costs the allocations made in the range.
    pub fn churn_by<K: Ord>(&self, made_by: Range<u64>, key: impl Fn(&Allocation) -> K) -> BTreeMap<K, Churn> {
        let mut churn = BTreeMap::<K, Churn>::new();
        for one in self.made_by(made_by, |_| true) {
            churn.entry(key(&one)).or_default().add(one.size);
        }
        churn
    }

    /// The allocations that the events of a range were seen to make.
    fn made_by<'a>(
        &'a self,
        events: Range<u64>,
        wanted: impl Fn(&Zone) -> bool + 'a,
    ) -> impl Iterator<Item = Allocation> + 'a {
        // An event is followed by its moment; a range of none must stay one.
        let to = if events.is_empty() { events.start } else { events.end };
        let rows = self.begun_in(Some(events.start), to, wanted);
        let seen = rows.filter(|&(number, _)| !self.rows.blocks()[number].unseen());
        seen.map(|(number, index)| self.rows.get(number, index))
    }
}
