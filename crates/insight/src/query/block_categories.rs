//! The categories of blocks, for filters.

use std::sync::Arc;

use vramscope_trace::{Allocation, Block, Category, Definitions, DeviceId, SiteId};

use crate::group::{KnownCategory, RecordingCategories};

/// The recorded category of each site, and the inferred categories of all blocks.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockCategories {
    /// By site number.
    recorded: Vec<Category>,
    inferred: Option<Arc<RecordingCategories>>,
    is_used: bool,
}

impl BlockCategories {
    /// Creates categories without sites.
    pub(super) fn new(inferred: Option<&Arc<RecordingCategories>>) -> Self {
        Self { recorded: Vec::new(), inferred: inferred.cloned(), is_used: true }
    }

    /// Adds the sites that were defined since the last call, if categories are used.
    pub(super) fn update(&mut self, definitions: &Definitions) {
        let sites = if self.is_used { definitions.site_count().saturating_add(1) } else { 0 };
        while let Ok(number) = u32::try_from(self.recorded.len())
            && self.recorded.len() < sites
        {
            self.recorded.push(definitions.site(SiteId(number)).category);
        }
    }

    /// Returns the category that was recorded for a site.
    pub(super) fn recorded(&self, site: SiteId) -> Category {
        self.recorded.get(site.0 as usize).copied().unwrap_or_default()
    }

    /// Returns the recorded category of a site, or else the inferred one that `known` returns.
    #[inline]
    fn category(&self, site: SiteId, known: impl FnOnce(&RecordingCategories) -> Option<KnownCategory>) -> Category {
        match (self.recorded(site), &self.inferred) {
            (Category::Unknown, Some(inferred)) => known(inferred).map_or(Category::Unknown, |known| known.category),
            (category, _) => category,
        }
    }

    /// Returns the category of a device's block.
    #[inline]
    pub(super) fn of_block(&self, device: DeviceId, block: &Block) -> Category {
        self.category(block.site, |inferred| inferred.of_block(device, block))
    }

    /// Returns the category of a device's allocation.
    #[inline]
    pub(super) fn of_allocation(&self, device: DeviceId, one: &Allocation) -> Category {
        self.category(one.site, |inferred| inferred.of_allocation(device, one))
    }

    /// Returns the category of the block that an event, given by its index, makes at an address.
    pub(super) fn of_request(&self, device: DeviceId, site: SiteId, (event, address): (u64, u64)) -> Category {
        self.category(site, |inferred| inferred.of_request(device, site, (event, address)))
    }

    /// Returns the category of most bytes that a site requested.
    pub(super) fn of_site(&self, site: SiteId) -> Category {
        self.category(site, |inferred| inferred.of_site(site, false))
    }
}
