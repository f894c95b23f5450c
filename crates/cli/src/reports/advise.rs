//! The advice for each device of a recording, and its report as JSON.

use std::collections::HashMap;
use std::panic;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use vramscope_insight::advice::{Advice, Advisor, SmallestCapacity, Trial, required_pytorch, smallest_card};
use vramscope_insight::packing::{DevicePacker, PackingState};
use vramscope_insight::what_if::{DeviceWorkload, FiguresReport};
use vramscope_pool::Settings;
use vramscope_pool::rerun::{History, Workload};
use vramscope_trace::{Count, DeviceId, DurationNs, Recording};

use crate::error::{CommandError, Result};
use crate::operation::Operation;
use crate::recorded;
use crate::simulation::{self, LimitArguments};

/// Maximum number of steps of the search for a placement of each device's requests: some two
/// seconds.
const PACKING_STEPS: u64 = 400_000_000;
/// Number of parts of these steps, after each of which the progress is shown.
const PACKING_PARTS: u64 = 40;
/// Number of requests from which on a placement within 1% of the lowest possible is enough.
const MANY_REQUESTS: usize = 100_000;
/// Time between two looks at the progress of the search for a placement.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The output of `advise --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct AdviceReport {
    pub(crate) devices: Vec<DeviceReport>,
}

/// The answer for one device in the output of `advise --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct DeviceReport {
    pub(crate) device: u16,
    /// The recorded settings.
    pub(crate) alloc_conf: String,
    /// Most bytes that the simulated allocator may reserve; `None` for no limit.
    pub(crate) capacity_bytes: Option<u64>,
    /// Whether the capacity is the largest with which the recorded failures still occur.
    pub(crate) capacity_is_estimate: bool,
    /// First event at which the pool diverges from the recorded allocator.
    pub(crate) unverified_from: Option<u64>,
    /// Whether events are missing and only the events before the first gap were simulated.
    pub(crate) stops_at_gap: bool,
    pub(crate) recorded: FiguresReport,
    pub(crate) floor_bytes: u64,
    /// Height of an offline placement; `None` if events are missing.
    pub(crate) packed_bytes: Option<u64>,
    pub(crate) tried: Vec<TrialReport>,
    pub(crate) best: BestReport,
    /// Whether the best settings are more than 1% better than the recorded ones.
    pub(crate) worthwhile: bool,
    /// The simplest settings within 1% of the best; `None` if that is the best.
    pub(crate) simpler: Option<TrialReport>,
    pub(crate) smallest: Option<SmallestReport>,
    pub(crate) smallest_recorded: Option<SmallestReport>,
}

/// Settings and their simulated figures in the output of `advise --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct TrialReport {
    pub(crate) alloc_conf: String,
    pub(crate) predicted: FiguresReport,
}

/// The best settings in the output of `advise --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct BestReport {
    #[serde(flatten)]
    pub(crate) trial: TrialReport,
    /// Bytes less at the reserved peak than under the recorded settings, simulated.
    pub(crate) saves_bytes: i64,
    /// The first version of PyTorch that accepts the settings.
    pub(crate) pytorch: String,
}

/// The least memory that the program runs in, in the output of `advise --json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "mcp", derive(schemars::JsonSchema))]
pub(crate) struct SmallestReport {
    pub(crate) capacity_bytes: u64,
    pub(crate) alloc_conf: String,
    /// The smallest GPU with that much usable memory.
    pub(crate) card: Option<&'static str>,
    pub(crate) predicted: FiguresReport,
}

/// The advice for each device of a recording that made requests, with the device's requests.
pub(crate) struct Advised(pub(crate) Vec<(DeviceWorkload, Advice)>);

impl Advised {
    /// Tries allocator settings on a recording's requests. `path` is for error messages.
    pub(crate) fn new(
        path: &Path,
        recording: &Recording,
        limits: &LimitArguments,
        operation: &Operation,
    ) -> Result<Self> {
        recorded::check_requests(path, recording, false)?;
        let settings = recorded::settings(path, recording, limits.limit_bytes)?;
        let histories = simulation::first_histories(path, recording, operation)?;
        // Clones of a history share its events.
        let complete: Vec<History> =
            histories.iter().filter(|first| !first.stops_at_gap).map(|first| first.history.clone()).collect();
        let (packing, parts) = (Packing::default(), PACKING_PARTS * complete.len() as u64);
        let mut devices = Vec::new();
        thread::scope(|scope| {
            let _cancel = CancelOnDrop(&packing);
            let heights = scope.spawn(|| packed_heights(complete, &packing));
            for first in histories {
                let device = simulation::device_workload(path, recording, first, &settings, limits)?;
                if device.workload.requests() > 0 {
                    let advice = advise(&device.workload, &settings, device.capacity_bytes, operation)?;
                    devices.push((device, advice));
                }
            }
            let progress = operation.stage("Placing requests".to_owned());
            progress.set_length(parts);
            while !heights.is_finished() {
                operation.check()?;
                progress.set_position(packing.parts.load(Ordering::Relaxed));
                thread::sleep(POLL_INTERVAL);
            }
            progress.finish_and_clear();
            let packed = heights.join().unwrap_or_else(|panic| panic::resume_unwind(panic));
            for (device, advice) in &mut devices {
                advice.packed_bytes = packed.get(&device.workload.device()).copied();
            }
            Ok(())
        })?;
        if devices.is_empty() {
            let message = "it contains no requests to try settings on: record while the program allocates";
            return Err(CommandError::file(path, message));
        }
        Ok(Self(devices))
    }

    /// Returns the report that `advise --json` prints.
    pub(crate) fn report(&self) -> AdviceReport {
        AdviceReport { devices: self.0.iter().map(|(device, advice)| DeviceReport::new(device, advice)).collect() }
    }
}

/// The state of the search for placements.
#[derive(Default)]
struct Packing {
    is_cancelled: AtomicBool,
    /// Number of finished parts, of [`PACKING_PARTS`] for each device.
    parts: AtomicU64,
}

/// Ends the search for placements when its owner returns, so that an error is not delayed.
struct CancelOnDrop<'a>(&'a Packing);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }
}

/// Returns the height of an offline placement of each device's requests, in bytes.
fn packed_heights(histories: Vec<History>, packing: &Packing) -> HashMap<DeviceId, u64> {
    let height = |history: History| {
        let (device, requests) = (history.device(), history.requests());
        drop(history);
        // Without a placement the advice is complete but for one figure.
        let mut packer = DevicePacker::new(requests).ok()?;
        for _ in 0..PACKING_PARTS {
            let PackingState { height_bytes, lower_bound_bytes, .. } = packer.state();
            let is_close = height_bytes.saturating_sub(lower_bound_bytes) <= lower_bound_bytes / 100;
            let is_enough = is_close && packer.len() >= MANY_REQUESTS;
            if !is_enough && !packing.is_cancelled.load(Ordering::Relaxed) {
                packer.advance(PACKING_STEPS / PACKING_PARTS);
            }
            packing.parts.fetch_add(1, Ordering::Relaxed);
        }
        Some((device, packer.state().height_bytes))
    };
    histories.into_iter().filter_map(height).collect()
}

/// Makes the runs that the advice needs, as many at once as there are processors.
fn advise(
    workload: &Workload,
    settings: &Settings,
    capacity_bytes: Option<u64>,
    operation: &Operation,
) -> Result<Advice> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let start = Instant::now();
    let progress = operation.stage("Trying settings".to_owned());
    let mut advisor = Advisor::new(workload, settings, capacity_bytes);
    thread::scope(|scope| {
        let (sender, results) = mpsc::channel();
        loop {
            while advisor.outstanding_runs() < threads && !operation.is_cancelled() {
                let Some(run) = advisor.next_run() else { break };
                let sender = sender.clone();
                scope.spawn(move || {
                    let summary = panic::catch_unwind(|| run.simulate(workload));
                    // The receiver outlives all runs.
                    let _ = sender.send((run, summary));
                });
            }
            if advisor.outstanding_runs() == 0 {
                break;
            }
            let (run, summary) = results.recv().expect("a sender exists");
            advisor.finish(&run, summary.unwrap_or_else(|panic| panic::resume_unwind(panic)));
            let (finished, all) = advisor.progress();
            progress.set_length(all as u64);
            progress.set_position(finished as u64);
        }
    });
    progress.finish_and_clear();
    operation.check()?;
    let (runs, _) = advisor.progress();
    operation.message(format_args!(
        "simulated {} of {} in {}",
        Count(runs as u64).of("run", "runs"),
        Count(workload.calls()).of("call", "calls"),
        DurationNs(start.elapsed().as_nanos() as u64)
    ));
    Ok(advisor.into_advice().expect("all runs are finished"))
}

impl DeviceReport {
    fn new(device: &DeviceWorkload, advice: &Advice) -> Self {
        let workload = &device.workload;
        let (major, minor) = required_pytorch(&advice.best().settings);
        let best = BestReport {
            trial: advice.best().into(),
            saves_bytes: advice.saved_bytes(),
            pytorch: format!("{major}.{minor}"),
        };
        Self {
            device: workload.device().0,
            alloc_conf: advice.baseline().settings.to_conf(),
            capacity_bytes: device.capacity_bytes,
            capacity_is_estimate: device.is_capacity_estimated,
            unverified_from: workload.unverified_from,
            stops_at_gap: device.stops_at_gap,
            recorded: advice.recorded.into(),
            floor_bytes: advice.floor_bytes,
            packed_bytes: advice.bounds().packed_bytes,
            tried: advice.tried.iter().map(TrialReport::from).collect(),
            best,
            worthwhile: advice.is_worthwhile(),
            simpler: advice.simpler().map(TrialReport::from),
            smallest: advice.smallest().map(SmallestReport::from),
            smallest_recorded: advice.smallest_recorded.as_ref().map(SmallestReport::from),
        }
    }
}

impl From<&Trial> for TrialReport {
    fn from(trial: &Trial) -> Self {
        Self { alloc_conf: trial.settings.to_conf(), predicted: trial.predicted.into() }
    }
}

impl From<&SmallestCapacity> for SmallestReport {
    fn from(smallest: &SmallestCapacity) -> Self {
        Self {
            capacity_bytes: smallest.capacity_bytes,
            alloc_conf: smallest.settings.to_conf(),
            card: smallest_card(smallest.capacity_bytes).map(|card| card.name),
            predicted: smallest.predicted.into(),
        }
    }
}
