//! The viewer to wasm, then the binary that embeds it.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use wasm_bindgen_cli_support::Bindgen;

use crate::shell::{self, Result, cargo};
use crate::tools::{self, Tool};
use crate::workspace;

/// How much the compiler optimizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Quick to build.
    Dev,
    /// What users run.
    Release,
}

impl Profile {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Dev => &[],
            Self::Release => &["--release"],
        }
    }

    /// Where cargo puts what it builds, in its target folder.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release => "release",
        }
    }
}

/// Builds the viewer and the binary around it, and gives back the binary's path.
pub(crate) fn everything(profile: Profile) -> Result<PathBuf> {
    Tool::WasmTarget.ensure()?;
    viewer(profile)?;
    shell::run(cargo().args(["build", "--package", "vramscope"]).args(profile.flags()))?;
    binary_path(profile)
}

/// Builds the viewer to wasm, into the folder that the binary embeds it from.
fn viewer(profile: Profile) -> Result<()> {
    let build = ["build", "--package", "vramscope-viewer", "--lib", "--target", tools::WASM_TARGET];
    shell::run(cargo().args(build).args(profile.flags()))?;
    let wasm = workspace::target_dir()?.join(tools::WASM_TARGET).join(profile.folder()).join("vramscope_viewer.wasm");
    let package = workspace::target_dir()?.join("www-pkg");
    eprintln!("$ wasm-bindgen --target web {}", wasm.display());
    // The command line tool lets the page's init() find the wasm file by itself; the library has to be told to.
    let generate = || {
        Bindgen::new().input_path(&wasm).web(true)?.typescript(false).omit_default_module_path(false).generate(&package)
    };
    generate().map_err(|error| format!("wasm-bindgen on {}: {error:#}", wasm.display()))?;
    let page = workspace::root().join("www").join("pkg");
    copy_what_changed(&package, &page).map_err(|error| format!("{}: {error}", page.display()))
}

/// Copies the files of a folder, but none that is there already: the binary is built anew when one of them was touched.
fn copy_what_changed(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (bytes, copy) = (fs::read(entry.path())?, to.join(entry.file_name()));
        if fs::read(&copy).ok().as_ref() != Some(&bytes) {
            fs::write(&copy, bytes)?;
        }
    }
    Ok(())
}

/// Where the binary is once it is built.
pub(crate) fn binary_path(profile: Profile) -> Result<PathBuf> {
    let name = format!("vramscope{}", env::consts::EXE_SUFFIX);
    Ok(workspace::target_dir()?.join(profile.folder()).join(name))
}

/// Builds everything, then turns into the demo: its first line on stdout is this command's first line, and ^C goes to it.
pub(crate) fn demo(arguments: &[&str]) -> Result<Infallible> {
    let binary = everything(Profile::Release)?;
    let mut demo = Command::new(&binary);
    demo.arg("demo").args(arguments);
    Err(format!("cannot run {}: {}", binary.display(), replace_this_process(demo)))
}

#[cfg(unix)]
fn replace_this_process(mut command: Command) -> std::io::Error {
    std::os::unix::process::CommandExt::exec(&mut command)
}

#[cfg(not(unix))]
fn replace_this_process(mut command: Command) -> std::io::Error {
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}

/// Builds what measures recordings in wasm, and gives back the folder in which it is: a script for pages, and its wasm file.
pub(crate) fn measured() -> Result<PathBuf> {
    Tool::WasmTarget.ensure()?;
    let build = ["build", "--package", "vramscope-viewer", "--example", "measured", "--target", tools::WASM_TARGET];
    shell::run(cargo().args(build).args(Profile::Release.flags()))?;
    let built = workspace::target_dir()?.join(tools::WASM_TARGET).join(Profile::Release.folder()).join("examples");
    let (wasm, folder) = (built.join("measured.wasm"), workspace::target_dir()?.join("measured"));
    let generated = Bindgen::new()
        .input_path(&wasm)
        .no_modules(true)
        .and_then(|bindgen| bindgen.typescript(false).generate(&folder));
    generated.map_err(|error| format!("wasm-bindgen on {}: {error:#}", wasm.display()))?;
    Ok(folder)
}

/// Builds everything, then measures it in a real browser.
pub(crate) fn bench_browser() -> Result<()> {
    with_browser("bench_browser", &[(MEASURED_VARIABLE, measured()?)])
}

/// Builds the program that is watched where live recordings are measured, with the page in it, and gives back its path.
pub(crate) fn load() -> Result<PathBuf> {
    let build = ["build", "--package", "vramscope-collector", "--example", "load"];
    shell::run(cargo().args(build).args(Profile::Release.flags()))?;
    let name = format!("load{}", env::consts::EXE_SUFFIX);
    Ok(workspace::target_dir()?.join(Profile::Release.folder()).join("examples").join(name))
}

/// Builds everything, then runs one of the measurements of live recordings, whose figure it prints.
pub(crate) fn live(arguments: &[&str]) -> Result<()> {
    Tool::Chromium.ensure()?;
    let binary = everything(Profile::Release)?;
    let run = ["run", "--package", "vramscope-tests", "--bin", "live", "--release", "--"];
    shell::run(cargo().args(run).args(arguments).env(BINARY_VARIABLE, binary).env(LOAD_VARIABLE, load()?))
}

/// Builds everything, then runs a program of the `tests` crate that drives the real binary in a real browser.
pub(crate) fn with_browser(program: &str, variables: &[(&str, PathBuf)]) -> Result<()> {
    Tool::Chromium.ensure()?;
    let binary = everything(Profile::Release)?;
    let run = ["run", "--package", "vramscope-tests", "--bin", program];
    shell::run(cargo().args(run).env(BINARY_VARIABLE, binary).envs(variables.iter().map(|(name, path)| (name, path))))
}

/// Tells the benchmark where what measures recordings in wasm is.
pub(crate) const MEASURED_VARIABLE: &str = "VRAMSCOPE_MEASURED";
/// Tells the `tests` crate which binary to start.
pub(crate) const BINARY_VARIABLE: &str = "VRAMSCOPE_BINARY";
/// Tells the `tests` crate which program to watch.
pub(crate) const LOAD_VARIABLE: &str = "VRAMSCOPE_LOAD";
