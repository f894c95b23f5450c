//! An output file that appears whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::failure::{Failure, Outcome};
use crate::interrupt;

/// A file under a temporary name beside its own, until it is complete. Dropped before, it is gone.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    temporary: PathBuf,
    file: Option<BufWriter<File>>,
}

impl Output {
    /// Begins the file that will be at `path`.
    pub(crate) fn create(path: &Path) -> Outcome<Self> {
        // Through a link to the file itself, which is to be replaced, and never over a device or a folder.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if path.exists() && !path.is_file() {
            return Err(Failure::file(&path, "is there and is no file"));
        }
        if path.file_name().is_none() {
            return Err(Failure::file(&path, "is not the name of a file"));
        }
        // Not longer for a longer name, which may already be as long as names can be; a number of its own where there are several.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary = path.with_file_name(format!(".vramscope-{}-{number}.part", std::process::id()));
        let file = File::create_new(&temporary).map_err(|error| Failure::file(&path, error))?;
        Ok(Self { path, temporary, file: Some(BufWriter::new(file)) })
    }

    /// The name that it has until it is complete.
    pub(crate) fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Lets a signal that ends the command take it away, too.
    pub(crate) fn goes_on_signal(&self) -> Outcome {
        let temporary = self.temporary.clone();
        interrupt::exit_on_signal(move || {
            // Gone already where the signal came late.
            let _ = fs::remove_file(&temporary);
        })
    }

    /// Adds to it.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
    }

    /// Gives it its name.
    pub(crate) fn finish(mut self) -> Outcome {
        let written = match self.file.take() {
            Some(mut file) => file.flush().and_then(|()| file.get_ref().sync_all()),
            None => Ok(()),
        };
        let renamed = written.and_then(|()| fs::rename(&self.temporary, &self.path));
        if renamed.is_err() {
            self.remove();
        }
        renamed.map_err(|error| Failure::file(&self.path, error))
    }

    fn remove(&self) {
        // If it cannot be removed there is nothing better to do about it.
        let _ = fs::remove_file(&self.temporary);
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            self.remove();
        }
    }
}

/// Refuses an output that is the input under this name or another, which would be lost.
pub(crate) fn not_the_input(input: &Path, output: &Path) -> Outcome {
    match (input.canonicalize(), output.canonicalize()) {
        (Ok(input), Ok(canonical)) if input == canonical => {
            Err(Failure::file(output, "is the input, which would be lost; give the output another name"))
        }
        _ => Ok(()),
    }
}
