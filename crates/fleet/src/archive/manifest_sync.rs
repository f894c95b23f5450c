//! Stores objects and then the manifest that lists them in the object store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::UpdateVersion;

use super::error::ArchiveError;
use super::layout::{MAX_NUMBER, parse_recording_part, recording_part_name};
use super::manifest::{MAX_MANIFEST_BYTES, Manifest, RecordingPartEntry};
use super::recording_parts::RecordingPart;
use super::store::{ArchiveStore, Created};
use super::uploads::{Upload, UploadQueue};
use crate::unix_time;

/// The wait after a first failed request; it doubles up to [`MAX_RETRY_WAIT`].
const RETRY_WAIT: Duration = Duration::from_millis(500);
/// The longest wait between two requests.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(30);
/// Interval at which the manifest is stored while further objects wait to be stored. Readers see
/// only objects that the manifest lists.
const MANIFEST_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum interval between two stores of the manifest, as a multiple of the time that one takes.
const WRITE_TIME_FACTOR: u32 = 10;
/// Maximum number of names that are tried for an object, because names may be taken: a server that
/// ended before it wrote the manifest leaves a few objects that no manifest lists.
const MAX_TAKEN_NAMES: u32 = 1000;

/// The writer of an archive's objects and manifest to the object store.
#[derive(Debug)]
pub(crate) struct ManifestSync {
    store: ArchiveStore,
    manifest: Manifest,
    /// Version of the manifest in the store; `None` before it is stored for the first time.
    version: Option<UpdateVersion>,
    /// True if the manifest has changed since it was stored.
    is_changed: bool,
    /// The position of each process in the manifest, by identity.
    ranks: BTreeMap<String, usize>,
    /// Number of stored objects, and their total size in bytes.
    stored: (u64, u64),
    /// When the manifest was last stored.
    written: Instant,
    /// How long it took to store the manifest last time.
    write_time: Duration,
}

impl ManifestSync {
    /// Continues the archive of the run, or creates one.
    ///
    /// # Errors
    /// If the store cannot be reached, or has an archive of another run or an invalid manifest.
    pub(crate) async fn open(store: ArchiveStore, run: &str) -> Result<Self, ArchiveError> {
        let (mut manifest, version) = match store.manifest().await? {
            Some((json, version)) => (Manifest::parse(&json)?, Some(version)),
            None => (Manifest::new(run, unix_time::now_ms()), None),
        };
        if manifest.run != run {
            return Err(ArchiveError::OtherRun(manifest.run));
        }
        manifest.writer = fastrand::u64(..);
        let ranks = manifest.ranks.iter().enumerate().map(|(index, rank)| (rank.identity.clone(), index)).collect();
        let (stored, written, write_time) = ((0, 0), Instant::now(), Duration::ZERO);
        let mut sync = Self { store, manifest, version, is_changed: true, ranks, stored, written, write_time };
        // Stored at once, so that missing permissions are reported now, and another server notices
        // that it is replaced.
        sync.write().await?;
        Ok(sync)
    }

    /// Returns the manifest.
    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Stores the objects in the queue until it is closed and empty. Returns the number of stored
    /// objects and their total size in bytes.
    ///
    /// # Errors
    /// [`ArchiveError::Conflict`] if another server writes the archive. Other errors are retried.
    pub(crate) async fn run(mut self, queue: Arc<UploadQueue>) -> Result<(u64, u64), ArchiveError> {
        loop {
            while let Some(upload) = queue.take() {
                self.upload(upload, &queue).await?;
                if self.written.elapsed() >= MANIFEST_INTERVAL.max(self.write_time * WRITE_TIME_FACTOR) {
                    self.write_until_stored().await?;
                }
            }
            self.write_until_stored().await?;
            if queue.is_closed() && queue.len() == 0 {
                return Ok(self.stored);
            }
            queue.changed().await;
        }
    }

    /// Stores an object and adds it to the manifest.
    async fn upload(&mut self, mut upload: Upload, queue: &UploadQueue) -> Result<(), ArchiveError> {
        let object = upload.object();
        let (len, bytes) = (object.len, object.read());
        match bytes {
            Ok(bytes) => self.store_object(upload, bytes).await?,
            Err(error) => {
                tracing::warn!("lost a part of the archive: cannot read a temporary file: {error}");
                queue.count_lost(1);
            }
        }
        queue.release(len);
        Ok(())
    }

    /// Stores an object under the next free name, and adds it to the manifest.
    async fn store_object(&mut self, upload: Upload, bytes: Bytes) -> Result<(), ArchiveError> {
        let first = self.next_number(&upload);
        for number in first..first.saturating_add(MAX_TAKEN_NAMES).min(MAX_NUMBER) {
            let name = match &upload {
                Upload::Recording(rank, _) => recording_part_name(rank.rank, &rank.identity, number),
                Upload::Table(table, ..) => table.part_name(number),
            };
            match self.create(&name, &bytes).await? {
                Created::NameTaken => {}
                Created::Stored => {
                    self.stored = (self.stored.0 + 1, self.stored.1 + bytes.len() as u64);
                    self.list(upload, name);
                    return Ok(());
                }
            }
        }
        Err(ArchiveError::Incomplete("too many objects that no manifest lists: use another address".to_owned()))
    }

    /// Stores an object under `name`, unless the name is taken; repeats the request until the store
    /// answers.
    async fn create(&self, name: &str, bytes: &Bytes) -> Result<Created, ArchiveError> {
        let mut backoff = Backoff::new();
        loop {
            match self.store.create(name, bytes.clone()).await {
                Ok(created) => return Ok(created),
                Err(error) => backoff.after(error).await?,
            }
        }
    }

    /// Returns the number for the next part of the object's process or table: one more than that of
    /// the last part in the manifest.
    fn next_number(&self, upload: &Upload) -> u32 {
        let last = match upload {
            Upload::Recording(rank, _) => self.ranks.get(&rank.identity).and_then(|&index| {
                let rank = &self.manifest.ranks[index];
                let number =
                    |part: &RecordingPartEntry| parse_recording_part(rank.rank, &rank.identity, &part.object.name);
                rank.parts.iter().filter_map(number).max()
            }),
            Upload::Table(table, ..) => {
                let parts = self.manifest.parts(*table);
                parts.iter().filter_map(|part| table.parse_part(&part.object.name)).max()
            }
        };
        last.unwrap_or(0) + 1
    }

    /// Adds a stored object to the manifest.
    fn list(&mut self, upload: Upload, name: String) {
        self.is_changed = true;
        match upload {
            Upload::Recording(rank, RecordingPart { mut entry, .. }) => {
                entry.object.name = name;
                let index = *self.ranks.entry(rank.identity.clone()).or_insert(self.manifest.ranks.len());
                match self.manifest.ranks.get_mut(index) {
                    // The description is updated, because an earlier part may have ended before the
                    // process's description arrived.
                    Some(known) if !rank.host.is_empty() => {
                        (known.host, known.program) = (rank.host, rank.program);
                    }
                    Some(_) => {}
                    None => self.manifest.ranks.push(rank),
                }
                self.manifest.ranks[index].parts.push(entry);
            }
            Upload::Table(table, _, mut entry) => {
                entry.object.name = name;
                self.manifest.parts_mut(table).push(entry);
            }
        }
    }

    /// Stores the manifest if it has changed; repeats the request until the store answers.
    async fn write_until_stored(&mut self) -> Result<(), ArchiveError> {
        let mut backoff = Backoff::new();
        while let Err(error) = self.write().await {
            backoff.after(error).await?;
        }
        Ok(())
    }

    /// Stores the manifest if it has changed.
    async fn write(&mut self) -> Result<(), ArchiveError> {
        let start = Instant::now();
        if self.is_changed {
            let json = Bytes::from(self.manifest.to_json());
            if json.len() as u64 > MAX_MANIFEST_BYTES {
                let reason = format!("its manifest would have more than {} MiB", MAX_MANIFEST_BYTES >> 20);
                return Err(ArchiveError::Incomplete(format!("{reason}: use another address for the rest of the run")));
            }
            self.version = Some(self.store.replace_manifest(json, self.version.clone()).await?);
            self.is_changed = false;
        }
        (self.written, self.write_time) = (Instant::now(), start.elapsed());
        Ok(())
    }
}

/// The growing delay between repetitions of a failed request.
#[derive(Debug)]
struct Backoff {
    wait: Duration,
}

impl Backoff {
    fn new() -> Self {
        Self { wait: RETRY_WAIT }
    }

    /// Waits until the failed request should be repeated. Returns `error` at once if repeating
    /// cannot help.
    async fn after(&mut self, error: ArchiveError) -> Result<(), ArchiveError> {
        if !matches!(error, ArchiveError::Store { .. }) {
            return Err(error);
        }
        if self.wait == RETRY_WAIT {
            tracing::warn!("the archive's store refused a request, which is repeated: {error}");
        }
        tokio::time::sleep(self.wait).await;
        self.wait = (self.wait * 2).min(MAX_RETRY_WAIT);
        Ok(())
    }
}
