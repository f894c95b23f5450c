//! Reads the archive of a run.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use vramscope_trace::{ReadAt, Recording};

use super::address::ArchiveAddress;
use super::error::ArchiveError;
use super::layout::Table;
use super::manifest::{Manifest, ObjectEntry, RankEntry, RecordingPartEntry, TablePartEntry};
use super::rollup_reader::{Rollup, read_rollups};
use super::store::ArchiveStore;
use crate::runtime::BackgroundRuntime;

/// A reader of an archive, with the manifest at the time of opening.
///
/// Its methods wait for the object store and must not be called from an asynchronous task.
#[derive(Debug)]
pub struct ArchiveReader {
    runtime: Arc<BackgroundRuntime>,
    store: ArchiveStore,
    manifest: Manifest,
}

impl ArchiveReader {
    /// Opens the archive at an address and reads its manifest.
    ///
    /// # Errors
    /// If there is no archive, the store cannot be reached, or the manifest is invalid.
    pub fn open(address: &ArchiveAddress) -> Result<Self, ArchiveError> {
        Self::with_store(ArchiveStore::open(address, false)?)
    }

    /// Opens the archive in a store and reads its manifest.
    pub(crate) fn with_store(store: ArchiveStore) -> Result<Self, ArchiveError> {
        let runtime = Arc::new(BackgroundRuntime::new("vramscope-archive")?);
        let manifest = runtime.block_on(store.read_manifest())?;
        Ok(Self { runtime, store, manifest })
    }

    /// Returns the name of the run.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.manifest.run
    }

    /// Returns all processes with their parts.
    #[must_use]
    pub fn ranks(&self) -> &[RankEntry] {
        &self.manifest.ranks
    }

    /// Returns a reader of byte ranges of a recording's part.
    #[must_use]
    pub fn part(&self, part: &RecordingPartEntry) -> ArchivedPart {
        ArchivedPart { runtime: Arc::clone(&self.runtime), store: self.store.clone(), entry: part.object.clone() }
    }

    /// Returns the parts of a table, in the order in which they were written.
    #[must_use]
    pub fn table_parts(&self, table: Table) -> &[TablePartEntry] {
        self.manifest.parts(table)
    }

    /// Returns a reader of byte ranges of a table's part.
    #[must_use]
    pub fn table_part(&self, part: &TablePartEntry) -> ArchivedPart {
        ArchivedPart { runtime: Arc::clone(&self.runtime), store: self.store.clone(), entry: part.object.clone() }
    }

    /// Opens the part of a process's recording that contains a time, in milliseconds since 1970, or
    /// else the next part. Reads only the part's index. Returns `None` if the recording ends before
    /// that time.
    ///
    /// # Errors
    /// If the part cannot be read, or differs from its entry in the manifest.
    pub fn recording_at(&self, rank: &RankEntry, unix_ms: u64) -> Result<Option<Recording>, ArchiveError> {
        let Some(entry) = rank.parts.iter().find(|part| part.object.end_unix_ms >= unix_ms) else { return Ok(None) };
        let (source, len) = (Arc::new(self.part(entry)), entry.object.bytes);
        let opened = Recording::open(source, len, |_, _| ());
        let invalid = |reason: String| ArchiveError::Object { name: entry.object.name.clone(), reason };
        let (recording, damage) = opened.map_err(|error| invalid(error.to_string()))?;
        damage.map_or(Ok(Some(recording)), |damage| Err(invalid(damage.to_string())))
    }

    /// Returns the roll-ups between two times, in milliseconds since 1970, of one rank or of all,
    /// in the order of time and rank.
    ///
    /// # Errors
    /// If a part cannot be read, or differs from its entry in the manifest.
    pub fn rollups(&self, unix_ms: Range<u64>, rank: Option<u32>) -> Result<Vec<Rollup>, ArchiveError> {
        let mut rollups = Vec::new();
        for part in self.manifest.parts(Table::Rollups) {
            let ObjectEntry { name, start_unix_ms, end_unix_ms, .. } = &part.object;
            if *start_unix_ms >= unix_ms.end || *end_unix_ms < unix_ms.start {
                continue;
            }
            let bytes = self.runtime.block_on(self.store.read_whole(&part.object))?;
            let is_wanted =
                |time: u64, of_rank: Option<u32>| unix_ms.contains(&time) && (rank.is_none() || of_rank == rank);
            let rows = read_rollups(bytes, is_wanted);
            rollups.extend(rows.map_err(|reason| ArchiveError::Object { name: name.clone(), reason })?);
        }
        Ok(rollups)
    }
}

/// Returns a file name for a part of a recording: the rank (without one, the program and the
/// beginning of the identity), and the times at which the part begins and ends.
///
/// ```
/// use vramscope_fleet::archive::{ObjectEntry, RankEntry, RecordingPartEntry, file_name};
///
/// let rank = RankEntry { rank: Some(3), ..RankEntry::default() };
/// let (start_unix_ms, end_unix_ms) = (1_800_000_000_000, 1_800_000_599_000);
/// let object = ObjectEntry { start_unix_ms, end_unix_ms, ..ObjectEntry::default() };
/// let part = RecordingPartEntry { object, ..RecordingPartEntry::default() };
/// assert_eq!(file_name(&rank, &part), "rank 3, 2027-01-15 08.00.00 to 08.09.59 UTC.vram");
/// ```
#[must_use]
pub fn file_name(rank: &RankEntry, part: &RecordingPartEntry) -> String {
    let process = match rank.rank {
        Some(rank) => format!("rank {rank}"),
        None => format!("{} {}", rank.program.replace('/', " "), rank.identity.get(..8).unwrap_or_default()),
    };
    let time = |unix_ms: u64| {
        let time = Timestamp::from_millisecond(i64::try_from(unix_ms).unwrap_or(i64::MAX)).unwrap_or(Timestamp::MAX);
        let time = time.strftime("%Y-%m-%d %H.%M.%S").to_string();
        time.split_once(' ').map(|(date, clock)| (date.to_owned(), clock.to_owned())).unwrap_or_default()
    };
    let (start_date, start) = time(part.object.start_unix_ms);
    let (end_date, end) = time(part.object.end_unix_ms);
    let end_date = if end_date == start_date { String::new() } else { format!("{end_date} ") };
    format!("{process}, {start_date} {start} to {end_date}{end} UTC.vram")
}

/// A reader of a part in an archive. It reads byte ranges, and checks the part's hash if a range is
/// the whole part.
#[derive(Debug)]
pub struct ArchivedPart {
    runtime: Arc<BackgroundRuntime>,
    store: ArchiveStore,
    entry: ObjectEntry,
}

impl ArchivedPart {
    /// Reads a range, in a task of any Tokio runtime. [`ReadAt`] is for other callers.
    ///
    /// # Errors
    /// If the request fails, or the object differs from its entry in the manifest.
    pub async fn read_range(&self, range: Range<u64>) -> Result<Bytes, ArchiveError> {
        self.store.read_range(&self.entry, range).await
    }
}

impl ReadAt for ArchivedPart {
    fn read_at(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        let read = self.runtime.block_on(self.store.read_range(&self.entry, range));
        read.map(Vec::from).map_err(|error| {
            tracing::warn!("cannot read the archive: {error}");
            io::Error::other(error)
        })
    }
}
