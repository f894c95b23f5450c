//! The memory of each private pool, and its users.

use vramscope_pool::Settings;
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Block, DeviceState, MempoolId};

use super::holdings::{SiteHolding, site_holdings};
use super::usage::{PoolUsage, pool_rows};

/// A private pool of a device: its memory, and which sites hold its live blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrivatePool {
    /// The pool's id.
    pub owner: MempoolId,
    /// Its memory, of both size classes and all streams.
    pub usage: PoolUsage,
    /// The sites of its live blocks, largest first.
    pub holdings: Vec<SiteHolding>,
}

/// Returns the private pools of a device in the order of their ids. The default pool is not one.
#[must_use]
pub fn private_pools(device: &DeviceState, settings: &Settings) -> Vec<PrivatePool> {
    let is_private = |owner: MempoolId| owner != MempoolId::default();
    let mut rows = pool_rows(device, settings);
    rows.retain(|row| is_private(row.pool.owner));
    sort_by_key(&mut rows, |row| row.pool.owner);
    let mut blocks: Vec<&Block> = device.blocks().filter(|block| is_private(block.pool.owner)).collect();
    sort_by_key(&mut blocks, |block| block.pool.owner);
    rows.chunk_by(|one, next| one.pool.owner == next.pool.owner)
        .map(|rows| {
            let owner = rows[0].pool.owner;
            let start = blocks.partition_point(|block| block.pool.owner < owner);
            let end = blocks.partition_point(|block| block.pool.owner <= owner);
            PrivatePool {
                owner,
                usage: rows.iter().map(|row| &row.usage).sum(),
                holdings: site_holdings(blocks[start..end].iter().copied()),
            }
        })
        .collect()
}
