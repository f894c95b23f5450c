//! The fuzz target for autopsies of programs that run out of memory.

use vramscope_insight::autopsy::{Autopsy, RemedySearch, defects};
use vramscope_insight::history::History;
use vramscope_pool::rerun::{self, Workload};
use vramscope_pool::{Origin, Pool, Settings, SimulatedDevice};
use vramscope_trace::{
    AnnotationStage, Category, Definition, DeviceId, Encoder, Event, EventKind, Frame, FrameId, Recording,
    RecordingInfo, Sink, Site, SiteId, Stack, StackId, StreamId, StringId,
};

use crate::{history_input, recording_bytes, structured_input};

/// Maximum number of calls in a generated program.
const MAX_CALLS: usize = 3000;
/// Maximum number of calls that one repetition repeats.
const MAX_REPEATED: usize = 40;
/// The memory of the generated program's device, in bytes.
const CAPACITY_BYTES: u64 = 96 << 20;
/// Maximum number of events in a recording that is not a generated program's.
const MAX_EVENTS: u64 = 20_000;
/// Maximum number of simulated runs in one search for remedies.
const MAX_RUNS: usize = 200;

/// One call of a generated program: the operation's code and its argument.
type Call = (u8, u8);

/// Decodes calls from bytes, two for each call. Operation 7 repeats the calls before it, so that a
/// short input describes many training steps.
fn calls(bytes: &[u8]) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    for pair in bytes.chunks_exact(2).take(MAX_CALLS) {
        if pair[0] % 8 == 7 {
            let count = (usize::from(pair[1] >> 3) + 1).min(MAX_REPEATED).min(calls.len());
            let repeated = calls[calls.len() - count..].to_vec();
            for _ in 0..=(pair[1] & 7) {
                calls.extend(&repeated);
            }
        } else {
            calls.push((pair[0], pair[1]));
        }
        calls.truncate(MAX_CALLS);
    }
    calls
}

/// Records a program whose requests often fail.
fn record(bytes: &[u8], settings: &Settings) -> Recording {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    // Defines sites 1 to 8: lines of one function, some with a category.
    for text in ["step", "train", "train.py", "_call_impl", "module.py"] {
        encoder.define(&Definition::String(text.to_owned()));
    }
    encoder.define(&Definition::Frame(Frame { function: StringId(4), file: StringId(5), line: 1 }));
    encoder.define(&Definition::Stack(Stack { frame: FrameId(1), caller: StackId(0) }));
    for line in 1..=8u32 {
        encoder.define(&Definition::Frame(Frame { function: StringId(2), file: StringId(3), line }));
        encoder.define(&Definition::Stack(Stack { frame: FrameId(line + 1), caller: StackId(line % 2) }));
        let category = Category::ALL[line as usize % Category::ALL.len()];
        let (stack, scope, compile_context) = (StackId(line + 1), StringId(0), StringId(0));
        encoder.define(&Definition::Site(Site { stack, scope, category, compile_context }));
    }
    let device = SimulatedDevice::new(CAPACITY_BYTES);
    let mut pool = Pool::new(DeviceId(0), settings.clone(), device);
    let mut live: Vec<u64> = Vec::new();
    for (time_ns, (operation, value)) in (0..).zip(calls(bytes)) {
        let origin = Origin { time_ns, site: SiteId(u32::from(value % 9)) };
        match operation % 8 {
            0..=3 => {
                let bytes = (u64::from(value) + 1) << (9 + u32::from(operation >> 4));
                let stream = StreamId(u64::from(operation & 1));
                let allocated = pool.allocate(bytes, stream, origin, &mut encoder);
                live.extend(allocated.ok().flatten().map(|block| block.address));
            }
            4 if !live.is_empty() => {
                let address = live.swap_remove(usize::from(value) % live.len());
                if operation & 16 != 0 {
                    let _ = pool.record_stream(address, StreamId(2));
                }
                let _ = pool.free(address, origin, &mut encoder);
            }
            5 => {
                let (stage, name) = (AnnotationStage::Instant, StringId(1));
                let kind = EventKind::Mark { stage, name, address: 0, site: SiteId(0) };
                encoder.event(&Event { device: DeviceId(0), time_ns, kind });
            }
            6 => drop(pool.empty_cache(origin, &mut encoder)),
            _ => {}
        }
    }
    recording_bytes::read_encoded(&recording_bytes::encoded(encoder))
}

/// Reads a recording; `None` if it is damaged or too long.
fn read(bytes: &[u8]) -> Option<Recording> {
    recording_bytes::read(bytes).ok().filter(|recording| recording.events() <= MAX_EVENTS)
}

/// Explains the failures of a generated program or of a structured input, and simulates remedies.
pub fn autopsy(data: &[u8]) {
    let Some((&choice, input)) = data.split_first() else { return };
    let settings = Settings {
        expandable_segments: choice & 4 != 0,
        max_split_size_bytes: (choice & 8 != 0).then_some(20 << 20),
        limit_bytes: (choice & 16 != 0).then_some(64 << 20),
        ..Settings::default()
    };
    let recording = match choice & 3 {
        0 | 1 => Some(record(input, &settings)),
        2 => read(&structured_input::build(input)),
        _ => read(&history_input::encode(input).0),
    };
    let Some(recording) = recording else { return };
    let history = History::of(&recording).expect("all chunks are in memory");
    let mut autopsy = Autopsy::new(settings.clone());
    while !autopsy.step(&recording, &history).expect("all chunks are in memory") {}
    let histories = rerun::History::from_recording(&recording).expect("all chunks are in memory");
    let mut workloads: Vec<Workload> = Vec::new();
    for history in histories {
        let is_first = workloads.iter().all(|one| one.device() != history.device());
        workloads.extend(Workload::new(history, &settings).ok().filter(|_| is_first));
    }
    let workload_of = |device: DeviceId| workloads.iter().find(|one| one.device() == device);
    for oom in autopsy.ooms().iter().take(2) {
        assert!(oom.active_bytes() >= oom.failure.usage.allocated_bytes, "holders add up: {oom:?}");
        assert!(oom.summary.ends_with('.') && !oom.events.is_empty(), "{oom:?}");
        let Some(workload) = workload_of(oom.failure.device) else { continue };
        let search = RemedySearch::new(&recording, &history, &autopsy, oom, workload, None);
        let mut search = search.expect("all chunks are in memory");
        for _ in 0..MAX_RUNS {
            let Some(run) = search.next_run() else { break };
            let result = run.simulate(search.program(workload));
            search.finish(&run, &result);
        }
        let found = search.into_remedies();
        for remedy in &found.remedies {
            assert!(remedy.saves_bytes <= found.unchanged_peak_bytes, "{found:?}");
        }
    }
    let mut requests_of = |device| workload_of(device).into_iter().flat_map(Workload::private_pool_requests).collect();
    for defect in defects(&recording, &settings, &mut requests_of).expect("all chunks are in memory") {
        let _ = workload_of(defect.device).and_then(|workload| defect.saved_bytes(workload, &settings));
    }
}
