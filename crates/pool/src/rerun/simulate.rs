//! What the same requests come to under other settings, or on another device.

use vramscope_trace::{Event, EventKind, MemoryState, MempoolId, Null, PoolKind, StreamId};

use super::elsewhere::ElsewhereDevice;
use super::hidden::with_hidden_pools;
use super::history::History;
use super::log::Log;
use super::program::{Program, Step};
use super::read::Reader;
use super::script::late_stream;
use crate::error::AllocateError;
use crate::mempool::Diverted;
use crate::pool::{Allocated, Origin, Pool};
use crate::settings::Settings;

/// What a program's requests came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// The most bytes of blocks that the program had at once.
    pub peak_allocated_bytes: u64,
    /// The most bytes of segments at once.
    pub peak_reserved_bytes: u64,
    /// Requests for which there was no room.
    pub ooms: u64,
    /// How often everything cached was given back for a request.
    pub retries: u64,
    /// How often the device gave memory: segments, and ranges mapped.
    pub device_allocations: u64,
    /// The largest value of 1 - largest free block / free bytes in segments, as it stood after each call of the program.
    pub peak_fragmentation: f64,
}

/// The requests of one device's history, and what they came to when they were recorded.
#[derive(Clone, Debug)]
pub struct Requests {
    history: History,
    program: Program,
    /// What was recorded.
    pub recorded: Figures,
    /// What the recorded program could have at most: its limit where that is known, else the most with which every request that the
    /// recorded driver refused is refused; `None` where it refused none.
    pub recorded_capacity_bytes: Option<u64>,
    /// The number of the event from which on the pool does not decide as the recorded allocator did. The requests are read in the
    /// likeliest way then, and of `recorded` the retries and the fragmentation are those up to there.
    pub unverified_from: Option<u64>,
}

impl Requests {
    /// Reads the requests out of a history recorded under `settings`.
    ///
    /// # Errors
    /// Why no pool can be in the state that the history begins with.
    pub fn of(history: History, settings: &Settings) -> Result<Self, String> {
        let mut reader = Reader::new(&history, settings, true)?;
        reader.read();
        if reader.mismatch().is_some()
            && let Some(named) = with_hidden_pools(&history, settings, reader.matched())
        {
            return Self::of(named, settings);
        }
        let place = reader.mismatch().map(|mismatch| mismatch.at);
        let unverified_from = place.map(|at| history.entries.get(at).map_or(0, |entry| entry.number));
        let mut recorded = recorded_figures(&history);
        let refused = reader.pool().device().capacity_bytes().map(|bytes| bytes.max(recorded.peak_reserved_bytes));
        let recorded_capacity_bytes = settings.limit_bytes.or(refused);
        recorded.retries = reader.pool().stats().num_alloc_retries;
        recorded.peak_fragmentation = reader.peak_fragmentation();
        let log = match unverified_from {
            None => reader.into_log(),
            Some(_) => Log::likeliest(&history),
        };
        let program = Program::of(&history, &log);
        Ok(Self { program, recorded, recorded_capacity_bytes, unverified_from, history })
    }

    /// How many calls there are: requests, frees and cache emptyings.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.program.requests
    }

    /// Runs the calls through a pool under `settings` that may hold `capacity_bytes`, which is all that the device has.
    ///
    /// A request that fails is counted, and its free left out. One that failed when it was recorded and now does not is freed at once,
    /// since the program never had it. Blocks that were there before the history are requested first.
    #[must_use]
    pub fn simulate(&self, settings: &Settings, capacity_bytes: Option<u64>) -> Figures {
        let share = (capacity_bytes.unwrap_or(u64::MAX) as f64 * settings.per_process_memory_fraction) as u64;
        let limit_bytes =
            [settings.limit_bytes, capacity_bytes.map(|bytes| bytes.min(share))].into_iter().flatten().min();
        let settings = Settings { limit_bytes, per_process_memory_fraction: 1.0, ..settings.clone() };
        let device = ElsewhereDevice::new(&self.history, &settings, capacity_bytes);
        let pool = Pool::new(self.history.device(), settings, device);
        let mut run = Run { pool, program: &self.program, slots: vec![0; self.program.slots], peak_fragmentation: 0.0 };
        for step in &self.program.steps {
            run.make(*step);
        }
        let stats = run.pool.stats();
        Figures {
            peak_allocated_bytes: stats.allocated_bytes.all.peak,
            peak_reserved_bytes: stats.reserved_bytes.all.peak,
            ooms: stats.num_ooms,
            retries: stats.num_alloc_retries,
            device_allocations: stats.num_device_alloc,
            peak_fragmentation: run.peak_fragmentation,
        }
    }
}

/// What the events say by themselves.
fn recorded_figures(history: &History) -> Figures {
    let mut state = MemoryState::default();
    let device = history.device();
    *state.device_mut(device) = history.start.clone();
    let mut figures = Figures::default();
    let look = |state: &MemoryState, figures: &mut Figures| {
        let counters = state.device(device).map(|device| device.counters()).unwrap_or_default();
        figures.peak_allocated_bytes = figures.peak_allocated_bytes.max(counters.allocated);
        figures.peak_reserved_bytes = figures.peak_reserved_bytes.max(counters.reserved);
    };
    look(&state, &mut figures);
    for entry in &history.entries {
        state.apply(&Event { device, time_ns: 0, kind: entry.kind });
        look(&state, &mut figures);
        match entry.kind {
            EventKind::OutOfMemory { .. } => figures.ooms += 1,
            EventKind::SegmentAllocated { .. } | EventKind::SegmentMapped { .. } => figures.device_allocations += 1,
            _ => {}
        }
    }
    figures
}

/// A program under way.
struct Run<'p> {
    pool: Pool<ElsewhereDevice>,
    program: &'p Program,
    /// The address of each slot's block; 0 where there is none.
    slots: Vec<u64>,
    peak_fragmentation: f64,
}

impl Run<'_> {
    #[inline]
    fn make(&mut self, step: Step) {
        let (origin, sink) = (Origin::default(), &mut Null);
        // The device does not fail, and whether a request does is counted by the pool.
        match step {
            Step::Allocate { bytes, slot, lane, failed } => {
                let (stream, owner) = self.program.lanes[usize::from(lane)];
                let allocated = if owner == MempoolId::default() {
                    self.pool.allocate(bytes, stream, origin, sink)
                } else {
                    self.allocate_in(owner, bytes, stream)
                };
                let address = allocated.ok().flatten().map_or(0, |allocated| allocated.address);
                if failed && address != 0 {
                    let _ = self.pool.free(address, origin, sink);
                }
                self.slots[slot as usize] = if failed { 0 } else { address };
            }
            Step::Free { slot } => {
                let address = self.slots[slot as usize];
                if address != 0 {
                    let _ = self.pool.free(address, origin, sink);
                }
            }
            Step::FreeLater { slot, completed } => {
                let address = self.slots[slot as usize];
                if address != 0 {
                    let _ = self.pool.record_stream(address, late_stream(completed as usize));
                    let _ = self.pool.free(address, origin, sink);
                }
            }
            Step::Pass { completed } => self.pool.device_mut().pass(late_stream(completed as usize)),
            Step::ProcessEvents => drop(self.pool.process_events(origin, sink)),
            Step::EmptyCache => drop(self.pool.empty_cache(origin, sink)),
            Step::EmptyPool { lane } => {
                let (_, owner) = self.program.lanes[usize::from(lane)];
                drop(self.pool.empty_private_pool(owner, origin, sink));
            }
            Step::ReleasePool { lane } => {
                let (_, owner) = self.program.lanes[usize::from(lane)];
                let _ = self.pool.release_pool(owner);
            }
        }
        self.peak_fragmentation = self.peak_fragmentation.max(self.pool.fragmentation());
    }

    #[cold]
    fn allocate_in(
        &mut self,
        owner: MempoolId,
        bytes: u64,
        stream: StreamId,
    ) -> Result<Option<Allocated>, AllocateError> {
        if self.pool.mempools.used_pool(owner, PoolKind::Small).is_err() {
            self.pool.create_pool(owner)?;
        }
        self.pool.begin_allocate_to_pool(owner, Diverted::Everything)?;
        let allocated = self.pool.allocate(bytes, stream, Origin::default(), &mut Null);
        self.pool.end_allocate_to_pool(owner)?;
        self.pool.release_pool(owner)?;
        allocated
    }
}
