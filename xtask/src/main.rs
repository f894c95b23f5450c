//! `cargo xtask`: what takes more than one cargo command.
//!
//! It builds the viewer to wasm and the binary around it, runs every test there is, and installs what a fresh machine lacks. It is
//! not a build system: each step is a command that could be typed by hand, and is shown before it runs.
//!
//! - [`tools`] knows each outside tool: how to see that it is there, how to install it, what to say where that cannot be done.
//! - [`build`] turns `viewer` into `www/pkg` and then builds the binary that embeds it.
//! - [`plan`] runs named steps in order and says in the end what passed, what failed and what was not run.
//! - [`checks`] is the list of steps of `cargo xtask test`.
//! - [`exports`] reads what the binary exports with the Python packages of the tools that it is for.
//! - [`fuzz`] runs the fuzz targets.
//! - [`gpu`] gathers what is run on a machine with a GPU.
//!
//! Everything goes to stderr; stdout belongs to the program that `cargo xtask demo` turns into.
#![forbid(unsafe_code)]

mod build;
mod checks;
mod exports;
mod fuzz;
mod gpu;
mod plan;
mod shell;
mod tools;
mod workspace;

use std::process::ExitCode;

use build::Profile;
use shell::Result;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  demo [ARGS]        set up, build, and run the demo; ARGS are those of `vramscope demo`
  build [--release]  build the viewer and the `vramscope` binary that embeds it
  test               set up and test everything
  fuzz [--seconds N] [TARGETS]
                     give every reader, or those named, hostile input for so many seconds each (300)
  gpu                gather in target/gpu what tests/gpu/run.sh runs on a machine with a GPU, where no Rust is needed
  bench-browser      measure opening, seeking and scrubbing in headless Chromium
  live RIG [NAME=NUMBER…]
                     measure what live recordings promise, at full length; without a RIG, says which there are
  screenshots        take the pictures of the README anew, into docs/images

A missing tool is installed where that can be done; else the message says which command to run by hand.";

fn run(arguments: &[String]) -> Result<ExitCode> {
    let rest: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    match (arguments.first().map(String::as_str), rest.as_slice()) {
        (Some("demo"), arguments) => build::demo(arguments).map(|never| match never {}),
        (Some("build"), []) => build::everything(Profile::Dev).map(|_| ExitCode::SUCCESS),
        (Some("build"), ["--release"]) => build::everything(Profile::Release).map(|_| ExitCode::SUCCESS),
        (Some("test"), []) => checks::run(),
        (Some("fuzz"), arguments) => fuzz::run(arguments).map(|()| ExitCode::SUCCESS),
        (Some("gpu"), []) => gpu::gather().map(|()| ExitCode::SUCCESS),
        (Some("bench-browser"), []) => build::bench_browser().map(|()| ExitCode::SUCCESS),
        (Some("live"), arguments) => build::live(arguments).map(|()| ExitCode::SUCCESS),
        (Some("screenshots"), []) => build::with_browser("screenshots", &[]).map(|()| ExitCode::SUCCESS),
        (None | Some("help" | "--help" | "-h"), []) => {
            eprintln!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(format!("unknown arguments: {}\n\n{USAGE}", arguments.join(" "))),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments).unwrap_or_else(|message| {
        eprintln!("xtask: {message}");
        ExitCode::from(2)
    })
}
