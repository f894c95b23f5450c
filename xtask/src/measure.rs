//! Runs benchmarks that need the built binary: in a browser, and of live recordings. Also takes
//! screenshots.

use std::path::PathBuf;

use wasm_bindgen_cli_support::Bindgen;

use crate::build::{self, Profile};
use crate::executables;
use crate::shell::{self, Result, cargo};
use crate::tools::{self, Tool};
use crate::workspace;

/// Environment variable with the folder of the wasm benchmark, for the tests crate.
pub(crate) const WASM_BENCHMARK_VARIABLE: &str = "VRAMSCOPE_MEASURED";
/// Environment variable with the path of the headless shell to use instead of Chromium.
pub(crate) const HEADLESS_SHELL_VARIABLE: &str = "VRAMSCOPE_HEADLESS_SHELL";
/// Environment variable with the path of axe-core's script, for the tests of accessibility.
pub(crate) const AXE_VARIABLE: &str = "VRAMSCOPE_AXE";
/// Environment variable with the path of the `vramscope` binary, for the tests crate.
pub(crate) const BINARY_VARIABLE: &str = "VRAMSCOPE_BINARY";
/// Environment variable with the path of the load generator, for the tests crate.
pub(crate) const LOAD_VARIABLE: &str = "VRAMSCOPE_LOAD";

/// Returns the folder of the wasm benchmark that was built last.
pub(crate) fn wasm_benchmark_folder() -> Result<PathBuf> {
    Ok(workspace::target_dir()?.join("measured"))
}

/// Package and name of the example that is the load generator.
pub(crate) const LOAD_GENERATOR: [&str; 2] = ["vramscope-collector", "load"];

/// Builds the wasm benchmark with `profile`. Returns the folder with its script and its wasm file.
pub(crate) fn wasm_benchmark(profile: Profile) -> Result<PathBuf> {
    Tool::WasmTarget.ensure()?;
    let build = ["build", "--package", "vramscope-viewer", "--example", "measured", "--target", tools::WASM_TARGET];
    shell::run(cargo().args(build).args(profile.flags()))?;
    generate_wasm_benchmark(profile)
}

/// Generates the script of the wasm benchmark that was built with `profile`. Returns its folder.
pub(crate) fn generate_wasm_benchmark(profile: Profile) -> Result<PathBuf> {
    let built = workspace::target_dir()?.join(tools::WASM_TARGET).join(profile.folder()).join("examples");
    let (wasm, folder) = (built.join("measured.wasm"), wasm_benchmark_folder()?);
    let generated = Bindgen::new()
        .input_path(&wasm)
        .no_modules(true)
        .and_then(|bindgen| bindgen.typescript(false).generate(&folder));
    generated.map_err(|error| format!("wasm-bindgen on {}: {error:#}", wasm.display()))?;
    Ok(folder)
}

/// Builds the load generator, a program that produces events at a given rate, for release. Returns
/// its path.
fn load_generator() -> Result<PathBuf> {
    let [package, example] = LOAD_GENERATOR;
    let built = executables::build(&["build", "--release", "--package", package, "--example", example])?;
    Ok(executables::find(&built, package, "example", example)?.path.clone())
}

/// Measures the page in headless Chromium.
pub(crate) fn bench_browser() -> Result<()> {
    run_with_browser("bench_browser", &[(WASM_BENCHMARK_VARIABLE, wasm_benchmark(Profile::Page)?)])
}

/// Takes the README's screenshots.
pub(crate) fn screenshots() -> Result<()> {
    run_with_browser("screenshots", &[])
}

/// Runs a live benchmark.
pub(crate) fn live(arguments: &[&str]) -> Result<()> {
    Tool::Chromium.ensure()?;
    let binary = build::binary(Profile::Release)?;
    let run = ["run", "--package", "vramscope-tests", "--bin", "live", "--release", "--"];
    let mut live = cargo();
    let load = load_generator()?;
    shell::run(live.args(run).args(arguments).env(BINARY_VARIABLE, binary).env(LOAD_VARIABLE, load))
}

/// Builds the binary, then runs a program of the tests crate that drives it in a browser.
fn run_with_browser(program: &str, variables: &[(&str, PathBuf)]) -> Result<()> {
    Tool::Chromium.ensure()?;
    let binary = build::binary(Profile::Release)?;
    let run = ["run", "--package", "vramscope-tests", "--bin", program];
    let variables = variables.iter().map(|(name, path)| (name, path));
    shell::run(cargo().args(run).env(BINARY_VARIABLE, binary).envs(variables))
}
