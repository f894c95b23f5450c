//! Where a recording is written: a regular file, or a stream such as a pipe.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Which of a recording's two files a call concerns: the current one, or the copy of its newest
/// part that will replace it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileRole {
    /// The recording's file.
    Current,
    /// The copy that will replace it.
    Next,
}

/// The operating system's calls for writing a recording's file. Everything that can fail is behind
/// this trait, so that tests can make it fail.
pub(super) trait Storage: Send {
    /// Empties the current file, and deletes the replacement file that a killed process may have
    /// left.
    fn clear(&mut self) -> io::Result<()>;
    /// Appends `bytes` to a file and returns how many of them were written, which may be fewer.
    fn append(&mut self, role: FileRole, bytes: &[u8]) -> io::Result<usize>;
    /// Truncates a file to its first `len` bytes.
    fn cut(&mut self, role: FileRole, len: u64) -> io::Result<()>;
    /// Reads the current file from byte offset `at` into the buffer, and returns how many bytes
    /// were read; 0 at the end of the file.
    fn read(&mut self, at: u64, into: &mut [u8]) -> io::Result<usize>;
    /// Creates the empty file that will replace the current one.
    fn begin_next(&mut self) -> io::Result<()>;
    /// Waits until everything appended to the file from [`begin_next`](Self::begin_next) is on the
    /// disk and would survive a power failure.
    fn sync_next(&mut self) -> io::Result<()>;
    /// Atomically replaces the current file by the one from [`begin_next`](Self::begin_next), which
    /// is then the current file. Call [`sync_next`](Self::sync_next) first: otherwise a power
    /// failure may leave the recording's name with incomplete content.
    fn take_next(&mut self) -> io::Result<()>;
    /// Waits until the replacement by [`take_next`](Self::take_next) would survive a power failure.
    /// Errors are ignored: the file is complete either way, and some file systems cannot sync
    /// folders.
    fn sync_folder(&mut self);
    /// Deletes the unfinished file from [`begin_next`](Self::begin_next). Does nothing if no
    /// replacement was begun.
    fn drop_next(&mut self);
    /// Sleeps for `time` before a failed call is tried again.
    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// The [`Storage`] of a recording in a regular file.
#[derive(Debug)]
pub(super) struct Disk {
    path: PathBuf,
    file: File,
    /// True after a read, when the file's position is not its end.
    must_seek: bool,
    next: Option<File>,
}

impl Disk {
    /// Opens the file at `path`, or creates it, and locks it. Returns `None` if the path is a pipe
    /// or another thing that is not a regular file.
    pub(super) fn open(path: &Path) -> io::Result<Option<Self>> {
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return Ok(None);
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        lock(&file)?;
        // Follows symbolic links, so that their target is replaced.
        Ok(Some(Self { path: path.canonicalize()?, file, must_seek: false, next: None }))
    }

    /// Opens the recording's file again, for reading while it is written; `None` if that is
    /// impossible.
    pub(super) fn reader(&self) -> Option<File> {
        // Locks on Windows also exclude readers.
        if cfg!(windows) { None } else { File::open(&self.path).ok() }
    }

    /// Deletes the replacement file that this or an earlier process left behind.
    fn remove_next(&self) {
        // Usually the file does not exist.
        let _ = fs::remove_file(replacement_path(&self.path));
    }

    /// Returns the open file with this role. Returns an error for [`FileRole::Next`] while no
    /// replacement is being written.
    fn file(&mut self, role: FileRole) -> io::Result<&mut File> {
        match role {
            FileRole::Current => Ok(&mut self.file),
            FileRole::Next => self.next.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into()),
        }
    }
}

/// Locks the file, so that no other process records to it. Returns an error if another process has
/// locked it; file systems without locks are accepted.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::other("another process is recording to this file: choose another name for each process"))
        }
        // Some file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Returns the path of the file that replaces the one at `path`. It is in the same folder, because
/// only there can it replace the file atomically.
fn replacement_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".part");
    path.with_file_name(name)
}

/// Creates the file that is to replace the one at `path`, beside it and with the permissions of
/// `current`. Returns it with its path, from which it is renamed once it is complete. A file that
/// an earlier process left there is deleted.
///
/// # Errors
/// If the file cannot be created, or an earlier one not deleted. No link is followed.
pub fn create_replacement(path: &Path, current: &File) -> io::Result<(File, PathBuf)> {
    let next_path = replacement_path(path);
    // Usually the file does not exist. If it cannot be removed, creating it fails and reports why.
    let _ = fs::remove_file(&next_path);
    let next = OpenOptions::new().read(true).write(true).create_new(true).open(&next_path)?;
    // Errors are ignored: some file systems have no permissions.
    let _ = current.metadata().and_then(|current| next.set_permissions(current.permissions()));
    Ok((next, next_path))
}

/// Waits until the name of the file at `path`, which was created or renamed, would survive a power
/// failure.
///
/// Errors are ignored: some file systems, and Windows, cannot sync a folder, and the file is
/// complete either way.
pub fn sync_folder_of(path: &Path) {
    // The folder of a bare name is the current one.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(unix) {
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
}

impl Storage for Disk {
    fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.remove_next();
        Ok(())
    }

    fn append(&mut self, role: FileRole, bytes: &[u8]) -> io::Result<usize> {
        if role == FileRole::Current && self.must_seek {
            self.file.seek(SeekFrom::End(0))?;
            self.must_seek = false;
        }
        self.file(role)?.write(bytes)
    }

    fn cut(&mut self, role: FileRole, len: u64) -> io::Result<()> {
        let file = self.file(role)?;
        file.set_len(len)?;
        file.seek(SeekFrom::End(0)).map(drop)
    }

    fn read(&mut self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        self.must_seek = true;
        self.file.seek(SeekFrom::Start(at))?;
        self.file.read(into)
    }

    fn begin_next(&mut self) -> io::Result<()> {
        let (next, _) = create_replacement(&self.path, &self.file)?;
        lock(&next)?;
        self.next = Some(next);
        Ok(())
    }

    fn sync_next(&mut self) -> io::Result<()> {
        self.file(FileRole::Next)?.sync_all()
    }

    fn take_next(&mut self) -> io::Result<()> {
        fs::rename(replacement_path(&self.path), &self.path)?;
        if let Some(next) = self.next.take() {
            self.file = next;
            self.must_seek = false;
        }
        Ok(())
    }

    fn sync_folder(&mut self) {
        sync_folder_of(&self.path);
    }

    fn drop_next(&mut self) {
        if self.next.take().is_some() {
            self.remove_next();
        }
    }
}

/// The [`Storage`] of a recording in a pipe or another stream that cannot be read or truncated.
pub(super) struct OutputStream(pub(super) Box<dyn Write + Send>);

impl Storage for OutputStream {
    fn clear(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn append(&mut self, _: FileRole, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }
    fn cut(&mut self, _: FileRole, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn read(&mut self, _: u64, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn begin_next(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync_next(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn take_next(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync_folder(&mut self) {}
    fn drop_next(&mut self) {}
}
