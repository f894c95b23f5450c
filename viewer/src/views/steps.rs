//! The steps of a training run side by side, and the allocations of one step.

use vramscope_insight::group::{GroupBy, Grouping, MergedSites};
use vramscope_insight::steps::{GroupInStep, Growth, Step, StepMemory, StepSource};
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Count, site_name};

use crate::ui::{Attribute, Element, Node, Tag};
use crate::units::unbroken_size;

use super::ViewKind;
use super::caches::Caches;
use super::computed::{DeviceHistory, StepAnalysis};
use super::context::{Context, ViewContent, ViewOptions};
use super::controls::{choice, event_link, group_choice, group_title};
use super::groups::paint_groups;
use super::table::{Cell, Column, Row, Sorting, Table};

/// The modes of the view: all steps, or the allocations of the step at the moment.
const MODES: [(&str, &str); 2] = [("steps", "all steps"), ("groups", "one step")];
/// Maximum number of steps that are listed above the allocations of one step.
const FEW_STEPS: usize = 40;
/// Maximum number of steps whose groups are shown next to each other.
const MAX_COLUMNS: usize = 6;
/// Maximum number of groups in the table of steps next to each other.
const MAX_COMPARED_GROUPS: usize = 40;
/// Maximum number of names of spans to choose from.
const MAX_SPAN_NAMES: usize = 40;

/// Returns the content of the view.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut Caches) -> ViewContent {
    const VIEW: &str = ViewKind::Steps.name();
    let by = options.by.unwrap_or(GroupBy::Line);
    let mode = options.mode.as_deref().unwrap_or("steps");
    let Some(source) = caches.update_steps(context) else { return ViewContent::reading(context) };
    let Caches { groupings, block_groups, steps, is_unfinished, .. } = caches;
    let mut content = ViewContent {
        controls: vec![
            choice("show", &format!("mode {VIEW}"), mode, MODES).into(),
            group_choice(VIEW, by, &GroupBy::ALL).into(),
        ],
        ..ViewContent::default()
    };
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
        content.content.extend(ViewContent::message("Adding up the steps…").content);
        return content;
    };
    let memory = table.rows().to_vec();
    let grouping = groupings.get(by, context.recording);
    let mut one_step = || OneStep::new(context, &source, steps, &memory, by, grouping);
    if mode == "groups" {
        let mut step = one_step();
        *is_unfinished |= step.is_unfinished;
        paint_groups(block_groups, context, grouping, &mut step.table);
        content.content.extend(step.nodes);
        return content.with_table(step.table);
    }
    let has_few = memory.len() <= FEW_STEPS;
    content = content.with_table(steps_table(context, options, &memory));
    if has_few && options.limit.is_none() {
        let mut step = one_step();
        *is_unfinished |= step.is_unfinished;
        paint_groups(block_groups, context, grouping, &mut step.table);
        content.content.extend(step.nodes);
        content.content.push(step.table.element().into());
    }
    content
}

/// Returns how the steps were recognized.
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

/// Returns why there are no steps, and what to do.
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
    Some(choice("a step is", "step-span", chosen, choices))
}

/// Returns the steps in view side by side.
fn steps_table(context: &Context<'_>, options: &ViewOptions, memory: &[StepMemory]) -> Table {
    let mut table = Table::new(
        ViewKind::Steps.name(),
        "Steps side by side",
        vec![
            Column::number("step", "step").sortable(),
            Column::number("events", "events").sortable(),
            Column::number("duration_ns", "duration").sortable(),
            Column::number("allocations", "allocations").sortable(),
            Column::number("allocated_bytes", "allocated").sortable(),
            Column::bar("peak_bytes", "peak").sortable(),
            Column::number("peak_event", "at event"),
            Column::number("live_bytes", "live at end").sortable(),
            Column::number("growth_bytes", "growth").sortable(),
        ],
    );
    let mut order: Vec<usize> = (0..memory.len()).collect();
    let sorting = options.sort.as_ref().and_then(|(name, is_descending)| {
        let column = table.columns.iter().find(|column| column.is_sortable && column.name == name)?;
        Some(Sorting { column: column.name, is_descending: *is_descending })
    });
    if let Some(Sorting { column, is_descending }) = sorting {
        sort_by_key(&mut order, |&position| sort_key(&memory[position], column));
        if is_descending {
            order.reverse();
        }
    }
    table.sorting = sorting;
    let is_virtual = options.limit.is_none() && memory.len() > FEW_STEPS;
    let (first, count) = match options.window() {
        (_, limit) if options.limit.is_some() => (0, limit),
        (first, count) if is_virtual => (first.min(memory.len() as u64), count),
        _ => (0, u64::MAX),
    };
    table.window = is_virtual.then_some((memory.len() as u64, first));
    let highest = memory.iter().map(|row| row.peak_bytes).max().unwrap_or(0).max(1);
    let shown = order.iter().skip(first as usize).take(usize::try_from(count).unwrap_or(usize::MAX));
    table.rows.extend(shown.map(|&position| {
        let row = &memory[position];
        let step = row.step;
        Row {
            is_current: step.event_numbers().contains(&context.moment),
            hidden: vec![
                ("first_event", Cell::Event(step.from_event.saturating_add(1))),
                ("last_event", Cell::Event(step.to_event)),
                ("frees", Cell::Count(row.frees)),
                ("freed_bytes", Cell::Bytes(row.freed_bytes)),
                ("pending_bytes", Cell::Bytes(row.pending_bytes)),
            ],
            ..Row::new(vec![
                Cell::Count(step.number),
                Cell::Count(step.to_event.saturating_sub(step.from_event)),
                Cell::Duration(step.to_ns.saturating_sub(step.from_ns)),
                Cell::Count(row.allocations),
                Cell::Bytes(row.allocated_bytes),
                Cell::Bytes(row.peak_bytes),
                Cell::Event(row.peak_event),
                Cell::Bytes(row.live_bytes),
                Cell::BytesChange(i128::from(row.growth_bytes)),
            ])
            .with_share(row.peak_bytes as f64 / highest as f64)
            .with_command(format!("seek {}", row.peak_event))
        }
    }));
    table
}

/// Returns the value of a column by which steps are sorted.
fn sort_key(row: &StepMemory, column: &str) -> i128 {
    match column {
        "events" => i128::from(row.step.to_event.saturating_sub(row.step.from_event)),
        "duration_ns" => i128::from(row.step.to_ns.saturating_sub(row.step.from_ns)),
        "allocations" => i128::from(row.allocations),
        "allocated_bytes" => i128::from(row.allocated_bytes),
        "peak_bytes" => i128::from(row.peak_bytes),
        "live_bytes" => i128::from(row.live_bytes),
        "growth_bytes" => i128::from(row.growth_bytes),
        _ => i128::from(row.step.number),
    }
}

/// The allocations of the step at the moment.
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
        let mut table = groups_table(by);
        if let Some(row) = memory.get(position) {
            nodes.extend(heading(context, memory, position, row));
            match steps.compare(by, &[row.step], grouping, source.lifetimes) {
                Some(groups) => {
                    let rows = groups.rows();
                    let cells = rows.iter().filter_map(|row| Some((row.group, *row.steps.first()?)));
                    fill_groups(&mut table, context, cells.collect(), by, grouping, growing.as_slice());
                }
                None => is_unfinished = true,
            }
        }
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

/// Returns the heading of the allocations of one step, with links to the steps before and after it.
fn heading(context: &Context<'_>, memory: &[StepMemory], position: usize, row: &StepMemory) -> Vec<Node> {
    let link = |position: Option<usize>, sign: &str| {
        let row = memory.get(position?)?;
        let button = Element::button(format!("{sign} step {}", row.step.number), format!("seek {}", row.peak_event));
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
        text = format!("The moment is outside of every step; this is the nearest. {text}");
    }
    let text = Element::text(Tag::P, format!("{text}peak {} at ", unbroken_size(row.peak_bytes)))
        .with_child(event_link(row.peak_event))
        .with_text(format!("; {} live at its end.", unbroken_size(row.live_bytes)))
        .with_class("summary");
    vec![title.into(), text.into()]
}

/// Returns an empty table of the groups of one step.
fn groups_table(by: GroupBy) -> Table {
    Table::new(
        ViewKind::Steps.name(),
        "What the step allocates",
        vec![
            Column::text("name", group_title(by)),
            Column::bar("bytes", "allocated"),
            Column::number("allocations", "allocations"),
            Column::number("live_bytes", "live at end"),
            Column::number("blocks", "blocks at end"),
            Column::number("bytes_per_step", "growth a step"),
        ],
    )
}

/// Adds the groups of one step to its table, sorted by allocated bytes.
fn fill_groups(
    table: &mut Table,
    context: &Context<'_>,
    mut groups: Vec<(u32, GroupInStep)>,
    by: GroupBy,
    grouping: &mut Grouping,
    growing: &[Growth],
) {
    sort_by_key(&mut groups, |(group, one)| (std::cmp::Reverse((one.allocated_bytes, one.live_bytes)), *group));
    let most = groups.first().map_or(1, |(_, one)| one.allocated_bytes.max(1));
    for (group, one) in groups {
        let growth = growing.iter().find(|growth| growth.group == group);
        let cells = vec![
            Cell::from(&*grouping.cached_name(context.definitions(), group)),
            Cell::Bytes(one.allocated_bytes),
            Cell::Count(one.allocations),
            Cell::Bytes(one.live_bytes),
            Cell::Count(one.live_blocks),
            growth.map_or(Cell::Empty, |growth| Cell::BytesChange(i128::from(growth.bytes_per_step))),
        ];
        table.rows.push(Row {
            hidden: vec![("pending_bytes", Cell::Bytes(one.pending_bytes))],
            ..Row::new(cells).with_share(one.allocated_bytes as f64 / most as f64).with_group(
                context.selected_group,
                by,
                group,
            )
        });
    }
}

/// Returns the steps that lie in the selected range, at least partly; of more than fit next to each
/// other, some that are evenly spread.
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

/// Returns the bytes that each group allocates in some steps, next to each other.
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
            .with_command(format!("group {} {group}", by.name()))
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
