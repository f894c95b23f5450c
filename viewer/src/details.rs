//! Everything there is to say about one thing on the screen, as text.

use vramscope_trace::{
    Definitions, DeviceId, DeviceState, Event, EventKind, MemorySample, MemoryState, MempoolId, Pool, PoolKind,
    Recording, Segment, SiteId, Stage,
};

use crate::heatmap::Hit;
use crate::units;

/// Frames of a call stack that are shown.
const FRAMES: usize = 24;

/// What the details are about; a page marks it with the color that the heatmap has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// An allocated block.
    Allocated,
    /// A block that waits for a stream.
    Pending,
    /// Free space beside live blocks.
    Free,
    /// A segment with nothing in it.
    Cached,
    /// The GPU as a whole.
    Device,
}

impl Subject {
    /// What it is called.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Allocated => "Allocated block",
            Self::Pending => "Block pending free",
            Self::Free => "Free space",
            Self::Cached => "Free segment",
            Self::Device => "Device",
        }
    }
}

/// A list of names and values under a heading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// The heading; empty for the first one.
    pub heading: &'static str,
    /// Names and values.
    pub rows: Vec<(&'static str, String)>,
}

/// What the panel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// What it is about.
    pub subject: Subject,
    /// The lists.
    pub sections: Vec<Section>,
    /// The call stack, innermost first: function, and place.
    pub stack: Vec<(String, String)>,
}

fn pool_name(pool: Pool) -> String {
    let kind = match pool.kind {
        PoolKind::Small => "small (up to 1 MiB)",
        PoolKind::Large => "large",
    };
    match pool.owner {
        MempoolId(0, 0) => kind.to_owned(),
        MempoolId(a, b) => format!("{kind} · private ({a}, {b})"),
    }
}

/// A size whose unit stays on its line.
fn size(bytes: u64) -> String {
    units::bytes(bytes).replace(' ', "\u{a0}")
}

fn share(part: u64, whole: u64) -> String {
    units::percent(if whole == 0 { 0.0 } else { part as f64 / whole as f64 })
}

/// What is known of a stretch of a segment.
#[must_use]
pub fn of_hit(hit: &Hit, state: &MemoryState, device: &DeviceState, definitions: &Definitions) -> Details {
    let whole = hit.size == hit.segment.size;
    let (subject, site) = match hit.block {
        Some(block) if block.pending_free => (Subject::Pending, block.site),
        Some(block) => (Subject::Allocated, block.site),
        None if whole => (Subject::Cached, hit.segment.site),
        None => (Subject::Free, SiteId(0)),
    };
    let mut rows = vec![("address", units::address(hit.address)), ("size", units::both_bytes(hit.size))];
    if let Some(block) = hit.block {
        let waste = block.size.saturating_sub(block.requested);
        rows.push(("requested", units::both_bytes(block.requested)));
        rows.push(("rounding", format!("{} · {}", size(waste), share(waste, block.size))));
        let age_ns = state.time_ns().saturating_sub(block.since_ns);
        let age_events = state.event().saturating_sub(block.since_event);
        rows.push(("age", format!("{} · {} events", units::duration(age_ns), units::count(age_events))));
        rows.push(("allocated by", format!("event {}", units::count(block.since_event))));
        rows.push(("stream", block.stream.0.to_string()));
    } else if !whole {
        rows.push(("state", "free, inside a segment that is in use".to_owned()));
        rows.push(("offset", size(hit.address - hit.segment.address)));
    } else {
        rows.push(("state", "cached: no block is in it".to_owned()));
    }
    let mut first = Section { heading: "", rows };
    let mut stack = Vec::new();
    describe_site(site, definitions, &mut first.rows, &mut stack);
    Details { subject, sections: vec![first, of_segment(&hit.segment, device)], stack }
}

fn describe_site(
    site: SiteId,
    definitions: &Definitions,
    rows: &mut Vec<(&'static str, String)>,
    stack: &mut Vec<(String, String)>,
) {
    let site = definitions.site(site);
    let scope = definitions.string(site.scope);
    if !scope.is_empty() {
        rows.push(("scope", scope.to_owned()));
    }
    if site.category != Default::default() {
        rows.push(("category", site.category.name().to_owned()));
    }
    stack.extend(definitions.stack(site.stack).take(FRAMES).map(|frame| {
        let (function, file) = (definitions.string(frame.function), definitions.string(frame.file));
        let place = match (file, frame.line) {
            ("", _) => String::new(),
            (file, 0) => file.to_owned(),
            (file, line) => format!("{file}:{line}"),
        };
        (function.to_owned(), place)
    }));
}

fn of_segment(segment: &Segment, device: &DeviceState) -> Section {
    let (mut used, mut blocks, mut free, mut largest) = (0u64, 0u64, 0u64, 0u64);
    for extent in device.extents(segment) {
        match extent.block {
            Some(_) => {
                used = used.saturating_add(extent.size);
                blocks += 1;
            }
            None => {
                free = free.saturating_add(extent.size);
                largest = largest.max(extent.size);
            }
        }
    }
    let mut rows = vec![
        ("address", units::address(segment.address)),
        ("size", units::both_bytes(segment.size)),
        ("used", format!("{} · {}", size(used), share(used, segment.size))),
        ("free", format!("{}, largest {}", size(free), size(largest))),
        ("fragmentation", share(free - largest, free)),
        ("blocks", units::count(blocks)),
        ("stream", segment.stream.0.to_string()),
        ("pool", pool_name(segment.pool)),
    ];
    if segment.expandable {
        rows.push(("expandable", "yes".to_owned()));
    }
    Section { heading: "Segment", rows }
}

fn of_pieces(total: u64, pieces: u64) -> String {
    match pieces {
        0 => size(total),
        1 => format!("{} in 1 piece", size(total)),
        _ => format!("{} in {} pieces", size(total), units::count(pieces)),
    }
}

/// What the driver said last; the pool's own share is known without it, and of later.
fn of_sample(sample: &MemorySample) -> Section {
    let rows = vec![
        ("this process", units::both_bytes(sample.used_by_context)),
        ("others", units::both_bytes(sample.used_by_others)),
        ("free", units::both_bytes(sample.free)),
    ];
    Section { heading: "Outside the pool, by the driver's last sample", rows }
}

/// What a GPU is called where there are several. The devices of a hub of several processes have names that tell which is which; those of one
/// process are told apart by their numbers.
#[must_use]
pub fn name_of_device(recording: &Recording, id: DeviceId) -> String {
    let about = recording.info().devices.iter().find(|about| about.device == id.0);
    match about {
        Some(about) if about.rank.is_some() || !about.process.is_empty() => about.name.clone(),
        Some(about) if !about.name.trim().is_empty() => format!("GPU {} · {}", id.0, about.name),
        _ => format!("GPU {}", id.0),
    }
}

/// What is known of a GPU as a whole.
#[must_use]
pub fn of_device(id: DeviceId, recording: &Recording, device: &DeviceState, notes: &[String]) -> Details {
    let counters = device.counters();
    let free = device.free_space();
    let info = recording.info();
    let mut rows = Vec::new();
    let about = info.devices.iter().find(|about| about.device == id.0);
    if let Some(about) = about.filter(|about| !about.name.is_empty()) {
        rows.push(("name", about.name.clone()));
    }
    if let Some(about) = about.filter(|about| !about.process.is_empty()) {
        rows.push(("process", about.process.clone()));
    }
    if let Some(about) = about.filter(|about| about.total_bytes > 0) {
        rows.push(("memory", size(about.total_bytes)));
    }
    rows.extend([
        ("requested", units::both_bytes(counters.requested)),
        ("rounding", size(counters.active.saturating_sub(counters.requested))),
        ("free inside", of_pieces(free.total, free.blocks)),
        ("largest free", units::both_bytes(free.largest)),
        ("fragmentation", units::percent(free.fragmentation())),
    ]);
    if device.ooms() > 0 {
        rows.push((
            "failed",
            match device.ooms() {
                1 => "1 request (OOM)".to_owned(),
                ooms => format!("{} requests (OOM)", units::count(ooms)),
            },
        ));
    }
    if device.misfits() > 0 {
        rows.push(("contradictions", format!("{} events did not fit", units::count(device.misfits()))));
    }
    let mut about_recording = Vec::new();
    let texts = [("program", &info.source), ("written by", &info.writer), ("settings", &info.alloc_conf)];
    about_recording
        .extend(texts.into_iter().filter(|(_, text)| !text.is_empty()).map(|(name, text)| (name, text.clone())));
    about_recording.push(length_of(recording));
    about_recording.extend(notes.iter().map(|note| ("note", note.clone())));
    if notes.is_empty() && about.is_some_and(|about| !about.history_complete) {
        about_recording.push(("history", "begins late: what was there before is known only from then on".to_owned()));
    }
    let mut sections = vec![Section { heading: "", rows }];
    sections.extend(device.sample().map(|sample| of_sample(&sample)));
    sections.push(Section { heading: "Recording", rows: about_recording });
    Details { subject: Subject::Device, sections, stack: Vec::new() }
}

/// How long a recording is; where its beginning is not held, how much of it is.
fn length_of(recording: &Recording) -> (&'static str, String) {
    let length = units::duration(recording.end_ns().saturating_sub(recording.start_ns()));
    match recording.first_event() {
        0 => ("length", length),
        first => ("held", format!("the last {length}, since event {}", units::count(first))),
    }
}

/// What there is to say of the first moment, which no event led to.
#[must_use]
pub fn of_beginning(recording: &Recording) -> &'static str {
    if recording.first_event() == 0 { "the beginning of the recording" } else { "the oldest moment that is held" }
}

/// An event in a few words.
#[must_use]
pub fn of_event(event: &Event, definitions: &Definitions) -> String {
    let range = |address: u64, bytes: u64| format!("{} at {}", size(bytes), units::address(address));
    match event.kind {
        EventKind::SegmentAllocated { address, size, .. } => format!("segment allocated, {}", range(address, size)),
        EventKind::SegmentFreed { address, size, .. } => format!("segment freed, {}", range(address, size)),
        EventKind::SegmentMapped { address, size, .. } => format!("segment mapped, {}", range(address, size)),
        EventKind::SegmentUnmapped { address, size, .. } => format!("segment unmapped, {}", range(address, size)),
        EventKind::BlockAllocated { address, size, .. } => format!("block allocated, {}", range(address, size)),
        EventKind::FreeRequested { address, .. } => format!("free requested at {}", units::address(address)),
        EventKind::FreeCompleted { address, .. } => format!("free completed at {}", units::address(address)),
        EventKind::OutOfMemory { requested, device_free, .. } => {
            format!("out of memory: {} asked, {} free", size(requested), size(device_free))
        }
        EventKind::MemorySample { used_by_context, used_by_others, free } => format!(
            "driver: {} outside the pool, {} in other processes, {} free",
            size(used_by_context),
            size(used_by_others),
            size(free)
        ),
        EventKind::Mark { stage, name, .. } => {
            let what = match stage {
                Stage::Instant => "mark",
                Stage::Begin => "begin",
                Stage::End => "end",
            };
            format!("{what} {}", definitions.string(name))
        }
        EventKind::Gap { lost } => format!("{} events lost", units::count(lost)),
    }
}
