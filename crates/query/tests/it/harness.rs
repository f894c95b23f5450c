//! An archive with known content.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use vramscope_collector::Process;
use vramscope_fleet::archive::{ArchiveAddress, ArchiveOptions, ArchiveReader, ArchiveWriter};
use vramscope_insight::fleet::{DeviceSummary, Mesh, ProcessDescription, Summary};
use vramscope_query::{OutputFormat, QuerySession, QuerySummary, SqlError};
use vramscope_trace::{
    DeviceId, Encoder, Event, EventKind, PoolKey, PoolKind, RecordingInfo, Sink as _, SiteId, StreamId,
};

/// The first second of the run: 2027-01-15 08:00:00 UTC.
pub(crate) const START_UNIX_S: u64 = 1_800_000_000;
/// Length of the run, in seconds.
const RUN_SECONDS: u64 = 9000;
/// Seconds from one row of a rank to the next.
pub(crate) const ROW_SECONDS: u64 = 10;
/// Number of ranks of the run, in two stages and on two machines.
pub(crate) const RANKS: u32 = 8;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The archive of a run in a folder.
pub(crate) struct Archive {
    folder: TempDir,
}

/// Returns the description of a rank's process. Ranks 0 to 3 are on machine-0.
pub(crate) fn description(rank: u32) -> ProcessDescription {
    let mesh: Mesh = "pp=2,dp=2,tp=2".parse().expect("a valid mesh");
    ProcessDescription {
        rank: Some(rank),
        host: format!("machine-{}", rank / 4),
        program: "train.py".to_owned(),
        coordinates: mesh.coordinates(rank),
        ..ProcessDescription::default()
    }
}

/// Returns the identity of a rank's recording.
pub(crate) fn identity(rank: u32) -> String {
    format!("{rank:032x}")
}

/// Returns the device of a rank at row `row`:
///
/// - All have 10 GiB allocated, and 12 GiB in the second stage. Rank 3 grows by 1 MiB each row.
/// - Rank 6 has 40 GiB at row 450 (09:15:00).
/// - Rank 7 fails twice at row 360 (09:00:00) and once at row 500, rank 4 once at row 360.
/// - Rank 5 has 4 GiB in attention, the others 1 GiB.
/// - Rank 1 has 2 GiB of free bytes, of which the largest block has a quarter, the others a half.
fn device(rank: u32, row: u64) -> DeviceSummary {
    let base = if rank < 4 { 10 * GIB } else { 12 * GIB };
    let allocated = match (rank, row) {
        (3, _) => base + row * MIB,
        (6, 450) => 40 * GIB,
        _ => base,
    };
    let ooms = match rank {
        7 => 2 * u32::from(row >= 360) + u32::from(row >= 500),
        4 => u32::from(row >= 360),
        _ => 0,
    };
    DeviceSummary {
        allocated,
        active: allocated,
        requested: allocated - MIB,
        reserved: allocated + 2 * GIB,
        free: 2 * GIB,
        largest_free: if rank == 1 { GIB / 2 } else { GIB },
        segments: 10,
        blocks: 1000 + rank,
        ooms,
        sites: vec![(1, if rank == 5 { 4 * GIB } else { GIB }), (2, GIB / 2 + u64::from(rank))],
        ..DeviceSummary::default()
    }
}

/// Returns the summary of a rank at a row. Rank 2 loses ten summaries before row 100, and its
/// summary of row 200 is 1.5 s late; the others come after 3 ms.
fn summary(rank: u32, row: u64) -> (Summary, u64) {
    let stored_ns = (START_UNIX_S + row * ROW_SECONDS) * 1_000_000_000 + 500_000_000;
    let late_ms = if (rank, row) == (2, 200) { 1500 } else { 3 };
    let summary = Summary {
        number: row + if rank == 2 && row >= 100 { 10 } else { 0 },
        time_unix_ns: stored_ns - late_ms * 1_000_000,
        events: row * 100,
        step: Some(row),
        mark: if row.is_multiple_of(2) { "forward" } else { "backward" }.to_owned(),
        devices: vec![device(rank, row)],
        names: vec![(1, "attention".to_owned()), (2, "mlp, \"fc1\"\u{1b}[2J".to_owned())],
        ..Summary::default()
    };
    (summary, stored_ns)
}

/// Returns a recording of `events` allocations, one a second.
fn recording(events: u64) -> Vec<u8> {
    let info = RecordingInfo { epoch_unix_ns: START_UNIX_S * 1_000_000_000, ..RecordingInfo::default() };
    let mut encoder = Encoder::new(&info);
    for number in 0..events {
        let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Small), SiteId(0));
        let address = 4096 * (number + 1);
        let kind = EventKind::BlockAllocated { address, size: 512, requested: 512, stream, pool, site };
        encoder.event(&Event { device: DeviceId(0), time_ns: number * 1_000_000_000, kind });
    }
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

impl Archive {
    /// Writes the archive of the run, with the recordings of ranks 0 and 1.
    pub(crate) fn new() -> Self {
        Self::with_rows(RUN_SECONDS / ROW_SECONDS)
    }

    /// Writes the archive of the first rows of each rank.
    pub(crate) fn with_rows(rows: u64) -> Self {
        let archive = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        let options = ArchiveOptions { table_duration: Duration::from_secs(600), ..ArchiveOptions::default() };
        let writer = ArchiveWriter::open(&archive.address(), "run", options);
        let writer = writer.expect("the folder can be created");
        for rank in 0..2 {
            let process = Process {
                identity: identity(rank),
                rank: Some(rank),
                host: "machine-0".to_owned(),
                program: "train.py".to_owned(),
                ..Process::default()
            };
            let recorder = writer.process(&process).expect("a valid process");
            recorder.push(&recording(100 * (u64::from(rank) + 1))).expect("valid chunks");
        }
        for row in 0..rows {
            for rank in 0..RANKS {
                let (summary, stored_ns) = summary(rank, row);
                assert!(writer.summary(&identity(rank), &description(rank), &summary, stored_ns), "it fits");
            }
        }
        let finished = writer.finish().expect("everything is stored");
        assert_eq!((finished.lost_objects, finished.lost_summaries), (0, 0));
        archive
    }

    /// Returns the address of the archive's folder.
    fn address(&self) -> ArchiveAddress {
        let url = format!("file://{}/run", self.folder.path().display());
        ArchiveAddress::parse(&url).expect("a valid address")
    }

    /// Returns the path of an object.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("run").join(name)
    }

    /// Replaces texts of the manifest.
    pub(crate) fn edit_manifest(&self, edit: impl FnOnce(&mut serde_json::Value)) {
        let path = self.path("manifest.json");
        let mut manifest = read_json(&path);
        edit(&mut manifest);
        fs::write(path, manifest.to_string()).expect("the folder is writable");
    }

    /// Returns the manifest.
    pub(crate) fn manifest(&self) -> serde_json::Value {
        read_json(&self.path("manifest.json"))
    }

    /// Opens the archive.
    pub(crate) fn session(&self) -> QuerySession {
        let reader = ArchiveReader::open(&self.address()).expect("the manifest is valid");
        QuerySession::new(reader).expect("threads can be started")
    }

    /// Runs a statement; returns what it wrote.
    pub(crate) fn run(&self, statement: &str, format: OutputFormat) -> Result<(QuerySummary, String), SqlError> {
        run(&self.session(), statement, format)
    }

    /// Runs a statement; returns its rows as CSV, without the header.
    #[track_caller]
    pub(crate) fn rows(&self, statement: &str) -> Vec<String> {
        let (_, csv) = self.run(statement, OutputFormat::Csv).unwrap_or_else(|error| panic!("{statement}: {error}"));
        csv.lines().skip(1).map(str::to_owned).collect()
    }
}

/// Reads a JSON file.
fn read_json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).expect("the object exists")).expect("JSON")
}

/// Runs a statement; returns what it wrote.
pub(crate) fn run(
    session: &QuerySession,
    statement: &str,
    format: OutputFormat,
) -> Result<(QuerySummary, String), SqlError> {
    let mut out = Vec::new();
    let summary = session.run(statement, 10_000, format, &mut out)?;
    Ok((summary, String::from_utf8(out).expect("output is UTF-8")))
}
