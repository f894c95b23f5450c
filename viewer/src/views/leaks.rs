//! Leaks and growth: groups that grow from step to step, and allocations that are never freed.

use std::collections::{HashMap, HashSet};

use vramscope_insight::frames::{FrameView, StackRow};
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::leaks::{Leak, LeakSearch, blocks_older_than};
use vramscope_insight::steps::{GrowingGroups, Growth, MIN_GROWTH_STEPS, StepMemory};
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Allocation, Count};

use crate::ui::{Element, Node, Tag};
use crate::units::unbroken_size;

use super::ViewKind;
use super::caches::Caches;
use super::computed::{DeviceHistory, StepAnalysis, UnfreedRows};
use super::context::{Context, ViewContent, ViewOptions};
use super::controls::{group_choice, group_title, number_field};
use super::groups::paint_groups;
use super::table::{Cell, Column, Row, Table};

const VIEW: &str = ViewKind::Leaks.name();
/// Minimum age in steps of the old blocks that are listed, unless the user says otherwise.
const DEFAULT_AGE_STEPS: u64 = 10;
/// Number of old blocks that are listed.
const LARGEST_OLD: usize = 10;
/// A line is named as the origin of a leak if at most this part of the growth comes from others: a
/// hundredth.
const NEGLIGIBLE_GROWTH_PART: u64 = 100;

/// Returns the content of the view.
#[must_use]
pub fn content(context: &Context<'_>, options: &ViewOptions, caches: &mut Caches) -> ViewContent {
    let by = options.by.unwrap_or(GroupBy::Site);
    let age_steps = options.number.unwrap_or(DEFAULT_AGE_STEPS);
    let mut content = ViewContent {
        controls: vec![
            group_choice(VIEW, by, &GroupBy::ALL).into(),
            number_field("older than", "steps", VIEW, age_steps).into(),
        ],
        ..ViewContent::default()
    };
    let Some(source) = caches.update_steps(context) else {
        content.content = ViewContent::reading(context).content;
        return content;
    };
    let Caches { groupings, block_groups, steps, unfreed, is_unfinished, .. } = caches;
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

/// Returns the answer in one sentence. `leaks` are the leaking sites; `None` while steps are being
/// compared.
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
            match common_frame(context, leaks, by_site) {
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

/// Returns the innermost frame of the program's own code through which nearly all of the growth was
/// allocated, and that growth in bytes a step; `None` if there is no such frame. A few bytes that
/// another line allocates do not hide the line that matters.
fn common_frame(context: &Context<'_>, leaks: &[Leak], by_site: &Grouping) -> Option<(FrameView, u64)> {
    let own_frames = |leak: &Leak| -> Vec<FrameView> {
        let stack = by_site.group_details(context.definitions(), leak.growth.group).stack;
        let own = |row: StackRow| match row {
            StackRow::Own(frame) => Some(frame),
            StackRow::Folded(_) => None,
        };
        stack.rows.into_iter().filter_map(own).collect()
    };
    let key = |frame: &FrameView| (frame.file.clone(), frame.line, frame.function.clone());
    let mut growth_through: HashMap<(String, u32, String), u64> = HashMap::new();
    let mut all = 0_u64;
    for leak in leaks {
        let bytes = leak.growth.bytes_per_step;
        all = all.saturating_add(bytes);
        // A recursive function is in the stack several times.
        let keys: HashSet<_> = own_frames(leak).iter().map(key).collect();
        for key in keys {
            let through = growth_through.entry(key).or_default();
            *through = through.saturating_add(bytes);
        }
    }
    let least = all - all / NEGLIGIBLE_GROWTH_PART;
    own_frames(leaks.first()?).into_iter().find_map(|frame| {
        let through = growth_through[&key(&frame)];
        (through >= least).then_some((frame, through))
    })
}

/// Returns how much is live at the ends of the first and the last step after the warm-up.
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
/// range, else after the warm-up, else all.
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

/// Returns the groups that grow, fastest first.
fn growth_table(context: &Context<'_>, growing: &[Growth], by: GroupBy, grouping: &mut Grouping) -> Table {
    let mut table = Table::new(
        VIEW,
        "What grows from step to step",
        vec![
            Column::text("name", group_title(by)),
            Column::bar("bytes_per_step", "growth a step"),
            Column::number("growth_bytes", "in all"),
            Column::number("last_bytes", "live at last"),
            Column::number("grown_steps", "steps that grew"),
        ],
    );
    let fastest = growing.first().map_or(1, |first| first.bytes_per_step.max(1));
    table.rows.extend(growing.iter().map(|growth| {
        let cells = vec![
            Cell::from(&*grouping.cached_name(context.definitions(), growth.group)),
            Cell::BytesChange(i128::from(growth.bytes_per_step)),
            Cell::BytesChange(i128::from(growth.last_bytes) - i128::from(growth.first_bytes)),
            Cell::Bytes(growth.last_bytes),
            format!("{} of {}", Count(growth.grown_steps), Count(growth.compared_steps)).into(),
        ];
        Row { color: Some(context.theme.alarm), ..Row::new(cells) }
            .with_share(growth.bytes_per_step as f64 / fastest as f64)
            .with_group(context.selected_group, by, growth.group)
    }));
    table
}

/// Returns the allocations that are never freed by group, growing groups first.
fn unfreed_table(
    context: &Context<'_>,
    rows: &UnfreedRows,
    growing: &[Growth],
    by: GroupBy,
    grouping: &mut Grouping,
) -> Table {
    let mut table = Table::new(
        VIEW,
        "Allocated and never freed, by group",
        vec![
            Column::text("name", group_title(by)),
            Column::bar("bytes", "never freed"),
            Column::number("blocks", "blocks"),
            Column::number("bytes_per_step", "growth a step"),
            Column::number("oldest_event", "oldest at"),
            Column::number("newest_event", "newest at"),
        ],
    );
    let most = rows.groups.iter().map(|(one, _)| one.bytes).max().unwrap_or(0).max(1);
    let mut groups: Vec<_> = rows
        .groups
        .iter()
        .map(|(one, category)| (growing.iter().find(|growth| growth.group == one.group), one, category))
        .collect();
    sort_by_key(&mut groups, |(growth, one, _)| {
        (std::cmp::Reverse((growth.map(|growth| growth.bytes_per_step), one.bytes)), one.group)
    });
    table.rows.extend(groups.into_iter().map(|(growth, one, category)| {
        let cells = vec![
            Cell::from(&*grouping.cached_name(context.definitions(), one.group)),
            Cell::Bytes(one.bytes),
            Cell::Count(one.blocks),
            growth.map_or(Cell::Empty, |growth| Cell::BytesChange(i128::from(growth.bytes_per_step))),
            Cell::Event(one.oldest_event),
            Cell::Event(one.newest_event),
        ];
        let category = category.map_or("mixed", |category| category.name()).into();
        Row { hidden: vec![("category", category)], ..Row::new(cells) }
            .with_share(one.bytes as f64 / most as f64)
            .with_group(context.selected_group, by, one.group)
    }));
    table
}

/// Returns single allocations as a table.
fn allocations_table(
    context: &Context<'_>,
    caption: &str,
    allocations: &[Allocation],
    by_site: &mut Grouping,
) -> Table {
    let mut table = Table::new(
        VIEW,
        caption,
        vec![
            Column::number("bytes", "size"),
            Column::number("allocated_at", "allocated at"),
            Column::text("site", "site"),
            Column::number("address", "address"),
        ],
    );
    table.rows.extend(allocations.iter().map(|one| {
        let group = by_site.group_of_allocation(one);
        Row::new(vec![
            Cell::Bytes(one.size),
            if one.start_observed { Cell::Event(one.first_moment) } else { "before the recording".into() },
            Cell::from(&*by_site.cached_name(context.definitions(), group)),
            Cell::Address(one.address),
        ])
        .with_command(format!("select-allocation {} {}", one.address, one.first_moment))
    }));
    table
}

/// Returns the blocks at the moment that are older than some steps.
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
