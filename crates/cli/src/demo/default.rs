//! The default demo: a perceptron that learns to classify images of digits.

use vramscope_collector::Settings;
use vramscope_demo::{Options, Step};
use vramscope_trace::{Count, Percent};

use super::arguments::DemoArguments;
use super::page::Page;
use super::recording::{OpenedDevice, Recording, file_result, outputs, print_file};
use super::step_lines::StepLines;
use super::tools::Tools;
use crate::error::{CommandError, Result};
use crate::signals::Interrupts;
use crate::terminal;

/// Number of training steps after which a line of progress is printed.
const STEPS_PER_LINE: u64 = 10;

/// Trains a model, records it and serves the page until the command is interrupted.
pub(crate) fn run(arguments: &DemoArguments) -> Result {
    let training = Options { steps: arguments.steps, ..Options::default() };
    let device = OpenedDevice::open(arguments.device)?;
    let interrupts = Interrupts::listen()?;
    let page = Page::start(arguments)?;
    let outputs = outputs(arguments, arguments.record.as_deref(), Some(page.hub.clone()))?;
    let recording = Recording::start(device, Settings::default(), "vramscope demo", outputs)?;
    let push = page.announce(arguments, &recording)?;
    let mut printed = Ok(());
    let device = recording.device()?;
    let tools = Tools::start(&arguments.tools, &device, arguments.tools.tensorboard.as_deref(), StepLines::Stdout)?;
    let mut on_step = |step: Step| {
        tools.loss(step.loss);
        if printed.is_ok() {
            printed = print_step(step, arguments.steps);
        }
    };
    let trained = vramscope_demo::run(&training, &device, &interrupts.flag(), &mut on_step);
    let measured = tools.finish();
    // Viewers receive the rest and the end of the recording before the server stops.
    let summary = recording.stop();
    drop(push);
    print_file(arguments.record.as_deref(), &summary);
    let trained = trained.map_err(CommandError::new)?;
    printed?;
    measured?.print()?;
    page.serve(format_args!("trained {}", Count(trained.steps).of("step", "steps")), &interrupts);
    file_result(&summary)
}

/// Prints a line for every tenth step, the first, the `last`, and each step that measured the
/// accuracy; prints nothing for other steps.
fn print_step(step: Step, last: Option<u64>) -> Result {
    let Step { number, loss, accuracy } = step;
    if number != 1 && !number.is_multiple_of(STEPS_PER_LINE) && last != Some(number) && accuracy.is_none() {
        return Ok(());
    }
    let accuracy = accuracy.map(|share| format!("  accuracy {}", Percent(f64::from(share)))).unwrap_or_default();
    terminal::print(&format!("step {number:>5}  loss {loss:.4}{accuracy}\n"))
}
