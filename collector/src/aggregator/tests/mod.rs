//! Merging the recordings of small simulated programs.

use vramscope_trace::{
    AnnotationStage, Category, Definition, DeviceId, DeviceInfo, DeviceState, Encoder, Event, EventKind, MemoryState,
    PoolKey, PoolKind, Recording, RecordingInfo, Relabel, Sink, Site, SiteId, StreamId, StringId, site_name,
};

mod held_marks;
mod limits;
mod walks;

use super::merge::{HOLD_NS, JoinError, Merger, MergerConnection, Output};
use super::source::WAIT_NS;
use crate::process::Process;

/// The Unix time at which every merger of these tests starts.
const START_NS: u64 = 1_790_000_000_000_000_000;
/// A Unix time after all events.
const END_NS: u64 = START_NS + 3_600_000_000_000;

impl Output for Encoder {
    fn update_info(&mut self, info: &RecordingInfo) {
        Encoder::update_info(self, info);
    }
    fn state(&self) -> &MemoryState {
        Encoder::state(self)
    }
}

/// A simulated program with its recording.
struct Program {
    process: Process,
    encoder: Encoder,
    next: u64,
    strings: u32,
}

impl Program {
    /// Creates a program that starts `delay_ns` after the merger.
    fn new(number: u32, rank: Option<u32>, delay_ns: u64) -> Self {
        let identity = format!("{number:032x}");
        let process = Process { identity, program: "train.py".to_owned(), pid: number, rank, ..Process::default() };
        let device = DeviceInfo { name: "H200".to_owned(), history_complete: true, ..DeviceInfo::default() };
        let info =
            RecordingInfo { epoch_unix_ns: START_NS + delay_ns, devices: vec![device], ..RecordingInfo::default() };
        Self { process, encoder: Encoder::new(&info), next: 0, strings: 0 }
    }

    fn event(&mut self, time_ns: u64, kind: EventKind) {
        self.encoder.event(&Event { device: DeviceId(0), time_ns, kind });
    }

    /// Records the allocation of a block in a new segment, at a new site with the scope `scope`.
    fn allocate(&mut self, time_ns: u64, address: u64, scope: &str) {
        self.encoder.define(&Definition::String(scope.to_owned()));
        self.strings += 1;
        self.encoder.define(&Definition::Site(Site { scope: StringId(self.strings), ..Site::default() }));
        let (site, pool, stream) = (SiteId(self.strings), PoolKey::default_of(PoolKind::Small), StreamId(0));
        self.event(time_ns, EventKind::SegmentAllocated { address, size: 1024, stream, pool, site });
        self.event(time_ns, EventKind::BlockAllocated { address, size: 512, requested: 500, stream, pool, site });
    }

    fn mark(&mut self, time_ns: u64) {
        self.event(
            time_ns,
            EventKind::Mark { stage: AnnotationStage::Instant, name: StringId(0), address: 0, site: SiteId(0) },
        );
    }

    /// Returns the chunks recorded since the last call, and the number of the chunk after them.
    fn chunks(&mut self) -> (Vec<u8>, u64) {
        self.encoder.flush();
        let chunks = self.encoder.take_output();
        self.next += chunks.len() as u64;
        (chunks.into_iter().flat_map(|chunk| chunk.bytes).collect(), self.next)
    }

    fn join(&self, merger: &mut Merger<Encoder>, at_ns: u64) -> MergerConnection {
        merger.join(self.process.clone(), START_NS + at_ns).expect("the process is accepted")
    }

    #[track_caller]
    fn push(&mut self, merger: &mut Merger<Encoder>, joined: &MergerConnection, at_ns: u64) {
        let (bytes, next) = self.chunks();
        let is_complete = merger.push(joined, &bytes, next, START_NS + at_ns).expect("valid chunks");
        assert!(is_complete, "the pending limit is not reached");
    }

    fn device(&self) -> &DeviceState {
        self.encoder.state().device(DeviceId(0)).expect("the program has recorded events")
    }
}

fn merger() -> Merger<Encoder> {
    Merger::new(Encoder::new(&RecordingInfo::default()), START_NS)
}

fn opened(mut encoder: Encoder) -> Recording {
    encoder.flush();
    let mut recording = Recording::new();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("the merger writes a valid recording");
    }
    recording.finish().expect("whole chunks");
    recording
}

/// Returns the device and time of every event.
fn order(encoder: Encoder) -> Vec<(u16, u64)> {
    let mut encoder = encoder;
    encoder.flush();
    let mut decoder = vramscope_trace::Decoder::new();
    encoder.take_output().iter().for_each(|chunk| decoder.push(&chunk.bytes));
    let items = std::iter::from_fn(|| decoder.next_item().expect("valid chunks"));
    items
        .filter_map(|item| match item {
            vramscope_trace::DecodedItem::Event(event) => Some((event.device.0, event.time_ns)),
            _ => None,
        })
        .collect()
}

/// Returns a device's segments, blocks, counters and memory sample, without site and event numbers,
/// which differ between recordings.
fn memory(device: &DeviceState) -> impl PartialEq + std::fmt::Debug {
    let segments = device.segments().map(|s| (s.address, s.size, s.stream, s.pool, s.expandable)).collect::<Vec<_>>();
    let blocks = device.blocks().map(|b| (b.address, b.size, b.requested, b.stream, b.pool, b.pending_free));
    (segments, blocks.collect::<Vec<_>>(), device.counters(), device.sample())
}

/// Compares the merged device of a program with its own. The merged recording lacks the device if a
/// first full state without memory is all that it received.
#[track_caller]
fn check_memory(merger: &Merger<Encoder>, program: &Program) {
    let device = merger.merged_device_id(&program.process.identity, 0).expect("the program has pushed events");
    let empty = DeviceState::default();
    let merged = merger.output.state().device(device).unwrap_or(&empty);
    assert_eq!(memory(merged), memory(program.device()));
}

#[test]
fn relabels_get_the_merged_numbers() {
    let mut merger = merger();
    let mut programs = [Program::new(1, Some(0), 0), Program::new(2, Some(1), 1000)];
    for program in &mut programs {
        let joined = program.join(&mut merger, 10_000);
        program.allocate(2000, 1 << 20, "fit");
        program.push(&mut merger, &joined, 20_000);
        let (scope, category) =
            (StringId(1), [Category::Parameter, Category::Gradient][program.process.pid as usize - 1]);
        program.encoder.define(&Definition::Site(Site { scope, category, ..Site::default() }));
        // Before the next event, as a module registers parameters after their allocation.
        let relabel = Relabel { device: DeviceId(0), time_ns: 3000, address: 1 << 20, site: SiteId(2) };
        program.encoder.relabel(&relabel);
        program.push(&mut merger, &joined, 30_000);
        program.mark(4000);
        program.push(&mut merger, &joined, 40_000);
    }
    let recording = opened(merger.finish(END_NS));
    for (device, category) in [(0, Category::Parameter), (1, Category::Gradient)] {
        let device = recording.end_state().device(DeviceId(device)).expect("both processes have events");
        let block = device.blocks().next().expect("the block is live");
        let site = recording.definitions().site(block.site);
        assert_eq!((site.category, recording.definitions().string(site.scope)), (category, "fit"));
        assert_eq!(recording.definitions().site(device.allocation_site(block)).category, Category::Unknown);
        assert_eq!(device.inconsistencies(), 0);
    }
}

#[test]
fn events_are_ordered_by_the_machines_clock() {
    let (mut merger, mut a, mut b) = (merger(), Program::new(1, Some(0), 0), Program::new(2, Some(1), 1000));
    let (joined_a, joined_b) = (a.join(&mut merger, 0), b.join(&mut merger, 0));
    [100, 1200, 1200, 1500].into_iter().for_each(|time_ns| a.mark(time_ns));
    [0, 300, 600].into_iter().for_each(|time_ns| b.mark(time_ns));
    a.push(&mut merger, &joined_a, 2000);
    assert_eq!(merger.output.state().event(), 0, "the other process may still send an earlier event");
    b.push(&mut merger, &joined_b, 2000);
    // The last event of `b` waits for `a`.
    assert_eq!(merger.output.state().event(), 6);
    let expected = [(0, 100), (1, 1000), (0, 1200), (0, 1200), (1, 1300), (0, 1500), (1, 1600)];
    assert_eq!(order(merger.finish(END_NS)), expected);
}

#[test]
fn silent_process_delays_others_briefly_and_time_never_goes_back() {
    let (mut merger, mut a, mut b) = (merger(), Program::new(1, Some(0), 0), Program::new(2, Some(1), 0));
    let (joined_a, joined_b) = (a.join(&mut merger, 0), b.join(&mut merger, 0));
    a.mark(500);
    a.push(&mut merger, &joined_a, 1000);
    merger.merge(START_NS + WAIT_NS, false);
    assert_eq!(merger.output.state().event(), 0);
    merger.merge(START_NS + 1000 + WAIT_NS, false);
    assert_eq!(merger.output.state().event(), 1);
    b.mark(300);
    b.push(&mut merger, &joined_b, 2000 + WAIT_NS);
    merger.leave(&joined_a, START_NS + 2000 + WAIT_NS);
    b.mark(600);
    b.push(&mut merger, &joined_b, 2000 + WAIT_NS);
    // A disconnected process is not waited for; the disconnect is a mark.
    assert_eq!(order(merger.finish(END_NS)), [(0, 500), (1, 500), (1, 600), (0, 2000 + WAIT_NS)]);
}

#[test]
fn fast_clock_does_not_shift_other_processes() {
    let (mut merger, mut a, mut b) = (merger(), Program::new(1, None, 0), Program::new(2, None, u64::MAX / 2));
    let (joined_a, joined_b) = (a.join(&mut merger, 0), b.join(&mut merger, 0));
    b.mark(u64::MAX);
    b.push(&mut merger, &joined_b, 1000);
    a.mark(900);
    a.mark(2000);
    a.push(&mut merger, &joined_a, 2000);
    assert_eq!(order(merger.finish(END_NS)), [(1, 900), (0, 1000), (1, 2000)]);
}

#[test]
fn earlier_start_moves_the_epoch() {
    let (mut merger, mut a) = (merger(), Program::new(1, None, 0));
    let mut early = Program::new(2, None, 0);
    early.encoder = Encoder::new(&RecordingInfo { epoch_unix_ns: START_NS - 5000, ..RecordingInfo::default() });
    let joined = early.join(&mut merger, 0);
    early.mark(1000);
    early.push(&mut merger, &joined, 0);
    let joined = a.join(&mut merger, 0);
    a.mark(7);
    a.push(&mut merger, &joined, 100);
    let recording = opened(merger.finish(END_NS));
    assert_eq!(recording.info().epoch_unix_ns, START_NS - 5000);
    assert_eq!((recording.start_ns(), recording.end_ns()), (1000, 5007));
}

#[test]
fn late_server_orders_the_pushed_history() {
    const SECOND: u64 = 1_000_000_000;
    let (mut merger, count) = (merger(), 200_000);
    // Both programs have run for 100 s. They connect five seconds apart, and each has more events
    // than may be pending.
    let mut programs = [1, 2].map(|number| {
        let mut program = Program::new(number, Some(number), 0);
        program.encoder =
            Encoder::new(&RecordingInfo { epoch_unix_ns: START_NS - 100 * SECOND, ..RecordingInfo::default() });
        (0..count).for_each(|n| program.mark(2 * n * 200_000 + u64::from(number)));
        program
    });
    let mut unfinished = Vec::new();
    for (program, at_ns) in programs.iter_mut().zip([0, 5 * SECOND]) {
        let joined = program.join(&mut merger, at_ns);
        let (bytes, next) = program.chunks();
        assert_eq!(merger.push(&joined, &bytes, next, START_NS + at_ns), Ok(false));
        unfinished.push(joined);
    }
    assert_eq!(merger.output.state().event(), 0);
    let mut now_ns = START_NS + HOLD_NS;
    while !unfinished.is_empty() {
        now_ns += SECOND / 1000;
        unfinished.retain(|joined| !merger.resume_push(joined, now_ns).expect("valid chunks"));
    }
    let order = order(merger.finish(END_NS));
    let expected = (0..count).flat_map(|n| [1, 2].map(|number| (number, 2 * n * 200_000 + u64::from(number))));
    assert!(order.into_iter().eq(expected));
}

#[test]
fn devices_are_in_the_order_of_ranks() {
    let mut merger = merger();
    for (number, rank) in [(1, Some(1)), (2, Some(0)), (3, Some(0)), (4, None), (5, Some(70_000))] {
        let mut program = Program::new(number, rank, 0);
        let joined = program.join(&mut merger, 0);
        program.mark(1);
        program.push(&mut merger, &joined, 10);
    }
    let recording = opened(merger.finish(END_NS));
    let names: Vec<_> = recording.info().devices.iter().map(|device| device.name.as_str()).collect();
    let expected =
        ["rank 0 · H200", "rank 1 · H200", "rank 0, run 2 · H200", "train.py, process 4 · H200", "rank 70000 · H200"];
    assert_eq!(names, expected);
}

#[test]
fn devices_and_sites_keep_their_names() {
    let (mut merger, mut a, mut b) = (merger(), Program::new(1, Some(0), 0), Program::new(2, Some(1), 0));
    let (joined_a, joined_b) = (a.join(&mut merger, 0), b.join(&mut merger, 0));
    a.allocate(1, 4096, "forward");
    a.allocate(2, 8192, "backward");
    b.allocate(3, 4096, "backward");
    b.allocate(4, 8192, "optimizer");
    a.push(&mut merger, &joined_a, 10);
    b.push(&mut merger, &joined_b, 10);
    let recording = opened(merger.finish(END_NS));
    let devices: Vec<_> = recording.info().devices.iter().map(|d| (d.device, d.name.as_str(), d.rank)).collect();
    assert_eq!(devices, [(0, "rank 0 · H200", Some(0)), (1, "rank 1 · H200", Some(1))]);
    assert_eq!(recording.info().devices[1].process, "train.py, process 2");
    assert!(recording.info().devices.iter().all(|device| device.history_complete));
    let definitions = recording.definitions();
    let names = |device: u16| {
        let device = recording.end_state().device(DeviceId(device)).expect("the device has blocks");
        device.blocks().map(|block| site_name(definitions, block.site)).collect::<Vec<_>>()
    };
    assert_eq!(names(0), ["forward", "backward"]);
    assert_eq!(names(1), ["backward", "optimizer"]);
    assert_eq!(definitions.site_count(), 3);
}

#[test]
fn gap_of_one_process_is_recorded_and_leaves_others_unchanged() {
    let (mut merger, mut a, mut b) = (merger(), Program::new(1, Some(0), 0), Program::new(2, Some(1), 0));
    let (joined_a, joined_b) = (a.join(&mut merger, 0), b.join(&mut merger, 0));
    a.allocate(1, 4096, "kept");
    b.allocate(1, 4096, "other");
    a.push(&mut merger, &joined_a, 10);
    b.push(&mut merger, &joined_b, 10);
    // What a slow viewer receives: definitions, and a full state after the skipped events.
    a.allocate(20, 65536, "missed");
    let state = a.encoder.state().clone();
    a.encoder.replace_state(&state);
    let kinds = [vramscope_trace::ChunkKind::Definitions, vramscope_trace::ChunkKind::State];
    let chunks = a.encoder.take_output().into_iter().filter(|chunk| kinds.contains(&chunk.kind));
    let bytes: Vec<u8> = chunks.flat_map(|chunk| chunk.bytes).collect();
    merger.push(&joined_a, &bytes, 9, START_NS + 30).expect("valid chunks");
    a.allocate(40, 131_072, "after");
    a.push(&mut merger, &joined_a, 50);
    merger.merge(END_NS, true);
    check_memory(&merger, &a);
    check_memory(&merger, &b);
    let left = merger.leave(&joined_a, START_NS + 60).expect("the process was connected");
    assert_eq!((left.lost, left.has_ended), (2, false));
    let recording = opened(merger.finish(END_NS));
    assert_eq!(recording.lost_events(), 2);
    let device = recording.end_state().device(DeviceId(0)).expect("the merged recording has the device");
    let blocks: Vec<_> =
        device.blocks().map(|block| (site_name(recording.definitions(), block.site), block.since_event)).collect();
    // The block from before the gap keeps its first event; the gap is event 4.
    assert_eq!(blocks, [("kept".to_owned(), 1), ("missed".to_owned(), 5), ("after".to_owned(), 6)]);
    let complete: Vec<_> = recording.info().devices.iter().map(|device| device.history_complete).collect();
    assert_eq!(complete, [false, true]);
}

#[test]
fn late_process_starts_with_its_current_state() {
    let (mut merger, mut late) = (merger(), Program::new(1, None, 0));
    late.allocate(1, 4096, "early");
    let (complete, _) = late.chunks();
    let state = late.encoder.state().clone();
    late.encoder.replace_state(&state);
    let (state, next) = late.chunks();
    let mut decoder = vramscope_trace::Decoder::new();
    decoder.push(&complete);
    // The header and the definitions, without the events.
    let mut encoder = Program::new(1, None, 0).encoder;
    while let Some(item) = decoder.next_item().expect("valid chunks") {
        if let vramscope_trace::DecodedItem::Define(definition) = item {
            encoder.define(&definition);
        }
    }
    encoder.flush();
    let mut bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    bytes.extend(state);
    let joined = late.join(&mut merger, 0);
    merger.push(&joined, &bytes, next, START_NS + 10).expect("valid chunks");
    late.mark(30);
    late.push(&mut merger, &joined, 40);
    merger.merge(END_NS, true);
    check_memory(&merger, &late);
    let recording = opened(merger.finish(END_NS));
    assert_eq!((recording.lost_events(), recording.events()), (0, 1));
    assert!(!recording.info().devices[0].history_complete);
}

#[test]
fn reconnect_resumes_at_the_next_chunk() {
    let (mut merger, mut a) = (merger(), Program::new(1, Some(3), 0));
    let first = a.join(&mut merger, 0);
    assert_eq!((first.resume, first.is_reconnect), (0, false));
    a.allocate(1, 4096, "one");
    a.push(&mut merger, &first, 10);
    let taken = a.next;
    a.allocate(2, 8192, "two");
    let (lost, _) = a.chunks();
    // The new connection arrives before the loss of the old one is noticed.
    let second = a.join(&mut merger, 20);
    assert_eq!((second.resume, second.is_reconnect), (taken, true));
    assert!(merger.push(&first, &lost, a.next, START_NS + 20).is_err());
    assert_eq!(merger.leave(&first, START_NS + 20), None);
    merger.push(&second, &lost, a.next, START_NS + 20).expect("the next chunks");
    merger.end(&second, START_NS + 30);
    assert_eq!(merger.leave(&second, START_NS + 30).map(|left| (left.has_ended, left.lost)), Some((true, 0)));
    merger.merge(END_NS, true);
    check_memory(&merger, &a);
    let recording = opened(merger.finish(END_NS));
    let marks: Vec<_> = recording.annotations().iter().map(|mark| recording.definitions().string(mark.name)).collect();
    assert_eq!((marks, recording.lost_events(), recording.info().devices.len()), (vec!["process ended"], 0, 1));
}

#[test]
fn restarted_program_is_a_new_process() {
    let (mut merger, mut before) = (merger(), Program::new(1, Some(0), 0));
    let joined = before.join(&mut merger, 0);
    before.allocate(1, 4096, "a");
    before.push(&mut merger, &joined, 10);
    merger.leave(&joined, START_NS + 20);
    let mut after = Program::new(2, Some(0), 1000);
    let joined = after.join(&mut merger, 1000);
    after.allocate(1, 8192, "a");
    after.push(&mut merger, &joined, 2000);
    merger.merge(END_NS, true);
    check_memory(&merger, &before);
    check_memory(&merger, &after);
    let recording = opened(merger.finish(END_NS));
    let names: Vec<_> = recording.info().devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["rank 0 · H200", "rank 0, run 2 · H200"]);
}

#[test]
fn malformed_stream_disconnects_only_its_process() {
    let check = |bytes: &dyn Fn(&mut Program) -> Vec<u8>, expected: &str| {
        let (mut merger, mut good, mut bad) = (merger(), Program::new(1, None, 0), Program::new(2, None, 0));
        let (joined_good, joined_bad) = (good.join(&mut merger, 0), bad.join(&mut merger, 0));
        good.allocate(1, 4096, "a");
        good.push(&mut merger, &joined_good, 10);
        let malformed = bytes(&mut bad);
        let error = merger.push(&joined_bad, &malformed, 1, START_NS + 10).expect_err("the stream is malformed");
        assert!(error.contains(expected), "{error}");
        // The process stays refused.
        assert_eq!(merger.push(&joined_bad, &malformed, 1, START_NS + 10), Err(error.clone()));
        merger.leave(&joined_bad, START_NS + 10);
        let refused = merger.join(bad.process.clone(), START_NS + 20);
        assert_eq!(refused, Err(JoinError::Refused(error)));
        good.allocate(20, 8192, "b");
        good.push(&mut merger, &joined_good, 30);
        merger.merge(END_NS, true);
        check_memory(&merger, &good);
        opened(merger.finish(END_NS));
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
fn mark_is_added_for_each_connected_process_and_delays_no_event() {
    let (mut merger, mut a, mut b) = (merger(), Program::new(1, Some(0), 0), Program::new(2, Some(1), 0));
    let (joined_a, joined_b) = (a.join(&mut merger, 0), b.join(&mut merger, 0));
    assert_eq!(merger.mark_all("early", START_NS), 0);
    const NOW_NS: u64 = 2 * WAIT_NS;
    a.mark(1);
    b.mark(NOW_NS - 7);
    a.push(&mut merger, &joined_a, NOW_NS);
    b.push(&mut merger, &joined_b, NOW_NS);
    assert_eq!(merger.mark_all("mark", START_NS + NOW_NS), 2);
    a.mark(NOW_NS - 10);
    a.push(&mut merger, &joined_a, NOW_NS + 10);
    merger.leave(&joined_b, START_NS + NOW_NS + 20);
    assert_eq!(merger.mark_all("mark", START_NS + NOW_NS + 20), 1);
    merger.merge(END_NS, true);
    let expected = [(0, 1), (0, WAIT_NS), (1, WAIT_NS), (0, WAIT_NS + 20)];
    let order = order(merger.finish(END_NS));
    assert_eq!(order[..3], expected[..3]);
    assert!(order.contains(&(0, NOW_NS - 10)) && order.contains(&(1, NOW_NS - 7)), "{order:?}");
}

#[test]
fn connected_devices_follow_joins_ends_and_disconnects() {
    let (mut merger, mut a, mut b) = (merger(), Program::new(1, Some(0), 0), Program::new(2, Some(1), 0));
    let (joined_a, joined_b) = (a.join(&mut merger, 0), b.join(&mut merger, 0));
    assert!(merger.connected_devices().is_empty());
    a.mark(1);
    b.mark(1);
    a.push(&mut merger, &joined_a, 10);
    b.push(&mut merger, &joined_b, 10);
    assert!(merger.connected_devices().into_iter().eq([0, 1]));
    merger.end(&joined_a, START_NS + 20);
    assert!(merger.connected_devices().into_iter().eq([1]));
    merger.leave(&joined_b, START_NS + 20);
    assert!(merger.connected_devices().is_empty());
    b.join(&mut merger, 30);
    assert!(merger.connected_devices().into_iter().eq([1]));
}
