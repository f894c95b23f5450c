//! Recordings that are opened in the page; run by `wasm-pack test --headless --chrome viewer`.
//!
//! The tests of a program share one window. Tests of the live page and of the browser's history
//! change the window, so they are in programs of their own.
#![cfg(target_arch = "wasm32")]

mod checksums;
mod page;
mod samples;

use page::{document, element, pass, press, start, text, wait_until};
use samples::{Sample, bytes, states};
use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Reflect, Uint8Array};
use vramscope_trace::{
    DeviceId, Encoder, Event as TraceEvent, EventKind, PoolKey, PoolKind, Recording, RecordingInfo, Sink, SiteId,
    StreamId, digest,
};
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};
use web_sys::{CanvasRenderingContext2d, Event, HtmlCanvasElement, HtmlElement, HtmlSelectElement, Response};

wasm_bindgen_test_configure!(run_in_browser);

/// Counts the pixels of a canvas that are close to a color.
fn pixels_like(canvas: &str, [r, g, b]: [u8; 3]) -> usize {
    let canvas: HtmlCanvasElement = element(canvas).unchecked_into();
    let context: CanvasRenderingContext2d = canvas.get_context("2d").expect("a context").expect("2d").unchecked_into();
    let image = context.get_image_data(0.0, 0.0, canvas.width().into(), canvas.height().into());
    let bytes = image.expect("pixels").data();
    let is_like = |pixel: &[u8]| pixel.iter().zip([r, g, b]).all(|(value, wanted)| value.abs_diff(wanted) < 8);
    bytes.chunks(4).filter(|pixel| is_like(&pixel[..3])).count()
}

#[wasm_bindgen_test]
async fn start_page_explains_how_to_open_a_recording() {
    start().await;
    assert_eq!(element("app").get_attribute("data-stage").as_deref(), Some("empty"));
    assert_eq!(text("empty-title"), "Drop a recording here");
}

#[wasm_bindgen_test]
async fn page_shows_the_state_at_its_event() {
    let api = start().await;
    api.open(&bytes(Sample::Training)).await.expect("a valid recording");
    let states = states(Sample::Training);
    assert_eq!(api.number("events"), (states.len() - 1) as f64);
    for (event, state) in states.iter().enumerate().step_by(23) {
        api.seek(event as u64).await;
        assert_eq!(
            api.call_and_wait("digest", JsValue::NULL).await.expect("a digest").as_string(),
            Some(format!("{:016x}", digest(state))),
            "at event {event}"
        );
        assert_eq!(api.number("event"), event as f64);
        let counters = state.device(vramscope_trace::DeviceId(0)).map(|device| device.counters()).unwrap_or_default();
        assert_eq!(api.number("allocated_bytes"), counters.allocated as f64);
        assert_eq!(api.number("reserved_bytes"), counters.reserved as f64);
        assert_eq!(text("count-allocated"), vramscope_trace::ByteSize(counters.allocated).to_string());
    }
    let peak = api.call("peak", &[]).as_f64().expect("the value is a number");
    api.seek(peak as u64).await;
    let most = states.iter().flat_map(|state| state.devices().map(|(_, device)| device.counters().allocated)).max();
    assert_eq!(Some(api.number("allocated_bytes") as u64), most);
}

/// A native test draws the same pictures.
#[wasm_bindgen_test]
fn pictures_have_the_checksums_of_every_target() {
    checksums::check();
}

#[wasm_bindgen_test]
async fn canvases_show_free_space_and_blocks() {
    let api = start().await;
    api.open(&bytes(Sample::Training)).await.expect("a valid recording");
    let dark = web_sys::window().and_then(|window| window.match_media("(prefers-color-scheme: dark)").ok().flatten());
    let theme = vramscope_draw::Theme::new(dark.is_some_and(|query| query.matches()));
    for category in [vramscope_trace::Category::Parameter, vramscope_trace::Category::Activation] {
        let color = theme.categories[category as usize];
        assert!(pixels_like("picture-left", [color.r, color.g, color.b]) > 1000, "{color:?} on the map");
    }
    // The timeline stacks by category once the recording has been read.
    let activation = theme.categories[vramscope_trace::Category::Activation as usize];
    let shown = [theme.allocated, activation].map(|color| pixels_like("timeline", [color.r, color.g, color.b]));
    assert!(shown.into_iter().any(|pixels| pixels > 500), "{shown:?}");
}

#[wasm_bindgen_test]
async fn header_buttons_toggle_bands() {
    let api = start().await;
    api.open(&bytes(Sample::Training)).await.expect("a valid recording");
    assert!(element("band-outside").hidden() && element("band-others").hidden(), "the device was not sampled");
    api.open(&bytes(Sample::Shared)).await.expect("a valid recording");
    api.seek(api.number("events") as u64).await;
    assert!(!element("band-outside").hidden() && !element("band-others").hidden());
    assert_eq!((text("count-outside"), text("count-others")), ("47 MiB".to_owned(), "130 MiB".to_owned()));
    let dark = web_sys::window().and_then(|window| window.match_media("(prefers-color-scheme: dark)").ok().flatten());
    let theme = vramscope_draw::Theme::new(dark.is_some_and(|query| query.matches()));
    let check = |button: &str, color: vramscope_draw::Color, drawn: bool| {
        assert_eq!(element(button).get_attribute("aria-pressed"), Some(drawn.to_string()), "{button}");
        // An area, not lines: some lines have the same gray as the band of other processes.
        assert_eq!(pixels_like("timeline", [color.r, color.g, color.b]) > 10_000, drawn, "{button}");
    };
    check("show-outside", theme.outside, true);
    check("show-others", theme.others, false);
    element("show-outside").click();
    element("show-others").click();
    api.seek(0).await;
    check("show-outside", theme.outside, false);
    check("show-others", theme.others, true);
    assert_eq!(text("count-others"), "–", "there is no sample yet");
}

#[wasm_bindgen_test]
async fn keys_move_through_the_recording() {
    let api = start().await;
    api.open(&bytes(Sample::Training)).await.expect("a valid recording");
    api.seek(100).await;
    let check = async |key: &str, event: f64| {
        press(key, false);
        api.settle().await;
        assert_eq!(api.number("event"), event, "after {key}");
    };
    check("ArrowRight", 101.0).await;
    check("ArrowLeft", 100.0).await;
    check("Home", 0.0).await;
    check("End", api.number("events")).await;
    check("p", api.call("peak", &[]).as_f64().expect("the value is a number")).await;
}

#[wasm_bindgen_test]
async fn gpu_shows_nothing_before_its_first_event() {
    let api = start().await;
    api.open(&bytes(Sample::TwoGpus)).await.expect("a valid recording");
    let device: HtmlSelectElement = element("device").unchecked_into();
    device.set_value("1");
    device.dispatch_event(&Event::new("change").expect("the event is valid")).expect("the event is dispatched");
    let end = api.number("events") as u64;
    let check = async |event: u64, allocated: &str, segments: &str| {
        api.seek(event).await;
        assert_eq!((text("count-allocated").as_str(), text("count-segments").as_str()), (allocated, segments));
        let shown = text("details");
        assert!(
            shown.replace('\u{a0}', " ").contains(&format!("requested{allocated}")),
            "after event {event} the details are {shown}"
        );
        assert_eq!(text("count-events"), end.to_string());
    };
    check(end, "3 MiB", "1").await;
    check(0, "0 B", "0").await;
    check(end, "3 MiB", "1").await;
    check(end - 2, "0 B", "0").await;
}

#[wasm_bindgen_test]
async fn times_near_the_maximum_are_shown() {
    let api = start().await;
    api.open(&bytes(Sample::EndOfTime)).await.expect("a valid recording");
    for event in [0, 3, u64::MAX] {
        api.seek(event).await;
        for key in ["f", "w", "w", "w", "d", "d", "s", "a", " ", "w", "ArrowLeft", "End"] {
            press(key, false);
            pass(20).await;
        }
    }
    wait_until(|| api.number("event") == api.number("events")).await;
    assert_eq!(api.number("event"), api.number("events"));
    assert!(element("message").hidden(), "{}", text("message-text"));
}

#[wasm_bindgen_test]
async fn recording_can_be_saved() {
    let api = start().await;
    let bytes = bytes(Sample::Training);
    api.open(&bytes).await.expect("a valid recording");
    let saved = Rc::new(RefCell::new(None::<(String, String)>));
    let on_click = saved.clone();
    let watch = Closure::<dyn FnMut(Event)>::new(move |event: Event| {
        let link: HtmlElement = event.target().expect("a target").unchecked_into();
        if let (Some(href), Some(name)) = (link.get_attribute("href"), link.get_attribute("download")) {
            event.prevent_default();
            *on_click.borrow_mut() = Some((href, name));
        }
    });
    document()
        .add_event_listener_with_callback("click", watch.as_ref().unchecked_ref())
        .expect("the listener is valid");
    for by_key in [false, true] {
        if by_key {
            press("s", true)
        } else {
            element("save").click()
        }
        wait_until(|| saved.borrow().is_some()).await;
        let (href, name) = saved.take().expect("a download");
        assert_eq!(name, "drawn.vram");
        let fetched = JsFuture::from(web_sys::window().expect("there is a window").fetch_with_str(&href)).await;
        let response: Response = fetched.expect("the saved bytes").unchecked_into();
        let buffer = JsFuture::from(response.array_buffer().expect("the response has bytes"))
            .await
            .expect("the response has bytes");
        assert_eq!(Uint8Array::new(&buffer).to_vec(), bytes);
    }
    document()
        .remove_event_listener_with_callback("click", watch.as_ref().unchecked_ref())
        .expect("the listener is valid");
}

#[wasm_bindgen_test]
async fn failed_fetch_is_explained() {
    let api = start().await;
    let error = api
        .call_and_wait("open", "http://127.0.0.1:1/far.vram".into())
        .await
        .expect_err("the URL is of another server");
    let shown = error.as_string().unwrap_or_default();
    assert!(shown.contains("own server") && shown.contains("open the file here"), "{shown}");
    assert_eq!(text("message-text"), shown);
    let error = api.call_and_wait("open", "/no/such.vram".into()).await.expect_err("the file does not exist");
    assert!(error.as_string().is_some_and(|shown| shown.contains("404")), "{error:?}");
}

/// Returns a recording with an index that is larger than what the page reads as a whole, and its
/// number of events: blocks of random sizes, allocated and freed in random order.
fn large_recording() -> (Vec<u8>, u64) {
    const SLOTS: u64 = 1024;
    const EVENTS: u64 = 400_000;
    let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Large), SiteId(0));
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let mut allocated = vec![false; SLOTS as usize];
    let mut random = 1u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    for number in 0..EVENTS {
        let slot = next() % SLOTS;
        let address = 0x7f00_0000_0000 + (slot << 20);
        let kind = if number == 0 {
            EventKind::SegmentAllocated { address: 0x7f00_0000_0000, size: SLOTS << 20, stream, pool, site }
        } else if std::mem::replace(&mut allocated[slot as usize], false) {
            EventKind::FreeCompleted { address, site }
        } else {
            allocated[slot as usize] = true;
            let size = 512 * (1 + next() % 2048);
            EventKind::BlockAllocated { address, size, requested: size - next() % 512, stream, pool, site }
        };
        encoder.event(&TraceEvent { device: DeviceId(0), time_ns: number * 900 + next() % 900, kind });
    }
    encoder.flush();
    let mut recording = Recording::new();
    let mut bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    recording.push(&bytes).expect("the recording is valid");
    bytes.extend(recording.index().into_iter().flat_map(|chunk| chunk.bytes));
    (bytes, EVENTS)
}

#[wasm_bindgen_test]
async fn bytes_that_could_not_be_read_are_requested_again() {
    let (bytes, events) = large_recording();
    assert!(bytes.len() > 1 << 20, "{} bytes are read as a whole", bytes.len());
    let api = start().await;
    api.open(&bytes).await.expect("a valid recording");
    let shown = api.number("event");
    let unread = if shown < events as f64 / 2.0 { events * 3 / 4 } else { events / 4 };
    let run = |script: &str| js_sys::eval(script).expect("the script is valid");
    run("window.reallySlice = Blob.prototype.slice;
         Blob.prototype.slice = () => { throw new Error('the disk is gone') }");
    let error = api.call_and_wait("seek", (unread as f64).into()).await.expect_err("the bytes cannot be read");
    let message = error.as_string().unwrap_or_default();
    assert!(message.contains("the disk is gone") && message.contains("another moment"), "{message}");
    assert_eq!(text("message-text"), message);
    assert_eq!(api.number("event"), shown, "the shown moment stays");
    run("Blob.prototype.slice = window.reallySlice");
    api.seek(unread).await;
    assert_eq!(api.number("event"), unread as f64);
}

/// A panic leaves the program in an undefined state, so this page is not used again.
#[wasm_bindgen_test]
async fn panic_is_reported_on_the_page() {
    start().await;
    let breaks = Closure::once_into_js(|| assert!(document().body().is_none(), "an assumption is <b>broken</b>"));
    let window = web_sys::window().expect("there is a window");
    window
        .set_timeout_with_callback_and_timeout_and_arguments_0(breaks.unchecked_ref(), 0)
        .expect("timers are available");
    wait_until(|| !element("message").hidden()).await;
    let shown = text("message-text");
    assert!(shown.starts_with("vramscope stopped: an assumption is <b>broken</b>"), "{shown}");
    assert!(shown.ends_with("reload the page.") && !element("message").hidden(), "{shown}");
}

#[wasm_bindgen_test]
async fn markup_in_a_recording_stays_text() {
    let api = start().await;
    api.open(&bytes(Sample::Markup)).await.expect("a valid recording");
    let link = "#event=4&select=0x7f0000000000";
    web_sys::window().expect("there is a window").location().set_hash(link).expect("the fragment is valid");
    // The page reads its fragment in a later task; a seek before that would replace it. It may show
    // that event already, but not the selected block.
    wait_until(|| text("details").contains("<img src=x onerror=")).await;
    for event in 0..=api.number("events") as u64 {
        api.seek(event).await;
    }
    api.seek(3).await;
    assert!(text("details").contains("<img src=x onerror="), "the scope is shown as text: {}", text("details"));
    assert!(document().query_selector("#details img, #details script").expect("the selector is valid").is_none());
    let window = web_sys::window().expect("there is a window");
    assert!(Reflect::get(&window, &"pwned".into()).expect("there is a window").is_undefined());
}

/// These tests have no importer: another test, of the command, opens files of other formats.
#[wasm_bindgen_test]
async fn invalid_file_is_refused_and_changes_nothing() {
    let api = start().await;
    api.open(&bytes(Sample::Training)).await.expect("a valid recording");
    let events = api.number("events");
    let check = async |bytes: &[u8]| {
        let error = api.open(bytes).await.expect_err("the bytes are not a recording");
        let shown = error.as_string().unwrap_or_default();
        assert!(shown.contains("drawn.vram"), "{shown}");
        assert_eq!(text("message-text"), shown);
        assert_eq!(api.number("events"), events);
    };
    check(b"").await;
    check(b"nothing of the kind").await;
    check(b"\x80\x04garbage").await;
    let mut damaged = bytes(Sample::Training);
    damaged.truncate(40);
    check(&damaged).await;
}

#[wasm_bindgen_test]
async fn recording_is_shown_up_to_its_damage() {
    let api = start().await;
    let whole = bytes(Sample::Training);
    let mut cut = whole.clone();
    cut.extend_from_slice(&whole[..20]);
    api.open(&cut).await.expect("the part before the damage is shown");
    assert_eq!(api.number("events"), (states(Sample::Training).len() - 1) as f64);
    assert!(text("message-text").contains("at byte"), "{}", text("message-text"));
}
