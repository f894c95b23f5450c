//! Opens recordings: from the page's address, a file or a URL.

use std::ops::Range;
use std::rc::Rc;

use js_sys::{Promise, Reflect, Uint8Array};
use vramscope_trace::Recording;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{Blob, File, ReadableStream, ReadableStreamDefaultReader, RequestInit, Response, Url, UrlSearchParams};

use super::super::browser::{error_text, fetch};
use super::app::App;
use super::byte_source::{ByteSource, RangeResponse, fetch_error_text, read_buffer, request_range};
use super::importing;
use super::live;
use super::message_queue::MessageQueue;
use super::recording_bytes::RecordingBytes;
use crate::connection::ConnectionEvent;
use crate::link::Link;
use crate::model::Origin;
use crate::open::{LoadedFile, READ_WHOLE_UP_TO, RecordingLoader, is_recording};
use crate::protocol::{FromEngine, PageStage, RecordingSource, Sources};

/// Error of an opening that was abandoned because another recording was opened.
const SUPERSEDED: &str = "another recording was opened";

/// Returns the file name in a URL: the last part of its path, decoded.
fn name_of_url(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
    js_sys::decode_uri_component(name).map_or_else(|_| name.to_owned(), String::from)
}

/// Opens a recording that is embedded in the page, at the view of the address's fragment.
pub(super) async fn open_embedded_file(app: &App, source: &RecordingSource, files: Vec<JsValue>) {
    let link = link_of(&app.0.address.borrow());
    // `open` has shown the error.
    drop(open(app, source, files.first(), &link).await);
}

/// Parses the view in the fragment of an address; the default view without a fragment.
fn link_of(address: &str) -> Link {
    Link::parse(address.split_once('#').map_or("", |(_, fragment)| fragment))
}

/// Opens the recording that the page's address names (`?trace=URL`), else the live connection. If
/// the address names a second recording (`&compare=URL`), compares with it.
pub(super) async fn open_address(app: &App) {
    let address = app.0.address.borrow().clone();
    let link = link_of(&address);
    let search = Url::new(&address).map(|url| url.search()).unwrap_or_default();
    let parameters = UrlSearchParams::new_with_str(&search).ok();
    let parameter = |name: &str| parameters.as_ref()?.get(name).filter(|url| !url.is_empty());
    let (trace, second) = (parameter("trace"), parameter("compare"));
    match trace {
        // `open` has shown the error.
        Some(url) => drop(open(app, &RecordingSource::Url(url), None, &link).await),
        None => live::show_program(app, link).await,
    }
    if is_empty(app) {
        app.show_start_page();
    } else if let Some(second) = second {
        // `compare` has shown the error.
        drop(compare(app, &RecordingSource::Url(second), None).await);
    }
}

/// Shows recordings that were on the page before, at the view of a URL fragment; opens those that
/// are no longer on the page. `files` are the files of the sources, in order. Errors are shown on
/// the page.
pub(super) async fn go_back(app: &App, sources: &Sources, fragment: &str, files: Vec<JsValue>) {
    let mut files = files.into_iter();
    let mut file_of =
        |source: &RecordingSource| matches!(source, RecordingSource::File(_)).then(|| files.next()).flatten();
    let (file, second) = (file_of(&sources.recording), file_of(&sources.second));
    let link = Link::parse(fragment);
    let shown = app.0.state.borrow().sources.recording.clone();
    if sources.recording != shown {
        match &sources.recording {
            RecordingSource::None => return,
            // Its events arrive later.
            RecordingSource::Program => return live::show_program(app, link).await,
            source => {
                if open(app, source, file.as_ref(), &link).await.is_err() {
                    return;
                }
            }
        }
    }
    let compared = app.0.state.borrow().sources.second.clone();
    if sources.second == RecordingSource::None {
        app.change_model(|model| model.comparison.close());
    } else if sources.second != compared && compare(app, &sources.second, second.as_ref()).await.is_err() {
        return;
    }
    app.change(|state| state.session.go_back_to(&link));
}

/// Returns true if the page has no recording.
fn is_empty(app: &App) -> bool {
    app.0.state.borrow().session.model.origin() == Origin::Empty
}

/// Starts opening a recording and returns at once; errors are shown on the page.
pub(super) fn open_in_background(app: &App, source: RecordingSource, files: Vec<JsValue>) {
    let app = app.clone();
    spawn_local(async move { drop(open(&app, &source, files.first(), &Link::default()).await) });
}

/// Opens the recording of a source at the view of `link`, and returns once it is on the screen.
/// `file` is the source's `File`, if it is one.
pub(super) async fn open(
    app: &App,
    source: &RecordingSource,
    file: Option<&JsValue>,
    link: &Link,
) -> Result<(), JsValue> {
    let opening = app.0.openings.get() + 1;
    app.0.openings.set(opening);
    let load_and_show = async {
        let (name, loaded) = load(app, source, file, opening, true).await?;
        show(app, &name, source, link, loaded)?;
        app.drawn().await
    };
    let result = load_and_show.await;
    if let Err(error) = &result
        && is_current(app, opening)
    {
        app.show_message(&error_text(error));
        if is_empty(app) {
            app.show_start_page();
        }
    }
    result
}

/// Cancels the opening of a file, if one is running; the recording on the page stays.
pub(super) fn cancel(app: &App) {
    app.0.openings.set(app.0.openings.get() + 1);
    app.send(&FromEngine::Progress(None));
    if is_empty(app) {
        app.show_start_page();
    }
}

/// Returns true if no other opening has started since the one with number `opening`.
fn is_current(app: &App, opening: u64) -> bool {
    app.0.openings.get() == opening
}

/// Returns the name of a source, and the source as a value: an absolute URL, or `file`, the `File`
/// that belongs to it.
fn name_and_value(app: &App, source: &RecordingSource, file: Option<&JsValue>) -> (String, JsValue) {
    if let RecordingSource::Url(url) = source {
        // A worker resolves relative URLs differently.
        let absolute = Url::new_with_base(url, &app.0.address.borrow());
        return (name_of_url(url), absolute.map_or_else(|_| url.clone(), |url| url.href()).into());
    }
    let file = file.cloned().unwrap_or_default();
    (file.dyn_ref::<File>().map_or_else(|| "recording".to_owned(), File::name), file)
}

/// Starts comparing the recording on the page with another and returns at once; errors are shown on
/// the page.
pub(super) fn compare_in_background(app: &App, source: RecordingSource, files: Vec<JsValue>) {
    let app = app.clone();
    spawn_local(async move { drop(compare(&app, &source, files.first()).await) });
}

/// Compares the recording on the page with the recording of a source, and returns once the
/// comparison is on the screen. `file` is the source's `File`, if it is one.
pub(super) async fn compare(app: &App, source: &RecordingSource, file: Option<&JsValue>) -> Result<(), JsValue> {
    let result = load_second(app, source, file).await;
    if let Err(error) = &result {
        app.show_message(&error_text(error));
    }
    result
}

/// Loads a second recording completely and compares the one on the page with it. Fails if the user
/// opens another recording meanwhile.
async fn load_second(app: &App, source: &RecordingSource, file: Option<&JsValue>) -> Result<(), JsValue> {
    let (name, LoadedRecording { file, .. }) = load(app, source, file, app.0.openings.get(), false).await?;
    if let Some(warning) = file.warning {
        app.show_message(&format!("{name}: {warning}. The part before it is compared."));
    }
    {
        let mut state = app.0.state.borrow_mut();
        state.session.compare_with(&name, file.recording)?;
        state.sources.second = source.clone();
    }
    app.drawn().await
}

/// Loads a `File` or a URL, and returns its name and the recording: to show it (`is_shown`) by its
/// index if it has one, else completely. `opening` is the number of this opening; fails if a later
/// one has started.
async fn load(
    app: &App,
    source: &RecordingSource,
    file: Option<&JsValue>,
    opening: u64,
    is_shown: bool,
) -> Result<(String, LoadedRecording), JsValue> {
    let (name, source) = name_and_value(app, source, file);
    app.hide_message();
    if is_shown && is_empty(app) {
        app.set_stage(PageStage::Loading, &format!("Opening {name}…"), "");
    }
    let loaded = match find_access(&source).await? {
        Access::Ranges(ranges) => {
            let on_read = |bytes| app.0.state.borrow_mut().read_bytes += bytes as f64;
            match if is_shown { ranges.open(on_read).await? } else { None } {
                Some(recording) => LoadedRecording::indexed(recording, ranges),
                None => load_whole(app, &name, &source, open_stream(&source).await?, opening).await?,
            }
        }
        Access::Stream(stream) => load_whole(app, &name, &source, stream, opening).await?,
        Access::Import => import(app, &name, &source, opening).await?,
    };
    if is_current(app, opening) { Ok((name, loaded)) } else { Err(SUPERSEDED.into()) }
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

/// Imports a file of another format as a recording. `opening` is the number of this opening; fails
/// if a later one has started.
async fn import(app: &App, name: &str, source: &JsValue, opening: u64) -> Result<LoadedRecording, JsValue> {
    let importing = app.clone();
    let (file, bytes) = importing::import(app, name, source, move || is_current(&importing, opening)).await?;
    Ok(LoadedRecording { file, bytes, source: None })
}

/// Reads a whole recording from `stream` as its bytes arrive. A file of another format, which can
/// only be recognized here if the server does not support ranges, is imported instead. `opening` is
/// the number of this opening; fails if a later one has started.
async fn load_whole(
    app: &App,
    name: &str,
    source: &JsValue,
    stream: ReadableStream,
    opening: u64,
) -> Result<LoadedRecording, JsValue> {
    let reader = ReadableStreamDefaultReader::new(&stream)?;
    let mut loader = RecordingLoader::default();
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
        app.0.state.borrow_mut().read_bytes += f64::from(part.length());
        loader.push(&part.to_vec());
        if loader.is_other_format() {
            let _ = JsFuture::from(reader.cancel()).await;
            return import(app, name, source, opening).await;
        }
    }
    let file = loader.finish().map_err(|error| JsValue::from(format!("{name}: {error}")))?;
    Ok(LoadedRecording { file, bytes, source: None })
}

/// Puts a loaded recording on the page at the view of a link.
fn show(app: &App, name: &str, origin: &RecordingSource, link: &Link, loaded: LoadedRecording) -> Result<(), JsValue> {
    let LoadedRecording { mut file, bytes, source } = loaded;
    let warning = file.warning.take();
    // Only now: a file that cannot be read leaves a live view as it is.
    live::handle(app, ConnectionEvent::Replaced);
    let mut state = app.0.state.borrow_mut();
    let shown = state.session.model.show(name, file);
    shown.map_err(|error| JsValue::from(format!("{name}: {error}")))?;
    state.bytes = bytes;
    state.sources = Sources { recording: origin.clone(), second: RecordingSource::None };
    state.fetches.reset(source);
    state.messages = MessageQueue::default();
    if let Some(warning) = warning {
        app.show_message(&format!("{name}: {warning}. The part before it is shown."));
    }
    state.session.go_to_link(link).map_err(|error| JsValue::from(error.to_string()))?;
    app.fetch_needed(&mut state);
    Ok(())
}

/// The way in which a file can be read: by ranges, as a stream, or with an importer.
enum Access {
    /// In any order.
    Ranges(ByteSource),
    /// From the first byte to the last.
    Stream(ReadableStream),
    /// By an importer: it has another format.
    Import,
}

/// Byte range at the start of a file that is read to recognize a recording.
const MAGIC: Range<u64> = 0..64;

/// Returns how a `File` or a URL can be read; reads its first bytes to find out.
async fn find_access(source: &JsValue) -> Result<Access, JsValue> {
    if let Some(blob) = source.dyn_ref::<Blob>() {
        let file = ByteSource::File(blob.clone());
        let len = file.len();
        let head = file.read(&(MAGIC.start..len.min(MAGIC.end)), None).await?;
        return match is_recording(&head) {
            true if len > READ_WHOLE_UP_TO => Ok(Access::Ranges(file)),
            true => open_stream(source).await.map(Access::Stream),
            false => Ok(Access::Import),
        };
    }
    let url = source.as_string().ok_or("open() takes a URL or a File")?;
    let RangeResponse { response, start_and_len } = request_range(&url, &MAGIC, None).await?;
    let Some((0, len)) = start_and_len else {
        // A server without ranges sends everything; for an empty file it may refuse the range.
        let is_whole = response.status() != 206 && response.status() != 416;
        return if is_whole { body(&url, &response) } else { open_stream(source).await }.map(Access::Stream);
    };
    match is_recording(&read_buffer(response.array_buffer()?).await?) {
        true if len > READ_WHOLE_UP_TO => Ok(Access::Ranges(ByteSource::Url { url, len })),
        true => open_stream(source).await.map(Access::Stream),
        false => Ok(Access::Import),
    }
}

/// Returns a stream of all bytes of a `File` or a URL.
async fn open_stream(source: &JsValue) -> Result<ReadableStream, JsValue> {
    if let Some(blob) = source.dyn_ref::<Blob>() {
        return Ok(blob.stream());
    }
    let url = source.as_string().ok_or("open() takes a URL or a File")?;
    let fetched: Promise = fetch(&url, &RequestInit::new());
    let fetched = JsFuture::from(fetched).await.map_err(|error| JsValue::from(fetch_error_text(&url, &error)))?;
    body(&url, &fetched.dyn_into()?)
}

/// Returns the body of a response as a stream; an error if the server refused or sent none.
fn body(url: &str, response: &Response) -> Result<ReadableStream, JsValue> {
    if !response.ok() {
        let (status, text) = (response.status(), response.status_text());
        let message = format!("{url}: the server answered {status} {text}. Check the address, or open a file.");
        return Err(message.into());
    }
    response.body().ok_or_else(|| format!("{url}: the response is empty").into())
}
