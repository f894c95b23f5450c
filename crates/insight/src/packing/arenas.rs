//! The buffers of a recorded device, and their placement.

use std::collections::BTreeMap;

use vramscope_pool::MIN_BLOCK_BYTES;
use vramscope_trace::{DeviceLifetimes, MempoolId, StreamId};

use super::budget::Budget;
use super::buffer::{Buffer, InvalidBuffer};
use super::packer::{Packer, PackingState};
use super::problem::check_total;

/// Steps for one arena before the next one's turn.
const TURN_STEPS: u64 = 20_000_000;

/// What can share memory: allocations of one stream in one pool.
///
/// Memory that is freed on one stream can still be in use by kernels that run later on that stream,
/// so another stream would have to wait. A private pool's addresses stay in the CUDA graphs that
/// were captured with it, and are used whenever a graph runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArenaKey {
    /// The stream of the requests.
    pub stream: StreamId,
    /// The private pool, or the default pool.
    pub mempool: MempoolId,
}

/// The buffers of one stream and pool.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Arena {
    /// The stream and the pool.
    key: ArenaKey,
    /// The requests, rounded up to 512 B; times are event numbers.
    buffers: Vec<Buffer>,
    /// The row number of each buffer's allocation, see [`DeviceLifetimes`].
    rows: Vec<u32>,
}

/// Returns the buffers of a device, separate for each stream and pool.
///
/// A buffer lives from its allocation until its free is completed; those that are not freed, to the
/// end.
fn lifetimes(device: &DeviceLifetimes) -> Vec<Arena> {
    let mut arenas: BTreeMap<ArenaKey, Arena> = BTreeMap::new();
    let keys: Vec<ArenaKey> =
        device.origins().map(|origin| ArenaKey { stream: origin.stream, mempool: origin.pool.owner }).collect();
    device.for_each_row(0..device.row_end(), |row| {
        let Some(&key) = keys.get(row.origin as usize) else { return };
        let buffer = Buffer {
            lower: row.first_moment,
            upper: row.active_until.unwrap_or(u64::MAX),
            size: rounded(row.requested),
        };
        if buffer.lower < buffer.upper {
            let arena = arenas.entry(key).or_insert_with(|| Arena { key, buffers: Vec::new(), rows: Vec::new() });
            arena.buffers.push(buffer);
            arena.rows.push(row.row);
        }
    });
    arenas.into_values().collect()
}

/// Returns the peak of the requests that live at one time, each rounded up to 512 B, in bytes: no
/// allocator needs less.
fn live_floor_bytes<'a>(arenas: impl Iterator<Item = &'a Arena>) -> u64 {
    let mut changes: Vec<(u64, bool, u64)> = Vec::new();
    for buffer in arenas.flat_map(|arena| &arena.buffers) {
        changes.push((buffer.lower, true, buffer.size));
        changes.push((buffer.upper, false, buffer.size));
    }
    // Ends come before starts at the same time.
    changes.sort_unstable();
    let (mut live, mut peak) = (0u64, 0);
    for (_, starts, size) in changes {
        live = if starts { live.saturating_add(size) } else { live.saturating_sub(size) };
        peak = peak.max(live);
    }
    peak
}

/// Returns a requested size rounded up to a multiple of PyTorch's smallest block.
fn rounded(requested_bytes: u64) -> u64 {
    requested_bytes.max(1).checked_next_multiple_of(MIN_BLOCK_BYTES).unwrap_or(requested_bytes)
}

/// Places the requests of a recorded device: each arena on its own, one above another.
#[derive(Clone, Debug)]
pub struct DevicePacker {
    arenas: Vec<(Arena, Packer)>,
    /// The arena whose turn is next.
    next: usize,
    floor_bytes: u64,
}

/// A request with its address in a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedRequest {
    /// The row number of its allocation, see [`DeviceLifetimes`].
    pub row: u32,
    /// Its lifetime and size.
    pub buffer: Buffer,
    /// Its stream and pool.
    pub key: ArenaKey,
    /// Its offset in bytes from the lowest address of the device's placement.
    pub offset: u64,
}

impl DevicePacker {
    /// Creates a packer for a device's requests, with a placement in the order of time.
    ///
    /// # Errors
    /// [`InvalidBuffer`] if the requests have too many bytes in all.
    pub fn new(device: &DeviceLifetimes) -> Result<Self, InvalidBuffer> {
        let arenas = lifetimes(device);
        let sizes = arenas.iter().flat_map(|arena| &arena.buffers).map(|buffer| buffer.size);
        check_total(sizes)?;
        let with_packer = |arena: Arena| Ok((Packer::new(&arena.buffers)?, arena));
        let arenas = arenas.into_iter().map(with_packer).collect::<Result<Vec<_>, _>>()?;
        let floor_bytes = match &arenas[..] {
            [(packer, _)] => packer.state().peak_live_bytes,
            several => live_floor_bytes(several.iter().map(|(_, arena)| arena)),
        };
        Ok(Self { arenas: arenas.into_iter().map(|(packer, arena)| (arena, packer)).collect(), next: 0, floor_bytes })
    }

    /// Returns how far the packer is. The peak is that of all arenas together, the other figures
    /// are sums, so that a placement can be the lowest and still be above the peak.
    #[must_use]
    pub fn state(&self) -> PackingState {
        let states = self.arenas.iter().map(|(_, packer)| packer.state());
        let start =
            PackingState { height_bytes: 0, peak_live_bytes: self.floor_bytes, lower_bound_bytes: 0, is_done: true };
        states.fold(start, |sum, state| PackingState {
            height_bytes: sum.height_bytes.saturating_add(state.height_bytes),
            lower_bound_bytes: sum.lower_bound_bytes.saturating_add(state.lower_bound_bytes),
            is_done: sum.is_done && state.is_done,
            ..sum
        })
    }

    /// Continues for about `steps` steps, and returns how far the packer is. The arenas take turns.
    pub fn advance(&mut self, steps: u64) -> PackingState {
        let mut left = steps;
        while left > 0 && self.arenas.iter().any(|(_, packer)| !packer.state().is_done) {
            let count = self.arenas.len();
            let (_, packer) = &mut self.arenas[self.next];
            self.next = (self.next + 1) % count;
            let turn_steps = left.min(TURN_STEPS);
            let mut turn = Budget::new(turn_steps);
            if !packer.state().is_done {
                packer.run(&mut turn);
                left -= turn_steps - turn.remaining();
            }
        }
        self.state()
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.arenas.iter().map(|(arena, _)| arena.buffers.len()).sum()
    }

    /// Returns true if the device has no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.arenas.is_empty()
    }

    /// Returns the streams and pools, each with the state of its placement.
    pub fn arenas(&self) -> impl ExactSizeIterator<Item = (ArenaKey, PackingState)> + '_ {
        self.arenas.iter().map(|(arena, packer)| (arena.key, packer.state()))
    }

    /// Returns all requests with their addresses in the lowest placement so far, in the order of
    /// their starts.
    #[must_use]
    pub fn placement(&self) -> Vec<PlacedRequest> {
        let mut placed = Vec::with_capacity(self.len());
        let mut base = 0;
        for (arena, packer) in &self.arenas {
            let offsets = packer.offsets().into_iter().map(|offset| base + offset);
            let rows = arena.rows.iter().zip(&arena.buffers).zip(offsets);
            placed.extend(rows.map(|((&row, &buffer), offset)| PlacedRequest { row, buffer, key: arena.key, offset }));
            base += packer.state().height_bytes;
        }
        placed.sort_unstable_by_key(|one| one.row);
        placed
    }
}
