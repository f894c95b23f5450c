//! The Python interpreters that the tests of `attach` run programs with.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Environment variable with further interpreters, separated like the folders in `PATH`.
const FURTHER: &str = "VRAMSCOPE_TEST_PYTHONS";
/// Environment variable with the folder in which pyenv installs interpreters.
const PYENV_ROOT: &str = "PYENV_ROOT";
/// Minor versions of Python 3 that `attach` supports.
const SUPPORTED_MINORS: std::ops::RangeInclusive<u32> = 10..=14;

/// Returns the interpreters of this machine that `attach` supports: `python3`, the system's Python,
/// pyenv's interpreters and the interpreters named in the environment. Prints which versions pyenv
/// lacks.
pub(crate) fn supported() -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("python3")];
    found.extend(Some(PathBuf::from("/usr/bin/python3")).filter(|path| path.exists()));
    let installed = of_pyenv();
    for minor in SUPPORTED_MINORS {
        let before = found.len();
        found.extend(installed.iter().filter(|(version, _)| *version == (3, minor)).map(|(_, path)| path.clone()));
        if found.len() == before {
            println!("SKIPPED: pyenv has no Python 3.{minor}");
        }
    }
    found.extend(env::var_os(FURTHER).iter().flat_map(env::split_paths));
    found
}

/// Returns the interpreters that pyenv has installed, with their major and minor versions.
pub(crate) fn of_pyenv() -> Vec<((u32, u32), PathBuf)> {
    let Some(root) = env::var_os(PYENV_ROOT) else { return Vec::new() };
    let folders = fs::read_dir(Path::new(&root).join("versions")).into_iter().flatten().flatten();
    let mut found: Vec<_> = folders
        .filter_map(|folder| {
            let name = folder.file_name().into_string().ok()?;
            let mut numbers = name.split('.').map(str::parse);
            let version = (numbers.next()?.ok()?, numbers.next()?.ok()?);
            Some((version, folder.path().join("bin/python"))).filter(|(_, path)| path.exists())
        })
        .collect();
    found.sort();
    found
}
