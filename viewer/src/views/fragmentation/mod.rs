//! Fragmentation over time: when it first passed a value, the free memory in segments, the largest
//! free block with the largest requests, and the metrics of the moment by pool.
//!
//! `fragmentation_chart` draws the picture, for reports, too.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use vramscope_draw::picture::draw_moment;
use vramscope_draw::{Canvas, MomentAxis, Theme};
use vramscope_insight::group::{pool_name, stream_name};
use vramscope_insight::incremental::{CrossingSearch, FirstCrossing, FragmentationAnalysis, FragmentationSource};
use vramscope_insight::placement::recorded_settings;
use vramscope_insight::pools::{FragmentationColumn, FragmentationCrossing, device_usage, pool_rows};
use vramscope_pool::Settings;
use vramscope_trace::{ByteSize, Count, FreeSpace, Metrics, Percent, metrics_by_group, site_name};

use crate::command::Command;
use crate::details;
use crate::fragmentation_chart::{DEFAULT_PERCENT, FragmentationContent, FragmentationScene};
use crate::timeline::moment_text;
use crate::ui::{Element, Node, Tag, swatch};
use crate::view::{
    Cell, Context, Options, PictureFrame, PictureKey, Pixel, QUIET_FRAMES, Registered, SharedCaches, ShownMoment,
    StoredOptions, Table, TableBuilder, Topic, View, ViewContent, ViewInfo, event_link, modes, number_field,
};

modes! {
    /// The table that scripts get.
    Mode {
        /// Metrics over time.
        OverTime = "time", "over time";
    }
}

/// The view "Fragmentation". Its number is the threshold, in percent, whose first crossing is
/// searched.
#[derive(Default)]
pub struct Fragmentation {
    options: Options<Mode>,
    analysis: FragmentationAnalysis,
    scene: Option<FragmentationScene>,
    key: Option<PictureKey>,
    /// Frames after which the columns are computed from the events; `None` if they have been.
    frames_until_exact: Option<u32>,
}

impl Registered for Fragmentation {
    const INFO: ViewInfo = ViewInfo {
        picture_label: Some("Free memory and its fragmentation over time"),
        needs_history: true,
        topic: Some(Topic::Fragmentation),
        row_names: &["metrics"],
        ..ViewInfo::new("fragmentation", "Fragmentation", ("Show fragmentation over time", &["5"]))
    };
}

/// Name of the view in commands and links.
const VIEW: &str = Fragmentation::INFO.name;
/// Text of the charts before the history has been read.
const READING: &str = "Reading the recording…";
/// Maximum number of events in view for which fragmentation is computed from the events at once.
const FEW_EVENTS: u64 = 8_192;
/// Number of rows of the table of metrics over time on the page, and maximum number for scripts.
const ROWS_OVER_TIME: (u64, u64) = (24, 2_000);

impl View for Fragmentation {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, &self.options, shared, &mut self.analysis)
    }

    fn forget(&mut self) {
        (self.analysis, self.key) = (FragmentationAnalysis::default(), None);
    }

    fn update_picture(&mut self, context: &Context<'_>, shared: &mut SharedCaches, frame: &PictureFrame<'_>) -> bool {
        advance(context, &self.options, shared, &mut self.analysis);
        let percent = threshold_percent(&self.options);
        let crossing = self.analysis.crossing().map(|found| (found.event, found.fragmentation));
        let key = |requests: Option<u64>| {
            frame.chart_key(vec![
                context.device.0.into(),
                percent,
                crossing.map_or(u64::MAX, |(event, _)| event),
                requests.unwrap_or(u64::MAX),
                context.history.generation(),
                context.is_history_complete.into(),
            ])
        };
        let is_new = self.scene.is_none() || self.key.as_ref() != Some(&key(self.analysis.requests_until()));
        let axis = frame.axis();
        let edges = axis.edges();
        let events = edges.last().zip(edges.first()).map_or(0, |(last, first)| last - first);
        self.frames_until_exact = match self.frames_until_exact {
            _ if is_new && events > FEW_EVENTS => Some(QUIET_FRAMES),
            _ if is_new => None,
            None => return false,
            Some(frames) => frames.checked_sub(1),
        };
        let is_exact = self.frames_until_exact.is_none();
        shared.is_unfinished |= !is_exact;
        if !is_exact && !is_new {
            return false;
        }
        let source = source(context);
        let columns = match is_exact {
            true => self.analysis.columns(&source, edges),
            false => self.analysis.quick_columns(&source, edges),
        };
        let content = FragmentationContent {
            axis: axis.clone(),
            columns: columns.columns,
            threshold: percent as f64 / 100.0,
            crossing,
            notice: READING,
        };
        let scene = FragmentationScene::new(content, frame.size, frame.scale);
        // Collecting the largest requests is part of computing the columns.
        (self.key, self.scene) = (Some(key(self.analysis.requests_until())), Some(scene));
        true
    }

    fn has_picture(&self) -> bool {
        self.scene.is_some()
    }

    fn draw(&self, canvas: &mut Canvas<'_>, theme: &Theme) {
        if let Some(scene) = &self.scene {
            scene.draw_on(canvas, theme);
        }
    }

    fn hover(&mut self, context: &Context<'_>, _shared: &mut SharedCaches, point: Option<Pixel>) -> Vec<String> {
        let values = self.scene.as_ref().zip(point).and_then(|(scene, point)| {
            scene.hit(point)?;
            scene.values(point.0)
        });
        let Some((moment, values)) = values else { return Vec::new() };
        let time = moment_text(context.recording, context.history.time_ns(moment));
        let mut lines = vec![format!("{time}, event {}", Count(moment))];
        lines.extend(values);
        lines
    }

    fn draw_highlights(&self, canvas: &mut Canvas<'_>, theme: &Theme, moment: ShownMoment) {
        if let Some(scene) = &self.scene {
            draw_moment(canvas.bitmap, &scene.axis, moment, scene.chart_rows(), scene.scale, theme);
        }
    }

    fn moment_axis(&self) -> Option<&MomentAxis> {
        self.scene.as_ref().map(|scene| &scene.axis)
    }
}

/// Returns the inputs of the analysis.
fn source<'a>(context: &Context<'a>) -> FragmentationSource<'a> {
    let Context { recording, history, marks, device, .. } = *context;
    FragmentationSource { recording, history, marks, device }
}

/// Returns the threshold of fragmentation, in percent (at most 100), whose first crossing is
/// searched.
fn threshold_percent(options: &Options<Mode>) -> u64 {
    options.number.unwrap_or(DEFAULT_PERCENT).min(100)
}

/// Continues collecting the largest requests once the history is complete. Returns true if the next
/// frame must continue.
fn update_requests(context: &Context<'_>, analysis: &mut FragmentationAnalysis) -> bool {
    context.is_history_complete && analysis.update_requests(&source(context))
}

/// Returns at most `rows` columns of the table of metrics over time.
fn over_time<'a>(
    context: &Context<'_>,
    analysis: &'a mut FragmentationAnalysis,
    rows: u64,
) -> &'a [FragmentationColumn] {
    analysis.over_time(&source(context), context.range, !context.has_range, rows)
}

/// Continues the computations of the view "Fragmentation" (for its picture and its content) by one
/// frame's work.
fn advance(
    context: &Context<'_>,
    options: &Options<Mode>,
    caches: &mut SharedCaches,
    analysis: &mut FragmentationAnalysis,
) {
    let was_found = analysis.crossing().is_some();
    let is_unfinished =
        analysis.search(&source(context), threshold_percent(options)) | update_requests(context, analysis);
    caches.missing.append(&mut analysis.missing);
    // The picture shows the result in the next frame.
    caches.is_unfinished |= is_unfinished || was_found != analysis.crossing().is_some();
}

/// Returns the content of the view "Fragmentation": when fragmentation first exceeded the
/// threshold, and metrics at the moment or over time.
fn content(
    context: &Context<'_>,
    options: &Options<Mode>,
    caches: &mut SharedCaches,
    analysis: &mut FragmentationAnalysis,
) -> ViewContent {
    let percent = threshold_percent(options);
    let settings = recorded_settings(context.recording.info());
    let controls = [number_field("first above", "%", VIEW, percent)];
    let mut content = ViewContent { legend: legend(context.theme), ..ViewContent::with_controls(controls) };
    if options.mode == Some(Mode::OverTime) {
        let rows = options.rows.limit.unwrap_or(ROWS_OVER_TIME.0).min(ROWS_OVER_TIME.1);
        caches.is_unfinished |= update_requests(context, analysis);
        return content.with_table(table_over_time(context, over_time(context, analysis, rows)));
    }
    let table = table_of_moment(context, &settings);
    if options.rows.limit.is_some() {
        content.table = Some(table);
        return content;
    }
    advance(context, options, caches, analysis);
    content.content.push(crossing_node(context, analysis, percent));
    content = content.with_element(Element::text(Tag::H2, "At this moment")).with_table(table);
    let over_time = if context.history.until() > context.recording.first_event() {
        let mut rows = over_time(context, analysis, ROWS_OVER_TIME.0).to_vec();
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
fn crossing_node(context: &Context<'_>, analysis: &FragmentationAnalysis, percent: u64) -> Node {
    let plain = |text: String| Element::text(Tag::P, text).with_class("summary").into();
    if let Some(error) = &analysis.error {
        return plain(format!("The first moment above {percent}% is not known: {error}"));
    }
    match analysis.searched(context.recording) {
        CrossingSearch::Found(crossing) => crossing_element(context, crossing, percent).into(),
        CrossingSearch::NotFound => plain(format!("Fragmentation never exceeds {percent}%.")),
        CrossingSearch::Searching(done, all) => {
            plain(format!("Looking for the first moment above {percent}%: {}", Percent::of(done, all)))
        }
        CrossingSearch::Waiting => plain(format!("Looking for the first moment above {percent}%")),
    }
}

/// Returns sentences about when and why fragmentation first exceeded `percent`.
fn crossing_element(context: &Context<'_>, first: &FirstCrossing, percent: u64) -> Element {
    let FragmentationCrossing { event: moment, time_ns, fragmentation } = first.crossing;
    let text = Element::new(Tag::P).with_class("summary");
    let text = match first.event {
        Some(_) => text.with_text(format!("Fragmentation first passed {percent}% at ")),
        None => text.with_text(format!("Fragmentation is above {percent}% from the beginning, ")),
    };
    let mut rest = format!(" ({})", moment_text(context.recording, time_ns));
    if !first.spans.is_empty() {
        rest += &format!(" in {}", first.spans.join(" › "));
    }
    if let Some(event) = &first.event {
        let definitions = context.definitions();
        rest += &format!(": {}", details::of_event(event, definitions));
        if let Some(site) = event.kind.site() {
            rest += &format!(", by {}", site_name(definitions, site));
        }
    }
    let FreeSpace { total, blocks, largest } = first.free;
    rest += &format!(
        ". It was {} then: {} free in {}, the largest {}.",
        Percent(fragmentation),
        ByteSize(total),
        Count(blocks).of("block", "blocks"),
        ByteSize(largest)
    );
    text.with_child(event_link(moment)).with_text(rest)
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
        .commands(|column| Command::seek(column.moment))
        .build()
}
