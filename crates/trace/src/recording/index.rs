//! The index at the end of a recording: what opening it would otherwise read every chunk for.
//!
//! ```text
//! index    | first event | end event | events | lost | start | columns
//! end      | length of the index chunk | length of the recording up to the end chunk |
//! ```
//!
//! The end chunk is the recording's last and always of the same length, so that it is found from behind; its two numbers have 64 bits. An
//! index is believed only where the second says that the recording begins where the file does and nothing was added behind it.
//! Right before the index stands the full state of the end.

use std::collections::BTreeMap;

use super::Recording;
use super::directory::Stored;
use super::overview::{Course, Incident, IncidentKind};
use crate::chunk::{Chunk, ChunkKind, HEADER_LEN};
use crate::columns::{Columns, ColumnsWriter};
use crate::error::FormatError;
use crate::event::DeviceId;
use crate::event_code::read_device;
use crate::metrics::{put_metrics, read_metrics};
use crate::pack::{Packer, Unpacker};
use crate::series_code::{put_series, read_series};
use crate::state_code::{is_readable, put_state};
use crate::varint::{self, Malformed, Reader};

const COLUMNS: usize = 9;
const MAX_COLUMNS_LEN: usize = 64 << 20;
const END_PAYLOAD_LEN: usize = 16;
/// Bytes of the last chunk.
pub(super) const END_LEN: usize = HEADER_LEN + END_PAYLOAD_LEN;

mod column {
    /// Of a chunk: its kind.
    pub(super) const KINDS: u8 = 0;
    /// Of a chunk: bytes between it and the one before, and its own.
    pub(super) const PLACES: u8 = 1;
    /// Of a chunk: its first event, as a difference from the end of the one before; how many events.
    pub(super) const EVENTS: u8 = 2;
    /// Of a chunk: the time at its end, as a difference.
    pub(super) const TIMES: u8 = 3;
    /// Of an incident: device, moment, time (both as differences), kind, bytes or events.
    pub(super) const INCIDENTS: u8 = 4;
    /// Of a device: its number, and the lengths of what it has of the next two columns.
    pub(super) const DEVICES: u8 = 5;
    /// Counters over time.
    pub(super) const SERIES: u8 = 6;
    /// Metrics over time.
    pub(super) const METRICS: u8 = 7;
    /// Of a full state: 1 where it is another than what comes before leads to.
    pub(super) const NEWS: u8 = 8;
}

/// What an index says.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) first_event: u64,
    pub(super) events: u64,
    pub(super) lost: u64,
    pub(super) start_ns: u64,
    /// All chunks, in order.
    pub(super) chunks: Vec<Stored>,
    pub(super) incidents: Vec<Incident>,
    pub(super) courses: BTreeMap<DeviceId, Course>,
}

/// The end chunk's own bytes.
fn end_chunk(index_len: u64, recording_len: u64, end_event: u64) -> Chunk {
    let payload = [index_len.to_le_bytes(), recording_len.to_le_bytes()].concat();
    Chunk::plain(ChunkKind::End, end_event, &payload)
}

/// Where the index is that ends where the end chunk begins, if `bytes`, the last of a file of `file_len`, are an end chunk.
pub(super) fn index_range(bytes: &[u8], file_len: u64) -> Option<std::ops::Range<u64>> {
    let end_at = file_len.checked_sub(END_LEN as u64)?;
    let packed = crate::chunk::Packed::parse(bytes, end_at).ok()?;
    let payload = packed.payload(&mut Unpacker::default()).ok()?;
    let (index_len, rest) = payload.bytes().split_first_chunk()?;
    let recording_len = u64::from_le_bytes(*rest.first_chunk()?);
    let index_at = end_at.checked_sub(u64::from_le_bytes(*index_len))?;
    (packed.kind == ChunkKind::End && recording_len == end_at).then_some(index_at..end_at)
}

impl Recording {
    /// What is to be written behind a recording that was taken in as a whole, so that it opens at once. Nothing where nothing was taken in, or where it was opened by an index.
    #[must_use]
    pub fn index(&self) -> Vec<Chunk> {
        let moment = self.end_event();
        let mut packer = Packer::default();
        let mut chunks = Vec::new();
        let mut all = self.chunks.clone();
        let mut at = self.taken_bytes();
        if all.is_empty() || self.is_indexed || self.is_incomplete || !is_readable(self.end_state()) {
            return chunks;
        }
        // A state of this moment that stands there already may have been followed by something that has no event number.
        let mut payload = Vec::new();
        put_state(&mut payload, self.end_state(), Some(&mut packer));
        let state = Chunk::pack(ChunkKind::State, moment, 0, &payload, &mut packer);
        let end = at + state.bytes.len() as u64;
        all.push(Stored {
            kind: ChunkKind::State,
            first_event: moment,
            events: 0,
            end_ns: self.end_ns(),
            range: at..end,
            packed: None,
            is_news: false,
        });
        chunks.push(state);
        at = end;
        payload.clear();
        self.put_index(&mut payload, &all, &mut packer);
        let index = Chunk::pack(ChunkKind::Index, moment, 0, &payload, &mut packer);
        let index_len = index.bytes.len() as u64;
        chunks.push(index);
        chunks.push(end_chunk(index_len, at + index_len, moment));
        chunks
    }

    fn put_index(&self, out: &mut Vec<u8>, chunks: &[Stored], packer: &mut Packer) {
        let start = self.start_ns();
        for number in [self.first_event(), self.end_event(), self.events(), self.lost_events(), start] {
            varint::put(out, number);
        }
        let mut columns = ColumnsWriter::<COLUMNS>::default();
        let (mut at, mut event, mut time_ns) = (0, 0, start);
        for chunk in chunks {
            columns.column(column::KINDS).push(chunk.kind.code());
            let places = columns.column(column::PLACES);
            varint::put(places, chunk.range.start - at);
            varint::put(places, chunk.range.end - chunk.range.start);
            varint::put_delta(columns.column(column::EVENTS), event, chunk.first_event);
            varint::put(columns.column(column::EVENTS), u64::from(chunk.events));
            varint::put_delta(columns.column(column::TIMES), time_ns, chunk.end_ns);
            if chunk.kind == ChunkKind::State {
                columns.column(column::NEWS).push(u8::from(chunk.is_news));
            }
            (at, event, time_ns) = (chunk.range.end, chunk.end_event(), chunk.end_ns);
        }
        let (mut event, mut time_ns) = (0, 0);
        for incident in self.incidents() {
            let incidents = columns.column(column::INCIDENTS);
            varint::put(incidents, u64::from(incident.device.0));
            varint::put_delta(incidents, event, incident.at_event);
            varint::put_delta(incidents, time_ns, incident.time_ns);
            (event, time_ns) = (incident.at_event, incident.time_ns);
            let (kind, number) = match incident.kind {
                IncidentKind::OutOfMemory { requested } => (0, requested),
                IncidentKind::Gap { lost } => (1, lost),
            };
            incidents.push(kind);
            varint::put(incidents, number);
        }
        for (id, course) in &self.overview.courses {
            varint::put(columns.column(column::DEVICES), u64::from(id.0));
            let before = columns.column(column::SERIES).len();
            put_series(columns.column(column::SERIES), &course.series);
            let len = columns.column(column::SERIES).len() - before;
            varint::put(columns.column(column::DEVICES), len as u64);
            let before = columns.column(column::METRICS).len();
            put_metrics(columns.column(column::METRICS), &course.metrics);
            let len = columns.column(column::METRICS).len() - before;
            varint::put(columns.column(column::DEVICES), len as u64);
        }
        columns.finish(out, Some(packer));
    }
}

/// Reads an index chunk, which stands at `range`.
pub(super) fn read_index(bytes: &[u8], range: std::ops::Range<u64>) -> Result<Index, FormatError> {
    let packed = crate::chunk::Packed::parse(bytes, range.start)?;
    if packed.kind != ChunkKind::Index || packed.len() as u64 != range.end - range.start {
        return Err(packed.error("no index where the end of the recording says"));
    }
    let mut unpacker = Unpacker::default();
    let payload = packed.payload(&mut unpacker)?;
    let index = parse_index(payload.reader(), &mut unpacker, range.start);
    index.map_err(|error| packed.error(format!("in the index, {} bytes into its payload: {}", error.at, error.what)))
}

fn parse_index(mut reader: Reader<'_>, unpacker: &mut Unpacker, recording_len: u64) -> Result<Index, Malformed> {
    let mut number = || reader.u64();
    let (first_event, end_event) = (number()?, number()?);
    let (events, lost, start_ns) = (number()?, number()?, number()?);
    let columns = Columns::<COLUMNS>::read(&mut reader, unpacker, MAX_COLUMNS_LEN)?;
    if end_event < first_event {
        return Err(reader.malformed("a recording that ends before it begins"));
    }
    let chunks = read_chunks(&columns, recording_len, start_ns)?;
    let counted = chunks.iter().filter(|chunk| chunk.kind == ChunkKind::Events).map(|chunk| u64::from(chunk.events));
    if counted.sum::<u64>() != events {
        return Err(reader.malformed("other events than the chunks hold"));
    }
    // Everything can begin from it.
    if !chunks.last().is_some_and(|last| last.kind == ChunkKind::State && last.first_event == end_event) {
        return Err(reader.malformed("the last chunk is not the state of the end"));
    }
    let mut courses = BTreeMap::new();
    let (mut series, mut metrics) = (columns.column(column::SERIES), columns.column(column::METRICS));
    let mut devices = columns.column(column::DEVICES);
    while devices.remaining() > 0 {
        let id = read_device(&mut devices)?;
        let series = own_part(&mut series, devices.u64()?, read_series)?;
        let metrics = own_part(&mut metrics, devices.u64()?, read_metrics)?;
        courses.insert(id, Course::of(series, metrics));
    }
    series.end()?;
    metrics.end()?;
    let incidents = read_incidents(columns.column(column::INCIDENTS))?;
    Ok(Index { first_event, events, lost, start_ns, chunks, incidents, courses })
}

/// Reads what a device has of a column, which is `len` bytes.
fn own_part<T>(
    all: &mut Reader<'_>,
    len: u64,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<T, Malformed> {
    let at = all.at();
    let mut own = Reader::within(all.bytes(len)?, at);
    let part = read(&mut own)?;
    own.end()?;
    Ok(part)
}

fn read_chunks(columns: &Columns<COLUMNS>, recording_len: u64, start_ns: u64) -> Result<Vec<Stored>, Malformed> {
    let (mut kinds, mut places) = (columns.column(column::KINDS), columns.column(column::PLACES));
    let (mut events, mut times) = (columns.column(column::EVENTS), columns.column(column::TIMES));
    let mut news = columns.column(column::NEWS);
    let (mut at, mut event, mut time_ns) = (0u64, 0, start_ns);
    let mut chunks = Vec::new();
    let mut last = [0; 2];
    while kinds.remaining() > 0 {
        let kind = ChunkKind::from_code(kinds.byte()?).ok_or(kinds.malformed("a chunk of an unknown kind"))?;
        let start = at.checked_add(places.u64()?);
        let end = start.and_then(|start| start.checked_add(places.u64().ok()?));
        let sizes = HEADER_LEN as u64..=(HEADER_LEN + kind.max_raw()) as u64;
        let range = start.zip(end).filter(|&(start, end)| end <= recording_len && sizes.contains(&(end - start)));
        let Some((start, end)) = range else {
            return Err(places.malformed("a chunk that lies outside of the recording"));
        };
        let first_event = events.delta(event)?;
        let count = events.u32()?;
        time_ns = times.delta(time_ns)?;
        let is_news = kind == ChunkKind::State && news.byte()? != 0;
        let stored =
            Stored { kind, first_event, events: count, end_ns: time_ns, range: start..end, packed: None, is_news };
        // What is looked for in them is found by halving.
        let of_kind = match kind {
            ChunkKind::Events => Some(0),
            ChunkKind::State => Some(1),
            _ => None,
        };
        if let Some(of_kind) = of_kind {
            if first_event < last[of_kind] || chunks.last().is_some_and(|before: &Stored| before.end_ns > time_ns) {
                return Err(events.malformed("chunks that are not in order"));
            }
            last[of_kind] = stored.end_event();
        }
        (at, event) = (end, stored.end_event());
        chunks.push(stored);
    }
    [&places, &events, &times, &news].into_iter().try_for_each(Reader::end)?;
    Ok(chunks)
}

fn read_incidents(mut reader: Reader<'_>) -> Result<Vec<Incident>, Malformed> {
    let mut incidents = Vec::new();
    let (mut at_event, mut time_ns) = (0, 0);
    while reader.remaining() > 0 {
        let device = read_device(&mut reader)?;
        let before = at_event;
        at_event = reader.delta(before)?;
        if at_event < before {
            return Err(reader.malformed("incidents that are not in order"));
        }
        time_ns = reader.delta(time_ns)?;
        let kind = match (reader.byte()?, reader.u64()?) {
            (0, requested) => IncidentKind::OutOfMemory { requested },
            (1, lost) => IncidentKind::Gap { lost },
            _ => return Err(reader.malformed("an unknown kind of incident")),
        };
        incidents.push(Incident { device, at_event, time_ns, kind });
    }
    Ok(incidents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incidents_that_go_back_are_refused() {
        // Of device 0, 3 events later and at once, 9 bytes that could not be had; then 1 event earlier.
        let (later, earlier) = ([0, 6, 0, 0, 9], [0, 1, 0, 0, 9]);
        assert_eq!(read_incidents(Reader::new(&later)).map(|incidents| incidents.len()), Ok(1));
        assert!(read_incidents(Reader::new(&[later, earlier].concat())).is_err());
    }
}
