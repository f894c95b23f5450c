//! A row for every allocation, in columns of few bytes.
//!
//! ```text
//! bytes  column
//!     2  first moment       moments since the block's first row
//!     4  allocated for      moments until the program freed it; the largest two stand for "not yet" and "longer"
//!     2  pending for        moments from there until the free was done; likewise, and one for "nobody saw its end"
//!     4  address            units of 256 bytes within a TiB; which one, the origin says
//!     4  size               units of 256 bytes
//!     2  rounding           size - requested; the largest two stand for "size is in bytes, and requested too" and "in the dictionary"
//!     4  origin             site, stream, pool and TiB, in a dictionary
//! ```
//!
//! What does not fit stands beside: lives of more than 2³² moments, addresses that are no multiples of 256, sizes that fit neither way.

use std::collections::HashMap;

use super::Allocation;
use super::dictionary::{Dictionary, Mixed};
use crate::event::{Pool, StreamId};
use crate::site::SiteId;

/// Rows of a block at most. A row's number is its block's times this, plus its place in it.
pub(super) const BLOCK_ROWS: usize = 1024;
/// Blocks at most, so that a row's number has 32 bits and none is `u32::MAX`.
const MAX_BLOCKS: usize = (u32::MAX as usize) / BLOCK_ROWS;

/// What addresses and sizes are mostly multiples of: what RMM aligns to, and half of what PyTorch does.
const UNIT: u64 = 256;
/// log2 of the bytes that an address column spans.
const REGION_BITS: u32 = 40;
/// The region of the addresses that are no multiples of the unit: they stand beside, by number.
const ODD_REGION: u32 = u32::MAX;

const STILL: u32 = u32::MAX;
const LONG: u32 = u32::MAX - 1;
const STILL_PENDING: u16 = u16::MAX;
const LONG_PENDING: u16 = u16::MAX - 1;
/// Gone when it stopped being allocated, but the free was not seen.
const LOST: u16 = u16::MAX - 2;

const IN_DICTIONARY: u16 = u16::MAX;
const IN_BYTES: u16 = u16::MAX - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    site: SiteId,
    stream: StreamId,
    pool: Pool,
    region: u32,
}

impl Mixed for Origin {
    #[inline]
    fn mix(&self) -> u64 {
        let pool = self.pool.owner.1.wrapping_mul(31) ^ self.pool.owner.0.wrapping_mul(7) ^ self.pool.kind as u64;
        let small = u64::from(self.site.0) ^ u64::from(self.region).rotate_left(20) ^ pool.rotate_left(32);
        (small ^ self.stream.0.rotate_left(24)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// A size that fits no other way, and what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sizes {
    size: u64,
    requested: u64,
}

impl Mixed for Sizes {
    #[inline]
    fn mix(&self) -> u64 {
        (self.size ^ self.requested.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Up to 1,024 rows that follow each other.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// The first moment of the first row.
    base: u64,
    /// The rows were there in a full state, and nobody saw them come.
    unseen: bool,
    first_moment: Vec<u16>,
    allocated_for: Vec<u32>,
    pending_for: Vec<u16>,
    address: Vec<u32>,
    size: Vec<u32>,
    rounding: Vec<u16>,
    origin: Vec<u32>,
}

impl Block {
    fn new(base: u64, unseen: bool) -> Self {
        Self {
            base,
            unseen,
            first_moment: Vec::with_capacity(BLOCK_ROWS),
            allocated_for: Vec::with_capacity(BLOCK_ROWS),
            pending_for: Vec::with_capacity(BLOCK_ROWS),
            address: Vec::with_capacity(BLOCK_ROWS),
            size: Vec::with_capacity(BLOCK_ROWS),
            rounding: Vec::with_capacity(BLOCK_ROWS),
            origin: Vec::with_capacity(BLOCK_ROWS),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.first_moment.len()
    }

    pub(super) fn unseen(&self) -> bool {
        self.unseen
    }

    /// The first moment of the first row.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    #[inline]
    pub(super) fn first_moment(&self, index: usize) -> u64 {
        self.base + u64::from(self.first_moment[index])
    }

    /// How many rows begin at a moment or before it.
    pub(super) fn begun_by(&self, moment: u64) -> usize {
        let Some(since) = moment.checked_sub(self.base) else { return 0 };
        self.first_moment.partition_point(|&first| u64::from(first) <= since)
    }

    fn shrink(&mut self) {
        self.first_moment.shrink_to_fit();
        self.allocated_for.shrink_to_fit();
        self.pending_for.shrink_to_fit();
        self.address.shrink_to_fit();
        self.size.shrink_to_fit();
        self.rounding.shrink_to_fit();
        self.origin.shrink_to_fit();
    }

    fn size_in_memory(&self) -> usize {
        let wide = [&self.allocated_for, &self.address, &self.size, &self.origin].map(Vec::capacity);
        let narrow = [&self.first_moment, &self.pending_for, &self.rounding].map(Vec::capacity);
        size_of::<Self>() + 4 * wide.iter().sum::<usize>() + 2 * narrow.iter().sum::<usize>()
    }
}

/// When an allocation was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gone {
    pending_for: u64,
    lost: bool,
}

/// All rows of a device, in order of their first moments.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    blocks: Vec<Block>,
    len: usize,
    origins: Dictionary<Origin>,
    sizes: Dictionary<Sizes>,
    odd_addresses: Vec<u64>,
    /// How long those were allocated for whom the column is too narrow.
    long: HashMap<u32, u64>,
    /// How long their frees took for whom the column is too narrow.
    long_pending: HashMap<u32, Gone>,
}

/// What a row is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewRow {
    pub(super) first_moment: u64,
    /// Nobody saw it come.
    pub(super) unseen: bool,
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) stream: StreamId,
    pub(super) pool: Pool,
    pub(super) site: SiteId,
}

impl Rows {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Adds a row, whose first moment is not before the last one's; `None` where there are as many as can be numbered.
    #[inline]
    pub(super) fn push(&mut self, new: NewRow) -> Option<u32> {
        let fits = self.blocks.last().is_some_and(|block| {
            block.len() < BLOCK_ROWS
                && block.unseen == new.unseen
                && new.first_moment - block.base <= u64::from(u16::MAX)
        });
        if !fits {
            self.begin_block(new.first_moment, new.unseen)?;
        }
        let region = if new.address.is_multiple_of(UNIT) { (new.address >> REGION_BITS) as u32 } else { ODD_REGION };
        let address = if region == ODD_REGION {
            self.odd_addresses.push(new.address);
            self.odd_addresses.len() as u32 - 1
        } else {
            ((new.address & ((1 << REGION_BITS) - 1)) / UNIT) as u32
        };
        let (size, rounding) = self.fold_sizes(new.size, new.requested);
        let origin = self.origins.number(Origin { site: new.site, stream: new.stream, pool: new.pool, region });
        let number = self.blocks.len() - 1;
        let block = &mut self.blocks[number];
        block.first_moment.push((new.first_moment - block.base) as u16);
        block.allocated_for.push(STILL);
        block.pending_for.push(STILL_PENDING);
        block.address.push(address);
        block.size.push(size);
        block.rounding.push(rounding);
        block.origin.push(origin);
        self.len += 1;
        Some((number * BLOCK_ROWS + block.len() - 1) as u32)
    }

    #[inline(never)]
    fn begin_block(&mut self, base: u64, unseen: bool) -> Option<()> {
        if self.blocks.len() == MAX_BLOCKS {
            return None;
        }
        if let Some(last) = self.blocks.last_mut() {
            last.shrink();
        }
        self.blocks.push(Block::new(base, unseen));
        Some(())
    }

    #[inline]
    fn fold_sizes(&mut self, size: u64, requested: u64) -> (u32, u16) {
        let units = size / UNIT;
        if size.is_multiple_of(UNIT)
            && units <= u64::from(u32::MAX)
            && let Some(rounding) = size.checked_sub(requested)
            && rounding < u64::from(IN_BYTES)
        {
            (units as u32, rounding as u16)
        } else if size == requested && size <= u64::from(u32::MAX) {
            (size as u32, IN_BYTES)
        } else {
            (self.sizes.number(Sizes { size, requested }), IN_DICTIONARY)
        }
    }

    #[inline]
    pub(super) fn sizes(&self, block: &Block, index: usize) -> (u64, u64) {
        let size = block.size[index];
        match block.rounding[index] {
            IN_DICTIONARY => {
                let Sizes { size, requested } = *self.sizes.value(size);
                (size, requested)
            }
            IN_BYTES => (u64::from(size), u64::from(size)),
            rounding => {
                let size = u64::from(size) * UNIT;
                (size, size - u64::from(rounding))
            }
        }
    }

    #[inline]
    pub(super) fn address(&self, block: &Block, index: usize) -> u64 {
        let address = block.address[index];
        match self.origins.value(block.origin[index]).region {
            ODD_REGION => self.odd_addresses[address as usize],
            region => (u64::from(region) << REGION_BITS) + u64::from(address) * UNIT,
        }
    }

    /// The first moment at which it is not allocated any more; `None` where it is to the end.
    #[inline]
    pub(super) fn allocated_until(&self, number: usize, block: &Block, index: usize) -> Option<u64> {
        let allocated_for = match block.allocated_for[index] {
            STILL => return None,
            LONG => self.long.get(&row_number(number, index)).copied().unwrap_or(0),
            allocated_for => u64::from(allocated_for),
        };
        Some(block.first_moment(index) + allocated_for)
    }

    /// The first moment at which it is not active any more; `None` where it is to the end.
    #[inline]
    pub(super) fn active_until(&self, number: usize, block: &Block, index: usize) -> Option<u64> {
        let allocated_until = self.allocated_until(number, block, index)?;
        match block.pending_for[index] {
            STILL_PENDING => None,
            LOST => Some(allocated_until),
            LONG_PENDING => {
                self.long_pending.get(&row_number(number, index)).map(|gone| allocated_until + gone.pending_for)
            }
            pending_for => Some(allocated_until + u64::from(pending_for)),
        }
    }

    /// Everything about one row.
    pub(super) fn get(&self, number: usize, index: usize) -> Allocation {
        let block = &self.blocks[number];
        let (size, requested) = self.sizes(block, index);
        let Origin { site, stream, pool, .. } = *self.origins.value(block.origin[index]);
        let row = row_number(number, index);
        let lost = match block.pending_for[index] {
            LOST => true,
            LONG_PENDING => self.long_pending.get(&row).is_some_and(|gone| gone.lost),
            _ => false,
        };
        Allocation {
            address: self.address(block, index),
            size,
            requested,
            stream,
            pool,
            site,
            first_moment: block.first_moment(index),
            seen_to_begin: !block.unseen,
            allocated_until: self.allocated_until(number, block, index),
            active_until: self.active_until(number, block, index),
            seen_to_end: !lost,
        }
    }

    /// Where a row is.
    pub(super) fn place(row: u32) -> (usize, usize) {
        (row as usize / BLOCK_ROWS, row as usize % BLOCK_ROWS)
    }

    /// The program freed it; nothing where it did already.
    #[inline]
    pub(super) fn free(&mut self, row: u32, moment: u64) {
        let (number, index) = Self::place(row);
        let block = &mut self.blocks[number];
        if block.allocated_for[index] != STILL {
            return;
        }
        let allocated_for = moment - block.first_moment(index);
        block.allocated_for[index] = if allocated_for < u64::from(LONG) {
            allocated_for as u32
        } else {
            self.long.insert(row, allocated_for);
            LONG
        };
    }

    /// It is not active any more, whether the program was seen to free it or not; `lost` where the end itself was not seen.
    #[inline]
    pub(super) fn end(&mut self, row: u32, moment: u64, lost: bool) {
        let (number, index) = Self::place(row);
        let pending_for = match self.allocated_until(number, &self.blocks[number], index) {
            Some(allocated_until) => moment - allocated_until,
            None => {
                self.free(row, moment);
                0
            }
        };
        self.blocks[number].pending_for[index] = match (pending_for, lost) {
            (0, true) => LOST,
            (0.., false) if pending_for < u64::from(LOST) => pending_for as u16,
            _ => {
                self.long_pending.insert(row, Gone { pending_for, lost });
                LONG_PENDING
            }
        };
    }

    /// Gives back what only adding needs.
    pub(super) fn finish(&mut self) {
        if let Some(last) = self.blocks.last_mut() {
            last.shrink();
        }
        self.blocks.shrink_to_fit();
        self.origins.finish();
        self.sizes.finish();
        self.odd_addresses.shrink_to_fit();
    }

    /// Bytes of memory that they occupy, about.
    pub(super) fn size_in_memory(&self) -> usize {
        let spare = (self.blocks.capacity() - self.blocks.len()) * size_of::<Block>();
        let beside = self.odd_addresses.capacity() * 8 + self.long.capacity() * 17 + self.long_pending.capacity() * 25;
        let dictionaries = self.origins.size_in_memory() + self.sizes.size_in_memory();
        self.blocks.iter().map(Block::size_in_memory).sum::<usize>() + spare + beside + dictionaries
    }
}

fn row_number(block: usize, index: usize) -> u32 {
    (block * BLOCK_ROWS + index) as u32
}
