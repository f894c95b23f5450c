//! Runs of plans with a sink that follows their memory: the live bytes at the peak, by site.
//!
//! Tests run on the host. With `VRAMSCOPE_TEST_DEVICE=cuda`, they run on the first GPU, with equal
//! sizes and bounds.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use vramscope_collector::{HostDevice, HostPool};
use vramscope_demo::techniques::{DeviceKind, Finished, Plan, Scale, Sizes, Technique, TechniqueReport};
use vramscope_demo::{CudaDevice, CudaPool, Device};
use vramscope_trace::{Category, Definition, Definitions, Event, EventKind, Sink, SiteId};

/// Capacity of the device in tests, in bytes.
pub(crate) const CAPACITY_BYTES: u64 = 2 << 30;

/// The technique that runs on GPUs only.
pub(crate) const NOT_ON_HOST: &str = "allocator-async";

/// Returns the kind of device that the tests run on.
pub(crate) fn device_kind() -> DeviceKind {
    match env::var("VRAMSCOPE_TEST_DEVICE").as_deref() {
        Ok("cuda") => DeviceKind::Cuda,
        Ok(other) => panic!("VRAMSCOPE_TEST_DEVICE={other}: only cuda is known"),
        Err(_) => DeviceKind::Host,
    }
}

/// The sizes at which the tests' bounds hold.
pub(crate) const SMALL: Sizes =
    Sizes { steps: None, layers: None, width: None, batch: None, length: None, seed: None, scale: Some(Scale::Small) };

/// Returns the techniques that are not baselines.
pub(crate) fn techniques() -> impl Iterator<Item = &'static Technique> {
    Technique::all().iter().filter(|technique| !technique.is_baseline())
}

/// Returns true if the technique uses the pool. Other allocators are not recorded.
pub(crate) fn is_recorded(name: &str) -> bool {
    !["allocator-async", "allocator-driver"].contains(&name)
}

/// Live bytes by site.
pub(crate) type Live = HashMap<SiteId, u64>;

/// The live blocks during a run, and the live bytes by site at the peak.
#[derive(Default)]
struct PeakState {
    definitions: Definitions,
    blocks: HashMap<u64, (u64, SiteId)>,
    live: Live,
    total_bytes: u64,
    peak_bytes: u64,
    at_peak: Live,
    out_of_memory: u64,
    pending: HashMap<u64, u64>,
    /// Number of delayed frees: other events came between their request and their completion.
    delayed_frees: u64,
    events: u64,
}

/// A sink that keeps the live bytes by site at the peak. Clones share the state.
#[derive(Clone, Default)]
struct PeakSink(Arc<Mutex<PeakState>>);

impl Sink for PeakSink {
    fn event(&mut self, event: &Event) {
        let state = &mut *self.0.lock().expect("no thread panics");
        state.events += 1;
        match event.kind {
            EventKind::BlockAllocated { address, size, site, .. } => {
                state.blocks.insert(address, (size, site));
                *state.live.entry(site).or_default() += size;
                state.total_bytes += size;
                if state.total_bytes > state.peak_bytes {
                    state.peak_bytes = state.total_bytes;
                    state.at_peak.clone_from(&state.live);
                }
            }
            EventKind::FreeRequested { address, .. } => {
                let (size, site) = state.blocks.remove(&address).expect("the block is live");
                *state.live.entry(site).or_default() -= size;
                state.total_bytes -= size;
                state.pending.insert(address, state.events);
            }
            EventKind::FreeCompleted { address, .. } => {
                let requested = state.pending.remove(&address).expect("the free was requested");
                state.delayed_frees += u64::from(state.events > requested + 1);
            }
            EventKind::OutOfMemory { .. } => state.out_of_memory += 1,
            _ => {}
        }
    }

    fn define(&mut self, definition: &Definition) {
        self.0.lock().expect("no thread panics").definitions.define(definition.clone());
    }
}

/// A finished run: its report, and results from its recording.
pub(crate) struct Recorded {
    pub(crate) report: TechniqueReport,
    pub(crate) definitions: Definitions,
    pub(crate) at_peak: Live,
    pub(crate) out_of_memory: u64,
    pub(crate) delayed_frees: u64,
}

impl Recorded {
    /// Returns the bytes at the peak by category.
    pub(crate) fn peak_by_category(&self) -> HashMap<Category, u64> {
        by_category(&self.definitions, &self.at_peak)
    }

    /// Returns the bytes of a category at the peak.
    pub(crate) fn peak_bytes_of(&self, category: Category) -> u64 {
        self.peak_by_category().get(&category).copied().unwrap_or_default()
    }

    /// Returns file name and line of the innermost frame of a site that has a line.
    pub(crate) fn line_of(&self, site: SiteId) -> (String, u32) {
        let site = self.definitions.site(site);
        let frames: Vec<_> = self.definitions.stack(site.stack).collect();
        let frame = frames.iter().find(|frame| frame.line > 0).expect("the site has a source line");
        let path = self.definitions.string(frame.file);
        (path.rsplit(['/', '\\']).next().unwrap_or(path).to_owned(), frame.line)
    }
}

/// Sums live bytes by category.
fn by_category(definitions: &Definitions, live: &Live) -> HashMap<Category, u64> {
    let mut sums = HashMap::new();
    for (site, bytes) in live {
        *sums.entry(definitions.site(*site).category).or_default() += bytes;
    }
    sums
}

/// Creates a device whose pool has the plan's settings and is followed by `sink`.
fn device(plan: &Plan, sink: PeakSink) -> Device {
    match device_kind() {
        DeviceKind::Host => {
            let pool = HostPool::new(HostDevice::new(CAPACITY_BYTES), plan.pool_settings(), sink, || 0);
            plan.host_device(pool, CAPACITY_BYTES).expect("the host is a device")
        }
        DeviceKind::Cuda => {
            let gpu = CudaDevice::new(0).unwrap_or_else(|error| panic!("no GPU: {error}"));
            let context = Arc::clone(gpu.context());
            let pool = CudaPool::new(gpu, plan.pool_settings(), sink, || 0);
            plan.cuda_device(pool, &context).unwrap_or_else(|error| panic!("no GPU: {error}"))
        }
    }
}

/// Runs a plan.
pub(crate) fn run_plan(plan: &Plan) -> Recorded {
    let sink = PeakSink::default();
    let device = device(plan, sink.clone());
    let finished = plan.run(&device, &AtomicBool::new(false), Duration::ZERO, &mut |_| {});
    let finished = finished.unwrap_or_else(|error| panic!("{}: {error}", plan.name()));
    let mut state = std::mem::take(&mut *sink.0.lock().expect("no thread panics"));
    let recorded = Recorded {
        report: finished.report.clone(),
        definitions: std::mem::take(&mut state.definitions),
        at_peak: state.at_peak,
        out_of_memory: state.out_of_memory,
        delayed_frees: state.delayed_frees,
    };
    // Leaks the program's memory, because its frees are not part of the run.
    std::mem::forget::<Finished>(finished);
    recorded
}

/// Returns the run of a plan. Each plan runs only once in all tests, because most tests compare
/// with one of few baselines.
fn run_plan_once(plan: &Plan) -> &'static Recorded {
    /// The finished run of each plan, by the plan's debug text.
    static RUNS: Mutex<BTreeMap<String, &'static OnceLock<Recorded>>> = Mutex::new(BTreeMap::new());
    let run =
        *RUNS.lock().expect("no thread panics").entry(format!("{plan:?}")).or_insert_with(|| Box::leak(Box::default()));
    run.get_or_init(|| run_plan(plan))
}

/// Returns the plan of techniques by their names, joined by commas.
pub(crate) fn plan(names: &str) -> Plan {
    let names: Vec<&str> = names.split(',').collect();
    Plan::new(&names, device_kind(), &SMALL).expect("the techniques fit")
}

/// Returns the run of techniques by their names, joined by commas.
pub(crate) fn run(names: &str) -> &'static Recorded {
    run_plan_once(&plan(names))
}

/// Returns the runs of a technique and of its baseline with equal sizes.
pub(crate) fn run_with_baseline(name: &str) -> [&'static Recorded; 2] {
    let technique = Technique::by_name(name).expect("the technique exists");
    let names = [&[technique.name][..], &[technique.baseline]];
    Plan::pair(names, device_kind(), &SMALL).expect("they fit").map(|plan| run_plan_once(&plan))
}
