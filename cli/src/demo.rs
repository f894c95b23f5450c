//! `vramscope demo`: real training, watched live.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use vramscope_collector::{Assets, Content, Hub, Outputs, Recorder};
use vramscope_demo::{Options, Step};
use vramscope_trace::{DeviceInfo, Info};

use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupts;
use crate::screen;
use crate::serving::ServeOptions;
use crate::units;

/// Steps between two lines that say how the training goes.
const STEPS_PER_LINE: u64 = 10;

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoOptions {
    /// Where the model's memory is
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    device: Device,
    /// Train for so many steps, then go on serving [default: until Ctrl-C]
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Write the recording to a file, too
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    serve: ServeOptions,
}

/// What the model trains on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    /// The best there is
    Auto,
    /// A GPU
    Cuda,
    /// This machine's processor and memory
    Host,
}

/// Trains, records and serves until it is interrupted.
pub(crate) fn run(options: &DemoOptions) -> Outcome {
    if options.device == Device::Cuda {
        return Err(Failure::new("--device cuda: this vramscope cannot train on a GPU yet; use --device host"));
    }
    let training = Options { steps: options.steps, ..Options::default() };
    let interrupts = Interrupts::listen()?;
    let hub = Hub::default();
    // What can fail comes first, so that a mistake costs no earlier recording.
    let server = options.serve.start(Content { assets: Assets::page(), live: Some(hub.clone()), files: Vec::new() })?;
    let recorder = Recorder::start(info(&training), outputs(options.record.as_deref(), hub)?);
    let (recorder, handle) = recorder.map_err(|error| Failure::new(format_args!("the recorder: {error}")))?;
    options.serve.announce(&server)?;

    let clock = handle.clone();
    let mut printed = Ok(());
    let mut tell = |step| {
        if printed.is_ok() {
            printed = tell_step(step, options.steps);
        }
    };
    let trained = vramscope_demo::run(&training, handle, move || clock.now_ns(), &interrupts.flag(), &mut tell);
    // Whoever watches is given the rest and told that it is the end; then the server may go.
    let summary = recorder.stop();
    if let Some(path) = &options.record
        && summary.file_error.is_none()
    {
        let events = units::counted(summary.events, "event", "events");
        screen::note(format_args!("{}: {events} in {}", path.display(), units::bytes(summary.bytes)));
    }
    let unwritten = summary.file_error.zip(options.record.as_deref());
    let trained = trained.map_err(Failure::new)?;
    printed?;
    if !interrupts.requested() {
        let steps = units::counted(trained.steps, "step is", "steps are");
        screen::note(format_args!("{steps} done; {} stays there until Ctrl-C", server.url()));
        interrupts.wait();
    }
    unwritten.map_or(Ok(()), |(error, path)| Err(Failure::file(path, format_args!("not all was written: {error}"))))
}

fn info(training: &Options) -> Info {
    let device = DeviceInfo {
        device: 0,
        name: "host memory".to_owned(),
        total_bytes: training.capacity_bytes,
        history_complete: true,
        ..DeviceInfo::default()
    };
    Info {
        source: "vramscope demo".to_owned(),
        writer: concat!("vramscope ", env!("CARGO_PKG_VERSION")).to_owned(),
        devices: vec![device],
        ..Info::default()
    }
}

fn outputs(file: Option<&Path>, hub: Hub) -> Outcome<Outputs> {
    let mut outputs = Outputs { hub: Some(hub), ..Outputs::default() };
    if let Some(path) = file {
        let file = File::create(path).map_err(|error| Failure::file(path, error))?;
        let file: Box<dyn Write + Send> = Box::new(file);
        let path = path.to_owned();
        outputs.file = Some(file);
        outputs.on_file_error = Some(Box::new(move |error| {
            screen::note(format_args!("{}: {error}; it ends here, the live view goes on", path.display()));
        }));
    }
    Ok(outputs)
}

fn tell_step(step: Step, last: Option<u64>) -> Outcome {
    let Step { number, loss, accuracy } = step;
    if number != 1 && !number.is_multiple_of(STEPS_PER_LINE) && last != Some(number) && accuracy.is_none() {
        return Ok(());
    }
    let read = accuracy.map(|part| format!("  {:.1} % of unseen digits read right", part * 100.0)).unwrap_or_default();
    screen::print(&format!("step {number:>5}  loss {loss:.4}{read}\n"))
}
