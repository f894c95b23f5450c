//! Simulates recorded requests under other settings or on a device of another size.

use std::ops::Deref;

use vramscope_trace::{MempoolId, NullSink, PoolKind, Sink, StreamId};

use super::address_replay::AddressReplayDevice;
use super::call_sequence::{RequestTarget, Step};
use super::cursor::completion_stream;
use super::fragmentation::FragmentationPeak;
use super::workload::{RunSummary, Workload, summary_of};
use crate::error::AllocateError;
use crate::index::BlockIndex;
use crate::pool::{Origin, Pool};
use crate::private_pools::CaptureFilter;
use crate::settings::Settings;

/// A simulated run of a [`Workload`], made in steps, so that the caller can draw, report progress
/// or stop between two of them.
///
/// The sink receives the events of the simulated allocator, with the times and allocation sites of
/// the recorded calls. `W` is a reference to the workload or a shared pointer such as
/// [`Arc`](std::sync::Arc).
///
/// ```
/// use vramscope_pool::rerun::{History, Simulation, Workload};
/// use vramscope_pool::Settings;
/// use vramscope_trace::{MemorySink, Recording};
///
/// /// Returns the number of events of a simulated run.
/// fn simulated_events(workload: &Workload, settings: &Settings) -> usize {
///     let mut simulation = Simulation::new(workload, settings, None, MemorySink::default());
///     while simulation.advance(100_000) {}
///     simulation.sink().events.len()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Simulation<W, S> {
    workload: W,
    run: SimulatedRun<S>,
    /// The index of the next step of the workload's call sequence.
    next_step: usize,
    /// Whether the run ends at its first request that fails with out of memory.
    stops_at_oom: bool,
    /// The event numbers of the first requests that failed.
    failed_requests: Vec<u64>,
}

/// Maximum number of failed requests that a simulation lists; a program that catches the error can
/// have any number of them.
const MAX_FAILED_REQUESTS: usize = 4096;

impl<W: Deref<Target = Workload>, S: Sink> Simulation<W, S> {
    /// Prepares a run of the workload's calls under `settings`, on a device of `capacity_bytes`
    /// (`None`: unlimited).
    ///
    /// A request that fails is counted, and its free is skipped. A request that failed in the
    /// recording but succeeds now is freed at once, because the program never had the block. Blocks
    /// that existed before the history are requested first.
    #[must_use]
    pub fn new(workload: W, settings: &Settings, capacity_bytes: Option<u64>, sink: S) -> Self {
        let share_bytes = (capacity_bytes.unwrap_or(u64::MAX) as f64 * settings.per_process_memory_fraction) as u64;
        let limit_bytes =
            [settings.limit_bytes, capacity_bytes.map(|bytes| bytes.min(share_bytes))].into_iter().flatten().min();
        let settings = Settings { limit_bytes, per_process_memory_fraction: 1.0, ..settings.clone() };
        let device = AddressReplayDevice::new(&workload.driver_calls, &settings, capacity_bytes);
        let mut pool = Pool::new(workload.device, settings, device);
        workload.no_split_pools.iter().for_each(|&mempool| pool.set_no_split(mempool));
        let slots = vec![None; workload.sequence.slot_count];
        let run = SimulatedRun { pool, sink, slots, peak_fragmentation: FragmentationPeak::default(), has_oom: false };
        Self { workload, run, next_step: 0, stops_at_oom: false, failed_requests: Vec::new() }
    }

    /// Makes the simulated run end at its first request that fails with out of memory.
    #[must_use]
    pub fn stop_at_first_oom(mut self) -> Self {
        self.stops_at_oom = true;
        self
    }

    /// Makes at most `max_steps` further calls of the simulated program. Returns true if calls
    /// remain.
    pub fn advance(&mut self, max_steps: usize) -> bool {
        let sequence = &self.workload.sequence;
        let end = self.next_step.saturating_add(max_steps).min(sequence.steps.len());
        let range = self.next_step..end;
        self.next_step = end;
        let mut calls = sequence.steps[range.clone()].iter().zip(&sequence.origins[range]);
        let run = &mut self.run;
        while calls.any(|(step, origin)| {
            run.execute(*step, *origin, &sequence.targets);
            run.has_oom
        }) {
            run.has_oom = false;
            if self.failed_requests.len() < MAX_FAILED_REQUESTS {
                self.failed_requests.push(sequence.events[end - calls.len() - 1]);
            }
            if self.stops_at_oom {
                self.next_step = sequence.steps.len();
                break;
            }
        }
        self.next_step < sequence.steps.len()
    }

    /// Returns the number of steps made and the number of all steps. A step is a call of the
    /// program, or an observation that streams have finished.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        (self.next_step, self.workload.sequence.steps.len())
    }

    /// Returns the peaks and counts of the simulated run so far.
    #[must_use]
    pub fn summary(&self) -> RunSummary {
        let stats = self.run.pool.stats();
        RunSummary {
            sufficient_bytes: self.run.pool.counters.sufficient_bytes(),
            peak_fragmentation: self.run.peak_fragmentation.peak(),
            ..summary_of(&stats)
        }
    }

    /// Returns the event numbers of the requests that have failed with out of memory, at most the
    /// first 4,096. A request has the number of the event that it led to in the recording.
    #[must_use]
    pub fn failed_requests(&self) -> &[u64] {
        &self.failed_requests
    }

    /// Returns the sink with the events received so far.
    #[must_use]
    pub fn sink(&self) -> &S {
        &self.run.sink
    }

    /// Returns the sink mutably, to take the items that it has collected.
    pub fn sink_mut(&mut self) -> &mut S {
        &mut self.run.sink
    }
}

impl Workload {
    /// Runs all calls under `settings`, on a device of `capacity_bytes` (`None`: unlimited), as
    /// [`Simulation`] describes.
    #[must_use]
    pub fn simulate(&self, settings: &Settings, capacity_bytes: Option<u64>) -> RunSummary {
        run_to_end(Simulation::new(self, settings, capacity_bytes, NullSink))
    }

    /// Runs calls as [`simulate`](Self::simulate) does, up to the first request that fails with out
    /// of memory.
    #[must_use]
    pub fn simulate_to_first_oom(&self, settings: &Settings, capacity_bytes: Option<u64>) -> RunSummary {
        run_to_end(Simulation::new(self, settings, capacity_bytes, NullSink).stop_at_first_oom())
    }

    /// Runs all calls as [`simulate`](Self::simulate) does, and returns the event numbers of the
    /// requests that fail, at most the first 4,096.
    #[must_use]
    pub fn failed_requests(&self, settings: &Settings, capacity_bytes: Option<u64>) -> Vec<u64> {
        let mut simulation = Simulation::new(self, settings, capacity_bytes, NullSink);
        simulation.advance(usize::MAX);
        simulation.failed_requests
    }
}

/// Makes all remaining calls of a simulation without a sink, and returns its figures.
fn run_to_end(mut simulation: Simulation<&Workload, NullSink>) -> RunSummary {
    simulation.advance(usize::MAX);
    simulation.summary()
}

/// The state of a simulation: the pool that the calls run through, and the blocks they hold.
#[derive(Clone, Debug)]
struct SimulatedRun<S> {
    pool: Pool<AddressReplayDevice>,
    sink: S,
    /// The block of each slot.
    slots: Vec<Option<BlockIndex>>,
    peak_fragmentation: FragmentationPeak,
    /// Whether the last request failed with out of memory.
    has_oom: bool,
}

impl<S: Sink> SimulatedRun<S> {
    /// Makes the call that a step describes to the pool, and measures the pool's fragmentation
    /// after it. `targets` are the targets of the call sequence.
    #[inline]
    fn execute(&mut self, step: Step, origin: Origin, targets: &[RequestTarget]) {
        let sink = &mut self.sink;
        match step {
            Step::Allocate { bytes, slot, target, failed } => {
                let (stream, owner) = targets[usize::from(target)];
                let allocated = if owner == MempoolId::default() {
                    self.pool.allocate_without_address(bytes, stream, origin, sink)
                } else {
                    self.allocate_in(owner, bytes, stream, origin)
                };
                self.has_oom |= matches!(allocated, Err(AllocateError::OutOfMemory(_)));
                let mut block = allocated.ok().flatten();
                if failed && let Some(index) = block.take() {
                    let _ = self.pool.free_block(index, origin, &mut self.sink);
                }
                self.slots[slot as usize] = block;
            }
            Step::Free { slot } => {
                if let Some(index) = self.slots[slot as usize].take() {
                    let _ = self.pool.free_block(index, origin, sink);
                }
            }
            Step::DeferredFree { slot, completed } => {
                if let Some(index) = self.slots[slot as usize].take() {
                    self.pool.record_stream_of_block(index, completion_stream(completed as usize));
                    let _ = self.pool.free_block(index, origin, sink);
                }
            }
            Step::PassEvents { completed } => {
                self.pool.device_mut().pass_events_up_to(completion_stream(completed as usize))
            }
            Step::ProcessEvents => drop(self.pool.process_events(origin, sink)),
            Step::EmptyCache => drop(self.pool.empty_cache(origin, sink)),
            Step::EmptyPool { target } => {
                let (_, owner) = targets[usize::from(target)];
                drop(self.pool.empty_private_pool(owner, origin, sink));
            }
            Step::ReleasePool { target } => {
                let (_, owner) = targets[usize::from(target)];
                let _ = self.pool.release_pool(owner);
            }
        }
        self.peak_fragmentation.raise(&self.pool);
    }

    /// Makes a request for `bytes` from the private pool `owner`, creating the pool if it does not
    /// exist.
    #[cold]
    fn allocate_in(
        &mut self,
        owner: MempoolId,
        bytes: u64,
        stream: StreamId,
        origin: Origin,
    ) -> Result<Option<BlockIndex>, AllocateError> {
        if self.pool.private_pools.block_pool(owner, PoolKind::Small).is_err() {
            self.pool.create_pool(owner)?;
        }
        self.pool.begin_allocate_to_pool(owner, CaptureFilter::AllStreams)?;
        let allocated = self.pool.allocate_without_address(bytes, stream, origin, &mut self.sink);
        self.pool.end_allocate_to_pool(owner)?;
        self.pool.release_pool(owner)?;
        allocated
    }
}
