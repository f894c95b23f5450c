//! Comparisons of small recordings.

use vramscope_trace::{
    Churn, DeviceId, Encoder, Event, EventKind, Frame, Interner, PerRecording, PoolKey, Recording, RecordingInfo, Sink,
    Site, SiteId, StackId, StreamId, metrics_over_time,
};

use super::compare::{Comparison, Side, compare};
use super::first_difference::FirstDifferenceKind;
use super::moment::{Moment, MomentError};
use super::site_changes::{BlockTotals, SiteChange};
use crate::history::History;

/// An event of a program: an allocation (function, line, bytes), or the free of the allocation with
/// an index.
#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(&'static str, u32, u64),
    Free(usize),
}
use Step::{Allocate, Free};

/// Returns the recording of a program in `file`. If `started`, its stacks have an outermost frame
/// of `runpy`, which started it.
fn recording_of(file: &str, started: bool, steps: &[Step]) -> Recording {
    let (mut encoder, mut interner) = (Encoder::new(&RecordingInfo::default()), Interner::default());
    let (stream, pool) = (StreamId(0), PoolKey::default());
    let event = |encoder: &mut Encoder, kind| encoder.event(&Event { device: DeviceId(0), time_ns: 1, kind });
    let whole = EventKind::SegmentAllocated { address: 1 << 20, size: 1 << 20, stream, pool, site: SiteId(0) };
    event(&mut encoder, whole);
    let mut addresses = vec![1 << 20];
    for step in steps {
        let &Allocate(function, line, size) = step else {
            let &Free(number) = step else { unreachable!("there are two kinds of steps") };
            event(&mut encoder, EventKind::FreeCompleted { address: addresses[number], site: SiteId(0) });
            continue;
        };
        let file = interner.string(file);
        let [main, function, run] = ["<module>", function, "run_path"].map(|name| interner.string(name));
        let outer = interner.frame(Frame { function: main, file, line: 1 });
        let inner = interner.frame(Frame { function, file, line });
        let start = interner.frame(Frame { function: run, file, line: 286 });
        let start = if started { interner.stack(start, StackId(0)) } else { StackId(0) };
        let outer = interner.stack(outer, start);
        let stack = interner.stack(inner, outer);
        let site = interner.site(Site { stack, ..Site::default() });
        for definition in interner.take_new() {
            encoder.define(&definition);
        }
        let address = addresses[addresses.len() - 1];
        event(&mut encoder, EventKind::BlockAllocated { address, size, requested: size, stream, pool, site });
        addresses.push(address + size);
    }
    encoder.flush();
    let mut recording = Recording::new();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("the encoder wrote valid chunks");
    }
    recording
}

/// Returns the recording of a program that makes an allocation for each of `sites` (function, line,
/// bytes) and frees the last.
fn recording(sites: &[(&'static str, u32, u64)]) -> Recording {
    recording_of("train.py", false, &steps(sites))
}

fn steps(sites: &[(&'static str, u32, u64)]) -> Vec<Step> {
    let allocate = sites.iter().map(|&(function, line, size)| Allocate(function, line, size));
    allocate.chain(sites.len().checked_sub(1).map(Free)).collect()
}

fn history(recording: &Recording) -> History {
    let mut history = History::new();
    history.extend(recording, u64::MAX).expect("the recording can be read");
    history
}

/// Compares two recordings at their peaks.
fn compared(a: &Recording, b: &Recording) -> Comparison {
    let (of_a, of_b) = (history(a), history(b));
    let side = |recording, history| Side { recording, history, moment: &Moment::Peak };
    compare(PerRecording { a: side(a, &of_a), b: side(b, &of_b) }, None).expect("both recordings can be read")
}

/// Returns the sites of the only device.
fn sites_of(comparison: &Comparison) -> &[SiteChange] {
    let [device] = comparison.devices.as_slice() else { panic!("{comparison:?}") };
    &device.sites
}

/// Checks the name, the bytes at the peaks and the bytes at the ends of each site.
#[track_caller]
fn check(a: &[(&'static str, u32, u64)], b: &[(&'static str, u32, u64)], expected: &[(&str, [u64; 2], [u64; 2])]) {
    let comparison = compared(&recording(a), &recording(b));
    let bytes = |totals: PerRecording<BlockTotals>| [totals.a.bytes, totals.b.bytes];
    let sites = sites_of(&comparison).iter();
    let actual: Vec<_> = sites.map(|site| (site.name.as_str(), bytes(site.at_moment), bytes(site.end))).collect();
    assert_eq!(actual, expected);
}

#[test]
fn sites_are_matched_by_content() {
    let (f, g, last) = (("f", 3, 1024), ("g", 4, 512), ("last", 9, 512));
    let freed = ("train.py:9 last", [512, 512], [0, 0]);
    // Another order leads to other site numbers.
    check(
        &[f, g, last],
        &[g, f, f, last],
        &[("train.py:3 f", [1024, 2048], [1024, 2048]), ("train.py:4 g", [512, 512], [512, 512]), freed],
    );
    check(&[f, last], &[last], &[("train.py:3 f", [1024, 0], [1024, 0]), freed]);
}

#[test]
fn sites_match_despite_moved_lines() {
    let last = ("last", 9, 512);
    let freed = ("train.py:9 last", [512, 512], [0, 0]);
    let moved = ("train.py:5 f", [1024, 1024], [1024, 1024]);
    check(&[("f", 3, 1024), last], &[("f", 5, 1024), last], &[moved, freed]);
    // Both recordings have line 3, so line 5 is another site.
    check(
        &[("f", 3, 1024), last],
        &[("f", 3, 1024), ("f", 5, 2048), last],
        &[("train.py:5 f", [0, 2048], [0, 2048]), ("train.py:3 f", [1024, 1024], [1024, 1024]), freed],
    );
    // Line 4 was removed.
    check(
        &[("f", 3, 1024), ("f", 4, 512), last],
        &[("f", 6, 1024), last],
        &[("train.py:4 f", [512, 0], [512, 0]), ("train.py:6 f", [1024, 1024], [1024, 1024]), freed],
    );
    // Lines 3 to 5 became lines 4 to 6, so line 4 is not line 4. The first of them allocates more.
    check(
        &[("f", 3, 1024), ("f", 4, 2048), ("f", 5, 4096), last],
        &[("f", 4, 1536), ("f", 5, 2048), ("f", 6, 4096), last],
        &[
            ("train.py:4 f", [1024, 1536], [1024, 1536]),
            ("train.py:6 f", [4096, 4096], [4096, 4096]),
            ("train.py:5 f", [2048, 2048], [2048, 2048]),
            freed,
        ],
    );
}

#[test]
fn sites_match_despite_renamed_functions() {
    let last = ("last", 9, 512);
    check(
        &[("f", 3, 1024), ("g", 4, 2048), last],
        &[("f", 5, 1024), ("h", 6, 2048), ("h", 7, 512), last],
        &[
            ("train.py:7 h", [0, 512], [0, 512]),
            ("train.py:6 h", [2048, 2048], [2048, 2048]),
            ("train.py:5 f", [1024, 1024], [1024, 1024]),
            ("train.py:9 last", [512, 512], [0, 0]),
        ],
    );
}

#[test]
fn sites_match_despite_moved_files() {
    let lines = |add: u32| steps(&[("f", 3 + add, 1024), ("f", 4 + add, 2048), ("last", 9 + add, 512)]);
    let here = recording_of("/home/a/train.py", false, &lines(0));
    for there in [
        recording_of("/opt/run.py", false, &lines(0)),
        recording_of("/opt/run.py", true, &lines(0)),
        recording_of("/opt/run.py", true, &lines(20)),
    ] {
        let comparison = compared(&here, &there);
        let sites = sites_of(&comparison);
        assert_eq!(sites.len(), 3, "{comparison:?}");
        assert!(sites.iter().all(|site| site.growth() == (0, 0)), "{comparison:?}");
        assert!(sites.iter().all(|site| site.name.starts_with("run.py")), "{comparison:?}");
        assert_eq!(comparison.devices[0].first_difference, None);
    }
}

#[test]
fn freed_blocks_count_as_allocations() {
    let (f, last) = (("f", 3, 1024), ("last", 9, 512));
    let comparison = compared(&recording(&[f, last]), &recording(&[f, f, last]));
    let churn = |allocations, bytes| Churn { allocations, bytes };
    let of_sites: Vec<_> = sites_of(&comparison).iter().map(|site| (site.name.as_str(), site.churn)).collect();
    let expected = [
        ("train.py:3 f", PerRecording { a: churn(1, 1024), b: churn(2, 2048) }),
        ("train.py:9 last", PerRecording { a: churn(1, 512), b: churn(1, 512) }),
    ];
    assert_eq!(of_sites, expected);
    let totals = comparison.devices[0].totals;
    assert_eq!(totals.a.map(|totals| totals.churn), Some(churn(2, 1536)));
    assert_eq!(totals.b.map(|totals| totals.churn), Some(churn(3, 2560)));
}

#[test]
fn site_without_memory_at_peak_and_end_is_listed() {
    // The block of `last` is freed, and the next is larger: the peak comes later.
    let b = recording_of("train.py", false, &[Allocate("last", 9, 512), Free(0), Allocate("next", 10, 4096)]);
    let comparison = compared(&recording(&[]), &b);
    let last = sites_of(&comparison).iter().find(|site| site.name == "train.py:9 last").expect("it allocates");
    assert_eq!((last.at_moment, last.end), (PerRecording::default(), PerRecording::default()));
    assert_eq!(last.churn.b, Churn { allocations: 1, bytes: 512 });
}

#[test]
fn device_may_be_in_one_recording_only() {
    let comparison = compared(&Recording::new(), &recording(&[("f", 3, 1024)]));
    let [device] = comparison.devices.as_slice() else { panic!("{comparison:?}") };
    assert_eq!(device.totals.a, None);
    let totals = device.totals.b.expect("the second recording has the device");
    assert_eq!((totals.events, totals.peak_allocated_bytes, totals.allocated_bytes), (3, 1024, 0));
    assert_eq!((totals.peak_fragmentation, totals.ooms), (0.0, 0));
    assert_eq!((device.live_growth(), device.sites[0].live_growth()), (1024, 1024));
}

#[test]
fn metrics_over_time_summarize_the_samples() {
    let recording = recording(&[("f", 3, 1 << 19), ("g", 4, 1 << 18), ("last", 9, 1 << 17)]);
    let metrics = metrics_over_time(&recording, DeviceId(0)).expect("the recording can be read");
    let free: Vec<_> = metrics.iter().map(|(event, _, metrics)| (event, metrics.free.total)).collect();
    // The beginning, the peak and the end.
    assert_eq!(free, [(0, 0), (4, 1 << 17), (5, 1 << 18)]);
    let free = metrics.summary(|metrics| metrics.free.total as f64);
    // All events have one time, so the mean is the mean of the samples.
    assert_eq!((free.highest, free.highest_event, free.mean), (f64::from(1 << 18), 5, f64::from(1 << 17)));
}

/// Checks how the requests of two programs first differ, after how many equal ones, and which site
/// comes first.
#[track_caller]
fn check_difference(a: &[Step], b: &[Step], expected: Option<(FirstDifferenceKind, u64)>, first_site: &str) {
    let comparison = compared(&recording_of("train.py", false, a), &recording_of("train.py", false, b));
    let difference = comparison.devices[0].first_difference;
    assert_eq!(difference.map(|difference| (difference.kind, difference.equal_requests)), expected);
    let first = &sites_of(&comparison)[0];
    assert_eq!((first.name.as_str(), first.is_first_difference), (first_site, expected.is_some()));
}

#[test]
fn first_difference_is_found_and_its_site_comes_first() {
    use FirstDifferenceKind::{FreedEarlierInA, OnlyInA, OnlyInB, Size};
    let a = [
        Allocate("init", 3, 512),
        Allocate("f", 5, 1024),
        Allocate("g", 6, 2048),
        Free(1),
        Allocate("h", 7, 2048),
        Allocate("i", 8, 512),
        Allocate("j", 9, 512),
    ];
    // The weights became larger, and the memory that depends on them even more.
    let mut larger = a;
    (larger[0], larger[4]) = (Allocate("init", 3, 1024), Allocate("h", 7, 8192));
    check_difference(&a, &larger, Some((Size, 0)), "train.py:3 init");
    let mut kept = a.to_vec();
    kept.remove(3);
    check_difference(&a, &kept, Some((FreedEarlierInA, 3)), "train.py:5 f");
    let mut inserted = a.to_vec();
    inserted.insert(2, Allocate("new", 20, 512));
    inserted[4] = Free(1);
    check_difference(&a, &inserted, Some((OnlyInB, 2)), "train.py:20 new");
    check_difference(&inserted, &a, Some((OnlyInA, 2)), "train.py:20 new");
}

#[test]
fn slightly_different_sizes_do_not_come_first() {
    let a = [Allocate("init", 3, 10240), Allocate("f", 5, 1024), Allocate("g", 6, 2048)];
    let b = [Allocate("init", 3, 10752), Allocate("f", 5, 1024), Allocate("g", 6, 65536)];
    let comparison = compared(&recording_of("train.py", false, &a), &recording_of("train.py", false, &b));
    let first = &sites_of(&comparison)[0];
    assert_eq!((first.name.as_str(), first.is_first_difference), ("train.py:6 g", false));
}

#[test]
fn moments_of_one_recording_are_compared() {
    let recording = recording(&[("f", 3, 1024), ("g", 4, 2048), ("last", 9, 512)]);
    let history = history(&recording);
    let side = |moment| Side { recording: &recording, history: &history, moment };
    let comparison = compare(PerRecording { a: side(&Moment::Event(2)), b: side(&Moment::End) }, None);
    let comparison = comparison.expect("the recording has both moments");
    let device = &comparison.devices[0];
    assert_eq!((device.live_growth(), device.first_difference), (2048, None));
    let growths: Vec<_> = device.sites.iter().map(|site| (site.name.as_str(), site.live_growth())).collect();
    assert_eq!(growths, [("train.py:4 g", 2048), ("train.py:3 f", 0), ("train.py:9 last", 0)]);
}

#[test]
fn moments_are_parsed_and_looked_up() {
    let moments = [
        ("peak", Moment::Peak),
        ("end", Moment::End),
        ("12", Moment::Event(12)),
        ("step:3", Moment::Step(3)),
        ("span:step:3", Moment::Span("step:3".to_owned())),
    ];
    for (text, moment) in moments {
        assert_eq!((text.parse(), moment.to_string().as_str()), (Ok(moment), text));
    }
    for text in ["", "Peak", "-1", "1.5", "step:", "step:x", "span:", "18446744073709551616"] {
        let error = text.parse::<Moment>().expect_err(text);
        assert!(error.to_string().contains("use an event number, peak, end, step:N or span:NAME"), "{error}");
    }
    let recording = recording(&[("f", 3, 1024)]);
    let history = history(&recording);
    let event = |moment: Moment| moment.event(&recording, &history, DeviceId(0));
    assert_eq!((event(Moment::Peak), event(Moment::End), event(Moment::Event(1))), (Ok(2), Ok(3), Ok(1)));
    let error = event(Moment::Event(4)).expect_err("there are three events");
    assert_eq!(error, MomentError::NoEvent { event: 4, events: 3, first: 0, last: 3 });
    assert_eq!(error.to_string(), "no event 4: the recording has 3 events, use 0 to 3");
    let error = event(Moment::Step(1)).expect_err("nothing repeats");
    assert!(error.to_string().starts_with("no step 1: device 0 has no spans of steps"), "{error}");
    assert!(matches!(event(Moment::Span("forward".to_owned())), Err(MomentError::NoSpan { .. })));
}
