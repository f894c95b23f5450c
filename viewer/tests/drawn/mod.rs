//! Small recordings, made event by event, that show everything a picture can.

use vramscope_trace::{
    Category, DeviceId, DeviceInfo, Encoder, Event, EventKind, Info, Interner, MemoryState, Pool, PoolKind, Recording,
    Sink, Site, SiteId, Stage, StreamId,
};
use vramscope_viewer::model::Model;
use vramscope_viewer::open::Opening;

const MIB: u64 = 1 << 20;

/// Which recording.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code)] // each test program uses those that it needs
pub(crate) enum Drawing {
    /// Steps of training: steady blocks, activations that come and go, spans with names.
    Training,
    /// Failed requests, lost events, blocks that wait for a stream.
    Trouble,
    /// Two hundred segments.
    Crowd,
    /// Names that look like markup.
    Markup,
    /// Two GPUs, the second of which is heard of late.
    TwoGpus,
    /// Times at the very end of what can be said.
    EndOfTime,
    /// Training on a GPU that others use too, as its driver says from the first step on.
    Shared,
}

/// Writes a recording the way a person would tell it.
struct Story {
    encoder: Encoder,
    interner: Interner,
    gpu: DeviceId,
    time_ns: u64,
    /// The GPU's memory, where its driver is asked.
    total_bytes: Option<u64>,
}

impl Story {
    fn new(total_bytes: Option<u64>) -> Self {
        let about = |total_bytes| DeviceInfo { total_bytes, ..DeviceInfo::default() };
        let devices = total_bytes.map(about).into_iter().collect();
        let info = Info { source: "drawn".to_owned(), devices, ..Info::default() };
        let encoder = Encoder::new(&info);
        Self { encoder, interner: Interner::default(), gpu: DeviceId(0), time_ns: 1_000_000_000, total_bytes }
    }

    fn tell(&mut self, kind: EventKind) {
        self.time_ns = self.time_ns.saturating_add(37_000);
        self.encoder.event(&Event { device: self.gpu, time_ns: self.time_ns, kind });
    }

    fn site(&mut self, scope: &str, category: Category) -> SiteId {
        let scope = self.interner.string(scope);
        let function = self.interner.string("forward");
        let file = self.interner.string("model.py");
        let frame = self.interner.frame(vramscope_trace::Frame { function, file, line: 12 });
        let stack = self.interner.stack(frame, vramscope_trace::StackId(0));
        let site = self.interner.site(Site { stack, scope, category, ..Site::default() });
        self.interner.take_fresh().iter().for_each(|definition| self.encoder.define(definition));
        site
    }

    /// Asks the driver, if it can be asked.
    fn sample(&mut self, used_by_context: u64, used_by_others: u64) {
        if let Some(total_bytes) = self.total_bytes {
            let reserved = self.encoder.state().device(self.gpu).map_or(0, |device| device.counters().reserved);
            let free = total_bytes - reserved - used_by_context - used_by_others;
            self.tell(EventKind::MemorySample { used_by_context, used_by_others, free });
        }
    }

    fn mark(&mut self, stage: Stage, name: &str) {
        let name = self.interner.string(name);
        self.interner.take_fresh().iter().for_each(|definition| self.encoder.define(definition));
        self.tell(EventKind::Mark { stage, name, address: 0, site: SiteId(0) });
    }

    fn segment(&mut self, address: u64, size: u64) {
        let pool = Pool::default_of(if size > 2 * MIB { PoolKind::Large } else { PoolKind::Small });
        self.tell(EventKind::SegmentAllocated { address, size, stream: StreamId(0), pool, site: SiteId(0) });
    }

    fn block(&mut self, address: u64, requested: u64, site: SiteId) {
        self.rounded_block(address, requested, requested.next_multiple_of(512), site);
    }

    fn rounded_block(&mut self, address: u64, requested: u64, size: u64, site: SiteId) {
        let pool = Pool::default_of(PoolKind::Large);
        self.tell(EventKind::BlockAllocated { address, size, requested, stream: StreamId(0), pool, site });
    }

    fn free(&mut self, address: u64) {
        self.tell(EventKind::FreeRequested { address, site: SiteId(0) });
        self.tell(EventKind::FreeCompleted { address, site: SiteId(0) });
    }

    fn finish(mut self) -> Vec<u8> {
        self.encoder.flush();
        self.encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
    }
}

/// The bytes of a recording.
pub(crate) fn bytes(drawing: Drawing) -> Vec<u8> {
    let mut story = Story::new(matches!(drawing, Drawing::Shared).then_some(512 * MIB));
    match drawing {
        Drawing::Training | Drawing::Shared => train(&mut story),
        Drawing::Trouble => get_into_trouble(&mut story),
        Drawing::Crowd => crowd(&mut story),
        Drawing::Markup => write_markup(&mut story),
        Drawing::TwoGpus => use_two_gpus(&mut story),
        Drawing::EndOfTime => {
            story.time_ns = u64::MAX - 200_000;
            train(&mut story);
        }
    }
    story.finish()
}

/// A model that shows a recording, as a page does that has opened it.
#[allow(dead_code)]
pub(crate) fn recording(drawing: Drawing) -> Model {
    let mut opening = Opening::new("drawn.vram");
    opening.push(&bytes(drawing));
    let mut model = Model::default();
    model.show("drawn.vram", opening.finish().expect("a recording")).expect("a recording that can be read");
    model
}

fn train(story: &mut Story) {
    let parameter = story.site("model/layer1", Category::Parameter);
    let state = story.site("optimizer", Category::OptimizerState);
    let activation = story.site("step/forward/layer1", Category::Activation);
    let gradient = story.site("step/backward", Category::Gradient);
    story.segment(0x7f00_0000_0000, 2 * MIB);
    story.segment(0x7f00_0200_0000, 20 * MIB);
    story.segment(0x7f00_0400_0000, 64 * MIB);
    for index in 0..120 {
        story.block(0x7f00_0000_0000 + index * 0x2000, 4096 + index * 17, parameter);
    }
    for index in 0..6 {
        story.block(0x7f00_0200_0000 + index * 3 * MIB, 5 * MIB / 2, if index < 3 { parameter } else { state });
    }
    for step in 0..5u64 {
        story.mark(Stage::Begin, &format!("step {step}"));
        // A library takes memory of its own in the second step; a neighbor comes and goes.
        story.sample(if step < 1 { 34 * MIB } else { 47 * MIB }, [90, 90, 210, 210, 130][step as usize] * MIB);
        let base = 0x7f00_0400_0000;
        for layer in 0..8 {
            story.block(base + layer * 8 * MIB, 6 * MIB + (step * 7 + layer) % 5 * MIB / 2, activation);
        }
        story.mark(Stage::Begin, "backward");
        for layer in (0..8).rev() {
            story.free(base + layer * 8 * MIB);
            if layer % 3 == 0 {
                story.block(0x7f00_0000_0000 + MIB + layer * 0x8000, 20_000, gradient);
            }
        }
        for layer in [0u64, 3, 6] {
            story.free(0x7f00_0000_0000 + MIB + layer * 0x8000);
        }
        story.mark(Stage::End, "backward");
        story.mark(Stage::End, &format!("step {step}"));
    }
    story.segment(0x7f00_0900_0000, 20 * MIB);
}

fn get_into_trouble(story: &mut Story) {
    let site = SiteId(0);
    for index in 0..6u64 {
        story.segment(0x7f00_0000_0000 + index * 0x400_0000, (10 + index * 6) * MIB);
        for block in 0..(5 + index) {
            story.block(0x7f00_0000_0000 + index * 0x400_0000 + block * 2 * MIB, MIB + block * 99_000, site);
        }
    }
    for index in 0..6u64 {
        story.free(0x7f00_0000_0000 + index * 0x400_0000 + 2 * MIB);
    }
    let oom = EventKind::OutOfMemory { requested: 48 * MIB, device_free: 3 * MIB, stream: StreamId(0), site };
    story.tell(oom);
    for index in 1..4u64 {
        story.tell(EventKind::FreeRequested { address: 0x7f00_0000_0000 + index * 0x400_0000, site });
    }
    story.tell(EventKind::Gap { lost: 1234 });
    for round in 0..40u64 {
        story.block(0x7f00_0000_0000 + 2 * MIB, 300_000 + round * 512, site);
        story.free(0x7f00_0000_0000 + 2 * MIB);
    }
    story.tell(oom);
    // More than before, so that the peak is here, with everything in view.
    story.segment(0x7f00_2000_0000, 96 * MIB);
    for block in 0..3u64 {
        story.rounded_block(0x7f00_2000_0000 + block * 30 * MIB, (22 + 3 * block) * MIB, 30 * MIB, site);
    }
}

fn crowd(story: &mut Story) {
    for index in 0..200u64 {
        let size = [2, 20, 2, 34, 120][(index % 5) as usize] * MIB;
        let address = 0x7f00_0000_0000 + index * 0x1000_0000;
        story.segment(address, size);
        for block in 0..index % 7 {
            story.block(address + block * size / 8, size / (9 + block), SiteId(0));
        }
    }
}

fn write_markup(story: &mut Story) {
    let site = story.site("<img src=x onerror=\"window.pwned = 1\">", Category::Activation);
    story.mark(Stage::Begin, "<script>window.pwned = 2</script>");
    story.segment(0x7f00_0000_0000, 2 * MIB);
    story.block(0x7f00_0000_0000, MIB, site);
    story.mark(Stage::End, "<script>window.pwned = 2</script>");
}

fn use_two_gpus(story: &mut Story) {
    train(story);
    story.gpu = DeviceId(1);
    story.segment(0x7f00_0000_0000, 20 * MIB);
    story.block(0x7f00_0000_0000, 3 * MIB, SiteId(0));
}

/// The states of a recording at every event, one after the other.
#[allow(dead_code)]
pub(crate) fn states(drawing: Drawing) -> Vec<MemoryState> {
    let mut recording = Recording::new();
    recording.push(&bytes(drawing)).expect("a recording");
    let mut replay = vramscope_trace::Replay::new();
    (0..=recording.end_event())
        .map(|event| replay.seek(&recording, event).expect("a recording that can be read").clone())
        .collect()
}
