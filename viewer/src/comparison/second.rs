//! The compared (second) recording: its history, steps and groupings.

use vramscope_insight::difference::MatchingNames;
use vramscope_insight::group::{GroupBy, Groupings};
use vramscope_insight::history::History;
use vramscope_insight::incremental::StepAnalysis;
use vramscope_insight::small_map::SmallMap;
use vramscope_insight::spans::Marks;
use vramscope_trace::Recording;

use crate::model::SecondRecording;

/// Number of events of the compared (second) recording that are read in one frame.
const EVENTS_PER_FRAME: u64 = 65_536;

/// What has been computed about the compared (second) recording: its history, steps and groupings.
#[derive(Default)]
pub(super) struct SecondAnalysis {
    /// The recording's number, see [`SecondRecording::id`].
    pub(super) id: u64,
    pub(super) groupings: Groupings,
    pub(super) history: History,
    pub(super) is_complete: bool,
    /// Why its events cannot be read to the end.
    pub(super) error: Option<String>,
    pub(super) marks: Marks,
    pub(super) steps: StepAnalysis,
    /// The names of its groups, by their grouping, and the number of sites of both recordings for
    /// which they were found.
    pub(super) names: SmallMap<GroupBy, ([usize; 2], MatchingNames)>,
}

impl SecondAnalysis {
    /// Discards all results if the compared recording is not the one they are about.
    pub(super) fn update(&mut self, second: &SecondRecording) {
        if self.id != second.id {
            *self = Self { id: second.id, ..Self::default() };
            self.marks.update(&second.recording);
        }
    }

    /// Reads a part of the recording's events, and infers categories at the end.
    pub(super) fn read(&mut self, recording: &Recording) {
        if self.is_complete || self.error.is_some() {
            return;
        }
        match self.history.extend(recording, EVENTS_PER_FRAME) {
            Ok(progress) => self.is_complete = progress.is_complete,
            Err(error) => self.error = Some(error.to_string()),
        }
        if self.is_complete || self.error.is_some() {
            self.history.infer_categories(recording);
        }
    }
}
