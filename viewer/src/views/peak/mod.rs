//! The peak explained: its moment, its composition, and how far it falls if it is lowered.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use vramscope_insight::group::GroupBy;
use vramscope_insight::incremental::{NextPeaks, PeakAnalysis, PeakGroups};
use vramscope_insight::peak::{PeakComposition, Plateau};
use vramscope_insight::sites::GroupRow;
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Allocation, Count, Peak, Percent};

use crate::timeline::moment_text;
use crate::ui::{Element, Node, Tag, facts};
use crate::units::{rounded_and_exact_size, unbroken_size};

use crate::view::{
    Cell, Column, Context, Options, Registered, SharedCaches, StoredOptions, Table, TableBuilder, Topic, View,
    ViewContent, ViewInfo, category_cell, event_link, group_choice, group_title, paint_groups,
};

/// The view "Peak".
#[derive(Default)]
pub struct PeakView {
    options: Options,
    analysis: PeakAnalysis,
}

impl Registered for PeakView {
    const INFO: ViewInfo = ViewInfo {
        needs_history: true,
        is_about_events: true,
        topic: Some(Topic::Peak),
        ..ViewInfo::new("peak", "Peak", ("Explain the peak", &["6"]))
    };
}

impl View for PeakView {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, &self.options, shared, &mut self.analysis)
    }

    fn forget(&mut self) {
        self.analysis = PeakAnalysis::default();
    }
}

/// Name of the view in commands and links.
const VIEW: &str = PeakView::INFO.name;

/// Returns the content of the view "Peak": when the peak is, what it consists of, and how far it
/// falls if it is lowered.
fn content(
    context: &Context<'_>,
    options: &Options,
    caches: &mut SharedCaches,
    analysis: &mut PeakAnalysis,
) -> ViewContent {
    let by = options.by.unwrap_or(GroupBy::Line);
    let mut content = ViewContent::with_controls([group_choice(VIEW, by, &GroupBy::ALL)]);
    let Some(source) = caches.update_steps(context) else {
        return content.with_message(context.reading_text());
    };
    let peak = context.recording.series(context.device).map(|series| series.peak_allocated()).unwrap_or_default();
    if peak.bytes == 0 {
        return content.with_message("Nothing was allocated on this device.");
    }
    if peak.event > context.history.until() {
        caches.is_unfinished = true;
        return content.with_message(context.reading_text());
    }
    let SharedCaches { groupings, block_groups, steps, .. } = caches;
    analysis.update(&source, peak, steps);
    let by_category = groupings.get(GroupBy::Category, context.recording);
    let categories = analysis.groups(&source, peak, steps, GroupBy::Category, by_category);
    let composition = categories.composition.clone();
    let mut category_table = table(context, categories, GroupBy::Category);
    paint_groups(block_groups, context, by_category, &mut category_table);
    let next = analysis.next(&source, steps, composition.dip_bytes());
    let by_site = groupings.get(GroupBy::Site, context.recording);
    let mut request_text = |one: Option<Allocation>| {
        let group = by_site.group_of_allocation(&one?);
        let name = by_site.cached_name(context.definitions(), group);
        Some(format!("a request of {}: {name}", unbroken_size(one?.size)))
    };
    let reached_by = request_text(next.and_then(|next| next.request));
    let other_reached_by = request_text(next.and_then(|next| next.other_request));
    let step_count = steps.steps().len();
    let grouping = groupings.get(by, context.recording);
    let groups = analysis.groups(&source, peak, steps, by, grouping);
    let requested_bytes = groups.rows.iter().fold(0u64, |sum, (row, _)| sum.saturating_add(row.requested_bytes));
    caches.is_unfinished |= next.is_none();

    let mut rows = moment_facts(context, peak, &composition, step_count, reached_by);
    rows.extend(size_facts(&composition, requested_bytes));
    content.content.push(facts(rows).into());
    content.content.extend(next_peak_nodes(peak, next, other_reached_by));
    if by != GroupBy::Category {
        content.content.push(Element::text(Tag::H2, "By category").into());
        content.content.push(category_table.element().into());
    }
    content.content.push(Element::text(Tag::H2, format!("By {}", group_title(by))).into());
    content.content.push(Element::text(Tag::P, sum_text(&composition)).with_class("summary").into());
    let mut table = table(context, groups, by);
    paint_groups(&mut caches.block_groups, context, caches.groupings.get(by, context.recording), &mut table);
    content.with_table(table)
}

/// Returns facts about the peak as names and values: its moment, step and spans, and the allocation
/// that reached it.
fn moment_facts(
    context: &Context<'_>,
    peak: Peak,
    composition: &PeakComposition,
    step_count: usize,
    reached_by: Option<String>,
) -> Vec<(&'static str, Node)> {
    let time_ns = context.history.time_ns(peak.event);
    let is_here = if peak.event == context.moment { " (this moment)" } else { "" };
    let moment = Element::new(Tag::Span)
        .with_child(event_link(peak.event))
        .with_text(format!(" at {}{is_here}", moment_text(context.recording, time_ns)));
    let mut rows = vec![("peak", rounded_and_exact_size(peak.bytes).into()), ("moment", moment.into())];
    if step_count > 0 {
        let text = match composition.step {
            Some((position, step)) => {
                let ordinal = position as u64 + 1;
                let of_all = format!("{} of {}", Count(ordinal), Count(step_count as u64));
                if step.number == ordinal { of_all } else { format!("number {} ({of_all})", step.number) }
            }
            None => "in no step".to_owned(),
        };
        rows.push(("step", text.into()));
    }
    let mut spans = context.marks.names_at(context.recording, context.device, time_ns);
    spans.reverse();
    rows.extend((!spans.is_empty()).then(|| ("spans", spans.join(" › ").into())));
    rows.extend(reached_by.map(|text| ("reached by", text.into())));
    rows
}

/// Returns the sizes at the peak as names and values, such as the requested bytes and the rounding.
fn size_facts(composition: &PeakComposition, requested_bytes: u64) -> Vec<(&'static str, Node)> {
    let active_bytes = composition.allocated_bytes.saturating_add(composition.pending_bytes);
    let share = |bytes: u64| format!("{} · {}", unbroken_size(bytes), Percent::of(bytes, active_bytes));
    let mut rows = vec![
        ("requested", share(requested_bytes).into()),
        ("rounding", share(active_bytes.saturating_sub(requested_bytes)).into()),
    ];
    if composition.pending_bytes > 0 {
        rows.push((
            "pending free",
            format!("{}, in addition to the peak", unbroken_size(composition.pending_bytes)).into(),
        ));
    }
    let lasting = format!("{}, live for a quarter of the recording or longer", share(composition.lasting_bytes));
    rows.push(("lasting", lasting.into()));
    rows.extend(composition.before_steps_bytes.filter(|&bytes| bytes > 0).map(|before_bytes| {
        ("before steps", format!("{}, live before the first step began", share(before_bytes)).into())
    }));
    rows
}

/// Returns a heading and texts about the next highest peaks, which remain if the peak is lowered.
fn next_peak_nodes(peak: Peak, next: Option<NextPeaks>, other_reached_by: Option<String>) -> Vec<Node> {
    let heading = Element::text(Tag::H2, "If the peak is lowered").into();
    let Some(NextPeaks { plateaus, .. }) = next else {
        return vec![
            heading,
            Element::text(Tag::P, "Searching the next highest moments…").with_class("nothing").into(),
        ];
    };
    let Some(next) = plateaus.next else {
        let text = "Memory rises only once: lowering this peak helps all the way down.";
        return vec![heading, Element::text(Tag::P, text).into()];
    };
    let saved = |plateau: Plateau| {
        let bytes = peak.bytes.saturating_sub(plateau.bytes);
        format!("{} ({} of the peak)", unbroken_size(bytes), Percent::of(bytes, peak.bytes))
    };
    let mut sentence = Element::new(Tag::P);
    if next.bytes == peak.bytes {
        sentence = sentence
            .with_text("At ")
            .with_child(event_link(next.event))
            .with_text(", memory is as high again: lowering this peak alone saves nothing.");
    } else {
        let text = format!(
            " with {}: lowering this peak alone helps down to there and saves at most {}.",
            unbroken_size(next.bytes),
            saved(next)
        );
        sentence = sentence.with_text("The next highest moment is ").with_child(event_link(next.event)).with_text(text);
    }
    let mut nodes = vec![heading, sentence.into()];
    if plateaus.recurrences > 0 {
        let times = Count(plateaus.recurrences).of("more time", "more times");
        let again = format!("The same request comes within 1% of the peak {times}. If it needed less each time, ");
        let again = Element::text(Tag::P, again);
        let again = match plateaus.next_of_other_site {
            Some(other) => {
                again.with_text("the peak would fall to ").with_child(event_link(other.event)).with_text(format!(
                    " with {}{}, which saves at most {}.",
                    unbroken_size(other.bytes),
                    other_reached_by.map(|text| format!(" ({text})")).unwrap_or_default(),
                    saved(other)
                ))
            }
            None => {
                again.with_text("the peak would fall as far as it is lowered: no other request reaches a high point.")
            }
        };
        nodes.push(again.into());
    }
    nodes
}

/// Returns a sentence with the sum of the rows of the peak's composition.
fn sum_text(composition: &PeakComposition) -> String {
    let mut text = format!(
        "{} in {} at the peak: the rows add up to it.",
        rounded_and_exact_size(composition.allocated_bytes),
        Count(composition.blocks).of("block", "blocks")
    );
    if composition.pending_bytes > 0 {
        text += &format!(" A further {} are pending free.", unbroken_size(composition.pending_bytes));
    }
    text
}

/// Returns the composition of the peak as a table. Its `bytes` add up to the allocated bytes.
fn table(context: &Context<'_>, groups: &PeakGroups, by: GroupBy) -> Table {
    let composition = &groups.composition;
    let allocated = |row: &GroupRow| row.bytes.saturating_sub(row.pending_bytes);
    let mut rows: Vec<_> = groups.rows.iter().collect();
    sort_by_key(&mut rows, |(row, _)| std::cmp::Reverse(allocated(row)));
    let total = composition.allocated_bytes.max(1) as f64;
    let mut table = TableBuilder::new(VIEW, format!("The peak by {}", group_title(by)), &rows)
        .text("name", group_title(by), |(row, _)| Cell::from(&*row.name))
        .bar("bytes", "allocated", |(row, _)| allocated(row))
        .number("share", "share", |(row, _)| Cell::Share(allocated(row) as f64 / total))
        .count("blocks", "blocks", |(row, _)| row.blocks)
        .bytes("largest_bytes", "largest", |(_, part)| part.largest_bytes)
        .hidden("requested_bytes", |(row, _)| Cell::Bytes(row.requested_bytes))
        .column_if(composition.pending_bytes > 0, Column::number("pending_bytes", "pending free"), |(row, _)| {
            Cell::Bytes(row.pending_bytes)
        });
    if composition.before_steps_bytes.is_some_and(|bytes| bytes > 0) {
        table = table.bytes("before_steps_bytes", "before steps", |(_, part)| part.before_steps_bytes);
    }
    if by != GroupBy::Category {
        table = table.text("category", "category", |(row, _)| category_cell(&row.categories));
    }
    table.groups(context.selected_group, by, |(row, _)| row.group).build()
}
