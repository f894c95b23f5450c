//! A recording of which only the index was read, and the rest when it is looked at.
#![cfg(not(target_arch = "wasm32"))]

use std::collections::BTreeSet;

use vramscope_trace::{
    DeviceId, Encoder, Event, EventKind, Info, Opening, Pool, PoolKind, Recording, Replay, Sink, SiteId, StreamId,
    digest,
};
use vramscope_viewer::link::Link;
use vramscope_viewer::model::{Fetch, Model, PeakOf};

const EVENTS: u64 = 60_000;
const MIB: u64 = 1 << 20;

/// Knuth's linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Blocks that come and go in one segment, at times that no one could guess; in many chunks, with several full states.
fn program() -> Vec<u8> {
    let (stream, pool, site) = (StreamId(0), Pool::default_of(PoolKind::Large), SiteId(0));
    let mut encoder = Encoder::new(&Info { source: "a program".to_owned(), ..Info::default() });
    let mut random = Random(1);
    let mut held = [false; 64];
    let mut time_ns = 5_000_000_000;
    for number in 0..EVENTS {
        time_ns += 100 + random.below(50_000);
        let slot = random.below(64);
        let address = 0x7f00_0000_0000 + slot * MIB;
        let taken = held[slot as usize];
        let kind = match number {
            0 => EventKind::SegmentAllocated { address: 0x7f00_0000_0000, size: 64 * MIB, stream, pool, site },
            _ if taken => {
                held[slot as usize] = false;
                EventKind::FreeCompleted { address, site }
            }
            _ => {
                // The highest peak is in the middle.
                let most = if number.abs_diff(EVENTS / 2) < 5_000 { MIB } else { MIB / 2 };
                let size = 512 * (1 + random.below(most / 512));
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
    recording.push(bytes).expect("a recording");
    recording
}

/// A model of a recording whose bytes are elsewhere.
struct Far {
    model: Model,
    bytes: Vec<u8>,
    /// Ranges that were given.
    given: BTreeSet<(u64, u64)>,
}

impl Far {
    fn open(bytes: Vec<u8>) -> Self {
        let mut opening = Opening::new(bytes.len() as u64);
        while let Some(range) = opening.wants() {
            opening.supply(range.start, &bytes[range.start as usize..range.end as usize]);
        }
        let recording = opening.finish().expect("it has an index");
        let mut model = Model::default();
        model.show("far.vram", recording.into()).expect("a recording");
        Self { model, bytes, given: BTreeSet::new() }
    }

    fn give(&mut self, fetch: &Fetch) {
        let range = fetch.range.clone();
        self.given.insert((range.start, range.end));
        self.model.supply(fetch, &self.bytes[range.start as usize..range.end as usize]).expect("its own bytes");
    }

    /// Gives what is wanted until nothing is, or until the moment is there.
    fn settle(&mut self, everything: bool) {
        for _ in 0..100 {
            if !everything && !self.model.is_waiting() {
                return;
            }
            let wanted = self.model.wants();
            wanted.iter().for_each(|fetch| self.give(fetch));
            if wanted.is_empty() {
                return;
            }
        }
        panic!("it never has enough");
    }

    #[track_caller]
    fn check(&self, replay: &mut Replay, native: &Recording, event: u64) {
        let state = replay.seek(native, event).expect("a moment");
        assert_eq!(self.model.state().event(), event);
        assert_eq!(digest(self.model.state()), digest(state), "at event {event}");
    }
}

#[test]
fn any_moment_is_what_it_is_in_the_whole() {
    let bytes = program();
    let (native, mut replay) = (whole(&bytes), Replay::new());
    let mut far = Far::open(bytes);
    assert!(far.model.is_waiting(), "the peak is not in the index");
    assert_eq!(far.model.recording().end_event(), EVENTS);
    far.settle(false);
    far.check(&mut replay, &native, far.model.peak_event(PeakOf::Allocated));
    let given: u64 = far.given.iter().map(|(start, end)| end - start).sum();
    assert!(given < far.bytes.len() as u64 / 2, "one moment takes {given} of {} bytes", far.bytes.len());
    let mut random = Random(2);
    for _ in 0..60 {
        let event = random.below(EVENTS + 1);
        far.model.seek(event).expect("a moment");
        far.settle(random.below(2) == 0);
        far.check(&mut replay, &native, event);
    }
    let time_ns = native.start_ns() + (native.end_ns() - native.start_ns()) / 3;
    let mut far = Far::open(program());
    far.model.seek_time(time_ns).expect("a moment");
    far.settle(false);
    far.check(&mut replay, &native, native.event_at_time(time_ns));
}

#[test]
fn bytes_may_come_in_any_order_and_late() {
    let bytes = program();
    let (native, mut replay) = (whole(&bytes), Replay::new());
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut far = Far::open(bytes.clone());
        let mut on_their_way: Vec<Fetch> = Vec::new();
        let mut wished = far.model.peak_event(PeakOf::Allocated);
        for _ in 0..40 {
            let before = far.model.state().event();
            match random.below(3) {
                0 => {
                    wished = random.below(EVENTS + 1);
                    far.model.seek(wished).expect("a moment");
                    let now = far.model.state().event();
                    assert!(now == wished || now == before && far.model.is_waiting(), "the picture stays until then");
                }
                1 => on_their_way.extend(far.model.wants()),
                _ if on_their_way.is_empty() => {}
                _ => {
                    let at = random.below(on_their_way.len() as u64) as usize;
                    let fetch = on_their_way.swap_remove(at);
                    far.give(&fetch);
                    let now = far.model.state().event();
                    assert!(now == before || now == wished, "only the last moment that was asked for is gone to");
                }
            }
        }
        far.settle(false);
        far.check(&mut replay, &native, wished);
    }
}

#[test]
fn steps_are_counted_from_where_one_is_about_to_be() {
    let bytes = program();
    let (native, mut replay) = (whole(&bytes), Replay::new());
    let mut far = Far::open(bytes);
    far.model.seek(10_000).expect("a moment");
    for _ in 0..3 {
        far.model.step(1).expect("a moment");
    }
    assert_eq!(far.model.link().event, Some(10_003), "a link says what was asked for");
    far.settle(false);
    far.check(&mut replay, &native, 10_003);
    assert_eq!(far.model.last_event().map(|(number, _)| number), Some(10_002));
}

#[test]
fn what_led_to_a_moment_is_read_where_a_state_stands_there() {
    let mut far = Far::open(program());
    // The state of the end comes with the index, and the last event does not.
    far.model.seek(EVENTS).expect("a moment");
    assert!(!far.model.is_waiting() && far.model.last_event().is_none());
    far.model.take_stale();
    far.settle(true);
    assert!(far.model.take_stale().moment, "it is said when it has come");
    assert!(far.model.last_event().is_some());
}

#[test]
fn bytes_that_cannot_be_had_leave_the_picture_and_can_be_asked_for_again() {
    let bytes = program();
    let (native, mut replay) = (whole(&bytes), Replay::new());
    let mut far = Far::open(bytes);
    far.settle(true);
    let before = far.model.state().event();
    far.model.seek(1_000).expect("a moment");
    far.model.give_up();
    assert!(!far.model.is_waiting() && far.model.wants().is_empty());
    far.check(&mut replay, &native, before);
    far.model.seek(1_000).expect("a moment");
    let fetch = far.model.wants().remove(0);
    let len = (fetch.range.end - fetch.range.start) as usize;
    let error = far.model.supply(&fetch, &vec![0; len]).expect_err("these are others");
    assert!(error.offset >= fetch.range.start, "{error}");
    far.model.supply(&fetch, &[]).expect_err("nothing came");
    far.give(&fetch);
    far.settle(false);
    far.check(&mut replay, &native, 1_000);
}

#[test]
fn it_plays_through_and_waits_where_it_must() {
    let bytes = program();
    let (native, mut replay) = (whole(&bytes), Replay::new());
    let mut far = Far::open(bytes);
    far.model.seek(0).expect("a moment");
    far.model.play_or_pause(0.0).expect("it plays");
    let (mut clock_ms, mut before, mut waits) = (0.0, 0, 0);
    while far.model.tick(clock_ms).expect("it plays") {
        clock_ms += 16.0;
        assert!(clock_ms < 60_000.0, "it ends");
        assert!(far.model.state().event() >= before, "it never goes back");
        before = far.model.state().event();
        if far.model.is_waiting() {
            waits += 1;
            let stood = far.model.time_ns();
            far.model.tick(clock_ms).expect("it waits");
            assert_eq!(far.model.time_ns(), stood, "time does not pass without events");
            far.settle(false);
        }
    }
    assert!(waits > 3, "{waits} waits");
    far.check(&mut replay, &native, EVENTS);
}

#[test]
fn a_timeline_is_drawn_to_the_pixel_when_its_events_have_come() {
    let bytes = program();
    let native = whole(&bytes);
    let mut far = Far::open(bytes);
    far.model.timeline_width = 400;
    far.model.zoom(0.05, native.start_ns() + (native.end_ns() - native.start_ns()) / 4);
    far.settle(true);
    assert!(far.model.take_stale().timeline);
    let range = far.model.range();
    let columns = |recording: &Recording| recording.columns(DeviceId(0), range.start, range.end, 400);
    assert_eq!(columns(far.model.recording()), columns(&native));
    assert!(far.model.wants().is_empty());
}

#[test]
fn peaks_are_marked_near_at_first_and_then_where_they_are() {
    let bytes = program();
    let mut native = Model::default();
    native.show("whole.vram", whole(&bytes).into()).expect("a recording");
    let mut far = Far::open(bytes);
    let length = native.recording().end_ns() - native.recording().start_ns();
    for (near, exact) in far.model.peaks().into_iter().zip(native.peaks()) {
        assert_eq!(near.bytes, exact.bytes);
        assert!(near.time_ns.abs_diff(exact.time_ns) <= length / 100, "{near:?} and {exact:?} of {length}");
    }
    far.settle(true);
    assert_eq!(far.model.peaks(), native.peaks());
}

#[test]
fn a_link_leads_to_a_moment_that_has_to_be_read() {
    let bytes = program();
    let (native, mut replay) = (whole(&bytes), Replay::new());
    let mut far = Far::open(bytes);
    far.model.go_to_link(&Link::parse("#event=54321")).expect("a moment");
    assert_eq!(far.model.link().event, Some(54_321));
    far.settle(false);
    far.check(&mut replay, &native, 54_321);
}
