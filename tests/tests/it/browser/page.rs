//! What the page shows and does with recordings and a running program.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::thread::{self, JoinHandle};

use fastrand::Rng;
use tungstenite::Message;
use tungstenite::stream::MaybeTlsStream;
use vramscope_tests::fixtures::{self, Fixture};
use vramscope_tests::{Browser, Page, PageState, Program, Window, vramscope};
use vramscope_trace::{
    AnnotationStage, Category, Definition, DeviceId, DeviceInfo, Encoder, Event, EventKind, Frame, FrameId, PoolKey,
    PoolKind, Recording, RecordingInfo, Replay, Sink, Site, SiteId, Stack, StackId, StreamId, StringId, digest,
};

/// Returns `count` random event numbers from `first` to `last`.
fn random_events(first: u64, last: u64, count: usize, seed: u64) -> Vec<u64> {
    let mut random = Rng::with_seed(seed);
    (0..count).map(|_| random.u64(first..=last)).collect()
}

fn recording(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).expect("the recording is valid");
    recording.finish().expect("the recording is complete");
    recording
}

/// Converts a file with `vramscope import` and reads the result.
fn imported(path: &Path) -> Recording {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let out = folder.path().join("out.vram");
    let import = vramscope().arg("import").arg(path).arg("-o").arg(&out).output().expect("vramscope starts");
    assert!(import.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&import.stderr));
    recording(&fs::read(&out).expect("the import has written the file"))
}

/// Asserts that the counters shown on the page are those of `state()`.
#[track_caller]
fn check_counters(page: Page<'_>, state: &PageState) {
    for (counter, bytes) in
        [("allocated", state.allocated_bytes), ("reserved", state.reserved_bytes), ("active", state.active_bytes)]
    {
        let text = page.counter(counter);
        let shown = bytes_in(&text).unwrap_or_else(|| panic!("the counter of {counter} bytes reads {text:?}"));
        // The page shows three digits.
        let error = (shown - bytes as f64).abs();
        assert!(
            error <= bytes as f64 * 0.006,
            "the counter of {counter} bytes reads {text:?}, and the state says {bytes}"
        );
    }
    for (counter, number) in [("segments", state.segments), ("blocks", state.blocks)] {
        let text = page.counter(counter);
        assert_eq!(text.replace(',', "").parse(), Ok(number), "the counter of {counter} reads {text:?}");
    }
}

/// Parses a size such as `1.25 GiB`.
fn bytes_in(text: &str) -> Option<f64> {
    let (number, unit) = text.trim().split_once(|c: char| c.is_whitespace())?;
    let power = ["B", "KiB", "MiB", "GiB", "TiB"].iter().position(|known| *known == unit.trim())?;
    let number: f64 = number.replace(',', "").parse().ok()?;
    Some(number * 1024_f64.powi(power as i32))
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn live_demo_can_be_followed_and_sought() {
    let demo = Program::start(["demo", "--device", "host"]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, demo.url());
    let first = page.wait_until("live events arrive", |state| state.live && state.events > 0);
    let later = page.wait_until("more events arrive", |state| state.events > first.events + 100);
    assert!(later.reserved_bytes >= later.active_bytes && later.active_bytes >= later.allocated_bytes, "{later:?}");
    assert!(later.allocated_bytes > 0 && later.segments > 0 && later.blocks > 0, "{later:?}");

    let middle = later.events / 2;
    let sought = page.seek(middle);
    assert_eq!(sought.event, middle);
    check_counters(page, &sought);
    let grown = page.wait_until("events arrive while an earlier moment is shown", |state| state.events > later.events);
    assert_eq!((grown.event, grown.allocated_bytes), (middle, sought.allocated_bytes));
    assert!(grown.live);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn opened_snapshot_ends_with_pytorchs_counters() {
    let view = Program::start(["view".as_ref(), Fixture::small("tiny_inference").path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    let served = page.wait_until("the served file is open", |state| state.events > 0);
    assert!(served.source.contains("tiny_inference"), "{served:?}");
    for name in fixtures::SMALL {
        let fixture = Fixture::small(name);
        page.open_file(&fixture.file_name(), &fixture.bytes());
        check_end(page, &fixture);
    }
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn dropped_snapshot_ends_with_pytorchs_counters() {
    // Dropped on a page that follows a live program; the page then stops following.
    let demo = Program::start(["demo", "--device", "host"]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, demo.url());
    page.wait_until("live events arrive", |state| state.live && state.events > 0);
    for name in ["mlp_train", "frag_a_expandable"] {
        let fixture = Fixture::small(name);
        page.drop_file(&fixture.file_name(), &fixture.bytes());
        page.wait_until("the dropped file is open", |state| !state.live && state.source.contains(name));
        page.wait_until("the whole file has been read", |state| state.events == fixture.events());
        check_end(page, &fixture);
    }
}

#[track_caller]
fn check_end(page: Page<'_>, fixture: &Fixture) {
    let state = page.state();
    assert!(!state.live && state.events == fixture.events(), "{fixture:?} is {state:?}");
    let end = page.seek(state.events);
    assert_eq!(end.allocated_bytes, fixture.stat("allocated_bytes.all.current"), "allocated at the end of {end:?}");
    assert_eq!(end.reserved_bytes, fixture.stat("reserved_bytes.all.current"), "reserved at the end of {end:?}");
    assert_eq!(end.active_bytes, fixture.stat("active_bytes.all.current"), "active at the end of {end:?}");
    check_counters(page, &end);
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn bad_file_is_an_error_and_the_page_stays_usable() {
    let open_notes = "const file = new File(['not a recording'], 'notes.txt');
                      return window.vramscope.open(file).then(() => 'opened', error => `${error}`)";
    let browser = Browser::start(Window::default());

    let good = Fixture::small("mlp_train");
    let view = Program::start(["view".as_ref(), good.path.as_os_str()]);
    let page = Page::open(&browser, view.url());
    page.wait_until("the served file is open", |state| state.events == good.events());
    assert_ne!(page.run(open_notes), "opened");
    check_end(page, &good);

    let demo = Program::start(["demo", "--device", "host"]);
    let page = Page::open(&browser, demo.url());
    let before = page.wait_until("live events arrive", |state| state.live && state.events > 0);
    assert_ne!(page.run(open_notes), "opened");
    page.wait_until("more events arrive", |state| state.live && state.events > before.events + 100);
}

/// Follows a live recording over its WebSocket until the server closes it.
fn follow(program: &Program) -> JoinHandle<Recording> {
    let url = program.url_of("/ws").replacen("http", "ws", 1);
    let (mut socket, _) = tungstenite::connect(url).expect("the server accepts a WebSocket");
    // A silent server must fail the test, not block it.
    if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
        let stream: &TcpStream = stream;
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("the timeout is positive");
    }
    thread::spawn(move || {
        let mut recording = Recording::new();
        while let Ok(message) = socket.read() {
            if let Message::Binary(bytes) = message {
                recording.push(&bytes).expect("the stream is valid");
            }
        }
        recording
    })
}

/// Returns the digests of the states at `events`.
fn digests(recording: &Recording, events: &[u64]) -> Vec<u64> {
    let mut replay = Replay::new();
    let digest_at = |event: &u64| digest(replay.seek(recording, *event).expect("the moment is in the recording"));
    events.iter().map(digest_at).collect()
}

/// Seeks to each of `events` on the page and returns the digests of the shown states.
fn page_digests(page: Page<'_>, events: &[u64]) -> Vec<u64> {
    let digest_at = |event: &u64| {
        assert_eq!(page.seek(*event).event, *event);
        page.digest()
    };
    events.iter().map(digest_at).collect()
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn file_socket_and_browser_have_the_same_memory_state() {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let path = folder.path().join("live.vram");
    let mut demo =
        Program::start(["demo".as_ref(), "--device".as_ref(), "host".as_ref(), "--record".as_ref(), path.as_os_str()]);
    let socket = follow(&demo);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, demo.url());
    let first = page.wait_until("live events arrive", |state| state.live && state.events > 0);
    page.wait_until("enough events have arrived to compare", |state| state.events > first.events + 5_000);
    let status = demo.interrupt();
    assert!(status.success(), "the demo ended with {status}:\n{}", demo.messages());

    let file = recording(&fs::read(&path).expect("the demo has written its recording"));
    let socket = socket.join().expect("the stream was valid");
    let ended = page.wait_until("the recording has ended", |state| !state.live);
    assert_eq!((file.lost_events(), socket.lost_events()), (0, 0));
    assert_eq!(socket.end_event(), file.end_event(), "the socket received every event");
    assert_eq!(ended.events, file.end_event(), "the page received every event");

    let events = random_events(socket.first_event(), file.end_event(), 100, 1);
    let expected = digests(&file, &events);
    assert!(expected.iter().collect::<BTreeSet<_>>().len() > 50, "the moments differ");
    assert_eq!(digests(&socket, &events), expected, "through the socket");

    // The live page connected after the socket and lacks the beginning; a page with the file
    // does not.
    let late = page_first_event(page);
    let seen: Vec<u64> = events.iter().copied().filter(|event| *event >= late).collect();
    assert!(seen.len() > 30, "the page joined at {late} of {}", file.end_event());
    assert_eq!(page_digests(page, &seen), digests(&file, &seen), "on a page that follows");

    let view = Program::start(["view".as_ref(), path.as_os_str()]);
    let page = Page::open(&browser, view.url());
    page.wait_until("the recording is open", |state| state.events == file.end_event());
    assert_eq!(page_digests(page, &events), expected, "on a page that opens the file");
}

/// Returns the first moment that the page can show.
fn page_first_event(page: Page<'_>) -> u64 {
    page.seek(0).event
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn browser_and_native_import_agree_on_snapshots() {
    let view = Program::start(["view".as_ref(), Fixture::small("tiny_inference").path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    for (seed, name) in fixtures::SMALL.into_iter().enumerate() {
        let fixture = Fixture::small(name);
        let native = imported(&fixture.path);
        page.open_file(&fixture.file_name(), &fixture.bytes());
        let events = random_events(native.first_event(), native.end_event(), 100, seed as u64);
        assert_eq!(page_digests(page, &events), digests(&native, &events), "{name}");
    }
}

/// Text that sets `window.executed` if it is ever parsed as markup.
const MARKUP: [&str; 4] = [
    "<img src=x onerror=\"window.executed='image'\">",
    "<script>window.executed='script'</script>",
    "\"><svg onload=\"window.executed='svg'\">",
    "</title><iframe srcdoc=\"<script>parent.executed='frame'</script>\">",
];

/// Returns a recording in which every name is one of [`MARKUP`].
fn hostile_recording() -> Vec<u8> {
    let text = |index: usize| MARKUP[index % MARKUP.len()].to_owned();
    let device =
        |device| DeviceInfo { device, name: text(2), process: text(3), rank: Some(1), ..DeviceInfo::default() };
    let devices = vec![device(0), device(1)];
    let info =
        RecordingInfo { source: text(0), writer: text(1), alloc_conf: text(2), devices, ..RecordingInfo::default() };
    let mut encoder = Encoder::new(&info);
    (0..MARKUP.len()).for_each(|index| encoder.define(&Definition::String(text(index))));
    encoder.define(&Definition::Frame(Frame { function: StringId(1), file: StringId(2), line: 7 }));
    encoder.define(&Definition::Stack(Stack { frame: FrameId(1), caller: StackId(0) }));
    encoder.define(&Definition::Site(Site {
        stack: StackId(1),
        scope: StringId(3),
        category: Category::Parameter,
        ..Site::default()
    }));
    let (address, stream, pool, site) =
        (0x7f00_0000_0000, StreamId(0), PoolKey::default_of(PoolKind::Small), SiteId(1));
    let size = 2 << 20;
    let kinds = [
        EventKind::Mark { stage: AnnotationStage::Begin, name: StringId(4), address: 0, site: SiteId(0) },
        EventKind::SegmentAllocated { address, size, stream, pool, site },
        EventKind::BlockAllocated { address, size, requested: size - 100, stream, pool, site },
        EventKind::Mark { stage: AnnotationStage::Instant, name: StringId(1), address: 0, site: SiteId(0) },
        EventKind::OutOfMemory { requested: 1 << 40, device_free: 0, stream, site },
    ];
    for (time_ns, kind) in (0..).step_by(1_000_000).zip(kinds) {
        encoder.event(&Event { device: DeviceId(0), time_ns, kind });
    }
    let kind = EventKind::MemorySample { used_by_context: 0, used_by_others: 0, free: 1 };
    encoder.event(&Event { device: DeviceId(1), time_ns: 9_000_000, kind });
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn names_from_a_recording_are_never_parsed_as_markup() {
    let view = Program::start(["view".as_ref(), Fixture::small("tiny_inference").path.as_os_str()]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, view.url());
    let file_name = "<img src=x onerror=\"window.executed='name'\">.vram";
    page.open_file(file_name, &hostile_recording());
    for event in 0..=page.state().events {
        page.seek(event);
    }
    let shown = page.text_under_the_pointer();
    for (what, text) in [
        ("file", file_name),
        ("function", MARKUP[0]),
        ("function's file", MARKUP[1]),
        ("scope", MARKUP[2]),
        ("device", MARKUP[2]),
        ("process", MARKUP[3]),
    ] {
        assert!(shown.contains(text), "the name of the {what} is not shown unchanged; the page's text:\n{shown}");
    }
    let chooser = page.run("return [...document.getElementById('device').options].map(option => option.text.trim())");
    assert_eq!(chooser, serde_json::json!([MARKUP[2], MARKUP[2]]), "the device chooser");
    let made =
        page.run("return document.querySelectorAll('img[src=x], iframe, svg[onload], script:not([src])').length");
    assert_eq!(made, 0, "elements were made from names");
    assert_eq!(page.run("return window.executed ?? null"), serde_json::Value::Null, "a name was executed");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn page_requests_only_its_own_origin() {
    let demo = Program::start(["demo", "--device", "host"]);
    let browser = Browser::start(Window::default());
    let page = Page::open(&browser, demo.url());
    page.wait_until("live events arrive", |state| state.live && state.events > 0);
    let fixture = Fixture::small("mlp_train");
    page.open_file(&fixture.file_name(), &fixture.bytes());

    let foreign = page.run(
        "return performance.getEntriesByType('resource').map(entry => entry.name)
             .filter(name => new URL(name, location.href).host !== location.host)",
    );
    assert_eq!(foreign, serde_json::json!([]), "requests to other origins");
    let policy = page.run("return fetch('/').then(response => response.headers.get('content-security-policy'))");
    let policy = policy.as_str().expect("the page comes with a content-security policy");
    assert!(policy.contains("default-src 'none'") || policy.contains("default-src 'self'"), "{policy}");
    let is_foreign = |word: &str| word.contains('.') || word.contains("//") || word == "*";
    assert!(!policy.split([' ', ';']).any(is_foreign), "the policy allows another origin: {policy}");
    // Another server on this machine is another origin; only the policy can block it.
    let other = Program::start(["view".as_ref(), fixture.path.as_os_str()]);
    let script = "
        const violated = new Promise(done =>
            addEventListener('securitypolicyviolation', event => done(event.effectiveDirective)));
        return fetch(arguments[0], { mode: 'no-cors' }).then(() => 'reached', () => violated)";
    assert_eq!(browser.run(script, &[serde_json::json!(other.url())]), "connect-src");
}

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn exported_page_works_from_a_file_url() {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let out = folder.path().join("a page.html");
    let browser = Browser::start(Window::default());
    for name in ["mlp_train", "graphs"] {
        let fixture = Fixture::small(name);
        let export = vramscope().arg("export").arg(&fixture.path).args(["--to", "html", "-o"]).arg(&out).output();
        let export = export.expect("vramscope starts");
        assert!(export.status.success(), "{name}: {}", String::from_utf8_lossy(&export.stderr));
        let page = Page::open(&browser, &format!("file://{}", out.display()).replace(' ', "%20"));
        check_end(page, &fixture);
        let recording = imported(&fixture.path);
        let events = random_events(0, recording.end_event(), 20, 7);
        assert_eq!(page_digests(page, &events), digests(&recording, &events), "{name}");
        let requests = page.run("return performance.getEntriesByType('resource').map(entry => entry.name)");
        let is_inside = |url: &str| url.starts_with("data:") || url.starts_with("blob:");
        let outside = |url: &serde_json::Value| url.as_str().is_none_or(|url| !is_inside(url));
        assert!(!requests.as_array().expect("a list").iter().any(outside), "the page requests {requests}");
        let script = "
            const violated = new Promise(done =>
            addEventListener('securitypolicyviolation', event => done(event.effectiveDirective)));
            return fetch(location.href, { mode: 'no-cors' }).then(() => 'reached', () => violated)";
        assert_eq!(page.run(script), "connect-src");
        let message = page.run("return document.getElementById('message').hidden");
        assert_eq!(message, true, "no error is shown");
        // The file contains the importer too.
        let other = Fixture::small("late");
        page.keep_file("late.pickle", &std::fs::read(&other.path).expect("the repository contains the file"));
        page.run("return window.vramscope.open(window.benchFile).then(() => null)");
        check_end(page, &other);
    }
}
