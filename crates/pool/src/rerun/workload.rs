//! The allocator calls of a recorded program, and the figures of its recorded run.

use vramscope_trace::{DeviceId, Event, EventKind, MemoryState, MempoolId};

use super::address_replay::RecordedDriverCalls;
use super::assumed_private_pools::with_assumed_private_pools;
use super::call_log::CallLog;
use super::call_sequence::{CallSequence, Step};
use super::history::{History, StartStateError};
use super::reconstruct::Reconstructor;
use super::repeats::Repeats;
use crate::settings::Settings;
use crate::stats::Stats;

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
    /// The least capacity, in bytes, with which the run would not have changed: every granted
    /// request to the device would still be granted. At least the peak of reserved bytes; more with
    /// expandable segments, because PyTorch compares its limit with a whole segment before they
    /// grow. Does not hold for garbage collection, which depends on the limit.
    pub sufficient_bytes: u64,
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
    pub(super) device: DeviceId,
    pub(super) driver_calls: RecordedDriverCalls,
    pub(super) sequence: CallSequence,
    /// The private pools whose blocks are not split.
    pub(super) no_split_pools: Vec<MempoolId>,
    /// The calls that repeat recorded calls, if the program was continued.
    pub(super) repeats: Repeats,
    /// The summary of the recorded run.
    pub recorded: RunSummary,
    /// Upper bound of the recorded allocator's capacity: its limit if known, else the largest
    /// capacity with which all recorded refusals of the driver still occur, and with which the
    /// device never has more free memory than was recorded. `None` if neither is known.
    pub recorded_capacity_bytes: Option<u64>,
    /// The peak of the bytes of live requests, see
    /// [`RecordedRequests::floor_bytes`](super::RecordedRequests::floor_bytes).
    pub floor_bytes: u64,
    /// The number of the first event at which the pool decides differently from the recorded
    /// allocator. The calls are then the most likely interpretation, and the retries, fragmentation
    /// and sufficient bytes in `recorded` cover only the events before it.
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
        let stats = reconstructor.pool().stats();
        let mut recorded = if unverified_from.is_some() { recorded_summary(&history) } else { summary_of(&stats) };
        let refused_bytes =
            reconstructor.pool().device().capacity_bytes().map(|bytes| bytes.max(recorded.peak_reserved_bytes));
        let recorded_capacity_bytes = settings.limit_bytes.or(refused_bytes);
        recorded.retries = stats.num_alloc_retries;
        recorded.sufficient_bytes = reconstructor.pool().counters.sufficient_bytes();
        recorded.peak_fragmentation = reconstructor.peak_fragmentation();
        let log = match unverified_from {
            None => reconstructor.into_log(),
            Some(_) => CallLog::most_likely(&history),
        };
        let sequence = CallSequence::new(&history, &log);
        let (device, driver_calls) = (history.device(), RecordedDriverCalls::new(&history));
        let (floor_bytes, no_split_pools) = (history.floor_bytes(), history.no_split_pools(settings));
        Ok(Self {
            device,
            driver_calls,
            sequence,
            no_split_pools,
            repeats: Repeats::default(),
            recorded,
            recorded_capacity_bytes,
            floor_bytes,
            unverified_from,
        })
    }

    /// Returns the number of the device whose allocator was recorded.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Returns the number of calls of the recorded program to the allocator: requests, frees and
    /// emptied caches.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.sequence.calls
    }

    /// Returns the number of requests of the recorded program, failed ones included.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.sequence.requests
    }

    /// Iterates over the event numbers of the requests that private pools served, in order. Which
    /// pool served a request is recorded, or follows from the allocator's decisions.
    pub fn private_pool_requests(&self) -> impl Iterator<Item = u64> {
        let calls = self.sequence.steps.iter().zip(&self.sequence.events);
        calls.filter_map(|(step, &event)| match *step {
            Step::Allocate { target, .. } => {
                let (_, owner) = *self.sequence.targets.get(usize::from(target))?;
                (owner != MempoolId::default()).then_some(event)
            }
            _ => None,
        })
    }

    /// Iterates over the sizes in bytes of all requests, in order, failed ones included. It begins
    /// with the blocks that existed before the history.
    pub fn requested_bytes(&self) -> impl Iterator<Item = u64> {
        self.sequence.steps.iter().filter_map(|step| match *step {
            Step::Allocate { bytes, .. } => Some(bytes),
            _ => None,
        })
    }
}

/// Computes the peaks and counts of the recorded run from its events. Retries and fragmentation
/// stay 0, because no event shows them.
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
    for entry in history.entries.iter() {
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

/// Returns the peaks and counts of a run, from the statistics of the pool after it. Fragmentation
/// and sufficient bytes stay 0.
pub(super) fn summary_of(stats: &Stats) -> RunSummary {
    RunSummary {
        peak_allocated_bytes: stats.allocated_bytes.all.peak,
        peak_reserved_bytes: stats.reserved_bytes.all.peak,
        ooms: stats.num_ooms,
        retries: stats.num_alloc_retries,
        device_allocations: stats.num_device_alloc,
        ..RunSummary::default()
    }
}
