//! Free memory that a request cannot use, and why.

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{DeviceState, PoolKey, PoolKind, StreamId, metrics_by_group};

/// Why the free blocks of a pool and stream cannot serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnusableReason {
    /// The pool and stream are the request's, but no block is large enough, or the allocator's
    /// settings keep a large enough one for other requests.
    OwnPool,
    /// The blocks belong to another stream.
    OtherStream,
    /// The blocks belong to the small pool and the request to the large one, or the other way
    /// around.
    OtherSizeClass(PoolKind),
    /// The blocks belong to a private pool that the request does not use.
    PrivatePool,
    /// The blocks belong to the default pool and the request to a private one.
    DefaultPool,
}

/// The free memory of one pool and stream, which a request cannot use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnusableFree {
    /// Size class and owner of the pool.
    pub pool: PoolKey,
    /// The stream whose requests it serves.
    pub stream: StreamId,
    /// Bytes of its free blocks.
    pub free_bytes: u64,
    /// Size of its largest free block in bytes.
    pub largest_bytes: u64,
    /// Why the request cannot use it.
    pub reason: UnusableReason,
}

impl UnusableReason {
    /// Returns the reason as a phrase for users, for example `belongs to another stream`.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::OwnPool => "no block is large enough or may be used",
            Self::OtherStream => "belongs to another stream",
            Self::OtherSizeClass(PoolKind::Small) => "belongs to the small pool",
            Self::OtherSizeClass(PoolKind::Large) => "belongs to the large pool",
            Self::PrivatePool => "belongs to a private pool",
            Self::DefaultPool => "belongs to the default pool",
        }
    }
}

/// Returns the pools and streams of a device with free memory that a request from `pool` on
/// `stream` cannot use, the one with the largest block first.
pub(super) fn unusable_free(state: &DeviceState, pool: PoolKey, stream: StreamId) -> Vec<UnusableFree> {
    let groups = metrics_by_group(state).into_iter().filter(|(_, metrics)| metrics.free.total > 0);
    let mut unusable: Vec<UnusableFree> = groups
        .map(|((other, other_stream), metrics)| {
            let reason = if other.owner != pool.owner {
                if other.owner == Default::default() {
                    UnusableReason::DefaultPool
                } else {
                    UnusableReason::PrivatePool
                }
            } else if other.kind != pool.kind {
                UnusableReason::OtherSizeClass(other.kind)
            } else if other_stream != stream {
                UnusableReason::OtherStream
            } else {
                UnusableReason::OwnPool
            };
            UnusableFree {
                pool: other,
                stream: other_stream,
                free_bytes: metrics.free.total,
                largest_bytes: metrics.free.largest,
                reason,
            }
        })
        .collect();
    sort_by_key(&mut unusable, |free| std::cmp::Reverse((free.largest_bytes, free.free_bytes)));
    unusable
}
