//! Fragmentation over time in words and numbers: when it first passed a value, and the metrics of
//! the moment by pool.

mod cache;
mod draw;
mod scene;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests;

use vramscope_insight::group::{pool_name, stream_name};
use vramscope_insight::placement::recorded_settings;
use vramscope_insight::pools::{FragmentationColumn, device_usage, pool_rows};
use vramscope_pool::Settings;
use vramscope_trace::{Metrics, Percent, metrics_by_group};

use crate::draw::theme::Theme;
use crate::timeline::moment_text;
use crate::ui::{Element, Node, Tag, swatch};

use super::ViewKind;
use crate::view::caches::SharedCaches;
use crate::view::context::{Context, ViewContent, ViewOptions};
use crate::view::controls::number_field;
use crate::view::table::{Cell, Table};
use crate::view::table_builder::TableBuilder;

use cache::Search;
pub use cache::{FragmentationCache, threshold_percent};
pub use draw::draw;
pub use scene::{FragmentationContent, FragmentationScene, Part};

/// Name of the view "Fragmentation" in commands and links.
const VIEW: &str = ViewKind::Fragmentation.name();
/// Number of rows of the table of metrics over time on the page, and maximum number for scripts.
const ROWS_OVER_TIME: (u64, u64) = (24, 2_000);
/// The mode of the view "Fragmentation" in which scripts get metrics over time.
const OVER_TIME: &str = "time";

/// Continues the computations of the view "Fragmentation" (for its picture and its content) by one
/// frame's work.
pub fn advance(
    context: &Context<'_>,
    options: &ViewOptions,
    caches: &mut SharedCaches,
    cache: &mut FragmentationCache,
) {
    let was_found = cache.crossing().is_some();
    let is_unfinished = cache.search(context, threshold_percent(options)) | cache.update_requests(context);
    caches.missing.append(&mut cache.missing);
    // The picture shows the result in the next frame.
    caches.is_unfinished |= is_unfinished || was_found != cache.crossing().is_some();
}

/// Returns the content of the view "Fragmentation": when fragmentation first exceeded the
/// threshold, and metrics at the moment or over time.
#[must_use]
pub fn content(
    context: &Context<'_>,
    options: &ViewOptions,
    caches: &mut SharedCaches,
    cache: &mut FragmentationCache,
) -> ViewContent {
    let percent = threshold_percent(options);
    let settings = recorded_settings(context.recording.info());
    let controls = [number_field("first above", "%", VIEW, percent)];
    let mut content = ViewContent { legend: legend(context.theme), ..ViewContent::with_controls(controls) };
    if options.mode.as_deref() == Some(OVER_TIME) {
        let rows = options.limit.unwrap_or(ROWS_OVER_TIME.0).min(ROWS_OVER_TIME.1);
        caches.is_unfinished |= cache.update_requests(context);
        return content.with_table(table_over_time(context, cache.over_time(context, rows)));
    }
    let table = table_of_moment(context, &settings);
    if options.limit.is_some() {
        content.table = Some(table);
        return content;
    }
    advance(context, options, caches, cache);
    content.content.push(crossing_node(context, cache, percent));
    content = content.with_element(Element::text(Tag::H2, "At this moment")).with_table(table);
    let over_time = if context.history.until() > context.recording.first_event() {
        let mut rows = cache.over_time(context, ROWS_OVER_TIME.0).to_vec();
        // Parts of the range without events repeat the row before them.
        rows.dedup_by_key(|row| row.moment);
        table_over_time(context, &rows).element()
    } else {
        Element::text(Tag::P, "Reading the recording…").with_class("nothing")
    };
    let heading = if context.has_range { "In the selected range" } else { "Over time" };
    content.with_element(Element::text(Tag::H2, heading)).with_element(over_time)
}

/// Returns a text on the first moment with a fragmentation above `percent`, or on the search for
/// it.
fn crossing_node(context: &Context<'_>, cache: &FragmentationCache, percent: u64) -> Node {
    let plain = |text: String| Element::text(Tag::P, text).with_class("summary").into();
    if let Some(error) = &cache.error {
        return plain(format!("The first moment above {percent}% is not known: {error}"));
    }
    match &cache.search {
        Some(Search { crossing: Some(crossing), .. }) => crossing.element(context, percent).into(),
        Some(Search { searched_until: Some(_), .. }) => plain(format!("Fragmentation never exceeds {percent}%.")),
        Some(search) => {
            let first = context.recording.first_event();
            let (done, all) = (search.search.moment() - first, context.recording.end_event() - first);
            plain(format!("Looking for the first moment above {percent}%: {}", Percent::of(done, all)))
        }
        None => plain(format!("Looking for the first moment above {percent}%")),
    }
}

/// Returns the legend of the fragmentation picture's colors.
fn legend(theme: &Theme) -> Vec<Node> {
    let item = |sample: Element, text: &str| Element::new(Tag::Li).with_child(sample).with_text(text);
    let class = |class: &'static str| Element::new(Tag::I).with_class(class);
    let band = theme.well.mix(theme.free, 0.35);
    let items = [
        item(swatch(theme.free), "fragmentation"),
        item(swatch(band), "lowest and highest in a pixel column"),
        item(class("swatch swatch-cached"), "releasable (free segments)"),
        item(class("swatch swatch-free"), "stuck beside live blocks"),
        item(class("swatch swatch-line").with_color(theme.text), "largest free block"),
        item(class("swatch swatch-dot").with_color(theme.allocated), "largest request"),
    ];
    vec![Element::new(Tag::Ul).with_children(items).into()]
}

/// Returns the table of fragmentation metrics at the moment: the device first, then each pool and
/// stream.
fn table_of_moment(context: &Context<'_>, settings: &Settings) -> Table {
    let (device, groups) = (Metrics::at(context.state, |_, _| true), metrics_by_group(context.state));
    let all = "all".to_owned();
    let mut rows = vec![(all.clone(), all, &device, device_usage(context.state, settings))];
    for row in pool_rows(context.state, settings) {
        let metrics = groups.get(&(row.pool, row.stream));
        rows.extend(metrics.map(|metrics| (pool_name(row.pool), stream_name(row.stream), metrics, row.usage)));
    }
    TableBuilder::new(VIEW, "Metrics at this moment, of the device and by pool and stream", &rows)
        .text("pool", "pool", |(pool, ..)| pool.clone())
        .text("stream", "stream", |(_, stream, ..)| stream.clone())
        .number("fragmentation", "frag", |(.., metrics, _)| Cell::Share(metrics.fragmentation()))
        .bytes("free_bytes", "free", |(.., metrics, _)| metrics.free.total)
        .bytes("largest_free_bytes", "largest free", |(.., metrics, _)| metrics.free.largest)
        .bytes("releasable_bytes", "releasable", |(.., usage)| usage.releasable_bytes)
        .bytes("stuck_bytes", "stuck", |(.., usage)| usage.stuck_bytes)
        .bytes("rounding_waste_bytes", "rounding", |(.., metrics, _)| metrics.rounding_waste_bytes())
        .hidden("event", |_| Cell::Event(context.moment))
        .hidden("free_blocks", |(.., metrics, _)| Cell::Count(metrics.free.blocks))
        .hidden("free_space_index", |(.., metrics, _)| Cell::Share(metrics.free_space_index()))
        .hidden("inactive_split_bytes", |(.., metrics, _)| Cell::Bytes(metrics.inactive_split_bytes))
        .hidden("reserved_bytes", |(.., metrics, _)| Cell::Bytes(metrics.counters.reserved))
        .hidden("active_bytes", |(.., metrics, _)| Cell::Bytes(metrics.counters.active))
        .hidden("allocated_bytes", |(.., metrics, _)| Cell::Bytes(metrics.counters.allocated))
        .hidden("requested_bytes", |(.., metrics, _)| Cell::Bytes(metrics.counters.requested))
        .hidden("unallocated_bytes", |(.., metrics, _)| Cell::Bytes(metrics.unallocated_bytes()))
        .hidden("segments", |(.., metrics, _)| Cell::Count(metrics.segments))
        .build()
}

/// Returns the table of fragmentation metrics over time, with a row for each of `columns`.
fn table_over_time(context: &Context<'_>, columns: &[FragmentationColumn]) -> Table {
    let time_ns = |column: &FragmentationColumn| context.history.time_ns(column.moment);
    TableBuilder::new(VIEW, "Metrics over time: each row is the end of a part of the range", columns)
        .number("event", "at event", |column| Cell::Event(column.moment))
        .text("time", "time", |column| moment_text(context.recording, time_ns(column)))
        .number("fragmentation", "frag", |column| Cell::Share(column.fragmentation))
        .bytes("free_bytes", "free", |column| column.free.total)
        .bytes("largest_free_bytes", "largest free", |column| column.free.largest)
        .bytes("releasable_bytes", "releasable", |column| column.releasable_bytes)
        .bytes("stuck_bytes", "stuck", |column| column.stuck_bytes)
        .bytes("rounding_waste_bytes", "rounding", |column| column.rounding_waste_bytes)
        .number("largest_request_bytes", "largest request", |column| {
            column.largest_request_bytes.map_or(Cell::Empty, Cell::Bytes)
        })
        .hidden("time_ns", |column| context.duration(time_ns(column)))
        .hidden("min_fragmentation", |column| Cell::Share(column.min_fragmentation))
        .hidden("max_fragmentation", |column| Cell::Share(column.max_fragmentation))
        .hidden("reserved_bytes", |column| Cell::Bytes(column.reserved_bytes))
        .commands(|column| format!("seek {}", column.moment))
        .build()
}
