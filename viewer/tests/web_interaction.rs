//! The browser's history, the sizes of panes, saved pictures and links to files, in a browser.
//!
//! These tests are in a program of their own, because sessions of other tests would write to the
//! address of the window, too. Run by `wasm-pack test --headless --chrome viewer`.
#![cfg(target_arch = "wasm32")]

#[allow(dead_code, reason = "each test program uses a part")]
mod page;
#[allow(dead_code, reason = "each test program uses a part")]
mod samples;

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::Reflect;
use page::{Api, document, element, pass, press, start, text};
use samples::{Sample, bytes};
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};
use web_sys::{Event, HtmlElement, HtmlInputElement, KeyboardEvent, KeyboardEventInit};

wasm_bindgen_test_configure!(run_in_browser);

/// Time in milliseconds after which the address has the view.
const WRITTEN_MS: i32 = 900;

fn fragment() -> String {
    web_sys::window().expect("there is a window").location().hash().expect("an address")
}

/// Goes back (a negative number) or forward in the browser's history.
async fn go(steps: i32) {
    let history = web_sys::window().expect("there is a window").history().expect("a history");
    history.go_with_delta(steps).expect("the page is open");
    pass(WRITTEN_MS).await;
}

/// Presses a key on an element.
fn press_on(id: &str, key: &str) {
    let init = KeyboardEventInit::new();
    init.set_key(key);
    init.set_bubbles(true);
    let event = KeyboardEvent::new_with_keyboard_event_init_dict("keydown", &init).expect("the event is valid");
    element(id).dispatch_event(&event).expect("a key");
}

async fn select(api: &Api, from: f64, to: f64) {
    let promise = api.call("select", &[from.into(), to.into()]);
    JsFuture::from(promise.unchecked_into::<js_sys::Promise>()).await.expect("the range is on the screen");
}

/// One test, because pages that were started before would write to the same history.
#[wasm_bindgen_test]
async fn page_can_be_explored_and_restored() {
    let api = start().await;
    api.open(&bytes(Sample::Training)).await.expect("a valid recording");
    pass(WRITTEN_MS).await;
    browser_goes_back_through_views_and_recordings(&api).await;
    sizes_are_kept(&api).await;
    pictures_are_saved(&api).await;
    frames_open_in_an_editor(&api).await;
}

async fn browser_goes_back_through_views_and_recordings(api: &Api) {
    let events = api.number("events");
    api.seek(40).await;
    select(api, 10.0, 30.0).await;
    pass(WRITTEN_MS).await;
    assert_eq!(fragment(), "#event=40&range=10-30");
    api.open(&bytes(Sample::TwoGpus)).await.expect("a valid recording");
    pass(WRITTEN_MS).await;
    assert_ne!(api.number("events"), events);
    go(-1).await;
    assert_eq!((api.number("events"), fragment()), (events, "#event=40&range=10-30".to_owned()));
    go(-1).await;
    assert_eq!(fragment(), "#event=40", "the range was selected after the moment was chosen");
    go(2).await;
    assert_ne!(api.number("events"), events, "the file of the entry was opened again");
    go(-1).await;
    press("z", true);
    pass(WRITTEN_MS).await;
    assert_eq!(api.number("events"), events);
}

async fn sizes_are_kept(api: &Api) {
    let share = || element("app").style().get_property_value("--panes").expect("the property is valid");
    for _ in 0..3 {
        press_on("split-panes", "Home");
    }
    api.settle().await;
    assert_eq!(share(), "15");
    let storage = js_sys::eval("localStorage.getItem('vramscope.sizes')").expect("the script is valid");
    assert_eq!(storage.as_string().as_deref(), Some("panes=15.0"));
    press_on("split-panes", "Enter");
    assert_eq!(share(), "");
    js_sys::eval("localStorage.clear()").expect("the script is valid");
}

async fn pictures_are_saved(api: &Api) {
    let saved = Rc::new(RefCell::new(Vec::<String>::new()));
    let on_click = saved.clone();
    let watch = Closure::<dyn FnMut(Event)>::new(move |event: Event| {
        let link: HtmlElement = event.target().expect("a target").unchecked_into();
        if let Some(name) = link.get_attribute("download") {
            event.prevent_default();
            on_click.borrow_mut().push(name);
        }
    });
    let listener = watch.as_ref().unchecked_ref();
    document().add_event_listener_with_callback("click", listener).expect("the listener is valid");
    JsFuture::from(api.call("show", &["device".into()]).unchecked_into::<js_sys::Promise>()).await.expect("a view");
    let event = api.number("event");
    for key in ["I", "G"] {
        press(key, false);
        pass(300).await;
    }
    let names = [format!("drawn device event {event}.png"), format!("drawn device event {event}.svg")];
    assert_eq!(*saved.borrow(), names);
    document().remove_event_listener_with_callback("click", listener).expect("the listener is valid");
}

async fn frames_open_in_an_editor(api: &Api) {
    press("]", false);
    api.settle().await;
    let links = || document().query_selector_all("#details a[href]").expect("the selector is valid");
    assert_eq!(links().length(), 0);
    let field: HtmlInputElement = element("editor-template").unchecked_into();
    let choose = async |template: &str| {
        press("L", false);
        field.set_value(template);
        let submit = js_sys::Reflect::get(&element("editor-form"), &"requestSubmit".into()).expect("a form");
        submit.unchecked_into::<js_sys::Function>().call0(&element("editor-form")).expect("the form is valid");
        pass(100).await;
        api.settle().await;
    };
    choose("javascript://{file}").await;
    assert!(text("editor-error").contains("not allowed"), "{}", text("editor-error"));
    assert_eq!(links().length(), 0);
    choose("vscode://file/{file}:{line}").await;
    assert!(links().length() > 0, "{}", text("details"));
    let link: HtmlElement = links().item(0).expect("a link").unchecked_into();
    let address = link.get_attribute("href").expect("an address");
    assert!(address.starts_with("vscode://file/"), "{address}");
    let opened = Reflect::get(&element("editor"), &"open".into()).expect("a dialog");
    assert_eq!(opened.as_bool(), Some(false));
    choose("").await;
    assert_eq!(links().length(), 0);
    js_sys::eval("localStorage.clear()").expect("the script is valid");
}
