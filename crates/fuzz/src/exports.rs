//! Fuzz targets for the analyses and exports of untrusted recordings.

use std::io::{self, Write};

use vramscope_formats::export::{self, ExportError};
use vramscope_formats::{ignore_progress, import};
use vramscope_insight::comparison::{Moment, Side, SiteChange, compare};
use vramscope_insight::history::History;
use vramscope_pool::{Settings, rerun};
use vramscope_trace::{
    Encoder, Event, EventKind, LifetimesBuilder, MemoryState, PerRecording, Recording, Replay, SiteId, StringId,
};

use crate::random::Random;
use crate::readers::LIMITS;
use crate::{consistency_check, history_input, recording_bytes, structured_input};

/// Maximum number of events that are rerun through the pool. Finding the causes of random events
/// takes long.
const MAX_RERUN_EVENTS: u64 = 400;

/// An output that fails when a limit is exceeded.
struct LimitedOutput {
    remaining: usize,
}

impl Write for LimitedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.remaining = self.remaining.checked_sub(bytes.len()).ok_or_else(|| io::Error::other("the disk is full"))?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the recording in `bytes`; `None` if it is refused or a chunk falsely claims to be
/// consistent.
fn recording(bytes: &[u8]) -> Option<Recording> {
    let recording = recording_bytes::read(bytes).ok()?;
    // A recording with a false claim of consistency is damaged: it may be read to its end and still
    // fail at a moment.
    (!consistency_check::has_false_claim(bytes)).then_some(recording)
}

/// Returns true if a built recording has at least one chunk. Without a chunk, its content is empty.
fn has_head(bytes: &[u8]) -> bool {
    bytes.len() > structured_input::build(&[]).len()
}

/// Compares two random moments of a recording, once within the recording and once with a second
/// recording that is read from `bytes`. Checks that the sites' changes add up to the difference of
/// the live bytes.
fn comparison(first: &Recording, bytes: &[u8], random: &mut Random) {
    let mut history = History::new();
    history.extend(first, u64::MAX).expect("all chunks are in memory");
    let moments = first.end_event() - first.first_event() + 1;
    let moments = [(); 2].map(|()| Moment::Event(first.first_event() + random.below(moments)));
    let copy = recording(bytes).expect("the same bytes were accepted");
    for second in [first, &copy] {
        let side = |recording, moment| Side { recording, history: &history, moment };
        let sides = PerRecording { a: side(first, &moments[0]), b: side(second, &moments[1]) };
        for device in compare(sides, None).expect("the moments are those of the recording").devices {
            let sum: i128 = device.sites.iter().map(SiteChange::live_growth).sum();
            assert_eq!(sum, device.live_growth());
        }
    }
}

/// Runs all analyses and exports on a structured input: lifetimes, a comparison, every export.
pub fn analyses(data: &[u8]) {
    let bytes = structured_input::build(data);
    let Some(recording) = recording(&bytes).filter(|_| has_head(&bytes)) else { return };
    let mut random = Random::from_bytes(data);
    lifetimes(&recording, &mut random);
    comparison(&recording, &bytes, &mut random);
    let out = || LimitedOutput { remaining: 8 << 20 };
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
        // An export may fail because its format cannot represent the recording, but not because an
        // accepted recording cannot be read.
        assert!(!matches!(result, Err(ExportError::Recording(_))), "{result:?}");
    }
    let pieces = bytes.chunks(1000).map(|piece| Ok(piece.to_vec()));
    export::redact(recording.info(), pieces, Encoder::new).expect("an accepted recording can be read");
}

/// Checks the lifetimes of a recording's allocations at its first, a random and its last moment.
fn lifetimes(recording: &Recording, random: &mut Random) {
    let mut builder = LifetimesBuilder::new();
    let mut replay = Replay::new();
    let first = recording.first_event();
    builder.replace_state(replay.seek(recording, first).expect("all chunks are in memory"));
    let walked = export::for_each_event(recording, &mut |_, _| {}, |_, number, event| {
        builder.event(number, event);
        Ok::<_, vramscope_trace::FormatError>(())
    });
    walked.expect("all chunks are in memory");
    builder.replace_state(recording.end_state());
    let lifetimes = builder.finish();
    let end = recording.end_event();
    for (id, device) in lifetimes.devices().take(4) {
        let live = recording.end_state().device(id).map_or(0, |device| device.blocks().len());
        let at = first + random.below((end - first).saturating_add(1).max(1));
        for moment in [first, at, end] {
            let living = device.live_at(moment).inspect(|one| assert!(one.is_active_at(moment), "{one:?} at {moment}"));
            assert!(living.count() <= device.len(), "there are at most as many live allocations as allocations");
            let _ = (device.largest_at(moment, 3), device.sums_at(moment, |one| one.site));
        }
        assert!(
            device.live_at(end).count() <= live,
            "there are at most as many live allocations as blocks in the end state"
        );
        let between = first.min(at)..end;
        let _ = (device.survivors(between.clone(), end).count(), device.temporaries(between.clone(), 9).count());
        let _ = (device.churn_by(between, |one| one.stream), device.active_between(at, end).count());
        if let Some(one) = device.iter().next() {
            let address = one.address;
            assert!(device.history_of(address).next().is_some(), "an allocated address has a history");
        }
    }
}

/// Reruns the requests of a structured input through the pool, also under other settings.
pub fn pool_rerun(data: &[u8]) {
    let Some((&choice, input)) = data.split_first() else { return };
    let bytes = if choice & 1 == 0 { structured_input::build(input) } else { history_input::encode(input).0 };
    let Some(recording) = recording(&bytes).filter(|recording| recording.events() <= MAX_RERUN_EVENTS) else { return };
    let settings = Settings {
        expandable_segments: choice & 2 != 0,
        max_split_size_bytes: (choice & 4 != 0).then_some(40 << 20),
        limit_bytes: (choice & 8 != 0).then_some(1 << 30),
        ..Settings::default()
    };
    let histories = rerun::History::from_recording(&recording).expect("all chunks are in memory");
    for history in histories.into_iter().take(2) {
        let verified = rerun::verify(&history, &settings);
        assert!(verified.matched <= verified.events, "{verified:?}");
        if let Ok(requests) = rerun::Workload::new(history, &settings) {
            let _ = requests.simulate(&Settings::default(), Some(1 << 30));
        }
    }
}

/// Imports a snapshot, exports it and imports the export. Any other input becomes a recording,
/// which is exported first.
pub fn round_trip(data: &[u8]) {
    let bytes = if vramscope_formats::sniff(data).is_some() {
        let Ok((encoder, _)) = import(data, "fuzz", &LIMITS, &mut ignore_progress, Encoder::new) else { return };
        recording_bytes::encoded(encoder)
    } else {
        history_input::encode(data).0
    };
    let first = recording(&bytes).expect("an encoded recording is sound");
    let Some(of_pickle) = export_and_import(&first, export::memory_viz_pickle) else { return };
    let of_json = export_and_import(&first, export::memory_viz_json);
    let of_json = of_json.expect("both formats support the same recordings");
    assert_eq!(with_texts(&of_pickle), with_texts(&of_json), "both exports give the same recording");
    // The import of a second export must equal the import of the first one.
    let again = export_and_import(&of_pickle, export::memory_viz_pickle);
    assert!(again.is_some(), "an imported snapshot can be exported");
}

/// A function that exports a recording as a PyTorch snapshot.
pub(crate) type SnapshotExport = fn(&Recording, &mut dyn Write, export::Progress<'_>) -> Result<(), ExportError>;

/// Exports a recording and imports the result; `None` if the format cannot express the recording.
fn export_and_import(exported: &Recording, write: SnapshotExport) -> Option<Recording> {
    let mut snapshot = Vec::new();
    match write(exported, &mut snapshot, &mut |_, _| {}) {
        Err(ExportError::Unsupported(_)) => return None,
        result => result.expect("all chunks are in memory, and memory can be written"),
    }
    let back = import(&snapshot, "fuzz", &LIMITS, &mut ignore_progress, Encoder::new);
    let (encoder, _) = back.unwrap_or_else(|error| panic!("an export is refused: {error}"));
    Some(recording(&recording_bytes::encoded(encoder)).expect("an encoded recording is sound"))
}

/// Returns the events with the texts of their sites, and the state at the end.
fn with_texts(recording: &Recording) -> (Vec<(Event, String)>, MemoryState) {
    let mut replay = Replay::new();
    let mut events = Vec::new();
    for number in recording.first_event()..recording.end_event() {
        if let Some(mut event) = replay.event(recording, number).expect("all chunks are in memory") {
            let texts = take_texts(recording, &mut event.kind);
            events.push((event, texts));
        }
    }
    (events, without_sites(recording.end_state()))
}

/// Returns a state with all site numbers set to 0, because they differ between recordings.
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

/// Returns the texts of an event's site and mark, and sets the numbers of both to 0, which makes
/// events of different recordings comparable.
fn take_texts(recording: &Recording, kind: &mut EventKind) -> String {
    let definitions = recording.definitions();
    let site = kind.site_mut().map(std::mem::take).unwrap_or_default();
    let name = if let EventKind::Mark { name, .. } = kind { std::mem::replace(name, StringId(0)) } else { StringId(0) };
    let frames: Vec<String> = export::frames(recording, site).map(|frame| format!("{frame:?}")).collect();
    format!("{} {} {:?}", definitions.string(name), definitions.string(definitions.site(site).scope), frames)
}
