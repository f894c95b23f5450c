//! Free memory by pool and stream, the users of each private pool, and fragmentation over time.
//!
//! Free bytes are either *releasable* or *stuck*. Releasable are whole free segments and the whole
//! free pages of expandable segments: `empty_cache` returns them to the driver, except segments of
//! private pools that are in use. Stuck are the free bytes that share a segment, or a page, with a
//! live block. Both together are the free bytes in segments, so "free inside" a segment that also
//! has live blocks is the stuck part alone.
//!
//! Without expandable segments, the stuck bytes are PyTorch's `inactive_split_bytes`
//! ([`Metrics::inactive_split_bytes`](vramscope_trace::Metrics::inactive_split_bytes)). In
//! expandable segments PyTorch counts no stuck bytes, because pages can be released one by one.

mod breakdown;
mod device_owners;
pub(crate) mod event_walk;
mod first_above;
mod fragmentation_columns;
mod holdings;
mod largest_requests;
mod memory_tree;
mod private_pools;
mod request_sizes;
mod usage;

pub use breakdown::ReservedBreakdown;
pub use device_owners::DeviceOwners;
pub use first_above::{FirstAbove, FragmentationCrossing};
pub use fragmentation_columns::{
    ColumnSource, FragmentationColumn, FragmentationColumns, fragmentation_columns, sampled_fragmentation_columns,
};
pub use holdings::{SiteHolding, site_holdings};
pub use largest_requests::LargestRequests;
pub use memory_tree::{MemoryPart, OwnerRow, PartKind, memory_tree, owner_rows};
pub use private_pools::{PrivatePool, private_pools};
pub use request_sizes::{RequestSizes, UnfitShares};
pub(crate) use usage::partial_page_bytes;
pub use usage::{
    FreeMemory, PoolRow, PoolUsage, device_usage, free_memory, free_parts, pool_rows, releasable_by_device,
};
