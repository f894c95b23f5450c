//! `cargo xtask wheel`: builds the Python package as a wheel, and checks it.
//!
//! The wheel contains the command with the page, and one library, which follows PyTorch's allocator
//! and has the pool that can replace it. Both are linked for glibc 2.28 by Zig's linker, so that
//! the wheel runs on every Linux that PyTorch's own wheels run on (manylinux_2_28).
//!
//! One call of cargo builds both. `maturin build` would build the library's dependencies with other
//! features than the command's, and compile most of them twice. Therefore maturin, the package's
//! build backend, only writes the metadata.

mod library;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{self, Profile};
use crate::python_env;
use crate::shell::{self, Result, command};
use crate::workspace;

/// Packages that build the wheel, as a pip requirements list.
const TOOLS: &str = "cargo-zigbuild==0.24.0\nmaturin==1.16.0\nwheel==0.48.0\nziglang==0.15.2\n";
/// Target of the wheel's programs.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Target of the wheel for Arm, which is only built: no test runs it.
const ARM_TARGET: &str = "aarch64-unknown-linux-gnu";
/// The minimum version of glibc that the wheel needs.
const GLIBC: &str = "2.28";
/// The wheel's platform tag for [`GLIBC`], without the processor's architecture.
const PLATFORM: &str = "manylinux_2_28";

/// The file name of the library, as cargo builds it.
const LIBRARY: &str = "libvramscope_hook.so";
/// The library's path in the wheel: a module for every Python from the oldest supported one on.
const MODULE: &str = "vramscope/_native.abi3.so";
/// The prefixes of the names of Python's functions and variables.
const PYTHON_PREFIXES: [&str; 2] = ["Py", "_Py"];

/// The cargo setting that strips symbols from release builds.
const STRIP: &str = "profile.release.strip=true";

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

/// Builds packages with Zig's linker. Returns the folder with the built files.
fn build(python: &Path, target_triple: &str, profile: Profile, packages: &[&str]) -> Result<PathBuf> {
    let versioned = format!("{target_triple}.{GLIBC}");
    let mut build = tool(python, "cargo-zigbuild")?;
    build.args(["zigbuild", "--target", &versioned, "--config", STRIP]).args(profile.flags());
    build.args(packages.iter().flat_map(|package| ["--package", package]));
    build.args(["--features", "vramscope-hook/python"]);
    shell::run(&mut build)?;
    Ok(workspace::target_dir()?.join(target_triple).join(profile.folder()))
}

/// Packs the wheel for a target from the command and the library. Returns its path in
/// `target/wheels`.
fn pack(python: &Path, target_triple: &str, command: &Path, library: &Path) -> Result<PathBuf> {
    let target = workspace::target_dir()?;
    let (contents, wheels) = (target.join("wheel-contents"), target.join("wheels"));
    // Removes older wheels, whose names contain other versions: one could be taken for the new
    // wheel.
    for folder in [&contents, &wheels] {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let name = write_metadata(python, target_triple, &contents)?;
    let scripts = contents.join(format!("{name}.data/scripts"));
    let copied = copy_package(&workspace::root().join("python/vramscope"), &contents.join("vramscope"))
        .and_then(|()| fs::create_dir_all(&scripts))
        .and_then(|()| fs::copy(command, scripts.join("vramscope")))
        .and_then(|_| fs::read(library));
    let mut bytes = copied.map_err(|error| format!("{}: {error}", contents.display()))?;
    library::check_portable(library, &bytes, GLIBC)?;
    let is_of_python = |symbol: &str| PYTHON_PREFIXES.iter().any(|prefix| symbol.starts_with(prefix));
    library::make_optional(&mut bytes, is_of_python).map_err(|error| format!("{}: {error}", library.display()))?;
    let module = contents.join(MODULE);
    fs::write(&module, bytes).map_err(|error| format!("{}: {error}", module.display()))?;

    let mut pack = command_of_python(python);
    shell::run(pack.args(["-m", "wheel", "pack"]).arg(&contents).arg("--dest-dir").arg(&wheels))?;
    let wheel = built_wheel()?;
    let files = shell::output(command_of_python(python).args(["-m", "zipfile", "-l"]).arg(&wheel)).unwrap_or_default();
    match missing_licenses(&files)[..] {
        [] => Ok(wheel),
        ref missing => Err(format!("{}: lacks {}", wheel.display(), missing.join(", "))),
    }
}

/// Returns a command that runs the virtual environment's Python.
fn command_of_python(python: &Path) -> Command {
    command(&python.to_string_lossy())
}

/// Writes the wheel's metadata into `contents`. Returns the package's name and version, which are
/// the prefix of the names of the wheel's folders.
fn write_metadata(python: &Path, target_triple: &str, contents: &Path) -> Result<String> {
    let hook = "import maturin, sys; maturin.prepare_metadata_for_build_wheel(sys.argv[1])";
    let mut metadata = tool(python, "python")?;
    metadata.current_dir(workspace::root().join("python")).args(["-c", hook]).arg(contents);
    metadata.env("MATURIN_PEP517_ARGS", format!("--target {target_triple}"));
    shell::run(&mut metadata)?;
    let name = format!("vramscope-{}", workspace::version()?);
    // The tag's platform is `linux`, because maturin has not checked what the library needs.
    let path = contents.join(format!("{name}.dist-info/WHEEL"));
    let tagged = fs::read_to_string(&path).and_then(|text| {
        let tagged = text.replace("-abi3-linux_", &format!("-abi3-{PLATFORM}_"));
        fs::write(&path, tagged)
    });
    tagged.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(name)
}

/// Copies the Python package, without files that Python or maturin have compiled in it.
fn copy_package(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            if entry.file_name() != "__pycache__" {
                copy_package(&path, &copy)?;
            }
        } else if path.extension().is_none_or(|extension| extension != "so" && extension != "pyc") {
            fs::copy(&path, copy)?;
        }
    }
    Ok(())
}

/// Returns the [`LICENSES`] that a wheel lacks. `files` is the output of `python -m zipfile -l`:
/// one line for each file, which begins with the file's path.
fn missing_licenses(files: &str) -> Vec<&'static str> {
    let paths = || files.lines().filter_map(|line| line.split_whitespace().next());
    let is_missing = |name: &&str| !paths().any(|path| path.ends_with(&format!(".dist-info/licenses/{name}")));
    LICENSES.into_iter().filter(is_missing).collect()
}

/// Builds the page and the wheel for release. With `for_arm`, builds the wheel for 64-bit Arm.
pub(crate) fn release(for_arm: bool) -> Result<()> {
    build::page(Profile::Release)?;
    let target_triple = if for_arm { ARM_TARGET } else { TARGET };
    if for_arm {
        shell::run(command("rustup").args(["target", "add", target_triple]))?;
    }
    let python = python_env::environment("wheel-tools", TOOLS)?;
    let folder = build(&python, target_triple, Profile::Release, &["vramscope", "vramscope-hook"])?;
    let command = folder.join("vramscope");
    let bytes = fs::read(&command).map_err(|error| format!("{}: {error}", command.display()))?;
    library::check_portable(&command, &bytes, GLIBC)?;
    let wheel = pack(&python, target_triple, &command, &folder.join(LIBRARY))?;
    eprintln!("{}", wheel.display());
    Ok(())
}

/// Builds a wheel for tests. It contains the command from the native tests' build; only the library
/// is compiled as for users, for an old glibc.
pub(crate) fn build_for_tests() -> Result<()> {
    let python = python_env::environment("wheel-tools", TOOLS)?;
    let library = build(&python, TARGET, Profile::Dev, &["vramscope-hook"])?.join(LIBRARY);
    let folder = workspace::target_dir()?.join("wheel-stripped");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let strip = |path: &Path, name: &str| -> Result<PathBuf> {
        let stripped = folder.join(name);
        shell::run(command("strip").arg("-o").arg(&stripped).arg(path))?;
        Ok(stripped)
    };
    let command = strip(&build::binary_path(Profile::Dev)?, "vramscope")?;
    pack(&python, TARGET, &command, &strip(&library, LIBRARY)?).map(drop)
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
    // Installs only the wheel: PyTorch is not a dependency.
    run(&["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", &wheel.to_string_lossy()])?;
    shell::run(tool(&python, "vramscope")?.arg("--version"))?;
    run(&["python/tests/run.py"])
}

/// Tests the package of the checkout with what the native tests have built, without installing it.
pub(crate) fn check_without_wheel() -> Result<()> {
    let mut tests = command("python3");
    tests.arg("python/tests/run.py").env("VRAMSCOPE_NATIVE", test_library()?);
    shell::run(tests.env("VRAMSCOPE_BINARY", build::binary_path(Profile::Dev)?))
}

/// Returns the path of the package's library as the native tests build it.
pub(crate) fn test_library() -> Result<PathBuf> {
    // Libraries that only tests need stay in `deps`.
    Ok(workspace::target_dir()?.join(Profile::Dev.folder()).join("deps").join(LIBRARY))
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
