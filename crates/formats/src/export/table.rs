//! A recording as two tables, events and lifetimes: what the rows of CSV and Parquet are, whichever file they end up in.
//!
//! Sites are resolved: a row can be read without any other table. Integers are unsigned here; `None` is what does not apply or is not
//! known. The columns are documented in `docs/exports.md`.

use std::collections::HashMap;

use vramscope_trace::{
    Annotation, Counters, DeviceId, Event, EventKind, Pool, PoolKind, Recording, SiteId, Stage, StreamId, site_name,
};

use super::follow::{Ending, Lifetime, Moment, Step, follow};
use super::{ExportError, Progress, frames, words};

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A count, a number of bytes, a time: below 2⁶³ in anything real.
    Number,
    /// An address or a pointer: any 64 bits.
    Word,
    /// Text.
    Text,
}

/// A value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell<'a> {
    /// A [`Kind::Number`] or a [`Kind::Word`].
    Number(Option<u64>),
    /// A [`Kind::Text`].
    Text(Option<&'a str>),
}

/// Takes a table's rows in order.
pub(crate) trait Rows {
    /// Takes the next row: a cell for each column.
    fn row(&mut self, cells: &[Cell<'_>]) -> Result<(), ExportError>;
}

/// The columns that say where memory was asked for, at the end of both tables.
const SITE_COLUMNS: [(&str, Kind); 9] = [
    ("site_id", Kind::Number),
    ("site", Kind::Text),
    ("function", Kind::Text),
    ("file", Kind::Text),
    ("line", Kind::Number),
    ("scope", Kind::Text),
    ("category", Kind::Text),
    ("compile_context", Kind::Text),
    ("stack", Kind::Text),
];

const EVENT_COLUMNS: [(&str, Kind); 20] = [
    ("event", Kind::Number),
    ("device", Kind::Number),
    ("time_ns", Kind::Number),
    ("kind", Kind::Text),
    ("address", Kind::Word),
    ("size", Kind::Number),
    ("requested", Kind::Number),
    ("stream", Kind::Word),
    ("pool", Kind::Text),
    ("mempool", Kind::Text),
    ("name", Kind::Text),
    ("stage", Kind::Text),
    ("device_free", Kind::Number),
    ("used_by_context", Kind::Number),
    ("used_by_others", Kind::Number),
    ("lost_events", Kind::Number),
    ("allocated_bytes", Kind::Number),
    ("active_bytes", Kind::Number),
    ("reserved_bytes", Kind::Number),
    ("requested_bytes", Kind::Number),
];

const LIFETIME_COLUMNS: [(&str, Kind); 15] = [
    ("device", Kind::Number),
    ("address", Kind::Word),
    ("size", Kind::Number),
    ("requested", Kind::Number),
    ("stream", Kind::Word),
    ("pool", Kind::Text),
    ("mempool", Kind::Text),
    ("allocated_event", Kind::Number),
    ("allocated_ns", Kind::Number),
    ("freed_event", Kind::Number),
    ("freed_ns", Kind::Number),
    ("completed_event", Kind::Number),
    ("completed_ns", Kind::Number),
    ("age_ns", Kind::Number),
    ("ending", Kind::Text),
];

/// The columns of the table of events.
pub(crate) fn event_columns() -> impl Iterator<Item = (&'static str, Kind)> {
    EVENT_COLUMNS.into_iter().chain(SITE_COLUMNS)
}

/// The columns of the table of lifetimes.
pub(crate) fn lifetime_columns() -> impl Iterator<Item = (&'static str, Kind)> {
    LIFETIME_COLUMNS.into_iter().chain(SITE_COLUMNS)
}

/// Gives the rows of both tables, each to its own.
///
/// # Errors
/// If a chunk cannot be read, and whatever the tables return.
pub(crate) fn rows(
    recording: &Recording,
    events: &mut impl Rows,
    lifetimes: &mut impl Rows,
    progress: Progress<'_>,
) -> Result<(), ExportError> {
    let mut sites = Sites { recording, known: HashMap::new(), bytes: 0 };
    let name = |annotation: &Annotation| recording.definitions().string(annotation.name);
    follow(recording, progress, |step| match step {
        Step::Began(_) => Ok(()),
        Step::Ended(lifetime, ending) => lifetime_row(recording, lifetime, ending, &mut sites, lifetimes),
        Step::Event { moment, event, frees, after } => {
            let mut row = EventRow { event: Some(moment.event), ..EventRow::of(recording, &event) };
            if let Some(block) = frees {
                (row.size, row.requested) = (Some(block.size), Some(block.requested));
                (row.stream, row.pool) = (Some(block.stream), Some(block.pool));
            }
            row.after = Some(after.counters());
            row.give(&mut sites, events)
        }
        Step::Annotation(annotation) => {
            let mut row = EventRow::new("annotation", annotation.device, annotation.time_ns);
            (row.name, row.stage) = (Some(name(annotation)), Some(annotation.stage));
            row.give(&mut sites, events)
        }
    })
}

fn text(text: &Option<String>) -> Cell<'_> {
    Cell::Text(text.as_deref())
}

fn pool_name(pool: Pool) -> &'static str {
    match pool.kind {
        PoolKind::Small => "small",
        PoolKind::Large => "large",
    }
}

/// A private pool as PyTorch writes one, `(1, 0)`; nothing for the default pool.
fn mempool(pool: Pool) -> Option<String> {
    (pool.owner != Default::default()).then(|| format!("({}, {})", pool.owner.0, pool.owner.1))
}

/// A row of the table of events, and what of it applies.
#[derive(Debug)]
struct EventRow<'a> {
    event: Option<u64>,
    device: DeviceId,
    time_ns: u64,
    kind: &'static str,
    address: Option<u64>,
    size: Option<u64>,
    requested: Option<u64>,
    stream: Option<StreamId>,
    pool: Option<Pool>,
    name: Option<&'a str>,
    stage: Option<Stage>,
    device_free: Option<u64>,
    used_by_context: Option<u64>,
    used_by_others: Option<u64>,
    lost: Option<u64>,
    after: Option<Counters>,
    site: Option<SiteId>,
}

impl<'a> EventRow<'a> {
    fn new(kind: &'static str, device: DeviceId, time_ns: u64) -> Self {
        Self {
            event: None,
            device,
            time_ns,
            kind,
            address: None,
            size: None,
            requested: None,
            stream: None,
            pool: None,
            name: None,
            stage: None,
            device_free: None,
            used_by_context: None,
            used_by_others: None,
            lost: None,
            after: None,
            site: None,
        }
    }

    /// The kinds go by the names of PyTorch's actions, where it has one.
    fn of(recording: &'a Recording, event: &Event) -> Self {
        let row = |kind| Self::new(kind, event.device, event.time_ns);
        let at = |kind, address, site| Self { address: Some(address), site: Some(site), ..row(kind) };
        match event.kind {
            EventKind::SegmentAllocated { address, size, stream, pool, site } => {
                Self { size: Some(size), stream: Some(stream), pool: Some(pool), ..at("segment_alloc", address, site) }
            }
            EventKind::SegmentMapped { address, size, stream, pool, site } => {
                Self { size: Some(size), stream: Some(stream), pool: Some(pool), ..at("segment_map", address, site) }
            }
            EventKind::SegmentFreed { address, size, site } => {
                Self { size: Some(size), ..at("segment_free", address, site) }
            }
            EventKind::SegmentUnmapped { address, size, site } => {
                Self { size: Some(size), ..at("segment_unmap", address, site) }
            }
            EventKind::BlockAllocated { address, size, requested, stream, pool, site } => Self {
                size: Some(size),
                requested: Some(requested),
                stream: Some(stream),
                pool: Some(pool),
                ..at("alloc", address, site)
            },
            EventKind::FreeRequested { address, site } => at("free_requested", address, site),
            EventKind::FreeCompleted { address, site } => at("free_completed", address, site),
            EventKind::OutOfMemory { requested, device_free, stream, site } => Self {
                requested: Some(requested),
                device_free: Some(device_free),
                stream: Some(stream),
                site: Some(site),
                ..row("oom")
            },
            EventKind::MemorySample { used_by_context, used_by_others, free } => Self {
                device_free: Some(free),
                used_by_context: Some(used_by_context),
                used_by_others: Some(used_by_others),
                ..row("memory_sample")
            },
            EventKind::Mark { stage, name, address, site } => Self {
                name: Some(recording.definitions().string(name)),
                stage: Some(stage),
                address: (address != 0).then_some(address),
                site: (site != SiteId(0)).then_some(site),
                ..row("mark")
            },
            EventKind::Gap { lost } => Self { lost: Some(lost), ..row("gap") },
        }
    }

    fn give(&self, sites: &mut Sites<'_>, events: &mut impl Rows) -> Result<(), ExportError> {
        let after = |of: fn(Counters) -> u64| Cell::Number(self.after.map(of));
        let stage = self.stage.map(|stage| match stage {
            Stage::Instant => "instant",
            Stage::Begin => "begin",
            Stage::End => "end",
        });
        let mempool = self.pool.and_then(mempool);
        let cells: [Cell<'_>; EVENT_COLUMNS.len()] = [
            Cell::Number(self.event),
            Cell::Number(Some(self.device.0.into())),
            Cell::Number(Some(self.time_ns)),
            Cell::Text(Some(self.kind)),
            Cell::Number(self.address),
            Cell::Number(self.size),
            Cell::Number(self.requested),
            Cell::Number(self.stream.map(|stream| stream.0)),
            Cell::Text(self.pool.map(pool_name)),
            text(&mempool),
            Cell::Text(self.name),
            Cell::Text(stage),
            Cell::Number(self.device_free),
            Cell::Number(self.used_by_context),
            Cell::Number(self.used_by_others),
            Cell::Number(self.lost),
            after(|counters| counters.allocated),
            after(|counters| counters.active),
            after(|counters| counters.reserved),
            after(|counters| counters.requested),
        ];
        sites.row(events, &cells, self.site)
    }
}

/// Gives a lifetime to its table.
fn lifetime_row(
    recording: &Recording,
    lifetime: &Lifetime,
    ending: Ending,
    sites: &mut Sites<'_>,
    lifetimes: &mut impl Rows,
) -> Result<(), ExportError> {
    let block = &lifetime.block;
    let number = |moment: Option<Moment>| Cell::Number(moment.map(|moment| moment.event));
    let time = |moment: Option<Moment>| Cell::Number(moment.map(|moment| moment.time_ns));
    // At least: of an allocation from before, and of one that is still there, more is not known.
    let from = lifetime.allocated.map_or(recording.start_ns(), |moment| moment.time_ns);
    let to = lifetime.freed.map_or(recording.end_ns(), |moment| moment.time_ns);
    let mempool = mempool(block.pool);
    let cells: [Cell<'_>; LIFETIME_COLUMNS.len()] = [
        Cell::Number(Some(lifetime.device.0.into())),
        Cell::Number(Some(block.address)),
        Cell::Number(Some(block.size)),
        Cell::Number(Some(block.requested)),
        Cell::Number(Some(block.stream.0)),
        Cell::Text(Some(pool_name(block.pool))),
        text(&mempool),
        number(lifetime.allocated),
        time(lifetime.allocated),
        number(lifetime.freed),
        time(lifetime.freed),
        number(lifetime.completed),
        time(lifetime.completed),
        Cell::Number(Some(to.saturating_sub(from))),
        Cell::Text(Some(ending.name())),
    ];
    sites.row(lifetimes, &cells, Some(block.site))
}

/// Text of sites that is kept so that it is put together once for many rows, in bytes.
const KEPT_BYTES: usize = 64 << 20;

/// A site in words.
#[derive(Debug)]
struct SiteText {
    name: String,
    stack: String,
}

/// Sites in words.
struct Sites<'a> {
    recording: &'a Recording,
    known: HashMap<SiteId, SiteText>,
    bytes: usize,
}

impl Sites<'_> {
    /// Gives a row to its table, completed by its site; the unknown site's columns are empty but for its category.
    fn row(&mut self, rows: &mut impl Rows, cells: &[Cell<'_>], site: Option<SiteId>) -> Result<(), ExportError> {
        let mut row = [Cell::Number(None); EVENT_COLUMNS.len() + SITE_COLUMNS.len()];
        row[..cells.len()].copy_from_slice(cells);
        let row = &mut row[..cells.len() + SITE_COLUMNS.len()];
        let place = &mut row[cells.len()..];
        let Some(id) = site else {
            place.copy_from_slice(&SITE_COLUMNS.map(|(_, kind)| match kind {
                Kind::Text => Cell::Text(None),
                Kind::Number | Kind::Word => Cell::Number(None),
            }));
            return rows.row(row);
        };
        self.know(id);
        let definitions = self.recording.definitions();
        let site = definitions.site(id);
        let words = &self.known[&id];
        let frame = frames(self.recording, id).next().unwrap_or_default();
        let some = |text| Some(text).filter(|text: &&str| !text.is_empty());
        place.copy_from_slice(&[
            Cell::Number(Some(id.0.into())),
            Cell::Text(some(&words.name)),
            Cell::Text(some(frame.function)),
            Cell::Text(some(frame.file)),
            Cell::Number((frame.line > 0).then_some(frame.line.into())),
            Cell::Text(some(definitions.string(site.scope))),
            Cell::Text(Some(site.category.name())),
            Cell::Text(some(definitions.string(site.compile_context))),
            Cell::Text(some(&words.stack)),
        ]);
        rows.row(row)
    }

    fn know(&mut self, id: SiteId) {
        if self.known.contains_key(&id) {
            return;
        }
        if self.bytes > KEPT_BYTES {
            (self.known, self.bytes) = (HashMap::new(), 0);
        }
        let definitions = self.recording.definitions();
        let words = SiteText { name: site_name(definitions, id), stack: words::stack(definitions, id) };
        self.bytes += words.name.len() + words.stack.len() + size_of::<SiteText>();
        self.known.insert(id, words);
    }
}
