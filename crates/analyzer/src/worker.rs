//! The analyzer in a browser's worker.

use std::ops::Range;

use js_sys::{Function, Promise, Uint8Array};
use vramscope_trace::{Recording, RecordingOpener};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

use crate::analyzer::Analyzer;
use crate::excerpt::{ExcerptJob, ExcerptStep};
use crate::request::{Observer, Request};

/// Number of bytes of a recording without an index that are read at once.
const PART_BYTES: u64 = 4 << 20;
/// Time in milliseconds between two reports of progress.
const PROGRESS_INTERVAL_MS: f64 = 50.0;

#[wasm_bindgen]
extern "C" {
    /// Returns the time in milliseconds since the worker started, by the browser's clock.
    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    fn performance_now() -> f64;
}

/// A recording of which any range of bytes can be read, and its analyzer.
#[wasm_bindgen]
pub struct RecordingAnalyzer {
    analyzer: Analyzer,
    read: Function,
}

/// Opens a recording of `len` bytes. `read(from, to)` returns a promise of an `ArrayBuffer` with
/// these bytes.
///
/// # Errors
/// Rejects with a text if the recording cannot be read.
#[wasm_bindgen]
pub async fn open_recording(len: f64, read: Function) -> Result<RecordingAnalyzer, JsValue> {
    let len = len as u64;
    let mut opening = RecordingOpener::new(len);
    while let Some(range) = opening.wanted_range() {
        let bytes = read_range(&read, range.start, range.end).await?;
        opening.supply(range.start, &bytes);
    }
    let recording = match opening.finish() {
        Some(recording) => recording,
        None => read_whole(&read, len).await?,
    };
    Ok(RecordingAnalyzer { analyzer: Analyzer::new(recording), read })
}

/// Reads a recording from its first byte to its last, or to the first error in it.
async fn read_whole(read: &Function, len: u64) -> Result<Recording, JsValue> {
    let mut recording = Recording::new();
    let mut at = 0;
    while at < len {
        let end = len.min(at + PART_BYTES);
        let bytes = read_range(read, at, end).await?;
        if let Err(error) = recording.push(&bytes) {
            // The page shows the part before the damage.
            if recording.end_event() == recording.first_event() {
                return Err(error.to_string().into());
            }
            break;
        }
        at = end;
    }
    Ok(recording)
}

/// Reads a range of bytes.
async fn read_range(read: &Function, from: u64, to: u64) -> Result<Vec<u8>, JsValue> {
    let promise: Promise = read.call2(&JsValue::UNDEFINED, &(from as f64).into(), &(to as f64).into())?.dyn_into()?;
    Ok(Uint8Array::new(&JsFuture::from(promise).await?).to_vec())
}

#[wasm_bindgen]
impl RecordingAnalyzer {
    /// Answers a request in JSON with JSON; see [`Request`].
    ///
    /// Calls `on_part(bytes)` with every part of a recording that the request makes (an
    /// `ArrayBuffer`), and `on_progress(share, text)` at times, with a share of 0 to 1.
    ///
    /// # Errors
    /// Rejects with a text if the request cannot be answered.
    pub async fn answer(
        &mut self,
        request: String,
        on_part: Function,
        on_progress: Function,
    ) -> Result<String, JsValue> {
        let text = |error: &dyn std::fmt::Display| JsValue::from(error.to_string());
        let request: Request = serde_json::from_str(&request).map_err(|error| text(&error))?;
        let mut observer = Callbacks { on_part, on_progress, next_ms: 0.0 };
        if let Request::Excerpt { from, to, is_redacted } = request {
            let mut job = ExcerptJob::new(self.analyzer.recording(), (from, to), is_redacted);
            loop {
                match self.analyzer.write_excerpt(&mut job, &mut observer).map_err(|error| text(&error))? {
                    ExcerptStep::Written(..) => {}
                    ExcerptStep::Missing(ranges) => self.load(ranges).await?,
                    ExcerptStep::Done => return Ok("null".to_owned()),
                }
            }
        }
        self.load(self.analyzer.missing()).await?;
        self.analyzer.answer(&request, &mut observer).map_err(|error| text(&error))
    }
}

impl RecordingAnalyzer {
    /// Loads byte ranges of the recording's chunks; ranges that are close together with one read.
    async fn load(&mut self, mut ranges: Vec<Range<u64>>) -> Result<(), JsValue> {
        ranges.sort_by_key(|range| range.start);
        let mut rest = ranges.as_slice();
        while let Some(first) = rest.first() {
            let count = rest.partition_point(|range| range.end <= first.start + PART_BYTES).max(1);
            let (together, later) = rest.split_at(count);
            rest = later;
            let end = together.last().map_or(first.end, |last| last.end);
            let bytes = read_range(&self.read, first.start, end).await?;
            for range in together {
                let chunk = bytes.get((range.start - first.start) as usize..(range.end - first.start) as usize);
                let supplied = self.analyzer.supply(range.start, chunk.unwrap_or_default());
                supplied.map_err(|error| JsValue::from(error.to_string()))?;
            }
        }
        Ok(())
    }
}

/// Passes parts and progress to the worker's script.
struct Callbacks {
    on_part: Function,
    on_progress: Function,
    /// When progress is reported next, by the worker's clock.
    next_ms: f64,
}

impl Observer for Callbacks {
    fn part(&mut self, bytes: Vec<u8>) {
        let buffer = Uint8Array::from(bytes.as_slice()).buffer();
        // An error would be one of the worker's script; the page misses the part then, and says so.
        let _ = self.on_part.call1(&JsValue::UNDEFINED, &buffer);
    }

    fn progress(&mut self, share: f64, text: &str) {
        let now = performance_now();
        if now >= self.next_ms {
            self.next_ms = now + PROGRESS_INTERVAL_MS;
            let _ = self.on_progress.call2(&JsValue::UNDEFINED, &share.into(), &text.into());
        }
    }
}
