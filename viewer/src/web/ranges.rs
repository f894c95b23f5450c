//! Reading a recording by ranges, of a file or of what a URL names, while it is looked at.

use std::ops::Range;
use std::rc::Rc;

use js_sys::{ArrayBuffer, Function, Promise, Uint8Array};
use vramscope_trace::{Opening, Recording};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{AbortController, AbortSignal, Blob, Headers, RequestInit, Response};

use super::source::{text_of, why_not_fetched};
use super::{App, State, window};
use crate::model::Fetch;

/// Fetches that are under way at once; a browser keeps six connections to a server.
const AT_ONCE: usize = 4;

/// Bytes that can be had from any place.
#[derive(Clone, Debug)]
pub(super) enum Ranged {
    /// A file on this machine, or bytes that the browser holds.
    File(Blob),
    /// What a server gives ranges of, and how many bytes it is.
    Url { url: String, len: u64 },
}

/// The answer to a request for a range.
pub(super) struct Answer {
    pub(super) response: Response,
    /// Where the bytes begin and of how many they are, if the server gives ranges.
    pub(super) place: Option<(u64, u64)>,
}

/// Asks for a range of what a URL names.
pub(super) async fn ask(url: &str, range: &Range<u64>, signal: Option<&AbortSignal>) -> Result<Answer, JsValue> {
    let headers = Headers::new()?;
    headers.set("range", &format!("bytes={}-{}", range.start, range.end - 1))?;
    let init = RequestInit::new();
    init.set_headers(&headers);
    init.set_signal(signal);
    let fetched = JsFuture::from(window()?.fetch_with_str_and_init(url, &init)).await;
    let response: Response = fetched.map_err(|error| JsValue::from(why_not_fetched(url, &error)))?.dyn_into()?;
    let header = |name: &str| response.headers().get(name).ok().flatten();
    // A range of compressed bytes is of no use.
    let is_part = response.status() == 206 && header("content-encoding").is_none();
    let place = header("content-range").filter(|_| is_part).and_then(|range| parse_content_range(&range));
    Ok(Answer { response, place })
}

/// The first byte and the whole length in `bytes 5-9/100`.
fn parse_content_range(text: &str) -> Option<(u64, u64)> {
    let (range, len) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.parse().ok()?, len.parse().ok()?))
}

async fn bytes_of(buffer: Promise) -> Result<Vec<u8>, JsValue> {
    let buffer = JsFuture::from(buffer).await?.dyn_into::<ArrayBuffer>()?;
    Ok(Uint8Array::new(&buffer).to_vec())
}

impl Ranged {
    /// How many bytes there are.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::File(blob) => blob.size() as u64,
            Self::Url { len, .. } => *len,
        }
    }

    /// Exactly the bytes of a range.
    pub(super) async fn read(&self, range: &Range<u64>, signal: Option<&AbortSignal>) -> Result<Vec<u8>, JsValue> {
        let bytes = match self {
            Self::File(blob) => {
                let slice = blob.slice_with_f64_and_f64(range.start as f64, range.end as f64)?;
                bytes_of(slice.array_buffer()).await?
            }
            Self::Url { url, len } => {
                let Answer { response, place } = ask(url, range, signal).await?;
                if place != Some((range.start, *len)) {
                    let (status, text) = (response.status(), response.status_text());
                    return Err(format!("the server answers {status} {text}; is it still the same file?").into());
                }
                bytes_of(response.array_buffer()?).await?
            }
        };
        let wanted = range.end - range.start;
        if bytes.len() as u64 == wanted {
            return Ok(bytes);
        }
        Err(format!("{} bytes came where {wanted} were asked for", bytes.len()).into())
    }

    /// The recording that these bytes are, by its index; nothing where there is none, and they must be read from the first to the last.
    pub(super) async fn open(&self) -> Result<Option<Recording>, JsValue> {
        let mut opening = Opening::new(self.len());
        while let Some(range) = opening.wants() {
            let bytes = self.read(&range, None).await?;
            opening.supply(range.start, &bytes);
        }
        Ok(opening.finish())
    }
}

/// Bytes that are on their way. Nobody waits for them any more when this is dropped.
struct InFlight {
    number: u64,
    range: Range<u64>,
    abort: AbortController,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.abort.abort();
    }
}

/// What reads the recording on the page.
#[derive(Default)]
pub(super) struct Reads {
    /// Nothing where all of it is here.
    source: Option<Rc<Ranged>>,
    in_flight: Vec<InFlight>,
}

impl Reads {
    pub(super) fn of(source: Ranged) -> Self {
        Self { source: Some(Rc::new(source)), in_flight: Vec::new() }
    }

    /// Makes room for one more, where something is on its way that nobody waits for. Says whether there is room.
    fn make_room(&mut self, wanted: &[Fetch]) -> bool {
        if self.in_flight.len() < AT_ONCE {
            return true;
        }
        let is_wanted = |flying: &InFlight| wanted.iter().any(|fetch| fetch.range == flying.range);
        let unwanted = self.in_flight.iter().position(|flying| !is_wanted(flying));
        unwanted.map(|at| self.in_flight.remove(at)).is_some()
    }
}

impl App {
    /// Has the bytes read that are wanted now.
    pub(super) fn read_on(&self, state: &mut State) {
        let Some(source) = state.reads.source.clone() else { return };
        let wanted = state.model.wants();
        for fetch in &wanted {
            if state.reads.in_flight.iter().any(|flying| flying.range == fetch.range) {
                continue;
            }
            if !state.reads.make_room(&wanted) {
                break;
            }
            let Ok(abort) = AbortController::new() else { break };
            let number = self.0.reads.get() + 1;
            self.0.reads.set(number);
            let (app, fetch, source, signal) = (self.clone(), fetch.clone(), source.clone(), abort.signal());
            state.reads.in_flight.push(InFlight { number, range: fetch.range.clone(), abort });
            spawn_local(async move {
                let bytes = source.read(&fetch.range, Some(&signal)).await;
                app.take_read(number, &fetch, bytes);
            });
        }
    }

    fn take_read(&self, number: u64, fetch: &Fetch, bytes: Result<Vec<u8>, JsValue>) {
        let mut state = self.0.state.borrow_mut();
        let state = &mut *state;
        let Some(at) = state.reads.in_flight.iter().position(|flying| flying.number == number) else {
            // Something else is wanted by now, or another recording is on the page.
            return;
        };
        drop(state.reads.in_flight.remove(at));
        let taken = bytes.map_err(|error| text_of(&error));
        let taken = taken.and_then(|bytes| state.model.supply(fetch, &bytes).map_err(|error| error.to_string()));
        let failed = taken.err().map(|error| {
            let (start, end) = (fetch.range.start, fetch.range.end);
            let name = state.model.source();
            format!("{name}: bytes {start} to {end} cannot be read: {error}. To try again, look at another moment.")
        });
        if let Some(message) = failed {
            state.reads.in_flight.clear();
            // Whoever waits for a moment that is there waits for nothing but the next frame.
            if state.model.is_waiting() {
                for (_, reject) in state.waiting.drain(..) {
                    let _ = reject.call1(&JsValue::UNDEFINED, &JsValue::from(message.as_str()));
                }
            }
            state.model.give_up();
            state.page.show_message(&message);
        }
        self.want_frame();
        self.read_on(state);
    }

    /// Resolves when what has been asked for so far is on the screen; an error where that cannot be read.
    pub(super) async fn drawn(&self) -> Result<(), JsValue> {
        let promise = Promise::new(&mut |resolve: Function, reject: Function| {
            self.0.state.borrow_mut().waiting.push((resolve, reject));
        });
        self.want_frame();
        JsFuture::from(promise).await.map(|_| ())
    }
}
