//! Filters prepared for the recording, kept between calls.

use std::sync::Arc;

use vramscope_trace::Recording;

use super::recording_identity::RecordingIdentity;
use crate::history::History;
use crate::query::{Matcher, Query};

/// Maximum number of prepared filters that are kept.
const MAX_KEPT: usize = 2;

/// The inputs of a prepared filter: the recording's identity, its number of sites, the filter's
/// text, the number of steps, and the generation of the categories.
type MatcherKey = (RecordingIdentity, usize, String, usize, u64);

/// The filters that were last prepared for a recording. All views that highlight the matches of a
/// filter share one of them.
#[derive(Default)]
pub struct KeptMatchers(Vec<(MatcherKey, Arc<Matcher>)>);

impl KeptMatchers {
    /// Prepares a filter for a recording, or returns the prepared one. `steps` are the moments at
    /// which training steps begin.
    pub fn get(&mut self, recording: &Recording, history: &History, query: &Query, steps: &[u64]) -> Arc<Matcher> {
        let sites = recording.definitions().site_count();
        let generation = history.categories_generation();
        let source = (RecordingIdentity::of(recording), sites, query.text().to_owned(), steps.len(), generation);
        if let Some((_, matcher)) = self.0.iter().find(|(known, _)| *known == source) {
            return Arc::clone(matcher);
        }
        let matcher = Arc::new(query.compile(recording, steps, history.inferred_categories()));
        self.0.truncate(MAX_KEPT - 1);
        self.0.insert(0, (source, Arc::clone(&matcher)));
        matcher
    }
}
