//! Fragmentation over time in words and numbers: when it first passed a value, and the metrics of
//! the moment by pool.

use vramscope_insight::group::{pool_name, stream_name};
use vramscope_insight::placement::recorded_settings;
use vramscope_insight::pools::{FragmentationColumn, device_usage, pool_rows};
use vramscope_pool::Settings;
use vramscope_trace::{Metrics, Percent, metrics_by_group};

use crate::theme::Theme;
use crate::timeline::moment_text;
use crate::ui::{Element, Node, Tag, swatch};

use super::ViewKind;
use super::caches::Caches;
use super::context::{Context, ViewContent, ViewOptions};
use super::controls::number_field;
pub use super::fragmentation_cache::threshold_percent;
use super::fragmentation_cache::{FragmentationCache, Search};
use super::table::{Cell, Column, Row, Table};

/// Name of the view in commands.
const VIEW: &str = ViewKind::Fragmentation.name();
/// Number of rows of the table over time on the page, and maximum for scripts.
const ROWS_OVER_TIME: (u64, u64) = (24, 2_000);
/// The mode in which scripts get metrics over time.
const OVER_TIME: &str = "time";
/// Continues the view's computations, for its picture and its content, by a bounded part.
pub fn advance(context: &Context<'_>, options: &ViewOptions, caches: &mut Caches) {
    let was_found = caches.fragmentation.crossing().is_some();
    let is_unfinished = caches.fragmentation.search(context, threshold_percent(options))
        | caches.fragmentation.update_requests(context);
    caches.missing.append(&mut caches.fragmentation.missing);
    // The picture shows the result in the next frame.
    caches.is_unfinished |= is_unfinished || was_found != caches.fragmentation.crossing().is_some();
}

/// Returns the content of the view.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut Caches) -> ViewContent {
    let percent = threshold_percent(options);
    let settings = recorded_settings(context.recording.info());
    let mut content = ViewContent {
        controls: vec![number_field("first above", "%", VIEW, percent).into()],
        legend: legend(context.theme),
        ..ViewContent::default()
    };
    if options.mode.as_deref() == Some(OVER_TIME) {
        let rows = options.limit.unwrap_or(ROWS_OVER_TIME.0).min(ROWS_OVER_TIME.1);
        caches.is_unfinished |= caches.fragmentation.update_requests(context);
        return content.with_table(table_over_time(context, caches.fragmentation.over_time(context, rows)));
    }
    let table = table_of_moment(context, &settings);
    if options.limit.is_some() {
        content.table = Some(table);
        return content;
    }
    advance(context, options, caches);
    content.content.push(crossing_node(context, &caches.fragmentation, percent));
    content = content.with_heading("At this moment").with_table(table);
    let over_time = if context.history.until() > context.recording.first_event() {
        let mut rows = caches.fragmentation.over_time(context, ROWS_OVER_TIME.0).to_vec();
        // Parts of the range without events repeat the row before them.
        rows.dedup_by_key(|row| row.moment);
        table_over_time(context, &rows).element()
    } else {
        Element::text(Tag::P, "Reading the recording…").with_class("nothing")
    };
    content = content.with_heading(if context.has_range { "In the selected range" } else { "Over time" });
    content.content.push(over_time.into());
    content
}

impl ViewContent {
    /// Appends a heading to the content.
    fn with_heading(mut self, text: &str) -> Self {
        self.content.push(Element::text(Tag::H2, text).into());
        self
    }
}

/// Returns a text on the first moment above `percent`.
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

/// Returns the legend of the picture's colors.
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

/// Returns the columns of the metrics that both tables have.
fn metric_columns() -> [Column; 6] {
    [
        Column::number("fragmentation", "frag"),
        Column::number("free_bytes", "free"),
        Column::number("largest_free_bytes", "largest free"),
        Column::number("releasable_bytes", "releasable"),
        Column::number("stuck_bytes", "stuck"),
        Column::number("rounding_waste_bytes", "rounding"),
    ]
}

/// Returns the metrics at the moment: of the device first, then of each pool and stream.
fn table_of_moment(context: &Context<'_>, settings: &Settings) -> Table {
    let mut columns = vec![Column::text("pool", "pool"), Column::text("stream", "stream")];
    columns.extend(metric_columns());
    let mut table = Table::new(VIEW, "Metrics at this moment, of the device and by pool and stream", columns);
    let all = (Cell::from("all"), Cell::from("all"));
    let device = Metrics::at(context.state, |_, _| true);
    let total = device_usage(context.state, settings);
    table.rows.push(metrics_row(all, context.moment, &device, (total.releasable_bytes, total.stuck_bytes)));
    let groups = metrics_by_group(context.state);
    for row in pool_rows(context.state, settings) {
        if let Some(metrics) = groups.get(&(row.pool, row.stream)) {
            let names = (Cell::from(pool_name(row.pool)), Cell::from(stream_name(row.stream)));
            let free = (row.usage.releasable_bytes, row.usage.stuck_bytes);
            table.rows.push(metrics_row(names, context.moment, metrics, free));
        }
    }
    table
}

/// Returns a row of metrics; `free` are the releasable and the stuck bytes.
fn metrics_row(names: (Cell, Cell), moment: u64, metrics: &Metrics, free: (u64, u64)) -> Row {
    let counters = metrics.counters;
    Row {
        hidden: vec![
            ("event", Cell::Event(moment)),
            ("free_blocks", Cell::Count(metrics.free.blocks)),
            ("free_space_index", Cell::Share(metrics.free_space_index())),
            ("inactive_split_bytes", Cell::Bytes(metrics.inactive_split_bytes)),
            ("reserved_bytes", Cell::Bytes(counters.reserved)),
            ("active_bytes", Cell::Bytes(counters.active)),
            ("allocated_bytes", Cell::Bytes(counters.allocated)),
            ("requested_bytes", Cell::Bytes(counters.requested)),
            ("unallocated_bytes", Cell::Bytes(metrics.unallocated_bytes())),
            ("segments", Cell::Count(metrics.segments)),
        ],
        ..Row::new(vec![
            names.0,
            names.1,
            Cell::Share(metrics.fragmentation()),
            Cell::Bytes(metrics.free.total),
            Cell::Bytes(metrics.free.largest),
            Cell::Bytes(free.0),
            Cell::Bytes(free.1),
            Cell::Bytes(metrics.rounding_waste_bytes()),
        ])
    }
}

/// Returns metrics over time: a row for each column.
fn table_over_time(context: &Context<'_>, columns: &[FragmentationColumn]) -> Table {
    let mut headings = vec![Column::number("event", "at event"), Column::text("time", "time")];
    headings.extend(metric_columns());
    headings.push(Column::number("largest_request_bytes", "largest request"));
    let mut table = Table::new(VIEW, "Metrics over time: each row is the end of a part of the range", headings);
    table.rows.extend(columns.iter().map(|column| {
        let time_ns = context.history.time_ns(column.moment);
        Row {
            hidden: vec![
                ("time_ns", Cell::Duration(time_ns)),
                ("min_fragmentation", Cell::Share(column.min_fragmentation)),
                ("max_fragmentation", Cell::Share(column.max_fragmentation)),
                ("reserved_bytes", Cell::Bytes(column.reserved_bytes)),
            ],
            ..Row::new(vec![
                Cell::Event(column.moment),
                moment_text(context.recording, time_ns).into(),
                Cell::Share(column.fragmentation),
                Cell::Bytes(column.free.total),
                Cell::Bytes(column.free.largest),
                Cell::Bytes(column.releasable_bytes),
                Cell::Bytes(column.stuck_bytes),
                Cell::Bytes(column.rounding_waste_bytes),
                column.largest_request_bytes.map_or(Cell::Empty, Cell::Bytes),
            ])
            .with_command(format!("seek {}", column.moment))
        }
    }));
    table
}
