//! Private pools whose blocks are not split (`torch.cuda.MemPool(no_split=True)`).

use vramscope_formats::{ImportSummary, Limits, export, ignore_progress, import};
use vramscope_pool::rerun::{History, Workload, verify};
use vramscope_pool::{CaptureFilter, Origin, Pool, Settings, SimulatedDevice};
use vramscope_trace::{
    DeviceId, Encoder, Event, EventKind, MemorySink, MempoolId, Recording, RecordingInfo, Sink, StreamId,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// A private pool that does not split, and one that does.
const POOLS: [MempoolId; 2] = [MempoolId(0, 1), MempoolId(0, 2)];

/// Returns a recording of the events.
fn recording(info: &RecordingInfo, events: &[Event]) -> Recording {
    let mut encoder = Encoder::new(info);
    events.iter().for_each(|event| encoder.event(event));
    encoder.flush();
    let mut recording = Recording::new();
    encoder.take_output().iter().for_each(|chunk| recording.push(&chunk.bytes).expect("the chunk is valid"));
    recording
}

/// Runs a program that allocates `sizes` in each of [`POOLS`] and in the default pool, and that
/// frees every third block and uses the memory again. Returns the pool's events.
fn run(settings: &Settings, sizes: &[u64]) -> Vec<Event> {
    let mut pool = Pool::new(DeviceId(0), settings.clone(), SimulatedDevice::new(8 << 30));
    let mut sink = MemorySink::default();
    pool.set_no_split(POOLS[0]);
    for owner in POOLS {
        pool.begin_allocate_to_pool(owner, CaptureFilter::AllStreams).expect("no other is selected");
        allocate(&mut pool, &mut sink, sizes);
        pool.end_allocate_to_pool(owner).expect("the pool is selected");
    }
    allocate(&mut pool, &mut sink, sizes);
    sink.events
}

fn allocate(pool: &mut Pool<SimulatedDevice>, sink: &mut MemorySink, sizes: &[u64]) {
    for round in 0..2 {
        let mut blocks = Vec::new();
        for &bytes in sizes {
            blocks.push(
                pool.allocate(bytes, StreamId(0), Origin::default(), sink)
                    .expect("the device has room")
                    .expect("the request is not empty"),
            );
        }
        for block in blocks.iter().skip(round).step_by(3) {
            pool.free(block.address, Origin::default(), sink).expect("the block is allocated");
        }
    }
}

/// Exports the events as a PyTorch snapshot, which has requested sizes only, and imports it.
fn through_snapshot(conf: &str, events: &[Event]) -> (Vec<Event>, ImportSummary) {
    let info = RecordingInfo { alloc_conf: conf.to_owned(), ..RecordingInfo::default() };
    let mut pickle = Vec::new();
    export::memory_viz_pickle(&recording(&info, events), &mut pickle, &mut |_, _| {}).expect("memory has room");
    let imported = import(&pickle, "no_split", &Limits::default(), &mut ignore_progress, |_| MemorySink::default());
    let (memory, summary) = imported.expect("the export is a snapshot");
    (memory.events, summary)
}

/// Returns address, size and requested size of each allocated block, in order.
fn blocks(events: &[Event]) -> Vec<[u64; 3]> {
    let block = |event: &Event| match event.kind {
        EventKind::BlockAllocated { address, size, requested, .. } => Some([address, size, requested]),
        _ => None,
    };
    events.iter().filter_map(block).collect()
}

/// Checks that a snapshot of the program gives the recorded blocks, and that the pool reproduces
/// them.
#[track_caller]
fn check(conf: &str, sizes: &[u64]) {
    let settings = Settings::parse(conf).expect("test settings are valid");
    let events = run(&settings, sizes);
    let (imported, summary) = through_snapshot(conf, &events);
    assert_eq!(blocks(&imported), blocks(&events), "{conf} {sizes:?}");
    assert_eq!(summary.contradictions, 0, "{conf} {sizes:?}: {:?}", summary.info.import_notes);
    let named = summary.info.import_notes.iter().filter(|note| note.contains("do not split")).count();
    assert_eq!(named, 1, "{conf} {sizes:?}: {:?}", summary.info.import_notes);
    let history = &History::from_recording(&recording(&summary.info, &imported)).expect("the chunks are valid")[0];
    let verification = verify(history, &settings);
    assert_eq!(verification.divergence, None, "{conf} {sizes:?}");
    assert_eq!(verification.assumed_private_pools, 0, "{conf} {sizes:?}");
    let workload = Workload::new(history.clone(), &settings).expect("the state is valid");
    let simulated = workload.simulate(&settings, None);
    assert_eq!(simulated.peak_reserved_bytes, workload.recorded.peak_reserved_bytes, "{conf} {sizes:?}");
}

#[test]
fn blocks_of_pools_that_do_not_split_are_whole_segments() {
    for conf in ["", "max_split_size_mb:64", "roundup_power2_divisions:4"] {
        check(conf, &[KIB, 300 * KIB, 2 * MIB, 5 * MIB, 30 * MIB, KIB, 2 * MIB]);
        check(conf, &[512, 512, 512, 512]);
        check(conf, &[3 * MIB, 3 * MIB, 3 * MIB, MIB]);
    }
}

#[test]
fn pools_that_split_are_not_taken_for_pools_that_do_not() {
    let settings = Settings::default();
    let mut pool = Pool::new(DeviceId(0), settings, SimulatedDevice::new(8 << 30));
    let mut sink = MemorySink::default();
    pool.begin_allocate_to_pool(POOLS[1], CaptureFilter::AllStreams).expect("no other is selected");
    allocate(&mut pool, &mut sink, &[KIB, 19 * MIB, 2 * MIB, 19 * MIB + 512]);
    let (imported, summary) = through_snapshot("", &sink.events);
    assert_eq!(blocks(&imported), blocks(&sink.events));
    assert!(!summary.info.import_notes.iter().any(|note| note.contains("do not split")));
}
