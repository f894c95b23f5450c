//! The texts of the details panel about a block, a free range, a segment, an event or a device.

pub mod elements;
pub mod findings;
pub mod owners;
pub mod verdict;

use vramscope_trace::{
    Allocation, AnnotationStage, Count, Definitions, DeviceId, DeviceState, Event, EventKind, EventType, FreeSpace,
    MemorySample, MemoryState, MempoolId, Percent, PoolKey, PoolKind, Recording, RecordingInfo, Segment, SiteId,
};

use vramscope_insight::events::EventRow;
use vramscope_insight::frames::{RecordedStacks, StackView, WhyNoStack, why_no_stack};
use vramscope_insight::placement::recording_notes;
use vramscope_insight::pools::FreeMemory;

use crate::device_map::Hit;
use crate::units::{self, unbroken_size};

/// The kind of object that the details panel describes. The page marks the panel with the map's
/// color of the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetailsKind {
    /// An allocated block.
    AllocatedBlock,
    /// A block pending free.
    PendingBlock,
    /// A free range in a segment that also has live blocks.
    FreeRange,
    /// A segment without live blocks.
    FreeSegment,
    /// A selected allocation that is not live at the moment on the screen.
    AbsentAllocation,
    /// The last event before the moment on the screen.
    Event,
    /// The device as a whole.
    Device,
}

impl DetailsKind {
    /// Returns the heading of the details panel, such as `Allocated block`.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::AllocatedBlock => "Allocated block",
            Self::PendingBlock => "Block pending free",
            Self::FreeRange => "Free space",
            Self::FreeSegment => "Free segment",
            Self::AbsentAllocation => "Selected allocation (not live at this moment)",
            Self::Event => "Event of this moment",
            Self::Device => "Device",
        }
    }
}

/// A section of the details panel: a heading and a table of names and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// Heading; empty for the first section.
    pub heading: &'static str,
    /// Rows of the table: name and value.
    pub rows: Vec<(&'static str, String)>,
}

/// The known events in the life of a block, to which the details panel links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockEvents {
    /// Address and first moment, which identify the allocation in a selection; `None` if the
    /// allocation's history has not been read.
    pub allocation: Option<(u64, u64)>,
    /// Number of the event that allocated the block; `None` if it was not recorded.
    pub allocated_at: Option<u64>,
    /// Number of the event that freed the block; `None` if no such event is known.
    pub freed_at: Option<u64>,
    /// Number of the event that ended the block's pending free; `None` if the block was not pending
    /// or no such event is known.
    pub completed_at: Option<u64>,
    /// Whether all events up to the recording's end have been read. A block without `freed_at` is
    /// then never freed.
    pub is_complete: bool,
    /// Time from allocation to free in nanoseconds, and in events; `None` if `freed_at` is `None`.
    pub lifetime: Option<(u64, u64)>,
}

impl BlockEvents {
    /// Creates the events of an allocation. `time_ns` returns the time of an event number;
    /// `is_complete` is true if all events up to the recording's end have been read.
    pub fn new(one: &Allocation, time_ns: impl Fn(u64) -> u64, is_complete: bool) -> Self {
        let lifetime = one.allocated_until.map(|until| {
            let duration_ns = time_ns(until).saturating_sub(time_ns(one.first_moment));
            (duration_ns, until.saturating_sub(one.first_moment))
        });
        Self {
            allocation: Some((one.address, one.first_moment)),
            allocated_at: one.start_observed.then_some(one.first_moment),
            freed_at: one.allocated_until,
            completed_at: one.active_until.filter(|_| one.active_until != one.allocated_until),
            is_complete,
            lifetime,
        }
    }
}

/// A call stack in the details panel, with a heading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackSection {
    /// Heading of the stack, such as `Freed at`.
    pub heading: &'static str,
    /// The call stack with all its frames; empty if none was recorded.
    pub stack: StackView,
    /// The reason why no stack was recorded, or none with a frame of the program, as a sentence;
    /// `None` if such a stack exists.
    pub why: Option<&'static str>,
}

impl StackSection {
    /// Heading of the call stack at which a block was freed.
    pub const FREED: &str = "Freed at";

    /// Creates the section with the call stack of `site`, at which memory was allocated. `is_older`
    /// is true if the allocation was made before the recording began.
    fn of_allocation(heading: &'static str, site: SiteId, definitions: &Definitions, is_older: bool) -> Self {
        let why = why_no_stack(definitions, &RecordedStacks::new(definitions), site, is_older);
        let stack = StackView::new(definitions, definitions.site(site).stack);
        Self { heading, stack, why: why.map(WhyNoStack::sentence) }
    }

    /// Creates the section with the call stack of `site`, at which a block was freed.
    pub fn of_free(site: SiteId, definitions: &Definitions) -> Self {
        let stack = StackView::new(definitions, definitions.site(site).stack);
        let why = stack.is_empty().then(|| RecordedStacks::new(definitions).why_free_has_none());
        Self { heading: Self::FREED, stack, why }
    }
}

/// The content of the details panel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// Kind of the described object.
    pub kind: DetailsKind,
    /// Tables of names and values.
    pub sections: Vec<Section>,
    /// Call stacks; the described object's own stack is first.
    pub stacks: Vec<StackSection>,
    /// The events of the described block; `None` if no block is described.
    pub events: Option<BlockEvents>,
}

/// Returns the name of a segment pool: its size class and, for a private pool, the pool's two
/// numbers: `large · private (0, 1)`.
fn pool_name(pool: PoolKey) -> String {
    let kind = match pool.kind {
        PoolKind::Small => "small (up to 1 MiB)",
        PoolKind::Large => "large",
    };
    match pool.owner {
        MempoolId(0, 0) => kind.to_owned(),
        MempoolId(a, b) => format!("{kind} · private ({a}, {b})"),
    }
}

/// Returns the details of a block or free range and of its segment. `state` is the memory at the
/// moment on the screen, `device` the part of it that contains the block.
pub fn of_hit(hit: &Hit, state: &MemoryState, device: &DeviceState, recording: &Recording) -> Details {
    let definitions = recording.definitions();
    let is_whole_segment = hit.size == hit.segment.size;
    let (kind, site) = match hit.block {
        Some(block) if block.pending_free => (DetailsKind::PendingBlock, block.site),
        Some(block) => (DetailsKind::AllocatedBlock, block.site),
        None if is_whole_segment => (DetailsKind::FreeSegment, hit.segment.site),
        None => (DetailsKind::FreeRange, SiteId(0)),
    };
    let mut rows = vec![("address", units::address(hit.address)), ("size", units::rounded_and_exact_size(hit.size))];
    if let Some(block) = hit.block {
        let rounding = block.size.saturating_sub(block.requested);
        rows.push(("requested", units::rounded_and_exact_size(block.requested)));
        rows.push(("rounding", size_and_percent(rounding, block.size)));
        let age_events = Count(state.event().saturating_sub(block.since_event)).of("event", "events");
        let age_ns = state.time_ns().saturating_sub(block.since_ns);
        rows.push(("age", recording.info().time_and(age_ns, age_events)));
        rows.push(("stream", block.stream.0.to_string()));
    } else if !is_whole_segment {
        rows.push(("state", "free, in a segment that also has live blocks".to_owned()));
        rows.push(("offset", unbroken_size(hit.address - hit.segment.address)));
    } else {
        rows.push(("state", "cached: the segment has no live block".to_owned()));
    }
    describe_site(site, definitions, &mut rows);
    let first = Section { heading: "", rows };
    let is_older = hit.block.is_some_and(|block| block.since_event < recording.first_event());
    let heading = if hit.block.is_some() { CALL_STACK } else { SEGMENT_STACK };
    let mut stack = StackSection::of_allocation(heading, site, definitions, is_older);
    // Free memory needs no reason: free space has no stack, and a free segment's may be unknown.
    stack.why = stack.why.filter(|_| hit.block.is_some());
    let events = hit.block.map(|block| BlockEvents {
        allocated_at: Some(block.since_event.saturating_add(1)).filter(|_| !is_older),
        ..BlockEvents::default()
    });
    Details { kind, sections: vec![first, segment_section(&hit.segment, device)], stacks: vec![stack], events }
}

/// Returns the details of a selected allocation that is not live at `moment` (an event number):
/// not allocated yet, or already freed. `events` are the allocation's events.
pub fn of_absent_allocation(one: &Allocation, events: BlockEvents, moment: u64, recording: &Recording) -> Details {
    let definitions = recording.definitions();
    let state = if moment < one.first_moment { "not allocated yet" } else { "freed" };
    let mut rows = vec![
        ("state", state.to_owned()),
        ("address", units::address(one.address)),
        ("size", units::rounded_and_exact_size(one.size)),
        ("requested", units::rounded_and_exact_size(one.requested)),
        ("rounding", size_and_percent(one.size.saturating_sub(one.requested), one.size)),
        ("stream", one.stream.0.to_string()),
        ("pool", pool_name(one.pool)),
    ];
    describe_site(one.site, definitions, &mut rows);
    let is_older = one.first_moment <= recording.first_event();
    Details {
        kind: DetailsKind::AbsentAllocation,
        sections: vec![Section { heading: "", rows }],
        stacks: vec![StackSection::of_allocation(CALL_STACK, one.site, definitions, is_older)],
        events: Some(events),
    }
}

/// Returns the details of an event. `events` are all events of the block that the event allocates
/// or frees; `None` if they are not known or it is another event.
pub fn of_event_row(row: &EventRow, events: Option<BlockEvents>, recording: &Recording) -> Details {
    let definitions = recording.definitions();
    let kind = row.event_type();
    let is_free = matches!(kind, Some(EventType::FreeRequested | EventType::FreeCompleted));
    let mut rows = vec![("event", format!("{} · {}", Count(row.number), row.kind_name()))];
    rows.extend(row.size.map(|size| ("size", units::rounded_and_exact_size(size))));
    rows.extend(row.requested.map(|size| ("requested", units::rounded_and_exact_size(size))));
    rows.extend(row.address.map(|address| ("address", units::address(address))));
    rows.extend(row.stream.map(|stream| ("stream", stream.0.to_string())));
    rows.extend(row.pool.map(|pool| ("pool", pool_name(pool))));
    rows.extend((!row.text.is_empty()).then(|| ("says", row.text.clone())));
    // A mark without a stack gets no stack section, since no allocation caused it.
    let has_stack = |site: &SiteId| {
        kind != Some(EventType::Mark) || definitions.stack_definition(definitions.site(*site).stack).is_some()
    };
    let mut stacks: Vec<StackSection> = row
        .site
        .filter(has_stack)
        .map(|site| match is_free {
            true => StackSection::of_free(site, definitions),
            false => StackSection::of_allocation(CALL_STACK, site, definitions, false),
        })
        .into_iter()
        .collect();
    if let Some(site) = row.freed_site {
        let is_older = row.age_events.is_some_and(|age| row.number.saturating_sub(age) <= recording.first_event());
        stacks.push(StackSection::of_allocation("Allocated at", site, definitions, is_older));
    }
    Details { kind: DetailsKind::Event, sections: vec![Section { heading: "", rows }], stacks, events }
}

/// Heading of the call stack that allocated the described block.
pub const CALL_STACK: &str = "Call stack";
/// Heading of the call stack that allocated the segment, for free memory.
pub const SEGMENT_STACK: &str = "Segment allocated at";

/// Returns `part` bytes as a size and as a percentage of `whole`: `512 KiB · 25.0%`.
fn size_and_percent(part: u64, whole: u64) -> String {
    format!("{} · {}", unbroken_size(part), Percent::of(part, whole))
}

/// Appends a site's scope and category to `rows`, if it has them.
fn describe_site(site: SiteId, definitions: &Definitions, rows: &mut Vec<(&'static str, String)>) {
    let site = definitions.site(site);
    let scope = definitions.string(site.scope);
    rows.extend((!scope.is_empty()).then(|| ("scope", scope.to_owned())));
    if site.category != Default::default() {
        rows.push(("category", site.category.name().to_owned()));
    }
}

/// Returns the section about a segment: its address, sizes, fragmentation, stream and pool.
fn segment_section(segment: &Segment, device: &DeviceState) -> Section {
    let (mut used, mut blocks, mut free) = (0u64, 0u64, FreeSpace::default());
    for extent in device.extents(segment) {
        match extent.block {
            Some(_) => {
                used = used.saturating_add(extent.size);
                blocks += 1;
            }
            None => {
                free.total = free.total.saturating_add(extent.size);
                free.largest = free.largest.max(extent.size);
                free.blocks += 1;
            }
        }
    }
    let mut rows = vec![
        ("address", units::address(segment.address)),
        ("size", units::rounded_and_exact_size(segment.size)),
        ("used", size_and_percent(used, segment.size)),
        ("free", format!("{}, largest {}", unbroken_size(free.total), unbroken_size(free.largest))),
        ("fragmentation", Percent(free.fragmentation()).to_string()),
        ("blocks", Count(blocks).to_string()),
        ("stream", segment.stream.0.to_string()),
        ("pool", pool_name(segment.pool)),
    ];
    rows.extend(segment.expandable.then(|| ("expandable", "yes".to_owned())));
    Section { heading: "Segment", rows }
}

/// Returns the section about the driver's last memory sample. It omits the reserved bytes, which
/// the recording's counters give for the exact moment.
fn sample_section(sample: &MemorySample) -> Section {
    let rows = vec![
        ("outside the pool", units::rounded_and_exact_size(sample.used_by_context)),
        ("other processes", units::rounded_and_exact_size(sample.used_by_others)),
        ("free on the device", units::rounded_and_exact_size(sample.free)),
    ];
    Section { heading: "Device memory, by the driver's last sample", rows }
}

/// Returns the details of a device as a whole and of its recording. `free` is the free memory in
/// the device's segments.
pub fn of_device(id: DeviceId, recording: &Recording, device: &DeviceState, free: FreeMemory) -> Details {
    let FreeMemory { space: free, stuck_bytes } = free;
    let counters = device.counters();
    let info = recording.info();
    let mut rows = Vec::new();
    let device_info = info.device(id);
    rows.extend(device_info.filter(|info| !info.name.is_empty()).map(|info| ("name", info.name.clone())));
    rows.extend(device_info.filter(|info| !info.process.is_empty()).map(|info| ("process", info.process.clone())));
    rows.extend(
        device_info.filter(|info| info.total_bytes > 0).map(|info| ("memory", unbroken_size(info.total_bytes))),
    );
    rows.extend([
        ("requested", units::rounded_and_exact_size(counters.requested)),
        ("rounding", unbroken_size(counters.rounding_waste_bytes())),
        ("releasable", format!("{} in free segments", unbroken_size(free.total.saturating_sub(stuck_bytes)))),
        ("stuck", format!("{} beside live blocks", unbroken_size(stuck_bytes))),
        ("free blocks", Count(free.blocks).to_string()),
        ("largest free", units::rounded_and_exact_size(free.largest)),
        ("fragmentation", Percent(free.fragmentation()).to_string()),
    ]);
    if device.ooms() > 0 {
        let failed = Count(device.ooms()).of("failed request", "failed requests");
        rows.push(("out of memory", format!("{failed} so far")));
    }
    if device.inconsistencies() > 0 {
        let events = Count(device.inconsistencies()).of("event does", "events do");
        rows.push(("inconsistent", format!("{events} not match the recorded state")));
    }
    let mut recording_rows = Vec::new();
    let [source, writer] = names_of_origin(info);
    let texts = [(source, &info.source), (writer, &info.writer), ("settings", &info.alloc_conf)];
    recording_rows
        .extend(texts.into_iter().filter(|(_, text)| !text.is_empty()).map(|(name, text)| (name, text.clone())));
    recording_rows.push(length_row(recording));
    recording_rows.extend(recording_notes(info).into_iter().map(|note| ("note", note)));
    if info.import_notes.is_empty() && device_info.is_some_and(|info| !info.history_complete) {
        recording_rows.push(("history", incomplete_history(recording).to_owned()));
    }
    let mut sections = vec![Section { heading: "", rows }];
    sections.extend(device.sample().map(|sample| sample_section(&sample)));
    sections.push(Section { heading: "Recording", rows: recording_rows });
    Details { kind: DetailsKind::Device, sections, stacks: Vec::new(), events: None }
}

/// The text with which the writer's name of an imported recording begins.
const IMPORTER: &str = "vramscope-formats";

/// Returns true if a recording was converted from a file of another format.
pub fn is_imported(info: &RecordingInfo) -> bool {
    info.writer.starts_with(IMPORTER)
}

/// Returns the names of the rows that show a recording's source and its writer: `program` and
/// `written by`, or other names if the recording was imported.
pub fn names_of_origin(info: &RecordingInfo) -> [&'static str; 2] {
    if is_imported(info) { ["imported from", "converted by"] } else { ["program", "written by"] }
}

/// Returns a sentence about a recording that does not begin with the program's first allocation:
/// why earlier events are missing.
pub fn incomplete_history(recording: &Recording) -> &'static str {
    match recording.first_event() {
        0 => "Recording began after memory was in use; earlier history is missing",
        _ => "This is a part of a longer recording: earlier events are not in it",
    }
}

/// Returns the table row (name and value) with the recording's length in time. If its oldest events
/// were discarded, the value also says from which event on they are kept.
fn length_row(recording: &Recording) -> (&'static str, String) {
    let length = recording.info().duration_text(recording.end_ns().saturating_sub(recording.start_ns()));
    match recording.first_event() {
        0 => ("length", length),
        first => ("length", format!("{length}, from event {} on", Count(first))),
    }
}

/// Returns the text that replaces an event's description at the recording's first moment: that the
/// recording starts there, or that the page holds no older moment.
pub fn of_first_moment(recording: &Recording) -> &'static str {
    if recording.first_event() == 0 { "start of the recording" } else { "oldest moment that this page holds" }
}

/// Returns a short description of an event: `block allocated, 2 MiB at 0x7f1a2c000000`.
pub fn of_event(event: &Event, definitions: &Definitions) -> String {
    let range = |address: u64, bytes: u64| format!("{} at {}", unbroken_size(bytes), units::address(address));
    match event.kind {
        EventKind::SegmentAllocated { address, size, .. } => format!("segment allocated, {}", range(address, size)),
        EventKind::SegmentFreed { address, size, .. } => format!("segment freed, {}", range(address, size)),
        EventKind::SegmentMapped { address, size, .. } => format!("segment mapped, {}", range(address, size)),
        EventKind::SegmentUnmapped { address, size, .. } => format!("segment unmapped, {}", range(address, size)),
        EventKind::BlockAllocated { address, size, .. } => format!("block allocated, {}", range(address, size)),
        EventKind::FreeRequested { address, .. } => format!("free requested at {}", units::address(address)),
        EventKind::FreeCompleted { address, .. } => format!("free completed at {}", units::address(address)),
        EventKind::OutOfMemory { requested, device_free, .. } => {
            let (requested, free) = (unbroken_size(requested), unbroken_size(device_free));
            format!("out of memory: {requested} requested, {free} free on the device")
        }
        EventKind::MemorySample { used_by_context, used_by_others, free } => format!(
            "memory sample: {} outside the pool, {} in other processes, {} free",
            unbroken_size(used_by_context),
            unbroken_size(used_by_others),
            unbroken_size(free)
        ),
        EventKind::Mark { stage, name, .. } => {
            let prefix = match stage {
                AnnotationStage::Instant => "mark",
                AnnotationStage::Begin => "begin",
                AnnotationStage::End => "end",
            };
            format!("{prefix} {}", definitions.string(name))
        }
        EventKind::Gap { lost } => format!("{} lost", Count(lost).of("event", "events")),
    }
}
