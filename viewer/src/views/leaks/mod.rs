//! Leaks and growth: groups that grow from step to step, and allocations that are never freed.

#[cfg(all(test, not(target_arch = "wasm32")))]
mod page_tests;

use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::incremental::{DeviceHistory, StepAnalysis, UnfreedAnalysis, UnfreedRows};
use vramscope_insight::leaks::{Leak, LeakSearch, blocks_older_than, common_frame};
use vramscope_insight::steps::{GrowingGroups, Growth, MIN_GROWTH_STEPS, StepMemory};
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Allocation, Count};

use crate::command::Command;
use crate::ui::{Element, Node, Tag};
use crate::units::unbroken_size;

use crate::view::{
    Cell, Column, Context, Options, Registered, SharedCaches, StoredOptions, Table, TableBuilder, Topic, View,
    ViewContent, ViewInfo, group_cell, group_choice, group_title, growth_cell, number_field, paint_groups,
};

/// The view "Leaks and growth".
#[derive(Default)]
pub struct Leaks {
    options: Options,
    unfreed: UnfreedAnalysis,
}

impl Registered for Leaks {
    const INFO: ViewInfo = ViewInfo {
        needs_history: true,
        is_about_events: true,
        topic: Some(Topic::Growth),
        ..ViewInfo::new("leaks", "Leaks and growth", ("Show what is never freed", &["8"]))
    };
}

impl View for Leaks {
    fn options(&mut self) -> &mut dyn StoredOptions {
        &mut self.options
    }

    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent {
        content(context, &self.options, shared, &mut self.unfreed)
    }

    fn forget(&mut self) {
        self.unfreed = UnfreedAnalysis::default();
    }
}

/// Name of the view in commands and links.
const VIEW: &str = Leaks::INFO.name;

/// Default minimum age, in steps, of the blocks that are listed as old.
const DEFAULT_AGE_STEPS: u64 = 10;
/// Maximum number of old blocks that are listed, the largest ones.
const LARGEST_OLD: usize = 10;

/// Returns the content of the view "Leaks and growth": groups that grow from step to step, and
/// allocations that are never freed.
fn content(
    context: &Context<'_>,
    options: &Options,
    caches: &mut SharedCaches,
    unfreed: &mut UnfreedAnalysis,
) -> ViewContent {
    let by = options.by.unwrap_or(GroupBy::Site);
    let age_steps = options.number.unwrap_or(DEFAULT_AGE_STEPS);
    let mut content = ViewContent::with_controls([
        group_choice(VIEW, by, &GroupBy::ALL),
        number_field("older than", "steps", VIEW, age_steps),
    ]);
    let Some(source) = caches.update_steps(context) else {
        return content.with_message(context.reading_text());
    };
    let SharedCaches { groupings, block_groups, steps, is_unfinished, .. } = caches;
    let memory = steps.table(source.lifetimes).map(|table| table.rows().to_vec());
    *is_unfinished |= memory.is_none();
    let by_site = groupings.get(GroupBy::Site, context.recording);
    let growing_sites = steps.growing(GroupBy::Site, by_site, &source);
    let growth_of_sites = steps.growth(GroupBy::Site, by_site, source.lifetimes);
    let compared_steps = growth_of_sites.map_or(0, |groups| groups.steps().len());
    *is_unfinished |= growing_sites.is_none();
    let leaks = growing_sites.map(|growing| unfreed.leaks(&source, steps, &growing, by_site).to_vec());
    let verdict = verdict(context, steps, compared_steps, leaks.as_deref(), by_site);
    content.content.push(Element::text(Tag::P, verdict).with_class("verdict").into());
    content.content.extend(evidence(steps, memory.as_deref()));

    let grouping = groupings.get(by, context.recording);
    let growing = steps.growing(by, grouping, &source);
    *is_unfinished |= growing.is_none();
    let (search, what) = search(context, steps);
    let rows = unfreed.rows(&source, steps, search, grouping, growing.as_deref());
    let growing = growing.as_deref().map_or(&[][..], GrowingGroups::as_slice);
    if !growing.is_empty() {
        content.content.push(Element::text(Tag::H2, "What grows from step to step").into());
        content.content.push(growth_table(context, growing, by, grouping).element().into());
    }
    let bytes = rows.groups.iter().fold(0u64, |sum, (one, _)| sum.saturating_add(one.bytes));
    let blocks = rows.groups.iter().map(|(one, _)| one.blocks).sum();
    content.content.push(Element::text(Tag::H2, "Allocated and never freed").into());
    let text = if blocks == 0 {
        format!("Nothing: all that was allocated {what} has been freed.")
    } else {
        format!("{} in {}, allocated {what}.", unbroken_size(bytes), Count(blocks).of("block", "blocks"))
    };
    content.content.push(Element::text(Tag::P, text).with_class("summary").into());
    let mut table = unfreed_table(context, rows, growing, by, grouping);
    paint_groups(block_groups, context, grouping, &mut table);
    let by_site = groupings.get(GroupBy::Site, context.recording);
    if blocks == 0 {
        content.table = Some(table);
    } else {
        content = content.with_table(table);
        content.content.push(Element::text(Tag::H2, "Largest of these allocations").into());
        let largest = allocations_table(context, "Largest allocations", &rows.largest, by_site);
        content.content.push(largest.element().into());
    }
    content.content.extend(old_blocks(context, &source, steps, age_steps, by_site));
    content
}

/// Returns a sentence that says whether and where the program leaks.
fn verdict(
    context: &Context<'_>,
    steps: &StepAnalysis,
    compared_steps: usize,
    leaks: Option<&[Leak]>,
    by_site: &mut Grouping,
) -> String {
    let Some(leaks) = leaks else { return "Comparing the steps…".to_owned() };
    if steps.steps().is_empty() {
        return "Growth is unknown, because no steps were found: the view Steps says why.".to_owned();
    }
    if compared_steps < MIN_GROWTH_STEPS {
        return format!(
            "Growth is unknown: {MIN_GROWTH_STEPS} steps after the warm-up are needed, and the recording has \
             {compared_steps}."
        );
    }
    let bytes_per_step = leaks.iter().fold(0u64, |sum, leak| sum.saturating_add(leak.growth.bytes_per_step));
    match leaks {
        [] => "No leak found: nothing grows from step to step.".to_owned(),
        [leak] => {
            let name = by_site.cached_name(context.definitions(), leak.growth.group);
            format!("A leak: 1 site grows by {} a step, {name}.", unbroken_size(bytes_per_step))
        }
        [fastest, ..] => {
            let text = format!(
                "A leak: {} grow by {} a step",
                Count(leaks.len() as u64).of("site", "sites"),
                unbroken_size(bytes_per_step)
            );
            match common_frame(context.definitions(), leaks, by_site) {
                Some((frame, through)) if through == bytes_per_step => format!("{text}, all through {}.", frame.label),
                Some((frame, through)) => {
                    let others = unbroken_size(bytes_per_step.saturating_sub(through));
                    format!("{text}, all but {others} of it through {}.", frame.label)
                }
                None => {
                    let name = by_site.cached_name(context.definitions(), fastest.growth.group);
                    format!("{text}, the fastest {name}.")
                }
            }
        }
    }
}

/// Returns a sentence with the bytes that are live at the ends of the first and the last step after
/// the warm-up; `None` without such steps.
fn evidence(steps: &StepAnalysis, memory: Option<&[StepMemory]>) -> Option<Node> {
    let memory = memory?;
    let (first, last) = (memory.get(steps.steps().default_warm_up())?, memory.last()?);
    if first.step == last.step {
        return None;
    }
    let warm_up = Count(steps.steps().default_warm_up() as u64).of("step", "steps");
    let text = format!(
        "Live at the end of step {}: {}; at the end of step {}: {} (after a warm-up of {warm_up}).",
        first.step.number,
        unbroken_size(first.live_bytes),
        last.step.number,
        unbroken_size(last.live_bytes),
    );
    Some(Element::text(Tag::P, text).with_class("summary").into())
}

/// Returns the search for unfreed allocations, and a description of it: allocations of the selected
/// range; without a range, those after the warm-up; without steps, all.
fn search(context: &Context<'_>, steps: &StepAnalysis) -> (LeakSearch, String) {
    let all = LeakSearch::new(steps.until());
    if context.has_range {
        let (from, to) = context.range;
        let search = LeakSearch { from_event: from.saturating_add(1), to_event: to, ..all };
        return (search, format!("in the selected range (events {} to {})", Count(from.saturating_add(1)), Count(to)));
    }
    let search = all.after_warm_up(steps.steps(), steps.steps().default_warm_up());
    if search == all {
        (all, "in the whole recording".to_owned())
    } else {
        (search, format!("after the warm-up (from event {} on)", Count(search.from_event)))
    }
}

/// Returns the table of groups that grow from step to step, fastest first.
fn growth_table(context: &Context<'_>, growing: &[Growth], by: GroupBy, grouping: &mut Grouping) -> Table {
    TableBuilder::new(VIEW, "What grows from step to step", growing)
        .text("name", group_title(by), |growth| group_cell(context, grouping, growth.group))
        .bar_column(Column::bar("bytes_per_step", "growth a step"), |one| Cell::BytesChange(one.bytes_per_step.into()))
        .number("growth_bytes", "in all", |growth| {
            Cell::BytesChange(i128::from(growth.last_bytes) - i128::from(growth.first_bytes))
        })
        .bytes("last_bytes", "live at last", |growth| growth.last_bytes)
        .number("grown_steps", "steps that grew", |growth| {
            format!("{} of {}", Count(growth.grown_steps), Count(growth.compared_steps)).into()
        })
        .rows(|_, row| row.color = Some(context.theme.alarm))
        .groups(context.selected_group, by, |growth| growth.group)
        .build()
}

/// Returns the table of never freed allocations by group, growing groups first.
fn unfreed_table(
    context: &Context<'_>,
    rows: &UnfreedRows,
    growing: &[Growth],
    by: GroupBy,
    grouping: &mut Grouping,
) -> Table {
    let mut groups: Vec<_> = rows
        .groups
        .iter()
        .map(|(one, category)| (growing.iter().find(|growth| growth.group == one.group), one, category))
        .collect();
    sort_by_key(&mut groups, |(growth, one, _)| {
        (std::cmp::Reverse((growth.map(|growth| growth.bytes_per_step), one.bytes)), one.group)
    });
    TableBuilder::new(VIEW, "Allocated and never freed, by group", &groups)
        .text("name", group_title(by), |(_, one, _)| group_cell(context, grouping, one.group))
        .bar("bytes", "never freed", |(_, one, _)| one.bytes)
        .count("blocks", "blocks", |(_, one, _)| one.blocks)
        .number("bytes_per_step", "growth a step", |(growth, ..)| growth_cell(*growth))
        .number("oldest_event", "oldest at", |(_, one, _)| Cell::Event(one.oldest_event))
        .number("newest_event", "newest at", |(_, one, _)| Cell::Event(one.newest_event))
        .hidden("category", |(.., category)| category.map_or("mixed", |category| category.name()).into())
        .groups(context.selected_group, by, |(_, one, _)| one.group)
        .build()
}

/// Returns a table with a row for each of `allocations`.
fn allocations_table(
    context: &Context<'_>,
    caption: &str,
    allocations: &[Allocation],
    by_site: &mut Grouping,
) -> Table {
    TableBuilder::new(VIEW, caption, allocations)
        .bytes("bytes", "size", |one| one.size)
        .number("allocated_at", "allocated at", |one| match one.start_observed {
            true => Cell::Event(one.first_moment),
            false => "before the recording".into(),
        })
        .text("site", "site", |one| {
            let group = by_site.group_of_allocation(one);
            group_cell(context, by_site, group)
        })
        .number("address", "address", |one| Cell::Address(one.address))
        .commands(|one| Command::select_allocation(one.address, one.first_moment))
        .build()
}

/// Returns a heading, the sum and a table of the largest blocks that are older than `age_steps`
/// steps at the moment on the screen; empty if the recording has no steps.
fn old_blocks(
    context: &Context<'_>,
    source: &DeviceHistory<'_>,
    steps: &StepAnalysis,
    age_steps: u64,
    by_site: &mut Grouping,
) -> Vec<Node> {
    if steps.steps().is_empty() {
        return Vec::new();
    }
    let age = Count(age_steps).of("step", "steps");
    let mut nodes = vec![Element::text(Tag::H2, format!("Blocks older than {age} at this moment")).into()];
    let count = usize::try_from(age_steps).unwrap_or(usize::MAX);
    match blocks_older_than(source.lifetimes, steps.steps(), context.moment, count, LARGEST_OLD) {
        None => {
            nodes.extend(ViewContent::message(format!("Fewer than {age} precede the step at this moment.")).content)
        }
        Some(old) => {
            let mut text = format!(
                "{} live in {}, allocated by event {} or before",
                unbroken_size(old.bytes),
                Count(old.blocks).of("block", "blocks"),
                Count(old.allocated_by)
            );
            if old.pending_bytes > 0 {
                text += &format!("; {} of it pending free", unbroken_size(old.pending_bytes));
            }
            if old.blocks > old.largest.len() as u64 {
                text += &format!(". The largest {}:", old.largest.len());
            } else {
                text.push('.');
            }
            nodes.push(Element::text(Tag::P, text).with_class("summary").into());
            nodes.push(allocations_table(context, "Old blocks", &old.largest, by_site).element().into());
        }
    }
    nodes
}
