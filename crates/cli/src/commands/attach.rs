//! `vramscope attach`: shows the memory of a PyTorch program that is already running.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use vramscope_collector::parse_time;

use crate::attach::{PackageArguments, PythonProcess, python_literal};
use crate::error::{CommandError, Result};
use crate::merge_server::{MergeServer, MergeSource, OnUnwritable};
use crate::retention::RetentionArguments;
use crate::server::{AnnounceOn, ServerArguments};
use crate::signals::Interrupts;
use crate::terminal;

/// Text after the options in `vramscope attach --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope attach 4242
  vramscope attach 4242 --record run.vram --for 5m --no-open

The process keeps its own allocator. It continues as before after Ctrl-C, and if this command is
killed.";

/// Longest wait for the process to detach before this command ends.
const DETACH_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the process and the time are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Arguments of `vramscope attach`: the process, what to record, and the server.
#[derive(Args, Debug)]
pub(crate) struct AttachArguments {
    /// Process id of a Python program that uses PyTorch
    pid: u32,
    /// Also write the recording to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Call stacks to record
    #[arg(long, value_name = "KIND", value_parser = ["python", "all", "none"], default_value = "python")]
    stacks: String,
    /// Detach and stop after this long: 30s, 5m, 1h [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    duration: Option<Duration>,
    #[command(flatten)]
    package: PackageArguments,
    #[command(flatten)]
    retention: RetentionArguments,
    #[command(flatten)]
    server: ServerArguments,
}

/// Makes a process push its recording to this command, and serves the page until the command is
/// interrupted.
pub(crate) fn run(arguments: &AttachArguments) -> Result {
    let AttachArguments { record, stacks, package, retention, server, .. } = arguments;
    retention.require_file(record.as_deref())?;
    let interrupts = Interrupts::listen()?;
    let is_cancelled = || interrupts.requested();
    let pid = arguments.pid;
    let process = PythonProcess::find(pid)?;
    // Checks the usual causes of failure before the page is announced and a file is replaced.
    let program = package.call(&process, "_attach.check()", &is_cancelled)?;
    let merge = MergeServer::start(
        MergeSource::Push,
        server,
        record.as_deref(),
        retention,
        OnUnwritable::Fail,
        AnnounceOn::Stdout,
    )?;
    let (url, stacks, own_pid) = (python_literal(&merge.push_url()), python_literal(stacks), std::process::id());
    let start = format!("_attach.start({url}, stacks={stacks}, attacher={own_pid})");
    let status = package.call(&process, &start, &is_cancelled)?;
    terminal::message(format_args!("attached to process {pid}: {program}"));
    if status == "waiting" {
        terminal::message("PyTorch has not used a GPU yet; the recording begins when it does");
    } else if let Some(reason) = status.strip_prefix("polling: ") {
        terminal::message(format_args!(
            "cannot follow PyTorch's allocator: {reason}; recording snapshots instead, without call stacks"
        ));
    }

    let is_running = wait_for_end(&process, arguments, &interrupts);
    let detached = if is_running { detach(&process, arguments) } else { Ok(()) };
    merge.stop()?;
    detached
}

/// Waits until the command is interrupted or its time has passed. Returns true if the process still
/// runs then.
fn wait_for_end(process: &PythonProcess, arguments: &AttachArguments, interrupts: &Interrupts) -> bool {
    let start = Instant::now();
    let mut is_running = true;
    while !interrupts.wait_timeout(POLL_INTERVAL) {
        if arguments.duration.is_some_and(|duration| start.elapsed() >= duration) {
            break;
        }
        if is_running && !process.is_running() {
            is_running = false;
            terminal::message(format_args!("process {} has ended; the page stays open until Ctrl-C", arguments.pid));
        }
    }
    is_running && process.is_running()
}

/// Makes the process stop recording and pushing.
fn detach(process: &PythonProcess, arguments: &AttachArguments) -> Result {
    let package = arguments.package.with_timeout(DETACH_TIMEOUT);
    match package.call(process, "_attach.stop(missing_ok=True)", &|| false) {
        Ok(_) => Ok(()),
        Err(_) if !process.is_running() => Ok(()),
        Err(error) => {
            Err(CommandError::new(format_args!("{error}; it detaches by itself once this command has ended")))
        }
    }
}
