//! Remembers which tests passed, so that the short tier only runs a test again after something that
//! it depends on has changed.
//!
//! A test depends on its executable, on other built files that its step names, on the variables of
//! the environment that begin with `VRAMSCOPE_`, and on all files of the repository and of
//! `../shared` but compiled sources. A file counts as unchanged with its size and time of
//! modification, as for cargo.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use crate::shell::{self, Result, command};
use crate::workspace;

/// Files other than compiled sources that only tests about the repository itself read at run time.
const ABOUT_THE_REPOSITORY: [&str; 2] = ["ARCHITECTURE.md", "CHANGELOG.md"];

/// The reason in the output for a test that did not run.
pub(crate) const PASSED_BEFORE: &str = "passed before, and nothing that it depends on has changed";

/// The files of the repository that a test may read when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// All files except compiled sources and the files [`ABOUT_THE_REPOSITORY`].
    Data,
    /// All files.
    Everything,
}

/// The tests that passed in earlier runs.
#[derive(Debug)]
pub(crate) struct Passed {
    /// The folder with a file for each test that passed; `None` if every test runs.
    folder: Option<PathBuf>,
    /// A hash of the environment, and of all files that a test with [`Reads::Data`] can read.
    data: u64,
    /// A hash of all other files.
    sources: u64,
}

impl Passed {
    /// Returns an empty set, so that every test runs.
    pub(crate) fn none() -> Self {
        Self { folder: None, data: 0, sources: 0 }
    }

    /// Reads the tests that passed, so that only tests with a change since then run.
    pub(crate) fn load() -> Result<Self> {
        let folder = workspace::target_dir()?.join("xtask-test/passed");
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let list = ["ls-files", "--cached", "--others", "--exclude-standard"];
        let files = shell::output(command("git").args(list)).ok_or("`git ls-files` failed")?;
        let (sources, data): (Vec<&str>, Vec<&str>) =
            files.lines().partition(|file| file.ends_with(".rs") || ABOUT_THE_REPOSITORY.contains(file));
        let root = workspace::root();
        let hash_all = |files: Vec<&str>| hash_of(files.iter().map(|file| root.join(file)));
        let is_ours = |(name, _): &(OsString, OsString)| name.to_string_lossy().starts_with("VRAMSCOPE_");
        let variables: BTreeSet<_> = env::vars_os().filter(is_ours).collect();
        let mut hasher = DefaultHasher::new();
        (hash_all(data), variables, hash_of(files_below(&root.join("../shared")))).hash(&mut hasher);
        Ok(Self { folder: Some(folder), data: hasher.finish(), sources: hash_all(sources) })
    }

    /// Runs the tests `name`, which depend on the built files `on`, unless they passed before with
    /// unchanged files. Prints a message if they do not run.
    pub(crate) fn run_or_print(
        &self,
        name: &str,
        reads: Reads,
        on: impl IntoIterator<Item = PathBuf>,
        run: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if !self.run(name, reads, on, run)? {
            shell::print(&format!("{name}: {PASSED_BEFORE}"));
        }
        Ok(())
    }

    /// Runs the tests `name`, which depend on the built files `on`, unless they passed before with
    /// unchanged files. Returns false if they did not run.
    pub(crate) fn run(
        &self,
        name: &str,
        reads: Reads,
        on: impl IntoIterator<Item = PathBuf>,
        run: impl FnOnce() -> Result<()>,
    ) -> Result<bool> {
        let Some(folder) = &self.folder else { return run().map(|()| true) };
        let mut hasher = DefaultHasher::new();
        let sources = (reads == Reads::Everything).then_some(self.sources);
        (name, self.data, sources, hash_of(on)).hash(&mut hasher);
        let stamp = folder.join(format!("{:016x}", hasher.finish()));
        if stamp.exists() {
            return Ok(false);
        }
        run()?;
        fs::write(&stamp, name).map_err(|error| format!("{}: {error}", stamp.display()))?;
        Ok(true)
    }
}

/// Returns a hash of the paths of files, their sizes and times of modification. A file that cannot
/// be read counts as missing.
fn hash_of(files: impl IntoIterator<Item = PathBuf>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in files {
        let metadata = fs::metadata(&file).ok();
        (file, metadata.map(|metadata| (metadata.len(), metadata.modified().ok()))).hash(&mut hasher);
    }
    hasher.finish()
}

/// Returns all files below a folder, sorted; none if it is missing.
pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder { &mut folders } else { &mut files }.push(entry.path());
        }
    }
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn test_runs_again_once_something_that_it_depends_on_changed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (executable, runs) = (folder.path().join("test"), Cell::new(0));
        let passed = Passed { folder: Some(folder.path().to_owned()), data: 1, sources: 1 };
        let check = |passed: &Passed, reads, result: Result<()>, expected| {
            let run = || {
                runs.set(runs.get() + 1);
                result.clone()
            };
            let did_run = passed.run("one", reads, [executable.clone()], run);
            assert_eq!(did_run, result.clone().map(|()| expected == 1));
            assert_eq!(runs.take(), expected);
        };
        let changed_sources = Passed { folder: passed.folder.clone(), data: 1, sources: 2 };
        let changed_data = Passed { folder: passed.folder.clone(), data: 2, sources: 1 };
        fs::write(&executable, "1").expect("a file");
        check(&passed, Reads::Data, Err("failed".to_owned()), 1);
        check(&passed, Reads::Data, Ok(()), 1);
        check(&passed, Reads::Data, Ok(()), 0);
        check(&changed_sources, Reads::Data, Ok(()), 0);
        check(&changed_data, Reads::Data, Ok(()), 1);
        check(&passed, Reads::Everything, Ok(()), 1);
        check(&passed, Reads::Everything, Ok(()), 0);
        check(&changed_sources, Reads::Everything, Ok(()), 1);
        fs::write(&executable, "12").expect("a file");
        check(&passed, Reads::Data, Ok(()), 1);
        check(&Passed::none(), Reads::Data, Ok(()), 1);
    }

    #[test]
    fn files_are_found_in_all_folders() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir_all(folder.path().join("a/b")).expect("a folder");
        let expected = ["a/b/c", "d"].map(|name| folder.path().join(name));
        expected.iter().for_each(|file| fs::write(file, "").expect("a file"));
        assert_eq!(files_below(folder.path()), expected);
        assert!(files_below(&folder.path().join("missing")).is_empty());
    }
}
