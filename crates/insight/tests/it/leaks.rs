//! Leaks, old blocks and temporaries.

use std::collections::BTreeMap;

use vramscope_insight::group::{GroupBy, Grouping, MergedSites};
use vramscope_insight::leaks::{
    Leak, LeakSearch, UnfreedGroup, blocks_older_than, largest_unfreed, leaks, unfreed_by_group,
};
use vramscope_insight::steps::{GroupsByStep, Steps};
use vramscope_insight::temporaries::temporaries_by_group;
use vramscope_trace::{Category, EventKind, Recording, Replay, SiteId, site_name};

use crate::recordings::snapshot;
use crate::steps::{Analysed, DEVICE, Program, by_site, groups_by_step};

/// Returns what leaks in a recording, by site.
fn leaks_of(analysed: &Analysed, steps: &Steps) -> Vec<Leak> {
    let lifetimes = analysed.device(DEVICE);
    let warm_up = steps.default_warm_up();
    let growing = groups_by_step(lifetimes, steps, warm_up).growing(&MergedSites::default());
    let search = LeakSearch::new(analysed.recording.end_event()).after_warm_up(steps, warm_up);
    leaks(lifetimes, &search, &growing, by_site)
}

/// Returns the name, the growth a step, and the bytes and number of the unfreed blocks of each leak
/// in a recording, where sites that differ only in library frames count as one.
fn merged_leaks(analysed: &Analysed) -> Vec<(String, u64, u64, u64)> {
    let (lifetimes, recording) = (analysed.device(DEVICE), &analysed.recording);
    let steps = analysed.steps(None);
    let mut grouping = Grouping::of(GroupBy::Site, recording);
    let mut comparison = GroupsByStep::new(&steps, steps.default_warm_up());
    while !comparison.step(lifetimes, |one| grouping.group_of_allocation(one)) {}
    let growing = comparison.growing(&MergedSites::new(&grouping, recording.definitions()));
    let search = LeakSearch::new(recording.end_event()).after_warm_up(&steps, steps.default_warm_up());
    let found = leaks(lifetimes, &search, &growing, |one| grouping.group_of_allocation(one));
    let row = |Leak { growth, unfreed }: &Leak| {
        assert_eq!(growth.group, unfreed.group);
        let name = grouping.group_name(recording.definitions(), growth.group);
        (name, growth.bytes_per_step, unfreed.bytes, unfreed.blocks)
    };
    found.iter().map(row).collect()
}

/// Records 13 steps that each keep a block of 2 KiB at a line. In every third step the call stack
/// has one more frame, in `file`, and the block has the category `category`, otherwise activation.
/// Each step also runs `each_step`.
fn hooked_in_some_steps(file: &str, category: Category, mut each_step: impl FnMut(&mut Program, u64)) -> Analysed {
    let mut program = Program::new();
    for number in 0..13 {
        program.begin("step");
        let (main, layer) = (("train.py", "main"), ("train.py", "layer"));
        let site = match number % 3 {
            0 => program.site_of(category, &[main, (file, "inner"), layer]),
            _ => program.site_of(Category::Activation, &[main, layer]),
        };
        program.allocate_at(site, 2048);
        each_step(&mut program, number);
        program.end("step");
    }
    Analysed::new(program.finish())
}

const LIBRARY: &str = "/x/site-packages/torch/nn/modules/module.py";

#[test]
fn sites_that_differ_only_in_library_frames_leak_as_one() {
    let analysed = hooked_in_some_steps(LIBRARY, Category::Activation, |_, _| {});
    // Neither of the two sites grows in most of the steps.
    assert_eq!(leaks_of(&analysed, &analysed.steps(None)), []);
    // The site without the library's frame holds more.
    let name = "train.py:1 layer · activation".to_owned();
    assert_eq!(merged_leaks(&analysed), [(name, 2048, 12 * 2048, 12)], "the steps after the warm-up");
}

#[test]
fn sites_that_differ_in_category_or_own_frames_leak_separately() {
    for (file, category) in [(LIBRARY, Category::Gradient), ("net.py", Category::Activation)] {
        // In each step, both sites keep a block.
        let analysed = hooked_in_some_steps(file, category, |program, number| {
            let (main, layer) = (("train.py", "main"), ("train.py", "layer"));
            let site = match number % 3 {
                0 => program.site_of(Category::Activation, &[main, layer]),
                _ => program.site_of(category, &[main, (file, "inner"), layer]),
            };
            program.allocate_at(site, 4096);
        });
        let found = merged_leaks(&analysed);
        assert_eq!(found.iter().map(|one| one.3).collect::<Vec<_>>(), [12, 12], "{found:?}");
        assert_eq!(found.iter().map(|one| one.2).sum::<u64>(), 12 * (2048 + 4096), "{found:?}");
    }
}

#[test]
fn leak_beside_varying_memory_of_the_same_line_is_found() {
    let mut varying = None;
    let analysed = hooked_in_some_steps(LIBRARY, Category::Activation, |program, number| {
        let (main, layer) = (("train.py", "main"), ("train.py", "layer"));
        let leaking = program.site_of(Category::Activation, &[main, layer, (LIBRARY, "keep")]);
        program.allocate_at(leaking, 512);
        let site = program.site_of(Category::Activation, &[main, layer, (LIBRARY, "varies")]);
        let block = program.allocate_at(site, (1 << 20) * (1 + number % 2));
        varying.replace(block).into_iter().for_each(|before| program.free(before));
    });
    let name = "train.py:1 · keep · activation".to_owned();
    assert_eq!(merged_leaks(&analysed), [(name, 512, 12 * 512, 12)]);
}

/// Returns a training run of 12 steps. The first creates the optimizer's state; each step keeps the
/// result of the step before until its own is there. A leaking program also keeps a list of 2 KiB
/// a step.
fn training(is_leaking: bool) -> Recording {
    let mut program = Program::new();
    program.allocate("weights", 1 << 20);
    let mut result = None;
    for number in 0..12 {
        program.begin("step");
        let input = program.allocate("input", 4096);
        // Sizes vary from step to step.
        let activation = program.allocate("forward", 8192 + 512 * (number % 3));
        if number == 0 {
            program.allocate("optimizer", 2 << 20);
        }
        if is_leaking {
            program.allocate("keep_outputs", 2048);
        }
        let loss = program.allocate("loss", 512);
        if let Some(before) = result.replace(loss) {
            program.free(before);
        }
        program.free(activation);
        program.free(input);
        program.end("step");
    }
    program.finish()
}

#[test]
fn only_what_grows_from_step_to_step_leaks() {
    let healthy = Analysed::new(training(false));
    let steps = healthy.steps(None);
    assert_eq!(steps.len(), 12);
    assert_eq!(leaks_of(&healthy, &steps), []);
    // The last step's result is not freed, but it does not leak.
    let search = LeakSearch::new(healthy.recording.end_event());
    let unfreed = unfreed_by_group(healthy.device(DEVICE), &search.after_warm_up(&steps, 1), by_site);
    assert_eq!(unfreed.iter().map(|one| (one.bytes, one.blocks)).collect::<Vec<_>>(), [(512, 1)]);

    let leaking = Analysed::new(training(true));
    let steps = leaking.steps(None);
    let found = leaks_of(&leaking, &steps);
    let [Leak { growth, unfreed }] = found.as_slice() else { panic!("one leak: {found:?}") };
    assert_eq!(site_name(leaking.recording.definitions(), SiteId(growth.group)), "train.py:1 keep_outputs");
    assert_eq!((growth.bytes_per_step, growth.grown_steps, growth.compared_steps), (2048, 10, 10));
    assert_eq!((unfreed.bytes, unfreed.blocks), (11 * 2048, 11), "the steps after the warm-up");
    assert!(unfreed.oldest_event > steps.as_slice()[1].from_event);
}

#[test]
fn labelled_recordings_are_judged_correctly() {
    for (name, leaking_function) in
        [("healthy_train", None), ("oom_activations", None), ("leak_outputs", Some("leak_outputs"))]
    {
        let Some(analysed) = Analysed::shared(&format!("labelled/{name}.pickle.zst")) else { continue };
        let definitions = analysed.recording.definitions();
        for steps in [analysed.steps(None), analysed.inferred()] {
            let found = leaks_of(&analysed, &steps);
            println!("{name}: {} steps, {:?}", steps.len(), steps.source());
            for Leak { growth, unfreed } in &found {
                let site = site_name(definitions, SiteId(growth.group));
                println!(
                    "  {site}: {} B a step, {} B in {} blocks",
                    growth.bytes_per_step, unfreed.bytes, unfreed.blocks
                );
            }
            assert_eq!(found.is_empty(), leaking_function.is_none(), "{name}");
            for leak in &found {
                let stack = definitions.site(SiteId(leak.growth.group)).stack;
                let mut functions = definitions.stack(stack).map(|frame| definitions.string(frame.function));
                assert!(functions.any(|function| Some(function) == leaking_function), "{name}");
            }
        }
    }
}

#[test]
fn unfreed_allocations_equal_the_live_blocks() {
    for name in ["mlp_train.pickle.zst", "streams.pickle.gz", "ring.pickle.zst"] {
        let analysed = Analysed::new(snapshot(name));
        let lifetimes = analysed.device(DEVICE);
        let (first, end) = (analysed.recording.first_event(), analysed.recording.end_event());
        let mut replay = Replay::new();
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..30 {
            let at_event = random.u64(first..=end);
            let from_event = random.u64(first + 1..=end);
            let to_event = random.u64(from_event..=end);
            let search = LeakSearch { from_event, to_event, at_event };
            let state = replay.seek(&analysed.recording, at_event).expect("it can be read");
            let made_by = from_event - 1..to_event;
            let mut expected: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
            // A block from before the history has no event.
            let is_older =
                |address| lifetimes.live_at(at_event).any(|one| one.address == address && !one.start_observed);
            for block in state.device(DEVICE).into_iter().flat_map(|device| device.blocks()) {
                if made_by.contains(&block.since_event) && !block.pending_free && !is_older(block.address) {
                    let sums = expected.entry(block.site.0).or_default();
                    (sums.0, sums.1) = (sums.0 + block.size, sums.1 + 1);
                }
            }
            let groups = unfreed_by_group(lifetimes, &search, by_site);
            let sums = |one: &UnfreedGroup| (one.group, (one.bytes, one.blocks));
            assert_eq!(groups.iter().map(sums).collect::<BTreeMap<_, _>>(), expected, "{name}, {search:?}");
            let singly = largest_unfreed(lifetimes, &search, usize::MAX);
            let total: u64 = singly.iter().map(|one| one.size).sum();
            assert_eq!(total, expected.values().map(|sums| sums.0).sum::<u64>());
            assert!(singly.windows(2).all(|pair| pair[0].size >= pair[1].size));
            assert_eq!(largest_unfreed(lifetimes, &search, 3), singly[..singly.len().min(3)]);
        }
    }
}

#[test]
fn old_blocks_come_from_earlier_steps() {
    let analysed = Analysed::new(training(true));
    let (steps, lifetimes) = (analysed.steps(None), analysed.device(DEVICE));
    let end = analysed.recording.end_event();
    let older_than = |steps_ago| blocks_older_than(lifetimes, &steps, end, steps_ago, 2);
    // In the last of 12 steps, 10 steps ago was the second; before it, the weights, the
    // optimizer's state and what the first step leaked were allocated.
    let old = older_than(10).expect("there are 12 steps");
    assert_eq!((old.bytes, old.pending_bytes, old.blocks), ((3 << 20) + 2048, 0, 3));
    assert_eq!(old.largest.iter().map(|one| one.size).collect::<Vec<_>>(), [2 << 20, 1 << 20]);
    assert_eq!(older_than(11).map(|old| old.bytes), Some(1 << 20));
    assert_eq!(older_than(12), None);
    assert_eq!(blocks_older_than(lifetimes, &Steps::default(), end, 0, 2), None);
    assert_eq!(older_than(0).map(|old| old.bytes), Some((3 << 20) + 11 * 2048));
}

#[test]
fn temporaries_equal_a_count_of_the_events() {
    for name in ["mlp_train.pickle.zst", "streams.pickle.gz"] {
        let analysed = Analysed::new(snapshot(name));
        let recording = &analysed.recording;
        let end = recording.end_event();
        let mut events = Replay::new();
        // By address: the number, size and site of the allocating event.
        let mut open: BTreeMap<u64, (u64, u64, SiteId)> = BTreeMap::new();
        let mut lives = Vec::new();
        for number in 1..=end {
            let event = events.event(recording, number - 1).expect("it can be read").filter(|one| one.device == DEVICE);
            match event.map(|event| event.kind) {
                Some(EventKind::BlockAllocated { address, size, site, .. }) => {
                    open.insert(address, (number, size, site));
                }
                Some(EventKind::FreeRequested { address, .. }) => {
                    lives.extend(open.remove(&address).map(|made| (made, number)));
                }
                _ => {}
            }
        }
        for (from, to, within) in [(1, end, 1), (1, end, 20), (end / 3, end / 2, 100), (1, end, u64::MAX), (5, 4, 9)] {
            let mut expected: BTreeMap<u32, (u64, u64, u64, u64)> = BTreeMap::new();
            for &((made, size, site), freed) in &lives {
                if (from..=to).contains(&made) && freed - made <= within {
                    let sums = expected.entry(site.0).or_default();
                    *sums = (sums.0 + 1, sums.1 + size, sums.2.max(size), sums.3 + freed - made);
                }
            }
            let groups = temporaries_by_group(analysed.device(DEVICE), from..=to, within, by_site, |event| 10 * event);
            assert!(groups.windows(2).all(|pair| pair[0].churned_bytes >= pair[1].churned_bytes));
            assert!(groups.iter().all(|one| one.lifetime_ns == 10 * one.lifetime_events));
            let found = groups
                .iter()
                .map(|one| (one.group, (one.allocations, one.churned_bytes, one.largest_bytes, one.lifetime_events)));
            assert_eq!(found.collect::<BTreeMap<_, _>>(), expected, "{name}, {from}..={to} within {within}");
        }
    }
}
