//! Matching the code of two versions of a program.

use std::sync::Arc;

use vramscope_insight::difference::MatchingNames;
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::matching::MatchedSites;
use vramscope_trace::{
    DeviceId, Encoder, Event, EventKind, Frame, Interner, Lifetimes, PoolKey, Recording, RecordingInfo, Sink, Site,
    SiteId, StackId, StreamId,
};

/// Returns the recording of a program that allocates once at each of `lines`: function, line,
/// bytes.
fn program(lines: impl IntoIterator<Item = (String, u32, u64)>) -> Recording {
    let (mut encoder, mut interner) = (Encoder::new(&RecordingInfo::default()), Interner::default());
    let (stream, pool) = (StreamId(0), PoolKey::default());
    let event = |kind| Event { device: DeviceId(0), time_ns: 1, kind };
    let segment = EventKind::SegmentAllocated { address: 0, size: 1 << 40, stream, pool, site: SiteId(0) };
    encoder.event(&event(segment));
    let mut address = 0;
    for (function, line, size) in lines {
        let (file, function) = (interner.string("train.py"), interner.string(&function));
        let frame = interner.frame(Frame { function, file, line });
        let stack = interner.stack(frame, StackId(0));
        let site = interner.site(Site { stack, ..Site::default() });
        for definition in interner.take_new() {
            encoder.define(&definition);
        }
        encoder.event(&event(EventKind::BlockAllocated { address, size, requested: size, stream, pool, site }));
        address += size;
    }
    encoder.flush();
    let mut recording = Recording::new();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("the encoder wrote valid chunks");
    }
    recording
}

/// Matches the sites of two recordings.
fn matched(a: &Recording, b: &Recording) -> MatchedSites {
    let [of_a, of_b] = [a, b].map(|recording| Lifetimes::from_recording(recording).expect("the chunks are valid"));
    MatchedSites::new((a.definitions(), &of_a), (b.definitions(), &of_b))
}

/// Returns a program with this many functions of `lines` lines each, which differ in their sizes.
fn functions(prefix: &str, count: u64, lines: u32) -> Recording {
    program((0..count).flat_map(|function| {
        (1..=lines).map(move |line| (format!("{prefix}{function}"), line, 512 * (1 + function * 64 + u64::from(line))))
    }))
}

#[test]
fn groups_of_moved_lines_and_renamed_functions_have_their_names_in_b() {
    let line = |function: &str, line, bytes| (function.to_owned(), line, bytes);
    let a = program([line("f", 11, 1024), line("f", 12, 2048), line("g", 20, 4096)]);
    let b = program([line("f", 12, 1024), line("f", 13, 2048), line("h", 21, 4096)]);
    let sites = matched(&a, &b);
    assert!(!sites.is_limited());
    assert_eq!(sites.numbers().a, sites.numbers().b);
    let check = |by: GroupBy, expected: &[(&str, &str)]| {
        let groupings = [&a, &b].map(|recording| Grouping::of(by, recording));
        let [mut in_a, mut in_b] = groupings;
        let names = MatchingNames::new(&sites, (a.definitions(), &mut in_a), (b.definitions(), &mut in_b));
        for (name, name_in_b) in expected {
            assert_eq!(&**names.name_in_b(&Arc::from(*name)), *name_in_b, "{by:?}");
        }
    };
    // Line 12 exists in both, and is not the same line.
    check(
        GroupBy::Line,
        &[("train.py:11", "train.py:12"), ("train.py:12", "train.py:13"), ("train.py:20", "train.py:21")],
    );
    check(GroupBy::Category, &[("unknown", "unknown")]);
}

#[test]
fn renamed_functions_are_found() {
    let (a, b) = (functions("old", 40, 5), functions("new", 40, 5));
    let sites = matched(&a, &b);
    assert!(!sites.is_limited());
    assert_eq!(sites.numbers().a, sites.numbers().b);
}

#[test]
fn search_for_thousands_of_renamed_functions_is_limited_and_says_so() {
    // 250,000 pairs of functions with 2,500 pairs of lines each.
    let (a, b) = (functions("old", 500, 50), functions("new", 500, 50));
    let sites = matched(&a, &b);
    assert!(sites.is_limited());
    let numbers = sites.numbers();
    assert_eq!((numbers.a.len(), numbers.b.len()), (25_001, 25_001));
    assert_ne!(numbers.a[1], numbers.b[1], "they were not compared");
    // Code that kept its names is matched all the same.
    let sites = matched(&a, &a);
    assert!(!sites.is_limited());
    assert_eq!(sites.numbers().a, sites.numbers().b);
}

#[test]
fn lines_of_long_functions_keep_their_numbers_and_this_is_said() {
    let long = |first: u32| program((0..1500).map(|line| ("f".to_owned(), first + line, 512 + 512 * u64::from(line))));
    assert!(!matched(&long(1), &long(1)).is_limited());
    assert!(matched(&long(1), &long(2)).is_limited());
}
