//! Recordings of little programs, put together.

use vramscope_trace::{
    Definition, DeviceId, DeviceInfo, DeviceState, Encoder, Event, EventKind, RecordingInfo, MemoryState, PoolKey, PoolKind,
    Recording, Sink, Site, SiteId, AnnotationStage, StreamId, StringId, site_name,
};

mod limits;
mod walks;

use super::merge::{HOLD_NS, Joined, Merge, Output, WAIT_NS};
use crate::process::Process;

/// A moment since 1970 at which every hub of these tests begins.
const BEGIN_NS: u64 = 1_790_000_000_000_000_000;
/// Late enough for everything.
const LATE_NS: u64 = BEGIN_NS + 3_600_000_000_000;

impl Output for Encoder {
    fn head(&mut self, info: &RecordingInfo) {
        Encoder::update_info(self, info);
    }
    fn state(&self) -> &MemoryState {
        Encoder::state(self)
    }
}

/// A program that is recorded.
struct Program {
    process: Process,
    encoder: Encoder,
    next: u64,
    strings: u32,
}

impl Program {
    /// One whose time 0 is so long after the hub's.
    fn new(number: u32, rank: Option<u32>, after_ns: u64) -> Self {
        let identity = format!("{number:032x}");
        let process = Process { identity, program: "train.py".to_owned(), pid: number, rank, ..Process::default() };
        let device = DeviceInfo { name: "H200".to_owned(), history_complete: true, ..DeviceInfo::default() };
        let info = RecordingInfo { epoch_unix_ns: BEGIN_NS + after_ns, devices: vec![device], ..RecordingInfo::default() };
        Self { process, encoder: Encoder::new(&info), next: 0, strings: 0 }
    }

    fn event(&mut self, time_ns: u64, kind: EventKind) {
        self.encoder.event(&Event { device: DeviceId(0), time_ns, kind });
    }

    /// A block in a segment of its own, at a site of its own name.
    fn allocate(&mut self, time_ns: u64, address: u64, scope: &str) {
        self.encoder.define(&Definition::String(scope.to_owned()));
        self.strings += 1;
        self.encoder.define(&Definition::Site(Site { scope: StringId(self.strings), ..Site::default() }));
        let (site, pool, stream) = (SiteId(self.strings), PoolKey::default_of(PoolKind::Small), StreamId(0));
        self.event(time_ns, EventKind::SegmentAllocated { address, size: 1024, stream, pool, site });
        self.event(time_ns, EventKind::BlockAllocated { address, size: 512, requested: 500, stream, pool, site });
    }

    fn mark(&mut self, time_ns: u64) {
        self.event(time_ns, EventKind::Mark { stage: AnnotationStage::Instant, name: StringId(0), address: 0, site: SiteId(0) });
    }

    /// What it has recorded since the last time, and the number of the next chunk.
    fn chunks(&mut self) -> (Vec<u8>, u64) {
        self.encoder.flush();
        let chunks = self.encoder.take_output();
        self.next += chunks.len() as u64;
        (chunks.into_iter().flat_map(|chunk| chunk.bytes).collect(), self.next)
    }

    fn join(&self, hub: &mut Merge<Encoder>, at_ns: u64) -> Joined {
        hub.join(self.process.clone(), BEGIN_NS + at_ns).expect("there is room")
    }

    #[track_caller]
    fn push(&mut self, hub: &mut Merge<Encoder>, joined: &Joined, at_ns: u64) {
        let (bytes, next) = self.chunks();
        let is_all = hub.take(joined, &bytes, next, BEGIN_NS + at_ns).expect("a recording");
        assert!(is_all, "there is room");
    }

    fn device(&self) -> &DeviceState {
        self.encoder.state().device(DeviceId(0)).expect("it did something")
    }
}

fn hub() -> Merge<Encoder> {
    Merge::new(Encoder::new(&RecordingInfo::default()), BEGIN_NS)
}

fn opened(mut encoder: Encoder) -> Recording {
    encoder.flush();
    let mut recording = Recording::new();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("what is made here is a recording");
    }
    recording.finish().expect("whole chunks");
    recording
}

/// Device and time of every event.
fn order(encoder: Encoder) -> Vec<(u16, u64)> {
    let mut encoder = encoder;
    encoder.flush();
    let mut decoder = vramscope_trace::Decoder::new();
    encoder.take_output().iter().for_each(|chunk| decoder.push(&chunk.bytes));
    let items = std::iter::from_fn(|| decoder.next_item().expect("a recording"));
    items
        .filter_map(|item| match item {
            vramscope_trace::DecodedItem::Event(event) => Some((event.device.0, event.time_ns)),
            _ => None,
        })
        .collect()
}

/// Everything that is known of a device's memory, but for the numbers that are the recording's own.
fn memory(device: &DeviceState) -> impl PartialEq + std::fmt::Debug {
    let segments = device.segments().map(|s| (s.address, s.size, s.stream, s.pool, s.expandable)).collect::<Vec<_>>();
    let blocks = device.blocks().map(|b| (b.address, b.size, b.requested, b.stream, b.pool, b.pending_free));
    (segments, blocks.collect::<Vec<_>>(), device.counters(), device.sample())
}

#[track_caller]
fn check_memory(hub: &Merge<Encoder>, program: &Program) {
    let ours = hub.ours(&program.process.identity, 0).expect("it has said something");
    let merged = hub.output.state().device(ours).expect("something happened there");
    assert_eq!(memory(merged), memory(program.device()));
}

#[test]
fn events_take_their_place_on_the_clock_of_the_machine() {
    let (mut hub, mut a, mut b) = (hub(), Program::new(1, Some(0), 0), Program::new(2, Some(1), 1000));
    let (joined_a, joined_b) = (a.join(&mut hub, 0), b.join(&mut hub, 0));
    [100, 1200, 1200, 1500].into_iter().for_each(|time_ns| a.mark(time_ns));
    [0, 300, 600].into_iter().for_each(|time_ns| b.mark(time_ns));
    a.push(&mut hub, &joined_a, 2000);
    assert_eq!(hub.output.state().event(), 0, "nobody knows yet what the other will say");
    b.push(&mut hub, &joined_b, 2000);
    // The last of `b` waits for `a`.
    assert_eq!(hub.output.state().event(), 6);
    let expected = [(0, 100), (1, 1000), (0, 1200), (0, 1200), (1, 1300), (0, 1500), (1, 1600)];
    assert_eq!(order(hub.finish(LATE_NS)), expected);
}

#[test]
fn a_silent_process_holds_nobody_up_for_long_and_time_never_goes_back() {
    let (mut hub, mut a, mut b) = (hub(), Program::new(1, Some(0), 0), Program::new(2, Some(1), 0));
    let (joined_a, joined_b) = (a.join(&mut hub, 0), b.join(&mut hub, 0));
    a.mark(500);
    a.push(&mut hub, &joined_a, 1000);
    hub.turn(BEGIN_NS + WAIT_NS, false);
    assert_eq!(hub.output.state().event(), 0);
    hub.turn(BEGIN_NS + 1000 + WAIT_NS, false);
    assert_eq!(hub.output.state().event(), 1);
    b.mark(300);
    b.push(&mut hub, &joined_b, 2000 + WAIT_NS);
    hub.leave(&joined_a, BEGIN_NS + 2000 + WAIT_NS);
    b.mark(600);
    b.push(&mut hub, &joined_b, 2000 + WAIT_NS);
    // Whoever is gone is not waited for; its going is a mark.
    assert_eq!(order(hub.finish(LATE_NS)), [(0, 500), (1, 500), (1, 600), (0, 2000 + WAIT_NS)]);
}

#[test]
fn a_clock_that_runs_ahead_moves_nobody_else() {
    let (mut hub, mut a, mut b) = (hub(), Program::new(1, None, 0), Program::new(2, None, u64::MAX / 2));
    let (joined_a, joined_b) = (a.join(&mut hub, 0), b.join(&mut hub, 0));
    b.mark(u64::MAX);
    b.push(&mut hub, &joined_b, 1000);
    a.mark(900);
    a.mark(2000);
    a.push(&mut hub, &joined_a, 2000);
    assert_eq!(order(hub.finish(LATE_NS)), [(1, 900), (0, 1000), (1, 2000)]);
}

#[test]
fn what_began_before_the_hub_keeps_its_time() {
    let (mut hub, mut a) = (hub(), Program::new(1, None, 0));
    let mut early = Program::new(2, None, 0);
    early.encoder = Encoder::new(&RecordingInfo { epoch_unix_ns: BEGIN_NS - 5000, ..RecordingInfo::default() });
    let joined = early.join(&mut hub, 0);
    early.mark(1000);
    early.push(&mut hub, &joined, 0);
    let joined = a.join(&mut hub, 0);
    a.mark(7);
    a.push(&mut hub, &joined, 100);
    let recording = opened(hub.finish(LATE_NS));
    assert_eq!(recording.info().epoch_unix_ns, BEGIN_NS - 5000);
    assert_eq!((recording.start_ns(), recording.end_ns()), (1000, 5007));
}

#[test]
fn a_hub_that_comes_late_puts_what_was_before_it_in_order() {
    const SECOND: u64 = 1_000_000_000;
    let (mut hub, count) = (hub(), 200_000);
    // Both have run for 100 s; one finds the hub five seconds after the other, and each has more to say than may wait.
    let mut programs = [1, 2].map(|number| {
        let mut program = Program::new(number, Some(number), 0);
        program.encoder = Encoder::new(&RecordingInfo { epoch_unix_ns: BEGIN_NS - 100 * SECOND, ..RecordingInfo::default() });
        (0..count).for_each(|n| program.mark(2 * n * 200_000 + u64::from(number)));
        program
    });
    let mut left = Vec::new();
    for (program, at_ns) in programs.iter_mut().zip([0, 5 * SECOND]) {
        let joined = program.join(&mut hub, at_ns);
        let (bytes, next) = program.chunks();
        assert_eq!(hub.take(&joined, &bytes, next, BEGIN_NS + at_ns), Ok(false));
        left.push(joined);
    }
    assert_eq!(hub.output.state().event(), 0);
    let mut now_ns = BEGIN_NS + HOLD_NS;
    while !left.is_empty() {
        now_ns += SECOND / 1000;
        left.retain(|joined| !hub.go_on(joined, now_ns).expect("a recording"));
    }
    let order = order(hub.finish(LATE_NS));
    let expected = (0..count).flat_map(|n| [1, 2].map(|number| (number, 2 * n * 200_000 + u64::from(number))));
    assert!(order.into_iter().eq(expected));
}

#[test]
fn devices_stand_in_the_order_of_ranks() {
    let mut hub = hub();
    for (number, rank) in [(1, Some(1)), (2, Some(0)), (3, Some(0)), (4, None), (5, Some(70_000))] {
        let mut program = Program::new(number, rank, 0);
        let joined = program.join(&mut hub, 0);
        program.mark(1);
        program.push(&mut hub, &joined, 10);
    }
    let recording = opened(hub.finish(LATE_NS));
    let names: Vec<_> = recording.info().devices.iter().map(|device| device.name.as_str()).collect();
    let expected =
        ["rank 0 · H200", "rank 1 · H200", "rank 0, run 2 · H200", "train.py, process 4 · H200", "rank 70000 · H200"];
    assert_eq!(names, expected);
}

#[test]
fn devices_and_sites_are_known_by_their_own_names() {
    let (mut hub, mut a, mut b) = (hub(), Program::new(1, Some(0), 0), Program::new(2, Some(1), 0));
    let (joined_a, joined_b) = (a.join(&mut hub, 0), b.join(&mut hub, 0));
    a.allocate(1, 4096, "forward");
    a.allocate(2, 8192, "backward");
    b.allocate(3, 4096, "backward");
    b.allocate(4, 8192, "optimizer");
    a.push(&mut hub, &joined_a, 10);
    b.push(&mut hub, &joined_b, 10);
    let recording = opened(hub.finish(LATE_NS));
    let devices: Vec<_> = recording.info().devices.iter().map(|d| (d.device, d.name.as_str(), d.rank)).collect();
    assert_eq!(devices, [(0, "rank 0 · H200", Some(0)), (1, "rank 1 · H200", Some(1))]);
    assert_eq!(recording.info().devices[1].process, "train.py, process 2");
    assert!(recording.info().devices.iter().all(|device| device.history_complete));
    let definitions = recording.definitions();
    let names = |device: u16| {
        let device = recording.end_state().device(DeviceId(device)).expect("something is there");
        device.blocks().map(|block| site_name(definitions, block.site)).collect::<Vec<_>>()
    };
    assert_eq!(names(0), ["forward", "backward"]);
    assert_eq!(names(1), ["backward", "optimizer"]);
    assert_eq!(definitions.site_count(), 3);
}

#[test]
fn a_gap_of_one_process_is_told_and_mended_and_touches_no_other() {
    let (mut hub, mut a, mut b) = (hub(), Program::new(1, Some(0), 0), Program::new(2, Some(1), 0));
    let (joined_a, joined_b) = (a.join(&mut hub, 0), b.join(&mut hub, 0));
    a.allocate(1, 4096, "kept");
    b.allocate(1, 4096, "other");
    a.push(&mut hub, &joined_a, 10);
    b.push(&mut hub, &joined_b, 10);
    // What a viewer is sent that was too slow: definitions, and then a state ahead.
    a.allocate(20, 65536, "missed");
    let state = a.encoder.state().clone();
    a.encoder.full_state(&state);
    let kinds = [vramscope_trace::ChunkKind::Definitions, vramscope_trace::ChunkKind::State];
    let chunks = a.encoder.take_output().into_iter().filter(|chunk| kinds.contains(&chunk.kind));
    let bytes: Vec<u8> = chunks.flat_map(|chunk| chunk.bytes).collect();
    hub.take(&joined_a, &bytes, 9, BEGIN_NS + 30).expect("a recording");
    a.allocate(40, 131_072, "after");
    a.push(&mut hub, &joined_a, 50);
    hub.turn(LATE_NS, true);
    check_memory(&hub, &a);
    check_memory(&hub, &b);
    let left = hub.leave(&joined_a, BEGIN_NS + 60).expect("it was here");
    assert_eq!((left.lost, left.has_ended), (2, false));
    let recording = opened(hub.finish(LATE_NS));
    assert_eq!(recording.lost_events(), 2);
    let device = recording.end_state().device(DeviceId(0)).expect("it is there");
    let blocks: Vec<_> =
        device.blocks().map(|block| (site_name(recording.definitions(), block.site), block.since_event)).collect();
    // What was known before keeps its beginning; the gap is event 4.
    assert_eq!(blocks, [("kept".to_owned(), 1), ("missed".to_owned(), 5), ("after".to_owned(), 6)]);
    let complete: Vec<_> = recording.info().devices.iter().map(|device| device.history_complete).collect();
    assert_eq!(complete, [false, true]);
}

#[test]
fn one_who_comes_late_is_shown_as_it_is() {
    let (mut hub, mut late) = (hub(), Program::new(1, None, 0));
    late.allocate(1, 4096, "early");
    let (whole, _) = late.chunks();
    let state = late.encoder.state().clone();
    late.encoder.full_state(&state);
    let (state, next) = late.chunks();
    let mut first = vramscope_trace::Decoder::new();
    first.push(&whole);
    // Head and definitions, without the events.
    let mut encoder = Program::new(1, None, 0).encoder;
    while let Some(item) = first.next_item().expect("a recording") {
        if let vramscope_trace::DecodedItem::Define(definition) = item {
            encoder.define(&definition);
        }
    }
    encoder.flush();
    let mut bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    bytes.extend(state);
    let joined = late.join(&mut hub, 0);
    hub.take(&joined, &bytes, next, BEGIN_NS + 10).expect("a recording");
    late.mark(30);
    late.push(&mut hub, &joined, 40);
    hub.turn(LATE_NS, true);
    check_memory(&hub, &late);
    let recording = opened(hub.finish(LATE_NS));
    assert_eq!((recording.lost_events(), recording.events()), (0, 1));
    assert!(!recording.info().devices[0].history_complete);
}

#[test]
fn a_connection_that_is_lost_goes_on_where_it_was() {
    let (mut hub, mut a) = (hub(), Program::new(1, Some(3), 0));
    let first = a.join(&mut hub, 0);
    assert_eq!((first.resume, first.is_back), (0, false));
    a.allocate(1, 4096, "one");
    a.push(&mut hub, &first, 10);
    let taken = a.next;
    a.allocate(2, 8192, "two");
    let (lost, _) = a.chunks();
    // The old connection is not known to be gone when the new one comes.
    let second = a.join(&mut hub, 20);
    assert_eq!((second.resume, second.is_back), (taken, true));
    assert!(hub.take(&first, &lost, a.next, BEGIN_NS + 20).is_err());
    assert_eq!(hub.leave(&first, BEGIN_NS + 20), None);
    hub.take(&second, &lost, a.next, BEGIN_NS + 20).expect("what follows");
    hub.end(&second, BEGIN_NS + 30);
    assert_eq!(hub.leave(&second, BEGIN_NS + 30).map(|left| (left.has_ended, left.lost)), Some((true, 0)));
    hub.turn(LATE_NS, true);
    check_memory(&hub, &a);
    let recording = opened(hub.finish(LATE_NS));
    let marks: Vec<_> = recording.annotations().iter().map(|mark| recording.definitions().string(mark.name)).collect();
    assert_eq!((marks, recording.lost_events(), recording.info().devices.len()), (vec!["process ended"], 0, 1));
}

#[test]
fn a_program_that_is_started_again_is_another_process() {
    let (mut hub, mut before) = (hub(), Program::new(1, Some(0), 0));
    let joined = before.join(&mut hub, 0);
    before.allocate(1, 4096, "a");
    before.push(&mut hub, &joined, 10);
    hub.leave(&joined, BEGIN_NS + 20);
    let mut after = Program::new(2, Some(0), 1000);
    let joined = after.join(&mut hub, 1000);
    after.allocate(1, 8192, "a");
    after.push(&mut hub, &joined, 2000);
    hub.turn(LATE_NS, true);
    check_memory(&hub, &before);
    check_memory(&hub, &after);
    let recording = opened(hub.finish(LATE_NS));
    let names: Vec<_> = recording.info().devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["rank 0 · H200", "rank 0, run 2 · H200"]);
}

#[test]
fn what_one_says_wrong_ends_that_one_alone() {
    let check = |bytes: &dyn Fn(&mut Program) -> Vec<u8>, expected: &str| {
        let (mut hub, mut good, mut bad) = (hub(), Program::new(1, None, 0), Program::new(2, None, 0));
        let (joined_good, joined_bad) = (good.join(&mut hub, 0), bad.join(&mut hub, 0));
        good.allocate(1, 4096, "a");
        good.push(&mut hub, &joined_good, 10);
        let wrong = bytes(&mut bad);
        let error = hub.take(&joined_bad, &wrong, 1, BEGIN_NS + 10).expect_err("it is wrong");
        assert!(error.contains(expected), "{error}");
        // It stays out.
        assert_eq!(hub.take(&joined_bad, &wrong, 1, BEGIN_NS + 10), Err(error.clone()));
        hub.leave(&joined_bad, BEGIN_NS + 10);
        assert_eq!(hub.join(bad.process.clone(), BEGIN_NS + 20).expect_err("it stays out"), error);
        good.allocate(20, 8192, "b");
        good.push(&mut hub, &joined_good, 30);
        hub.turn(LATE_NS, true);
        check_memory(&hub, &good);
        opened(hub.finish(LATE_NS));
    };
    check(&|_| b"GET / HTTP/1.1".to_vec(), "not a vramscope recording");
    check(&|bad| bad.chunks().0[..40].to_vec(), "the recording ends");
    check(
        &|bad| {
            let mut bytes = bad.chunks().0;
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            bytes
        },
        "checksum",
    );
    check(
        &|bad| {
            (0..100).for_each(|device| {
                let kind = EventKind::Gap { lost: 0 };
                bad.encoder.event(&Event { device: DeviceId(device), time_ns: 0, kind });
            });
            bad.chunks().0
        },
        "more than 64 devices",
    );
}

#[test]
fn a_mark_is_for_all_who_are_here_and_moves_nobody() {
    let (mut hub, mut a, mut b) = (hub(), Program::new(1, Some(0), 0), Program::new(2, Some(1), 0));
    let (joined_a, joined_b) = (a.join(&mut hub, 0), b.join(&mut hub, 0));
    assert_eq!(hub.mark_all("nobody", BEGIN_NS), 0);
    const NOW_NS: u64 = 2 * WAIT_NS;
    a.mark(1);
    b.mark(NOW_NS - 7);
    a.push(&mut hub, &joined_a, NOW_NS);
    b.push(&mut hub, &joined_b, NOW_NS);
    assert_eq!(hub.mark_all("here", BEGIN_NS + NOW_NS), 2);
    a.mark(NOW_NS - 10);
    a.push(&mut hub, &joined_a, NOW_NS + 10);
    hub.leave(&joined_b, BEGIN_NS + NOW_NS + 20);
    assert_eq!(hub.mark_all("here", BEGIN_NS + NOW_NS + 20), 1);
    hub.turn(LATE_NS, true);
    let expected = [(0, 1), (0, WAIT_NS), (1, WAIT_NS), (0, WAIT_NS + 20)];
    let order = order(hub.finish(LATE_NS));
    assert_eq!(order[..3], expected[..3]);
    assert!(order.contains(&(0, NOW_NS - 10)) && order.contains(&(1, NOW_NS - 7)), "{order:?}");
}

#[test]
fn whose_devices_are_here() {
    let (mut hub, mut a, mut b) = (hub(), Program::new(1, Some(0), 0), Program::new(2, Some(1), 0));
    let (joined_a, joined_b) = (a.join(&mut hub, 0), b.join(&mut hub, 0));
    assert!(hub.here().is_empty());
    a.mark(1);
    b.mark(1);
    a.push(&mut hub, &joined_a, 10);
    b.push(&mut hub, &joined_b, 10);
    assert!(hub.here().into_iter().eq([0, 1]));
    hub.end(&joined_a, BEGIN_NS + 20);
    assert!(hub.here().into_iter().eq([1]));
    hub.leave(&joined_b, BEGIN_NS + 20);
    assert!(hub.here().is_empty());
    b.join(&mut hub, 30);
    assert!(hub.here().into_iter().eq([1]));
}
