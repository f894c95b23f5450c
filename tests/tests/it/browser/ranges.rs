//! A recording larger than the page reads as a whole: from a URL or file, the page reads only the
//! bytes that the shown moment needs.

use std::fs;

use fastrand::Rng;
use serde_json::{Value, json};
use vramscope_tests::{Browser, Page, Program, Window, synthetic};
use vramscope_trace::{DeviceId, Recording, Replay, digest};

const EVENTS: u64 = 600_000;

/// Returns name and size of what the save button downloads.
const SAVED: &str = "
    const saved = new Promise(done => document.addEventListener('click', event => {
        if (!event.target.download) return;
        event.preventDefault();
        done([event.target.href, event.target.download]);
    }));
    document.getElementById('save').click();
    const bytes = href => fetch(href).then(answer => answer.arrayBuffer());
    return saved.then(([href, name]) => bytes(href).then(bytes => [name, bytes.byteLength]));";

/// Asserts that the page agrees with a native replay at 20 random moments.
#[track_caller]
fn check_moments(page: Page<'_>, native: &Recording, seed: u64) {
    let mut replay = Replay::new();
    let mut random = Rng::with_seed(seed);
    for _ in 0..20 {
        let event = random.u64(..=EVENTS);
        let state = replay.seek(native, event).expect("the moment is in the recording");
        let shown = page.seek(event);
        let device = state.device(DeviceId(0)).expect("the recording has one device");
        let counters = device.counters();
        assert_eq!(
            (shown.event, shown.allocated_bytes, shown.reserved_bytes, shown.active_bytes, shown.blocks),
            (event, counters.allocated, counters.reserved, counters.active, device.blocks().len() as u64)
        );
        assert_eq!(page.digest(), digest(state), "at event {event}");
    }
}

fn number(value: &Value) -> u64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number")) as u64
}

/// Returns the bytes of files that the page has read.
fn read_bytes(page: Page<'_>) -> u64 {
    number(&page.run("return window.vramscope.state().read_bytes"))
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn large_recording_is_read_by_ranges() {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let path = folder.path().join("large.vram");
    let bytes = synthetic::with_index(synthetic::program(EVENTS));
    fs::write(&path, &bytes).expect("the file can be written");
    let mut native = Recording::new();
    native.push(&bytes).expect("the recording is valid");
    let len = bytes.len() as u64;
    assert!(len > 2 << 20, "{len} bytes are too few for this test");

    let view = Program::start(["view".as_ref(), path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    let opened = page.wait_until("the recording is open", |state| state.events == EVENTS);
    let peak = number(&page.run("return window.vramscope.peak()"));
    assert_eq!(opened.event, peak, "a recording opens at its peak");
    let read = read_bytes(page);
    assert!(0 < read && read < len / 3, "{read} of {len} bytes were requested");
    check_moments(page, &native, 1);
    assert_eq!(page.run("return document.getElementById('message').hidden"), true, "no error is shown");
    assert_eq!(page.run(SAVED), json!(["large.vram", len]), "the whole file is saved");

    let before = read_bytes(page);
    page.open_file("large.vram", &bytes);
    let read = read_bytes(page) - before;
    assert!(0 < read && read < len / 3, "{read} of {len} bytes were read");
    check_moments(page, &native, 2);

    let before = read_bytes(page);
    let cut = &bytes[..bytes.len() - 7];
    page.open_file("cut.vram", cut);
    assert!(read_bytes(page) - before >= cut.len() as u64, "a file without an index is read as a whole");
    check_moments(page, &native, 3);
}
