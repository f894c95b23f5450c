//! A look into a recording's file while it is written.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::Shared;

/// A file that keeps everything, to be read up to where it is written.
#[derive(Clone)]
pub(crate) struct FileView {
    file: Arc<Mutex<File>>,
    shared: Arc<Shared>,
}

impl fmt::Debug for FileView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileView").finish_non_exhaustive()
    }
}

impl FileView {
    pub(super) fn new(file: Arc<Mutex<File>>, shared: Arc<Shared>) -> Self {
        Self { file, shared }
    }

    /// The file, to be read wherever one likes.
    pub(crate) fn file(&self) -> Arc<Mutex<File>> {
        Arc::clone(&self.file)
    }

    /// Bytes that are written, whole chunks.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.shared.lock().bytes
    }

    /// Some of the bytes that are written.
    pub(crate) fn read(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        read(&self.file, range)
    }
}

/// Reads a range of a file's bytes.
pub(crate) fn read(file: &Mutex<File>, range: Range<u64>) -> io::Result<Vec<u8>> {
    // One that panicked while it read has left the file where the next one does not expect it anyway.
    let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
    file.seek(SeekFrom::Start(range.start))?;
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}
