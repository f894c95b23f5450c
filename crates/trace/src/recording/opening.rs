//! Opens a recording by the index at its end, whoever reads the bytes.

use std::ops::Range;

use super::index::{END_LEN, Index, index_range, read_index};
use super::{Recording, Stored};
use crate::chunk::{ChunkKind, MAX_CHUNK_LEN};
use crate::decoder::unpack_state;
use crate::error::FormatError;
use crate::pack::Unpacker;

/// Bytes between two chunks that are read along with them rather than asked for again.
const BRIDGED: u64 = 64 << 10;
/// Bytes that are read at once at most, where more than one chunk is.
const READ_AT_ONCE: u64 = 4 << 20;

/// Opens a recording without reading all of it: says which bytes it wants next, and is given them.
///
/// ```
/// # use vramscope_trace::{Encoder, Info, Opening, Recording};
/// # let mut encoder = Encoder::new(&Info::default());
/// # encoder.flush();
/// # let mut file: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
/// # let mut whole = Recording::new();
/// # whole.push(&file)?;
/// # file.extend(whole.index().into_iter().flat_map(|chunk| chunk.bytes));
/// let mut opening = Opening::new(file.len() as u64);
/// while let Some(range) = opening.wants() {
///     let bytes = &file[range.start as usize..range.end as usize];
///     opening.supply(range.start, bytes);
/// }
/// // `None` where there is no index, and the bytes must be read one after the other.
/// let recording: Option<Recording> = opening.finish();
/// # assert!(recording.is_some());
/// # Ok::<(), vramscope_trace::FormatError>(())
/// ```
#[derive(Debug)]
pub struct Opening {
    len: u64,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// The last chunk is wanted.
    End,
    /// The index is.
    Index(Range<u64>),
    /// What must be known before the first look: definitions, annotations and the state of the end.
    Parts { recording: Box<Recording>, wanted: Vec<Stored> },
    /// There is no index, or it is damaged.
    Without,
}

impl Opening {
    /// Begins to open a recording of `len` bytes.
    #[must_use]
    pub fn new(len: u64) -> Self {
        Self { len, step: if len < END_LEN as u64 { Step::Without } else { Step::End } }
    }

    /// The bytes that are to be [supplied](Self::supply) next; `None` when nothing more is wanted.
    #[must_use]
    pub fn wants(&self) -> Option<Range<u64>> {
        match &self.step {
            Step::End => Some(self.len - END_LEN as u64..self.len),
            Step::Index(range) => Some(range.clone()),
            Step::Parts { wanted, .. } => {
                let first = wanted.first()?;
                let mut range = first.range.clone();
                for next in &wanted[1..] {
                    if next.range.start - range.end > BRIDGED || next.range.end - range.start > READ_AT_ONCE {
                        break;
                    }
                    range.end = next.range.end;
                }
                Some(range)
            }
            Step::Without => None,
        }
    }

    /// Takes the bytes that were wanted, all of them.
    pub fn supply(&mut self, offset: u64, bytes: &[u8]) {
        let step = std::mem::replace(&mut self.step, Step::Without);
        let next = match step {
            Step::End => index_range(bytes, self.len)
                .filter(|range| range.end - range.start <= MAX_CHUNK_LEN as u64)
                .map(Step::Index),
            Step::Index(range) => read_index(bytes, range).ok().map(begin),
            Step::Parts { recording, wanted } => take_parts(recording, wanted, offset, bytes).ok(),
            Step::Without => None,
        };
        self.step = next.unwrap_or(Step::Without);
    }

    /// The recording, whose chunks of events and states are read when they are wanted. `None` where there is no index that can be used: the
    /// bytes must be read from the first to the last.
    #[must_use]
    pub fn finish(self) -> Option<Recording> {
        match self.step {
            Step::Parts { recording, wanted } if wanted.is_empty() => Some(*recording),
            _ => None,
        }
    }
}

fn begin(index: Index) -> Step {
    let mut recording = Recording { passes_by: true, is_indexed: true, ..Recording::default() };
    let mut wanted = Vec::new();
    let last = index.chunks.len() - 1;
    for (at, stored) in index.chunks.iter().enumerate() {
        match stored.kind {
            ChunkKind::Events => recording.event_chunks.push(stored.clone()),
            ChunkKind::State => recording.state_chunks.push(stored.clone()),
            _ => {}
        }
        let is_part = matches!(stored.kind, ChunkKind::Head | ChunkKind::Definitions | ChunkKind::Annotations);
        if is_part || at == last {
            wanted.push(stored.clone());
        }
    }
    recording.chunks = index.chunks;
    recording.first_event = Some(index.first_event);
    let overview = &mut recording.overview;
    overview.events = index.events;
    overview.lost = index.lost;
    overview.start_ns = Some(index.start_ns);
    overview.incidents = index.incidents;
    overview.courses = index.courses;
    Step::Parts { recording: Box::new(recording), wanted }
}

fn take_parts(
    mut recording: Box<Recording>,
    wanted: Vec<Stored>,
    offset: u64,
    bytes: &[u8],
) -> Result<Step, FormatError> {
    let count = wanted.len();
    let mut rest = wanted.into_iter();
    while let Some(stored) = rest.next() {
        let place = |at: u64| at.checked_sub(offset).and_then(|at| usize::try_from(at).ok());
        let chunk = place(stored.range.start).zip(place(stored.range.end)).and_then(|(from, to)| bytes.get(from..to));
        let Some(chunk) = chunk else {
            let wanted: Vec<_> = std::iter::once(stored).chain(rest).collect();
            // Who answers with less than was wanted is not asked for the same again.
            if wanted.len() == count {
                return Err(FormatError::new(offset, "fewer bytes came than were wanted"));
            }
            return Ok(Step::Parts { recording, wanted });
        };
        take_part(&mut recording, &stored, chunk)?;
    }
    recording.overview.sort_annotations();
    Ok(Step::Parts { recording, wanted: Vec::new() })
}

/// Takes a chunk that is of no event.
fn take_part(recording: &mut Recording, stored: &Stored, bytes: &[u8]) -> Result<(), FormatError> {
    let packed = stored.parse(bytes)?;
    if packed.kind == ChunkKind::State {
        recording.overview.state = unpack_state(&packed, &mut Unpacker::default())?;
        return Ok(());
    }
    recording.context.read(&packed, &mut recording.overview)?;
    recording.check_memory(&packed)
}
