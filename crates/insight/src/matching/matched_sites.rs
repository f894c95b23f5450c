//! Numbers the sites of two recordings together.

use std::collections::{BTreeMap, HashMap, HashSet};

use vramscope_trace::{Definitions, Lifetimes, PerRecording, SiteId, shared_site_numbers, site_name};

use super::budget::Budget;
use super::code_map::in_terms_of_b;
use super::requested_churn::{RequestedChurn, churn_by_site};

/// Maximum number of steps for finding moved and renamed code: about a second, or a few in the
/// page.
const MAX_STEPS: usize = 20_000_000;

/// The sites of two recordings, A and B, that match, also where code has moved or was renamed.
#[derive(Clone, Debug)]
pub struct MatchedSites {
    numbers: PerRecording<Vec<SiteId>>,
    definitions_of_a: Definitions,
    is_limited: bool,
}

impl MatchedSites {
    /// Matches the sites of two recordings by their call stacks, and by the allocations that were
    /// made at each line, which the lifetimes tell: without them, lines that moved are only found
    /// where no other line has their number.
    #[must_use]
    pub fn new(a: (&Definitions, &Lifetimes), b: (&Definitions, &Lifetimes)) -> Self {
        let mut budget = Budget::new(MAX_STEPS);
        let (churn_a, churn_b) = (churn(a.1), churn(b.1));
        let definitions_of_a = in_terms_of_b((a.0, &churn_a), (b.0, &churn_b), &mut budget);
        let mut numbers = shared_site_numbers(&definitions_of_a, b.0);
        match_by_name(&mut numbers, (&definitions_of_a, b.0));
        Self { numbers, definitions_of_a, is_limited: budget.is_exceeded() }
    }

    /// Matches the sites of two recordings by their call stacks alone: if a line has moved and
    /// another line has its number now, both are taken for one line.
    #[must_use]
    pub fn by_stacks(a: &Definitions, b: &Definitions) -> Self {
        Self { numbers: shared_site_numbers(a, b), definitions_of_a: a.clone(), is_limited: false }
    }

    /// Matches each site of a recording with itself, to compare two moments of the recording.
    #[must_use]
    pub fn of_one_recording(definitions: &Definitions) -> Self {
        Self::by_stacks(definitions, definitions)
    }

    /// Returns a number for each site of both recordings, indexed by site number (index 0 is the
    /// unknown site): sites that match have equal numbers.
    #[must_use]
    pub fn numbers(&self) -> &PerRecording<Vec<SiteId>> {
        &self.numbers
    }

    /// Returns A's definitions with the files, functions and lines that they have in B.
    #[must_use]
    pub fn definitions_of_a(&self) -> &Definitions {
        &self.definitions_of_a
    }

    /// Returns true if the programs differ in so much code that not everything that moved or was
    /// renamed was searched for.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.is_limited
    }
}

/// Returns the recorded allocations of each site on all devices.
fn churn(lifetimes: &Lifetimes) -> BTreeMap<SiteId, RequestedChurn> {
    let mut sum: BTreeMap<SiteId, RequestedChurn> = BTreeMap::new();
    for (_, of_device) in lifetimes.devices() {
        for (site, churn) in churn_by_site(Some(of_device)) {
            sum.entry(site).or_default().add_all(churn);
        }
    }
    sum
}

/// Gives equal numbers to the sites that still lack a match and have the same name and category:
/// their stacks differ in frames that no table shows, such as the caller of the training loop.
fn match_by_name(numbers: &mut PerRecording<Vec<SiteId>>, (a, b): (&Definitions, &Definitions)) {
    let unmatched = |own: &[SiteId], other: &[SiteId], definitions: &Definitions| {
        let other: HashSet<SiteId> = other.iter().copied().collect();
        let sites = (0..).map(SiteId).zip(own).filter(|(_, number)| !other.contains(number));
        let named = sites.map(|(site, _)| (site, (site_name(definitions, site), definitions.site(site).category)));
        named.collect::<Vec<_>>()
    };
    let (only_a, only_b) = (unmatched(&numbers.a, &numbers.b, a), unmatched(&numbers.b, &numbers.a, b));
    let mut by_name = HashMap::new();
    for (site, name) in &only_b {
        by_name.entry(name).or_insert(numbers.b[site.0 as usize]);
    }
    let mut matched = HashSet::new();
    for (site, name) in &only_a {
        if let Some(number) = by_name.get(name) {
            numbers.a[site.0 as usize] = *number;
            matched.insert(name);
        }
    }
    for (site, name) in only_b.iter().filter(|(_, name)| matched.contains(name)) {
        numbers.b[site.0 as usize] = by_name[name];
    }
}
