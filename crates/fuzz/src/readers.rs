//! Fuzz targets for the readers of other tools' formats and of short texts.

use std::ops::ControlFlow;

use vramscope_formats::{ImportProgress, ImportSummary, Importer, InputFormat, Limits, import, sniff};
use vramscope_pool::{RecordedConf, Settings};
use vramscope_trace::{Event, MemoryState, Sink};
use vramscope_viewer::link::Link;

/// Limits for imports, so low that the fuzzer's memory limit detects a reader that exceeds them.
pub(crate) const LIMITS: Limits = Limits { max_bytes: 64 << 20, max_unpacked_bytes: 16 << 20, max_depth: 100 };

/// The beginning of an HTML export, up to the recording.
const HTML_START: &[u8] = b"<!doctype html><script type=\"application/octet-stream\" id=\"recording\">";

/// A sink that tracks the memory state and counts events.
#[derive(Default)]
pub(crate) struct StateTracker {
    pub(crate) state: MemoryState,
    events: u64,
}

impl Sink for StateTracker {
    fn event(&mut self, event: &Event) {
        self.state.apply(event);
        self.events += 1;
    }
    fn replace_state(&mut self, state: &MemoryState) {
        self.state = state.clone();
    }
}

/// Imports `bytes` and checks that progress, number of events and state agree. Returns the state
/// and the summary; `None` after an import error, which is no failure.
pub(crate) fn read(bytes: &[u8]) -> Option<(StateTracker, ImportSummary)> {
    let mut last = 0.0;
    let mut progress = |progress: &ImportProgress| {
        let fraction = progress.fraction;
        assert!(fraction >= last && fraction <= 1.0, "progress goes forward: {fraction} after {last}");
        last = fraction;
        ControlFlow::Continue(())
    };
    match import(bytes, "fuzz", &LIMITS, &mut progress, |_| StateTracker::default()) {
        Ok((tracker, imported)) => {
            assert_eq!(tracker.events, imported.events, "the summary has the number of events");
            assert_eq!(last, 1.0, "progress ends at the total");
            tracker.state.devices().take(4).for_each(|(_, device)| crate::inspect::inspect_device(device));
            Some((tracker, imported))
        }
        Err(error) => {
            assert!(error.offset <= bytes.len() as u64, "the offset is inside the file: {error}");
            assert!(!error.message.is_empty(), "an error has a message");
            None
        }
    }
}

/// Reads a pickle. Input that does not begin with the opcode PROTO is also read with it in front.
pub fn pickle(data: &[u8]) {
    read(data);
    if data.first() != Some(&0x80) {
        read(&[&[0x80, 4], data].concat());
    }
}

/// Reads a JSON snapshot.
pub fn json(data: &[u8]) {
    read(data);
}

/// Reads an RMM log. Input without a header is also read with a header in front.
pub fn rmm(data: &[u8]) {
    read(data);
    if !data.starts_with(b"Thread") {
        read(&[b"Thread,Time,Action,Pointer,Size,Stream\n", data].concat());
    }
}

/// Reads any file, compressed or not, and checks that gzip, zstd and HTML exports unpack to no more
/// than the limit.
pub fn unpack(data: &[u8]) {
    for magic in [&[] as &[u8], b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b"\x28\xb5\x2f\xfd", HTML_START] {
        let bytes = [magic, data].concat();
        let limits = Limits { max_unpacked_bytes: 4 << 20, ..LIMITS };
        let unpacked = vramscope_formats::unpack(&bytes, &limits);
        if let Ok(unpacked) = &unpacked {
            assert!(unpacked.len() as u64 <= limits.max_unpacked_bytes.max(bytes.len() as u64), "the limit holds");
            let _ = sniff(unpacked);
        }
        // Reads the input in pieces, which must give an equal result.
        let mut importer = Importer::new(&limits, None);
        let in_pieces = bytes.chunks(7).try_for_each(|piece| importer.push(piece)).and_then(|()| importer.finish());
        if let (Ok(file), Ok(unpacked)) = (in_pieces, unpacked)
            && !matches!(file.format(), Some(InputFormat::TorchPickle | InputFormat::KinetoTrace))
        {
            assert!(file.into_bytes() == *unpacked, "pieces unpack to the same bytes");
        }
    }
    // Reads the input in pieces, as the browser does.
    let mut loader = vramscope_viewer::open::RecordingLoader::default();
    data.chunks(data.len() / 3 + 1).for_each(|piece| loader.push(piece));
    let _ = loader.finish();
    let mut job = vramscope_importer::ImportJob::new("fuzz.gz", None);
    if data.chunks(data.len() / 3 + 1).try_for_each(|piece| job.push(piece)).is_ok() {
        let _ = job.finish(&mut vramscope_formats::ignore_progress, &mut |_| {});
    }
}

/// Parses the allocator's settings, once as a user's and once as a recording's.
pub fn settings(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let recorded = RecordedConf::parse(&text);
    assert_eq!(recorded.notes().is_empty(), recorded.skipped_count == 0 && recorded.unfollowed.is_empty());
    let written = recorded.settings.to_conf();
    let again = Settings::parse(&written).unwrap_or_else(|error| panic!("{written:?} is refused: {error}"));
    assert_eq!(again.to_conf(), written, "settings survive formatting and parsing");
    match Settings::parse(&text) {
        Ok(settings) => {
            assert_eq!((settings, 0), (recorded.settings, recorded.skipped_count), "both give the same settings");
        }
        Err(error) => {
            assert!(!error.to_string().is_empty(), "an error has a message");
            assert_eq!(recorded.skipped.first(), Some(&error), "the setting is skipped");
        }
    }
}

/// Parses the fragment of the page's URL, and builds the file name for saving a recording.
pub fn page_link(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let link = Link::parse(&text);
    assert_eq!(Link::parse(&link.fragment()), link, "a link survives formatting and parsing");
    let name = vramscope_viewer::open::saved_name(&text);
    assert!(
        name.ends_with(".vram") && !name.contains(['/', '\\']) && !name.starts_with('.'),
        "a file's name: {name:?}"
    );
}
