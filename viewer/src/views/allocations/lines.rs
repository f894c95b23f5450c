//! The text under the pointer on the picture of all allocations.

use vramscope_insight::address_map::AddressHit;
use vramscope_insight::group::Groupings;
use vramscope_insight::incremental::AllocationIndexes;
use vramscope_trace::{Allocation, ByteSize, Count, DurationNs};

use super::layers::{Layout, grouping_of, layer_name, layers, site_name};
use super::scene::{AllocationsLayout, AllocationsScene, Target};
use crate::timeline::moment_text;
use crate::units;
use crate::view::{Context, Options, SharedCaches};

/// Formats an event number with its time: `event 1,234 (1.23 ms)`.
fn at(context: &Context<'_>, event: u64) -> String {
    let time = moment_text(context.recording, context.history.time_ns(event));
    if time.is_empty() { format!("event {}", Count(event)) } else { format!("event {} ({time})", Count(event)) }
}

/// Returns the lines of text about a pixel of the picture of all allocations; empty where nothing
/// is drawn.
pub(super) fn lines(
    context: &Context<'_>,
    options: &Options<Layout>,
    (caches, indexes): (&mut SharedCaches, &AllocationIndexes),
    scene: &AllocationsScene,
    point: (i32, i32),
) -> Vec<String> {
    let Some((target, moment)) = scene.hit(point).zip(scene.moment(point.0)) else { return Vec::new() };
    match target {
        Target::Allocation { row } => {
            let allocation = context.lifetimes().and_then(|lifetimes| lifetimes.row(row));
            allocation.map(|one| allocation_lines(context, &mut caches.groupings, &one, moment)).unwrap_or_default()
        }
        Target::Small { layer, bytes } => {
            let layers = layers(context, grouping_of(options), caches);
            let least = match scene.layout() {
                AllocationsLayout::Stacked(layout) => layout.min_size(),
                AllocationsLayout::ByAddress(_) => 0,
            };
            vec![
                format!("{} · {}", ByteSize(bytes), layer_name(&layers, layer)),
                format!("in allocations smaller than {}, too thin to tell apart", ByteSize(least)),
                at(context, moment),
            ]
        }
        Target::Free | Target::NotReserved => free_lines(context, options, (caches, indexes), scene, point),
    }
}

/// Returns the lines of text about an allocation and its age at a moment.
fn allocation_lines(context: &Context<'_>, groupings: &mut Groupings, one: &Allocation, moment: u64) -> Vec<String> {
    let time_ns = |event| context.history.time_ns(event);
    let has_times = !context.recording.info().lacks_times;
    // An age in events, where the recording has no times.
    let span = |to: u64| match has_times {
        true => DurationNs(time_ns(to).saturating_sub(time_ns(one.first_moment))).to_string(),
        false => Count(to.saturating_sub(one.first_moment)).of("event", "events"),
    };
    let age = span(moment);
    let mut lines = vec![format!("{} · {}", ByteSize(one.size), site_name(context, groupings, one))];
    let (size, requested) = (ByteSize(one.size).to_string(), ByteSize(one.requested).to_string());
    if requested != size {
        lines.push(format!("{requested} requested"));
    }
    lines.push(match one.start_observed {
        true => format!("allocated at {}, {age} before", at(context, one.first_moment)),
        false => "allocated before the recording began".to_owned(),
    });
    lines.push(match one.allocated_until {
        Some(until) => {
            let lifetime = span(until);
            match one.start_observed {
                true => format!("freed at {}, after {lifetime}", at(context, until)),
                false => format!("freed at {}", at(context, until)),
            }
        }
        None if context.is_history_complete => "not freed by the end of the recording".to_owned(),
        None => "not freed so far".to_owned(),
    });
    lines.extend(
        one.active_until
            .filter(|_| one.active_until != one.allocated_until)
            .map(|until| format!("memory free again at {}", at(context, until))),
    );
    lines.push(format!("address {}, stream {}", units::address(one.address), one.stream.0));
    lines
}

/// Returns the lines of text about free or unreserved memory at a pixel of the picture by address.
fn free_lines(
    context: &Context<'_>,
    options: &Options<Layout>,
    (caches, indexes): (&mut SharedCaches, &AllocationIndexes),
    scene: &AllocationsScene,
    point: (i32, i32),
) -> Vec<String> {
    let composition = caches.compositions.get(context.device, grouping_of(options));
    let source = composition.and_then(|one| one.source(context.history, context.device));
    let (AllocationsLayout::ByAddress(map), Some((column, row)), Some((_, rows))) =
        (scene.layout(), scene.position(point), source)
    else {
        return Vec::new();
    };
    let segments = indexes.segments.device(context.device);
    let (text, address, moment) = match map.hit((&indexes.index, &rows), segments, (column, row as usize)) {
        Some(AddressHit::Free { address, size, moment }) => (format!("{} free", ByteSize(size)), address, moment),
        Some(AddressHit::NotReserved { address, moment }) => ("not reserved".to_owned(), address, moment),
        Some(AddressHit::Allocation { .. }) | None => return Vec::new(),
    };
    vec![text, format!("address {}", units::address(address)), at(context, moment)]
}
