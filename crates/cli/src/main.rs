//! The `vramscope` command: arguments, files, progress and exit status around the other crates, and nothing that they could do.
//!
//! Each command is a module with its arguments and a `run`; [`input`] knows what can be read, [`serving`] what `demo`, `view` and
//! `serve` have in common.
#![forbid(unsafe_code)]

mod demo;
mod diff;
mod export;
mod failure;
mod file;
mod html;
mod import;
mod info;
mod input;
mod interrupt;
mod output;
mod record;
mod relay;
mod report;
mod screen;
mod serve;
mod serving;
mod simulate;
mod units;
mod verify;
mod view;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::failure::{Failure, Outcome};

/// The command did what it was asked, and what it was asked about is not so.
const ANSWER_IS_NO: u8 = 1;
/// Bad usage or unusable input.
const UNUSABLE: u8 = 2;

/// See what a GPU's memory is doing while a program trains.
#[derive(Parser, Debug)]
#[command(version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Train a real model whose tensors live in the pool, and watch its memory live
    Demo(demo::DemoOptions),
    /// Look at recordings in the browser
    View(view::ViewOptions),
    /// Follow a live program into a file
    Record(record::RecordOptions),
    /// Show the programs that push their recordings here as one: set VRAMSCOPE_PUSH for each of them
    Serve(serve::ServeArguments),
    /// Convert a snapshot to a recording
    Import(import::ImportOptions),
    /// Say what is in a recording
    Info(info::InfoOptions),
    /// Replay a recording's requests through the pool and compare every decision
    Verify(verify::VerifyOptions),
    /// Run a recording's requests through the pool under other settings
    Simulate(simulate::SimulateOptions),
    /// Write a recording in another tool's format
    Export(export::ExportOptions),
    /// Draw a recording on one page: an SVG or PNG picture
    Report(report::ReportOptions),
    /// Say what grew from one recording to another, by site
    Diff(diff::DiffOptions),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    let outcome = match &arguments.command {
        Command::Demo(options) => demo::run(options),
        Command::View(options) => view::run(options),
        Command::Record(options) => record::run(options),
        Command::Serve(options) => serve::run(options),
        Command::Import(options) => import::run(options),
        Command::Info(options) => info::run(options),
        Command::Verify(options) => match verify::run(options) {
            Ok(false) => return ExitCode::from(ANSWER_IS_NO),
            outcome => outcome.map(drop),
        },
        Command::Simulate(options) => simulate::run(options),
        Command::Export(options) => export::run(options),
        Command::Report(options) => report::run(options),
        Command::Diff(options) => diff::run(options),
    };
    exit_code(outcome)
}

fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            screen::note(failure);
            ExitCode::from(UNUSABLE)
        }
    }
}

/// Help goes to stdout as clap has it; what is wrong with the arguments goes to stderr in one line.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return exit_code(screen::print(&error.to_string()));
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return exit_code(Err(Failure::new("which command? (try vramscope --help)")));
    }
    let text = error.to_string();
    let what = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    exit_code(Err(Failure::new(format_args!("{what} (try vramscope --help)"))))
}
