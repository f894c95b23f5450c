//! The view "Steps", as the page and scripts get it, and steps of a growing recording.

use vramscope_insight::history::History;
use vramscope_insight::incremental::{DeviceHistory, StepAnalysis};
use vramscope_insight::spans::Marks;
use vramscope_insight::steps::{find_steps, span_names};
use vramscope_trace::{AnnotationStage, Lifetimes, Recording};

use crate::testing::page::shown;
use crate::testing::program::{Program, training};
use crate::testing::rows::{number, rows, sum};
use crate::testing::{DEVICE, counters_at, open};

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
fn long_lists_of_steps_show_a_part() {
    let mut session = training(500, false);
    let text = shown(&mut session, "steps", &[]);
    assert!(text.contains("500 steps, recognized by the spans “step N”."), "{text}");
    assert!(text.lines().filter(|line| line.contains(" | ")).count() < 200);
    let text = shown(&mut session, "steps", &["scroll 0 300 20"]);
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
