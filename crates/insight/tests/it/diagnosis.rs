//! Diagnoses of the labelled recordings: the problem and the function at fault.

use std::collections::{BTreeMap, VecDeque};

use vramscope_insight::diagnosis::{Diagnosed, Diagnosis, Finding, Rule, Severity};
use vramscope_insight::evidence::Evidence;
use vramscope_insight::history::History;
use vramscope_pool::Settings;
use vramscope_trace::{DeviceId, Encoder, Event, EventKind, PoolKey, Recording, RecordingInfo, Sink, SiteId, StreamId};

use crate::autopsy::{LABELLED, Label, history, without_stacks};
use crate::recordings::{recorded_in, recordings_in, snapshots};

/// Recordings of the demo on the host.
const HOST: &str = "../../tests/labelled/host";

/// Diagnoses a recording of a program that could reserve `limit_bytes`, `max_events` at a time.
fn diagnose(recording: &Recording, limit_bytes: Option<u64>, max_events: u64) -> Vec<Finding> {
    diagnosed(recording, &history(recording), &settings(recording, limit_bytes), max_events).findings
}

/// Returns the settings that a recording was made under, with the limit of the pool.
pub(crate) fn settings(recording: &Recording, limit_bytes: Option<u64>) -> Settings {
    let settings = Settings::parse(&recording.info().alloc_conf).expect("recorded settings are valid");
    Settings { limit_bytes, ..settings }
}

/// Applies the rules to a recording, `max_events` at a time, without checking remedies.
pub(crate) fn diagnosed(recording: &Recording, history: &History, settings: &Settings, max_events: u64) -> Diagnosed {
    let mut diagnosis = Diagnosis::new(recording, history, settings).expect("the recording is readable");
    while !diagnosis.step(recording, max_events).expect("the recording is readable") {}
    diagnosis.finish(recording, history).expect("the recording is readable")
}

/// Checks what holds for the findings of every recording.
fn check(name: &str, recording: &Recording, findings: &[Finding]) {
    assert!(findings.windows(2).all(|pair| pair[0].severity >= pair[1].severity), "{name}: {findings:?}");
    for one in findings {
        let (first, last) = one.events;
        assert!(first <= last && last <= recording.end_event(), "{name}: {one:?}");
        assert!(one.bytes > 0, "{name}: {one:?}");
        assert!(one.summary.ends_with('.') && !one.summary.contains('\n'), "{name}: {}", one.summary);
        assert!(one.remedy.as_ref().is_none_or(|remedy| remedy.ends_with('.')), "{name}: {:?}", one.remedy);
    }
}

/// Returns the ids of findings, the most serious first.
fn ids(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(|one| one.problem.id()).collect()
}

#[test]
fn most_serious_finding_of_labelled_recordings_is_the_labelled_problem() {
    let (mut all, mut wrong) = (0, Vec::new());
    for (name, recording) in recorded_in(LABELLED) {
        let label = Label::read(&name);
        let findings = diagnose(&recording, None, 1000);
        check(&name, &recording, &findings);
        all += 1;
        if label.finding == "none" {
            assert!(findings.is_empty(), "{name} is healthy: {findings:?}");
            continue;
        }
        let is_site = |site: &String| findings.first().is_some_and(|first| first.site.contains(site.as_str()));
        let id = ids(&findings).into_iter().next().unwrap_or_default();
        if id != label.finding || !label.sites.iter().any(is_site) {
            let site = findings.first().map(|first| first.site.clone());
            wrong.push(format!("{name}: {id} at {site:?}, not {} at {:?}", label.finding, label.sites));
        }
    }
    assert!(all >= 70, "only {all} labelled recordings");
    assert!(wrong.len() * 20 <= all, "{} of {all} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn findings_without_stacks_are_the_same() {
    let (mut all, mut different) = (0, Vec::new());
    for (name, recording) in recorded_in(LABELLED) {
        let mut with = diagnose(&recording, None, u64::MAX);
        with.retain(|one| !Rule::of(one.problem).needs().contains(&Evidence::Stacks));
        let with = ids(&with);
        let stripped = without_stacks(&recording);
        let findings = diagnose(&stripped, None, u64::MAX);
        check(&name, &stripped, &findings);
        all += 1;
        if with != ids(&findings) {
            different.push(format!("{name}: {with:?}, without stacks {:?}", ids(&findings)));
        }
        assert!(!with.is_empty() || findings.is_empty(), "{name} is healthy: {findings:?}");
    }
    assert!(different.len() * 20 <= all, "{} of {all} differ:\n{}", different.len(), different.join("\n"));
}

#[test]
fn findings_do_not_depend_on_the_number_of_events_in_a_step() {
    for (name, recording) in recorded_in(LABELLED).take(12) {
        assert_eq!(diagnose(&recording, None, 7), diagnose(&recording, None, u64::MAX), "{name}");
    }
}

#[test]
fn growth_says_in_how_many_steps_the_limit_is_reached() {
    let (_, recording) =
        recorded_in(LABELLED).find(|(name, _)| name.starts_with("growth_outputs_1")).expect("the recording exists");
    let findings = diagnose(&recording, Some(4 << 30), u64::MAX);
    let growth = findings.first().expect("a finding");
    // 1,990 of 4,096 MiB are reserved, and each step keeps 109 MiB more.
    assert_eq!(growth.steps_left, Some(19), "{growth:?}");
    assert!(growth.summary.contains("In about 19 steps"), "{}", growth.summary);
    assert_eq!(growth.severity, Severity::High);
}

#[test]
fn growth_of_a_server_says_when_the_limit_is_reached() {
    let (_, recording) = recordings_in("../../tests/labelled/kinds")
        .find(|(name, _)| name == "server_1.vram")
        .expect("the recording exists");
    let growth = diagnose(&recording, Some(4 << 30), u64::MAX).into_iter().next().expect("a finding");
    assert_eq!(growth.problem.id(), "growth.server");
    // It grows by 269 MiB in 2.9 s, and 3.6 GiB are left.
    assert!(
        growth.summary.contains("At this rate, the 4 GiB that the pool can get are full in 39."),
        "{}",
        growth.summary
    );
    assert_eq!(growth.severity, Severity::High);
    let endless = diagnose(&recording, Some(1 << 60), u64::MAX).into_iter().next().expect("a finding");
    assert!(!endless.summary.contains("At this rate"), "{}", endless.summary);
}

#[test]
fn any_recording_can_be_diagnosed() {
    let examples = ["../../examples/pytorch/recordings", "../../www/examples"];
    let recordings = snapshots().chain(examples.into_iter().flat_map(recordings_in));
    for (name, recording) in recordings.chain(recorded_in("../../../shared/snapshots")) {
        let findings = diagnose(&recording, None, 100_000);
        check(&name, &recording, &findings);
        for one in &findings {
            println!("{name}: {} {} {}", one.severity, one.problem.id(), one.site);
        }
    }
}

#[test]
fn processes_that_share_a_device_are_named_unless_a_cap_leaves_them_room() {
    let expected = BTreeMap::from([
        ("alone.vram", false),
        ("beside_contexts.vram", true),
        ("beside_large.vram", true),
        ("beside_small.vram", false),
    ]);
    let mut checked = 0;
    for (name, recording) in recordings_in("../../tests/labelled/shared_device") {
        let findings = diagnose(&recording, None, u64::MAX);
        check(&name, &recording, &findings);
        assert_eq!(ids(&findings).contains(&"outside.processes".to_owned()), expected[name.as_str()], "{name}");
        let capped = diagnose(&recording, Some(64 << 30), u64::MAX);
        assert!(!ids(&capped).contains(&"outside.processes".to_owned()), "{name} leaves the others their memory");
        checked += 1;
    }
    assert_eq!(checked, expected.len());
}

/// Returns a recording of pinned host memory: for each request of bytes, its block of the next
/// power of two, which is freed before the request `frees_after` requests later.
fn pinned(requests: &[u64], frees_after: usize) -> Recording {
    let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let mut time_ns = 0;
    let mut event = |kind| {
        time_ns += 1000;
        encoder.event(&Event { time_ns, device: DeviceId::HOST, kind });
    };
    // Blocks of a size that are free, as PyTorch keeps them.
    let mut cached: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut live: VecDeque<(u64, u64)> = VecDeque::new();
    let mut next = 1 << 40;
    for &requested in requests {
        if live.len() > frees_after
            && let Some((address, size)) = live.pop_front()
        {
            event(EventKind::FreeRequested { address, site });
            event(EventKind::FreeCompleted { address, site });
            cached.entry(size).or_default().push(address);
        }
        let size = requested.next_power_of_two();
        let address = cached.get_mut(&size).and_then(Vec::pop).unwrap_or_else(|| {
            next += size;
            event(EventKind::SegmentAllocated { address: next, size, stream, pool, site });
            next
        });
        event(EventKind::BlockAllocated { address, size, requested, stream, pool, site });
        live.push_back((address, size));
    }
    encoder.flush();
    let mut recording = Recording::new();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("the encoder writes valid chunks");
    }
    recording
}

#[test]
fn pinned_memory_is_examined_for_rounding_and_kept_buffers() {
    const MIB: u64 = 1 << 20;
    let check = |requests: &[u64], frees_after, expected: &[&str]| {
        let recording = pinned(requests, frees_after);
        let findings = diagnose(&recording, None, u64::MAX);
        check("pinned", &recording, &findings);
        assert_eq!(ids(&findings), expected, "{findings:?}");
    };
    check(&[520 * MIB; 4], usize::MAX, &["pinned.rounding"]);
    check(&[40 * MIB; 60], 3, &["pinned.rounding"]);
    check(&[512 * MIB, 500 * MIB, 510 * MIB], usize::MAX, &[]);
    // Each batch is larger than the one before, so that no cached buffer serves it.
    let growing: Vec<u64> = (3..10).map(|log2| (1 << log2) * MIB).collect();
    check(&growing, 0, &["pinned.kept"]);
    let doubled: Vec<u64> = growing.iter().chain(&[16 * MIB; 60]).copied().collect();
    check(&doubled, 1, &["pinned.kept"]);
    check(&[64 * MIB; 100], 2, &[]);
}

#[test]
fn recordings_of_the_demo_have_the_labelled_finding() {
    let mut all = 0;
    for (name, recording) in recordings_in(HOST) {
        let label = Label::read_in(HOST, &name);
        let findings = diagnose(&recording, None, 1000);
        check(&name, &recording, &findings);
        let found = findings.first().map(|first| (first.problem.id(), first.site.as_str()));
        match found {
            None => assert_eq!(label.finding, "none", "{name} has no finding"),
            Some((id, site)) => {
                assert_eq!(id, label.finding, "{name}: {findings:?}");
                assert!(label.sites.iter().any(|file| site.contains(file.as_str())), "{name}: {site}");
            }
        }
        all += 1;
    }
    assert!(all >= 22, "only {all} recordings");
}
