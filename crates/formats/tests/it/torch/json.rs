//! A snapshot in JSON gives the same events as its pickle.

use super::common::{LARGE, SMALL, import_all, recorded};
use super::unpickle;
use vramscope_formats::{ImportSummary, InputFormat, sniff};
use vramscope_trace::{Definitions, Event, EventKind, MemorySink, SiteId};

/// Returns the frames and the scope of a site.
fn site_frames(definitions: &Definitions, site: SiteId) -> Vec<(String, String, u32)> {
    let site = definitions.site(site);
    let frames = definitions.stack(site.stack).map(|frame| {
        (definitions.string(frame.function).to_owned(), definitions.string(frame.file).to_owned(), frame.line)
    });
    frames.chain([(definitions.string(site.scope).to_owned(), String::new(), 0)]).collect()
}

fn definitions(memory: &MemorySink) -> Definitions {
    let mut definitions = Definitions::default();
    memory.definitions.iter().cloned().for_each(|definition| definitions.define(definition));
    definitions
}

/// Returns an event without its site, and the site.
fn split(mut event: Event) -> (Event, SiteId) {
    let site = match &mut event.kind {
        EventKind::SegmentAllocated { site, .. }
        | EventKind::SegmentFreed { site, .. }
        | EventKind::SegmentMapped { site, .. }
        | EventKind::SegmentUnmapped { site, .. }
        | EventKind::BlockAllocated { site, .. }
        | EventKind::FreeRequested { site, .. }
        | EventKind::FreeCompleted { site, .. }
        | EventKind::OutOfMemory { site, .. } => std::mem::take(site),
        EventKind::MemorySample { .. } | EventKind::Mark { .. } | EventKind::Gap { .. } => SiteId(0),
    };
    (event, site)
}

/// Compares two imports. The numbers of strings and sites may differ, but not their meaning.
fn check_same(name: &str, left: &(MemorySink, ImportSummary), right: &(MemorySink, ImportSummary)) {
    assert_eq!(left.1, right.1, "{name}");
    let (left, right) = (&left.0, &right.0);
    assert_eq!(left.events.len(), right.events.len(), "{name}");
    let (left_words, right_words) = (definitions(left), definitions(right));
    for (number, (left, right)) in left.events.iter().zip(&right.events).enumerate() {
        let ((left, left_site), (right, right_site)) = (split(*left), split(*right));
        assert_eq!(left, right, "{name}: event {number}");
        assert_eq!(
            site_frames(&left_words, left_site),
            site_frames(&right_words, right_site),
            "{name}: event {number}"
        );
    }
    assert_eq!(left.annotations.len(), right.annotations.len(), "{name}");
    for (left, right) in left.annotations.iter().zip(&right.annotations) {
        assert_eq!((left.time_ns, left.at_event, left.stage), (right.time_ns, right.at_event, right.stage), "{name}");
        assert_eq!(left_words.string(left.name), right_words.string(right.name), "{name}");
    }
    assert_eq!(left.states.len(), right.states.len(), "{name}");
    for ((_, left), (_, right)) in left.states.iter().zip(&right.states) {
        for ((id, left), (_, right)) in left.devices().zip(right.devices()) {
            assert_eq!(left.counters(), right.counters(), "{name}: device {id:?}");
            assert!(
                left.blocks().map(|b| (b.address, b.size)).eq(right.blocks().map(|b| (b.address, b.size))),
                "{name}"
            );
        }
    }
}

#[test]
fn json_and_pickle_give_the_same_events() {
    for name in SMALL.into_iter().chain(LARGE) {
        let Some(recorded) = recorded(name) else { continue };
        let json = serde_json::to_vec(&unpickle::to_json(&recorded.pickle)).expect("the values are plain data");
        assert_eq!(
            (sniff(&recorded.pickle), sniff(&json)),
            (Some(InputFormat::TorchPickle), Some(InputFormat::TorchJson))
        );
        check_same(name, &import_all(&recorded.pickle, name), &import_all(&json, name));
    }
}

#[test]
fn invalid_characters_are_replaced() {
    let entry = |name: &[u8]| {
        let (before, after) = (
            br#"{"device_traces": [[{"action": "alloc", "addr": 512, "size": 512, "frames": [{"name": ""#,
            br#"", "filename": "a.py", "line": 1}]}]]}"#,
        );
        [&before[..], name, after].concat()
    };
    let read = |name: &[u8]| {
        let (memory, imported) = import_all(&entry(name), "characters");
        let definitions = definitions(&memory);
        let (_, site) = split(memory.events[0]);
        (site_frames(&definitions, site)[0].0.clone(), imported.contradictions)
    };
    let (_, sound) = read(b"step");
    // Latin-1, and Python's representation of a file name that is not UTF-8.
    assert_eq!(read(b"caf\xe9"), ("caf?".to_owned(), sound + 1));
    assert_eq!(read(br"caf\udce9"), ("caf\u{fffd}".to_owned(), sound + 1));
    assert_eq!(read(br"\ud83d\ude00"), ("\u{1f600}".to_owned(), sound));
}
