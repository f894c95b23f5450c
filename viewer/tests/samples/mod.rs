//! Small recordings that together contain everything a picture can show.

use vramscope_trace::{
    AnnotationStage, Category, DeviceId, DeviceInfo, Encoder, Event, EventKind, Interner, MemoryState, PoolKey,
    PoolKind, Recording, RecordingInfo, Sink, Site, SiteId, StreamId,
};
use vramscope_viewer::model::Model;
use vramscope_viewer::open::RecordingLoader;

const MIB: u64 = 1 << 20;

/// A sample recording.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "each test program uses a part")]
pub(crate) enum Sample {
    /// Training steps: permanent blocks, activations, and named spans.
    Training,
    /// Out-of-memory errors, lost events, blocks pending free.
    Trouble,
    /// Two hundred segments.
    Crowd,
    /// Names that look like markup.
    Markup,
    /// Two GPUs, the second without events at first.
    TwoGpus,
    /// Times close to `u64::MAX`.
    EndOfTime,
    /// Training on a GPU that other processes use, with memory samples from the first step on.
    Shared,
}

/// Writes a recording event by event.
struct Writer {
    encoder: Encoder,
    interner: Interner,
    gpu: DeviceId,
    time_ns: u64,
    /// The GPU's memory; memory samples are written only with it.
    total_bytes: Option<u64>,
}

impl Writer {
    fn new(total_bytes: Option<u64>) -> Self {
        let about = |total_bytes| DeviceInfo { total_bytes, ..DeviceInfo::default() };
        let devices = total_bytes.map(about).into_iter().collect();
        let info = RecordingInfo { source: "drawn".to_owned(), devices, ..RecordingInfo::default() };
        let encoder = Encoder::new(&info);
        Self { encoder, interner: Interner::default(), gpu: DeviceId(0), time_ns: 1_000_000_000, total_bytes }
    }

    fn write(&mut self, kind: EventKind) {
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
        self.interner.take_new().iter().for_each(|definition| self.encoder.define(definition));
        site
    }

    /// Writes a memory sample.
    fn sample(&mut self, used_by_context: u64, used_by_others: u64) {
        if let Some(total_bytes) = self.total_bytes {
            let reserved = self.encoder.state().device(self.gpu).map_or(0, |device| device.counters().reserved);
            let free = total_bytes - reserved - used_by_context - used_by_others;
            self.write(EventKind::MemorySample { used_by_context, used_by_others, free });
        }
    }

    fn mark(&mut self, stage: AnnotationStage, name: &str) {
        let name = self.interner.string(name);
        self.interner.take_new().iter().for_each(|definition| self.encoder.define(definition));
        self.write(EventKind::Mark { stage, name, address: 0, site: SiteId(0) });
    }

    fn segment(&mut self, address: u64, size: u64) {
        let pool = PoolKey::default_of(if size > 2 * MIB { PoolKind::Large } else { PoolKind::Small });
        self.write(EventKind::SegmentAllocated { address, size, stream: StreamId(0), pool, site: SiteId(0) });
    }

    fn block(&mut self, address: u64, requested: u64, site: SiteId) {
        self.rounded_block(address, requested, requested.next_multiple_of(512), site);
    }

    fn rounded_block(&mut self, address: u64, requested: u64, size: u64, site: SiteId) {
        let pool = PoolKey::default_of(PoolKind::Large);
        self.write(EventKind::BlockAllocated { address, size, requested, stream: StreamId(0), pool, site });
    }

    fn free(&mut self, address: u64) {
        self.write(EventKind::FreeRequested { address, site: SiteId(0) });
        self.write(EventKind::FreeCompleted { address, site: SiteId(0) });
    }

    fn finish(mut self) -> Vec<u8> {
        self.encoder.flush();
        self.encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
    }
}

/// Returns the bytes of a sample.
pub(crate) fn bytes(sample: Sample) -> Vec<u8> {
    let mut writer = Writer::new(matches!(sample, Sample::Shared).then_some(512 * MIB));
    match sample {
        Sample::Training | Sample::Shared => write_training(&mut writer),
        Sample::Trouble => write_trouble(&mut writer),
        Sample::Crowd => write_crowd(&mut writer),
        Sample::Markup => write_markup(&mut writer),
        Sample::TwoGpus => write_two_gpus(&mut writer),
        Sample::EndOfTime => {
            writer.time_ns = u64::MAX - 200_000;
            write_training(&mut writer);
        }
    }
    writer.finish()
}

/// Opens a sample in a model, as the page does.
#[allow(dead_code, reason = "each test program uses a part")]
pub(crate) fn open_sample(sample: Sample) -> Model {
    let mut opening = RecordingLoader::default();
    opening.push(&bytes(sample));
    let mut model = Model::default();
    model.show("drawn.vram", opening.finish().expect("a valid recording")).expect("a readable recording");
    model
}

fn write_training(writer: &mut Writer) {
    let parameter = writer.site("model/layer1", Category::Parameter);
    let state = writer.site("optimizer", Category::OptimizerState);
    let activation = writer.site("step/forward/layer1", Category::Activation);
    let gradient = writer.site("step/backward", Category::Gradient);
    writer.segment(0x7f00_0000_0000, 2 * MIB);
    writer.segment(0x7f00_0200_0000, 20 * MIB);
    writer.segment(0x7f00_0400_0000, 64 * MIB);
    for index in 0..120 {
        writer.block(0x7f00_0000_0000 + index * 0x2000, 4096 + index * 17, parameter);
    }
    for index in 0..6 {
        writer.block(0x7f00_0200_0000 + index * 3 * MIB, 5 * MIB / 2, if index < 3 { parameter } else { state });
    }
    for step in 0..5u64 {
        writer.mark(AnnotationStage::Begin, &format!("step {step}"));
        // A library allocates outside the pool in the second step; another process comes and goes.
        writer.sample(if step < 1 { 34 * MIB } else { 47 * MIB }, [90, 90, 210, 210, 130][step as usize] * MIB);
        let base = 0x7f00_0400_0000;
        for layer in 0..8 {
            writer.block(base + layer * 8 * MIB, 6 * MIB + (step * 7 + layer) % 5 * MIB / 2, activation);
        }
        writer.mark(AnnotationStage::Begin, "backward");
        for layer in (0..8).rev() {
            writer.free(base + layer * 8 * MIB);
            if layer % 3 == 0 {
                writer.block(0x7f00_0000_0000 + MIB + layer * 0x8000, 20_000, gradient);
            }
        }
        for layer in [0u64, 3, 6] {
            writer.free(0x7f00_0000_0000 + MIB + layer * 0x8000);
        }
        writer.mark(AnnotationStage::End, "backward");
        writer.mark(AnnotationStage::End, &format!("step {step}"));
    }
    writer.segment(0x7f00_0900_0000, 20 * MIB);
}

fn write_trouble(writer: &mut Writer) {
    let site = SiteId(0);
    for index in 0..6u64 {
        writer.segment(0x7f00_0000_0000 + index * 0x400_0000, (10 + index * 6) * MIB);
        for block in 0..(5 + index) {
            writer.block(0x7f00_0000_0000 + index * 0x400_0000 + block * 2 * MIB, MIB + block * 99_000, site);
        }
    }
    for index in 0..6u64 {
        writer.free(0x7f00_0000_0000 + index * 0x400_0000 + 2 * MIB);
    }
    let oom = EventKind::OutOfMemory { requested: 48 * MIB, device_free: 3 * MIB, stream: StreamId(0), site };
    writer.write(oom);
    for index in 1..4u64 {
        writer.write(EventKind::FreeRequested { address: 0x7f00_0000_0000 + index * 0x400_0000, site });
    }
    writer.write(EventKind::Gap { lost: 1234 });
    for round in 0..40u64 {
        writer.block(0x7f00_0000_0000 + 2 * MIB, 300_000 + round * 512, site);
        writer.free(0x7f00_0000_0000 + 2 * MIB);
    }
    writer.write(oom);
    // The peak, with all kinds of blocks present.
    writer.segment(0x7f00_2000_0000, 96 * MIB);
    for block in 0..3u64 {
        writer.rounded_block(0x7f00_2000_0000 + block * 30 * MIB, (22 + 3 * block) * MIB, 30 * MIB, site);
    }
}

fn write_crowd(writer: &mut Writer) {
    for index in 0..200u64 {
        let size = [2, 20, 2, 34, 120][(index % 5) as usize] * MIB;
        let address = 0x7f00_0000_0000 + index * 0x1000_0000;
        writer.segment(address, size);
        for block in 0..index % 7 {
            writer.block(address + block * size / 8, size / (9 + block), SiteId(0));
        }
    }
}

fn write_markup(writer: &mut Writer) {
    let site = writer.site("<img src=x onerror=\"window.pwned = 1\">", Category::Activation);
    writer.mark(AnnotationStage::Begin, "<script>window.pwned = 2</script>");
    writer.segment(0x7f00_0000_0000, 2 * MIB);
    writer.block(0x7f00_0000_0000, MIB, site);
    writer.mark(AnnotationStage::End, "<script>window.pwned = 2</script>");
}

fn write_two_gpus(writer: &mut Writer) {
    write_training(writer);
    writer.gpu = DeviceId(1);
    writer.segment(0x7f00_0000_0000, 20 * MIB);
    writer.block(0x7f00_0000_0000, 3 * MIB, SiteId(0));
}

/// Returns the memory states of a sample at every event.
#[allow(dead_code, reason = "each test program uses a part")]
pub(crate) fn states(sample: Sample) -> Vec<MemoryState> {
    let mut recording = Recording::new();
    recording.push(&bytes(sample)).expect("a valid recording");
    let mut replay = vramscope_trace::Replay::new();
    (0..=recording.end_event())
        .map(|event| replay.seek(&recording, event).expect("a readable recording").clone())
        .collect()
}
