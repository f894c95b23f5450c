//! Reading a recording's file while it is written.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::queue::FileQueue;

/// A reader of a recording's file while it is written. It exists only for a file that keeps the
/// whole recording, in which byte offsets never change.
#[derive(Clone)]
pub(crate) struct FileView {
    file: Arc<Mutex<File>>,
    shared: Arc<FileQueue>,
}

impl fmt::Debug for FileView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileView").finish_non_exhaustive()
    }
}

impl FileView {
    pub(super) fn new(file: Arc<Mutex<File>>, shared: Arc<FileQueue>) -> Self {
        Self { file, shared }
    }

    /// Returns a shared handle of the open file, which the function [`read`] takes.
    #[cfg(feature = "server")]
    pub(crate) fn file(&self) -> Arc<Mutex<File>> {
        Arc::clone(&self.file)
    }

    /// Returns how many bytes of the recording have been written to the file; always whole chunks.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.shared.lock().bytes
    }

    /// Returns the bytes at the offsets `range`, end excluded, which must have been written
    /// already.
    pub(crate) fn read(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        read(&self.file, range)
    }
}

/// Returns the bytes at the offsets `range`, end excluded, of a file. Returns an error if the file
/// is shorter.
pub(crate) fn read(file: &Mutex<File>, range: Range<u64>) -> io::Result<Vec<u8>> {
    // A reader that panicked may have moved the position, which is set here anyway.
    let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
    file.seek(SeekFrom::Start(range.start))?;
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}
