//! Reads a snapshot from JSON.
//!
//! The text is walked once ([`walk`]), and rows are made as they are met.

mod frames;
mod plain;
mod repair;
mod segments;
mod walk;

use std::ops::Range;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use vramscope_trace::{DeviceId, Stage, StringId};

use self::frames::next_stack;
use self::plain::Plain;
use self::repair::repaired;
use self::segments::Segments;
use self::walk::{Dict, List, One, Part, Rows};
use super::builder::{Builder, EntryDraft, Owner};
use super::key::Key;
use super::scalar::{Refusal, Scalar};
use super::settings::{MAX_PLAIN_BYTES, RecordedSettings};
use super::snapshot::{AnnotationRow, Snapshot};
use crate::error::ReadError;
use crate::limits::Limits;

/// Bytes between two reports of progress.
const PROGRESS_BYTES: usize = 4 << 20;

/// Reads a snapshot; `progress` is told the bytes read.
///
/// Of what JSON may not hold, characters that there are not are read as others, since a name with one of them is no reason to lose the
/// rest.
pub(crate) fn read(bytes: &[u8], limits: &Limits, progress: &mut dyn FnMut(usize)) -> Result<Snapshot, ReadError> {
    let mut reached = 0;
    let mut progress = |offset| {
        reached = reached.max(offset);
        progress(reached);
    };
    // Some programs put a byte order mark before the text.
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mark_len = bytes.len() - text.len();
    let error = match read_text(text, mark_len, Builder::new(limits.max_bytes), &mut progress) {
        Ok(builder) => return Ok(builder.finish()),
        Err(error) => error,
    };
    let mut builder = Builder::new(limits.max_bytes);
    let (Ok(()), Some((text, odd))) = (builder.budget.take(text.len()), repaired(text)) else { return Err(error) };
    let mut builder = read_text(&text, mark_len, builder, &mut progress)?;
    for _ in 0..odd {
        builder.note_odd("a text has a character that there is not");
    }
    Ok(builder.finish())
}

/// Reads a text that begins after `mark_len` bytes of the file.
fn read_text(
    text: &[u8],
    mark_len: usize,
    mut builder: Builder,
    progress: &mut dyn FnMut(usize),
) -> Result<Builder, ReadError> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let place = Place { text, report_at: PROGRESS_BYTES, progress };
    let mut whole = Whole { builder: &mut builder, place, is_snapshot: false };
    let read = Top(&mut whole).deserialize(&mut deserializer).and_then(|()| deserializer.end());
    let is_snapshot = whole.is_snapshot;
    read.map_err(|error| read_error(text, mark_len, &error))?;
    if !is_snapshot {
        let what = match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'[') => "this list ends with no segment in it, so it is not a PyTorch snapshot",
            _ => "this dictionary ends with neither segments nor device_traces in it, so it is not a PyTorch snapshot",
        };
        return Err(ReadError::at(mark_len + text.len(), what));
    }
    Ok(builder)
}

/// serde_json knows line and column; the offset follows from them.
fn read_error(text: &[u8], mark_len: usize, error: &serde_json::Error) -> ReadError {
    let (line, column) = (error.line(), error.column());
    let message = error.to_string();
    let what = match message.rsplit_once(" at line ") {
        Some((what, _)) => format!("this is not the JSON of a PyTorch snapshot: {what}"),
        None => message,
    };
    let before: usize = text.split_inclusive(|&byte| byte == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    // Columns count bytes from 1; 0 is the end of the line before.
    let offset = mark_len + (before + column.saturating_sub(1)).min(text.len());
    ReadError { offset: offset as u64, place: Some((line.max(1), column.max(1))), what }
}

/// Where in the text the reader is, as the texts that it is given show.
struct Place<'a> {
    text: &'a [u8],
    report_at: usize,
    progress: &'a mut dyn FnMut(usize),
}

impl Place<'_> {
    /// Notes that `part` was just read. A text with escapes is a copy and lies elsewhere.
    fn passed(&mut self, part: &str) {
        let offset = (part.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        if offset >= self.report_at && offset < self.text.len() {
            self.report_at = offset + PROGRESS_BYTES;
            (self.progress)(offset);
        }
    }
}

/// The snapshot's outermost dictionary.
struct Whole<'a> {
    builder: &'a mut Builder,
    place: Place<'a>,
    is_snapshot: bool,
}

impl Part for Whole<'_> {
    fn key<'de, A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error> {
        let snapshot = &mut self.builder.snapshot;
        match key {
            Key::Segments | Key::HostSegments => {
                self.is_snapshot = true;
                let is_host = key == Key::HostSegments;
                // A key that stands twice counts as it stands last, as in Python.
                snapshot.segments.retain(|row| (DeviceId(row.device) == DeviceId::HOST) != is_host);
                snapshot.has_segments |= !is_host;
                let owner = if is_host { Owner::Host } else { Owner::Devices };
                map.next_value_seed(List(&mut Segments { builder: self.builder, owner, must_be: false }))
            }
            Key::DeviceTraces => {
                self.is_snapshot = true;
                snapshot.traces.clear();
                map.next_value_seed(List(&mut Traces(self)))
            }
            Key::HostTraces => {
                self.is_snapshot = true;
                let first = snapshot.entries.len() as u32;
                map.next_value_seed(List(&mut HostEntries(self)))?;
                self.builder.snapshot.host_trace = whole_range(first, self.builder);
                Ok(())
            }
            Key::ExternalAnnotations => {
                snapshot.annotations.clear();
                map.next_value_seed(List(&mut Annotations(self.builder)))
            }
            Key::AllocatorSettings => {
                let mut left = MAX_PLAIN_BYTES;
                let settings = map.next_value_seed(Plain { left: &mut left })?;
                match settings.filter(Value::is_object) {
                    Some(settings) => snapshot.settings = RecordedSettings::read(&settings),
                    None => self.builder.note_odd("the allocator's settings are not a dictionary of a few"),
                }
                Ok(())
            }
            _ => map.next_value::<IgnoredAny>().map(|_| ()),
        }
    }

    fn scalar(&mut self, _: Key, _: Scalar<'_>) -> Result<(), Refusal> {
        Ok(())
    }
}

/// What the text holds: a snapshot's dictionary, or only its segments.
struct Top<'w, 'a>(&'w mut Whole<'a>);

impl<'de> DeserializeSeed<'de> for Top<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Top<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a dictionary, or a list of segments")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        Dict(self.0).visit_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        let mut segments = Segments { builder: self.0.builder, owner: Owner::Devices, must_be: true };
        List(&mut segments).visit_seq(list)?;
        let snapshot = &mut self.0.builder.snapshot;
        snapshot.has_segments = true;
        self.0.is_snapshot = !snapshot.segments.is_empty() || snapshot.odd_values > 0;
        Ok(())
    }
}

/// The list of the devices' histories.
struct Traces<'w, 'a>(&'w mut Whole<'a>);

impl Rows for Traces<'_, '_> {
    fn row<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        let first = self.0.builder.snapshot.entries.len() as u32;
        let read = list.next_element_seed(List(&mut Entries(self.0)))?;
        if read.is_some() {
            let ranges = whole_range(first, self.0.builder);
            self.0.builder.push_trace(ranges).map_err(A::Error::custom)?;
        }
        Ok(read)
    }
}

/// The entries from number `first` on.
fn whole_range(first: u32, builder: &Builder) -> Vec<Range<u32>> {
    let range = first..builder.snapshot.entries.len() as u32;
    if range.is_empty() { Vec::new() } else { vec![range] }
}

/// One device's history.
struct Entries<'w, 'a>(&'w mut Whole<'a>);

impl Rows for Entries<'_, '_> {
    fn row<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        list.next_element_seed(OneEntry(self.0))
    }
}

/// The host's history: entries, or lists of them as the devices have.
struct HostEntries<'w, 'a>(&'w mut Whole<'a>);

impl Rows for HostEntries<'_, '_> {
    fn row<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        list.next_element_seed(EntryOrList(self.0))
    }
}

struct EntryOrList<'w, 'a>(&'w mut Whole<'a>);

impl<'de> DeserializeSeed<'de> for EntryOrList<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for EntryOrList<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an entry of the host's history, or a list of them")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        OneEntry(self.0).visit_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        List(&mut Entries(self.0)).visit_seq(list)
    }
}

/// An entry that becomes a row.
struct OneEntry<'w, 'a>(&'w mut Whole<'a>);

impl<'de> DeserializeSeed<'de> for OneEntry<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OneEntry<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an entry of a history")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let mut entry = Entry { whole: self.0, draft: EntryDraft::default(), has_action: false };
        Dict(&mut entry).visit_map(map)?;
        let Entry { whole, draft, has_action } = entry;
        if !has_action {
            return Err(A::Error::custom("an entry of a history has no action"));
        }
        whole.builder.push_entry(&draft).map_err(A::Error::custom)?;
        Ok(())
    }
}

struct Entry<'w, 'a> {
    whole: &'w mut Whole<'a>,
    draft: EntryDraft,
    has_action: bool,
}

impl Part for Entry<'_, '_> {
    fn key<'de, A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error> {
        if key == Key::Frames {
            self.draft.stack = next_stack(self.whole.builder, map)?;
            return Ok(());
        }
        map.next_value_seed(One(|value: Scalar<'_>| self.scalar(key, value)))
    }

    fn scalar(&mut self, key: Key, value: Scalar<'_>) -> Result<(), Refusal> {
        if let (Key::Action, Scalar::Text(action)) = (key, value) {
            self.has_action = true;
            self.whole.place.passed(action);
        }
        self.whole.builder.entry_field(&mut self.draft, key, value)
    }
}

struct Annotations<'a>(&'a mut Builder);

impl Rows for Annotations<'_> {
    fn row<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        let row = AnnotationRow { device: 0, time_us: 0, stage: Stage::Instant, name: StringId(0) };
        let mut annotation = Annotation { builder: self.0, row };
        let read = list.next_element_seed(Dict(&mut annotation))?;
        let row = annotation.row;
        if read.is_some() {
            self.0.push_annotation(row).map_err(A::Error::custom)?;
        }
        Ok(read)
    }
}

struct Annotation<'a> {
    builder: &'a mut Builder,
    row: AnnotationRow,
}

impl Part for Annotation<'_> {
    fn scalar(&mut self, key: Key, value: Scalar<'_>) -> Result<(), Refusal> {
        self.builder.annotation_field(&mut self.row, key, value)
    }
}
