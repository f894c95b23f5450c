//! The log that RMM's `logging_resource_adaptor` writes: every request and every free that a program made of a RAPIDS memory
//! resource, as CSV.
//!
//! ```text
//! Thread,Time,Action,Pointer,Size,Stream
//! 2342727,15:47:02.841961,allocate,0x10012400000,1048576,0x0
//! 2342727,15:47:02.841977,free,0x10012400000,1048576,0x0
//! ```
//!
//! What the log does not say, and what is shown in its place:
//!
//! - *What the upstream resource holds.* A segment is address space that the log has shown in use so far, and grows when a block lies
//!   beyond what was seen before. With a pool or an arena below, that is the part of it that was ever needed; where memory goes back to
//!   the driver, it stays in the picture. Reserved bytes are therefore those of all addresses used so far.
//! - *How large a block really is.* A request is rounded up to the alignment that all pointers of the log have, at most the 256 bytes
//!   that RMM promises: nothing else can lie there.
//! - *The day.* Times are of the day; one that lies far before the line before it is of the next day.
//! - *When a free is complete.* It is told as completed at once, as RMM hands the memory out again in the order of the stream.
//!
//! Each line is one event, but for the growth of segments. Threads are scopes: `thread 2342727`. A log is gone through twice, first
//! for what has to be known before the first event, so that nothing is kept but live blocks and segments.

pub(crate) mod row;

use std::collections::{BTreeMap, HashMap, HashSet};

use vramscope_trace::{
    DeviceId, DeviceInfo, Event, EventKind, Info, Interner, Pool, PoolKind, Sink, Site, SiteId, StreamId,
};

use self::row::{Action, Line, Lines, Row, Time};
use crate::error::ReadError;
use crate::import::Imported;
use crate::limits::{Budget, Limits, OutOfBudget};

/// Lines between two reports of progress.
const PROGRESS_LINES: u64 = 1 << 16;
/// The alignment that RMM promises of every pointer, `rmm::CUDA_ALLOCATION_ALIGNMENT`.
const RMM_ALIGNMENT: u64 = 256;
const DAY_NS: i64 = 86_400_000_000_000;
/// How far a line may lie before the one before it on the same day: threads write when they come to it, and clocks are set back an hour
/// in autumn.
const BACK_NS: i64 = 7_200_000_000_000;
/// A rough price of a live block, a segment, or a thread, in the tables that hold it.
const ROW_BYTES: usize = 96;

/// What has to be known before the first event.
#[derive(Debug)]
struct Survey {
    rows: u64,
    bad_rows: u64,
    /// What is wrong with the first bad line.
    first_bad: Option<ReadError>,
    /// The last line is a bad one.
    ends_badly: bool,
    epoch_ns: i64,
    has_dates: bool,
    days: i64,
    /// Every pointer is a multiple of this.
    alignment: u64,
    /// Everything that is freed was allocated before.
    is_complete: bool,
}

/// Gives every line a time that does not start anew at midnight.
#[derive(Debug, Default)]
struct Calendar {
    last_ns: Option<i64>,
}

impl Calendar {
    fn ns(&mut self, time: Time) -> i64 {
        let ns = match time {
            Time::Unix(ns) => i64::try_from(ns).unwrap_or(i64::MAX),
            Time::OfDay(ns) => {
                // Below 2^47, and so is every sum of it with the day of the line before.
                let of_day = ns as i64;
                match self.last_ns {
                    Some(last) if last < i64::MAX / 2 => {
                        let earliest = last - BACK_NS;
                        of_day + DAY_NS * (earliest - of_day).div_euclid(DAY_NS) + DAY_NS
                    }
                    _ => of_day,
                }
            }
        };
        self.last_ns = Some(ns);
        ns
    }
}

impl Survey {
    fn new(bytes: &[u8], budget: &mut Budget, progress: &mut dyn FnMut(u64)) -> Result<Self, ReadError> {
        let mut survey = Self {
            rows: 0,
            bad_rows: 0,
            first_bad: None,
            ends_badly: false,
            epoch_ns: i64::MAX,
            has_dates: false,
            days: 0,
            alignment: RMM_ALIGNMENT,
            is_complete: true,
        };
        let (mut lines, mut calendar, mut live) = (Lines::new(bytes), Calendar::default(), HashSet::new());
        while let Some(line) = lines.next()? {
            let row = match line.read {
                Ok(row) => row,
                Err(_) => {
                    survey.bad_rows += 1;
                    survey.ends_badly = true;
                    survey.first_bad.get_or_insert_with(|| bad_line(&line));
                    continue;
                }
            };
            survey.take(&row, &mut calendar, &mut live, budget).map_err(|error| at(&line, error))?;
            if survey.rows.is_multiple_of(PROGRESS_LINES) {
                progress(line.offset);
            }
        }
        budget.give_back(live.len() * ROW_BYTES);
        match survey.first_bad {
            Some(bad) if survey.rows < survey.bad_rows => Err(bad),
            _ => Ok(survey),
        }
    }

    fn take(
        &mut self,
        row: &Row,
        calendar: &mut Calendar,
        live: &mut HashSet<u64>,
        budget: &mut Budget,
    ) -> Result<(), OutOfBudget> {
        self.rows += 1;
        self.ends_badly = false;
        self.has_dates |= matches!(row.time, Time::Unix(_));
        let ns = calendar.ns(row.time);
        self.epoch_ns = self.epoch_ns.min(ns);
        if !self.has_dates {
            self.days = self.days.max(ns.div_euclid(DAY_NS));
        }
        if row.size == 0 || row.action == Action::Fail {
            return Ok(());
        }
        self.alignment = self.alignment.min(1 << row.address.trailing_zeros().min(63));
        if row.action == Action::Allocate {
            if live.insert(row.address) {
                budget.take(ROW_BYTES)?;
            }
        } else if live.remove(&row.address) {
            budget.give_back(ROW_BYTES);
        } else {
            self.is_complete = false;
        }
        Ok(())
    }
}

fn bad_line(line: &Line) -> ReadError {
    at(line, line.read.err().unwrap_or_default())
}

fn at(line: &Line, what: impl std::fmt::Display) -> ReadError {
    let what = format!("this is not a line of an RMM log: {what}");
    ReadError { offset: line.offset, place: Some((line.number as usize, 1)), what }
}

/// The device that a log is of. RMM's Python interface puts it into the file's name: `log.dev1.csv`.
fn device_of(name: &str) -> DeviceId {
    let number = name.split('.').filter_map(|part| part.strip_prefix("dev")).find_map(|digits| digits.parse().ok());
    DeviceId(number.filter(|&number| number != DeviceId::HOST.0).unwrap_or(0))
}

/// Reads a log, as [`import`](crate::import()) says.
pub(crate) fn import<S: Sink>(
    bytes: &[u8],
    name: &str,
    limits: &Limits,
    progress: &mut dyn FnMut(u64, u64),
    begin: impl FnOnce(&Info) -> S,
) -> Result<(S, Imported), ReadError> {
    let half = bytes.len() as u64;
    let mut budget = Budget::new(limits.max_bytes);
    let survey = Survey::new(bytes, &mut budget, &mut |offset| progress(offset, 2 * half))?;
    let device = device_of(name);
    let info = Info {
        source: name.to_owned(),
        writer: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned(),
        epoch_unix_ns: if survey.has_dates { u64::try_from(survey.epoch_ns).unwrap_or(0) } else { 0 },
        devices: vec![DeviceInfo { device: device.0, history_complete: survey.is_complete, ..DeviceInfo::default() }],
        ..Info::default()
    };
    let mut teller = Teller::new(&survey, device, budget, begin(&info));
    let (mut lines, mut calendar) = (Lines::new(bytes), Calendar::default());
    while let Some(line) = lines.next()? {
        let Ok(row) = line.read else { continue };
        let time_ns = u64::try_from(calendar.ns(row.time).saturating_sub(survey.epoch_ns)).unwrap_or(0);
        teller.tell(&row, time_ns).map_err(|error| at(&line, error))?;
        if teller.rows.is_multiple_of(PROGRESS_LINES) {
            progress(half + line.offset, 2 * half);
        }
    }
    progress(2 * half, 2 * half);
    let imported = Imported {
        info,
        events: teller.events,
        misfits: teller.misfits + survey.bad_rows,
        notes: teller.notes(&survey),
    };
    Ok((teller.sink, imported))
}

/// Tells lines as events.
struct Teller<S> {
    sink: S,
    device: DeviceId,
    alignment: u64,
    budget: Budget,
    interner: Interner,
    /// The site of each thread.
    threads: HashMap<u64, SiteId>,
    /// Address space that was in use at some time: first address and end. No two touch.
    segments: BTreeMap<u64, u64>,
    /// Live blocks: first address and end.
    blocks: BTreeMap<u64, u64>,
    rows: u64,
    events: u64,
    misfits: u64,
    empty_requests: u64,
}

impl<S: Sink> Teller<S> {
    fn new(survey: &Survey, device: DeviceId, budget: Budget, sink: S) -> Self {
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
            misfits: 0,
            empty_requests: 0,
        }
    }

    fn tell(&mut self, row: &Row, time_ns: u64) -> Result<(), OutOfBudget> {
        self.rows += 1;
        if row.size == 0 && row.action != Action::Fail {
            // Nothing of the device's memory comes or goes.
            self.empty_requests += 1;
            return Ok(());
        }
        let site = self.site(row.thread)?;
        let (address, stream) = (row.address, StreamId(row.stream));
        let kind = match row.action {
            Action::Fail => EventKind::OutOfMemory { requested: row.size, device_free: 0, stream, site },
            Action::Allocate => {
                let end = self.block_end(row);
                self.cover(address, end, time_ns, site)?;
                self.put_block(address, end)?;
                let size = end - address;
                EventKind::BlockAllocated { address, size, requested: row.size, stream, pool: POOL, site }
            }
            Action::Free => {
                match self.blocks.remove(&address) {
                    Some(end) if end == self.block_end(row) => self.budget.give_back(ROW_BYTES),
                    Some(_) => {
                        self.budget.give_back(ROW_BYTES);
                        self.misfits += 1;
                    }
                    None => self.misfits += 1,
                }
                EventKind::FreeCompleted { address, site }
            }
        };
        self.event(time_ns, kind);
        Ok(())
    }

    fn event(&mut self, time_ns: u64, kind: EventKind) {
        for definition in self.interner.take_fresh() {
            self.sink.define(&definition);
        }
        self.sink.event(&Event { device: self.device, time_ns, kind });
        self.events += 1;
    }

    fn site(&mut self, thread: u64) -> Result<SiteId, OutOfBudget> {
        if let Some(&site) = self.threads.get(&thread) {
            return Ok(site);
        }
        self.budget.take(2 * ROW_BYTES)?;
        let scope = self.interner.string(&format!("thread {thread}"));
        let site = self.interner.site(Site { scope, ..Site::default() });
        self.threads.insert(thread, site);
        Ok(site)
    }

    fn block_end(&self, row: &Row) -> u64 {
        let size = row.size.checked_next_multiple_of(self.alignment).unwrap_or(row.size);
        row.address.saturating_add(size)
    }

    /// Lets segments grow over a block's addresses.
    fn cover(&mut self, start: u64, end: u64, time_ns: u64, site: SiteId) -> Result<(), OutOfBudget> {
        let covering = self.segments.range(..=start).next_back();
        if covering.is_some_and(|(_, &last)| last >= end) {
            return Ok(());
        }
        // What is there of segments that reach into the block or touch it becomes one with it.
        let (mut from, mut to, mut at) = (start, end, end);
        while let Some((&first, &last)) = self.segments.range(..=to).next_back()
            && last >= start
        {
            if last < at {
                self.map(last.max(start), at, time_ns, site);
            }
            at = at.min(first.max(start));
            from = from.min(first);
            to = to.max(last);
            self.segments.remove(&first);
            self.budget.give_back(ROW_BYTES);
        }
        if start < at {
            self.map(start, at, time_ns, site);
        }
        self.budget.take(ROW_BYTES)?;
        self.segments.insert(from, to);
        Ok(())
    }

    fn map(&mut self, address: u64, end: u64, time_ns: u64, site: SiteId) {
        let size = end - address;
        let stream = StreamId(0);
        self.event(time_ns, EventKind::SegmentMapped { address, size, stream, pool: POOL, site });
    }

    /// Adds a live block; of those that it overlaps, the log has lost the free.
    fn put_block(&mut self, start: u64, end: u64) -> Result<(), OutOfBudget> {
        while let Some((&below, &last)) = self.blocks.range(..end).next_back()
            && last > start
        {
            self.blocks.remove(&below);
            self.budget.give_back(ROW_BYTES);
            self.misfits += 1;
        }
        self.budget.take(ROW_BYTES)?;
        self.blocks.insert(start, end);
        Ok(())
    }

    fn notes(&self, survey: &Survey) -> Vec<String> {
        let mut notes = vec![
            "The log does not say what the upstream resource holds; segments are the addresses seen in use so far."
                .to_owned(),
        ];
        if !survey.has_dates {
            notes.push("The log says the time of day and not the day.".to_owned());
        }
        if survey.days > 0 {
            notes.push(format!("The log goes over midnight {} times.", survey.days));
        }
        if let Some(bad) = &survey.first_bad {
            let end =
                if survey.ends_badly { " The last line is one of them: the program ended while it wrote." } else { "" };
            notes.push(format!("{} lines were left out; the first {bad}.{end}", survey.bad_rows));
        }
        if self.empty_requests > 0 {
            notes.push(format!("{} lines about 0 bytes were left out.", self.empty_requests));
        }
        if self.misfits > 0 {
            notes.push(format!("{} lines did not fit what was known of the memory.", self.misfits));
        }
        notes
    }
}

/// RMM has no size classes.
const POOL: Pool = Pool::default_of(PoolKind::Large);
