//! Tests the installed Python package in a notebook: a real JupyterLab server, in Chromium.

use crate::python_env;
use crate::shell::{self, Result, command};
use crate::wheel;

/// Packages of the notebook server, as a pip requirements list.
const PACKAGES: &str = "ipykernel==7.4.0\njupyter-server-proxy==4.6.0\njupyterlab==4.6.6\n";

/// Installs the built wheel and a notebook server into an environment, and runs the notebook tests
/// there.
pub(crate) fn check() -> Result<()> {
    let wheel = wheel::built_wheel()?;
    let python = python_env::environment("notebook-test", PACKAGES)?;
    let run = |arguments: &[&str]| {
        shell::run(command(&python.to_string_lossy()).args(arguments).env("VRAMSCOPE_INSTALLED", "1"))
    };
    let install = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall"];
    run(&[&install[..], &["--disable-pip-version-check", &wheel.to_string_lossy()]].concat())?;
    run(&["python/tests/run.py", "-v", "test_notebook"])
}
