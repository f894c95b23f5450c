//! The tables of events and lifetimes agree with the memory state at every moment, whatever the history.

use std::collections::HashMap;

use proptest::prelude::*;
use vramscope_formats::export::{self, ExportError};
use vramscope_trace::{Recording, Replay};

use crate::common::{Draft, Happening, happenings, recorded, snapshot};

/// A row by column.
type Row = HashMap<String, String>;

fn parse(table: &[u8]) -> Vec<Row> {
    let mut reader = csv::Reader::from_reader(table);
    reader.deserialize().map(|row| row.expect("every row has every column")).collect()
}

/// The rows of both tables.
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
        let id = vramscope_trace::DeviceId(u16::try_from(device).expect("it is one"));
        let state = replay.seek(recording, event + 1).expect("a recording can be read").device(id);
        let counters = state.map(|state| state.counters()).unwrap_or_default();
        // Where events are missing right behind this one, the state is the one behind them.
        if replay.state().event() != event + 1 || recording.next_event(event + 1) != Some(event + 1) {
            continue;
        }
        let said =
            ["allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes"].map(|name| number(row, name));
        let counted = [counters.allocated, counters.active, counters.reserved, counters.requested].map(Some);
        assert_eq!(said, counted, "behind event {event}");
        let is_there = |row: &&Row, ends: &str| {
            number(row, "device") == Some(device)
                && number(row, "allocated_event").is_none_or(|allocated| allocated <= event)
                && number(row, ends).is_none_or(|ended| ended > event)
        };
        let sum = |ends| {
            let there = lifetimes.iter().filter(|row| is_there(row, ends));
            there.filter_map(|row| number(row, "size")).sum::<u64>()
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
    // Every moment of every case is looked at.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn lifetimes_add_up_to_the_counters_whatever_happens(happenings in happenings()) {
        check(&recorded(&happenings), |_| true);
    }
}

#[test]
fn lifetimes_of_real_recordings_add_up_to_the_counters() {
    for name in ["mlp_train", "frag_a_expandable", "ring", "graphs"] {
        check(&snapshot(name).0, |event| event % 97 == 0);
    }
}

#[test]
fn a_segment_that_goes_takes_its_blocks_along() {
    use vramscope_trace::{DeviceId, Event, EventKind, Pool, SiteId, StreamId};
    let (stream, pool, site) = (StreamId(0), Pool::default(), SiteId(0));
    let kinds = [
        EventKind::SegmentAllocated { address: 512, size: 1024, stream, pool, site },
        EventKind::BlockAllocated { address: 512, size: 512, requested: 9, stream, pool, site },
        EventKind::SegmentFreed { address: 512, size: 1024, site },
    ];
    let event = |kind| Happening::Event(Event { device: DeviceId(0), time_ns: 5, kind });
    let (_, lifetimes) = tables(&recorded(&kinds.map(event)));
    assert_eq!(lifetimes.len(), 1);
    assert_eq!(lifetimes[0]["ending"], "lost");
    assert_eq!(number(&lifetimes[0], "completed_event"), Some(2));
}

#[test]
fn a_number_that_parquet_has_no_place_for_is_an_error() {
    let mut draft = Draft::new();
    draft.alloc(0, 512, 1 << 63, vramscope_trace::SiteId(0));
    let recording = draft.finish();
    let error =
        export::parquet(&recording, &mut Vec::new(), &mut Vec::new(), &mut |_, _| {}).expect_err("it is too large");
    assert!(matches!(&error, ExportError::Unfit(what) if what.contains("size is 9223372036854775808")), "{error}");
}

/// An output that is full at once.
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
fn an_output_that_fails_is_told_as_such() {
    let recording = snapshot("mlp_train").0;
    let mut quiet = |_, _| {};
    let results = [
        export::csv(&recording, Full, Full, &mut quiet),
        export::parquet(&recording, Full, Full, &mut quiet),
        export::perfetto(&recording, &mut Full, &mut quiet),
        export::tensorboard(&recording, &mut Full, &mut quiet),
    ];
    for result in results {
        let is_full = |error: &ExportError| matches!(error, ExportError::Output(error) if error.kind() == std::io::ErrorKind::StorageFull);
        assert!(result.as_ref().is_err_and(is_full), "{result:?}");
    }
}
