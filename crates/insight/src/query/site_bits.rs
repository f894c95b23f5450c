//! Matches sites against the terms of a query about text, sites and categories. Each site has two
//! bits, because the inferred category depends on whether a block is older than the recording.

use vramscope_trace::{Definitions, Site, SiteId, StackId, StringId, site_name};

use super::condition::{Condition, TextField, category_bit};
use crate::group::{GroupBy, Grouping};

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

/// Two bits for each site, by site number: for memory requested by recorded events, and for memory
/// older than the recording.
#[derive(Clone, Debug, Default)]
struct BitsBySite([Bits; 2]);

impl BitsBySite {
    /// Appends the bits of a site.
    fn push(&mut self, [recorded, older]: [bool; 2]) {
        self.0[0].push(recorded);
        self.0[1].push(older);
    }

    /// Returns a bit of a site; that of the unknown site if the site is not defined.
    #[inline]
    fn get(&self, site: SiteId, is_older: bool) -> bool {
        self.0[usize::from(is_older)].get(site.0 as usize)
    }

    /// Returns the number of sites.
    fn len(&self) -> usize {
        self.0[0].len
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

/// One term about text, a site or categories, with its answers for strings, stacks and sites.
#[derive(Clone, Debug)]
struct SiteTerm {
    condition: Condition,
    is_negated: bool,
    strings: Answers,
    stacks: Answers,
    /// Whether the condition is met, without the negation.
    sites: BitsBySite,
}

impl SiteTerm {
    /// Returns whether the condition is met by a site, for memory requested by recorded events and
    /// for memory older than the recording.
    fn holds(&mut self, id: SiteId, definitions: &Definitions, categories: Option<&Grouping>) -> [bool; 2] {
        match self.condition {
            Condition::Text { .. } => [self.text_holds(id, definitions); 2],
            Condition::Site(wanted) => [id == wanted; 2],
            Condition::Categories(wanted) => [false, true].map(|is_older| {
                let category = categories.map(|categories| categories.category(id, is_older).category);
                category.is_some_and(|category| wanted & category_bit(category) != 0)
            }),
            _ => [false; 2],
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

/// The memory that an event is about, from which its category follows.
#[derive(Clone, Copy, Debug)]
pub(super) enum EventMemory {
    /// A block, by its site and its first moment.
    Block(SiteId, u64),
    /// A block that is not known; it has no category.
    UnknownBlock,
    /// None: only the category that was recorded for the event's own site counts.
    None,
}

/// The terms of a query about text, sites and categories, and the bits of each site: whether it
/// matches them all.
#[derive(Clone, Debug, Default)]
pub(super) struct SiteBits {
    terms: Vec<SiteTerm>,
    /// Whether a site matches all terms.
    all: BitsBySite,
    /// The category of each site as tables show it; `None` if no term is about categories.
    categories: Option<Grouping>,
}

impl SiteBits {
    /// Creates bits without sites for terms, each a condition and whether it is negated.
    /// `first_event` is the index (from 0) of the recording's first event.
    pub(super) fn new(terms: impl Iterator<Item = (Condition, bool)>, first_event: u64) -> Self {
        let term = |(condition, is_negated)| SiteTerm {
            condition,
            is_negated,
            strings: Answers::default(),
            stacks: Answers::default(),
            sites: BitsBySite::default(),
        };
        let terms: Vec<SiteTerm> = terms.map(term).collect();
        let has_categories = terms.iter().any(|term| matches!(term.condition, Condition::Categories(_)));
        let categories = has_categories.then(|| Grouping::new(GroupBy::Category, first_event));
        Self { terms, all: BitsBySite::default(), categories }
    }

    /// Returns true if a condition depends only on the site and on whether the memory is older than
    /// the recording. Conditions on text also apply to the names of marks.
    pub(super) fn is_about_site(condition: &Condition) -> bool {
        matches!(condition, Condition::Text { .. } | Condition::Site(_) | Condition::Categories(_))
    }

    /// Adds the sites that were defined since the last call. Returns true if the bits of earlier
    /// sites may have changed, see [`Grouping::update`].
    pub(super) fn extend(&mut self, definitions: &Definitions) -> bool {
        let has_changed = self.categories.as_mut().is_some_and(|categories| categories.update(definitions));
        if has_changed {
            self.all = BitsBySite::default();
            self.terms.iter_mut().for_each(|term| term.sites = BitsBySite::default());
        }
        let count = u32::try_from(definitions.site_count()).unwrap_or(u32::MAX - 1);
        let known = u32::try_from(self.all.len()).unwrap_or(u32::MAX);
        for id in (known..=count).map(SiteId) {
            let mut matches = [true; 2];
            for term in &mut self.terms {
                let holds = term.holds(id, definitions, self.categories.as_ref());
                term.sites.push(holds);
                for (matches, holds) in matches.iter_mut().zip(holds) {
                    *matches &= holds != term.is_negated;
                }
            }
            self.all.push(matches);
        }
        has_changed
    }

    /// Returns true if memory that was requested at a site and exists since `first_moment` matches
    /// all terms. An undefined site is the unknown site.
    #[inline]
    pub(super) fn matches(&self, site: SiteId, first_moment: u64) -> bool {
        self.all.get(site, self.is_older(first_moment))
    }

    /// Returns true if memory that exists since `first_moment` counts as older than the recording;
    /// false if no term depends on it.
    #[inline]
    fn is_older(&self, first_moment: u64) -> bool {
        self.categories.as_ref().is_some_and(|categories| categories.is_older(first_moment))
    }

    /// Returns true if an item without a site matches all terms: if all are negated.
    pub(super) fn matches_no_site(&self) -> bool {
        self.terms.iter().all(|term| term.is_negated)
    }

    /// Returns true if an event at a site matches all terms. `mark_name` is the name of a mark;
    /// `memory` is the block or segment of the event.
    pub(super) fn matches_event(
        &self,
        site: SiteId,
        mark_name: Option<&str>,
        memory: EventMemory,
        definitions: &Definitions,
    ) -> bool {
        self.terms.iter().all(|term| {
            let holds = match (&term.condition, memory) {
                (Condition::Categories(_), EventMemory::Block(site, first_moment)) => {
                    term.sites.get(site, self.is_older(first_moment))
                }
                (Condition::Categories(_), EventMemory::UnknownBlock) => false,
                (Condition::Categories(wanted), EventMemory::None) => {
                    wanted & category_bit(definitions.site(site).category) != 0
                }
                (Condition::Text { field: TextField::Any | TextField::Mark, line: None, .. }, _) => {
                    let is_name = mark_name.is_some_and(|name| contains_text(&term.condition, name));
                    is_name || term.sites.get(site, false)
                }
                _ => term.sites.get(site, false),
            };
            holds != term.is_negated
        })
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::Category;

    use super::*;
    use crate::frames::test_definitions::TestSites;

    #[test]
    fn category_of_a_request_without_frames_depends_on_its_age() {
        let gradient = Condition::Categories(category_bit(Category::Gradient));
        let mut bits = SiteBits::new([(gradient.clone(), false)].into_iter(), 10);
        let mut negated = SiteBits::new([(gradient, true)].into_iter(), 10);
        let mut sites = TestSites::default();
        sites.site("loss", Category::Unknown, &[]);
        let mut check = |sites: &TestSites, has_changed: bool, expected: &[(SiteId, u64)]| {
            assert_eq!(bits.extend(sites.definitions()), has_changed);
            assert_eq!(negated.extend(sites.definitions()), has_changed);
            for site in (0..9).map(SiteId) {
                for first_moment in [0, 11, 12, u64::MAX] {
                    let is_expected = expected.contains(&(site, first_moment));
                    assert_eq!(bits.matches(site, first_moment), is_expected, "{site:?} since {first_moment}");
                    assert_eq!(negated.matches(site, first_moment), !is_expected, "{site:?} since {first_moment}");
                }
            }
        };
        check(&sites, false, &[]);
        // Once Python stacks are known, requests without one belong to the backward pass, unless
        // they are older than the recording; so do requests at sites 3 to 8, which are not defined.
        sites.stack(&[("train.py", 3, "train")]);
        let without_frames = [0, 1, 3, 4, 5, 6, 7, 8].map(SiteId);
        let newer: Vec<_> = without_frames.into_iter().flat_map(|site| [(site, 12), (site, u64::MAX)]).collect();
        check(&sites, true, &newer);
        // A recorded category does not depend on the age.
        let recorded = sites.site("loss", Category::Gradient, &[]);
        let recorded = [0, 11, 12, u64::MAX].map(|first_moment| (recorded, first_moment));
        let undefined = |&&(site, _): &&(SiteId, u64)| site != SiteId(3);
        let expected: Vec<_> = newer.iter().filter(undefined).copied().chain(recorded).collect();
        check(&sites, false, &expected);
    }
}
