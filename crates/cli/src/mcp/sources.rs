//! The sources that the tools may read: files below named directories, and live programs.

use std::env;
use std::fs::{self, File, Metadata};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use vramscope_collector::{Address, download};
use vramscope_formats::Limits;
use vramscope_trace::ByteSize;

use crate::error::{CommandError, Result};
use crate::input::Input;
use crate::operation::Operation;

/// Maximum size of a file, and of a live program's recording, in bytes. Analyses need several times
/// this memory.
const MAX_SOURCE_BYTES: u64 = 1 << 30;
/// Timeout for a live program to send its recording.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// The directories and addresses that a client may read.
#[derive(Debug)]
pub(crate) struct Sources {
    /// Canonical paths of the allowed directories, without symbolic links.
    directories: Vec<PathBuf>,
    /// Allowed addresses of other machines. Addresses of this machine are always allowed.
    addresses: Vec<Address>,
}

/// A file or a live program that may be read.
#[derive(Debug)]
pub(super) enum AllowedSource {
    /// A file by its path without links.
    File(PathBuf),
    /// A live program, and its address without the token.
    Live(Address, PathBuf),
}

impl Sources {
    /// Allows files below `directories` (below the current directory if there are none) and the
    /// live programs at `addresses` and on this machine.
    pub(crate) fn new(directories: &[PathBuf], addresses: &[String]) -> Result<Self> {
        let current;
        let directories = if directories.is_empty() {
            current =
                [env::current_dir().map_err(|error| CommandError::new(format_args!("current directory: {error}")))?];
            if current[0].parent().is_none() {
                let reason = "the current directory is the root of all files: name directories with --allow DIR";
                return Err(CommandError::new(reason));
            }
            &current
        } else {
            directories
        };
        let resolve = |directory: &PathBuf| {
            let error = |error| CommandError::new(format_args!("--allow {}: {error}", directory.display()));
            let resolved = fs::canonicalize(directory).map_err(error)?;
            if resolved.is_dir() {
                return Ok(resolved);
            }
            Err(CommandError::new(format_args!("--allow {}: is not a directory", directory.display())))
        };
        let parse = |url: &String| {
            Address::parse(url).map_err(|error| CommandError::new(format_args!("--allow-url {url}: {error}")))
        };
        Ok(Self {
            directories: directories.iter().map(resolve).collect::<Result<_>>()?,
            addresses: addresses.iter().map(parse).collect::<Result<_>>()?,
        })
    }

    /// Returns the source with a name: the path of a file, relative to an allowed directory or
    /// absolute, or the URL of a live program. Fails if the client may not read it.
    pub(super) fn resolve(&self, name: &str) -> Result<AllowedSource> {
        if name.contains("://") {
            self.resolve_url(name)
        } else {
            self.resolve_path(Path::new(name)).map(AllowedSource::File)
        }
    }

    /// Returns the live program at a URL. Fails if the client may not read it.
    fn resolve_url(&self, url: &str) -> Result<AllowedSource> {
        // The error does not show the URL, which may contain a token.
        let address = Address::parse(url).map_err(CommandError::new)?;
        let is_allowed = address.is_loopback() || self.addresses.iter().any(|allowed| address.is_below(allowed));
        if !is_allowed {
            return Err(CommandError::new(format_args!(
                "{address}: only live programs of this machine may be read: the user can allow others by starting \
                 vramscope mcp with --allow-url URL"
            )));
        }
        let name = PathBuf::from(address.to_string());
        Ok(AllowedSource::Live(address, name))
    }

    /// Returns the path of a file without links. Fails if the client may not read it.
    fn resolve_path(&self, path: &Path) -> Result<PathBuf> {
        let mut not_found = None;
        for directory in &self.directories {
            let named = directory.join(path);
            match fs::canonicalize(&named) {
                Ok(resolved) if self.is_allowed(&resolved) => return Ok(resolved),
                // Elsewhere, the reason is hidden: it could reveal which files exist.
                Err(error) if is_plainly_below(&named, directory) => not_found = Some(error),
                _ => {}
            }
        }
        match not_found {
            Some(error) => {
                let names = self.directory_names();
                Err(CommandError::file(path, format_args!("{error}: check the path, which starts from {names}")))
            }
            None => Err(CommandError::file(
                path,
                format_args!(
                    "only files below {} may be read: the user can allow others by starting vramscope mcp with \
                     --allow DIR",
                    self.directory_names()
                ),
            )),
        }
    }

    /// Returns true if a path without links is below an allowed directory.
    fn is_allowed(&self, resolved: &Path) -> bool {
        self.directories.iter().any(|directory| resolved.starts_with(directory))
    }

    /// Returns the allowed directories as text.
    pub(super) fn directory_names(&self) -> String {
        self.directories.iter().map(|directory| directory.display().to_string()).collect::<Vec<_>>().join(", ")
    }
}

/// Returns true if a path begins with a directory and has no `..`. Does not resolve links.
fn is_plainly_below(path: &Path, directory: &Path) -> bool {
    path.starts_with(directory) && !path.components().any(|component| component == Component::ParentDir)
}

impl AllowedSource {
    /// Returns the file's path or the program's address, for messages and reports.
    pub(super) fn name(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::Live(_, name) => name,
        }
    }

    /// Opens the file, or downloads the live program's recording so far.
    pub(super) fn open(&self, operation: &Operation) -> Result<Input> {
        match self {
            Self::File(path) => open_file(path, operation),
            Self::Live(address, name) => {
                let bar = operation.stage(format!("Receiving from {}", name.display()));
                let keep_going = |received, total: Option<u64>| {
                    bar.set_length(total.unwrap_or(0));
                    bar.set_position(received);
                    !operation.is_cancelled()
                };
                let bytes = download(address, MAX_SOURCE_BYTES, DOWNLOAD_TIMEOUT, keep_going);
                bar.finish_and_clear();
                Input::from_recording_bytes(
                    bytes.map_err(|error| CommandError::file(name, error))?,
                    name,
                    operation.clone(),
                )
            }
        }
    }
}

/// Opens a file whose path is allowed and has no links.
fn open_file(path: &Path, operation: &Operation) -> Result<Input> {
    let error = |error| CommandError::file(path, error);
    // Checks the file's type first, because opening a pipe or device may block or have effects.
    let expected = fs::metadata(path).map_err(error)?;
    if !expected.is_file() {
        let what = if expected.is_dir() { "is a directory; name a file" } else { "is not a file" };
        return Err(CommandError::file(path, what));
    }
    if expected.len() > MAX_SOURCE_BYTES {
        let (size, limit) = (ByteSize(expected.len()), ByteSize(MAX_SOURCE_BYTES));
        let reason =
            format_args!("it has {size}, and this server reads at most {limit}: use the command in a terminal");
        return Err(CommandError::file(path, reason));
    }
    let file = File::open(path).map_err(error)?;
    if !is_same_file(&expected, &file.metadata().map_err(error)?) || fs::canonicalize(path).map_err(error)? != path {
        return Err(CommandError::file(path, "it was replaced while it was opened: try again"));
    }
    let limits = Limits { max_bytes: MAX_SOURCE_BYTES, max_unpacked_bytes: MAX_SOURCE_BYTES, ..Limits::default() };
    Input::from_file(file, path, limits, operation.clone())
}

/// Returns true if both metadata describe one file.
#[cfg(unix)]
fn is_same_file(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;

    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Returns true if both metadata describe one file. On Windows, metadata do not identify a file, so
/// this compares times of creation.
#[cfg(not(unix))]
fn is_same_file(a: &Metadata, b: &Metadata) -> bool {
    b.is_file() && a.created().ok() == b.created().ok()
}
