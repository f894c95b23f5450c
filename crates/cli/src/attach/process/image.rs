//! Finds the Python interpreter in a process: the file that contains it and where it is loaded.

use std::fs::File;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::{Object as _, ObjectKind, ObjectSegment as _, ObjectSymbol as _, SegmentFlags, elf};

use super::target::{Mapping, TargetProcess};
use crate::error::{CommandError, Result};

/// Size of a page of memory on x86-64, in bytes.
pub(super) const PAGE_BYTES: u64 = 4096;

/// The addresses of an interpreter's C functions and variables in the process, and its version.
#[derive(Debug)]
pub(super) struct PythonImage {
    /// Address of `_PyRuntime`, the interpreter's state.
    pub(super) runtime: u64,
    /// Address of the function `PyRun_SimpleString`.
    pub(super) run_simple_string: u64,
    pub(super) version: PythonVersion,
}

/// The version of a Python interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PythonVersion {
    pub(super) minor: u8,
    /// `None` if it is unknown, as in Python 3.10.
    micro: Option<u8>,
    is_prerelease: bool,
}

impl std::fmt::Display for PythonVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "3.{}", self.minor)?;
        if let Some(micro) = self.micro {
            write!(f, ".{micro}")?;
        }
        if self.is_prerelease { write!(f, " (a pre-release)") } else { Ok(()) }
    }
}

impl PythonVersion {
    /// Decodes `Py_Version`: a byte each for major, minor and micro version, half a byte each for
    /// the release level and the serial number.
    pub(super) fn from_hex(hex: u32) -> Option<Self> {
        let [release, micro, minor, major] = hex.to_le_bytes();
        // 0xf is a final release, 0xc a release candidate.
        let is_prerelease = !matches!(release >> 4, 0xc | 0xf);
        (major == 3).then_some(Self { minor, micro: Some(micro), is_prerelease })
    }

    /// Returns true if the interpreter's data structures are known.
    pub(super) fn is_supported(self) -> bool {
        (10..=14).contains(&self.minor) && !self.is_prerelease
    }
}

/// An executable or library file that a process has loaded.
pub(super) struct LoadedFile {
    path: PathBuf,
    /// Difference between an address in the process and the address in the file.
    load_bias: u64,
}

impl LoadedFile {
    /// Returns the file at `path` as it is loaded in the process; `None` if it is not loaded from
    /// its beginning.
    fn find(mappings: &[Mapping], path: &Path) -> Option<Self> {
        let first = mappings.iter().find(|mapping| mapping.path == path && mapping.offset == 0)?;
        let file = Self { path: path.to_owned(), load_bias: 0 };
        let load_bias = file.read(|object| {
            let lowest = object.segments().map(|segment| segment.address()).min().unwrap_or(0);
            // An executable with fixed addresses is loaded without a bias.
            let is_fixed = object.kind() == ObjectKind::Executable && lowest != 0;
            if is_fixed { 0 } else { first.start.wrapping_sub(lowest & !(PAGE_BYTES - 1)) }
        })?;
        Some(Self { load_bias, ..file })
    }

    /// Calls `f` with the parsed file; returns `None` if it cannot be read.
    fn read<R>(&self, f: impl FnOnce(&object::File<'_, &ReadCache<File>>) -> R) -> Option<R> {
        let cache = ReadCache::new(File::open(&self.path).ok()?);
        let object = object::File::parse(&cache).ok()?;
        (object.is_64() && object.is_little_endian()).then(|| f(&object))
    }

    /// Returns the addresses of exported functions or variables in the process; `None` for names
    /// that the file does not define.
    fn symbols<const N: usize>(&self, names: [&str; N]) -> [Option<u64>; N] {
        let addresses = self.read(|object| {
            let mut addresses = [None; N];
            for symbol in object.dynamic_symbols().filter(|symbol| symbol.is_definition()) {
                let Ok(name) = symbol.name() else { continue };
                if let Some(index) = names.iter().position(|wanted| *wanted == name) {
                    addresses[index] = Some(symbol.address().wrapping_add(self.load_bias));
                }
            }
            addresses
        });
        addresses.unwrap_or([None; N])
    }

    /// Returns the end of the file's variables in the process: the address behind its last writable
    /// segment.
    pub(super) fn end_of_variables(&self) -> Option<u64> {
        self.read(|object| {
            let writable = object.segments().filter(|segment| match segment.flags() {
                SegmentFlags::Elf { p_flags, .. } => p_flags.contains(elf::PF_W),
                _ => false,
            });
            writable.map(|segment| segment.address() + segment.size()).max()
        })?
        .map(|end| end.wrapping_add(self.load_bias))
    }
}

/// Returns the loaded files whose names satisfy `is_wanted`.
pub(super) fn loaded_files(mappings: &[Mapping], is_wanted: impl Fn(&str) -> bool) -> Vec<LoadedFile> {
    let mut paths: Vec<&Path> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.path.is_absolute()) {
        let name = mapping.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if is_wanted(name) && !paths.contains(&mapping.path.as_path()) {
            paths.push(&mapping.path);
        }
    }
    paths.into_iter().filter_map(|path| LoadedFile::find(mappings, path)).collect()
}

/// Returns true for the name of a file that may contain the interpreter: `python3.12`,
/// `libpython3.12.so.1.0`.
pub(super) fn is_python_file(name: &str) -> bool {
    name.starts_with("python") || name.starts_with("libpython")
}

impl PythonImage {
    /// Finds the interpreter in a process.
    pub(super) fn find(process: &TargetProcess, mappings: &[Mapping]) -> Result<Self> {
        let pid = process.pid();
        if mappings.iter().any(|mapping| mapping.path.to_string_lossy().contains("/ld-musl-")) {
            return Err(CommandError::new(format_args!(
                "process {pid} uses the C library musl, which is not supported: PyTorch needs glibc"
            )));
        }
        let executable = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let name = executable.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let names = ["_PyRuntime", "PyRun_SimpleString", "Py_Version", "Py_NewRef"];
        for file in loaded_files(mappings, |other| is_python_file(other) || other == name) {
            if let [Some(runtime), Some(run_simple_string), version, new_ref] = file.symbols(names) {
                // Reads only to fail early if the permission to attach is missing.
                process.read(runtime, 8)?;
                let version = match version {
                    Some(address) => PythonVersion::from_hex(process.read_i32(address)?.cast_unsigned()),
                    // `Py_NewRef` was added in 3.10, `Py_Version` in 3.11.
                    None if new_ref.is_some() => Some(PythonVersion { minor: 10, micro: None, is_prerelease: false }),
                    None => None,
                };
                return match version {
                    Some(version) if version.is_supported() => Ok(Self { runtime, run_simple_string, version }),
                    Some(version) => Err(unsupported(pid, &version.to_string())),
                    None => Err(unsupported(pid, "3.9 or older")),
                };
            }
        }
        let replaced = mappings.iter().find_map(|mapping| {
            let name = mapping.path.file_name()?.to_str()?.strip_suffix(" (deleted)")?;
            is_python_file(name).then(|| mapping.path.display().to_string())
        });
        Err(match replaced {
            Some(path) => CommandError::new(format_args!(
                "process {pid} runs {path}: the file was replaced since the process started; restart the process"
            )),
            None => CommandError::new(format_args!("process {pid} ({name}) is not a Python process")),
        })
    }
}

/// Creates the error of an interpreter whose data structures are unknown.
fn unsupported(pid: nix::unistd::Pid, version: &str) -> CommandError {
    CommandError::new(format_args!(
        "process {pid} runs Python {version}, which is not supported: use Python 3.10 to 3.14, \
         or start the program with vramscope run"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_decoded_and_only_releases_of_known_ones_supported() {
        let check = |hex, text: &str, is_supported| {
            let version = PythonVersion::from_hex(hex).expect("Python 3");
            assert_eq!((version.to_string().as_str(), version.is_supported()), (text, is_supported));
        };
        check(0x030c_01f0, "3.12.1", true);
        check(0x030e_00c2, "3.14.0", true);
        check(0x030e_00b1, "3.14.0 (a pre-release)", false);
        check(0x030f_00f0, "3.15.0", false);
        check(0x0309_12f0, "3.9.18", false);
        assert_eq!(PythonVersion::from_hex(0x0207_12f0), None);
    }

    #[test]
    fn files_that_may_contain_an_interpreter_are_recognized() {
        for name in ["python", "python3.12", "libpython3.12.so.1.0"] {
            assert!(is_python_file(name), "{name}");
        }
        for name in ["_heapq.cpython-312-x86_64-linux-gnu.so", "libtorch_python.so", "bash"] {
            assert!(!is_python_file(name), "{name}");
        }
    }
}
