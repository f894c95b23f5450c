//! Matches sites against the terms of a query about text and sites. Each site has a bit.

use vramscope_trace::{Definitions, Site, SiteId, StackId, StringId, site_name};

use super::condition::{Condition, TextField};

/// A list of bits that grows at its end.
#[derive(Clone, Debug, Default)]
struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// Appends a bit.
    fn push(&mut self, bit: bool) {
        if self.len.is_multiple_of(64) {
            self.words.push(0);
        }
        if let Some(word) = self.words.last_mut() {
            *word |= u64::from(bit) << (self.len % 64);
        }
        self.len += 1;
    }

    /// Returns the bit at `index`; the first bit if the list is too short.
    #[inline]
    fn get(&self, index: usize) -> bool {
        let index = if index < self.len { index } else { 0 };
        self.words.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }
}

/// By the number of a string or stack, whether it meets a condition, as far as that is known.
#[derive(Clone, Debug, Default)]
struct Answers(Vec<Option<bool>>);

impl Answers {
    /// Returns the answer for a number, or `None` if it is not known yet.
    fn get(&self, id: u32) -> Option<bool> {
        self.0.get(id as usize).copied().flatten()
    }

    /// Stores the answer for a number that is defined, so that memory is bounded by the
    /// definitions.
    fn set(&mut self, id: u32, answer: bool) {
        let index = id as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some(answer);
    }
}

/// One term about text or a site, with its answers for strings, stacks and sites.
#[derive(Clone, Debug)]
struct SiteTerm {
    condition: Condition,
    is_negated: bool,
    strings: Answers,
    stacks: Answers,
    /// Whether the condition is met by each site, without the negation.
    sites: Bits,
}

impl SiteTerm {
    /// Returns true if the condition is met by a site.
    fn holds(&mut self, id: SiteId, definitions: &Definitions) -> bool {
        match self.condition {
            Condition::Text { .. } => self.text_holds(id, definitions),
            Condition::Site(wanted) => id == wanted,
            _ => false,
        }
    }

    /// Returns true if the condition is about text and met by a site.
    fn text_holds(&mut self, id: SiteId, definitions: &Definitions) -> bool {
        let site = definitions.site(id);
        let Condition::Text { field, text, line } = &self.condition else { return false };
        let (field, line) = (*field, *line);
        let in_category = |site: Site| field == TextField::Any && site.category.name().contains(text.as_str());
        match field {
            TextField::Mark => false,
            TextField::Site => site_name(definitions, id).to_lowercase().contains(text.as_str()),
            _ if in_category(site) => true,
            TextField::Any | TextField::Module
                if self.string_holds(site.scope, definitions)
                    || self.string_holds(site.compile_context, definitions) =>
            {
                true
            }
            TextField::Module => false,
            TextField::Any | TextField::Function | TextField::File => {
                self.stack_holds(site.stack, field, line, definitions)
            }
        }
    }

    /// Returns true if a frame of a stack meets the condition. Each stack is visited once.
    fn stack_holds(&mut self, id: StackId, field: TextField, line: Option<u32>, definitions: &Definitions) -> bool {
        // Walk outwards to a stack with a known answer, then answer the stacks on the way back.
        let mut links = Vec::new();
        let mut at = id;
        let mut answer = loop {
            if let Some(known) = self.stacks.get(at.0) {
                break known;
            }
            let Some(link) = definitions.stack_definition(at) else { break false };
            links.push((at, link.frame));
            at = link.caller;
        };
        while let Some((stack, frame)) = links.pop() {
            if !answer {
                let frame = definitions.frame(frame).unwrap_or_default();
                let is_line = line.is_none_or(|line| line == frame.line);
                let in_function = field != TextField::File && self.string_holds(frame.function, definitions);
                let in_file = field != TextField::Function && is_line && self.string_holds(frame.file, definitions);
                answer = in_function || in_file;
            }
            self.stacks.set(stack.0, answer);
        }
        answer
    }

    /// Returns true if a string contains the term's text. Each string is searched once.
    fn string_holds(&mut self, id: StringId, definitions: &Definitions) -> bool {
        if let Some(known) = self.strings.get(id.0) {
            return known;
        }
        let string = definitions.string(id);
        let answer = contains_text(&self.condition, string);
        // Strings that are not defined are empty.
        if !string.is_empty() {
            self.strings.set(id.0, answer);
        }
        answer
    }
}

/// Returns true if `condition` is about text and `string` contains the text, in any case.
fn contains_text(condition: &Condition, string: &str) -> bool {
    matches!(condition, Condition::Text { text, .. } if string.to_lowercase().contains(text.as_str()))
}

/// The terms of a query about text and sites, and the bits of each site: whether it matches them
/// all.
#[derive(Clone, Debug, Default)]
pub(super) struct SiteBits {
    terms: Vec<SiteTerm>,
    /// Whether a site matches all terms.
    all: Bits,
}

impl SiteBits {
    /// Creates bits without sites for terms, each a condition and whether it is negated.
    pub(super) fn new(terms: impl Iterator<Item = (Condition, bool)>) -> Self {
        let term = |(condition, is_negated)| SiteTerm {
            condition,
            is_negated,
            strings: Answers::default(),
            stacks: Answers::default(),
            sites: Bits::default(),
        };
        Self { terms: terms.map(term).collect(), all: Bits::default() }
    }

    /// Returns true if a condition depends only on the site. Conditions on text also apply to the
    /// names of marks.
    pub(super) fn is_about_site(condition: &Condition) -> bool {
        matches!(condition, Condition::Text { .. } | Condition::Site(_))
    }

    /// Adds the sites that were defined since the last call.
    pub(super) fn extend(&mut self, definitions: &Definitions) {
        let count = u32::try_from(definitions.site_count()).unwrap_or(u32::MAX - 1);
        let known = u32::try_from(self.all.len).unwrap_or(u32::MAX);
        for id in (known..=count).map(SiteId) {
            let mut matches = true;
            for term in &mut self.terms {
                let holds = term.holds(id, definitions);
                term.sites.push(holds);
                matches &= holds != term.is_negated;
            }
            self.all.push(matches);
        }
    }

    /// Returns true if a site matches all terms. An undefined site is the unknown site.
    #[inline]
    pub(super) fn matches(&self, site: SiteId) -> bool {
        self.all.get(site.0 as usize)
    }

    /// Returns true if an item without a site matches all terms: if all are negated.
    pub(super) fn matches_no_site(&self) -> bool {
        self.terms.iter().all(|term| term.is_negated)
    }

    /// Returns true if a mark with a name, at a site, matches all terms.
    pub(super) fn matches_mark(&self, site: SiteId, name: &str) -> bool {
        self.terms.iter().all(|term| {
            let is_named = match &term.condition {
                Condition::Text { field: TextField::Any | TextField::Mark, line: None, .. } => {
                    contains_text(&term.condition, name)
                }
                _ => false,
            };
            (is_named || term.sites.get(site.0 as usize)) != term.is_negated
        })
    }
}
