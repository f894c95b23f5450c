//! Removes the names from a recording, so that it can be shared without revealing the program.
//!
//! Numbers (addresses, sizes, times, lines), categories and the structure (identity of stacks and
//! sites, depth of scopes) stay. Equal strings of one kind become the same placeholder, numbered in
//! order of appearance: `function_12`, `file_3`, `mark_1`. Scopes are placeholders part by part:
//! `scope_2/scope_5`.

use std::collections::HashMap;

use crate::decoder::DecodedItem;
use crate::event::{Annotation, DeviceId, Event, EventKind, Relabel};
use crate::info::{DeviceInfo, RecordingInfo};
use crate::memory_state::MemoryState;
use crate::sink::Sink;
use crate::site::{Definition, Frame, Site, StringId};

/// The name and version of this crate, stated as the writer of a redacted recording.
const WRITER: &str = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));

/// The word with which the placeholder of a part of a scope path begins, as in `scope_2`.
const SCOPE: &str = "scope";

/// A [`Sink`] that replaces the names of functions, files, scopes, compile contexts and marks by
/// placeholders and passes everything to another sink.
///
/// Frames, stacks and sites keep their numbers; strings get new ones.
#[derive(Debug)]
pub struct Redactor<S> {
    sink: S,
    /// The defined strings. They are passed on once their use is known.
    strings: Vec<String>,
    /// The placeholder of each text, by kind of text: the word with which the placeholder begins,
    /// such as `function`.
    placeholders: HashMap<&'static str, HashMap<String, StringId>>,
    /// The number of each part of a scope path.
    scope_parts: HashMap<String, usize>,
    /// Number of strings passed on.
    string_count: u32,
}

impl<S: Sink> Redactor<S> {
    /// Creates a redactor. `begin` receives the redacted `info` and creates the sink.
    ///
    /// `alloc_conf` are the allocator's settings without unknown options, which may contain any
    /// text; they replace the settings of `info`.
    pub fn new(info: &RecordingInfo, alloc_conf: String, begin: impl FnOnce(&RecordingInfo) -> S) -> Self {
        Self {
            sink: begin(&redacted(info, alloc_conf)),
            strings: Vec::new(),
            placeholders: HashMap::new(),
            scope_parts: HashMap::new(),
            string_count: 0,
        }
    }

    /// Returns the inner sink mutably, for example to take its output.
    pub fn sink_mut(&mut self) -> &mut S {
        &mut self.sink
    }

    /// Returns the inner sink, which has received the redacted recording.
    pub fn into_inner(self) -> S {
        self.sink
    }

    /// Redacts one item of a recording (a definition, full state, event, annotation or relabel)
    /// and passes it to the inner sink. Ignores header chunks, because the sink was created with
    /// the description.
    pub fn pass(&mut self, item: &DecodedItem) {
        match item {
            DecodedItem::Info(_) => {}
            DecodedItem::Define(definition) => self.define(definition),
            DecodedItem::FullState(state) => self.replace_state(state),
            DecodedItem::Event(event) => self.event(event),
            DecodedItem::Annotation(annotation) => self.annotation(annotation),
            DecodedItem::Relabel(relabel) => self.relabel(relabel),
        }
    }

    /// Returns the number of the placeholder string for the string `id`, and defines the
    /// placeholder if it is new. `kind` is the word with which the placeholder begins, such as
    /// `function`. Returns 0 (no string) if the string is empty or undefined.
    fn placeholder(&mut self, kind: &'static str, id: StringId) -> StringId {
        let text = id.0.checked_sub(1).and_then(|index| self.strings.get(index as usize));
        let Some(text) = text.filter(|text| !text.is_empty()) else { return StringId(0) };
        let placeholders = self.placeholders.entry(kind).or_default();
        if let Some(&known) = placeholders.get(text) {
            return known;
        }
        let placeholder = match kind {
            SCOPE => scope_path(text, &mut self.scope_parts),
            _ => format!("{kind}_{}", placeholders.len() + 1),
        };
        self.string_count += 1;
        let new = StringId(self.string_count);
        placeholders.insert(text.clone(), new);
        self.sink.define(&Definition::String(placeholder));
        new
    }
}

/// Replaces each part of a scope path by a placeholder, such as `scope_2/scope_5`. `scope_parts`
/// holds the placeholder's number for each part that occurred so far.
fn scope_path(path: &str, scope_parts: &mut HashMap<String, usize>) -> String {
    let placeholder = |part: &str| {
        if part.is_empty() {
            return String::new();
        }
        let next = scope_parts.len() + 1;
        let number = *scope_parts.entry(part.to_owned()).or_insert(next);
        format!("{SCOPE}_{number}")
    };
    path.split('/').map(placeholder).collect::<Vec<_>>().join("/")
}

/// Returns a recording's description without names, with the settings `alloc_conf`. The code lists
/// every field, so that a field added later does not compile until it is redacted too.
fn redacted(info: &RecordingInfo, alloc_conf: String) -> RecordingInfo {
    let device = |device: &DeviceInfo| DeviceInfo {
        device: device.device,
        name: match DeviceId(device.device) {
            _ if device.name.is_empty() => String::new(),
            DeviceId::HOST => "host".to_owned(),
            DeviceId::CPU => "cpu".to_owned(),
            DeviceId(number) => format!("device_{number}"),
        },
        total_bytes: device.total_bytes,
        history_complete: device.history_complete,
        uncertain_events: device.uncertain_events,
        lacks_requested: device.lacks_requested,
        lacks_streams: device.lacks_streams,
        segments: device.segments,
        rank: device.rank,
        // Contains the name of the program.
        process: String::new(),
    };
    RecordingInfo {
        source: "redacted".to_owned(),
        writer: WRITER.to_owned(),
        epoch_unix_ns: info.epoch_unix_ns,
        alloc_conf,
        // May contain any text. The relevant settings are in `alloc_conf`.
        source_settings: String::new(),
        // May quote values of the file.
        import_notes: Vec::new(),
        lacks_times: info.lacks_times,
        devices: info.devices.iter().map(device).collect(),
    }
}

impl<S: Sink> Sink for Redactor<S> {
    fn event(&mut self, event: &Event) {
        let mut event = *event;
        if let EventKind::Mark { name, .. } = &mut event.kind {
            *name = self.placeholder("mark", *name);
        }
        self.sink.event(&event);
    }

    fn define(&mut self, definition: &Definition) {
        let definition = match definition {
            Definition::String(text) => {
                self.strings.push(text.clone());
                return;
            }
            Definition::Frame(frame) => Definition::Frame(Frame {
                function: self.placeholder("function", frame.function),
                file: self.placeholder("file", frame.file),
                line: frame.line,
            }),
            Definition::Stack(stack) => Definition::Stack(*stack),
            Definition::Site(site) => Definition::Site(Site {
                stack: site.stack,
                scope: self.placeholder(SCOPE, site.scope),
                category: site.category,
                compile_context: self.placeholder("compile_context", site.compile_context),
            }),
        };
        self.sink.define(&definition);
    }

    fn annotation(&mut self, annotation: &Annotation) {
        let name = self.placeholder("mark", annotation.name);
        self.sink.annotation(&Annotation { name, ..*annotation });
    }

    fn relabel(&mut self, relabel: &Relabel) {
        self.sink.relabel(relabel);
    }

    fn replace_state(&mut self, state: &MemoryState) {
        self.sink.replace_state(state);
    }
}
