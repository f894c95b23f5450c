//! The filters of several views: where steps begin for them, and the filter that pictures show.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use vramscope_insight::incremental::{KeptMatchers, StepStarts, uses_steps};
use vramscope_insight::query::{Condition, Matcher, Query};

use super::context::Context;

/// What the filters of several views share.
#[derive(Default)]
pub struct Searches {
    /// Filters prepared for the recording.
    pub matchers: KeptMatchers,
    /// The filter of a list in a pane, if one is typed.
    pub shown_filter: Option<ShownFilter>,
    /// Where steps begin, for ages in steps.
    pub step_starts: StepStarts,
}

/// Returns the moments at which training steps begin if a query counts in steps; else an empty
/// list.
pub(crate) fn step_starts(context: &Context<'_>, searches: &mut Searches, query: &Query) -> Arc<[u64]> {
    if uses_steps(query) {
        searches.step_starts.get(context.recording, context.marks, context.history, context.device)
    } else {
        Arc::default()
    }
}

/// Returns true if the allocations that match a query depend on the moment on the screen.
pub(crate) fn depends_on_moment(query: &Query) -> bool {
    query.terms().iter().any(|term| matches!(term.condition, Condition::Age(_) | Condition::Use(_)))
}

/// Returns the filter that the user has typed in a list, prepared for the recording; `None` if none
/// is typed, or it is invalid.
pub(crate) fn shown_filter(context: &Context<'_>, filter: &str, searches: &mut Searches) -> Option<ShownFilter> {
    let query = Query::parse(filter).ok().filter(|query| !query.is_empty())?;
    let steps = step_starts(context, searches, &query);
    let matcher = searches.matchers.get(context.recording, context.history, &query, &steps);
    let moment = if depends_on_moment(&query) { context.moment } else { 0 };
    let categories = if query.has_categories() { context.history.categories_generation() } else { 0 };
    Some(ShownFilter::new(matcher, query.text(), (moment, categories)))
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
    /// if the matches depend on it, else 0; `categories` the generation of the categories.
    pub fn new(matcher: Arc<Matcher>, text: &str, (moment, categories): (u64, u64)) -> Self {
        let mut hasher = DefaultHasher::new();
        (text, moment, categories).hash(&mut hasher);
        Self { matcher, key: hasher.finish() }
    }
}
