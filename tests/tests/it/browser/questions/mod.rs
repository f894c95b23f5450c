//! Twelve questions about memory, each answered on the page in at most five actions.
//!
//! An action is one click, one key or one typed query. Each test walks as a user does, from a page
//! that has just opened the recording, and compares the text that is then visible with an answer
//! computed from the recording. `docs/tour.md` describes the walks. `VRAMSCOPE_TOUR=FOLDER` writes
//! a picture of each answer.

mod gallery;
mod walk;

use vramscope_insight::failures::Failures;
use vramscope_insight::placement::recorded_settings;
use vramscope_tests::fixtures::tour_recording;
use vramscope_tests::recorded::{Recorded, Sum, fragmentation, free_sizes, size};
use vramscope_trace::{Block, Count, DeviceId, DeviceState, EventKind, Extent, MempoolId, Percent};

use walk::Walk;

/// Reads a recording of the tour.
fn tour(name: &str) -> Recorded {
    Recorded::open(&tour_recording(name))
}

/// WebDriver's code of the Home key.
const HOME: char = '\u{e011}';

/// Returns a row of a table as the page shows it.
fn row<const N: usize>(cells: [&str; N]) -> String {
    cells.join("\t")
}

/// Returns the extents in a segment of the device's large default pool that a request of `bytes`
/// could be served from if the fewest live bytes there were freed.
fn least_in_the_way(state: &DeviceState, bytes: u64) -> Vec<Extent<'_>> {
    let live = |extents: &[Extent<'_>]| -> u64 {
        extents.iter().filter(|extent| extent.block.is_some()).map(|extent| extent.size).sum()
    };
    let mut least: Option<Vec<Extent<'_>>> = None;
    for segment in state.segments() {
        let extents: Vec<Extent<'_>> = state.extents(segment).collect();
        for first in 0..extents.len() {
            let mut sizes = extents[first..].iter().map(|extent| extent.size);
            let mut sum = 0;
            let Some(last) = sizes.position(|size| {
                sum += size;
                sum >= bytes
            }) else {
                continue;
            };
            let window = &extents[first..=first + last];
            if least.as_deref().is_none_or(|least| live(window) < live(least)) {
                least = Some(window.to_vec());
            }
        }
    }
    least.expect("a segment is as large as the request")
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn what_held_the_peak_of_gpt_varlen_by_line() {
    let recorded = tour("gpt_varlen");
    let peak = recorded.peak();
    // PyTorch's allocated_bytes.all.peak.
    assert_eq!(peak.bytes, 4_221_038_592);
    let lines = recorded.by_line(recorded.lifetimes().live_at(peak.event));
    let mut answer = vec![
        row(["peak", &format!("{} · {} B", size(peak.bytes), Count(peak.bytes))]),
        format!("event {} at", Count(peak.event)),
    ];
    answer.extend(lines.iter().take(4).map(|(name, sum)| {
        let (share, blocks) = (Percent::of(sum.bytes, peak.bytes).to_string(), Count(sum.blocks).to_string());
        row([name, &size(sum.bytes), &share, &blocks, &size(sum.largest_bytes)])
    }));
    Walk::start(&["gpt_varlen"]).press('p').expect("peak", &answer);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn why_oom_frag_failed_with_memory_free_and_what_blocked_it() {
    let recorded = tour("oom_frag");
    let event = recorded.first_moment(|state| state.ooms() > 0);
    let EventKind::OutOfMemory { requested, device_free, site, .. } = recorded.event(event).kind else {
        panic!("event {event} is no failure")
    };
    let state = recorded.state(event - 1);
    let free = free_sizes(&state);
    let (all_free, largest) = (free.iter().sum(), free.iter().max().copied().unwrap_or(0));
    assert!(largest < requested && requested < all_free, "enough is free, but not in one piece");
    let blocking: Vec<_> = least_in_the_way(&state, requested).into_iter().filter_map(|extent| extent.block).collect();
    let in_the_way = Sum::of(blocking.iter().map(|block| block.size));
    // The sentence names the cap that the failures show; the program had set it to 3 GiB.
    let mut failures = Failures::new(recorded_settings(recorded.recording.info()));
    failures.step(&recorded.recording, usize::MAX).expect("the recording is complete");
    let cap = failures.cap(&recorded.recording, DeviceId(0)).to_string();
    assert_eq!(cap, "a cap of at least 2.99 GiB and below 3.00 GiB");
    let mut answer = vec![
        format!(
            "{} failed by fragmentation: {} was free in its pool and stream, but the largest free block was {}. A new \
             segment would have exceeded {cap}",
            size(requested),
            size(all_free),
            size(largest)
        ),
        format!("although the device had {} free.", size(device_free)),
        row(["requested at", &recorded.site(site)]),
        format!(
            "In the way: it would have fit if {} of {} together had been freed",
            Count(in_the_way.blocks).of("block", "blocks"),
            size(in_the_way.bytes)
        ),
    ];
    answer.extend(blocking.iter().map(|block| format!("{} {}", size(block.size), recorded.site(block.site))));
    Walk::start(&["oom_frag"]).press('0').expect("out-of-memory", &answer);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn which_line_leaks_in_leak_outputs() {
    let recorded = tour("leak_outputs");
    let steps = recorded.steps();
    // The first step is a warm-up. What the function that is labelled as the leak allocates, grows.
    let held = |moment| {
        let state = recorded.state(moment);
        let leaking = state.blocks().filter(|block| recorded.is_called_by(block.site, "leak_outputs"));
        Sum::of(leaking.map(|block| block.size)).bytes
    };
    let (first, last) = (steps[1], steps[steps.len() - 1]);
    let growth = (held(last.to_event) - held(first.to_event)) / (last.number - first.number);
    let live = |moment| size(recorded.state(moment).counters().allocated);
    let answer = [
        format!("A leak: 2 sites grow by {} a step, all through labelled.py:14 leak_outputs.", size(growth)),
        format!(
            "Live at the end of step {}: {}; at the end of step {}: {}",
            first.number,
            live(first.to_event),
            last.number,
            live(last.to_event)
        ),
    ];
    Walk::start(&["leak_outputs"]).press('8').expect("leak", &answer);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn how_gpt_varlen_differs_from_gpt_varlen_expandable() {
    let (a, b) = (tour("gpt_varlen"), tour("gpt_varlen_expandable"));
    let (a_peak, b_peak) = (a.peak(), b.peak());
    let (a_state, b_state) = (a.state(a_peak.event), b.state(b_peak.event));
    let (a_reserved, b_reserved) = (a_state.counters().reserved, b_state.counters().reserved);
    let (a_most, b_most) = (a.peak_reserved().bytes, b.peak_reserved().bytes);
    // PyTorch's reserved_bytes.all.peak.
    assert_eq!((a_most, b_most), (8_428_453_888, 4_385_144_832));
    assert!(b_state.segments().all(|segment| segment.expandable));
    let fragmented = |state| Percent(fragmentation(state));
    let answer = [
        format!(
            "B holds {} less than A ({} instead of {})",
            size(a_peak.bytes - b_peak.bytes),
            size(b_peak.bytes),
            size(a_peak.bytes)
        ),
        format!(
            "B reserves {} less: {} in {} expandable segments, {} fragmented; A {} in {} segments, {} fragmented.",
            size(a_reserved - b_reserved),
            size(b_reserved),
            b_state.segments().len(),
            fragmented(&b_state),
            size(a_reserved),
            a_state.segments().len(),
            fragmented(&a_state)
        ),
        format!("B reserves at most {}, {} less than A ({}).", size(b_most), size(a_most - b_most), size(a_most)),
        "Allocator settings: A default; B expandable_segments:True.".to_owned(),
    ];
    Walk::start(&["gpt_varlen", "gpt_varlen_expandable"]).click("Compare two").expect("compare", &answer);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn what_a_step_of_resnet50_train_allocates_and_where() {
    let recorded = tour("resnet50_train");
    let steps = recorded.steps();
    // The step that contains the peak, at which the page opens.
    let step = steps.iter().find(|step| step.event_numbers().contains(&recorded.peak().event)).expect("a step");
    let made = || recorded.lifetimes().iter().filter(|one| step.event_numbers().contains(&one.first_moment));
    let sum = Sum::of(made().map(|one| one.size));
    let mut answer = vec![
        format!("What step {} allocates", step.number),
        format!("{}, {} in all; peak", Count(sum.blocks).of("allocation", "allocations"), size(sum.bytes)),
    ];
    let lines = recorded.by_line(made());
    answer.extend(lines.iter().map(|(name, sum)| row([name, &size(sum.bytes), &Count(sum.blocks).to_string()])));
    assert_eq!(lines.len(), 3);
    Walk::start(&["resnet50_train"]).press('7').expect("step", &answer);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn when_fragmentation_of_gpt_varlen_first_passed_80_percent_and_what_happened_then() {
    let recorded = tour("gpt_varlen");
    let moment = recorded.first_moment(|state| fragmentation(state) > 0.8);
    let EventKind::BlockAllocated { address, size: bytes, site, .. } = recorded.event(moment).kind else {
        panic!("event {moment} allocates no block")
    };
    let state = recorded.state(moment);
    let free = Sum::of(free_sizes(&state));
    let answer = [
        format!("Fragmentation first passed 80% at event {}", Count(moment)),
        format!("block allocated, {} at {address:#x}, by {}. It was", size(bytes), recorded.site(site)),
        format!(
            "It was {} then: {} free in {} blocks, the largest {}.",
            Percent(fragmentation(&state)),
            size(free.bytes),
            free.blocks,
            size(free.largest_bytes)
        ),
        format!("After event {} of", Count(moment)),
    ];
    let walk = Walk::start(&["gpt_varlen"]).press('5');
    walk.click(&format!("event {}", Count(moment))).expect("fragmentation", &answer);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn who_used_one_address() {
    // The block that raised fragmentation above 80%.
    const ADDRESS: u64 = 0x7f34_c0ec_0000;
    let recorded = tour("gpt_varlen");
    let moment = recorded.peak().event;
    let mut uses: Vec<_> = recorded.lifetimes().iter().collect();
    uses.retain(|one| (one.address..one.address + one.size).contains(&ADDRESS));
    uses.sort_by_key(|one| one.first_moment);
    let position = uses.iter().position(|one| one.is_allocated_at(moment)).expect("it is in use at the peak");
    let mut answer = vec![format!(
        "{} allocations used {ADDRESS:#x}; {} are allocated there now, by event {}",
        Count(uses.len() as u64),
        size(uses[position].size),
        Count(uses[position].first_moment)
    )];
    // Six uses around the moment, each with its line.
    answer.extend((position - 3..position + 3).map(|index| {
        let one = &uses[index];
        row([&Count(index as u64 + 1).to_string(), &size(one.size), &recorded.site_of(one)])
    }));
    Walk::start(&["gpt_varlen"]).press('h').press('/').type_query(&format!("{ADDRESS:#x}")).expect("address", &answer);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn which_blocks_are_older_than_ten_steps() {
    let recorded = tour("gpt_varlen");
    let (moment, steps) = (recorded.peak().event, recorded.steps());
    let age = |first_moment| {
        let begun = steps.iter().filter(|step| (first_moment + 1..=moment).contains(&step.from_event));
        begun.count()
    };
    let mut old: Vec<_> = recorded.lifetimes().live_at(moment).filter(|one| age(one.first_moment) > 10).collect();
    old.sort_by_key(|one| (std::cmp::Reverse(one.size), one.first_moment));
    let sum = Sum::of(old.iter().map(|one| one.size));
    let mut answer = vec![format!(
        "{} allocations live at this moment, {}: age more than 10 steps",
        Count(sum.blocks),
        size(sum.bytes)
    )];
    answer.extend(old.iter().take(8).map(|one| row([&size(one.size), &recorded.site_of(one)])));
    Walk::start(&["gpt_varlen"]).press('/').type_query("age>10steps").expect("old-blocks", &answer);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn what_private_pools_hold_in_graphs() {
    let recorded = tour("graphs");
    let state = recorded.state(recorded.peak().event);
    let mut owners: Vec<MempoolId> = state.segments().map(|segment| segment.pool.owner).collect();
    owners.sort_unstable();
    owners.dedup();
    owners.retain(|owner| *owner != MempoolId::default());
    assert_eq!(owners.len(), 2, "the third graph was destroyed before the peak");
    let mut answer = Vec::new();
    for owner in owners {
        let blocks = || state.blocks().filter(|block| block.pool.owner == owner);
        let held = Sum::of(blocks().map(|block| block.size));
        let segments = state.segments().filter(|segment| segment.pool.owner == owner);
        let free = segments.map(|segment| segment.size).sum::<u64>() - held.bytes;
        answer.push(format!("Private pool ({}, {})", owner.0, owner.1));
        answer.push(format!("{} live in {} blocks, {} free; held by", size(held.bytes), held.blocks, size(free)));
        let sites = recorded.by_site(blocks());
        answer.extend(sites.iter().map(|(name, sum)| format!("{} {name}", size(sum.bytes))));
    }
    Walk::start(&["graphs"]).press('v').expect("private-pools", &answer);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn which_gpu_of_two_gpus_could_release_more() {
    let recorded = tour("two_gpus");
    let moment = recorded.peak().event;
    // Whole segments without a block.
    let releasable = |device| {
        let state = recorded.state_of(device, moment);
        let is_free = |segment: &&_| state.extents(segment).all(|extent| extent.block.is_none());
        state.segments().filter(is_free).map(|segment| segment.size).sum::<u64>()
    };
    let (first, second) = (releasable(DeviceId(0)), releasable(DeviceId(1)));
    assert!(second > first);
    let answer = [
        "What each device could release".to_owned(),
        row(["device 1", &size(second)]),
        row(["device 0", &size(first)]),
    ];
    Walk::start(&["two_gpus"]).press('v').expect("two-gpus", &answer);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn what_the_optimizer_of_mlp_train_owns() {
    let recorded = tour("mlp_train");
    let moment = recorded.peak().event;
    let state = recorded.state(moment);
    // Adam allocates its state, two tensors for each parameter, in this function.
    let adam = state.blocks().filter(|block| recorded.is_called_by(block.site, "_init_group"));
    let owned = Sum::of(adam.map(|block| block.size));
    assert_eq!(owned.blocks, 8, "two linear layers have four parameters");
    let share = Percent::of(owned.bytes, state.counters().allocated).to_string();
    let answer = [row(["optimizer state (inferred)", &size(owned.bytes), &share, &owned.blocks.to_string()])];
    let walk = Walk::start(&["mlp_train"]).press('3').choose("by", "category");
    walk.click("optimizer state").expect("optimizer", &answer);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn what_ring_held_before_recording_began() {
    let recorded = tour("ring");
    let state = recorded.state(recorded.recording.first_event());
    let held = Sum::of(state.blocks().map(|block| block.size));
    // The snapshot has the call stacks of blocks that were still live at its end.
    let definitions = recorded.recording.definitions();
    let is_known = |block: &&Block| definitions.stack(definitions.site(block.site).stack).next().is_some();
    let known = Sum::of(state.blocks().filter(is_known).map(|block| block.size));
    let (bytes, blocks) = (held.bytes - known.bytes, held.blocks - known.blocks);
    let share = Percent::of(bytes, held.bytes).to_string();
    let answer = [
        format!("{} in {} blocks live at this moment", size(held.bytes), held.blocks),
        row(["allocated before recording began", &size(bytes), &share, &blocks.to_string()]),
        "Recording began after memory was in use; earlier history is missing".to_owned(),
    ];
    Walk::start(&["ring"]).press(HOME).press('3').expect("before-recording", &answer);
}
