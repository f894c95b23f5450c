//! Roll-ups in an archive.

use std::time::Duration;

use bytes::Bytes;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use vramscope_insight::fleet::{DeviceSummary, Mesh, ProcessDescription, Summary};

use super::harness::*;
use crate::archive::layout::Table;
use crate::archive::rollup_reader::read_rollups;
use crate::archive::store::ArchiveStore;
use crate::archive::{ArchiveOptions, ArchiveWriter, Rollup};

const SECOND_MS: u64 = 1000;

fn description(rank: u32) -> ProcessDescription {
    let mesh: Mesh = "pp=2,dp=2,tp=2".parse().expect("a valid mesh");
    ProcessDescription {
        rank: Some(rank),
        host: format!("machine-{}", rank / 4),
        coordinates: mesh.coordinates(rank),
        ..ProcessDescription::default()
    }
}

/// Sends ten summaries for each rank and second; allocated bytes are the number of the summary.
fn send(writer: &ArchiveWriter, ranks: u32, seconds: std::ops::Range<u64>) {
    for second in seconds {
        for tenth in 0..10 {
            let number = second * 10 + tenth;
            let stored_ns = EPOCH_NS + second * 1_000_000_000 + tenth * 100_000_000;
            for rank in 0..ranks {
                let device = DeviceSummary {
                    allocated: 1000 * u64::from(rank) + number,
                    reserved: 1 << 30,
                    sites: vec![(1, number), (2, 7)],
                    ..DeviceSummary::default()
                };
                let summary = Summary {
                    number,
                    time_unix_ns: stored_ns - 3_000_000 * (tenth + 1),
                    events: number,
                    step: Some(second),
                    mark: "forward".to_owned(),
                    devices: vec![device],
                    names: vec![(1, "linear".to_owned())],
                    ..Summary::default()
                };
                writer.summary(&identity(u64::from(rank)), &description(rank), &summary, stored_ns);
            }
        }
    }
}

/// Returns the bytes of all parts of a table.
fn parts(store: &ArchiveStore, table: Table) -> Vec<Bytes> {
    let manifest = block_on(store.read_manifest()).expect("a valid manifest");
    let parts = manifest.parts(table).iter();
    parts.map(|part| block_on(store.read_whole(&part.object)).expect("it is unchanged")).collect()
}

fn expected_rollup(rank: u32, second: u64) -> Rollup {
    let (first, last) = (1000 * u64::from(rank) + second * 10, 1000 * u64::from(rank) + second * 10 + 9);
    Rollup {
        unix_ms: EPOCH_NS / 1_000_000 + second * SECOND_MS,
        rank: Some(rank),
        identity: identity(u64::from(rank)),
        step: Some(second),
        allocated: (first, last, last),
        reserved: (1 << 30, 1 << 30, 1 << 30),
        events: second * 10 + 9,
        summaries: 10,
        lost_summaries: 0,
    }
}

#[test]
fn summaries_become_one_row_a_second() {
    for_each_store(|store| {
        let writer = writer(&store, ArchiveOptions::default());
        send(&writer, 8, 0..20);
        let summary = writer.finish().expect("everything is stored");
        assert_eq!((summary.objects, summary.lost_objects, summary.lost_summaries), (2, 0, 0));
        let reader = reader(&store);
        let expected: Vec<_> =
            (0..20).flat_map(|second| (0..8).map(move |rank| expected_rollup(rank, second))).collect();
        assert_eq!(reader.rollups(0..u64::MAX, None).expect("the parts are valid"), expected);
        let begin = EPOCH_NS / 1_000_000 + 5 * SECOND_MS;
        let one = reader.rollups(begin..begin + 3 * SECOND_MS, Some(3)).expect("the parts are valid");
        assert_eq!(one, [5, 6, 7].map(|second| expected_rollup(3, second)));
        assert!(reader.rollups(0..1, None).expect("the parts are valid").is_empty());
    });
}

#[test]
fn tables_have_the_documented_columns() {
    let store = memory();
    let writer = writer(&store, ArchiveOptions::default());
    send(&writer, 8, 0..4);
    writer.finish().expect("everything is stored");
    let first_row = |table: Table| {
        let part = parts(&store, table).remove(0);
        let reader = SerializedFileReader::new(part).expect("a Parquet file");
        let row = reader.get_row_iter(None).expect("rows").nth(7).expect("a row").expect("a valid row");
        row.to_string()
    };
    let rollup = first_row(Table::Rollups);
    for expected in [
        "time: 2027-01-15 08:00:00.000 +00:00",
        "rank: 7, host: \"machine-1\", pp: 1, dp: 1, tp: 1, step: 0, mark: \"forward\"",
        "allocated_min: 7000, allocated_max: 7009, allocated_last: 7009, reserved_min: 1073741824",
        "events: 9, lost_events: 0, summaries: 10, lost_summaries: 0, lag_ms: 30",
    ] {
        assert!(rollup.contains(expected), "{rollup}");
    }
    let site = first_row(Table::Sites);
    assert!(site.ends_with("rank: 3, site: \"site 2\", bytes: 7}"), "{site}");
}

#[test]
fn repeated_summaries_of_a_restarted_server_are_left_out() {
    let store = memory();
    for seconds in [[0..5, 5..10], [10..15, 5..9]] {
        let writer = writer(&store, ArchiveOptions::default());
        seconds.iter().for_each(|seconds| send(&writer, 2, seconds.clone()));
        writer.finish().expect("everything is stored");
    }
    let rollups = reader(&store).rollups(0..u64::MAX, None).expect("the parts are valid");
    let expected: Vec<_> = (0..15).flat_map(|second| (0..2).map(move |rank| expected_rollup(rank, second))).collect();
    assert_eq!(rollups, expected);
}

#[test]
fn summaries_of_the_second_of_a_restart_count_for_the_next() {
    let store = memory();
    let mut numbers = 0..25_u64;
    // The first server ends within the first second, the second one starts in it.
    for count in [4, 21] {
        let writer = writer(&store, ArchiveOptions::default());
        for number in numbers.by_ref().take(count) {
            let summary = Summary { number, devices: vec![DeviceSummary::default()], ..Summary::default() };
            writer.summary(&identity(0), &description(0), &summary, EPOCH_NS + number * 100_000_000);
        }
        let summary = writer.finish().expect("everything is stored");
        assert_eq!(summary.lost_summaries, 0);
    }
    let rollups = reader(&store).rollups(0..u64::MAX, None).expect("the parts are valid");
    let summaries: Vec<_> = rollups.iter().map(|row| (row.summaries, row.lost_summaries)).collect();
    assert_eq!(summaries, [(4, 0), (16, 0), (5, 0)]);
}

#[test]
fn summaries_that_were_overtaken_are_not_missing() {
    let store = memory();
    let writer = writer(&store, ArchiveOptions::default());
    // The broker stores number 9 in the next second, after number 11; number 5 never.
    for (number, tenths) in
        [0, 2, 1, 3, 4, 6, 7, 8, 10, 11, 9, 12].into_iter().zip([0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12])
    {
        let device = DeviceSummary { allocated: number, ..DeviceSummary::default() };
        let summary = Summary { number, events: number, devices: vec![device], ..Summary::default() };
        for _ in 0..2 {
            writer.summary(&identity(0), &description(0), &summary, EPOCH_NS + tenths * 100_000_000);
        }
    }
    writer.finish().expect("everything is stored");
    let rollups = reader(&store).rollups(0..u64::MAX, None).expect("the parts are valid");
    let counts = rollups.iter().map(|row| (row.summaries, row.lost_summaries, row.events, row.allocated));
    let [first, second] = [(0, 10, 10), (11, 12, 12)];
    assert_eq!(counts.collect::<Vec<_>>(), [(10, 1, 10, first), (2, 0, 12, second)]);
}

#[test]
fn parts_end_by_time_and_after_the_clock_was_set_back() {
    let store = memory();
    let options = ArchiveOptions { table_duration: Duration::from_secs(10), ..ArchiveOptions::default() };
    let writer = writer(&store, options);
    send(&writer, 1, 200..230);
    // The numbers of summaries continue, but the broker's clock goes back.
    for number in 3000..3100 {
        let summary = Summary { number, devices: vec![DeviceSummary::default()], ..Summary::default() };
        let stored_ns = EPOCH_NS + (number - 3000) * 100_000_000;
        writer.summary(&identity(0), &description(0), &summary, stored_ns);
    }
    let summary = writer.finish().expect("everything is stored");
    assert_eq!(summary.lost_summaries, 0);
    let parts = parts(&store, Table::Rollups);
    assert!(parts.len() >= 4, "{} parts", parts.len());
    let mut seconds = 0;
    for part in parts {
        let rows = read_rollups(part, |_, _| true).expect("a valid part");
        assert!(rows.is_sorted_by_key(|row| (row.unix_ms, row.rank)));
        seconds += rows.len();
    }
    assert_eq!(seconds, 40);
}

#[test]
fn damaged_parts_are_errors() {
    let store = memory();
    let writer = writer(&store, ArchiveOptions::default());
    send(&writer, 4, 0..4);
    writer.finish().expect("everything is stored");
    let rollups = parts(&store, Table::Rollups).remove(0);
    let sites = parts(&store, Table::Sites).remove(0);
    assert!(read_rollups(rollups.clone(), |_, _| true).is_ok());
    assert!(read_rollups(sites, |_, _| true).is_err_and(|error| error.contains("columns are not those")));
    for part in [Bytes::new(), rollups.slice(..rollups.len() / 2), rollups.slice(1..)] {
        assert!(read_rollups(part, |_, _| true).is_err());
    }
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..500 {
        let mut part = rollups.to_vec();
        let at = random.usize(..part.len());
        part[at] = random.u8(..);
        // A changed value is not noticed here, because the hash is checked before parsing.
        let _ = read_rollups(part.into(), |_, _| true);
    }
}
