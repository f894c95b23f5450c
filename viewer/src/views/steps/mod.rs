//! The steps of a training run side by side, and the allocations of one step.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use vramscope_insight::group::{GroupBy, Grouping, MergedSites};
use vramscope_insight::incremental::{DeviceHistory, StepAnalysis};
use vramscope_insight::steps::{GroupInStep, Growth, Step, StepMemory, StepSource};
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Count, site_name};

use crate::command::{Command, Field};
use crate::ui::{Attribute, Element, Node, Tag};
use crate::units::unbroken_size;

use crate::view::{
    Cell, Column, Context, Options, Registered, SharedCaches, StoredOptions, Table, TableBuilder, View, ViewContent,
    ViewInfo, choice, event_link, group_cell, group_choice, group_title, growth_cell, mode_choice, modes, paint_groups,
};

/// The view "Steps".
#[derive(Default)]
pub struct StepsView {
    options: Options<Mode>,
}

impl Registered for StepsView {
    const INFO: ViewInfo = ViewInfo {
        needs_history: true,
        is_about_events: true,
        ..ViewInfo::new("steps", "Steps", ("Compare steps", &["7"]))
    };
}

impl View for StepsView {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, &self.options, shared)
    }
}

modes! {
    /// The rows of the view.
    Mode {
        /// The steps.
        Steps = "steps", "all steps";
        /// The allocations of the step at the moment.
        Groups = "groups", "one step";
    }
}

/// Name of the view in commands and links.
const VIEW: &str = StepsView::INFO.name;

/// Maximum number of steps that are listed above the allocations of one step.
const FEW_STEPS: usize = 40;
/// Maximum number of selected steps whose groups are compared in one table.
const MAX_COLUMNS: usize = 6;
/// Maximum number of groups in the table that compares steps.
const MAX_COMPARED_GROUPS: usize = 40;
/// Maximum number of span names that the user can choose as a step.
const MAX_SPAN_NAMES: usize = 40;

/// Returns the content of the view "Steps": the steps of a training run, or the allocations of one
/// step.
fn content(context: &Context<'_>, options: &Options<Mode>, caches: &mut SharedCaches) -> ViewContent {
    let by = options.by.unwrap_or(GroupBy::Line);
    let mode = options.mode.unwrap_or(Mode::Steps);
    let Some(source) = caches.update_steps(context) else { return ViewContent::message(context.reading_text()) };
    let SharedCaches { groupings, block_groups, steps, is_unfinished, .. } = caches;
    let mut content = ViewContent::with_controls([
        mode_choice("show", VIEW, &mode, Mode::MENU),
        group_choice(VIEW, by, &GroupBy::ALL),
    ]);
    content.controls.extend(span_choice(context, steps).map(Node::from));
    if steps.steps().is_empty() {
        content.content = no_steps(context, steps);
        content.table = Some(steps_table(context, options, &[]));
        return content;
    }
    let source_text = Element::text(Tag::P, source_text(context, steps)).with_class("summary");
    content.content.push(source_text.into());
    let Some(table) = steps.table(source.lifetimes) else {
        *is_unfinished = true;
        return content.with_message("Adding up the steps…");
    };
    let memory = table.rows().to_vec();
    let grouping = groupings.get(by, context.recording);
    let mut one_step = || OneStep::new(context, &source, steps, &memory, by, grouping);
    if mode == Mode::Groups {
        let mut step = one_step();
        *is_unfinished |= step.is_unfinished;
        paint_groups(block_groups, context, grouping, &mut step.table);
        content.content.extend(step.nodes);
        return content.with_table(step.table);
    }
    let has_few = memory.len() <= FEW_STEPS;
    content = content.with_table(steps_table(context, options, &memory));
    if has_few && !options.is_for_script() {
        let mut step = one_step();
        *is_unfinished |= step.is_unfinished;
        paint_groups(block_groups, context, grouping, &mut step.table);
        content.content.extend(step.nodes);
        content.content.push(step.table.element().into());
    }
    content
}

/// Returns a sentence on the number of steps and how they were recognized.
fn source_text(context: &Context<'_>, steps: &StepAnalysis) -> String {
    let count = Count(steps.steps().len() as u64).of("step", "steps");
    match steps.steps().source() {
        Some(StepSource::Span(name)) => format!("{count}, recognized by the spans “{name}”."),
        Some(StepSource::Inferred { site, regularity_percent }) => format!(
            "{count}, inferred from a sequence of allocations that repeats ({regularity_percent}% alike), because no \
             span is named like a step. Every step allocates once at {}.",
            site_name(context.definitions(), *site)
        ),
        None => count,
    }
}

/// Returns a text for a recording without steps: why there are none, and what the user can do.
fn no_steps(context: &Context<'_>, steps: &StepAnalysis) -> Vec<Node> {
    let text = match context.step_span {
        Some(name) => format!("No span is called “{name}”: choose another one above."),
        None if steps.span_names().is_empty() => "No steps were found: no sequence of allocations repeats, and the \
             recording has no spans. Mark the steps of the program with torch.profiler.record_function(\"step\")."
            .to_owned(),
        None => {
            "No steps were found: no span is named like a step, and no sequence of allocations repeats. Choose the \
             span that marks a step above."
                .to_owned()
        }
    };
    ViewContent::message(text).content
}

/// Returns the field that chooses the span that marks a step; `None` if there is nothing to choose.
fn span_choice(context: &Context<'_>, steps: &StepAnalysis) -> Option<Element> {
    let chosen = context.step_span.unwrap_or_default();
    if steps.span_names().is_empty() && chosen.is_empty() {
        return None;
    }
    let mut choices = vec![(String::new(), "automatic".to_owned())];
    choices.extend(steps.span_names().iter().take(MAX_SPAN_NAMES).map(|span| {
        let text = if span.is_numbered { format!("{} N", span.name) } else { span.name.clone() };
        (span.name.clone(), text)
    }));
    if !choices.iter().any(|(name, _)| name == chosen) {
        choices.push((chosen.to_owned(), chosen.to_owned()));
    }
    let choices = choices.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    Some(choice("a step is", Field::StepSpan, chosen, choices))
}

/// Returns the table of steps, with a row for each step in view.
fn steps_table(context: &Context<'_>, options: &Options<Mode>, memory: &[StepMemory]) -> Table {
    let mut order: Vec<&StepMemory> = memory.iter().collect();
    if let Some((column, is_descending)) = &options.sort {
        let key = |row: &&StepMemory| sort_key(row, column);
        sort_by_key(&mut order, |row| key(row).map(|value| if *is_descending { -value } else { value }));
    }
    let is_virtual = !options.is_for_script() && memory.len() > FEW_STEPS;
    let (first, count) = match options.rows.window() {
        (_, limit) if options.is_for_script() => (0, limit),
        (first, count) if is_virtual => (first.min(memory.len() as u64), count),
        _ => (0, u64::MAX),
    };
    let highest = memory.iter().map(|row| row.peak_bytes).max().unwrap_or(0).max(1);
    let shown = order.into_iter().skip(first as usize).take(usize::try_from(count).unwrap_or(usize::MAX));
    let shown: Vec<&StepMemory> = shown.collect();
    let number = |name, title| Column::number(name, title).sortable();
    let mut table = TableBuilder::new(VIEW, "Steps side by side", &shown)
        .column(number("step", "step"), |row| Cell::Count(row.step.number))
        .column(number("events", "events"), |row| Cell::Count(events_of(row)))
        .column(number("duration_ns", "duration"), |row| context.duration(duration_ns(row)))
        .column(number("allocations", "allocations"), |row| Cell::Count(row.allocations))
        .column(number("allocated_bytes", "allocated"), |row| Cell::Bytes(row.allocated_bytes))
        .column(Column::bar("peak_bytes", "peak").sortable(), |row| Cell::Bytes(row.peak_bytes))
        .number("peak_event", "at event", |row| Cell::Event(row.peak_event))
        .column(number("live_bytes", "live at end"), |row| Cell::Bytes(row.live_bytes))
        .column(number("growth_bytes", "growth"), |row| Cell::BytesChange(row.growth_bytes.into()))
        .hidden("first_event", |row| Cell::Event(row.step.from_event.saturating_add(1)))
        .hidden("last_event", |row| Cell::Event(row.step.to_event))
        .hidden("frees", |row| Cell::Count(row.frees))
        .hidden("freed_bytes", |row| Cell::Bytes(row.freed_bytes))
        .hidden("pending_bytes", |row| Cell::Bytes(row.pending_bytes))
        .rows(|step, row| {
            row.is_current = step.step.event_numbers().contains(&context.moment);
            row.share = Some(step.peak_bytes as f64 / highest as f64);
        })
        .commands(|row| Command::seek(row.peak_event))
        .build();
    table.sorting = table.sorting_by(options.sort.as_ref());
    table.window = is_virtual.then_some((memory.len() as u64, first));
    table
}

/// Returns the number of events in a step.
fn events_of(row: &StepMemory) -> u64 {
    row.step.to_event.saturating_sub(row.step.from_event)
}

/// Returns the duration of a step, in nanoseconds.
fn duration_ns(row: &StepMemory) -> u64 {
    row.step.to_ns.saturating_sub(row.step.from_ns)
}

/// Returns a step's value in a column of the table of steps, for sorting; `None` for a column that
/// the table cannot be sorted by.
fn sort_key(row: &StepMemory, column: &str) -> Option<i128> {
    Some(match column {
        "step" => row.step.number.into(),
        "events" => events_of(row).into(),
        "duration_ns" => duration_ns(row).into(),
        "allocations" => row.allocations.into(),
        "allocated_bytes" => row.allocated_bytes.into(),
        "peak_bytes" => row.peak_bytes.into(),
        "live_bytes" => row.live_bytes.into(),
        "growth_bytes" => row.growth_bytes.into(),
        _ => return None,
    })
}

/// The content of the view "Steps" about a single step: the allocations of the step at the moment.
struct OneStep {
    /// Heading and texts, and the selected steps next to each other.
    nodes: Vec<Node>,
    /// The groups of the step.
    table: Table,
    /// Whether a part is still being computed.
    is_unfinished: bool,
}

impl OneStep {
    /// Computes the allocations of the step at the moment; between two steps, of the step before.
    /// `memory` has a row for each step.
    fn new(
        context: &Context<'_>,
        source: &DeviceHistory<'_>,
        steps: &mut StepAnalysis,
        memory: &[StepMemory],
        by: GroupBy,
        grouping: &mut Grouping,
    ) -> Self {
        let position = memory.partition_point(|row| row.step.from_event < context.moment).saturating_sub(1);
        let mut nodes = Vec::new();
        // Each row is one group, so that its growth is that of the group alone.
        let growth = steps.growth(by, grouping, source.lifetimes);
        let growing = growth.map(|groups| groups.growing(&MergedSites::default()));
        let mut is_unfinished = growing.is_none();
        let growing = growing.unwrap_or_default();
        let mut groups = Vec::new();
        if let Some(row) = memory.get(position) {
            nodes.extend(heading(context, memory, position, row));
            match steps.compare(by, &[row.step], grouping, source.lifetimes) {
                Some(found) => {
                    let rows = found.rows();
                    groups.extend(rows.iter().filter_map(|row| Some((row.group, *row.steps.first()?))));
                }
                None => is_unfinished = true,
            }
        }
        let table = groups_table(context, groups, by, grouping, growing.as_slice());
        let selected = selected_steps(context, memory);
        if selected.len() > 1 {
            match steps.compare(by, &selected, grouping, source.lifetimes) {
                Some(groups) => {
                    let rows = groups.rows().into_iter().map(|row| (row.group, row.steps)).collect();
                    let title = "Bytes that the selected steps allocate";
                    nodes.insert(0, compared_table(context, &selected, rows, by, grouping).into());
                    nodes.insert(0, Element::text(Tag::H2, title).into());
                }
                None => is_unfinished = true,
            }
        }
        Self { nodes, table, is_unfinished }
    }
}

/// Returns the heading above the allocations of the step at `position` in `memory`, with links to
/// the steps before and after it.
fn heading(context: &Context<'_>, memory: &[StepMemory], position: usize, row: &StepMemory) -> Vec<Node> {
    let link = |position: Option<usize>, sign: &str| {
        let row = memory.get(position?)?;
        let button = Element::button(format!("{sign} step {}", row.step.number), Command::seek(row.peak_event));
        Some(Node::from(button.with_class("link").with(Attribute::Title, "Go to the peak of this step")))
    };
    let mut title = Element::text(Tag::H2, format!("What step {} allocates ", row.step.number));
    title.children.extend(link(position.checked_sub(1), "←"));
    title.children.push(" ".into());
    title.children.extend(link(Some(position + 1), "→"));
    let mut text = format!(
        "{}, {} in all; ",
        Count(row.allocations).of("allocation", "allocations"),
        unbroken_size(row.allocated_bytes)
    );
    if !row.step.event_numbers().contains(&context.moment) {
        text = format!("The moment is in no step; this is the nearest. {text}");
    }
    let text = Element::text(Tag::P, format!("{text}peak {} at ", unbroken_size(row.peak_bytes)))
        .with_child(event_link(row.peak_event))
        .with_text(format!("; {} live at its end.", unbroken_size(row.live_bytes)))
        .with_class("summary");
    vec![title.into(), text.into()]
}

/// Returns the table of the groups of one step, sorted by allocated bytes.
fn groups_table(
    context: &Context<'_>,
    mut groups: Vec<(u32, GroupInStep)>,
    by: GroupBy,
    grouping: &mut Grouping,
    growing: &[Growth],
) -> Table {
    sort_by_key(&mut groups, |(group, one)| (std::cmp::Reverse((one.allocated_bytes, one.live_bytes)), *group));
    TableBuilder::new(VIEW, "What the step allocates", &groups)
        .text("name", group_title(by), |(group, _)| group_cell(context, grouping, *group))
        .bar("bytes", "allocated", |(_, one)| one.allocated_bytes)
        .count("allocations", "allocations", |(_, one)| one.allocations)
        .bytes("live_bytes", "live at end", |(_, one)| one.live_bytes)
        .count("blocks", "blocks at end", |(_, one)| one.live_blocks)
        .number("bytes_per_step", "growth a step", |(group, _)| {
            growth_cell(growing.iter().find(|growth| growth.group == *group))
        })
        .hidden("pending_bytes", |(_, one)| Cell::Bytes(one.pending_bytes))
        .groups(context.selected_group, by, |(group, _)| *group)
        .build()
}

/// Returns the steps that lie at least partly in the selected range. Of more than [`MAX_COLUMNS`]
/// steps, returns some that are evenly spread.
fn selected_steps(context: &Context<'_>, memory: &[StepMemory]) -> Vec<Step> {
    if !context.has_range {
        return Vec::new();
    }
    let (from, to) = context.range;
    let steps: Vec<Step> =
        memory.iter().map(|row| row.step).filter(|step| step.from_event < to && step.to_event > from).collect();
    if steps.len() <= MAX_COLUMNS {
        return steps;
    }
    (0..MAX_COLUMNS).map(|column| steps[column * (steps.len() - 1) / (MAX_COLUMNS - 1)]).collect()
}

/// Returns the table that compares steps: the bytes that each group allocates in each of them.
fn compared_table(
    context: &Context<'_>,
    steps: &[Step],
    mut groups: Vec<(u32, Vec<GroupInStep>)>,
    by: GroupBy,
    grouping: &mut Grouping,
) -> Element {
    let sum = |cells: &[GroupInStep]| cells.iter().fold(0u64, |sum, one| sum.saturating_add(one.allocated_bytes));
    groups.retain(|(_, cells)| sum(cells) > 0);
    sort_by_key(&mut groups, |(group, cells)| (std::cmp::Reverse(sum(cells)), *group));
    let heading = |text: String| Element::text(Tag::Th, text).with(Attribute::Scope, "col");
    let mut head = Element::new(Tag::Tr).with_child(heading(group_title(by).to_owned()));
    for step in steps {
        head = head.with_child(heading(format!("step {}", step.number)).with_class("number"));
    }
    let cell = |bytes: u64| {
        let text = if bytes == 0 { "–".to_owned() } else { unbroken_size(bytes) };
        Element::text(Tag::Td, text).with_class("number")
    };
    let mut body = Element::new(Tag::Tbody);
    for (group, cells) in groups.iter().take(MAX_COMPARED_GROUPS) {
        let name = grouping.cached_name(context.definitions(), *group);
        let row = Element::new(Tag::Tr)
            .with(Attribute::TabIndex, "0")
            .with_command(Command::Group(by, *group, None))
            .with(Attribute::AriaSelected, (context.selected_group == Some((by, *group))).to_string())
            .with_child(Element::text(Tag::Td, &*name))
            .with_children(cells.iter().map(|one| cell(one.allocated_bytes)));
        body = body.with_child(row);
    }
    let rest = groups.get(MAX_COMPARED_GROUPS..).unwrap_or_default();
    if !rest.is_empty() {
        let in_step = |column: usize| {
            rest.iter().fold(0u64, |sum, (_, cells)| {
                sum.saturating_add(cells.get(column).map_or(0, |one| one.allocated_bytes))
            })
        };
        let text = Count(rest.len() as u64).of("other", "others");
        let row = Element::new(Tag::Tr).with_child(Element::text(Tag::Td, text));
        body = body.with_child(row.with_children((0..steps.len()).map(|column| cell(in_step(column)))));
    }
    Element::new(Tag::Table)
        .with(Attribute::AriaLabel, "Bytes that the selected steps allocate, by group")
        .with_child(Element::new(Tag::Thead).with_child(head))
        .with_child(body)
}
