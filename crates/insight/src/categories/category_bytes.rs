//! The category of most bytes that each site requested.

use std::collections::HashMap;

use vramscope_trace::{Allocation, Category, Recording, SiteId};

use super::evidence::Sites;
use crate::group::{Confidence, KnownCategory};

/// The bytes of a site's allocations by category: made by recorded events, and older than the
/// recording.
type CategoryBytes = [[u64; Category::ALL.len()]; 2];

/// The bytes of each site's allocations by category.
#[derive(Debug, Default)]
pub(super) struct BytesBySite {
    by_site: HashMap<SiteId, CategoryBytes>,
}

impl BytesBySite {
    /// Adds an allocation.
    pub(super) fn add(&mut self, one: &Allocation, is_older: bool, known: Option<KnownCategory>) {
        let bytes = self.by_site.entry(one.site).or_default();
        let category = known.map_or(Category::Unknown, |known| known.category);
        let sum = &mut bytes[usize::from(is_older)][category as usize];
        *sum = sum.saturating_add(one.size);
    }

    /// Returns the category of most bytes of each site, by site number. A site without a stack has
    /// none, because requests of all kinds are made there; one without allocations has the one that
    /// its stack tells.
    pub(super) fn largest_categories(
        &self,
        recording: &Recording,
        sites: &mut Sites,
    ) -> Vec<[Option<KnownCategory>; 2]> {
        let definitions = recording.definitions();
        let largest = |id: SiteId| {
            let has_stack = definitions.stack_definition(definitions.site(id).stack).is_some();
            let bytes = self.by_site.get(&id).filter(|_| has_stack);
            [false, true].map(|is_older| {
                let bytes_of =
                    |category: Category| bytes.map_or(0, |sums| sums[usize::from(is_older)][category as usize]);
                let most = Category::ALL.into_iter().max_by_key(|category| bytes_of(*category));
                match most.filter(|category| bytes_of(*category) > 0) {
                    None => sites.expected(definitions, (id, is_older)),
                    Some(Category::Unknown) => None,
                    Some(category) => Some(KnownCategory { category, confidence: Confidence::Likely }),
                }
            })
        };
        let sites = 0..=u32::try_from(definitions.site_count()).unwrap_or(u32::MAX);
        sites.map(SiteId).map(largest).collect()
    }
}
