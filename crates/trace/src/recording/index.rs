//! The index at the end of a recording, with which the recording opens without reading every chunk.
//!
//! ```text
//! index    | first event | end event | events | lost | start | columns
//! end      | length of the index chunk | length of the recording up to the end chunk |
//! ```
//!
//! The end chunk is the last chunk and always has the same length, so that it is found from the end
//! of the file; its two numbers have 64 bits. The second one must match the file, which proves that
//! the recording begins at the start of the file and that nothing was appended. The chunk before
//! the index is the full state at the end.

use std::collections::BTreeMap;
use std::ops::Range;

use super::overview::{DeviceHistory, Incident, IncidentKind};
use super::recording_data::Recording;
use super::stored_chunk::StoredChunk;
use crate::chunk::{Chunk, ChunkKind, HEADER_LEN, PackedChunk};
use crate::columns::{Columns, ColumnsWriter};
use crate::compression::{Compressor, Decompressor};
use crate::error::FormatError;
use crate::event::DeviceId;
use crate::event_codec::read_device;
use crate::metrics::{put_metrics, read_metrics};
use crate::series_codec::{put_series, read_series};
use crate::state_codec::{is_readable, put_state};
use crate::varint::{self, PayloadError, Reader};

/// Number of columns that the index chunk at the end of a recording has.
const COLUMNS: usize = 9;
/// Maximum number of decompressed bytes that a reader accepts in the columns of an index; more is
/// an error.
const MAX_COLUMNS_LEN: usize = 64 << 20;
/// Length in bytes of the payload of the end chunk, which points to the index: two integers of 64
/// bits.
const END_PAYLOAD_LEN: usize = 16;
/// Length in bytes of the end chunk, header included. The end chunk is the last of a file with an
/// index and points to the index.
pub(super) const END_LEN: usize = HEADER_LEN + END_PAYLOAD_LEN;

mod column {
    /// Column id in the index. Per chunk: the code of its kind.
    pub(super) const KINDS: u8 = 0;
    /// Column id in the index. Per chunk: bytes between the end of the previous chunk and its
    /// start; its length in bytes.
    pub(super) const RANGES: u8 = 1;
    /// Column id in the index. Per chunk: its first event, as the difference to the end of the
    /// previous chunk; its number of events.
    pub(super) const EVENTS: u8 = 2;
    /// Column id in the index. Per chunk: the time at its end in nanoseconds, as the difference to
    /// the previous chunk.
    pub(super) const TIMES: u8 = 3;
    /// Column id in the index. Per incident: device; moment and time, as differences to the
    /// previous incident; kind; requested bytes (out of memory) or number of missing events (gap).
    pub(super) const INCIDENTS: u8 = 4;
    /// Column id in the index. Per device: its number, and the lengths in bytes of its parts of
    /// [`SERIES`] and [`METRICS`].
    pub(super) const DEVICES: u8 = 5;
    /// Column id in the index. Per device: its counters over time.
    pub(super) const SERIES: u8 = 6;
    /// Column id in the index. Per device: its metrics over time.
    pub(super) const METRICS: u8 = 7;
    /// Column id in the index. Per full state: 1 if it differs from the state that the events
    /// before it lead to, else 0.
    pub(super) const CORRECTIONS: u8 = 8;
}

/// The decoded index of a recording: the positions of its chunks, and counters, metrics and
/// incidents over time.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) first_event: u64,
    pub(super) events: u64,
    pub(super) lost: u64,
    pub(super) start_ns: u64,
    /// All chunks, in order.
    pub(super) chunks: Vec<StoredChunk>,
    pub(super) incidents: Vec<Incident>,
    pub(super) device_histories: BTreeMap<DeviceId, DeviceHistory>,
}

/// Returns the byte range of the index chunk in a file of `file_len` bytes, of which `bytes` are
/// the last [`END_LEN`]. `None` if they are not an end chunk that fits the file.
pub(super) fn index_range(bytes: &[u8], file_len: u64) -> Option<Range<u64>> {
    let end_at = file_len.checked_sub(END_LEN as u64)?;
    let packed = PackedChunk::parse(bytes, end_at).ok()?;
    let payload = packed.payload(&mut Decompressor::default()).ok()?;
    let (index_len, rest) = payload.bytes().split_first_chunk()?;
    let recording_len = u64::from_le_bytes(*rest.first_chunk()?);
    let index_at = end_at.checked_sub(u64::from_le_bytes(*index_len))?;
    (packed.kind == ChunkKind::End && recording_len == end_at).then_some(index_at..end_at)
}

impl Recording {
    /// Returns the chunks to append to a complete recording so that it opens by its index.
    ///
    /// They belong at [`complete_bytes`](Self::complete_bytes). Empty if the recording is empty,
    /// damaged or was opened by an index.
    #[must_use]
    pub fn index(&self) -> Vec<Chunk> {
        let moment = self.end_event();
        let mut compressor = Compressor::default();
        let mut chunks = Vec::new();
        let mut all = self.chunks.clone();
        let mut at = self.complete_bytes();
        if all.is_empty() || self.is_indexed || self.is_incomplete || !is_readable(self.end_state()) {
            return chunks;
        }
        // Write the state even if the recording has one of this moment: chunks without event
        // numbers may follow that.
        let mut payload = Vec::new();
        put_state(&mut payload, self.end_state(), Some(&mut compressor));
        let state = Chunk::new(ChunkKind::State, moment, 0, &payload, &mut compressor);
        let end = at + state.bytes.len() as u64;
        all.push(StoredChunk {
            kind: ChunkKind::State,
            first_event: moment,
            events: 0,
            end_ns: self.end_ns(),
            range: at..end,
            packed: None,
            is_correction: self.overview.ends_with_relabel,
        });
        chunks.push(state);
        at = end;
        payload.clear();
        self.put_index(&mut payload, &all, &mut compressor);
        let index = Chunk::new(ChunkKind::Index, moment, 0, &payload, &mut compressor);
        let index_len = index.bytes.len() as u64;
        chunks.push(index);
        let end = [index_len.to_le_bytes(), (at + index_len).to_le_bytes()].concat();
        chunks.push(Chunk::uncompressed(ChunkKind::End, moment, &end));
        chunks
    }

    /// Appends the payload of the index chunk to `out`; `chunks` are all chunks before the index.
    fn put_index(&self, out: &mut Vec<u8>, chunks: &[StoredChunk], compressor: &mut Compressor) {
        let start = self.start_ns();
        for number in [self.first_event(), self.end_event(), self.events(), self.lost_events(), start] {
            varint::put(out, number);
        }
        let mut columns = ColumnsWriter::<COLUMNS>::default();
        let (mut at, mut event, mut time_ns) = (0, 0, start);
        for chunk in chunks {
            columns.column(column::KINDS).push(chunk.kind.code());
            let ranges = columns.column(column::RANGES);
            varint::put(ranges, chunk.range.start - at);
            varint::put(ranges, chunk.range.end - chunk.range.start);
            varint::put_delta(columns.column(column::EVENTS), event, chunk.first_event);
            varint::put(columns.column(column::EVENTS), u64::from(chunk.events));
            varint::put_delta(columns.column(column::TIMES), time_ns, chunk.end_ns);
            if chunk.kind == ChunkKind::State {
                columns.column(column::CORRECTIONS).push(u8::from(chunk.is_correction));
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
        for (id, history) in &self.overview.device_histories {
            varint::put(columns.column(column::DEVICES), u64::from(id.0));
            let before = columns.column(column::SERIES).len();
            put_series(columns.column(column::SERIES), &history.series);
            let len = columns.column(column::SERIES).len() - before;
            varint::put(columns.column(column::DEVICES), len as u64);
            let before = columns.column(column::METRICS).len();
            put_metrics(columns.column(column::METRICS), &history.metrics);
            let len = columns.column(column::METRICS).len() - before;
            varint::put(columns.column(column::DEVICES), len as u64);
        }
        columns.finish(out, Some(compressor));
    }
}

/// Decodes the index chunk `bytes`, which is at the byte range `range` of the file.
pub(super) fn read_index(bytes: &[u8], range: Range<u64>) -> Result<Index, FormatError> {
    let packed = PackedChunk::parse(bytes, range.start)?;
    if packed.kind != ChunkKind::Index || packed.len() as u64 != range.end - range.start {
        return Err(packed.error("no index chunk where the end chunk expects it"));
    }
    let mut decompressor = Decompressor::default();
    let payload = packed.payload(&mut decompressor)?;
    let index = parse_index(payload.reader(), &mut decompressor, range.start);
    index.map_err(|error| packed.error(format!("invalid index, {error}")))
}

/// Decodes the payload of an index chunk, for a recording of `recording_len` bytes up to the index.
fn parse_index(
    mut reader: Reader<'_>,
    decompressor: &mut Decompressor,
    recording_len: u64,
) -> Result<Index, PayloadError> {
    let mut number = || reader.u64();
    let (first_event, end_event) = (number()?, number()?);
    let (events, lost, start_ns) = (number()?, number()?, number()?);
    let columns = Columns::<COLUMNS>::read(&mut reader, decompressor, MAX_COLUMNS_LEN)?;
    if end_event < first_event {
        return Err(reader.payload_error("end event before the first event"));
    }
    let chunks = read_chunks(&columns, recording_len, start_ns)?;
    let counted = chunks.iter().filter(|chunk| chunk.kind == ChunkKind::Events).map(|chunk| u64::from(chunk.events));
    if counted.sum::<u64>() != events {
        return Err(reader.payload_error("number of events differs from that of the chunks"));
    }
    // The state at the end is needed to open the recording.
    if !chunks.last().is_some_and(|last| last.kind == ChunkKind::State && last.first_event == end_event) {
        return Err(reader.payload_error("the last chunk is not the full state at the end"));
    }
    let mut device_histories = BTreeMap::new();
    let (mut series, mut metrics) = (columns.column(column::SERIES), columns.column(column::METRICS));
    let mut devices = columns.column(column::DEVICES);
    while devices.remaining() > 0 {
        let id = read_device(&mut devices)?;
        let series = read_device_part(&mut series, devices.u64()?, read_series)?;
        let metrics = read_device_part(&mut metrics, devices.u64()?, read_metrics)?;
        device_histories.insert(id, DeviceHistory::from_index(series, metrics));
    }
    series.end()?;
    metrics.end()?;
    let incidents = read_incidents(columns.column(column::INCIDENTS))?;
    Ok(Index { first_event, events, lost, start_ns, chunks, incidents, device_histories })
}

/// Reads the next `len` bytes of a column, the part of one device, with `read`. An error if `read`
/// does not read all of them.
fn read_device_part<T>(
    all: &mut Reader<'_>,
    len: u64,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, PayloadError>,
) -> Result<T, PayloadError> {
    let at = all.position();
    let mut reader = Reader::within(all.bytes(len)?, at);
    let part = read(&mut reader)?;
    reader.end()?;
    Ok(part)
}

/// Decodes the index's table of chunks. They must be in order within the first `recording_len`
/// bytes; times are relative to `start_ns`, in nanoseconds.
fn read_chunks(
    columns: &Columns<COLUMNS>,
    recording_len: u64,
    start_ns: u64,
) -> Result<Vec<StoredChunk>, PayloadError> {
    let (mut kinds, mut ranges) = (columns.column(column::KINDS), columns.column(column::RANGES));
    let (mut events, mut times) = (columns.column(column::EVENTS), columns.column(column::TIMES));
    let mut corrections = columns.column(column::CORRECTIONS);
    let (mut at, mut event, mut time_ns) = (0u64, 0, start_ns);
    let mut chunks = Vec::new();
    let mut last = [0; 2];
    while kinds.remaining() > 0 {
        let kind = ChunkKind::from_code(kinds.byte()?).ok_or(kinds.payload_error("unknown chunk kind"))?;
        let start = at.checked_add(ranges.u64()?);
        let end = start.and_then(|start| start.checked_add(ranges.u64().ok()?));
        let sizes = HEADER_LEN as u64..=(HEADER_LEN + kind.max_payload_len()) as u64;
        let range = start.zip(end).filter(|&(start, end)| end <= recording_len && sizes.contains(&(end - start)));
        let Some((start, end)) = range else {
            return Err(ranges.payload_error("chunk outside of the recording"));
        };
        let first_event = events.delta(event)?;
        let count = events.u32()?;
        time_ns = times.delta(time_ns)?;
        let is_correction = kind == ChunkKind::State && corrections.byte()? != 0;
        let stored = StoredChunk {
            kind,
            first_event,
            events: count,
            end_ns: time_ns,
            range: start..end,
            packed: None,
            is_correction,
        };
        // Binary searches need these lists to be sorted.
        let of_kind = match kind {
            ChunkKind::Events => Some(0),
            ChunkKind::State => Some(1),
            _ => None,
        };
        if let Some(of_kind) = of_kind {
            if first_event < last[of_kind] || chunks.last().is_some_and(|before: &StoredChunk| before.end_ns > time_ns)
            {
                return Err(events.payload_error("chunks are not in order"));
            }
            last[of_kind] = stored.end_event();
        }
        (at, event) = (end, stored.end_event());
        chunks.push(stored);
    }
    [&ranges, &events, &times, &corrections].into_iter().try_for_each(Reader::end)?;
    Ok(chunks)
}

/// Decodes the index's out-of-memory events and gaps, which must be in the order of their moments.
fn read_incidents(mut reader: Reader<'_>) -> Result<Vec<Incident>, PayloadError> {
    let mut incidents = Vec::new();
    let (mut at_event, mut time_ns) = (0, 0);
    while reader.remaining() > 0 {
        let device = read_device(&mut reader)?;
        let before = at_event;
        at_event = reader.delta(before)?;
        if at_event < before {
            return Err(reader.payload_error("incidents are not in order"));
        }
        time_ns = reader.delta(time_ns)?;
        let kind = match (reader.byte()?, reader.u64()?) {
            (0, requested) => IncidentKind::OutOfMemory { requested },
            (1, lost) => IncidentKind::Gap { lost },
            _ => return Err(reader.payload_error("unknown incident kind")),
        };
        incidents.push(Incident { device, at_event, time_ns, kind });
    }
    Ok(incidents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unordered_incidents_are_rejected() {
        // Device 0, 3 events later at the same time, a failed request of 9 bytes; then 1 event
        // earlier.
        let (later, earlier) = ([0, 6, 0, 0, 9], [0, 1, 0, 0, 9]);
        assert_eq!(read_incidents(Reader::new(&later)).map(|incidents| incidents.len()), Ok(1));
        assert!(read_incidents(Reader::new(&[later, earlier].concat())).is_err());
    }
}
