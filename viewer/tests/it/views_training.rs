//! The views peak, steps, leaks and temporaries, as the page and scripts get them.

use std::path::PathBuf;

use crate::testing::{command, open, open_bytes};
use serde_json::{Value, json};
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::history::History;
use vramscope_insight::incremental::{DeviceHistory, StepAnalysis};
use vramscope_insight::spans::Marks;
use vramscope_insight::steps::{find_steps, span_names};
use vramscope_insight::tables::phase_table;
use vramscope_insight::temporaries::temporaries_by_group;
use vramscope_trace::{
    AnnotationStage, DeviceId, Encoder, Event, EventKind, Frame, Interner, Lifetimes, PoolKey, Recording,
    RecordingInfo, Replay, Sink, Site, SiteId, StackId, StreamId,
};
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::model::PeakKind;
use vramscope_viewer::protocol::FrameRequest;
use vramscope_viewer::ui::{Node, Tag};

const DEVICE: DeviceId = DeviceId(0);

/// Opens a file of the folder `shared` beside the checkout, or returns `None` if it is missing.
fn open_shared(name: &str) -> Option<Session> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared").join(name);
    let bytes = std::fs::read(path).ok();
    if bytes.is_none() {
        println!("SKIPPED: {name} is not in ../shared");
    }
    Some(open_bytes(name, &bytes?))
}

/// Writes a small recording, event by event, 10 ns apart.
pub(crate) struct Program {
    encoder: Encoder,
    interner: Interner,
    time_ns: u64,
    next_address: u64,
}

impl Program {
    /// Creates a program with one large segment.
    pub(crate) fn new() -> Self {
        let encoder = Encoder::new(&RecordingInfo::default());
        let mut program = Self { encoder, interner: Interner::default(), time_ns: 0, next_address: 0 };
        let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
        program.event(EventKind::SegmentAllocated { address: 0, size: 1 << 40, stream, pool, site });
        program
    }

    fn event(&mut self, kind: EventKind) {
        self.interner.take_new().iter().for_each(|definition| self.encoder.define(definition));
        self.time_ns += 10;
        self.encoder.event(&Event { device: DEVICE, time_ns: self.time_ns, kind });
    }

    /// Allocates a block at a line of the function `layer`, which `main` called, and returns its
    /// address.
    fn allocate(&mut self, line: u32, size: u64) -> u64 {
        self.allocate_in(&[("train.py", 3, "main"), ("train.py", line, "layer")], size)
    }

    /// Allocates a block with these frames, file, line and function, outermost first, and returns
    /// its address.
    pub(crate) fn allocate_in(&mut self, frames: &[(&str, u32, &str)], size: u64) -> u64 {
        let mut stack = StackId(0);
        for &(file, line, function) in frames {
            let (function, file) = (self.interner.string(function), self.interner.string(file));
            let frame = self.interner.frame(Frame { function, file, line });
            stack = self.interner.stack(frame, stack);
        }
        let site = self.interner.site(Site { stack, ..Site::default() });
        let address = self.next_address;
        self.next_address += size;
        let (stream, pool) = (StreamId(0), PoolKey::default());
        self.event(EventKind::BlockAllocated { address, size, requested: size - 100, stream, pool, site });
        address
    }

    fn free(&mut self, address: u64) {
        self.event(EventKind::FreeRequested { address, site: SiteId(0) });
        self.event(EventKind::FreeCompleted { address, site: SiteId(0) });
    }

    pub(crate) fn mark(&mut self, stage: AnnotationStage, name: &str) {
        let name = self.interner.string(name);
        self.event(EventKind::Mark { stage, name, address: 0, site: SiteId(0) });
    }

    /// Runs a step that allocates at three lines and frees all of it; with `leaks`, it keeps 1 KiB
    /// at each of the lines 20 and 21.
    fn step(&mut self, number: u64, leaks: bool) {
        self.mark(AnnotationStage::Begin, &format!("step {number}"));
        let blocks = [10, 11, 12].map(|line| self.allocate(line, 4096 * (1 + number % 3)));
        if leaks {
            self.allocate(20, 1024);
            self.allocate(21, 1024);
        }
        blocks.into_iter().for_each(|address| self.free(address));
        let temporary = self.allocate(30, 2048);
        self.free(temporary);
        self.mark(AnnotationStage::End, &format!("step {number}"));
    }

    pub(crate) fn finish(mut self) -> Session {
        self.encoder.flush();
        let bytes: Vec<u8> = self.encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
        open_bytes("program.vram", &bytes)
    }
}

/// Records steps of a training run, see [`Program::step`].
pub(crate) fn training(steps: u64, leaks: bool) -> Session {
    let mut program = Program::new();
    program.allocate(5, 1 << 20);
    (0..steps).for_each(|number| program.step(number, leaks));
    program.finish()
}

/// Returns the rows that a script gets.
pub(crate) fn rows(session: &mut Session, view: &str, options: &str) -> Vec<Value> {
    let rows = session.rows(view, options).expect("the view has rows");
    match serde_json::from_str(&rows).expect("rows are JSON") {
        Value::Array(rows) => rows,
        other => panic!("{other} is not a list"),
    }
}

/// Returns a number of a row.
pub(crate) fn number(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or_else(|| panic!("{name} of {row} is not a number"))
}

/// Returns the sum of a number over rows.
pub(crate) fn sum(rows: &[Value], name: &str) -> u64 {
    rows.iter().map(|row| number(row, name)).sum()
}

/// Returns the allocated, active and requested bytes and the number of live blocks at a moment.
fn counters_at(recording: &Recording, event: u64) -> (u64, u64, u64, u64) {
    let mut replay = Replay::new();
    let state = replay.seek(recording, event).expect("a readable recording");
    let device = state.device(DEVICE).expect("the device has events");
    let counters = device.counters();
    (counters.allocated, counters.active, counters.requested, device.blocks().len() as u64)
}

/// Runs commands, and returns the content of the pane that then shows `view`: its controls and its
/// texts, a line for each paragraph, heading and row.
pub(crate) fn shown(session: &mut Session, view: &str, commands: &[&str]) -> String {
    session.show(view).expect("the view exists");
    session.resend();
    let actions = commands.iter().map(command).collect();
    let mut request = FrameRequest { actions, ..FrameRequest::default() };
    let mut text = String::new();
    // The content is complete once a frame changes nothing more.
    for _ in 0..100 {
        let mut report = SessionReport::default();
        let frame = session.frame(&request, &PageFacts::default(), &mut report);
        assert_eq!(report, SessionReport::default());
        request = FrameRequest::default();
        for content in frame.panes.into_iter().flatten().filter(|content| content.view == view) {
            text.clear();
            content.controls.iter().for_each(|node| lines(node, &mut text));
            content.content.iter().for_each(|node| lines(node, &mut text));
        }
        session.work(0).expect("a readable recording");
        if !session.model.has_changed() {
            break;
        }
    }
    text.replace('\u{a0}', " ")
}

/// Appends the text of a node, a line for each paragraph, heading, field and row.
fn lines(node: &Node, text: &mut String) {
    match node {
        Node::Text(piece) => text.push_str(piece),
        Node::Element(element) => match element.tag {
            Tag::Select | Tag::Input => text.push('_'),
            Tag::P | Tag::H2 | Tag::Tr | Tag::Dt | Tag::Label => {
                if !text.ends_with('\n') && !text.is_empty() {
                    text.push('\n');
                }
                for child in &element.children {
                    lines(child, text);
                    if element.tag == Tag::Tr {
                        text.push_str(" | ");
                    }
                }
                text.push_str(if element.tag == Tag::Dt { ": " } else { "\n" });
            }
            _ => element.children.iter().for_each(|child| lines(child, text)),
        },
    }
}

#[test]
fn peak_rows_add_up_to_the_peak() {
    for name in ["mlp_train.pickle.zst", "streams.pickle.gz", "graphs.pickle.zst", "ring.pickle.zst"] {
        let mut session = open(name);
        let peak = session.model.recording().series(DEVICE).expect("it has events").peak_allocated();
        let (allocated, active, requested, blocks) = counters_at(session.model.recording(), peak.event);
        assert_eq!(allocated, peak.bytes);
        for by in GroupBy::ALL {
            let rows = rows(&mut session, "peak", &format!(r#"{{"by": "{}"}}"#, by.name()));
            assert_eq!(sum(&rows, "bytes"), allocated, "{name} by {}", by.name());
            assert_eq!(sum(&rows, "pending_bytes"), active - allocated, "{name} by {}", by.name());
            assert_eq!(sum(&rows, "requested_bytes"), requested, "{name} by {}", by.name());
            assert_eq!(sum(&rows, "blocks"), blocks, "{name} by {}", by.name());
            assert!(rows.windows(2).all(|pair| number(&pair[0], "bytes") >= number(&pair[1], "bytes")));
        }
    }
}

#[test]
fn peak_command_goes_there_and_explains_it() {
    let mut session = training(12, false);
    session.model.seek(1).expect("a readable recording");
    let text = shown(&mut session, "peak", &["peak"]);
    let peak = session.model.peak_event(PeakKind::Allocated);
    assert_eq!(session.model.state().event(), peak);
    // Every third step allocates three times 12 KiB.
    let bytes = (1 << 20) + 3 * 3 * 4096;
    let expected = [
        format!("peak: {}", vramscope_trace::ByteSize(bytes)),
        format!("moment: event {peak} at "),
        "step: number 2 (3 of 12)".to_owned(),
        "spans: step 2".to_owned(),
        "reached by: a request of 12 KiB: train.py:12 layer".to_owned(),
        "rounding: 400 B".to_owned(),
        "before steps: 1 MiB · 96.6%".to_owned(),
        "memory is as high again".to_owned(),
        "The same request comes within 1% of the peak 3 more times".to_owned(),
        "By category".to_owned(),
        format!("{} B in 4 blocks at the peak: the rows add up to it.", vramscope_trace::Count(bytes)),
        "train.py:5 | 1 MiB | 96.6% | 1 | 1 MiB | 1 MiB".to_owned(),
    ];
    for part in expected {
        assert!(text.contains(&part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn steps_equal_the_replay() {
    for mut session in [open("mlp_train.pickle.zst"), training(30, true)] {
        let steps = rows(&mut session, "steps", "{}");
        assert!(steps.len() >= 20);
        let recording = session.model.recording();
        let allocated: Vec<u64> =
            (0..=recording.end_event()).map(|event| counters_at(recording, event.max(1)).0).collect();
        let mut live_before = None;
        for step in &steps {
            let (first, last) = (number(step, "first_event"), number(step, "last_event"));
            let within = &allocated[first as usize..=last as usize];
            let highest = within.iter().max().copied().unwrap_or(0);
            assert_eq!(number(step, "peak_bytes"), highest);
            assert_eq!(allocated[number(step, "peak_event") as usize], highest);
            assert_eq!(number(step, "events"), last - first + 1);
            let live = counters_at(recording, last).1;
            assert_eq!(number(step, "live_bytes"), live);
            if let Some(before) = live_before.replace(live) {
                assert_eq!(step["growth_bytes"].as_i64(), Some(live as i64 - before as i64));
            }
        }
        let sorted = rows(&mut session, "steps", r#"{"sort": "peak_bytes", "limit": 3}"#);
        assert_eq!(sorted.len(), 3);
        assert_eq!(number(&sorted[0], "peak_bytes"), allocated.iter().max().copied().unwrap_or(0));
        // What one step allocates adds up to the step, and what it holds to what is live.
        for step in steps.iter().step_by(7) {
            let options = format!(r#"{{"mode": "groups", "by": "line", "event": {}}}"#, number(step, "last_event"));
            let groups = rows(&mut session, "steps", &options);
            assert_eq!(sum(&groups, "bytes"), number(step, "allocated_bytes"));
            assert_eq!(sum(&groups, "allocations"), number(step, "allocations"));
            assert_eq!(sum(&groups, "live_bytes"), number(step, "live_bytes"));
        }
    }
}

#[test]
fn phases_are_those_of_the_analysis() {
    // The second recording has spans; its requests have stacks without modules, so that their phase
    // is "other".
    for (mut session, expected_names) in [
        (open("mlp_train.pickle.zst"), ["forward", "backward", "optimizer", "other"].as_slice()),
        (training(6, false), ["other"].as_slice()),
    ] {
        let recording = session.model.recording();
        let lifetimes = Lifetimes::from_recording(recording).expect("a readable recording");
        let lifetimes = lifetimes.device(DEVICE).expect("the device has events");
        let mut grouping = Grouping::of(GroupBy::Phase, recording);
        let range = (recording.first_event(), recording.end_event());
        let expected = phase_table(recording.definitions(), &mut grouping, lifetimes, range);
        let expected: Vec<Value> = (expected.into_iter())
            .map(|row| {
                let kept = i64::try_from(row.kept_bytes()).expect("sizes are far from 2^63");
                json!({
                    "name": row.name,
                    "before_bytes": row.before_bytes,
                    "peak_bytes": row.peak_bytes,
                    "after_bytes": row.after_bytes,
                    "kept_bytes": kept,
                    "count": row.count,
                    "from_event": row.from_event,
                    "to_event": row.to_event,
                })
            })
            .collect();
        assert_eq!(expected.iter().map(|row| &row["name"]).collect::<Vec<_>>(), expected_names);
        assert_eq!(rows(&mut session, "table", r#"{"by": "phase", "mode": "phases"}"#), expected);
        // The phase is what the view groups by unless another key is chosen.
        assert_eq!(rows(&mut session, "table", r#"{"mode": "phases"}"#), expected);
        assert!(rows(&mut session, "table", r#"{"by": "line", "mode": "phases"}"#).is_empty());
        let text = shown(&mut session, "table", &[]);
        let (_, phases) = text.split_once("Each phase at its highest peak\n").expect("a table of phases");
        let (phases, spans) = phases.split_once("Each span at its highest peak\n").expect("a table of spans");
        assert!(phases.starts_with("phase | before | peak | after | kept | count | \n"), "{phases}");
        assert!(spans.starts_with("span | before | "), "{spans}");
        for name in expected_names {
            assert!(phases.contains(&format!("\n{name} | ")), "{phases}");
        }
    }
}

#[test]
fn long_lists_of_steps_show_a_part() {
    let mut session = training(500, false);
    let text = shown(&mut session, "steps", &[]);
    assert!(text.contains("500 steps, recognized by the spans “step N”."), "{text}");
    assert!(text.lines().filter(|line| line.contains(" | ")).count() < 200);
    let text = shown(&mut session, "steps", &["scroll 1 300 20"]);
    assert!(text.contains("\n292 | 13 | "), "{text}");
    let text = shown(&mut session, "steps", &["mode steps groups", "seek 40"]);
    assert!(text.contains("What step 2 allocates ← step 1 → step 3"), "{text}");
    assert_eq!(rows(&mut session, "steps", "{}").len(), 500);
}

#[test]
fn selected_steps_are_next_to_each_other() {
    let mut session = training(20, true);
    let end = session.model.recording().end_event();
    session.model.select_range(Some((0, end)));
    let text = shown(&mut session, "steps", &[]);
    let head = "line | step 0 | step 3 | step 7 | step 11 | step 15 | step 19 | ";
    assert!(text.contains(head), "{text}");
    assert!(text.contains("train.py:10 | 4 KiB | 4 KiB | 8 KiB | 12 KiB | 4 KiB | 8 KiB | "), "{text}");
    // The moment is the peak, which is in the last of the larger steps.
    assert!(text.contains("What step 17 allocates"), "{text}");
    assert!(text.contains("train.py:20 | 1 KiB | 1 | 18 KiB | 18 | +1 KiB | "), "{text}");
}

#[test]
fn another_span_can_be_chosen_as_step() {
    let mut program = Program::new();
    for number in 0..4 {
        program.mark(AnnotationStage::Begin, "step");
        for name in ["forward", "backward"] {
            program.mark(AnnotationStage::Begin, name);
            let address = program.allocate(number, 4096);
            program.free(address);
            program.mark(AnnotationStage::End, name);
        }
        program.mark(AnnotationStage::End, "step");
    }
    let mut session = program.finish();
    let names = span_names(session.model.recording(), session.model.marks(), DEVICE);
    let names: Vec<(&str, u64, usize)> = names.iter().map(|one| (one.name.as_str(), one.spans, one.depth)).collect();
    assert_eq!(names, [("step", 4, 0), ("forward", 4, 1), ("backward", 4, 1)]);
    assert!(shown(&mut session, "steps", &[]).contains("4 steps, recognized by the spans “step”."));
    let text = shown(&mut session, "steps", &["step-span backward"]);
    assert!(text.contains("4 steps, recognized by the spans “backward”."), "{text}");
    let text = shown(&mut session, "steps", &["step-span nothing"]);
    assert!(text.contains("No span is called “nothing”"), "{text}");
    assert!(shown(&mut session, "steps", &["step-span "]).contains("“step”"));
    assert_eq!(rows(&mut session, "steps", r#"{"span": "forward"}"#).len(), 4);
}

#[test]
fn temporaries_equal_those_of_the_analysis() {
    // The second recording has more events than are counted in one frame.
    for mut session in [open("mlp_train.pickle.zst"), training(8_000, true)] {
        let recording = session.model.recording();
        let lifetimes = Lifetimes::from_recording(recording).expect("a readable recording");
        let end = recording.end_event();
        let mut by_line = Grouping::of(GroupBy::Line, recording);
        for (from, to, within) in [(0, end, 2), (end / 3, end / 2, 1), (10, end - 5, 40)] {
            let lifetimes = lifetimes.device(DEVICE).expect("the device has events");
            let group_of = |one: &_| by_line.group_of_allocation(one);
            let expected = temporaries_by_group(lifetimes, from + 1..=to, within, group_of, |_| 0);
            let options = format!(r#"{{"from": {from}, "to": {to}, "number": {within}}}"#);
            let found = rows(&mut session, "temporaries", &options);
            let found: Vec<[u64; 3]> = (found.iter())
                .map(|row| ["bytes", "allocations", "largest_bytes"].map(|name| number(row, name)))
                .collect();
            let expected: Vec<[u64; 3]> =
                expected.iter().map(|one| [one.churned_bytes, one.allocations, one.largest_bytes]).collect();
            assert_eq!(found, expected, "{options}");
        }
    }
    let mut session = training(10, false);
    let text = shown(&mut session, "temporaries", &[]);
    let expected = "10 allocations, 20 KiB in all, were freed at most 2 events later: 24.4% of the allocations and \
                    1.6% of the bytes allocated in the recording.";
    assert!(text.contains(expected), "{text}");
    let text = shown(&mut session, "temporaries", &["number temporaries 1"]);
    assert!(text.contains("were freed by the next event"), "{text}");
}

#[test]
fn steps_view_uses_the_steps_of_the_analysis() {
    let mut session = open("mlp_train.pickle.zst");
    let recording = session.model.recording();
    let lifetimes = Lifetimes::from_recording(recording).expect("a readable recording");
    let mut marks = Marks::default();
    marks.update(recording);
    let lifetimes = lifetimes.device(DEVICE).expect("the device has events");
    let steps = find_steps(recording, &marks, DEVICE, lifetimes, None, |event| event);
    let expected: Vec<(u64, u64)> = steps.as_slice().iter().map(|step| (step.from_event + 1, step.to_event)).collect();
    let found = rows(&mut session, "steps", "{}");
    let found: Vec<(u64, u64)> =
        found.iter().map(|row| (number(row, "first_event"), number(row, "last_event"))).collect();
    assert_eq!(found, expected);
}

#[test]
fn shared_recordings_have_the_labelled_answers() {
    for (name, leaks) in [("leak_outputs", true), ("healthy_train", false), ("oom_activations", false)] {
        let Some(mut session) = open_shared(&format!("labelled/{name}.pickle.zst")) else { continue };
        let text = shown(&mut session, "leaks", &[]);
        let verdict = text.lines().find(|line| line.contains("leak") || line.contains("Growth")).unwrap_or_default();
        println!("{name}: {verdict}");
        assert_eq!(verdict.starts_with("A leak"), leaks, "{text}");
        assert_eq!(verdict.contains("labelled.py:14 leak_outputs"), leaks, "{text}");
    }
    for name in ["gpt_varlen", "resnet50_train"] {
        let Some(mut session) = open_shared(&format!("snapshots/{name}.pickle.zst")) else { continue };
        let peak = session.model.recording().series(DEVICE).expect("it has events").peak_allocated();
        assert_eq!(sum(&rows(&mut session, "peak", r#"{"by": "line"}"#), "bytes"), peak.bytes);
        assert!(shown(&mut session, "leaks", &[]).contains("No leak found"));
    }
}

#[test]
fn steps_follow_a_growing_recording() {
    let mut program = Program::new();
    let (mut recording, mut marks, mut history) = (Recording::new(), Marks::default(), History::new());
    let mut analysis = StepAnalysis::default();
    for number in 0..60usize {
        program.step(number as u64, false);
        program.encoder.flush();
        for chunk in program.encoder.take_output() {
            recording.push(&chunk.bytes).expect("the encoder writes valid chunks");
        }
        marks.update(&recording);
        history.extend(&recording, u64::MAX).expect("a readable recording");
        let source = DeviceHistory {
            recording: &recording,
            marks: &marks,
            history: &history,
            is_complete: true,
            device: DEVICE,
            lifetimes: history.lifetimes(DEVICE).expect("the device has events"),
            step_span: None,
        };
        let is_outdated = analysis.update(&source);
        // Not every step causes a new search while the recording grows.
        assert_eq!(analysis.steps().len() < number + 1, is_outdated, "step {number}");
        assert!(analysis.steps().len() + number / 16 > number, "step {number}");
        if number % 10 == 9 {
            // In the next frame nothing has changed, so that all steps are found.
            assert!(!analysis.update(&source));
            assert_eq!(analysis.steps().len(), number + 1);
        }
    }
}
