//! Filters prepared for the recording, kept between frames.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use vramscope_insight::query::{Matcher, Query};
use vramscope_trace::Recording;

use super::identity::RecordingIdentity;

/// Maximum number of prepared filters that are kept: one for each pane.
const MAX_KEPT: usize = 2;

/// The inputs of a prepared filter: the recording's identity, its number of sites, the filter's
/// text, and the number of steps.
type MatcherKey = (RecordingIdentity, usize, String, usize);

/// The filters that were last prepared for a recording. All views that highlight the matches of a
/// filter share one of them.
#[derive(Default)]
pub struct KeptMatchers(Vec<(MatcherKey, Arc<Matcher>)>);

impl KeptMatchers {
    /// Prepares a filter for a recording, or returns the prepared one. `steps` are the moments at
    /// which training steps begin.
    pub fn get(&mut self, recording: &Recording, query: &Query, steps: &[u64]) -> Arc<Matcher> {
        let sites = recording.definitions().site_count();
        let source = (RecordingIdentity::of(recording), sites, query.text().to_owned(), steps.len());
        if let Some((_, matcher)) = self.0.iter().find(|(known, _)| *known == source) {
            return Arc::clone(matcher);
        }
        let matcher = Arc::new(query.compile(recording, steps));
        self.0.truncate(MAX_KEPT - 1);
        self.0.insert(0, (source, Arc::clone(&matcher)));
        matcher
    }
}

/// The filter that the user typed in a pane's list; pictures outline its matches.
#[derive(Clone)]
pub struct ShownFilter {
    /// The filter.
    pub matcher: Arc<Matcher>,
    /// A number that changes with the filter's matches.
    pub key: u64,
}

impl ShownFilter {
    /// Creates the filter from its text and its prepared form. `moment` is the moment on the screen
    /// if the matches depend on it, else 0.
    #[must_use]
    pub fn new(matcher: Arc<Matcher>, text: &str, moment: u64) -> Self {
        let mut hasher = DefaultHasher::new();
        (text, moment).hash(&mut hasher);
        Self { matcher, key: hasher.finish() }
    }
}
