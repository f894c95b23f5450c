//! The history of a recording: built in steps, loaded on demand, live, and of dropped parts.

use proptest::prelude::*;
use vramscope_insight::history::{History, Progress};
use vramscope_trace::{
    DeviceId, Encoder, Event, EventKind, Lifetimes, MemoryState, PoolKey, Recording, RecordingInfo, RecordingOpener,
    Replay, Sink, SiteId, StreamId,
};

use crate::recordings::snapshot;

const DEVICE: DeviceId = DeviceId(0);

/// Extends a history until it is complete.
fn complete(history: &mut History, recording: &Recording) -> Progress {
    loop {
        let progress = history.extend(recording, 50_000).expect("the recording can be read");
        assert!(progress.missing.is_empty());
        if progress.is_complete {
            return progress;
        }
    }
}

/// Asserts that a history has the lifetimes and the times of a whole recording.
fn assert_equals_one_pass(history: &History, recording: &Recording) {
    assert_eq!((history.first_event(), history.until()), (recording.first_event(), recording.end_event()));
    let expected = Lifetimes::from_recording(recording).expect("the recording can be read");
    assert_eq!(history.all_lifetimes().devices().len(), expected.devices().len());
    for (id, expected) in expected.devices() {
        let actual = history.lifetimes(id).expect("the device has events");
        assert!(actual.iter().eq(expected.iter()), "{id:?}");
        assert_eq!(
            actual.all_changes().expect("a history keeps changes").filter(|one| one.is_start).count(),
            actual.len()
        );
    }
    let mut replay = Replay::new();
    let mut random = fastrand::Rng::with_seed(recording.end_event());
    for _ in 0..100 {
        let moment = random.u64(recording.first_event()..=recording.end_event());
        let time_ns = replay.seek(recording, moment).expect("the recording can be read").time_ns();
        if moment > recording.first_event() && replay.state().event() == moment {
            assert_eq!(history.time_ns(moment), time_ns, "moment {moment}");
            let found = history.moment_at(time_ns);
            assert!(found >= moment && history.time_ns(found) == time_ns, "time {time_ns}");
            let next = recording.event_at_time(time_ns);
            // Before missing events, the recording returns the moment after them.
            assert!(found == next || history.time_ns(next) > time_ns, "time {time_ns}");
            let earlier = history.moment_at(time_ns.saturating_sub(1));
            assert!(time_ns == 0 || history.time_ns(earlier) < time_ns || earlier == recording.first_event());
        }
    }
}

/// A recording that grows: a program that allocates and frees blocks.
struct Program {
    encoder: Encoder,
    state: MemoryState,
    random: fastrand::Rng,
}

impl Program {
    /// Creates a program that has one segment and no blocks.
    fn new(seed: u64) -> Self {
        let info = RecordingInfo { epoch_unix_ns: 1 + seed, ..RecordingInfo::default() };
        let mut program = Self {
            encoder: Encoder::new(&info),
            state: MemoryState::default(),
            random: fastrand::Rng::with_seed(seed),
        };
        let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
        program.event(EventKind::SegmentAllocated { address: 0, size: 1 << 30, stream, pool, site });
        program
    }

    /// Records an event.
    fn event(&mut self, kind: EventKind) {
        let event = Event { device: DEVICE, time_ns: self.state.event() * 100, kind };
        self.encoder.event(&event);
        self.state.apply(&event);
    }

    /// Adds events and returns the new bytes of the recording.
    fn run(&mut self, events: u64) -> Vec<Vec<u8>> {
        for _ in 0..events {
            let address = self.random.u64(0..300) << 20;
            let site = SiteId(self.random.u32(0..9));
            let block =
                self.state.device(DEVICE).and_then(|device| device.block_at(address)).map(|one| one.pending_free);
            let (stream, pool, size) = (StreamId(0), PoolKey::default(), self.random.u64(1..2000) << 9);
            self.event(match block {
                None => EventKind::BlockAllocated { address, size, requested: size - 1, stream, pool, site },
                Some(false) => EventKind::FreeRequested { address, site },
                Some(true) => EventKind::FreeCompleted { address, site },
            });
        }
        self.encoder.flush();
        self.encoder.take_output().into_iter().map(|chunk| chunk.bytes).collect()
    }

    /// Leaves `events` events out of the recording, and continues with a full state.
    fn lose(&mut self, events: u64) {
        let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
        for _ in 0..events {
            let address = self.random.u64(0..300) << 20;
            let free = self.state.device(DEVICE).is_none_or(|device| device.block_at(address).is_none());
            let time_ns = self.state.event() * 100;
            let kind = match free {
                true => EventKind::BlockAllocated { address, size: 512, requested: 512, stream, pool, site },
                false => EventKind::FreeCompleted { address, site },
            };
            self.state.apply(&Event { device: DEVICE, time_ns, kind });
        }
        self.encoder.skip_to(self.state.event());
        self.encoder.replace_state(&self.state);
    }
}

#[test]
fn history_of_every_snapshot_equals_one_pass() {
    for name in [
        "mlp_train.pickle.zst",
        "ring.pickle.zst",
        "late.pickle.gz",
        "state_only.pickle.gz",
        "two_devices.pickle.gz",
        "graphs.pickle.zst",
        "frag_a_expandable.pickle.zst",
    ] {
        let recording = snapshot(name);
        let mut history = History::new();
        assert!(!history.is_stale(&recording));
        let progress = complete(&mut history, &recording);
        assert_eq!(
            (progress.events, progress.known_events),
            (recording.end_event() - recording.first_event(), recording.end_event() - recording.first_event())
        );
        assert_equals_one_pass(&history, &recording);
        assert_eq!((history.generation(), history.is_stale(&recording)), (0, false));
        assert_eq!(history.extend(&recording, 1).expect("nothing is left to read"), progress);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn history_follows_a_live_recording(
        seed: u64, steps in prop::collection::vec((1..9000u64, 0..20_000u64, prop::bool::weighted(0.1)), 1..20),
    ) {
        let mut program = Program::new(seed % 1000);
        let mut recording = Recording::new();
        let mut history = History::new();
        for (events, max_events, loses) in steps {
            if loses {
                program.lose(events / 9);
            }
            // Chunks arrive in pieces.
            for bytes in program.run(events).concat().chunks(1000) {
                recording.push(bytes).expect("a valid recording");
                let before = history.until();
                let progress = history.extend(&recording, max_events).expect("the recording can be read");
                prop_assert!(history.until() >= before && progress.events == history.until());
                prop_assert_eq!(progress.known_events, recording.end_event());
            }
            if max_events % 3 == 0 {
                complete(&mut history, &recording);
                assert_equals_one_pass(&history, &recording);
            }
        }
        complete(&mut history, &recording);
        assert_equals_one_pass(&history, &recording);
        prop_assert_eq!(history.generation(), 0);
    }
}

#[test]
fn recording_opened_by_its_index_says_what_to_load() {
    let mut program = Program::new(7);
    let mut file = program.run(150_000).concat();
    program.lose(5000);
    file.extend(program.run(100_000).concat());
    let mut whole = Recording::new();
    whole.push(&file).expect("a valid recording");
    file.extend(whole.index().into_iter().flat_map(|chunk| chunk.bytes));
    let mut opener = RecordingOpener::new(file.len() as u64);
    while let Some(range) = opener.wanted_range() {
        opener.supply(range.start, &file[range.start as usize..range.end as usize]);
    }
    let mut recording = opener.finish().expect("the file has an index");

    let mut history = History::new();
    let first = history.extend(&recording, 100_000).expect("missing chunks are no error");
    assert!(!first.missing.is_empty() && (first.events, first.is_complete) == (0, false));
    let mut moments = Vec::new();
    loop {
        let progress = history.progress(&recording);
        // Only a part of what is missing arrives.
        for range in progress.missing.iter().take(3) {
            let bytes = &file[range.start as usize..range.end as usize];
            recording.supply(range.start, bytes).expect("the chunk begins there");
        }
        let progress = history.extend(&recording, 100_000).expect("missing chunks are no error");
        assert_eq!(progress, history.progress(&recording));
        moments.push(progress.events);
        if progress.is_complete {
            break;
        }
    }
    assert!(moments.len() > 3 && moments.is_sorted_by(|one, next| one < next), "{moments:?}");
    assert_equals_one_pass(&history, &whole);
}

#[test]
fn dropped_oldest_part_is_forgotten_once_the_rest_is_built_again() {
    let mut program = Program::new(3);
    let mut recording = Recording::new();
    let mut history = History::new();
    let mut generations = Vec::new();
    let mut kept_old_part = false;
    for round in 0..60 {
        for bytes in program.run(4000) {
            recording.push(&bytes).expect("a valid recording");
        }
        if round % 20 == 19 {
            assert!(recording.start_trim(recording.memory_bytes() / 2));
            while !recording.continue_trim(10_000) {}
        }
        history.extend(&recording, 20_000).expect("the recording can be read");
        kept_old_part |= history.first_event() < recording.first_event();
        // Queries always answer up to the newest event.
        assert_eq!(history.until(), recording.end_event());
        generations.push(history.generation());
    }
    assert!(recording.first_event() > 0 && kept_old_part);
    complete(&mut history, &recording);
    assert_equals_one_pass(&history, &recording);
    assert!(generations.is_sorted() && history.generation() == 3, "{generations:?}");
}

#[test]
fn categories_of_a_file_are_inferred_once_it_is_read() {
    for name in ["mlp_train.pickle.zst", "state_only.pickle.gz"] {
        let recording = snapshot(name);
        let mut history = History::new();
        while !history.extend(&recording, 100).expect("the recording can be read").is_complete {
            assert!(!history.needs_categories(&recording, false), "{name}");
        }
        assert!(history.needs_categories(&recording, false), "{name}");
        history.infer_categories(&recording);
        assert!(!history.needs_categories(&recording, false), "{name}");
        assert_eq!(history.categories_generation(), 1, "{name}");
    }
}

#[test]
fn categories_of_a_live_recording_are_inferred_as_it_grows_and_when_its_start_is_dropped() {
    let mut program = Program::new(5);
    let (mut recording, mut history) = (Recording::new(), History::new());
    let mut inferred = Vec::new();
    for round in 0..40 {
        for bytes in program.run(4000) {
            recording.push(&bytes).expect("a valid recording");
        }
        if round == 30 {
            assert!(recording.start_trim(recording.memory_bytes() / 2));
            while !recording.continue_trim(10_000) {}
        }
        let before = history.generation();
        complete(&mut history, &recording);
        let is_dropped = history.generation() > before;
        if history.needs_categories(&recording, true) {
            history.infer_categories(&recording);
            inferred.push(round);
        }
        assert!(!is_dropped || inferred.last() == Some(&round), "rows have other numbers and beginnings");
        assert!(!history.needs_categories(&recording, true));
        // Every block has one category.
        let (Some(lifetimes), categories) = (history.lifetimes(DEVICE), history.categories(DEVICE)) else { continue };
        let live = recording.end_state().device(DEVICE).expect("the device has events");
        for block in live.blocks() {
            let (_, one) = lifetimes.find(block.address, recording.end_event()).expect("the block has a lifetime");
            assert_eq!(categories.of_block(block), categories.of_allocation(&one), "{block:?}");
        }
    }
    assert!((8..24).contains(&inferred.len()), "{inferred:?}");
}

#[test]
fn another_recording_begins_a_new_generation() {
    let recordings = [1, 2].map(|seed| {
        let mut recording = Recording::new();
        Program::new(seed).run(5000).iter().for_each(|bytes| recording.push(bytes).expect("a valid recording"));
        recording
    });
    let mut history = History::new();
    complete(&mut history, &recordings[0]);
    assert!(history.is_stale(&recordings[1]) && history.is_stale(&Recording::new()));
    complete(&mut history, &recordings[1]);
    assert_eq!(history.generation(), 1);
    assert_equals_one_pass(&history, &recordings[1]);

    // The history has not read what was dropped.
    let mut program = Program::new(2);
    let mut live = Recording::new();
    program.run(2000).iter().for_each(|bytes| live.push(bytes).expect("a valid recording"));
    let mut history = History::new();
    complete(&mut history, &live);
    program.run(90_000).iter().for_each(|bytes| live.push(bytes).expect("a valid recording"));
    assert!(live.start_trim(live.memory_bytes() / 4));
    while !live.continue_trim(10_000) {}
    assert!(history.is_stale(&live));
    complete(&mut history, &live);
    assert_eq!((history.generation(), history.first_event()), (1, live.first_event()));
    assert_equals_one_pass(&history, &live);
}

#[test]
fn empty_recording_has_an_empty_history() {
    let mut history = History::new();
    let recording = Recording::new();
    let progress = history.extend(&recording, 1000).expect("nothing to read");
    assert_eq!(progress, Progress { is_complete: true, ..Progress::default() });
    assert_eq!((history.until(), history.time_ns(5), history.moment_at(5)), (0, 0, 0));
    assert!(history.lifetimes(DEVICE).is_none());
    // What arrives later is read.
    let mut recording = recording;
    Program::new(4).run(100).iter().for_each(|bytes| recording.push(bytes).expect("a valid recording"));
    complete(&mut history, &recording);
    assert_eq!(history.generation(), 0);
    assert_equals_one_pass(&history, &recording);
}
