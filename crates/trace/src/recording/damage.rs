//! Skips the damaged chunks of a recording that was opened by its index.
//!
//! Without an index, a recording can be read only up to the first damaged chunk. The index lists
//! the position of every chunk, and chunks are self-contained, so all undamaged chunks stay usable.

use super::overview::{Incident, IncidentKind};
use super::recording_data::Recording;
use super::replay::Replay;
use crate::chunk::ChunkKind;
use crate::error::FormatError;
use crate::sort::sort_by_key;

/// The damage that [`Recording::skip_damaged`] found in a recording: the first error, and the
/// number of events skipped because of damaged chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The first error.
    pub first: FormatError,
    /// Number of events that were skipped.
    pub events: u64,
}

/// The progress of [`Recording::skip_damaged`], which checks all chunks in order.
#[derive(Default)]
struct DamageScan {
    replay: Replay,
    /// Whether the memory state at the current chunk is unknown, because of damage before it.
    state_is_unknown: bool,
    first_error: Option<FormatError>,
    events: u64,
    /// Byte offsets of the skipped chunks.
    skipped: Vec<u64>,
    /// Byte offsets of the full states from which the state is known again.
    resumed_at: Vec<u64>,
    gaps: Vec<Incident>,
}

impl Recording {
    /// Reads every chunk, and skips every damaged chunk with the events after it up to the next
    /// full state, because the memory state is unknown there. A gap records the lost events.
    ///
    /// Returns `None`, changing nothing, if no chunk is damaged, or if the recording was read as a
    /// whole when it was opened. `progress` receives the number of chunks checked and of all
    /// chunks.
    pub fn skip_damaged(&mut self, mut progress: impl FnMut(u64, u64)) -> Option<Damage> {
        if !self.is_indexed || self.source.is_none() {
            return None;
        }
        let mut scan = DamageScan::default();
        for at in 0..self.chunks.len() {
            scan.chunk(self, at);
            progress(at as u64 + 1, self.chunks.len() as u64);
        }
        let DamageScan { first_error, events, skipped, resumed_at, gaps, .. } = scan;
        let stays = |begin: u64| skipped.binary_search(&begin).is_err();
        for list in [&mut self.chunks, &mut self.event_chunks, &mut self.state_chunks] {
            list.retain(|stored| stays(stored.range.start));
        }
        for stored in self.chunks.iter_mut().chain(&mut self.state_chunks) {
            stored.is_correction |= resumed_at.binary_search(&stored.range.start).is_ok();
        }
        let overview = &mut self.overview;
        overview.events = overview.events.saturating_sub(events);
        overview.lost = overview.lost.saturating_add(events);
        overview.incidents.extend(gaps);
        sort_by_key(&mut overview.incidents, |incident| incident.at_event);
        first_error.map(|first| Damage { first, events })
    }
}

impl DamageScan {
    /// Checks the chunk at index `at` of the recording, and skips it if it is damaged or follows
    /// damage without a full state in between.
    fn chunk(&mut self, recording: &Recording, at: usize) {
        let stored = &recording.chunks[at];
        let is_state = stored.kind == ChunkKind::State;
        if !is_state && stored.kind != ChunkKind::Events {
            return;
        }
        let applied =
            if is_state || !self.state_is_unknown { self.replay.apply_chunk(recording, stored) } else { Ok(()) };
        match applied {
            Ok(()) if is_state => {
                if std::mem::take(&mut self.state_is_unknown) {
                    self.resumed_at.push(stored.range.start);
                }
            }
            Ok(()) if !self.state_is_unknown => {}
            applied => {
                let damage_begins = !self.state_is_unknown && (!is_state || stored.is_correction);
                self.state_is_unknown |= damage_begins;
                self.first_error = self.first_error.take().or(applied.err());
                self.skipped.push(stored.range.start);
                if damage_begins {
                    self.replay = Replay::new();
                    let device = recording.devices().next().unwrap_or_default();
                    let time_ns =
                        at.checked_sub(1).map_or(recording.start_ns(), |before| recording.chunks[before].end_ns);
                    let kind = IncidentKind::Gap { lost: 0 };
                    self.gaps.push(Incident { device, at_event: stored.first_event, time_ns, kind });
                }
                let events = u64::from(stored.events);
                self.events = self.events.saturating_add(events);
                if let Some(Incident { kind: IncidentKind::Gap { lost }, .. }) = self.gaps.last_mut() {
                    *lost = lost.saturating_add(events);
                }
            }
        }
    }
}
