//! The lanes of devices below the timeline.

use std::ops::Range;

use vramscope_trace::{
    DeviceId, DeviceInfo, Encoder, Event, EventKind, PoolKey, PoolKind, Recording, RecordingInfo, RecordingOpener,
    Replay, Sink, SiteId, StreamId, digest,
};
use vramscope_viewer::app::{PageFacts, SessionReport};
use vramscope_viewer::command::Command;
use vramscope_viewer::model::Model;
use vramscope_viewer::protocol::{FrameRequest, PointerKind};
use vramscope_viewer::timeline::{MAX_LANES, Target};

use crate::testing::golden_file::check;
use crate::testing::samples::{Sample, bytes};
use crate::testing::{open, open_bytes};
use crate::timeline::Page;

const MIB: u64 = 1 << 20;

/// Returns a recording of `count` ranks; each reserves one segment more than the one before, and
/// each odd one runs out of memory.
fn ranks(count: u16) -> Vec<u8> {
    let device = |rank: u16| DeviceInfo {
        device: rank,
        name: format!("rank {rank} · NVIDIA H200"),
        rank: Some(rank.into()),
        ..DeviceInfo::default()
    };
    let info = RecordingInfo { devices: (0..count).map(device).collect(), ..RecordingInfo::default() };
    let mut encoder = Encoder::new(&info);
    let mut time_ns = 0;
    let mut write = |device: u16, kind| {
        time_ns += 1_000_000;
        encoder.event(&Event { device: DeviceId(device), time_ns, kind });
    };
    let (stream, site) = (StreamId(0), SiteId(0));
    let pool = PoolKey::default_of(PoolKind::Large);
    for device in 0..count {
        for index in 0..=u64::from(device) {
            let (address, size) = ((index + 1) << 32, 20 * MIB);
            write(device, EventKind::SegmentAllocated { address, size, stream, pool, site });
            write(device, EventKind::BlockAllocated { address, size: 4 * MIB, requested: MIB, stream, pool, site });
        }
        if device % 2 == 1 {
            write(device, EventKind::OutOfMemory { requested: 48 * MIB, device_free: 0, stream, site });
        }
    }
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

/// Returns the devices of the lanes in view, from the top.
fn lanes(page: &Page) -> Vec<u16> {
    let timeline = page.session.timeline().expect("a timeline");
    let mut devices: Vec<u16> = (0..page.screen.sizes[0].1)
        .filter_map(|y| match timeline.target(f64::from(y)) {
            Target::Lane(device) => Some(device.0),
            _ => None,
        })
        .collect();
    devices.dedup();
    devices
}

/// Returns a pixel in the middle of a device's lane, at `x`.
fn on_lane(page: &Page, device: u16, x: f64) -> (f64, f64) {
    let timeline = page.session.timeline().expect("a timeline");
    let rows = (0..page.screen.sizes[0].1).map(f64::from);
    let rows: Vec<f64> = rows.filter(|&y| timeline.target(y) == Target::Lane(DeviceId(device))).collect();
    (x, rows[rows.len() / 2])
}

fn click(page: &mut Page, (x, y): (f64, f64)) {
    page.pointer(PointerKind::Down, x, y);
    page.pointer(PointerKind::Up, x, y);
    page.pointer(PointerKind::Leave, x, y);
}

#[test]
fn recordings_of_one_device_have_no_lanes() {
    let page = Page::new(open_bytes("drawn.vram", &bytes(Sample::Training)), true);
    assert!(lanes(&page).is_empty());
    let mut session = page.session;
    let refused = session.execute(&Command::Lanes, 0.0, &mut SessionReport::default());
    assert_eq!(refused.unwrap_err(), "this recording has only one device");
}

#[test]
fn click_on_a_lane_selects_device_and_moment() {
    let mut page = Page::new(open("two_devices.pickle.gz"), false);
    assert_eq!(lanes(&page), [0, 1]);
    let before = page.event();
    let label = on_lane(&page, 1, 20.0);
    click(&mut page, label);
    assert_eq!((page.session.model.device(), page.event()), (DeviceId(1), before), "the name selects the device only");
    let chart = on_lane(&page, 0, 500.0);
    click(&mut page, chart);
    let axis = &page.session.timeline().expect("a timeline").axis;
    let expected = axis.column(page.session.model.timed_moment());
    assert_eq!(page.session.model.device(), DeviceId(0));
    assert!(expected.is_some_and(|x| x <= 500) && page.event() != before, "{expected:?}");
    page.run("lanes");
    assert!(lanes(&page).is_empty());
    page.run("lanes");
    assert_eq!(lanes(&page), [0, 1]);
}

#[test]
fn steps_go_to_events_of_the_selected_device() {
    let mut page = Page::new(open("two_devices.pickle.gz"), false);
    for device in [0, 1] {
        let (recording, mut lookup) = (page.session.model.recording(), Replay::new());
        let mut device_of =
            |index: u64| lookup.event(recording, index).expect("a loaded event").expect("no gap").device;
        let events = recording.first_event()..recording.end_event();
        let own: Vec<u64> = events.filter(|&index| device_of(index).0 == device).map(|index| index + 1).collect();
        page.session.model.set_device(DeviceId(device)).expect("a loaded moment");
        page.run("first");
        let mut visited = Vec::new();
        for _ in &own {
            page.run("step 1");
            visited.push(page.event());
        }
        assert_eq!(visited, own);
        let last = page.session.execute(&Command::Step(1), 0.0, &mut SessionReport::default());
        assert!(last.is_err() && page.event() == own[own.len() - 1], "the last event of device {device}");
        page.run("step -1");
        assert_eq!(page.event(), own[own.len() - 2]);
        page.run("step -5");
        assert_eq!(page.event(), own[own.len() - 7]);
    }
}

#[test]
fn lanes_show_each_devices_bytes() {
    let mut page = Page::new(open("two_devices.pickle.gz"), false);
    page.run("stack counters");
    check("lanes_timeline_light", &page.picture());
    let recording = page.session.model.recording();
    let (first, end) = (recording.first_event(), recording.end_event());
    let mut replay = Replay::new();
    for device in [0, 1] {
        let mut most = [0, 0];
        for event in first..=end {
            let state = replay.seek(page.session.model.recording(), event).expect("a loaded moment");
            let counters = state.device(DeviceId(device)).map(|one| one.counters()).unwrap_or_default();
            most = [most[0].max(counters.allocated), most[1].max(counters.reserved)];
        }
        // The highest column under the pointer.
        let sizes = most.map(|bytes| vramscope_trace::ByteSize(bytes).to_string());
        let mut found = [false, false];
        for x in 64..878 {
            let (x, y) = on_lane(&page, device, f64::from(x));
            page.pointer(PointerKind::Move, x, y);
            assert!(page.tooltip.starts_with(&format!("device {device}")), "{}", page.tooltip);
            for (found, size) in found.iter_mut().zip(&sizes) {
                *found |= page.tooltip.contains(&format!("at most {size}"));
            }
        }
        assert_eq!(found, [true, true], "device {device}: {sizes:?}");
    }
}

#[test]
fn many_lanes_scroll() {
    let mut page = Page::new(open_bytes("ranks.vram", &ranks(12)), true);
    page.screen.sizes[0].1 = 600;
    page.run("device 0");
    page.run("fit-all");
    assert_eq!(lanes(&page), (0..8).collect::<Vec<u16>>());
    let frame = page.session.frame(&FrameRequest::default(), &PageFacts::default(), &mut SessionReport::default());
    assert_eq!(usize::from(frame.lanes), MAX_LANES);
    let (x, y) = on_lane(&page, 3, 400.0);
    page.pointer(PointerKind::Wheel(0.0, 100.0), x, y);
    assert_eq!(lanes(&page), (1..9).collect::<Vec<u16>>());
    for _ in 0..11 {
        page.run("device-next");
    }
    assert_eq!((page.session.model.device(), lanes(&page)), (DeviceId(11), (4..12).collect()));
    page.run("device-next");
    assert_eq!(lanes(&page), (0..8).collect::<Vec<u16>>());
    // A click at a failure goes exactly there.
    let failures: Vec<u64> = page.session.model.marks().incidents().iter().map(|one| one.at_event + 1).collect();
    let timeline = page.session.timeline().expect("a timeline");
    let (_, y) = on_lane(&page, 1, 0.0);
    let x = (64..878).find(|&x| timeline.failure_on_lane(x, y as i32).is_some()).expect("a mark on the lane");
    click(&mut page, (f64::from(x), y));
    assert_eq!((page.session.model.device(), page.event()), (DeviceId(1), failures[0]));
}

/// Returns a recording with an index: two devices with `blocks` live blocks each.
fn many_blocks(blocks: u64) -> Vec<u8> {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let (stream, site, pool) = (StreamId(0), SiteId(0), PoolKey::default_of(PoolKind::Large));
    let mut time_ns = 0;
    let mut write = |device: u16, kind| {
        time_ns += 1_000;
        encoder.event(&Event { device: DeviceId(device), time_ns, kind });
    };
    let slot = 64 << 10;
    for device in 0..2 {
        let (address, size) = (1 << 40, blocks * slot);
        write(device, EventKind::SegmentAllocated { address, size, stream, pool, site });
    }
    for block in 0..blocks {
        for device in 0..2 {
            let (address, size) = ((1 << 40) + block * slot, 512 * (1 + (block + u64::from(device)) % 100));
            write(device, EventKind::BlockAllocated { address, size, requested: size, stream, pool, site });
        }
    }
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let mut whole = Recording::new();
    whole.push(&bytes).expect("a valid recording");
    bytes.into_iter().chain(whole.index().into_iter().flat_map(|chunk| chunk.bytes)).collect()
}

#[test]
fn bytes_of_other_devices_become_exact_at_rest() {
    for (blocks, is_near) in [(300, true), (40_000, false)] {
        let bytes = many_blocks(blocks);
        let part = |range: &Range<u64>| &bytes[range.start as usize..range.end as usize];
        let mut opener = RecordingOpener::new(bytes.len() as u64);
        while let Some(range) = opener.wanted_range() {
            opener.supply(range.start, part(&range));
        }
        let mut recording = opener.finish().expect("the file has an index");
        for range in recording.missing_between(0, recording.end_event() - 1) {
            recording.supply(range.start, part(&range)).expect("the chunk at this place");
        }
        assert_eq!(recording.known_end_state(), None);
        let mut model = Model::default();
        model.show("many.vram", recording.into()).expect("a readable recording");
        let mut replay = Replay::new();
        for event in [blocks + 3, 2 * blocks - 7, blocks - 11] {
            model.seek(event).expect("a loaded moment");
            model.take_changes();
            let expected = replay.seek(model.recording(), event).expect("a readable recording").clone();
            let of = |device| expected.device(DeviceId(device)).expect("it has events").counters();
            assert_eq!(model.counters_of(DeviceId(0)), of(0));
            let early = model.counters_of(DeviceId(1));
            assert!(early.allocated.abs_diff(of(1).allocated) <= of(1).allocated / 5, "{early:?}, not {:?}", of(1));
            assert_eq!(early.reserved, of(1).reserved);
            assert!(!is_near || early == of(1));
            while model.work_on_all_devices(5_000) {}
            assert_eq!(model.counters_of(DeviceId(1)), of(1));
            assert!(is_near || model.has_changed(), "the page is drawn again");
            assert_eq!(digest(model.all_devices()), digest(&expected));
            assert!(model.state().devices().all(|(device, _)| device == DeviceId(0)));
        }
        model.go_to_edge(true).expect("a loaded moment");
        let at_end = [0, 1].map(|device| model.counters_of(DeviceId(device)));
        let end = model.recording().end_state().clone();
        assert!(end.devices().map(|(_, memory)| memory.counters()).eq(at_end));
        assert_eq!(digest(model.all_devices()), digest(&end));
    }
}
