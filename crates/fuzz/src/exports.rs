//! Targets for what is made of a recording that came from a stranger.

use std::io::{self, Write};

use vramscope_formats::export::{self, ExportError};
use vramscope_formats::import;
use vramscope_pool::{Settings, rerun};
use vramscope_trace::{Encoder, Event, EventKind, LifetimesBuilder, MemoryState, Recording, Replay, SiteId, StringId};

use crate::random::Random;
use crate::readers::LIMITS;
use crate::{agree, events, sketch};

/// Events up to which a recording is run through the pool again; the search for what led to them takes long where they make no sense.
const MAX_RERUN_EVENTS: u64 = 400;

/// Takes bytes, and fails where they are more than the limit.
struct Limited {
    left: usize,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len()).ok_or_else(|| io::Error::other("the disk is full"))?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn recording(bytes: &[u8]) -> Option<Recording> {
    let mut recording = Recording::new();
    recording.push(bytes).ok()?;
    // One that says of events that they fit, and they do not, is damaged: it may be read to its end, and then not at some moment.
    (!agree::lies(bytes)).then_some(recording)
}

/// Whether a recording begins with a chunk at all; no bytes are one without end, too.
fn has_head(bytes: &[u8]) -> bool {
    bytes.len() > sketch::build(&[]).len()
}

/// A sketch of a recording, of which everything is made that can be: lifetimes, a comparison, every export.
pub fn analyses(data: &[u8]) {
    let bytes = sketch::build(data);
    let Some(recording) = recording(&bytes).filter(|_| has_head(&bytes)) else { return };
    let mut random = Random::of(data);
    lifetimes(&recording, &mut random);
    vramscope_trace::compare(&recording, &recording).expect("all chunks are here");
    let out = || Limited { left: 8 << 20 };
    let mut none = |_, _| {};
    let results = [
        export::csv(&recording, out(), out(), &mut none),
        export::parquet(&recording, out(), out(), &mut none),
        export::perfetto(&recording, &mut out(), &mut none),
        export::tensorboard(&recording, &mut out(), &mut none),
        export::memory_viz_json(&recording, &mut out(), &mut none),
        export::memory_viz_pickle(&recording, &mut out(), &mut none),
    ];
    for result in results {
        // A recording may hold what a format has no place for, but what was taken in can be read.
        assert!(!matches!(result, Err(ExportError::Recording(_))), "{result:?}");
    }
    let pieces = bytes.chunks(1000).map(|piece| Ok(piece.to_vec()));
    export::redact(recording.info(), pieces, Encoder::new).expect("a recording that was taken in can be read");
}

fn lifetimes(recording: &Recording, random: &mut Random) {
    let mut builder = LifetimesBuilder::new();
    let mut replay = Replay::new();
    let first = recording.first_event();
    builder.full_state(replay.seek(recording, first).expect("all chunks are here"));
    let walked = export::walk(recording, &mut |_, _| {}, |_, number, event| {
        builder.event(number, event);
        Ok::<_, vramscope_trace::FormatError>(())
    });
    walked.expect("all chunks are here");
    builder.full_state(recording.end_state());
    let lifetimes = builder.finish();
    let end = recording.end_event();
    for (id, device) in lifetimes.devices().take(4) {
        let live = recording.end_state().device(id).map_or(0, |device| device.blocks().len());
        let at = first + random.below((end - first).saturating_add(1).max(1));
        for moment in [first, at, end] {
            let living = device.live_at(moment).inspect(|one| assert!(one.is_active_at(moment), "{one:?} at {moment}"));
            assert!(living.count() <= device.len(), "no more live than ever did");
            let _ = (device.largest_at(moment, 3), device.sums_at(moment, |one| one.site));
        }
        assert!(device.live_at(end).count() <= live, "no more live at the end than the state says");
        let between = first.min(at)..end;
        let _ = (device.survivors(between.clone(), end).count(), device.temporaries(between.clone(), 9).count());
        let _ = (device.churn_by(between, |one| one.stream), device.alive_in(at, end).count());
        if let Some(one) = device.iter().next() {
            let address = one.address;
            assert!(device.history_of(address).next().is_some(), "an address has its history");
        }
    }
}

/// A sketch of a recording, run through the pool again, and under other settings.
pub fn reruns(data: &[u8]) {
    let Some((&choice, sketch)) = data.split_first() else { return };
    let bytes = if choice & 1 == 0 { sketch::build(sketch) } else { events::encode(sketch).0 };
    let Some(recording) = recording(&bytes).filter(|recording| recording.events() <= MAX_RERUN_EVENTS) else { return };
    let settings = Settings {
        expandable_segments: choice & 2 != 0,
        max_split_size: (choice & 4 != 0).then_some(40 << 20),
        limit_bytes: (choice & 8 != 0).then_some(1 << 30),
        ..Settings::default()
    };
    let histories = rerun::History::all_of(&recording).expect("all chunks are here");
    for history in histories.into_iter().take(2) {
        let verified = rerun::verify(&history, &settings);
        assert!(verified.matched <= verified.events, "{verified:?}");
        if let Ok(requests) = rerun::Requests::of(history, &settings) {
            let _ = requests.simulate(&Settings::default(), Some(1 << 30));
        }
    }
}

/// A snapshot, imported, exported and imported again. Where the input is none it is taken as the history that one is made of.
pub fn round_trip(data: &[u8]) {
    let bytes = if vramscope_formats::sniff(data).is_some() {
        let Ok((encoder, _)) = import(data, "fuzz", &LIMITS, &mut |_, _| {}, Encoder::new) else { return };
        finished(encoder)
    } else {
        events::encode(data).0
    };
    let first = recording(&bytes).expect("what was encoded is sound");
    let Some((pickle, of_pickle)) = there_and_back(&first, export::memory_viz_pickle) else { return };
    let (_, of_json) = there_and_back(&first, export::memory_viz_json).expect("what is fit for one is fit for both");
    assert_eq!(in_words(&of_pickle), in_words(&of_json), "both exports say the same");
    // What came back once stays as it is: an export says all that an import reads.
    let Some((again, _)) = there_and_back(&of_pickle, export::memory_viz_pickle) else {
        panic!("what came from a snapshot becomes one");
    };
    let _ = (pickle, again);
}

fn finished(mut encoder: Encoder) -> Vec<u8> {
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

type Writer = fn(&Recording, &mut dyn Write, export::Progress<'_>) -> Result<(), ExportError>;

fn there_and_back(recording: &Recording, write: Writer) -> Option<(Vec<u8>, Recording)> {
    let mut snapshot = Vec::new();
    match write(recording, &mut snapshot, &mut |_, _| {}) {
        Err(ExportError::Unfit(_)) => return None,
        result => result.expect("all chunks are here, and memory takes all"),
    }
    let back = import(&snapshot, "fuzz", &LIMITS, &mut |_, _| {}, Encoder::new);
    let (encoder, _) = back.unwrap_or_else(|error| panic!("an export is refused: {error}"));
    let bytes = finished(encoder);
    Some((snapshot, self::recording(&bytes).expect("what was encoded is sound")))
}

/// The events with what their sites say, and the state at the end.
fn in_words(recording: &Recording) -> (Vec<(Event, String)>, MemoryState) {
    let mut replay = Replay::new();
    let mut events = Vec::new();
    for number in recording.first_event()..recording.end_event() {
        if let Some(mut event) = replay.event(recording, number).expect("all chunks are here") {
            let words = words(recording, &mut event.kind);
            events.push((event, words));
        }
    }
    (events, without_sites(recording.end_state()))
}

/// Sites have other numbers in each; devices count too.
fn without_sites(state: &MemoryState) -> MemoryState {
    let mut bare = MemoryState::default();
    for (id, device) in state.devices() {
        let target = bare.device_mut(id);
        for segment in device.segments() {
            target.insert_segment(vramscope_trace::Segment { site: SiteId(0), ..*segment });
        }
        for block in device.blocks() {
            target.insert_block(vramscope_trace::Block { site: SiteId(0), ..*block });
        }
    }
    bare
}

fn words(recording: &Recording, kind: &mut EventKind) -> String {
    let definitions = recording.definitions();
    let site = match kind {
        EventKind::SegmentAllocated { site, .. }
        | EventKind::SegmentFreed { site, .. }
        | EventKind::SegmentMapped { site, .. }
        | EventKind::SegmentUnmapped { site, .. }
        | EventKind::BlockAllocated { site, .. }
        | EventKind::FreeRequested { site, .. }
        | EventKind::FreeCompleted { site, .. }
        | EventKind::OutOfMemory { site, .. }
        | EventKind::Mark { site, .. } => std::mem::replace(site, SiteId(0)),
        EventKind::MemorySample { .. } | EventKind::Gap { .. } => SiteId(0),
    };
    let name = if let EventKind::Mark { name, .. } = kind { std::mem::replace(name, StringId(0)) } else { StringId(0) };
    let frames: Vec<String> = export::frames(recording, site).map(|frame| format!("{frame:?}")).collect();
    format!("{} {} {:?}", definitions.string(name), definitions.string(definitions.site(site).scope), frames)
}
