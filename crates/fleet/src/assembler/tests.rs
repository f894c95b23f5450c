//! Messages of a program's recording that are lost, repeated and split.

use std::sync::Arc;

use proptest::prelude::*;
use vramscope_collector::{Hub, HubLimits, ViewFrom};
use vramscope_trace::{
    Annotation, AnnotationStage, DecodedItem, Decoder, Definition, DeviceId, Encoder, Event, EventKind, MemoryState,
    PoolKey, PoolKind, RecordingInfo, Sink, SiteId, StreamId, StringId,
};

use super::*;

/// A program whose recording goes to a hub, and the messages that its push sends.
struct Program {
    encoder: Encoder,
    hub: Hub,
    events: u64,
    messages: Vec<ChunkMessage>,
}

impl Program {
    fn new() -> Self {
        let encoder = Encoder::new(&RecordingInfo { source: "train.py".to_owned(), ..RecordingInfo::default() });
        Self { encoder, hub: Hub::new(HubLimits::default()), events: 0, messages: Vec::new() }
    }

    /// Records allocations and frees of earlier ones, a name, and an annotation; every third call a
    /// full state.
    fn run(&mut self, allocations: u64) {
        self.encoder.define(&Definition::String(format!("name {}", self.events)));
        for _ in 0..allocations {
            let address = 512 * (1 + self.events);
            let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Small), SiteId(0));
            self.event(EventKind::BlockAllocated { address, size: 512, requested: 1, stream, pool, site });
            if self.events.is_multiple_of(3) {
                self.event(EventKind::FreeRequested { address, site });
                self.event(EventKind::FreeCompleted { address, site });
            }
        }
        self.encoder.annotation(&Annotation {
            device: DeviceId(0),
            at_event: self.events,
            time_ns: self.events,
            stage: AnnotationStage::Instant,
            name: StringId(1),
        });
        if allocations.is_multiple_of(3) {
            let state = self.encoder.state().clone();
            self.encoder.replace_state(&state);
        }
        self.encoder.flush();
        let chunks: Vec<_> = self.encoder.take_output().into_iter().map(Arc::new).collect();
        self.hub.publish(&chunks);
    }

    fn event(&mut self, kind: EventKind) {
        self.encoder.event(&Event { device: DeviceId(0), time_ns: self.events, kind });
        self.events += 1;
    }

    /// Sends all chunks that `viewer` has, in messages of at most `bytes` bytes; larger chunks are
    /// split. With `is_start`, the first message is a start.
    fn send(&mut self, viewer: &mut vramscope_collector::Viewer, bytes: usize, mut is_start: bool) {
        loop {
            let taken = viewer.take(bytes);
            if taken.chunks.is_empty() {
                return;
            }
            let joined: Vec<u8> = taken.chunks.iter().flat_map(|chunk| chunk.bytes.clone()).collect();
            let parts: Vec<&[u8]> = joined.chunks(bytes.max(1)).collect();
            for (index, part) in parts.iter().enumerate() {
                self.messages.push(ChunkMessage {
                    number: self.messages.len() as u64,
                    next: taken.next,
                    is_start,
                    continues: index + 1 < parts.len(),
                    payload: Bytes::copy_from_slice(part),
                    ..ChunkMessage::default()
                });
                is_start = false;
            }
        }
    }
}

/// Decodes assembled chunks. Returns the state at their end, and the number of annotations.
fn decode(bytes: &[u8]) -> (MemoryState, usize) {
    let (mut state, mut annotations) = (MemoryState::default(), 0);
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    while let Some(item) = decoder.next_item().expect("the chunks are a valid recording") {
        match item {
            DecodedItem::FullState(full) => state = *full,
            DecodedItem::Event(event) => state.apply(&event),
            DecodedItem::Annotation(_) => annotations += 1,
            _ => {}
        }
    }
    if !bytes.is_empty() {
        decoder.finish().expect("the chunks are whole");
    }
    (state, annotations)
}

/// What happens between two calls of [`Program::run`].
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The program runs and pushes.
    Run(u64),
    /// The push begins a new start.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(prop_oneof![3 => (1_u64..40).prop_map(Step::Run), 1 => Just(Step::Restart)], 1..20)
}

/// Returns the messages of a program that takes these steps.
fn program(steps: &[Step], bytes: usize) -> Program {
    let mut program = Program::new();
    let mut viewer = program.hub.viewer(ViewFrom::Recent(u64::MAX));
    let mut is_start = true;
    for &step in steps {
        match step {
            Step::Run(allocations) => program.run(allocations),
            Step::Restart => {
                viewer.restart();
                is_start = true;
            }
        }
        let before = program.messages.len();
        program.send(&mut viewer, bytes, is_start);
        is_start &= program.messages.len() == before;
    }
    program
}

proptest! {
    #[test]
    fn repeated_messages_and_starts_add_nothing(
        steps in steps(),
        bytes in 20_usize..4000,
        repeats in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let program = program(&steps, bytes);
        let mut delivered = program.messages.clone();
        for repeat in repeats.iter().filter(|_| !program.messages.is_empty()) {
            // A repeated message arrives at any time after the original.
            let message = repeat.get(&program.messages).clone();
            let at = delivered.iter().position(|known| *known == message).expect("it was sent") + 1;
            delivered.insert(at + repeat.index(delivered.len() - at + 1), message);
        }
        let mut assembler = Assembler::new();
        let mut bytes = Vec::new();
        for message in &delivered {
            let assembled = assembler.push(message).expect("the messages are valid");
            prop_assert_eq!(assembled.lost_messages, 0);
            bytes.extend(assembled.bytes);
        }
        let (state, annotations) = decode(&bytes);
        prop_assert_eq!(&state, program.encoder.state());
        prop_assert_eq!(annotations, steps.iter().filter(|step| matches!(step, Step::Run(_))).count());
    }

    #[test]
    fn assembling_continues_at_the_next_start_after_a_loss(
        steps in steps(),
        bytes in 20_usize..4000,
        lost in prop::collection::vec(any::<prop::sample::Index>(), 1..10),
        first in 0_usize..5,
    ) {
        let mut steps = steps;
        // The program ends with a start, after which nothing is missing.
        steps.extend([Step::Run(3), Step::Restart, Step::Run(1)]);
        let program = program(&steps, bytes);
        let last_start = program.messages.iter().rposition(|message| message.is_start).expect("there is a start");
        let lost: Vec<u64> = lost.iter().map(|lost| lost.index(last_start) as u64).collect();
        let mut assembler = Assembler::new();
        let (mut bytes, mut counted) = (Vec::new(), 0);
        // This also holds if the oldest messages were dropped before the reader began.
        let arriving = program.messages.iter().skip(first.min(last_start));
        let arriving: Vec<_> = arriving.filter(|message| !lost.contains(&message.number)).collect();
        for message in &arriving {
            let assembled = assembler.push(message).expect("the messages are valid");
            counted += assembled.lost_messages;
            bytes.extend(assembled.bytes);
        }
        prop_assert_eq!(&decode(&bytes).0, program.encoder.state());
        let span = program.messages.len() as u64 - arriving[0].number;
        prop_assert_eq!(counted, span - arriving.len() as u64);
    }

    #[test]
    fn any_bytes_are_an_error_or_chunks(
        payloads in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..200), any::<bool>()), 1..10),
    ) {
        let mut assembler = Assembler::new();
        for (number, (payload, continues)) in payloads.into_iter().enumerate() {
            let (number, is_start, payload) = (number as u64, number == 0, payload.into());
            let message = ChunkMessage { number, is_start, continues, payload, ..ChunkMessage::default() };
            if let Ok(assembled) = assembler.push(&message) {
                decode(&assembled.bytes);
            }
        }
    }
}

#[test]
fn joined_messages_have_a_limit() {
    let mut assembler = Assembler::new();
    let payload = Bytes::from(vec![0; 1 << 20]);
    let results: Vec<_> = (0..70)
        .map(|number| {
            let (is_start, payload) = (number == 0, payload.clone());
            assembler.push(&ChunkMessage { number, is_start, continues: true, payload, ..ChunkMessage::default() })
        })
        .collect();
    assert_eq!(results.iter().take_while(|result| result.is_ok()).count(), MAX_JOINED_BYTES >> 20);
}

#[test]
fn restarted_assembler_continues_at_a_start_and_repeats_nothing() {
    let program = program(&[Step::Run(40), Step::Run(40), Step::Restart, Step::Run(2)], 20);
    let start = program.messages.iter().rposition(|message| message.is_start).expect("there is a start");
    let push_all = |assembler: &mut Assembler, messages: &[ChunkMessage]| -> Vec<u8> {
        let pushed = messages.iter().map(|message| assembler.push(message).expect("the messages are valid"));
        pushed.inspect(|assembled| assert_eq!(assembled.lost_messages, 0)).flat_map(|pushed| pushed.bytes).collect()
    };
    // The assembler stops inside chunks that continue in the next message.
    let inside = 1 + program.messages.iter().position(|message| message.continues).expect("a chunk is split");
    let mut assembler = Assembler::new();
    let mut bytes = push_all(&mut assembler, &program.messages[..inside]);
    assert!(assembler.joined_bytes() > 0);
    assembler.restart_from(0);
    assert!(assembler.joined_bytes() == 0 && !assembler.is_in_sync());
    bytes.extend(push_all(&mut assembler, &program.messages[inside + 1..]));
    assert_eq!(&decode(&bytes).0, program.encoder.state());
    // Another assembler has returned all chunks before the last start.
    let mut first = Assembler::new();
    let mut bytes = push_all(&mut first, &program.messages[..start]);
    let mut second = Assembler::new();
    second.restart_from(first.next);
    bytes.extend(push_all(&mut second, &program.messages));
    assert_eq!(decode(&bytes), (program.encoder.state().clone(), 3));
}
