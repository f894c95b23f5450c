//! Targets for other tools' formats and for texts.

use vramscope_formats::{Limits, import, sniff, unpack};
use vramscope_pool::Settings;
use vramscope_trace::{Event, MemoryState, Sink};
use vramscope_viewer::link::Link;

/// What an import may take here, so that one that takes more shows.
pub(crate) const LIMITS: Limits = Limits { max_bytes: 64 << 20, max_unpacked_bytes: 16 << 20, max_depth: 100 };

/// Takes events and keeps the state.
#[derive(Default)]
struct Follower {
    state: MemoryState,
    events: u64,
}

impl Sink for Follower {
    fn event(&mut self, event: &Event) {
        self.state.apply(event);
        self.events += 1;
    }
    fn full_state(&mut self, state: &MemoryState) {
        self.state = state.clone();
    }
}

fn read(bytes: &[u8]) {
    let (mut last, mut total) = (0, 0);
    let mut progress = |done, of| {
        assert!(done >= last && done <= of, "progress goes forward: {done} of {of} after {last}");
        (last, total) = (done, of);
    };
    match import(bytes, "fuzz", &LIMITS, &mut progress, |_| Follower::default()) {
        Ok((follower, imported)) => {
            assert_eq!(follower.events, imported.events, "as many events as are told of");
            assert_eq!(last, total, "in the end all is done");
            follower.state.devices().take(4).for_each(|(_, device)| crate::look::a_device(device));
        }
        Err(error) => {
            assert!(error.offset <= bytes.len() as u64, "an error lies in the file: {error}");
            assert!(!error.what.is_empty(), "an error says what");
        }
    }
}

/// A pickle; the two bytes that it begins with are put before the input.
pub fn pickle(data: &[u8]) {
    read(data);
    if data.first() != Some(&0x80) {
        read(&[&[0x80, 4], data].concat());
    }
}

/// JSON.
pub fn json(data: &[u8]) {
    read(data);
}

/// The log of RMM; where the input has no header it gets one.
pub fn rmm(data: &[u8]) {
    read(data);
    if !data.starts_with(b"Thread") {
        read(&[b"Thread,Time,Action,Pointer,Size,Stream\n", data].concat());
    }
}

/// A file of any kind, packed or not: gzip and zstd must not become more than they may.
pub fn unpacking(data: &[u8]) {
    for magic in [&[] as &[u8], b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b"\x28\xb5\x2f\xfd"] {
        let bytes = [magic, data].concat();
        let limits = Limits { max_unpacked_bytes: 4 << 20, ..LIMITS };
        if let Ok(unpacked) = unpack(&bytes, &limits) {
            assert!(unpacked.len() as u64 <= limits.max_unpacked_bytes.max(bytes.len() as u64), "the limit holds");
            let _ = sniff(&unpacked);
        }
    }
    // As the browser takes it, piece by piece, without knowing what it is.
    let mut opening = vramscope_viewer::open::Opening::new("fuzz.gz");
    data.chunks(data.len() / 3 + 1).for_each(|piece| opening.push(piece));
    let _ = opening.finish();
}

/// The allocator's settings.
pub fn settings(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Settings::parse(&text) {
        Ok(settings) => {
            let written = settings.to_conf();
            let again = Settings::parse(&written).unwrap_or_else(|error| panic!("{written:?} is refused: {error}"));
            assert_eq!(again.to_conf(), written, "settings that were written and read are the same");
        }
        Err(error) => assert!(!error.to_string().is_empty(), "an error says what"),
    }
}

/// What the fragment of the page's address says, and the name under which a recording is saved.
pub fn link(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let link = Link::parse(&text);
    assert_eq!(Link::parse(&link.fragment()), link, "a link that was written and read is the same");
    let name = vramscope_viewer::open::saved_name(&text);
    assert!(
        name.ends_with(".vram") && !name.contains(['/', '\\']) && !name.starts_with('.'),
        "a file's name: {name:?}"
    );
}
