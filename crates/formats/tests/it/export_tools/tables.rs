//! The tables of events and lifetimes agree with the memory state at every moment and with the
//! lifetime index.

use std::collections::HashMap;

use proptest::prelude::*;
use vramscope_formats::export::{self, ExportError};
use vramscope_trace::{
    Block, DeviceId, DeviceState, Event, EventKind, FormatError, LifetimesBuilder, MemoryState, PoolKey, Recording,
    Replay, Sink, SiteId, StreamId,
};

use super::common::{RandomStep, RecordingBuilder, random_steps, recorded, snapshot};

/// The values of a row by column.
type Row = HashMap<String, String>;

fn parse(table: &[u8]) -> Vec<Row> {
    let mut reader = csv::Reader::from_reader(table);
    reader.deserialize().map(|row| row.expect("every row has every column")).collect()
}

/// Returns the rows of both tables.
fn tables(recording: &Recording) -> (Vec<Row>, Vec<Row>) {
    let (mut events, mut lifetimes) = (Vec::new(), Vec::new());
    export::csv(recording, &mut events, &mut lifetimes, &mut |_, _| {}).expect("memory can be written");
    (parse(&events), parse(&lifetimes))
}

fn number(row: &Row, column: &str) -> Option<u64> {
    let text = &row[column];
    (!text.is_empty()).then(|| text.parse().unwrap_or_else(|_| panic!("{column} is {text}")))
}

/// Checks the rows of both tables against the memory state at the event numbers for which `moments`
/// returns true.
fn check(recording: &Recording, moments: impl Fn(u64) -> bool) {
    let (events, lifetimes) = tables(recording);
    let events: Vec<_> = events.iter().filter_map(|row| Some((number(row, "event")?, row))).collect();
    assert_eq!(events.len() as u64, recording.events());
    let mut replay = Replay::new();
    for &(event, row) in events.iter().filter(|(event, _)| moments(*event)) {
        let device = number(row, "device").expect("an event has a device");
        let id = DeviceId(u16::try_from(device).expect("device numbers have 16 bits"));
        let state = replay.seek(recording, event).expect("a recording can be read").device(id);
        let counters = state.map(|state| state.counters()).unwrap_or_default();
        // If events after this one are missing, the state is the full state after the gap.
        if replay.state().event() != event || recording.next_event(event) != Some(event) {
            continue;
        }
        let exported =
            ["allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes"].map(|name| number(row, name));
        let expected = [counters.allocated, counters.active, counters.reserved, counters.requested].map(Some);
        assert_eq!(exported, expected, "at event {event}");
        let is_live = |row: &&Row, ends: &str| {
            number(row, "device") == Some(device)
                && number(row, "allocated_event").is_none_or(|allocated| allocated <= event)
                && number(row, ends).is_none_or(|ended| ended > event)
        };
        let sum = |ends| {
            let live = lifetimes.iter().filter(|row| is_live(row, ends));
            live.filter_map(|row| number(row, "size")).sum::<u64>()
        };
        assert_eq!(sum("freed_event"), counters.allocated, "allocated at event {event}");
        assert_eq!(sum("completed_event"), counters.active, "active at event {event}");
    }
    for (id, state) in recording.end_state().devices() {
        let alive = lifetimes
            .iter()
            .filter(|row| number(row, "device") == Some(id.0.into()) && number(row, "completed_event").is_none());
        assert!(alive.clone().all(|row| ["alive", "pending"].contains(&row["ending"].as_str())));
        assert_eq!(alive.count(), state.blocks().len());
    }
}

/// Device, address and size of a block, and whether its free is pending.
type LiveBlock = (u64, u64, u64, bool);

/// Returns the blocks of a memory state, sorted.
fn blocks_of_state(state: &MemoryState) -> Vec<LiveBlock> {
    let blocks = state.devices().flat_map(|(id, device)| device.blocks().map(move |block| (id, block)));
    blocks.map(|(id, block)| (id.0.into(), block.address, block.size, block.pending_free)).collect()
}

/// Returns the blocks that the lifetimes table has at an event number, sorted.
fn blocks_of_table(lifetimes: &[Allocation], event: u64) -> Vec<LiveBlock> {
    let is_live = |one: &&Allocation| {
        one.allocated.is_none_or(|allocated| allocated <= event) && one.completed.is_none_or(|ended| event < ended)
    };
    let block = |one: &Allocation| {
        let pending_free = one.freed.is_some_and(|freed| freed <= event);
        (one.device, one.address, one.size, pending_free)
    };
    let mut blocks: Vec<_> = lifetimes.iter().filter(is_live).map(block).collect();
    blocks.sort_unstable();
    blocks
}

proptest! {
    // Each case checks every moment.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn lifetimes_add_up_to_the_counters_for_any_history(steps in random_steps()) {
        check(&recorded(&steps), |_| true);
    }

    #[test]
    fn exported_event_numbers_are_moments_of_the_replay(steps in random_steps()) {
        let recording = recorded(&steps);
        let lifetimes = allocations_of_table(&recording);
        let mut replay = Replay::new();
        for event in recording.first_event()..=recording.end_event() {
            // An export sees the state before each event and at the end.
            if event == recording.end_event() || recording.next_event(event) == Some(event) {
                let state = replay.seek(&recording, event).expect("a recording can be read");
                prop_assert_eq!(blocks_of_table(&lifetimes, event), blocks_of_state(state), "at event {}", event);
            }
        }
    }
}

#[test]
fn allocated_and_freed_event_are_where_the_replayed_state_changes() {
    for name in ["mlp_train", "frag_a_expandable", "ring", "graphs"] {
        let recording = snapshot(name).0;
        let lifetimes = allocations_of_table(&recording);
        let mut replay = Replay::new();
        let mut is_allocated = |one: &Allocation, event: u64| {
            assert!(event <= recording.end_event(), "{name} has a moment {event}");
            let state = replay.seek(&recording, event).expect("a recording can be read");
            let device = state.device(DeviceId(u16::try_from(one.device).expect("device numbers have 16 bits")));
            let block = device.and_then(|device| device.block_at(one.address));
            block.is_some_and(|block| {
                let is_this = block.address == one.address && one.allocated.is_none_or(|n| block.since_event + 1 == n);
                is_this && !block.pending_free
            })
        };
        // Sorted, so that the replay only moves forward.
        let by = |event: fn(&Allocation) -> Option<u64>| {
            let mut numbered: Vec<_> = lifetimes.iter().filter_map(|one| Some((event(one)?, one))).collect();
            numbered.sort_unstable();
            assert!(numbered.len() > 100, "{name} has {} allocations", numbered.len());
            numbered
        };
        for (allocated, one) in by(|one| one.allocated) {
            assert!(!is_allocated(one, allocated - 1), "{name}: {one:?} begins at {allocated}, not before");
            assert!(is_allocated(one, allocated), "{name}: {one:?} is allocated from {allocated} on");
        }
        for (freed, one) in by(|one| one.freed) {
            assert!(is_allocated(one, freed - 1), "{name}: {one:?} is allocated until {freed}");
            assert!(!is_allocated(one, freed), "{name}: {one:?} is freed at {freed}");
        }
    }
}

#[test]
fn first_event_has_number_1() {
    let mut builder = RecordingBuilder::new();
    builder.alloc(0, 512, 512, SiteId(0));
    builder.free(10, 512);
    let (events, lifetimes) = tables(&builder.finish());
    assert_eq!(events.iter().map(|row| row["event"].as_str()).collect::<Vec<_>>(), ["1", "2", "3"]);
    let columns = ["allocated_event", "freed_event", "completed_event"];
    assert_eq!(columns.map(|column| lifetimes[0][column].as_str()), ["1", "2", "3"]);
}

#[test]
fn relabels_are_rows_without_an_event_number() {
    let mut builder = RecordingBuilder::new();
    let [unknown, weights, momentum] = ["", "weights", "momentum"].map(|scope| builder.site(scope));
    builder.alloc(0, 512, 512, unknown);
    builder.relabel(5, 512, weights);
    builder.alloc(10, 1024, 512, unknown);
    builder.free(20, 512);
    builder.relabel(30, 1024, momentum);
    let (events, lifetimes) = tables(&builder.finish());
    let columns = |row: &Row| ["event", "kind", "time_ns", "address", "scope"].map(|column| row[column].clone());
    let relabels: Vec<_> = events.iter().filter(|row| row["kind"] == "relabel").map(columns).collect();
    assert_eq!(relabels[0], ["", "relabel", "5", "0x200", "weights"]);
    // The relabel follows the last event and takes effect at the last moment.
    assert_eq!(relabels[1], ["", "relabel", "20", "0x400", "momentum"]);
    assert_eq!((events.len(), relabels.len()), (6, 2));
    let scopes: Vec<_> = lifetimes.iter().map(|row| (row["allocated_event"].as_str(), row["scope"].as_str())).collect();
    assert_eq!(scopes, [("1", "weights"), ("2", "momentum")]);
}

#[test]
fn blocks_lost_in_a_gap_end_at_the_full_state() {
    let mut builder = RecordingBuilder::new();
    builder.alloc(0, 512, 512, SiteId(0));
    let mut state = builder.encoder.state().clone();
    let device = state.device_mut(DeviceId(0));
    let kept = device.blocks().next().copied().expect("the block is live");
    let observed = |address, pending_free| Block { address, pending_free, ..kept };
    let mut after = DeviceState::default();
    after.insert_block(observed(1024, false));
    after.insert_block(observed(2048, true));
    device.resync(&after, 11, 5);
    builder.encoder.skip_to(11);
    builder.encoder.replace_state(&state);
    // Index 11, number 12: completes the free of a block that was pending in the full state.
    builder.event(9, EventKind::FreeCompleted { address: 2048, site: SiteId(0) });
    let recording = builder.finish();
    let mut rows = allocations_of_table(&recording);
    rows.sort_unstable_by_key(|one| one.address);
    let numbers = rows.iter().map(|one| (one.allocated, one.freed, one.completed)).collect::<Vec<_>>();
    let expected = [(Some(1), Some(11), Some(11)), (Some(11), None, None), (Some(11), Some(11), Some(12))];
    assert_eq!(numbers, expected);
}

#[test]
fn lifetimes_of_real_recordings_add_up_to_the_counters() {
    for name in ["mlp_train", "frag_a_expandable", "ring", "graphs"] {
        check(&snapshot(name).0, |event| event % 97 == 0);
    }
}

/// A row of the lifetimes table: a block, and the numbers of the events that allocated, freed and
/// released it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Allocation {
    device: u64,
    address: u64,
    size: u64,
    requested: u64,
    allocated: Option<u64>,
    freed: Option<u64>,
    completed: Option<u64>,
}

fn allocations_of_table(recording: &Recording) -> Vec<Allocation> {
    let allocation = |row: &Row| {
        let address = row["address"].strip_prefix("0x").expect("addresses are hexadecimal");
        let address = u64::from_str_radix(address, 16).expect("addresses are hexadecimal");
        let required = |column| number(row, column).expect("the column has a value in every row");
        let [device, size, requested] = ["device", "size", "requested"].map(required);
        let [allocated, freed, completed] =
            ["allocated_event", "freed_event", "completed_event"].map(|column| number(row, column));
        Allocation { device, address, size, requested, allocated, freed, completed }
    };
    tables(recording).1.iter().map(allocation).collect()
}

fn allocations_of_index(recording: &Recording) -> Vec<Allocation> {
    let mut builder = LifetimesBuilder::new();
    let mut replay = Replay::new();
    builder.replace_state(replay.seek(recording, recording.first_event()).expect("the recording can be read"));
    let walked = export::for_each_event(recording, &mut |_, _| {}, |_, index, event| {
        builder.event(index, event);
        Ok::<_, FormatError>(())
    });
    walked.expect("the recording can be read");
    let lifetimes = builder.finish();
    let devices = lifetimes.devices().flat_map(|(id, device)| device.iter().map(move |one| (id, one)));
    let number = |index: Option<u64>| index.map(|index| index + 1);
    devices
        .map(|(id, one)| Allocation {
            device: id.0.into(),
            address: one.address,
            size: one.size,
            requested: one.requested,
            allocated: number(one.allocating_event()),
            freed: number(one.free_requested_event()),
            completed: number(one.free_completed_event()),
        })
        .collect()
}

#[test]
fn lifetimes_table_agrees_with_the_lifetime_index() {
    for name in ["mlp_train", "frag_a_expandable", "ring", "graphs"] {
        let recording = snapshot(name).0;
        let (mut exported, mut indexed) = (allocations_of_table(&recording), allocations_of_index(&recording));
        exported.sort_unstable();
        indexed.sort_unstable();
        assert!(exported.len() > 100, "{name} has {} allocations", exported.len());
        assert_eq!(exported, indexed, "{name}");
    }
}

#[test]
fn blocks_end_with_their_segment() {
    let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
    let kinds = [
        EventKind::SegmentAllocated { address: 512, size: 1024, stream, pool, site },
        EventKind::BlockAllocated { address: 512, size: 512, requested: 9, stream, pool, site },
        EventKind::SegmentFreed { address: 512, size: 1024, site },
    ];
    let event = |kind| RandomStep::Event(Event { device: DeviceId(0), time_ns: 5, kind });
    let (_, lifetimes) = tables(&recorded(&kinds.map(event)));
    assert_eq!(lifetimes.len(), 1);
    assert_eq!(lifetimes[0]["ending"], "lost");
    assert_eq!(number(&lifetimes[0], "completed_event"), Some(3));
}

#[test]
fn number_of_2_pow_63_is_refused_by_parquet() {
    let mut builder = RecordingBuilder::new();
    builder.alloc(0, 512, 1 << 63, SiteId(0));
    let recording = builder.finish();
    let error =
        export::parquet(&recording, &mut Vec::new(), &mut Vec::new(), &mut |_, _| {}).expect_err("the size is 2⁶³");
    assert!(
        matches!(&error, ExportError::Unsupported(what) if what.contains("size is 9223372036854775808")),
        "{error}"
    );
}

/// An output without any space.
struct Full;

impl std::io::Write for Full {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::StorageFull.into())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn full_output_is_reported_as_an_io_error() {
    let recording = snapshot("mlp_train").0;
    let mut quiet = |_, _| {};
    let results = [
        export::csv(&recording, Full, Full, &mut quiet),
        export::parquet(&recording, Full, Full, &mut quiet),
        export::perfetto(&recording, &mut Full, &mut quiet),
        export::tensorboard(&recording, &mut Full, &mut quiet),
    ];
    for result in results {
        let is_full = |error: &ExportError| match error {
            ExportError::Output(error) => error.kind() == std::io::ErrorKind::StorageFull,
            _ => false,
        };
        assert!(result.as_ref().is_err_and(is_full), "{result:?}");
    }
}
