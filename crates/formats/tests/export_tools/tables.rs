//! The tables of events and lifetimes agree with the memory state at every moment and with the
//! lifetime index.

use std::collections::HashMap;

use proptest::prelude::*;
use vramscope_formats::export::{self, ExportError};
use vramscope_trace::{FormatError, LifetimesBuilder, Recording, Replay};

use crate::common::{RandomStep, RecordingBuilder, random_steps, recorded, snapshot};

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

fn check(recording: &Recording, moments: impl Fn(u64) -> bool) {
    let (events, lifetimes) = tables(recording);
    let events: Vec<_> = events.iter().filter_map(|row| Some((number(row, "event")?, row))).collect();
    assert_eq!(events.len() as u64, recording.events());
    let mut replay = Replay::new();
    for &(event, row) in events.iter().filter(|(event, _)| moments(*event)) {
        let device = number(row, "device").expect("an event has a device");
        let id = vramscope_trace::DeviceId(u16::try_from(device).expect("device numbers have 16 bits"));
        let state = replay.seek(recording, event + 1).expect("a recording can be read").device(id);
        let counters = state.map(|state| state.counters()).unwrap_or_default();
        // If events after this one are missing, the state is the one behind the gap.
        if replay.state().event() != event + 1 || recording.next_event(event + 1) != Some(event + 1) {
            continue;
        }
        let exported =
            ["allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes"].map(|name| number(row, name));
        let expected = [counters.allocated, counters.active, counters.reserved, counters.requested].map(Some);
        assert_eq!(exported, expected, "behind event {event}");
        let is_live = |row: &&Row, ends: &str| {
            number(row, "device") == Some(device)
                && number(row, "allocated_event").is_none_or(|allocated| allocated <= event)
                && number(row, ends).is_none_or(|ended| ended > event)
        };
        let sum = |ends| {
            let live = lifetimes.iter().filter(|row| is_live(row, ends));
            live.filter_map(|row| number(row, "size")).sum::<u64>()
        };
        assert_eq!(sum("freed_event"), counters.allocated, "allocated behind event {event}");
        assert_eq!(sum("completed_event"), counters.active, "active behind event {event}");
    }
    for (id, state) in recording.end_state().devices() {
        let alive = lifetimes
            .iter()
            .filter(|row| number(row, "device") == Some(id.0.into()) && number(row, "completed_event").is_none());
        assert!(alive.clone().all(|row| ["alive", "pending"].contains(&row["ending"].as_str())));
        assert_eq!(alive.count(), state.blocks().len());
    }
}

proptest! {
    // Each case checks every moment.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn lifetimes_add_up_to_the_counters_for_any_history(steps in random_steps()) {
        check(&recorded(&steps), |_| true);
    }
}

#[test]
fn lifetimes_of_real_recordings_add_up_to_the_counters() {
    for name in ["mlp_train", "frag_a_expandable", "ring", "graphs"] {
        check(&snapshot(name).0, |event| event % 97 == 0);
    }
}

/// Device, address, size, requested size, and the events that allocated, freed and released a
/// block.
type Allocation = (u64, u64, u64, u64, Option<u64>, Option<u64>, Option<u64>);

fn allocations_of_table(recording: &Recording) -> Vec<Allocation> {
    let allocation = |row: &Row| {
        let address = row["address"].strip_prefix("0x").expect("addresses are hexadecimal");
        let address = u64::from_str_radix(address, 16).expect("addresses are hexadecimal");
        let required = |column| number(row, column).expect("the column has a value in every row");
        let [device, size, requested] = ["device", "size", "requested"].map(required);
        let [allocated, freed, completed] =
            ["allocated_event", "freed_event", "completed_event"].map(|column| number(row, column));
        (device, address, size, requested, allocated, freed, completed)
    };
    tables(recording).1.iter().map(allocation).collect()
}

fn allocations_of_index(recording: &Recording) -> Vec<Allocation> {
    let mut builder = LifetimesBuilder::new();
    let mut replay = Replay::new();
    builder.full_state(replay.seek(recording, recording.first_event()).expect("the recording can be read"));
    let walked = export::for_each_event(recording, &mut |_, _| {}, |_, number, event| {
        builder.event(number, event);
        Ok::<_, FormatError>(())
    });
    walked.expect("the recording can be read");
    let lifetimes = builder.finish();
    let devices = lifetimes.devices().flat_map(|(id, device)| device.iter().map(move |one| (id, one)));
    devices
        .map(|(id, one)| {
            let (freed, completed) = (one.free_requested_event(), one.free_completed_event());
            (id.0.into(), one.address, one.size, one.requested, one.allocating_event(), freed, completed)
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
    use vramscope_trace::{DeviceId, Event, EventKind, PoolKey, SiteId, StreamId};
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
    assert_eq!(number(&lifetimes[0], "completed_event"), Some(2));
}

#[test]
fn number_of_2_pow_63_is_refused_by_parquet() {
    let mut builder = RecordingBuilder::new();
    builder.alloc(0, 512, 1 << 63, vramscope_trace::SiteId(0));
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
