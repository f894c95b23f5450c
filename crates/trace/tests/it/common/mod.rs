//! Events for tests: arbitrary events, which may contradict each other, and the events of a
//! simulated program.

use proptest::prelude::*;
use vramscope_trace::{
    Annotation, AnnotationStage, Category, Definition, DeviceId, Event, EventKind, Frame, FrameId, MempoolId, PoolKey,
    PoolKind, Relabel, Sink, Site, SiteId, Stack, StackId, StreamId, StringId,
};

/// Numbers of all magnitudes, with realistic sizes and addresses among them.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..1000u64, (0..1u64 << 20).prop_map(|n| n * 512), Just(u64::MAX), Just(0)]
}

fn site() -> impl Strategy<Value = SiteId> {
    prop_oneof![0..5u32, any::<u32>()].prop_map(SiteId)
}

fn stream() -> impl Strategy<Value = StreamId> {
    prop_oneof![Just(0), any::<u64>()].prop_map(StreamId)
}

fn pool() -> impl Strategy<Value = PoolKey> {
    let kind = prop_oneof![Just(PoolKind::Small), Just(PoolKind::Large)];
    (kind, prop_oneof![3 => Just((0, 0)), 1 => any::<(u64, u64)>()])
        .prop_map(|(kind, (a, b))| PoolKey { kind, owner: MempoolId(a, b) })
}

fn stage() -> impl Strategy<Value = AnnotationStage> {
    prop_oneof![Just(AnnotationStage::Instant), Just(AnnotationStage::Begin), Just(AnnotationStage::End)]
}

fn kind() -> impl Strategy<Value = EventKind> {
    prop_oneof![
        (number(), number(), stream(), pool(), site()).prop_map(|(address, size, stream, pool, site)| {
            EventKind::SegmentAllocated { address, size, stream, pool, site }
        }),
        (number(), number(), stream(), pool(), site()).prop_map(|(address, size, stream, pool, site)| {
            EventKind::SegmentMapped { address, size, stream, pool, site }
        }),
        (number(), number(), site()).prop_map(|(address, size, site)| EventKind::SegmentFreed { address, size, site }),
        (number(), number(), site()).prop_map(|(address, size, site)| EventKind::SegmentUnmapped {
            address,
            size,
            site
        }),
        (number(), number(), number(), stream(), pool(), site()).prop_map(
            |(address, size, requested, stream, pool, site)| {
                EventKind::BlockAllocated { address, size, requested, stream, pool, site }
            }
        ),
        (number(), site()).prop_map(|(address, site)| EventKind::FreeRequested { address, site }),
        (number(), site()).prop_map(|(address, site)| EventKind::FreeCompleted { address, site }),
        (number(), number(), stream(), site()).prop_map(|(requested, device_free, stream, site)| {
            EventKind::OutOfMemory { requested, device_free, stream, site }
        }),
        (number(), number(), number()).prop_map(|(used_by_context, used_by_others, free)| EventKind::MemorySample {
            used_by_context,
            used_by_others,
            free
        }),
        (stage(), any::<u32>(), any::<u64>(), any::<u32>()).prop_map(|(stage, name, address, site)| {
            EventKind::Mark { stage, name: StringId(name), address, site: SiteId(site) }
        }),
    ]
}

/// An event of any kind except a gap, with arbitrary values.
pub(crate) fn any_event() -> impl Strategy<Value = Event> {
    (prop_oneof![Just(0), 0..3u16, any::<u16>()], number(), kind()).prop_map(|(device, time_ns, kind)| Event {
        device: DeviceId(device),
        time_ns,
        kind,
    })
}

/// A definition with arbitrary values.
pub(crate) fn any_definition() -> impl Strategy<Value = Definition> {
    prop_oneof![
        any::<String>().prop_map(Definition::String),
        any::<(u32, u32, u32)>().prop_map(|(function, file, line)| {
            Definition::Frame(Frame { function: StringId(function), file: StringId(file), line })
        }),
        any::<(u32, u32)>()
            .prop_map(|(frame, caller)| Definition::Stack(Stack { frame: FrameId(frame), caller: StackId(caller) })),
        (any::<u32>(), any::<u32>(), 0..Category::ALL.len(), any::<u32>()).prop_map(
            |(stack, scope, category, context)| {
                Definition::Site(Site {
                    stack: StackId(stack),
                    scope: StringId(scope),
                    category: Category::ALL[category],
                    compile_context: StringId(context),
                })
            }
        ),
    ]
}

/// An annotation with arbitrary values.
pub(crate) fn any_annotation() -> impl Strategy<Value = Annotation> {
    (any::<u16>(), number(), number(), stage(), any::<u32>()).prop_map(|(device, time_ns, at_event, stage, name)| {
        Annotation { device: DeviceId(device), time_ns, at_event, stage, name: StringId(name) }
    })
}

/// A relabel with arbitrary values.
fn any_relabel() -> impl Strategy<Value = Relabel> {
    (0..3u16, number(), number(), site()).prop_map(|(device, time_ns, address, site)| Relabel {
        device: DeviceId(device),
        time_ns,
        address,
        site,
    })
}

/// A call of a [`Sink`]'s method.
#[derive(Clone, Debug)]
pub(crate) enum SinkCall {
    Relabel(Relabel),
    Event(Event),
    Define(Definition),
    Annotation(Annotation),
}

/// An arbitrary call.
pub(crate) fn any_sink_call() -> impl Strategy<Value = SinkCall> {
    prop_oneof![
        8 => any_event().prop_map(SinkCall::Event),
        1 => any_definition().prop_map(SinkCall::Define),
        1 => any_annotation().prop_map(SinkCall::Annotation),
        1 => any_relabel().prop_map(SinkCall::Relabel),
    ]
}

/// Makes all calls on a sink, in order.
pub(crate) fn replay_calls(sink: &mut impl Sink, calls: &[SinkCall]) {
    for call in calls {
        match call {
            SinkCall::Event(event) => sink.event(event),
            SinkCall::Define(definition) => sink.define(definition),
            SinkCall::Annotation(annotation) => sink.annotation(annotation),
            SinkCall::Relabel(relabel) => sink.relabel(relabel),
        }
    }
}

/// A small deterministic random number generator (xorshift). The cases saved in
/// `tests/proptest-regressions` depend on its numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Returns `events` events of a program that allocates and frees blocks in slots of 64 KiB on two
/// devices.
pub(crate) fn program(events: usize, seed: u64) -> Vec<Event> {
    const SLOT: u64 = 64 << 10;
    const SLOTS: u64 = 512;
    let mut random = Random(seed | 1);
    let mut live = std::collections::BTreeMap::new();
    let pool = PoolKey::default_of(PoolKind::Large);
    let mut out: Vec<Event> = (0..2u16)
        .map(|device| Event {
            device: DeviceId(device),
            time_ns: 0,
            kind: EventKind::SegmentAllocated {
                address: 1 << 40,
                size: SLOTS * SLOT,
                stream: StreamId(0),
                pool,
                site: SiteId(1),
            },
        })
        .collect();
    while out.len() < events {
        let device = DeviceId(random.below(2) as u16);
        let address = (1 << 40) + random.below(SLOTS) * SLOT;
        let site = SiteId(random.below(9) as u32);
        let kind = match live.get(&(device, address)) {
            None => {
                live.insert((device, address), false);
                let requested = 1 + random.below(SLOT);
                EventKind::BlockAllocated {
                    address,
                    size: requested.next_multiple_of(512),
                    requested,
                    stream: StreamId(0),
                    pool,
                    site,
                }
            }
            Some(false) => {
                live.insert((device, address), true);
                EventKind::FreeRequested { address, site }
            }
            Some(true) => {
                live.remove(&(device, address));
                EventKind::FreeCompleted { address, site }
            }
        };
        out.push(Event { device, time_ns: 50 * out.len() as u64 + random.below(40), kind });
    }
    out
}

/// Returns a crafted chunk with a valid checksum.
pub(crate) fn chunk(kind: u8, first_event: u64, events: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(events.to_le_bytes());
    bytes.extend(first_event.to_le_bytes());
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    hash.update(&bytes);
    hash.update(payload);
    bytes.extend(hash.digest().to_le_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns a LEB128 integer.
pub(crate) fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Returns an uncompressed column.
pub(crate) fn column(id: u8, bytes: &[u8]) -> Vec<u8> {
    [&[id, 0], varint(bytes.len() as u64).as_slice(), bytes].concat()
}
