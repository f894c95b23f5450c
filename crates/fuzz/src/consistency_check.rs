//! Compares decoder, recording and encoder, which must agree on the content of equal bytes.

use std::collections::BTreeMap;

use vramscope_trace::{
    DecodedItem, Decoder, DeviceState, Encoder, Event, FormatError, MemoryState, Recording, RecordingInfo, Replay, Sink,
};

use crate::random::Random;
use crate::recording_bytes::{encoded, index_of, pieces};
use crate::structured_input;

/// Number of moments of each recording that are compared.
const COMPARED_MOMENTS: usize = 6;

/// Number of first moments whose states are all kept.
const KEEP_ALL: usize = 200;
/// Interval of the moments after the first [`KEEP_ALL`] whose states are kept, in events.
const KEEP_ONE_IN: u64 = 16;

/// The contents of a recording according to a decoder.
#[derive(Default)]
struct Decoded {
    items: Vec<DecodedItem>,
    error: Option<FormatError>,
    /// The states at the kept moments, by event number; of several states, the last decoded one.
    states: BTreeMap<u64, MemoryState>,
    /// The state at the end.
    end: Option<MemoryState>,
    events: BTreeMap<u64, Event>,
    /// The events that contradict the state before them.
    contradictions: Vec<u64>,
    first_event: Option<u64>,
}

impl Decoded {
    /// Decodes `bytes` in random pieces up to the end or the first error.
    fn decode(bytes: &[u8], random: &mut Random) -> Self {
        let mut decoded = Self::default();
        let mut decoder = Decoder::new();
        let mut state = MemoryState::default();
        for piece in pieces(bytes, random) {
            decoder.push(piece);
            let mut items = std::iter::from_fn(|| decoder.next_item().transpose());
            let result = items.try_for_each(|item| {
                decoded.add(item?, &mut state);
                Ok(())
            });
            decoded.error = result.err();
            if decoded.error.is_some() {
                break;
            }
        }
        if let Some(last) = decoded.states.get_mut(&state.event()) {
            // Relabels after the last event change the end state.
            last.clone_from(&state);
        }
        decoded.end = decoded.first_event.is_some().then_some(state);
        decoded.error = decoded.error.or(decoder.finish().err());
        decoded
    }

    /// Returns true if a chunk claims that its events are consistent, but one of them is not.
    fn has_false_claim(&self, bytes: &[u8]) -> bool {
        let claimed = structured_input::claimed_consistent(bytes);
        self.contradictions.iter().any(|number| claimed.iter().any(|claim| claim.contains(number)))
    }

    /// Adds a decoded item and applies it to `state`.
    fn add(&mut self, item: DecodedItem, state: &mut MemoryState) {
        match &item {
            DecodedItem::Event(event) => {
                self.first_event.get_or_insert(state.event());
                if self.states.is_empty() {
                    self.states.insert(state.event(), state.clone());
                }
                self.events.insert(state.event(), *event);
                let count = |state: &MemoryState| state.device(event.device).map_or(0, DeviceState::inconsistencies);
                let (number, before) = (state.event(), count(state));
                state.apply(event);
                if count(state) != before || before == u64::MAX {
                    self.contradictions.push(number);
                }
                if self.states.len() < KEEP_ALL || state.event().is_multiple_of(KEEP_ONE_IN) {
                    self.states.insert(state.event(), state.clone());
                }
            }
            DecodedItem::FullState(full) => {
                self.first_event.get_or_insert(full.event());
                *state = (**full).clone();
                self.states.insert(state.event(), state.clone());
            }
            // A relabel takes effect with the next event.
            DecodedItem::Relabel(relabel) => state.relabel(relabel),
            _ => {}
        }
        self.items.push(item);
    }
}

/// Returns true if a readable recording has a chunk that claims that its events are consistent, but
/// one of them is not.
pub(crate) fn has_false_claim(bytes: &[u8]) -> bool {
    Decoded::decode(bytes, &mut Random::new(1)).has_false_claim(bytes)
}

/// Compares the results of a decoder and a recording for `bytes`. With `sound`, an encoder wrote
/// the bytes, so both must accept them.
pub(crate) fn check(bytes: &[u8], sound: bool, random: &mut Random) {
    let mut recording = Recording::new();
    let pushed = pieces(bytes, random).try_for_each(|piece| recording.push(piece));
    let result = pushed.and_then(|()| recording.finish());
    assert!(!sound || result.is_ok(), "an encoded recording is refused: {result:?}");
    // The recording must refuse all bytes that the decoder refuses. It may refuse more, because it
    // tracks the memory state.
    let decoded = Decoded::decode(bytes, random);
    match (&result, &decoded.error) {
        (Ok(()), Some(error)) => panic!("a recording accepts what a decoder refuses: {error}"),
        (Ok(()), None) if decoded.has_false_claim(bytes) => {
            // A chunk with a false claim is damaged. It must not cause a panic, but decoder and
            // recording may disagree on it.
            assert!(!sound, "an encoder claims that a chunk is consistent, and it is not");
            crate::inspect::inspect(&recording, random);
        }
        (Ok(()), None) => check_equal(bytes, &recording, &decoded, random),
        (Err(error), Some(refused)) => assert!(error.offset <= refused.offset, "{error} came after {refused}"),
        (Err(_), None) => {}
    }
}

/// Checks that a recording and a decoder found equal content, that the content does not change if
/// it is encoded again, and that the recording opens by its index.
fn check_equal(bytes: &[u8], recording: &Recording, decoded: &Decoded, random: &mut Random) {
    assert_eq!(recording.events(), decoded.events.len() as u64, "the number of events");
    assert_eq!(recording.first_event(), decoded.first_event.unwrap_or(0), "the first event");
    if let Some(end) = &decoded.end {
        assert_eq!(recording.end_state(), end, "the state at the end");
    }
    let mut replay = Replay::new();
    let moments: Vec<_> = decoded.states.iter().collect();
    for _ in 0..COMPARED_MOMENTS.min(moments.len()) {
        let (&moment, state) = *random.pick(&moments);
        let found = replay.seek(recording, moment).expect("all chunks are in memory");
        assert_eq!(found, state, "the state at moment {moment}");
        let found = replay.event(recording, moment).expect("all chunks are in memory");
        assert_eq!(found.as_ref(), decoded.events.get(&moment), "event {moment}");
    }
    let again = Decoded::decode(&encode(&decoded.items), random);
    assert_eq!(again.error, None, "an encoded recording is sound");
    let other_items = |of: &Decoded| {
        let definitions = of.items.iter().filter(|item| matches!(item, DecodedItem::Define(_))).count();
        let annotations: Vec<_> =
            of.items.iter().filter(|item| matches!(item, DecodedItem::Annotation(_))).cloned().collect();
        (definitions, annotations)
    };
    assert_eq!(other_items(&again), other_items(decoded), "definitions and annotations");
    assert!(again.events.iter().eq(&decoded.events), "the events");
    assert_eq!(again.end, decoded.end, "the state at the end");
    check_index(bytes, recording, random);
}

/// Checks that the recording opens by its index with equal content.
fn check_index(bytes: &[u8], recording: &Recording, random: &mut Random) {
    let whole = [bytes, &index_of(recording)].concat();
    let len = whole.len() as u64;
    let (opened, error) = Recording::open(std::sync::Arc::new(whole), len, |_, _| {}).expect("a sound recording opens");
    assert_eq!(error, None, "a sound recording opens without damage");
    assert_eq!(opened.end_state(), recording.end_state(), "the state at the end");
    let numbers = |of: &Recording| [of.events(), of.lost_events(), of.first_event(), of.start_ns(), of.end_ns()];
    assert_eq!(numbers(&opened), numbers(recording), "the numbers of the index");
    assert_eq!(opened.incidents(), recording.incidents(), "the incidents");
    assert!(opened.annotations() == recording.annotations() || has_marks(recording), "the annotations");
    let (mut opened_replay, mut pushed_replay) = (Replay::new(), Replay::new());
    for _ in 0..COMPARED_MOMENTS {
        let span = (recording.end_event() - recording.first_event()).saturating_add(1).max(1);
        let moment = recording.first_event() + random.below(span);
        let found = opened_replay.seek(&opened, moment).expect("all chunks can be read");
        assert_eq!(found, pushed_replay.seek(recording, moment).expect("all chunks are in memory"), "moment {moment}");
    }
}

/// Returns true if a recording has events, and with them perhaps marks. A recording that was opened
/// by its index does not contain these marks; it has only annotations.
fn has_marks(recording: &Recording) -> bool {
    recording.events() > 0
}

/// Returns the recording that an encoder writes for decoded items.
fn encode(items: &[DecodedItem]) -> Vec<u8> {
    let none = RecordingInfo::default();
    let info = items.iter().find_map(|item| if let DecodedItem::Info(info) = item { Some(info) } else { None });
    let mut encoder = Encoder::new(info.unwrap_or(&none));
    for item in items {
        match item {
            DecodedItem::Info(_) => {}
            DecodedItem::Define(definition) => encoder.define(definition),
            DecodedItem::FullState(state) => {
                encoder.skip_to(state.event());
                encoder.replace_state(state);
            }
            DecodedItem::Event(event) => encoder.event(event),
            DecodedItem::Annotation(annotation) => encoder.annotation(annotation),
            DecodedItem::Relabel(relabel) => encoder.relabel(relabel),
        }
    }
    encoded(encoder)
}
