//! Simulates recorded requests under other settings or on a device of another size.

use vramscope_trace::{Event, EventKind, MemoryState, MempoolId, NullSink, PoolKind, StreamId};

use super::address_replay::AddressReplayDevice;
use super::assumed_private_pools::with_assumed_private_pools;
use super::call_log::CallLog;
use super::call_sequence::{CallSequence, Step};
use super::cursor::completion_stream;
use super::history::{History, StartStateError};
use super::reconstruct::Reconstructor;
use crate::error::AllocateError;
use crate::pool::{Origin, Pool};
use crate::private_pools::CaptureFilter;
use crate::request::AllocatedBlock;
use crate::settings::Settings;

/// Peaks of memory and fragmentation, and failure counts, of one run of a program's requests,
/// recorded or simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunSummary {
    /// Peak of the bytes in allocated blocks.
    pub peak_allocated_bytes: u64,
    /// Peak of the bytes held from the device.
    pub peak_reserved_bytes: u64,
    /// Number of requests that failed with out of memory.
    pub ooms: u64,
    /// Number of retries: all cached segments were released for a request.
    pub retries: u64,
    /// Number of times the device provided memory: segments and mapped ranges.
    pub device_allocations: u64,
    /// Peak of the fragmentation, 1 − largest free block ÷ free bytes in segments, measured after
    /// each call of the program.
    pub peak_fragmentation: f64,
}

/// The calls of a recorded program to one device's allocator, reconstructed to simulate them under
/// other settings.
///
/// ```
/// use vramscope_pool::rerun::{History, Workload};
/// use vramscope_pool::{Origin, Pool, Settings, SimulatedDevice};
/// use vramscope_trace::{DeviceId, Encoder, RecordingInfo, Recording, StreamId};
///
/// // Record two requests, which get a segment of 20 MiB and one of 24 MiB.
/// let mut encoder = Encoder::new(&RecordingInfo::default());
/// let mut pool = Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(1 << 30));
/// for bytes in [5 << 20, 23 << 20] {
///     pool.allocate(bytes, StreamId(0), Origin::default(), &mut encoder)?;
/// }
/// encoder.flush();
/// let mut recording = Recording::new();
/// for chunk in encoder.take_output() {
///     recording.push(&chunk.bytes)?;
/// }
///
/// let history = History::from_recording(&recording)?.remove(0);
/// let workload = Workload::new(history, &Settings::default())?;
/// assert_eq!(workload.recorded.peak_reserved_bytes, 44 << 20);
///
/// // On a device of 30 MiB the second request fails.
/// let simulated = workload.simulate(&Settings::default(), Some(30 << 20));
/// assert_eq!(simulated.ooms, 1);
/// assert_eq!(simulated.peak_reserved_bytes, 20 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Workload {
    history: History,
    sequence: CallSequence,
    /// The summary of the recorded run.
    pub recorded: RunSummary,
    /// The most bytes that the recorded allocator can have been permitted to reserve: its limit if
    /// known, else the largest capacity with which all recorded refusals of the driver still occur.
    /// `None` if neither is known.
    pub recorded_capacity_bytes: Option<u64>,
    /// The number of the first event at which the pool decides differently from the recorded
    /// allocator. The calls are then those of the most likely interpretation, and the retries and
    /// fragmentation in `recorded` cover only the events before it.
    pub unverified_from: Option<u64>,
}

impl Workload {
    /// Reconstructs the calls of a history that was recorded under `settings`.
    ///
    /// # Errors
    /// [`StartStateError`] if no pool can have the history's start state.
    pub fn new(history: History, settings: &Settings) -> Result<Self, StartStateError> {
        let mut reconstructor = Reconstructor::new(&history, settings, true)?;
        reconstructor.run();
        if reconstructor.mismatch().is_some()
            && let Some(named) = with_assumed_private_pools(&history, settings, reconstructor.matched())
        {
            return Self::new(named, settings);
        }
        let position = reconstructor.mismatch().map(|mismatch| mismatch.at);
        let unverified_from = position.map(|at| history.entries.get(at).map_or(0, |entry| entry.number));
        let mut recorded = recorded_summary(&history);
        let refused_bytes =
            reconstructor.pool().device().capacity_bytes().map(|bytes| bytes.max(recorded.peak_reserved_bytes));
        let recorded_capacity_bytes = settings.limit_bytes.or(refused_bytes);
        recorded.retries = reconstructor.pool().stats().num_alloc_retries;
        recorded.peak_fragmentation = reconstructor.peak_fragmentation();
        let log = match unverified_from {
            None => reconstructor.into_log(),
            Some(_) => CallLog::most_likely(&history),
        };
        let sequence = CallSequence::new(&history, &log);
        Ok(Self { sequence, recorded, recorded_capacity_bytes, unverified_from, history })
    }

    /// Returns the number of calls of the recorded program to the allocator: requests, frees and
    /// emptied caches.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.sequence.calls
    }

    /// Runs the calls through a pool under `settings`, on a device of `capacity_bytes` (`None`:
    /// unlimited).
    ///
    /// A request that fails is counted, and its free is skipped. A request that failed in the
    /// recording but succeeds now is freed at once, because the program never had the block. Blocks
    /// that existed before the history are requested first.
    #[must_use]
    pub fn simulate(&self, settings: &Settings, capacity_bytes: Option<u64>) -> RunSummary {
        let share_bytes = (capacity_bytes.unwrap_or(u64::MAX) as f64 * settings.per_process_memory_fraction) as u64;
        let limit_bytes =
            [settings.limit_bytes, capacity_bytes.map(|bytes| bytes.min(share_bytes))].into_iter().flatten().min();
        let settings = Settings { limit_bytes, per_process_memory_fraction: 1.0, ..settings.clone() };
        let device = AddressReplayDevice::new(&self.history, &settings, capacity_bytes);
        let pool = Pool::new(self.history.device(), settings, device);
        let mut run = SimulationRun {
            pool,
            sequence: &self.sequence,
            slots: vec![0; self.sequence.slot_count],
            peak_fragmentation: 0.0,
        };
        for step in &self.sequence.steps {
            run.execute(*step);
        }
        let stats = run.pool.stats();
        RunSummary {
            peak_allocated_bytes: stats.allocated_bytes.all.peak,
            peak_reserved_bytes: stats.reserved_bytes.all.peak,
            ooms: stats.num_ooms,
            retries: stats.num_alloc_retries,
            device_allocations: stats.num_device_alloc,
            peak_fragmentation: run.peak_fragmentation,
        }
    }
}

/// Computes the summary of the recorded run from its events; retries and fragmentation stay 0,
/// because no event shows them.
fn recorded_summary(history: &History) -> RunSummary {
    let mut state = MemoryState::default();
    let device = history.device();
    *state.device_mut(device) = history.start.clone();
    let mut summary = RunSummary::default();
    let update_peaks = |state: &MemoryState, summary: &mut RunSummary| {
        let counters = state.device(device).map(|device| device.counters()).unwrap_or_default();
        summary.peak_allocated_bytes = summary.peak_allocated_bytes.max(counters.allocated);
        summary.peak_reserved_bytes = summary.peak_reserved_bytes.max(counters.reserved);
    };
    update_peaks(&state, &mut summary);
    for entry in &history.entries {
        state.apply(&Event { device, time_ns: 0, kind: entry.kind });
        update_peaks(&state, &mut summary);
        match entry.kind {
            EventKind::OutOfMemory { .. } => summary.ooms += 1,
            EventKind::SegmentAllocated { .. } | EventKind::SegmentMapped { .. } => summary.device_allocations += 1,
            _ => {}
        }
    }
    summary
}

/// A simulation in progress: the calls, the pool that they run through, and the blocks they hold.
struct SimulationRun<'s> {
    pool: Pool<AddressReplayDevice>,
    sequence: &'s CallSequence,
    /// The address of each slot's block; 0 without a block.
    slots: Vec<u64>,
    peak_fragmentation: f64,
}

impl SimulationRun<'_> {
    /// Makes the call that a step describes to the pool, and measures the pool's fragmentation
    /// after it.
    #[inline]
    fn execute(&mut self, step: Step) {
        let (origin, sink) = (Origin::default(), &mut NullSink);
        // Errors are ignored: the device never fails, and the pool counts failed requests.
        match step {
            Step::Allocate { bytes, slot, target, failed } => {
                let (stream, owner) = self.sequence.targets[usize::from(target)];
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
            Step::DeferredFree { slot, completed } => {
                let address = self.slots[slot as usize];
                if address != 0 {
                    let _ = self.pool.record_stream(address, completion_stream(completed as usize));
                    let _ = self.pool.free(address, origin, sink);
                }
            }
            Step::PassEvents { completed } => {
                self.pool.device_mut().pass_events_up_to(completion_stream(completed as usize))
            }
            Step::ProcessEvents => drop(self.pool.process_events(origin, sink)),
            Step::EmptyCache => drop(self.pool.empty_cache(origin, sink)),
            Step::EmptyPool { target } => {
                let (_, owner) = self.sequence.targets[usize::from(target)];
                drop(self.pool.empty_private_pool(owner, origin, sink));
            }
            Step::ReleasePool { target } => {
                let (_, owner) = self.sequence.targets[usize::from(target)];
                let _ = self.pool.release_pool(owner);
            }
        }
        self.peak_fragmentation = self.peak_fragmentation.max(self.pool.fragmentation());
    }

    /// Makes a request for `bytes` from the private pool `owner`, creating the pool if it does not
    /// exist.
    #[cold]
    fn allocate_in(
        &mut self,
        owner: MempoolId,
        bytes: u64,
        stream: StreamId,
    ) -> Result<Option<AllocatedBlock>, AllocateError> {
        if self.pool.private_pools.block_pool(owner, PoolKind::Small).is_err() {
            self.pool.create_pool(owner)?;
        }
        self.pool.begin_allocate_to_pool(owner, CaptureFilter::AllStreams)?;
        let allocated = self.pool.allocate(bytes, stream, Origin::default(), &mut NullSink);
        self.pool.end_allocate_to_pool(owner)?;
        self.pool.release_pool(owner)?;
        allocated
    }
}
