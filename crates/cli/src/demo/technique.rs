//! `demo --technique`: runs the program of techniques.

use std::path::Path;
use std::time::Duration;

use vramscope_collector::Hub;
use vramscope_demo::techniques::{Finished, Plan, TechniqueStep};
use vramscope_trace::Count;

use super::arguments::DemoArguments;
use super::output::{print_reports, print_reports_json, print_step};
use super::page::Page;
use super::recording::{OpenedDevice, Recording, file_result, outputs, print_file};
use super::step_lines::StepLines;
use super::tools::{ToolReport, Tools};
use crate::error::{CommandError, Result};
use crate::signals::Interrupts;

/// Shortest duration of a step that is watched.
const WATCHED_STEP_TIME: Duration = Duration::from_millis(40);

/// Starts to record the pool that `plan` needs.
pub(super) fn record(
    arguments: &DemoArguments,
    plan: &Plan,
    device: OpenedDevice,
    path: Option<&Path>,
    hub: Option<Hub>,
) -> Result<Recording> {
    let source = format!("vramscope demo {}", plan.name());
    Recording::start(device, plan.pool_settings(), &source, outputs(arguments, path, hub)?)
}

/// Options of the run of a plan's program.
pub(super) struct RunOptions<'a> {
    /// The file of the recording, if the user named one.
    pub(super) path: Option<&'a Path>,
    /// The folder for scalars for TensorBoard.
    pub(super) tensorboard: Option<&'a Path>,
    /// Shortest duration of a step.
    pub(super) min_step_time: Duration,
    /// The output stream of the line for each step.
    pub(super) step_lines: StepLines,
}

/// Runs `plan` and ends the recording. Prints a line for each step.
pub(super) fn run_recorded(
    arguments: &DemoArguments,
    plan: &Plan,
    recording: Recording,
    interrupts: &Interrupts,
    options: &RunOptions<'_>,
) -> Result<(Finished, ToolReport)> {
    let failed = |error| CommandError::new(format_args!("{}: {error}", plan.name()));
    let mut printed = Ok(());
    let mut run = || {
        let device = recording.device_of(plan).map_err(failed)?;
        let tools = Tools::start(&arguments.tools, &device, options.tensorboard, options.step_lines)?;
        let mut on_step = |step: &TechniqueStep| {
            tools.loss(step.loss);
            if printed.is_ok() {
                printed = print_step(step, options.step_lines);
            }
        };
        let finished = plan.run(&device, &interrupts.flag(), options.min_step_time, &mut on_step).map_err(failed)?;
        Ok((finished, tools.finish()))
    };
    let finished = run();
    let summary = recording.stop();
    print_file(options.path, &summary);
    let (finished, measured) = finished?;
    printed?;
    file_result(&summary)?;
    Ok((finished, measured?))
}

/// Runs techniques, live on the page, or prints their report as JSON.
pub(crate) fn run(arguments: &DemoArguments, names: &[String]) -> Result {
    let device = OpenedDevice::open(arguments.device)?;
    let plan = Plan::new(names, device.kind(), &arguments.sizes());
    let plan = plan.map_err(|error| CommandError::new(format_args!("--technique: {error}")))?;
    let (interrupts, path) = (Interrupts::listen()?, arguments.record.as_deref());
    let tensorboard = arguments.tools.tensorboard.as_deref();
    if arguments.json {
        let recording = record(arguments, &plan, device, path, None)?;
        let options = RunOptions { path, tensorboard, min_step_time: Duration::ZERO, step_lines: StepLines::Hidden };
        let (finished, measured) = run_recorded(arguments, &plan, recording, &interrupts, &options)?;
        return print_reports_json(&[(finished.report, measured)]);
    }
    let page = Page::start(arguments)?;
    let recording = record(arguments, &plan, device, path, Some(page.hub.clone()))?;
    let push = page.announce(arguments, &recording)?;
    let options = RunOptions { path, tensorboard, min_step_time: WATCHED_STEP_TIME, step_lines: StepLines::Stdout };
    let (finished, measured) = run_recorded(arguments, &plan, recording, &interrupts, &options)?;
    drop(push);
    let steps = Count(finished.report.losses.len() as u64).of("step", "steps");
    print_reports(std::slice::from_ref(&finished.report))?;
    measured.print()?;
    page.serve(format_args!("{}: {steps} done", plan.name()), &interrupts);
    Ok(())
}
