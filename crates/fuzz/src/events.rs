//! Histories made of bytes: any bytes are one, and most of what one says goes together.

use vramscope_trace::{
    Annotation, Category, Definition, DeviceId, DeviceInfo, Encoder, Event, EventKind, Frame, FrameId, Info, MempoolId,
    Pool, PoolKind, Sink, Site, SiteId, Stack, StackId, Stage, StreamId, StringId,
};

/// Takes values off the front of bytes.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        let (byte, rest) = self.0.split_first().map_or((0, self.0), |(&byte, rest)| (byte, rest));
        self.0 = rest;
        byte
    }

    /// Small addresses and sizes, which meet each other, and now and then the edge of what fits.
    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => u64::MAX - u64::from(self.byte()),
            253 => u64::from(self.byte()) << 56,
            252 => u64::from(self.byte()) + 1,
            small => u64::from(small) * 512,
        }
    }

    fn site(&mut self) -> SiteId {
        SiteId(u32::from(self.byte() % 9))
    }

    fn stream(&mut self) -> StreamId {
        StreamId(u64::from(self.byte() % 3))
    }

    fn pool(&mut self) -> Pool {
        let byte = self.byte();
        let kind = if byte & 1 == 0 { PoolKind::Small } else { PoolKind::Large };
        Pool { kind, owner: MempoolId(u64::from(byte >> 6), u64::from(byte >> 7)) }
    }

    fn stage(&mut self) -> Stage {
        [Stage::Instant, Stage::Begin, Stage::End][usize::from(self.byte() % 3)]
    }

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
            11 => EventKind::SegmentMapped {
                address,
                size: self.number(),
                stream: self.stream(),
                pool: self.pool(),
                site,
            },
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

    fn definition(&mut self) -> Definition {
        let mut small = || u32::from(self.byte() % 8);
        let numbers = [small(), small(), small()];
        match self.byte() % 4 {
            0 => Definition::String(format!("{numbers:?}")),
            1 => Definition::Frame(Frame {
                function: StringId(numbers[0]),
                file: StringId(numbers[1]),
                line: numbers[2],
            }),
            2 => Definition::Stack(Stack { frame: FrameId(numbers[0]), caller: StackId(numbers[1]) }),
            _ => Definition::Site(Site {
                stack: StackId(numbers[0]),
                scope: StringId(numbers[1]),
                category: Category::ALL[numbers[2] as usize],
                compile_context: StringId(0),
            }),
        }
    }
}

/// The bytes of a recording of the history that `bytes` are, as an encoder writes them, and how many events it has.
pub(crate) fn encode(bytes: &[u8]) -> (Vec<u8>, u64) {
    let mut source = Source(bytes);
    let mut encoder = Encoder::new(&Info { source: "fuzz".to_owned(), ..Info::default() });
    let mut time_ns = 0u64;
    let mut events = 0;
    while !source.0.is_empty() {
        let code = source.byte();
        let device = DeviceId([0, 0, 0, 1, u16::MAX, 7, 1, 0][usize::from(code >> 5)]);
        match code & 31 {
            kind @ 0..=17 => {
                let pace = source.byte();
                time_ns = if pace == 255 { source.number() } else { time_ns.wrapping_add(u64::from(pace) * 1000) };
                encoder.event(&Event { device, time_ns, kind: source.kind(kind) });
                events += 1;
            }
            18..=21 => encoder.define(&source.definition()),
            22 => {
                let at_event = encoder.state().event();
                let (stage, name) = (source.stage(), StringId(u32::from(source.byte() % 5)));
                encoder.annotation(&Annotation { device, time_ns, at_event, stage, name });
            }
            23..=26 => encoder.flush(),
            27 => {
                let state = encoder.state().clone();
                encoder.full_state(&state);
            }
            28 => {
                // Some are lost, and then it is known again what there is.
                let mut state = encoder.state().clone();
                encoder.skip_to(state.event() + u64::from(source.byte()));
                let lost = Event { device, time_ns, kind: source.kind(0) };
                state.apply(&lost);
                encoder.full_state(&state);
            }
            29 => {
                // A head comes again, for more is known now.
                let known = DeviceInfo { device: device.0, rank: Some(source.byte().into()), ..DeviceInfo::default() };
                encoder.head(&Info { source: "fuzz".to_owned(), devices: vec![known], ..Info::default() });
            }
            _ => time_ns = time_ns.wrapping_sub(u64::from(source.byte())),
        }
    }
    encoder.flush();
    (encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect(), events)
}
