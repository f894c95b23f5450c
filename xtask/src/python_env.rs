//! Python virtual environments in cargo's target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::shell::{self, Result, command};
use crate::workspace;

/// Creates the virtual environment `name` with the packages of a pip requirements list, unless it
/// exists with that list. Returns its Python.
pub(crate) fn environment(name: &str, requirements: &str) -> Result<PathBuf> {
    /// Held while an environment is created, because parallel steps may need one environment.
    static CREATING: Mutex<()> = Mutex::new(());
    let _creating = CREATING.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = workspace::target_dir()?.join(name);
    // This file is written last, so a folder without it is incomplete.
    let installed = folder.join("installed.txt");
    let python = python_of(&folder);
    if fs::read_to_string(&installed).is_ok_and(|installed| installed == requirements) {
        return Ok(python);
    }
    create(&folder)?;
    let wanted = folder.join("requirements.txt");
    let write = |path: &Path| fs::write(path, requirements).map_err(|error| format!("{}: {error}", path.display()));
    write(&wanted)?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"];
    shell::run(command(&python.to_string_lossy()).args(install).arg(&wanted))?;
    write(&installed)?;
    Ok(python)
}

/// Creates an environment as [`environment`] does, with the packages of a requirements file.
pub(crate) fn environment_of_file(name: &str, requirements: &Path) -> Result<PathBuf> {
    let list = fs::read_to_string(requirements).map_err(|error| format!("{}: {error}", requirements.display()))?;
    environment(name, &list)
}

/// Creates an empty virtual environment in `folder`, replacing its content. Returns the
/// environment's Python.
pub(crate) fn create(folder: &Path) -> Result<PathBuf> {
    shell::run(command("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
    Ok(python_of(folder))
}

/// Returns the Python of the virtual environment in `folder`.
fn python_of(folder: &Path) -> PathBuf {
    folder.join(if cfg!(windows) { "Scripts/python" } else { "bin/python" })
}
