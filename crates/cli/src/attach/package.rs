//! Calls functions of the Python package `vramscope` in another process.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use vramscope_collector::parse_time;

use super::literal::python_literal;
use super::process::PythonProcess;
use super::wait::Wait;
use crate::error::{CommandError, Result};
use crate::private_folder::check_package;
use crate::terminal;

/// Python code that loads the package in the process and defines the function `call`.
const LOAD: &str = include_str!("load.py");
/// Names of the folders below `lib/python3.N` in which Python installs packages.
const PACKAGE_FOLDERS: [&str; 2] = ["site-packages", "dist-packages"];

/// Options of commands that call the Python package in another process.
#[derive(Args, Debug)]
pub(crate) struct PackageArguments {
    /// Folder with the Python package vramscope [default: where this command was installed, else
    /// where the process finds it]
    #[arg(long, value_name = "DIR")]
    package: Option<PathBuf>,
    /// Longest wait for an answer of the process
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "2m")]
    timeout: Duration,
}

impl PackageArguments {
    /// Evaluates `expression`, which may use the module `_attach` of the package, in the process.
    /// Returns the result as text, or an exception as an error. Ends early once `is_cancelled`
    /// returns true.
    pub(crate) fn call(
        &self,
        process: &PythonProcess,
        expression: &str,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<String> {
        let folder = self.folder(process)?;
        let folder = folder.as_deref().and_then(Path::to_str).map_or("None".to_owned(), python_literal);
        let code = format!("{LOAD}\n\n_attach = load({folder})\nreply = {expression}\n");
        let on_message = |message: &str| terminal::message(message);
        process.run(&code, &Wait { timeout: self.timeout, on_message: &on_message, is_cancelled })
    }

    /// Returns a copy of the options with another timeout.
    pub(crate) fn with_timeout(&self, timeout: Duration) -> Self {
        Self { package: self.package.clone(), timeout }
    }

    /// Returns the folder to load the package from; `None` if the process has to find it.
    fn folder(&self, process: &PythonProcess) -> Result<Option<PathBuf>> {
        match &self.package {
            Some(folder) => match fs::canonicalize(folder) {
                Ok(folder) if contains_package(&folder) => Ok(Some(folder)),
                Ok(_) => Err(CommandError::file(
                    folder,
                    "has no Python package vramscope; name the folder that contains vramscope/_attach.py",
                )),
                Err(error) => Err(CommandError::file(folder, error)),
            },
            None => Ok(own_package(Some(process.python_minor()))),
        }
    }
}

/// Returns true if a folder contains the package.
fn contains_package(folder: &Path) -> bool {
    folder.join("vramscope/_attach.py").is_file()
}

/// Returns the folder with the package that was installed with this command, preferably for Python
/// 3.`minor`; `None` if the command was installed without it.
pub(crate) fn own_package(minor: Option<u8>) -> Option<PathBuf> {
    let command = std::env::current_exe().and_then(fs::canonicalize).ok()?;
    installed_package(&command, minor)
}

/// Returns the folder with the package that was installed with the program at `command`, such as
/// `/usr/lib/python3.12/site-packages` for `/usr/bin/vramscope`, or `DIR` for `DIR/bin/vramscope`
/// (`pip install --target DIR`, and unpacked zipapps). The package works with every minor version;
/// `minor` is preferred.
fn installed_package(command: &Path, minor: Option<u8>) -> Option<PathBuf> {
    let prefix = command.parent()?.parent()?;
    let libraries = ["lib", "lib64", "local/lib"].into_iter().flat_map(|name| fs::read_dir(prefix.join(name)));
    let mut pythons: Vec<PathBuf> = libraries.flatten().flatten().map(|entry| entry.path()).collect();
    let own_name = minor.map(|minor| format!("python3.{minor}"));
    pythons.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")));
    pythons.sort_by_key(|path| (!own_name.as_ref().is_some_and(|name| path.ends_with(name)), path.clone()));
    let folders = pythons.iter().flat_map(|python| PACKAGE_FOLDERS.map(|name| python.join(name)));
    let mut folders = folders.chain([prefix.to_owned()]);
    // For a command in `/tmp/bin`, another user may create the folder `/tmp/lib`.
    let is_private = |folder: &Path| check_package(command, &folder.join("vramscope"), prefix).is_ok();
    folders.find(|folder| contains_package(folder) && is_private(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a file and the folders above it.
    fn create(path: &Path) {
        fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("the folder is writable");
        fs::write(path, "").expect("the folder is writable");
    }

    #[test]
    fn package_is_found_beside_the_command() {
        let check = |command: &str, library: &str| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let (command, library) = (folder.path().join(command), folder.path().join(library));
            create(&command);
            assert_eq!(installed_package(&command, Some(12)), None);
            create(&library.join("vramscope/_attach.py"));
            assert_eq!(installed_package(&command, Some(12)), Some(library));
        };
        check("usr/local/bin/vramscope", "usr/local/lib/python3.11/dist-packages");
        check("usr/bin/vramscope", "usr/lib/python3/dist-packages");
        check("usr/bin/vramscope", "usr/lib64/python3.12/site-packages");
        // conda, venv, pip install --user, pipx and uv tool, whose links to commands are resolved.
        check("envs/train/bin/vramscope", "envs/train/lib/python3.12/site-packages");
        check(".local/bin/vramscope", ".local/lib/python3.10/site-packages");
        check("pipx/venvs/vramscope/bin/vramscope", "pipx/venvs/vramscope/lib/python3.13/site-packages");
        check("uv/tools/vramscope/bin/vramscope", "uv/tools/vramscope/lib/python3.12/site-packages");
        // pip install --target, and zipapps (shiv, pex), which unpack themselves.
        check("target/bin/vramscope", "target");
        check(".shiv/train_1a2b/site-packages/bin/vramscope", ".shiv/train_1a2b/site-packages");
    }

    #[test]
    fn package_of_the_same_version_is_preferred() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let command = folder.path().join("bin/vramscope");
        create(&command);
        for library in ["local/lib/python3.11/dist-packages", "lib/python3.12/site-packages", ""] {
            create(&folder.path().join(library).join("vramscope/_attach.py"));
        }
        let found = |minor| installed_package(&command, minor).expect("a package is installed");
        assert_eq!(found(Some(12)), folder.path().join("lib/python3.12/site-packages"));
        assert_eq!(found(Some(11)), folder.path().join("local/lib/python3.11/dist-packages"));
    }

    #[cfg(unix)]
    #[test]
    fn package_writable_by_other_users_is_ignored() {
        use std::os::unix::fs::{PermissionsExt as _, chown};

        let folder = tempfile::tempdir().expect("a temporary folder");
        let (command, library) =
            (folder.path().join("bin/vramscope"), folder.path().join("lib/python3.12/site-packages"));
        create(&command);
        create(&library.join("vramscope/_attach.py"));
        let set_mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the folder is ours");
        };
        let is_found = || installed_package(&command, None).is_some();
        for path in [library.join("vramscope"), library.clone(), folder.path().join("lib")] {
            set_mode(&path, 0o777);
            assert!(!is_found(), "{}", path.display());
            set_mode(&path, 0o755);
            assert!(is_found());
        }
        if !nix::unistd::geteuid().is_root() {
            println!("SKIPPED: another group's files need root");
            return;
        }
        // A group that may replace the command may replace the package.
        chown(&library, None, Some(65533)).expect("root may");
        set_mode(&library, 0o775);
        assert!(!is_found());
        chown(folder.path().join("bin"), None, Some(65533)).expect("root may");
        assert!(!is_found());
        set_mode(&folder.path().join("bin"), 0o775);
        assert!(is_found());
    }

    #[cfg(unix)]
    #[test]
    fn package_of_another_user_is_ignored() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIPPED: another user's files need root");
            return;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let command = folder.path().join("bin/vramscope");
        create(&command);
        for (library, foreign) in [("", "vramscope"), ("lib/python3.12/site-packages", "lib")] {
            create(&folder.path().join(library).join("vramscope/_attach.py"));
            assert!(installed_package(&command, None).is_some());
            std::os::unix::fs::chown(folder.path().join(foreign), Some(65533), None).expect("root may");
            assert_eq!(installed_package(&command, None), None, "{foreign}");
        }
    }
}
