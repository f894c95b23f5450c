//! The rows of the two tables, events and lifetimes, independent of the file format.
//!
//! Rows contain sites as text, so that they can be read without another table. `None` stands for a
//! value that does not apply or is unknown. `docs/exports.md` documents the columns.

use std::collections::HashMap;

use vramscope_trace::{
    Annotation, AnnotationStage, Counters, DeviceId, Event, EventKind, LifetimeEnding, PoolKey, PoolKind, Recording,
    SiteId, StreamId, site_name,
};

use super::error::{Progress, Result};
use super::frames::{frames, stack_text};
use super::steps::{ExportedLifetime, Moment, Step, for_each_step};

/// The type of a column of the CSV and Parquet tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnType {
    /// A count, a number of bytes or a time, below 2⁶³.
    Integer,
    /// An address: any 64 bits. CSV shows it in hexadecimal.
    Address,
    /// A stream handle: any 64 bits.
    Handle,
    /// A string.
    Text,
}

/// One value of a row of the CSV and Parquet tables; `None` if it is unknown or does not apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell<'a> {
    /// A value of a [`ColumnType::Integer`] or [`ColumnType::Handle`] column.
    Integer(Option<u64>),
    /// A value of a [`ColumnType::Address`] column.
    Address(Option<u64>),
    /// A value of a [`ColumnType::Text`] column.
    Text(Option<&'a str>),
}

/// Writes the rows of one table to a file, as CSV or Parquet.
pub(crate) trait TableWriter {
    /// Writes the next row; `cells` are its values in the order of the table's columns.
    fn write_row(&mut self, cells: &[Cell<'_>]) -> Result;
}

/// Name and type of the columns that describe a row's site, which both tables end with.
const SITE_COLUMNS: [(&str, ColumnType); 9] = [
    ("site_id", ColumnType::Integer),
    ("site", ColumnType::Text),
    ("function", ColumnType::Text),
    ("file", ColumnType::Text),
    ("line", ColumnType::Integer),
    ("scope", ColumnType::Text),
    ("category", ColumnType::Text),
    ("compile_context", ColumnType::Text),
    ("stack", ColumnType::Text),
];

/// Name and type of the columns of the event table, without the site's columns.
const EVENT_COLUMNS: [(&str, ColumnType); 20] = [
    ("event", ColumnType::Integer),
    ("device", ColumnType::Integer),
    ("time_ns", ColumnType::Integer),
    ("kind", ColumnType::Text),
    ("address", ColumnType::Address),
    ("size", ColumnType::Integer),
    ("requested", ColumnType::Integer),
    ("stream", ColumnType::Handle),
    ("pool", ColumnType::Text),
    ("mempool", ColumnType::Text),
    ("name", ColumnType::Text),
    ("stage", ColumnType::Text),
    ("device_free", ColumnType::Integer),
    ("used_by_context", ColumnType::Integer),
    ("used_by_others", ColumnType::Integer),
    ("lost_events", ColumnType::Integer),
    ("allocated_bytes", ColumnType::Integer),
    ("active_bytes", ColumnType::Integer),
    ("reserved_bytes", ColumnType::Integer),
    ("requested_bytes", ColumnType::Integer),
];

/// Name and type of the columns of the lifetime table, without the site's columns.
const LIFETIME_COLUMNS: [(&str, ColumnType); 15] = [
    ("device", ColumnType::Integer),
    ("address", ColumnType::Address),
    ("size", ColumnType::Integer),
    ("requested", ColumnType::Integer),
    ("stream", ColumnType::Handle),
    ("pool", ColumnType::Text),
    ("mempool", ColumnType::Text),
    ("allocated_event", ColumnType::Integer),
    ("allocated_ns", ColumnType::Integer),
    ("freed_event", ColumnType::Integer),
    ("freed_ns", ColumnType::Integer),
    ("completed_event", ColumnType::Integer),
    ("completed_ns", ColumnType::Integer),
    ("age_ns", ColumnType::Integer),
    ("ending", ColumnType::Text),
];

/// Returns name and type of all columns of the event table, in order.
pub(crate) fn event_columns() -> impl Iterator<Item = (&'static str, ColumnType)> {
    EVENT_COLUMNS.into_iter().chain(SITE_COLUMNS)
}

/// Returns name and type of all columns of the lifetime table, in order.
pub(crate) fn lifetime_columns() -> impl Iterator<Item = (&'static str, ColumnType)> {
    LIFETIME_COLUMNS.into_iter().chain(SITE_COLUMNS)
}

/// Writes all rows of the event table (events, annotations and relabels) and of the lifetime table
/// (one row an allocation, when it ends).
///
/// # Errors
/// If a chunk cannot be read, and any error of the tables.
pub(crate) fn write_tables(
    recording: &Recording,
    events: &mut impl TableWriter,
    lifetimes: &mut impl TableWriter,
    progress: Progress<'_>,
) -> Result {
    let mut sites = SiteColumns { recording, cache: HashMap::new(), bytes: 0 };
    let name = |annotation: &Annotation| recording.definitions().string(annotation.name);
    for_each_step(recording, progress, |step| match step {
        Step::Began(_) => Ok(()),
        Step::Relabeled(lifetime, time_ns) => {
            let mut row = EventRow::new("relabel", lifetime.device, time_ns);
            let block = &lifetime.block;
            (row.address, row.size, row.requested) = (Some(block.address), Some(block.size), Some(block.requested));
            (row.stream, row.pool, row.site) = (Some(block.stream), Some(block.pool), Some(block.site));
            row.write(&mut sites, events)
        }
        Step::Ended(lifetime, ending) => lifetime_row(recording, lifetime, ending, &mut sites, lifetimes),
        Step::Event { moment, event, freed_block, after } => {
            let mut row = EventRow { event: Some(moment.event), ..EventRow::for_event(recording, &event) };
            if let Some(block) = freed_block {
                (row.size, row.requested) = (Some(block.size), Some(block.requested));
                (row.stream, row.pool) = (Some(block.stream), Some(block.pool));
            }
            row.after = Some(after.counters());
            row.write(&mut sites, events)
        }
        Step::Annotation(annotation) => {
            let mut row = EventRow::new("annotation", annotation.device, annotation.time_ns);
            (row.name, row.stage) = (Some(name(annotation)), Some(annotation.stage));
            row.write(&mut sites, events)
        }
    })
}

/// Returns a text as the cell of a table; an empty cell for `None`.
fn text(text: &Option<String>) -> Cell<'_> {
    Cell::Text(text.as_deref())
}

/// Returns `small` or `large`, the size class of a pool.
fn pool_name(pool: PoolKey) -> &'static str {
    match pool.kind {
        PoolKind::Small => "small",
        PoolKind::Large => "large",
    }
}

/// Returns the id of a private pool as PyTorch writes it, `(1, 0)`; `None` for the default pool.
fn mempool(pool: PoolKey) -> Option<String> {
    (pool.owner != Default::default()).then(|| format!("({}, {})", pool.owner.0, pool.owner.1))
}

/// One row of the event table; fields are `None` if they do not apply to the kind of event.
#[derive(Debug, Default)]
struct EventRow<'a> {
    event: Option<u64>,
    device: DeviceId,
    time_ns: u64,
    kind: &'static str,
    address: Option<u64>,
    size: Option<u64>,
    requested: Option<u64>,
    stream: Option<StreamId>,
    pool: Option<PoolKey>,
    name: Option<&'a str>,
    stage: Option<AnnotationStage>,
    device_free: Option<u64>,
    used_by_context: Option<u64>,
    used_by_others: Option<u64>,
    lost: Option<u64>,
    after: Option<Counters>,
    site: Option<SiteId>,
}

impl<'a> EventRow<'a> {
    fn new(kind: &'static str, device: DeviceId, time_ns: u64) -> Self {
        Self { device, time_ns, kind, ..Self::default() }
    }

    /// Creates the row of an event, without its number and the memory state. The kind has PyTorch's
    /// name of the action if PyTorch has one.
    fn for_event(recording: &'a Recording, event: &Event) -> Self {
        let row = || Self::new(event.kind.event_type().action(), event.device, event.time_ns);
        let at = |address, site| Self { address: Some(address), site: Some(site), ..row() };
        match event.kind {
            EventKind::SegmentAllocated { address, size, stream, pool, site } => {
                Self { size: Some(size), stream: Some(stream), pool: Some(pool), ..at(address, site) }
            }
            EventKind::SegmentMapped { address, size, stream, pool, site } => {
                Self { size: Some(size), stream: Some(stream), pool: Some(pool), ..at(address, site) }
            }
            EventKind::SegmentFreed { address, size, site } => Self { size: Some(size), ..at(address, site) },
            EventKind::SegmentUnmapped { address, size, site } => Self { size: Some(size), ..at(address, site) },
            EventKind::BlockAllocated { address, size, requested, stream, pool, site } => Self {
                size: Some(size),
                requested: Some(requested),
                stream: Some(stream),
                pool: Some(pool),
                ..at(address, site)
            },
            EventKind::FreeRequested { address, site } => at(address, site),
            EventKind::FreeCompleted { address, site } => at(address, site),
            EventKind::OutOfMemory { requested, device_free, stream, site } => Self {
                requested: Some(requested),
                device_free: Some(device_free),
                stream: Some(stream),
                site: Some(site),
                ..row()
            },
            EventKind::MemorySample { used_by_context, used_by_others, free } => Self {
                device_free: Some(free),
                used_by_context: Some(used_by_context),
                used_by_others: Some(used_by_others),
                ..row()
            },
            EventKind::Mark { stage, name, address, site } => Self {
                name: Some(recording.definitions().string(name)),
                stage: Some(stage),
                address: (address != 0).then_some(address),
                site: (site != SiteId(0)).then_some(site),
                ..row()
            },
            EventKind::Gap { lost } => Self { lost: Some(lost), ..row() },
        }
    }

    /// Writes the row to the event table, completed with the columns that describe its site.
    fn write(&self, sites: &mut SiteColumns<'_>, events: &mut impl TableWriter) -> Result {
        let after = |of: fn(Counters) -> u64| Cell::Integer(self.after.map(of));
        let stage = self.stage.map(|stage| match stage {
            AnnotationStage::Instant => "instant",
            AnnotationStage::Begin => "begin",
            AnnotationStage::End => "end",
        });
        let mempool = self.pool.and_then(mempool);
        let cells: [Cell<'_>; EVENT_COLUMNS.len()] = [
            Cell::Integer(self.event),
            Cell::Integer(Some(self.device.0.into())),
            Cell::Integer(Some(self.time_ns)),
            Cell::Text(Some(self.kind)),
            Cell::Address(self.address),
            Cell::Integer(self.size),
            Cell::Integer(self.requested),
            Cell::Integer(self.stream.map(|stream| stream.0)),
            Cell::Text(self.pool.map(pool_name)),
            text(&mempool),
            Cell::Text(self.name),
            Cell::Text(stage),
            Cell::Integer(self.device_free),
            Cell::Integer(self.used_by_context),
            Cell::Integer(self.used_by_others),
            Cell::Integer(self.lost),
            after(|counters| counters.allocated),
            after(|counters| counters.active),
            after(|counters| counters.reserved),
            after(|counters| counters.requested),
        ];
        sites.write_row(events, &cells, self.site)
    }
}

/// Writes the row of one allocation to the lifetime table; `ending` says how it ended.
fn lifetime_row(
    recording: &Recording,
    lifetime: &ExportedLifetime,
    ending: LifetimeEnding,
    sites: &mut SiteColumns<'_>,
    lifetimes: &mut impl TableWriter,
) -> Result {
    let block = &lifetime.block;
    let number = |moment: Option<Moment>| Cell::Integer(moment.map(|moment| moment.event));
    let time_ns = |moment: Option<Moment>| Cell::Integer(moment.map(|moment| moment.time_ns));
    // The age of an allocation that is older than the recording, or still live, is a lower bound.
    let from = lifetime.allocated.map_or(recording.start_ns(), |moment| moment.time_ns);
    let to = lifetime.freed.map_or(recording.end_ns(), |moment| moment.time_ns);
    let mempool = mempool(block.pool);
    let cells: [Cell<'_>; LIFETIME_COLUMNS.len()] = [
        Cell::Integer(Some(lifetime.device.0.into())),
        Cell::Address(Some(block.address)),
        Cell::Integer(Some(block.size)),
        Cell::Integer(Some(block.requested)),
        Cell::Integer(Some(block.stream.0)),
        Cell::Text(Some(pool_name(block.pool))),
        text(&mempool),
        number(lifetime.allocated),
        time_ns(lifetime.allocated),
        number(lifetime.freed),
        time_ns(lifetime.freed),
        number(lifetime.completed),
        time_ns(lifetime.completed),
        Cell::Integer(Some(to.saturating_sub(from))),
        Cell::Text(Some(ending.name())),
    ];
    sites.write_row(lifetimes, &cells, Some(block.site))
}

/// Size of cached site texts above which the cache is emptied, in bytes.
const MAX_CACHE_BYTES: usize = 64 << 20;

/// The name and the call stack of a site as text, as the tables show them.
#[derive(Debug)]
struct SiteText {
    name: String,
    stack: String,
}

/// Appends the site columns to rows, and caches the texts of sites.
struct SiteColumns<'a> {
    recording: &'a Recording,
    /// The texts of sites that were written recently.
    cache: HashMap<SiteId, SiteText>,
    /// Bytes of the texts in the cache.
    bytes: usize,
}

impl SiteColumns<'_> {
    /// Appends the columns of `site` to a row and writes the row. Without a site these columns are
    /// empty.
    fn write_row(&mut self, table: &mut impl TableWriter, cells: &[Cell<'_>], site: Option<SiteId>) -> Result {
        let mut row = [Cell::Integer(None); EVENT_COLUMNS.len() + SITE_COLUMNS.len()];
        row[..cells.len()].copy_from_slice(cells);
        let row = &mut row[..cells.len() + SITE_COLUMNS.len()];
        let site_cells = &mut row[cells.len()..];
        let Some(id) = site else {
            site_cells.copy_from_slice(&SITE_COLUMNS.map(|(_, kind)| match kind {
                ColumnType::Text => Cell::Text(None),
                ColumnType::Integer | ColumnType::Address | ColumnType::Handle => Cell::Integer(None),
            }));
            return table.write_row(row);
        };
        self.cache_site(id);
        let definitions = self.recording.definitions();
        let site = definitions.site(id);
        let texts = &self.cache[&id];
        let frame = frames(self.recording, id).next().unwrap_or_default();
        let some = |text| Some(text).filter(|text: &&str| !text.is_empty());
        site_cells.copy_from_slice(&[
            Cell::Integer(Some(id.0.into())),
            Cell::Text(some(&texts.name)),
            Cell::Text(some(frame.function)),
            Cell::Text(some(frame.file)),
            Cell::Integer((frame.line > 0).then_some(frame.line.into())),
            Cell::Text(some(definitions.string(site.scope))),
            Cell::Text(Some(site.category.name())),
            Cell::Text(some(definitions.string(site.compile_context))),
            Cell::Text(some(&texts.stack)),
        ]);
        table.write_row(row)
    }

    /// Adds the texts of a site to the cache unless it has them. Empties the cache first if it is
    /// above [`MAX_CACHE_BYTES`].
    fn cache_site(&mut self, id: SiteId) {
        if self.cache.contains_key(&id) {
            return;
        }
        if self.bytes > MAX_CACHE_BYTES {
            (self.cache, self.bytes) = (HashMap::new(), 0);
        }
        let definitions = self.recording.definitions();
        let texts = SiteText { name: site_name(definitions, id), stack: stack_text(definitions, id) };
        self.bytes += texts.name.len() + texts.stack.len() + size_of::<SiteText>();
        self.cache.insert(id, texts);
    }
}
