//! Requests to the object store of an archive.

use std::fs;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    Error, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion,
};
use sha2::{Digest as _, Sha256};

use super::address::{ArchiveAddress, StoreKind};
use super::error::ArchiveError;
use super::layout::MANIFEST;
use super::manifest::{MAX_MANIFEST_BYTES, Manifest, ObjectEntry};

/// The result of creating an object: it was stored, or its name was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Created {
    /// The object was stored, now or by an earlier request whose answer was lost.
    Stored,
    /// An object of other content has this name.
    NameTaken,
}

/// The object store of an archive. Clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct ArchiveStore {
    objects: Arc<dyn ObjectStore>,
    /// The address, for messages.
    address: String,
}

impl ArchiveStore {
    /// Opens the store at an address. Sends no request. With `creates_folder`, creates the folder
    /// of a `file://` address.
    ///
    /// # Errors
    /// If the folder does not exist or cannot be created, or the environment has credentials that
    /// are invalid.
    pub(crate) fn open(address: &ArchiveAddress, creates_folder: bool) -> Result<Self, ArchiveError> {
        // The store's HTTP client uses the process's default; it is an error if there is one
        // already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let shown = address.to_string();
        let failed = |source| failed("the environment's settings of the store", source);
        let objects: Arc<dyn ObjectStore> = match &address.store {
            StoreKind::Folder(path) => {
                if creates_folder {
                    fs::create_dir_all(path)?;
                } else if !path.is_dir() {
                    return Err(ArchiveError::NoArchive(shown));
                }
                Arc::new(LocalFileSystem::new_with_prefix(path).map_err(failed)?.with_fsync(true))
            }
            StoreKind::S3(bucket) => {
                Arc::new(AmazonS3Builder::from_env().with_bucket_name(bucket).build().map_err(failed)?)
            }
            StoreKind::Gcs(bucket) => {
                Arc::new(GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).build().map_err(failed)?)
            }
            StoreKind::Azure(container) => {
                Arc::new(MicrosoftAzureBuilder::from_env().with_container_name(container).build().map_err(failed)?)
            }
        };
        let objects = match address.prefix.as_str() {
            "" => objects,
            prefix => Arc::new(PrefixStore::new(objects, Path::from(prefix))),
        };
        Ok(Self::new(objects, shown))
    }

    /// Creates an archive's store from any object store; `address` is for messages.
    pub(crate) fn new(objects: Arc<dyn ObjectStore>, address: String) -> Self {
        Self { objects, address }
    }

    /// Stores a new object, unless its name is taken by an object of other content.
    ///
    /// # Errors
    /// If the request fails.
    pub(crate) async fn create(&self, name: &str, bytes: Bytes) -> Result<Created, ArchiveError> {
        let path = Path::from(name);
        let created = self.put(&path, bytes.clone(), PutMode::Create).await;
        let exists = match created {
            Ok(_) => return Ok(Created::Stored),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => true,
            // Without conditional requests, the store cannot refuse a name that is taken.
            Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => match self.objects.head(&path).await {
                Ok(_) => true,
                Err(Error::NotFound { .. }) => false,
                Err(source) => return Err(failed(name, source)),
            },
            Err(source) => return Err(failed(name, source)),
        };
        if !exists {
            let put = self.put(&path, bytes, PutMode::Overwrite).await;
            return put.map(|_| Created::Stored).map_err(|source| failed(name, source));
        }
        let stored = self.get(name, GetOptions::default()).await?;
        let is_equal =
            stored.meta.size == bytes.len() as u64 && collect(name, stored, bytes.len() as u64).await? == bytes;
        Ok(if is_equal { Created::Stored } else { Created::NameTaken })
    }

    /// Reads the manifest and its version; `None` if there is no archive.
    ///
    /// # Errors
    /// If the request fails or the manifest is too large.
    pub(crate) async fn manifest(&self) -> Result<Option<(Bytes, UpdateVersion)>, ArchiveError> {
        let stored = match self.objects.get_opts(&Path::from(MANIFEST), GetOptions::default()).await {
            Ok(stored) => stored,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(source) => return Err(failed(MANIFEST, source)),
        };
        if stored.meta.size > MAX_MANIFEST_BYTES {
            return Err(ArchiveError::Manifest(format!("it has more than {MAX_MANIFEST_BYTES} bytes")));
        }
        let version = UpdateVersion { e_tag: stored.meta.e_tag.clone(), version: stored.meta.version.clone() };
        Ok(Some((collect(MANIFEST, stored, MAX_MANIFEST_BYTES).await?, version)))
    }

    /// Reads and checks the manifest.
    ///
    /// # Errors
    /// If there is no archive, the request fails or the manifest is invalid.
    pub(crate) async fn read_manifest(&self) -> Result<Manifest, ArchiveError> {
        let (json, _) = self.manifest().await?.ok_or_else(|| ArchiveError::NoArchive(self.address.clone()))?;
        Manifest::parse(&json)
    }

    /// Replaces the manifest if it still has `version`, or creates it without one. Returns its new
    /// version.
    ///
    /// # Errors
    /// [`ArchiveError::Conflict`] if another server has written it; or if a request fails.
    pub(crate) async fn replace_manifest(
        &self,
        json: Bytes,
        version: Option<UpdateVersion>,
    ) -> Result<UpdateVersion, ArchiveError> {
        let path = Path::from(MANIFEST);
        let mode = version.clone().map_or(PutMode::Create, PutMode::Update);
        let result = match self.put(&path, json.clone(), mode).await {
            Err(Error::NotImplemented { .. } | Error::NotSupported { .. }) => {
                let stored = self.manifest().await?;
                if stored.as_ref().map(|(_, version)| version) != version.as_ref() {
                    return equal_version(stored, &json);
                }
                self.put(&path, json, PutMode::Overwrite).await
            }
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                return equal_version(self.manifest().await?, &json);
            }
            result => result,
        };
        result.map_err(|source| failed(MANIFEST, source))
    }

    /// Reads an object completely and checks its size and hash.
    ///
    /// # Errors
    /// If the request fails or the object differs from the entry.
    pub(crate) async fn read_whole(&self, entry: &ObjectEntry) -> Result<Bytes, ArchiveError> {
        let stored = self.get(&entry.name, GetOptions::default()).await?;
        check_size(entry, stored.meta.size)?;
        let bytes = collect(&entry.name, stored, entry.bytes).await?;
        if sha256_hex(&bytes) != entry.sha256 {
            return Err(different(entry, "its SHA-256 hash is another".to_owned()));
        }
        Ok(bytes)
    }

    /// Reads a range of an object and checks the object's size. The object's hash is checked only
    /// if the range is all of it.
    ///
    /// # Errors
    /// If the request fails or the object differs from the entry.
    pub(crate) async fn read_range(&self, entry: &ObjectEntry, range: Range<u64>) -> Result<Bytes, ArchiveError> {
        if range == (0..entry.bytes) {
            return self.read_whole(entry).await;
        }
        if range.is_empty() || range.end > entry.bytes {
            return Err(different(entry, format!("it ends before byte {}", range.end)));
        }
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let stored = self.get(&entry.name, options).await?;
        check_size(entry, stored.meta.size)?;
        let bytes = collect(&entry.name, stored, range.end - range.start).await?;
        if bytes.len() as u64 != range.end - range.start {
            return Err(different(entry, format!("it ends before byte {}", range.end)));
        }
        Ok(bytes)
    }

    /// Stores an object and returns its version.
    async fn put(&self, path: &Path, bytes: Bytes, mode: PutMode) -> Result<UpdateVersion, Error> {
        let options = PutOptions { mode, ..PutOptions::default() };
        self.objects.put_opts(path, bytes.into(), options).await.map(UpdateVersion::from)
    }

    /// Requests an object, or a part of it as `options` say.
    async fn get(&self, name: &str, options: GetOptions) -> Result<GetResult, ArchiveError> {
        self.objects.get_opts(&Path::from(name), options).await.map_err(|source| failed(name, source))
    }
}

/// Returns the version of the stored manifest if its content is `json`: an earlier request stored
/// it, but its answer was lost. Otherwise returns [`ArchiveError::Conflict`].
fn equal_version(stored: Option<(Bytes, UpdateVersion)>, json: &Bytes) -> Result<UpdateVersion, ArchiveError> {
    stored.filter(|(stored, _)| stored == json).map(|(_, version)| version).ok_or(ArchiveError::Conflict)
}

/// Reads the rest of an object; stops with an error after `limit` bytes.
async fn collect(name: &str, stored: GetResult, limit: u64) -> Result<Bytes, ArchiveError> {
    let mut stream = stored.into_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.try_next().await.map_err(|source| failed(name, source))? {
        if bytes.len() as u64 + piece.len() as u64 > limit {
            let reason = format!("it has more than {limit} bytes");
            return Err(ArchiveError::Object { name: name.to_owned(), reason });
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.into())
}

/// Returns an error unless an object of `bytes` bytes has the size in its manifest entry.
fn check_size(entry: &ObjectEntry, bytes: u64) -> Result<(), ArchiveError> {
    let wrong = || different(entry, format!("it has {bytes} bytes, not {}", entry.bytes));
    if bytes == entry.bytes { Ok(()) } else { Err(wrong()) }
}

/// Returns the error that an object differs from its manifest entry, for this reason.
fn different(entry: &ObjectEntry, reason: String) -> ArchiveError {
    ArchiveError::Object { name: entry.name.clone(), reason }
}

/// Returns the error that a request for the object `name` failed.
fn failed(name: &str, source: Error) -> ArchiveError {
    ArchiveError::Store { name: name.to_owned(), source }
}

/// Returns the SHA-256 hash of `bytes` in hexadecimal digits.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Returns bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
