//! Reads a snapshot from JSON in a single pass ([`visit`]), without building a tree of values.

mod bounded_value;
mod frames;
mod repair;
mod segments;
mod visit;

use std::ops::Range;

use self::bounded_value::BoundedValue;
use self::frames::next_stack;
use self::repair::repair;
use self::segments::Segments;
use self::visit::{AnySeed, DictReader, DictVisitor, ListReader, ListVisitor, ScalarVisitor};
use super::builder::{Builder, EntryDraft, MemoryKind};
use super::key::SnapshotKey;
use super::scalar::{FieldResult, Scalar};
use super::settings::MAX_SETTINGS_BYTES;
use super::snapshot::{AnnotationRow, Snapshot};
use crate::error::ReadError;
use crate::limits::Limits;
use crate::progress::{Cancelled, ImportPhase, ProgressReporter};
use crate::unsupported::unsupported_file;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Number of bytes of the JSON text between two calls of the caller's progress function.
const PROGRESS_BYTES: usize = 4 << 20;

/// Reads a PyTorch snapshot from JSON.
///
/// Text that is not valid Unicode is replaced and counted, so that a single wrong name does not
/// make the file unreadable.
pub(crate) fn read(bytes: &[u8], limits: &Limits, reporter: &mut ProgressReporter<'_>) -> Result<Snapshot, ReadError> {
    // Some programs write a byte order mark before the text.
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mark_len = bytes.len() - text.len();
    let error = match read_text(text, mark_len, Builder::new(limits.max_bytes), reporter) {
        Ok(builder) => return Ok(builder.finish()),
        Err(error) if error.is_cancelled() => return Err(error),
        Err(error) => error,
    };
    let mut builder = Builder::new(limits.max_bytes);
    let (Ok(()), Some((text, replaced))) = (builder.budget.spend(text.len()), repair(text)) else { return Err(error) };
    let mut builder = read_text(&text, mark_len, builder, reporter)?;
    for _ in 0..replaced {
        builder.count_invalid("a text contains an invalid character");
    }
    Ok(builder.finish())
}

/// Reads a snapshot from `text`, which begins after the file's byte order mark of `mark_len` bytes.
/// Returns the builder with all rows; fails if the text is not a snapshot.
fn read_text(
    text: &[u8],
    mark_len: usize,
    mut builder: Builder,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Builder, ReadError> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let progress = ProgressTracker { text, report_at: PROGRESS_BYTES, reporter, is_cancelled: false };
    let mut reader = SnapshotReader { builder: &mut builder, progress, is_snapshot: false, segments: [0..0, 0..0] };
    let read = deserializer.deserialize_any(TopLevelVisitor(&mut reader)).and_then(|()| deserializer.end());
    let is_snapshot = reader.is_snapshot;
    if reader.progress.is_cancelled {
        return Err(ReadError::cancelled());
    }
    read.map_err(|error| read_error(text, mark_len, error))?;
    if !is_snapshot {
        return Err(ReadError::at(0, unsupported_file(text, "")));
    }
    Ok(builder)
}

/// Converts an error of serde_json, which has a line and a column, and adds the offset in the file.
/// `mark_len` is the length of the byte order mark before `text`.
fn read_error(text: &[u8], mark_len: usize, error: serde_json::Error) -> ReadError {
    let (line, column) = (error.line(), error.column());
    if error.is_eof() {
        return ReadError::truncated(mark_len + text.len()).with_line(line.max(1), column.max(1)).with_source(error);
    }
    let text_of_error = error.to_string();
    let problem = text_of_error.rsplit_once(" at line ").map_or(text_of_error.as_str(), |(problem, _)| problem);
    let message = format!("not a PyTorch snapshot in JSON: {problem}");
    let before: usize = text.split_inclusive(|&byte| byte == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    // Columns count bytes from 1; column 0 is the end of the previous line.
    let offset = mark_len + (before + column.saturating_sub(1)).min(text.len());
    ReadError::at(offset, message).with_line(line.max(1), column.max(1)).with_source(error)
}

/// Reports how far a JSON text was read. serde_json does not tell its position, so the position is
/// taken from the addresses of the strings that it returns.
struct ProgressTracker<'a, 'r> {
    text: &'a [u8],
    /// Offset from which on the next report is due.
    report_at: usize,
    reporter: &'a mut ProgressReporter<'r>,
    /// True once the caller has stopped the import.
    is_cancelled: bool,
}

impl ProgressTracker<'_, '_> {
    /// Reports progress if `part`, a string that was just parsed, lies at least [`PROGRESS_BYTES`]
    /// after the last report. A string with escapes is a copy and is ignored. `entries` is the
    /// number of history entries before.
    fn advance_to(&mut self, part: &str, entries: usize) -> Result<(), Cancelled> {
        let offset = (part.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        if offset < self.report_at || offset >= self.text.len() {
            return Ok(());
        }
        self.report_at = offset + PROGRESS_BYTES;
        self.reporter.set_read_bytes(offset as u64);
        let (done, total) = (offset as u64, self.text.len() as u64);
        let reported = self.reporter.report(ImportPhase::Reading, done, total, entries as u64);
        self.is_cancelled = reported.is_err();
        reported
    }
}

/// Reads the outermost dictionary of a JSON snapshot.
struct SnapshotReader<'a, 'r> {
    builder: &'a mut Builder,
    progress: ProgressTracker<'a, 'r>,
    /// True once a key was read that only snapshots have.
    is_snapshot: bool,
    /// The indices of the devices' segments, and of the host's segments. If the file repeats a key,
    /// its last value counts, as in Python.
    segments: [Range<usize>; 2],
}

impl SnapshotReader<'_, '_> {
    /// Drops the segments of keys that occur again later. Called once at the end, because a text
    /// may repeat a key many times.
    fn drop_replaced_segments(&mut self) {
        let mut index = 0..;
        let counts = |index| self.segments.iter().any(|range| range.contains(&index));
        self.builder.snapshot.segments.retain(|_| index.next().is_some_and(counts));
    }
}

impl DictReader for SnapshotReader<'_, '_> {
    fn key<'de, A: MapAccess<'de>>(&mut self, key: SnapshotKey, map: &mut A) -> Result<(), A::Error> {
        let snapshot = &mut self.builder.snapshot;
        match key {
            SnapshotKey::Segments | SnapshotKey::HostSegments => {
                self.is_snapshot = true;
                let is_host = key == SnapshotKey::HostSegments;
                snapshot.has_segments |= !is_host;
                let kind = if is_host { MemoryKind::Host } else { MemoryKind::Devices };
                let first = snapshot.segments.len();
                map.next_value_seed(AnySeed(ListVisitor(&mut Segments {
                    builder: self.builder,
                    kind,
                    requires_segments: false,
                })))?;
                self.segments[usize::from(is_host)] = first..self.builder.snapshot.segments.len();
                Ok(())
            }
            SnapshotKey::DeviceTraces => {
                self.is_snapshot = true;
                snapshot.traces.clear();
                map.next_value_seed(AnySeed(ListVisitor(&mut DeviceTraces(self))))
            }
            SnapshotKey::HostTraces => {
                self.is_snapshot = true;
                let first = snapshot.entries.len() as u32;
                map.next_value_seed(AnySeed(ListVisitor(&mut HostEntryList(self))))?;
                self.builder.snapshot.host_trace = whole_range(first, self.builder);
                Ok(())
            }
            SnapshotKey::ExternalAnnotations => {
                snapshot.annotations.clear();
                map.next_value_seed(AnySeed(ListVisitor(&mut AnnotationList(self.builder))))
            }
            SnapshotKey::AllocatorSettings => {
                let mut remaining = MAX_SETTINGS_BYTES;
                let settings = map.next_value_seed(AnySeed(BoundedValue { remaining: &mut remaining }))?;
                self.builder.set_settings(settings.as_ref());
                Ok(())
            }
            _ => map.next_value::<IgnoredAny>().map(|_| ()),
        }
    }

    fn scalar(&mut self, _: SnapshotKey, _: Scalar<'_>) -> FieldResult {
        Ok(())
    }
}

/// Reads the outermost JSON value: a snapshot's dictionary, or only its list of segments.
struct TopLevelVisitor<'w, 'a, 'r>(&'w mut SnapshotReader<'a, 'r>);

impl<'de> Visitor<'de> for TopLevelVisitor<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a dictionary, or a list of segments")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        DictVisitor(&mut *self.0).visit_map(map)?;
        self.0.drop_replaced_segments();
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        let mut segments = Segments { builder: self.0.builder, kind: MemoryKind::Devices, requires_segments: true };
        ListVisitor(&mut segments).visit_seq(list)?;
        let snapshot = &mut self.0.builder.snapshot;
        snapshot.has_segments = true;
        self.0.is_snapshot = !snapshot.segments.is_empty() || snapshot.invalid_values > 0;
        Ok(())
    }
}

/// Reads `device_traces` from JSON: a list of history entries for each device.
struct DeviceTraces<'w, 'a, 'r>(&'w mut SnapshotReader<'a, 'r>);

impl ListReader for DeviceTraces<'_, '_, '_> {
    fn item<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        let first = self.0.builder.snapshot.entries.len() as u32;
        let read = list.next_element_seed(AnySeed(ListVisitor(&mut EntryList(self.0))))?;
        if read.is_some() {
            let ranges = whole_range(first, self.0.builder);
            self.0.builder.push_trace(ranges).map_err(A::Error::custom)?;
        }
        Ok(read)
    }
}

/// Returns the indices of the entries that were added since the snapshot had `first` entries, as a
/// list of one range; an empty list if no entry was added.
fn whole_range(first: u32, builder: &Builder) -> Vec<Range<u32>> {
    let range = first..builder.snapshot.entries.len() as u32;
    if range.is_empty() { Vec::new() } else { vec![range] }
}

/// Reads the list of one device's history entries from JSON.
struct EntryList<'w, 'a, 'r>(&'w mut SnapshotReader<'a, 'r>);

impl ListReader for EntryList<'_, '_, '_> {
    fn item<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        list.next_element_seed(AnySeed(EntryVisitor(self.0)))
    }
}

/// Reads the history of pinned host memory from JSON: a list of entries, or of lists of entries as
/// for devices.
struct HostEntryList<'w, 'a, 'r>(&'w mut SnapshotReader<'a, 'r>);

impl ListReader for HostEntryList<'_, '_, '_> {
    fn item<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        list.next_element_seed(AnySeed(EntryOrListVisitor(self.0)))
    }
}

/// Reads one item of the history of pinned host memory from JSON: an entry, or a list of entries.
struct EntryOrListVisitor<'w, 'a, 'r>(&'w mut SnapshotReader<'a, 'r>);

impl<'de> Visitor<'de> for EntryOrListVisitor<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an entry of the host's history, or a list of them")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        EntryVisitor(self.0).visit_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        ListVisitor(&mut EntryList(self.0)).visit_seq(list)
    }
}

/// Reads one history entry from JSON and adds it to the snapshot. Fails if it has no action.
struct EntryVisitor<'w, 'a, 'r>(&'w mut SnapshotReader<'a, 'r>);

impl<'de> Visitor<'de> for EntryVisitor<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an entry of a history")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let mut entry = EntryReader { reader: self.0, draft: EntryDraft::default(), has_action: false };
        DictVisitor(&mut entry).visit_map(map)?;
        let EntryReader { reader, draft, has_action } = entry;
        if !has_action {
            return Err(A::Error::custom("an entry of a history has no action"));
        }
        reader.builder.push_entry(&draft).map_err(A::Error::custom)?;
        Ok(())
    }
}

/// Reads the keys of one history entry from JSON into a draft.
struct EntryReader<'w, 'a, 'r> {
    reader: &'w mut SnapshotReader<'a, 'r>,
    draft: EntryDraft,
    has_action: bool,
}

impl DictReader for EntryReader<'_, '_, '_> {
    fn key<'de, A: MapAccess<'de>>(&mut self, key: SnapshotKey, map: &mut A) -> Result<(), A::Error> {
        if key == SnapshotKey::Frames {
            self.draft.stack = next_stack(self.reader.builder, map)?;
            return Ok(());
        }
        map.next_value_seed(AnySeed(ScalarVisitor(|value: Scalar<'_>| self.scalar(key, value))))
    }

    fn scalar(&mut self, key: SnapshotKey, value: Scalar<'_>) -> FieldResult {
        if let (SnapshotKey::Action, Scalar::Text(action, _)) = (key, value) {
            self.has_action = true;
            self.reader.progress.advance_to(action, self.reader.builder.snapshot.entries.len())?;
        }
        self.reader.builder.entry_field(&mut self.draft, key, value)
    }
}

/// Reads the list of annotations from JSON into the snapshot.
struct AnnotationList<'a>(&'a mut Builder);

impl ListReader for AnnotationList<'_> {
    fn item<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        let mut annotation = AnnotationReader { builder: self.0, row: AnnotationRow::default() };
        let read = list.next_element_seed(AnySeed(DictVisitor(&mut annotation)))?;
        let row = annotation.row;
        if read.is_some() {
            self.0.push_annotation(row).map_err(A::Error::custom)?;
        }
        Ok(read)
    }
}

/// Reads the keys of one annotation from JSON into a row.
struct AnnotationReader<'a> {
    builder: &'a mut Builder,
    row: AnnotationRow,
}

impl DictReader for AnnotationReader<'_> {
    fn scalar(&mut self, key: SnapshotKey, value: Scalar<'_>) -> FieldResult {
        self.builder.annotation_field(&mut self.row, key, value)
    }
}
