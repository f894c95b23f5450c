//! Asks `vramscope mcp` with the official Python client of the Model Context Protocol.

use std::path::Path;

use crate::python_env;
use crate::shell::{self, Result, command};
use crate::workspace;

/// Installs the client into a virtual environment and runs it with the command `binary`.
pub(crate) fn check(binary: &Path) -> Result<()> {
    let folder = workspace::root().join("tests/mcp");
    let python = python_env::environment_of_file("mcp-client", &folder.join("requirements.txt"))?;
    let script = folder.join("python_client.py");
    shell::run(command(&python.to_string_lossy()).arg(script).arg(binary))
}
