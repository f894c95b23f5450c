//! Live memory by site, of any set of blocks.

use std::collections::HashMap;

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Block, SiteId};

/// The live blocks of one site among a set of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteHolding {
    /// The site.
    pub site: SiteId,
    /// Live bytes: allocated or pending free.
    pub bytes: u64,
    /// The part of `bytes` that is pending free.
    pub pending_bytes: u64,
    /// Bytes that the program requested for these blocks.
    pub requested_bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// Returns the live bytes of each site among `blocks`, largest first.
///
/// The bytes of all rows add up to the active bytes of the blocks; without `pending_bytes`, to
/// their allocated bytes.
#[must_use]
pub fn site_holdings<'a>(blocks: impl IntoIterator<Item = &'a Block>) -> Vec<SiteHolding> {
    holdings(&mut blocks.into_iter())
}

/// Implements [`site_holdings`] for all kinds of iterators, so that it is compiled once.
fn holdings(blocks: &mut dyn Iterator<Item = &Block>) -> Vec<SiteHolding> {
    let mut by_site: HashMap<SiteId, SiteHolding> = HashMap::new();
    for block in blocks {
        let holding = by_site.entry(block.site).or_insert(SiteHolding { site: block.site, ..SiteHolding::default() });
        holding.bytes = holding.bytes.saturating_add(block.size);
        holding.requested_bytes = holding.requested_bytes.saturating_add(block.requested);
        if block.pending_free {
            holding.pending_bytes = holding.pending_bytes.saturating_add(block.size);
        }
        holding.blocks += 1;
    }
    let mut holdings: Vec<SiteHolding> = by_site.into_values().collect();
    sort_by_key(&mut holdings, |holding| (std::cmp::Reverse(holding.bytes), holding.site));
    holdings
}
