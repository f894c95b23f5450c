//! Why a block has no call stack to show.

use vramscope_trace::{Definitions, SiteId};

use super::facts::FactsCache;

/// The kinds of call stacks that a recording contains.
///
/// A request without a stack means different things in a recording without stacks, and in one with
/// the Python stacks of other requests.
#[derive(Clone, Debug, Default)]
pub struct RecordedStacks {
    sites_seen: usize,
    has_stacks: bool,
    has_python: bool,
    facts: FactsCache,
}

impl RecordedStacks {
    /// Looks at all sites defined so far.
    #[must_use]
    pub fn new(definitions: &Definitions) -> Self {
        let mut recorded = Self::default();
        recorded.update(definitions);
        recorded
    }

    /// Looks at the sites defined since the last call, of a recording that grows. Returns true if
    /// the result of another method has changed.
    pub fn update(&mut self, definitions: &Definitions) -> bool {
        let before = (self.has_stacks, self.has_python);
        while self.sites_seen < definitions.site_count() && !self.has_python {
            self.sites_seen += 1;
            let site = definitions.site(SiteId(u32::try_from(self.sites_seen).unwrap_or(0)));
            let facts = self.facts.get(definitions, site.stack);
            self.has_stacks |= facts.frames > 0;
            self.has_python |= facts.has_python();
        }
        if self.has_python {
            // Nothing can change any more, so the facts are not needed.
            self.facts = FactsCache::default();
        }
        before != (self.has_stacks, self.has_python)
    }

    /// Returns true if any site has a call stack.
    #[must_use]
    pub fn has_stacks(&self) -> bool {
        self.has_stacks
    }

    /// Returns true if any site has a Python frame.
    #[must_use]
    pub fn has_python(&self) -> bool {
        self.has_python
    }

    /// Returns why a free has no call stack, as a sentence.
    #[must_use]
    pub fn why_free_has_none(&self) -> &'static str {
        if self.has_stacks {
            "Stack not recorded: no Python code was running at this free, or stacks were recorded for allocations \
             only. In PyTorch, record with context=\"all\"."
        } else {
            WhyNoStack::NoStacksRecorded.sentence()
        }
    }

    /// Returns why a request without any frame has none; `before_recording` tells whether it was
    /// made before the recording began.
    #[must_use]
    pub fn why_missing(&self, before_recording: bool) -> WhyNoStack {
        match () {
            () if before_recording => WhyNoStack::BeforeRecording,
            () if !self.has_stacks => WhyNoStack::NoStacksRecorded,
            () if self.has_python => WhyNoStack::NoPythonFrames,
            () => WhyNoStack::UnknownSite,
        }
    }
}

/// Why a block has no call stack, or no line of the program in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WhyNoStack {
    /// The block is older than the recording.
    BeforeRecording,
    /// The recording contains no stacks at all.
    NoStacksRecorded,
    /// The recording contains Python stacks, and the requesting thread ran no Python code.
    NoPythonFrames,
    /// The recording does not contain the site.
    UnknownSite,
    /// The stack has only C++ frames of libraries.
    LibraryOnly,
}

impl WhyNoStack {
    /// Returns the reason in a few words, for a row of a table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BeforeRecording => "allocated before recording began",
            Self::NoStacksRecorded => "no stacks recorded",
            Self::NoPythonFrames => "backward pass (no line recorded)",
            Self::UnknownSite => "no line recorded",
            Self::LibraryOnly => "library code (no line recorded)",
        }
    }

    /// Returns the reason as a sentence, with a next step where there is one.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::BeforeRecording => {
                "Allocated before recording began, so its stack is unknown. Start recording before the model is \
                 created."
            }
            Self::NoStacksRecorded => {
                "This recording was made without stacks. \
                 In PyTorch, record with torch.cuda.memory._record_memory_history(stacks=\"all\")."
            }
            Self::NoPythonFrames => {
                "Requested on a thread that runs no Python code, as PyTorch's backward pass does, and only Python \
                 frames were recorded. Record with stacks=\"all\" to see the C++ frames."
            }
            Self::UnknownSite => "The recording does not say where this was requested.",
            Self::LibraryOnly => {
                "The stack has no frame of your program: the request was made on a thread of a library, such as \
                 PyTorch's backward pass."
            }
        }
    }
}

/// Returns why a site shows no frame of the program, or `None` if it shows one.
///
/// `before_recording` tells whether the block is older than the recording: its first moment is at
/// most [`Recording::first_event`](vramscope_trace::Recording::first_event).
#[must_use]
pub fn why_no_stack(
    definitions: &Definitions,
    recorded: &RecordedStacks,
    site: SiteId,
    before_recording: bool,
) -> Option<WhyNoStack> {
    if definitions.stack_definition(definitions.site(site).stack).is_none() {
        return Some(recorded.why_missing(before_recording));
    }
    super::facts::innermost_own_frame(definitions, site).is_none().then_some(WhyNoStack::LibraryOnly)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::test_definitions::TestSites;

    #[test]
    fn reasons_follow_from_what_was_recorded() {
        let mut sites = TestSites::default();
        let unknown = SiteId(0);
        let mut recorded = RecordedStacks::new(sites.definitions());
        let why = |sites: &TestSites, recorded: &RecordedStacks, site, before| {
            why_no_stack(sites.definitions(), recorded, site, before)
        };
        assert_eq!(why(&sites, &recorded, unknown, false), Some(WhyNoStack::NoStacksRecorded));
        assert_eq!(why(&sites, &recorded, unknown, true), Some(WhyNoStack::BeforeRecording));
        assert_eq!(recorded.why_free_has_none(), WhyNoStack::NoStacksRecorded.sentence());
        let native = sites.stack(&[("??", 0, "__clone"), ("", 0, "at::empty()")]);
        assert!(recorded.update(sites.definitions()));
        assert_eq!(why(&sites, &recorded, native, false), Some(WhyNoStack::LibraryOnly));
        assert!(recorded.why_free_has_none().starts_with("Stack not recorded: "));
        assert_eq!(why(&sites, &recorded, unknown, false), Some(WhyNoStack::UnknownSite));
        let python = sites.stack(&[("train.py", 3, "main")]);
        assert!(recorded.update(sites.definitions()));
        assert!(!recorded.update(sites.definitions()));
        assert_eq!(why(&sites, &recorded, python, false), None);
        assert_eq!(why(&sites, &recorded, unknown, false), Some(WhyNoStack::NoPythonFrames));
        assert_eq!(why(&sites, &recorded, SiteId(99), true), Some(WhyNoStack::BeforeRecording));
    }
}
