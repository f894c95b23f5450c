//! A replacement for `process` on systems where code cannot be run in another process.

use std::convert::Infallible;

use super::wait::Wait;
use crate::error::{CommandError, Result};

/// A process that can run Python code. On this operating system, none can be created.
pub(crate) struct PythonProcess(Infallible);

impl PythonProcess {
    /// Fails: this operating system is not supported.
    pub(crate) fn find(pid: u32) -> Result<Self> {
        Err(CommandError::new(format_args!(
            "cannot attach to process {pid}: only Linux on x86-64 is supported; start the program with vramscope run"
        )))
    }

    pub(crate) fn is_running(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn python_minor(&self) -> u8 {
        match self.0 {}
    }

    pub(crate) fn run(&self, _code: &str, _wait: &Wait<'_>) -> Result<String> {
        match self.0 {}
    }
}
