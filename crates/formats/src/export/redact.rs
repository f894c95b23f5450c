//! A recording without its names: what a program is called, how it is built and where it lies are replaced by placeholders, so that
//! its memory can be shown to someone who should not know.
//!
//! Kept are numbers (addresses, sizes, times, lines), the structure (which stacks and sites are the same, how deep scopes are nested)
//! and categories. A text becomes the same placeholder wherever it stands for the same kind of thing, in the order in which they are
//! met: `function_12`, `file_3`, `mark_1`; of a scope, each part of its path for itself, `scope_2/scope_5`.

use std::collections::HashMap;

use vramscope_pool::Settings;
use vramscope_trace::{
    Annotation, Decoder, Definition, DeviceId, DeviceInfo, Event, EventKind, FormatError, Frame, Info, Item,
    MemoryState, Sink, Site, StringId,
};

/// What a text names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Function,
    File,
    Scope,
    Region,
    Mark,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::File => "file",
            Self::Scope => "scope",
            Self::Region => "region",
            Self::Mark => "mark",
        }
    }
}

/// A [`Sink`] that passes on what it is given, with placeholders for all names.
///
/// Frames, stacks and sites keep their numbers; strings are numbered anew.
#[derive(Debug)]
pub struct Redactor<S> {
    sink: S,
    /// The texts that were defined. They are passed on only as what they turn out to name.
    texts: Vec<String>,
    /// What was passed on for each text, by what it names.
    replaced: HashMap<Role, HashMap<String, StringId>>,
    /// Parts of scopes' paths, numbered.
    parts: HashMap<String, usize>,
    /// How many strings were passed on.
    strings: u32,
}

impl<S: Sink> Redactor<S> {
    /// Begins with the recording's `info`: `begin` makes the sink and gets of it what may be told.
    pub fn new(info: &Info, begin: impl FnOnce(&Info) -> S) -> Self {
        Self {
            sink: begin(&redacted(info)),
            texts: Vec::new(),
            replaced: HashMap::new(),
            parts: HashMap::new(),
            strings: 0,
        }
    }

    /// The sink.
    pub fn into_inner(self) -> S {
        self.sink
    }

    fn take(&mut self, item: &Item) {
        match item {
            Item::Info(_) => {}
            Item::Define(definition) => self.define(definition),
            Item::FullState(state) => self.full_state(state),
            Item::Event(event) => self.event(event),
            Item::Annotation(annotation) => self.annotation(annotation),
        }
    }

    /// The string that stands for `id` where it names a `role`.
    fn replace(&mut self, role: Role, id: StringId) -> StringId {
        let text = id.0.checked_sub(1).and_then(|index| self.texts.get(index as usize));
        let Some(text) = text.filter(|text| !text.is_empty()) else { return StringId(0) };
        let replaced = self.replaced.entry(role).or_default();
        if let Some(&known) = replaced.get(text) {
            return known;
        }
        let placeholder = match role {
            Role::Scope => scope_path(text, &mut self.parts),
            _ => format!("{}_{}", role.name(), replaced.len() + 1),
        };
        self.strings += 1;
        let fresh = StringId(self.strings);
        replaced.insert(text.clone(), fresh);
        self.sink.define(&Definition::String(placeholder));
        fresh
    }
}

/// The path with a placeholder for each of its parts.
fn scope_path(path: &str, parts: &mut HashMap<String, usize>) -> String {
    let mut placeholders = Vec::new();
    for part in path.split('/') {
        if part.is_empty() {
            placeholders.push(String::new());
            continue;
        }
        let next = parts.len() + 1;
        let number = *parts.entry(part.to_owned()).or_insert(next);
        placeholders.push(format!("{}_{number}", Role::Scope.name()));
    }
    placeholders.join("/")
}

/// What may be told of a recording: settings only as far as they are understood, since anything may stand among them. Every field is
/// named here, so that a new one is not passed on unseen.
fn redacted(info: &Info) -> Info {
    let device = |device: &DeviceInfo| DeviceInfo {
        device: device.device,
        name: match DeviceId(device.device) {
            _ if device.name.is_empty() => String::new(),
            DeviceId::HOST => "host".to_owned(),
            DeviceId(number) => format!("device_{number}"),
        },
        total_bytes: device.total_bytes,
        history_complete: device.history_complete,
        uncertain_events: device.uncertain_events,
        rank: device.rank,
        // Left out: the program's name stands in it.
        process: String::new(),
    };
    Info {
        source: "redacted".to_owned(),
        writer: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned(),
        epoch_unix_ns: info.epoch_unix_ns,
        alloc_conf: Settings::parse(&info.alloc_conf).map(|settings| settings.to_conf()).unwrap_or_default(),
        // Left out: any texts may stand in it, and what of it matters to memory stands in the settings above.
        source_settings: String::new(),
        devices: info.devices.iter().map(device).collect(),
    }
}

/// Gives what a recording says, without its names, to a sink made by `begin`. `pieces` are its bytes, cut anywhere; no more than one of them is
/// held. `info` is what it says of itself: where its head comes again, the last one holds, and only who has read it all knows that. What is
/// not whole at the end is left out.
///
/// # Errors
/// Where the bytes are not a recording, and where a piece is an error.
pub fn redact<S: Sink>(
    info: &Info,
    pieces: impl IntoIterator<Item = Result<Vec<u8>, FormatError>>,
    begin: impl FnOnce(&Info) -> S,
) -> Result<S, FormatError> {
    let mut redactor = Redactor::new(info, begin);
    let mut decoder = Decoder::new();
    for piece in pieces {
        decoder.push(&piece?);
        while let Some(item) = decoder.next_item()? {
            redactor.take(&item);
        }
    }
    Ok(redactor.into_inner())
}

impl<S: Sink> Sink for Redactor<S> {
    fn event(&mut self, event: &Event) {
        let mut event = *event;
        if let EventKind::Mark { name, .. } = &mut event.kind {
            *name = self.replace(Role::Mark, *name);
        }
        self.sink.event(&event);
    }

    fn define(&mut self, definition: &Definition) {
        let definition = match definition {
            Definition::String(text) => {
                self.texts.push(text.clone());
                return;
            }
            Definition::Frame(frame) => Definition::Frame(Frame {
                function: self.replace(Role::Function, frame.function),
                file: self.replace(Role::File, frame.file),
                line: frame.line,
            }),
            Definition::Stack(stack) => Definition::Stack(*stack),
            Definition::Site(site) => Definition::Site(Site {
                stack: site.stack,
                scope: self.replace(Role::Scope, site.scope),
                category: site.category,
                compile_context: self.replace(Role::Region, site.compile_context),
            }),
        };
        self.sink.define(&definition);
    }

    fn annotation(&mut self, annotation: &Annotation) {
        let name = self.replace(Role::Mark, annotation.name);
        self.sink.annotation(&Annotation { name, ..*annotation });
    }

    fn full_state(&mut self, state: &MemoryState) {
        self.sink.full_state(state);
    }
}
