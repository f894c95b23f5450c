//! The archive of a run at a broker.

use std::path::Path;
use std::time::Duration;

use vramscope_fleet::FleetAddress;
use vramscope_fleet::archive::{ArchiveAddress, ArchiveOptions, ArchiveReader, ArchiveWriter, RankEntry, RunArchiver};
use vramscope_tests::fleet::PushingRank;
use vramscope_trace::{DeviceId, Recording};

use super::harness::{start_broker, wait_until};

fn archive_address(folder: &Path) -> ArchiveAddress {
    ArchiveAddress::parse(&format!("file://{}/run", folder.display())).expect("a valid address")
}

/// Starts to archive the run at `url`, in short parts.
fn start(url: &str, folder: &Path) -> RunArchiver {
    let second = Duration::from_secs(1);
    let options = ArchiveOptions { part_duration: second, table_duration: second, ..ArchiveOptions::default() };
    let writer = ArchiveWriter::open(&archive_address(folder), "run", options).expect("the folder can be created");
    RunArchiver::start(&FleetAddress::parse(url).expect("a valid address"), writer).expect("the broker can be reached")
}

/// Returns the archived events of a rank, and its recording's end.
fn archived(reader: &ArchiveReader, rank: &RankEntry) -> (u64, Recording) {
    let last = rank.parts.last().expect("a listed rank has parts");
    let recording = reader.recording_at(rank, last.object.end_unix_ms).expect("the part opens");
    (rank.parts.iter().map(|part| part.events).sum(), recording.expect("the part is the last"))
}

/// Returns true if the archive has all events of all ranks.
fn has_all_events(folder: &Path, ranks: &[PushingRank]) -> bool {
    let Ok(reader) = ArchiveReader::open(&archive_address(folder)) else { return false };
    ranks.iter().all(|rank| {
        let entry = reader.ranks().iter().find(|entry| entry.rank == Some(rank.rank));
        entry.is_some_and(|entry| archived(&reader, entry).0 == rank.program.events())
    })
}

#[test]
#[ignore = "needs nats-server: cargo xtask test"]
fn archive_has_every_event_of_a_run_although_its_server_restarts() {
    let broker = start_broker();
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let url = broker.address("run");
    let mut ranks: Vec<_> = (0..4).map(|rank| PushingRank::start(rank, &format!("{url}?push=all"))).collect();
    for restart in 0..3 {
        let archiver = start(&url, folder.path());
        ranks.iter_mut().for_each(|rank| rank.program.run(5_000));
        if restart == 1 {
            wait_until("the archive has all events", || has_all_events(folder.path(), &ranks));
        }
        let summary = archiver.finish().expect("everything read is stored");
        assert_eq!((summary.lost_objects, summary.lost_summaries, summary.unknown_summaries), (0, 0, 0));
    }
    let archiver = start(&url, folder.path());
    ranks.iter_mut().for_each(PushingRank::end);
    wait_until("the archive has all events", || has_all_events(folder.path(), &ranks));
    archiver.finish().expect("everything read is stored");

    let reader = ArchiveReader::open(&archive_address(folder.path())).expect("the archive is valid");
    for rank in &ranks {
        let entry = reader.ranks().iter().find(|entry| entry.rank == Some(rank.rank)).expect("the rank is listed");
        assert_eq!(entry.program, "train.py");
        assert!(!entry.host.is_empty());
        let continues =
            |pair: &[vramscope_fleet::archive::RecordingPartEntry]| pair[0].end_event == pair[1].first_event;
        assert!(entry.parts.windows(2).all(continues), "{:?}", entry.parts);
        let (_, recording) = archived(&reader, entry);
        let device = recording.end_state().device(DeviceId(0)).expect("the rank has a device");
        assert_eq!(device.counters(), rank.program.device().counters());
        assert!(device.blocks().eq(rank.program.device().blocks()));
        let rollups = reader.rollups(0..u64::MAX, Some(rank.rank)).expect("the parts are valid");
        assert!(rollups.is_sorted_by(|a, b| a.unix_ms < b.unix_ms), "{rollups:?}");
        assert!(rollups.last().is_some_and(|last| last.events > 0), "{rollups:?}");
    }
}
