//! The gallery of the page: its files, and the figures in its answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use vramscope_tests::fixtures::workspace_root;
use vramscope_tests::gallery::{Entry, entries};
use vramscope_tests::recorded::{Recorded, Sum, free_sizes, size};
use vramscope_trace::{Category, Count, EventKind};
use vramscope_viewer::link::Link;
use vramscope_viewer::views::ViewId;

/// Most bytes of a recording in the gallery.
const MAX_BYTES: u64 = 100_000;

/// Returns the figures in the answer of an entry, in order, computed from its recordings.
fn figures(entry: &Entry) -> Vec<String> {
    let recordings: Vec<Recorded> = entry.paths().iter().map(|path| Recorded::open(path)).collect();
    let first = &recordings[0];
    let peak = |of: &Recorded| of.peak().bytes;
    let end = |of: &Recorded| of.recording.end_event();
    let end_state = |of: &Recorded| of.state(end(of)).counters();
    let at_peak = |of: &Recorded, category| of.category(category, of.peak().event).bytes;
    let second = || &recordings[1];
    match entry.name.as_str() {
        "kept-outputs" => {
            let steps = first.steps();
            let live = |moment| first.state(moment).counters().allocated;
            // The first step is a warm-up.
            let (begin, last) = (steps[1].to_event, steps[steps.len() - 1].to_event);
            let state = first.state(last);
            let mut lines: BTreeMap<u32, u64> = BTreeMap::new();
            for one in first.lifetimes().live_at(last).filter(|one| one.first_moment > begin) {
                let line = first.line_in(one.site, "keep_outputs.py").expect("the script's line is in the stack");
                *lines.entry(line).or_default() += one.size;
            }
            let (line, _) = lines.into_iter().max_by_key(|(_, bytes)| *bytes).expect("blocks that stay");
            let line = format!("keep_outputs.py:{line}");
            let outputs = first.by_line(first.lifetimes().live_at(last));
            let (_, output) = outputs.into_iter().find(|(name, _)| *name == line).expect("the outputs");
            let growth = (live(last) - live(begin)) / (steps.len() as u64 - 2);
            vec![line, size(growth), size(state.counters().allocated), size(output.bytes / output.blocks)]
        }
        "kept-gradients" => {
            let held = |of: &Recorded| of.category(Category::Gradient, end(of)).bytes;
            assert_eq!(held(first), 0, "A has freed its gradients");
            vec![size(held(second())), size(peak(second())), size(peak(first))]
        }
        "inference-graph" => {
            let activations = |of: &Recorded| at_peak(of, Category::Activation);
            vec![size(activations(second())), size(activations(first)), size(peak(second())), size(peak(first))]
        }
        "fragmentation" => {
            let event = first.first_moment(|state| state.ooms() > 0);
            let EventKind::OutOfMemory { requested, .. } = first.event(event).kind else { panic!("no failure") };
            let free = Sum::of(free_sizes(&first.state(event - 1)));
            assert!(free.largest_bytes < requested && requested < free.bytes);
            vec![size(requested), size(free.bytes), size(free.largest_bytes)]
        }
        "batch-search" => {
            let ooms: Vec<u64> = (1..=end(first))
                .filter_map(|number| match first.event(number).kind {
                    EventKind::OutOfMemory { requested, .. } => Some(requested),
                    _ => None,
                })
                .collect();
            let [large, small] = ooms[..] else { panic!("{} failures", ooms.len()) };
            vec![ooms.len().to_string(), size(large), size(small), size(end_state(first).allocated)]
        }
        "training-step" => {
            let steps = first.steps();
            let step = steps.iter().find(|step| step.event_numbers().contains(&first.peak().event)).expect("a step");
            let made = || first.lifetimes().iter().filter(|one| step.event_numbers().contains(&one.first_moment));
            let sum = Sum::of(made().map(|one| one.size));
            let lines = first.by_line(made());
            let [(backward, backward_sum), (line, line_sum), ..] = &lines[..] else { panic!("{lines:?}") };
            assert!(backward.contains("backward pass"), "{backward}");
            vec![
                format!("Step {}", step.number),
                Count(sum.blocks).to_string(),
                size(sum.bytes),
                size(backward_sum.bytes),
                size(line_sum.bytes),
                line.clone(),
            ]
        }
        "checkpointing" => {
            let percent = 100 - (100 * peak(second()) + peak(first) / 2) / peak(first);
            vec![size(peak(second())), size(peak(first)), format!("{percent}%")]
        }
        "mixed-precision" => {
            let activations = |of: &Recorded| size(at_peak(of, Category::Activation));
            let parameters = at_peak(first, Category::Parameter);
            assert_eq!(parameters, at_peak(second(), Category::Parameter));
            vec![activations(second()), activations(first), size(parameters)]
        }
        "adam-8bit" => {
            let state = |of: &Recorded| size(at_peak(of, Category::OptimizerState));
            vec![state(second()), state(first), size(peak(second())), size(peak(first))]
        }
        "expandable-segments" => {
            let reserved = |of: &Recorded| size(of.peak_reserved().bytes);
            assert_eq!(peak(first), peak(second()));
            vec![reserved(first), size(peak(first)), reserved(second())]
        }
        "empty-cache" => {
            let requests =
                |of: &Recorded| of.count_events(|kind| matches!(kind, EventKind::SegmentAllocated { .. })).to_string();
            let reserved = |of: &Recorded| size(end_state(of).reserved);
            vec![reserved(second()), reserved(first), requests(second()), requests(first)]
        }
        "graph-pools" => {
            let reserved = |of: &Recorded| size(end_state(of).reserved);
            assert_eq!(end_state(first).allocated, end_state(second()).allocated);
            vec![size(end_state(first).allocated), reserved(first), reserved(second())]
        }
        name => panic!("no figures are computed for {name}"),
    }
}

#[test]
fn answers_have_the_figures_of_the_recordings() {
    let mut wrong = Vec::new();
    for entry in entries() {
        let figures = figures(&entry);
        // In order, and no figure beside them.
        let mut rest = entry.answer.as_str();
        let mut others = String::new();
        for figure in &figures {
            let Some((before, after)) = rest.split_once(figure.as_str()) else { break };
            others.push_str(before);
            rest = after;
        }
        others.push_str(rest);
        // Names of types and settings are no figures.
        let others = others.replace("bfloat16", "").replace("float32", "").replace("8 bits", "");
        if others.contains(|letter: char| letter.is_ascii_digit()) || entry.answer.len() == others.len() {
            wrong.push(format!("{}: {figures:?} are computed, the answer is {:?}", entry.name, entry.answer));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn entries_are_complete_and_have_a_small_recording_each() {
    let entries = entries();
    assert_eq!(entries.len(), 12);
    let mut names = BTreeSet::new();
    // The page recognizes an entry by its first recording.
    let mut first_files = BTreeSet::new();
    for entry in &entries {
        let Entry { name, group, title, summary, question, look, fragment, answer, files } = entry;
        assert!(name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-'));
        assert!(names.insert(name) && first_files.insert(&files[0]), "{name}");
        assert!(matches!(files.len(), 1 | 2) && !group.is_empty() && !title.is_empty(), "{name}");
        assert!(summary.ends_with('.') && question.ends_with('?') && look.ends_with('.'), "{name}");
        assert!(answer.ends_with('.') && answer.matches(". ").count() <= 1, "{name}: two sentences at most");
        let link = Link::parse(fragment);
        assert!(link.panes.len() == 2, "{name}: {fragment}");
        assert_eq!(Link::parse(&link.fragment()), link, "{name}: {fragment}");
        assert!(link.panes.iter().all(|pane| ViewId::named(&pane.view).is_ok()), "{name}: {fragment}");
        assert_eq!(files.len() == 2, link.panes.iter().any(|pane| pane.view == "compare"), "{name}");
        for path in entry.paths() {
            let bytes = fs::metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).len();
            assert!(bytes <= MAX_BYTES, "{}: {bytes} bytes", path.display());
        }
    }
    // Entries of a group are together.
    let mut groups: Vec<&String> = entries.iter().map(|entry| &entry.group).collect();
    groups.dedup();
    assert_eq!(groups.len(), groups.iter().collect::<BTreeSet<_>>().len());
}

#[test]
fn leak_through_one_line_is_found_with_all_of_its_growth() {
    for name in ["keep_outputs", "keep_loss"] {
        let file = workspace_root().join(format!("examples/pytorch/recordings/{name}-with.vram"));
        let recorded = Recorded::open(&file);
        let growth = recorded.growth_through(&format!("{name}.py"));
        let steps = recorded.compared_steps();
        let live = |step: usize| recorded.state(steps[step].to_event).counters().active;
        let grown = live(steps.len() - 1) - live(0);
        let most = growth.values().max().copied().unwrap_or(0);
        // Hundreds of bytes that another line keeps are no part of the leak.
        assert!(most >= grown - grown / 100, "{name}: {growth:?} of {grown} B");
    }
}
