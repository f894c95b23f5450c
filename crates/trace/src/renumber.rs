//! One recording's memory as another recording tells of it.

use crate::address_map::AddressMap;
use crate::device_state::DeviceState;
use crate::site::SiteId;
use crate::state::{Block, Segment};

impl DeviceState {
    /// The same memory in a recording that has other numbers for sites and events, and other times: `segment` gives a segment's
    /// site and `since_event`, `block` a block's site, `since_event` and `since_ns`.
    #[must_use]
    pub fn renumbered(
        &self,
        mut segment: impl FnMut(&Segment) -> (SiteId, u64),
        mut block: impl FnMut(&Block) -> (SiteId, u64, u64),
    ) -> Self {
        let mut segments = AddressMap::default();
        for &known in self.segments() {
            let (site, since_event) = segment(&known);
            segments.insert_apart(Segment { site, since_event, ..known });
        }
        let mut blocks = AddressMap::default();
        for &known in self.blocks() {
            let (site, since_event, since_ns) = block(&known);
            blocks.insert_apart(Block { site, since_event, since_ns, ..known });
        }
        Self { segments, blocks, ..*self }
    }
}
