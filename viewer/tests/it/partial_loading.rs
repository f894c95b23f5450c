//! Recordings opened by their index, with chunks loaded when they are needed.

use std::collections::BTreeSet;

use fastrand::Rng;
use vramscope_trace::{
    AnnotationStage, DeviceId, Encoder, Event, EventKind, Interner, PoolKey, PoolKind, Recording, RecordingInfo,
    RecordingOpener, Replay, Sink, SiteId, StreamId, digest,
};
use vramscope_viewer::app::Session;
use vramscope_viewer::link::Link;
use vramscope_viewer::model::{Fetch, Model, PeakKind};

const EVENTS: u64 = 60_000;
const MIB: u64 = 1 << 20;

/// Returns a recording of random blocks in one segment, with many chunks, several full states and
/// an index.
fn program() -> Vec<u8> {
    let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Large), SiteId(0));
    let mut encoder = Encoder::new(&RecordingInfo { source: "a program".to_owned(), ..RecordingInfo::default() });
    let mut random = Rng::with_seed(1);
    let mut held = [false; 64];
    let mut time_ns = 5_000_000_000;
    for number in 0..EVENTS {
        time_ns += 100 + random.u64(..50_000);
        let slot = random.u64(..64);
        let address = 0x7f00_0000_0000 + slot * MIB;
        let taken = held[slot as usize];
        let kind = match number {
            0 => EventKind::SegmentAllocated { address: 0x7f00_0000_0000, size: 64 * MIB, stream, pool, site },
            _ if taken => {
                held[slot as usize] = false;
                EventKind::FreeCompleted { address, site }
            }
            _ => {
                // Larger blocks in the middle, so that the peak is there.
                let most = if number.abs_diff(EVENTS / 2) < 5_000 { MIB } else { MIB / 2 };
                let size = 512 * (1 + random.u64(..most / 512));
                held[slot as usize] = true;
                EventKind::BlockAllocated { address, size, requested: size, stream, pool, site }
            }
        };
        encoder.event(&Event { device: DeviceId(0), time_ns, kind });
        if number % 300 == 299 {
            encoder.flush();
        }
    }
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let index = whole(&bytes).index();
    bytes.into_iter().chain(index.into_iter().flat_map(|chunk| chunk.bytes)).collect()
}

fn whole(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).expect("a valid recording");
    recording
}

/// A model of a recording that is loaded in parts.
struct RemoteRecording {
    model: Model,
    bytes: Vec<u8>,
    /// Ranges that have been loaded.
    loaded: BTreeSet<(u64, u64)>,
}

/// Opens a recording by its index.
fn open_by_index(bytes: &[u8]) -> Recording {
    let mut opening = RecordingOpener::new(bytes.len() as u64);
    while let Some(range) = opening.wanted_range() {
        opening.supply(range.start, &bytes[range.start as usize..range.end as usize]);
    }
    opening.finish().expect("the file has an index")
}

impl RemoteRecording {
    fn open(bytes: Vec<u8>) -> Self {
        let recording = open_by_index(&bytes);
        let mut model = Model::default();
        model.show("far.vram", recording.into()).expect("a valid recording");
        Self { model, bytes, loaded: BTreeSet::new() }
    }

    fn supply(&mut self, fetch: &Fetch) {
        let range = fetch.range.clone();
        self.loaded.insert((range.start, range.end));
        self.model
            .supply(fetch, &self.bytes[range.start as usize..range.end as usize])
            .expect("the bytes are the file's own");
    }

    /// Loads until the moment is on the screen, or until nothing is needed.
    fn load(&mut self, everything: bool) {
        for _ in 0..100 {
            if !everything && !self.model.is_loading() {
                return;
            }
            let wanted = self.model.needed_fetches();
            wanted.iter().for_each(|fetch| self.supply(fetch));
            if wanted.is_empty() {
                return;
            }
        }
        panic!("loading never ends");
    }

    #[track_caller]
    fn check(&self, replay: &mut Replay, native: &Recording, event: u64) {
        let state = replay.seek(native, event).expect("a loaded moment");
        assert_eq!(self.model.state().event(), event);
        assert_eq!(digest(self.model.state()), digest(state), "at event {event}");
    }
}

#[test]
fn partly_loaded_moments_equal_the_whole_recording() {
    let bytes = program();
    let (native, mut replay) = (whole(&bytes), Replay::new());
    let mut remote = RemoteRecording::open(bytes);
    assert!(remote.model.is_loading(), "the peak's chunks are not in the index");
    assert_eq!(remote.model.recording().end_event(), EVENTS);
    remote.load(false);
    remote.check(&mut replay, &native, remote.model.peak_event(PeakKind::Allocated));
    let loaded: u64 = remote.loaded.iter().map(|(start, end)| end - start).sum();
    assert!(loaded < remote.bytes.len() as u64 / 2, "one moment takes {loaded} of {} bytes", remote.bytes.len());
    let mut random = Rng::with_seed(2);
    for _ in 0..60 {
        let event = random.u64(..EVENTS + 1);
        remote.model.seek(event).expect("a loaded moment");
        remote.load(random.bool());
        remote.check(&mut replay, &native, event);
    }
    let time_ns = native.start_ns() + (native.end_ns() - native.start_ns()) / 3;
    let mut remote = RemoteRecording::open(program());
    remote.model.seek_time(time_ns).expect("a loaded moment");
    remote.load(false);
    remote.check(&mut replay, &native, native.event_at_time(time_ns));
}

#[test]
fn fetches_may_arrive_late_and_in_any_order() {
    let bytes = program();
    let (native, mut replay) = (whole(&bytes), Replay::new());
    for seed in 0..20 {
        let mut random = Rng::with_seed(seed);
        let mut remote = RemoteRecording::open(bytes.clone());
        let mut in_flight: Vec<Fetch> = Vec::new();
        let mut requested = remote.model.peak_event(PeakKind::Allocated);
        for _ in 0..40 {
            let before = remote.model.state().event();
            match random.u64(..3) {
                0 => {
                    requested = random.u64(..EVENTS + 1);
                    remote.model.seek(requested).expect("a loaded moment");
                    let now = remote.model.state().event();
                    assert!(
                        now == requested || now == before && remote.model.is_loading(),
                        "the picture stays until the moment is loaded"
                    );
                }
                1 => in_flight.extend(remote.model.needed_fetches()),
                _ if in_flight.is_empty() => {}
                _ => {
                    let at = random.usize(..in_flight.len());
                    let fetch = in_flight.swap_remove(at);
                    remote.supply(&fetch);
                    let now = remote.model.state().event();
                    assert!(now == before || now == requested, "only the last requested moment is shown");
                }
            }
        }
        remote.load(false);
        remote.check(&mut replay, &native, requested);
    }
}

#[test]
fn steps_start_from_the_requested_moment() {
    let bytes = program();
    let (native, mut replay) = (whole(&bytes), Replay::new());
    let mut remote = RemoteRecording::open(bytes);
    remote.model.seek(10_000).expect("a loaded moment");
    for _ in 0..3 {
        remote.model.step(1).expect("a loaded moment");
    }
    assert_eq!(remote.model.link().event, Some(10_003), "the link has the requested moment");
    remote.load(false);
    remote.check(&mut replay, &native, 10_003);
    assert_eq!(remote.model.last_event().map(|(number, _)| number), Some(10_002));
}

#[test]
fn event_before_a_full_state_is_loaded() {
    let mut remote = RemoteRecording::open(program());
    // The index contains the last full state, but not the last event.
    remote.model.seek(EVENTS).expect("a loaded moment");
    assert!(!remote.model.is_loading() && remote.model.last_event().is_none());
    remote.model.take_changes();
    remote.load(true);
    assert!(remote.model.take_changes().moment, "loading the event changes the texts");
    assert!(remote.model.last_event().is_some());
}

#[test]
fn failed_fetch_keeps_the_picture_and_can_be_repeated() {
    let bytes = program();
    let (native, mut replay) = (whole(&bytes), Replay::new());
    let mut remote = RemoteRecording::open(bytes);
    remote.load(true);
    let before = remote.model.state().event();
    remote.model.seek(1_000).expect("a loaded moment");
    remote.model.stop_fetching();
    assert!(!remote.model.is_loading() && remote.model.needed_fetches().is_empty());
    remote.check(&mut replay, &native, before);
    remote.model.seek(1_000).expect("a loaded moment");
    let fetch = remote.model.needed_fetches().remove(0);
    let len = (fetch.range.end - fetch.range.start) as usize;
    let error = remote.model.supply(&fetch, &vec![0; len]).expect_err("the bytes do not match the index");
    assert!(error.offset >= fetch.range.start, "{error}");
    remote.model.supply(&fetch, &[]).expect_err("bytes are missing");
    remote.supply(&fetch);
    remote.load(false);
    remote.check(&mut replay, &native, 1_000);
}

#[test]
fn playback_waits_for_missing_chunks() {
    let bytes = program();
    let (native, mut replay) = (whole(&bytes), Replay::new());
    let mut remote = RemoteRecording::open(bytes);
    remote.model.seek(0).expect("a loaded moment");
    remote.model.play_or_pause(0.0).expect("a readable recording");
    let (mut clock_ms, mut before, mut waits) = (0.0, 0, 0);
    while remote.model.tick(clock_ms).expect("a readable recording") {
        clock_ms += 16.0;
        assert!(clock_ms < 60_000.0, "it ends");
        assert!(remote.model.state().event() >= before, "it never goes back");
        before = remote.model.state().event();
        if remote.model.is_loading() {
            waits += 1;
            let paused_ns = remote.model.time_ns();
            remote.model.tick(clock_ms).expect("a readable recording");
            assert_eq!(remote.model.time_ns(), paused_ns, "playback stands still while loading");
            remote.load(false);
        }
    }
    assert!(waits > 3, "{waits} waits");
    remote.check(&mut replay, &native, EVENTS);
}

#[test]
fn timeline_becomes_exact_when_its_events_are_loaded() {
    let bytes = program();
    let native = whole(&bytes);
    let mut remote = RemoteRecording::open(bytes);
    remote.model.timeline_width = 400;
    remote.model.zoom(0.05, native.start_ns() + (native.end_ns() - native.start_ns()) / 4);
    remote.load(true);
    assert!(remote.model.take_changes().timeline);
    let range = remote.model.range();
    let columns = |recording: &Recording| recording.columns(DeviceId(0), range.start, range.end, 400);
    assert_eq!(columns(remote.model.recording()), columns(&native));
    assert!(remote.model.needed_fetches().is_empty());
}

#[test]
fn peaks_are_approximate_until_their_events_are_loaded() {
    let bytes = program();
    let mut native = Model::default();
    native.show("whole.vram", whole(&bytes).into()).expect("a valid recording");
    let mut remote = RemoteRecording::open(bytes);
    let length = native.recording().end_ns() - native.recording().start_ns();
    for (near, exact) in remote.model.peaks().into_iter().zip(native.peaks()) {
        assert_eq!(near.bytes, exact.bytes);
        assert!(near.time_ns.abs_diff(exact.time_ns) <= length / 100, "{near:?} and {exact:?} of {length}");
    }
    remote.load(true);
    assert_eq!(remote.model.peaks(), native.peaks());
}

#[test]
fn link_loads_its_moment() {
    let bytes = program();
    let (native, mut replay) = (whole(&bytes), Replay::new());
    let mut remote = RemoteRecording::open(bytes);
    remote.model.go_to_link(&Link::parse("#event=54321")).expect("a loaded moment");
    assert_eq!(remote.model.link().event, Some(54_321));
    remote.load(false);
    remote.check(&mut replay, &native, 54_321);
}

/// Returns a recording with an index that has the spans `step 1` to `step 40`, with several chunks
/// in each.
fn training() -> Vec<u8> {
    let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Large), SiteId(0));
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let mut interner = Interner::default();
    let mut time_ns = 0;
    let mut add = |encoder: &mut Encoder, kind| {
        time_ns += 100;
        encoder.event(&Event { device: DeviceId(0), time_ns, kind });
    };
    add(&mut encoder, EventKind::SegmentAllocated { address: 0, size: 64 * MIB, stream, pool, site });
    for step in 1..=40 {
        let name = interner.string(&format!("step {step}"));
        interner.take_new().iter().for_each(|definition| encoder.define(definition));
        let mark = |stage| EventKind::Mark { stage, name, address: 0, site };
        add(&mut encoder, mark(AnnotationStage::Begin));
        for size in (1..=500).map(|number| 512 * (number + step)) {
            add(&mut encoder, EventKind::BlockAllocated { address: 0, size, requested: size, stream, pool, site });
            add(&mut encoder, EventKind::FreeCompleted { address: 0, site });
            if size % 200 == 0 {
                encoder.flush();
            }
        }
        add(&mut encoder, mark(AnnotationStage::End));
    }
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let index = whole(&bytes).index();
    bytes.into_iter().chain(index.into_iter().flat_map(|chunk| chunk.bytes)).collect()
}

#[test]
fn marks_are_shown_once_all_events_were_read() {
    let bytes = training();
    let show = |recording: Recording| {
        let mut session = Session::default();
        session.model.show("training.vram", recording.into()).expect("a valid recording");
        session
    };
    let (mut native, mut remote) = (show(whole(&bytes)), show(open_by_index(&bytes)));
    assert_eq!((native.model.marks().spans().len(), remote.model.marks().spans().len()), (40, 0));
    for (view, options) in [("steps", "{}"), ("table", r#"{"by": "phase"}"#)] {
        let rows = |session: &mut Session| {
            while !session.prepare_rows(view, options).expect("a readable recording") {
                for fetch in session.needed_fetches() {
                    let range = fetch.range.start as usize..fetch.range.end as usize;
                    session.supply(&fetch, &bytes[range]).expect("the bytes are the file's own");
                }
            }
            session.rows(view, options).expect("a readable recording")
        };
        let (near, far) = (rows(&mut native), rows(&mut remote));
        assert_eq!(near, far, "{view}");
    }
    assert_eq!(native.model.marks().spans(), remote.model.marks().spans());
}
