//! The address of an archive, as a user writes it.

use std::fmt;
use std::path::PathBuf;

use vramscope_collector::AddressError;

use crate::address::decode;

/// The kind of an object store and the bucket or folder in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// A folder of this machine.
    Folder(PathBuf),
    /// A bucket of S3 or of a store with the same interface.
    S3(String),
    /// A bucket of Google Cloud Storage.
    Gcs(String),
    /// A container of Azure Blob Storage.
    Azure(String),
}

/// The address of an archive: `file:///FOLDER`, or `s3://`, `gs://` or `az://` followed by
/// `BUCKET/PREFIX`.
///
/// It has no secrets: credentials come from the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveAddress {
    pub(crate) store: StoreKind,
    /// Prefix of the names of all objects, without a slash at its end; empty for a folder.
    pub(crate) prefix: String,
}

impl ArchiveAddress {
    /// Returns true if `text` has the form of a URL, false if it may be a file's path.
    #[must_use]
    pub fn is_url(text: &str) -> bool {
        ["file://", "s3://", "gs://", "az://"].iter().any(|scheme| text.starts_with(scheme))
    }

    /// Parses an address.
    ///
    /// # Errors
    /// If the scheme is unknown, bucket or prefix are missing or have characters that are not
    /// allowed, or the address has a user, password or options. The error never repeats the
    /// address's secrets.
    pub fn parse(url: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(|| {
            AddressError::new(
                "expected file:///FOLDER, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX",
            )
        })?;
        if rest.contains(['?', '#']) || rest.split('/').next().is_some_and(|host| host.contains('@')) {
            return Err(AddressError::new(
                "an archive's address has no user, password or options: credentials come from the environment",
            ));
        }
        if scheme == "file" {
            return parse_folder(rest);
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        let is_allowed = |part: &str| {
            let is_allowed_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.=".contains(&byte);
            !part.is_empty() && part != "." && part != ".." && part.bytes().all(is_allowed_byte)
        };
        if !is_allowed(bucket) || !prefix.split('/').all(is_allowed) {
            return Err(AddressError::new(
                "bucket and prefix consist of letters, digits, - _ . and =, the prefix also of / between its parts",
            ));
        }
        let bucket = bucket.to_owned();
        let store = match scheme {
            "s3" => StoreKind::S3(bucket),
            "gs" => StoreKind::Gcs(bucket),
            "az" => StoreKind::Azure(bucket),
            _ => return Err(AddressError::new("the scheme must be file, s3, gs or az")),
        };
        Ok(Self { store, prefix: prefix.to_owned() })
    }
}

/// Parses the part of a `file://` address after the scheme.
fn parse_folder(rest: &str) -> Result<ArchiveAddress, AddressError> {
    let path = decode(rest)?;
    let is_safe = path.starts_with('/') && !path.contains('\0') && !path.split('/').any(|part| part == "..");
    if !is_safe || path.trim_matches('/').is_empty() {
        return Err(AddressError::new("expected file:// and the absolute path of a folder, without `..`"));
    }
    Ok(ArchiveAddress { store: StoreKind::Folder(PathBuf::from(path)), prefix: String::new() })
}

impl fmt::Display for ArchiveAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.store {
            StoreKind::Folder(path) => write!(f, "file://{}", path.display()),
            StoreKind::S3(bucket) => write!(f, "s3://{bucket}/{}", self.prefix),
            StoreKind::Gcs(bucket) => write!(f, "gs://{bucket}/{}", self.prefix),
            StoreKind::Azure(container) => write!(f, "az://{container}/{}", self.prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_names_store_and_prefix() {
        let check = |url: &str, store: StoreKind, prefix: &str, shown: &str| {
            let address = ArchiveAddress::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!((&address.store, address.prefix.as_str()), (&store, prefix), "{url}");
            assert_eq!(address.to_string(), shown);
            assert!(ArchiveAddress::is_url(url));
        };
        let folder = |path: &str| StoreKind::Folder(path.into());
        check("file:///data/run", folder("/data/run"), "", "file:///data/run");
        check("file:///a%20b/run/", folder("/a b/run/"), "", "file:///a b/run/");
        check("s3://bucket/run", StoreKind::S3("bucket".into()), "run", "s3://bucket/run");
        check("s3://b/team=a/x.y/run/", StoreKind::S3("b".into()), "team=a/x.y/run", "s3://b/team=a/x.y/run");
        check("gs://b/run", StoreKind::Gcs("b".into()), "run", "gs://b/run");
        check("az://container/run", StoreKind::Azure("container".into()), "run", "az://container/run");
        assert!(!ArchiveAddress::is_url("run.vram"));
    }

    #[test]
    fn invalid_addresses_are_refused_without_their_secrets() {
        for (url, expected) in [
            ("run", "expected file:///FOLDER"),
            ("http://bucket/run", "the scheme must be"),
            ("S3://bucket/run", "the scheme must be"),
            ("s3://user:secret@bucket/run", "credentials come from the environment"),
            ("s3://bucket/run?secret=x", "credentials come from the environment"),
            ("az://c/run#secret", "credentials come from the environment"),
            ("s3://bucket", "bucket and prefix consist of"),
            ("s3:///run", "bucket and prefix consist of"),
            ("s3://bucket//run", "bucket and prefix consist of"),
            ("s3://bucket/../run", "bucket and prefix consist of"),
            ("s3://bucket/./run", "bucket and prefix consist of"),
            ("s3://bucket/a%2e%2e/run", "bucket and prefix consist of"),
            ("gs://bucket/a b", "bucket and prefix consist of"),
            ("file://", "the absolute path of a folder"),
            ("file:///", "the absolute path of a folder"),
            ("file://host/run", "the absolute path of a folder"),
            ("file:///a/../run", "the absolute path of a folder"),
            ("file:///a/%2e%2e/run", "the absolute path of a folder"),
            ("file:///a%00b", "the absolute path of a folder"),
            ("file:///%ff", "it is not Unicode text"),
        ] {
            let error = ArchiveAddress::parse(url).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected) && !error.contains("secret"), "{url}: {error}");
        }
    }
}
