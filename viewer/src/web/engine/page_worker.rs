//! Workers that the engine starts for long computations: the importer and the analyzer.

use js_sys::{Function, Object, Reflect, Uint8Array};
use wasm_bindgen::prelude::*;
use web_sys::{Event, MessageEvent, Worker};

use super::super::listener::Listener;
use crate::jobs::Job;
use crate::open::RecordingLoader;

/// A worker that the engine has started. Dropping it ends the worker.
pub(super) struct PageWorker {
    worker: Worker,
    _listeners: [Listener; 2],
}

impl Drop for PageWorker {
    fn drop(&mut self) {
        self.worker.terminate();
    }
}

/// The worker that analyzes the recording on the page, and its running job.
pub(super) struct Analysis {
    pub(super) worker: PageWorker,
    /// The number of the recording, see [`Model::opened`](crate::model::Model::opened).
    pub(super) opened: u64,
    pub(super) running: Option<Running>,
}

/// The job that the analyzer's worker runs.
pub(super) struct Running {
    pub(super) job: Job,
    /// Number of events of the recording when it began.
    pub(super) events: u64,
    /// The simulated recording, as far as it has arrived.
    pub(super) loader: RecordingLoader,
}

/// An answer of an importer's or analyzer's worker.
pub(super) enum Answer {
    /// The next bytes of a recording.
    Part(Uint8Array),
    /// How far it is, 0 to 1, and what it does.
    Progress(f64, String),
    /// It is done: the result, if it has one beside the recording.
    Done(Option<String>),
    /// It has failed: a text.
    Failed(JsValue),
}

impl PageWorker {
    /// Starts a worker by calling `function` of the engine's script, which returns a `Worker`;
    /// `None` if the script lacks the function. `react` is called with each answer of the worker,
    /// and with a failure if the worker's script fails.
    pub(super) fn start(function: &str, react: impl FnMut(Answer) + Clone + 'static) -> Result<Option<Self>, JsValue> {
        let Ok(start) = Reflect::get(&js_sys::global(), &function.into())?.dyn_into::<Function>() else {
            return Ok(None);
        };
        let worker: Worker = start.call0(&JsValue::UNDEFINED)?.dyn_into()?;
        let (mut answered, mut failed) = (react.clone(), react);
        let on_message = Listener::new(&worker, "message", move |event: MessageEvent| {
            if let Some(answer) = parse(&event.data()) {
                answered(answer);
            }
        })?;
        let on_error = Listener::new(&worker, "error", move |_: Event| {
            failed(Answer::Failed(
                "a part of the page could not be loaded, or ran out of memory; reload the page".into(),
            ));
        })?;
        Ok(Some(Self { worker, _listeners: [on_message, on_error] }))
    }

    /// Sends the worker an object with these fields as a message.
    pub(super) fn send(&self, fields: &[(&str, &JsValue)]) -> Result<(), JsValue> {
        let message = Object::new();
        for (name, value) in fields {
            Reflect::set(&message, &(*name).into(), value)?;
        }
        self.worker.post_message(&message)
    }
}

/// Parses a worker's message into an answer; `None` for an unknown message.
fn parse(message: &JsValue) -> Option<Answer> {
    let field = |name: &str| Reflect::get(message, &name.into()).ok().filter(|value| !value.is_undefined());
    if let Some(part) = field("part") {
        return Some(Answer::Part(Uint8Array::new(&part)));
    }
    if let (Some(share), Some(text)) = (field("share"), field("text")) {
        return Some(Answer::Progress(share.as_f64()?, text.as_string()?));
    }
    if let Some(result) = field("done") {
        return Some(Answer::Done(result.as_string()));
    }
    field("failure").map(Answer::Failed)
}
