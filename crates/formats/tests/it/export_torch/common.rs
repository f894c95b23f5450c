//! Reads snapshots, exports them, and converts events to a form that can be compared between
//! recordings.

use std::borrow::Cow;
use std::path::PathBuf;

use vramscope_formats::export::{self, ExportError, Progress};
use vramscope_formats::{Limits, ignore_progress, import, unpack};
use vramscope_trace::{Encoder, Event, EventKind, Recording, Replay, SiteId, StringId};

/// Returns the snapshots in a folder.
fn snapshots_in(folder: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        println!("SKIPPED: {folder} does not exist");
        return Vec::new();
    };
    let is_snapshot = |path: &PathBuf| path.to_string_lossy().contains(".pickle");
    entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_snapshot).collect()
}

/// Returns the snapshots of the repository and of the folder beside it, except the largest one
/// (4,000,000 entries), which a benchmark covers.
pub(crate) fn snapshots() -> Vec<PathBuf> {
    let root = env!("CARGO_MANIFEST_DIR");
    let small = snapshots_in(&format!("{root}/../../tests/data"));
    assert!(small.len() > 5, "the repository has recordings");
    let large = snapshots_in(&format!("{root}/../../../shared/snapshots"));
    let mut all: Vec<PathBuf> = small.into_iter().chain(large).collect();
    all.retain(|path| !path.ends_with("big.pickle.zst"));
    all.sort();
    all.dedup_by_key(|path| path.file_name().map(ToOwned::to_owned));
    all
}

/// Reads and unpacks a snapshot.
pub(crate) fn read(path: &PathBuf) -> Vec<u8> {
    let packed = std::fs::read(path).expect("the recording can be read");
    unpack(&packed, &Limits::default()).map(Cow::into_owned).expect("the recording unpacks")
}

/// Returns the recording that an encoder wrote, and its bytes.
pub(crate) fn recording_of(mut encoder: Encoder) -> (Recording, Vec<u8>) {
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let mut recording = Recording::new();
    recording.push(&bytes).expect("what was encoded can be decoded");
    recording.finish().expect("the last chunk is whole");
    (recording, bytes)
}

/// Imports a snapshot.
pub(crate) fn imported(bytes: &[u8], name: &str) -> Recording {
    let (encoder, _) = import(bytes, name, &Limits::default(), &mut ignore_progress, Encoder::new)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    recording_of(encoder).0
}

/// An export to a PyTorch snapshot.
pub(crate) type Writer = fn(&Recording, &mut dyn std::io::Write, Progress<'_>) -> Result<(), ExportError>;

/// Both exports to a PyTorch snapshot.
pub(crate) const WRITERS: [Writer; 2] = [export::memory_viz_pickle, export::memory_viz_json];

/// Exports a recording and checks the progress.
pub(crate) fn exported(recording: &Recording, writer: Writer) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut last = (0, 0);
    writer(recording, &mut bytes, &mut |done, total| {
        assert!(done <= total && done >= last.0, "progress goes forward: {done} of {total} after {last:?}");
        last = (done, total);
    })
    .expect("writing to memory does not fail");
    assert_eq!(last.0, last.1, "progress ends at the total");
    bytes
}

/// Replaces the numbers of sites and strings of an event, which differ between recordings, by their
/// texts.
pub(crate) fn with_texts(recording: &Recording, mut event: Event) -> (Event, String) {
    let definitions = recording.definitions();
    let mut texts =
        event.kind.site_mut().map_or_else(String::new, |site| site_text(recording, std::mem::replace(site, SiteId(0))));
    if let EventKind::Mark { name, .. } = &mut event.kind {
        texts += definitions.string(std::mem::replace(name, StringId(0)));
    }
    (event, texts)
}

/// Returns a site as text: its frames, scope and compile context.
pub(crate) fn site_text(recording: &Recording, site: SiteId) -> String {
    let frames = export::frames(recording, site).map(|frame| format!("{frame:?}"));
    let definitions = recording.definitions();
    let site = definitions.site(site);
    let strings = [site.scope, site.compile_context].map(|id| definitions.string(id).to_owned());
    frames.chain(strings).collect::<Vec<_>>().join("\n")
}

/// Returns every event of a recording.
pub(crate) fn events(recording: &Recording) -> Vec<Event> {
    let mut replay = Replay::new();
    let numbers = recording.first_event()..recording.end_event();
    numbers.filter_map(|number| replay.event(recording, number).expect("a chunk can be read")).collect()
}
