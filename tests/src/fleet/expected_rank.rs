//! What a server must show of a rank.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde::{Deserialize, Serialize};
use vramscope_trace::{Block, DeviceState, SiteId};

use super::pushing_rank::PushingRank;

/// What a server must show of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedRank {
    /// The number of the rank.
    pub rank: u32,
    /// The identity of its process at the broker.
    pub identity: String,
    /// Allocated bytes of its device.
    pub allocated: u64,
    /// A hash of its device's counters and blocks.
    digest: u64,
}

impl ExpectedRank {
    /// Returns true if a device of a merged recording shows what the rank has.
    #[must_use]
    pub fn is_shown_by(&self, merged: &DeviceState) -> bool {
        state_digest(merged) == self.digest
    }
}

impl From<&PushingRank> for ExpectedRank {
    fn from(rank: &PushingRank) -> Self {
        let device = rank.program.device();
        let allocated = device.counters().allocated;
        Self { rank: rank.rank, identity: rank.identity(), allocated, digest: state_digest(device) }
    }
}

impl From<&Self> for ExpectedRank {
    fn from(expected: &Self) -> Self {
        expected.clone()
    }
}

/// Returns a hash of a device's counters and blocks. It is the same in a merged recording: numbers
/// of sites and events, and times, depend on other ranks and are left out.
fn state_digest(device: &DeviceState) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{:?}", device.counters()).hash(&mut hasher);
    for block in device.blocks() {
        let plain = Block { site: SiteId(0), since_event: 0, since_ns: 0, ..*block };
        format!("{plain:?}").hash(&mut hasher);
    }
    hasher.finish()
}
