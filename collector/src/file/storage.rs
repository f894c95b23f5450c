//! What a recording is written to, as far as the writer must know it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One of the two files that there are while the newest part of a recording is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The recording.
    Current,
    /// The one that will take its place.
    Next,
}

/// Where bytes go, each call as the operating system would answer it. Everything that can fail while a recording is
/// written is here, so that tests can make it fail.
pub(super) trait Storage: Send {
    /// Adds some of the bytes at the end; says how many.
    fn append(&mut self, place: Place, bytes: &[u8]) -> io::Result<usize>;
    /// Takes away what stands behind the first `len` bytes.
    fn cut(&mut self, place: Place, len: u64) -> io::Result<()>;
    /// Reads some of the current file's bytes from `at` on; says how many.
    fn read(&mut self, at: u64, into: &mut [u8]) -> io::Result<usize>;
    /// Makes the next file, empty.
    fn begin_next(&mut self) -> io::Result<()>;
    /// Lets the next file be the current one, at one stroke; the current one is gone.
    fn take_next(&mut self) -> io::Result<()>;
    /// Gives the next file up.
    fn drop_next(&mut self);
    /// Lets time pass.
    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A file on a disk.
#[derive(Debug)]
pub(super) struct Disk {
    path: PathBuf,
    file: File,
    /// Whether the file's own place is not its end, for something was read.
    is_elsewhere: bool,
    next: Option<File>,
}

impl Disk {
    /// Makes the file empty; `None` where there is something that is no file, and can only take bytes.
    pub(super) fn create(path: &Path) -> io::Result<Option<Self>> {
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Ok(None);
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        lock(&file)?;
        file.set_len(0)?;
        // Through a link to the file itself, which is what will be replaced.
        let disk = Self { path: path.canonicalize()?, file, is_elsewhere: false, next: None };
        // What a killed process may have left.
        disk.remove_next();
        Ok(Some(disk))
    }

    /// The file once more, to be read at any place.
    pub(super) fn reader(&self) -> Option<File> {
        // Where locks keep everyone out, they keep out this one, too.
        if cfg!(windows) { None } else { File::open(&self.path).ok() }
    }

    /// Beside the file, since only there can it take the file's place at one stroke.
    fn next_path(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.part"))
    }

    fn remove_next(&self) {
        // Most of the time there is none. If it cannot be removed, making it says so.
        let _ = fs::remove_file(self.next_path());
    }

    fn file(&mut self, place: Place) -> io::Result<&mut File> {
        match place {
            Place::Current => Ok(&mut self.file),
            Place::Next => self.next.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into()),
        }
    }
}

/// Keeps other processes from writing to the same file, as when several were started with the same settings.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::other("another process is recording to it; give each its own file"))
        }
        // Some file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

impl Storage for Disk {
    fn append(&mut self, place: Place, bytes: &[u8]) -> io::Result<usize> {
        if place == Place::Current && self.is_elsewhere {
            self.file.seek(SeekFrom::End(0))?;
            self.is_elsewhere = false;
        }
        self.file(place)?.write(bytes)
    }

    fn cut(&mut self, place: Place, len: u64) -> io::Result<()> {
        let file = self.file(place)?;
        file.set_len(len)?;
        file.seek(SeekFrom::End(0)).map(drop)
    }

    fn read(&mut self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        self.is_elsewhere = true;
        self.file.seek(SeekFrom::Start(at))?;
        self.file.read(into)
    }

    fn begin_next(&mut self) -> io::Result<()> {
        self.remove_next();
        let next = OpenOptions::new().read(true).write(true).create_new(true).open(self.next_path())?;
        lock(&next)?;
        // Who may read the recording may read it on; a file system without such rights has nothing to keep.
        let _ = self.file.metadata().and_then(|current| next.set_permissions(current.permissions()));
        self.next = Some(next);
        Ok(())
    }

    fn take_next(&mut self) -> io::Result<()> {
        fs::rename(self.next_path(), &self.path)?;
        if let Some(next) = self.next.take() {
            self.file = next;
            self.is_elsewhere = false;
        }
        Ok(())
    }

    fn drop_next(&mut self) {
        if self.next.take().is_some() {
            self.remove_next();
        }
    }
}

/// A pipe, or whatever else takes bytes and gives none back.
pub(super) struct Stream(pub(super) Box<dyn Write + Send>);

impl Storage for Stream {
    fn append(&mut self, _: Place, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }
    fn cut(&mut self, _: Place, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn read(&mut self, _: u64, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn begin_next(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn take_next(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn drop_next(&mut self) {}
}
