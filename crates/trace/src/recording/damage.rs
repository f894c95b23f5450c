//! What is damaged in the middle of a recording. One that is read from its beginning is known up to there; of one that was opened by its index
//! all else is known, too: the index says where it stands, and every chunk stands alone.

use super::{Incident, IncidentKind, Recording};
use crate::chunk::ChunkKind;
use crate::error::FormatError;
use crate::replay::Replay;

/// What was left out of a recording because it is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What is wrong where it begins.
    pub first: FormatError,
    /// Events that are left out.
    pub events: u64,
}

/// A walk over all chunks, in order.
struct Check {
    replay: Replay,
    /// Whether it is known what memory was like where the walk is.
    knows: bool,
    first: Option<FormatError>,
    events: u64,
    /// Where the chunks begin that are left out.
    left_out: Vec<u64>,
    /// Where the full states begin with which something is known again.
    resumed: Vec<u64>,
    gaps: Vec<Incident>,
}

impl Recording {
    /// Reads all that its index says is there, and leaves out what cannot be read: of events also those behind them, up to the next full
    /// state, for before that nothing is known of memory. They are lost, which a gap says. Where nothing is wrong, and where the
    /// recording was read as a whole when it was opened, nothing changes.
    pub fn leave_out_damaged(&mut self, mut progress: impl FnMut(u64, u64)) -> Option<Damage> {
        if !self.is_indexed || self.source.0.is_none() {
            return None;
        }
        let mut check = Check {
            replay: Replay::new(),
            knows: true,
            first: None,
            events: 0,
            left_out: Vec::new(),
            resumed: Vec::new(),
            gaps: Vec::new(),
        };
        for at in 0..self.chunks.len() {
            check.chunk(self, at);
            progress(at as u64 + 1, self.chunks.len() as u64);
        }
        let Check { first, events, left_out, resumed, gaps, .. } = check;
        let stays = |begin: u64| left_out.binary_search(&begin).is_err();
        for list in [&mut self.chunks, &mut self.event_chunks, &mut self.state_chunks] {
            list.retain(|stored| stays(stored.range.start));
        }
        for stored in self.chunks.iter_mut().chain(&mut self.state_chunks) {
            stored.is_news |= resumed.binary_search(&stored.range.start).is_ok();
        }
        let overview = &mut self.overview;
        overview.events = overview.events.saturating_sub(events);
        overview.lost = overview.lost.saturating_add(events);
        overview.incidents.extend(gaps);
        overview.incidents.sort_by_key(|incident| incident.at_event);
        first.map(|first| Damage { first, events })
    }
}

impl Check {
    fn chunk(&mut self, recording: &Recording, at: usize) {
        let stored = &recording.chunks[at];
        let is_state = stored.kind == ChunkKind::State;
        if !is_state && stored.kind != ChunkKind::Events {
            return;
        }
        let taken = if is_state || self.knows { self.replay.take(recording, stored) } else { Ok(()) };
        match taken {
            Ok(()) if is_state => {
                if !std::mem::replace(&mut self.knows, true) {
                    self.resumed.push(stored.range.start);
                }
            }
            Ok(()) if self.knows => {}
            taken => {
                let begins = self.knows && (!is_state || stored.is_news);
                self.knows &= !begins;
                self.first = self.first.take().or(taken.err());
                self.left_out.push(stored.range.start);
                if begins {
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
