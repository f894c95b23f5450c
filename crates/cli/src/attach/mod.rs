//! Runs Python code in another process, for `attach` and `detach`.
//!
//! `process` makes the process run the code, on Linux on x86-64; `unsupported` stands in for it
//! elsewhere. [`PackageArguments`] calls functions of the Python package `vramscope` in this way;
//! their code is in `python/vramscope/_attach.py`.

mod literal;
mod package;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod process;
#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod test_pythons;
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod unsupported;
mod wait;

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
use unsupported as process;

pub(crate) use literal::python_literal;
pub(crate) use package::{PackageArguments, own_package};
pub(crate) use process::PythonProcess;
