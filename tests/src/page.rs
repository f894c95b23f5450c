//! The viewer's page in a browser, controlled through `window.vramscope`.

use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::browser::Browser;

/// Longest wait for the page, on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Makes a file from its name and a string with one character a byte.
const MAKE_FILE: &str = "const file = new File([Uint8Array.from(arguments[1], c => c.charCodeAt(0))], arguments[0]);";

/// The result of `window.vramscope.state()`.
#[derive(Clone, Debug, Deserialize)]
pub struct PageState {
    /// The recorded program, or the name of the file.
    pub source: String,
    /// True while events arrive.
    pub live: bool,
    /// Number of events, which is also the last moment.
    pub events: u64,
    /// Events known to be missing.
    pub lost_events: u64,
    /// The moment on the screen.
    pub event: u64,
    /// Its time in nanoseconds, rounded to a JavaScript number.
    pub time_ns: f64,
    /// The device on the screen.
    pub device: u16,
    /// Allocated bytes.
    pub allocated_bytes: u64,
    /// Reserved bytes.
    pub reserved_bytes: u64,
    /// Active bytes: allocated, or freed and still in use by a stream.
    pub active_bytes: u64,
    /// Segments of the device.
    pub segments: u64,
    /// Active blocks in them.
    pub blocks: u64,
    /// 1 - largest free block / free bytes in segments.
    pub fragmentation: f64,
    /// Zoom, selection and settings of the views.
    pub view: Value,
    /// Time that the last frame took to draw, in milliseconds.
    pub frame_ms: f64,
    /// State of the connection: `none`, `live`, `reconnecting`, `ended` or `disconnected`.
    pub connection: String,
    /// The oldest moment in memory.
    pub first_event: u64,
    /// Events that the server skipped for this page.
    pub missed_events: u64,
    /// Memory of the recording in bytes.
    pub held_bytes: u64,
}

/// The viewer's page.
#[derive(Clone, Copy, Debug)]
pub struct Page<'b> {
    browser: &'b Browser,
}

impl<'b> Page<'b> {
    /// Opens the page and waits until `window.vramscope` is ready.
    #[must_use]
    pub fn open(browser: &'b Browser, url: &str) -> Self {
        browser.open(url);
        let page = Self { browser };
        // On a busy machine, chromedriver can return before the page's first script has run.
        page.wait("the page's script has run", "return window.vramscope?.ready");
        page.run("return window.vramscope.ready.then(() => true)");
        page
    }

    /// Runs the body of a JavaScript function; see [`Browser::run`].
    pub fn run(&self, script: &str) -> Value {
        self.browser.run(script, &[])
    }

    /// Returns the page's state.
    ///
    /// # Panics
    /// Panics if a field is missing or has another type.
    #[must_use]
    pub fn state(&self) -> PageState {
        self.json("return window.vramscope.state()")
    }

    /// Runs the body of an asynchronous JavaScript function and returns its result. Unlike
    /// [`run`](Self::run), it keeps whole numbers above 2^31 whole.
    ///
    /// # Panics
    /// Panics if the result has another type.
    #[must_use]
    pub fn json<T: DeserializeOwned>(&self, script: &str) -> T {
        self.json_of(script, &[])
    }

    /// Like [`json`](Self::json), with arguments.
    ///
    /// # Panics
    /// Panics if the result has another type.
    #[must_use]
    pub fn json_of<T: DeserializeOwned>(&self, script: &str, arguments: &[Value]) -> T {
        let script = format!("return (async (...arguments) => {{ {script} }})(...arguments).then(JSON.stringify)");
        let result = self.browser.run(&script, arguments);
        let text = result.as_str().unwrap_or_default();
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:.2000}\n{script}"))
    }

    /// Waits until `wanted` returns true for the state; `what` describes that in the failure.
    ///
    /// # Panics
    /// Panics after 60 s.
    pub fn wait_until(&self, what: &str, wanted: impl Fn(&PageState) -> bool) -> PageState {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let state = self.state();
            if wanted(&state) {
                return state;
            }
            assert!(Instant::now() < deadline, "waited {TIMEOUT:?} until {what}; the page's state is {state:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the body of a JavaScript function returns a truthy value.
    ///
    /// # Panics
    /// Panics after 60 s.
    pub fn wait(&self, what: &str, script: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while self.run(&format!("return Boolean((() => {{ {script} }})())")) != json!(true) {
            assert!(
                Instant::now() < deadline,
                "waited {TIMEOUT:?} until {what}; the page's state is {:?}",
                self.state()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Seeks to a moment and returns the state once it is on the screen.
    pub fn seek(&self, event: u64) -> PageState {
        self.browser.run("return window.vramscope.seek(arguments[0]).then(() => true)", &[json!(event)]);
        self.state()
    }

    /// Returns the digest of the memory state on the screen.
    ///
    /// # Panics
    /// Panics if it is not a hexadecimal number.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let digest = self.run("return window.vramscope.digest()");
        let number = digest.as_str().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.unwrap_or_else(|| panic!("digest() is {digest}"))
    }

    /// Returns the text of a counter: `allocated`, `active`, `reserved`, `segments`, `blocks`,
    /// `events` or `fragmentation`.
    ///
    /// # Panics
    /// Panics if the page has no such counter.
    #[must_use]
    pub fn counter(&self, name: &str) -> String {
        let text =
            self.browser.run("return document.getElementById(`count-${arguments[0]}`)?.innerText", &[json!(name)]);
        text.as_str().unwrap_or_else(|| panic!("the page has no counter {name}")).to_owned()
    }

    /// Moves the pointer over the page in a grid and returns all text that was shown, tooltips
    /// included.
    #[must_use]
    pub fn text_under_the_pointer(&self) -> String {
        let text = self.run(
            "const texts = new Set();
             const visit = async () => {
                 for (let y = 20; y < innerHeight; y += 60) {
                     for (let x = 20; x < innerWidth; x += 120) {
                         const at = {
                             clientX: x, clientY: y, bubbles: true, cancelable: true, composed: true, pointerId: 1,
                         };
                         document.elementFromPoint(x, y).dispatchEvent(new PointerEvent('pointermove', at));
                         await new Promise(requestAnimationFrame);
                         document.body.innerText.split('\\n').forEach(line => texts.add(line));
                     }
                 }
                 return [document.title, ...texts].join('\\n');
             };
             return visit();",
        );
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Opens a file through `window.vramscope.open` and waits until it can be used.
    pub fn open_file(&self, name: &str, bytes: &[u8]) {
        let script = format!("{MAKE_FILE} return window.vramscope.open(file).then(() => true)");
        self.browser.run(&script, &file_arguments(name, bytes));
    }

    /// Drops a file on the middle of the page, with the events that a browser sends.
    pub fn drop_file(&self, name: &str, bytes: &[u8]) {
        let script = format!(
            "{MAKE_FILE}
             const dataTransfer = new DataTransfer();
             dataTransfer.items.add(file);
             const target = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
             for (const type of ['dragenter', 'dragover', 'drop']) {{
                 const init = {{ dataTransfer, bubbles: true, cancelable: true, composed: true }};
                 target.dispatchEvent(new DragEvent(type, init));
             }}"
        );
        self.browser.run(&script, &file_arguments(name, bytes));
    }

    /// Stores a file as `window.benchFile` for the benchmark's scripts.
    pub fn keep_file(&self, name: &str, bytes: &[u8]) {
        self.browser.run(&format!("{MAKE_FILE} window.benchFile = file;"), &file_arguments(name, bytes));
    }
}

fn file_arguments(name: &str, bytes: &[u8]) -> [Value; 2] {
    [json!(name), json!(bytes.iter().copied().map(char::from).collect::<String>())]
}
