//! The `vramscope` command: arguments, files, progress and exit codes around the other crates.
//!
//! Each command is a module of [`commands`] with its arguments and a `run` function. Commands do
//! not import each other; the other modules have their shared code:
//!
//! - Reading: [`input`] recognizes and opens files, [`convert`] encodes imported events, which
//!   [`item_channel`] carries between two threads; [`recorded`] reads what `verify` and `simulate`
//!   need, [`simulation`] what `simulate` and `advise` share, [`history`] all allocations.
//! - Analyses: [`reports`] has what several commands compute, with their results as JSON.
//! - Writing: [`output`] files appear complete or not at all, [`retention`] limits live
//!   recordings, [`terminal`] and [`table`] print.
//! - Serving: [`server`] starts the page for `demo` and `view`, [`merge_server`] starts the page of
//!   several processes that push, for `serve`, `run` and `attach`; `archive` opens recordings in
//!   object stores.
//! - Assistants: `mcp` offers the analyses as tools of the Model Context Protocol.
//! - Metrics: `otlp` exports the metrics of `serve`.
//! - Charts: [`bars`] compares amounts of memory.
//! - Other processes: [`attach`] runs Python code in another process. [`private_folder`] finds
//!   folders for it that no other user can write.
//! - Comparing: [`diff`] has the operands, conditions and outputs of `diff`.
//! - Training: `demo` records the demo and memory techniques.
//! - Progress: [`operation`] shows it to a user or a client, and can be cancelled.
//! - Arguments: [`number`] parses what clap does not.
//! - [`signals`] handles Ctrl-C, [`log`] prints the libraries' warnings, [`error`] ends a command.
//!
//! Without the default features some commands are missing; `Cargo.toml` lists which.
#![forbid(unsafe_code)]

mod answer;
#[cfg(feature = "fleet")]
mod archive;
mod attach;
mod bars;
mod commands;
mod convert;
#[cfg(feature = "demo")]
mod demo;
mod diff;
mod error;
mod escape;
#[cfg(feature = "fleet")]
mod fleet_feed;
mod history;
mod input;
mod item_channel;
mod log;
#[cfg(feature = "mcp")]
mod mcp;
mod merge_server;
mod number;
mod operation;
#[cfg(feature = "otlp")]
mod otlp;
mod output;
mod private_folder;
mod recorded;
mod reports;
mod retention;
mod server;
mod signals;
mod simulation;
mod table;
mod terminal;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::answer::Answer;
use crate::error::{CommandError, Result};

/// Exit code of bad usage or unusable input.
const FAILED: u8 = 2;

/// Widest help text, in characters; on a narrower terminal it is wrapped to the terminal.
const HELP_COLUMNS: usize = 100;

/// Text after the options in `vramscope --help`: examples, exit codes and environment variables.
const AFTER_HELP: &str = "\
Examples:
  vramscope demo                               Train a model and watch its memory
  vramscope view run.vram                      Open a recording in the browser
  vramscope info snapshot.pickle               Summarize a PyTorch snapshot

Exit codes:
  0    Success
  1    Negative answer: verify found a divergence, a condition of diff --fail-if holds,
       the placement of pack is above the capacity, diagnose found a problem, autopsy an
       out-of-memory error
  2    Bad usage or unusable input; one line on stderr says what and where
  3    Cannot tell: the recording lacks what diagnose or autopsy needs
  130  Interrupted; unfinished output files are removed

Environment:
  NO_COLOR         Print without colors
  VRAMSCOPE_TOKEN  Access token, instead of --token
  VRAMSCOPE_PUSH   Address that demo pushes its recording to, see vramscope serve --help";

// The command line of `vramscope`: a subcommand with its arguments. Users read the next line as the
// first line of the help text.
/// Show the memory of a GPU while a program trains
#[derive(Parser, Debug)]
#[command(name = "vramscope", version, propagate_version = true)]
#[command(max_term_width = HELP_COLUMNS, after_help = AFTER_HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

// The subcommands of `vramscope` with their arguments. Their doc comments are the help texts.
#[derive(Subcommand, Debug)]
enum Command {
    /// Train a real model and watch its memory live
    #[cfg(feature = "demo")]
    #[command(after_help = commands::demo::EXAMPLES)]
    Demo(commands::demo::DemoArguments),
    /// Open recordings in the browser
    #[command(after_help = commands::view::EXAMPLES)]
    View(commands::view::ViewArguments),
    /// Record a running program to a file
    #[command(after_help = commands::record::EXAMPLES)]
    Record(commands::record::RecordArguments),
    /// Collect the recordings of several processes and show them together
    #[command(after_help = commands::serve::EXAMPLES)]
    Serve(commands::serve::ServeArguments),
    /// Manage the keys of a run's users, and its streams at a NATS broker
    #[cfg(feature = "fleet")]
    #[command(after_help = commands::fleet::EXAMPLES)]
    Fleet(commands::fleet::FleetArguments),
    /// Ask the archive of a run with SQL
    #[cfg(feature = "fleet")]
    #[command(after_help = commands::query::EXAMPLES)]
    Query(commands::query::QueryArguments),
    /// Run a Python program and watch PyTorch's GPU memory in it
    #[command(after_help = commands::run::EXAMPLES)]
    Run(commands::run::RunArguments),
    /// Record and show a PyTorch program that is already running
    #[command(after_help = commands::attach::EXAMPLES)]
    Attach(commands::attach::AttachArguments),
    /// Stop recording a program that was attached to
    #[command(after_help = commands::detach::EXAMPLES)]
    Detach(commands::detach::DetachArguments),
    /// Convert a snapshot or a log to a recording
    #[command(after_help = commands::import::EXAMPLES)]
    Import(commands::import::ImportArguments),
    /// Summarize a recording
    #[command(after_help = commands::info::EXAMPLES)]
    Info(commands::info::InfoArguments),
    /// Replay a recording's requests and compare every decision of the allocator
    #[command(after_help = commands::verify::EXAMPLES)]
    Verify(commands::verify::VerifyArguments),
    /// Run a recording's requests under other allocator settings
    #[command(after_help = commands::simulate::EXAMPLES)]
    Simulate(commands::simulate::SimulateArguments),
    /// Find the allocator settings that need least memory, and the smallest GPU
    #[command(after_help = commands::advise::EXAMPLES)]
    Advise(commands::advise::AdviseArguments),
    /// Explain each out-of-memory error, and check what prevents it
    #[command(after_help = commands::autopsy::EXAMPLES)]
    Autopsy(recorded::FindingsArguments),
    /// Find memory problems, where they come from and what helps
    #[command(after_help = commands::diagnose::EXAMPLES)]
    Diagnose(recorded::FindingsArguments),
    /// Write a recording in another tool's format
    #[cfg(feature = "export")]
    #[command(after_help = commands::export::EXAMPLES)]
    Export(commands::export::ExportArguments),
    /// Draw a recording as an SVG or PNG picture
    #[cfg(feature = "report")]
    #[command(after_help = commands::report::EXAMPLES)]
    Report(commands::report::ReportArguments),
    /// Compare two recordings, or two moments of one, site by site
    #[command(after_help = commands::diff::EXAMPLES)]
    Diff(commands::diff::DiffArguments),
    /// Show which lines, operations, modules or phases hold memory
    #[command(after_help = commands::table::EXAMPLES)]
    Table(commands::table::TableArguments),
    /// Place buffers of known lifetimes in as little memory as possible
    #[command(after_help = commands::pack::EXAMPLES)]
    Pack(commands::pack::PackArguments),
    /// Answer the questions of coding assistants about recordings (Model Context Protocol)
    #[cfg(feature = "mcp")]
    #[command(after_help = commands::mcp::EXAMPLES)]
    Mcp(commands::mcp::McpArguments),
    /// Print a completion script for a shell
    #[cfg(feature = "manual")]
    #[command(after_help = commands::completions::EXAMPLES)]
    Completions(commands::completions::CompletionsArguments),
    /// Write the manual pages
    #[cfg(feature = "manual")]
    #[command(after_help = commands::man::EXAMPLES)]
    Man(commands::man::ManArguments),
}

fn main() -> ExitCode {
    log::install();
    #[cfg(feature = "fleet")]
    vramscope_fleet::register();
    match Arguments::try_parse() {
        Ok(Arguments { command: Command::Run(arguments) }) => match commands::run::run(&arguments) {
            Ok(code) => ExitCode::from(code),
            Err(error) => exit_code(Err(error)),
        },
        Ok(arguments) => exit_code(run(&arguments.command)),
        Err(error) => exit_code(report_usage(&error).map(|()| Answer::Positive)),
    }
}

/// Runs the command. Its answer is negative if, for example, `verify` found a divergence.
fn run(command: &Command) -> Result<Answer> {
    match command {
        #[cfg(feature = "demo")]
        Command::Demo(arguments) => commands::demo::run(arguments),
        Command::View(arguments) => commands::view::run(arguments),
        Command::Record(arguments) => commands::record::run(arguments),
        Command::Serve(arguments) => commands::serve::run(arguments),
        #[cfg(feature = "fleet")]
        Command::Fleet(arguments) => commands::fleet::run(arguments),
        #[cfg(feature = "fleet")]
        Command::Query(arguments) => commands::query::run(arguments),
        Command::Run(_) => unreachable!("main runs it, for its exit code"),
        Command::Attach(arguments) => commands::attach::run(arguments),
        Command::Detach(arguments) => commands::detach::run(arguments),
        Command::Import(arguments) => commands::import::run(arguments),
        Command::Info(arguments) => commands::info::run(arguments),
        Command::Verify(arguments) => return commands::verify::run(arguments).map(Answer::from),
        Command::Simulate(arguments) => commands::simulate::run(arguments),
        Command::Advise(arguments) => commands::advise::run(arguments),
        Command::Autopsy(arguments) => return commands::autopsy::run(arguments),
        Command::Diagnose(arguments) => return commands::diagnose::run(arguments),
        #[cfg(feature = "export")]
        Command::Export(arguments) => commands::export::run(arguments),
        #[cfg(feature = "report")]
        Command::Report(arguments) => commands::report::run(arguments),
        Command::Diff(arguments) => return commands::diff::run(arguments).map(Answer::from),
        Command::Table(arguments) => commands::table::run(arguments),
        Command::Pack(arguments) => return commands::pack::run(arguments).map(Answer::from),
        #[cfg(feature = "mcp")]
        Command::Mcp(arguments) => commands::mcp::run(arguments),
        #[cfg(feature = "manual")]
        Command::Completions(arguments) => commands::completions::run(arguments, Arguments::command()),
        #[cfg(feature = "manual")]
        Command::Man(arguments) => commands::man::run(arguments, Arguments::command()),
    }
    .map(|()| Answer::Positive)
}

/// Returns the process's exit code: that of the answer, or 2 for an error, which is printed to
/// stderr.
fn exit_code(result: Result<Answer>) -> ExitCode {
    match result {
        Ok(answer) => answer.into(),
        Err(error) => {
            terminal::message(error);
            ExitCode::from(FAILED)
        }
    }
}

/// Prints help to stdout if the user asked for it; turns any other usage error into an error of one
/// line.
fn report_usage(error: &clap::Error) -> Result {
    if !error.use_stderr() {
        return terminal::ignore_broken_pipe(error.print());
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Err(CommandError::new("no command given (try vramscope --help)"));
    }
    let text = error.to_string();
    let cause = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    Err(CommandError::new(format_args!("{cause} (try {} --help)", command_with_help(std::env::args_os().nth(1)))))
}

/// Returns the command whose help describes the arguments: `vramscope COMMAND` if the first
/// argument is a command, else `vramscope`.
fn command_with_help(first_argument: Option<OsString>) -> String {
    let command = Arguments::command();
    let subcommand = first_argument.and_then(|name| command.find_subcommand(name));
    subcommand.map_or("vramscope".to_owned(), |subcommand| format!("vramscope {}", subcommand.get_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Arguments::command().get_subcommands() {
            let name = command.get_name();
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("Example") && help.contains(&format!("vramscope {name}")), "{name}: {help}");
        }
    }
}
