//! Tests the installed Python package in a notebook: a real JupyterLab server, in Chromium.

use std::fs;
use std::path::PathBuf;

use crate::python_env;
use crate::shell::{self, Result, command};
use crate::workspace;

/// Packages of the notebook server, as a pip requirements list.
const PACKAGES: &str = "ipykernel==7.4.0\njupyter-server-proxy==4.6.0\njupyterlab==4.6.6\n";

/// Returns the path of the wheel that `wheel::build` made.
fn built_wheel() -> Result<PathBuf> {
    let folder = workspace::target_dir()?.join("wheels");
    let names = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = names.filter_map(|entry| Some(entry.ok()?.path()));
    let mut wheels = paths.filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheels.next().ok_or_else(|| format!("{}: no wheel", folder.display()))
}

/// Installs the built wheel beside a notebook server and runs the tests of the notebook there.
pub(crate) fn check() -> Result<()> {
    let wheel = built_wheel()?;
    let python = python_env::environment("notebook-test", PACKAGES)?;
    let run = |arguments: &[&str]| {
        shell::run(command(&python.to_string_lossy()).args(arguments).env("VRAMSCOPE_INSTALLED", "1"))
    };
    let install = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall"];
    run(&[&install[..], &["--disable-pip-version-check", &wheel.to_string_lossy()]].concat())?;
    run(&["python/tests/run.py", "-v", "test_notebook"])
}
