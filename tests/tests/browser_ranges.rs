//! A recording that is larger than what the page reads as a whole, in a real browser: of a URL and of a file only those bytes are read that
//! what is on the screen takes.

use std::fs;

use serde_json::{Value, json};
use vramscope_tests::{Browser, Page, Program, Window, made};
use vramscope_trace::{DeviceId, Recording, Replay, digest};

const EVENTS: u64 = 600_000;

/// Counts what is read of files.
const COUNT_SLICES: &str = "
    window.sliced = 0;
    const { slice, stream } = Blob.prototype;
    Blob.prototype.slice = function (from, to) { window.sliced += to - from; return slice.apply(this, arguments); };
    Blob.prototype.stream = function () { window.sliced += this.size; return stream.apply(this, arguments); };";

/// Bytes that were asked of the server for recordings.
const REQUESTED: &str = "
    return performance.getEntriesByType('resource').filter(entry => entry.name.includes('/files/'))
        .reduce((sum, entry) => sum + entry.encodedBodySize, 0)";

/// The address that a click on the save button would keep a file of.
const SAVED: &str = "
    const saved = new Promise(done => document.addEventListener('click', event => {
        if (!event.target.download) return;
        event.preventDefault();
        done([event.target.href, event.target.download]);
    }));
    document.getElementById('save').click();
    return saved.then(([href, name]) => fetch(href).then(answer => answer.arrayBuffer()).then(bytes => [name, bytes.byteLength]));";

/// Asserts that what the page says and shows at 20 moments is what a native replay says.
#[track_caller]
fn check_moments(page: Page<'_>, native: &Recording, seed: u64) {
    let mut replay = Replay::new();
    let mut random = seed;
    for _ in 0..20 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let event = (random >> 33) % (EVENTS + 1);
        let state = replay.seek(native, event).expect("a moment");
        let shown = page.seek(event);
        let device = state.device(DeviceId(0)).expect("there is one GPU");
        let counters = device.counters();
        assert_eq!(
            (shown.event, shown.allocated_bytes, shown.reserved_bytes, shown.active_bytes, shown.blocks),
            (event, counters.allocated, counters.reserved, counters.active, device.blocks().len() as u64)
        );
        assert_eq!(page.digest(), digest(state), "at event {event}");
    }
}

fn number(value: &Value) -> u64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number")) as u64
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn a_large_recording_is_read_by_ranges() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("large.vram");
    let bytes = made::with_index(made::program(EVENTS));
    fs::write(&path, &bytes).expect("room for it");
    let mut native = Recording::new();
    native.push(&bytes).expect("a good recording");
    let len = bytes.len() as u64;
    assert!(len > 2 << 20, "{len} bytes are not many");

    let view = Program::start(["view".as_ref(), path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    let opened = page.wait_until("the recording is open", |state| state.events == EVENTS);
    let peak = number(&page.run("return window.vramscope.peak()"));
    assert_eq!(opened.event, peak, "what opens is shown at its peak at once");
    let requested = number(&page.run(REQUESTED));
    assert!(0 < requested && requested < len / 3, "{requested} of {len} bytes were asked for");
    check_moments(page, &native, 1);
    assert_eq!(page.run("return document.getElementById('message').hidden"), true, "nothing went wrong");
    assert_eq!(page.run(SAVED), json!(["large.vram", len]), "all of it is saved");

    page.run(COUNT_SLICES);
    page.open_file("large.vram", &bytes);
    let read = number(&page.run("return window.sliced"));
    assert!(0 < read && read < len / 3, "{read} of {len} bytes were read");
    check_moments(page, &native, 2);

    page.run("window.sliced = 0");
    let cut = &bytes[..bytes.len() - 7];
    page.open_file("cut.vram", cut);
    assert!(number(&page.run("return window.sliced")) >= cut.len() as u64, "without an index all of it is read");
    check_moments(page, &native, 3);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn bytes_that_cannot_be_read_are_asked_for_again() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("large.vram");
    let bytes = made::with_index(made::program(EVENTS));
    fs::write(&path, &bytes).expect("room for it");
    let view = Program::start(["view".as_ref(), path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    page.wait_until("the recording is open", |state| state.events == EVENTS);
    page.seek(EVENTS);
    page.run(
        "window.reallyFetch = window.fetch; window.fetch = () => Promise.reject(new TypeError('the line is cut'))",
    );
    let said = page.run("return window.vramscope.seek(200000).then(() => 'shown', error => `${error}`)");
    let said = said.as_str().unwrap_or_default();
    assert!(said.contains("the line is cut") && said.contains("look at another moment"), "{said}");
    assert_eq!(page.run("return document.getElementById('message-text').textContent"), said);
    assert_eq!(page.state().event, EVENTS, "what was on the screen stays");
    page.run("window.fetch = window.reallyFetch");
    assert_eq!(page.seek(200_000).event, 200_000);
}
