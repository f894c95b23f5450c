//! The second pass over a log: converts its lines to events.

use std::collections::{BTreeMap, HashMap};

use vramscope_trace::{Count, DeviceId, Event, EventKind, Interner, PoolKey, PoolKind, Sink, Site, SiteId, StreamId};

use super::log::{Action, Row};
use super::survey::{Survey, TABLE_ROW_BYTES};
use crate::limits::{LimitExceeded, MemoryBudget};

/// The pool of all blocks and segments of an RMM log, which has no size classes.
const POOL: PoolKey = PoolKey::default_of(PoolKind::Large);

/// Converts the lines of an RMM log to events and passes them to a sink.
pub(super) struct Converter<S> {
    pub(super) sink: S,
    device: DeviceId,
    /// The multiple of bytes that block sizes are rounded up to.
    alignment: u64,
    budget: MemoryBudget,
    interner: Interner,
    /// The site of each thread's allocations, by thread number.
    threads: HashMap<u64, SiteId>,
    /// Address ranges that were in use so far, from start to end (exclusive). No two ranges touch.
    segments: BTreeMap<u64, u64>,
    /// Live blocks, from start to end (exclusive).
    blocks: BTreeMap<u64, u64>,
    /// Valid lines converted so far.
    pub(super) rows: u64,
    /// Events passed to the sink so far.
    pub(super) events: u64,
    /// Lines that contradict the known blocks.
    pub(super) contradictions: u64,
    /// Requests of 0 bytes.
    empty_requests: u64,
}

impl<S: Sink> Converter<S> {
    pub(super) fn new(survey: &Survey, device: DeviceId, budget: MemoryBudget, sink: S) -> Self {
        Self {
            sink,
            device,
            alignment: survey.alignment,
            budget,
            interner: Interner::default(),
            threads: HashMap::new(),
            segments: BTreeMap::new(),
            blocks: BTreeMap::new(),
            rows: 0,
            events: 0,
            contradictions: 0,
            empty_requests: 0,
        }
    }

    /// Converts one line of the log to events: first the growth of segments that must hold the
    /// block, then the allocation or free. `time_ns` is the time since the log's earliest line.
    pub(super) fn convert(&mut self, row: &Row, time_ns: u64) -> Result<(), LimitExceeded> {
        self.rows += 1;
        if row.size == 0 && row.action != Action::AllocateFailed {
            // A request of 0 bytes does not use device memory.
            self.empty_requests += 1;
            return Ok(());
        }
        let site = self.site(row.thread)?;
        let (address, stream) = (row.address, StreamId(row.stream));
        let kind = match row.action {
            Action::AllocateFailed => EventKind::OutOfMemory { requested: row.size, device_free: 0, stream, site },
            Action::Allocate => {
                let end = self.block_end(row);
                self.grow_segments(address, end, time_ns, site)?;
                self.insert_block(address, end)?;
                let size = end - address;
                EventKind::BlockAllocated { address, size, requested: row.size, stream, pool: POOL, site }
            }
            Action::Free => {
                match self.blocks.remove(&address) {
                    Some(end) if end == self.block_end(row) => self.budget.give_back(TABLE_ROW_BYTES),
                    Some(_) => {
                        self.budget.give_back(TABLE_ROW_BYTES);
                        self.contradictions += 1;
                    }
                    None => self.contradictions += 1,
                }
                EventKind::FreeCompleted { address, site }
            }
        };
        self.event(time_ns, kind);
        Ok(())
    }

    /// Passes an event of the log's device to the sink, after the sites and strings that are new
    /// since the last event.
    fn event(&mut self, time_ns: u64, kind: EventKind) {
        for definition in self.interner.take_new() {
            self.sink.define(&definition);
        }
        self.sink.event(&Event { device: self.device, time_ns, kind });
        self.events += 1;
    }

    /// Returns the site of all allocations of a thread: the scope `thread N`, without a call stack.
    fn site(&mut self, thread: u64) -> Result<SiteId, LimitExceeded> {
        if let Some(&site) = self.threads.get(&thread) {
            return Ok(site);
        }
        self.budget.spend(2 * TABLE_ROW_BYTES)?;
        let scope = self.interner.string(&format!("thread {thread}"));
        let site = self.interner.site(Site { scope, ..Site::default() });
        self.threads.insert(thread, site);
        Ok(site)
    }

    /// Returns the end address of a line's block, exclusive. The block's size is the requested size
    /// rounded up to the alignment that all addresses of the log share.
    fn block_end(&self, row: &Row) -> u64 {
        let size = row.size.checked_next_multiple_of(self.alignment).unwrap_or(row.size);
        row.address.saturating_add(size)
    }

    /// Grows the segments so that they cover the block from `start` to `end` (exclusive), and
    /// reports the address ranges that this adds. Segments that touch are merged.
    fn grow_segments(&mut self, start: u64, end: u64, time_ns: u64, site: SiteId) -> Result<(), LimitExceeded> {
        let covering = self.segments.range(..=start).next_back();
        if covering.is_some_and(|(_, &last)| last >= end) {
            return Ok(());
        }
        // Segments that overlap or touch the block are merged with it, from the highest down.
        let (mut merged_start, mut merged_end, mut uncovered_end) = (start, end, end);
        while let Some((&first, &last)) = self.segments.range(..=merged_end).next_back()
            && last >= start
        {
            if last < uncovered_end {
                self.map(last.max(start), uncovered_end, time_ns, site);
            }
            uncovered_end = uncovered_end.min(first.max(start));
            merged_start = merged_start.min(first);
            merged_end = merged_end.max(last);
            self.segments.remove(&first);
            self.budget.give_back(TABLE_ROW_BYTES);
        }
        if start < uncovered_end {
            self.map(start, uncovered_end, time_ns, site);
        }
        self.budget.spend(TABLE_ROW_BYTES)?;
        self.segments.insert(merged_start, merged_end);
        Ok(())
    }

    /// Passes the event to the sink that maps the range from `address` to `end` (exclusive) as part
    /// of a segment.
    fn map(&mut self, address: u64, end: u64, time_ns: u64, site: SiteId) {
        let size = end - address;
        let stream = StreamId(0);
        self.event(time_ns, EventKind::SegmentMapped { address, size, stream, pool: POOL, site });
    }

    /// Adds a live block from `start` to `end` (exclusive). Removes blocks that it overlaps and
    /// counts each as a contradiction: the log lacks their frees.
    fn insert_block(&mut self, start: u64, end: u64) -> Result<(), LimitExceeded> {
        while let Some((&below, &last)) = self.blocks.range(..end).next_back()
            && last > start
        {
            self.blocks.remove(&below);
            self.budget.give_back(TABLE_ROW_BYTES);
            self.contradictions += 1;
        }
        self.budget.spend(TABLE_ROW_BYTES)?;
        self.blocks.insert(start, end);
        Ok(())
    }

    /// Returns sentences for the user about missing or ignored parts. Call this after the last
    /// line.
    pub(super) fn notes(&self, survey: &Survey) -> Vec<String> {
        let mut notes = vec![
            "The log lacks the memory held by the upstream resource; segments are the addresses in use so far."
                .to_owned(),
        ];
        if !survey.has_dates {
            notes.push("The log has times of day without dates.".to_owned());
        }
        if survey.midnights > 0 {
            let times = Count(survey.midnights.unsigned_abs()).of("time", "times");
            notes.push(format!("The log passes midnight {times}."));
        }
        if let Some(bad) = &survey.first_bad {
            let end = if survey.ends_with_bad_row {
                " The last line is cut off: the program ended while writing."
            } else {
                ""
            };
            let lines = Count(survey.bad_rows).of("invalid line", "invalid lines");
            notes.push(format!("Ignored {lines}; the first one {bad}.{end}"));
        }
        if self.empty_requests > 0 {
            let lines = Count(self.empty_requests).of("line", "lines");
            notes.push(format!("Ignored {lines} with a size of 0 bytes."));
        }
        if self.contradictions > 0 {
            let lines = Count(self.contradictions).of("line contradicts", "lines contradict");
            notes.push(format!(
                "{lines} the lines before: frees of unknown blocks, other sizes, or overlapping blocks."
            ));
        }
        notes
    }
}
