//! The decoder, the recording and the encoder must say the same of the same bytes.

use std::collections::BTreeMap;

use vramscope_trace::{
    Decoder, DeviceState, Encoder, Event, FormatError, Info, Item, MemoryState, Recording, Replay, Sink,
};

use crate::random::Random;
use crate::sketch;

/// Moments of each recording that are compared.
const MOMENTS: usize = 6;

/// Moments of which all are kept; of later ones one in [`KEPT`].
const ALL_UP_TO: usize = 200;
const KEPT: u64 = 16;

/// What a decoder makes of a recording.
#[derive(Default)]
struct Decoded {
    items: Vec<Item>,
    error: Option<FormatError>,
    /// The state at many moments; the last, where full states say another.
    states: BTreeMap<u64, MemoryState>,
    /// The state behind everything.
    end: Option<MemoryState>,
    events: BTreeMap<u64, Event>,
    /// The events that contradict what was known before.
    misfits: Vec<u64>,
    first_event: Option<u64>,
}

impl Decoded {
    fn of(bytes: &[u8], random: &mut Random) -> Self {
        let mut decoded = Self::default();
        let mut decoder = Decoder::new();
        let mut state = MemoryState::default();
        let mut rest = bytes;
        while !rest.is_empty() && decoded.error.is_none() {
            let (now, later) = rest.split_at(1 + random.index(rest.len()));
            rest = later;
            decoder.push(now);
            loop {
                match decoder.next_item() {
                    Ok(Some(item)) => decoded.take(item, &mut state),
                    Ok(None) => break,
                    Err(error) => {
                        decoded.error = Some(error);
                        break;
                    }
                }
            }
        }
        decoded.end = decoded.first_event.is_some().then_some(state);
        decoded.error = decoded.error.or(decoder.finish().err());
        decoded
    }

    /// Whether some chunk says that its events fit what was known before, and one does not.
    fn lies(&self, bytes: &[u8]) -> bool {
        let fitting = sketch::fitting(bytes);
        self.misfits.iter().any(|number| fitting.iter().any(|fits| fits.contains(number)))
    }

    fn take(&mut self, item: Item, state: &mut MemoryState) {
        match &item {
            Item::Event(event) => {
                self.first_event.get_or_insert(state.event());
                if self.states.is_empty() {
                    self.states.insert(state.event(), state.clone());
                }
                self.events.insert(state.event(), *event);
                let misfits = |state: &MemoryState| state.device(event.device).map_or(0, DeviceState::misfits);
                let (number, before) = (state.event(), misfits(state));
                state.apply(event);
                if misfits(state) != before || before == u64::MAX {
                    self.misfits.push(number);
                }
                if self.states.len() < ALL_UP_TO || state.event().is_multiple_of(KEPT) {
                    self.states.insert(state.event(), state.clone());
                }
            }
            Item::FullState(full) => {
                self.first_event.get_or_insert(full.event());
                *state = (**full).clone();
                self.states.insert(state.event(), state.clone());
            }
            _ => {}
        }
        self.items.push(item);
    }
}

/// Whether a recording that can be read has a chunk which says that its events fit what was known before, where one does not.
pub(crate) fn lies(bytes: &[u8]) -> bool {
    Decoded::of(bytes, &mut Random::new(1)).lies(bytes)
}

/// Compares what a decoder and a recording make of `bytes`. Those that are `sound` must be taken by both.
pub(crate) fn check(bytes: &[u8], sound: bool, random: &mut Random) {
    let mut recording = Recording::new();
    let mut result = Ok(());
    let mut rest = bytes;
    while !rest.is_empty() && result.is_ok() {
        let (now, later) = rest.split_at(1 + random.index(rest.len()));
        rest = later;
        result = recording.push(now);
    }
    let result = result.and_then(|()| recording.finish());
    assert!(!sound || result.is_ok(), "what an encoder wrote is refused: {result:?}");
    // What the decoder refuses the recording must refuse too; it sees more, for it knows the memory.
    let decoded = Decoded::of(bytes, random);
    match (&result, &decoded.error) {
        (Ok(()), Some(error)) => panic!("a recording takes what a decoder refuses: {error}"),
        (Ok(()), None) if decoded.lies(bytes) => {
            // Such a chunk is damaged. Nothing that it says has to go together, if only it does no harm.
            assert!(!sound, "an encoder says of a chunk that its events fit, and one does not");
            crate::look::look(&recording, random);
        }
        (Ok(()), None) => same(bytes, &recording, &decoded, random),
        (Err(error), Some(refused)) => assert!(error.offset <= refused.offset, "{error} came after {refused}"),
        (Err(_), None) => {}
    }
}

fn same(bytes: &[u8], recording: &Recording, decoded: &Decoded, random: &mut Random) {
    assert_eq!(recording.events(), decoded.events.len() as u64, "the number of events");
    assert_eq!(recording.first_event(), decoded.first_event.unwrap_or(0), "the first event");
    if let Some(end) = &decoded.end {
        assert_eq!(recording.end_state(), end, "the state at the end");
    }
    let mut replay = Replay::new();
    let moments: Vec<_> = decoded.states.iter().collect();
    for _ in 0..MOMENTS.min(moments.len()) {
        let (&moment, state) = *random.pick(&moments);
        let found = replay.seek(recording, moment).expect("all chunks are here");
        assert_eq!(found, state, "the state at moment {moment}");
        let found = replay.event(recording, moment).expect("all chunks are here");
        assert_eq!(found.as_ref(), decoded.events.get(&moment), "event {moment}");
    }
    let encoded = encode(&decoded.items);
    let again = Decoded::of(&encoded, random);
    assert_eq!(again.error, None, "what was decoded and encoded again is sound");
    let same_kinds = |of: &Decoded| {
        let definitions = of.items.iter().filter(|item| matches!(item, Item::Define(_))).count();
        let annotations: Vec<_> = of.items.iter().filter(|item| matches!(item, Item::Annotation(_))).cloned().collect();
        (definitions, annotations)
    };
    assert_eq!(same_kinds(&again), same_kinds(decoded), "definitions and annotations");
    assert!(again.events.iter().eq(&decoded.events), "the events");
    assert_eq!(again.end, decoded.end, "the state at the end");
    indexed(bytes, recording, random);
}

/// A recording and its index opens as the same.
fn indexed(bytes: &[u8], recording: &Recording, random: &mut Random) {
    let index = recording.index().into_iter().flat_map(|chunk| chunk.bytes);
    let whole: Vec<u8> = bytes.iter().copied().chain(index).collect();
    let len = whole.len() as u64;
    let (opened, error) = Recording::open(std::sync::Arc::new(whole), len, |_, _| {}).expect("it opens");
    assert_eq!(error, None, "nothing is wrong with a recording and its index");
    assert_eq!(opened.end_state(), recording.end_state(), "the state at the end");
    let numbers = |of: &Recording| [of.events(), of.lost_events(), of.first_event(), of.start_ns(), of.end_ns()];
    assert_eq!(numbers(&opened), numbers(recording), "the numbers of the index");
    assert_eq!(opened.incidents(), recording.incidents(), "the incidents");
    assert!(opened.annotations() == recording.annotations() || has_marks(recording), "the annotations");
    let (mut of_opened, mut of_whole) = (Replay::new(), Replay::new());
    for _ in 0..MOMENTS {
        let span = (recording.end_event() - recording.first_event()).saturating_add(1).max(1);
        let moment = recording.first_event() + random.below(span);
        let found = of_opened.seek(&opened, moment).expect("all chunks can be read");
        assert_eq!(found, of_whole.seek(recording, moment).expect("all chunks are here"), "moment {moment}");
    }
}

/// Marks among the events count as annotations only where the events were read.
fn has_marks(recording: &Recording) -> bool {
    recording.events() > 0
}

/// Encodes what was decoded.
fn encode(items: &[Item]) -> Vec<u8> {
    let none = Info::default();
    let info = items.iter().find_map(|item| if let Item::Info(info) = item { Some(info) } else { None });
    let mut encoder = Encoder::new(info.unwrap_or(&none));
    for item in items {
        match item {
            Item::Info(_) => {}
            Item::Define(definition) => encoder.define(definition),
            Item::FullState(state) => {
                encoder.skip_to(state.event());
                encoder.full_state(state);
            }
            Item::Event(event) => encoder.event(event),
            Item::Annotation(annotation) => encoder.annotation(annotation),
        }
    }
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}
