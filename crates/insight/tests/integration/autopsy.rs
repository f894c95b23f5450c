//! Autopsies of the labelled recordings: the cause and the line of each failure.

use std::path::Path;

use vramscope_insight::autopsy::{Autopsy, OomCause, OutOfMemory, Remedy, RemedyKind, RemedySearch, defects};
use vramscope_insight::history::History;
use vramscope_pool::Settings;
use vramscope_pool::rerun::{History as RerunHistory, Workload};
use vramscope_trace::{Definition, Encoder, Event, EventKind, Recording, Replay, Sink, SiteId, StringId};

use crate::recordings::{recorded_in, recordings_in, snapshots};

/// The folder of labelled recordings for development.
pub(crate) const LABELLED: &str = "../../tests/labelled/development";

/// The label of a recording.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub(crate) finding: String,
    /// The functions that may be named.
    pub(crate) sites: Vec<String>,
    pub(crate) limit_bytes: Option<u64>,
}

impl Label {
    /// Reads the label beside a recording.
    pub(crate) fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(LABELLED).join(name.replace(".pickle.gz", ".json"));
        let text = std::fs::read_to_string(path).expect("a recording has a label");
        // The files have one field a line or none in between; all values looked up are flat.
        let value = |key: &str| {
            let start = text.find(&format!("\"{key}\":")).expect("the label has the field") + key.len() + 3;
            text[start..].trim_start()
        };
        let quoted = |text: &str| text.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        let finding = quoted(value("finding").split_inclusive('"').take(2).collect::<String>().as_str());
        let sites = match value("sites") {
            list if list.starts_with('[') => quoted(list.split(']').next().unwrap_or_default()),
            _ => Vec::new(),
        };
        let digits = value("limit_bytes").chars().take_while(char::is_ascii_digit).collect::<String>();
        Self { finding: finding.concat(), sites, limit_bytes: digits.parse().ok() }
    }
}

/// Reads all lifetimes of a recording.
pub(crate) fn history(recording: &Recording) -> History {
    let mut history = History::new();
    while !history.extend(recording, u64::MAX).expect("the recording is readable").is_complete {}
    history
}

/// Examines a recording of a program that could reserve `limit_bytes`.
pub(crate) fn autopsy(recording: &Recording, limit_bytes: Option<u64>) -> Autopsy {
    let settings = Settings::parse(&recording.info().alloc_conf).expect("recorded settings are valid");
    let settings = Settings { limit_bytes, ..settings };
    Autopsy::new(recording, &history(recording), &settings).expect("the recording is readable")
}

/// Returns the remedies of the first failure, each checked by simulation; `None` if the simulated
/// program does not fail as recorded.
fn remedies(recording: &Recording, found: &Autopsy, limit_bytes: Option<u64>) -> Option<Vec<Remedy>> {
    let settings = Settings::parse(&recording.info().alloc_conf).expect("recorded settings are valid");
    let settings = Settings { limit_bytes, ..settings };
    let oom = found.ooms.first()?;
    let histories = RerunHistory::from_recording(recording).expect("the recording is readable");
    let of_device = histories.into_iter().find(|one| one.device() == oom.failure.device)?;
    let workload = Workload::new(of_device, &settings).expect("the start state is valid");
    let capacity = workload.recorded_capacity_bytes;
    let search = RemedySearch::new(recording, &history(recording), found, oom, &settings, capacity);
    let search = search.expect("the recording is readable");
    let check = |candidate| search.check(&workload, candidate);
    search.is_reproduced(&workload).then(|| search.candidates().iter().filter_map(check).collect())
}

/// Checks what holds for every failure.
fn check(name: &str, recording: &Recording, autopsy: &Autopsy) {
    let mut replay = Replay::new();
    for oom in &autopsy.ooms {
        let state = replay.seek(recording, oom.failure.event - 1).expect("readable");
        let active = state.device(oom.failure.device).map_or(0, |device| device.counters().active);
        assert_eq!(oom.active_bytes(), active, "{name}: holders add up");
        assert!(oom.holders.windows(2).all(|pair| pair[0].bytes >= pair[1].bytes), "{name}");
        assert!(oom.summary.ends_with('.') && !oom.summary.contains('\n'), "{name}: {}", oom.summary);
    }
}

/// Returns the recording without call stacks. Marks and annotations keep their names.
pub(crate) fn without_stacks(recording: &Recording) -> Recording {
    let mut encoder = Encoder::new(recording.info());
    let last_name = recording.annotations().iter().map(|one| one.name.0).max().unwrap_or(0);
    for id in 1..=last_name {
        encoder.define(&Definition::String(recording.definitions().string(StringId(id)).to_owned()));
    }
    let mut annotations = recording.annotations().iter().peekable();
    let mut replay = Replay::new();
    for index in recording.first_event()..recording.end_event() {
        while let Some(annotation) = annotations.next_if(|one| one.at_event <= index) {
            encoder.annotation(annotation);
        }
        if let Some(event) = replay.event(recording, index).expect("readable") {
            encoder.event(&Event { kind: without_site(event.kind), ..event });
        }
    }
    encoder.flush();
    let mut stripped = Recording::new();
    for chunk in encoder.take_output() {
        stripped.push(&chunk.bytes).expect("a valid chunk");
    }
    stripped
}

fn without_site(mut kind: EventKind) -> EventKind {
    match &mut kind {
        EventKind::SegmentAllocated { site, .. }
        | EventKind::SegmentFreed { site, .. }
        | EventKind::SegmentMapped { site, .. }
        | EventKind::SegmentUnmapped { site, .. }
        | EventKind::BlockAllocated { site, .. }
        | EventKind::FreeRequested { site, .. }
        | EventKind::FreeCompleted { site, .. }
        | EventKind::OutOfMemory { site, .. } => *site = SiteId(0),
        _ => {}
    }
    kind
}

#[test]
fn labelled_failures_have_their_cause_and_line() {
    let (mut hits, mut all, mut table) = (0, 0, String::new());
    let mut hits_without_stacks = 0;
    for (name, recording) in recorded_in(LABELLED) {
        let label = Label::read(&name);
        let Some(expected) = label.finding.strip_prefix("oom.") else { continue };
        let found = autopsy(&recording, None);
        check(&name, &recording, &found);
        assert_eq!(found.ooms, autopsy(&recording, None).ooms, "{name}: two runs are equal");
        let first: &OutOfMemory = found.ooms.first().expect("the recording has a failure");
        let is_site = label.sites.iter().any(|site| first.site.ends_with(&format!(" {site}")));
        let is_hit = first.cause.id() == expected && is_site;
        let stripped = autopsy(&without_stacks(&recording), None);
        let bare = stripped.ooms.first().map(|oom| oom.cause);
        all += 1;
        hits += u32::from(is_hit);
        hits_without_stacks += u32::from(bare == Some(first.cause));
        table += &format!(
            "{} {name}: {expected} at {:?}: {} at {}; without stacks {}\n    {}\n",
            if is_hit { "hit " } else { "MISS" },
            label.sites,
            first.cause,
            first.site,
            bare.map_or("none", OomCause::id),
            first.summary
        );
    }
    println!("{table}{hits} of {all}; {hits_without_stacks} without stacks");
    assert!(all >= 16, "{all} labelled failures");
    assert!(hits * 10 >= all * 9, "{hits} of {all}\n{table}");
    assert!(hits_without_stacks * 10 >= all * 9, "{hits_without_stacks} of {all} without stacks\n{table}");
}

/// The kind of remedy that the label of a recording names, where a simulation can check one.
const REMEDIES: [(&str, RemedyKind); 10] = [
    ("oom_activations_1", RemedyKind::SmallerBatch),
    ("oom_activations_2", RemedyKind::SmallerBatch),
    ("oom_fragmentation_1", RemedyKind::Setting),
    ("oom_fragmentation_2", RemedyKind::Setting),
    ("oom_leak_1", RemedyKind::FreeEarlier),
    ("oom_leak_2", RemedyKind::FreeEarlier),
    ("oom_other_stream_1", RemedyKind::Setting),
    ("oom_pending_frees_1", RemedyKind::Synchronize),
    ("oom_pool_without_release_1", RemedyKind::EmptyCache),
    ("oom_temporary_1", RemedyKind::AvoidTemporary),
];

#[test]
fn remedies_of_labelled_failures_are_found_by_simulation() {
    let (mut hits, mut table) = (0, String::new());
    for (name, recording) in recorded_in(LABELLED) {
        let label = Label::read(&name);
        let Some(expected) = label.finding.strip_prefix("oom.") else { continue };
        let found = autopsy(&recording, label.limit_bytes);
        let first = found.ooms.first().expect("the recording has a failure");
        let remedies = remedies(&recording, &found, label.limit_bytes);
        let wanted = REMEDIES.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|&(_, kind)| kind);
        for remedy in remedies.iter().flatten() {
            let limit_bytes = label.limit_bytes.unwrap_or(u64::MAX);
            assert!(remedy.peak_reserved_bytes <= limit_bytes, "{name}: {remedy:?}");
            assert!(remedy.saves_bytes > 0, "{name}: {remedy:?}");
        }
        let kinds: Vec<RemedyKind> = remedies.iter().flatten().map(|remedy| remedy.kind).collect();
        hits += u32::from(wanted.is_some_and(|kind| kinds.contains(&kind)));
        table += &format!("{name}: {expected}, with the limit {}: wanted {wanted:?}, {remedies:#?}\n", first.cause);
    }
    println!("{table}{hits} of {}", REMEDIES.len());
    assert!(hits as usize * 10 >= REMEDIES.len() * 9, "{hits} of {}\n{table}", REMEDIES.len());
}

#[test]
fn defects_of_pytorch_are_named_where_they_show() {
    let expected = [
        ("defect_oversize_1", 193_400),
        ("defect_threshold_1", 106_660),
        ("oom_pending_frees_1", 189_504),
        ("oom_pool_without_release_1", 159_674),
    ];
    let mut wrong = String::new();
    for (name, recording) in recorded_in(LABELLED) {
        let settings = Settings::parse(&recording.info().alloc_conf).expect("recorded settings are valid");
        let found = defects(&recording, &settings).expect("the recording is readable");
        let mut issues: Vec<u32> = found.iter().map(|defect| defect.pytorch_issue).collect();
        issues.extend(autopsy(&recording, None).ooms.iter().filter_map(|oom| oom.cause.pytorch_issue()));
        issues.dedup();
        let wanted: Vec<u32> = expected.iter().filter(|(start, _)| name.starts_with(start)).map(|one| one.1).collect();
        if issues != wanted {
            wrong += &format!("{name}: {issues:?}, expected {wanted:?}\n");
        }
    }
    assert_eq!(wrong, "");
}

#[test]
fn every_recording_can_be_examined() {
    for (name, recording) in snapshots().chain(recordings_in("../../examples/pytorch/recordings")) {
        check(&name, &recording, &autopsy(&recording, None));
    }
}
