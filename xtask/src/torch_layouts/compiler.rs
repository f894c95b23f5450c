//! Compiles C++ against the headers of a PyTorch wheel.

use std::path::{Path, PathBuf};

use super::wheel::Wheel;
use crate::shell::{self, Result, command};
use crate::workspace;

/// Flags of the C++ compiler. The headers use parts of C++20 and cause many warnings, which `-w`
/// hides. `--gc-sections` drops their inline functions, so that the program needs none of PyTorch's
/// libraries.
const FLAGS: [&str; 4] = ["-std=c++20", "-w", "-ffunction-sections", "-Wl,--gc-sections"];

/// Returns the folder of this module's C++ files.
pub(crate) fn source_dir() -> PathBuf {
    workspace::root().join("xtask/src/torch_layouts")
}

/// Compiles `source` to a program called `name`, with the C++11 ABI of `std::string` if `cxx11_abi`
/// is true. Returns the path of the program.
pub(crate) fn compile(wheel: &Wheel, cxx11_abi: bool, source: &Path, name: &str) -> Result<PathBuf> {
    let program = wheel.output(name);
    let mut gxx = command("g++");
    gxx.args(FLAGS).arg(format!("-D_GLIBCXX_USE_CXX11_ABI={}", u8::from(cxx11_abi)));
    for folder in [source_dir()].into_iter().chain(wheel.header_dirs()) {
        gxx.arg("-I").arg(folder);
    }
    shell::run(gxx.arg(source).arg("-o").arg(&program))?;
    Ok(program)
}
