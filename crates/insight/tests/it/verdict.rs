//! Verdicts: the first answer, and what it must not claim without evidence.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use vramscope_insight::diagnosis::{Diagnosed, Problem, Rule, Severity};
use vramscope_insight::evidence::Evidence;
use vramscope_insight::verdict::{Cause, Confidence, DiagnosisReport, Status, Verdict};
use vramscope_insight::what_if::{DeviceWorkload, first_histories};
use vramscope_trace::{
    Annotation, ByteSize, Definition, Event, EventKind, IndexedEncoder, RangeCopy, Recording, RecordingInfo, Relabel,
    Sink, SiteId,
};

use crate::autopsy::{LABELLED, Label, history};
use crate::diagnosis;
use crate::recordings::{imported, recorded_in, recordings_in, snapshots};

/// Recordings whose first answer was once wrong.
const FIRST_ANSWERS: &str = "../../tests/labelled/first_answers";

/// Programs that have one of four problems, and programs that nearly have it.
const VERDICTS: &str = "../../tests/labelled/verdicts";
/// Programs that have one of further kinds of problems, and programs that nearly have it.
const KINDS: &str = "../../tests/labelled/kinds";
const PINNED: &str = "../../tests/labelled/pinned";
/// Healthy programs that use well-known libraries.
const LIBRARIES: &str = "../../tests/labelled/libraries";

/// Diagnoses a recording and checks the remedies.
fn diagnosed(recording: &Recording) -> Diagnosed {
    let (settings, history) = (diagnosis::settings(recording, None), history(recording));
    let mut found = diagnosis::diagnosed(recording, &history, &settings, u64::MAX);
    let devices = found.devices_to_check();
    for first in first_histories(recording).expect("the recording is readable") {
        if !devices.contains(&first.history.device()) {
            continue;
        }
        let device = DeviceWorkload::new(recording, first, &settings, None).expect("the state is possible");
        let DeviceWorkload { workload, capacity_bytes, .. } = &device;
        for search in found.remedy_searches(recording, &history, workload, *capacity_bytes) {
            let (one, mut search) = search.expect("the recording is readable");
            while let Some(run) = search.next_run() {
                let result = run.simulate(search.program(workload));
                search.finish(&run, &result);
            }
            one.set_remedies(&search.into_remedies());
        }
        for one in found.findings_to_check(workload, &settings, *capacity_bytes) {
            one.check(workload, *capacity_bytes);
        }
    }
    found.adopt_proven();
    found
}

/// Diagnoses a recording, and checks and returns its verdict.
fn verdict(name: &str, recording: &Recording) -> Verdict {
    verdict_of(name, recording, &diagnosed(recording))
}

/// Checks what holds for every verdict, and returns that of a diagnosis.
fn verdict_of(name: &str, recording: &Recording, diagnosed: &Diagnosed) -> Verdict {
    let verdict = Verdict::new(recording, diagnosed);
    assert!(verdict.summary.ends_with('.') && !verdict.summary.contains('\n'), "{name}: {}", verdict.summary);
    assert_eq!(verdict.status == Status::Found, !diagnosed.findings.is_empty(), "{name}");
    assert_eq!(contradictions(diagnosed, &verdict), Vec::<String>::new(), "{name}");
    if verdict.status == Status::CannotTell {
        assert!(!verdict.unanswered.is_empty(), "{name}: it says what is missing");
        let remedy = verdict.remedy.as_ref().expect("how to record it");
        assert!(remedy.text.contains('`') && !remedy.lines.is_empty(), "{name}: {remedy:?}");
    }
    for unanswered in &verdict.unanswered {
        let found = diagnosed.findings.iter().find(|one| Rule::of(one.problem) == unanswered.rule);
        assert!(found.is_none(), "{name}: {found:?} without {:?}", unanswered.missing);
    }
    let report = serde_json::to_value(DiagnosisReport::new(recording, diagnosed)).expect("it serializes");
    assert_eq!(report["verdict"]["cause"], verdict.cause.id(), "{name}");
    verdict
}

/// Compares the typed causes behind all texts about the same events: the verdict, the explanation
/// of a failure and its finding. Returns each contradiction.
fn contradictions(diagnosed: &Diagnosed, verdict: &Verdict) -> Vec<String> {
    let mut found = Vec::new();
    for oom in diagnosed.autopsy.ooms() {
        let finding = diagnosed.findings.iter().find(|one| {
            one.device == oom.failure.device
                && (one.events.0..=one.events.1).contains(&oom.failure.event)
                && matches!(one.problem, Problem::OutOfMemory(_))
                && one.site == oom.site
        });
        if let Some(finding) = finding
            && finding.problem != Problem::OutOfMemory(oom.cause)
        {
            found.push(format!("event {}: {} and {}", oom.failure.event, finding.problem.id(), oom.cause.id()));
        }
        let is_about_it = verdict.event == Some(oom.failure.event) && verdict.device == Some(oom.failure.device);
        if is_about_it && verdict.cause.oom_cause() != Some(oom.cause) {
            found.push(format!("event {}: {} and {}", oom.failure.event, verdict.cause.id(), oom.cause.id()));
        }
    }
    found
}

#[test]
fn first_answer_of_each_recording_is_true() {
    let expected = std::fs::read_to_string(format!("{}/{FIRST_ANSWERS}/expected.json", env!("CARGO_MANIFEST_DIR")));
    let expected: BTreeMap<String, Value> =
        serde_json::from_str(&expected.expect("the file exists")).expect("it is JSON");
    let mut checked = 0;
    for (name, recording) in recorded_in(FIRST_ANSWERS) {
        let expected = &expected[name.trim_end_matches(".pickle.zst")];
        let text = |key: &str| expected[key].as_str().expect("text");
        let verdict = verdict(&name, &recording);
        assert_eq!(verdict.cause.id(), text("cause"), "{name}: {}", verdict.summary);
        assert!(verdict.summary.contains(text("says")), "{name}: {}", verdict.summary);
        assert!(verdict.site.clone().unwrap_or_default().contains(text("site")), "{name}: {:?}", verdict.site);
        checked += 1;
    }
    assert_eq!(checked, expected.len());
}

#[test]
fn causes_of_all_texts_agree() {
    let all = snapshots()
        .chain(recorded_in(LABELLED))
        .chain(recorded_in("../../tests/labelled/heldout"))
        .chain(recorded_in(VERDICTS))
        .chain(recorded_in(LIBRARIES))
        .chain(recordings_in("../../tests/labelled/host"))
        .chain(recordings_in("../../examples/pytorch/recordings"))
        .chain(recorded_in("../../../shared/snapshots"));
    for (name, recording) in all {
        verdict(&name, &recording);
    }
}

/// Returns true if the verdict has the labelled problem and names a labelled function, or if a
/// healthy program has no finding but advice.
fn is_right(label: &Label, diagnosed: &Diagnosed, verdict: &Verdict) -> bool {
    let names = |site: &String| verdict.site.as_ref().is_some_and(|named| named.contains(site.as_str()));
    match label.finding.as_str() {
        "none" => diagnosed.findings.iter().all(|one| one.severity == Severity::Low),
        finding => verdict.cause.id() == finding && label.sites.iter().any(names),
    }
}

#[test]
fn programs_with_a_problem_are_told_from_those_that_nearly_have_it() {
    let (mut all, mut wrong) = (0, Vec::new());
    for (name, recording) in recorded_in(VERDICTS) {
        let label = Label::read_in(VERDICTS, &name);
        let diagnosed = diagnosed(&recording);
        let verdict = Verdict::new(&recording, &diagnosed);
        all += 1;
        if !is_right(&label, &diagnosed, &verdict) {
            wrong.push(format!("{name}: {}, not {}", verdict.summary, label.finding));
        }
    }
    println!("{} of {all} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    // Whether a step uses a copy of the weights that the program keeps does not show.
    assert!(all == 32 && wrong.len() <= 1, "{} of {all} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Returns the label beside a recording in a folder.
fn label_of(folder: &str, name: &str) -> Value {
    let stem = name.split('.').next().unwrap_or_default();
    let path = format!("{}/{folder}/{stem}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).expect("a label")).expect("it is JSON")
}

/// Returns the bytes of the reserved peak that the remedy saved on the GPU; `None` if it was not
/// run.
fn measured_saving(folder: &str, name: &str) -> Option<u64> {
    let label = label_of(folder, name);
    let peak = label["stats"]["reserved_bytes.all.peak"].as_u64()?;
    Some(peak.saturating_sub(label["with_remedy"]["peak_reserved"].as_u64()?))
}

#[test]
fn further_kinds_of_problems_have_the_right_cause_line_and_saving() {
    let (mut all, mut wrong) = (0, Vec::new());
    for (name, recording) in recorded_in(KINDS).chain(recordings_in(KINDS)) {
        let label = Label::read_in(KINDS, &name);
        let diagnosed = diagnosed(&recording);
        let verdict = verdict_of(&name, &recording, &diagnosed);
        all += 1;
        if !is_right(&label, &diagnosed, &verdict) {
            wrong.push(format!("{name}: {}, not {}", verdict.summary, label.finding));
        }
        let claimed = verdict.remedy.and_then(|remedy| remedy.saves_bytes);
        if let (Some(claimed), Some(measured)) = (claimed, measured_saving(KINDS, &name)) {
            println!("{name}: saves {}, measured {}", ByteSize(claimed), ByteSize(measured));
            if claimed.abs_diff(measured) * 10 > measured {
                wrong.push(format!("{name}: saves {}, measured {}", ByteSize(claimed), ByteSize(measured)));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {all} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(all >= 32, "only {all} recordings");
}

/// Returns the bytes that a remedy says it saves as an estimate, in `saves 704 MiB of host memory`.
fn estimated_saving(remedy: &str) -> Option<f64> {
    let (_, text) = remedy.split_once("saves ")?;
    let (number, rest) = text.split_once(' ')?;
    let unit = match rest.split(' ').next()? {
        "GiB" => 1u64 << 30,
        "MiB" => 1 << 20,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * unit as f64)
}

#[test]
fn pinned_memory_of_programs_has_the_right_cause_line_and_saving() {
    let (mut all, mut wrong) = (0, Vec::new());
    for (name, recording) in recorded_in(PINNED) {
        let label = Label::read_in(PINNED, &name);
        let diagnosed = diagnosed(&recording);
        let verdict = verdict_of(&name, &recording, &diagnosed);
        all += 1;
        if !is_right(&label, &diagnosed, &verdict) {
            wrong.push(format!("{name}: {}, not {}", verdict.summary, label.finding));
        }
        let facts = label_of(PINNED, &name);
        let bytes = |key: &str| facts[key].as_u64();
        let Some(with_remedy) = bytes("remedy_pinned_bytes") else { continue };
        let measured = bytes("pinned_bytes").expect("the bytes without the remedy") - with_remedy;
        let claimed = verdict.remedy.and_then(|remedy| estimated_saving(&remedy.text)).unwrap_or_default();
        println!("{name}: saves {}, measured {}", ByteSize(claimed as u64), ByteSize(measured));
        if (claimed / measured as f64 - 1.0).abs() > 0.1 {
            wrong.push(format!("{name}: saves {}, measured {}", ByteSize(claimed as u64), ByteSize(measured)));
        }
    }
    assert!(all == 8 && wrong.is_empty(), "{} of {all} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn healthy_programs_of_libraries_have_advice_at_most() {
    let mut all = 0;
    for (name, recording) in recorded_in(LIBRARIES) {
        let findings = diagnosed(&recording).findings;
        let serious: Vec<_> = findings.iter().filter(|one| one.severity > Severity::Low).collect();
        assert!(serious.is_empty(), "{name}: {:?}", serious.iter().map(|one| one.problem).collect::<Vec<_>>());
        all += 1;
    }
    assert!(all >= 25, "only {all} programs");
}

#[test]
fn planted_contradiction_is_noticed() {
    let (_, recording) =
        recorded_in(LABELLED).find(|(name, _)| name.starts_with("oom_leak_1")).expect("the recording exists");
    let mut found = diagnosed(&recording);
    let verdict = Verdict::new(&recording, &found);
    assert!(contradictions(&found, &verdict).is_empty());
    let wrong = Verdict { cause: Cause::Problem(Problem::GrowthOfHooks), ..verdict.clone() };
    assert_eq!(contradictions(&found, &wrong).len(), 1);
    let failure = found.findings.iter_mut().find(|one| matches!(one.problem, Problem::OutOfMemory(_)));
    failure.expect("a failure").problem = Problem::OutOfMemory(vramscope_insight::autopsy::OomCause::Fragmentation);
    assert!(!contradictions(&found, &verdict).is_empty());
}

/// Returns the share of right verdicts of a confidence among the labelled recordings, and their
/// number.
fn calibration(confidence: Confidence) -> (usize, usize) {
    let (mut right, mut all) = (0, 0);
    for (name, recording) in recorded_in(LABELLED) {
        let label = Label::read(&name);
        let verdict = verdict(&name, &recording);
        if verdict.confidence != confidence {
            continue;
        }
        all += 1;
        let id = if label.finding == "none" { "healthy".to_owned() } else { label.finding.clone() };
        let names = |site: &String| verdict.site.as_ref().is_some_and(|named| named.contains(site.as_str()));
        let is_right = verdict.cause.id() == id && (label.finding == "none" || label.sites.iter().any(names));
        if is_right {
            right += 1;
        } else {
            println!("{name}: {} ({}), not {id}", verdict.cause.id(), confidence.id());
        }
    }
    (right, all)
}

#[test]
fn confidence_is_calibrated() {
    let (right, all) = calibration(Confidence::Sure);
    println!("sure: {right} of {all}");
    assert!(right * 100 >= all * 98, "{right} of {all} sure verdicts are right");
    let (right, all) = calibration(Confidence::Likely);
    println!("likely: {right} of {all}");
    assert!(right * 100 >= all * 85, "{right} of {all} likely verdicts are right");
}

/// What an [`Edited`] recording lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removed {
    /// Everything but the state at the end.
    History,
    /// The first half of the events.
    FirstHalf,
    Times,
    Stacks,
    Marks,
    /// The frames of the program: they look like a library's.
    ProgramFrames,
    /// The segments: then more is allocated than reserved.
    Segments,
}

/// Passes a recording on without a part of its evidence.
struct Edited<'s> {
    inner: &'s mut IndexedEncoder,
    removed: Removed,
    events: u64,
}

impl Sink for Edited<'_> {
    fn event(&mut self, event: &Event) {
        self.events += 1;
        let mut event = *event;
        match (self.removed, &mut event.kind) {
            (Removed::Times, _) => event.time_ns = self.events * 1000,
            (Removed::Stacks, kind) => *kind = crate::autopsy::without_site(*kind),
            // Keeps the number of events.
            (Removed::Marks, EventKind::Mark { .. })
            | (Removed::Segments, EventKind::SegmentAllocated { .. } | EventKind::SegmentMapped { .. }) => {
                event.kind = EventKind::Gap { lost: 0 };
            }
            _ => {}
        }
        self.inner.event(&event);
    }

    fn define(&mut self, definition: &Definition) {
        match definition {
            Definition::String(text) if self.removed == Removed::ProgramFrames && text.ends_with(".py") => {
                let name = text.rsplit('/').next().unwrap_or(text);
                self.inner.define(&Definition::String(format!("/lib/site-packages/torch/{name}")));
            }
            Definition::String(_) => self.inner.define(definition),
            _ if self.removed == Removed::Stacks => {}
            _ => self.inner.define(definition),
        }
    }

    fn annotation(&mut self, annotation: &Annotation) {
        if self.removed != Removed::Marks {
            self.inner.annotation(annotation);
        }
    }

    fn relabel(&mut self, relabel: &Relabel) {
        let site = if self.removed == Removed::Stacks { SiteId(0) } else { relabel.site };
        self.inner.relabel(&Relabel { site, ..*relabel });
    }

    fn inner_sink(&mut self) -> Option<&mut dyn Sink> {
        Some(self.inner)
    }
}

/// Returns a recording without a part of its evidence.
fn without(recording: &Recording, removed: Removed) -> Recording {
    let (first, end) = (recording.first_event(), recording.end_event());
    let from = match removed {
        Removed::History => end,
        Removed::FirstHalf => first + (end - first) / 2,
        _ => first,
    };
    let mut copy = RangeCopy::new(recording, from, end);
    let info = copy.begin(recording).expect("the recording is readable");
    let mut encoder = IndexedEncoder::new(&RecordingInfo { lacks_times: removed == Removed::Times, ..info });
    let mut edited = Edited { inner: &mut encoder, removed, events: 0 };
    while copy.step(recording, &mut edited).expect("the recording is readable") {}
    let mut without = Recording::new();
    for bytes in encoder.finish() {
        without.push(&bytes).expect("a valid chunk");
    }
    without
}

#[test]
fn device_without_history_is_not_called_healthy() {
    let block = |state: &str| json!({"size": 2 << 20, "requested_size": 2 << 20, "state": state, "frames": []});
    let segment = json!({
        "device": 1, "address": 64 << 20, "total_size": 2 << 20, "allocated_size": 2 << 20, "active_size": 2 << 20,
        "stream": 0, "segment_type": "large", "blocks": [block("active_allocated")],
    });
    let entry = |action: &str, addr: u64, size: u64| {
        let mut entry = json!({"action": action, "addr": addr, "size": size, "frames": []});
        (entry["stream"], entry["time_us"]) = (0.into(), 1.into());
        entry
    };
    let trace = [entry("segment_alloc", 1 << 20, 2 << 20), entry("alloc", 1 << 20, 512)];
    let snapshot = json!({"segments": [segment], "device_traces": [trace, []]});
    let recording = imported(snapshot.to_string().as_bytes(), "two.json");
    let verdict = verdict("two devices", &recording);
    assert_eq!((verdict.status, verdict.cause), (Status::CannotTell, Cause::NoHistory), "{}", verdict.summary);
    assert!(verdict.summary.starts_with("Device 1: 2 MiB is allocated"), "{}", verdict.summary);
    let failures: Vec<_> = verdict.unanswered.iter().filter(|one| one.rule == Rule::Failures).collect();
    assert_eq!(failures.len(), 1);
    assert!(failures[0].needs().starts_with("About device 1, it has no history"), "{}", failures[0].needs());
}

#[test]
fn verdict_tells_what_settings_would_save_below_the_limit_of_a_finding() {
    let (name, recording) =
        recorded_in(VERDICTS).find(|(name, _)| name.starts_with("optimizer_step_near_3")).expect("it exists");
    let verdict = verdict(&name, &recording);
    assert!(!verdict.summary.contains("No setting"), "{}", verdict.summary);
    assert!(verdict.summary.contains(" would reserve "), "{}", verdict.summary);
}

/// From 40 recordings one part of the evidence is removed in turn: no verdict then claims what it
/// cannot know, and each says what to record.
#[test]
fn missing_evidence_is_said() {
    let all = recorded_in(FIRST_ANSWERS).chain(recorded_in(LABELLED).step_by(3)).chain(snapshots());
    let all: Vec<(String, Recording)> = all.filter(|(_, recording)| recording.events() > 0).take(40).collect();
    assert_eq!(all.len(), 40);
    for (name, recording) in &all {
        let lacks = |removed: Removed| {
            let name = format!("{name} without {removed:?}");
            let edited = without(recording, removed);
            (verdict(&name, &edited), name)
        };
        let missing = |verdict: &Verdict, rule: Rule| {
            let of_rule = verdict.unanswered.iter().find(|one| one.rule == rule);
            of_rule.map(|one| one.missing.clone()).unwrap_or_default()
        };

        let (state, name) = lacks(Removed::History);
        // Private pools show in one state.
        if state.cause != Cause::Problem(Problem::PrivatePools) {
            assert_eq!((state.status, state.cause), (Status::CannotTell, Cause::NoHistory), "{name}: {state:?}");
            assert!(state.summary.contains("No history"), "{name}: {}", state.summary);
        }
        for rule in Rule::ALL.into_iter().filter(|&rule| rule != Rule::PrivatePools) {
            assert_eq!(missing(&state, rule), [Evidence::History], "{name}: {rule:?}");
        }

        let (half, name) = lacks(Removed::FirstHalf);
        // A short rest of the history shows nothing but its moment.
        let lacks_beginning = |rule: Rule| {
            let missing = missing(&half, rule);
            missing.contains(&Evidence::Beginning) || missing == [Evidence::History]
        };
        assert!(lacks_beginning(Rule::Start), "{name}: {:?}", half.unanswered);
        let is_copy = |cause| matches!(cause, Cause::Problem(Problem::CopiedWeights | Problem::CopiedOptimizerState));
        assert!(!missing(&half, Rule::Copies).is_empty() || is_copy(half.cause), "{name}: {:?}", half.unanswered);
        assert!(half.status != Status::Nothing || half.summary.contains("since recording began"), "{name}: {half:?}");

        let (timeless, name) = lacks(Removed::Times);
        assert!(!timeless.summary.contains(" ms") && !timeless.summary.contains(" ns"), "{name}");

        let (stackless, name) = lacks(Removed::Stacks);
        assert_eq!(stackless.site, None, "{name}: {}", stackless.summary);
        assert!(!stackless.summary.contains(".py"), "{name}: {}", stackless.summary);
        assert_ne!(stackless.status, Status::Nothing, "{name}: {}", stackless.summary);
        for rule in [Rule::OptimizerStep, Rule::Copies] {
            assert!(missing(&stackless, rule).contains(&Evidence::Stacks), "{name}: {:?}", stackless.unanswered);
        }
        assert!(
            stackless.confidence != Confidence::Sure
                || stackless.status != Status::Found
                || stackless.cause.oom_cause().is_some(),
            "{name}: {stackless:?}"
        );

        let (_, _) = lacks(Removed::Marks);

        let (impossible, name) = lacks(Removed::Segments);
        // A recording that began late has segments from before.
        if recording.first_event() == 0 && recording.info().devices.iter().all(|device| device.history_complete) {
            for rule in [Rule::Waste, Rule::Segments, Rule::Streams, Rule::PrivatePools] {
                assert_eq!(missing(&impossible, rule), [Evidence::Counters], "{name}: {impossible:?}");
            }
            let is_of_segments = |problem: Problem| Rule::of(problem).needs().contains(&Evidence::Counters);
            assert!(!matches!(impossible.cause, Cause::Problem(problem) if is_of_segments(problem)), "{name}");
            assert_ne!(impossible.status, Status::Nothing, "{name}: {}", impossible.summary);
        }

        let (anonymous, name) = lacks(Removed::ProgramFrames);
        assert_eq!(anonymous.site, None, "{name}: {}", anonymous.summary);
    }
}
