//! Autopsies of the labelled recordings: the cause and the line of each failure.

use std::path::Path;

use vramscope_insight::autopsy::{
    Autopsy, Horizon, OomCause, OutOfMemory, Remedies, Remedy, RemedyKind, RemedySearch, defects,
};
use vramscope_insight::frames::RecordedStacks;
use vramscope_insight::history::History;
use vramscope_pool::rerun::{History as RerunHistory, Workload};
use vramscope_pool::{Origin, Pool, Settings, SimulatedDevice};
use vramscope_trace::{
    Category, Definition, DeviceId, Encoder, Event, EventKind, Recording, RecordingInfo, Replay, Sink, SiteId,
    StreamId, StringId,
};

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
    /// Reads the label beside a recording of [`LABELLED`].
    pub(crate) fn read(name: &str) -> Self {
        Self::read_in(LABELLED, name)
    }

    /// Reads the label beside a recording in a folder.
    pub(crate) fn read_in(folder: &str, name: &str) -> Self {
        let stem = name.split('.').next().unwrap_or_default();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(format!("{stem}.json"));
        let text = std::fs::read_to_string(path).expect("a recording has a label");
        // The JSON may be compact or pretty-printed. The values read here contain no objects.
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

/// Returns the recorded settings, with a limit.
fn settings(recording: &Recording, limit_bytes: Option<u64>) -> Settings {
    let settings = Settings::parse(&recording.info().alloc_conf).expect("recorded settings are valid");
    Settings { limit_bytes, ..settings }
}

/// Examines a recording of a program that could reserve `limit_bytes`.
pub(crate) fn autopsy(recording: &Recording, limit_bytes: Option<u64>) -> Autopsy {
    let mut autopsy = Autopsy::new(settings(recording, limit_bytes));
    let history = history(recording);
    while !autopsy.step(recording, &history).expect("the recording is readable") {}
    autopsy
}

/// Returns the requests of a device.
fn workload(recording: &Recording, device: DeviceId, limit_bytes: Option<u64>) -> Option<Workload> {
    let histories = RerunHistory::from_recording(recording).expect("the recording is readable");
    let of_device = histories.into_iter().find(|one| one.device() == device)?;
    Some(Workload::new(of_device, &settings(recording, limit_bytes)).expect("the start state is valid"))
}

/// Returns the remedies of the first failure, each checked by simulation.
fn remedies(recording: &Recording, found: &Autopsy, limit_bytes: Option<u64>) -> Option<Remedies> {
    let oom = found.ooms().first()?;
    let workload = workload(recording, oom.failure.device, limit_bytes)?;
    let capacity = workload.recorded_capacity_bytes;
    let search = RemedySearch::new(recording, &history(recording), found, oom, &workload, capacity);
    let mut search = search.expect("the recording is readable");
    while let Some(run) = search.next_run() {
        let result = run.simulate(search.program(&workload));
        search.finish(&run, &result);
    }
    Some(search.into_remedies())
}

/// Checks what holds for every failure.
fn check(name: &str, recording: &Recording, autopsy: &Autopsy) {
    let mut replay = Replay::new();
    for oom in autopsy.ooms() {
        let state = replay.seek(recording, oom.failure.event - 1).expect("readable");
        let active = state.device(oom.failure.device).map_or(0, |device| device.counters().active);
        assert_eq!(oom.active_bytes(), active, "{name}: holders add up");
        assert!(oom.holders.windows(2).all(|pair| pair[0].bytes >= pair[1].bytes), "{name}");
        assert!(oom.summary.ends_with('.') && !oom.summary.contains('\n'), "{name}: {}", oom.summary);
        assert!(!oom.summary.contains(" 0 B") && !oom.summary.contains("no stacks"), "{name}: {}", oom.summary);
        assert_eq!(oom.events.first(), Some(&oom.failure.event), "{name}");
        if let Some(pinning) = &oom.pinning {
            assert_eq!(oom.pins.len(), pinning.blocks.len().min(8), "{name}");
            assert!(oom.pins.iter().all(|pin| pin.bytes > 0 && !pin.site.is_empty()), "{name}: {:?}", oom.pins);
        }
        let activations = oom.category_bytes(Category::Activation);
        let has_bytes = activations > 0 || !RecordedStacks::new(recording.definitions()).has_stacks();
        assert!(oom.cause != OomCause::Activations || has_bytes, "{name}: {}", oom.summary);
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

/// Returns the event without its site.
pub(crate) fn without_site(mut kind: EventKind) -> EventKind {
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
    let (mut hits, mut hits_with_limit, mut all, mut table) = (0, 0, 0, String::new());
    let mut hits_without_stacks = 0;
    for (name, recording) in recorded_in(LABELLED) {
        let label = Label::read(&name);
        let Some(expected) = label.finding.strip_prefix("oom.") else { continue };
        let found = autopsy(&recording, None);
        check(&name, &recording, &found);
        assert_eq!(found.ooms(), autopsy(&recording, None).ooms(), "{name}: two runs are equal");
        let first: &OutOfMemory = found.ooms().first().expect("the recording has a failure");
        let is_site = |oom: &OutOfMemory| label.sites.iter().any(|site| oom.site.ends_with(&format!(" {site}")));
        let is_hit = first.cause.id() == expected && is_site(first);
        let with_limit = autopsy(&recording, label.limit_bytes);
        check(&name, &recording, &with_limit);
        let is_hit_with_limit = with_limit.ooms().first().is_some_and(|oom| oom.cause.id() == expected && is_site(oom));
        let stripped = without_stacks(&recording);
        let bare = autopsy(&stripped, None);
        check(&name, &stripped, &bare);
        let bare = bare.ooms().first().expect("the recording has a failure");
        assert!(!bare.site.is_empty() && bare.request_line.is_none(), "{name}: {}", bare.site);
        all += 1;
        hits += u32::from(is_hit);
        hits_with_limit += u32::from(is_hit_with_limit);
        hits_without_stacks += u32::from(bare.cause == first.cause);
        table += &format!(
            "{} {name}: {expected} at {:?}: {} at {}; without stacks {} at {}\n    {}\n    {}\n",
            if is_hit { "hit " } else { "MISS" },
            label.sites,
            first.cause.id(),
            first.site,
            bare.cause.id(),
            bare.site,
            first.summary,
            bare.summary
        );
    }
    println!("{table}{hits} of {all}; {hits_with_limit} with the limit, {hits_without_stacks} without stacks");
    assert!(all >= 16, "{all} labelled failures");
    assert!(hits * 10 >= all * 9, "{hits} of {all}\n{table}");
    assert!(hits_with_limit >= hits, "{hits_with_limit} of {all} with the limit\n{table}");
    assert!(hits_without_stacks * 10 >= all * 9, "{hits_without_stacks} of {all} without stacks\n{table}");
}

/// By labelled recording, the kind of remedy that the label names, and whether the recording shows
/// enough to check it.
const REMEDIES: [(&str, RemedyKind, bool); 17] = [
    ("oom_activations_1", RemedyKind::SmallerBatch, true),
    ("oom_activations_2", RemedyKind::SmallerBatch, true),
    ("oom_fragmentation_1", RemedyKind::Setting, true),
    ("oom_fragmentation_2", RemedyKind::Setting, true),
    ("oom_leak_1", RemedyKind::FreeEarlier, true),
    ("oom_leak_2", RemedyKind::FreeEarlier, true),
    ("oom_never_fits_1", RemedyKind::AvoidTemporary, true),
    ("oom_never_fits_2", RemedyKind::AvoidTemporary, true),
    ("oom_optimizer_state_1", RemedyKind::SmallerState, false),
    ("oom_other_stream_1", RemedyKind::Setting, true),
    ("oom_outside_1", RemedyKind::FreeOutside, false),
    ("oom_outside_2", RemedyKind::FreeOutside, false),
    ("oom_parameters_1", RemedyKind::LargerCap, false),
    ("oom_pending_frees_1", RemedyKind::Synchronize, true),
    ("oom_pool_without_release_1", RemedyKind::EmptyCache, true),
    ("oom_private_pool_1", RemedyKind::ReleasePool, true),
    ("oom_temporary_1", RemedyKind::AvoidTemporary, true),
];

#[test]
fn remedies_of_labelled_failures_are_found_by_simulation() {
    let (mut hits, mut table) = (0, String::new());
    for (name, recording) in recorded_in(LABELLED) {
        let label = Label::read(&name);
        let Some(expected) = label.finding.strip_prefix("oom.") else { continue };
        let found = autopsy(&recording, label.limit_bytes);
        let first = found.ooms().first().expect("the recording has a failure");
        let found = remedies(&recording, &found, label.limit_bytes).expect("the device has requests");
        assert!(found.is_reproduced, "{name}");
        for remedy in &found.remedies {
            let limit_bytes = label.limit_bytes.unwrap_or(u64::MAX);
            let is_more = matches!(remedy.kind, RemedyKind::LargerCap | RemedyKind::FreeOutside);
            assert!(is_more || remedy.peak_reserved_bytes <= limit_bytes, "{name}: {remedy:?}");
            assert!(is_more || remedy.saves_bytes * 64 >= found.unchanged_peak_bytes, "{name}: {remedy:?}");
            assert_eq!(remedy.peak_reserved_bytes + remedy.saves_bytes, found.unchanged_peak_bytes, "{name}");
            let named = match remedy.kind {
                RemedyKind::SmallerBatch => "B of the live memory scales with it",
                RemedyKind::Checkpoint => "torch.utils.checkpoint for the modules ",
                _ => "",
            };
            assert!(remedy.detail.contains(named), "{name}: {}", remedy.detail);
        }
        let wanted = REMEDIES.iter().find(|(prefix, ..)| name.starts_with(prefix)).expect("it is listed");
        let is_wanted = |remedy: &&Remedy| (remedy.kind, remedy.is_checked) == (wanted.1, wanted.2);
        let is_hit = found.remedies.iter().any(|remedy| is_wanted(&remedy));
        hits += u32::from(is_hit);
        let hit = if is_hit { "hit " } else { "MISS" };
        table +=
            &format!("{hit} {name}: {expected}, with the limit {}: wanted {wanted:?}, {found:#?}\n", first.cause.id());
    }
    println!("{table}{hits} of {}", REMEDIES.len());
    assert!(hits as usize * 10 >= REMEDIES.len() * 9, "{hits} of {}\n{table}", REMEDIES.len());
}

#[test]
fn growth_is_followed_beyond_the_failure() {
    // Peaks of the allocated and reserved bytes of 400 steps of the program without its mistake, on
    // an H200. That program frees its memory within the step, not at the step's end.
    let (allocated, reserved) = (394_433_536u64, 461_373_440u64);
    for (name, recording) in recorded_in(LABELLED).filter(|(name, _)| name.starts_with("oom_leak_1")) {
        let label = Label::read(&name);
        let found = autopsy(&recording, label.limit_bytes);
        let found = remedies(&recording, &found, label.limit_bytes).expect("the device has requests");
        assert_eq!(found.follows, Horizon::NextStep);
        let freed = found.remedies.iter().find(|remedy| remedy.kind == RemedyKind::FreeEarlier);
        let peak = freed.expect("it helps").peak_reserved_bytes;
        assert!((allocated..=reserved).contains(&peak), "{peak}");
    }
}

#[test]
fn known_defects_of_pytorch_are_named_where_they_show() {
    let expected = [
        ("defect_deferred_frees_1", 175_015),
        ("defect_oversize_1", 193_400),
        ("defect_threshold_1", 106_660),
        ("oom_pending_frees_1", 189_504),
        ("oom_pool_without_release_1", 159_674),
    ];
    let mut wrong = String::new();
    for (name, recording) in recorded_in(LABELLED) {
        let settings = settings(&recording, None);
        let mut private = |device| {
            let workload = workload(&recording, device, None);
            workload.iter().flat_map(Workload::private_pool_requests).collect()
        };
        let found = defects(&recording, &settings, &mut private).expect("the recording is readable");
        let mut issues: Vec<u32> = found.iter().map(|defect| defect.pytorch_issue).collect();
        for defect in &found {
            let workload = workload(&recording, defect.device, None).expect("the device has requests");
            let saved = defect.saved_bytes(&workload, &settings);
            // The share of a device of unknown size cannot be simulated.
            let is_enough = saved.is_some_and(|bytes| bytes * 10 >= defect.bytes * 9);
            assert!(is_enough || defect.pytorch_issue == 106_660, "{name}: {saved:?} of {defect:?}");
        }
        issues.extend(autopsy(&recording, None).ooms().iter().filter_map(|oom| oom.pytorch_issue));
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

/// Records a program that keeps 40 MiB of 100 MiB and requests 80 MiB `times` times.
fn repeated_failures(times: usize) -> Recording {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let mut pool = Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(100 << 20));
    for bytes in std::iter::once(40 << 20).chain(std::iter::repeat_n(80 << 20, times)) {
        let allocated = pool.allocate(bytes, StreamId(0), Origin::default(), &mut encoder);
        assert_eq!(allocated.is_ok(), bytes == 40 << 20);
    }
    encoder.flush();
    let mut recording = Recording::new();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("a valid chunk");
    }
    recording
}

#[test]
fn equal_failures_are_examined_once_and_counted() {
    let recording = repeated_failures(1000);
    let found = autopsy(&recording, None);
    let [oom] = found.ooms() else { panic!("{} failures", found.ooms().len()) };
    assert_eq!((oom.events.len(), found.omitted()), (1000, 0));
    let found = remedies(&recording, &found, None).expect("the device has requests");
    assert!(found.is_reproduced, "1000 failures are reproduced");
}
