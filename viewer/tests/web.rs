//! The page in a browser: `wasm-pack test --headless --chrome viewer`.
#![cfg(target_arch = "wasm32")]

mod drawn;
mod paged;

use drawn::{Drawing, bytes, states};
use paged::{document, element, pass, press, start, text};
use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Reflect, Uint8Array};
use vramscope_trace::digest;
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};
use web_sys::{CanvasRenderingContext2d, Event, HtmlCanvasElement, HtmlElement, HtmlSelectElement, Response};

wasm_bindgen_test_configure!(run_in_browser);

/// How many pixels of a canvas are of a color that is nearly this.
fn pixels_like(canvas: &str, [r, g, b]: [u8; 3]) -> usize {
    let canvas: HtmlCanvasElement = element(canvas).unchecked_into();
    let context: CanvasRenderingContext2d = canvas.get_context("2d").expect("a context").expect("2d").unchecked_into();
    let image = context.get_image_data(0.0, 0.0, canvas.width().into(), canvas.height().into());
    let bytes = image.expect("pixels").data();
    let is_like = |pixel: &[u8]| pixel.iter().zip([r, g, b]).all(|(value, wanted)| value.abs_diff(wanted) < 8);
    bytes.chunks(4).filter(|pixel| is_like(&pixel[..3])).count()
}

#[wasm_bindgen_test]
async fn without_a_recording_it_says_what_to_do() {
    start().await;
    assert_eq!(element("app").get_attribute("data-stage").as_deref(), Some("empty"));
    assert_eq!(text("empty-title"), "Drop a recording here");
}

#[wasm_bindgen_test]
async fn what_is_on_the_screen_is_the_state_at_that_event() {
    let api = start().await;
    api.open(&bytes(Drawing::Training)).await.expect("a recording");
    let states = states(Drawing::Training);
    assert_eq!(api.number("events"), (states.len() - 1) as f64);
    for (event, state) in states.iter().enumerate().step_by(23) {
        api.seek(event as u64).await;
        assert_eq!(api.call("digest", &[]).as_string(), Some(format!("{:016x}", digest(state))), "at event {event}");
        assert_eq!(api.number("event"), event as f64);
        let counters = state.device(vramscope_trace::DeviceId(0)).map(|device| device.counters()).unwrap_or_default();
        assert_eq!(api.number("allocated_bytes"), counters.allocated as f64);
        assert_eq!(api.number("reserved_bytes"), counters.reserved as f64);
        assert_eq!(text("count-allocated"), vramscope_viewer::units::bytes(counters.allocated));
    }
    let peak = api.call("peak", &[]).as_f64().expect("a number");
    api.seek(peak as u64).await;
    let most = states.iter().flat_map(|state| state.devices().map(|(_, device)| device.counters().allocated)).max();
    assert_eq!(Some(api.number("allocated_bytes") as u64), most);
}

#[wasm_bindgen_test]
async fn free_space_and_blocks_are_on_the_canvas() {
    let api = start().await;
    api.open(&bytes(Drawing::Training)).await.expect("a recording");
    let dark = web_sys::window().and_then(|window| window.match_media("(prefers-color-scheme: dark)").ok().flatten());
    let theme = vramscope_viewer::theme::Theme::new(dark.is_some_and(|query| query.matches()));
    for color in [theme.free, theme.allocated] {
        assert!(pixels_like("heatmap", [color.r, color.g, color.b]) > 1000, "{color:?} on the heatmap");
    }
    assert!(pixels_like("timeline", [theme.allocated.r, theme.allocated.g, theme.allocated.b]) > 1000);
}

#[wasm_bindgen_test]
async fn the_legend_turns_bands_on_and_off() {
    let api = start().await;
    api.open(&bytes(Drawing::Training)).await.expect("a recording");
    assert!(element("band-outside").hidden() && element("band-others").hidden(), "nothing was sampled");
    api.open(&bytes(Drawing::Shared)).await.expect("a recording");
    api.seek(api.number("events") as u64).await;
    assert!(!element("band-outside").hidden() && !element("band-others").hidden());
    assert_eq!((text("count-outside"), text("count-others")), ("47 MiB".to_owned(), "130 MiB".to_owned()));
    let dark = web_sys::window().and_then(|window| window.match_media("(prefers-color-scheme: dark)").ok().flatten());
    let theme = vramscope_viewer::theme::Theme::new(dark.is_some_and(|query| query.matches()));
    let check = |button: &str, color: vramscope_viewer::frame::Color, drawn: bool| {
        assert_eq!(element(button).get_attribute("aria-pressed"), Some(drawn.to_string()), "{button}");
        // An area: lines are as gray as what others hold.
        assert_eq!(pixels_like("timeline", [color.r, color.g, color.b]) > 10_000, drawn, "{button}");
    };
    check("show-outside", theme.outside, true);
    check("show-others", theme.others, false);
    element("show-outside").click();
    element("show-others").click();
    api.seek(0).await;
    check("show-outside", theme.outside, false);
    check("show-others", theme.others, true);
    assert_eq!(text("count-others"), "–", "nothing was said by then");
}

#[wasm_bindgen_test]
async fn keys_move_through_the_recording() {
    let api = start().await;
    api.open(&bytes(Drawing::Training)).await.expect("a recording");
    api.seek(100).await;
    let check = |key: &str, event: f64| {
        press(key, false);
        assert_eq!(api.number("event"), event, "after {key}");
    };
    check("ArrowRight", 101.0);
    check("ArrowLeft", 100.0);
    check("Home", 0.0);
    check("End", api.number("events"));
    check("p", api.call("peak", &[]).as_f64().expect("a number"));
}

#[wasm_bindgen_test]
async fn before_its_first_event_a_gpu_shows_nothing() {
    let api = start().await;
    api.open(&bytes(Drawing::TwoGpus)).await.expect("a recording");
    let device: HtmlSelectElement = element("device").unchecked_into();
    device.set_value("1");
    device.dispatch_event(&Event::new("change").expect("an event")).expect("a choice");
    let end = api.number("events") as u64;
    let check = async |event: u64, allocated: &str, segments: &str| {
        api.seek(event).await;
        assert_eq!((text("count-allocated").as_str(), text("count-segments").as_str()), (allocated, segments));
        let said = text("details");
        assert!(
            said.replace('\u{a0}', " ").contains(&format!("requested{allocated}")),
            "after event {event} the details say {said}"
        );
        assert_eq!(text("count-events"), end.to_string());
    };
    check(end, "3 MiB", "1").await;
    check(0, "0 B", "0").await;
    check(end, "3 MiB", "1").await;
    check(end - 2, "0 B", "0").await;
}

#[wasm_bindgen_test]
async fn the_end_of_time_can_be_looked_at() {
    let api = start().await;
    api.open(&bytes(Drawing::EndOfTime)).await.expect("a recording");
    for event in [0, 3, u64::MAX] {
        api.seek(event).await;
        for key in ["f", "w", "w", "w", "d", "d", "s", "a", " ", "w", "ArrowLeft", "End"] {
            press(key, false);
            pass(20).await;
        }
    }
    assert_eq!(api.number("event"), api.number("events"));
    assert!(element("message").hidden(), "{}", text("message-text"));
}

#[wasm_bindgen_test]
async fn what_is_on_the_page_can_be_saved() {
    let api = start().await;
    let bytes = bytes(Drawing::Training);
    api.open(&bytes).await.expect("a recording");
    let saved = Rc::new(RefCell::new(None::<(String, String)>));
    let on_click = saved.clone();
    let watch = Closure::<dyn FnMut(Event)>::new(move |event: Event| {
        let link: HtmlElement = event.target().expect("a target").unchecked_into();
        if let (Some(href), Some(name)) = (link.get_attribute("href"), link.get_attribute("download")) {
            event.prevent_default();
            *on_click.borrow_mut() = Some((href, name));
        }
    });
    document().add_event_listener_with_callback("click", watch.as_ref().unchecked_ref()).expect("a listener");
    for by_key in [false, true] {
        if by_key {
            press("s", true)
        } else {
            element("save").click()
        }
        let (href, name) = saved.take().expect("a download");
        assert_eq!(name, "drawn.vram");
        let fetched = JsFuture::from(web_sys::window().expect("a window").fetch_with_str(&href)).await;
        let response: Response = fetched.expect("the saved bytes").unchecked_into();
        let buffer = JsFuture::from(response.array_buffer().expect("bytes")).await.expect("bytes");
        assert_eq!(Uint8Array::new(&buffer).to_vec(), bytes);
    }
    document().remove_event_listener_with_callback("click", watch.as_ref().unchecked_ref()).expect("a listener");
}

#[wasm_bindgen_test]
async fn what_cannot_be_fetched_is_explained() {
    let api = start().await;
    let error = api.settle("open", "http://127.0.0.1:1/far.vram".into()).await.expect_err("it is another server's");
    let said = error.as_string().unwrap_or_default();
    assert!(said.contains("own server") && said.contains("open the file here"), "{said}");
    assert_eq!(text("message-text"), said);
    let error = api.settle("open", "/no/such.vram".into()).await.expect_err("there is none");
    assert!(error.as_string().is_some_and(|said| said.contains("404")), "{error:?}");
}

/// A panic leaves the program where it stood, so this page is not used again.
#[wasm_bindgen_test]
async fn a_viewer_that_stops_says_so() {
    start().await;
    let breaks = Closure::once_into_js(|| assert!(document().body().is_none(), "an assumption is <b>broken</b>"));
    let window = web_sys::window().expect("a window");
    window.set_timeout_with_callback_and_timeout_and_arguments_0(breaks.unchecked_ref(), 0).expect("a timer");
    pass(50).await;
    let said = text("message-text");
    assert!(said.starts_with("vramscope stopped: an assumption is <b>broken</b>"), "{said}");
    assert!(said.ends_with("reload the page.") && !element("message").hidden(), "{said}");
}

#[wasm_bindgen_test]
async fn markup_in_a_recording_stays_text() {
    let api = start().await;
    api.open(&bytes(Drawing::Markup)).await.expect("a recording");
    let link = "#event=4&select=0x7f0000000000";
    web_sys::window().expect("a window").location().set_hash(link).expect("a hash");
    for event in 0..=api.number("events") as u64 {
        api.seek(event).await;
    }
    pass(100).await;
    api.seek(3).await;
    assert!(text("details").contains("<img src=x onerror="), "the scope is shown as it is: {}", text("details"));
    assert!(document().query_selector("#details img, #details script").expect("a selector").is_none());
    let window = web_sys::window().expect("a window");
    assert!(Reflect::get(&window, &"pwned".into()).expect("a window").is_undefined());
}

#[wasm_bindgen_test]
async fn a_bad_file_is_refused_with_its_place_and_changes_nothing() {
    let api = start().await;
    api.open(&bytes(Drawing::Training)).await.expect("a recording");
    let events = api.number("events");
    let check = async |bytes: &[u8]| {
        let error = api.open(bytes).await.expect_err("this is no recording");
        let said = error.as_string().unwrap_or_default();
        assert!(said.contains("drawn.vram"), "{said}");
        assert_eq!(text("message-text"), said);
        assert_eq!(api.number("events"), events);
    };
    check(b"").await;
    check(b"nothing of the kind").await;
    check(b"\x80\x04garbage").await;
    let mut damaged = bytes(Drawing::Training);
    damaged.truncate(40);
    check(&damaged).await;
}

#[wasm_bindgen_test]
async fn a_cut_recording_shows_what_it_has() {
    let api = start().await;
    let whole = bytes(Drawing::Training);
    let mut cut = whole.clone();
    cut.extend_from_slice(&whole[..20]);
    api.open(&cut).await.expect("a recording, and rubbish");
    assert_eq!(api.number("events"), (states(Drawing::Training).len() - 1) as f64);
    assert!(text("message-text").contains("at byte"), "{}", text("message-text"));
}
