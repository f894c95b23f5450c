//! The viewer's page in a browser, held by what it promises to scripts: `window.vramscope`.

use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::browser::Browser;

/// How long the page may take for anything, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes a file's bytes as a string with one character a byte.
const MAKE_FILE: &str = "const file = new File([Uint8Array.from(arguments[1], c => c.charCodeAt(0))], arguments[0]);";

/// What `window.vramscope.state()` says.
#[derive(Clone, Debug, Deserialize)]
pub struct PageState {
    /// The recorded program, or the name of the file.
    pub source: String,
    /// Whether events are still coming.
    pub live: bool,
    /// Events known so far; the last moment there is.
    pub events: u64,
    /// Events known to be missing.
    pub lost_events: u64,
    /// The moment on the screen.
    pub event: u64,
    /// Its time; a JavaScript number holds it only nearly.
    pub time_ns: f64,
    /// The GPU on the screen.
    pub device: u16,
    /// Bytes handed out to the program.
    pub allocated_bytes: u64,
    /// Bytes that the allocator holds.
    pub reserved_bytes: u64,
    /// Bytes handed out, or freed and still in use by a stream.
    pub active_bytes: u64,
    /// Segments of the GPU on the screen.
    pub segments: u64,
    /// Blocks in them.
    pub blocks: u64,
    /// 1 - largest free block / free bytes in segments.
    pub fragmentation: f64,
    /// What is shown of the recording.
    pub view: Value,
    /// How long the last frame took to draw.
    pub frame_ms: f64,
    /// How the recording comes: `none`, `live`, `reconnecting`, `ended`, `disconnected`.
    pub connection: String,
    /// The oldest moment that is held.
    pub first_event: u64,
    /// Events that were left out for this page.
    pub missed_events: u64,
    /// Bytes of memory that the recording takes.
    pub held_bytes: u64,
}

/// The viewer's page.
#[derive(Clone, Copy, Debug)]
pub struct Page<'b> {
    browser: &'b Browser,
}

impl<'b> Page<'b> {
    /// Opens the page and waits until it can be asked.
    #[must_use]
    pub fn open(browser: &'b Browser, url: &str) -> Self {
        browser.open(url);
        let page = Self { browser };
        page.run("return window.vramscope.ready.then(() => true)");
        page
    }

    /// Runs the body of a JavaScript function; see [`Browser::run`].
    pub fn run(&self, script: &str) -> Value {
        self.browser.run(script, &[])
    }

    /// What is on the screen.
    ///
    /// # Panics
    /// Where a field is missing or of another type than promised.
    #[must_use]
    pub fn state(&self) -> PageState {
        let state = self.run("return window.vramscope.state()");
        PageState::deserialize(&state).unwrap_or_else(|error| panic!("state() is {state}: {error}"))
    }

    /// Waits until the state is as wanted.
    ///
    /// # Panics
    /// Where that takes too long.
    pub fn wait_until(&self, what: &str, wanted: impl Fn(&PageState) -> bool) -> PageState {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = self.state();
            if wanted(&state) {
                return state;
            }
            assert!(Instant::now() < deadline, "waited {PATIENCE:?} until {what}; the page is at {state:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the body of a JavaScript function returns what counts as true.
    ///
    /// # Panics
    /// Where that takes too long.
    pub fn wait(&self, what: &str, script: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.run(&format!("return Boolean((() => {{ {script} }})())")) != json!(true) {
            assert!(Instant::now() < deadline, "waited {PATIENCE:?} until {what}; the page is at {:?}", self.state());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Goes to a moment and gives back what is on the screen then.
    pub fn seek(&self, event: u64) -> PageState {
        self.browser.run("return window.vramscope.seek(arguments[0]).then(() => true)", &[json!(event)]);
        self.state()
    }

    /// The digest of the memory state on the screen.
    ///
    /// # Panics
    /// Where it is not a number in hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let digest = self.run("return window.vramscope.digest()");
        let number = digest.as_str().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.unwrap_or_else(|| panic!("digest() is {digest}"))
    }

    /// What the counter of this name reads: `allocated`, `active`, `reserved`, `segments`, `blocks`, `events`, `fragmentation`.
    ///
    /// # Panics
    /// Where the page has no such counter.
    #[must_use]
    pub fn counter(&self, name: &str) -> String {
        let text =
            self.browser.run("return document.getElementById(`count-${arguments[0]}`)?.innerText", &[json!(name)]);
        text.as_str().unwrap_or_else(|| panic!("the page has no counter {name}")).to_owned()
    }

    /// Moves the pointer over the whole page in a grid, so that everything that is shown on hover is shown once, and gives back all
    /// the text that was there to read meanwhile.
    #[must_use]
    pub fn text_under_the_pointer(&self) -> String {
        let text = self.run(
            "const texts = new Set();
             const visit = async () => {
                 for (let y = 20; y < innerHeight; y += 60) {
                     for (let x = 20; x < innerWidth; x += 120) {
                         const at = { clientX: x, clientY: y, bubbles: true, cancelable: true, composed: true, pointerId: 1 };
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

    /// Opens a file through `window.vramscope.open`, and waits until the whole of it can be used.
    pub fn open_file(&self, name: &str, bytes: &[u8]) {
        let script = format!("{MAKE_FILE} return window.vramscope.open(file).then(() => true)");
        self.browser.run(&script, &file_arguments(name, bytes));
    }

    /// Drops a file on the middle of the page, as the browser does when a person lets go of it there.
    pub fn drop_file(&self, name: &str, bytes: &[u8]) {
        let script = format!(
            "{MAKE_FILE}
             const dataTransfer = new DataTransfer();
             dataTransfer.items.add(file);
             const target = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
             for (const type of ['dragenter', 'dragover', 'drop']) {{
                 target.dispatchEvent(new DragEvent(type, {{ dataTransfer, bubbles: true, cancelable: true, composed: true }}));
             }}"
        );
        self.browser.run(&script, &file_arguments(name, bytes));
    }

    /// Makes a file in the page for scripts that measure: `window.benchFile`.
    pub fn keep_file(&self, name: &str, bytes: &[u8]) {
        self.browser.run(&format!("{MAKE_FILE} window.benchFile = file;"), &file_arguments(name, bytes));
    }
}

fn file_arguments(name: &str, bytes: &[u8]) -> [Value; 2] {
    [json!(name), json!(bytes.iter().copied().map(char::from).collect::<String>())]
}
