//! Where recordings come from: the address, a file, a URL.

use std::ops::Range;

use js_sys::{Promise, Reflect, Uint8Array};
use vramscope_trace::Recording;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{Blob, File, ReadableStream, ReadableStreamDefaultReader, Response, Url, UrlSearchParams};

use super::arrivals::Arrivals;
use super::page::Stage;
use super::ranges::{Answer, Ranged, Reads, ask};
use super::save::Kept;
use super::{App, live, window};
use crate::following::History;
use crate::link::Link;
use crate::model::Origin;
use crate::open::{Opened, Opening, READ_WHOLE_UP_TO, is_recording};

/// What an empty page says.
pub(super) const EMPTY: &str =
    "or choose one. Nothing leaves this machine. Served by a running program, this page shows its memory live.";

pub(super) fn text_of(error: &JsValue) -> String {
    let message =
        error.as_string().or_else(|| error.dyn_ref::<js_sys::Error>().map(|error| String::from(error.message())));
    message.unwrap_or_else(|| format!("{error:?}"))
}

/// The last part of a URL's path.
fn name_of_url(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
    js_sys::decode_uri_component(name).map_or_else(|_| name.to_owned(), String::from)
}

impl App {
    /// Begins to open something, instead of whatever is being opened.
    fn next_opening(&self) -> u64 {
        self.0.opening.set(self.0.opening.get() + 1);
        self.0.opening.get()
    }

    fn is_current(&self, opening: u64) -> bool {
        self.0.opening.get() == opening
    }

    /// Opens a recording that came with the page, where the address's fragment says.
    pub(super) async fn open_what_the_page_holds(&self, file: File) {
        let fragment = window().and_then(|window| window.location().hash()).unwrap_or_default();
        // What goes wrong has been shown on the page.
        drop(open(self, file.into(), &Link::parse(&fragment)).await);
    }

    /// Opens `?trace=URL`, or else the live connection.
    pub(super) async fn open_what_the_address_says(&self) {
        let Ok(location) = window().map(|window| window.location()) else { return };
        let link = Link::parse(&location.hash().unwrap_or_default());
        let trace = location.search().ok().and_then(|search| UrlSearchParams::new_with_str(&search).ok());
        let trace = trace.and_then(|parameters| parameters.get("trace")).filter(|url| !url.is_empty());
        match trace {
            // What goes wrong has been shown on the page.
            Some(url) => drop(open(self, url.into(), &link).await),
            None => live::connect_for(self, live::Purpose::Show(link, History::Recent)).await,
        }
        if self.0.state.borrow().model.origin() == Origin::Nowhere {
            self.0.state.borrow().page.set_stage(Stage::Empty, "Drop a recording here", EMPTY);
        }
    }
}

/// Opens a file or a URL; what goes wrong is shown on the page.
pub(super) fn open_in_background(app: &App, what: JsValue) {
    let app = app.clone();
    spawn_local(async move { drop(open(&app, what, &Link::default()).await) });
}

/// Opens a `File` or a URL, and goes where `link` says in it; resolves when all of it can be used and is on the screen.
pub(super) async fn open(app: &App, what: JsValue, link: &Link) -> Result<(), JsValue> {
    let opening = app.next_opening();
    let result = read(app, what, link, opening).await;
    if let Err(error) = &result
        && app.is_current(opening)
    {
        let state = app.0.state.borrow();
        state.page.show_message(&text_of(error));
        if state.model.origin() == Origin::Nowhere {
            state.page.set_stage(Stage::Empty, "Drop a recording here", EMPTY);
        }
    }
    result
}

async fn read(app: &App, what: JsValue, link: &Link, opening: u64) -> Result<(), JsValue> {
    let name = match what.as_string() {
        Some(url) => name_of_url(&url),
        None => what.dyn_ref::<File>().map_or_else(|| "recording".to_owned(), File::name),
    };
    {
        let state = app.0.state.borrow();
        state.page.hide_message();
        if state.model.origin() == Origin::Nowhere {
            state.page.set_stage(Stage::Loading, &format!("Opening {name}…"), "");
        }
    }
    let begun = begin(&what).await?;
    let indexed = match &begun {
        Begun::Ranged(ranged) => ranged.open().await?,
        Begun::Streaming(_) => None,
    };
    let Loaded { opened, kept, reads } = match (indexed, begun) {
        (Some(recording), Begun::Ranged(ranged)) => ranged_recording(recording, ranged),
        (_, Begun::Streaming(stream)) => read_whole(app, &name, &what, stream, opening).await?,
        (None, Begun::Ranged(_)) => read_whole(app, &name, &what, stream(&what).await?, opening).await?,
    };
    if !app.is_current(opening) {
        return Err(OTHER_OPENED.into());
    }
    show(app, &name, link, Loaded { opened, kept, reads })?;
    app.drawn().await
}

/// What is said to whoever waits for one file when another is opened.
const OTHER_OPENED: &str = "something else was opened";

/// A recording that can be shown.
struct Loaded {
    opened: Opened,
    kept: Kept,
    reads: Reads,
}

fn ranged_recording(recording: Recording, ranged: Ranged) -> Loaded {
    let kept = match &ranged {
        Ranged::File(blob) => {
            let mut kept = Kept::default();
            kept.push(blob);
            kept
        }
        Ranged::Url { url, .. } => Kept::Url(url.clone()),
    };
    Loaded { opened: recording.into(), kept, reads: Reads::of(ranged) }
}

/// Reads a file from the first byte to the last.
async fn read_whole(
    app: &App,
    name: &str,
    what: &JsValue,
    stream: ReadableStream,
    opening: u64,
) -> Result<Loaded, JsValue> {
    let reader = ReadableStreamDefaultReader::new(&stream)?;
    let mut file = Opening::new(name);
    let mut kept = Kept::default();
    let is_file = what.is_instance_of::<Blob>();
    if is_file {
        kept.push(what);
    }
    loop {
        let piece = JsFuture::from(reader.read()).await?;
        if !app.is_current(opening) {
            let _ = JsFuture::from(reader.cancel()).await;
            return Err(OTHER_OPENED.into());
        }
        if Reflect::get(&piece, &"done".into())?.is_truthy() {
            break;
        }
        let bytes = Reflect::get(&piece, &"value".into())?.dyn_into::<Uint8Array>()?;
        if !is_file {
            kept.push(&bytes);
        }
        file.push(&bytes.to_vec());
    }
    let mut opened = file.finish().map_err(|error| JsValue::from(format!("{name}: {error}")))?;
    if !opened.converted.is_empty() {
        kept = Kept::of(&std::mem::take(&mut opened.converted));
    }
    Ok(Loaded { opened, kept, reads: Reads::default() })
}

/// Puts a recording on the page, at the place that a link leads to.
fn show(app: &App, name: &str, link: &Link, loaded: Loaded) -> Result<(), JsValue> {
    let Loaded { mut opened, kept, reads } = loaded;
    let warning = opened.warning.take();
    // Not before: a file that cannot be read leaves a live view as it is.
    app.hang_up();
    let mut state = app.0.state.borrow_mut();
    let shown = state.model.show(name, opened);
    shown.map_err(|error| JsValue::from(format!("{name}: {error}")))?;
    (state.kept, state.reads) = (kept, reads);
    (state.connection, state.arrivals) = (live::Connection::None, Arrivals::default());
    if let Some(warning) = warning {
        state.page.show_message(&format!("{name}: {warning}. What comes before is shown."));
    }
    state.model.go_to_link(link).map_err(|error| JsValue::from(error.to_string()))?;
    app.read_on(&mut state);
    Ok(())
}

/// What there is to be read.
enum Begun {
    /// A recording of some size, that can be read in any order.
    Ranged(Ranged),
    /// Bytes as they come.
    Streaming(ReadableStream),
}

/// The first bytes, which say what a file is.
const HEAD: Range<u64> = 0..64;

/// Finds out how a file or what a URL names is to be read.
async fn begin(what: &JsValue) -> Result<Begun, JsValue> {
    if let Some(blob) = what.dyn_ref::<Blob>() {
        let file = Ranged::File(blob.clone());
        let is_ranged = file.len() > READ_WHOLE_UP_TO && is_recording(&file.read(&HEAD, None).await?);
        return if is_ranged { Ok(Begun::Ranged(file)) } else { stream(what).await.map(Begun::Streaming) };
    }
    let url = what.as_string().ok_or("open takes a URL or a File")?;
    let Answer { response, place } = ask(&url, &HEAD, None).await?;
    let Some((0, len)) = place else {
        // A server that gives no ranges gives everything; an empty file has none, and the server may say so.
        let is_all = response.status() != 206 && response.status() != 416;
        return if is_all { body(&url, &response) } else { stream(what).await }.map(Begun::Streaming);
    };
    let head = JsFuture::from(response.array_buffer()?).await?;
    let is_ranged = len > READ_WHOLE_UP_TO && is_recording(&Uint8Array::new(&head).to_vec());
    if is_ranged {
        return Ok(Begun::Ranged(Ranged::Url { url, len }));
    }
    stream(what).await.map(Begun::Streaming)
}

/// The bytes of a file or of what a URL names, as they come.
async fn stream(what: &JsValue) -> Result<ReadableStream, JsValue> {
    if let Some(blob) = what.dyn_ref::<Blob>() {
        return Ok(blob.stream());
    }
    let url = what.as_string().ok_or("open takes a URL or a File")?;
    let fetched: Promise = window()?.fetch_with_str(&url);
    let fetched = JsFuture::from(fetched).await.map_err(|error| JsValue::from(why_not_fetched(&url, &error)))?;
    body(&url, &fetched.dyn_into()?)
}

/// The bytes of an answer, if it is a good one.
fn body(url: &str, response: &Response) -> Result<ReadableStream, JsValue> {
    if !response.ok() {
        return Err(format!("{url}: the server answers {} {}", response.status(), response.status_text()).into());
    }
    response.body().ok_or_else(|| format!("{url}: the answer is empty").into())
}

/// What to say of a URL that cannot be fetched. The browser itself does not tell why.
pub(super) fn why_not_fetched(url: &str, error: &JsValue) -> String {
    let here = window().map(|window| window.location()).and_then(|location| Ok((location.href()?, location.origin()?)));
    let is_elsewhere = here.and_then(|(href, origin)| Ok(Url::new_with_base(url, &href)?.origin() != origin));
    if is_elsewhere == Ok(true) {
        return format!(
            "{url}: by its address only a file of this page's own server can be opened. Download it, and open the file here."
        );
    }
    format!("{url}: {}. Is the program that serves this page still running?", text_of(error))
}
