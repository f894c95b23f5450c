//! The conversion in a browser's worker.

use std::cell::Cell;
use std::ops::ControlFlow;

use js_sys::{Function, Reflect, Uint8Array};
use vramscope_formats::{ImportPhase, ImportProgress};
use vramscope_trace::ByteSize;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{ReadableStream, ReadableStreamDefaultReader};

use crate::ImportJob;

/// Time in milliseconds before progress is reported first: shorter conversions need none.
const FIRST_PROGRESS_MS: f64 = 300.0;
/// Time in milliseconds between two reports of progress.
const PROGRESS_INTERVAL_MS: f64 = 100.0;

#[wasm_bindgen]
extern "C" {
    /// Returns the time in milliseconds since the worker started, by the browser's clock.
    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    fn performance_now() -> f64;
}

/// Reports progress rarely enough not to slow the conversion.
struct Reporter<'a> {
    on_progress: &'a Function,
    name: &'a str,
    began_ms: f64,
    next_ms: Cell<f64>,
}

impl Reporter<'_> {
    /// Reports how far the conversion is, if the last report is old enough.
    fn report(&self, progress: &ImportProgress) {
        let now = performance_now();
        if now < self.next_ms.get() {
            return;
        }
        self.next_ms.set(now + PROGRESS_INTERVAL_MS);
        let seconds = (now - self.began_ms) / 1000.0;
        let rate = ByteSize((progress.read_bytes as f64 / seconds.max(1e-3)) as u64);
        let name = self.name;
        let text = match progress.phase {
            ImportPhase::Receiving | ImportPhase::Reading => {
                format!("Reading {name}: {} at {rate}/s", ByteSize(progress.read_bytes))
            }
            ImportPhase::Rebuilding => format!("Finding the state before the first event of {name}"),
            ImportPhase::Writing => format!("Converting {name}"),
        };
        // An error would be one of the worker's script; the conversion goes on without progress.
        let _ = self.on_progress.call2(&JsValue::UNDEFINED, &progress.fraction.into(), &text.into());
    }
}

/// Converts the file called `name` that arrives in `stream`, of `total_bytes` bytes if known.
///
/// Calls `on_part(bytes)` with every part of the recording (an `ArrayBuffer`), and
/// `on_progress(share, text)` at times, with a share of 0 to 1.
///
/// # Errors
/// Rejects with a text if the file cannot be read or converted.
#[wasm_bindgen]
pub async fn import_file(
    name: String,
    stream: ReadableStream,
    total_bytes: Option<f64>,
    on_part: Function,
    on_progress: Function,
) -> Result<(), JsValue> {
    let began_ms = performance_now();
    let next_ms = Cell::new(began_ms + FIRST_PROGRESS_MS);
    let reporter = Reporter { on_progress: &on_progress, name: &name, began_ms, next_ms };
    let text = |error: crate::ImportError| JsValue::from(format!("{name}: {error}"));
    let mut job = ImportJob::new(&name, total_bytes.map(|bytes| bytes as u64));
    let reader = ReadableStreamDefaultReader::new(&stream)?;
    loop {
        let part = JsFuture::from(reader.read()).await?;
        if Reflect::get(&part, &"done".into())?.is_truthy() {
            break;
        }
        let part = Reflect::get(&part, &"value".into())?.dyn_into::<Uint8Array>()?;
        job.push(&part.to_vec()).map_err(text)?;
        reporter.report(&job.progress());
    }
    let mut progress = |progress: &ImportProgress| {
        reporter.report(progress);
        ControlFlow::Continue(())
    };
    let mut failed = None;
    let mut output = |part: Vec<u8>| {
        let buffer = Uint8Array::from(part.as_slice()).buffer();
        failed = failed.take().or(on_part.call1(&JsValue::UNDEFINED, &buffer).err());
    };
    job.finish(&mut progress, &mut output).map_err(text)?;
    failed.map_or(Ok(()), Err)
}
