//! Lists the files of a built page, for the build script and for builds that read the page at run
//! time.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A file in `dist`, the folder of the built page.
pub(crate) struct Listed {
    /// Path on the server, with forward slashes, without the suffix of compressed files.
    pub(crate) path: String,
    /// The file on the disk.
    pub(crate) source: PathBuf,
    /// True if it is compressed with brotli.
    pub(crate) is_brotli: bool,
}

/// Returns the files of the page in `dist`, compressed ones first; none if the folder is missing.
pub(crate) fn list(dist: &Path) -> io::Result<Vec<Listed>> {
    let mut sources = Vec::new();
    if dist.is_dir() {
        collect(dist, &mut sources)?;
    }
    sources.sort();
    let listed = |source: &PathBuf| {
        let extension = source.extension()?.to_str()?;
        // Recordings are compressed by their format.
        let (is_brotli, path) = match extension {
            "br" => (true, source.with_extension("")),
            "vram" => (false, source.clone()),
            _ => return None,
        };
        let path = path.strip_prefix(dist).ok().and_then(Path::to_str);
        let not_unicode = || io::Error::other(format!("{}: the file name is not Unicode", source.display()));
        let path = path.map(|path| path.replace('\\', "/")).ok_or_else(not_unicode);
        Some(path.map(|path| Listed { path, source: source.clone(), is_brotli }))
    };
    let mut files = sources.iter().filter_map(listed).collect::<io::Result<Vec<Listed>>>()?;
    files.sort_by_key(|file| !file.is_brotli);
    Ok(files)
}

/// Appends the paths of all files in a folder and its subfolders to `sources`.
fn collect(folder: &Path, sources: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { collect(&path, sources)? } else { sources.push(path) }
    }
    Ok(())
}
