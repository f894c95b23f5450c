//! Opens a recording by the index at its end, without reading all of it.

use std::ops::Range;
use std::sync::Arc;

use super::index::{END_LEN, Index, index_range, read_index};
use super::packed_end::PackedEnd;
use super::recording_data::Recording;
use super::stored_chunk::{ReadAt, StoredChunk};
use crate::chunk::{ChunkKind, MAX_CHUNK_LEN, check_preamble};
use crate::error::FormatError;
use crate::memory_state::MemoryState;

/// Maximum distance in bytes between two chunks that a [`RecordingOpener`] requests as one range,
/// together with the bytes between them.
const MAX_BRIDGED: u64 = 64 << 10;
/// Maximum length in bytes of a range that a [`RecordingOpener`] requests for more than one chunk.
const MAX_REQUEST: u64 = 4 << 20;

/// Opens a recording by its index without reading files itself: it returns the byte range that it
/// needs next and receives the bytes.
///
/// For callers that fetch bytes asynchronously; [`Recording::open`] opens a recording from a
/// [`ReadAt`].
///
/// ```
/// # use vramscope_trace::{Encoder, RecordingInfo, RecordingOpener, Recording};
/// # let mut encoder = Encoder::new(&RecordingInfo::default());
/// # encoder.flush();
/// # let mut file: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
/// # let mut whole = Recording::new();
/// # whole.push(&file)?;
/// # file.extend(whole.index().into_iter().flat_map(|chunk| chunk.bytes));
/// let mut opener = RecordingOpener::new(file.len() as u64);
/// while let Some(range) = opener.wanted_range() {
///     let bytes = &file[range.start as usize..range.end as usize];
///     opener.supply(range.start, bytes);
/// }
/// // `None` without a usable index; then push all bytes instead.
/// let recording: Option<Recording> = opener.finish();
/// # assert!(recording.is_some());
/// # Ok::<(), vramscope_trace::FormatError>(())
/// ```
#[derive(Debug)]
pub struct RecordingOpener {
    len: u64,
    step: OpenStep,
}

/// The part of the file that a [`RecordingOpener`] waits for next, or the result of opening.
#[derive(Debug)]
enum OpenStep {
    /// The end chunk.
    End,
    /// The index.
    Index(Range<u64>),
    /// The preamble, until it is checked, and the missing chunks of the overview: header,
    /// definitions, annotations and the last full state.
    Overview { recording: Box<Recording>, wanted: Vec<StoredChunk>, preamble_checked: bool },
    /// Nothing: there is no index, it is damaged, or the recording has another format version.
    NoIndex,
}

impl RecordingOpener {
    /// Creates an opener for a recording of `len` bytes.
    #[must_use]
    pub fn new(len: u64) -> Self {
        Self { len, step: if len < END_LEN as u64 { OpenStep::NoIndex } else { OpenStep::End } }
    }

    /// Returns the byte range of the file to [`supply`](Self::supply) next, or `None` once no more
    /// bytes are needed.
    #[must_use]
    pub fn wanted_range(&self) -> Option<Range<u64>> {
        match &self.step {
            OpenStep::End => Some(self.len - END_LEN as u64..self.len),
            OpenStep::Index(range) => Some(range.clone()),
            OpenStep::Overview { wanted, preamble_checked, .. } => {
                let first = wanted.first()?;
                let mut range = if *preamble_checked { first.range.clone() } else { 0..first.range.end };
                for next in &wanted[1..] {
                    if next.range.start - range.end > MAX_BRIDGED || next.range.end - range.start > MAX_REQUEST {
                        break;
                    }
                    range.end = next.range.end;
                }
                Some(range)
            }
            OpenStep::NoIndex => None,
        }
    }

    /// Receives the bytes of the [wanted range](Self::wanted_range), which begins at `offset`.
    pub fn supply(&mut self, offset: u64, bytes: &[u8]) {
        let step = std::mem::replace(&mut self.step, OpenStep::NoIndex);
        let next = match step {
            OpenStep::End => index_range(bytes, self.len)
                .filter(|range| range.end - range.start <= MAX_CHUNK_LEN as u64)
                .map(OpenStep::Index),
            OpenStep::Index(range) => read_index(bytes, range).ok().and_then(begin_overview),
            OpenStep::Overview { recording, wanted, preamble_checked } => {
                let is_readable = preamble_checked || (offset == 0 && matches!(check_preamble(bytes, 0), Ok(true)));
                if is_readable { add_chunks(recording, wanted, offset, bytes).ok() } else { None }
            }
            OpenStep::NoIndex => None,
        };
        self.step = next.unwrap_or(OpenStep::NoIndex);
    }

    /// Returns the recording, or `None` if it has no usable index or another format version. Push
    /// all bytes to a new [`Recording`] then: that succeeds or returns the error.
    ///
    /// Its chunks of events and full states are not in memory: see [`Recording::missing`]. The
    /// state at the end is not decoded yet, so that seeking there may fail: see
    /// [`Recording::end_state`].
    #[must_use]
    pub fn finish(self) -> Option<Recording> {
        match self.step {
            OpenStep::Overview { recording, wanted, .. } if wanted.is_empty() => Some(*recording),
            _ => None,
        }
    }
}

/// Creates a recording from its index. Returns the next step, which is to request the preamble, the
/// header, definition and annotation chunks, and the last chunk; `None` if the first of these
/// chunks is not near the start of the file.
fn begin_overview(index: Index) -> Option<OpenStep> {
    let mut recording = Recording { drops_chunks: true, is_indexed: true, ..Recording::default() };
    let mut wanted = Vec::new();
    let last = index.chunks.len() - 1;
    for (at, stored) in index.chunks.iter().enumerate() {
        match stored.kind {
            // Chunks that only have relabels are skipped: the last full state contains the
            // relabels.
            ChunkKind::Events if stored.events > 0 => recording.event_chunks.push(stored.clone()),
            ChunkKind::State => recording.state_chunks.push(stored.clone()),
            _ => {}
        }
        let is_in_overview = matches!(stored.kind, ChunkKind::Header | ChunkKind::Definitions | ChunkKind::Annotations);
        if is_in_overview || at == last {
            wanted.push(stored.clone());
        }
    }
    // The first request reaches from the preamble to this chunk.
    wanted.first().filter(|first| first.range.start <= MAX_BRIDGED)?;
    recording.chunks = index.chunks;
    recording.first_event = Some(index.first_event);
    let overview = &mut recording.overview;
    overview.events = index.events;
    overview.lost = index.lost;
    overview.start_ns = Some(index.start_ns);
    overview.incidents = index.incidents;
    overview.device_histories = index.device_histories;
    Some(OpenStep::Overview { recording: Box::new(recording), wanted, preamble_checked: false })
}

/// Adds the `wanted` chunks that are in `bytes`, which begin at byte `offset` of the recording.
/// Returns the next step, which wants the remaining chunks; opening is done if none remain.
fn add_chunks(
    mut recording: Box<Recording>,
    wanted: Vec<StoredChunk>,
    offset: u64,
    bytes: &[u8],
) -> Result<OpenStep, FormatError> {
    let count = wanted.len();
    let mut rest = wanted.into_iter();
    while let Some(stored) = rest.next() {
        let position_in_bytes = |at: u64| at.checked_sub(offset).and_then(|at| usize::try_from(at).ok());
        let chunk = position_in_bytes(stored.range.start)
            .zip(position_in_bytes(stored.range.end))
            .and_then(|(from, to)| bytes.get(from..to));
        let Some(chunk) = chunk else {
            let wanted: Vec<_> = std::iter::once(stored).chain(rest).collect();
            // Give up if not even one chunk was supplied, rather than request the same bytes
            // forever.
            if wanted.len() == count {
                return Err(FormatError::new(offset, "fewer bytes were supplied than needed"));
            }
            return Ok(OpenStep::Overview { recording, wanted, preamble_checked: true });
        };
        add_chunk(&mut recording, &stored, chunk)?;
    }
    recording.overview.sort_annotations();
    Ok(OpenStep::Overview { recording, wanted: Vec::new(), preamble_checked: true })
}

/// Adds a chunk of the overview or the last full state to a recording that is being opened by its
/// index. `stored` is the chunk's entry in the index, `bytes` are the chunk.
fn add_chunk(recording: &mut Recording, stored: &StoredChunk, bytes: &[u8]) -> Result<(), FormatError> {
    let packed = stored.parse(bytes)?;
    if packed.kind == ChunkKind::State {
        let (event, time_ns) = (stored.first_event, stored.end_ns);
        recording.overview.state = MemoryState { event, time_ns, ..MemoryState::default() };
        recording.packed_end = Some(PackedEnd::new(packed));
        return Ok(());
    }
    recording.context.read(&packed, &mut recording.overview)?;
    recording.check_memory(&packed)
}

impl Recording {
    /// Opens a recording of `len` bytes: by its index, or if it has none by reading all of it.
    ///
    /// `progress` receives the number of bytes read and `len`.
    ///
    /// # Errors
    /// If the bytes cannot be read, or are not a recording from the first chunk on. A recording
    /// that is damaged later, or cut off, is opened up to there; the second value is then the
    /// error.
    pub fn open(
        source: Arc<dyn ReadAt>,
        len: u64,
        progress: impl FnMut(u64, u64),
    ) -> Result<(Self, Option<FormatError>), FormatError> {
        match Self::open_by_index(&source, len)? {
            Some(recording) => Ok((recording, None)),
            None => Self::read_through(source, len, progress),
        }
    }

    /// Opens a recording of `len` bytes by its index. Returns `None` if it has no usable index or
    /// another format version; [`read_through`](Self::read_through) then succeeds or returns the
    /// error.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    pub fn open_by_index(source: &Arc<dyn ReadAt>, len: u64) -> Result<Option<Self>, FormatError> {
        let mut opener = RecordingOpener::new(len);
        while let Some(range) = opener.wanted_range() {
            let bytes = source.read_at(range.clone()).map_err(|error| FormatError::read_failed(range.start, error))?;
            opener.supply(range.start, &bytes);
        }
        let source = Some(Arc::clone(source));
        let is_readable = |recording: &Self| recording.packed_end.as_ref().is_some_and(|end| end.check().is_ok());
        Ok(opener.finish().filter(is_readable).map(|recording| Self { source, ..recording }))
    }

    /// Opens a recording of `len` bytes by reading all of it, so that every chunk is checked. An
    /// index is ignored.
    ///
    /// `progress` receives the number of bytes read and `len`.
    ///
    /// # Errors
    /// See [`open`](Self::open).
    pub fn read_through(
        source: Arc<dyn ReadAt>,
        len: u64,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<(Self, Option<FormatError>), FormatError> {
        /// Number of bytes that [`Recording::read_through`] requests at a time.
        const PIECE: u64 = 1 << 20;
        let mut recording = Self::overview_only(Some(Arc::clone(&source)));
        let mut at = 0;
        let mut result = Ok(());
        while at < len && result.is_ok() {
            let end = len.min(at + PIECE);
            let piece = source.read_at(at..end).map_err(|error| FormatError::read_failed(at, error))?;
            result = recording.push(&piece);
            at = end;
            progress(at, len);
        }
        match result.and_then(|()| recording.finish()) {
            Err(error) if recording.chunks.is_empty() => Err(error),
            result => Ok((recording, result.err())),
        }
    }
}
