//! `demo --compare`: runs two techniques with equal sizes and opens the comparison.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use vramscope_collector::{ServedContent, ServedRecording, page_address};
use vramscope_demo::techniques::Plan;

use super::arguments::DemoArguments;
use super::output::{print_reports, print_reports_json};
use super::recording::OpenedDevice;
use super::step_lines::StepLines;
use super::technique::{RunOptions, record, run_recorded};
use crate::error::{CommandError, Result};
use crate::input::Input;
use crate::server::AnnounceOn;
use crate::signals::Interrupts;

/// Runs the techniques of `--compare` one after the other, each in its own pool.
pub(crate) fn run(arguments: &DemoArguments, pair: &[String]) -> Result {
    let [first, second] = pair else { return Err(CommandError::new("--compare needs two techniques")) };
    let names = [first, second].map(|names| names.split('+').collect::<Vec<_>>());
    let kind = OpenedDevice::open(arguments.device)?.kind();
    let plans = Plan::pair([&names[0], &names[1]], kind, &arguments.sizes());
    let plans = plans.map_err(|error| CommandError::new(format_args!("--compare: {error}")))?;
    let interrupts = Interrupts::listen()?;
    let folder = TempDir::new().map_err(|error| CommandError::new(format_args!("no temporary folder: {error}")))?;
    let temporary = folder.path().join("demo.vram");
    let prefix = arguments.record.as_deref().unwrap_or(&temporary);
    let is_needed = arguments.record.is_some() || !arguments.json;
    let mut reports = Vec::new();
    let mut files = Vec::new();
    for (index, plan) in plans.iter().enumerate() {
        let path = is_needed.then(|| file_name(prefix, index, plan.name()));
        let recording = record(arguments, plan, OpenedDevice::open(arguments.device)?, path.as_deref(), None)?;
        // Only a file that the user named with `--record` gets a line.
        let named = path.as_deref().filter(|_| arguments.record.is_some());
        let tensorboard = arguments.tools.tensorboard.as_ref().map(|folder| folder.join(run_name(index, plan.name())));
        let step_lines = if arguments.json { StepLines::Hidden } else { StepLines::Stderr };
        let min_step_time = Duration::ZERO;
        let options = RunOptions { path: named, tensorboard: tensorboard.as_deref(), min_step_time, step_lines };
        step_lines.print(plan.name())?;
        let (finished, measured) = run_recorded(arguments, plan, recording, &interrupts, &options)?;
        reports.push((finished.report, measured));
        files.extend(path);
    }
    if arguments.json {
        return print_reports_json(&reports);
    }
    let served: Vec<_> = files.iter().map(|path| open(path)).collect::<Result<_>>()?;
    let addresses: Vec<_> = served.iter().enumerate().map(|(n, file)| page_address(n, &file.name)).collect();
    let second = addresses[1].trim_start_matches("?trace=");
    let server = arguments.server.start(ServedContent::files(served))?;
    arguments.server.announce_at(&server, AnnounceOn::Stdout, &format!("{}&compare={second}", addresses[0]))?;
    let (reports, measured): (Vec<_>, Vec<_>) = reports.into_iter().unzip();
    print_reports(&reports)?;
    for (plan, measured) in plans.iter().zip(&measured) {
        measured.print_titled(plan.name())?;
    }
    interrupts.wait();
    Ok(())
}

/// Returns the path of a run's recording: `prefix` with the run's number and techniques added.
fn file_name(prefix: &Path, index: usize, name: &str) -> PathBuf {
    let stem = prefix.file_stem().unwrap_or_default().to_string_lossy();
    prefix.with_file_name(format!("{stem}-{}.vram", run_name(index, name)))
}

/// Returns the name of a run: its number and techniques. The two runs of a comparison have
/// different names.
fn run_name(index: usize, name: &str) -> String {
    format!("{}-{}", index + 1, name.replace(',', "+"))
}

/// Opens a recording for the server.
fn open(path: &Path) -> Result<ServedRecording> {
    let input = Input::open(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (bytes, events) = input
        .stored_recording()?
        .ok_or_else(|| CommandError::file(path, "the recording was not written completely"))?;
    Ok(ServedRecording { name, bytes, events: Some(events) })
}
