//! Indices into the arenas of blocks, block pools and stream pools.
//!
//! They are in a file of their own because blocks and stream pools refer to each other.

use std::num::NonZeroU32;

use vramscope_trace::PoolKind;

/// A block's index in the arena of all blocks; constant while the block exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlockIndex(NonZeroU32);

impl BlockIndex {
    /// Returns `None` for 0 and for indices over 32 bits.
    #[inline]
    pub(crate) fn new(index: usize) -> Option<Self> {
        u32::try_from(index).ok().and_then(NonZeroU32::new).map(Self)
    }

    /// Returns the position in the arena of all blocks; at least 1.
    #[inline]
    pub(crate) fn get(self) -> usize {
        self.0.get() as usize
    }
}

/// The index of a block pool (one size class of the default pool or of a private pool) in the list
/// of all block pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPoolIndex(u32);

impl BlockPoolIndex {
    /// Returns the index of the default pool's block pool for the size class `kind`.
    #[inline]
    pub(crate) fn default_of(kind: PoolKind) -> Self {
        Self(kind as u32)
    }

    pub(crate) fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("2^32 pools do not fit in a process's memory"))
    }

    /// Returns the position in the list of all block pools, from 0.
    #[inline]
    pub(crate) fn get(self) -> usize {
        self.0 as usize
    }
}

/// The index of a stream pool (the free blocks of one stream in one block pool) in the list of all
/// stream pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamPoolIndex(u32);

impl StreamPoolIndex {
    pub(crate) fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("2^32 stream pools do not fit in a process's memory"))
    }

    /// Returns the position in the list of all stream pools, from 0.
    #[inline]
    pub(crate) fn get(self) -> usize {
        self.0 as usize
    }
}
