//! Opens recordings: from the page's address, a file or a URL.

use std::ops::Range;
use std::rc::Rc;

use js_sys::{Promise, Reflect, Uint8Array};
use vramscope_trace::Recording;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{Blob, File, ReadableStream, ReadableStreamDefaultReader, Response, UrlSearchParams};

use super::app::App;
use super::browser::{error_text, window};
use super::byte_source::{ByteSource, RangeResponse, fetch_error_text, request_range};
use super::live;
use super::message_queue::MessageQueue;
use super::page::PageStage;
use super::recording_bytes::RecordingBytes;
use crate::connection::ConnectionEvent;
use crate::link::Link;
use crate::model::Origin;
use crate::open::{FileLoader, LoadedFile, READ_WHOLE_UP_TO, is_recording};

/// Error for callers that wait for a file after another has been opened.
const SUPERSEDED: &str = "another recording was opened";

/// Returns the last part of a URL's path.
fn name_of_url(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
    js_sys::decode_uri_component(name).map_or_else(|_| name.to_owned(), String::from)
}

/// Opens a recording that is embedded in the page, at the view of the address's fragment.
pub(super) async fn open_embedded_file(app: &App, file: File) {
    let fragment = window().and_then(|window| window.location().hash()).unwrap_or_default();
    // `open` has shown the error.
    drop(open(app, file.into(), &Link::parse(&fragment)).await);
}

/// Opens the recording that the page's address names (`?trace=URL`), else the live connection.
pub(super) async fn open_address(app: &App) {
    let Ok(location) = window().map(|window| window.location()) else { return };
    let link = Link::parse(&location.hash().unwrap_or_default());
    let trace = location.search().ok().and_then(|search| UrlSearchParams::new_with_str(&search).ok());
    let trace = trace.and_then(|parameters| parameters.get("trace")).filter(|url| !url.is_empty());
    match trace {
        // `open` has shown the error.
        Some(url) => drop(open(app, url.into(), &link).await),
        None => live::show_program(app, link).await,
    }
    let state = app.0.state.borrow();
    if state.model.origin() == Origin::Empty {
        state.page.show_start_page();
    }
}

/// Opens a `File` or a URL without waiting; errors are shown on the page.
pub(super) fn open_in_background(app: &App, source: JsValue) {
    let app = app.clone();
    spawn_local(async move { drop(open(&app, source, &Link::default()).await) });
}

/// Opens a `File` or a URL at the view of `link`; resolves once the recording is on the screen.
pub(super) async fn open(app: &App, source: JsValue, link: &Link) -> Result<(), JsValue> {
    let opening = app.0.openings.get() + 1;
    app.0.openings.set(opening);
    let result = load_and_show(app, source, link, opening).await;
    if let Err(error) = &result
        && is_current(app, opening)
    {
        let state = app.0.state.borrow();
        state.page.show_message(&error_text(error));
        if state.model.origin() == Origin::Empty {
            state.page.show_start_page();
        }
    }
    result
}

/// Returns true if no other recording has been opened since the opening with number `opening`.
fn is_current(app: &App, opening: u64) -> bool {
    app.0.openings.get() == opening
}

/// Opens a `File` or a URL, by its index if it has one, and resolves once the recording is on the
/// screen. `opening` numbers this opening; fails if the user has opened another recording since.
async fn load_and_show(app: &App, source: JsValue, link: &Link, opening: u64) -> Result<(), JsValue> {
    let name = match source.as_string() {
        Some(url) => name_of_url(&url),
        None => source.dyn_ref::<File>().map_or_else(|| "recording".to_owned(), File::name),
    };
    {
        let state = app.0.state.borrow();
        state.page.hide_message();
        if state.model.origin() == Origin::Empty {
            state.page.set_stage(PageStage::Loading, &format!("Opening {name}…"), "");
        }
    }
    let access = find_access(&source).await?;
    let indexed = match &access {
        Access::Ranges(source) => source.open().await?,
        Access::Stream(_) => None,
    };
    let loaded = match (indexed, access) {
        (Some(recording), Access::Ranges(ranges)) => LoadedRecording::indexed(recording, ranges),
        (_, Access::Stream(stream)) => load_whole(app, &name, &source, stream, opening).await?,
        (None, Access::Ranges(_)) => {
            let stream = open_stream(&source).await?;
            load_whole(app, &name, &source, stream, opening).await?
        }
    };
    if !is_current(app, opening) {
        return Err(SUPERSEDED.into());
    }
    show(app, &name, link, loaded)?;
    app.drawn().await
}

/// A recording ready to show, its bytes for saving, and where to read the events that are not
/// loaded.
struct LoadedRecording {
    file: LoadedFile,
    bytes: RecordingBytes,
    /// Where to read the rest; `None` if all of it is loaded.
    source: Option<Rc<ByteSource>>,
}

impl LoadedRecording {
    /// Creates a recording whose index is loaded and whose events are read from `source` when
    /// needed.
    fn indexed(recording: Recording, source: ByteSource) -> Self {
        let bytes = match &source {
            ByteSource::File(blob) => {
                let mut bytes = RecordingBytes::default();
                bytes.push(blob);
                bytes
            }
            ByteSource::Url { url, .. } => RecordingBytes::Url(url.clone()),
        };
        Self { file: recording.into(), bytes, source: Some(Rc::new(source)) }
    }
}

/// Reads a whole file as it arrives in `stream`. `opening` numbers this opening; fails if the user
/// has opened another recording since.
async fn load_whole(
    app: &App,
    name: &str,
    source: &JsValue,
    stream: ReadableStream,
    opening: u64,
) -> Result<LoadedRecording, JsValue> {
    let reader = ReadableStreamDefaultReader::new(&stream)?;
    let mut loader = FileLoader::new(name);
    let mut bytes = RecordingBytes::default();
    let is_file = source.is_instance_of::<Blob>();
    if is_file {
        bytes.push(source);
    }
    loop {
        let part = JsFuture::from(reader.read()).await?;
        if !is_current(app, opening) {
            let _ = JsFuture::from(reader.cancel()).await;
            return Err(SUPERSEDED.into());
        }
        if Reflect::get(&part, &"done".into())?.is_truthy() {
            break;
        }
        let part = Reflect::get(&part, &"value".into())?.dyn_into::<Uint8Array>()?;
        if !is_file {
            bytes.push(&part);
        }
        loader.push(&part.to_vec());
    }
    let mut file = loader.finish().map_err(|error| JsValue::from(format!("{name}: {error}")))?;
    if !file.converted.is_empty() {
        bytes = RecordingBytes::from_chunks(&std::mem::take(&mut file.converted));
    }
    Ok(LoadedRecording { file, bytes, source: None })
}

/// Shows a recording at the view of a link.
fn show(app: &App, name: &str, link: &Link, loaded: LoadedRecording) -> Result<(), JsValue> {
    let LoadedRecording { mut file, bytes, source } = loaded;
    let warning = file.warning.take();
    // Only now: a file that cannot be read leaves a live view as it is.
    live::handle(app, ConnectionEvent::Replaced);
    let mut state = app.0.state.borrow_mut();
    let shown = state.model.show(name, file);
    shown.map_err(|error| JsValue::from(format!("{name}: {error}")))?;
    state.bytes = bytes;
    state.fetches.reset(source);
    state.messages = MessageQueue::default();
    if let Some(warning) = warning {
        state.page.show_message(&format!("{name}: {warning}. The part before it is shown."));
    }
    state.model.go_to_link(link).map_err(|error| JsValue::from(error.to_string()))?;
    app.fetch_needed(&mut state);
    Ok(())
}

/// How a file can be read: any range of its bytes, or only from the first byte to the last.
enum Access {
    /// In any order.
    Ranges(ByteSource),
    /// From the first byte to the last.
    Stream(ReadableStream),
}

/// Byte range at the start of a file that is read to recognize a recording.
const MAGIC: Range<u64> = 0..64;

/// Returns how a `File` or a URL can be read; reads its first bytes to find out.
async fn find_access(source: &JsValue) -> Result<Access, JsValue> {
    if let Some(blob) = source.dyn_ref::<Blob>() {
        let file = ByteSource::File(blob.clone());
        let has_ranges = file.len() > READ_WHOLE_UP_TO && is_recording(&file.read(&MAGIC, None).await?);
        return if has_ranges { Ok(Access::Ranges(file)) } else { open_stream(source).await.map(Access::Stream) };
    }
    let url = source.as_string().ok_or("open() takes a URL or a File")?;
    let RangeResponse { response, start_and_len } = request_range(&url, &MAGIC, None).await?;
    let Some((0, len)) = start_and_len else {
        // A server without ranges sends everything; for an empty file it may refuse the range.
        let is_whole = response.status() != 206 && response.status() != 416;
        return if is_whole { body(&url, &response) } else { open_stream(source).await }.map(Access::Stream);
    };
    let head = JsFuture::from(response.array_buffer()?).await?;
    if len > READ_WHOLE_UP_TO && is_recording(&Uint8Array::new(&head).to_vec()) {
        return Ok(Access::Ranges(ByteSource::Url { url, len }));
    }
    open_stream(source).await.map(Access::Stream)
}

/// Returns a stream of all bytes of a `File` or a URL.
async fn open_stream(source: &JsValue) -> Result<ReadableStream, JsValue> {
    if let Some(blob) = source.dyn_ref::<Blob>() {
        return Ok(blob.stream());
    }
    let url = source.as_string().ok_or("open() takes a URL or a File")?;
    let fetched: Promise = window()?.fetch_with_str(&url);
    let fetched = JsFuture::from(fetched).await.map_err(|error| JsValue::from(fetch_error_text(&url, &error)))?;
    body(&url, &fetched.dyn_into()?)
}

/// Returns the body of a response as a stream; an error if the server refused or sent none.
fn body(url: &str, response: &Response) -> Result<ReadableStream, JsValue> {
    if !response.ok() {
        return Err(format!("{url}: the server answered {} {}", response.status(), response.status_text()).into());
    }
    response.body().ok_or_else(|| format!("{url}: the response is empty").into())
}
