//! `cargo xtask wheel`: builds the Python package as a wheel, and checks it.
//!
//! The wheel contains the command with the page, the library that follows PyTorch's allocator, and
//! the one that replaces it. Everything is linked for glibc 2.28 by Zig's linker, so that the wheel
//! runs on every Linux that PyTorch's own wheels run on (manylinux_2_28).

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{self, Profile};
use crate::python_env;
use crate::shell::{self, Result, command};
use crate::workspace;

/// Packages that build the wheel, as a pip requirements list.
const TOOLS: &str = "cargo-zigbuild==0.24.0\nmaturin==1.16.0\nziglang==0.15.2\n";
/// Target of the wheel's programs.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Target of the wheel for Arm, which is only built: no test runs it.
const ARM_TARGET: &str = "aarch64-unknown-linux-gnu";
/// The version of glibc that the wheel needs at least.
const GLIBC: &str = "2.28";
/// The wheel's platform tag, for that version of glibc.
const PLATFORM: &str = "manylinux_2_28";

/// The file name of the library that replaces PyTorch's allocator.
const PLUGGABLE: &str = "libvramscope_pluggable.so";

/// The file name of the module that follows PyTorch's allocator, as cargo builds it.
const MODULE: &str = "libvramscope_hook.so";

/// The option of cargo that leaves symbols out of what is built for release.
const STRIP: &str = "profile.release.strip=true";

/// The environment variable with the program that maturin runs as compiler for C and as linker. By
/// default it is maturin itself.
const ZIG_VARIABLE: &str = "CARGO_BIN_EXE_cargo-zigbuild";

/// Licences that the wheel must contain: of vramscope, and of the font in its page.
const LICENSES: [&str; 3] = ["LICENSE-APACHE", "LICENSE-Inter.txt", "LICENSE-MIT"];

/// Returns the command `name` of the virtual environment whose Python is `python`, with that
/// environment first on the search path.
fn tool(python: &Path, name: &str) -> Result<Command> {
    let programs = python.parent().unwrap_or(python);
    let mut tool = command(&programs.join(name).to_string_lossy());
    let path = env::var_os("PATH").unwrap_or_default();
    let path: std::result::Result<OsString, _> =
        env::join_paths(std::iter::once(programs.to_owned()).chain(env::split_paths(&path)));
    tool.env("PATH", path.map_err(|error| format!("PATH: {error}"))?);
    Ok(tool)
}

/// The command and the library that replaces PyTorch's allocator, which the wheel contains as they
/// are.
struct Programs {
    command: PathBuf,
    pluggable: PathBuf,
}

impl Programs {
    /// Returns the programs that `cargo test` has built.
    fn of_tests() -> Result<Self> {
        let folder = workspace::target_dir()?.join(Profile::Dev.folder());
        // Libraries that only tests need stay in `deps`.
        Ok(Self { command: folder.join("vramscope"), pluggable: folder.join("deps").join(PLUGGABLE) })
    }

    /// Builds the programs for release, for a target, with a page that exists already.
    fn build(python: &Path, target_triple: &str) -> Result<Self> {
        let packages = ["--package", "vramscope", "--package", "vramscope-pluggable"];
        let versioned = format!("{target_triple}.{GLIBC}");
        let mut build = tool(python, "cargo-zigbuild")?;
        build.args(["zigbuild", "--target", &versioned, "--config", STRIP]).args(packages);
        build.args(Profile::Release.flags());
        shell::run(&mut build)?;
        let folder = workspace::target_dir()?.join(target_triple).join(Profile::Release.folder());
        Ok(Self { command: folder.join("vramscope"), pluggable: folder.join(PLUGGABLE) })
    }

    /// Copies the programs to where maturin expects them. Returns the paths of the copies.
    fn copy(&self) -> Result<[PathBuf; 2]> {
        let package = workspace::root().join("python");
        let command = package.join("data/scripts/vramscope");
        let pluggable = package.join("vramscope").join(PLUGGABLE);
        for (from, to) in [(&self.command, &command), (&self.pluggable, &pluggable)] {
            let copied = to.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::copy(from, to));
            copied.map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))?;
        }
        Ok([command, pluggable])
    }
}

/// Builds the wheel for a target around programs that exist already. Returns its path in
/// `target/wheels`.
fn build(python: &Path, target_triple: &str, profile: Profile) -> Result<PathBuf> {
    let package = workspace::root().join("python");
    let wheels = workspace::target_dir()?.join("wheels");
    // The name contains the version; an older wheel would be taken for the new one.
    let _ = fs::remove_dir_all(&wheels);
    let mut maturin = tool(python, "maturin")?;
    maturin.current_dir(&package).args(["build", "--zig", "--target", target_triple, "--compatibility", PLATFORM]);
    maturin.args(profile.flags()).args(["--config", STRIP, "--out"]).arg(&wheels);
    // With the same options and compiler for C as the programs, dependencies are not compiled
    // again.
    maturin.env(ZIG_VARIABLE, python.with_file_name("cargo-zigbuild"));
    shell::run(&mut maturin)?;
    let wheel = built_wheel()?;
    let mut list = command(&python.to_string_lossy());
    let files = shell::output(list.args(["-m", "zipfile", "-l"]).arg(&wheel)).unwrap_or_default();
    match missing_licenses(&files)[..] {
        [] => Ok(wheel),
        ref missing => Err(format!("{}: lacks {}", wheel.display(), missing.join(", "))),
    }
}

/// Returns the [`LICENSES`] that a wheel lacks. `files` is what `python -m zipfile -l` prints for
/// it: one line for each file, which begins with the path.
fn missing_licenses(files: &str) -> Vec<&'static str> {
    let paths = || files.lines().filter_map(|line| line.split_whitespace().next());
    let is_missing = |name: &&str| !paths().any(|path| path.ends_with(&format!(".dist-info/licenses/{name}")));
    LICENSES.into_iter().filter(is_missing).collect()
}

/// Builds the page and the wheel for release; with `for_arm` for 64-bit Arm.
pub(crate) fn release(for_arm: bool) -> Result<()> {
    build::page(Profile::Release)?;
    let target_triple = if for_arm { ARM_TARGET } else { TARGET };
    if for_arm {
        shell::run(command("rustup").args(["target", "add", target_triple]))?;
    }
    let python = python_env::environment("wheel-tools", TOOLS)?;
    let programs = Programs::build(&python, target_triple)?;
    programs.copy()?;
    let wheel = build(&python, target_triple, Profile::Release)?;
    eprintln!("{}", wheel.display());
    Ok(())
}

/// Builds a wheel for tests around the programs of the native tests. Only the library that follows
/// PyTorch's allocator is compiled as for users, for an old glibc.
pub(crate) fn build_for_tests() -> Result<()> {
    let python = python_env::environment("wheel-tools", TOOLS)?;
    let copies = Programs::of_tests()?.copy()?;
    shell::run(command("strip").args(copies))?;
    build(&python, TARGET, Profile::Dev).map(drop)
}

/// Returns the path of the wheel that was built last.
pub(crate) fn built_wheel() -> Result<PathBuf> {
    let folder = workspace::target_dir()?.join("wheels");
    let names = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = names.filter_map(|entry| Some(entry.ok()?.path()));
    let mut wheels = paths.filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheels.next().ok_or_else(|| format!("{}: no wheel", folder.display()))
}

/// Installs the built wheel into an empty environment, and tests it there.
pub(crate) fn check() -> Result<()> {
    let wheel = built_wheel()?;
    let folder = workspace::target_dir()?.join("wheel-test");
    let python = python_env::create(&folder)?;
    let run = |arguments: &[&str]| {
        shell::run(command(&python.to_string_lossy()).args(arguments).env("VRAMSCOPE_INSTALLED", "1"))
    };
    // Nothing but the wheel: PyTorch is not a dependency.
    run(&["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", &wheel.to_string_lossy()])?;
    shell::run(tool(&python, "vramscope")?.arg("--version"))?;
    run(&["python/tests/run.py"])
}

/// Tests the package of the checkout with what the native tests have built, without installing it.
pub(crate) fn check_without_wheel() -> Result<()> {
    let folder = workspace::target_dir()?.join(Profile::Dev.folder());
    let libraries = folder.join("deps");
    let mut tests = command("python3");
    tests.arg("python/tests/run.py").env("VRAMSCOPE_BINARY", folder.join("vramscope"));
    tests.env("VRAMSCOPE_NATIVE", libraries.join(MODULE)).env("VRAMSCOPE_POOL_LIBRARY", libraries.join(PLUGGABLE));
    shell::run(&mut tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licenses_must_be_among_the_metadata() {
        let file = |path: &str| format!("{path:<60} 2026-01-01 00:00:00        1078\n");
        let folder = "vramscope-0.1.0.dist-info/licenses";
        let mut files = format!("{:<60} Modified             Size\n", "File Name");
        for path in ["vramscope/__init__.py", "vramscope/LICENSE-MIT", "vramscope-0.1.0.dist-info/METADATA"] {
            files += &file(path);
        }
        assert_eq!(missing_licenses(&files), LICENSES);
        files += &file(&format!("{folder}/LICENSE-MIT"));
        assert_eq!(missing_licenses(&files), ["LICENSE-APACHE", "LICENSE-Inter.txt"]);
        LICENSES.iter().for_each(|name| files += &file(&format!("{folder}/{name}")));
        assert_eq!(missing_licenses(&files), [""; 0]);
    }
}
