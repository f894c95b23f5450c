//! The timeline's bands of memory outside the pool.

use vramscope_draw::{Bitmap, Color, Theme, Typesetter};
use vramscope_trace::{
    DeviceId, DeviceInfo, Encoder, Event, EventKind, PoolKey, PoolKind, RecordingInfo, Sink, SiteId, StreamId,
};
use vramscope_viewer::bands::Band;
use vramscope_viewer::details;
use vramscope_viewer::link::Link;
use vramscope_viewer::model::{Model, Origin};
use vramscope_viewer::timeline::{self, Geometry, PeakMark, TimelineScene};

use crate::testing::samples::{Sample, open_sample};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A live page that receives events one by one.
struct LivePage {
    encoder: Encoder,
    model: Model,
    time_ns: u64,
}

impl LivePage {
    fn new(total_bytes: u64) -> Self {
        let device = DeviceInfo { total_bytes, ..DeviceInfo::default() };
        let info = RecordingInfo { devices: vec![device], ..RecordingInfo::default() };
        let mut model = Model::default();
        model.reset("live", Origin::Live);
        Self { encoder: Encoder::new(&info), model, time_ns: 0 }
    }

    fn send(&mut self, kind: EventKind) {
        self.time_ns += 1_000_000;
        self.encoder.event(&Event { device: DeviceId(0), time_ns: self.time_ns, kind });
        self.encoder.flush();
        for chunk in self.encoder.take_output() {
            self.model.push(&chunk.bytes).expect("a valid recording");
        }
    }

    fn reserve(&mut self, size: u64) {
        let reserved = self.model.device_state().counters().reserved;
        let (address, pool) = ((1 << 45) + reserved, PoolKey::default_of(PoolKind::Large));
        self.send(EventKind::SegmentAllocated { address, size, stream: StreamId(0), pool, site: SiteId(0) });
    }

    fn sample(&mut self, used_by_context: u64, used_by_others: u64) {
        self.send(EventKind::MemorySample { used_by_context, used_by_others, free: 0 });
    }

    fn visible_bands(&self) -> [bool; 2] {
        Band::ALL.map(|band| self.model.bands().contains(band))
    }
}

fn draw(model: &Model) -> (Bitmap, Geometry) {
    draw_with_peaks(model, model.peaks())
}

fn draw_with_peaks(model: &Model, peaks: [PeakMark; 2]) -> (Bitmap, Geometry) {
    let (mut frame, mut typesetter) = (Bitmap::new(400, 300, Color::default()), Typesetter::new());
    let content = timeline::TimelineContent {
        recording: model.recording(),
        device: model.device(),
        marks: model.marks(),
        peaks,
        bands: model.bands(),
        range: model.range(),
    };
    let scene = TimelineScene::new(&content, (400, 300), 1.0, &typesetter);
    timeline::draw(&scene, &Theme::new(true), &mut frame, &mut typesetter);
    (frame, scene.geometry)
}

#[test]
fn own_band_is_drawn_if_the_pool_keeps_half_of_the_height() {
    let mut live = LivePage::new(140 * GIB);
    live.reserve(20 * MIB);
    assert_eq!(live.visible_bands(), [false, false], "the device has not been sampled");
    live.sample(500 * MIB, 100 * GIB);
    assert_eq!(live.visible_bands(), [false, false], "the pool would get less than half of the height");
    live.reserve(4 * GIB);
    assert_eq!(live.visible_bands(), [true, false]);
    live.sample(500 * MIB, MIB);
    assert_eq!(live.visible_bands(), [true, false], "other processes are drawn on request only");
    live.model.toggle_band(Band::Others);
    live.model.toggle_band(Band::Outside);
    assert_eq!(live.visible_bands(), [false, true]);
}

#[test]
fn bands_are_hidden_without_samples() {
    let mut model = open_sample(Sample::Training);
    let before = draw(&model).0;
    for band in Band::ALL {
        model.toggle_band(band);
        assert!(!model.bands().contains(band));
    }
    assert!(draw(&model).0.bytes() == before.bytes());
    let sections = |model: &Model| {
        let details = details::of_device(model.device(), model.recording(), model.device_state(), model.free_memory());
        details.sections.into_iter().map(|section| section.heading).collect::<Vec<_>>()
    };
    assert_eq!(sections(&model), ["", "Recording"]);
    assert_eq!(sections(&open_sample(Sample::Shared)), ["", "Device memory, by the driver's last sample", "Recording"]);
}

#[test]
fn link_restores_the_bands() {
    let mut model = open_sample(Sample::Shared);
    assert_eq!(model.link().bands, Default::default(), "defaults are not in the link");
    model.toggle_band(Band::Others);
    model.toggle_band(Band::Outside);
    let fragment = model.link().fragment();
    assert!(fragment.ends_with("outside=hidden&others=shown"), "{fragment}");
    let mut other = open_sample(Sample::Shared);
    other.take_changes();
    other.go_to_link(&Link::parse(&fragment)).expect("a loaded moment");
    assert_eq!(other.bands(), model.bands());
    assert!(other.take_changes().timeline);
}

#[test]
fn labels_of_low_peaks_stay_on_the_chart() {
    let mut live = LivePage::new(140 * GIB);
    live.reserve(2 * GIB);
    let (pool, site) = (PoolKey::default_of(PoolKind::Large), SiteId(0));
    let (address, size, requested) = (1 << 45, GIB, GIB);
    live.send(EventKind::BlockAllocated { address, size, requested, stream: StreamId(0), pool, site });
    live.sample(GIB, 100 * GIB);
    live.send(EventKind::FreeRequested { address, site });
    live.model.toggle_band(Band::Others);
    let (labelled, geometry) = draw(&live.model);
    let (unlabelled, _) = draw_with_peaks(&live.model, [PeakMark::default(); 2]);
    assert!(labelled.bytes() != unlabelled.bytes(), "both peaks have labels");
    let mut below = (geometry.plot.y1 + 4..300).flat_map(|y| (0..400).map(move |x| (x, y)));
    assert!(below.all(|(x, y)| labelled.pixel(x, y) == unlabelled.pixel(x, y)), "labels stay above the time axis");
}

/// A sample is older than the counters: memory that others released may belong to the pool by then.
#[test]
fn bands_never_exceed_the_device_memory() {
    let mut live = LivePage::new(128 * GIB);
    live.reserve(4 * GIB);
    live.sample(GIB, 100 * GIB);
    live.reserve(110 * GIB);
    live.send(EventKind::Gap { lost: 0 });
    live.model.toggle_band(Band::Others);
    let (frame, geometry) = draw(&live.model);
    let theme = Theme::new(true);
    let color_at = |bytes: u64| {
        let share = bytes as f64 / (128 * GIB) as f64;
        frame.pixel(geometry.plot.x1 - 10, geometry.plot.y1 - (share * f64::from(geometry.plot.height())) as i32)
    };
    assert_eq!(color_at(124 * GIB), Some(theme.others));
    let reserved = color_at(110 * GIB);
    assert!(reserved != Some(theme.others) && reserved != Some(theme.outside), "the top is the device's memory");
    let (width, height) = (geometry.plot.x1 - 1, geometry.plot.y0 - 1);
    let is_outside = (geometry.plot.x0..width).any(|x| (0..height).any(|y| frame.pixel(x, y) == Some(theme.others)));
    assert!(!is_outside, "the band ends at the chart's top");
}
