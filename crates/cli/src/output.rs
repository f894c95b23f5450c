//! Output files that appear complete or not at all.

use std::fs;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::NamedTempFile;

use crate::error::{CommandError, Result};
use crate::signals;

/// The path that means standard output.
const STDOUT: &str = "-";
/// The compression level of `.zst` outputs; the library's default.
const ZSTD_LEVEL: i32 = 3;

/// An output under construction: a temporary file that gets its name once it is complete, or
/// standard output. A name that ends in `.gz` or `.zst` is compressed.
///
/// Dropping an unfinished output removes its temporary file.
pub(crate) struct Output {
    path: PathBuf,
    encoder: Encoder,
}

/// The encoder of an output's bytes: no compression, gzip or Zstandard.
enum Encoder {
    Plain(Destination),
    Gzip(GzEncoder<Destination>),
    Zstd(zstd::Encoder<'static, Destination>),
}

/// The destination of an output's compressed bytes, and the number of bytes written so far.
struct Destination {
    target: Target,
    bytes: u64,
}

/// A temporary file beside the final path, or standard output.
enum Target {
    File(BufWriter<NamedTempFile>),
    Stdout(BufWriter<Stdout>),
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.target {
            Target::File(file) => file.write(bytes),
            Target::Stdout(stdout) => stdout.write(bytes),
        }?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.target {
            Target::File(file) => file.flush(),
            Target::Stdout(stdout) => stdout.flush(),
        }
    }
}

impl Destination {
    /// Opens the destination for `path`; fails if `path` cannot become a file, or if it is `-` and
    /// standard output is a terminal.
    fn open(path: &Path) -> Result<Self> {
        if is_stdout(path) {
            refuse_terminal()?;
            return Ok(Self { target: Target::Stdout(BufWriter::new(io::stdout())), bytes: 0 });
        }
        if path.is_dir() {
            return Err(CommandError::file(path, "is a directory; name a file"));
        }
        if path.exists() && !path.is_file() {
            return Err(CommandError::file(path, "is not a regular file; name a file, or - for standard output"));
        }
        let Some(folder) = path.parent().filter(|_| path.file_name().is_some()) else {
            return Err(CommandError::file(path, "is not the name of a file; name one, such as run.vram"));
        };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        if !folder.is_dir() {
            return Err(CommandError::file(
                path,
                format_args!("there is no folder {}; create it first", folder.display()),
            ));
        }
        let mut options = tempfile::Builder::new();
        options.prefix(".vramscope-").suffix(".part");
        // Temporary files are private. This one becomes the output, so only the umask restricts
        // its permissions, as for any new file.
        #[cfg(unix)]
        options.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        // The library's message names the temporary file, which says nothing to a user.
        let file = options.tempfile_in(folder).map_err(|error| {
            let (folder, kind) = (folder.display(), error.kind());
            CommandError::file(path, format_args!("cannot create a file in {folder}: {kind}; choose another folder"))
        })?;
        Ok(Self { target: Target::File(BufWriter::new(file)), bytes: 0 })
    }

    /// Writes the temporary file to the disk, so that it survives a power failure, and renames it
    /// to `path`; or flushes standard output. Returns the number of bytes written.
    fn finish(self, path: &Path) -> io::Result<u64> {
        let Self { target, bytes } = self;
        let finished = match target {
            Target::File(file) => {
                let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
                file.as_file().sync_all()?;
                let renamed = file.persist(path).map_err(|error| error.error);
                renamed.map(|_| vramscope_collector::sync_folder_of(path))
            }
            Target::Stdout(mut stdout) => stdout.flush(),
        };
        finished.map(|()| bytes)
    }
}

impl Output {
    /// Begins an output that will appear at `path`, or goes to standard output if that is `-`.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        // Follows a symbolic link, so that its target is replaced and not the link.
        let path = if is_stdout(path) { None } else { path.canonicalize().ok() }.unwrap_or_else(|| path.to_owned());
        let destination = Destination::open(&path)?;
        let encoder = match compression_extension(&path) {
            Some("gz") => Encoder::Gzip(GzEncoder::new(destination, Compression::default())),
            Some(_) => {
                let encoder = zstd::Encoder::new(destination, ZSTD_LEVEL);
                Encoder::Zstd(encoder.map_err(|error| CommandError::file(&path, error))?)
            }
            None => Encoder::Plain(destination),
        };
        Ok(Self { path, encoder })
    }

    /// Begins several outputs; a signal that ends the command removes their temporary files.
    pub(crate) fn create_all(paths: &[PathBuf]) -> Result<Vec<Self>> {
        let outputs = paths.iter().map(|path| Self::create(path)).collect::<Result<Vec<_>>>()?;
        let temporary: Vec<_> = outputs.iter().filter_map(Self::temporary_path).collect();
        signals::exit_on_signal(move || {
            for path in &temporary {
                // The file may be complete and renamed by now.
                let _ = fs::remove_file(path);
            }
        })?;
        Ok(outputs)
    }

    /// Writes `bytes` as a complete file at `path`; a signal during this removes the temporary
    /// file. Returns the file's size in bytes, after compression.
    #[cfg(any(feature = "export", feature = "manual", feature = "report"))]
    pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<u64> {
        let mut output = Self::create_removed_on_signal(path)?;
        output.write_all(bytes).map_err(|error| CommandError::file(path, error))?;
        output.finish()
    }

    /// Begins an output; a signal that ends the command removes its temporary file.
    pub(crate) fn create_removed_on_signal(path: &Path) -> Result<Self> {
        let mut outputs = Self::create_all(&[path.to_owned()])?;
        Ok(outputs.pop().expect("one output was created"))
    }

    /// Returns the path of the temporary file; `None` if the output is standard output.
    fn temporary_path(&self) -> Option<PathBuf> {
        let destination = match &self.encoder {
            Encoder::Plain(destination) => destination,
            Encoder::Gzip(encoder) => encoder.get_ref(),
            Encoder::Zstd(encoder) => encoder.get_ref(),
        };
        match &destination.target {
            Target::File(file) => Some(file.get_ref().path().to_owned()),
            Target::Stdout(_) => None,
        }
    }

    /// Completes the output, which gives the file its name. Returns its size in bytes, after
    /// compression.
    pub(crate) fn finish(self) -> Result<u64> {
        let Self { path, encoder } = self;
        let destination = match encoder {
            Encoder::Plain(destination) => Ok(destination),
            Encoder::Gzip(encoder) => encoder.finish(),
            Encoder::Zstd(encoder) => encoder.finish(),
        };
        let finished = destination.and_then(|destination| destination.finish(&path));
        finished.map_err(|error| CommandError::file(&path, error))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.encoder {
            Encoder::Plain(destination) => destination.write(bytes),
            Encoder::Gzip(encoder) => encoder.write(bytes),
            Encoder::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        // `finish` flushes: only a complete output has to reach the disk.
        Ok(())
    }
}

/// Returns true if `path` is `-`, which means standard output.
pub(crate) fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == STDOUT
}

/// Fails if standard output is a terminal, which binary data would garble.
pub(crate) fn refuse_terminal() -> Result {
    if io::stdout().is_terminal() {
        return Err(CommandError::new("standard output is a terminal; redirect it to a file or a pipe"));
    }
    Ok(())
}

/// Returns the name of an output for messages: its path, or `standard output`.
pub(crate) fn display_name(path: &Path) -> String {
    if is_stdout(path) { "standard output".to_owned() } else { path.display().to_string() }
}

/// Returns `gz` or `zst` if a path's extension says that the file is compressed, else `None`.
pub(crate) fn compression_extension(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_ascii_lowercase();
    ["gz", "zst"].into_iter().find(|known| extension == *known)
}

/// Fails if `output` is the file `input`, under this name or another, because the input would be
/// lost.
pub(crate) fn refuse_input_as_output(input: &Path, output: &Path) -> Result {
    match (input.canonicalize(), output.canonicalize()) {
        (Ok(input), Ok(canonical)) if input == canonical && !is_stdout(output) => {
            Err(CommandError::file(output, "is the input file, which would be lost; name another output"))
        }
        _ => Ok(()),
    }
}
