//! Turns arbitrary bytes into a recording whose events are mostly consistent.

use vramscope_trace::{
    Annotation, AnnotationStage, Category, Definition, DeviceId, DeviceInfo, Encoder, Event, EventKind, Frame, FrameId,
    MempoolId, PoolKey, PoolKind, RecordingInfo, Relabel, Sink, Site, SiteId, Stack, StackId, StreamId, StringId,
};

use crate::recording_bytes::encoded;

/// A reader that takes values from the front of the input. Behind its end, all values are 0.
struct ByteReader<'a>(&'a [u8]);

impl ByteReader<'_> {
    /// Returns the next byte; 0 at the end.
    fn byte(&mut self) -> u8 {
        let (byte, rest) = self.0.split_first().map_or((0, self.0), |(&byte, rest)| (byte, rest));
        self.0 = rest;
        byte
    }

    /// Returns a small address or size, so that ranges overlap often, and sometimes an extreme
    /// value.
    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => u64::MAX - u64::from(self.byte()),
            253 => u64::from(self.byte()) << 56,
            252 => u64::from(self.byte()) + 1,
            small => u64::from(small) * 512,
        }
    }

    /// Returns a site number below 9. Some of these sites are not defined.
    fn site(&mut self) -> SiteId {
        SiteId(u32::from(self.byte() % 9))
    }

    /// Returns one of three streams.
    fn stream(&mut self) -> StreamId {
        StreamId(u64::from(self.byte() % 3))
    }

    /// Returns a segment pool of either size class, in the default pool or in one of a few private
    /// pools.
    fn pool(&mut self) -> PoolKey {
        let byte = self.byte();
        let kind = if byte & 1 == 0 { PoolKind::Small } else { PoolKind::Large };
        PoolKey { kind, owner: MempoolId(u64::from(byte >> 6), u64::from(byte >> 7)) }
    }

    /// Returns any stage of an annotation or mark.
    fn stage(&mut self) -> AnnotationStage {
        [AnnotationStage::Instant, AnnotationStage::Begin, AnnotationStage::End][usize::from(self.byte() % 3)]
    }

    /// Returns an event of the kind that `code` selects; 17 and above are gaps.
    fn kind(&mut self, code: u8) -> EventKind {
        let (address, site) = (self.number(), self.site());
        match code {
            0..=4 => {
                let requested = self.number();
                let size = requested.saturating_add(u64::from(self.byte() % 2) * 512);
                EventKind::BlockAllocated { address, size, requested, stream: self.stream(), pool: self.pool(), site }
            }
            5..=7 => EventKind::FreeRequested { address, site },
            8 | 9 => EventKind::FreeCompleted { address, site },
            10 => {
                let (size, stream, pool) = (self.number(), self.stream(), self.pool());
                EventKind::SegmentAllocated { address, size, stream, pool, site }
            }
            11 => {
                let (size, stream, pool) = (self.number(), self.stream(), self.pool());
                EventKind::SegmentMapped { address, size, stream, pool, site }
            }
            12 => EventKind::SegmentFreed { address, size: self.number(), site },
            13 => EventKind::SegmentUnmapped { address, size: self.number(), site },
            14 => {
                EventKind::OutOfMemory { requested: address, device_free: self.number(), stream: self.stream(), site }
            }
            15 => {
                EventKind::MemorySample { used_by_context: address, used_by_others: self.number(), free: self.number() }
            }
            16 => EventKind::Mark { stage: self.stage(), name: StringId(u32::from(self.byte() % 5)), address, site },
            _ => EventKind::Gap { lost: u64::from(self.byte()) },
        }
    }

    /// Returns a definition with a small number. It may refer to undefined numbers.
    fn definition(&mut self) -> Definition {
        let mut small = || u32::from(self.byte() % 8);
        let numbers @ [first, second, third] = [small(), small(), small()];
        match self.byte() % 4 {
            0 => Definition::String(format!("{numbers:?}")),
            1 => Definition::Frame(Frame { function: StringId(first), file: StringId(second), line: third }),
            2 => Definition::Stack(Stack { frame: FrameId(first), caller: StackId(second) }),
            _ => {
                let (stack, scope, compile_context) = (StackId(first), StringId(second), StringId(0));
                Definition::Site(Site {
                    stack,
                    scope,
                    category: Category::ALL[self.byte() as usize % Category::ALL.len()],
                    compile_context,
                })
            }
        }
    }
}

/// Returns the recording that an encoder writes for `bytes`, and its number of events.
pub(crate) fn encode(bytes: &[u8]) -> (Vec<u8>, u64) {
    let mut reader = ByteReader(bytes);
    let info = RecordingInfo { source: "fuzz".to_owned(), ..RecordingInfo::default() };
    let mut encoder = Encoder::new(&info);
    let mut time_ns = 0u64;
    let mut events = 0;
    while !reader.0.is_empty() {
        let code = reader.byte();
        let device = DeviceId([0, 0, 0, 1, u16::MAX, 7, 1, 0][usize::from(code >> 5)]);
        match code & 31 {
            kind @ 0..=17 => {
                let pace = reader.byte();
                time_ns = if pace == 255 { reader.number() } else { time_ns.wrapping_add(u64::from(pace) * 1000) };
                encoder.event(&Event { device, time_ns, kind: reader.kind(kind) });
                events += 1;
            }
            18..=21 => encoder.define(&reader.definition()),
            22 => {
                let at_event = encoder.state().event();
                let (stage, name) = (reader.stage(), StringId(u32::from(reader.byte() % 5)));
                encoder.annotation(&Annotation { device, time_ns, at_event, stage, name });
            }
            23..=26 => encoder.flush(),
            27 => {
                let state = encoder.state().clone();
                encoder.replace_state(&state);
            }
            28 => {
                // Skips events and continues with a full state.
                let mut state = encoder.state().clone();
                encoder.skip_to(state.event() + u64::from(reader.byte()));
                let missed = Event { device, time_ns, kind: reader.kind(0) };
                state.apply(&missed);
                encoder.replace_state(&state);
            }
            29 => {
                // Writes the header chunk again, with more information.
                let device_info =
                    DeviceInfo { device: device.0, rank: Some(reader.byte().into()), ..DeviceInfo::default() };
                encoder.update_info(&RecordingInfo { devices: vec![device_info], ..info.clone() });
            }
            30 => {
                let (address, site) = (reader.number(), reader.site());
                encoder.relabel(&Relabel { device, time_ns, address, site });
            }
            _ => time_ns = time_ns.wrapping_sub(u64::from(reader.byte())),
        }
    }
    (encoded(encoder), events)
}
