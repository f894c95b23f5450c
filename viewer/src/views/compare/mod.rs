//! Two recordings, devices or moments: new, gone, grown and shrunk groups, exact to the byte.

mod figures;
#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;
mod summary;

use vramscope_draw::{Canvas, Theme};
use vramscope_insight::difference::{DifferenceKind, DifferenceRow, MomentFigures, change_text, differences};
use vramscope_insight::group::{GroupBy, Groupings};
use vramscope_insight::placement::recorded_settings;
use vramscope_trace::sort::{sort_by, sort_by_key};
use vramscope_trace::{Count, DurationNs};

use crate::comparison::{
    AxisUnit, CompareCache, ComparisonPicture, Moments, NAMES, Side, Unavailable, recording_of, side_color,
};
use crate::model::CompareWith;
use crate::ui::{Attribute, Element, Node, Tag, swatch};

use crate::command::{Command, Field, PageCommand};
use crate::view::{
    Cell, Column, Context, Options, PictureFrame, Pixel, Registered, SharedCaches, StoredOptions, Table, TableBuilder,
    Topic, View, ViewContent, ViewInfo, ViewMode, choice, event_link, group_choice, group_title,
};

/// The view "Compare". Its number is the index of the unit of its axis.
#[derive(Default)]
pub struct Compare {
    options: Options<Moments>,
    picture: ComparisonPicture,
}

impl Registered for Compare {
    const INFO: ViewInfo = ViewInfo {
        picture_label: Some("Allocated and reserved bytes of both sides over time, and their maps"),
        needs_history: true,
        topic: Some(Topic::Comparison),
        ..ViewInfo::new("compare", "Compare", ("Compare two recordings, devices or moments", &["j"]))
    };
}

impl ViewMode for Moments {
    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|moments| moments.name() == name)
    }

    fn name(&self) -> String {
        Self::name(*self).to_owned()
    }
}

impl View for Compare {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, &self.options, shared, &mut self.picture.cache)
    }

    fn forget(&mut self) {
        self.picture = ComparisonPicture::default();
    }

    fn update_picture(&mut self, context: &Context<'_>, _shared: &mut SharedCaches, frame: &PictureFrame<'_>) -> bool {
        let moments = self.options.mode.unwrap_or_default();
        let is_known = self.picture.cache.update(context, moments, axis_unit(&self.options)).is_ok();
        self.picture.update(context, frame, is_known)
    }

    fn has_picture(&self) -> bool {
        self.picture.scene().is_some()
    }

    fn draw(&self, canvas: &mut Canvas<'_>, theme: &Theme) {
        self.picture.draw(canvas, theme);
    }

    fn hover(&mut self, _context: &Context<'_>, _shared: &mut SharedCaches, point: Option<Pixel>) -> Vec<String> {
        self.picture.values(point)
    }
}

/// Name of the view in commands and links.
const VIEW: &str = Compare::INFO.name;
/// Maximum number of groups in the table of differences on the page; scripts get all groups.
const SHOWN_ROWS: usize = 200;

/// Returns the content of the view "Compare" beside its picture: controls, summary, figures and
/// groups.
fn content(
    context: &Context<'_>,
    options: &Options<Moments>,
    caches: &mut SharedCaches,
    cache: &mut CompareCache,
) -> ViewContent {
    let by = options.by.unwrap_or(GroupBy::Line);
    let moments = options.mode.unwrap_or_default();
    let wanted = axis_unit(options);
    let mut content = match cache.update(context, moments, wanted) {
        Ok(sides) => {
            let sides = sides.clone();
            compared(context, options, (&mut caches.groupings, cache), by, &sides)
        }
        Err(Unavailable::Nothing) => return explain(&Unavailable::Nothing),
        Err(unavailable) => explain(&unavailable),
    };
    caches.is_unfinished |= cache.is_unfinished;
    content.controls = controls(context, by, moments, wanted);
    content
}

/// Returns the unit that the options of the view "Compare" choose for the chart's axis: steps by
/// default.
fn axis_unit(options: &Options<Moments>) -> AxisUnit {
    let chosen = options.number.and_then(|number| AxisUnit::ALL.get(usize::try_from(number).ok()?));
    chosen.copied().unwrap_or(AxisUnit::Steps)
}

/// Returns the controls of the view "Compare": the subject to compare with, the moments, the
/// grouping and the axis.
fn controls(context: &Context<'_>, by: GroupBy, moments: Moments, unit: AxisUnit) -> Vec<Node> {
    let Context { recording, device, has_range, comparison, .. } = *context;
    let mut controls: Vec<Node> = Vec::new();
    if let Some(subject) = comparison.subject(recording, device, has_range) {
        let choices = comparison.choices(recording, device, has_range);
        let named: Vec<(String, String)> =
            choices.iter().map(|choice| (choice.name(), subject_title(context, *choice))).collect();
        let options = named.iter().map(|(name, title)| (&**name, &**title));
        controls.push(choice("with", Field::CompareWith, &subject.name(), options).into());
        let now = match subject {
            CompareWith::Recording(_) => "this moment, same time from the start",
            _ => "this moment",
        };
        if matches!(subject, CompareWith::Recording(_) | CompareWith::Device(_)) {
            let titles = ["their peaks", "their ends", now, "this step"];
            let options = Moments::ALL.map(Moments::name).into_iter().zip(titles);
            controls.push(choice("at", Field::Mode(VIEW.into()), Moments::name(moments), options).into());
        }
        controls.push(group_choice(VIEW, by, &GroupBy::ALL).into());
        if matches!(subject, CompareWith::Recording(_) | CompareWith::Device(_)) {
            let units = ["0", "1", "2"].into_iter().zip(AxisUnit::ALL.map(AxisUnit::name));
            let current = (unit as u8).to_string();
            controls.push(choice("axis", Field::Number(VIEW.into()), &current, units).into());
        }
    }
    controls.push(Element::button("Pin this moment", Command::PinMoment).into());
    match comparison.second() {
        None => controls.push(Element::button("Open a second recording…", Command::Page(PageCommand::Compare)).into()),
        Some(second) => {
            let title = format!("Close {}", second.name);
            controls
                .push(Element::button("Close the second", Command::CloseSecond).with(Attribute::Title, title).into());
        }
    }
    controls
}

/// Returns the title of a recording, device or moment to compare with, for the menu.
fn subject_title(context: &Context<'_>, subject: CompareWith) -> String {
    match subject {
        CompareWith::Recording(device) => match context.comparison.second() {
            Some(second) if second.recording.devices().count() > 1 => {
                format!("{}, {}", second.name, second.recording.info().device_label(device))
            }
            Some(second) => second.name.clone(),
            None => String::new(),
        },
        CompareWith::Device(device) => context.recording.info().device_label(device),
        CompareWith::Pinned => {
            let event = context.comparison.pinned.map_or(0, |(_, event)| event);
            format!("pinned moment (event {})", Count(event))
        }
        CompareWith::Range => "ends of the selected range".to_owned(),
    }
}

/// Returns the content of the view "Compare" while there is no comparison: it says why.
fn explain(unavailable: &Unavailable) -> ViewContent {
    let content = match unavailable {
        Unavailable::Reading => ViewContent::message("Reading the recording…"),
        Unavailable::Impossible(reason) => ViewContent::message(reason),
        Unavailable::Nothing => {
            let choices = [
                (
                    "Two recordings, for example of two allocator settings:",
                    "Open a second recording…",
                    Command::Page(PageCommand::Compare),
                ),
                ("Two moments of this recording:", "Pin this moment", Command::PinMoment),
            ];
            let item = |(text, title, command): (&str, &str, Command)| {
                Element::new(Tag::Li).with_text(text).with_child(Element::button(title, command))
            };
            let list = Element::new(Tag::Ul).with_class("compare-choices").with_children(choices.map(item));
            let text = "Compare what is live: new, gone, grown and shrunk, exact to the byte.";
            ViewContent::message(text).with_element(list)
        }
    };
    ViewContent { hides_picture: true, ..content }
}

/// Returns the content of a comparison of two sides: summary, figures and groups by `by`.
fn compared(
    context: &Context<'_>,
    options: &Options<Moments>,
    (groupings, cache): (&mut Groupings, &mut CompareCache),
    by: GroupBy,
    sides: &[Side; 2],
) -> ViewContent {
    let [rows_a, rows_b] = [0, 1].map(|index| cache.live_groups(context, index, by, groupings));
    let names = cache.matching_names(context, by, groupings);
    let rows = differences(&rows_a, &rows_b, &names);
    let settings = |side| recording_of(context, side).map(|recording| recorded_settings(recording.info()));
    let figures = [0, 1].map(|index| {
        MomentFigures::of(cache.device(index, context.state), &settings(&sides[index]).unwrap_or_default())
    });
    let mut content = ViewContent { legend: vec![legend(context, cache, sides).into()], ..ViewContent::default() };
    for sentence in summary::sentences(context, sides, &figures, &rows) {
        content.content.push(Element::text(Tag::P, sentence).with_class("summary").into());
    }
    let mut table = groups_table(context, options, by, sides, &rows);
    let shown_rows = options.rows.limit.map_or(SHOWN_ROWS, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let hidden_rows = table.rows.len().saturating_sub(shown_rows) as u64;
    table.rows.truncate(shown_rows);
    let figures = Element::new(Tag::Div)
        .with_child(Element::text(Tag::H2, "Counters"))
        .with_child(figures::table(VIEW, context, sides, &figures).element());
    let mut groups = Element::new(Tag::Div)
        .with_child(Element::text(Tag::H2, format!("Live memory by {}", group_title(by))))
        .with_child(Element::text(Tag::P, kinds_text(&rows)))
        .with_child(table.element());
    if hidden_rows > 0 {
        let text = format!("{} more", Count(hidden_rows).of("group", "groups"));
        groups = groups.with_child(Element::text(Tag::P, text).with_class("nothing"));
    }
    let tables = Element::new(Tag::Div).with_class("compare-tables").with_child(figures).with_child(groups);
    content.content.push(tables.into());
    content.table = Some(table);
    content
}

/// Returns the legend: the color, name and moment of each side.
fn legend(context: &Context<'_>, cache: &CompareCache, sides: &[Side; 2]) -> Element {
    let mut list = Element::new(Tag::Ul).with_class("compare-sides");
    for (index, side) in sides.iter().enumerate() {
        let recording = recording_of(context, side).unwrap_or(context.recording);
        let time_ns = cache.time_ns(index, context).max(recording.start_ns());
        let event = if side.is_second {
            Element::text(Tag::Span, format!("event {} of {}", Count(side.event), NAMES[index]))
        } else {
            event_link(side.event)
        };
        let after = (!recording.info().lacks_times).then(|| DurationNs(time_ns - recording.start_ns()));
        let name = if side.name.is_empty() { &side.when } else { &side.name };
        let when = if side.name.is_empty() { String::new() } else { format!(" {}", side.when) };
        let item = Element::new(Tag::Li)
            .with_child(swatch(side_color(context.theme, index)))
            .with_child(Element::text(Tag::Span, format!("{}: {name}{when}", NAMES[index])))
            .with_child(event);
        let after = after.map(|after| Element::text(Tag::Span, format!("{after} after the start")));
        list = list.with_child(after.into_iter().fold(item, Element::with_child));
    }
    list
}

/// Returns a sentence on how many groups are new, gone, grown and shrunk, with the sums of their
/// changes.
fn kinds_text(rows: &[DifferenceRow]) -> String {
    use DifferenceKind::{Gone, Grown, New, Same, Shrunk};
    let of = |kind| rows.iter().filter(move |row| row.kind == kind);
    let mut parts: Vec<String> = Vec::new();
    for kind in [New, Gone, Grown, Shrunk] {
        let count = of(kind).count() as u64;
        if count > 0 {
            let change = of(kind).map(|row| row.change_bytes).fold(0, i128::saturating_add);
            parts.push(format!("{} {} ({})", Count(count), kind.name(), change_text(change)));
        }
    }
    let same = of(Same).count() as u64;
    if same > 0 || parts.is_empty() {
        parts.push(format!("{} the same", Count(same)));
    }
    parts.join(", ")
}

/// Returns the table of groups with their bytes on both sides and the difference, sorted as the
/// user chose.
fn groups_table(
    context: &Context<'_>,
    options: &Options<Moments>,
    by: GroupBy,
    sides: &[Side; 2],
    rows: &[DifferenceRow],
) -> Table {
    let mut rows: Vec<&DifferenceRow> = rows.iter().collect();
    if let Some((column, is_descending)) = &options.sort {
        match column.as_str() {
            "name" => sort_by(&mut rows, |one, other| other.name.cmp(&one.name)),
            "a_bytes" => sort_by_key(&mut rows, |row| std::cmp::Reverse(row.a_bytes)),
            "b_bytes" => sort_by_key(&mut rows, |row| std::cmp::Reverse(row.b_bytes)),
            _ => sort_by_key(&mut rows, |row| std::cmp::Reverse(row.change_bytes)),
        }
        if !is_descending {
            rows.reverse();
        }
    }
    let mut table = TableBuilder::new(VIEW, "Live bytes by group at A and at B", &rows)
        .column(Column::text("name", group_title(by)).sortable(), |row| match &row.name_at_b {
            Some(at_b) => format!("{} (B: {at_b})", row.name).into(),
            None => Cell::from(&*row.name),
        })
        .column(Column::number("a_bytes", "A").sortable(), |row| Cell::Bytes(row.a_bytes))
        .column(Column::number("b_bytes", "B").sortable(), |row| Cell::Bytes(row.b_bytes))
        .bar_column(Column::bar("change_bytes", "change").sortable(), |row| Cell::BytesChange(row.change_bytes))
        .count("a_blocks", "blocks A", |row| row.a_blocks)
        .count("b_blocks", "blocks B", |row| row.b_blocks)
        .text("kind", "kind", |row| row.kind.name())
        // The name without the one at B, for scripts.
        .hidden("name", |row| Cell::from(&*row.name))
        .hidden("b_name", |row| row.name_at_b.as_deref().map_or(Cell::Empty, Cell::from))
        .rows(|one, row| {
            // Groups of the second recording cannot be shown by the other views.
            let groups = [(&sides[1], one.b_group), (&sides[0], one.a_group)];
            let group = groups.into_iter().find_map(|(side, group)| group.filter(|_| !side.is_second));
            row.command = group.map(|group| Command::Group(by, group, None));
            row.color = Some(side_color(context.theme, usize::from(one.change_bytes > 0)));
        })
        .build();
    table.sorting = table.sorting_by(options.sort.as_ref());
    table
}
