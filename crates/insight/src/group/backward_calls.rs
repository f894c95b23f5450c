//! The lines of a program that call the backward pass.

use vramscope_trace::{Definitions, SiteId, StringId};

use crate::frames::{FactsCache, FrameMark, WhyNoStack, line_name};

/// The beginning of the name of memory that the backward pass requests.
pub(crate) const BACKWARD_PASS: &str = "backward pass";
/// Maximum number of lines that a name lists.
const MAX_LINES: usize = 3;

/// The lines of a program that call the backward pass, which PyTorch runs on threads without Python
/// frames. The gradient with which a pass begins is requested where the program calls it.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackwardCalls {
    /// File and line of each, in the order in which they were found; at most one more than a name
    /// lists.
    lines: Vec<(StringId, u32)>,
}

impl BackwardCalls {
    /// Finds the lines of all sites that are defined.
    pub(crate) fn new(definitions: &Definitions, facts: &mut FactsCache) -> Self {
        let mut calls = Self::default();
        for site in 1..=u32::try_from(definitions.site_count()).unwrap_or(u32::MAX) {
            calls.add(definitions, SiteId(site), facts);
        }
        calls
    }

    /// Adds the line of a site that calls the backward pass. Returns true if it is new.
    pub(super) fn add(&mut self, definitions: &Definitions, site: SiteId, facts: &mut FactsCache) -> bool {
        if self.lines.len() > MAX_LINES {
            return false;
        }
        let facts = facts.get(definitions, definitions.site(site).stack);
        let call = facts.innermost_own().filter(|_| facts.marks.contains(FrameMark::BackwardCall));
        let Some(frame) = call.and_then(|frame| definitions.frame(frame)) else { return false };
        let line = (frame.file, frame.line);
        if self.lines.contains(&line) {
            return false;
        }
        self.lines.push(line);
        true
    }

    /// Returns the name of memory without a stack that the backward pass requests; `None` if it has
    /// no stack for another reason, no line that calls the pass is known, or too many are.
    pub(crate) fn name_of(&self, definitions: &Definitions, why: WhyNoStack) -> Option<String> {
        let names: Vec<String> = self.lines.iter().map(|(file, line)| line_name(definitions, *file, *line)).collect();
        let is_known = why == WhyNoStack::NoPythonFrames && (1..=MAX_LINES).contains(&names.len());
        is_known.then(|| format!("{BACKWARD_PASS} called at {}", names.join(" or ")))
    }
}
