//! `cargo xtask`: the project's tasks that take more than one cargo command.
//!
//! It builds the page and the binary that embeds it, runs all tests, and installs missing tools.
//! It is not a build system: it prints each command that it runs, and users could type it by hand.
//!
//! - [`tools`] detects and installs external tools.
//! - [`build`] compiles the viewer and builds the binary; [`page`] compresses the page.
//! - [`split`] divides the viewer's WebAssembly in what the page needs at once and the rest.
//! - [`plan`] runs named steps, three at a time, and prints a summary.
//! - [`mod@test`] lists the steps of `cargo xtask test`; [`tiers`] chooses which of them run,
//!   and [`passed`] remembers which need not run again.
//! - [`lint`] builds with clippy, and documents libraries while their examples are tested.
//! - [`package`] packages every published crate and builds a program against the packages.
//! - [`wheel`] builds the Python package, [`notebook`] tests it in JupyterLab; [`python_env`]
//!   creates virtual environments.
//! - [`exports`] reads exported files with the Python packages of the tools that they are for.
//! - [`assistant`] asks `vramscope mcp` with the official Python client of the protocol.
//! - [`measure`] runs the browser and live benchmarks and takes the README's screenshots.
//! - [`nats`] starts NATS brokers for tests and for manual use.
//! - [`fuzz`] runs the fuzz targets.
//! - [`gpu`] collects the programs and scripts that run on a machine with a GPU.
//! - [`torch_layouts`] reads the layout of PyTorch's classes from its wheels.
//!
//! All output goes to stderr; stdout belongs to the program that `cargo xtask demo` becomes.
#![forbid(unsafe_code)]

mod assistant;
mod build;
mod executables;
mod exports;
mod fuzz;
mod gpu;
mod import_names;
mod lint;
mod measure;
mod nats;
mod notebook;
mod package;
mod page;
mod passed;
mod plan;
mod python_env;
mod shell;
mod split;
mod test;
mod tiers;
mod tools;
mod torch_layouts;
mod wheel;
mod workspace;

use std::process::ExitCode;

use build::Profile;
use shell::Result;
use tiers::Tiers;

/// The help text of `cargo xtask`.
const USAGE: &str = "\
Usage: cargo xtask COMMAND

  demo [ARGS]        build and run the demo; ARGS are passed to `vramscope demo`
  build [--release]  build the page and the `vramscope` binary that embeds it
  test [--full]      run what a change must pass; --full: every test and check
  wheel [--arm]      build the Python package as a wheel in target/wheels; --arm for 64-bit Arm
  package            package every published crate and build a program against the packages
  fuzz [--seconds N] [TARGETS]
                     run the fuzz targets, N seconds each (default 300)
  gpu                collect in target/gpu what tests/gpu/run.sh needs on a machine with a GPU
  bench-browser      measure opening, seeking and scrubbing in headless Chromium
  live NAME [KEY=NUMBER…]
                     run a live benchmark at full length; without NAME, list them
  nats [--cluster]   start a NATS broker, or a cluster of three, on this machine
  fleet [KEY=NUMBER…]
                     simulate thousands of ranks at a broker and measure what a server shows
  screenshots        take the README's screenshots into docs/images
  torch-layouts [--check] [VERSION…]
                     read the layout of PyTorch's classes from the wheels of these versions (default
                     those in the table) into crates/hook/src/torch/layouts.rs; --check: only compare

Missing tools are installed where possible; otherwise the message names the command to run.";

/// Runs the command that the arguments name. Returns the exit code of `cargo xtask`.
fn run(arguments: &[String]) -> Result<ExitCode> {
    let rest: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    let done = |()| ExitCode::SUCCESS;
    match (arguments.first().map(String::as_str), rest.as_slice()) {
        (Some("demo"), arguments) => build::demo(arguments).map(|never| match never {}),
        (Some("build"), []) => build::binary(Profile::Dev).map(|_| ExitCode::SUCCESS),
        (Some("build"), ["--release"]) => build::binary(Profile::Release).map(|_| ExitCode::SUCCESS),
        (Some("test"), arguments) => test::run(&Tiers::from_arguments(arguments)?),
        (Some("wheel"), []) => wheel::release(false).map(done),
        (Some("wheel"), ["--arm"]) => wheel::release(true).map(done),
        (Some("package"), []) => build::page(Profile::Release).and_then(|()| package::check()).map(done),
        (Some("fuzz"), arguments) => fuzz::run(arguments).map(done),
        (Some("gpu"), []) => gpu::collect().map(done),
        (Some("bench-browser"), []) => measure::bench_browser().map(done),
        (Some("live"), arguments) => measure::live(arguments).map(done),
        (Some("fleet"), arguments) => nats::simulate(arguments).map(done),
        (Some("nats"), arguments) => nats::run(arguments).map(done),
        (Some("screenshots"), []) => measure::screenshots().map(done),
        (Some("torch-layouts"), arguments) => torch_layouts::run(arguments).map(done),
        (None | Some("help" | "--help" | "-h"), []) => {
            eprintln!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(format!("unknown arguments: {}\n\n{USAGE}", arguments.join(" "))),
    }
}

fn main() -> ExitCode {
    if let Some(code) = lint::run_as_rustdoc() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments).unwrap_or_else(|message| {
        eprintln!("xtask: {message}");
        ExitCode::from(2)
    })
}
