//! Temporary files for objects that are not complete or not uploaded yet.

use std::fs::File;
use std::io::{self, BufWriter, Read as _, Seek as _, Write};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::manifest::ObjectEntry;
use super::store::hex;

/// A temporary file that an object is written to, and the hash of its bytes. The file has no name
/// and is deleted when the process ends.
#[derive(Debug)]
pub(crate) struct Spool {
    file: BufWriter<File>,
    hash: Sha256,
    len: u64,
}

/// A complete object in a temporary file.
#[derive(Debug)]
pub(crate) struct SpooledObject {
    file: File,
    /// Size of the object in bytes.
    pub(crate) len: u64,
    /// SHA-256 hash of the object's bytes, in hexadecimal digits.
    pub(crate) sha256: String,
}

impl Spool {
    /// Creates an empty file in the folder for temporary files.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { file: BufWriter::new(tempfile::tempfile()?), hash: Sha256::new(), len: 0 })
    }

    /// Returns the number of bytes written.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Completes the file.
    pub(crate) fn finish(self) -> io::Result<SpooledObject> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(SpooledObject { file, len: self.len, sha256: hex(&self.hash.finalize()) })
    }
}

impl Write for Spool {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.len += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl SpooledObject {
    /// Returns the object's entry for the manifest, without a name. The arguments are the times at
    /// which the object's content begins and ends, in milliseconds since 1970.
    pub(crate) fn entry(&self, (start_unix_ms, end_unix_ms): (u64, u64)) -> ObjectEntry {
        let (bytes, sha256) = (self.len, self.sha256.clone());
        ObjectEntry { name: String::new(), bytes, sha256, start_unix_ms, end_unix_ms }
    }

    /// Reads all bytes.
    pub(crate) fn read(&mut self) -> io::Result<Bytes> {
        let mut bytes = Vec::with_capacity(usize::try_from(self.len).unwrap_or(0));
        self.file.rewind()?;
        self.file.read_to_end(&mut bytes)?;
        Ok(bytes.into())
    }
}
