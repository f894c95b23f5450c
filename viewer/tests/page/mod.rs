//! Starts the viewer on its page in the browser that runs the tests.

use js_sys::{Array, Function, Object, Promise, Reflect, Uint8Array};
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{Document, DomParser, File, HtmlElement, KeyboardEvent, KeyboardEventInit, SupportedType};

const PAGE: &str = include_str!("../../../www/index.html");

pub(crate) fn document() -> Document {
    web_sys::window().and_then(|window| window.document()).expect("a page")
}

/// Starts the viewer on a fresh copy of its page. The canvases get a size, because the style sheet
/// is not loaded.
pub(crate) async fn start() -> Api {
    let page = DomParser::new().expect("a parser").parse_from_string(PAGE, SupportedType::TextHtml).expect("the page");
    let app = page.get_element_by_id("app").expect("the page has the viewer's elements");
    let body = document().body().expect("the document has a body");
    if let Some(before) = document().get_element_by_id("app") {
        before.remove();
    }
    body.append_child(&document().adopt_node(&app).expect("elements")).expect("a body takes elements");
    for canvas in ["timeline", "picture-left", "picture-right"] {
        let style = element(canvas).style();
        style.set_property("width", "800px").expect("the property is valid");
        style.set_property("height", "300px").expect("the property is valid");
        style.set_property("display", "block").expect("the property is valid");
    }
    web_sys::window().expect("there is a window").location().set_hash("").expect("the fragment is valid");
    JsFuture::from(vramscope_viewer::web::start(None, None, None)).await.expect("the viewer starts");
    let window = web_sys::window().expect("there is a window");
    Api(Reflect::get(&window, &"vramscope".into()).expect("window.vramscope").unchecked_into())
}

pub(crate) fn element(id: &str) -> HtmlElement {
    document().get_element_by_id(id).unwrap_or_else(|| panic!("#{id}")).unchecked_into()
}

pub(crate) fn text(id: &str) -> String {
    element(id).text_content().unwrap_or_default()
}

/// The interface `window.vramscope`.
pub(crate) struct Api(Object);

impl Api {
    pub(crate) fn call(&self, name: &str, arguments: &[JsValue]) -> JsValue {
        let function: Function = Reflect::get(&self.0, &name.into()).expect(name).unchecked_into();
        function.apply(&JsValue::UNDEFINED, &arguments.iter().collect::<Array>()).expect(name)
    }

    pub(crate) async fn call_and_wait(&self, name: &str, argument: JsValue) -> Result<JsValue, JsValue> {
        JsFuture::from(self.call(name, &[argument]).unchecked_into::<Promise>()).await
    }

    pub(crate) async fn open(&self, bytes: &[u8]) -> Result<JsValue, JsValue> {
        let parts = Array::of1(&Uint8Array::from(bytes));
        let file = File::new_with_u8_array_sequence(&parts, "drawn.vram").expect("files can be created");
        self.call_and_wait("open", file.into()).await
    }

    pub(crate) async fn seek(&self, event: u64) {
        self.call_and_wait("seek", (event as f64).into()).await.expect("a loaded moment");
    }

    /// Waits until everything that was done is on the screen.
    pub(crate) async fn settle(&self) {
        self.call_and_wait("show", "".into()).await.expect("the page is drawn");
    }

    pub(crate) fn number(&self, field: &str) -> f64 {
        let state = self.call("state", &[]);
        Reflect::get(&state, &field.into()).ok().and_then(|value| value.as_f64()).unwrap_or_else(|| panic!("{field}"))
    }
}

/// Waits `time_ms` milliseconds.
pub(crate) async fn pass(time_ms: i32) {
    let promise = Promise::new(&mut |resolve, _| {
        let window = web_sys::window().expect("there is a window");
        window.set_timeout_with_callback_and_timeout_and_arguments_0(&resolve, time_ms).expect("timers are available");
    });
    JsFuture::from(promise).await.expect("time passes");
}

/// Waits until a condition holds, for at most ten seconds: the assertion after it then fails.
pub(crate) async fn wait_until(holds: impl Fn() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        pass(20).await;
    }
}

/// Presses a key, optionally with Ctrl.
pub(crate) fn press(key: &str, ctrl: bool) {
    let init = KeyboardEventInit::new();
    init.set_key(key);
    init.set_ctrl_key(ctrl);
    init.set_bubbles(true);
    let event = KeyboardEvent::new_with_keyboard_event_init_dict("keydown", &init).expect("the event is valid");
    document().body().expect("the document has a body").dispatch_event(&event).expect("a key");
}
