//! Program, versions, devices, allocator settings, counters, and missing parts of the recording.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use vramscope_insight::memory_summary::{MemorySummary, MemorySummaryScan, SummaryUnit, SummaryValues};
use vramscope_insight::placement::recording_notes;
use vramscope_trace::{ByteSize, Count, DeviceId, DeviceInfo, FormatError, RecordingInfo};

use crate::details::{is_imported, names_of_origin};
use crate::ui::{Element, Node, Tag, facts};

use crate::view::{
    Cell, Column, Context, Options, Registered, Row, SharedCaches, StoredOptions, Table, View, ViewContent, ViewInfo,
};

/// The view "About".
#[derive(Default)]
pub struct About {
    options: Options,
    summary: SummaryCache,
}

impl Registered for About {
    const INFO: ViewInfo = ViewInfo::new("about", "About", ("Show program, settings and counters", &["q"]));
}

impl View for About {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, shared, &mut self.summary)
    }

    fn forget(&mut self) {
        self.summary = None;
    }
}

/// Name of the view in commands and links.
const VIEW: &str = About::INFO.name;

/// Text that the view "About" shows in place of facts that the recording does not contain.
const NOT_RECORDED: &str = "not recorded";
/// Text that the view "About" shows in place of allocator settings if the program set none.
const DEFAULT_SETTINGS: &str = "default";

/// The scan for the table of all counters, and its device.
type SummaryCache = Option<(DeviceId, MemorySummaryScan)>;

/// Maximum number of events that the computation of the table of counters visits in one frame, at
/// about half a microsecond each.
const EVENTS_PER_FRAME: u64 = 16_384;

/// Returns the table of all counters of the context's device at its moment; `None` until the
/// events before the moment have been visited, which may take several frames.
///
/// # Errors
/// If the events before the moment are not loaded, or cannot be read.
fn counters(
    context: &Context<'_>,
    shared: &mut SharedCaches,
    cache: &mut SummaryCache,
) -> Result<Option<MemorySummary>, FormatError> {
    let (recording, device) = (context.recording, context.device);
    let known = cache.take().filter(|(known, _)| *known == device);
    let continued = known.and_then(|(_, mut scan)| scan.continue_to(recording, context.moment).then_some(scan));
    let mut scan = match continued {
        Some(scan) => scan,
        None => MemorySummaryScan::new(recording, device, context.moment)?,
    };
    let is_done = scan.step(recording, EVENTS_PER_FRAME)?;
    shared.is_unfinished |= !is_done;
    let summary = is_done.then(|| scan.summary());
    *cache = Some((device, scan));
    Ok(summary)
}

/// Returns the content of the view "About": program, versions, devices, allocator settings and
/// counters.
fn content(context: &Context<'_>, shared: &mut SharedCaches, summary: &mut SummaryCache) -> ViewContent {
    let info = context.recording.info();
    let or = |text: &str, otherwise: &str| Node::from(if text.is_empty() { otherwise } else { text });
    let [source, writer] = names_of_origin(info);
    // An imported file may say nothing about the settings.
    let has_settings = !is_imported(info) || !info.source_settings.is_empty();
    let mut rows = vec![
        (source, or(&info.source, NOT_RECORDED)),
        (writer, or(&info.writer, NOT_RECORDED)),
        ("allocator settings", or(&info.alloc_conf, if has_settings { DEFAULT_SETTINGS } else { NOT_RECORDED })),
        ("events", Count(context.recording.events()).to_string().into()),
        ("length", info.duration_text(context.recording.end_ns().saturating_sub(context.recording.start_ns())).into()),
        ("lost events", Count(context.recording.lost_events()).to_string().into()),
        ("inconsistent events", Count(context.state.inconsistencies()).to_string().into()),
    ];
    if is_imported(info) {
        rows.insert(1, ("program and versions", NOT_RECORDED.into()));
    }
    rows.extend(earlier_events(context).map(|text| ("earlier events", text.into())));
    rows.extend(info.devices.iter().map(|device| ("device", device_text(info, device).into())));
    rows.extend(recording_notes(info).into_iter().map(|note| ("note", note.into())));
    let mut content = ViewContent { content: vec![facts(rows).into()], ..ViewContent::default() };
    match counters(context, shared, summary) {
        Ok(None) => content.with_message("Counting…"),
        Ok(Some(summary)) => {
            content.content.push(Element::text(Tag::H2, "Counters at this moment (torch.cuda.memory_summary)").into());
            if !summary.is_complete {
                let text = "Peaks and sums are unknown, because the history of this device is incomplete.";
                content.content.push(Element::text(Tag::P, text).with_class("nothing").into());
            }
            let columns = vec![
                Column::text("name", "counter"),
                Column::number("current", "current"),
                Column::number("peak", "peak"),
                Column::number("allocated_total", "allocated in all"),
                Column::number("freed_total", "freed in all"),
            ];
            let mut table = Table::new(VIEW, "Counters", columns);
            for row in summary.rows() {
                table.rows.push(summary_row(row.name.to_owned(), row.unit, &row.all));
                for (class, values) in ["small pool", "large pool"].into_iter().zip(row.by_class.iter().flatten()) {
                    table.rows.push(summary_row(format!("— {class}"), row.unit, values));
                }
            }
            for (name, count) in [("failed requests", summary.ooms()), ("retries", summary.retries())] {
                let count = count.map_or(Cell::Empty, Cell::Count);
                table.rows.push(Row::new(vec![name.into(), count, Cell::Empty, Cell::Empty, Cell::Empty]));
            }
            content.with_table(table)
        }
        Err(error) => {
            content.content.push(Element::text(Tag::P, error.to_string()).with_class("nothing").into());
            content
        }
    }
}

/// Returns a text with a device's name, memory and process, and with the facts that the recording
/// lacks about it.
fn device_text(info: &RecordingInfo, device: &DeviceInfo) -> String {
    let id = DeviceId(device.device);
    let mut text = info.device_label(id);
    if device.total_bytes > 0 {
        text += &format!(" · {}", ByteSize(device.total_bytes));
    }
    if !device.process.is_empty() {
        text += &format!(" · {}", device.process);
    }
    text += match (device.name.is_empty() && id != DeviceId::HOST, device.total_bytes == 0 && id != DeviceId::HOST) {
        (true, true) => " · name and memory size not recorded",
        (true, false) => " · name not recorded",
        (false, true) => " · memory size not recorded",
        (false, false) => "",
    };
    if !device.history_complete {
        text += " · recording began after memory was in use";
    }
    if device.uncertain_events > 0 {
        let events = Count(device.uncertain_events).of("event", "events");
        text += &format!(" · sizes of some older blocks are estimates during its first {events}");
    }
    text
}

/// Returns a sentence on the history that is missing before the first event; `None` if it is
/// complete.
fn earlier_events(context: &Context<'_>) -> Option<String> {
    let (first, info) = (context.recording.first_event(), context.recording.info());
    if first > 0 {
        return Some(format!("this page holds the recording from event {} on", Count(first + 1)));
    }
    if info.devices.iter().all(|device| device.history_complete) {
        return None;
    }
    let mut text = "missing: memory was in use before the first event, because recording began late or kept only the \
                    newest events (PyTorch's max_entries)"
        .to_owned();
    let older = context.lifetimes().into_iter().flat_map(|lifetimes| lifetimes.live_at(first));
    let (blocks, bytes) = older.fold((0u64, 0u64), |(blocks, bytes), one| (blocks + 1, bytes.saturating_add(one.size)));
    if blocks > 0 {
        let blocks = Count(blocks).of("block", "blocks");
        text += &format!("; {blocks} of {} ({}) are older than that event", context.device, ByteSize(bytes));
    }
    Some(text)
}

/// Returns a row of the table of counters: `name` and the counter's values.
fn summary_row(name: String, unit: SummaryUnit, values: &SummaryValues) -> Row {
    let cell = |value: u64| match unit {
        SummaryUnit::Bytes => Cell::Bytes(value),
        SummaryUnit::Count => Cell::Count(value),
    };
    let known = |value: Option<u64>| value.map_or(Cell::Empty, cell);
    Row::new(vec![
        name.into(),
        cell(values.current),
        known(values.peak),
        known(values.allocated_total),
        known(values.freed_total),
    ])
}
