//! Small recordings of a program that marks steps and allocates at known lines.

use vramscope_trace::{
    AnnotationStage, Encoder, Event, EventKind, Frame, Interner, PoolKey, RecordingInfo, Sink, Site, SiteId, StackId,
    StreamId,
};
use vramscope_viewer::app::Session;

use super::{DEVICE, open_bytes};

/// Writes a small recording, event by event, 10 ns apart.
pub(crate) struct Program {
    pub(crate) encoder: Encoder,
    interner: Interner,
    time_ns: u64,
    next_address: u64,
}

impl Program {
    /// Creates a program with one large segment.
    pub(crate) fn new() -> Self {
        let encoder = Encoder::new(&RecordingInfo::default());
        let mut program = Self { encoder, interner: Interner::default(), time_ns: 0, next_address: 0 };
        let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
        program.event(EventKind::SegmentAllocated { address: 0, size: 1 << 40, stream, pool, site });
        program
    }

    fn event(&mut self, kind: EventKind) {
        self.interner.take_new().iter().for_each(|definition| self.encoder.define(definition));
        self.time_ns += 10;
        self.encoder.event(&Event { device: DEVICE, time_ns: self.time_ns, kind });
    }

    /// Allocates a block at a line of the function `layer`, which `main` called, and returns its
    /// address.
    pub(crate) fn allocate(&mut self, line: u32, size: u64) -> u64 {
        self.allocate_in(&[("train.py", 3, "main"), ("train.py", line, "layer")], size)
    }

    /// Allocates a block with these frames, file, line and function, outermost first, and returns
    /// its address.
    pub(crate) fn allocate_in(&mut self, frames: &[(&str, u32, &str)], size: u64) -> u64 {
        let mut stack = StackId(0);
        for &(file, line, function) in frames {
            let (function, file) = (self.interner.string(function), self.interner.string(file));
            let frame = self.interner.frame(Frame { function, file, line });
            stack = self.interner.stack(frame, stack);
        }
        let site = self.interner.site(Site { stack, ..Site::default() });
        let address = self.next_address;
        self.next_address += size;
        let (stream, pool) = (StreamId(0), PoolKey::default());
        self.event(EventKind::BlockAllocated { address, size, requested: size - 100, stream, pool, site });
        address
    }

    /// Frees a block.
    pub(crate) fn free(&mut self, address: u64) {
        self.event(EventKind::FreeRequested { address, site: SiteId(0) });
        self.event(EventKind::FreeCompleted { address, site: SiteId(0) });
    }

    /// Marks the begin or end of a span, or an instant.
    pub(crate) fn mark(&mut self, stage: AnnotationStage, name: &str) {
        let name = self.interner.string(name);
        self.event(EventKind::Mark { stage, name, address: 0, site: SiteId(0) });
    }

    /// Runs a step that allocates at three lines and frees all of it; with `leaks`, it keeps 1 KiB
    /// at each of the lines 20 and 21.
    pub(crate) fn step(&mut self, number: u64, leaks: bool) {
        self.mark(AnnotationStage::Begin, &format!("step {number}"));
        let blocks = [10, 11, 12].map(|line| self.allocate(line, 4096 * (1 + number % 3)));
        if leaks {
            self.allocate(20, 1024);
            self.allocate(21, 1024);
        }
        blocks.into_iter().for_each(|address| self.free(address));
        let temporary = self.allocate(30, 2048);
        self.free(temporary);
        self.mark(AnnotationStage::End, &format!("step {number}"));
    }

    /// Opens what has been recorded in a session.
    pub(crate) fn finish(mut self) -> Session {
        self.encoder.flush();
        let bytes: Vec<u8> = self.encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
        open_bytes("program.vram", &bytes)
    }
}

/// Records steps of a training run, see [`Program::step`].
pub(crate) fn training(steps: u64, leaks: bool) -> Session {
    let mut program = Program::new();
    program.allocate(5, 1 << 20);
    (0..steps).for_each(|number| program.step(number, leaks));
    program.finish()
}
