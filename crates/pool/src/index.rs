//! Indices into the arenas of blocks, block pools and stream pools.
//!
//! They are in a file of their own because blocks and stream pools refer to each other.

use std::num::NonZeroU32;

use vramscope_trace::PoolKind;

/// A block's index in the block arena; constant while the block exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockIndex(NonZeroU32);

impl BlockIndex {
    /// Returns `None` for 0 and for indices over 32 bits.
    #[inline]
    pub(crate) fn new(index: usize) -> Option<Self> {
        u32::try_from(index).ok().and_then(NonZeroU32::new).map(Self)
    }

    /// Returns the index in the arena of blocks.
    #[inline]
    pub(crate) fn get(self) -> usize {
        self.0.get() as usize
    }
}

/// A block pool's index among all block pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPoolIndex(u32);

impl BlockPoolIndex {
    /// Returns the default pool of a size class. The default pools are created first, in the order
    /// of [`PoolKind`].
    #[inline]
    pub(crate) fn default_of(kind: PoolKind) -> Self {
        Self(kind as u32)
    }

    pub(crate) fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("2^32 pools do not fit in a process's memory"))
    }

    /// Returns the index in the list of block pools.
    #[inline]
    pub(crate) fn get(self) -> usize {
        self.0 as usize
    }
}

/// A stream pool's index among all stream pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamPoolIndex(u32);

impl StreamPoolIndex {
    pub(crate) fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("2^32 stream pools do not fit in a process's memory"))
    }

    /// Returns the index in the list of stream pools.
    #[inline]
    pub(crate) fn get(self) -> usize {
        self.0 as usize
    }
}
